#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tool on an OpenCL device, and on a host that has none.
#     tool.sh TILEPROOF
set -euo pipefail
tool=$1 models=$(cd "$(dirname "$0")/../../models" && pwd)
export POCL_CACHE_DIR=$PWD/pocl-cache
mkdir -p "$POCL_CACHE_DIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "tool.sh: $*"; exit 1; }

# No device: the loader finds no driver.
mkdir "$work/none"
code=0
OCL_ICD_VENDORS=$work/none "$tool" explain --device opencl q64 d64 causal >"$work/out" || code=$?
[ "$code" = 3 ] || fail "explain without a device: exit $code"
grep -qE 'opencl +fused .*(no OpenCL device|not found).*\[absent\]' "$work/out" || { cat "$work/out"; fail "no reason"; }
OCL_ICD_VENDORS=$work/none "$tool" info >"$work/out"
grep -qE '^opencl +(no OpenCL device|libOpenCL.so.1 not found)' "$work/out" || fail "info without a device"
OCL_ICD_VENDORS=$work/none "$tool" check --device opencl --quick >"$work/out"
grep -qE 'not run here: opencl \(.*\)' "$work/out" || fail "check without a device"
code=0
"$tool" explain --device cuda q64 2>"$work/out" || code=$?
[ "$code" = 2 ] && grep -q "it must be opencl" "$work/out" || fail "another device"
"$tool" info >"$work/out"
if ! grep -q '^opencl:0 ' "$work/out"; then
    grep '^opencl' "$work/out" || true
    echo "not run here: no OpenCL device"
    exit 77
fi
"$tool" info --json | python3 -c 'import json, sys; d = json.load(sys.stdin)["opencl"]; assert d["devices"][0]["usable"] and "never run on a GPU" in d["evidence"]'
"$tool" explain --device opencl q64 d64 causal >"$work/out"
grep -qE '^kernel +opencl' "$work/out" || fail "explain"
code=0
"$tool" explain --device opencl q64 d640 causal >"$work/out" || code=$?
[ "$code" = 3 ] && grep -q 'head_dim 640, need <= 256' "$work/out" || fail "a head dim that is not served"
"$tool" run --device opencl "b2 h4/2 q40 k70 d64 bf16 causal" --verify >"$work/out" || { cat "$work/out"; fail "run"; }
grep -qE '^device +opencl' "$work/out" && grep -qE '^tiles +[1-9]' "$work/out" || fail "receipt"
"$tool" run --device opencl "backward h4/2 q40 k70 d64 f32 causal" --verify >"$work/out" || { cat "$work/out"; fail "backward"; }

# The tool's own cases, as far as they are quick here: every feature, the receipts, one call, neighbours, pages, NaN.
"$tool" check --device opencl --quick --case 'hostile/(one-call|duplicate|pages|receipt|empty|unity|peak|sink-rows|hidden-keys|poison).* d(24|32|40|64|65) (f32|bf16)' >"$work/out" ||
    { tail -60 "$work/out"; fail "check"; }
tail -1 "$work/out"

# What a model asks for, with a lock of the device's own; canaries of the CPU do not take it for theirs.
"$tool" qualify "$models/gpt2.json" --device opencl --quick --phases decode --lock "$work/lock" --update --reason "first" >"$work/out" 2>&1 ||
    { cat "$work/out"; fail "qualify"; }
grep -q '"device": *"opencl:' "$work/lock" || fail "the lock does not name the device"
"$tool" qualify "$models/gpt2.json" --device opencl --quick --phases decode --lock "$work/lock" >"$work/out" 2>&1 || { cat "$work/out"; fail "again"; }

# Printed, never judged, and nothing is tuned by it.
ms() { "$tool" run "$@" "h4/2 q256 k256 d64 f32 causal" --json | sed -n 's/.*"time_ns": *\([0-9]*\).*/\1/p' | head -1 | awk '{printf "%.1f ms", $1 / 1e6}'; }
ms --device opencl >/dev/null # compiles
echo "speed on PoCL says nothing about a GPU: opencl $(ms --device opencl), generic $(ms --kernel generic --fallback permit --threads 1)"
