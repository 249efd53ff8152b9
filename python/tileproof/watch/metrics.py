# SPDX-License-Identifier: Apache-2.0
"""Prometheus text and trace lines, in the names of the C library's (docs/operations.md), with an engine."""
from __future__ import annotations

import json
import threading
import time
from typing import Any, Callable, Iterable

FAMILIES = (
    ("tileproof_calls_total", "counter", "Completed calls of attention, by the kernel that served."),
    ("tileproof_call_seconds_total", "counter", "Wall time of completed calls; on CUDA from sampled ones."),
    ("tileproof_scratch_peak_bytes", "gauge", "Most temporary memory that a measured call used."),
    ("tileproof_fallbacks_total", "counter", "Completed calls that an unfused kernel served, by why no other did."),
    ("tileproof_refusals_total", "counter", "Calls that were refused because the lock does not have them."),
    ("tileproof_drift_total", "counter", "Calls that the lock does not have (class) or that another kernel serves (kernel)."),
)  # fmt: skip


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{name}="{escaped(str(value))}"' for name, value in pairs if value != "")


def _sums(watch: Any) -> dict[str, dict[tuple[Any, ...], float]]:
    """Figures by family and labels."""
    found: dict[str, dict[tuple[Any, ...], float]] = {name: {} for name, *_ in FAMILIES}

    def add(family: str, labels: tuple[Any, ...], value: float, join: Callable[..., Any] = lambda a, b: a + b) -> None:
        at = found[family]
        at[labels] = join(at[labels], value) if labels in at else value

    for x in list(watch.records.values()):
        x.settle()
        d = x.described
        kernel = (("engine", x.engine), ("kernel", x.kernel))
        common = (("phase", d.phase), ("dtype", d.dtype), ("bucket", d.bucket))
        model = (("model", x.place.model),)
        if x.calls:
            add("tileproof_calls_total", (*kernel, *common, *model), x.calls)
            add("tileproof_call_seconds_total", (*kernel, *common, *model), x.seconds())
            if x.peak_bytes is not None:
                add("tileproof_scratch_peak_bytes", (*kernel, *common, *model), x.peak_bytes, max)
        for (code, _), n in x.reasons.items():
            add("tileproof_fallbacks_total", (*kernel, *common, ("reason", code), *model), n)
        if x.refused:
            add("tileproof_refusals_total", (("engine", x.engine), *common, ("reason", "not_locked"), *model), x.refused)
        if x.drift is not None and x.calls + x.refused:
            add("tileproof_drift_total", (*kernel, *common, ("reason", x.drift[0]), *model), x.calls + x.refused)
    return found


def _histograms(watch: Any) -> list[str]:
    """Timed calls by model, phase and bucket, in bounds that double."""
    name = "tileproof_call_seconds"
    found: dict[tuple[tuple[str, str], ...], tuple[list[int], int]] = {}
    for x in list(watch.records.values()):
        labels: tuple[tuple[str, str], ...] = (("engine", x.engine), ("phase", x.described.phase), ("bucket", x.described.bucket), ("model", x.place.model))
        times, ns = found.get(labels, ([0] * len(x.times), 0))
        found[labels] = [a + b for a, b in zip(times, x.times)], ns + x.time_ns
    lines = [f"# HELP {name} Wall time of completed calls; on CUDA of sampled ones.", f"# TYPE {name} histogram"]
    for labels, (times, ns) in sorted(found.items()):
        within = 0
        if not sum(times):
            continue
        for i, n in enumerate(times):
            within += n
            bound = f"{(1024 << i) / 1e9:.9f}" if i + 1 < len(times) else "+Inf"
            lines.append(f"{name}_bucket{{{_labels((*labels, ('le', bound)))}}} {within}")
        lines += [f"{name}_sum{{{_labels(labels)}}} {ns / 1e9:.9f}", f"{name}_count{{{_labels(labels)}}} {within}"]
    return lines


def text(watch: Any) -> str:
    info = [("version", watch.identity["tileproof"]), ("engine", "torch"), ("torch", watch.identity["torch"])]
    lines = [
        "# HELP tileproof_build_info 1; its labels say which engine is watched.",
        "# TYPE tileproof_build_info gauge",
        f"tileproof_build_info{{{_labels(info)}}} 1",
    ]
    sums = _sums(watch)
    for name, kind, help_text in FAMILIES:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        for labels, value in sorted(sums[name].items()):
            lines.append(f"{name}{{{_labels(labels)}}} {f'{value:.9f}' if 'seconds' in name else int(value)}")
    lines += _histograms(watch)
    stale = watch.lock is not None and (bool(watch.stale) or watch.drifted > 0)
    for name, help_text, value in (
        ("tileproof_lock_loaded", "1 when a lock was loaded.", watch.lock is not None),
        ("tileproof_lock_stale", "1 when the lock does not fit: it is of another engine, or calls drifted.", stale),
    ):
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {int(value)}"]
    return "\n".join(lines) + "\n"


def _line(watch: Any, record: Any, problem: str, start: int, spent: int, status: str, figures: tuple[Any, ...], refused: list[Any]) -> str:
    lock = "absent" if watch.lock is None else "stale" if watch.stale or record.drift is not None else "matches"
    d, ran = record.described, status == "TP_OK"
    made = {
        "ts_ns": start, "time_ns": spent, "thread": threading.get_native_id(), "status": status,
        "kernel": record.kernel if ran else "none", "problem": problem, "class": d.problem_class, "phase": d.phase,
        "bucket": d.bucket, "fallback": ran and not record.fused, "planned": False, "refused": refused, "lock": lock,
    }  # fmt: skip
    if record.place.model:
        made["model"] = record.place.model[:63]
    if record.place.layer >= 0:
        made["layer"] = record.place.layer
    made["bytes_model"], made["workspace_bytes"] = figures
    made["engine"], made["mode"], made["path"] = record.engine, record.place.mode, record.place.path
    return json.dumps(made, separators=(",", ":")) + "\n"


def trace_line(watch: Any, call: Any, record: Any, status: str) -> str:
    start = time.time_ns() - (time.perf_counter_ns() - call.start_ns if call.start_ns else 0)
    refused = [{"kernel": "fused", "code": code, "text": why} for code, why in record.reasons] if not record.fused else []
    if status != "TP_OK":
        refused = [{"kernel": record.kernel, "code": "not_locked", "text": record.drift[1]}]
    problem = record.described.text(call.batch, call.rows, call.keys)
    return _line(watch, record, problem, start, call.time_ns, status, (call.bytes_model(), call.peak_bytes or 0), refused)


def own_trace_line(watch: Any, receipt: Any, record: Any) -> str:
    figures = receipt.bytes_model, receipt.workspace_bytes
    start = time.time_ns() - receipt.time_ns
    return _line(watch, record, receipt.problem, start, receipt.time_ns, receipt.status, figures, receipt.refused)
