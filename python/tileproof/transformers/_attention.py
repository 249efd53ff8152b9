# SPDX-License-Identifier: Apache-2.0
"""The function that transformers' attention modules call."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _core
from .._api import attention
from .._torch_log import note_receipt
from ..watch.problem import plain_scale
from . import _records
from ._masks import PositionMask

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
fallback = "refuse"  # as register() says


try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = None


def _collects() -> bool:
    """Does the model collect probabilities, which its layers are expected to return?"""
    wanted = None if _active_collector is None else _active_collector.get()
    return any("attentions" in name for name in wanted or ())


def _refuse(module: torch.nn.Module, error: Exception) -> Exception:
    _records.count(_records.layer(module).refusals, str(error).split("\n")[0])
    return error


def _check(query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]) -> Optional[Exception]:
    """What is not served, before anything runs."""
    if not (query.is_cpu and key.is_cpu and value.is_cpu):
        name, x = next((n, x) for n, x in (("query", query), ("key", key), ("value", value)) if not x.is_cpu)
        return _records.not_on_cpu(name, x.device)
    if query.dtype not in DTYPES:
        return TypeError(f"query is {query.dtype}: it must be float32, float16 or bfloat16; model.to(torch.float32)")
    if kwargs.get("output_attentions") or _collects():
        return ValueError(
            "output_attentions=True asks for probabilities, which tileproof never writes: model.set_attn_implementation('eager') "
            "for this call, or leave it out"
        )
    if kwargs.get("cache") is not None:
        return ValueError("continuous batching is not served by attn_implementation='tileproof': model.generate(), or 'sdpa'")
    for name in ("block_indices", "head_mask"):
        if kwargs.get(name) is not None:
            return ValueError(f"{name} is given: attn_implementation='tileproof' does not know it; use 'eager' for this model")
    return None


def _chosen(indices: Tensor, keys: int, mask: Any) -> Tensor:
    """Keys that sparse indices by row name, as a mask: bool (sequences, 1, rows, keys)."""
    named = torch.zeros(*indices.shape[:2], keys + 1, dtype=torch.bool)
    named.scatter_(-1, torch.where(indices < 0, keys, indices).long(), True)
    named = named[:, None, :, :keys]
    return named if mask is None else named & mask


def _mask(module: torch.nn.Module, given: Any, rows: int, keys: int, is_causal: Optional[bool]) -> tuple[dict[str, Any], int, str, str]:
    """Arguments of tileproof.attention, keys to look at, words and the reason of an array."""
    if isinstance(given, PositionMask):
        if given.lowered.words == "none":  # whatever the keys
            return given.lowered.options, keys, "none", ""
        if given.shape[2:] != (rows, keys):
            raise ValueError(f"the mask is for {given.shape[2]} rows and {given.shape[3]} keys, and there are {rows} and {keys}")
        found = given.lowered
        return found.options, found.keys, found.words, found.array
    if given is None:  # as transformers' sdpa takes it: rows are the first positions, and a single row sees all keys
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if not (causal and rows > 1):
            return {}, keys, "none", ""
        return {"causal": True}, min(rows, keys), "causal", ""
    made = f"mask by array, {given.numel() * given.element_size()} bytes, because the model or its caller made it"
    if given.dtype == torch.bool:
        return {"mask": given}, keys, "by array", made
    if given.dtype not in DTYPES:
        raise TypeError(f"the attention mask is {given.dtype}: it must be bool (True: visible) or a float that is added")
    return {"bias": given}, keys, "by array", made


def _cast(*tensors: Optional[Tensor]) -> tuple[Any, ...]:
    """As PyTorch's own function is under autocast."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    to = torch.get_autocast_dtype("cpu")
    return tuple(x if x is None or x.dtype == torch.bool else x.to(to) for x in tensors)


def attention_forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, dropout: float = 0.0,
    scaling: Optional[float] = None, is_causal: Optional[bool] = None, softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None, position_bias: Optional[Tensor] = None, indices: Optional[Tensor] = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """q, k and v (sequences, heads, tokens, head dim). Returns (sequences, tokens, heads, head dim), and None for the
    probabilities."""
    why = _check(query, key, value, kwargs)
    if why is not None:
        raise _refuse(module, why)
    rows, keys = query.shape[2], key.shape[2]
    try:
        options, used, words, array = _mask(module, attention_mask, rows, keys, is_causal)
    except (ValueError, TypeError) as error:
        raise _refuse(module, error)
    if indices is not None:
        whole = attention_mask.elements() if isinstance(attention_mask, PositionMask) else options.get("mask")
        made = _chosen(indices, keys, whole)
        options, used, words = {**options, "mask": made, "causal": False}, keys, "by array"
        array = f"mask by array, {made.numel()} bytes, because lists of keys (indices) come with it"
    plain = rows == 1 and used == keys and s_aux is None and position_bias is None and not (softcap or dropout) and fallback == "refuse"
    if plain and options.keys() <= {"causal"} and not torch.compiler.is_compiling():
        out = _step(module, query, key, value, bool(options.get("causal")), plain_scale(scaling, query.shape[-1]), words)
        if out is not None:
            return out, None
    query, key, value, position_bias = _cast(query, key, value, position_bias)
    options = dict(options, scale=plain_scale(scaling, query.shape[-1]), softcap=softcap or 0.0)
    options["sinks"] = None if s_aux is None else s_aux.float()
    if position_bias is not None:
        bias = position_bias[..., :used]
        options["bias"] = bias if options.get("bias") is None else bias + options["bias"]
    if used < keys:
        key, value = key[:, :, :used], value[:, :, :used]
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    return _run(module, q, k, v, options, dropout, words, array), None


def _step(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: Optional[float], words: str
) -> Optional[Tensor]:  # fmt: skip
    """A decode step that nothing is special about, by way of the extension alone; None: something is."""
    try:
        made = _core.sdpa(query, key, value, None, 0.0, causal, scale, True, False, None, True, True)
    except (ValueError, TypeError, _core.Error):
        return None  # asked again by attention(), which says why
    if made is None:
        return None
    note_receipt(made[1])
    _records.layer(module).note(made[1], words)
    out: Tensor = made[0].transpose(1, 2)
    return out


def _run(
    module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], dropout: float, words: str, array: str
) -> Tensor:  # fmt: skip
    options["p_dtype"] = "bfloat16" if q.dtype == torch.bfloat16 else None  # as PyTorch's own function rounds them
    options["fallback"] = fallback
    if dropout > 0:
        options |= {"dropout_p": dropout, "dropout_seed": torch.randint(2**63 - 1, (1,))}
    if torch.compiler.is_compiling():
        return attention(q, k, v, **options)
    layer = _records.layer(module)
    if array:
        _records.count(layer.arrays, array)
    try:
        out, receipt = attention(q, k, v, return_receipt=True, **options)
    except (ValueError, TypeError, _core.Error) as error:
        raise _refuse(module, error)
    layer.note(receipt, words)
    return out
