# SPDX-License-Identifier: Apache-2.0
"""Which CUDA kernels of attention a call ran, by the names in a profile. Not run here: the tests read traces that they write."""
from __future__ import annotations

import os
import tempfile
from typing import Any, Callable

from ..watch import profile

UNFUSED = "softmax (unfused, where products stand around it)"


def from_trace(path: str) -> tuple[str, str]:
    """(kernels, fused) of what torch.profiler's export_chrome_trace wrote. No kernel of attention: not observable."""
    found = profile.counts(path)["cuda"]
    named = [x for x in found if x != UNFUSED]
    if named:
        return "+".join(named), "yes" if UNFUSED not in found else "unknown"
    return ("softmax between products", "no") if UNFUSED in found else ("", "unknown")


def observed(run: Callable[[], Any]) -> tuple[Any, str, str]:
    """(result, kernels, fused) of a call under the profiler."""
    import torch
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        result = run()
        torch.cuda.synchronize()
    handle, path = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        prof.export_chrome_trace(path)
        return (result, *from_trace(path))
    finally:
        os.unlink(path)
