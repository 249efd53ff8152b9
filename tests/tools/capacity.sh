#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of capacity: bash tests/tools/capacity.sh PATH/TO/tileproof MODELS_DIR
# The figures are held by tests/proof/test_capacity*.c; here the forms of output, the exit codes and bad input.
set -u
tool=${1:?usage: capacity.sh PATH/TO/tileproof MODELS_DIR}
models=$(cd "${2:?usage: capacity.sh PATH/TO/tileproof MODELS_DIR}" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"
capacity() { "$tool" capacity --models "$models" --read-mib 0 "$@"; }

# the command of the documents, measured: every figure, within 80 columns
expect_python shown '
lines = text.splitlines()
assert max(map(len, lines)) <= 80, max(lines, key=len)
assert lines[0].startswith("llama-3.1-8b.json: 8 sequences of 131,072 tokens, cache bf16, ")
assert re.search(r"^text 8x128 +32 +128 KiB +16 GiB +128 GiB$", text, re.M)
assert re.search(r"^longest context, 8 sequences +[1-9][0-9,]*$", text, re.M)
assert re.search(r"^most sequences of 131,072 tokens +[0-9,]+$", text, re.M)
for step in ("prefill, 1 prompt", "decode, 8 rows"):
    assert re.search("^" + step + r" +[a-z0-9]+ +[0-9.]+ [KM]iB +[0-9.]+ [KM]iB +[0-9.,]+ +[0-9.]+ (h|min|s|ms) +[0-9.,]+$", text, re.M), step
assert re.search(r"^at best: [0-9.]+ Gflop/s \([a-z0-9]+\), reads of [0-9.]+ GB/s, measured with [0-9]+ threads?;$", text, re.M)
assert "not counted: weights" in text
' "$tool" capacity "$models/llama-3.1-8b.json" --context 128k --concurrency 8 --read-mib 64

# every shipped model that generates, in each form; JSON and text are of one mind
for file in "$models"/*.json; do
    name=$(basename "$file" .json)
    [ "$name" = arctic-embed-m ] && continue
    capacity "$name" --context 400 --concurrency 33 --paged 16 --limit 1t >"$scratch/shown" 2>&1
    expect_python "json-$name" '
import os
report = json.loads(text)
assert all(report[name] for name in ("version", "build", "isa", "host", "os")) and report["date"].startswith("20"), report
shown = open(os.path.join(os.path.dirname(sys.argv[1]), "shown")).read()
assert max(map(len, shown.splitlines())) <= 80, shown
for kind in ("kept", "evicted"):
    all = report[kind]
    for key in ("layers", "token_bytes", "sequence_bytes", "bytes", "pages"):
        assert all[key] == sum(g[kind][key] for g in report["groups"]), key
    assert all["fits"] and all["bytes"] == 33 * all["sequence_bytes"]
    assert all["total_bytes"] == all["bytes"] + max(report[p]["workspace_bytes"] for p in ("prefill", "decode"))
    assert all["concurrency_max"] >= 33 and all["context_max"] >= 400
assert format(report["kept"]["concurrency_max"], ",") in shown
assert report["kept"]["bytes"] >= report["evicted"]["bytes"] and report["limits"] is None
assert ("where evicted" in shown) == (report["kept"]["bytes"] > report["evicted"]["bytes"])
' capacity "$name" --context 400 --concurrency 33 --paged 16 --limit 1t -o json
done
expect_python md '
lines = [line for line in text.splitlines() if line.startswith("|")]
heads = [i for i, line in enumerate(lines) if line.startswith("|---")]
assert len(heads) == 3, lines
for line, above in zip(lines[1:], lines):
    assert line.count("|") == above.count("|") or line.startswith(("| in ", "| one ")), line
assert "| text 16x128, window 1,024 | 52 | 416 KiB | 52 GiB | 416 GiB |" in lines
assert "| where evicted |  | 0 B | 416 MiB | 3.25 GiB |" in lines
' capacity gemma-3-27b-it --context 128k --concurrency 8 -o md
expect latent 0 'text 1x576 latent +61 +68\.62 KiB' capacity deepseek-v3 --context 1k --concurrency 1
expect cross 0 'cross 20x64, keys 1,500 +32 +0 B +234\.4 MiB' capacity whisper-large-v3 --context 100 --concurrency 1
expect dtype 0 'cache f32.*' capacity llama-3.1-8b --context 1k --concurrency 1 --dtype f32
expect dtype-bytes 0 'text 8x128 +32 +256 KiB' capacity llama-3.1-8b --context 1k --concurrency 1 -t f32
expect threads 0 'tokens, cache bf16, 1 thread$' capacity llama-3.1-8b --context 1k --concurrency 1 --threads 1
expect pages 0 '^pages of 16 tokens: 2,097,152 of 64 KiB, in 32 layers$' capacity llama-3.1-8b --context 128k --concurrency 8 -p 16
expect one 0 '^decode, 1 row ' capacity llama-3.1-8b --context 1 --concurrency 1
printf '{"model_type": "gemma3n_text", "torch_dtype": "bfloat16"}' >"$scratch/shared.json"
expect shared 0 '^15 layers read keys of an earlier one' capacity "$scratch/shared.json" --context 1k --concurrency 1
printf '{"tileproof_model":1,"groups":[{"layers":"0","problem":"h4 d64 causal"},{"layers":"1-2","out_of_scope":"mamba"}]}' >"$scratch/mixed.json"
expect states 0 'what 2 layers of another kind keep: mamba' capacity "$scratch/mixed.json" --context 1k --concurrency 1
printf '{"tileproof_model":1,"groups":[{"layers":"0","problem":"h2 d640 causal"}]}' >"$scratch/wide.json"
expect_error refused 3 'wide.json, text layers 0, prefill: .*--fallback permit' capacity "$scratch/wide.json" --context 64 --concurrency 1
expect permitted 0 '^prefill, 1 prompt +math ' capacity "$scratch/wide.json" --context 64 --concurrency 1 --fallback permit

# --limit asks whether it fits; the host's memory only says what would
expect fits 0 '^fits +yes$' capacity llama-3.1-8b --context 8k --concurrency 8 --limit 64g
expect fits-not 1 '^fits +NO$' capacity llama-3.1-8b --context 128k --concurrency 8 --limit 64g
expect fits-not-json 1 '"fits": false' capacity llama-3.1-8b --context 128k --concurrency 8 --limit 64g -o json
expect host 0 "this host's memory" capacity llama-3.1-8b --context 128k --concurrency 1k

# bad input
expect_error no-model 2 'capacity takes one model' "$tool" capacity --context 1k --concurrency 1
expect_error two-models 2 'capacity takes one model' capacity gpt2 gpt2 --context 1k --concurrency 1
expect_error no-context 2 '^tileproof: --context is missing or 0' capacity gpt2 --concurrency 1
expect_error no-concurrency 2 '^tileproof: --concurrency is missing or 0' capacity gpt2 --context 1k
expect_error too-long 2 'context is 262144: llama-3.1-8b.json takes at most 131072 tokens' capacity llama-3.1-8b --context 256k --concurrency 1
expect_error too-many 2 'their bytes must be below 2\^63' capacity llama-3.1-8b --context 1k --concurrency 1t
expect_error too-small 2 'limit is 1024 bytes: it must be at least [0-9]+, for one token' capacity gpt2 --context 1k --concurrency 1 --limit 1k
expect_error suffix 2 "limit is '64x': it must be a whole number of at least 0, with k, m, g or t" capacity gpt2 --context 1k --concurrency 1 --limit 64x
expect_error beyond 2 "context is '9999999999t'" capacity gpt2 --context 9999999999t --concurrency 1
expect_error dtype-unknown 2 "dtype is 'e4m3': it must be f32, f16 or bf16" capacity gpt2 --context 1k --concurrency 1 --dtype e4m3
expect_error paged 2 "paged is '0': it must be in 1..4096" capacity gpt2 --context 1k --concurrency 1 --paged 0
expect_error output 2 "output is 'csv': it must be text, json or md" capacity gpt2 --context 1k --concurrency 1 -o csv
expect_error encoder 3 'arctic-embed-m.json: no layer of it generates' capacity arctic-embed-m --context 64 --concurrency 1
expect_error model 2 "model 'gpt3' is neither a file nor one of" capacity gpt3 --context 64 --concurrency 1
finish
