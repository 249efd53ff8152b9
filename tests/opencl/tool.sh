#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tool on an OpenCL device, and on a host that has none.
#     tool.sh TILEPROOF SHIM
set -euo pipefail
tool=$1 shim=$2 models=$(cd "$(dirname "$0")/../../models" && pwd)
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
OCL_ICD_VENDORS=$work/none "$tool" check --device opencl --random 3 >"$work/out"
grep -qE 'not run here: opencl \(.*\)' "$work/out" || fail "random problems without a device"
code=0
OCL_ICD_VENDORS=$work/none "$tool" check --device opencl --quick --record "$work/record" >"$work/out" 2>&1 || code=$?
[ "$code" = 3 ] && grep -qE 'no OpenCL device|not found' "$work/out" && [ ! -e "$work/record" ] || fail "a record without a device"
code=0
OCL_ICD_VENDORS=$work/none "$tool" capacity "$models/gpt2.json" --context 64 --concurrency 2 --device opencl >"$work/out" 2>&1 || code=$?
[ "$code" = 3 ] && grep -qE 'no OpenCL device|not found' "$work/out" || fail "capacity without a device"
for words in "--record $work/record" "--device opencl --record $work/record --random 2"; do
    code=0
    # shellcheck disable=SC2086
    "$tool" check $words >"$work/out" 2>&1 || code=$?
    [ "$code" = 2 ] && grep -q -e '--record' "$work/out" || fail "check $words: exit $code"
done
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
grep ' passed, 0 failed' "$work/out"

# What a model asks for, with a lock of the device's own; canaries of the CPU do not take it for theirs.
"$tool" qualify "$models/gpt2.json" --device opencl --quick --phases decode --lock "$work/lock" --update --reason "first" >"$work/out" 2>&1 ||
    { cat "$work/out"; fail "qualify"; }
grep -q '"device": *"opencl:' "$work/lock" || fail "the lock does not name the device"
grep -q '"opencl_kernels":' "$work/lock" && grep -q '"driver":' "$work/lock" || fail "the lock does not name kernels and driver"
"$tool" qualify "$models/gpt2.json" --device opencl --quick --phases decode --lock "$work/lock" >"$work/out" 2>&1 || { cat "$work/out"; fail "again"; }
grep -qE 'never run on a GPU|checked on' "$work/out" || fail "qualify does not say where its kernels have been run"
"$tool" canary "$work/lock" --device opencl --metrics "$work/prom" >"$work/out" || { cat "$work/out"; fail "canary"; }
grep -q '3 cells of opencl:.*: 3 run' "$work/out" && grep -q '^As the lock says' "$work/out" || fail "canary did not run the cells"
grep -q 'tileproof_lock_state{model="gpt2.json",state="matches"} 1' "$work/prom" || fail "metrics of a canary"
"$tool" canary "$work/lock" --device opencl --if-changed >"$work/out"
grep -q 'nothing changed' "$work/out" || fail "canary --if-changed"
"$tool" lock list "$work/lock" --device opencl >"$work/out"
grep -q 'as qualified' "$work/out" || fail "lock list"
code=0
"$tool" canary "$work/lock" >"$work/out" 2>&1 || code=$?
[ "$code" = 3 ] && grep -q 'Not run: 3 cells of opencl:.* (tileproof canary --device opencl)' "$work/out" || { cat "$work/out"; fail "canary on the CPU"; }
code=0
OCL_ICD_VENDORS=$work/none "$tool" canary "$work/lock" --device opencl >"$work/out" 2>&1 || code=$?
[ "$code" = 3 ] && grep -q 'not run here: ' "$work/out" && grep -q 'Not run: 3 cells of opencl:' "$work/out" || fail "canary without its device"
code=0
"$tool" canary "$work/lock" --device opencl --against old.so >"$work/out" 2>&1 || code=$?
[ "$code" = 2 ] || fail "canary --against on a device"

# Random problems: each passes, or is refused with a reason. The seed has both kinds.
"$tool" check --random 6 --seed 3 --device opencl >"$work/out" || { cat "$work/out"; fail "random problems"; }
grep -qE '^6 problems: [1-9][0-9]* passed, 0 failed' "$work/out" && grep -q '^refused: ' "$work/out" || { cat "$work/out"; fail "random problems"; }
"$tool" check --device opencl "h2/1 q9 k40 d32 bf16 causal @hidden" --seed 7 >"$work/out"
grep -q '^passed  kernel opencl' "$work/out" || fail "one problem"

# Memory as the driver says it.
"$tool" capacity "$models/gpt2.json" --context 64 --concurrency 2 --device opencl >"$work/out" || { cat "$work/out"; fail "capacity"; }
grep -q "this device's memory" "$work/out" && grep -qE '^opencl:.*, says its driver:$' "$work/out" && grep -qE '^  memory .* local memory ' "$work/out" || fail "capacity of a device"
"$tool" capacity "$models/gpt2.json" --context 64 --concurrency 2 --device opencl -o json >"$work/capacity"
"$tool" info --json | python3 -c 'import json, sys
device = json.load(sys.stdin)["opencl"]["devices"][0]
said = json.load(open(sys.argv[1]))
assert said["limit_bytes"] == said["device"]["memory_bytes"] == device["memory_bytes"] and said["device"]["local_bytes"] == device["local_bytes"]
assert said["prefill"]["kernel"] == said["decode"]["kernel"] == "opencl"' "$work/capacity"

# A record of what passed. Of a CPU, or of a part of the cases, it changes no label (label.sh has those that do).
untried="run on PoCL (CPU) and oclgrind; never run on a GPU"
some='^hostile/one-call .* f32'
"$tool" check --device opencl --case "$some" --record "$work/record" >"$work/out" 2>&1 || { cat "$work/out"; fail "a record"; }
grep -q "^kernel opencl: $untried" "$work/out" || fail "check does not say where its kernels have been run"
grep -qE '"model": *"tileproof check", *"config": *"cpu-part"' "$work/record" && grep -q '"mode": *"check"' "$work/record" || fail "no record"
"$tool" lock list "$work/record" >"$work/out"
grep -q 'QUALIFIED' "$work/out" || fail "the record is no lock"
"$tool" info --record "$work/record" >"$work/out"
grep -q "kernel opencl: $untried" "$work/out" || fail "the label of a CPU"
mkdir "$work/gpu"
ln -s "$shim" "$work/gpu/libOpenCL.so.1"
real=$(ldconfig -p | sed -n 's/.*libOpenCL\.so\.1 .*=> //p' | head -1)
as_gpu() { OPENCL_GPU=1 OPENCL_REAL=$real LD_LIBRARY_PATH=$work/gpu "$tool" "$@"; }
as_gpu info >"$work/out"
grep -q '^ *gpu, memory' "$work/out" || fail "info does not name the kind"
as_gpu check --device opencl --case "$some" --record "$work/record" >"$work/out" 2>&1 || fail "a record of a GPU"
grep -qE '"config": *"gpu-part"' "$work/record" && grep -qE '"config": *"cpu-part"' "$work/record" || fail "two devices in one record"
"$tool" info --record "$work/record" >"$work/out"
grep -q "kernel opencl: $untried" "$work/out" || fail "a part is not enough"
# A kernel that is wrong in some cases leaves no record: pages of one token stay right.
cp "$work/record" "$work/before"
code=0
OPENCL_FIND="key % c->page_size * stride[1]" OPENCL_REPLACE="key % c->page_size / 2 * stride[1]" as_gpu check \
    --device opencl --case '^paged/b2 h4/2 q1 k300 d40 f' --record "$work/record" >"$work/out" 2>&1 || code=$?
[ "$code" = 1 ] && grep -qE '^[1-9][0-9]* passed, [1-9]' "$work/out" && grep -q 'nothing is recorded' "$work/out" && cmp -s "$work/record" "$work/before" || { cat "$work/out"; fail "a record of failures"; }

# Printed, never judged, and nothing is tuned by it.
ms() { "$tool" run "$@" "h4/2 q256 k256 d64 f32 causal" --json | sed -n 's/.*"time_ns": *\([0-9]*\).*/\1/p' | head -1 | awk '{printf "%.1f ms", $1 / 1e6}'; }
ms --device opencl >/dev/null # compiles
echo "speed on PoCL says nothing about a GPU: opencl $(ms --device opencl), generic $(ms --kernel generic --fallback permit --threads 1)"
