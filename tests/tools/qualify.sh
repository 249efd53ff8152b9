#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of `tileproof qualify`: bash tests/tools/qualify.sh PATH/TO/tileproof
set -u
tool=${1:?usage: qualify.sh PATH/TO/tileproof}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/expect.sh"
models=$here/../../models

declare_model() { # NAME PROBLEM
    printf '{"tileproof_model": 1, "groups": [{"layers": "0-3", "problem": "%s"}]}' "$2" >"$scratch/$1"
}
declare_model tiny.json "h4/2 d64 f32 causal"
declare_model window.json "h4/2 d32 f32 causal window=100,0"
declare_model wide.json "h2/1 d640 f32 causal"
one="$scratch/tiny.json"

expect help 0 'tileproof qualify \[OPTIONS\] CONFIG' "$tool" qualify --help

# every format says the same
expect md 0 '\| tiny.json \| text 0-3 \| [a-z0-9]+ QUALIFIED 2 x[0-9.]+ \| [a-z0-9]+ QUALIFIED 3 x[0-9.]+ \| [a-z0-9]+ QUALIFIED 1 x[0-9.]+ \| [a-z0-9]+ QUALIFIED 1 x[0-9.]+ \| \|' \
    "$tool" qualify "$one" --quick -o md
expect md-by-v 0 '\| tiny.json \| text 0-3 \|' "$tool" qualify "$one" --quick --phases decode -v
# at a terminal: first what it will do and how long, then a short table, worst first, and one line at the end
expect announced 0 '^qualify: 1 model, 3 cells, 3 different problems; about [0-9]+ (s|min) on [0-9]+ threads?$' \
    "$tool" qualify "$one" --quick --phases decode
quiet() { "$@" 2>/dev/null; } # a shell of its own would speak of the locale
expect_python summary '
lines = text.splitlines()
assert max(map(len, lines)) <= 80, lines
assert lines[0].split() == ["model", "d"] and lines[1].split() == ["tiny", "Q"] and lines[2:4] == ["Q qualified", "one for each layer group; columns: decode"], lines
assert lines[-1] == "PASS: 1 model, 3 cells, lock none; next: the whole matrix, without --quick", lines' \
    quiet "$tool" qualify "$one" --quick --phases decode
# however many cores there are, the reference may be shared among threads
expect one-cell 0 '^PASS: 1 model, 4 cells' "$tool" qualify "$one" --quick --cells 1
expect_error bad-cells 2 "--cells is 'few': it must be a whole number" "$tool" qualify "$one" --cells few
expect shared-reference 0 '^PASS: 1 model, 3 cells' "$tool" qualify "$one" --quick --phases decode --threads 3
expect_python worst-first '
lines = text.splitlines()
assert lines[1].split() == ["wide", "R", "tiny", "Q"] and lines[2] == "Q qualified, R refused", lines
assert lines[-2:] == ["FAIL: 2 models, 3 of 6 cells, lock none;", "next: --fallback permit, or tileproof explain"], lines' \
    quiet "$tool" qualify "$one" "$scratch/wide.json" --quick --phases decode
expect_python jsonl '
rows = [json.loads(line) for line in text.splitlines()]
assert {row["phase"] for row in rows} == {"prefill", "decode", "varlen", "mixed"}, rows
for row in rows:
    assert row["status"] == "QUALIFIED" and row["kernel"] and len(row["output"]) == 64, row
    assert 0 < row["error"] <= row["allowed"] < 1e-3 and row["bytes"] > 0 and row["scratch"] > 0, row
    assert row["model"] == "tiny.json" and row["layers"] == "0-3" and row["dtype_assumed"] is False, row
timed = [row for row in rows if row["time_ns"] is not None]
assert {row["phase"] for row in timed} == {"prefill", "decode", "varlen", "mixed"}, timed
# a call of 0.3 s has no math beside it: a build with sanitizers on a busy host comes near
assert all(row["gain_over_math"] is not None for row in timed if row["time_ns"] < 5e7), timed' "$tool" qualify "$one" --quick -o jsonl
expect_json json 0 "$tool" qualify "$one" --quick --phases decode -o json
expect save 0 'QUALIFIED' "$tool" qualify "$one" --quick --phases decode --save "$scratch/saved.json"
expect_json saved 0 cat "$scratch/saved.json"
expect_python csv '
rows = list(csv.DictReader(io.StringIO(text)))
assert [row["phase"] for row in rows] == ["varlen", "mixed"], rows' "$tool" qualify "$one" --phases mixed,varlen -o csv

# by the name of a shipped model, as replay knows it
expect by-name 0 '^gpt2 +Q$' "$tool" qualify gpt2 --models "$models" --quick --phases decode
expect_error by-wrong-name 2 "model 'llama-3.2-1' is neither.*Did you mean llama-3.2-1b\?" "$tool" qualify llama-3.2-1 --models "$models"

# nothing checked is not passed, whatever the format, and no lock comes of it
expect nothing-checked 3 '^NOTHING CHECKED: 1 model, 0 cells, lock none; next: other --phases$' "$tool" qualify "$one" --phases multimodal
expect nothing-checked-row 3 '^tiny +no such cells$' "$tool" qualify "$one" --phases multimodal
expect nothing-checked-json 3 'nothing was checked: no layer has a cell of --phases multimodal' "$tool" qualify "$one" --phases multimodal -o json
expect nothing-locked 3 '^NOTHING CHECKED: .*, lock .* not written;' "$tool" qualify "$one" --phases multimodal --lock "$scratch/nothing.lock" --update --reason x
[ ! -e "$scratch/nothing.lock" ] && [ ! -e "$scratch/nothing.lock.journal" ] && ok=1 || ok=0
report nothing-left "$ok" "$(ls "$scratch")"
# the threads there are, beyond what the estimate goes by
expect announced-threads 0 'on 17 threads$' "$tool" qualify "$one" --quick --phases mixed --threads 17
# what is refused for its size is not helped by a fallback
declare_model large.json "h65536/1 d256 f32 causal"
expect too-large 3 '^next: too large to be run: --phases without it$' \
    "$tool" qualify "$scratch/large.json" --quick --phases varlen
expect refused-twice 3 'next: tileproof explain with its problem$' "$tool" qualify "$scratch/wide.json" --quick --phases varlen --fallback permit --disable math

# one problem of two models runs once, and both have it
cp "$one" "$scratch/twin.json"
expect shared 0 '14 cells of 2 models, 7 different problems: 7 QUALIFIED' "$tool" qualify "$one" "$scratch/twin.json" --quick
# what an update says names a few models, and counts many
for i in 1 2 3 4 5; do cp "$one" "$scratch/many-$i.json"; done
many=(--phases decode --cells 1 --lock "$scratch/many.lock" --update --reason many)
expect many 0 'many.lock: 5 new, 0 changed, 0 same of 5 revisions \(tileproof lock list names them\)$' \
    "$tool" qualify "$scratch"/many-?.json "${many[@]}"
expect few 0 'many.lock: 0 new, 0 changed, 2 same of many-1.json [0-9a-f]{12}, many-2.json [0-9a-f]{12}$' \
    "$tool" qualify "$scratch"/many-[12].json "${many[@]}"

# window edges hide keys; spans and a prefix have a phase of their own, others none
expect_python window '
rows = {(row["phase"], row["purpose"]): row for row in map(json.loads, text.splitlines())}
assert "k117" in rows["prefill", "window"]["problem"] and "k109" in rows["decode", "window"]["problem"], rows
assert all(row["status"] == "QUALIFIED" for row in rows.values()), rows' "$tool" qualify "$scratch/window.json" -o jsonl
expect dtype 0 'the one of --dtype was assumed' "$tool" qualify "$models/gpt2.json" --quick --phases decode
expect_python dtype-asked 'assert " f16 " in json.loads(text.splitlines()[0])["problem"] + " "' \
    "$tool" qualify "$models/gpt2.json" --quick --phases decode -t f16 -o jsonl

# refusals name every kernel and its reason; a permitted fallback is another status
expect unsupported 3 'wide.json, text layers 0-3, prefill \(main\): UNSUPPORTED: .* generic: head_dim 640, need <= 576; math: a fallback' \
    "$tool" qualify "$scratch/wide.json" --quick
expect fallback 0 'math QUALIFIED_FALLBACK' "$tool" qualify "$scratch/wide.json" --quick --fallback permit -o md
expect disabled 3 'UNSUPPORTED: .*head_dim 64 is disabled by hand' "$tool" qualify "$one" --quick --disable head_dim=64
expect_error disable-nonsense 2 "disable names 'head_dim=09'" "$tool" qualify "$one" --quick --disable head_dim=09

# where all keys weigh the same, rows of a group are equal: nothing is shown there, and that is said
declare_model flat.json "h4/2 d64 bf16 causal scale=0.0000001"
expect mistrusted 4 'decode \(main\): MISTRUSTED: .*two rows could be exchanged' "$tool" qualify "$scratch/flat.json" --quick --phases decode

# the lock
lock=$scratch/t.lock
expect_error update-without-reason 2 'needs --reason' "$tool" qualify "$one" --lock "$lock" --update
expect_error update-blank-reason 2 'reason has 1 bytes: an update needs one of 1..400, not blank' "$tool" qualify "$one" --quick --phases decode --lock "$lock" --update --reason ' '
expect_error no-lock-yet 2 't.lock: No such file' "$tool" qualify "$one" --quick --phases decode --lock "$lock"
expect lock-made 0 'QUALIFIED' "$tool" qualify "$one" --quick --phases decode --lock "$lock" --update --reason 'first'
[ -e "$lock" ] && [ ! -e "$lock.journal" ] && ok=1 || ok=0
report lock-alone "$ok" "  $(ls "$scratch")"
cp "$lock" "$scratch/first.lock"
expect lock-holds 0 'QUALIFIED' "$tool" qualify "$one" --quick --phases decode --lock "$lock"
beside() { (cd "$scratch" && quiet "$@"); } # the lock, so that its name is short
cp "$lock" "$scratch/a-longer-name.lock"
expect lock-verdict 0 "^PASS: 1 model, 3 cells, lock t.lock; next: the whole matrix, without --quick$" \
    beside "$tool" qualify "$one" --quick --phases decode --lock t.lock
expect_python lock-verdict-80 '
assert text.endswith("\nPASS: 1 model, 3 cells, lock a-longer-name.lock;\nnext: the whole matrix, without --quick\n"), text
assert max(map(len, text.splitlines())) <= 80, text' beside "$tool" qualify "$one" --quick --phases decode --lock a-longer-name.lock
expect stale-verdict 5 '^next: meant\? then --update|; next: meant\? then --update' "$tool" qualify "$one" --quick --phases decode --lock "$lock" --declare engine=2
expect lock-stale 5 'the lock is STALE: library declared: lock has none, here engine=2' "$tool" qualify "$one" --quick --phases decode --lock "$lock" --declare engine=2
expect lock-other-cell 5 'STALE: .*: the lock has no such cell' "$tool" qualify "$scratch/window.json" --quick --phases decode --lock "$lock"
expect lock-again 0 '' "$tool" qualify "$one" --quick --phases decode --lock "$lock" --update --reason 'again'
diff "$scratch/first.lock" "$lock" >"$scratch/diff"
[ "$(grep -c '^[<>]' "$scratch/diff")" -le 5 ] && grep -q 'again' "$scratch/diff" && ok=1 || ok=0
report small-diff "$ok" "$(cat "$scratch/diff")"

# a cell whose bits are others than the lock's: resealed as an update would
python3 - "$lock" "$scratch/bits.lock" "$scratch/kernel.lock" "$scratch/bytes.lock" <<'PY'
import hashlib, json, re, sys
text = open(sys.argv[1]).read()
def seal(text):
    root = json.loads(text, parse_float=lambda number: "@" + number + "@")
    root.pop("checksum")
    flat = re.sub(r'"@([^@]*)@"', r"\1", json.dumps(root, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    return re.sub(r'"checksum": "[0-9a-f]*"', '"checksum": "%s"' % hashlib.sha256(flat.encode()).hexdigest(), text)
assert seal(text) == text, "the checksum is not what docs/lock.md says"
open(sys.argv[2], "w").write(seal(re.sub(r'"output":"....', '"output":"0000', text, count=1)))
open(sys.argv[3], "w").write(seal(re.sub(r'"kernel":"[a-z0-9]*"', '"kernel":"other"', text, count=1)))
open(sys.argv[4], "w").write(seal(re.sub(r'"bytes":([0-9]*)', r'"bytes":1\1', text, count=1)))
PY
expect numerics-changed 5 'NUMERICS_CHANGED: .*other bits, within the rule' "$tool" qualify "$one" --quick --phases decode --lock "$scratch/bits.lock"
expect numerics-updated 0 '' "$tool" qualify "$one" --quick --phases decode --lock "$scratch/bits.lock" --update --reason 'bits were planted'
expect numerics-then-hold 0 '' "$tool" qualify "$one" --quick --phases decode --lock "$scratch/bits.lock"
expect other-kernel 5 'STALE: .*lock has other QUALIFIED' "$tool" qualify "$one" --quick --phases decode --lock "$scratch/kernel.lock"
expect other-witness 5 'STALE: .*bytes: lock has 1[0-9]*, here' "$tool" qualify "$one" --quick --phases decode --lock "$scratch/bytes.lock"

# bad locks: file, line, field, rule; and they are not overwritten
head -c 700 "$lock" >"$scratch/cut.lock"
expect_error truncated 2 'cut.lock:[0-9]+: not JSON' "$tool" qualify "$one" --lock "$scratch/cut.lock" --update --reason x
sed 's/"bytes":/"bytes":9/' "$lock" >"$scratch/edited.lock"
expect_error edited 2 'edited.lock:3: checksum is .* the file was edited' "$tool" qualify "$one" --lock "$scratch/edited.lock"
[ "$(stat -c %s "$scratch/cut.lock")" = 700 ] && ok=1 || ok=0
report cut-untouched "$ok" ""

if [ -z "${TILEPROOF_TEST_QUICK:-}" ]; then # real models
# stop and resume: a journal beside the lock; a kill leaves no lock and no half line that counts
first=("$models/arctic-embed-m.json" "$models/falcon-40b.json")
"$tool" qualify "${first[@]}" --lock "$scratch/r.lock" --update --reason 'killed' >/dev/null 2>&1 &
pid=$!
for _ in $(seq 600); do
    [ "$(grep -c problem "$scratch/r.lock.journal" 2>/dev/null)" -ge 3 ] 2>/dev/null && break
    sleep 0.05
done
kill -9 $pid
wait $pid 2>/dev/null
[ ! -e "$scratch/r.lock" ] && ok=1 || ok=0
report killed-no-lock "$ok" ""
printf '{"problem":"half' >>"$scratch/r.lock.journal"
expect resumed 0 'from the journal' "$tool" qualify "${first[@]}" --lock "$scratch/r.lock" --update --reason 'resumed' --resume
[ -e "$scratch/r.lock" ] && [ ! -e "$scratch/r.lock.journal" ] && ok=1 || ok=0
report resumed-lock "$ok" "$(ls "$scratch")"
# SIGINT ends after the cell at hand
timeout -s INT 1 "$tool" qualify "$models"/llama-4-scout.json "$models"/deepseek-v3.json "$models"/falcon-40b.json "$models"/gpt-oss-20b.json --journal "$scratch/int.journal" >"$scratch/out" 2>"$scratch/errors"
grep -q 'stopped: [0-9]* of [0-9]* cells are done and kept in the journal' "$scratch/errors" &&
    grep -qF "to go on: $tool qualify $models/llama-4-scout.json" "$scratch/errors" && grep -q 'int.journal --resume$' "$scratch/errors" && [ ! -s "$scratch/out" ] && [ -s "$scratch/int.journal" ] && ok=1 || ok=0
report interrupted "$ok" "$(cat "$scratch/errors")"
expect_python multimodal '
rows = list(map(json.loads, text.splitlines()))
assert {row["part"] for row in rows} == {"text"} and all(" spans" in row["problem"] for row in rows), rows
assert all(row["status"] == "QUALIFIED" for row in rows) and rows, rows' \
    "$tool" qualify "$models/gemma-3-4b-it.json" --quick --phases multimodal -o jsonl
fi
printf 'nonsense\n' >"$scratch/no.journal"
expect_error no-journal 2 'no.journal is no journal' "$tool" qualify "$one" --journal "$scratch/no.journal" --resume
# usage
expect_error no-file 2 'no file given' "$tool" qualify
expect_error bad-phase 2 "phases has 'dream'" "$tool" qualify "$one" --phases decode,dream
expect_error bad-format 2 "output is 'xml'" "$tool" qualify "$one" -o xml
expect_error bad-dtype 2 "dtype is 'i8'" "$tool" qualify "$one" -t i8
expect_error bad-page 2 "paged is '0'" "$tool" qualify "$one" --paged 0
expect_error bad-declare 2 "declared version is 'engine'" "$tool" qualify "$one" --declare engine
expect_error resume-where 2 'resume needs --journal' "$tool" qualify "$one" --resume
expect_error same-name 2 'a lock knows both as tiny.json' "$tool" qualify "$one" "$one" --lock "$lock"
expect_error reason-alone 2 'reason is for --update' "$tool" qualify "$one" --reason x
printf '{"model_type":"brandnew"}' >"$scratch/new.json"
expect_error unknown-model 3 'brandnew' "$tool" qualify "$one" "$scratch/new.json" --quick
expect lock-unwritable 1 'none/t.lock: No such file' "$tool" qualify "$one" --quick --phases decode --lock "$scratch/none/t.lock" --update --reason x --journal "$scratch/j"

finish
