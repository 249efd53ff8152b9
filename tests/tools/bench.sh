#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of tileproof bench: bash tests/tools/bench.sh PATH/TO/tileproof
# They look at words, formats and exit codes; no time is judged.
set -u
tool=${1:?usage: bench.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"

# The smallest run: one attempt of at most 1 ms, no read limit.
small=("$tool" bench --repeat 1 --seconds 0.001 --read-mib 0)
problems="rows = [json.loads(line) for line in text.splitlines()]
problems = [re.sub('^[a-z]+ b1 ', '', row['problem']) for row in rows]"

# usage
expect help 0 'head-dim LIST' "$tool" bench --help
expect_error bad-format 2 "output is 'xml': it must be md, csv, json or jsonl" "${small[@]}" -o xml
expect_error bad-kernel 2 "kernel has 'nosuch': it must be one of best, .*generic, math" "${small[@]}" -k nosuch
expect_error bad-kernel-second 2 "kernel has 'x'" "${small[@]}" -k generic,x
expect_error bad-threads 2 "threads has '0'" "${small[@]}" -j 0 q16
expect_error bad-threads-word 2 "threads has 'x'" "${small[@]}" -j 1,x q16
expect_error bad-repeat 2 'repeat is 0' "$tool" bench -r 0 q16
expect_error bad-seconds 2 "seconds is '-1'" "$tool" bench --seconds -1 q16
expect_error bad-match 2 'regular expression' "${small[@]}" --match '(' q16
expect_error no-match 3 'nothing was measured' "${small[@]}" --match nosuch q16
expect_error bad-problem 2 "word 'x9'" "${small[@]}" q16 x9
expect_error bad-problem-in-list 2 "h3/2|multiple of kv_heads" "${small[@]}" -s q16 -H 4/2,3/2
expect_error bad-causal 2 "causal has '2': it must be 0 or 1" "${small[@]}" -c 0,2
expect_error bad-window 2 "window has 'wide'" "${small[@]}" -w wide
expect_error bad-strategy 2 "strategy has 'fast': it must be auto, prefill or decode" "${small[@]}" -S fast q16
expect_error bad-strategy-many 2 'strategy has 4 items: at most 3' "${small[@]}" -S auto,prefill,decode,auto q16
expect_error bad-paged 2 "paged has 'x': it must be 0 for none" "${small[@]}" -p x
expect_error shape-twice 2 'already' "${small[@]}" -s q16 q32
expect_error goals-and-cliffs 2 'give one of them' "$tool" bench --goals --cliffs
expect_error goals-problem 2 'takes no problem' "$tool" bench --goals q16
expect_error cliffs-problem 2 'takes no problem' "$tool" bench --cliffs q16
expect_error goals-file-alone 2 'needs --goals' "$tool" bench --goals-file x
expect_error bad-generator 2 "@uniform.*@lognormal" "${small[@]}" @uniform
expect_error bad-generator-tokens 2 "@lognormal=0" "${small[@]}" @lognormal=0

# lists and ranges
expect_error range-down 2 "'q64-16': a range goes up" "${small[@]}" -s q64-16
expect_error range-step 2 'a step is at least' "${small[@]}" -d 16-32+0
expect_error range-factor 2 'a factor at least' "${small[@]}" -d '16-32*1'
expect_error range-factor-zero 2 'from 1 at least' "${small[@]}" -d '0-32*2'
expect_error list-empty-item 2 'an item is empty' "${small[@]}" -d 16,,32
expect_error list-long 2 'more than 4096 items' "${small[@]}" -s q1-9999
expect_python list-product "$problems
assert problems == ['h2/2 q8 k8 d16 f32', 'h2/2 q8 k8 d16 f32 causal', 'h2/2 q8 k8 d24 f32',
                    'h2/2 q8 k8 d24 f32 causal'], problems" \
    "${small[@]}" -s q8 -H 2 -d 16-24+8 -c 0,1 -o jsonl
expect_python list-range-one "$problems
assert [p.split()[3] for p in problems] == ['d3', 'd4', 'd5'], problems" \
    "${small[@]}" -s q8 -H 1 -d 3-5 -c 0 -o jsonl
expect_python list-range-factor "$problems
assert [p.split()[1] for p in problems] == ['q8', 'q16', 'q32'], problems" \
    "${small[@]}" -s 'q8-63*2' -H 1 -d 8 -c 0 -o jsonl
expect_python list-range-units "$problems
assert [p.split()[2] for p in problems] == ['k1024', 'k2048', 'k3072'], problems" \
    "${small[@]}" -s 'q1s1k-3k+1k' -H 1 -d 8 -c 0 -o jsonl
expect_python list-windows "$problems
assert [p.split()[5:] for p in problems] == [[], ['window=3,0'], ['window=2,5']], problems" \
    "${small[@]}" -s q16 -H 1 -d 8 -c 0 -w 0,4,2/5 -o jsonl
expect_python list-dtypes "$problems
assert [p.split()[4] for p in problems] == ['f32', 'bf16', 'bf16->f32'], problems" \
    "${small[@]}" -s q16 -H 1 -d 8 -c 0 -t 'f32,bf16,bf16->f32' -o jsonl
expect_python list-pages "$problems
assert [p.split()[5:] for p in problems] == [[], ['paged=16'], ['paged=64']], problems" \
    "${small[@]}" -s q1s40 -H 1 -d 8 -c 0 -p 0,16,64 -o jsonl
expect_python list-strategies "$problems
assert [(r['strategy'], r['threads']) for r in rows] == [
    ('auto', 1), ('auto', 2), ('prefill', 1), ('prefill', 2), ('decode', 1), ('decode', 2)], rows
assert ' -S decode ' in rows[4]['repro'] and ' -S ' not in rows[0]['repro'], rows" \
    "${small[@]}" q2s40 d8 -S auto,prefill,decode -j 1,2 -o jsonl
expect_python words-as-lists "$problems
assert problems == ['h4/2 q8 k8 d8 f16 causal', 'h4/2 q8 k8 d16 f16 causal', 'h4/2 q9 k9 d8 f16 causal',
                    'h4/2 q9 k9 d16 f16 causal'], problems" \
    "${small[@]}" q8,9 h4/2 d8,16 f16 causal -o jsonl
expect_python words-with-commas "$problems
assert problems == ['h1/1 q16 k16 d8 f32 window=3,0'], problems" \
    "${small[@]}" q16 d8 window=3,0 -o jsonl
expect_python text-form "$problems
assert problems == ['h4/2 q4 k64 d16 bf16 causal'], problems" \
    "${small[@]}" "decode b1 h4/2 q4 k64 d16 bf16 causal" -o jsonl
expect_python mixed-shape "$problems
assert rows[0]['problem'] == 'mixed b5 h1/1 seqs=2x8/8,3x1/64 d8 f32 packed', rows" \
    "${small[@]}" 2q8_3q1s64 d8 -o jsonl
expect_python kernels-and-threads "$problems
assert [(r['kernel'], r['threads'], r['fallback']) for r in rows][1:] == [
    (rows[0]['kernel'], 2, False), ('math', 1, True), ('math', 2, True)], rows" \
    "${small[@]}" q8 d8 -k best,math -j 1-2 -o jsonl
expect_python match-rows "$problems
assert [(r['kernel'], r['threads']) for r in rows] == [('math', 2)], rows" \
    "${small[@]}" q8 d8 -k best,math -j 1,2 --match 'math threads=2' -o jsonl

# formats
fields="fields = '''problem phase kernel isa threads fallback med_ns min_ns p50_ns p99_ns n gflops fma_peak_gflops
pct_of_fma_peak gbps read_gbps_limit pct_of_read_limit pairs_visible pairs_computed bytes_compulsory bytes_model
workspace_bytes max_abs_err repro'''.split()"
expect_python jsonl "$fields
rows = [json.loads(line) for line in text.splitlines()]
assert len(rows) == 2 and all(f in row for f in fields for row in rows), rows
assert all(r['share_of'] == 'FMA' and 0 < r['share_pct'] for r in rows), rows
assert rows[0]['phase'] == 'prefill' and rows[0]['max_abs_err'] is None and rows[0]['read_gbps_limit'] is None
assert rows[0]['pairs_visible'] == 64 and rows[0]['min_ns'] <= rows[0]['med_ns'] <= rows[0]['p99_ns']" \
    "${small[@]}" -s q8,q16 -H 1 -d 8 -c 0 -o jsonl
expect_python json "$fields
result = json.loads(text)
assert all(f in row for f in fields for row in result['rows']) and result['machine']
assert {limit['limit'] for limit in result['limits']} == {'fma', 'read'}, result" \
    "$tool" bench --repeat 1 --seconds 0.001 --read-mib 4 q8 d8 -o json
expect_python csv "$fields
rows = list(csv.DictReader(io.StringIO(text)))
assert len(rows) == 2 and all(f in row for f in fields for row in rows), rows
assert rows[1]['problem'].endswith('window=3,0') and None not in rows[1]" \
    "${small[@]}" q8 d8 -w 0,4 -o csv
expect_python md "lines = [line for line in text.splitlines() if line.startswith('|')]
assert len(lines) == 3 and len({line.count('|') for line in lines}) == 1, lines
assert re.search('limit: FMA .*GFLOP/s', text) and text.index('limit:') < text.index('|')" \
    "${small[@]}" q8 d8
expect_python verify "row = json.loads(text)
assert 0 < row['max_abs_err'] < 1e-4, row" "${small[@]}" q32 d16 causal --verify -o jsonl
expect_python generated "row = json.loads(text)
assert row['problem'].startswith('@lognormal=40000') and '@lognormal=40000' in row['repro'], row
assert row['bytes_compulsory'] == 40000 * 1 * 4 * 4 * 4, row" "${small[@]}" @lognormal=40000 d4 causal -o jsonl
expect_python generated-verify "row = json.loads(text)
assert row['max_abs_err'] < 1e-4, row" "${small[@]}" @lognormal=3000 d16 causal -j 2 --verify -o jsonl
expect_python heads-first "row = json.loads(text)
assert row['problem'] == 'q1 k40 h4/2 d16 @heads' and \"'q1 k40 h4/2 d16 @heads'\" in row['repro'] and row['max_abs_err'] < 1e-4, row" \
    "${small[@]}" 'q1 k40 h4/2 d16 @heads' --verify -o jsonl
expect_python repro "import shlex, subprocess
row = json.loads(text)
words = shlex.split(row['repro'])
assert words[:2] == ['tileproof', 'bench'], words
again = json.loads(subprocess.check_output(['$tool'] + words[1:] + ['-o', 'jsonl', '--read-mib', '0']))
same = ['problem', 'kernel', 'threads', 'pairs_visible', 'bytes_model', 'max_abs_err', 'repro']
assert all(row[f] == again[f] for f in same), again" "${small[@]}" 2q16_3q1s40 h4/2 d8 bf16 causal -k generic --verify -o jsonl

# phases: a table each, and the roofline
expect_python md-phases "import re
assert re.findall('^(prefill|decode|mixed)\$', text, re.M) == ['prefill', 'decode', 'mixed'], text
tables = text.split('decode\\n\\n|')
assert 'KV GB/s' not in tables[0] and '% of FMA' in tables[0], tables[0]
decode, mixed = tables[1].split('mixed\\n\\n|')
assert '% of roofline' in decode and 'KV GB/s' in decode and 'GFLOP' not in decode, decode
assert '% of roofline' in mixed and 'GFLOP' in mixed, mixed" \
    "$tool" bench --repeat 1 --seconds 0.001 --read-mib 4 -s q20,q1s64,2q20_3q1s64 -H 4/2 -d 16 -c 1
expect_python roofline "row = json.loads(text)
assert row['kv_bytes'] == 2 * 40 * 2 * 16 * 4, row
least = max(row['kv_bytes'] / row['read_gbps_limit'], 2 * row['pairs_visible'] * 32 / row['fma_peak_gflops'])
assert abs(row['roofline_pct'] - 100 * least / row['min_ns']) < 1e-3 * row['roofline_pct'], row" \
    "$tool" bench --repeat 1 --seconds 0.001 --read-mib 4 q1s40 h4/2 d16 -o jsonl
expect_python roofline-none "assert json.loads(text)['roofline_pct'] is None" "${small[@]}" q1s40 d16 -o jsonl
expect_python decode-verify "rows = [json.loads(line) for line in text.splitlines()]
assert len(rows) == 4 and all(0 < r['max_abs_err'] < 1e-4 for r in rows), rows" \
    "${small[@]}" 2q20s90_3q1s1030 h4/2 d16 packed-q causal -p 3,64 -S auto,decode --verify -o jsonl
expect_python decode-repro "import shlex, subprocess
row = json.loads(text)
again = json.loads(subprocess.check_output(['$tool'] + shlex.split(row['repro'])[1:] + ['-o', 'jsonl', '--read-mib', '0']))
same = ['problem', 'kernel', 'strategy', 'pairs_visible', 'bytes_model', 'max_abs_err', 'repro']
assert all(row[f] == again[f] for f in same), again" \
    "${small[@]}" q1s90 h8/1 d24/16 bf16 latent paged=16 sparse=40 -k generic -S decode --verify -o jsonl

# goals
goals() { # CONTENT...
    printf '%s\n' "$@" >"$scratch/goals"
}
rule() { # NAME PATTERN LINE: line 2 of a file breaks a rule
    goals '# remark' "$3"
    expect_error "goals-$1" 2 "$scratch/goals:2: .*$2" "$tool" bench --goals --goals-file "$scratch/goals"
}
expect_error goals-no-file 2 'No such file' "$tool" bench --goals --goals-file "$scratch/none"
rule fewer 'five fields, not fewer' 'a | q16 d8 | pct_fma | 1'
rule more 'five fields, not more' 'a | q16 d8 | pct_fma | 1 | 2 | 3'
rule no-name 'the name is' ' | q16 d8 | pct_fma | 1 | 2'
rule metric "metric 'speed': it must be one of pct_fma" 'a | q16 d8 | speed | 1 | 2'
rule floor "floor is 'fast': it must be a number" 'a | q16 d8 | pct_fma | fast | 2'
rule aim "aim is 'x': it must be a number, or - for none" 'a | q16 d8 | pct_fma | 1 | x'
rule problem "problem 'q16 z9': .*z9" 'a | q16 z9 | pct_fma | 1 | 2'
rule problem-empty 'the problem is empty' 'a | threads=2 | pct_fma | 1 | 2'
rule argument 'its form is rate_vs' 'a | q16 d8 | rate_vs | 1 | 2'
rule argument-problem "problem 'q16 y': .*y" 'a | q16 d8 | rate_vs "q16 y" | 1 | 2'
rule argument-none 'its form is pct_fma' 'a | q16 d8 | pct_fma 3 | 1 | 2'
rule line 'two head dims' 'a | q16 d8 | rate_vs_line 16 8 | 1 | 2'
rule line-dim 'no word dN' 'a | q16 | rate_vs_line 8 16 | 1 | 2'
rule speed-problem "problem 'q16 y': .*y" 'a | q16 d8 | speed_vs "q16 y" | 1 | 2'
rule parts-one 'its form is sum_of_parts' 'a | q16 d8 | sum_of_parts "q16 d8" | 1 | 2'
rule parts-none 'its form is sum_of_parts' 'a | q16 d8 | sum_of_parts | 1 | 2'
rule parts-three 'its form is sum_of_parts' 'a | q16 d8 | sum_of_parts "q16 d8" "q8 d8" "q4 d8" | 1 | 2'
rule parts-problem "problem 'q8 y': .*y" 'a | q16 d8 | sum_of_parts "q16 d8" "q8 y" | 1 | 2'
rule case-strategy 'strategy must be prefill or decode' 'a | q16 d8 strategy=fast | pct_fma | 1 | 2'
rule read-threads 'its form is speedup_read' 'a | q16 d8 | speedup_read 1 | 1 | 2'
rule threads 'its form is speedup_threads' 'a | q16 d8 | speedup_threads 1 | 1 | 2'
rule case-threads 'threads must be in' 'a | q16 d8 threads=0 | pct_fma | 1 | 2'
goals 'a | q16 d8 | pct_fma | 1 | 2' 'a | q8 d8 | pct_fma | 1 | 2'
expect_error goals-twice 2 "goals:2: the name 'a' is that of line 1 too" "$tool" bench --goals --goals-file "$scratch/goals"
goals '# only remarks'
expect_error goals-nothing 2 'goals:.*the file holds no goal' "$tool" bench --goals --goals-file "$scratch/goals"
expect_error goals-no-match 2 "no goal matches 'nosuch'" "$tool" bench --goals --match nosuch

goals 'share | q64 h2/2 d16 | pct_fma | 0.0001 | 1000 # never reached' \
    'ratio | q32 d16 bf16 | rate_vs "q32 d16 f32" | 0.0001 | -' \
    'line | q32 d12 | rate_vs_line 8 16 | 0.0001 | 0.0001' \
    'math | q32 d16 | speed_vs math | 0.0001 | -' \
    'threads | 4q64 h4/4 d16 | speedup_threads 2 | 0.0001 | -' \
    'packed | @lognormal=500 d8 threads=2 | rate_vs "q64 d8" | 0.0001 | -' \
    'workspace | q4096 d64 threads=2 | workspace_mib | 1000 | -' \
    'plan | q1 k32 h4/2 d16 f32 | plan_us | 1e9 | -' \
    'overhead | q1 k32 h4/2 d16 f32 | overhead_us | 1e9 | -' \
    'receipt | q1 k32 h4/2 d16 f32 | receipt_pct | 1e9 | -' \
    'counting | q1 k32 h4/2 d16 f32 | counting_us | 1e9 | -' \
    'absent | q16 d8 kernel=nosuch | speed_vs math | 1000 | -' \
    'pages | q1 k64 h2/2 d16 f32 paged=16 | speed_vs "q1 k64 h2/2 d16 f32" | 0.0001 | -' \
    'parts | 2q8_3q1s64 d8 | sum_of_parts "2q8 d8" "3q1s64 d8" | 0.0001 | -' \
    'forced | q8 k64 d8 strategy=decode | speed_vs "q8 k64 d8 strategy=prefill" | 0.0001 | -' \
    'rows | q64 k40 h4/2 d8 | handover | 1e9 | -' \
    'unreachable | q16 d8 | pct_fma | 1000 | 2000'
mine=("$tool" bench --goals --goals-file "$scratch/goals")
# one has no kernel; three want two threads, which a host may not have
expect goals-met 0 'floors: 1[2-5] met, 0 not met, [1-4] not run here' "${mine[@]}" --match '^[^u]'
expect goals-not-met 1 'unreachable .*not met' "${mine[@]}" --match unreachable
expect goals-not-run 0 'absent .*not run here .*no kernel nosuch' "${mine[@]}" --match absent
expect_python goals-jsonl "rows = {r['name']: r for r in map(json.loads, text.splitlines())}
assert set(rows) == {'share', 'line', 'math', 'workspace'}, rows
assert rows['share']['floor_met'] == 'met' and rows['share']['aim_met'] == 'not met', rows
assert rows['share']['attempts'] >= 5 and rows['share']['figure'] > 0, rows
assert 0 < rows['share']['low'] <= rows['share']['figure'] <= rows['share']['high'], rows
assert rows['share']['of_best'] > 0 and rows['math']['low'] is None and rows['math']['of_best'] is None, rows
assert rows['share']['kind'] == 'goal' and rows['share']['machine'] and rows['share']['date'][:2] == '20', rows
assert rows['math']['aim'] is None and rows['math']['aim_met'] is None, rows" \
    "${mine[@]}" --match '^(share|line|math|workspace)$' -o jsonl
expect_python goals-json 'assert json.loads(text)[0]["name"] == "workspace"' "${mine[@]}" --match work -o json
expect goals-kernel 0 'generic: ' "${mine[@]}" --match '^share' -k generic
expect_python goals-handover "row = json.loads(text)
assert row['figure'] > 0 and re.search(r'[0-9]+ rows: ', row['detail']), row" "${mine[@]}" --match '^rows' -o jsonl
expect goals-handover-missed 1 'rows .*not met' "$tool" bench --goals --goals-file <(echo 'rows | q64 k40 h4/2 d8 | handover | 0.01 | -')
expect goals-built-in 0 'workspace-131072 .* met ' "$tool" bench --goals --match '^workspace'
expect goals-read 0 '^\| r .*best [0-9.]+ of [0-9.]+ GB/s' "$tool" bench --goals --read-mib 4 --goals-file <(echo 'r | q1 k64 h2/2 d16 f32 | pct_read | 0.0001 | -')

# the probe reads as many bytes as the call, or 1 MiB: its limit is stated by size
expect goals-read-size 0 'read, 1 thread: [0-9.]* GB/s over 1 MiB' "$tool" bench --goals --read-mib 4 --goals-file <(echo 'r | q1 k64 h2/2 d16 f32 | pct_read | 0.0001 | -')
expect goals-roofline 0 'KV GB/s' "$tool" bench --goals --read-mib 4 --goals-file <(echo 'r | q1 k64 h2/2 d16 f32 | pct_roofline | 0.0001 | -')
expect goals-read-threads 0 'read loops on 2 threads|not run here .*this host has 1 of 2 threads' "$tool" bench --goals --read-mib 4 --goals-file <(echo 'r | q1 k4096 h2/2 d16 f32 | speedup_read 2 | 0.0001 | -')

# cliffs: clean or not depends on the host
"$tool" bench --cliffs --quick -o jsonl >"$scratch/text" 2>"$scratch/errors"
code=$?
ok=0
[ $code -le 1 ] && [ ! -s "$scratch/errors" ] && python3 -c 'import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert bool(rows) == bool(int(sys.argv[2])) and all(row["ratio"] > 1.15 for row in rows)' "$scratch/text" $code && ok=1
report cliffs $ok "  exit $code: $(head -3 "$scratch/errors")"

finish
