#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of --trace, --metrics and trace convert: bash tests/tools/trace.sh PATH/TO/tileproof
set -u
tool=${1:?usage: trace.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"
calls=$scratch/calls.jsonl

expect help 0 'ui.perfetto.dev' "$tool" trace --help
expect run-trace 0 'kernel' "$tool" run q64 d64 h4/2 bf16 causal --repeat 3 --trace "$calls"
expect run-permit 0 'FALLBACK' "$tool" run q64 d64 --kernel math --fallback permit --trace "$scratch/math.jsonl"
expect run-refused 3 'fallback refused' "$tool" run q64 d640 --trace "$scratch/refused.jsonl" --metrics "$scratch/refused.prom"
report trace-lines "$([ "$(wc -l <"$calls")" = 3 ] && echo 1)" "$(cat "$calls")"
# what this host cannot run is refused, for that reason, and what rounds p, because nobody permits it; nothing else is
"$tool" info --json >"$scratch/info"
expect_python trace-fields '
kernels = json.load(open("'"$scratch/info"'"))["kernels"]
expected = {(k["name"], "isa") for k in kernels if not k["runs_here"]}
expected |= {(k["name"], "dtype") for k in kernels if k["arithmetic"] != "f32"}
for line in text.splitlines():
    call = json.loads(line)
    assert call["status"] == "TP_OK" and call["phase"] == "prefill" and call["bucket"] == "many-rows"
    assert call["problem"] == "prefill b1 h4/2 q64 k64 d64 bf16 causal"
    assert call["class"] == "prefill many-rows h4/2 d64 bf16 causal"
    assert {(r["kernel"], r["code"]) for r in call["refused"]} == expected, call["refused"]
    assert call["fallback"] is False and call["lock"] == "absent"
    assert call["time_ns"] > 0 and call["bytes_model"] > 0 and call["workspace_bytes"] > 0
times = [json.loads(line)["ts_ns"] for line in text.splitlines()]
assert times == sorted(times) and times[0] > 1.5e18
' cat "$calls"
expect_python refused-fields '
call = json.loads(text)
assert call["status"] == "TP_FALLBACK_REFUSED" and call["kernel"] == "none"
reasons = {r["kernel"]: r["code"] for r in call["refused"]}
assert reasons["generic"] == "head_dim" and reasons["math"] == "policy", reasons
wide = [r for r in call["refused"] if r["kernel"] == "generic"][0]
assert wide["have"] == 640 and wide["need"] == 576 and "head_dim 640" in wide["text"]
' cat "$scratch/refused.jsonl"
expect refused-metrics 0 'tileproof_refusals_total\{device="cpu",phase="prefill",dtype="f32",bucket="many-rows",reason="head_dim"\} 1' cat "$scratch/refused.prom"
expect metrics-to-stdout 0 '^tileproof_calls_total\{.*\} 2$' "$tool" run q64 d64 --repeat 2 --metrics -

# convert: the fields that the viewers need, by kind of event
check='
data = json.loads(text)
events = data["traceEvents"]
kinds = {"X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}, "M": {"name", "ph", "pid", "tid", "args"},
         "C": {"name", "cat", "ph", "ts", "pid", "tid", "args"}, "i": {"name", "cat", "ph", "s", "ts", "pid", "tid", "args"}}
for event in events:
    assert set(event) == kinds[event["ph"]], event
    assert event["ph"] == "M" or (isinstance(event["ts"], float) and event["ts"] >= 0)
    assert event["ph"] != "X" or event["dur"] > 0
    assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
count = lambda kind: sum(event["ph"] == kind for event in events)
'
expect_python convert "$check"'assert (count("X"), count("C"), count("i"), count("M")) == (3, 3, 0, 1)
assert min(e["ts"] for e in events if e["ph"] == "X") == 0 and int(data["otherData"]["start_unix_ns"]) > 1.5e18' \
    "$tool" trace convert "$calls"
expect_python convert-fallback "$check"'assert (count("X"), count("i")) == (1, 1)
assert [e["name"] for e in events if e["ph"] == "i"] == ["fallback"]' "$tool" trace convert "$scratch/math.jsonl"
expect_python convert-refused "$check"'assert (count("X"), count("i")) == (0, 1)
assert [e["name"] for e in events if e["ph"] == "i"] == ["TP_FALLBACK_REFUSED"]' "$tool" trace convert "$scratch/refused.jsonl"
expect convert-to-file 0 '' "$tool" trace convert "$calls" -o "$scratch/out.json"
expect_python convert-file "$check"'assert count("X") == 3' cat "$scratch/out.json"

# bad input: file, line, field and rule; an output that was there stays
printf 'old\n' >"$scratch/out.json"
bad() { # NAME PATTERN LINE
    { head -1 "$calls"; printf '%s\n' "$3"; } >"$scratch/bad.jsonl"
    expect_error "bad-$1" 2 "bad.jsonl:2: $2" "$tool" trace convert "$scratch/bad.jsonl" -o "$scratch/out.json"
}
bad text "no JSON" 'calls'
bad cut "no JSON" '{"ts_ns":12,"time_ns":'
bad array "a line must be an object" '[1,2]'
bad missing "field 'ts_ns' is missing: it must be a whole number" '{"time_ns":3}'
bad type "field 'ts_ns' is \"now\": it must be a whole number" '{"ts_ns":"now"}'
bad real "field 'time_ns' is 1e308: it must be a whole number" '{"ts_ns":1,"time_ns":1e308}'
bad negative "field 'time_ns' is -1: it must be a whole number in 0" '{"ts_ns":1,"time_ns":-1}'
bad twice "no JSON: duplicate" '{"ts_ns":1,"ts_ns":2}'
report old-stays "$([ "$(cat "$scratch/out.json")" = old ] && echo 1)" "the old file was touched"
report no-parts "$(ls "$scratch"/*.part >/dev/null 2>&1 || echo 1)" "$(ls "$scratch")"
: >"$scratch/empty.jsonl"
expect_error empty 2 'empty.jsonl:0: the file holds no line' "$tool" trace convert "$scratch/empty.jsonl"
expect_error no-file 2 'No such file' "$tool" trace convert "$scratch/none.jsonl"
expect_error no-word 2 'the word convert or summary and one file' "$tool" trace "$calls"
expect_error no-folder 1 'No such file' "$tool" trace convert "$calls" -o "$scratch/none/out.json"
expect_error trace-no-folder 1 'No such file' "$tool" run q16 --trace "$scratch/none/calls.jsonl"
finish
