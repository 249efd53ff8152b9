# SPDX-License-Identifier: Apache-2.0
"""`make peers`: tileproof beside its peers on this host, by interleaved calls in one process."""
import argparse
import datetime
import gc
import importlib
import os
import pathlib
import statistics
import sys

# before any library reads them
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
os.environ.setdefault("OPENVINO_TELEMETRY_DISABLE", "1")

import problem as problems
import report
import rows as work
import stats
import timing
from ours import Tileproof
from reference import Truth

HERE = pathlib.Path(__file__).resolve().parent


def say(text):
    print(text, file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(prog="make peers", description=__doc__)
    parser.add_argument("--match", default="", help="only rows that this regular expression is found in")
    parser.add_argument("--peers", default="torch,onnxruntime,openvino,ggml,ik_llama,vllm", help="a list")
    parser.add_argument("--quick", action="store_true", help="fewer pairs: wider intervals")
    parser.add_argument("--seconds", type=float, default=1.5, help="for one peer and row (default: 1.5)")
    parser.add_argument("--append", action="store_true", help="keep the lines of other rows from earlier runs")
    parser.add_argument("--rows", type=pathlib.Path, default=HERE / "rows.txt", help="the work list")
    parser.add_argument("--library", type=pathlib.Path, default="build/main/libtileproof_peers.so")
    parser.add_argument("--build", type=pathlib.Path, default="build/peers", help="where results go")
    return parser.parse_args()


def open_peer(name, build):
    """A module, or an object, with name() and variants(case, threads)."""
    failed = build / "failed" / name
    if failed.exists():
        raise RuntimeError(failed.read_text().strip())
    if name in ("ggml", "ik_llama"):
        from peer_ggml import Peer

        version = (build / name / "version").read_text().strip()
        return Peer(build / name / "lib", f"{name} ({version})", mask_always=name == "ik_llama")
    return importlib.import_module("peer_" + name)


def open_peers(names, build):
    found, missing = {}, {}
    for name in names:
        try:
            found[name] = open_peer(name, build)
        except Exception as error:  # whatever an import raises: the others go on
            text = str(error).strip()
            missing[name] = (text.splitlines()[0] if text else type(error).__name__)[:160]
            say(f"not run here: {name}: {missing[name]}")
    return found, missing


def served(peer, case, threads, truth):
    """The fastest of the peer's variants that are right, and its error. All wrong: the least error, and None."""
    right, errors = [], {}
    for variant in peer.variants(case, threads):
        variant.run()
        errors[variant.name] = truth.error(variant.output())
        if errors[variant.name] <= problems.LIMIT[case.problem.dtype] * truth.largest:
            right.append(variant)
    if not errors:
        raise timing.NotServed("no fused path for this problem")
    if not right:
        return None, min(errors.values())
    best = timing.fastest(right)
    return best, errors[best.name]


def measure(ours, theirs, arguments):
    least, most = (5, 5) if arguments.quick else (9, 25)
    a, b = timing.compare(ours, theirs, 0 if arguments.quick else arguments.seconds, least, most)
    ratio = stats.paired([wall for wall, _ in a], [wall for wall, _ in b])
    cpu = [statistics.median(cpu / wall for wall, cpu in times) for times in (a, b)]
    return ratio, [statistics.median(wall for wall, _ in times) for times in (a, b)], cpu, len(a)


class Sheet:
    """One row: the case, ours, the control, and a line for each peer."""

    def __init__(self, row, tileproof, arguments, when):
        self.row, self.arguments = row, arguments
        self.case = problems.Case(problems.parse(row.text))
        self.truth = Truth(self.case)
        self.ours = tileproof.variant(self.case, row.threads)
        self.error = self.check()
        twin = tileproof.variant(self.case, row.threads, "tileproof again")
        self.control, self.times, _, _ = measure(self.ours, twin, arguments)
        problem = self.case.problem
        self.common = dict(
            row=row.text, op=row.op, phase=problem.phase, dtype=problem.dtype, threads=row.threads,
            kernel=self.ours.kernel(), error_ours=self.error, control_lo=self.control.low,
            control_hi=self.control.high, host=report.host(), date=when, ours_ns=self.times[0] * 1e9,
        )  # fmt: skip

    def check(self):
        self.ours.run()
        error = self.truth.error(self.ours.output())
        if error > problems.LIMIT[self.case.problem.dtype] * self.truth.largest:
            raise RuntimeError(f"{self.row.text}: tileproof's own result is wrong: max err {error:.1e}")
        return error

    def line(self, peer):
        """How one peer did. A peer that breaks is named and the others go on."""
        values = dict(self.common, peer=peer.name())
        try:
            theirs, error = served(peer, self.case, self.row.threads, self.truth)
        except Exception as failure:
            text = str(failure).strip()
            return report.line(**values, verdict="not run", why=(text.splitlines() or [type(failure).__name__])[0][:160])
        if theirs is None:
            return report.line(**values, verdict="wrong", error_peer=error)
        ratio, times, cpu, pairs = measure(self.ours, theirs, self.arguments)
        values.update(
            variant=theirs.name, verdict=ratio.verdict() if self.control.same() else "untrusted", pairs=pairs,
            ours_ns=times[0] * 1e9, peer_ns=times[1] * 1e9, ratio=ratio.median, ratio_lo=ratio.low,
            ratio_hi=ratio.high, error_peer=error, cpu_ours=cpu[0], cpu_peer=cpu[1],
        )  # fmt: skip
        if cpu[1] > self.row.threads + 0.2:
            values["why"] = f"the peer used {cpu[1]:.1f} CPUs"
        return report.line(**values)


def main():
    arguments = options()
    tileproof = Tileproof(arguments.library)
    everything = work.read(arguments.rows.read_text(), tileproof.canonical)
    rows = work.choose(everything, arguments.match, len(os.sched_getaffinity(0)))
    if not rows:
        sys.exit(f"no row of {arguments.rows} matches '{arguments.match}'")
    peers, missing = open_peers(arguments.peers.split(","), arguments.build)
    when = datetime.date.today().isoformat()
    out = arguments.build / "peers.jsonl"
    entries = report.read_lines(out) if arguments.append else []
    fresh = []
    for number, row in enumerate(rows, 1):
        say(f"{number}/{len(rows)} threads={row.threads} {row.text}")
        sheet = Sheet(row, tileproof, arguments, when)
        for peer in peers.values():
            fresh.append(sheet.line(peer))
            say(f"    {fresh[-1]['peer']}: {' '.join(report.result(fresh[-1]))} {report.last(fresh[-1])}")
        del sheet
        gc.collect()
    entries = report.merge(entries, fresh, everything)
    kernels = {entry["kernel"] for entry in entries}
    text = report.header(tileproof.version, kernels, [p.name() for p in peers.values()], missing, when)
    text += "\n" + report.table(entries) + "\n" + report.summary(entries) + "\n"
    report.write_lines(out, entries)
    report.write(arguments.build / "peers.md", text)
    print(text, end="")


if __name__ == "__main__":
    main()
