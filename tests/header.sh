#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A public header stands alone as C99 and as C++; its libraries export and define tp_ names only.
#     header.sh SOURCE_DIR SHARED_LIBRARY STATIC_LIBRARY [HEADER LIBRARIES]
set -euo pipefail
header=${4:-tileproof.h}
may_need=${5:-libm libpthreadpool}
for how in "gcc -std=c99 -pedantic-errors -x c" "clang -std=c11 -pedantic-errors -x c" "g++ -std=c++11 -x c++"; do
    command -v "${how%% *}" >/dev/null || { echo "not run here: ${how%% *} is not installed"; continue; }
    # shellcheck disable=SC2086
    echo "#include \"$header\"" | $how -Wall -Wextra -Werror -fsyntax-only -I "$1/include" -
done
exported=$(nm -D --defined-only "$2" | awk '{print $3}')
strangers=$(grep -v '^tp_[a-z]' <<<"$exported" || true)
[ -z "$strangers" ] || { echo "exported, but not of the API: $strangers"; exit 1; }
declared=$(grep -oE '\btp_[a-z0-9_]+\(' "$1/include/$header" | tr -d '(' | sort -u)
for name in $declared; do
    grep -qx "$name" <<<"$exported" || { echo "declared, but not exported: $name"; exit 1; }
done
for name in $exported; do
    grep -qx "$name" <<<"$declared" || { echo "exported, but not declared: $name"; exit 1; }
done
# what takes a context or a plan is asked in a forked child
if [ "$header" = tileproof.h ]; then
    takers=$(tr '\n' ' ' <"$1/include/$header" | grep -oE '\btp_[a-z0-9_]+\([^()]*\btp_(context|plan) \*[^()]*\)' | grep -vE '\((const tp_context_options|[^()]*\*\*context)' | grep -oE '^[a-z0-9_]+')
    for name in $takers; do
        grep -q "ROW($name," "$1/tests/test_forked.c" || { echo "not asked in a forked child: $name"; exit 1; }
    done
    [ "$(wc -w <<<"$takers")" -ge 19 ] || { echo "fewer functions take a context than there were: $takers"; exit 1; }
fi
globals=$(nm --defined-only --extern-only "$3" | awk 'NF == 3 {print $3}' | grep -v '^tp_' || true)
[ -z "$globals" ] || { echo "names without the prefix in the static library: $globals"; exit 1; }
grep -q "SONAME.*lib${header%.h}\.so\.[0-9]" <<<"$(readelf -d "$2")" || { echo "no versioned SONAME"; exit 1; }
needed=$(readelf -d "$2" | awk '/NEEDED/ {print $5}' | grep -vE "(${may_need// /|}|libc)\.|ld-linux|lib[at]san|libubsan" || true)
[ -z "$needed" ] || { echo "links more than libc, $may_need: $needed"; exit 1; }
# leaves stay in the symbol table, for profilers
[ "$header" != tileproof.h ] || grep -q ' t tp_attend_f32_generic$' <<<"$(nm "$2")" || { echo "leaf symbols were stripped"; exit 1; }
echo "header alone in C and C++; $(wc -w <<<"$exported") exported names, all declared"
