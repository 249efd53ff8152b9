#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures, and draws what the README shows.     pictures.sh TOOL DIRECTORY
set -euo pipefail
tool=$1 to=$2
work=build/pictures
mkdir -p "$work" "$to"
echo "pictures: rates"
"$tool" bench -s 'q256-8k*2' -H 4/4 -d 64,128 -c 1 -k best,math -r 3 -o jsonl >"$work/lengths.jsonl"
"$tool" bench -s q1k -H 8/8 -d '32-256+16' -c 1 -k best,math -r 3 -o jsonl >"$work/dims.jsonl"
echo "pictures: decode"
"$tool" bench -s q1s4k,q1s16k,q1s64k -H 8/8,32/8 -d 128 -c 0 -k best,math -r 3 -o jsonl >"$work/decode.jsonl"
echo "pictures: bytes, simulated"
"$tool" bench --bytes --cache 4m -s 'q512-2k*2' -d 64 -c 1 -o jsonl >"$work/bytes.jsonl"
echo "pictures: memory"
"$tool" bench --memory -o jsonl >"$work/memory.jsonl"
peers=()
if [ -s build/peers/peers.jsonl ]; then peers=(build/peers/peers.jsonl); fi
"$tool" plot "$work"/*.jsonl "${peers[@]}" -o "$work"
cp "$work"/*.svg "$to"
