# SPDX-License-Identifier: Apache-2.0
"""Attention in a trace that torch.profiler wrote (export_chrome_trace): ops of the dispatcher, and CUDA kernels by their names.
It sees what hooks cannot: replays of CUDA graphs and generated kernels. Names are of PyTorch 2.15, flash_attn 2 to 4, cuDNN
and vLLM; CUDA traces were not made here, the tests read ones that were written by hand."""
from __future__ import annotations

import collections
import gzip
import json
import re
import sys
from typing import Any, Optional

from ..engines.host import CUDA_NOT_RUN
from .ops import OPS

OP_KERNELS = {f"aten::{x.name}": f"{x.kernel} backward" if x.backward else x.kernel for x in OPS}
CUDA_NAMES = tuple(
    (re.compile(pattern), kernel)
    for pattern, kernel in (
        (r"pytorch_flash::flash_bwd|flash::flash_bwd|FlashAttnBwd", "flash backward"),
        (r"flash_fwd_splitkv_combine|FlashAttnFwdCombine", ""),  # a part of the call that another kernel stands for
        (r"pytorch_flash::flash_fwd", "flash"),
        (r"kernel_cutlass_kernel_flash_attncute\w*flash_fwd|FlashAttentionForwardSm\d+", "flash_attn_4"),
        (r"FlashAttnFwdSm90|flash::enable_sm90", "flash_attn_3"),
        (r"\bflash::flash_fwd", "flash_attn_2"),
        (r"fmha_cutlassF_", "efficient"),
        (r"fmha_cutlassB_", "efficient backward"),
        (r"cudnn_generated_\w*sdpa\w*bprop", "cudnn backward"),
        (r"cudnn_generated_\w*sdpa", "cudnn"),
        (r"triton_tem_\w*flex_attention\w*backward", "flex backward"),
        (r"triton_tem_\w*flex_attention", "flex"),
        (r"kernel_unified_attention", "vllm_triton"),
        (r"softmax_warp_forward|cunn_SoftMaxForward|triton_\w*softmax", "softmax (unfused, where products stand around it)"),
    )
)


def kernel_of(name: str) -> Optional[str]:
    """The attention kernel that a CUDA kernel's name says; '': a part of one; None: something else."""
    return next((kernel for pattern, kernel in CUDA_NAMES if pattern.search(name)), None)


class ProfileError(ValueError):
    """A file that is no profile; the text says what it must be."""


def counts(path: str) -> dict[str, collections.Counter[str]]:
    """{"ops": by kernel, "cuda": by kernel} of a trace."""
    try:
        with (gzip.open(path, "rt") if path.endswith(".gz") else open(path)) as file:
            trace: Any = json.load(file)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ProfileError(f"{path}: no JSON: {error}") from None
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise ProfileError(f"{path}: no traceEvents: it must be what torch.profiler's export_chrome_trace writes")
    found: dict[str, collections.Counter[str]] = {"ops": collections.Counter(), "cuda": collections.Counter()}
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        name = str(event.get("name", ""))
        if event.get("cat") == "kernel":
            kernel = kernel_of(name)
            if kernel:
                found["cuda"][kernel] += 1
        elif name in OP_KERNELS:
            found["ops"][OP_KERNELS[name]] += 1
    return found


def main(path: str) -> int:
    try:
        found = counts(path)
    except ProfileError as error:
        print(f"tileproof watch: {error}", file=sys.stderr)
        return 2
    for kind, title in (("ops", "ops of the dispatcher"), ("cuda", "CUDA kernels, by name")):
        print(title + (":" if found[kind] else ": none"))
        for kernel, n in found[kind].most_common():
            print(f"{n:>9}  {kernel}")
    if found["cuda"]:
        print(CUDA_NOT_RUN)
    return 0
