#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds with one set of sanitizers and runs the C tests on their reduced grid:
#     scripts/sanitized.sh asan|tsan BUILD_DIR
# tsan runs without pthreadpool, whose raw futexes it cannot see through: threads then come from the
# tests' own parallel-for, through the caller's door.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
case $1 in
    asan) flags=(-DTILEPROOF_SANITIZE=address,undefined) ;;
    tsan) flags=(-DTILEPROOF_SANITIZE=thread -DTILEPROOF_PTHREADPOOL=OFF -DTILEPROOF_CLI=OFF) ;;
    *) echo "usage: sanitized.sh asan|tsan BUILD_DIR" >&2; exit 2 ;;
esac
cmake -S "$source_dir" -B "$2" -G Ninja -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g" "${flags[@]}"
cmake --build "$2"
cd "$2"
export TILEPROOF_TEST_QUICK=1
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
ctest --output-on-failure -LE slow
