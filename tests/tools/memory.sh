#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of tileproof bench --memory: bash tests/tools/memory.sh PATH/TO/tileproof
set -u
tool=${1:?usage: memory.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"

# math holds scores and probabilities; a fused kernel what its workspace is, whatever the length
expect_python peaks "rows = [json.loads(line) for line in text.splitlines()]
ours, math = rows[0::2], rows[1::2]
page = 256 << 10 # of the stack, and of counting by pages
for o, m, s in zip(ours, math, (512, 1024, 2048)):
    assert o['q_len'] == m['q_len'] == s and o['kind'] == 'memory' and o['host'] and o['date'], o
    assert m['peak_bytes'] >= 2 * s * s * 4 and m['scores_written'] == s * s, m
    assert m['scores_bytes'] == s * s * 4 and m['kernel'] == 'math' and m['max_abs_err'] < 1e-4, m
    assert o['workspace_bytes'] / 2 < o['peak_bytes'] < o['workspace_bytes'] + page, o
    assert o['peak_bytes'] < 4 << 20 and o['scores_written'] == 0 and o['max_abs_err'] < 1e-4, o" \
    "$tool" bench --memory -s q512-2k*2 -o jsonl
expect_python repro "import shlex, subprocess
row = json.loads(text)
again = json.loads(subprocess.check_output(['$tool'] + shlex.split(row['repro'])[1:] + ['-o', 'jsonl']))
assert all(row[f] == again[f] for f in ['problem', 'kernel', 'workspace_bytes', 'repro']), again" \
    "$tool" bench --memory 2q9_1q1s40 h2/1 d8 causal -k generic -o jsonl
# a backward call reads o and lse of a forward one, and its gradients are compared, not the o of that
expect_python backward "row = json.loads(text)
assert row['phase'] == 'backward' and row['max_abs_err'] is None and row['scores_written'] == 0, row
assert row['workspace_bytes'] / 2 < row['peak_bytes'] < row['workspace_bytes'] + (256 << 10), row" \
    "$tool" bench --memory "backward h2 q256 k256 d64 f32" -k best -o jsonl
expect backward-math 0 'on math: not run here: .*op backward, need forward' "$tool" bench --memory "backward h1 q32 k32 d8 f32"
expect too-large 0 'q1m d1 window=8,0 on math: not run here: the workspace would take 8 TiB: at most .* available' \
    "$tool" bench --memory q1m d1 window=8,0 -k math,generic
expect_error too-large-alone 3 'nothing was measured' "$tool" bench --memory q1m d1 -k math
expect md 0 'one process a row' "$tool" bench --memory q64 d8
expect_json json 0 "$tool" bench --memory q64 d8 -o json
expect_error threads 2 'run on 1 thread' "$tool" bench --memory q64 d8 -j 1,2
expect_error no-match 3 'nothing was measured' "$tool" bench --memory q64 d8 --match nosuch
expect_error refused 3 'head_dim|nothing was measured' "$tool" bench --memory q8 d640 -k generic
finish
