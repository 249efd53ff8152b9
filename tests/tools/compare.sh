#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of tileproof compare and bench --against: bash tests/tools/compare.sh PATH/TO/tileproof
# Verdicts are asked of files made by hand; of times measured here only words and formats.
set -u
tool=${1:?usage: compare.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"

# rows FILE PYTHON: a file of rows; PYTHON may change each row `r` (number `i`, recording `n`), or leave it out: r = None
rows() {
    python3 - "$1" "$2" <<'PY'
import json, random, sys
random.seed(1)
with open(sys.argv[1], "w") as out:
  for n in range(5): # recordings of each row
    for i, problem in enumerate(["prefill b1 h4/4 q1024 k1024 d64 f32", "prefill b1 h4/4 q512 k512 d128 bf16 causal",
                                 "decode b1 h8/2 q1 k8192 d128 bf16"]):
        time = 1e6 * (i + 1)
        r = {"problem": problem, "phase": problem.split()[0], "kernel": "avx2", "kernel_asked": "best", "isa": "avx2",
             "threads": 1, "machine": "x86-64 isa=avx2", "fma_peak_gflops": 100, "fma_here_gflops": 98,
             "read_gbps_limit": 10, "aa_ratio": 1.0, "aa_low": 0.998, "aa_high": 1.002,
             "round_ns": [time * random.uniform(0.998, 1.002) for _ in range(64)], "more": [None]}
        def times(factor): r["round_ns"] = [factor * t for t in r["round_ns"]]
        exec(sys.argv[2])
        if r: print(json.dumps(r), file=out)
PY
}
a=$scratch/a.jsonl b=$scratch/b.jsonl
rows "$a" ''

# verdict NAME EXIT PATTERN PYTHON: file a against a file that PYTHON changed
verdict() {
    rows "$b" "$4"
    expect "$1" "$2" "$3" "$tool" compare "$a" "$b"
}
verdict same 0 'rows: 3 SAME, 0 FAST, 0 SLOW, 0 AMBIGUOUS' ''
verdict slow 1 'rows: 0 SAME, 0 FAST, 3 SLOW' 'times(1.2)'
verdict fast 0 'rows: 0 SAME, 3 FAST, 0 SLOW' 'times(0.8)'
verdict one-slow 1 'rows: 2 SAME, 0 FAST, 1 SLOW' 'if i == 1: times(1.2)'
verdict one-slow-row 1 'row .*d128 bf16 causal .* SLOW +\| +1\.2' 'if i == 1: times(1.2)'
verdict near-threshold 4 '0 SLOW, 3 AMBIGUOUS' 'times(1.03)'
verdict slow-before-ambiguous 1 '1 SLOW, 1 AMBIGUOUS' 'times([1.2, 1.03, 1][i])'
# what the host did is no verdict
verdict untrusted 4 'A/A of B is not SAME' 'times(1.2); r.update(aa_low=0.9, aa_high=1.2)'
verdict untrusted-line 4 'B: host: untrusted: A/A AMBIGUOUS \(0.900..1.200\)' 'r.update(aa_low=0.9, aa_high=1.2)'
verdict trusted-line 0 'A: host: trusted, A/A SAME \(0.998..1.002\)' ''
verdict no-control 4 'A/A of B is not SAME' 'times(1.2); r.update(aa_ratio=None, aa_low=None, aa_high=None)'
verdict slow-host 4 '3 AMBIGUOUS' 'times(1.2); r.update(fma_peak_gflops=83)'
verdict slow-window 4 '3 AMBIGUOUS' 'times(1.2); r.update(fma_here_gflops=82)'
verdict slow-memory 4 '3 AMBIGUOUS' 'times(1.2); r.update(read_gbps_limit=8.3)'
verdict slow-host-and-more 1 '3 SLOW' 'times(1.5); r.update(fma_peak_gflops=83, fma_here_gflops=81)'
verdict half-slow-run 4 '3 AMBIGUOUS' 'r["round_ns"] = [t * (1 if k < 32 else 1.25) for k, t in enumerate(r["round_ns"])]'
verdict other-machine 4 'another machine' 'times(1.2); r.update(machine="x86-64 isa=avx512")'
verdict other-isa 4 'no limit in common' 'times(1.2); r.update(isa="avx512", read_gbps_limit=None)'
verdict other-kernel 1 'avx2, generic .* SLOW' 'times(1.5); r.update(kernel="generic")'
verdict few-rounds 4 'too few rounds' 'r["round_ns"] = r["round_ns"][:8]'
# one process may differ from the next by much, so recordings count
verdict one-recording 4 '5 and 1 recordings, 5 needed: 1.5 allowed' 'times(1.4); r = None if n else r'
verdict one-recording-same 4 '3 AMBIGUOUS' 'r = None if n else r'
verdict four-recordings 4 '5 and 4 recordings' 'times(1.4); r = None if n == 2 else r'
verdict one-recording-far 1 '3 SLOW' 'times(1.7); r = None if n else r'
verdict one-recording-apart 4 '3 AMBIGUOUS' 'if n != 3: times(1.2)'
verdict spread-slow 1 '3 SLOW' 'times([1.1, 1.2, 1.3, 1.4, 1.5][n])'
# rows that are in one file
verdict unmatched 0 'only in B +\| prefill b1 h4/4 q1024' 'r.update(kernel_asked="avx2" if i == 0 else "best")'
verdict unmatched-a 0 'only in A +\| prefill b1 h4/4 q1024' 'r.update(threads=2 if i == 0 else 1)'
verdict unmatched-all 4 'no row of .* is in' 'r.update(threads=2)'
# buckets
verdict bucket 0 'bucket +\| prefill f32 d<=64 k<=4096 ' ''
verdict bucket-decode 0 'bucket +\| decode bf16 d<=128 k>4096 ' ''
verdict bucket-verdict 1 'bucket +\| decode bf16 d<=128 k>4096 .* SLOW' 'if i == 2: times(1.2)'
rows "$a" 'r.update(phase="prefill", problem="prefill b1 h1/1 q%d k%d d%d f32" % (i + 20, 100, 100))'
verdict bucket-mean 0 'bucket +\| prefill f32 d<=128 k<=256 .*\| +3 \| SAME +\| +1\.000' \
    'r.update(phase="prefill", problem="prefill b1 h1/1 q%d k%d d%d f32" % (i + 20, 100, 100)); times([0.991, 1.009, 1][i])'
rows "$a" ''

# formats
rows "$b" 'times(1.2)'
expect_json json 1 "$tool" compare "$a" "$b" -o json
expect jsonl 1 '"kind": "row".*"verdict": "SLOW", "ratio": 1.2' "$tool" compare "$a" "$b" -o jsonl
expect csv 1 'kind,what,kernel' "$tool" compare -o csv "$a" "$b"

# bad input: file, line, field, rule
bad() { # NAME PATTERN PYTHON
    rows "$b" "$3"
    expect_error "bad-$1" 2 "b.jsonl:2: .*$2" "$tool" compare "$a" "$b"
}
bad missing "field 'round_ns' is missing: it must be an array of numbers above 0" 'if i == 1: del r["round_ns"]'
bad empty-times "field 'round_ns' is \[\]: it must be an array" 'if i == 1: r["round_ns"] = []'
bad negative-time "field 'round_ns' is \[1,-1\]" 'if i == 1: r["round_ns"] = [1, -1]'
bad text-time "field 'round_ns' is \"fast\"" 'if i == 1: r["round_ns"] = "fast"'
bad threads "field 'threads' is 0: it must be a whole number in 1..1024" 'if i == 1: r["threads"] = 0'
bad threads-text "field 'threads' is \"1\"" 'if i == 1: r["threads"] = "1"'
bad limit "field 'fma_peak_gflops' is -3: it must be a number above 0, or null" 'if i == 1: r["fma_peak_gflops"] = -3'
bad no-limit "field 'read_gbps_limit' is missing" 'if i == 1: del r["read_gbps_limit"]'
bad empty-text "field 'isa' is \"\": it must be a text" 'if i == 1: r["isa"] = ""'
bad aa "field 'aa_low' is 2: it must be at most aa_high" 'if i == 1: r["aa_low"] = 2.0'
bad problem "field 'problem' is 'prefill q9 x8': .*x8" 'if i == 1: r["problem"] = "prefill q9 x8"'
printf '\n[1]\n' >"$b"
expect_error bad-array 2 'b.jsonl:2: a row must be an object' "$tool" compare "$a" "$b"
printf '\n{"problem": \n' >"$b"
expect_error bad-json 2 'b.jsonl:2: no JSON' "$tool" compare "$a" "$b"
printf '\n\n' >"$b"
expect_error bad-empty 2 'the file holds no row' "$tool" compare "$a" "$b"
{ printf '\377'; head -c 3000 "$tool"; } >"$b"  # no text in any line, least of all in the first
expect_error bad-bytes 2 'b.jsonl:1: ' "$tool" compare "$a" "$b"
expect_error no-file 2 'none.jsonl: No such file' "$tool" compare "$a" "$scratch/none.jsonl"
expect_error directory 2 'Is a directory' "$tool" compare "$a" "$scratch"
expect_error one-file 2 'takes two files, A.jsonl B.jsonl, not 1' "$tool" compare "$a"
expect_error three-files 2 'not 3' "$tool" compare "$a" "$a" "$a"
expect_error bad-format 2 "output is 'xml'" "$tool" compare "$a" "$a" -o xml
expect help 0 'B, a file of bench' "$tool" compare --help

# what bench writes, compare reads: a file against itself has ratio 1
small=("$tool" bench --read-mib 0 -o jsonl)
"${small[@]}" --repeat 2 --seconds 0.02 q16,q32 d8 >"$scratch/own file.jsonl"
output=$("$tool" compare -o jsonl "$scratch/own file.jsonl" "$scratch/own file.jsonl" 2>&1)
code=$? ok=0
{ [ $code = 0 ] || [ $code = 4 ]; } && [ "$(grep -c '"ratio": 1, ' <<<"$output")" = 3 ] && ok=1 # two rows, one bucket
report own-file $ok "  exit $code: $output"
expect own-fields 0 'ok' python3 -c '
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    assert row["kernel_asked"] == "best" and len(row["round_ns"]) == len(row["round_cpu_ns"]) >= 2
    assert min(row["round_ns"]) <= row["wall_ns"] <= max(row["round_ns"]) and row["cpu_ns"] > 0
    assert row["cpu_per_wall"] > 0 and row["switches"] >= 0 and row["aa"] in ("SAME", "AMBIGUOUS", "FAST", "SLOW")
    assert row["host"] and row["machine"] and row["date"].endswith("Z") and row["version"] and row["seed"] == 1
    assert row["fma_here_gflops"] <= row["fma_peak_gflops"] * 1.0001
print("ok")' "$scratch/own file.jsonl"
expect trust-line 0 '^host: (trusted|untrusted)' "$tool" bench --read-mib 0 -r 2 --seconds 0.01 q16 d8

# --against: words, exit codes that follow the verdict, and rounds within their bound
against() { # NAME WORDS...
    local name=$1 code ok=0
    shift
    "$tool" bench -o jsonl --seconds 2 "$@" >"$scratch/out" 2>"$scratch/errors"
    code=$?
    [ ! -s "$scratch/errors" ] && python3 - "$scratch/out" $code <<'PY' 2>"$scratch/errors" && ok=1
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
words = {row["verdict"] for row in rows}
assert rows and all(1 <= row["rounds"] <= 2048 for row in rows), rows
assert all(row["verdict"] == "AMBIGUOUS" or row["aa"] == "SAME" for row in rows), rows
assert all(row["low"] <= row["ratio"] <= row["high"] for row in rows), rows
assert int(sys.argv[2]) == (1 if "SLOW" in words else 4 if "AMBIGUOUS" in words else 0), (rows, sys.argv[2])
PY
    report "against-$name" $ok "$(cat "$scratch/errors")"
}
against kernel q32 d16 -k math,best --against generic
against best q32 d16 --against best -j 1,2
against problem b4 q32 d16 --against 'q32 d16'
expect_error against-word 2 "against is 'nosuch': it must be best, a kernel of .tileproof info., or a problem" \
    "$tool" bench q32 d16 --against nosuch
expect_error against-goals 2 'goes with neither' "$tool" bench --goals --against best

finish
