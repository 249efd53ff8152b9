#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The alert rules against promtool and against what the tool really exposes: run.sh PATH/TO/tileproof OPS_DIR
set -u
tool=${1:?usage: run.sh PATH/TO/tileproof OPS_DIR}
ops=$(cd "${2:?usage: run.sh PATH/TO/tileproof OPS_DIR}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/cli/expect.sh
. "$here/../cli/expect.sh"

# every name in the rules is one that the tool exposes, whether promtool is here or not
"$tool" run q64 d64 h4/2 bf16 causal --metrics "$scratch/plain.prom" >/dev/null || exit 1
names=$(grep -oE '\btileproof_[a-z_]+' "$ops/alerts.yml" | sort -u)
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

# The story: the best kernel is drilled away, the policy is serve. The series are those of real expositions.
best=$("$tool" explain q64 d96 bf16 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["kernel"])')
shape="q64 h4/2 d96 bf16 causal"
# shellcheck disable=SC2086
{
    "$tool" run $shape --fallback serve --metrics "$scratch/before.prom"
    "$tool" run $shape --fallback serve --disable "$best" --metrics "$scratch/after.prom"
    "$tool" run $shape --disable "$best" --metrics "$scratch/refused.prom"
} >/dev/null 2>&1
expect after-check-metrics 0 '' check_metrics "$scratch/after.prom"
expect refused-check-metrics 0 '' check_metrics "$scratch/refused.prom"
lower=$(sed -n 's/^tileproof_fallbacks_total{kernel="\([a-z0-9_]*\)".*reason="disabled".* 1$/\1/p' "$scratch/after.prom")
report fallback-counted "$([ -n "$lower" ] && [ "$lower" != "$best" ] && echo 1)" "$(grep fallbacks "$scratch/after.prom")"
report no-fallback-before "$(grep -q '^tileproof_fallbacks_total{' "$scratch/before.prom" || echo 1)" "counted without a drill"
report refusal-counted "$(grep -q '^tileproof_refusals_total{.*reason="disabled".* 1$' "$scratch/refused.prom" && echo 1)" \
    "$(grep refusals "$scratch/refused.prom")"

story() { # NAME BEFORE AFTER EXPECT...
    local name=$1 before=$2 after=$3
    shift 3
    python3 "$here/story.py" "$ops/alerts.yml" "$before" "$after" "$@" >"$scratch/$name.yml" || return 1
    promtool test rules "$scratch/$name.yml"
}
labels="phase=prefill,bucket=many-rows,dtype=bf16,reason=disabled"
expect story-quiet 0 SUCCESS story quiet "$scratch/before.prom" "$scratch/before.prom"
expect story-drilled 0 SUCCESS story drilled "$scratch/before.prom" "$scratch/after.prom" \
    "TileproofNewFallback:kernel=$lower,$labels" \
    "TileproofKernelMixChanged:kernel=$lower,phase=prefill" "TileproofKernelMixChanged:kernel=$best,phase=prefill"
expect story-refused 0 SUCCESS story refused "$scratch/before.prom" "$scratch/refused.prom" "TileproofRefused:$labels"
# and the test can fail: what must fire does not without the drill, what must be quiet is not with it
expect story-needs-the-drill 1 FAILED story none "$scratch/before.prom" "$scratch/before.prom" "TileproofNewFallback:$labels"
expect story-hears-the-drill 1 FAILED story deaf "$scratch/before.prom" "$scratch/after.prom"
finish
