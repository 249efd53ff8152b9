# SPDX-License-Identifier: Apache-2.0
"""PyTorch's custom ops: gradients and torch.compile."""
from __future__ import annotations

import threading
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from . import _core
from ._api import _most_threads, _with_receipt
from ._reports import Receipt
from ._sdpa import _check, _to_four
from ._torch_log import note_receipt


class _Own(threading.local):
    """Of this thread alone."""

    receipt: Optional[Receipt] = None  # of the op that ran last


_own = _Own()


def _note(result: tuple) -> tuple:
    *tensors, _own.receipt = _with_receipt(result)
    note_receipt(_own.receipt)
    return tuple(tensors)


def _window(left: int, right: int) -> tuple:
    return (None if left < 0 else left, None if right < 0 else right)


@torch.library.custom_op("tileproof::attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], mask: Optional[Tensor], alibi_slopes: Optional[Tensor],
    sinks: Optional[Tensor], q_lens: Optional[Tensor], kv_lens: Optional[Tensor], cu_seqlens_q: Optional[Tensor],
    cu_seqlens_k: Optional[Tensor], seed: Optional[Tensor], arrays: List[Optional[Tensor]], causal: bool, causal_align: str,
    left: int, right: int,
    scale: Optional[float], softcap: float, layout: str, fallback: str, kernel: Optional[str], threads: Optional[int],
    dropout_p: float, p_dtype: Optional[str],
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v, bias, alibi_slopes, sinks = (None if x is None else x.detach() for x in (q, k, v, bias, alibi_slopes, sinks))
    out, lse = _note(
        _core.attention(
            q, k, v, causal, causal_align, _window(left, right), scale, softcap, mask, bias, alibi_slopes, sinks, q_lens,
            kv_lens, cu_seqlens_q, cu_seqlens_k, tuple(arrays) or None, layout, None, True, True, fallback, kernel, threads,
            p_dtype, dropout_p, 0 if seed is None else int(seed), 0, _most_threads(q),
        )
    )  # fmt: skip
    return out, lse


def _lse_shape(q: Tensor, layout: str) -> tuple:
    return {"bshd": lambda b, s, h: (b, h, s), "bhsd": lambda b, h, s: (b, h, s), "thd": lambda t, h: (h, t)}[layout](
        *q.shape[:-1]
    )


@_forward.register_fake
def _(q, k, v, *rest):
    layout = rest[16]
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(_lse_shape(q, layout), dtype=torch.float32)


@torch.library.custom_op("tileproof::attention_backward", mutates_args=())
def _backward(
    d_out: Tensor, d_lse: Optional[Tensor], out: Tensor, lse: Tensor, wanted: List[bool], q: Tensor, k: Tensor, v: Tensor,
    bias: Optional[Tensor], mask: Optional[Tensor], alibi_slopes: Optional[Tensor], sinks: Optional[Tensor],
    q_lens: Optional[Tensor], kv_lens: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor],
    seed: Optional[Tensor], arrays: List[Optional[Tensor]], causal: bool, causal_align: str, left: int, right: int,
    scale: Optional[float], softcap: float, layout: str, fallback: str, kernel: Optional[str], threads: Optional[int], dropout_p: float, p_dtype: Optional[str],
) -> List[Tensor]:  # fmt: skip
    d_out, d_lse, out, lse, q, k, v, bias, alibi_slopes, sinks = (
        None if x is None else x.detach() for x in (d_out, d_lse, out, lse, q, k, v, bias, alibi_slopes, sinks)
    )
    made = _note(
        _core.backward(
            q, k, v, causal, causal_align, _window(left, right), scale, softcap, mask, bias, alibi_slopes, sinks, q_lens,
            kv_lens, cu_seqlens_q, cu_seqlens_k, tuple(arrays) or None, layout, None, False, True, fallback, kernel, threads,
            p_dtype, dropout_p, 0 if seed is None else int(seed), 0, _most_threads(q), out, lse, d_out, d_lse, tuple(wanted),
        )
    )  # fmt: skip
    given = (q, k, v, bias, alibi_slopes, sinks)
    return [g.to(x.dtype) for g, x, want in zip(made, given, wanted) if want]


@_backward.register_fake
def _(d_out, d_lse, out, lse, wanted, q, k, v, bias, mask, alibi_slopes, sinks, *rest):
    given = (q, k, v, bias, alibi_slopes, sinks)
    return [x.new_empty(x.shape) for x, want in zip(given, wanted) if want]


DIFFERENTIABLE = (0, 1, 2, 3, 5, 6)  # q, k, v, bias, alibi_slopes, sinks among the arguments
TENSORS = 12  # then a list of arrays, then what is no tensor


def _keep(ctx, inputs, output):
    """What backward needs: the arguments as they came, out and lse. No score, no probability."""
    ctx.save_for_backward(*inputs[:TENSORS], *inputs[TENSORS], *output)
    ctx.rest = inputs[TENSORS + 1 :]
    ctx.set_materialize_grads(False)


def _gradients(ctx, d_out, d_lse):
    *tensors, out, lse = ctx.saved_tensors
    arrays = tensors[TENSORS:]
    nothing = [*[None] * TENSORS, [None] * len(arrays), *[None] * len(ctx.rest)]
    if d_out is None and d_lse is None:
        return tuple(nothing)
    if d_out is None:
        d_out = torch.zeros_like(out)
    wanted = [tensors[i] is not None and ctx.needs_input_grad[i] for i in DIFFERENTIABLE]
    made = _backward(d_out, d_lse, out, lse, wanted, *tensors[:TENSORS], arrays, *ctx.rest)
    for at in (i for i, want in zip(DIFFERENTIABLE, wanted) if want):
        nothing[at] = made[0]
        made = made[1:]
    return tuple(nothing)


_forward.register_autograd(_gradients, setup_context=_keep)


def _call(
    q, k, v, *, causal=False, causal_align="bottom_right", window=None, scale=None, softcap=0.0, mask=None, bias=None,
    alibi_slopes=None, sinks=None, q_lens=None, kv_lens=None, cu_seqlens_q=None, cu_seqlens_k=None, arrays=None, layout="bshd",
    fallback="refuse", kernel=None, threads=None, dropout_p=0.0, seed=None, p_dtype=None,
):  # fmt: skip
    left, right = (-1 if x is None else int(x) for x in window or (None, None))
    return _forward(
        q, k, v, bias, mask, alibi_slopes, sinks, q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k, seed,
        [x if x is None else torch.as_tensor(x) for x in arrays or ()], causal, causal_align, left, right, scale, softcap, layout, fallback, kernel, threads, dropout_p, p_dtype,
    )  # fmt: skip


NO_GRADIENT = ("page_table",)  # the library has none: what serves caches and decoding is not trained through


def _refuse_gradients(q, k, v, options):
    given = [name for name, x in zip(_core.arrays, options["arrays"]) if x is not None and name in NO_GRADIENT]
    needing = [name for name, x in dict(q=q, k=k, v=v, **options).items() if getattr(x, "requires_grad", False)]
    if given and needing:
        raise ValueError(
            f"{given[0]} is given and {needing[0]} requires grad: no gradient goes through {given[0]}; call it under "
            f"torch.no_grad(), or detach() what requires grad"
        )


def differentiable(
    q: Tensor, k: Tensor, v: Tensor, *, out: Optional[Tensor] = None, return_lse: bool = False,
    return_receipt: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """tileproof.attention by way of a custom op: gradients flow to q, k, v, bias, alibi_slopes and sinks, and from lse
    too; torch.compile sees one node. What is kept for backward: q, k, v, out, lse and the arguments themselves."""
    if out is not None:
        raise ValueError("out is given where gradients flow or torch.compile traces: it must be None there")
    if options["arrays"] is not None and torch.is_grad_enabled():
        _refuse_gradients(q, k, v, options)
    if not return_receipt:
        result, lse = _call(q, k, v, **options)
        return (result, lse) if return_lse else result
    if torch.compiler.is_compiling():
        raise ValueError("return_receipt is True while torch.compile traces: use tileproof.torch.log() around the calls")
    _own.receipt = None
    result, lse = _call(q, k, v, **options)
    receipt = _own.receipt
    if receipt is None:
        raise ValueError("return_receipt is True where nothing ran (FakeTensorMode, meta tensors): it must be False there")
    return (result, lse, receipt) if return_lse else (result, receipt)


def _sdpa_traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, threads=None, fallback="permit"):
    """scaled_dot_product_attention by way of the custom op."""
    plain = _check(query, key, value, attn_mask, is_causal, enable_gqa)
    shape = None
    if not plain:
        query, key, value, attn_mask, shape = _to_four(query, key, value, attn_mask, enable_gqa)
    boolean = attn_mask is not None and attn_mask.dtype == torch.bool
    out, _ = _call(
        query, key, value, causal=is_causal, causal_align="top_left", scale=scale, mask=attn_mask if boolean else None,
        bias=None if boolean else attn_mask, layout="bhsd", fallback=fallback, dropout_p=dropout_p, threads=threads,
        p_dtype="bfloat16" if query.dtype == torch.bfloat16 else None, seed=torch.randint(2**63 - 1, (1,)) if dropout_p > 0 else None,
    )  # fmt: skip
    return out if shape is None else out.reshape(shape)
