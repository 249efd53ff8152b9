#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of `tileproof qualify --runner` and --engine: bash tests/tools/runner.sh PATH/TO/tileproof PATH/TO/example_runner
# A runner that breaks costs one cell, which says so; nothing of it stays.
set -u
tool=${1:?usage: runner.sh PATH/TO/tileproof PATH/TO/example_runner}
example=${2:?usage: runner.sh PATH/TO/tileproof PATH/TO/example_runner}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/expect.sh"
model=$scratch/tiny.json
printf '{"tileproof_model": 1, "groups": [{"layers": "0", "max_positions": 40, "problem": "h2/1 d8 f32 causal"}]}' >"$model"
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"
hostile="exec python3 '$here/hostile_runner.py'"
run() { # FAULT [OPTIONS...]
    local fault=$1
    shift
    rm -f "$scratch/mark"
    "$tool" qualify "$model" --quick --runner "$hostile $fault '$scratch/mark'" "$@"
}
quiet() { "$@" 2>/dev/null; }

expect right 0 'PASS: 1 model, 7 cells' run none
expect no-estimate 0 '^qualify: 1 model, 7 cells, 7 different problems; how long that engine takes is not known$' run none
expect noise-on-stdout 0 '^noise on stdout$' run none
expect right-table 0 '\| tiny.json \| text 0 \| decode \| plain \| QUALIFIED 3 \| [0-9]+ % \| 100 B \| 0.001 ms \| kept \| kept \|  \|' run none -v
expect_python right-lines '
lines = text.splitlines()
assert max(map(len, lines)) <= 80, lines
assert re.search(r"^  decode     plain                QUALIFIED +\d+% +100 B  0.001 ms$", text, re.M), text
assert "leaks" not in text and "vary" not in text, text' quiet run none
expect_python refused-lines '
lines = text.splitlines()
assert max(map(len, lines)) <= 80, lines
assert re.search(r"UNSUPPORTED[^\n]*\n {13}(with NaN[^\n]*)no such head", text), text' quiet run refuse
expect_python full-lines '
lines = text.splitlines()
assert lines.count(" " * 13 + "a" * 66) == 3, lines' quiet run wordy
expect_python rows '
rows = [json.loads(line) for line in text.splitlines()]
assert len(rows) == 7, len(rows)
for row in rows:
    assert (row["engine"], row["mode"], row["device"], row["versions"]) == ("plain", "eager", "cpu", "plain=1.0"), row
    assert (row["status"], row["kernel"], row["observed"], row["rule"]) == ("QUALIFIED", "plain", "log", "2 x naive in f32"), row
    assert row["deterministic"] == "kept" and row["temporary"] == 100 and 0 < row["error"] <= row["allowed"], row
assert {row["contained"] for row in rows} == {"kept"} and sum(row["empty_rows"] == "kept" for row in rows) == 1, rows
assert all((row["time_ns"] == 1000) == (row["purpose"] in ("main", "packed", "chunks + rows")) for row in rows), rows' \
    quiet run none -o jsonl

# one cell each; a call in the middle of a cell, so the reason says which inputs it had
one_bad() { # NAME FAULT STATUS REASON [OPTIONS...]
    local name=$1 fault=$2 status=$3 reason=$4
    shift 4
    expect_python "$name" "
rows = [json.loads(line) for line in text.splitlines()]
bad = [row for row in rows if row['status'] != 'QUALIFIED']
assert len(rows) == 7 and len(bad) == 1, [(row['status'], row['reason']) for row in rows]
assert bad[0]['status'] == '$status' and re.search(r'''$reason''', bad[0]['reason']), bad[0]" \
        quiet run "$fault" -o jsonl "$@"
}
one_bad crash crash NUMERIC_FAIL 'NaN in keys.*the runner died of signal 11'
one_bad exit exit NUMERIC_FAIL 'the runner exited with 3 before it answered'
one_bad closed close NUMERIC_FAIL 'the runner closed its socket'
one_bad hang hang NUMERIC_FAIL 'the runner did not answer in 5 s' --timeout 5s
child=$(cat "$scratch/mark")
[ -n "$child" ] && { [ ! -e "/proc/$child" ] || [ "$(awk '/^State/ { print $2 }' "/proc/$child/status")" = Z ]; }
report hang-ends-whole $((! $?)) "  what the runner had started, process '$child', lives on"
one_bad rubbish rubbish NUMERIC_FAIL "the runner wrote .Segmentation fault \\?.: no line of an answer"
one_bad zero zero NUMERIC_FAIL "the runner wrote .served\\?.: no line of an answer"
one_bad endless endless NUMERIC_FAIL 'no line of an answer, which has at most 64'
one_bad long-line long NUMERIC_FAIL 'a line of 4,096 bytes or more'
one_bad cut cut NUMERIC_FAIL 'cut the file of tensors short'
one_bad lies size NUMERIC_FAIL 'says that it has written 12 bytes of o: o has [0-9]+'
one_bad no-size sizeless NUMERIC_FAIL 'does not say how much of o was written'
one_bad undecided undecided NUMERIC_FAIL 'none of served, refused and failed'
one_bad both both NUMERIC_FAIL 'more than one of served'
one_bad number number NUMERIC_FAIL "wrote .time_ns -1.: no line of an answer"
one_bad failed fail NUMERIC_FAIL 'out of luck'
one_bad refused refuse UNSUPPORTED 'no such head dim'
# in the first call of a cell its output is what counts
one_bad unwritten "unwritten $scratch/mark 1 #" NUMERIC_FAIL 'o of .*'
one_bad wrong "wrong $scratch/mark 1 #" NUMERIC_FAIL 'o worse than twice the naive kernel|mean error'
# two answers to one question: the second is not taken for the next cell's
expect_python twice '
rows = [json.loads(line) for line in text.splitlines()]
bad = [row["reason"] for row in rows if row["status"] != "QUALIFIED"]
assert len(bad) >= 1 and all("without being asked" in x or "other bits" in x or "NaN" in x for x in bad), bad' quiet run twice -o jsonl
expect bad-is-told 1 'FAIL: 1 model, 1 of 7 cells' run crash
expect refused-is-told 3 'FAIL: 1 model, 1 of 7 cells' run refuse

# that cannot be started at all, or never again
says() { # NAME EXIT_CODE PATTERN FAULT [OPTIONS...]: on stderr, with the runner's own noise
    local name=$1 code=$2 pattern=$3
    shift 3
    expect "$name" "$code" "^tileproof: .*$pattern" run "$@"
}
says no-greeting 1 "the runner wrote 'hello': it must begin with 'tileproof-runner 1'" no-greeting
says newer 1 "the runner wrote 'tileproof-runner 2'" newer
says odd 1 "the runner wrote 'colour blue': no line of a greeting" odd
says nameless 1 "the runner's greeting does not name its engine" nameless
says bad-mode 1 "the runner wrote 'mode fast': no line of a greeting" mode
says no-reason 1 "the runner wrote 'unavailable ': no line of a greeting" speechless
says bad-version 1 "the runner wrote 'version none': no line of a greeting" version
says gone 1 'the runner exited with 7 before it answered' gone
says mute 1 'the runner did not answer in 5 s' mute --timeout 5s
says unavailable 3 'not run here: .*no such device' unavailable
says never-again 1 'the runner exited with 7 before it answered' restless
expect another-one 1 'the runner says now that it is plain-other on cpu' run changes
expect no-command 1 'could not be started, or exited with 127' "$tool" qualify "$model" --runner /no/such/runner
expect no-python 1 'could not be started, or exited with 127' "$tool" qualify "$model" --engine torch --python /no/such/python

printf '#!/bin/sh\necho "$@" >&2\n' >"$scratch/words"
chmod +x "$scratch/words"
expect told-device-and-threads 1 '^-m tileproof.engines torch --threads 3 --device cuda$' "$tool" qualify "$model" --engine torch:cuda --threads 3 \
    --python "$scratch/words"

# properties that are required
expect required 0 'PASS' run none --require contained,deterministic,empty
expect_error bad-require 2 "--require has 'fast': it must be contained, deterministic or empty" "$tool" qualify "$model" --runner true --require fast
expect_error bad-engine 2 "--engine is 'pytorch': it must be torch, flex" "$tool" qualify "$model" --engine pytorch
expect_error bad-device 2 "--engine is 'torch:tpu'" "$tool" qualify "$model" --engine torch:tpu
expect_error two-engines 2 '--runner and --engine: one of them' "$tool" qualify "$model" --engine torch --runner true
expect_error require-alone 2 '--require is for --engine and --runner' "$tool" qualify "$model" --require contained
expect own-by-name 0 '^tiny +Q Q Q Q' "$tool" qualify "$model" --quick --engine tileproof

# stopped and resumed, with the same engine alone
journal=$scratch/j
"$tool" qualify "$model" --quick --phases prefill --journal "$journal" --runner "$hostile hang '$scratch/stopped' 5" >/dev/null 2>&1 &
pid=$!
for _ in $(seq 200); do
    [ -e "$scratch/stopped" ] && break
    sleep 0.1
done
[ -e "$scratch/stopped" ]
report hangs $((! $?)) "  the runner was never asked"
child=$(pgrep -P $pid)
kill -KILL $pid
wait $pid 2>/dev/null
for _ in $(seq 50); do
    kill -0 "$child" 2>/dev/null || break
    sleep 0.1
done
kill -0 "$child" 2>/dev/null
report dies-with-the-tool $? "  the runner outlived the tool"
kill -KILL "$(cat "$scratch/stopped")" 2>/dev/null # what it had started
expect resumed 0 '\(1 from the journal\)' "$tool" qualify "$model" --quick --phases prefill --journal "$journal" --resume \
    --runner "$hostile none '$scratch/mark'"
rm -f "$scratch/mark"
"$tool" qualify "$model" --quick --journal "$journal" --runner "$hostile 'restless' '$scratch/mark'" >/dev/null 2>&1
expect other-engine 2 'its cells were made otherwise: .*--engine: journal has plain, here loops' "$tool" qualify "$model" --quick \
    --journal "$journal" --resume --runner "$example"
expect other-cells 2 'its cells were made otherwise: .*--cells: journal has all, here 1' "$tool" qualify "$model" --quick --cells 1 \
    --journal "$journal" --resume --runner "$hostile none '$scratch/mark'"

# the example, in both dtypes
expect example 0 'PASS: 1 model, 7 cells' "$tool" qualify "$model" --quick --runner "$example" --require contained,deterministic,empty
printf '{"tileproof_model": 1, "groups": [{"layers": "0", "max_positions": 40, "problem": "h4/2 d16/24 bf16 causal softcap=5"}]}' >"$model"
expect example-bf16 0 '  prefill    loops                QUALIFIED_FALLBACK ' "$tool" qualify "$model" --quick --runner "$example"
printf '{"tileproof_model": 1, "groups": [{"layers": "0", "max_positions": 40, "problem": "h4/2 d16 f16 causal"}]}' >"$model"
expect example-f16 3 'this engine has f32 and bf16 alone' "$tool" qualify "$model" --quick --runner "$example"
expect example-alone 2 'it is started by tileproof qualify --runner' "$example"

# locks: engines beside this library's own cells
printf '{"tileproof_model": 1, "groups": [{"layers": "0", "max_positions": 40, "problem": "h2/1 d8 f32 causal"}]}' >"$model"
lock=$scratch/a.lock
expect lock-own 0 'PASS' "$tool" qualify "$model" --quick --phases decode --lock "$lock" --update --reason own
expect lock-engine 0 'PASS' run none --phases decode --lock "$lock" --update --reason plain
expect_python both-are-kept '
lock = json.loads(text)
kept = [(x["engine"]["name"], x["engine"]["device"], len(x["groups"])) for x in lock["revisions"]]
assert kept == [("tileproof", "cpu", 1), ("plain", "cpu", 1)], kept' cat "$lock"
expect lock-holds 0 'PASS' run none --phases decode --lock "$lock"
expect lock-own-holds 0 'PASS' "$tool" qualify "$model" --quick --phases decode --lock "$lock"
canary() { # FAULT
    rm -f "$scratch/mark"
    "$tool" canary "$lock" --runner "$hostile $1 '$scratch/mark'"
}
expect canary-engine 0 'plain on cpu: 1 revisions, 3 cells run, 0 notes' canary none
expect canary-crash 1 'NUMERIC_FAIL .*the runner died of signal 11' canary crash
expect canary-refuse 3 'UNSUPPORTED .*no such head dim' canary refuse
expect diff-engines 0 'text layers 0, decode: kernel [a-z0-9]+ -> plain' "$tool" lock diff "$lock" tiny.json/tileproof tiny.json/plain
expect canary-own 0 'As the lock says' "$tool" canary "$lock"
expect_error canary-other 3 'the lock has no cells of loops on cpu, eager' "$tool" canary "$lock" --runner "$example"
expect canary-nothing-changed 0 'nothing changed since' "$tool" canary "$lock" --if-changed --runner "$hostile none '$scratch/mark'"
for word in '--against x.so' '--drill no:avx2' '--budget 9s' '--model tiny.json' "--metrics $scratch/m.prom" '--kv-cache i8' '--device opencl'; do
    # shellcheck disable=SC2086
    expect_error "canary ${word%% *}" 2 "^tileproof: ${word%% *} is for this library's own cells, and the cells are those of an engine: leave out ${word%% *}" \
        "$tool" canary "$lock" $word --runner "$example"
done
expect_error device-of-a-runner 2 'device is for kernels of this library: an engine has its own' "$tool" qualify "$model" --device opencl --runner "$example"
expect list-of-engines 0 '\| plain eager cpu +\| QUALIFIED \| +3 \| not asked +\|$' "$tool" lock list "$lock"

# what a watcher saved may stand beside cells of the same engine: neither canary nor qualify takes it for theirs
python3 - "$scratch/watched.lock" <<'END'
import hashlib, json, sys
cell = {"problem": "decode few-rows h2/1 d8 f32", "phase": "decode", "purpose": "watched", "gain": 1.0, "status": "NOT_RUN", "kernel": "plain",
        "reason": "watched: its numbers were not judged", "observed": "watcher"}
seen = {"revision": {"model": "watched", "config": "watched", "date": "2026-11-18"}, "versions": {"plain": "0.9"}, "hosts": [{"cpu": "another"}],
        "engine": {"name": "plain", "mode": "eager", "device": "cpu", "cache": "plain"}, "groups": [{"part": "text", "layers": "all", "cells": [cell]}]}
lock = {"schema": "tileproof.lock/2", "revisions": [seen], "history": [{"date": "2026-11-18", "cells": "1 new, 0 changed, 0 same", "reason": "saved"}]}
lock["checksum"] = hashlib.sha256(json.dumps(lock, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
json.dump(lock, open(sys.argv[1], "w"))
END
expect_error watched-alone 3 'the lock has no cells of plain on cpu, eager' "$tool" canary "$scratch/watched.lock" --runner "$hostile none '$scratch/mark'"
expect watched-merged 0 'merged of watched watched' "$tool" lock merge "$lock" "$scratch/watched.lock" --reason seen
expect watched-canary 0 'plain on cpu: 1 revisions, 3 cells run, 0 notes' canary none
expect watched-nothing-changed 0 'nothing changed since' "$tool" canary "$lock" --if-changed --runner "$hostile none '$scratch/mark'"
expect watched-qualify 0 'PASS' run none --phases decode --lock "$lock"
expect watched-listed 0 '\| plain eager cpu +\| NOT_RUN +\| +1 \| not asked +\|$' "$tool" lock list "$lock"

# other versions of an engine: stale by name, and told apart by diff
sed "s/plain=1\.0/plain=1.1/" "$here/hostile_runner.py" >"$scratch/newer_runner.py"
newer="python3 $scratch/newer_runner.py none '$scratch/mark'"
expect newer-is-stale 5 'plain plain: lock has 1.0, here 1.1' "$tool" canary "$lock" --runner "$newer"
expect newer-locked 0 'PASS' "$tool" qualify "$model" --quick --phases decode --lock "$scratch/newer.lock" --update --reason newer --runner "$newer"
expect diff-versions 0 'all: plain 1\.0 -> 1\.1$' "$tool" lock diff "$lock" tiny.json/plain "$scratch/newer.lock" tiny.json/plain

# nothing stays
mine="hostile_runner.py.*$scratch" # other clones may be at their tests
pgrep -f "$mine" >/dev/null
report no-process $? "  a runner is still there: $(pgrep -af "$mine")"
left=$(ls -A "$TMPDIR")
report no-file $((${#left} == 0)) "  $left"
finish
