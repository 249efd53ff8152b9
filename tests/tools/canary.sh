#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of `tileproof canary`: bash tests/tools/canary.sh PATH/TO/tileproof LIBRARY.so. No time is judged here;
# scripts/canary_proof.py does that.
set -u
tool=${1:?usage: canary.sh PATH/TO/tileproof LIBRARY.so}
library=${2:?usage: canary.sh PATH/TO/tileproof LIBRARY.so}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/expect.sh"

printf '{"tileproof_model": 1, "groups": [{"layers": "0-3", "problem": "h4/2 d96 f32 causal"}]}' >"$scratch/ninety.json"
printf '{"tileproof_model": 1, "groups": [{"layers": "0-1", "problem": "h4/2 d64 f32 causal"}]}' >"$scratch/sixty.json"
lock=$scratch/t.lock
"$tool" qualify "$scratch/ninety.json" "$scratch/sixty.json" --quick --lock "$lock" --update --reason 'tests' >/dev/null
best=$("$tool" qualify "$scratch/sixty.json" --quick --phases decode -o jsonl | python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["kernel"])')

expect help 0 'tileproof canary \[OPTIONS\] LOCK' "$tool" canary --help
# against itself: nothing to say
expect itself 0 '^14 cells of .*: 14 run, 0 left out by the budget; 0 choices differ; 0 notes' "$tool" canary "$lock"
expect if-changed 0 'nothing changed' "$tool" canary "$lock" --if-changed
expect changed 5 'The lock is STALE: library declared: lock has none, here engine=7' "$tool" canary "$lock" --if-changed --declare engine=7
expect_json json 0 "$tool" canary "$lock" -o json

# a head dim whose fast kernels are gone: model, group, phase, kernels and reasons, and only that model
expect_json drill-json 3 "$tool" canary "$lock" --drill no:HEAD_DIM=96 -o json
expect_python drill '
rows = [json.loads(line) for line in text.splitlines()]
assert {row["phase"] for row in rows} == {"prefill", "decode", "varlen", "mixed"}, rows
for row in rows:
    assert row["check"] == "choice" and row["status"] == "UNSUPPORTED" and row["model"] == "ninety.json", row
    assert row["part"] == "text" and row["layers"] == "0-3", row
    assert "'"$best"': head_dim 96 is disabled by hand" in row["detail"], row
    assert "generic: " in row["detail"] and "math: a fallback (tier 3) and policy refuse" in row["detail"], row' \
    bash -c "'$tool' canary '$lock' --drill no:HEAD_DIM=96 -o jsonl || [ \$? = 3 ]"
expect drill-md 3 'A drill: no:HEAD_DIM=96 \(simulated\)' "$tool" canary "$lock" --drill no:HEAD_DIM=96
expect drill-other-dim 0 'As the lock says' "$tool" canary "$lock" --drill no:HEAD_DIM=80
expect drill-kernel 3 "UNSUPPORTED.*sixty.json.*$best: disabled by hand" "$tool" canary "$lock" --drill "no:$best"
# the story: a revision changes its head dim. The lock does not know it; qualified anew all is quiet; and where the
# fast kernels for that dim are gone, the canary says whose calls would be refused, before any request does.
config() { # HEAD_DIM
    printf '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": %d, "torch_dtype": "bfloat16"}' "$1" >"$scratch/revision.json"
}
story=$scratch/story.lock
config 64
"$tool" qualify "$scratch/revision.json" --quick --lock "$story" --update --reason 'revision 1' >/dev/null
sed -i 's/}/, "rope_theta": 500000.0}/' "$scratch/revision.json"
expect story-config 5 'the lock is STALE: config of .*revision.json: lock has [0-9a-f]{64}, here' "$tool" qualify "$scratch/revision.json" --quick --phases decode --lock "$story"
config 96
expect story-not-locked 5 'revision.json, text layers 0-1, decode .*: STALE: .*: the lock has no such cell' "$tool" qualify "$scratch/revision.json" --quick --lock "$story"
expect story-qualified 0 '' "$tool" qualify "$scratch/revision.json" --quick --lock "$story" --update --reason 'revision 2 has head dim 96'
expect story-quiet 0 '; 0 notes' "$tool" canary "$story"
expect story-drilled 3 "choice \| UNSUPPORTED \| revision.json \| text \| 0-1 +\| prefill \| .* d96 bf16 causal +\| ([^|]*; )?$best: head_dim 96 is disabled by hand.*math: a fallback" "$tool" canary "$story" --drill no:HEAD_DIM=96

# permitted, it is served, and still not what the lock says
expect drill-permitted 3 'lock has .* QUALIFIED, here math QUALIFIED_FALLBACK' "$tool" canary "$lock" --drill no:HEAD_DIM=96 --fallback permit
# slow: a verdict for each cell, of whatever word; the wait is named
any_verdict() { # OPTIONS...: exit 0 when it gave verdicts, whatever they are
    "$tool" canary "$lock" --budget 2s "$@"
    case $? in 0 | 1 | 4) return 0 ;; *) return 9 ;; esac
}
expect drill-slow 0 'speed .*(SLOW|AMBIGUOUS|SAME|FAST).*slowed by a drill' any_verdict --drill "slow:$best=1.5"
any_verdict --against "$library" >"$scratch/against" && ok=1 || ok=0
grep -qE 'speed .*new over old [0-9.]+ .*A/A' "$scratch/against" && grep -q '^host: ' "$scratch/against" || ok=0
report against "$ok" "$(head -20 "$scratch/against")"

# what is wrong counts more than what differs
python3 - "$lock" "$scratch/wrong.lock" <<'PY'
import hashlib, json, re, sys
text = open(sys.argv[1]).read()
text = re.sub(r'"kernel":"[a-z0-9]*"', '"kernel":"math"', text, count=1)
root = json.loads(text, parse_float=lambda number: "@" + number + "@")
root.pop("checksum")
flat = re.sub(r'"@([^@]*)@"', r"\1", json.dumps(root, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
open(sys.argv[2], "w").write(re.sub(r'"checksum": "[0-9a-f]*"', '"checksum": "%s"' % hashlib.sha256(flat.encode()).hexdigest(), text))
PY
expect other-choice 5 'choice.*STALE.*lock has math QUALIFIED, here' "$tool" canary "$scratch/wrong.lock"
expect budget 4 'left out by the budget' "$tool" canary "$lock" --budget 0.000001s

# usage and bad files
expect_error no-lock 2 '0 files given' "$tool" canary
expect_error two-locks 2 '2 files given' "$tool" canary "$lock" "$lock"
expect_error missing 2 'No such file' "$tool" canary "$scratch/none.lock"
head -c 500 "$lock" >"$scratch/cut.lock"
expect_error truncated 2 'cut.lock:[0-9]+: not JSON' "$tool" canary "$scratch/cut.lock"
sed 's/"QUALIFIED"/"MISTRUSTED"/' "$lock" >"$scratch/edited.lock"
expect_error edited 2 'edited.lock:3: checksum' "$tool" canary "$scratch/edited.lock"
for drill in no slow: no:nothing slow:math no:HEAD_DIM= "slow:$best=0.5" "slow:$best=x" no:HEAD_DIM=x; do
    expect "drill '$drill'" 2 'tileproof: ' "$tool" canary "$lock" --drill "$drill"
done
expect_error bad-budget 2 "budget is 'soon'" "$tool" canary "$lock" --budget soon
expect_error bad-library 2 'against: .*none.so' "$tool" canary "$lock" --budget 2s --against "$scratch/none.so"
expect_error not-tileproof 2 'it has no tp_version' "$tool" canary "$lock" --budget 2s --against "$(ldd "$library" | awk '/libm\.so/ {print $3}')"

finish
