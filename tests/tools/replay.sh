#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of replay: bash tests/tools/replay.sh PATH/TO/tileproof MODELS_DIR
# Costs are modelled where anything is asserted of them: no test here depends on a clock.
set -u
tool=${1:?usage: replay.sh PATH/TO/tileproof MODELS_DIR}
models=$(cd "${2:?usage: replay.sh PATH/TO/tileproof MODELS_DIR}" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"
docs=$(dirname "$0")/../../docs/operations.md
replay() { "$tool" replay --models "$models" "$@"; }

# generate: the same for the same seed, long-tailed, in order, in bursts, the first model most often
expect_python generate '
rows = [json.loads(line) for line in text.splitlines()]
assert len(rows) == 2000
assert all(set(r) == {"time", "model", "prompt", "cached", "output"} for r in rows)
assert all(0 <= r["cached"] < r["prompt"] for r in rows)
times = [r["time"] for r in rows]
assert times == sorted(times)
prompts = sorted(r["prompt"] for r in rows)
assert prompts[-1] > 8 * prompts[1000] and 120 < prompts[1000] < 260, (prompts[-1], prompts[1000])
gaps = [b - a for a, b in zip(times, times[1:])]
mean = sum(gaps) / len(gaps)
assert sum(g * g for g in gaps) / len(gaps) / mean ** 2 > 2.25  # 2 without bursts
names = [r["model"] for r in rows]
counts = [names.count(n) for n in ("a", "b", "c")]
assert counts == sorted(counts, reverse=True) and min(counts) > 100, counts
assert any(r["cached"] for r in rows)
' "$tool" replay --generate --seed 7 --requests 2000 a b c
"$tool" replay --generate --seed 7 -o "$scratch/one.jsonl"
"$tool" replay --generate --seed 7 -o "$scratch/two.jsonl"
"$tool" replay --generate --seed 8 -o "$scratch/other.jsonl"
report generate-again "$(cmp -s "$scratch/one.jsonl" "$scratch/two.jsonl" && ! cmp -s "$scratch/one.jsonl" "$scratch/other.jsonl" && echo 1)" "seeds"
# no request is longer than its model takes
expect_python generate-limit '
rows = [json.loads(line) for line in text.splitlines()]
sizes = {m: max(r["prompt"] + r["output"] for r in rows if r["model"] == m) for m in ("gpt2", "other")}
assert sizes["gpt2"] == 1024 < sizes["other"], sizes
' "$tool" replay --generate --seed 7 --requests 2000 --models "$models" gpt2 other
expect_error generate-none 2 '0 requests' "$tool" replay --generate --requests 0
expect_error generate-name 2 'printable' "$tool" replay --generate 'a"b'

# a short trace of shipped models: every layer group, both phases, measured
cat >"$scratch/short.jsonl" <<END
{"time":0,"model":"gemma-3-1b-it","prompt":40,"cached":0,"output":8}
{"time":0.5,"model":"qwen2.5-0.5b","prompt":30,"cached":16,"output":1,"tenant":"x"}

{"time":0.5,"model":"$models/gpt2.json","prompt":9,"cached":0,"output":0}
END
expect replay-short 0 'fleet mean' replay "$scratch/short.jsonl" -o "$scratch/short.json" \
    --metrics "$scratch/short.prom" --trace "$scratch/short.calls"
expect_python replay-report '
report = json.loads(text)
rows = {(r["model"].split("/")[-1], r["phase"], r["bucket"]): r for r in report["rows"]}
assert report["format"] == "tileproof.replay/1" and report["requests"] == 3 and not report["modelled"]
assert rows["gemma-3-1b-it", "prefill", "many-rows"]["n"] == 1
assert rows["gemma-3-1b-it", "decode", "few-rows"]["n"] == 2
assert rows["qwen2.5-0.5b", "decode", "few-rows"]["n"] == 1
assert rows["gpt2.json", "prefill", "few-rows"]["n"] == 1 and ("gpt2.json", "decode", "few-rows") not in rows
assert all(not r["fallback"] and 0 < r["p50_ns"] <= r["p90_ns"] <= r["p99_ns"] for r in report["rows"])
assert set(report["p99_owner"]) == {"prefill", "decode"} and report["fleet_mean_ns"] > 0
assert all(report[name] for name in ("version", "build", "isa", "host", "os", "seed")) and report["date"].startswith("20"), report
' cat "$scratch/short.json"
expect_python replay-calls '
calls = [json.loads(line) for line in text.splitlines()]
# gemma-3-1b has two groups: 2 of its prefill, 4 of its decode; qwen 1 + 1; gpt2 1
assert len(calls) == 9, len(calls)
assert {c["layer"] for c in calls if c["model"] == "gemma-3-1b-it"} == {0, 5}
assert {c["request"] for c in calls} == {"line-1", "line-2", "line-4"}
assert sum("window=511,0" in c["problem"] for c in calls) == 3
assert any("h14/2 q14 k30" in c["problem"] for c in calls)
' cat "$scratch/short.calls"
# modelled: 24 layers, 14 causal rows on 30 keys, 14 heads of 64
expect replay-modelled 0 'MODELLED' replay "$scratch/short.jsonl" --modelled --threads 1 -o "$scratch/modelled.json" --trace "$scratch/modelled.calls"
expect_python replay-modelled-cost '
import os
calls = [json.loads(line) for line in text.splitlines()]
report = json.load(open(os.path.join(os.path.dirname(sys.argv[1]), "modelled.json")))
moved = [c["bytes_model"] for c in calls if "h14/2 q14 k30" in c["problem"]][0]
row = [r for r in report["rows"] if r["model"] == "qwen2.5-0.5b" and r["phase"] == "prefill"][0]
want = 24 * (2 * sum(range(17, 31)) * 14 * 128 / 100 + moved / 10)
assert abs(row["p50_ns"] / want - 1) < 1e-9, (row, want)
' cat "$scratch/modelled.calls"
expect replay-metrics 0 'tileproof_calls_total\{.*phase="decode".*model="gemma-3-1b-it"\} 4' cat "$scratch/short.prom"
expect replay-layers 0 'all of each layer group are run' replay "$scratch/short.jsonl" --layers 0 --trace "$scratch/all.calls"
report replay-all-layers "$(grep -c '"model":"qwen2.5-0.5b"' "$scratch/all.calls" | grep -qx 48 && echo 1)" \
    "$(grep -c '"model":"qwen2.5-0.5b"' "$scratch/all.calls")"
expect replay-sample 0 '^1 of 3 requests' replay "$scratch/short.jsonl" --sample 1
expect replay-would-cost 0 'a fallback there would cost: .*math x[0-9.e+]+ \(measured' replay "$scratch/short.jsonl"

# Story: a new revision of one model has a head dim beyond every fused kernel. 40 heads of 128 become 8 of 640.
mkdir "$scratch/before" "$scratch/after"
cp "$models/qwen2.5-0.5b.json" "$models/llama-3.2-1b.json" "$scratch/before"
cp "$models/qwen2.5-0.5b.json" "$models/llama-3.2-1b.json" "$scratch/after"
config() { # HEADS KV_HEADS HEAD_DIM
    printf '{"model_type":"llama","hidden_size":5120,"num_hidden_layers":16,"num_attention_heads":%d,
"num_key_value_heads":%d,"head_dim":%d,"max_position_embeddings":8192,"rope_theta":500000.0,"torch_dtype":"bfloat16"}' "$@"
}
config 40 8 128 >"$scratch/before/private.json"
config 8 8 640 >"$scratch/after/private.json"
python3 - "$scratch/story.jsonl" <<'END'
import sys
with open(sys.argv[1], "w") as out:
    for i in range(200):
        model = "private" if i in (60, 140) else ("llama-3.2-1b", "qwen2.5-0.5b")[i % 2]
        out.write('{"time":%d,"model":"%s","prompt":%d,"cached":0,"output":2}\n' % (i, model, 40 + 37 * i % 160))
END
story() { "$tool" replay "$scratch/story.jsonl" --modelled --threads 1 "$@"; }
expect_error story-refused 3 'model private, layers 0-15, prefill: fallback refused .*head_dim 640, need <= 576' \
    story --models "$scratch/after" -o "$scratch/none.json"
expect_error story-refused-decode 3 'model private, layers 0-15, decode: .*TP_FALLBACK_REFUSED' story --models "$scratch/after"
report story-nothing-written "$([ ! -e "$scratch/none.json" ] && echo 1)" "a report of a refused replay"
expect story-before 0 'MODELLED' story --models "$scratch/before" -o "$scratch/before.json"
expect story-after 0 'owned by private decode few-rows on math, a FALLBACK' story --models "$scratch/after" \
    --fallback permit -o "$scratch/after.json" --against "$scratch/before.json" --metrics "$scratch/after.prom"
expect story-against 0 'private decode few-rows: p99 x[1-9][0-9.]*, .* kernel [a-z0-9]+ -> math, a FALLBACK' story \
    --models "$scratch/after" --fallback permit --against "$scratch/before.json"
expect story-counted 0 'tileproof_fallbacks_total\{kernel="math",device="cpu",phase="decode",dtype="bf16",bucket="few-rows",reason="head_dim",model="private"\} 4' \
    cat "$scratch/after.prom"
expect_python story-figures '
import os
before, after = (json.load(open(os.path.join(os.path.dirname(sys.argv[1]), name + ".json"))) for name in ("before", "after"))
mean = after["fleet_mean_ns"] / before["fleet_mean_ns"]
rows = [{(r["model"], r["phase"]): r for r in report["rows"]} for report in (before, after)]
p99 = {key: rows[1][key]["p99_ns"] / rows[0][key]["p99_ns"] for key in rows[0]}
assert 1 < mean < 1.25, mean
assert p99["private", "decode"] > 5, p99
assert all(ratio == 1 for (model, phase), ratio in p99.items() if model != "private"), p99
assert after["p99_owner"]["decode"] == {"p99_ns": after["p99_owner"]["decode"]["p99_ns"], "model": "private", "bucket": "few-rows", "kernel": "math"}
assert not any(r["fallback"] for r in before["rows"])
assert {r["model"] for r in after["rows"] if r["fallback"]} == {"private"}
' true

# --fail-above: the tail of one model fails the run, by name; the report is written all the same
expect story-above 1 '^tileproof: private decode few-rows: p99 x[0-9.]+, .* kernel [a-z0-9]+ -> math, a FALLBACK: more than --fail-above 1.5$' \
    story --models "$scratch/after" --fallback permit --against "$scratch/before.json" --fail-above 1.5 -o "$scratch/failed.json"
undated() { grep -v '"date":' "$1"; }
report story-above-written "$(cmp -s <(undated "$scratch/failed.json") <(undated "$scratch/after.json") && echo 1)" "the report of a run that failed"
expect story-above-others 1 'llama-3.2-1b prefill many-rows: p99 x1, ' story --models "$scratch/after" --fallback permit \
    --against "$scratch/before.json" --fail-above 1.5
expect story-not-above 0 'p99 x' story --models "$scratch/after" --fallback permit --against "$scratch/before.json" --fail-above 1000
expect story-same 0 'p99 x1, ' story --models "$scratch/before" --against "$scratch/before.json" --fail-above 1.001
sed 's/few-rows/many-rows/' "$scratch/before.json" >"$scratch/moved.json"
expect story-moved 1 'private decode few-rows: p99 x[0-9.]+, .*, bucket many-rows -> few-rows, .*--fail-above 1.5' story \
    --models "$scratch/after" --fallback permit --against "$scratch/moved.json" --fail-above 1.5
expect_error above-alone 2 'fail-above needs --against' replay "$scratch/short.jsonl" --fail-above 1.5
expect_error above-text 2 "fail-above is 'x2': it must be a number above 0" replay "$scratch/short.jsonl" --fail-above x2 --against "$scratch/before.json"
expect_error above-nan 2 "fail-above is 'nan'" replay "$scratch/short.jsonl" --fail-above nan --against "$scratch/before.json"
expect_python first-line 'assert text.startswith("not modelled: queueing, "), text[:80]' replay "$scratch/short.jsonl"

# --observed: a log of another engine. 200 requests; four of them, to one model, are served by a slower kernel; one waits long.
python3 - "$scratch" <<'END'
import json, sys
for name, slow in (("calm", 40), ("served", 400)):
    with open(f"{sys.argv[1]}/{name}.jsonl", "w") as out:
        for i in range(200):
            private = i in (60, 100, 140, 180)
            line = {"time": i, "model": "team/private" if private else ("llama-3.2-1b", "qwen2.5-0.5b")[i % 2], "prompt": 100 + i,
                    "output": 11, "kernel": "math" if private and slow == 400 else "flash", "queue_ms": 900 if i == 7 else 1,
                    "ttft_ms": slow + 1 if private else 930 if i == 7 else 31, "tpot_ms": 2}
            if i % 50 == 49:
                del line["ttft_ms"], line["queue_ms"]
            if i % 50 == 48:
                del line["kernel"], line["queue_ms"], line["tpot_ms"]
            out.write(json.dumps(line) + "\n")
END
log() { "$tool" replay "$@" --models "$models" --observed; }
expect_python observed '
lines = text.splitlines()
assert lines[0].startswith("OBSERVED, nothing is run: "), lines[0]
assert lines[2] == "196 of 200 requests over 199.0 s have ttft_ms", lines[2]
assert "model team/private: no config here (--models DIR), so its steps are one bucket, any" in lines
assert any(re.match(r"\| team/private \| prefill \| any \| math \| 4 \| 400 \| 400 \| 400 \(n<100\) \|", line) for line in lines), text
assert any(re.match(r"\| llama-3.2-1b \| prefill \| many-rows \| \? \| 4 \| 31 ", line) for line in lines), text
assert any(re.match(r"\| qwen2.5-0.5b \| decode \| few-rows \| flash \| 96 \| 2 \| 2 \| 2 ", line) for line in lines), text
assert "p99 of prefill steps: 400 ms, owned by team/private prefill any on math: 4 of 4 steps" in text
assert "with their queue, prefill steps have a p99 of 401 ms; 36 % of the time at or above it is queue" in text
assert "would cost" not in text
' log "$scratch/served.jsonl" -o "$scratch/served.json"
expect_python observed-report '
report = json.loads(text)
assert report["observed"] and not report["modelled"] and report["requests"] == 196 and "threads" not in report and "host" not in report and report["summarised"]
assert report["ttft_p99_ns"] == 401e6 and 0.35 < report["queue_share"] < 0.36
assert report["p99_owner"]["prefill"] == {"p99_ns": 400e6, "model": "team/private", "bucket": "any", "kernel": "math"}
# ttft without queue, and ten more tokens of 2 ms where they were seen
want = (188 * 30 + 4 * 31 + 4 * 400 + 20 * 192) / 196
assert abs(report["fleet_mean_ns"] / (want * 1e6) - 1) < 1e-9, (report["fleet_mean_ns"], want)
' cat "$scratch/served.json"
expect observed-calm 0 'owned by .* on flash' log "$scratch/calm.jsonl" -o "$scratch/calm.json"
expect observed-above 1 'team/private prefill any: p99 x10, 40 -> 400 ms, kernel flash -> math: more than --fail-above 1.5' \
    log "$scratch/served.jsonl" --against "$scratch/calm.json" --fail-above 1.5
expect_error observed-against 2 "field 'observed': times of a log and costs of attention alone cannot be compared" \
    replay "$scratch/short.jsonl" --against "$scratch/calm.json"
expect_error observed-nothing 2 "no line has the field 'ttft_ms'" log "$scratch/short.jsonl"
expect_error observed-modelled 2 'observed and --modelled' log "$scratch/calm.jsonl" --modelled
expect_error observed-trace 2 'observed runs nothing' log "$scratch/calm.jsonl" --trace "$scratch/x"
expect_error observed-over 2 'the file of requests .* would be written over' log "$scratch/calm.jsonl" -o "$scratch/calm.jsonl"

# the programs of the document turn logs of other engines into such lines
example() { # NAME: the Python block below the line "<!-- NAME -->"
    python3 - "$docs" "$1" <<'END'
import sys
text = open(sys.argv[1]).read().split("<!-- %s -->" % sys.argv[2])[1]
print(text.split("```python\n")[1].split("```")[0])
END
}
example vllm >"$scratch/vllm.py"
python3 - >"$scratch/spans.json" <<'END'
import json
def span(i, **values):
    return {"startTimeUnixNano": str((1700000000 + i) * 10**9), "attributes": [
        {"key": k.replace("__", "."), "value": {"stringValue" if isinstance(v, str) else "doubleValue" if isinstance(v, float) else "intValue":
         str(v) if isinstance(v, int) else v}} for k, v in values.items()]}
for i in (1, 0):
    print(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span(i, gen_ai__request__id="a",
        gen_ai__usage__prompt_tokens=120 + i, gen_ai__usage__completion_tokens=5, gen_ai__latency__time_in_queue=0.25,
        gen_ai__latency__time_to_first_token=0.75, gen_ai__latency__e2e=1.75)]}]}]}))
END
expect_python example-vllm '
rows = [json.loads(line) for line in text.splitlines()]
assert [r["time"] for r in rows] == [0, 1] and rows[1]["prompt"] == 121
assert rows[0] == {"time": 0, "model": "llama-3.2-1b", "prompt": 120, "output": 5, "ttft_ms": 750, "queue_ms": 250, "tpot_ms": 250,
                   "kernel": "FLASH_ATTN"}, rows[0]
' python3 "$scratch/vllm.py" llama-3.2-1b FLASH_ATTN "$scratch/spans.json"
python3 "$scratch/vllm.py" llama-3.2-1b FLASH_ATTN "$scratch/spans.json" >"$scratch/vllm.jsonl"
expect example-vllm-read 0 'prefill \| many-rows \| FLASH_ATTN \| 2 \| 500 ' log "$scratch/vllm.jsonl"
example pytorch >"$scratch/service.py"
cat >>"$scratch/service.py" <<'END'
served = Served(sys.argv[1])
for i in range(3):
    list(served.tokens("private", prompt=[1] * 50, kernel="flash_for_cpu", model=lambda prompt: iter(range(4))))
END
python3 "$scratch/service.py" "$scratch/service.jsonl"
expect example-pytorch 0 'private \| prefill \| any \| flash_for_cpu \| 3 ' log "$scratch/service.jsonl"

# bad input: file, line, field and rule; nothing half-written
bad() { # NAME PATTERN LINE
    { head -1 "$scratch/short.jsonl"; printf '%s\n' "$3"; } >"$scratch/bad.jsonl"
    expect_error "bad-$1" 2 "bad.jsonl:2: $2" replay "$scratch/bad.jsonl" -o "$scratch/bad.json" \
        --trace "$scratch/bad.calls" --metrics "$scratch/bad.prom"
}
bad text 'no JSON' 'hello'
bad array 'a line must be an object' '[]'
bad missing "field 'time' is missing: it must be a number" '{"model":"gpt2"}'
bad negative "field 'prompt' is -4: it must be a whole number in 1..1048576" '{"time":1,"model":"gpt2","prompt":-4}'
bad huge "field 'prompt' is 1e308: it must be a whole number" '{"time":1,"model":"gpt2","prompt":1e308}'
bad infinite 'no JSON' '{"time":1e999,"model":"gpt2","prompt":4,"cached":0,"output":1}'
bad text-time "field 'time' is \"noon\": it must be a number" '{"time":"noon"}'
bad cached "field 'cached' is 9: it must be less than prompt, 9" '{"time":1,"model":"gpt2","prompt":9,"cached":9,"output":1}'
bad backwards "field 'time' is -1" '{"time":-1,"model":"gpt2","prompt":9,"cached":0,"output":1}'
bad model "field 'model' is \"\": it must be a text of 1..63" '{"time":1,"model":"","prompt":9,"cached":0,"output":1}'
bad queue "field 'queue_ms' is 9: it must be at most ttft_ms, 8" '{"time":1,"model":"gpt2","prompt":9,"output":1,"ttft_ms":8,"queue_ms":9}'
bad ttft "field 'ttft_ms' is -1: it must be a number in 0..1000000000" '{"time":1,"model":"gpt2","prompt":9,"output":1,"ttft_ms":-1}'
bad kernel "field 'kernel' is 3: it must be a text" '{"time":1,"model":"gpt2","prompt":9,"output":1,"kernel":3}'
bad control "field 'model' is .*: it must be a text" '{"time":1,"model":"a\u0001","prompt":9,"cached":0,"output":1}'
bad long "field 'prompt' is 1000: with output, 100, it must be at most 1024, what model gpt2 takes" \
    '{"time":1,"model":"gpt2","prompt":1000,"cached":0,"output":100}'
report bad-nothing-left "$(ls "$scratch"/bad.json "$scratch"/bad.calls "$scratch"/bad.prom "$scratch"/*.part >/dev/null 2>&1 || echo 1)" "$(ls "$scratch")"
expect_error bad-model-file 2 "model 'no-such-model' is neither a file nor one of .*It has " replay <(printf '{"time":0,"model":"no-such-model","prompt":9,"cached":0,"output":1}')
expect_error bad-model-kind 3 'no causal text layers' replay <(printf '{"time":0,"model":"arctic-embed-m","prompt":9,"cached":0,"output":1}')
expect_error no-trace 2 'one file of requests' "$tool" replay
expect_error no-such-trace 2 'No such file' replay "$scratch/none.jsonl"
printf '{"format":"tileproof.replay/1","modelled":false,"fleet_mean_ns":1,"rows":[{"model":"m"}]}' >"$scratch/report.json"
expect_error against-row 2 "report.json: field 'phase' is missing" replay "$scratch/short.jsonl" --against "$scratch/report.json"
expect_error against-modelled 2 'measured and modelled costs cannot be compared' replay "$scratch/short.jsonl" --modelled --against "$scratch/report.json"
printf '{' >"$scratch/report.json"
expect_error against-cut 2 'report.json:1: no JSON' replay "$scratch/short.jsonl" --against "$scratch/report.json"
finish
