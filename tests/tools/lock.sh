#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of `tileproof lock`, and of revisions in `qualify` and `canary`: bash tests/tools/lock.sh PATH/TO/tileproof OLD.lock
set -u
tool=$(realpath "${1:?usage: lock.sh PATH/TO/tileproof OLD.lock}")
old=$(realpath "${2:?usage: lock.sh PATH/TO/tileproof OLD.lock}")
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/expect.sh"
cd "$scratch" || exit 1

config() { # FOLDER HEAD_DIM [MORE]: a llama of two layers
    mkdir -p "$1"
    printf '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": %d, "max_position_embeddings": 256, "torch_dtype": "float32"%s}' "$2" "${3:-}" >"$1/config.json"
}
config one/llama 32
config two/llama 48
config wide/llama 640
quick=(--quick --phases decode)
update() { # CONFIG WORDS...
    "$tool" qualify "$1" "${quick[@]}" --lock t.lock --update --reason 'a revision' "${@:2}"
}
same() { cmp "$1" "$2" && [ "$(ls "$scratch"/*.tileproof* 2>/dev/null)" = "" ]; }

expect help 0 'tileproof lock \[OPTIONS\] list\|show\|diff\|drop\|merge FILE' "$tool" lock --help
# a folder, and the file in it, are called by the folder; the second revision stands beside the first
expect first 0 't.lock: [0-9]+ new, 0 changed, 0 same of llama [0-9a-f]{12}$' update one/llama
cp t.lock first.lock
expect second 0 '^PASS' update two/llama/config.json
expect_python both '
rows = json.loads(text)
assert [row["model"] for row in rows] == ["llama", "llama"] and len({row["config"] for row in rows}) == 2, rows
assert all(row["status"] == "QUALIFIED" and row["cells"] == 3 and row["here"] == "as qualified" for row in rows), rows' \
    "$tool" lock list t.lock -o json
expect list-text 0 'a revision' "$tool" lock list t.lock
expect list-stale 0 '\| STALE' "$tool" lock list t.lock --declare engine=2
hashes=($("$tool" lock list t.lock -o json | python3 -c 'import json, sys; print(*[row["config"] for row in json.load(sys.stdin)])'))
a=${hashes[0]:0:8} b=${hashes[1]:0:8}

# both hold: rollback and blue/green
expect one-holds 0 '^PASS' "$tool" qualify one/llama "${quick[@]}" --lock t.lock
expect two-holds 0 '^PASS' "$tool" qualify two/llama "${quick[@]}" --lock t.lock

# what a lock holds
expect show 0 "^llama ${hashes[0]} \(.*\): QUALIFIED, 3 cells" "$tool" lock show t.lock "@$a"
expect_python show-json '
rows = json.loads(text)
assert len(rows) == 3 and all(row["kernel"] and row["part"] == "text" and " d32 " in row["problem"] for row in rows), rows' \
    "$tool" lock show t.lock "llama@$a" -o json
expect show-engine 0 'llama' "$tool" lock show t.lock llama/tileproof:cpu
expect_error show-other-engine 2 "no revision 'llama/torch'.*it has llama@$a" "$tool" lock show t.lock llama/torch
expect_error show-none 2 "no revision 'gemma'" "$tool" lock show t.lock gemma

# what changed, in words
expect diff 0 "text layers 0-1: head_dim 32 -> 48$" "$tool" lock diff t.lock "@$a" "@$b"
expect diff-last-two 0 "^llama ${hashes[0]:0:12} .* -> llama ${hashes[1]:0:12} " "$tool" lock diff t.lock
expect diff-back 0 'head_dim 48 -> 32$' "$tool" lock diff t.lock "@$b" "@$a"
expect diff-same 0 '^  the same$' "$tool" lock diff t.lock first.lock "@$a"
expect diff-files 0 'head_dim 32 -> 48$' "$tool" lock diff first.lock t.lock
expect diff-files-words 0 'head_dim 48 -> 32$' "$tool" lock diff t.lock "@$b" first.lock "@$a"
expect diff-figures 0 'text layers 0-1, decode: .*error [0-9.e-]+ -> [0-9.e-]+.*bytes [0-9]+ -> [0-9]+' "$tool" lock diff t.lock
expect_python diff-json '
pair, = json.loads(text)
changes = {(c["phase"], c["what"]): (c["from"], c["to"]) for c in pair["changes"]}
assert changes["", "head_dim"] == ("32", "48"), changes
assert changes["", "config"] == (pair["from"]["revision"]["config"], pair["to"]["revision"]["config"]), changes
assert "bytes" in {what for _, what in changes} and pair["to"]["engine"]["device"] == "cpu", changes' \
    "$tool" lock diff t.lock -o json
expect_error diff-nothing 2 'nothing to compare' "$tool" lock diff first.lock
expect_error diff-words 2 'lock diff takes' "$tool" lock diff "@$a" t.lock
expect_error diff-unknown 2 "no revision '@0000'" "$tool" lock diff t.lock "@$a" @0000

# a refusal outranks staleness, in text and exit code, and says what changed; it is no update
cp t.lock before.lock
expect refused 3 'text layers 0-1: head_dim 48 -> 640$' "$tool" qualify wide/llama "${quick[@]}" --lock t.lock
expect refused-kernel 3 'decode: kernel [a-z0-9]+ -> refused: .*head_dim 640, need <= 576' "$tool" qualify wide/llama "${quick[@]}" --lock t.lock
expect refused-cell 3 'decode \(main\): UNSUPPORTED: .*generic: head_dim 640' "$tool" qualify wide/llama "${quick[@]}" --lock t.lock
expect refused-update 3 'a cell is refused, and the update is for what is served: .*--accept-unsupported' update wide/llama
same t.lock before.lock && ok=1 || ok=0
report refused-unchanged "$ok" "$(ls)"
cp t.lock accepted.lock
expect accepted 3 'accepted.lock: 3 new' "$tool" qualify wide/llama "${quick[@]}" --lock accepted.lock --update --reason x --accept-unsupported
expect accepted-shown 0 'UNSUPPORTED, 3 cells' "$tool" lock show accepted.lock llama
expect accepted-good-stay 0 '^PASS' "$tool" qualify one/llama "${quick[@]}" --lock accepted.lock
rm -f t.lock.journal

# the last three stay; others have their own
config three/llama 56
config four/llama 72
config other/gemma 40
update other/gemma >/dev/null 2>&1
update three/llama >/dev/null 2>&1
expect dropped 0 "dropped llama ${hashes[0]:0:12}$" update four/llama
expect_python three-left 'assert [row["model"] for row in json.loads(text)].count("llama") == 3 and "gemma" in text, text' "$tool" lock list t.lock -o json
expect_python diff-of-three 'assert [c["to"] for pair in json.loads(text) for c in pair["changes"] if c["what"] == "head_dim"] == ["72"], text' \
    "$tool" lock diff t.lock -o json
expect diff-next 0 'head_dim 48 -> 56$' "$tool" lock diff t.lock "@$b"
expect_error diff-last 2 'nothing to compare' "$tool" lock diff first.lock "@$a"
expect keep 0 "dropped llama [0-9a-f]{12}, llama [0-9a-f]{12}$" update four/llama --keep 1
expect_error keep-none 2 'keep is 0' update four/llama --keep 0
# a name of one's own
expect named 0 'of llama-8b [0-9a-f]{12}$' "$tool" qualify one/llama "${quick[@]}" --lock named.lock --update --reason x --name llama-8b
expect_error named-two 2 'name is for one model' "$tool" qualify one/llama two/llama "${quick[@]}" --name x
expect_error named-badly 2 "label is \"a@b\"" "$tool" qualify one/llama "${quick[@]}" --name a@b
expect_error one-name 2 'a lock knows both as llama' "$tool" qualify one/llama two/llama "${quick[@]}" --lock t.lock

# drop and merge
cp before.lock d.lock
expect_error drop-which 2 "means llama@$a.* and llama@$b.*say which" "$tool" lock drop d.lock llama --reason x
expect_error drop-reason 2 'reason has 0 bytes' "$tool" lock drop d.lock "@$a"
expect_error drop-none 2 'no revision' "$tool" lock drop d.lock @0000 --reason x
same before.lock d.lock && ok=1 || ok=0
report drop-unchanged "$ok" ""
expect drop 0 "dropped llama ${hashes[0]:0:12}$" "$tool" lock drop d.lock "@$a" --reason withdrawn
expect drop-unknown 5 'config of one/llama/config.json: lock has' "$tool" qualify one/llama "${quick[@]}" --lock d.lock
expect merge 0 "merged of llama ${hashes[0]:0:12}$" "$tool" lock merge d.lock first.lock --reason 'both'
expect merge-holds 0 '^PASS' "$tool" qualify one/llama "${quick[@]}" --lock d.lock
"$tool" qualify one/llama "${quick[@]}" --lock clash.lock --declare engine=2 --update --reason x >/dev/null 2>&1
cp d.lock merged.lock
expect_error merge-clash 2 "clash.lock into d.lock: llama ${hashes[0]:0:12} on tileproof cpu .*: both locks have it, with other versions" "$tool" lock merge d.lock clash.lock --reason x
same d.lock merged.lock && ok=1 || ok=0
report merge-unchanged "$ok" ""

# locks of the schema before, and of one to come
expect old 0 '\| b.json ' "$tool" lock list "$old"
cp "$old" old.lock
expect old-updated 0 'tileproof.lock/2' bash -c "'$tool' qualify one/llama ${quick[*]} --lock old.lock --update --reason x >/dev/null 2>&1; grep schema old.lock"
expect old-kept 0 'b.json' "$tool" lock list old.lock
sed 's,tileproof.lock/2,tileproof.lock/3,' t.lock >newer.lock
cp newer.lock kept.lock
for word in "lock list" canary "lock drop"; do
    # shellcheck disable=SC2086
    expect_error "newer $word" 2 'newer.lock:2: schema is "tileproof.lock/3": tileproof [0-9.]+ reads up to "tileproof.lock/2"; a newer one wrote this file' \
        "$tool" $word newer.lock $([ "$word" = "lock drop" ] && echo "@$a --reason x")
done
expect_error newer-update 2 'a newer one wrote this file' "$tool" qualify one/llama "${quick[@]}" --lock newer.lock --update --reason x
same newer.lock kept.lock && ok=1 || ok=0
report newer-unchanged "$ok" ""

# two processes that update one lock: nothing is lost; one that does not get it says so, and writes nothing
rm -f race.lock
pids=()
for word in one two three four; do
    "$tool" qualify $word/llama "${quick[@]}" --name "m$word" --lock race.lock --journal "$word.journal" --update --reason race >"$word.out" 2>&1 &
    pids+=($!)
done
ok=1
for pid in "${pids[@]}"; do wait "$pid" || ok=0; done
report race-ends "$ok" "$(cat ./*.out)"
expect_python race-keeps-all 'assert sorted(row["model"] for row in json.loads(text)) == ["mfour", "mone", "mthree", "mtwo"], text' "$tool" lock list race.lock -o json
cp race.lock kept.lock
exec 9>race.lock.tileproof-guard
flock 9
expect held 1 'race.lock is being changed by another process, which did not end within 0 s: nothing was written' \
    "$tool" qualify one/llama "${quick[@]}" --lock race.lock --update --reason x --wait 0.1s
expect held-drop 1 'race.lock is being changed by another process' "$tool" lock drop race.lock mone --reason x --wait 0.1s
cmp -s race.lock kept.lock && ok=1 || ok=0
report held-unchanged "$ok" ""
"$tool" lock drop race.lock mone --reason x --wait 600s >waits.out 2>&1 9>&- &
waiter=$!
for _ in $(seq 2400); do grep -q 'waiting for it' waits.out && break; sleep 0.05; done
exec 9>&-
wait "$waiter"
report waits-and-writes "$([ $? = 0 ] && grep -q 'dropped mone' waits.out && echo 1)" "$(cat waits.out)"
report no-guard-left "$([ ! -e race.lock.tileproof-guard ] && echo 1)" "$(ls)"
expect_error bad-wait 2 "wait is 'soon'" "$tool" lock drop race.lock mtwo --reason x --wait soon

# canary: the deployed config
expect canary-known 0 'deployed .*one/llama/config.json [0-9a-f]{12}: a revision of the lock, qualified 20' "$tool" canary d.lock --model one/llama
expect canary-if-changed 0 'nothing changed' "$tool" canary d.lock --if-changed --model one/llama two/llama
expect canary-new 5 'text layers 0-1: head_dim [0-9]+ -> 72$' "$tool" canary d.lock --if-changed --quick --model four/llama
expect canary-new-says 5 'deployed four/llama/config.json .*: no revision of the lock, which has of llama' "$tool" canary d.lock --if-changed --quick --model four/llama
expect canary-refused 3 'revision \| UNSUPPORTED \| llama \| text \| 0-1 .*head_dim 640, need <= 576' "$tool" canary d.lock --quick --model wide/llama
expect canary-unknown 5 'no revision of the lock, which does not know gemma' "$tool" canary d.lock --quick --model other/gemma
expect canary-name 5 'text layers 0-1: head_dim 32 -> 40$' "$tool" canary first.lock --quick --name llama --model other/gemma --declare x=1
# an update by another version renews one revision: what is deployed is as the lock says, the other is stale
cp d.lock half.lock
"$tool" qualify one/llama "${quick[@]}" --lock half.lock --declare engine=2 --update --reason x >/dev/null 2>&1
expect canary-half 5 "The lock is STALE: llama ${hashes[1]:0:12}: library declared" "$tool" canary half.lock --declare engine=2
expect canary-half-deployed 0 '^3 cells of .*: 3 run' "$tool" canary half.lock --declare engine=2 --model one/llama
expect canary-half-not-deployed 5 'STALE here: library declared: lock has none, here engine=2' "$tool" canary half.lock --declare engine=2 --model two/llama
expect_error canary-no-model 2 'No such file' "$tool" canary d.lock --model none/config.json
expect_error canary-words 2 '2 files given: canary takes one lock; configs stand behind --model' "$tool" canary d.lock one/llama

# its metrics: success is kept by a failure, and the state of the lock for the model
value() { sed -n "s/^$1 //p" m.prom; }
expect metrics-pass 0 'As the lock says' "$tool" canary d.lock --model one/llama --metrics m.prom
success=$(value tileproof_canary_last_success_timestamp_seconds)
now=$(date +%s)
[ $((now - success)) -ge 0 ] && [ $((now - success)) -lt 3600 ] && [ "$(value tileproof_lock_stale)" = 0 ] && [ "$(value tileproof_lock_loaded)" = 1 ] &&
    [ "$(value 'tileproof_canary_cells{status="QUALIFIED"}')" = 3 ] && [ "$(value 'tileproof_lock_state{model="llama",state="matches"}')" = 1 ] && ok=1 || ok=0
report metrics-passed "$ok" "$(cat m.prom)"
sed -i 's/^\(tileproof_canary_last_success_timestamp_seconds\) .*/\1 1000/' m.prom
expect metrics-fail 5 'no revision' "$tool" canary d.lock --quick --model four/llama --metrics m.prom
[ "$(value tileproof_canary_last_success_timestamp_seconds)" = 1000 ] && [ "$(value tileproof_lock_stale)" = 1 ] && [ "$(value tileproof_canary_exit_code)" = 5 ] &&
    [ "$(value 'tileproof_lock_state{model="llama",state="other-config"}')" = 1 ] && [ "$(value 'tileproof_lock_state{model="llama",state="matches"}')" = 0 ] && ok=1 || ok=0
report metrics-failed "$ok" "$(cat m.prom)"
expect metrics-refused 3 '' "$tool" canary d.lock --quick --model wide/llama --metrics m.prom
report metrics-refused-cells "$([ "$(value 'tileproof_canary_cells{status="UNSUPPORTED"}')" -ge 3 ] && echo 1)" "$(cat m.prom)"
expect metrics-stale 5 'STALE' "$tool" canary d.lock --metrics m.prom --declare engine=3
report metrics-stale-state "$([ "$(value 'tileproof_lock_state{model="llama",state="stale"}')" = 1 ] && [ "$(value tileproof_lock_stale)" = 1 ] && echo 1)" "$(cat m.prom)"
expect metrics-unreadable 2 'a newer one wrote' "$tool" canary newer.lock --metrics m.prom
[ "$(value tileproof_lock_loaded)" = 0 ] && [ "$(value tileproof_lock_stale)" = 1 ] && [ "$(value 'tileproof_lock_state{state="unreadable"}')" = 1 ] && ok=1 || ok=0
report metrics-unreadable-state "$ok" "$(cat m.prom)"
expect metrics-if-changed 0 'nothing changed' "$tool" canary d.lock --if-changed --metrics m.prom
report metrics-not-run "$([ "$(value 'tileproof_canary_cells{status="NOT_RUN"}')" = 6 ] && [ "$(value tileproof_canary_last_success_timestamp_seconds)" != 1000 ] && echo 1)" "$(cat m.prom)"
expect_error metrics-lock 2 'it would be written over' "$tool" canary d.lock --metrics d.lock
expect_error metrics-config 2 'it would be written over' "$tool" canary d.lock --model one/llama/config.json --metrics one/llama/config.json
expect metrics-unwritable 1 'none/m.prom: No such file' "$tool" canary d.lock --if-changed --metrics none/m.prom

# usage
expect_error no-verb 2 "lock '': it must be list, show, diff, drop or merge" "$tool" lock
expect_error bad-verb 2 "lock 'lst': it must be" "$tool" lock lst t.lock
expect_error few-words 2 '0 words given: lock list takes FILE' "$tool" lock list
expect_error bad-output 2 "output is 'md': it must be text or json" "$tool" lock list t.lock -o md
expect_error reason-of-list 2 'reason is for lock drop and lock merge' "$tool" lock list t.lock --reason x
expect_error accept-alone 2 'accept-unsupported is for --update' "$tool" qualify one/llama "${quick[@]}" --accept-unsupported

finish
