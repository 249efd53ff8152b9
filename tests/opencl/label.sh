#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Labels come from records of `check --device --record`, and documents say what the record of this tree says. No device is needed.
#     label.sh TILEPROOF RECORD
set -euo pipefail
tool=$1 record=$2
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "label.sh: $*"; exit 1; }
untried="run on PoCL (CPU) and oclgrind; never run on a GPU"
# label CONFIG NAME [MODE]: what info says by a record of this kind
label() {
    "$record" "$@" >"$work/record"
    "$tool" info --record "$work/record" | sed -n 's/^ *kernel opencl: //p'
}
[ "$(label gpu 'Some GPU')" = "checked on Some GPU (gpu, 2026-11-17, 1 problems)" ] || fail "a GPU: $(label gpu 'Some GPU')"
[ "$(label gpu-quick 'Some GPU')" = "checked on Some GPU (gpu-quick, 2026-11-17, 1 problems)" ] || fail "a GPU, in brief"
[ "$(label gpu-part 'Some GPU')" = "$untried" ] || fail "cases that were chosen are not enough"
[ "$(label gpu 'Some GPU' eager)" = "$untried" ] || fail "cells of a model of that name are no record"
[ "$(label cpu 'Some CPU')" = "$untried" ] || fail "a CPU is no news"
[ "$(label accelerator 'Some FPGA')" = "checked on Some FPGA (accelerator, 2026-11-17, 1 problems); $untried" ] || fail "an accelerator is no GPU"
"$tool" info --json --record "$work/record" | python3 -c 'import json, sys; assert "Some FPGA" in json.load(sys.stdin)["opencl"]["evidence"]'
code=0
"$tool" info --record "$work/nothing" >"$work/out" 2>&1 || code=$?
[ "$code" = 2 ] || fail "a record that is no file: exit $code"
echo '{}' >"$work/record"
code=0
"$tool" info --record "$work/record" >"$work/out" 2>&1 || code=$?
[ "$code" = 2 ] || fail "a record that is no lock: exit $code"

# The tree's own record, and its documents.
said=$("$tool" info | sed -n 's/^ *kernel opencl: //p')
[ "$said" = "$("$tool" info --record opencl/checked.lock | sed -n 's/^ *kernel opencl: //p')" ] || fail "the tool was built with another record"
for file in opencl/README.md include/tileproof_opencl.h docs/backends.md; do
    case $said in
    *"never run on a GPU"*) grep -qi "never run on a GPU" "$file" || fail "$file does not say: $said" ;;
    *) ! grep -qi "never run on a GPU" "$file" || fail "$file: opencl/checked.lock says '$said'" ;;
    esac
done
