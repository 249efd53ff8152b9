#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes docs/example-report.html, and docs/pictures/report.png where Chromium is.     example_report.sh TOOL
# Files go to build/example. Times need an idle host: where it is not, the page's first screen says so.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tool=$(realpath "$1")
models=("$root/models/llama-3.2-1b.json" "$root/models/gemma-2-9b.json" "$root/models/qwen2-vl-7b.json")
mkdir -p "$root/build/example/pictures"
cd "$root/build/example"
rm -f -- *.lock *.lock.journal calls.jsonl
qualify() { "$tool" qualify "${models[@]}" --quick -j 1 --update "$@"; }
qualify --lock earlier.lock --reason "before AVX-512 was there" --disable avx512,avx512_bf16 --fallback permit
qualify --lock now.lock --reason "AVX-512" --save plain.json
qualify --lock now.lock --reason "a cache of 8 bits" --kv-cache i8 --save i8.json
"$tool" bench -s 'q256-2k*2' -H 1/1 -d 64,128 -c 1 -j 1 -k best,math -r 3 -o jsonl >rates.jsonl
"$tool" bench -s q1s4k,q1s16k -H 8/8 -d 64,128 -c 0 -j 1 -k best,math -r 3 -o jsonl >>rates.jsonl
"$tool" bench --memory -o jsonl >memory.jsonl
"$tool" replay --generate --seed 7 --requests 40 -o requests.jsonl llama-3.2-1b qwen2.5-0.5b --models "$root/models"
for cache in plain i8; do
    "$tool" replay requests.jsonl --models "$root/models" --sample 10 --steps 2 -j 1 --kv-cache $cache -o replay-$cache.json
    "$tool" capacity "${models[0]}" --context 8k --concurrency 4 --kv-cache $cache -o json >capacity-$cache.json
done
for shape in q128 4q1s2k; do
    "$tool" run $shape h8/2 d64 bf16 causal --threads 1 --repeat 40 --trace one.jsonl >/dev/null
    cat one.jsonl >>calls.jsonl
done
"$tool" trace summary calls.jsonl -o json >trace.json
"$tool" report plain.json i8.json earlier.lock now.lock rates.jsonl memory.jsonl replay-plain.json replay-i8.json trace.json capacity-plain.json capacity-i8.json \
    -o "$root/docs/example-report.html"
if python3 "$root/tests/report/browser.py" "$tool" pictures; then cp pictures/short.png "$root/docs/pictures/report.png"; fi
