# SPDX-License-Identifier: Apache-2.0
"""The functions of flash-attn 2, with its signatures, defaults, return shapes and errors; docs/flash_attn.md says what differs.

Layouts are (batch, tokens, heads, head dim), or (tokens, heads, head dim) for the varlen functions, whose cu_seqlens hold the
starts of the sequences and the end, int32. Query heads may be a multiple of kv heads. causal, window_size and alibi_slopes are
aligned to the bottom right: row i stands at key i + keys - rows. A side of window_size is inclusive, and unbounded where it is
negative. deterministic and num_splits change nothing: results always have the same bits."""
from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _checks as check
from ._attend import attend, forward_only, seen_from
from ._cache import cached

USE_TRITON_ROCM = False
_WANT = {False: "out", True: "probs"}


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Keys between two updates of the maximum that S_dmask refers to. Here that is the maximum of the whole row."""
    return 2**31 - 1


def _parts(name: str, packed: Tensor, dims: int, count: int) -> Tuple[Tensor, ...]:
    """q, k, v or k, v of one tensor: views, whose gradients PyTorch stacks."""
    check.on_cpu(name, packed)
    if packed.dim() != dims + 1 or packed.shape[dims - 2] != count:
        layout = check.SHAPES[dims].replace("heads", f"{count}, heads")
        check.refuse(f"{name} has shape {tuple(packed.shape)}: it must be {layout}")
    parts: Tuple[Tensor, ...] = packed.unbind(dims - 2)
    return parts


def _dense(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: Optional[float], causal: bool,
    window_size: Tuple[int, int], softcap: float, alibi_slopes: Optional[Tensor], want: str,
) -> Any:  # fmt: skip
    """What all functions of whole batches come to."""
    check.tensors(4, {"q": q, "k": k, "v": v})
    check.batch(q.shape[0])
    check.heads(q, k)
    check.shape("k", k, q.shape[0], *k.shape[1:])
    check.shape("v", v, *k.shape)
    check.slopes(alibi_slopes, q.shape[0], q.shape[2])
    where, size = {"layout": "bshd"}, (q.shape[1], k.shape[1])
    return attend(q, k, v, where, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, want, *size)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """out like q; with return_attn_probs (out, lse (batch, heads, rows), S_dmask). A row that sees no key gives 0, and +inf as
    its lse. S_dmask is empty without dropout, otherwise exp(score - the row's largest), negative where dropped: for tests."""
    want = _WANT[bool(return_attn_probs)]
    return _dense(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, want)


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_func with kv (batch, keys, 2, kv heads, head dim)."""
    k, v = _parts("kv", kv, 4, 2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_func with qkv (batch, tokens, 3, heads, head dim)."""
    q, k, v = _parts("qkv", qkv, 4, 3)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: Optional[float], causal: bool, window_size: Tuple[int, int], softcap: float,
    alibi_slopes: Optional[Tensor], want: str, block_table: Optional[Tensor] = None, leftpad_k: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
) -> Any:  # fmt: skip
    """What all varlen functions come to."""
    paged = block_table is not None
    check.tensors(3, {"q": q})
    check.tensors(4 if paged else 3, {"k": k, "v": v})
    check.on_cpu("cu_seqlens_q", cu_seqlens_q)
    batch = cu_seqlens_q.numel() - 1
    check.batch(batch)
    check.index("cu_seqlens_q", cu_seqlens_q, batch + 1)
    check.index("cu_seqlens_k", cu_seqlens_k, batch + 1)
    check.same_dtype(q, k)
    check.heads(q, k)
    check.shape("v", v, *k.shape)
    check.slopes(alibi_slopes, batch, q.shape[1])
    check.longest("max_seqlen_q", max_seqlen_q, cu_seqlens_q.diff())
    where, room = {"layout": "thd", "cu_seqlens_q": cu_seqlens_q}, cu_seqlens_k.diff()
    if block_table is not None:
        check.pages(k, block_table, batch)
        if dropout_p > 0:
            check.refuse(f"dropout_p is {dropout_p} and block_table is given: a paged cache has no dropout; it must be 0")
        where |= {"page_table": block_table, "kv_lens": room}
        check.within("a length in cu_seqlens_k", room, 0, block_table.shape[1] * k.shape[1], "what block_table has room for")
    else:
        where["cu_seqlens_k"] = cu_seqlens_k
    if seqused_k is not None:
        check.index("seqused_k", seqused_k, batch)
        check.within("seqused_k", seqused_k, 0, room, "the tokens that cu_seqlens_k gives its sequence")
        where["kv_lens"] = seqused_k
    if leftpad_k is not None:
        if paged:
            check.refuse("block_table and leftpad_k are both given: a paged cache has no leftpad_k; leave out one of them")
        check.leftpad("leftpad_k", leftpad_k, batch)
        where["mask"] = seen_from(leftpad_k, int(room.max()))

    def run() -> Any:
        return attend(
            q, k, v, where, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, want, int(max_seqlen_q),
            int(max_seqlen_k),
        )  # fmt: skip

    return forward_only("flash_attn_varlen_func with block_table", run, q, k, v) if paged else run()


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False, window_size: Tuple[int, int] = (-1,
    -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Optional[Tensor] = None,
) -> Any:  # fmt: skip
    """Sequences of different lengths, one after another: q (tokens, heads, head dim), k and v likewise, or with block_table
    (sequences, columns), int32, pools (pages, page size, kv heads, head dim), forward only. lse is (heads, tokens of q)."""
    return _varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, _WANT[bool(return_attn_probs)], block_table,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False, window_size: Tuple[int, int] = (-1,
    -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_varlen_func with kv (tokens, 2, kv heads, head dim)."""
    k, v = _parts("kv", kv, 3, 2)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
    causal: bool = False, window_size: Tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_varlen_func with qkv (tokens, 3, heads, head dim)."""
    q, k, v = _parts("qkv", qkv, 3, 3)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None, cache_seqlens: Optional[Union[int,
    Tensor]] = None, cache_batch_idx: Optional[Tensor] = None, cache_leftpad: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Optional[Tensor] = None,
    num_splits: int = 0, return_softmax_lse: bool = False, *, k_descale: Union[None, float, Tensor] = None,
    v_descale: Union[None, float, Tensor] = None,
) -> Any:  # fmt: skip
    """Attention to a cache, which k and v, if given, are first written into, in place, after the cache_seqlens tokens that each
    sequence has. Caches are (batch, tokens, kv heads, head dim), or pools of pages with block_table. rotary_cos and rotary_sin
    rotate k, and q: row i by position cache_seqlens + i if causal or in a window, otherwise every row by cache_seqlens.
    Returns out, or (out, lse (batch, heads, rows)). It has no gradient.

    k_descale and v_descale are an extension, by name alone. Caches may then be codes, int8 or float8_e4m3fn, that these numbers multiply,
    float32. Of float8_e4m3fn: one for all (a number; None is 1), or (batch, kv heads), as flash-attn 3 has it. Of both: one for each token
    and kv head, shaped like the cache without its last dimension; those of new k and v are written into it, as their codes into the cache."""
    assert k_cache.stride(-1) == 1, "k_cache must have a contiguous last dimension; k_cache.contiguous() makes a copy that has"
    assert v_cache.stride(-1) == 1, "v_cache must have a contiguous last dimension; v_cache.contiguous() makes a copy that has"
    check.splits(num_splits, check.MOST_SPLITS)

    check.tensors(4, {"q": q})
    check.slopes(alibi_slopes, q.shape[0], q.shape[2])
    check.numbers(softmax_scale, softcap)
    local = causal or max(check.window(window_size)) >= 0

    def run() -> Any:
        rows, keys, values, where = cached(
            q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
            local, rotary_interleaved, k_descale, v_descale,
        )  # fmt: skip
        want = "lse" if return_softmax_lse else "out"
        return attend(rows, keys, values, where, 0.0, softmax_scale, causal, window_size, softcap, alibi_slopes, want)

    tensors = (x for x in (k_descale, v_descale) if isinstance(x, Tensor))
    return forward_only("flash_attn_with_kvcache", run, q, k_cache, v_cache, k, v, *tensors)


setattr(flash_attn_with_kvcache, "_tileproof_watch", True)  # the watcher hears of its receipts, and does not take it for flash-attn's kernel


def _forward(q: Tensor, out: Tensor, lse: Tensor, probs: Optional[Tensor] = None) -> tuple[Any, ...]:
    """What the functions below return: where flash-attn gives the state of its generator, zeros; PyTorch's generator seeds calls here."""
    return out, lse, q.new_empty(0) if probs is None else probs, torch.zeros(2, dtype=torch.int64)


def _flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: Optional[float], causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor], return_softmax: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """flash_attn_func, as libraries that build on flash-attn call it."""
    window, want = (window_size_left, window_size_right), "probs" if return_softmax else "lse"
    return _forward(q, *_dense(q, k, v, dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, want))


def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: Optional[float], causal: bool, window_size_left: int = -1, window_size_right: int = -1,
    softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, return_softmax: bool = False,
    block_table: Optional[Tensor] = None, leftpad_k: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None,
    zero_tensors: bool = False, num_splits: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """flash_attn_varlen_func with the keys that each sequence uses: those from leftpad_k on, below seqused_k."""
    if block_table is not None:
        check.splits(num_splits, 1, " for varlen paged KV")
    window, want = (window_size_left, window_size_right), "probs" if return_softmax else "lse"
    return _forward(
        q, *_varlen(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window, softcap,
            alibi_slopes, want, block_table, leftpad_k, seqused_k,
        )
    )  # fmt: skip
