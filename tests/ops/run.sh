#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The alert rules against promtool, and on what the library really exposes in each state of an incident (server.c):
#     run.sh PATH/TO/tileproof PATH/TO/ops_server OPS_DIR
set -u
usage="usage: run.sh PATH/TO/tileproof PATH/TO/ops_server OPS_DIR"
tool=${1:?$usage} server=${2:?$usage}
ops=$(cd "${3:?$usage}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/../tools/expect.sh"

# every name in the rules is one that the tool exposes, whether promtool is here or not
"$tool" run q64 d64 h4/2 bf16 causal --metrics "$scratch/plain.prom" >/dev/null || exit 1
names=$(grep -ohE '\btileproof_[a-z0-9_]+' "$ops/alerts.yml" "$ops/dashboard.json" |
    sed -E 's/^(tileproof_call_seconds)_(bucket|sum|count)$/\1/' | sort -u)
expect_json dashboard 0 cat "$ops/dashboard.json"
report names-found "$([ "$(wc -l <<<"$names")" -ge 8 ] && echo 1)" "$names"
for name in $names; do
    report "exposed-$name" "$(grep -q "^# TYPE $name " "$scratch/plain.prom" && echo 1)" "$name is in no exposition"
done

PATH=$PATH:$here/../../build/tools # where scripts/setup.sh puts it
if ! command -v promtool >/dev/null; then
    finish || exit 1
    echo "not run here: promtool is not installed (Debian: prometheus)"
    exit 77
fi
expect check-rules 0 'SUCCESS' promtool check rules "$ops/alerts.yml"
expect test-rules 0 'SUCCESS' promtool test rules "$ops/alerts_test.yml"

check_metrics() { promtool check metrics <"$1"; }
expect check-metrics 0 '' check_metrics "$scratch/plain.prom"
told="" # every alert that fired in a story

story() { # NAME BEFORE AFTER EXPECT...
    local name=$1 before=$2 after=$3
    shift 3
    python3 "$here/story.py" "$ops/alerts.yml" "$before" "$after" "$@" >"$scratch/$name.yml" || return 1
    promtool test rules "$scratch/$name.yml"
}

# The story: kernels are drilled away, the policy is serve. The series are those of real expositions.
drilled() { # NAME DRILL
    local name=$1 drill=$2 shape="q64 h4/2 d96 bf16 causal" lower
    local before=$scratch/$name-before.prom after=$scratch/$name-after.prom refused=$scratch/$name-refused.prom
    # shellcheck disable=SC2086
    {
        "$tool" run $shape --fallback serve --metrics "$before"
        "$tool" run $shape --fallback serve --disable "$drill" --metrics "$after"
        "$tool" run $shape --disable "$drill" --metrics "$refused"
    } >/dev/null 2>&1
    expect "$name-after-check-metrics" 0 '' check_metrics "$after"
    expect "$name-refused-check-metrics" 0 '' check_metrics "$refused"
    lower=$(sed -n 's/^tileproof_fallbacks_total{kernel="\([a-z0-9_]*\)".*reason="disabled".* 1$/\1/p' "$after")
    report "$name-fallback-counted" "$([ -n "$lower" ] && [ "$lower" != "$best" ] && echo 1)" "$(grep fallbacks "$after")"
    report "$name-no-fallback-before" "$(grep -q '^tileproof_fallbacks_total{' "$before" || echo 1)" "counted without a drill"
    report "$name-refusal-counted" "$(grep -q '^tileproof_refusals_total{.*reason="disabled".* 1$' "$refused" && echo 1)" \
        "$(grep refusals "$refused")"
    local labels="phase=prefill,bucket=many-rows,dtype=bf16,reason=disabled"
    expect "$name-quiet" 0 SUCCESS story quiet "$before" "$before"
    expect "$name-drilled" 0 SUCCESS story drilled "$before" "$after" "TileproofNewFallback:kernel=$lower,$labels" \
        "TileproofKernelMixChanged:kernel=$lower,phase=prefill" "TileproofKernelMixChanged:kernel=$best,phase=prefill"
    expect "$name-refused" 0 SUCCESS story refused "$before" "$refused" "TileproofRefused:$labels"
    # and the test can fail: what must fire does not without the drill, what must be quiet is not with it
    expect "$name-needs-the-drill" 1 FAILED story none "$before" "$before" "TileproofNewFallback:$labels"
    expect "$name-hears-the-drill" 1 FAILED story deaf "$before" "$after"
}
best=$("$tool" explain q64 d96 bf16 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["kernel"])')
drilled kernel "$best"
# all fused kernels of one head dim, where the tool has that drill
"$tool" explain q64 d96 --disable head_dim=96 >/dev/null 2>&1
[ $? = 2 ] || drilled head-dim head_dim=96

# A server in each state: quiet before, and then exactly what is named here. Its new revision is one call of 250.
"$server" write "$scratch" || exit 1
for file in "$scratch"/{before,new-served,new-refused,stale,canary}.prom; do
    expect "$(basename "$file")-check-metrics" 0 '' check_metrics "$file"
done
# two caches are one text; a text of each, joined, is none
expect caches-check-metrics 0 '' check_metrics "$scratch/caches.prom"
for name in 'self \"a\"' cross; do
    report "caches-$name" "$(grep -qF "tileproof_cache_loss{cache=\"$name\"} +Inf" "$scratch/caches.prom" && echo 1)" \
        "$(cat "$scratch/caches.prom")"
done
expect joined-check-metrics 1 'second HELP line' check_metrics "$scratch/joined.prom"
state() { # STATE EXPECT...
    local name=$1 word
    shift
    expect "state-$name" 0 SUCCESS story "$name" "$scratch/before.prom" "$scratch/$name.prom" "$@"
    for word in "$@"; do told="$told ${word%%:*}"; done
}
fused=$("$tool" explain h4/2 q64 k64 d64 f32 causal --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["kernel"])')
small="model=small,phase=prefill,bucket=many-rows"
state before
state new-served "TileproofNewFallback:kernel=math,reason=head_dim,$small" "TileproofKernelMixChanged:kernel=math,$small" \
    "TileproofKernelMixChanged:kernel=$fused,$small" "TileproofP99Shifted:$small" TileproofLockDrift:state=other-config \
    TileproofScratchAboveLock
# where a shape is served again, a busy host may take twice as long for it
state new-refused "TileproofRefused:$small" TileproofLockDrift:state=other-config ~TileproofP99Shifted
for end in stale other-config unknown-model refused unreadable failed; do
    state $end TileproofLockDrift:state=$end
done
state unreadable-config TileproofLockDrift:state=unreadable
state scratch TileproofScratchAboveLock ~TileproofP99Shifted
# a server that knows of no canary waits for none, however long; one that does is quiet for a day
expect state-no-canary 0 SUCCESS story no-canary "$scratch/before.prom" "$scratch/before.prom" --at 1800
expect state-canary-passed 0 SUCCESS story passed "$scratch/canary.prom" "$scratch/canary.prom" --at 1490
expect state-canary-late 0 SUCCESS story late "$scratch/canary.prom" "$scratch/canary.prom" --at 1520 TileproofCanaryStale
told="$told TileproofCanaryStale"
# rolled back: after the new revision the old one, and all is quiet
expect state-rolled-back 0 SUCCESS story rolled "$scratch/before.prom" "$scratch/before.prom"
expect state-needs-it 1 FAILED story needs "$scratch/before.prom" "$scratch/before.prom" TileproofLockDrift:state=stale
expect state-hears-it 1 FAILED story hears "$scratch/before.prom" "$scratch/stale.prom"
for alert in $(sed -n 's/^ *- alert: //p' "$ops/alerts.yml"); do
    report "fired-$alert" "$(grep -qw "$alert" <<<"$told" && echo 1)" "$alert fired in no story of real metrics"
done
finish
