# SPDX-License-Identifier: Apache-2.0
"""PyTorch: gradients, torch.compile, and patch(), which routes PyTorch's own scaled_dot_product_attention here.

Calls that need neither gradients nor tracing never come this way; they go straight to the extension.
"""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from . import _core
from ._api import _with_receipt
from ._papers import Receipt
from ._sdpa import _attend, _check, _to_four

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Log:
    """What ran while it was open: `receipts`, oldest first, and `passed`, the reason of each call that was left to
    PyTorch. Of more than `limit` the older half goes, and `forgotten` counts it."""

    def __init__(self, limit: int = 10000) -> None:
        self.receipts: list[Receipt] = []
        self.passed: list[str] = []
        self.limit, self.forgotten = limit, 0

    def _add(self, to: list, entry: Any) -> None:
        if len(to) >= self.limit:
            gone = (len(to) + 1) // 2
            self.forgotten += gone
            del to[:gone]
        to.append(entry)

    def __repr__(self) -> str:
        kernels: dict[str, int] = {}
        for x in self.receipts:
            kernels[x.kernel] = kernels.get(x.kernel, 0) + 1
        ran = ", ".join(f"{n} on {name}" for name, n in kernels.items()) or "none"
        return f"<tileproof.torch.Log: {ran}; {len(self.passed)} left to PyTorch>"


_logs: list[Log] = []  # open ones; backward runs in threads of autograd's, so they are the process's


def _note(result: tuple) -> tuple:
    *tensors, paper = _with_receipt(result)
    for x in _logs:
        x._add(x.receipts, paper)
    return tuple(tensors)


def _window(left: int, right: int) -> tuple:
    return (None if left < 0 else left, None if right < 0 else right)


@torch.library.custom_op("tileproof::attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], mask: Optional[Tensor], alibi_slopes: Optional[Tensor],
    sinks: Optional[Tensor], q_lens: Optional[Tensor], kv_lens: Optional[Tensor], cu_seqlens_q: Optional[Tensor],
    cu_seqlens_k: Optional[Tensor], seed: Optional[Tensor], causal: bool, causal_align: str, left: int, right: int,
    scale: Optional[float], softcap: float, layout: str, fallback: str, kernel: Optional[str], threads: Optional[int],
    dropout_p: float,
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v, bias, alibi_slopes, sinks = (None if x is None else x.detach() for x in (q, k, v, bias, alibi_slopes, sinks))
    out, lse = _note(
        _core.attention(
            q, k, v, causal, causal_align, _window(left, right), scale, softcap, mask, bias, alibi_slopes, sinks, q_lens,
            kv_lens, cu_seqlens_q, cu_seqlens_k, layout, None, True, True, fallback, kernel, threads, dropout_p,
            0 if seed is None else int(seed), 0,
        )
    )  # fmt: skip
    return out, lse


def _lse_shape(q: Tensor, layout: str) -> tuple:
    return {"bshd": lambda b, s, h: (b, h, s), "bhsd": lambda b, h, s: (b, h, s), "thd": lambda t, h: (h, t)}[layout](
        *q.shape[:-1]
    )


@_forward.register_fake
def _(q, k, v, *rest):
    layout = rest[15]
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(_lse_shape(q, layout), dtype=torch.float32)


@torch.library.custom_op("tileproof::attention_backward", mutates_args=())
def _backward(
    d_out: Tensor, d_lse: Optional[Tensor], out: Tensor, lse: Tensor, wanted: List[bool], q: Tensor, k: Tensor, v: Tensor,
    bias: Optional[Tensor], mask: Optional[Tensor], alibi_slopes: Optional[Tensor], sinks: Optional[Tensor],
    q_lens: Optional[Tensor], kv_lens: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor],
    seed: Optional[Tensor], causal: bool, causal_align: str, left: int, right: int, scale: Optional[float], softcap: float,
    layout: str, fallback: str, kernel: Optional[str], threads: Optional[int], dropout_p: float,
) -> List[Tensor]:  # fmt: skip
    d_out, d_lse, out, lse, q, k, v, bias, alibi_slopes, sinks = (
        None if x is None else x.detach() for x in (d_out, d_lse, out, lse, q, k, v, bias, alibi_slopes, sinks)
    )
    made = _note(
        _core.backward(
            q, k, v, causal, causal_align, _window(left, right), scale, softcap, mask, bias, alibi_slopes, sinks, q_lens,
            kv_lens, cu_seqlens_q, cu_seqlens_k, layout, None, False, True, fallback, kernel, threads, dropout_p,
            0 if seed is None else int(seed), 0, out, lse, d_out, d_lse, tuple(wanted),
        )
    )  # fmt: skip
    given = (q, k, v, bias, alibi_slopes, sinks)
    return [g.to(x.dtype) for g, x, want in zip(made, given, wanted) if want]


@_backward.register_fake
def _(d_out, d_lse, out, lse, wanted, q, k, v, bias, mask, alibi_slopes, sinks, *rest):
    given = (q, k, v, bias, alibi_slopes, sinks)
    return [x.new_empty(x.shape) for x, want in zip(given, wanted) if want]


DIFFERENTIABLE = (0, 1, 2, 3, 5, 6)  # q, k, v, bias, alibi_slopes, sinks among the arguments
TENSORS = 12


def _keep(ctx, inputs, output):
    """What backward needs: the arguments as they came, out and lse. No score, no probability."""
    ctx.save_for_backward(*inputs[:TENSORS], *output)
    ctx.rest = inputs[TENSORS:]
    ctx.set_materialize_grads(False)


def _gradients(ctx, d_out, d_lse):
    *tensors, out, lse = ctx.saved_tensors
    nothing = [None] * (TENSORS + len(ctx.rest))
    if d_out is None and d_lse is None:
        return tuple(nothing)
    if d_out is None:
        d_out = torch.zeros_like(out)
    wanted = [tensors[i] is not None and ctx.needs_input_grad[i] for i in DIFFERENTIABLE]
    made = _backward(d_out, d_lse, out, lse, wanted, *tensors, *ctx.rest)
    for at in (i for i, want in zip(DIFFERENTIABLE, wanted) if want):
        nothing[at] = made[0]
        made = made[1:]
    return tuple(nothing)


_forward.register_autograd(_gradients, setup_context=_keep)


def _call(
    q, k, v, *, causal=False, causal_align="bottom_right", window=None, scale=None, softcap=0.0, mask=None, bias=None,
    alibi_slopes=None, sinks=None, q_lens=None, kv_lens=None, cu_seqlens_q=None, cu_seqlens_k=None, layout="bshd",
    fallback="refuse", kernel=None, threads=None, dropout_p=0.0, seed=None,
):  # fmt: skip
    left, right = (-1 if x is None else int(x) for x in window or (None, None))
    return _forward(
        q, k, v, bias, mask, alibi_slopes, sinks, q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k, seed, causal, causal_align,
        left, right, scale, softcap, layout, fallback, kernel, threads, dropout_p,
    )  # fmt: skip


def differentiable(
    q: Tensor, k: Tensor, v: Tensor, *, out: Optional[Tensor] = None, return_lse: bool = False,
    return_receipt: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """tileproof.attention by way of a custom op: gradients flow to q, k, v, bias, alibi_slopes and sinks, and from lse
    too; torch.compile sees one node. What is kept for backward: q, k, v, out, lse and the arguments themselves."""
    if out is not None:
        raise ValueError("out is given where gradients flow or torch.compile traces: it must be None there")
    if not return_receipt:
        result, lse = _call(q, k, v, **options)
        return (result, lse) if return_lse else result
    if torch.compiler.is_compiling():
        raise ValueError("return_receipt is True while torch.compile traces: use tileproof.torch.log() around the calls")
    with log() as seen:
        result, lse = _call(q, k, v, **options)
    return (result, lse, seen.receipts[-1]) if return_lse else (result, seen.receipts[-1])


def _sdpa_traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """scaled_dot_product_attention by way of the custom op."""
    plain = _check(query, key, value, attn_mask, is_causal, enable_gqa)
    shape = None
    if not plain:
        query, key, value, attn_mask, shape = _to_four(query, key, value, attn_mask, enable_gqa)
    boolean = attn_mask is not None and attn_mask.dtype == torch.bool
    out, _ = _call(
        query, key, value, causal=is_causal, causal_align="top_left", scale=scale, mask=attn_mask if boolean else None,
        bias=None if boolean else attn_mask, layout="bhsd", fallback="permit", dropout_p=dropout_p,
        seed=torch.randint(2**63 - 1, (1,)) if dropout_p > 0 else None,
    )  # fmt: skip
    return out if shape is None else out.reshape(shape)


@contextlib.contextmanager
def log(limit: int = 10000) -> Iterator[Log]:
    """Collects the receipts of all calls that need gradients or are compiled, and of patched ones, while it is open."""
    made = Log(limit)
    _logs.append(made)
    try:
        yield made
    finally:
        _logs.remove(made)


def _not_ours(query, key, value, attn_mask) -> Optional[str]:
    """Why a call is left to PyTorch; None: it is ours."""
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on, which chooses dtypes by PyTorch's own rules"
    for name, x in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if x is None and name == "attn_mask":
            continue
        if not isinstance(x, Tensor):
            return f"{name} is a {type(x).__name__}, no Tensor"
        if x.device.type != "cpu":
            return f"{name} is on {x.device}, not on the CPU"
        if x.layout != torch.strided or x.is_nested:
            return f"{name} has layout {x.layout}{' and is nested' if x.is_nested else ''}, not torch.strided"
        if x.requires_grad and torch.is_grad_enabled() and x.shape[-1:] > (576,) and name != "attn_mask":
            return f"{name} has head dim {x.shape[-1]} and needs a gradient: that goes up to 576"
        if x.dtype not in DTYPES and not (name == "attn_mask" and x.dtype == torch.bool):
            return f"{name} is {x.dtype}, not float32, float16 or bfloat16"
    return None


def _patched(original):
    def scaled_dot_product_attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ):
        why = _not_ours(query, key, value, attn_mask)
        if why is None:
            if torch.compiler.is_compiling():
                return _sdpa_traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            try:
                return _eager(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            except (ValueError, TypeError, BufferError, RuntimeError) as refused:
                why = str(refused)
        for x in _logs:
            x._add(x.passed, why)
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    scaled_dot_product_attention.__wrapped__ = original
    return scaled_dot_product_attention


def _eager(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    given = (query, key, value, attn_mask)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        return _sdpa_traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    out, receipt = _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, bool(_logs))
    for x in _logs:
        x._add(x.receipts, receipt)
    return out


@contextlib.contextmanager
def patch(limit: int = 10000) -> Iterator[Log]:
    """While it is open, torch.nn.functional.scaled_dot_product_attention on CPU tensors of float32, float16 and bfloat16 is
    tileproof's. Other calls go to PyTorch as before, with the reason in `passed` of the Log that it gives.

    >>> import torch.nn.functional as F
    >>> x = torch.zeros(1, 2, 8, 16)
    >>> with patch() as seen:
    ...     _ = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    ...     _ = F.scaled_dot_product_attention(x.double(), x.double(), x.double())
    >>> seen.receipts[0].problem
    'prefill b1 h2/2 q8 k8 d16 f32 top-left causal'
    >>> seen.passed
    ['query is torch.float64, not float32, float16 or bfloat16']
    """
    functional = torch.nn.functional
    before = functional.scaled_dot_product_attention
    with log(limit) as seen:
        functional.scaled_dot_product_attention = _patched(before)
        try:
            yield seen
        finally:
            functional.scaled_dot_product_attention = before
