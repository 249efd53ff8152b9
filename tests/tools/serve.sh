#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example of a server: it qualifies, starts on what it qualified, and on nothing else; a stop leaves the lock as it was.
#     serve.sh PROGRAM MODELS
. "$(dirname "$0")/expect.sh"
serve=$1 models=$2
cd "$scratch" || exit 1
model() { echo "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"max_positions\": 256, \"problem\": \"$1\"}]}"; }
mkdir old new
model "h4/2 d64 f32 causal" >old/model.json
model "h4/2 d80 f32 causal" >new/model.json # a revision with another head dim

expect usage 2 'usage: serve deploy' "$serve" deploy old/model.json
expect no-lock 2 'No such file' "$serve" run old/model.json a.lock
expect deploy 0 'QUALIFIED [a-z0-9]+ .*h4/2' "$serve" deploy old/model.json a.lock
expect run 0 '^request-1 [a-z0-9]+ decode .*k101 d64' "$serve" run old/model.json a.lock
cp a.lock kept.lock
expect changed-config 1 'preflight: TP_UNSUPPORTED: new/model.json: not qualified: the lock has it with another config' \
    "$serve" run new/model.json a.lock
expect deploy-again 0 'QUALIFIED' "$serve" deploy new/model.json a.lock
expect run-again 0 '^request-1 .* d80' "$serve" run new/model.json a.lock

model "h4/2 d65536 f32 causal" >new/model.json # no fused kernel has it
cp a.lock before.lock
expect refused 1 'serve: UNSUPPORTED: ' "$serve" deploy new/model.json a.lock
cmp -s a.lock before.lock
report refused-keeps-the-lock $((!$?)) "a.lock has changed"

# a stop after the first cell
mkfifo lines
"$serve" deploy "$models/llama-3.1-8b.json" a.lock >lines 2>errors &
child=$!
exec 3<lines
read -r first <&3
kill -TERM "$child"
cat <&3 >/dev/null
wait "$child"
got=$?
report stopped $((got == 1)) "exit $got after '$first'"
grep -q 'NOT_RUN: .*: stopped$' errors
report stopped-says-so $((!$?)) "$(cat errors)"
cmp -s a.lock before.lock
report stopped-keeps-the-lock $((!$?)) "a.lock has changed"
ls | grep -q part
report no-parts $(($?)) "$(ls)"

sed -i 's/"bytes":1/"bytes":2/' kept.lock
expect edited 1 'checksum is' "$serve" run old/model.json kept.lock
finish
