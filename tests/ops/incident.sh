#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The incident, from end to end, with the tools of a release: a new revision of a model changes its head dim, and no fast kernel has it.
#     incident.sh PATH/TO/tileproof PATH/TO/example_serve OPS_DIR
set -u
tool=$(realpath "${1:?usage: incident.sh PATH/TO/tileproof PATH/TO/example_serve OPS_DIR}")
serve=$(realpath "${2:?usage: incident.sh PATH/TO/tileproof PATH/TO/example_serve OPS_DIR}")
ops=$(cd "${3:?usage: incident.sh PATH/TO/tileproof PATH/TO/example_serve OPS_DIR}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/../tools/expect.sh"
PATH=$PATH:$here/../../build/tools # where scripts/setup.sh puts promtool
cd "$scratch" || exit 1

config() { # FOLDER HEAD_DIM
    mkdir -p "$1/llama"
    printf '{"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": %d, "max_position_embeddings": 256, "torch_dtype": "float32"}' "$2" >"$1/llama/config.json"
}
config rev1 64
config rev2 640
config rev3 96
qualify() { "$tool" qualify "$1/llama" --quick --lock a.lock --declare server=1.0 "${@:2}"; }
canary() { "$tool" canary a.lock --if-changed --quick --declare server=1.0 --metrics "$2" --model "$1/llama"; }

# Revision 1 is qualified, deployed and served; the canary passes.
expect qualify-rev1 0 '^PASS' qualify rev1 --update --reason 'revision 1'
expect serve-rev1 0 '^request-1 ' "$serve" run rev1/llama/config.json a.lock
expect canary-rev1 0 'deployed .*: a revision of the lock' canary rev1 before.prom

# Revision 2 is deployed by somebody who did not ask: the canary names the head dim and who refuses it, the server does not start,
# and no update makes the refusal the new normal.
cp before.prom after.prom
expect canary-rev2 3 'text layers 0-3: head_dim 64 -> 640$' canary rev2 after.prom
expect canary-rev2-why 3 'text layers 0-3, decode: kernel [a-z0-9]+ -> refused: .*head_dim 640, need <= 576' canary rev2 after.prom
expect serve-rev2 1 'preflight: TP_UNSUPPORTED: rev2/llama/config.json: not qualified' "$serve" run rev2/llama/config.json a.lock
cp a.lock before.lock
expect compare-rev2 3 'UNSUPPORTED' qualify rev2
expect update-rev2 3 'accept-unsupported' qualify rev2 --update --reason 'revision 2'
report lock-unchanged "$(cmp -s a.lock before.lock && echo 1)" "$(diff before.lock a.lock)"

# Rollback: revision 1 is in the lock, and is served at once.
expect rollback 0 '^request-1 ' "$serve" run rev1/llama/config.json a.lock
cp after.prom back.prom
expect canary-rollback 0 'nothing changed' canary rev1 back.prom

# Revision 3 has a head dim that is served. Both it and revision 1 are in the lock, and what changed stands there in words.
rm -f a.lock.journal
expect qualify-rev3 0 '^PASS' qualify rev3 --update --reason 'revision 3: head dim 96'
expect diff 0 'text layers 0-3: head_dim 64 -> 96$' "$tool" lock diff a.lock
expect diff-figures 0 'text layers 0-3, decode: .*bytes [0-9]+ -> [0-9]+' "$tool" lock diff a.lock
expect serve-rev3 0 '^request-1 .* d96' "$serve" run rev3/llama/config.json a.lock
expect serve-rev1-again 0 '^request-1 .* d64' "$serve" run rev1/llama/config.json a.lock

# The alert: quiet before, firing on what the canary wrote of revision 2, quiet after the rollback.
if command -v promtool >/dev/null; then
    alerts() { # BEFORE AFTER EXPECT...
        python3 "$here/story.py" "$ops/alerts.yml" "$@" >story.yml && promtool test rules story.yml
    }
    check() { promtool check metrics <"$1"; }
    expect metrics 0 '' check after.prom
    expect alert-quiet 0 SUCCESS alerts before.prom before.prom
    expect alert-fires 0 SUCCESS alerts before.prom after.prom TileproofLockDrift
    expect alert-can-fail 1 FAILED alerts before.prom after.prom
    expect alert-rollback 0 SUCCESS alerts before.prom back.prom
else
    echo "not run here: the alert, for want of promtool (Debian: prometheus)"
fi

finish
