#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of trace summary: bash tests/tools/trace_summary.sh PATH/TO/tileproof
set -u
tool=${1:?usage: trace_summary.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"

# Without its progress, which a slow host shows.
summarise() {
    "$tool" trace summary "$@" 2>"$scratch/told"
    local code=$?
    grep -v '^trace summary: ' "$scratch/told" >&2
    return $code
}

# A trace by hand: two models, one call of 50 is of the model `small` and a fallback; some are refused.
cat >"$scratch/make.py" <<'END'
import json, random, sys
seed, count = int(sys.argv[1]), int(sys.argv[2])
draw = random.Random(seed)
start = 1_700_000_000_000_000_000
for i in range(count):
    small, refused = i % 50 == 0, i % 97 == 5
    phase = "decode" if i % 3 else "prefill"
    call = {"ts_ns": start + 1000 * i, "time_ns": 0 if refused else int(draw.lognormvariate(9, 2)) * (40 if small else 1), "thread": 7,
            "status": "TP_NOT_LOCKED" if refused else "TP_OK", "kernel": "none" if refused else "math" if small else "avx2",
            "device": "cpu", "problem": f"{phase} b1 h4/2 q1 k{i} d64 f32", "class": f"{phase} few-rows h4/2 d64 f32", "phase": phase,
            "bucket": "few-rows", "fallback": small and not refused, "planned": False, "refused": [], "lock": "matches",
            "model": "small" if small else "big", "layer": i % 4, "bytes_model": 10, "workspace_bytes": 20}
    if i % 5 == 0:
        del call["layer"]
    print(json.dumps(call, separators=(",", ":")))
END
calls=$scratch/calls.jsonl
python3 "$scratch/make.py" 3 20000 >"$calls"

# every figure against the definition, from the same lines
cat >"$scratch/judge.py" <<'END'
import collections, math
calls = [json.loads(line) for line in open(path)]
keys = {"all": lambda c: (None, None, None), "model": lambda c: (c["model"], None, None), "kernel": lambda c: (None, c["kernel"], None),
        "class": lambda c: (c["model"], c["kernel"], c["class"])}
seen = json.loads(text)
assert seen["calls"] == len(calls) and seen["wrong_lines"] == 0 and seen["wrong"] == [] and not seen["grouped_together"], seen
total = sum(c["time_ns"] for c in calls)
for by, key in keys.items():
    groups = collections.defaultdict(list)
    for c in calls:
        groups[key(c)].append(c)
    rows = {(r["model"], r["kernel"], r["class"]): r for r in seen["by_" + by]}
    assert set(rows) == set(groups), (by, rows.keys())
    times = [r["seconds"] for r in seen["by_" + by]]
    assert times == sorted(times, reverse=True), by
    for labels, those in groups.items():
        row, ran = rows[labels], sorted(c["time_ns"] for c in those if c["status"] == "TP_OK")
        assert (row["calls"], row["refused"]) == (len(ran), len(those) - len(ran)), (row, len(ran))
        assert row["fallbacks"] == sum(c["fallback"] for c in those), row
        assert math.isclose(row["share_of_time"], sum(ran) / total, rel_tol=1e-6, abs_tol=1e-9), row
        for name, share in (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99)):
            if not ran:
                assert row[name] is None, row
                continue
            exact = ran[math.ceil(share * len(ran)) - 1] * 1e-9
            assert abs(row[name] - exact) <= seen["relative_error"] * exact + 1e-9, (by, labels, name, row[name], exact)
        assert not ran or math.isclose(row["max_s"], ran[-1] * 1e-9, rel_tol=1e-6), row
END
judge() { # NAME FILE COMMAND...
    local name=$1 file=$2
    shift 2
    expect_python "$name" "path = '$file'
$(cat "$scratch/judge.py")" "$@"
}
judge figures "$calls" summarise "$calls" -o json
python3 "$scratch/make.py" 4 7 >"$scratch/few.jsonl"
judge few "$scratch/few.jsonl" summarise "$scratch/few.jsonl" -o json
from_pipe() { cat "$calls" | summarise - -o json; }
judge from-a-pipe "$calls" from_pipe
expect text 0 '^\| small +\| math +\| decode few-rows h4/2 d64 f32 +\|' summarise "$calls"
expect text-head 0 'calls.jsonl: 20,000 calls in 0\.[0-9]+ s, [0-9.]+ MiB' summarise "$calls"
expect md 0 '^## By model$' summarise "$calls" -o md
expect one-call 0 'p99 us' summarise <(head -1 "$calls")

# traces that the library and its flight recorder write; the recorder's lines have no class
"$tool" run q64 d64 h4/2 bf16 causal --repeat 3 --trace "$scratch/real.jsonl" >/dev/null
"$tool" run q64 d640 --trace "$scratch/refused.jsonl" >/dev/null 2>&1
cat "$scratch/refused.jsonl" >>"$scratch/real.jsonl"
sed 's/"class":"[^"]*",//' "$scratch/real.jsonl" >"$scratch/no_class.jsonl"
expect_python real 's = json.loads(text)
assert s["calls"] == 4 and s["by_all"][0]["calls"] == 3 and s["by_all"][0]["refused"] == 1, s
assert {r["class"] for r in s["by_class"]} == {"prefill many-rows h4/2 d64 bf16 causal", "prefill many-rows h1/1 d640 f32"}, s
assert all(r["model"] == "-" for r in s["by_model"]), s
import datetime
first = min(json.loads(line)["ts_ns"] for line in open("'"$scratch/real.jsonl"'")) // 10**9
assert s["date"] == datetime.datetime.fromtimestamp(first, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), s["date"]' \
    summarise "$scratch/real.jsonl" -o json
expect_python no-class 'assert {r["class"] for r in json.loads(text)["by_class"]} == {"prefill many-rows"}' \
    summarise "$scratch/no_class.jsonl" -o json

# lines that are none: counted by kind, the first of each named, and the others still summed up
one=$(head -2 "$calls" | tail -1)
{
    echo "$one"
    echo "${one:0:40}"                                          # cut
    echo "${one/\"time_ns\":/\"time_ns\":99999999999999999999}" # beyond any integer
    echo "${one/\"ts_ns\":/\"ts_ns\":-}"
    echo "${one/\"status\":\"TP_OK\"/\"status\":5}"
    echo "${one/\"status\":\"TP_OK\"/\"status\":[]}"
    echo "${one/\"kernel\":\"avx2\",/}"
    echo
    echo '[1,2]'
    echo "${one/\"fallback\":false/\"fallback\":\"no\"}"
    printf '\0\377\n'
    head -c 1500000 /dev/zero | tr '\0' 'x'
    echo
    echo "$one"
    printf '%s' "${one:0:90}" # what a program that was killed leaves
} >"$scratch/hostile.jsonl"
expect_python hostile 's = json.loads(text)
wrong = {w["what"]: (w["lines"], w["first_line"]) for w in s["wrong"]}
assert s["calls"] == 2 and s["wrong_lines"] == 11, s
assert wrong == {"no JSON": (4, 2), "field \u0027ts_ns\u0027": (1, 4), "field \u0027status\u0027": (2, 5), "field \u0027kernel\u0027 is missing": (1, 7),
    "a line must be an object of JSON": (1, 9), "field \u0027fallback\u0027": (1, 10), "the line has": (1, 12)}, wrong
assert any("1500000 bytes: it must have at most 1048576" in w["first"] for w in s["wrong"]), s' \
    summarise "$scratch/hostile.jsonl" -o json
expect hostile-text 0 "11 lines are no calls and left out:" summarise "$scratch/hostile.jsonl"
expect hostile-named 0 "- 2: field 'status'; the first is .*hostile.jsonl:5: field 'status' is 5: it must be a text" \
    summarise "$scratch/hostile.jsonl"
huge="${one/\"time_ns\":*,\"thread\"/\"time_ns\":4000000000000000000,\"thread\"}"
expect_python huge 's = json.loads(text)
assert s["calls"] == 50 and s["by_all"][0]["max_s"] > 3.9e9 and abs(s["by_all"][0]["p50_s"] / 4e9 - 1) < 0.016, s' \
    summarise <(for _ in $(seq 50); do echo "$huge"; done) -o json

# faults and groups beyond their number
python3 - "$calls" "$scratch" <<'END'
import json, sys
call = json.loads(open(sys.argv[1]).readline())
with open(sys.argv[2] + "/many.jsonl", "w") as f:
    for i in range(3000):
        print(json.dumps(dict(call, model=f"m{i}")), file=f)
with open(sys.argv[2] + "/faults.jsonl", "w") as f:
    print(json.dumps(call), file=f)
    for i in range(40):
        for name in list(call)[: 1 + i % len(call)]:
            print(json.dumps({k: v for k, v in call.items() if k != name}), file=f)
            print(json.dumps(dict(call, **{name: {}})), file=f)
END
expect_python many-groups 's = json.loads(text)
assert s["grouped_together"] and s["calls"] == 3000, s
for by in ("all", "model", "kernel", "class"):
    assert sum(r["calls"] for r in s["by_" + by]) == 3000, by
assert sum(len(s["by_" + by]) for by in ("all", "model", "kernel", "class")) <= 1024 + 4
assert [r for r in s["by_model"] if r["model"] == "other"][0]["calls"] > 1000, s["by_model"][0]' summarise "$scratch/many.jsonl" -o json
expect many-groups-said 0 'More than 1024 groups' summarise "$scratch/many.jsonl"
expect_python many-faults 's = json.loads(text)
assert len(s["wrong"]) == 17 and s["wrong"][-1]["what"] == "others", s["wrong"]
assert sum(w["lines"] for w in s["wrong"]) == s["wrong_lines"] > 100, s' summarise "$scratch/faults.jsonl" -o json

# nothing to sum up
: >"$scratch/empty.jsonl"
expect_error empty 2 'empty.jsonl: the file holds no line' summarise "$scratch/empty.jsonl"
printf '\n \n' >"$scratch/blank.jsonl"
expect_error blank 2 'blank.jsonl: the file holds no line' summarise "$scratch/blank.jsonl"
expect_error none-right 2 'none of its 1 lines is a call; line 1: no JSON' summarise <(echo calls)
expect_error no-file 2 'none.jsonl: No such file' summarise "$scratch/none.jsonl"
expect_error folder 2 'Is a directory' summarise "$scratch"
expect_error format 2 "--output is 'xml': it must be text, json or md" summarise "$calls" -o xml
expect_error word 2 'the word convert or summary and one file' "$tool" trace sum "$calls"
expect_error two-files 2 'the word convert or summary and one file' summarise "$calls" "$calls"

# memory does not follow the size; progress is told on a terminal, and not where a program reads
if [ -z "${TILEPROOF_TEST_QUICK:-}" ]; then
    expect_python memory 'sizes = json.loads(text)
assert sizes[1] < sizes[0] + 8192, sizes' python3 - "$tool" "$one" "$scratch/big.jsonl" <<'END'
import json, os, subprocess, sys
tool, line, path = sys.argv[1:]
sizes = []
for lines in (2000, 60000):
    with open(path, "w") as f:
        f.writelines([line + "\n"] * lines)
    child = subprocess.Popen([tool, "trace", "summary", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sizes.append(os.wait4(child.pid, 0)[2].ru_maxrss)
print(json.dumps(sizes))
END
fi
# a stop is heard within a line, between wrong lines, and where nothing comes any more
cat >"$scratch/stop.py" <<'END'
import signal, subprocess, sys
tool, text, times = sys.argv[1], sys.argv[2].encode().decode("unicode_escape").encode(), int(sys.argv[3])
child = subprocess.Popen([tool, "trace", "summary", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
child.stdin.write(text * times)  # more than a pipe holds: it is reading
child.stdin.flush()
child.send_signal(signal.SIGTERM)
try:
    child.wait(20)
except subprocess.TimeoutExpired:
    child.kill()
print(child.stderr.read().decode())
sys.exit(child.wait())
END
expect stop-within-a-line 4 'stopped: no line was read' python3 "$scratch/stop.py" "$tool" '\0' 4000000
expect stop-behind-wrong-lines 4 'stopped: the first [0-9]+ lines are no call' python3 "$scratch/stop.py" "$tool" 'x\n' 200000
expect stop-behind-a-call 4 'stopped: the first [0-9]+ lines are summed up' python3 "$scratch/stop.py" "$tool" "$one\\n" 1000
cat >"$scratch/terminal.py" <<'END'
import os, pty, subprocess, sys, time
tool, line = sys.argv[1:]
master, slave = pty.openpty()
child = subprocess.Popen([tool, "trace", "summary", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=slave)
os.close(slave)
told = b""
os.set_blocking(master, False)
for _ in range(600):  # until it was told, however slow the host is
    child.stdin.write(line.encode() + b"\n")
    child.stdin.flush()
    time.sleep(0.1)
    try:
        told += os.read(master, 1000)
    except BlockingIOError:
        pass
    if b"lines" in told:
        break
child.stdin.close()
assert child.wait() == 0
print(told.decode(errors="replace"))
END
expect progress 0 'trace summary: .*/s.* lines' python3 "$scratch/terminal.py" "$tool" "$one"
finish
