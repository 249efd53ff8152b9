#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The systemd units and the CronJob of ops/: they parse, and their commands run. units.sh PATH/TO/tileproof OPS_DIR
set -u
tool=$(realpath "${1:?usage: units.sh PATH/TO/tileproof OPS_DIR}")
ops=$(cd "${2:?usage: units.sh PATH/TO/tileproof OPS_DIR}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/../tools/expect.sh"
cd "$scratch" || exit 1

mkdir -p llama textfile
printf '{"tileproof_model": 1, "groups": [{"layers": "0-1", "max_positions": 64, "problem": "h2/1 d16 f32 causal"}]}' >llama/config.json
"$tool" qualify llama --quick --lock t.lock --update --reason tests >/dev/null 2>&1
runs() { # COMMAND, with the examples' paths: as it stands, on files of this test
    local command=$1
    command=${command/#\/usr\/bin\/tileproof/$tool}
    command=${command/#tileproof /$tool }
    command=${command//\/etc\/tileproof\/tileproof.lock/$scratch/t.lock}
    command=${command//\/srv\/models\/llama/$scratch/llama}
    command=${command//\/models\/llama/$scratch/llama}
    command=${command//\/var\/lib\/prometheus\/node-exporter/$scratch/textfile}
    command=${command// \/textfile/ $scratch/textfile}
    rm -f textfile/*
    eval "$command" && grep -q '^tileproof_canary_exit_code 0$' textfile/tileproof.prom
}
expect service-runs 0 'nothing changed' runs "$(sed -n 's/^ExecStart=//p' "$ops/systemd/tileproof-canary.service")"
if command -v systemd-analyze >/dev/null; then
    cp "$ops"/systemd/tileproof-canary.* .
    sed -i "s,^ExecStart=/usr/bin/tileproof,ExecStart=$tool," tileproof-canary.service
    verify() { systemd-analyze verify --man=no ./tileproof-canary.timer ./tileproof-canary.service 2>&1 | grep -E 'tileproof-canary\.(timer|service):' && return 1 || return 0; }
    expect units 0 '^$' verify
    sed 's/^OnCalendar=.*/OnCalendar=sometimes/' "$ops/systemd/tileproof-canary.timer" >tileproof-canary.timer
    expect units-can-fail 1 'sometimes' verify
else
    echo "not run here: systemd-analyze is not installed (Debian: systemd)"
fi

if python3 -c 'import yaml' 2>/dev/null; then
    cronjob() {
        python3 - "$ops/kubernetes/canary-cronjob.yaml" <<'PY'
import shlex, sys, yaml
job, = yaml.safe_load_all(open(sys.argv[1]))
assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob") and len(job["spec"]["schedule"].split()) == 5
pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
container, = pod["containers"]
assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}, pod
assert pod["restartPolicy"] == "Never" and job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
print(shlex.join(container["command"]))
PY
    }
    expect cronjob 0 '^tileproof canary /etc/tileproof/tileproof.lock ' cronjob
    expect cronjob-runs 0 'nothing changed' runs "$(cronjob)"
else
    echo "not run here: the CronJob, for want of PyYAML (Debian: python3-yaml)"
fi

finish
