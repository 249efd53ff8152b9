#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program of these tests on the host's OpenCL, with PoCL's own cache in a folder of the build.
#     run.sh [--oclgrind] PROGRAM [WORD...]
# --oclgrind: on that simulator, as the loader's only driver, with its detector of races; anything it reports is a failure.
set -euo pipefail
export POCL_CACHE_DIR=$PWD/pocl-cache
mkdir -p "$POCL_CACHE_DIR"
if [ "${1:-}" != --oclgrind ]; then exec "$@"; fi
shift
library=$(ldconfig -p | sed -n 's/.*liboclgrind-rt-icd\.so.* => //p' | head -1)
for place in /usr/lib/*/oclgrind /usr/lib/oclgrind /usr/lib/*; do
    [ -n "$library" ] && break
    [ -e "$place/liboclgrind-rt-icd.so" ] && library=$place/liboclgrind-rt-icd.so
done
if [ -z "$library" ]; then
    echo "not run here: oclgrind is not installed (make test-device)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "$library" >"$work/only.icd"
export OCL_ICD_VENDORS=$work OCLGRIND_DATA_RACES=1 OCLGRIND_LOG=$work/log OPENCL_FINISH=1
code=0
"$@" || code=$?
if [ -s "$work/log" ]; then
    echo "oclgrind reports:"
    head -60 "$work/log"
    exit 1
fi
exit "$code"
