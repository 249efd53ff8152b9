#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A mask kind is added in at most six files, and everything that goes by kinds then knows it: dilated.patch adds `dilated`
# to a copy of the tree, which is built and checked. The kind is not shipped: a number is fixed for ever.
#     dilated.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
patch=$1/tests/masks/dilated.patch tree=$2/tree build=$2/build
rm -rf "$tree"
mkdir -p "$tree"
tar -C "$1" --exclude=./build --exclude=./.git -cf - . | tar -C "$tree" -xf -
cd "$tree"
files=$(grep -c '^diff --git ' "$patch")
[ "$files" -le 6 ] || { echo "the patch touches $files files: a kind must need at most 6"; exit 1; }
# not a repository of its own: git apply would look for one around it
GIT_CEILING_DIRECTORIES=$2 git apply -p1 "$patch"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTILEPROOF_PROOF=OFF -DTILEPROOF_PYTHON=OFF >"$2/configure.log" || { cat "$2/configure.log"; exit 1; }
cmake --build "$build" --target tileproof_cli test_masks test_mask_kinds test_mask_results test_mask_rules test_mask_cache \
    test_problem_text test_random >"$2/build.log" || { cat "$2/build.log"; exit 1; }
cd "$build"

# tests that walk the table: parts, bits and pairs against brute force, results, texts, draws
for name in masks mask_kinds mask_results mask_rules mask_cache problem_text random; do
    ./test_$name >"$2/$name.log" 2>&1 || { cat "$2/$name.log"; exit 1; }
done
expect() { # NAME PATTERN COMMAND...
    local name=$1 pattern=$2
    shift 2
    "$@" >"$tree.log" 2>&1 || { echo "$name: $* failed"; tail -40 "$tree.log"; exit 1; }
    grep -qE -- "$pattern" "$tree.log" || { echo "$name: no '$pattern' in what $* prints:"; tail -40 "$tree.log"; exit 1; }
    echo "ok $name"
}
expect help 'dilated=N,OFFSET' ./tileproof --help
expect info ', dilated$' ./tileproof info
expect pairs 'on 715 visible pairs' ./tileproof explain q64 k64 d64 causal dilated=3,0
expect estimate 'on about [0-9]+ visible pairs' ./tileproof explain q1m d64 causal dilated=3,0
expect definition 'passed +hostile/definition .*dilated=3,1' ./tileproof check --mask dilated --case definition -v
expect check '[1-9][0-9]* passed, 0 failed' ./tileproof check --mask dilated
expect gradients 'passed +backward/.*dilated=3,1' ./tileproof check --mask dilated --case '^backward' --kernel '^generic$' -v
expect random 'dilated= [1-9]' ./tileproof check --random 200 --seed 1
# a kind that is not defined a second time is found
sed -i '/case TP_MASK_DILATED/d' "$tree/cli/check/definition.c"
cmake --build "$build" --target tileproof_cli >"$2/build.log" || { cat "$2/build.log"; exit 1; }
if ./tileproof check --mask dilated --case definition >"$tree.log"; then echo "a kind without a definition of its own passes"; exit 1; fi
grep -q 'has no definition in cli/check/definition.c' "$tree.log"
# holes cannot be counted by ends
sed -i '/^TP_MASK(dilated/s/holes, rows/holes, ends/' "$tree/src/masks/masks.inc"
if cmake --build "$build" --target tileproof_cli >"$2/build.log"; then echo "holes that are counted by ends compile"; exit 1; fi
grep -q PAIRS_ends_holes "$2/build.log"
echo "a new kind in $files files"
