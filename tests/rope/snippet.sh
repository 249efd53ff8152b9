#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program of docs/rope.md compiles without a warning, and prints what the document says.
#     snippet.sh SOURCE_DIR LIBRARY
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
block() { awk -v fence="^\`\`\`$1\$" 'on && /^```$/ {exit} on {print} $0 ~ fence {on = 1}' "$2"; }
block c "$1/docs/rope.md" >"$work/rope.c"
sed -n '/^prints$/,$p' "$1/docs/rope.md" >"$work/behind"
block '' "$work/behind" >"$work/wanted"
[ "$(wc -l <"$work/wanted")" -eq 3 ] && grep -q tp_rope_apply "$work/rope.c" || { echo "docs/rope.md has other blocks"; exit 1; }
folder=$(dirname "$2")
cc -std=c11 -Wall -Wextra -Werror -I "$1/include" "$work/rope.c" -o "$work/rope" -L "$folder" -ltileproof "-Wl,-rpath,$folder"
"$work/rope" | diff "$work/wanted" -
echo "docs/rope.md: the program prints what it says"
