#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tree in another way and runs its tests on their reduced grid:
#     scripts/other_build.sh asan|tsan|emulated BUILD_DIR
# asan is the address and undefined-behaviour sanitizers. emulated adds the AVX-512 source compiled to
# plain vectors, so that a host without the instructions can check it; it never counts as passed there.
# tsan runs without pthreadpool, whose raw futexes it cannot see through: threads then come from the
# tests' own parallel-for, through the caller's entry point.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
quick=(-DCMAKE_BUILD_TYPE=Quick -DCMAKE_C_FLAGS_QUICK="-O1 -g") # of its own: CMakeLists.txt sets those of RelWithDebInfo
case $1 in
    asan) flags=("${quick[@]}" -DTILEPROOF_SANITIZE=address,undefined) ;;
    tsan) flags=("${quick[@]}" -DTILEPROOF_SANITIZE=thread -DTILEPROOF_PTHREADPOOL=OFF -DTILEPROOF_CLI=OFF) ;;
    emulated) flags=(-DTILEPROOF_EMULATED=ON) ;;
    *) echo "usage: other_build.sh asan|tsan|emulated BUILD_DIR" >&2; exit 2 ;;
esac
cmake -S "$source_dir" -B "$2" -G Ninja "${flags[@]}"
cmake --build "$2"
cd "$2"
export TILEPROOF_TEST_QUICK=1
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
if [ "$1" = emulated ]; then
    if [ -z "$(./tileproof info | awk '$1 == "avx2" && $NF == "runs"')" ]; then
        echo "not run here: emulation needs AVX2 and FMA"
        exit 77
    fi
    ./tileproof check --quick --kernel emulated
    ./tileproof check --kernel bf16_emulated # whole: few hosts have these instructions
    ./tileproof check --random 3000 --seed 20261116 --kernel emulated
    ctest --output-on-failure -R '^(exp2|borders|nonfinite|invariance|values|guard|untouched|masks|p_bf16)$'
    exit
fi
# What measures or draws, and under tsan what has one thread, only takes its time here.
case $1 in
    asan) left_out='bench|compare|verdict' ;;
    tsan) left_out='verdict|proof_.*|kernel_functions|dots|exp2|arithmetic|bound|values|large|nonfinite|guard|borders|dropout|masks|mask_kinds|mask_results|backward_nan|backward_bad|reference.*|rope.*|quant.*|model_.*|fuzz_.*' ;;
esac
ctest --output-on-failure -LE slow -E "^($left_out)\$"
./test_kv_soak 100000
