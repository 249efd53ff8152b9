# SPDX-License-Identifier: Apache-2.0
"""flash_attn's functions, on a GPU. Not run here: no GPU was at hand. Kernels are read from a CUDA profile."""
from __future__ import annotations

from typing import Any, Callable

import numpy as np

from . import cuda, host, measure
from .cell import Answer, Cell, NotServed


def call(cell: Cell, function: Callable[..., Any]) -> Callable[[], Any]:
    import torch

    from .torch import tensor

    batch, (q_len, kv_len) = cell.batch, cell.lengths[0]
    if cell.sinks is not None:
        raise NotServed("flash_attn_func has no sinks")
    if cell.mask == "visible":
        raise NotServed("flash_attn_func has no mask but causal and window")
    if cell.head_dim != cell.head_dim_v:
        raise NotServed(f"head dims of q and v are {cell.head_dim} and {cell.head_dim_v}: they must be equal")
    q = tensor(cell.scaled_q(), cell.dtype).cuda().reshape(batch, q_len, cell.q_heads, -1)
    k, v = (tensor(cell.stored[x], cell.dtype).cuda().reshape(batch, kv_len, cell.kv_heads, -1) for x in "kv")
    slopes = None if cell.slopes is None else torch.from_numpy(cell.slopes.copy()).cuda()
    window = (cell.window, 0) if cell.mask == "causal_window" else (-1, -1)
    return lambda: function(
        q, k, v, softmax_scale=cell.scale, causal=cell.mask != "full", window_size=window, softcap=cell.softcap, alibi_slopes=slopes
    )  # fmt: skip


class Engine:
    name, device, mode = "flash_attn", "cuda", "eager"

    def __init__(self, options: Any) -> None:
        if not host.version("flash-attn"):
            raise NotServed("the package flash-attn is not installed")
        import torch

        if not torch.cuda.is_available():
            raise NotServed("flash_attn needs a CUDA device, and PyTorch sees none")
        import flash_attn

        self.function = flash_attn.flash_attn_func
        self.versions = {"torch": torch.__version__, "cuda": torch.version.cuda, **host.versions("flash-attn")}
        self.host = {"gpu": torch.cuda.get_device_name(), "driver": host.driver()}

    def serve(self, cell: Cell) -> Answer:
        import torch

        from .torch import elements, temporary, together

        if cell.dtype == "f32":
            raise NotServed("flash_attn has f16 and bf16 only")
        run = together([call(part, self.function) for part in cell.parts()])
        run()
        peak = temporary(run, "cuda")
        result, kernel, fused = cuda.observed(run)
        time_ns = measure.median_ns(run, cell.time_ns, settle=torch.cuda.synchronize)
        output = np.concatenate([elements(x).reshape(-1, cell.q_heads, cell.head_dim_v) for x in result])
        return Answer(output, kernel, "profiler", fused, (), peak, time_ns)
