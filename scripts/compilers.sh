#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything with gcc and clang, warnings as errors, and runs the tests of the clang build on their reduced grid:
#     scripts/compilers.sh [gcc|clang ...]     these alone
# PYTHON names the Python that the package is built for, python3 by default; off: none, and the tests python and peers are
# not run.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
if [ "${PYTHON:=python3}" = off ]; then
    echo "compilers: not run here: python, peers (PYTHON=off)"
    package=(-DTILEPROOF_PYTHON=OFF)
else
    python=$("$PYTHON" scripts/python_env.py)
    package=(-U '_Python_*' -DTILEPROOF_PYTHON=ON -DPython_EXECUTABLE="$python")
fi
[ $# -gt 0 ] || set -- gcc clang
for compiler in "$@"; do
    echo "compilers: $compiler, warnings as errors"
    cmake -S . -B "build/$compiler" -G Ninja -DCMAKE_C_COMPILER="$compiler" -DTILEPROOF_WERROR=ON "${package[@]}" \
        >"build/$compiler.log" 2>&1 || { cat "build/$compiler.log"; exit 1; }
    cmake --build "build/$compiler"
done
case " $* " in *' clang '*) ;; *) exit ;; esac
echo "compilers: the clang build's tests"
# The compiler changes the library and its results; scripts that try files, signals and texts were run with gcc's.
scripts='runner|python|files|canary|trace_summary|bench|memory|compare|verdict|replay_cli|capacity_cli|report_cli|lock_cli|functions'
cd build/clang && TILEPROOF_TEST_QUICK=1 ctest --output-on-failure -LE slow -E "^($scripts)\$" -j "$(nproc)"
