#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The blocks of C in docs/cache.md, one behind the other, are a program that compiles without a warning and runs.
#     cache_docs.sh SOURCE_DIR STATIC_LIBRARY [LIBRARIES...]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    printf '#include <stdio.h>\n#include <stdlib.h>\n#include "tileproof_cache.h"\n'
    printf '#define TRY(call) do { if ((call) != TP_OK) { fprintf(stderr, "%%s: %%s\\n", #call, error.text); return 1; } } while (0)\n'
    printf 'static int out(void *to, const char *bytes, size_t size) { return fwrite(bytes, 1, size, (FILE *)to) != size; }\n'
    printf 'int main(void) {\n'
    awk '/^```c$/ {copy = 1; next} /^```$/ {copy = 0} copy' "$1/docs/cache.md"
    printf 'return 0;\n}\n'
} >"$work/page.c"
[ "$(grep -c 'tp_cache_' "$work/page.c")" -ge 15 ] || { echo "the page has lost its examples"; exit 1; }
cc -std=c11 -Wall -Wextra -Werror -I "$1/include" "$work/page.c" "${@:2}" -lm -lpthread -o "$work/page"
"$work/page" >"$work/said"
grep -q '^tileproof_cache_pages_used [0-9]' "$work/said" || { cat "$work/said"; exit 1; }
