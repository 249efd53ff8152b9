# SPDX-License-Identifier: Apache-2.0
"""PyTorch's custom ops: gradients and torch.compile."""
from __future__ import annotations

import threading
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from . import _core
from ._api import _max_threads, _with_receipt
from ._reports import Receipt
from ._sdpa import _check, _to_four
from ._torch_log import note_receipt


class _Own(threading.local):
    """Of this thread alone."""

    receipt: Optional[Receipt] = None  # of the op that ran last


_own = _Own()


def _note(result: tuple[Any, ...]) -> tuple[Any, ...]:
    *tensors, _own.receipt = _with_receipt(result)
    note_receipt(_own.receipt)
    return tuple(tensors)


def _window(left: int, right: int) -> tuple[Any, ...]:
    return (None if left < 0 else left, None if right < 0 else right)


def _tags_text(tags: tuple[Any, ...]) -> str:
    """Model, layer and request as one text, which an op takes."""
    return "\0".join("" if x is None else f"={x}" for x in tags)


def _tags_of(text: str) -> tuple[Any, ...]:
    model, layer, request = (x[1:] if x else None for x in text.split("\0"))
    return model, None if layer is None else int(layer), request


_OF_CODES = ("k_scales", "v_scales", "kv_loss")  # behind the formats, as tensors: a number in a graph may be one that changes


def _codes_of(formats: str, k_scales: Any, v_scales: Any, kv_loss: Any) -> tuple[Any, ...]:
    k, v = (None if x == "-" else x for x in formats.split())
    return k, v, k_scales, v_scales, None if kv_loss is None else float(kv_loss)


def _by_position(
    q: Tensor, k: Tensor, v: Optional[Tensor], bias: Optional[Tensor], mask: Any, alibi_slopes: Optional[Tensor],
    sinks: Optional[Tensor], q_lens: Any, kv_lens: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, seed: Optional[Tensor],
    arrays: Any, names: str, mask_tree: Optional[str], start: int, stop: int, causal: bool, causal_align: str, left: int,
    right: int, scale: Optional[float], softcap: float, beta: float, length: int, offset: int, indices_sorted: bool,
    invariant: bool, layout: str, fallback: str, kernel: Optional[str], strategy: Optional[str], disable: Optional[str], threads: Optional[int], dropout_p: float,
    p_dtype: Optional[str], tags: str, formats: str,
) -> tuple[Any, ...]:  # fmt: skip
    """The ops' arguments as the extension takes them."""
    q, k, v, bias, alibi_slopes, sinks = (None if x is None else x.detach() for x in (q, k, v, bias, alibi_slopes, sinks))
    given = dict(zip(names.split(), arrays))
    codes = _codes_of(formats, *(given.pop(name, None) for name in _OF_CODES)) if formats else None
    seeds = (0, 0) if seed is None else (*seed.tolist(), 0)[:2]
    return (
        q, k, v, None if stop < 0 else (start, stop), codes, causal, causal_align, _window(left, right), scale, softcap,
        None if length < 0 else (beta, length, offset), mask, mask_tree, bias, alibi_slopes, sinks, q_lens,
        kv_lens, cu_seqlens_q, cu_seqlens_k, tuple(map(given.get, _core.arrays)) if given else None, indices_sorted, invariant, layout, None, True, True, fallback,
        kernel, strategy, disable, threads, p_dtype, dropout_p, *seeds, _tags_of(tags) if tags else None, _max_threads(q),
    )  # fmt: skip


@torch.library.custom_op("tileproof::attention", mutates_args=())  # type: ignore[untyped-decorator]  # PyTorch's
def _forward(
    q: Tensor, k: Tensor, v: Optional[Tensor], bias: Optional[Tensor], mask: Optional[Tensor], alibi_slopes: Optional[Tensor],
    sinks: Optional[Tensor], q_lens: Optional[Tensor], kv_lens: Optional[Tensor], cu_seqlens_q: Optional[Tensor],
    cu_seqlens_k: Optional[Tensor], seed: Optional[Tensor], arrays: List[Tensor], names: str, mask_tree: Optional[str],
    start: int, stop: int, causal: bool, causal_align: str, left: int, right: int, scale: Optional[float], softcap: float,
    beta: float, length: int, offset: int, indices_sorted: bool, invariant: bool, layout: str, fallback: str, kernel: Optional[str],
    strategy: Optional[str], disable: Optional[str], threads: Optional[int], dropout_p: float, p_dtype: Optional[str], tags: str, formats: str,
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = _note(
        _core.attention(
            *_by_position(
                q, k, v, bias, mask, alibi_slopes, sinks, q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k, seed, arrays, names, mask_tree,
                start, stop, causal, causal_align, left, right, scale, softcap, beta, length, offset, indices_sorted, invariant, layout, fallback,
                kernel, strategy, disable, threads, dropout_p, p_dtype, tags, formats,
            )
        )
    )  # fmt: skip
    return out, lse


def _lse_shape(q: Tensor, layout: str) -> tuple[Any, ...]:
    if layout == "thd":
        return q.shape[1], q.shape[0]
    return q.shape[0], *(q.shape[1:3] if layout == "bhsd" else q.shape[2:0:-1])


_WIDTH = {"i4/group": lambda x: 2 * x, "i8/q8_0": lambda x: x // 34 * 32}  # elements of a row of so many bytes


def _elements(formats: str, width: int) -> int:
    """Of a row of v that is so wide."""
    word = formats.split()[-1] if formats else "-"
    name = "plain" if word == "-" else _core.cache_format("kv_format", word).split(":")[-1]
    return _WIDTH[name](width) if name in _WIDTH else width


@_forward.register_fake  # type: ignore[untyped-decorator]  # PyTorch's
def _(q: Tensor, k: Tensor, v: Optional[Tensor], *rest: Any) -> Any:
    start, stop, layout = rest[12], rest[13], rest[25]
    width = stop - start if v is None else _elements(rest[-1], v.shape[-1])
    return q.new_empty((*q.shape[:-1], width)), q.new_empty(_lse_shape(q, layout), dtype=torch.float32)


@torch.library.custom_op("tileproof::attention_backward", mutates_args=())  # type: ignore[untyped-decorator]  # PyTorch's
def _backward(
    d_out: Tensor, d_lse: Optional[Tensor], out: Tensor, lse: Tensor, wanted: List[bool], q: Tensor, k: Tensor, v: Optional[Tensor],
    bias: Optional[Tensor], mask: Optional[Tensor], alibi_slopes: Optional[Tensor], sinks: Optional[Tensor],
    q_lens: Optional[Tensor], kv_lens: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor],
    seed: Optional[Tensor], arrays: List[Tensor], names: str, mask_tree: Optional[str], start: int, stop: int, causal: bool,
    causal_align: str, left: int, right: int, scale: Optional[float], softcap: float, beta: float, length: int, offset: int, indices_sorted: bool,
    invariant: bool, layout: str, fallback: str, kernel: Optional[str], strategy: Optional[str], disable: Optional[str], threads: Optional[int], dropout_p: float,
    p_dtype: Optional[str], tags: str, formats: str,
) -> List[Tensor]:  # fmt: skip
    d_out, d_lse, out, lse = (None if x is None else x.detach() for x in (d_out, d_lse, out, lse))
    made = _note(
        _core.backward(
            *_by_position(
                q, k, v, bias, mask, alibi_slopes, sinks, q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k, seed, arrays, names, mask_tree,
                start, stop, causal, causal_align, left, right, scale, softcap, beta, length, offset, indices_sorted, invariant, layout, fallback,
                kernel, strategy, disable, threads, dropout_p, p_dtype, tags, formats,
            ), out, lse, d_out, d_lse, tuple(wanted),
        )
    )  # fmt: skip
    given = (q, k, v, bias, alibi_slopes, sinks)
    return [g.to(x.dtype) for g, x, want in zip(made, given, wanted) if want]


@_backward.register_fake  # type: ignore[untyped-decorator]  # PyTorch's
def _(
    d_out: Optional[Tensor], d_lse: Optional[Tensor], out: Tensor, lse: Tensor, wanted: list[bool], q: Tensor, k: Tensor,
    v: Optional[Tensor], bias: Optional[Tensor], mask: Any, alibi_slopes: Optional[Tensor], sinks: Optional[Tensor], *rest: Any,
) -> Any:  # fmt: skip
    given = (q, k, v, bias, alibi_slopes, sinks)
    return [x.new_empty(x.shape) for x, want in zip(given, wanted) if want]


DIFFERENTIABLE = (0, 1, 2, 3, 5, 6)  # q, k, v, bias, alibi_slopes, sinks among the arguments
TENSORS = 12  # then a list of arrays, then what is no tensor


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    """What backward needs: the arguments as they came, out and lse. No score, no probability."""
    ctx.save_for_backward(*inputs[:TENSORS], *inputs[TENSORS], *output)
    ctx.rest = inputs[TENSORS + 1 :]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> tuple[Any, ...]:
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


def _arguments(
    q: Tensor, k: Tensor, v: Optional[Tensor], *, latent: Optional[tuple[int, int]] = None, codes: Any = None, causal: bool = False,
    causal_align: str = "bottom_right", window: Any = None, scale: Optional[float] = None, softcap: float = 0.0,
    q_scale: Any = None, mask: Any = None, mask_tree: Optional[str] = None, bias: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None, sinks: Optional[Tensor] = None, q_lens: Any = None, kv_lens: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, arrays: Any = None, indices_sorted: bool = False,
    invariant: bool = False, layout: str = "bshd", fallback: str = "refuse", kernel: Optional[str] = None,
    strategy: Optional[str] = None, disable: Optional[str] = None, threads: Optional[int] = None, dropout_p: float = 0.0, seed: Optional[Tensor] = None, p_dtype: Optional[str] = None,
    tags: Optional[tuple[Any, ...]] = None,
) -> tuple[Any, ...]:  # fmt: skip
    """What the op takes, from the words of tileproof.attention."""
    if q.device.type == "meta":  # with its gradient as without: the op would give a meta tensor
        raise ValueError("q cannot be read: it must be a dense tensor on the CPU (it is on meta; FakeTensorMode gives shapes)")
    left, right = (-1 if x is None else int(x) for x in window or (None, None))
    mask, q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k = (
        x if x is None or isinstance(x, Tensor) else torch.as_tensor(x) for x in (mask, q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k)
    )
    named_arrays = {**dict(zip(_core.arrays, arrays or ())), **dict(zip(_OF_CODES, codes[2:] if codes else ()))}
    given = {
        name: torch.as_tensor(x, dtype=torch.float64) if name == "kv_loss" else torch.as_tensor(x) for name, x in named_arrays.items() if x is not None
    }  # fmt: skip
    named = dict(k=k, v=v, mask=mask, bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, q_lens=q_lens, kv_lens=kv_lens)
    for name, x in {**named, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, **given}.items():
        if x is not None and x.device != q.device:  # the op would give what a meta tensor gives: nothing
            raise ValueError(f"{name} is on {x.device} and q on {q.device}: all tensors must be on one device, the CPU")
    if q_scale is not None and len(q_scale) != 3:
        raise ValueError(f"q_scale is {q_scale!r}: it must be None or a tuple (beta, length, offset)")
    return (
        q, k, v, bias, mask, alibi_slopes, sinks, q_lens, kv_lens, cu_seqlens_q, cu_seqlens_k, seed,
        list(given.values()), " ".join(given), mask_tree, *(latent or (0, -1)), causal, causal_align, left,
        right, scale, softcap, *(q_scale or (0.0, -1, 0)), indices_sorted, invariant, layout, fallback, kernel, strategy, disable, threads, dropout_p, p_dtype,
        _tags_text(tags) if tags else "", " ".join(x or "-" for x in codes[:2]) if codes else "",
    )  # fmt: skip


def _call(q: Tensor, k: Tensor, v: Optional[Tensor], **options: Any) -> Any:
    return _forward(*_arguments(q, k, v, **options))


NO_GRADIENT = ("page_table", "indices", "latent", "invariant", "shared_with", "k_scales", "v_scales", "kv_format")  # what serves caches and decoding is not trained through


def _refuse_gradients(q: Tensor, k: Tensor, v: Optional[Tensor], options: dict[str, Any]) -> None:
    """The library has no gradient for these: said before the forward call, which would run."""
    named = {**dict(zip(_core.arrays, options.get("arrays") or ())), "latent": options.get("latent"), "invariant": options.get("invariant")}
    named.update(zip(("kv_format", "kv_format", "k_scales", "v_scales"), options.get("codes") or ()))
    given = [name for name in NO_GRADIENT if named.get(name) is not None and named[name] is not False]
    if not given:
        return
    needing = [name for name, x in dict(q=q, k=k, v=v, **options).items() if isinstance(x, Tensor) and x.requires_grad]
    if needing:
        raise ValueError(
            f"{given[0]} is given and {needing[0]} requires grad: no gradient goes through {given[0]}; call it under "
            f"torch.no_grad(), or detach() what requires grad"
        )


def _seed(seed: Any, offset: Any) -> Tensor:
    """Both as one tensor; whole numbers of 64 bits, with a sign or without."""
    wrapped = [x if isinstance(x, Tensor) else torch.tensor((int(x) + 2**63) % 2**64 - 2**63) for x in (seed, offset)]
    return torch.cat([x.reshape(1).to(torch.int64) for x in wrapped])


def differentiable(
    q: Tensor, k: Tensor, v: Tensor, *, out: Optional[Tensor] = None, return_lse: bool = False,
    return_receipt: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """tileproof.attention by way of a custom op: gradients flow to q, k, v, bias, alibi_slopes and sinks, and from lse
    too; torch.compile sees one node. What is kept for backward: q, k, v, out, lse and the arguments themselves."""
    if out is not None:
        raise ValueError("out is given where gradients flow or torch.compile traces: it must be None there")
    dropout_seed, dropout_offset = options.pop("dropout_seed", 0), options.pop("dropout_offset", 0)
    if options.get("dropout_p") and options.get("seed") is None:
        options["seed"] = _seed(dropout_seed, dropout_offset)
    if torch.is_grad_enabled():
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


def _sdpa_traced(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], dropout_p: float, is_causal: bool,
    scale: Optional[float], enable_gqa: bool, threads: Optional[int] = None, fallback: str = "permit",
) -> Any:  # fmt: skip
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
