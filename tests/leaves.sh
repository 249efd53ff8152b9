#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds what receipts say against what a profiler saw: runs the tool under callgrind and compares the leaf
# symbols of the profile, and how often each was called, with the receipt's.     leaves.sh TOOL
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tool=$1
failed=0 passed=0
run() { # kernel problem [the leaves to look at]
    local out=$work/out text=$work/receipt leaves=${3:-load_q|pack_k|pack_v|dots|mix|store_o|attend|fold|math}
    if ! valgrind -q --tool=callgrind --callgrind-out-file="$out" "$tool" run --kernel "$1" --fallback permit \
        --threads 1 "$2" >"$text" 2>"$work/log"; then
        # valgrind 3.19 knows no AVX-512 and hides it from the tool
        if grep -q 'isa' "$work/log"; then echo "not run here: $1 under callgrind"; return; fi
        cat "$work/log"; failed=$((failed + 1)); return
    fi
    awk '$1 == "leaf" {print $2, $4}' "$text" | grep -E "^tp_($leaves)_" | sort >"$work/said"
    # callgrind names a function once, (id) name, and later by (id); calls=N follows the callee's line
    python3 - "$out" "$leaves" >"$work/seen" <<'PYTHON'
import collections, re, sys
names, calls, callee = {}, collections.Counter(), None
for line in open(sys.argv[1]):
    if match := re.match(r"c?fn=\((\d+)\)(?: (\S+))?", line):
        if match.group(2):
            names[match.group(1)] = match.group(2)
        if line.startswith("cfn="):
            callee = match.group(1)
    elif match := re.match(r"calls=(\d+)", line):
        calls[names[callee]] += int(match.group(1))
for name, count in sorted(calls.items()):
    name = name.split("'")[0]
    if re.fullmatch(rf"tp_({sys.argv[2]})_\w+", name):
        print(name, count)
PYTHON
    if [ -s "$work/said" ] && diff "$work/said" "$work/seen"; then
        passed=$((passed + 1))
    else
        echo "receipt (<) and profile (>) differ: $1, $2"; failed=$((failed + 1))
    fi
}
for kernel in avx512 avx2 generic math; do
    run $kernel "h4/2 q70 k90 d40 bf16 causal"
    run $kernel "h2/1 q3 k4200 d16 f32 window=300,0"
    run $kernel "seqs=1x9/30,2x1/5 h2 d8 f16->f32 packed"
    run $kernel "h8/2 q1 k1100 d24 bf16 paged=16"
    run $kernel "seqs=1x40/90,2x1/1030 h2/1 d16 f32 packed-q paged=3 causal"
    run $kernel "h8/1 q3 k90 d40/32 f16 latent lists=20"
done
# the tool runs the forward call first, which no receipt of the backward one counts: only leaves of its own
for kernel in avx512 avx2 generic; do
    run $kernel "backward h4/2 q70 k90 d40 bf16 causal" "delta|store_d|backward"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
