# SPDX-License-Identifier: Apache-2.0
"""Measures rows one after another and appends each line to a file as it comes. A peer may crash this process: run.py
then notes that and starts another one, which goes on with what is missing."""
import gc
import importlib
import json
import statistics
import sys
import time

import problem as problems
import report
import stats
import timing
from reference import Gradients, Oracle


def say(text):
    print(text, file=sys.stderr, flush=True)


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def open_peer(name, build):
    """A module, or an object, with name() and variants(case, threads)."""
    failed = build / "failed" / name
    if failed.exists():
        raise RuntimeError(failed.read_text().strip())
    if name in ("ggml", "ik_llama"):
        from tileproof.engines.ggml import Peer

        version = (build / name / "version").read_text().strip()
        return Peer(build / name / "lib", f"{name} ({version})", fork=name == "ik_llama")
    return importlib.import_module(f"tileproof.engines.{name}")


def open_peers(names, build):
    found, missing = {}, {}
    for name in names:
        try:
            found[name] = open_peer(name, build)
        except Exception as error:  # whatever an import raises: the others go on
            missing[name] = first_line(error)
            say(f"not run here: {name}: {missing[name]}")
    return found, missing


def served(peer, case, threads, oracle):
    """The fastest of the peer's variants that are right, and its error. All wrong: the least error, and None."""
    right, errors = [], {}
    if case.problem.backward and not hasattr(peer, "gradients"):
        raise timing.NotServed("it has no gradients")
    if case.problem.cache and getattr(peer, "CACHE", "") != case.problem.cache:
        raise timing.NotServed(f"it has no {case.problem.cache} cache")
    if case.problem.cache:
        variants = peer.cached(case, threads, case.codes, problems.E4M3_SCALE)
    else:
        variants = (peer.gradients if case.problem.backward else peer.variants)(case, threads)
    for variant in variants:
        variant.run()
        errors[variant.name] = oracle.error(variant.output())
        if errors[variant.name] <= problems.LIMIT[case.problem.dtype] * oracle.largest:
            right.append(variant)
    if not errors:
        raise timing.NotServed("no fused path for this problem")
    if not right:
        return None, min(errors.values())
    best = timing.fastest(right)
    return best, errors[best.name]


def measure(ours, theirs, arguments):
    min_turns, max_turns = (5, 5) if arguments.quick else (9, 25)
    a, b = timing.compare(ours, theirs, 0 if arguments.quick else arguments.seconds, min_turns, max_turns)
    ratio = stats.paired([wall for wall, _ in a], [wall for wall, _ in b])
    cpu = [statistics.median(cpu / wall for wall, cpu in times) for times in (a, b)]
    return ratio, [statistics.median(wall for wall, _ in times) for times in (a, b)], cpu, len(a)


class Sheet:
    """One row: the case, ours, the control, and a line for each peer."""

    def __init__(self, row, tileproof, arguments, when):
        self.row, self.arguments = row, arguments
        self.case = problems.Case(problems.parse(row.text))
        self.oracle = (Gradients if self.case.problem.backward else Oracle)(self.case)
        self.ours = tileproof.variant(self.case, row.threads)
        self.error = self.check()
        self.control, self.times = self.quiet(tileproof.variant(self.case, row.threads, "tileproof again"))
        problem = self.case.problem
        self.common = dict(
            row=row.text, op=row.op, phase=problem.phase, dtype=problem.dtype, threads=row.threads,
            kernel=self.ours.kernel(), error_ours=self.error, control_lo=self.control.low,
            control_hi=self.control.high, host=report.host(), machine=tileproof.machine(), date=when,
            ours_ns=self.times[0] * 1e9,
        )  # fmt: skip

    def quiet(self, again, tries=3):
        """The A/A control; a restless host gets two more tries before the row is marked."""
        for _ in range(tries):
            control, times, _, _ = measure(self.ours, again, self.arguments)
            if control.same():
                break
        return control, times

    def check(self):
        self.ours.run()
        error = self.oracle.error(self.ours.output())
        if error > problems.LIMIT[self.case.problem.dtype] * self.oracle.largest:
            raise RuntimeError(f"{self.row.text}: tileproof's own result is wrong: max err {error:.1e}")
        return error

    def line(self, peer):
        """How one peer did. A peer that breaks is named and the others go on."""
        values = dict(self.common, peer=peer.name())
        try:
            theirs, error = served(peer, self.case, self.row.threads, self.oracle)
        except Exception as failure:
            return report.line(**values, verdict="not run", why=first_line(failure))
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


def work(rows, tileproof, peers, arguments, when):
    """Every row with every peer, but for what the file of progress has, until the time is over."""
    progress, trying = arguments.build / "progress.jsonl", arguments.build / "trying.json"
    done = {report.key(entry) for entry in report.read_lines(progress)}
    for number, row in enumerate(rows, 1):
        left = [p for p in peers.values() if (row.text, row.threads, p.name()) not in done]
        if not left:
            continue
        if time.time() > arguments.worker:
            break
        say(f"{number}/{len(rows)} threads={row.threads} {row.text}")
        sheet = Sheet(row, tileproof, arguments, when)
        for peer in left:
            report.write(trying, json.dumps(dict(sheet.common, peer=peer.name())))
            entry = sheet.line(peer)
            with open(progress, "a") as out:
                out.write(json.dumps(entry) + "\n")
            say(f"    {entry['peer']}: {' '.join(report.result(entry))} {report.last(entry)}")
        del sheet
        gc.collect()
    trying.unlink(missing_ok=True)
