#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/generate.c: what it generates is what new sequences give, it shares, forks and cuts, and it is short.
#     generate.sh PROGRAM SOURCE_DIR
set -euo pipefail
fail() { echo "$*"; exit 1; }
for tokens in 4 24 40; do
    said=$("$1" $tokens) || fail "$said"
    grep -q '^0 tokens differ from those of a new sequence: right$' <<<"$said" || fail "$said"
    grep -qE '^[1-3] drafts accepted; [0-9]+ pages used, [1-9][0-9]* shared, [1-9][0-9]* copied$' <<<"$said" || fail "$said"
    # it does generate: the last words of a are not all the same
    [ "$(grep '^a ' <<<"$said" | tr ' ' '\n' | grep -xE '[0-9]+' | sort -u | wc -l)" -ge 3 ] || fail "$said"
done
"$1" 3 2>/dev/null && fail "3 tokens were accepted"
[ "$(wc -l <"$2/examples/generate.c")" -lt 300 ] || fail "examples/generate.c has 300 lines or more"
