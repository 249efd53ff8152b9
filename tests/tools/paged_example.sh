#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example of a paged cache: right after few steps, after many, and when the pool is used up; no steps are refused.
#     paged_example.sh PROGRAM
set -euo pipefail
for steps in 1 16 17 300 5000; do
    out=$("$1" "$steps")
    grep -q ': right$' <<<"$out"
    grep -q 'paged=16 causal$' <<<"$out"
done
grep -q 'with 0 pages left' <<<"$out"
"$1" 300 | grep -q 'seqs=1x1/300,1x1/320 '
for steps in 0 -3 x; do # refused by its value, and nothing is printed as a result
    if out=$("$1" "$steps" 2>&1); then exit 1; fi
    [ "$out" = "STEPS is '$steps': it must be a number from 1 on" ]
done
