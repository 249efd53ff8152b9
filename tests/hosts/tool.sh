#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tool on a host that is slow because it is emulated: bash tests/hosts/tool.sh PATH/TO/tileproof. Every kernel that
# runs there is held against the reference; selection, receipts, cells, a lock and a drill fit the host.
set -u
tool=${1:?usage: tool.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/../tools/expect.sh"

info=$("$tool" info)
kernels=$(awk '$NF == "runs" && $1 != "math" {print $1}' <<<"$info")
absent=$(awk '$NF == "no" {print $1}' <<<"$info")
best=$(head -1 <<<"$kernels")

expect best 0 "^kernel +$best " "$tool" explain q64 d64 causal
expect ran 0 "^kernel +$best" "$tool" run q40 k70 h4/2 d24 bf16 causal --verify
for kernel in $absent; do
    expect "absent-$kernel" 3 "$kernel: isa .*need" "$tool" run --kernel "$kernel" --fallback permit q16 d64
done
for kernel in $kernels; do
    for words in 'q33 k70 h4/2 d40 f32 causal window=20,0' 'seqs=1x20/50,3x1/70 h4/2 d32 bf16 packed-q paged=3 causal' \
        'backward h2/1 q20 k30 d24 f32 causal'; do
        expect "verify-$kernel-${words// /-}" 0 'within the rule' "$tool" run --kernel "$kernel" --fallback permit --verify "$words"
    done
done
check=$("$tool" check --case 'own-key.* f32')
report check "$(grep -qE '^[0-9]+ passed, 0 failed' <<<"$check" && echo 1)" "$check"
for kernel in $absent; do
    report "check-absent-$kernel" "$(grep -qE "$kernel.*not run here|not run here.*$kernel" <<<"$check" && echo 1)" "$check"
done

# a small model: its lock is this host's, its canary is quiet, a drill names this host's best kernel
printf '{"tileproof_model": 1, "groups": [{"layers": "0-1", "problem": "h2/1 d32 f32 causal", "max_positions": 64}]}' >"$scratch/small.json"
lock=$scratch/small.lock
expect qualify 0 "^kernels $best;" "$tool" qualify "$scratch/small.json" --quick --lock "$lock" --update --reason hosts
expect canary 0 '; 0 notes' "$tool" canary "$lock"
expect drill 3 "([^|]*; )?$best: head_dim 32 is disabled by hand.*math: a fallback" "$tool" canary "$lock" --drill no:HEAD_DIM=32
expect drill-kernel 3 "$best: disabled by hand" "$tool" canary "$lock" --drill "no:$best"
finish
