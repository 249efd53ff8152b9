# SPDX-License-Identifier: Apache-2.0
"""`make peers`: tileproof beside its peers on this host, by interleaved calls in one process. A run that was stopped, by hand
or after --minutes, goes on when the same command is given again; until its last row, peers.jsonl and peers.md stay those of
the run before."""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import report
import rows as work_list
import worker
from ours import Tileproof

HERE = pathlib.Path(__file__).resolve().parent
# Some virtual machines say that they have AMX, but its tiles cannot be used; libraries on oneDNN then die of SIGILL.
NO_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "PEERS_NO_AMX": "1"}


def options():
    parser = argparse.ArgumentParser(prog="make peers", description=__doc__)
    parser.add_argument("--match", default="", help="only rows that this regular expression is found in")
    parser.add_argument("--peers", default="torch,onnxruntime,openvino,ggml,ik_llama,vllm", help="a list")
    parser.add_argument("--quick", action="store_true", help="fewer pairs: wider intervals")
    parser.add_argument("--seconds", type=float, default=1.0, help="for one peer and row (default: 1)")
    parser.add_argument("--minutes", type=float, default=28, help="then it stops, and goes on when asked again; peers.jsonl is written when all rows are there (default: 28)")
    parser.add_argument("--fresh", action="store_true", help="measure again what a stopped run has measured")
    parser.add_argument("--append", action="store_true", help="keep the lines of other rows from earlier runs")
    parser.add_argument("--rows", type=pathlib.Path, default=HERE / "rows.txt", help="the work list")
    parser.add_argument("--library", type=pathlib.Path, default="build/main/libtileproof_peers.so")
    parser.add_argument("--build", type=pathlib.Path, default="build/peers", help="where results go")
    parser.add_argument("--worker", type=float, metavar="UNTIL", help=argparse.SUPPRESS)
    return parser.parse_args()


def environment(tileproof):
    """What libraries read when they are loaded."""
    known = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "TOKENIZERS_PARALLELISM": "false"}
    return known | (NO_AMX if tileproof.amx() < 0 else {}) | os.environ


def crashed(build, number):
    """The line of the peer that was being measured when the worker died."""
    values = json.loads((build / "trying.json").read_text())
    why = f"crashed: {signal.Signals(number).name}"
    worker.say(f"    {values['peer']}: {why}")
    with open(build / "progress.jsonl", "a") as out:
        out.write(json.dumps(report.line(**values, verdict="not run", why=why)) + "\n")


def asked(arguments):
    """What a run's lines depend on: lines of an earlier run count while it is the same."""
    words = [arguments.match, arguments.peers, arguments.quick, arguments.seconds, arguments.rows.read_text()]
    words.append(hashlib.sha256(arguments.library.resolve().parent.joinpath("libtileproof.so").read_bytes()).hexdigest())
    return json.dumps(words)


def begin(arguments):
    """Keeps the lines of a run that was stopped, if this one asks for the same."""
    build = arguments.build
    build.mkdir(parents=True, exist_ok=True)
    for name in ("trying.json", "missing.json"):
        (build / name).unlink(missing_ok=True)
    before = build / "asked.json"
    if arguments.fresh or not before.exists() or before.read_text() != asked(arguments):
        (build / "progress.jsonl").unlink(missing_ok=True)
        report.write(before, asked(arguments))
    elif lines := len(report.read_lines(build / "progress.jsonl")):
        worker.say(f"going on after {lines} lines of a run that was stopped (--fresh: from the start)")


def rows_left(rows, measured):
    done = {(entry["row"], entry["threads"]) for entry in measured}
    return sum((row.text, row.threads) not in done for row in rows)


def stop(arguments, rows, left, missing):
    """What was measured is kept for the same command; the table of an earlier run stays what it is."""
    table = arguments.build / "peers.jsonl"
    kept = f"{table} is that of an earlier run" if table.exists() else f"{table} comes with the last row"
    if set(arguments.peers.split(",")) <= missing.keys():
        sys.exit(f"none of {arguments.peers} runs here: nothing was measured, {kept}")
    sys.exit(f"stopped after {arguments.minutes:g} minutes with {left} of {len(rows)} rows left: the same command goes on; {kept}")


def finish(arguments, entries, text):
    """The table of a whole run, and the next one begins anew."""
    report.write_lines(arguments.build / "peers.jsonl", entries)
    report.write(arguments.build / "peers.md", text)
    for name in ("progress.jsonl", "asked.json"):
        (arguments.build / name).unlink(missing_ok=True)


def measure(arguments, tileproof):
    """Workers until one comes to the end or the time is over; lines as measured."""
    begin(arguments)
    command = [sys.executable, __file__, "--worker", str(time.time() + 60 * arguments.minutes), *sys.argv[1:]]
    while code := subprocess.run(command, env=environment(tileproof)).returncode:
        if code > 0 or not (arguments.build / "trying.json").exists():
            sys.exit(code if code > 0 else 1)
        crashed(arguments.build, -code)
    return report.read_lines(arguments.build / "progress.jsonl")


def work(arguments, tileproof, rows, when):
    peers, missing = worker.open_peers(arguments.peers.split(","), arguments.build)
    report.write(arguments.build / "missing.json", json.dumps(missing))
    worker.work(rows, tileproof, peers, arguments, when)


def main():
    arguments = options()
    when = datetime.date.today().isoformat()
    tileproof = Tileproof(arguments.library)
    everything = work_list.read(arguments.rows.read_text(), tileproof.canonical)
    rows = work_list.choose(everything, arguments.match, len(os.sched_getaffinity(0)))
    if not rows:
        sys.exit(f"no row of {arguments.rows} matches '{arguments.match}'")
    if arguments.worker:
        return work(arguments, tileproof, rows, when)
    measured = measure(arguments, tileproof)
    left = rows_left(rows, measured)
    old = report.read_lines(arguments.build / "peers.jsonl") if arguments.append and not left else []
    entries = report.merge(old, measured, everything)
    missing = json.loads((arguments.build / "missing.json").read_text())
    notes = [f"not run here: {name}: {why}" for name, why in missing.items()]
    if tileproof.amx() < 0:
        notes.append("AMX: this host says that it has it, but its tiles cannot be used; peers were told not to use it.")
    kernels = {entry["kernel"] for entry in entries if entry["kernel"]}
    peers = dict.fromkeys(entry["peer"] for entry in entries)
    text = report.header(tileproof.version, kernels, peers, notes, when)
    text += "\n".join(["", report.overview(entries), report.table(entries), report.summary(entries), ""])
    if measured:
        print(text, end="")
    if left:
        stop(arguments, rows, left, missing)
    finish(arguments, entries, text)


if __name__ == "__main__":
    main()
