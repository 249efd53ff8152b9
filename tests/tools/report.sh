#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of tileproof report: bash tests/tools/report.sh PATH/TO/tileproof. In a browser it is tested by tests/report/browser.py.
set -u
tool=${1:?usage: report.sh PATH/TO/tileproof}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/expect.sh"
old=$here/../proof/old.lock
export PYTHONPATH=$here/../report PYTHONDONTWRITEBYTECODE=1
cd "$scratch" || exit 1
python3 "$here/../report/inputs.py" . 5000

page() { # NAME CODE: of `page`, made of page.html, and `words`, its text
    local ok=0
    if python3 -c "import inputs, page, re
page = page.read('page.html')
words, data = page.words(), page.data()
$2" 2>errors; then ok=1; fi
    report "$1" $ok "  $(tail -2 errors)"
}

expect help 0 'tileproof report \[OPTIONS\] FILE' "$tool" report --help
expect_error no-file 2 'no file given: for example tileproof report' "$tool" report -o page.html
expect_error missing 2 'nosuch.json: No such file' "$tool" report nosuch.json -o page.html

# what is no such file is said with what was found, and nothing is written
bad() { # NAME TEXT PATTERN
    printf '%s' "$2" >"bad-$1"
    expect_error "bad-$1" 2 "bad-$1:$3" "$tool" report good.json "bad-$1" -o page.html
}
bad empty '' ' it holds no rows; report reads files of qualify'
bad list '[]' ' it holds no rows'
bad torn '[{"model": "a",
 "part"' '2: no JSON: .*; report reads files'
bad torn-line '{"sweep": "x", "ps_per_flop": 1, "ratio": 1}
{"sweep"' '2: no JSON'
bad unknown '{"a": 1, "b": {}}' '1: an object with the fields a, b is nothing that report knows: report reads'
bad number '[7]' '1: a whole number is nothing that report knows'
bad twice '{"sweep": 1, "sweep": 2}' '1: no JSON: .*duplicate'
bad status '[{"model":"m","part":"text","layers":"0","phase":"decode","problem":"x","status":"FINE"}]' \
    "1: field 'status' is 'FINE': it must be a status of docs/qualify.md"
bad model '[{"model":7,"part":"text","layers":"0","phase":"decode","problem":"x","status":"STALE"}]' "1: field 'model': it must be a text"
bad replay '{"format": "tileproof.replay/1", "rows": 3}' "1: field 'rows': it must be a list"
bad replay-row '{"format": "tileproof.replay/1", "rows": [3]}' "1: field 'rows': it must be a list of objects"
bad bench '{"limits": [], "rows": 3}' "1: field 'rows': it must be a list"
bad rate '{"kind": "rate", "problem": "q9 z9", "gflops": 1, "kernel": "x"}' "1: field"
bad lock '{"schema": "tileproof.lock/2", "checksum": 7}' '[0-9]+: '
report nothing-written "$([ ! -e page.html ] && echo 1)" "  page.html is there"
cp good.json kept.json
expect_error over-itself 2 'output kept.json is the file kept.json: it would be written over' "$tool" report kept.json -o kept.json
ln -s kept.json link.json
expect_error over-a-link 2 'it would be written over' "$tool" report kept.json -o link.json
report kept "$(cmp -s good.json kept.json && echo 1)" "  an input was changed"
expect_error no-folder 1 'nosuch/page.html: No such file' "$tool" report good.json -o nosuch/page.html

# each kind of file, in one page
everything=(qualify.json rates.jsonl use.jsonl peers.jsonl goals.jsonl cliffs.jsonl against.jsonl replay.json trace.json watch.json capacity.json)
expect everything 0 "^report: .*/page.html \([0-9.]+ KiB\)$" "$tool" report "${everything[@]}" -o page.html
page kinds "
for kind, count in dict(cell=5, rate=8, bytes=4, memory=4, peer=4, goal=2, cliff=1, against=1, replay=3, trace=1, watch=1, capacity=1).items():
    assert len(data[kind]) == count, kind
for text in ('rows of bench', 'rows of bench/peers', 'cells of qualify', 'rows of several kinds', 'a report of replay', 'a summary of a trace',
             'what tileproof.watch saw', 'a report of capacity', 'a mask was given', '2 of 5 cells of 3 models must not be served'):
    assert text in words, text"
page verdict "
assert 'FAIL' in words and 'X numeric fail 1' in words and 'U unsupported 1' in words and 'Q qualified 3' in words, words
assert 'host: trusted, A/A SAME (0.990..1.010)' in words and '4 of 9 timed rows were disturbed' in words, words
assert 'ahead in 1, behind in 1, even in 1' in words and '1 of 2 floors are met' in words, words
assert 'Largest error: 200 % of what is allowed' in words and '3.50 × as fast' in words, words"
page worst-first "
models = re.findall('model.json|good.json|wide.json|onerror', words.split('What is served')[1].split('Length by')[0])
assert models.index('onerror') < models.index('wide.json') < models.index('good.json'), models"
page hostile "
assert inputs.HOSTILE in [row['model'] for row in data['cell']] and inputs.HOSTILE in [row['reason'] for row in data['cell']], data['cell']
shown = ' '.join(inputs.HOSTILE.split())
assert words.count(shown) >= 8, words.count(shown)"
page provenance "
for kind in ('cell', 'rate', 'bytes', 'memory', 'peer'):
    for row in data[kind]:
        assert row['host'] == 'Some CPU' and row['date'].startswith('2026-11-15') and row['seed'] == 7 and row['version'] == '0.2.0' and row['file'], row
assert all(row['build'] == 'ef' * 32 for row in data['cell']) and 'Some CPU' in words.split('Where this comes from')[1]"
page provenance-of-objects "
(watched,), (traced,) = data['watch'], data['trace']
assert watched['host'] == 'A watched CPU' and watched['versions'] == 'torch=2.9' and watched['date'].startswith('2026-11-15'), watched
assert traced['summarised_by'] == '0.2.0' and 'A watched CPU' in words.split('Where this comes from')[1], traced"
page no-lists "assert 'round_ns' not in data['rate'][0] and data['rate'][0]['repro'].startswith('tileproof bench')"
page heat "
metrics = [a['value'] for tag, a in page.tags if tag == 'input' and a.get('name') == 'metric']
assert metrics == ['time', 'rate', 'share', 'scratch', 'error', 'gain'], metrics
assert '200 %' in words.split('Length by head dim')[1], words
assert words.count('head dim \\\\ keys') == 4, words.count('head dim \\\\ keys')"
page policy "
import base64, hashlib
(policy,) = (a['content'] for tag, a in page.tags if tag == 'meta' and a.get('http-equiv'))
(script,) = (text for attributes, text in page.scripts if not attributes)
assert f\"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'\" in policy and \"default-src 'none'\" in policy, policy"
cp page.html first.html
"$tool" report "${everything[@]}" -o page.html >/dev/null
report deterministic "$(cmp -s page.html first.html && echo 1)" "  two pages of the same files differ"
"$tool" report "${everything[@]}" -o - >stdout.html
report to-stdout "$(cmp -s page.html stdout.html && echo 1)" "  standard output is not the page"

if command -v gnuplot >/dev/null; then
    # labels of any length fit: cut between words, in the middle
    printf '%s\n' '{"kind":"peer","row":"prefill h8/8 seqs=32x128/128,4x256/256,2x512/512,1x2048/2048 d64 f32 packed causal","phase":"prefill","threads":1,"kernel":"k","verdict":"ahead","ratio":1,"ratio_lo":1,"ratio_hi":1,"peer":"x","host":"H","date":"2026-11-16T00:00:00Z"}' \
        '{"kind":"peer","row":"prefill b1 h2/2 q8192 k8192 d128 bf16 causal window=1023,0 p=bf16","phase":"prefill","threads":1,"kernel":"k","verdict":"ahead","ratio":1,"ratio_lo":1,"ratio_hi":1,"peer":"x","host":"H","date":"2026-11-17T00:00:00Z"}' >long.jsonl
    cp page.html kept.html
    expect long-labels 0 'report: ' "$tool" report long.jsonl -o page.html
    page long-labels-page "
svg = open('page.html').read().split('<h2>Other libraries')[0]
assert 'prefill h8/8 seqs=32x128/128,4x256... f32 packed causal, 1 thread' in svg, svg[-3000:]
assert 'prefill b1 h2/2 q8192 k8192 d128 ... p=bf16, 1 thread' in svg, svg[-3000:]
assert 'x, H, 2026-11-16' in words and 'x, H, 2026-11-17' in words and svg.count('<svg') == 2, words"
    mv kept.html page.html
    page charts "assert sum(tag == 'svg' for tag, _ in page.tags) == 8 and 'could not be made' not in words, [a for tag, a in page.tags if tag == 'svg']"
    printf '%s\n' '{"kind":"peer","row":"prefill b1 h1/1 q8 k8 d8 f32","phase":"prefill","threads":1,"kernel":"k","verdict":"ahead","ratio":1,"ratio_lo":1,"ratio_hi":1,"peer":"x\n!touch pwned\n"}' >shell.jsonl
    expect no-command 0 'report: ' "$tool" report shell.jsonl -o page.html
    report no-command-ran "$([ ! -e pwned ] && echo 1)" "  a name was run as a command"
else
    echo "not run here: charts (gnuplot was not found)"
fi
mkdir empty
expect no-gnuplot 0 'not run here: gnuplot was not found' env PATH="$scratch/empty" "$tool" report "${everything[@]}" -o page.html
page no-gnuplot-page "assert 'Charts are not drawn here: gnuplot was not found' in words and not any(tag == 'svg' for tag, _ in page.tags)"

# no cells; cells that are fine; engines
expect no-cells 0 '^report' "$tool" report goals.jsonl -o page.html
page no-cells-page "assert 'No qualification' in words and 'No file has an A/A control' in words, words"
expect fine 0 '^report' "$tool" report good.json -o page.html
page fine-page "assert 'PASSAll 3 cells of 1 model are served and right' in words and 'Engines side by side' not in words, words"
expect engines 0 '^report' "$tool" report good.json torch.json -o page.html
page engines-page "assert 'Engines side by side' in words and 'flash · 2 · 4.00 ms' in words and 'avx512 · 2 · 2.00 ms' in words, words"

# two caches of one model: rows of their own, side by side, the loss beside the error
expect caches 0 '^report' "$tool" report good.json quantised.json -o page.html
page caches-page "
assert 'modelcachelayersprefilldecode' in words and 'good.jsonplaintext 0-3' in words and 'good.jsoni8/tokentext 0-3' in words, words
assert 'Caches side by side' in words and 'phaseplaini8/token' in words and 'Largest error: 30.0 % of what is allowed' in words, words
assert 'Lost in quantising, apart from that: 0.392 % of a row' in words, words
assert [row.get('loss') for row in data['cell']].count(None) == 3, data['cell']"
expect caches-engines 0 '^report' "$tool" report good.json quantised.json torch.json -o page.html
page caches-engines-page "
for text in ('good.jsontileprooftext 0-3', 'good.jsontileproof cache i8/tokentext 0-3', 'good.jsontorch eagertext 0-3', 'Engines side by side'):
    assert text in words, (text, words)"
# two replays of one trace, from two caches; a call that names no model can be opened; scores that were written
sed 's/"modelled"/"cache": "i8\/token", "host": "Some CPU", "date": "2026-11-16T09:00:00Z", "modelled"/; s/"model": "good"/"model": "-"/' replay.json >replay8.json
expect replays 0 '^report' "$tool" report replay.json replay8.json use.jsonl -o page.html
page replays-page "
assert words.count('avx2i8/tokenno120') == 3 and 'not nameddecode1kavx2i8/token' in words, words
peak = words.split('scores written')[1]
assert peak.count('262,144') == peak.count('1,048,576') == 1 and 'avx25 KiB0' in peak, peak[:400]
assert not any(tag == 'svg' for tag, _ in page.tags) or 'decode 1k avx2, cache i8/token' in open('page.html').read(), words"

expect bench-json 0 '^report' "$tool" report bench.json -o page.html
page bench-json-page "assert len(data['rate']) == 8 and 'host: trusted' in words, data.keys()"
# what the tool itself writes, with its origin
echo 'share | q16 d8 | pct_fma | 0.0001 | 1000' >goals
for what in "q16,32 d8 -k best,math" "q16 d8 -k best --against math" "--goals --goals-file goals" "--memory q16 d8 -k math"; do
    # shellcheck disable=SC2086
    "$tool" bench --repeat 1 --seconds 0.001 --read-mib 0 $what -o jsonl 2>/dev/null
done >real.jsonl
expect real 0 '^report' "$tool" report real.jsonl -o page.html
page real-page "
assert {'rate', 'against', 'goal', 'memory'} <= set(data), data.keys()
for kind in ('rate', 'against', 'goal', 'memory'):
    for row in data[kind]:
        assert row['host'] and row['date'] and row['version'] and len(row['build']) == 64 and row['seed'] == 1 and row['repro'], row"

# locks: cells, history, differences between two and from today's cells
expect lock 0 '^report' "$tool" report "$old" -o page.html
page lock-page "assert len(data['cell']) == 8 and {row['status'] for row in data['cell']} >= {'QUALIFIED', 'UNSUPPORTED'} and len(data['history']) == 2, data"
printf '{"tileproof_model": 1, "groups": [{"layers": "0-3", "problem": "h4/2 d32 f32 causal"}]}' >tiny.json
"$tool" qualify tiny.json --quick --phases decode --lock one.lock --update --reason first --save today.json >/dev/null 2>&1
sed -i 's/d32/d40/' tiny.json
"$tool" qualify tiny.json --quick --phases decode --lock two.lock --update --reason second >/dev/null 2>&1
expect same-lock 0 '^report' "$tool" report today.json one.lock -o page.html
page same-lock-page "assert 'change' not in data and 'Nothing differs' in words and len(data['cell']) == 3, data.get('change')
assert all(row['host'] and row['date'] and row['seed'] and row['build'] and row['version'] for row in data['cell']), data['cell'][0]"
expect two-locks 0 '^report' "$tool" report one.lock two.lock -o page.html
page two-locks-page "
assert len(data['cell']) == 3 and all('d40' in row['problem'] for row in data['cell']), data['cell']
assert any(row['what'] == 'config' for row in data['change']) and 'differences' in words, data['change']"
sed 's/"bytes": [0-9]*/"bytes": 1/' today.json >changed.json
expect changed 0 '^report' "$tool" report one.lock changed.json -o page.html
page changed-page "assert len(data['change']) == 3 and 'bytes' in data['change'][0]['to'] and data['change'][0]['later'] == 'STALE', data.get('change')"

# many cells: details once, texts once
expect many 0 '^report' "$tool" report many.json -o page.html
page many-page "assert len(data['cell']) == 5000 and sum(a.get('class', '').startswith('cell ') for tag, a in page.tags if tag == 'button') == 5000"
report many-size "$([ "$(wc -c <page.html)" -lt 2000000 ] && echo 1)" "  $(wc -c <page.html) bytes"
finish
