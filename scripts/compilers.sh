#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything with gcc and clang, warnings as errors, and runs the tests of the clang build.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
for compiler in gcc clang; do
    echo "compilers: $compiler, warnings as errors"
    cmake -S . -B "build/$compiler" -G Ninja -DCMAKE_C_COMPILER="$compiler" -DTILEPROOF_WERROR=ON -DTILEPROOF_PYTHON=ON \
        >"build/$compiler.log" 2>&1 || { cat "build/$compiler.log"; exit 1; }
    cmake --build "build/$compiler"
done
echo "compilers: the clang build's tests"
cd build/clang && ctest --output-on-failure -LE slow -j "$(nproc)"
