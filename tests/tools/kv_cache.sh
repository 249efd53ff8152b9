#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of --kv-cache, from qualify to canary, and in capacity, replay and report: bash tests/tools/kv_cache.sh PATH/TO/tileproof MODELS_DIR
set -u
tool=${1:?usage: kv_cache.sh PATH/TO/tileproof MODELS_DIR}
models=$(cd "${2:?usage: kv_cache.sh PATH/TO/tileproof MODELS_DIR}" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"

config() { # FILE MORE
    printf '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 300, "torch_dtype": "bfloat16"%s}' "$2" >"$scratch/$1"
}
config m.json ''
config fp8.json ', "quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true}}'
config odd.json ', "quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "int", "strategy": "token"}}'
one=$scratch/m.json lock=$scratch/t.lock
quiet() { "$@" 2>/dev/null; }

# cells: every format, judged as ever, with the loss beside the error
for format in i8 i8/q8_0 i4 e4m3 e4m3/token plain:i8 e4m3/token:i4; do
    expect_python "cells-$format" '
rows = [json.loads(line) for line in text.splitlines()]
assert {row["phase"] for row in rows} == {"prefill", "decode", "varlen", "mixed"}, rows
for row in rows:
    assert row["status"] == "QUALIFIED" and 0 < row["error"] <= row["allowed"] and len(row["output"]) == 64, row
    assert 0 < row["loss"] < 0.08 and row["cache"].split("/")[0] == "'"$format"'".split("/")[0], row
    assert "->bf16 " in row["problem"] and " v=" in row["numerics_id"], row' "$tool" qualify "$one" --quick --cells 1 --kv-cache "$format" -o jsonl
done
expect_python plain '
rows = [json.loads(line) for line in text.splitlines()]
assert rows and all(row["cache"] == "plain" and row["loss"] is None and "->" not in row["problem"] for row in rows), rows' \
    "$tool" qualify "$one" --quick --cells 1 -o jsonl
expect_python shown '
lines = text.splitlines()
assert max(map(len, lines)) <= 80, lines
assert re.search(r"\ncache i8/token: quantising lost up to 0\.3[0-9]+ % of the greatest value of a row;\nerrors are apart from it\n", text), lines' \
    quiet "$tool" qualify "$one" --quick --cells 1 --kv-cache i8
printf '{"tileproof_model": 1, "groups": [{"layers": "0", "problem": "h4/2 d80 bf16 causal"}]}' >"$scratch/eighty.json"
expect head-dim 3 'UNSUPPORTED: .*k_scales is q8_0 with head dim 80: it must be a multiple of 32' \
    "$tool" qualify "$scratch/eighty.json" --kv-cache i8/q8_0 --quick --cells 1 --phases decode

# the lock: each cache is a revision of its own, and none stands for another
update() { "$tool" qualify "$1" --quick --cells 1 --lock "$lock" --update --reason "$2" "${@:3}"; }
expect locked 0 '4 new, 0 changed, 0 same of m.json' update "$one" 'eight bits' --kv-cache i8
expect other-cache 5 "the lock is STALE: cache of .*m.json: lock has i8/token, here plain" "$tool" qualify "$one" --quick --cells 1 --lock "$lock"
expect other-cache-words 5 'all: engine cache i8/token -> e4m3/tensor' "$tool" qualify "$one" --quick --cells 1 --lock "$lock" --kv-cache e4m3
expect same-cache 0 '^PASS: 1 model, 4 cells' "$tool" qualify "$one" --quick --cells 1 --lock "$lock" --kv-cache i8/token:i8
expect locked-plain 0 '4 new, 0 changed, 0 same of m.json' update "$one" 'plain' --kv-cache plain
expect_python list '
rows = json.loads(text)
assert [row["engine"].split(", cache ")[1:] for row in rows] == [["i8/token"], []], rows
assert all(row["here"] == "as qualified" and row["cells"] == 4 for row in rows), rows' "$tool" lock list "$lock" -o json
expect_python show '
rows = json.loads(text)
assert len(rows) == 8 and [row["loss"] > 0 for row in rows] == [True] * 4 + [False] * 4, rows' "$tool" lock show "$lock" -o json
expect diff 0 'all: engine cache i8/token -> plain$' "$tool" lock diff "$lock" m.json m.json
# one cache of a config is named by --kv-cache, in every word that chooses revisions
expect_python list-one 'assert [row["engine"].split(", cache ")[1:] for row in json.loads(text)] == [["i8/token"]], text' \
    "$tool" lock list "$lock" --kv-cache i8 -o json
expect_python show-one 'assert len(json.loads(text)) == 4 and all(row["loss"] > 0 for row in json.loads(text)), text' \
    "$tool" lock show "$lock" m.json --kv-cache i8/token -o json
expect_error show-no-cache 2 "no revision 'm.json' with cache i4/group: .*it has m.json@[0-9a-f]{12} with cache i8/token, m.json@[0-9a-f]{12}$" \
    "$tool" lock show "$lock" m.json --kv-cache i4
cp "$lock" "$scratch/d.lock"
expect_error drop-no-cache 2 "no revision 'm.json' with cache i4/group" "$tool" lock drop "$scratch/d.lock" m.json --kv-cache i4 --reason x
expect_error drop-bad-cache 2 "kv-cache is 'fp8'" "$tool" lock drop "$scratch/d.lock" m.json --kv-cache fp8 --reason x
expect_error merge-cache 2 'kv-cache is for lock list, show, diff and drop' "$tool" lock merge "$scratch/d.lock" "$lock" --kv-cache i8 --reason x
expect drop-unchanged 0 '' cmp "$lock" "$scratch/d.lock"
expect drop-one 0 'd.lock: dropped; dropped m.json [0-9a-f]{12} cache i8/token$' "$tool" lock drop "$scratch/d.lock" m.json --kv-cache i8 --reason 'no 8 bits'
expect_python drop-left 'assert [", cache " in row["engine"] for row in json.loads(text)] == [False], text' "$tool" lock list "$scratch/d.lock" -o json
expect drop-history 0 'dropped, dropped m.json [0-9a-f]{12} cache i8/token: no 8 bits$' "$tool" lock list "$scratch/d.lock"
expect drop-left-holds 0 '^PASS' "$tool" qualify "$one" --quick --cells 1 --lock "$scratch/d.lock"
expect diff-no-cache 2 "d.lock has no revision '' with cache i8/token" "$tool" lock diff "$lock" "$scratch/d.lock" --kv-cache i8
expect diff-one-cache 0 '^  the same$' "$tool" lock diff "$lock" "$scratch/d.lock" --kv-cache plain
cp "$lock" "$scratch/d.lock"
expect drop-plain 0 'dropped; dropped m.json [0-9a-f]{12}$' "$tool" lock drop "$scratch/d.lock" m.json --kv-cache plain --reason x
cp "$lock" "$scratch/d.lock"
"$tool" lock drop "$scratch/d.lock" m.json --reason x 2>"$scratch/both"
expect_python drop-both '
lines = text.splitlines()
assert len(lines) == 2 and lines[0].endswith(" cache i8/token") and "cache" not in lines[1], lines' cat "$scratch/both"
expect_python drop-none-left 'assert json.loads(text) == [], text' "$tool" lock list "$scratch/d.lock" -o json
expect diff-loss 0 'text layers 0-1, decode: .*loss 0\.00[0-9]+ -> 0' "$tool" lock diff "$lock" m.json m.json

# canary: all that the lock has; of a deployed config the cache that it is served from
expect canary 0 '^8 cells of .*: 8 run, .*0 notes' "$tool" canary "$lock"
expect canary-one 0 '^4 cells of .*: 4 run, .*0 notes' "$tool" canary "$lock" --kv-cache i8
expect canary-none 3 'no cell can be run' "$tool" canary "$lock" --kv-cache i4
expect canary-model 0 'm.json [0-9a-f]{12}: a revision of the lock, qualified [0-9-]+ with cache i8/token$' \
    "$tool" canary "$lock" --if-changed --model "$one" --kv-cache i8
expect canary-other 5 'no revision of the lock, which has of m.json [0-9a-f]{12} \([0-9-]+, cache i8/token\) [0-9a-f]{12} \([0-9-]+\)$' \
    "$tool" canary "$lock" --quick --model "$one" --kv-cache i4
expect canary-drill 3 'choice +\| UNSUPPORTED \| m.json .*bf16:i8:i8->bf16.*head_dim 64 is disabled by hand' "$tool" canary "$lock" --drill no:HEAD_DIM=64
# figures of a model with two caches are one set, the worse of both
"$tool" canary "$lock" --if-changed --metrics "$scratch/m.prom" >/dev/null
expect metrics 0 '^1$' grep -cE '^tileproof_lock_state\{model="m.json",state="matches"\} 1$' "$scratch/m.prom"
update "$one" 'a version' --kv-cache i8 --declare engine=2 >/dev/null 2>&1
update "$one" 'the last one, and fresh' --kv-cache plain >/dev/null 2>&1
"$tool" canary "$lock" --if-changed --metrics "$scratch/m.prom" >/dev/null
expect metrics-worse 0 '^1$' grep -cE '^tileproof_lock_state\{model="m.json",state="stale"\} 1$' "$scratch/m.prom"

# a journal is of one cache
kept() { "$tool" qualify "$one" "$scratch/eighty.json" --quick --cells 1 --phases decode --lock "$scratch/j.lock" --update --reason kept "$@"; }
expect journal-stays 3 'a cell is refused' kept --kv-cache i8/q8_0
expect_error journal 2 'its cells were made otherwise: --kv-cache: journal has i8/q8_0, here i4/group' kept --resume --kv-cache i4
expect journal-resumed 3 '\([12] from the journal\)' kept --resume --kv-cache i8/q8_0 --accept-unsupported

# a config that names a cache: nobody has chosen it yet
expect file-shown 0 'the file wants keys and values kept as e4m3/tensor' "$tool" model "$scratch/fp8.json"
for command in "qualify --quick" "capacity --context 100 --concurrency 1 --read-mib 0"; do
    # shellcheck disable=SC2086
    expect_error "file-not-said ${command%% *}" 2 'cache is not said, and the file of fp8.json wants .* it must be that, or plain; on the command line: --kv-cache' \
        "$tool" $command "$scratch/fp8.json"
done
expect file-said 0 '^PASS' "$tool" qualify "$scratch/fp8.json" --quick --cells 1 --kv-cache e4m3
expect file-plain 0 '^PASS' "$tool" qualify "$scratch/fp8.json" --quick --cells 1 --kv-cache plain
expect_error file-other 3 'odd.json:1: quantization_config.kv_cache_scheme is set to what is not mapped' "$tool" model "$scratch/odd.json"

# capacity: codes and scales
capacity() { "$tool" capacity --read-mib 0 "$scratch/m.json" --context 256 --concurrency 3 --paged 16 "$@"; }
expect_python capacity '
report = json.loads(text)
assert report["cache"] == "i4/group" and report["cache_dtype"] == "bf16", report
row = 64 // 2 + 64 // 32 * 2
assert report["kept"]["token_bytes"] == 2 * 2 * 2 * row and report["kept"]["bytes"] == 3 * 256 * 8 * row, report["kept"]
assert "bf16:i4:i4->bf16" in report["groups"][0]["decode"]["problem"], report["groups"]' capacity --kv-cache i4 -o json
expect capacity-shown 0 '^m.json: 3 sequences of 256 tokens, cache plain:i8/token, ' capacity --kv-cache plain:i8

# replay: the same requests from another cache
printf '{"time":0,"model":"%s","prompt":100,"cached":0,"output":50}\n' "$one" >"$scratch/r.jsonl"
printf '{"time":0,"model":"%s","prompt":100,"cached":0,"output":50}\n' "$scratch/fp8.json" >"$scratch/fp8.jsonl"
replay() { "$tool" replay "$scratch/r.jsonl" --modelled "$@"; }
expect replay-plain 0 'fleet mean' replay -o "$scratch/plain.json"
expect_python replay-report '
report = json.loads(text)
assert report["cache"] == "plain", report' cat "$scratch/plain.json"
expect_python replay '
assert re.search(r"^1 of 1 requests .*, cache i8/token$", text, re.M) and re.search(r"^  cache plain -> i8/token$", text, re.M), text
factor = float(re.search(r"decode few-rows: p99 x([0-9.]+)", text).group(1))
assert 0.4 < factor < 0.8, factor' replay --kv-cache i8 --against "$scratch/plain.json"
expect_error replay-not-said 2 'its file wants keys and values kept as e4m3/tensor, which loses something: say --kv-cache' \
    "$tool" replay "$scratch/fp8.jsonl" --modelled
expect replay-said 0 ', cache e4m3/tensor$' "$tool" replay "$scratch/fp8.jsonl" --modelled --kv-cache e4m3
expect_error replay-observed 2 'observed runs nothing: the log does not say what its --kv-cache was' \
    "$tool" replay "$scratch/r.jsonl" --observed --kv-cache i8

# the page tells revisions apart by their cache
expect page 0 '' "$tool" report "$lock" -o "$scratch/page.html"
expect page-cache 0 '<td class="layers">i8/token</td>' cat "$scratch/page.html"

# bad words, one rule for all commands
for command in "qualify $one" "canary $lock" "capacity $one --context 9 --concurrency 1" "replay $scratch/r.jsonl"; do
    # shellcheck disable=SC2086
    expect_error "bad ${command%% *}" 2 "--kv-cache is 'fp8': it must be plain, i8, i8/q8_0, i4, e4m3 or e4m3/token, or two of these as K:V" "$tool" $command --kv-cache fp8
done
expect_error engine 2 'kv-cache is for kernels of this library: an engine is given plain keys and values' "$tool" qualify "$one" --engine torch --kv-cache i8
expect_error not-for-bench 2 "unknown option '--kv-cache' for bench" "$tool" bench --kv-cache i8
finish
