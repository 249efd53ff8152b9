# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention, by its meaning, for NumPy and PyTorch."""
from __future__ import annotations

import math
import sys
import warnings
from typing import Any, Optional

from . import _core
from ._reports import Receipt
from ._api import Array, _dtype_name, _max_threads, _needs_torch, _refuse_lost_gradient, _with_receipt


class FallbackWarning(UserWarning):
    """scaled_dot_product_attention was served by a slower path than this host's best."""


def _lead(x: Array) -> tuple[Any, ...]:
    return tuple(x.shape[:-2])


def _broadcast(lead: tuple[Any, ...], *others: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape all of them broadcast to, by the rules of NumPy and PyTorch."""
    made = list(lead)
    for other in others:
        made = [1] * (len(other) - len(made)) + made
        for i, n in enumerate(other, len(made) - len(other)):
            if n != made[i] and n != 1 and made[i] != 1:
                raise ValueError(f"leading dimensions {other} do not broadcast to {tuple(made)}")
            made[i] = n if made[i] == 1 else made[i]
    return tuple(made)


def _expand(x: Array, shape: tuple[Any, ...]) -> Array:
    if hasattr(x, "expand"):
        return x.expand(shape)
    import numpy

    return numpy.broadcast_to(x, shape)


def _to_four(query: Array, key: Array, value: Array, mask: Optional[Array], enable_gqa: bool) -> tuple[Any, ...]:
    """(batch, heads, rows, dim) for any leading dimensions, and what the output is shaped back to."""
    if enable_gqa and not query.ndim == key.ndim == value.ndim:
        raise ValueError(
            f"enable_gqa needs as many dimensions of query, key and value: {query.ndim}, {key.ndim} and {value.ndim}"
        )
    leads = [_lead(x) for x in (query, key, value)]
    if enable_gqa:  # heads may differ, what is before them broadcasts
        batch = _broadcast(*(x[:-1] for x in leads))
        leads = [batch + x[-1:] for x in leads]
    else:
        leads = [_broadcast(*leads)] * 3
    count = [math.prod(x[:-1]) for x in leads]
    heads = [x[-1] if x else 1 for x in leads]
    made = [
        _expand(x, (*lead, *x.shape[-2:])).reshape(n, h, *x.shape[-2:])
        for x, lead, n, h in zip((query, key, value), leads, count, heads)
    ]
    if mask is not None and (mask.ndim > 4 or (mask.ndim > 3 and leads[0][:-1] != (count[0],))):
        rows_keys = tuple(mask.shape[-2:])
        mask = _expand(mask, (*leads[0], *rows_keys)).reshape(count[0], heads[0], *rows_keys)
    return (*made, mask, (*leads[0], query.shape[-2], value.shape[-1]))


def _check(query: Array, key: Array, value: Array, attn_mask: Optional[Array], is_causal: bool, enable_gqa: bool) -> bool:
    """Is it plain: four dimensions that need no broadcasting? Raises for what PyTorch refuses."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not hasattr(x, "shape") or len(x.shape) < 2:
            raise ValueError(f"{name} must be a tensor of at least two dimensions: (..., tokens, head dim)")
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask and is_causal are both given: is_causal must be False with a mask")
    if len({_dtype_name(getattr(x, "dtype", "")) for x in (query, key, value)}) > 1:
        raise TypeError(f"query is {query.dtype}, key {key.dtype} and value {value.dtype}: they must have one dtype; tileproof.attention takes any mix")
    q, k, v = query.shape, key.shape, value.shape
    if not len(q) == len(k) == len(v) == 4:
        return False
    if k[1] != q[1] and not enable_gqa and 1 not in (q[1], k[1]):
        raise ValueError(f"query has {q[1]} heads and key {k[1]}: enable_gqa=True is needed for this")
    return q[0] == k[0] == v[0] and k[1] == v[1] and (q[1] == k[1] or enable_gqa)


def _seed(query: Array) -> int:
    """From the library's own generator, so that its seed makes calls repeat."""
    if hasattr(query, "requires_grad"):
        return int(sys.modules["torch"].randint(2**63 - 1, (1,)))
    import numpy

    return int(numpy.random.randint(2**63 - 1))


def _run(
    query: Array, key: Array, value: Array, mask: Optional[Array], bias: Optional[Array], dropout_p: float, is_causal: bool,
    scale: Optional[float], receipt: bool, threads: Optional[int], serve: bool,
) -> Any:  # fmt: skip
    def call(fallback: str) -> Any:
        return _core.attention(
            query, key, value, None, None, is_causal, "top_left", None, scale, 0.0, None, mask, None, bias, None, None, None, None,
            None, None, None, False, False, "bhsd", None, False, receipt, fallback, None, None, None, threads, p_dtype, dropout_p, seed, 0, None, _max_threads(query),
        )  # fmt: skip

    seed = _seed(query) if dropout_p > 0 else 0
    p_dtype = "bfloat16" if str(query.dtype).endswith("bfloat16") else None  # as PyTorch's own function rounds them
    try:
        return call("refuse")
    except _core.FallbackRefused as refused:
        if not serve:
            raise
        if not receipt:  # the receipt says it
            why = str(refused).removesuffix(_core.remedy)  # it has been taken
            warnings.warn(f"served by a fallback: {why}", FallbackWarning, stacklevel=5)
        return call("permit")


def _attend(
    query: Array, key: Array, value: Array, attn_mask: Optional[Array], dropout_p: float, is_causal: bool,
    scale: Optional[float], enable_gqa: bool, receipt: bool, threads: Optional[int] = None, serve: bool = True,
) -> tuple[Any, Optional[Receipt]]:  # fmt: skip
    plain = _check(query, key, value, attn_mask, is_causal, enable_gqa)
    shape = None
    if not plain:
        query, key, value, attn_mask, shape = _to_four(query, key, value, attn_mask, enable_gqa)
    mask = bias = None
    if attn_mask is not None:
        if str(attn_mask.dtype).endswith("bool"):
            mask = attn_mask
        else:
            bias = attn_mask
    result = _run(query, key, value, mask, bias, dropout_p, is_causal, scale, receipt, threads, serve)
    out, report = _with_receipt(result) if receipt else (result, None)
    return (out if shape is None else out.reshape(shape)), report


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Optional[Array] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:
    """torch.nn.functional.scaled_dot_product_attention by its meaning: (..., heads, tokens, head dim), causal from the top
    left, a bool mask (True: visible) or a float one that is added, a row that sees no key gives 0. NumPy or PyTorch.

    dropout_p, from 0 to 1, drops whatever the mode of a model; its random numbers are this library's, seeded by NumPy's or PyTorch's
    generator. A fallback to a slower path is served with a FallbackWarning. Where q, k and v are bfloat16, probabilities may be
    rounded to it before they meet v, as PyTorch's own function does.

    >>> import numpy as np
    >>> x = np.zeros((2, 3, 4, 8), np.float32)
    >>> v = np.arange(4, dtype=np.float32)[:, None] * np.ones((2, 3, 4, 8), np.float32)
    >>> scaled_dot_product_attention(x, x, v, is_causal=True)[0, 0, :, 0].tolist()
    [0.0, 0.5, 1.0, 1.5]
    """
    torch = sys.modules.get("torch")
    if torch is not None and not torch.compiler.is_compiling():
        try:
            out = _core.sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, True, None, False, False)
            if out is not None:
                return out
        except (ValueError, _core.Error):
            pass  # asked again below, by the names of the arguments and with what a fallback asks for
    if dropout_p == 1:  # nothing is left, as in PyTorch
        return scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa) * 0
    if hasattr(query, "requires_grad") and _needs_torch(query, key, value, attn_mask):
        from ._torch_ops import _sdpa_traced

        return _sdpa_traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not hasattr(query, "requires_grad"):
        _refuse_lost_gradient("query", query, key, value, attn_mask)
    return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, False)[0]
