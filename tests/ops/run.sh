#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The alert rules against promtool and against what the tool really exposes: run.sh PATH/TO/tileproof OPS_DIR
set -u
tool=${1:?usage: run.sh PATH/TO/tileproof OPS_DIR}
ops=$(cd "${2:?usage: run.sh PATH/TO/tileproof OPS_DIR}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/../tools/expect.sh"

# every name in the rules is one that the tool exposes, whether promtool is here or not
"$tool" run q64 d64 h4/2 bf16 causal --metrics "$scratch/plain.prom" >/dev/null || exit 1
names=$(grep -ohE '\btileproof_[a-z_]+' "$ops/alerts.yml" "$ops/dashboard.json" | sort -u)
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
finish
