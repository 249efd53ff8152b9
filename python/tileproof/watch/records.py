# SPDX-License-Identifier: Apache-2.0
"""A watcher: what it saw, summed by class, kernel and place."""
from __future__ import annotations

import collections
import os
import sys
import threading
import time
import warnings
from typing import Any, Optional

import torch

from .. import _torch_log
from . import foreign, hooks, metrics, report, rules, where
from .identity import identity
from .._files import write_file
from .lock import Lock, save
from .problem import Described, class_of

DRIFT = ("warn", "raise", "count")
MOST_RECORDS = 4096  # further ones are summed as one


class DriftWarning(UserWarning):
    """A call that the lock does not have, or that another kernel serves."""


class DriftError(hooks.Refused):
    """The same, with on_drift="raise": the call did not run."""


BOUNDS = 26  # of the histogram: 2^10 ns, 2^11 ns, ... as in the C library


class Record:
    """Calls of one class that one kernel served at one place."""

    def __init__(self, engine: str, kernel: str, fused: bool, place: where.Place, described: Described, note: str = "") -> None:
        self.engine, self.kernel, self.fused, self.place, self.described, self.note = engine, kernel, fused, place, described, note
        self.calls = self.time_ns = self.timed = self.refused = 0
        self.times = [0] * (BOUNDS + 1)  # timed calls above the bound before, up to this one; last: beyond all
        self.peak_bytes: Optional[int] = None
        self.largest = (0, 0, 0)  # batch, rows, keys
        self.measured_at = -1  # pairs of the largest problem whose memory was measured
        self.reasons: collections.Counter[tuple[str, str]] = collections.Counter()
        self.drift: Optional[tuple[str, str]] = None
        self.warned = False
        self.stopwatches: list[tuple[Any, ...]] = []  # CUDA's, read when somebody asks
        self.captured = 0  # calls while a CUDA graph was captured

    @property
    def pairs(self) -> int:
        batch, rows, keys = self.largest
        return batch * rows * keys

    def settle(self) -> None:
        """Turns CUDA's events into times; waits for the last one."""
        while self.stopwatches:
            first, last = self.stopwatches.pop()
            last.synchronize()
            self.took(int(first.elapsed_time(last) * 1e6))

    def took(self, ns: int) -> None:
        self.time_ns += ns
        self.timed += 1
        self.times[min(max((ns - 1).bit_length() - 10, 0), BOUNDS) if ns > 1 else 0] += 1

    def seconds(self) -> float:
        """Of all calls: those that were timed stand for the others."""
        return self.time_ns * 1e-9 * (self.calls / self.timed) if self.timed else 0.0

    def problem(self) -> str:
        return self.described.text(*self.largest)


class Watch:
    """Made open by tileproof.watch(...); close() ends it, and so does leaving `with`. `records`, `table()`, `to_dict()`,
    `metrics()` say what was seen so far, and `calls` counts it."""

    limit = 1  # as a log of this library's own calls: it wants receipts

    def __init__(
        self, every: int = 100, lock: Optional[str] = None, on_drift: str = "warn", trace: Optional[str] = None,
        metrics: Optional[str] = None, metrics_seconds: float = 15.0, model: str = "",
    ) -> None:  # fmt: skip
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}: it must be a whole number of at least 1")
        if on_drift not in DRIFT:
            raise ValueError(f"on_drift is {on_drift!r}: it must be one of {', '.join(DRIFT)}")
        if not metrics_seconds > 0:
            raise ValueError(f"metrics_seconds is {metrics_seconds}: it must be above 0")
        self.lock = None if lock is None else Lock(lock)
        self.identity = identity()
        self.stale = [] if self.lock is None else self.lock.stale(self.identity)
        self.every, self.on_drift, self.model = every, on_drift, model
        self.records: dict[Any, Record] = {}
        self.began, self.seconds = time.time(), 0.0
        self.open = False
        self._guard = threading.Lock()
        self._trace = None if trace is None else open(trace, "w", buffering=1)
        self._metrics_path, self._metrics_seconds = metrics, metrics_seconds
        self._pid, self._stop = os.getpid(), threading.Event()
        self._start()

    def _start(self) -> None:
        if self.lock is not None and self.stale:
            warnings.warn(f"{self.lock.path} is of another engine: {'; '.join(self.stale)}", DriftWarning, stacklevel=4)
        if self._metrics_path is not None:
            write_file(self._metrics_path, self.metrics())  # a wrong path is told at once
        hooks.listen(self)
        foreign.watch_packages()
        _torch_log.follow(listener=self)
        self.open = True
        if self._metrics_path is not None:
            threading.Thread(target=self._write_metrics, args=(self._metrics_path,), name="tileproof-metrics", daemon=True).start()

    def _write_metrics(self, path: str) -> None:
        while not self._stop.wait(self._metrics_seconds):
            write_file(path, self.metrics())

    def close(self) -> None:
        """Ends it; once is enough."""
        if not self.open:
            return
        self.open = False
        hooks.leave(self)
        _torch_log.follow(gone=self)
        self.seconds = time.time() - self.began
        self._stop.set()
        if self._trace is not None:
            self._trace.close()
        if self._metrics_path is not None and os.getpid() == self._pid:
            write_file(self._metrics_path, self.metrics())

    def __enter__(self) -> Watch:
        if not self.open:
            raise RuntimeError("this watcher is closed already: call tileproof.watch() again")
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    # as a listener of .hooks

    def _new(self, key: Any, record: Record) -> Record:
        with self._guard:
            if len(self.records) >= MOST_RECORDS:
                place = where.Place("other", "", -1, record.place.mode)
                key = (record.engine, record.kernel, place.mode, record.described.phase, record.described.bucket, record.described.dtype)
                form = f"{record.described.phase} b{{b}} q{{q}} k{{k}} {record.described.dtype} (other)"
                record.place, record.described = place, record.described._replace(form=form)
            found = self.records.get(key)
            if found is not None:
                return found
            if self.lock is not None:
                record.drift = self.lock.drift(record.engine, record.described.problem_class, record.place.mode, record.kernel)
            self.records[key] = record
            return record

    def _record(self, call: hooks.Call) -> Record:
        key = (call.kernel, call.inner, call.key)
        found = self.records.get(key)
        if found is None:
            place = call.place._replace(model=self.model or call.place.model)
            made = Record(call.engine, call.served_by, call.fused, place, call.described(), call.note)
            found = self._new(key, made)
        return found

    def begins(self, call: hooks.Call) -> None:
        record = self._record(call)
        pairs = call.batch * call.rows * call.keys
        call.measure = call.measure or pairs >= 2 * record.measured_at or record.calls % self.every == 0
        if record.drift is not None and self.on_drift == "raise":
            with self._guard:
                record.refused += 1
            if self._trace is not None:
                self._write(metrics.trace_line(self, call, record, "TP_NOT_LOCKED"))
            raise DriftError(f"attention drifted: {record.drift[1]}")

    def ends(self, call: hooks.Call) -> None:
        record = self._record(call)
        why = rules.broken(call.kernel, call.read) if not record.fused else []
        pairs = call.batch * call.rows * call.keys
        with self._guard:
            record.calls += 1
            if call.stopwatch is not None:
                record.stopwatches.append(call.stopwatch)
            elif not call.read.q.is_cuda:
                record.took(call.time_ns)
            elif torch.cuda.is_current_stream_capturing():
                record.captured += 1
            if call.peak_bytes is not None:
                record.peak_bytes = max(record.peak_bytes or 0, call.peak_bytes)
                record.measured_at = max(record.measured_at, pairs)
            if pairs > record.pairs or record.calls == 1:
                record.largest = (call.batch, call.rows, call.keys)
            for reason in why:
                record.reasons[reason] += 1
        self._told(record)
        if self._trace is not None:
            self._write(metrics.trace_line(self, call, record, "TP_OK"))

    def _told(self, record: Record) -> None:
        if record.drift is None or self.on_drift == "count":
            return
        if self.on_drift == "raise":
            raise DriftError(f"attention drifted: {record.drift[1]}")
        if not record.warned:
            record.warned = True
            warnings.warn(f"attention drifted: {record.drift[1]}", DriftWarning, stacklevel=5)

    def _write(self, line: str) -> None:
        if self._trace is not None and os.getpid() == self._pid:
            with self._guard:
                self._trace.write(line)

    # as a log of this library's own calls

    def note_receipt(self, receipt: Any) -> None:
        if receipt is None:
            return
        place = where.place(sys._getframe(1))
        key = ("tileproof", receipt.kernel, place, class_of(receipt.problem)[0])
        record = self.records.get(key)
        if record is None:
            problem_class, phase, bucket, dtype = class_of(receipt.problem)
            described = Described(report.with_lengths(receipt.problem), problem_class, phase, bucket, dtype)
            made = Record("tileproof", receipt.kernel, not receipt.scores_written, place._replace(model=self.model or place.model), described)
            record = self._new(key, made)
        sizes = report.lengths(receipt.problem)
        with self._guard:
            record.calls += 1
            record.took(receipt.time_ns)
            record.peak_bytes = max(record.peak_bytes or 0, receipt.workspace_bytes)
            if record.calls == 1 or sizes[0] * sizes[1] * sizes[2] > record.pairs:
                record.largest = sizes
            for reason in receipt.refused if receipt.fallback else ():
                record.reasons[reason["code"], f"{reason['kernel']}: {reason.get('text', reason['code'])}"] += 1
        self._told(record)
        if self._trace is not None:
            self._write(metrics.own_trace_line(self, receipt, record))

    def note_passed(self, *unused: Any) -> None:
        pass

    # what was seen

    @property
    def calls(self) -> int:
        return sum(x.calls for x in list(self.records.values()))

    @property
    def drifted(self) -> int:
        """Calls that drifted, refused ones among them."""
        return sum(x.calls + x.refused for x in list(self.records.values()) if x.drift is not None)

    def kernels(self) -> dict[str, int]:
        """Calls by kernel, gradients among them as `KERNEL backward`."""
        found: dict[str, int] = {}
        for x in list(self.records.values()):
            name = f"{x.kernel} backward" if x.described.phase == "backward" else x.kernel
            found[name] = found.get(name, 0) + x.calls
        return {name: n for name, n in found.items() if n}

    def table(self) -> str:
        """One table, worst first."""
        return report.table(self)

    def to_dict(self) -> dict[str, Any]:
        """The same for programs, fit for json.dumps."""
        return report.to_dict(self)

    def metrics(self) -> str:
        """Prometheus text."""
        return metrics.text(self)

    def save_lock(self, path: str) -> None:
        """What was seen, as a lock for later runs, in the schema of `tileproof lock`."""
        cells = [(x.engine, x.described.problem_class, x.place.mode, x.kernel, x.described.phase) for x in self.records.values() if x.calls]
        save(path, self.identity, cells, self.model)

    def __repr__(self) -> str:
        seen = ", ".join(f"{n} on {name}" for name, n in sorted(self.kernels().items())) or "nothing"
        return f"<tileproof.Watch: {seen}; {'open' if self.open else 'closed'}>"
