# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache up to its attention: which tokens each sequence has, the new ones rotated and written into the cache.

The rows that are written come from the C library's tp_rope_apply and tp_quantise. tp_cache_append is made of these, too, and cannot be
called here: it writes into pages, lengths and scales that a tp_cache owns, and here all of them are the caller's.

All three kinds of caches are pools of pages: with block_table as they are; with cache_batch_idx a page is a row of the cache; and
without either it is row i for sequence i. Nothing of a cache is copied."""
from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from .. import _core
from .._api import _written
from . import _checks as check
from . import _scales
from ._attend import seen_from


def _table(k_cache: Tensor, batch: int, cache_batch_idx: Optional[Tensor], block_table: Optional[Tensor]) -> Optional[Tensor]:
    """(batch, columns) of pages, or None: sequence i is row i."""
    if block_table is not None:
        if cache_batch_idx is not None:
            check.refuse("block_table and cache_batch_idx are both given: a paged cache has no cache_batch_idx; leave out one of them")
        check.pages(k_cache, block_table, batch)
        return block_table
    if cache_batch_idx is not None:
        check.index("cache_batch_idx", cache_batch_idx, batch)
        check.within("cache_batch_idx", cache_batch_idx, 0, k_cache.shape[0] - 1, "rows of the cache")
        return cache_batch_idx[:, None]
    if k_cache.shape[0] < batch:
        check.refuse(f"k_cache has {k_cache.shape[0]} rows and q {batch} sequences: each needs one, or cache_batch_idx or block_table")
    return None


def _used(cache_seqlens: Optional[Union[int, Tensor]], batch: int, capacity: int) -> Tensor:
    """Tokens that each sequence has before new ones come, int32."""
    if cache_seqlens is None or isinstance(cache_seqlens, int):
        return torch.full((batch,), capacity if cache_seqlens is None else cache_seqlens, dtype=torch.int32)
    check.index("cache_seqlens", cache_seqlens, batch)
    return cache_seqlens


def _check_new(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Optional[Tensor], cache_seqlens: Any, capacity: int,
) -> None:  # fmt: skip
    if v is None:
        check.refuse("k is given and v is not: both are written into the cache; give both or none")
    if cache_seqlens is None:
        check.refuse("k is given and cache_seqlens is not: it says where k and v are written")
    if q.shape[1] > capacity:
        check.refuse(f"q has {q.shape[1]} rows and the cache room for {capacity} tokens: with new k it must have room for all rows")
    check.tensors(4, {"q": q, "k": k, "v": v})
    check.shape("k", k, q.shape[0], k.shape[1], *k_cache.shape[2:])
    check.shape("v", v, *k.shape)
    check.memory({"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache})


def _check_rotary(q: Tensor, cos: Tensor, sin: Optional[Tensor], last: int, capacity: int) -> None:
    if sin is None:
        check.refuse("rotary_cos is given and rotary_sin is not: a rotation needs both")
    for name, x in (("rotary_cos", cos), ("rotary_sin", sin)):
        check.on_cpu(name, x)
        if x.dtype != q.dtype:
            check.refuse(f"{name} is {x.dtype} and q {q.dtype}: they must have one dtype; {name}.to(q.dtype) casts it")
        if x.dim() != 2:
            check.refuse(f"{name} has shape {tuple(x.shape)}: it must be (positions, rotary dim / 2)")
    check.shape("rotary_sin", sin, *cos.shape)
    rotated = 2 * cos.shape[1]
    if rotated > q.shape[-1] or rotated % 16 != 0:
        check.refuse(f"rotary_cos has {cos.shape[1]} columns, which rotate {rotated} dims: that must be a multiple of 16 and at most {q.shape[-1]}")
    if cos.shape[0] < max(capacity, last + 1):
        check.refuse(f"rotary_cos has {cos.shape[0]} positions: it needs {max(capacity, last + 1)}, as many as the cache has room for and as rows of q reach")


def _plain(x: Any) -> Any:
    """Without its gradient: the extension reads memory."""
    return x.detach()


def cached(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor], v: Optional[Tensor], rotary_cos: Optional[Tensor],
    rotary_sin: Optional[Tensor], cache_seqlens: Any, cache_batch_idx: Optional[Tensor], cache_leftpad: Optional[Tensor],
    block_table: Optional[Tensor], local: bool, interleaved: bool, k_descale: Any = None, v_descale: Any = None,
) -> Tuple[Tensor, Tensor, Tensor, dict[str, Any]]:  # fmt: skip
    """q, the caches, and which of their tokens the sequences have, for tileproof.attention. local: rows of q have positions of their own."""
    check.caches(q, k_cache, v_cache)
    batch, rows = q.shape[:2]
    check.batch(batch)
    check.heads(q, k_cache)
    check.shape("v_cache", v_cache, *k_cache.shape)
    table = _table(k_cache, batch, cache_batch_idx, block_table)
    capacity = k_cache.shape[1] * (1 if table is None else table.shape[1])
    used, new = _used(cache_seqlens, batch, capacity), 0
    if k is not None:
        _check_new(q, k_cache, v_cache, k, v, cache_seqlens, capacity)
        new = k.shape[1]
    whose = "what block_table has room for" if block_table is not None else "the tokens of a row of the cache"
    check.within("cache_seqlens" + (f" + {new} new tokens" if new else ""), used + new, new, capacity, whose)
    scales = [
        _scales.read(name, x, cache, batch, table, used + new, new)
        for name, x, cache in (("k_descale", k_descale, k_cache), ("v_descale", v_descale, v_cache))
    ]
    if new and scales[0].by_token and scales[1].by_token and k_descale.data_ptr() == v_descale.data_ptr():
        check.refuse("k_descale and v_descale are one tensor: scales of new k and v are written into them, so they must be two")
    if rotary_cos is not None:
        if k is None:
            check.refuse("rotary_cos is given and k is not: only new k and its q are rotated")
        _check_rotary(q, rotary_cos, rotary_sin, int(used.max()) + (rows - 1 if local else 0), capacity)
        at = used[:, None] + torch.arange(rows, dtype=torch.int32) * local
        rotary_cos, rotary_sin = _plain(rotary_cos), _plain(rotary_sin)
        q = _core.flash_rotate(_plain(q), rotary_cos, rotary_sin, at, interleaved)
    where = {"layout": "bshd", "kv_lens": used + new}
    if scales[0].read is not None:
        where |= {"k_scales": scales[0].read, "v_scales": scales[1].read}
    if cache_leftpad is not None:
        if block_table is not None:
            check.refuse("block_table and cache_leftpad are both given: a paged cache has no cache_leftpad; leave out one of them")
        check.leftpad("cache_leftpad", cache_leftpad, batch)
        where["mask"] = seen_from(cache_leftpad, capacity)
    if k is not None:  # nothing is refused from here on
        losses = [
            _core.flash_append(_plain(k_cache), _plain(k), used, table, rotary_cos, rotary_sin, interleaved, scales[0].write),
            _core.flash_append(_plain(v_cache), _plain(v), used, table, None, None, interleaved, scales[1].write),
        ]
        if scales[0].read is not None:
            where["kv_loss"] = max(losses)
        for cache, given, of in zip((k_cache, v_cache), (k_descale, v_descale), scales):
            _written(cache)
            if of.by_token:
                _written(given)
    if table is not None:
        return q, k_cache, v_cache, {**where, "page_table": table}
    return q, k_cache[:batch], v_cache[:batch], where
