# SPDX-License-Identifier: Apache-2.0
"""flex_attention under torch.compile: masks and changes of scores become part of a kernel that is generated for each call. It
needs a C++ compiler. The kernel is named by the profiler, with inductor's own names."""
from __future__ import annotations

import re
from typing import Any, Callable

import numpy as np
import torch

from . import host, measure
from .cell import Answer, Cell, NotServed, Variant
from .torch import bhsd, elements, need_device, seen, temporary, together

GENERATED = re.compile(r"^(graph_\d+_)?(kernel|cpp_\w+|triton_\w+)|flex_attention")


def call(cell: Cell, device: str) -> Callable[[], Any]:
    """For one of cell.parts()."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, (q_len, kv_len) = cell.batch, cell.lengths[0]
    if cell.sinks is not None and device == "cpu":
        raise NotServed("sinks need return_lse, which compiled flex_attention does not have on the CPU")
    q = bhsd(cell.scaled_q().reshape(batch, q_len, cell.q_heads, -1), cell.dtype, device)
    k, v = (bhsd(cell.stored[x].reshape(batch, kv_len, cell.kv_heads, -1), cell.dtype, device) for x in "kv")
    shift, left, cap = kv_len - q_len, cell.window, cell.softcap
    shown = torch.from_numpy(cell.visible(0)).to(device) if cell.mask == "visible" else None
    slopes = None if cell.slopes is None else torch.from_numpy(cell.slopes[0].copy()).to(device)

    def visible(_batch: Any, _head: Any, row: Any, key: Any) -> Any:
        if shown is not None:
            return shown[row, key]
        return (key <= row + shift) & (key >= row + shift - left) if cell.mask == "causal_window" else key <= row + shift

    def change(score: Any, _batch: Any, head: Any, row: Any, key: Any) -> Any:
        if cap:
            score = torch.tanh(score / cap) * cap
        return score if slopes is None else score - slopes[head] * (row + shift - key).abs()

    mask = None if cell.mask == "full" else create_block_mask(visible, None, None, q_len, kv_len, device=device)
    changes = change if cap or slopes is not None else None
    compiled = torch.compile(flex_attention, dynamic=False)
    options = dict(score_mod=changes, block_mask=mask, scale=cell.scale, enable_gqa=cell.group > 1)
    if cell.sinks is None:
        return lambda: compiled(q, k, v, **options)
    sinks = torch.from_numpy(cell.sinks.copy()).to(device).reshape(1, -1, 1)

    def with_sinks() -> Any:
        """A sink takes its part of each row's weight."""
        o, lse = compiled(q, k, v, return_lse=True, **options)
        return (o.float() * torch.sigmoid(lse - sinks)[..., None]).to(o.dtype)

    return with_sinks


def profiled(run: Callable[[], Any]) -> tuple[Any, str]:
    """(result, generated kernels) of a call, by torch.profiler."""
    with torch.profiler.profile() as prof:
        result = run()
    found = [x.name for x in prof.events() if GENERATED.search(x.name) and not x.name.startswith("aten::")]
    # numbers of graphs count what was compiled before, and say nothing of the kernel
    return result, "+".join(dict.fromkeys(re.sub(r"_?\d+(?=_|$)", "", x) for x in found))


class Engine:
    name, mode = "flex", "compiled"

    def __init__(self, options: Any) -> None:
        self.device = options.device or "cpu"
        need_device(self.device)
        import torch._inductor.config as config

        config.cpp.enable_kernel_profile = True  # otherwise its kernels have no events
        torch.set_num_threads(host.threads(options.threads))
        self.versions = {"torch": torch.__version__, **host.versions("triton")}
        self.host = {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}

    def serve(self, cell: Cell) -> Answer:
        torch._dynamo.reset()
        run = together([call(part, self.device) for part in cell.parts()])
        run()  # compiles
        peak = temporary(run, self.device)
        _, kernel, fused, reasons = seen(run)  # eager flex_attention is one that hooks see
        result, generated = profiled(run)
        time_ns = measure.median_ns(run, cell.time_ns)
        output = np.concatenate([elements(x.transpose(1, 2)).reshape(-1, cell.q_heads, cell.head_dim_v) for x in result])
        if kernel:
            return Answer(output, kernel, "dispatcher", fused, tuple(reasons), peak, time_ns)
        return Answer(output, generated, "profiler", "yes" if generated else "unknown", (), peak, time_ns)


def variant(cell: Cell) -> Variant:
    """For `make peers`: it skips what a window hides."""
    run = call(cell, "cpu")
    result: list[Any] = []
    return Variant("flex_attention", lambda: result.__setitem__(slice(None), [run()]), lambda: cell.unpad(result[0].transpose(1, 2).float().numpy()))
