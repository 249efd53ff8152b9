#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of tileproof bench --bytes, under valgrind: bash tests/tools/bytes.sh PATH/TO/tileproof
set -u
tool=${1:?usage: bytes.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"

# usage
expect_error cache-alone 2 'cache needs --bytes' "$tool" bench --cache 1m q16
expect_error cache-word 2 "cache is '1x': it must be a whole number" "$tool" bench --bytes --cache 1x q16
expect_error cache-small 2 'cache is 64: it must be in [0-9]+\.\.1073741824' "$tool" bench --bytes --cache 64 q16
expect_error cache-large 2 'cache is 2147483648: it must be in' "$tool" bench --bytes --cache 2048m q16
expect_error two-commands 2 'commands of their own' "$tool" bench --bytes --memory q16
expect_error threads 2 "threads is '2': --bytes and --memory run on 1 thread" "$tool" bench --bytes -j 2 q16
expect_error bad-kernel 2 "kernel has 'nosuch'" "$tool" bench --bytes -k nosuch q16
expect_error bad-problem 2 "word 'x9'" "$tool" bench --bytes q16 x9
expect_error no-match 3 'nothing was measured' "$tool" bench --bytes --match nosuch q16 d8
if "$tool" --help | grep -q simulated-run; then report hidden 0 "  the child's command is in the help"; else report hidden 1; fi

# where it cannot run
mkdir "$scratch/empty"
expect_error no-valgrind 3 'not run here: valgrind was not found' env PATH="$scratch/empty" "$tool" bench --bytes q16 d8
expect_error no-folder 1 "$scratch/none/tileproof-.*No such file" env TMPDIR="$scratch/none" "$tool" bench --bytes q16 d8
output=$("$tool" bench --bytes q16 d8 -k avx512 2>&1)
code=$?
ok=0 # valgrind 3.19 knows no AVX-512; one that does may run it
if [ $code = 0 ] || { [ $code = 3 ] && grep -q 'on avx512: not run here: ' <<<"$output"; } ||
    { [ $code = 2 ] && ! grep -q "^avx512 " <<<"$("$tool" info)"; }; then ok=1; fi
report avx512 $ok "  exit $code: $output"

# figures: a cold cache moves what is compulsory at least, and the model holds; math moves more
sane="rows = [json.loads(line) for line in text.splitlines()]
for r in rows:
    assert r['kind'] == 'bytes' and r['host'] and re.match(r'\d{4}-\d\d-\d\dT', r['date']), r
    assert r['sim_read'] >= r['compulsory_read'] + r['compulsory_written'], r
    assert r['sim_written'] >= r['compulsory_written'] and r['sim_bytes'] == r['sim_read'] + r['sim_written'], r
    assert r['sim_read'] >= r['sim_allocate'] >= r['compulsory_written'] and r['sim_written'] >= r['sim_leftover'], r
    assert r['model_holds'] == (None if r['kernel'] == 'math' else 'yes'), r
    assert r['host_kernel'] and r['bound_read'] == r['model_read'] + r['model_written'] + r['workspace_bytes'], r
ours, math = rows[0::2], rows[1::2]
assert all(r['kernel'] != 'math' and r['over_first'] == 1 for r in ours) and all(r['kernel'] == 'math' for r in math)
assert all(m['problem'] == o['problem'] and m['sim_bytes'] > o['sim_bytes'] for o, m in zip(ours, math)), rows"
expect_python prefill "$sane
assert [r['phase'] for r in rows] == ['prefill'] * 4 and rows[0]['cache_ll'] == 2 << 20, rows
assert rows[0]['compulsory_read'] == 3 * 128 * 32 * 4 and rows[0]['compulsory_written'] == 128 * 32 * 4, rows
assert rows[0]['q_len'] == rows[0]['kv_len'] == 128 and rows[0]['head_dim'] == 32, rows" \
    "$tool" bench --bytes --cache 2m -s q128 -d 32 -c 0,1 -o jsonl
expect_python decode "$sane
assert rows[0]['phase'] == 'decode' and rows[0]['compulsory_read'] == 2 * (2048 * 2 * 64 * 2 + 4 * 64 * 2), rows" \
    "$tool" bench --bytes --cache 1m 2q1s2k h4/1 d64 bf16 -o jsonl
# a backward call must write d_q, d_k and d_v, and does five products
expect_python backward "row = json.loads(text)
assert row['phase'] == 'backward' and row['model_holds'] == 'yes' and row['sim_written'] >= row['compulsory_written'], row
assert row['compulsory_written'] == 128 * 2 * 32 * 4 + 96 * 1 * (32 + 16) * 4, row
assert row['flops'] == 2 * 2 * 128 * 96 * (3 * 32 + 2 * 16), row" \
    "$tool" bench --bytes --cache 2m "backward h2/1 q128 k96 d32/16 f32" -k generic -o jsonl
# A cache of 1 MiB holds neither the scores nor the probabilities, 4 MiB each: they go to memory and come back.
expect_python scores "$sane
ours, math = rows
assert math['sim_written'] >= 2 * 1024 * 1024 * 4 and math['sim_read'] >= 2 * 1024 * 1024 * 4, math
assert math['model_written'] <= math['sim_written'] <= 1.1 * math['model_written'], math
assert ours['sim_bytes'] < math['sim_bytes'] / 8, rows" \
    "$tool" bench --bytes --cache 1m q1k d8 -o jsonl

# formats
expect md 0 'simulated, no prefetcher: callgrind, D1 .*, last cache 1 MiB' "$tool" bench --bytes --cache 1m q16 d8 -k generic
expect rounded 0 'rounded: the last cache of 1.007 MiB is simulated as 1 MiB' "$tool" bench --bytes --cache 1056000 q16 d8 -k generic
expect_json json 0 "$tool" bench --bytes q16 d8 -k generic -o json
expect_python csv "row = list(csv.DictReader(io.StringIO(text)))[0]
assert row['kernel'] == 'generic' and int(row['sim_read']) > 0 and None not in row, row" \
    "$tool" bench --bytes q16 d8 -k generic -o csv
expect_python repro "import shlex, subprocess
row = json.loads(text)
again = json.loads(subprocess.check_output(['$tool'] + shlex.split(row['repro'])[1:] + ['-o', 'jsonl']))
assert all(row[f] == again[f] for f in ['problem', 'kernel', 'model_read', 'cache_ll', 'repro']), again
assert abs(row['sim_read'] - again['sim_read']) < 8192, again" "$tool" bench --bytes 2q9_1q1s40 h2/1 d8 causal -k generic -o jsonl

report no-rubbish "$([ -z "$(ls -A "$TMPDIR")" ] && echo 1)" "  left behind: $(ls "$TMPDIR")"
finish
