# SPDX-License-Identifier: Apache-2.0
"""Why no fused kernel of PyTorch served a call: the rule that its arguments break. PyTorch gives its reasons only when asked
with a process-wide switch, which would reroute other threads; so the rules stand here, and a test holds each against PyTorch
itself (CPU). Those of CUDA are read from its sources and were not run here."""
from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch


class Rule(NamedTuple):
    code: str
    broken: Callable[[Any], bool]  # by a Read of .ops
    text: Callable[[Any], str]


def _named(r: Any) -> tuple[Any, ...]:
    return (("query", r.q), ("key", r.k), ("value", r.v))


def _strided(r: Any) -> list[str]:
    return [f"{name} {x.stride(-1)}" for name, x in _named(r) if not x.is_nested and x.dim() and x.stride(-1) != 1]


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CPU = (
    Rule("switch", lambda r: not torch.backends.cuda.flash_sdp_enabled(),
         lambda r: "flash is switched off (sdpa_kernel or enable_flash_sdp; the switch is of all devices)"),
    Rule("nested", lambda r: r.q.is_nested, lambda r: "tensors are nested"),
    Rule("dtype", lambda r: r.q.dtype not in FLOATS, lambda r: f"dtype is {r.q.dtype}: it must be a float of 16 to 64 bits"),
    Rule("dropout", lambda r: r.dropout_p > 0, lambda r: f"dropout_p is {r.dropout_p:g}: it must be 0"),
    Rule("dims", lambda r: not r.q.is_nested and r.q.dim() not in (3, 4),
         lambda r: f"query has {r.q.dim()} dimensions: it must have 3 or 4"),
    Rule("head_dim_v", lambda r: r.q_size[-1] != r.head_dim_v,
         lambda r: f"head dim of value is {r.head_dim_v} and of query {r.q_size[-1]}: they must be equal"),
    Rule("batch", lambda r: not r.q.is_nested and r.q.dim() == 4 and r.q.shape[0] != r.k.shape[0],
         lambda r: f"batch of query is {r.q_size[0]} and of key {r.k_size[0]}: they must be equal"),
    Rule("mask_grad", lambda r: r.mask is not None and r.mask.requires_grad, lambda r: "the mask requires a gradient"),
    Rule("mask_dims", lambda r: r.mask is not None and r.mask.dim() not in (2, 4),
         lambda r: f"the mask has {r.mask.dim()} dimensions: it must have 2 or 4"),
    Rule("stride", lambda r: bool(_strided(r)), lambda r: f"stride of the last dimension is not 1: {', '.join(_strided(r))}"),
)  # fmt: skip


def _capability() -> tuple[Any, ...]:
    found: tuple[Any, ...] = torch.cuda.get_device_capability()
    return found


def _aligned(r: Any) -> int:
    return 4 if r.q.dtype == torch.float32 else 8


def _all_cuda_off(r: Any) -> bool:
    cuda = torch.backends.cuda
    return not (cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled())


# not run here: read in PyTorch's sources. A call that takes math has been refused by flash, efficient and cuDNN.
CUDA = (
    Rule("switch", _all_cuda_off, lambda r: "flash, efficient and cuDNN are switched off (sdpa_kernel)"),
    Rule("dtype", lambda r: r.q.dtype not in FLOATS[1:], lambda r: f"dtype is {r.q.dtype}: it must be float32, float16 or bfloat16"),
    Rule("head_dim_v", lambda r: r.q_size[-1] != r.head_dim_v,
         lambda r: f"head dim of value is {r.head_dim_v} and of query {r.q_size[-1]}: flash needs equal ones"),
    Rule("head_dim", lambda r: r.q_size[-1] > 256, lambda r: f"head dim is {r.q_size[-1]}: flash goes up to 256"),
    Rule("head_dim_align", lambda r: r.q_size[-1] % _aligned(r) != 0,
         lambda r: f"head dim is {r.q_size[-1]}: efficient needs a multiple of {_aligned(r)}"),
    Rule("mask", lambda r: r.mask is not None, lambda r: "there is a mask: flash takes none"),
    Rule("mask_grad", lambda r: r.mask is not None and r.mask.requires_grad, lambda r: "the mask requires a gradient"),
    Rule("stride", lambda r: bool(_strided(r)), lambda r: f"stride of the last dimension is not 1: {', '.join(_strided(r))}"),
    Rule("capability", lambda r: _capability() < (8, 0), lambda r: f"compute capability is {_capability()}: flash needs 8.0"),
)  # fmt: skip

# For kernels that no rule of arguments explains: the call itself is the reason.
OF_KERNEL = {
    "eager": ("eager", "the model multiplies, takes a softmax and multiplies by itself: attn_implementation is eager, or its code has no other"),
    "native_mha": ("fast_path", "the fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer is unfused on the CPU"),
    "flex_eager": ("not_compiled", "flex_attention is fused only under torch.compile"),
    "compiled_math": ("decomposed", "the compiled graph multiplies, takes a generated softmax and multiplies"),
}


def broken(kernel: str, read: Any) -> list[tuple[str, str]]:
    """(code, text) of every rule that a call broke which an unfused kernel served."""
    if kernel in OF_KERNEL:
        return [OF_KERNEL[kernel]]
    rules = CUDA if read.q.is_cuda else CPU
    found = [(rule.code, rule.text(read)) for rule in rules if rule.broken(read)]
    return found or [("not_known", "no rule of this table is broken: math was called by name, or this PyTorch has another rule")]
