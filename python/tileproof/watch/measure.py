# SPDX-License-Identifier: Apache-2.0
"""Peak temporary memory of one op, from PyTorch's allocators by way of its old profiler: of this thread alone, silent, and 0.1
ms a time. Where somebody profiles already, nothing is measured."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch


def _tools() -> Optional[tuple[Any, ...]]:
    try:
        from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy, _profiler_enabled
        from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

        config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        return _profiler_enabled, _enable_profiler_legacy, _disable_profiler_legacy, config
    except (ImportError, TypeError):  # another PyTorch
        return None


_found: Optional[tuple[Any, ...]] = None


def _temporary(events: list[Any], device: bool) -> int:
    """What was held at most, less what is held at the end: the results."""
    now = peak = 0
    for thread in events:
        for event in thread:
            if event.kind() == "memory_alloc":
                now += event.device_memory_usage() if device else event.cpu_memory_usage()
                peak = max(peak, now)
    return peak - now


def measured(run: Callable[[], Any], device: bool) -> tuple[Any, Optional[int]]:
    """(result, peak temporary bytes; None: not to be had)."""
    global _found
    _found = _found or _tools()
    if _found is None:
        return run(), None
    is_on, start, stop, config = _found
    if is_on():
        return run(), None
    start(config)
    try:
        result = run()
    except BaseException:
        stop()
        raise
    events = stop()
    try:
        return result, _temporary(events, device)
    except AttributeError:
        return result, None


def stopwatch() -> Optional[tuple[Any, ...]]:
    """Two CUDA events, the first recorded; not run here. None while a graph is captured."""
    if torch.cuda.is_current_stream_capturing():
        return None
    pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    pair[0].record()
    return pair
