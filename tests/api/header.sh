#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A public header and its INIT macros stand alone in C and C++ of every standard, without a warning; no struct has padding; its libraries export
# and define tp_ names only, those that the header declares.
#     header.sh SOURCE_DIR SHARED_LIBRARY STATIC_LIBRARY [HEADER LIBRARIES]
set -euo pipefail
header=${4:-tileproof.h}
may_need=${5:-libm libpthreadpool}
# the headers of the library, and one variable for each TP_..._INIT
headers=("$1/include/$header")
[ "$header" != tileproof.h ] ||
    headers+=("$1/include/tileproof_backend.h" "$1/include/tileproof_cache.h" "$1/include/tileproof_rope.h")
program=$(printf '#include "%s"\n' "${headers[@]##*/}")
for name in $(grep -ohE '^#define TP_[A-Z_]+_INIT\b' "${headers[@]}" | awk '{print $2}'); do
    type=${name%_INIT}
    program+=$'\n'"extern ${type,,} a_${type,,}; ${type,,} a_${type,,} = $name;"
done
[ "$header" != tileproof.h ] || [ "$(grep -c extern <<<"$program")" -ge 7 ] || { echo "INIT macros were not found"; exit 1; }
for how in "c gcc" "c clang" "c++ g++" "c++ clang++"; do
    read -r language compiler <<<"$how"
    command -v "$compiler" >/dev/null || { echo "not run here: $compiler is not installed"; continue; }
    standards="c99 c11 c17"
    [ "$language" = c ] || standards="c++11 c++14 c++17 c++20"
    for standard in $standards; do
        "$compiler" -std="$standard" -x "$language" -Wall -Wextra -Wpedantic -pedantic-errors -Wmissing-field-initializers \
            -Werror -fsyntax-only -I "$1/include" - <<<"$program" || { echo "$compiler -std=$standard"; exit 1; }
    done
done
# No struct has padding: a field that is added later would lie in what older programs never set.
if [ "$(getconf LONG_BIT)" = 64 ]; then
    gcc -std=c11 -x c -Wpadded -Werror -fsyntax-only -I "$1/include" - <<<"$program" || { echo "a struct has padding"; exit 1; }
fi
exported=$(nm -D --defined-only "$2" | awk '{print $3}')
strangers=$(grep -v '^tp_[a-z]' <<<"$exported" || true)
[ -z "$strangers" ] || { echo "exported, but not of the API: $strangers"; exit 1; }
inline=$(grep -ohE '^static inline [^(]*\btp_[a-z0-9_]+\(' "${headers[@]}" | grep -oE 'tp_[a-z0-9_]+\(' | tr -d '(' || true)
declared=$(grep -ohE '\btp_[a-z0-9_]+\(' "${headers[@]}" | tr -d '(' | sort -u | grep -vxF "${inline:-none}")
# what fills a struct is called with the caller's size by an inline function of the same name
[ "$(sort <<<"$inline")" = "$(grep -oE '^tp_[a-z0-9_]+_sized$' <<<"$declared" | sed 's/_sized$//' | sort)" ] ||
    { echo "inline functions and those that take a size do not match: $inline"; exit 1; }
for name in $declared; do
    grep -qx "$name" <<<"$exported" || { echo "declared, but not exported: $name"; exit 1; }
done
for name in $exported; do
    grep -qx "$name" <<<"$declared" || { echo "exported, but not declared: $name"; exit 1; }
done
# what takes a context or a plan is asked in a forked child
if [ "$header" = tileproof.h ]; then
    takers=$(tr '\n' ' ' <"$1/include/$header" | grep -oE '\btp_[a-z0-9_]+\([^()]*\btp_(context|plan) \*[^()]*\)' | grep -vE '\((const tp_context_options|[^()]*\*\*context)' | grep -oE '^[a-z0-9_]+' | sed 's/_sized$//' | sort -u)
    for name in $takers; do
        grep -q "ROW($name," "$1/tests/api/test_forked.c" || { echo "not asked in a forked child: $name"; exit 1; }
    done
    [ "$(wc -w <<<"$takers")" -ge 24 ] || { echo "fewer functions take a context than there were: $takers"; exit 1; }
fi
globals=$(nm --defined-only --extern-only "$3" | awk 'NF == 3 {print $3}' | grep -v '^tp_' || true)
[ -z "$globals" ] || { echo "names without the prefix in the static library: $globals"; exit 1; }
grep -q "SONAME.*lib${header%.h}\.so\.[0-9]" <<<"$(readelf -d "$2")" || { echo "no versioned SONAME"; exit 1; }
needed=$(readelf -d "$2" | awk '/NEEDED/ {print $5}' | grep -vE "(${may_need// /|}|libc)\.|ld-linux|lib[at]san|libubsan" || true)
[ -z "$needed" ] || { echo "links more than libc, $may_need: $needed"; exit 1; }
# kernel functions stay in the symbol table, for profilers
[ "$header" != tileproof.h ] || grep -q ' t tp_attend_f32_generic$' <<<"$(nm "$2")" || { echo "symbols of kernel functions were stripped"; exit 1; }
echo "header alone in C and C++; $(wc -w <<<"$exported") exported names, all declared"
