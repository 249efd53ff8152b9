# SPDX-License-Identifier: Apache-2.0
"""What a watcher saw, for people and for programs."""
from __future__ import annotations

import datetime
import re
import textwrap
from typing import Any

from ..engines.host import CUDA_NOT_RUN
from .problem import LENGTHS
from .unseen import not_observable

WIDTH = 80


def with_lengths(text: str) -> str:
    """A problem text with room for batch and lengths."""
    return LENGTHS.sub(r"\1 b{b} \2 q{q} k{k} ", text.replace("{", "{{").replace("}", "}}"))


def lengths(text: str) -> tuple[int, int, int]:
    """batch, rows and keys of a problem text; of several sequences those of the first."""
    found = {x[0]: int(x[1]) for x in re.findall(r"(?<=\s)([bqk])(\d+)", text)}
    return found.get("b", 1), found.get("q", 0), found.get("k", 0)


def ranges(numbers: list[int]) -> str:
    """0-3,6,8-9"""
    out: list[list[int]] = []
    for n in sorted(set(numbers)):
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def _size(value: Any) -> str:
    if value is None:
        return "-"
    for unit, by in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= by:
            return f"{value / by:.1f} {unit}"
    return f"{value} B"


class Row:
    """Records that differ by layer alone."""

    def __init__(self, records: list[Any]) -> None:
        first = max(records, key=lambda x: x.pairs)
        self.engine, self.kernel, self.fused, self.note = first.engine, first.kernel, first.fused, first.note
        self.place, self.described, self.problem = first.place, first.described, first.problem()
        self.calls, self.refused = sum(x.calls for x in records), sum(x.refused for x in records)
        self.seconds = sum(x.seconds() for x in records)
        self.timed, self.captured = sum(x.timed for x in records), sum(x.captured for x in records)
        self.peak_bytes = max((x.peak_bytes for x in records if x.peak_bytes is not None), default=None)
        self.drift = next((x.drift for x in records if x.drift is not None), None)
        self.layers = [x.place.layer for x in records if x.place.layer >= 0]
        self.reasons: dict[tuple[str, str], int] = {}
        for x in records:
            for reason, n in x.reasons.items():
                self.reasons[reason] = self.reasons.get(reason, 0) + n

    def where(self) -> str:
        path = self.place.path
        if self.layers:
            path = re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", ranges(self.layers), path, count=1)
        return f"{self.place.model} {path}".strip() or "no module"


def rows(watch: Any) -> list[Row]:
    """Worst first: what drifted, then what is not fused, by time."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for x in list(watch.records.values()):
        x.settle()
        if x.calls or x.refused:
            path = re.sub(r"(?<![^.])\d+(?![^.])", "*", x.place.path, count=1) if x.place.layer >= 0 else x.place.path
            key = (x.engine, x.kernel, x.described.problem_class, x.place.mode, x.place.model, path)
            groups.setdefault(key, []).append(x)
    made = [Row(x) for x in groups.values()]
    return sorted(made, key=lambda x: (x.drift is None, x.fused, -x.seconds, x.problem))


def _head(watch: Any, found: list[Row]) -> list[str]:
    calls, seconds = sum(x.calls for x in found), sum(x.seconds for x in found)
    unfused = sum(x.calls for x in found if not x.fused)
    lines = [f"tileproof watch: {calls} calls of attention, {unfused} of them not fused, {seconds:.3f} s"]
    lines.append("  " + ", ".join(f"{name} {value}" for name, value in watch.identity.items() if name in ("torch", "cpu_capability", "gpu")))
    if "gpu" in watch.identity:
        lines += _wrapped(CUDA_NOT_RUN, "  ", "    ")
    if watch.lock is not None:
        stale = ", and it is of another engine" if watch.stale else ""
        lines.append(f"  {watch.drifted} drifted from {watch.lock.path}{stale}")
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)


def table(watch: Any) -> str:
    found = rows(watch)
    lines = _head(watch, found)
    if found:
        lines.append(f"{'calls':>7}  {'kernel':<24} {'mode':<8} {'ms':>10} {'us a call':>10} {'temporary':>10}")
    for x in found:
        per_call = f"{1e6 * x.seconds / x.calls:.1f}" if x.timed else "-"
        total = f"{1e3 * x.seconds:.2f}" if x.timed else "-"
        name = x.kernel if x.engine == "torch" else f"{x.engine}:{x.kernel}"
        lines.append(f"{x.calls:>7}  {name:<24} {x.place.mode:<8} {total:>10} {per_call:>10} {_size(x.peak_bytes):>10}")
        about = [x.where(), x.problem]
        if x.drift is not None:
            about.append(f"DRIFT: {x.drift[1]}" + (f" ({x.refused} refused)" if x.refused else ""))
        about += [f"{'not fused' if not x.fused else 'fallback'}: {text}" for (_, text), _ in sorted(x.reasons.items(), key=lambda i: -i[1])]
        about += [f"note: {x.note}"] if x.note else []
        about += [f"note: {x.captured} of them while a CUDA graph was captured; replays are not seen"] if x.captured else []
        for text in about:
            lines += _wrapped(text, " " * 9, " " * 11)
    unseen = not_observable(watch)
    if unseen:
        lines.append("not observable here:")
        for text in unseen:
            lines += _wrapped(text, "  - ", "    ")
    return "\n".join(lines) + "\n"


def to_dict(watch: Any) -> dict[str, Any]:
    return {
        "schema": "tileproof.watch/1",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "identity": watch.identity,
        "lock": None if watch.lock is None else {"path": watch.lock.path, "stale": watch.stale, "drifted": watch.drifted},
        "calls": watch.calls,
        "rows": [
            {
                "engine": x.engine, "kernel": x.kernel, "fused": x.fused, "mode": x.place.mode, "model": x.place.model,
                "path": x.where().removeprefix(x.place.model).strip(), "layers": sorted(set(x.layers)), "problem": x.problem,
                "class": x.described.problem_class, "phase": x.described.phase, "bucket": x.described.bucket,
                "dtype": x.described.dtype, "calls": x.calls, "refused": x.refused, "seconds": x.seconds, "timed": x.timed,
                "peak_temporary_bytes": x.peak_bytes, "drift": None if x.drift is None else {"by": x.drift[0], "text": x.drift[1]},
                "reasons": [{"code": code, "text": text, "calls": n} for (code, text), n in x.reasons.items()], "note": x.note,
            }
            for x in rows(watch)
        ],
        "not_observable": not_observable(watch),
    }  # fmt: skip
