# SPDX-License-Identifier: Apache-2.0
"""flash_attn.layers.rotary: the functions. Angles are read in their own dtype, products are made in float32 and rounded once."""
from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor


def _sequence(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """The sequence of each token of a packed tensor."""
    return torch.searchsorted(cu_seqlens[1:].contiguous(), torch.arange(tokens, dtype=cu_seqlens.dtype), right=True)


def _positions(x: Tensor, offsets: Union[int, Tensor], cu_seqlens: Optional[Tensor], angles: int) -> Tensor:
    """(batch or 1, tokens), or (tokens,) of a packed tensor."""
    if isinstance(offsets, Tensor):
        sequences = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        assert tuple(offsets.shape) == (sequences,), f"seqlen_offsets has shape {tuple(offsets.shape)}: it must be ({sequences},)"
    if cu_seqlens is None:
        tokens = torch.arange(x.shape[1])
        made = tokens + (offsets[:, None] if isinstance(offsets, Tensor) else offsets)
    else:
        sequence = _sequence(cu_seqlens, x.shape[0]).clamp(max=len(cu_seqlens) - 2)
        made = torch.arange(x.shape[0]) - cu_seqlens[sequence] + (offsets[sequence] if isinstance(offsets, Tensor) else offsets)
    if not isinstance(offsets, Tensor) and cu_seqlens is None:
        assert offsets + x.shape[1] <= angles, f"cos has {angles} positions: tokens reach {offsets + x.shape[1]}"
    return made


def _angles(table: Tensor, at: Tensor, otherwise: float) -> Tensor:
    """Of each position, float32; a position beyond the table is not rotated: padding may reach there."""
    known = (at >= 0) & (at < table.shape[0])
    return torch.where(known[..., None], table.detach().float()[at.clamp(0, max(table.shape[0] - 1, 0)).long()], otherwise)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The first dims of x, rotated by angles (..., tokens, dims / 2), in x's dtype."""
    cos, sin = cos[..., None, :], sin[..., None, :]  # of all heads
    part = x[..., : 2 * cos.shape[-1]].float()
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    pair = a * cos - b * sin, a * sin + b * cos
    return (torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)).to(x.dtype)


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: Union[int, Tensor] = 0, cu_seqlens: Optional[Tensor] = None, max_seqlen: Optional[int] = None,
) -> Tensor:  # fmt: skip
    """x (batch, tokens, heads, head dim), or (tokens, heads, head dim) with cu_seqlens, its first dims rotated by cos and sin
    (positions, rotary dim / 2). Token i of a sequence stands at seqlen_offsets + i. interleaved: neighbours are pairs, otherwise
    the two halves of the rotated dims. inplace: x is written and returned."""
    assert 2 * cos.shape[-1] <= x.shape[-1], f"cos rotates {2 * cos.shape[-1]} dims: x has {x.shape[-1]}"
    assert cos.shape == sin.shape, f"cos has shape {tuple(cos.shape)} and sin {tuple(sin.shape)}: they must be equal"
    at = _positions(x, seqlen_offsets, cu_seqlens, cos.shape[0])
    made = _rotated(x, _angles(cos, at, 1.0), _angles(sin, at, 0.0), interleaved)
    if inplace:
        x[..., : made.shape[-1]] = made
        return x
    return torch.cat((made, x[..., made.shape[-1] :]), -1)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x (batch, tokens, heads, head dim) by cos and sin (tokens, rotary dim / 2), or (batch, tokens, rotary dim / 2)."""
    made = _rotated(x, cos.float(), sin.float(), interleaved)
    return torch.cat((made, x[..., made.shape[-1] :]), -1)


def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, cos_k: Optional[Tensor] = None, sin_k: Optional[Tensor] = None,
    interleaved: bool = False, seqlen_offsets: Union[int, Tensor] = 0, num_heads_q: Optional[int] = None,
) -> Tensor:  # fmt: skip
    """Rotates q and k of qkv in place: (batch, tokens, 3, heads, head dim), or with num_heads_q (batch, tokens, query heads +
    2 * kv heads, head dim). k may have angles of its own."""
    if qkv.dim() == 5:
        assert qkv.shape[2] == 3, f"qkv has shape {tuple(qkv.shape)}: it must be (batch, tokens, 3, heads, head dim)"
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        assert qkv.dim() == 4 and num_heads_q is not None, "qkv of four dims needs num_heads_q"
        heads_k, odd = divmod(qkv.shape[2] - num_heads_q, 2)
        assert odd == 0, f"qkv has {qkv.shape[2]} heads and num_heads_q is {num_heads_q}: what is left must be even, for k and v"
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : num_heads_q + heads_k]
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    apply_rotary_emb(k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k, interleaved, True, seqlen_offsets)
    return qkv


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: Union[int, Tensor] = 0
) -> Tensor:
    """Rotates k of kv (batch, tokens, 2, heads, head dim) in place."""
    assert kv.dim() == 5 and kv.shape[2] == 2, f"kv has shape {tuple(kv.shape)}: it must be (batch, tokens, 2, heads, head dim)"
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv
