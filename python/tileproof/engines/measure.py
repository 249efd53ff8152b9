# SPDX-License-Identifier: Apache-2.0
"""Time and memory of a call, whatever engine makes it."""
from __future__ import annotations

import ctypes
import gc
import statistics
import time
from typing import Any, Callable


def median_ns(run: Callable[[], Any], budget_ns: float, reset: Callable[[], Any] = lambda: None, settle: Callable[[], Any] = lambda: None) -> float:
    """Of calls within the budget, at least 3 unless one takes more than a second; 0 where no time is asked for."""
    if not budget_ns > 0:
        return 0.0
    times: list[float] = []
    end = time.perf_counter_ns() + budget_ns
    while len(times) < (3 if sum(times) < 1e9 else 1) or (time.perf_counter_ns() < end and len(times) < 200):
        reset()
        settle()
        begin = time.perf_counter_ns()
        run()
        settle()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times)


def _high_water() -> int:
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM:"))


def peak_bytes(run: Callable[[], Any], kept: int = 0) -> int:
    """How far the high-water mark of resident memory rises during a call, less what the call leaves behind on purpose. 0: not to
    be had here. What earlier calls left to the garbage collector goes first: it would fill the memory, and in the midst of this
    it would count as the call's. What allocators kept from them hides what is taken again, so engines with arenas get a fresh one."""
    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = _high_water()
    except (OSError, AttributeError, StopIteration):
        run()
        return 0
    run()
    return max(_high_water() - before - kept, 1)
