# SPDX-License-Identifier: Apache-2.0
"""What return_attn_probs gives beside out and lse when there is dropout: exp(score - largest score of the row), negative where it
was dropped. It is for tests, and takes memory and time as the score matrix does. The kernels give it themselves: with unit
vectors for v, a row of the output is a row of probabilities."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._api import attention

WIDTH = 256  # keys a call: the head dim of v
ROUND = 128  # flash-attn's tensor has whole blocks of so many rows and keys


def _rounded(n: int) -> int:
    return -(-n // ROUND) * ROUND


def _place(cu: Tensor, tokens: int) -> tuple[Any, ...]:
    """Sequence and position of each token; tokens of no sequence are left out by `inside`."""
    token = torch.arange(tokens)
    sequence = torch.searchsorted(cu[1:].long(), token, right=True)
    inside = (token >= cu[0]) & (sequence < len(cu) - 1)
    sequence = sequence.clamp(max=len(cu) - 2)
    return sequence, token - cu.long()[sequence], inside


def _all(q: Tensor, k: Tensor, options: dict[str, Any], rows: int, keys: int) -> Tensor:
    """Probabilities after dropout, float32 (sequences, heads, rows, keys)."""
    packed = options["layout"] == "thd"
    key = _place(options["cu_seqlens_k"], k.shape[0])[1] if packed else torch.arange(keys)
    made = q.new_zeros(*q.shape[:-1], keys)
    for start in range(0, keys, WIDTH):
        unit = (key[:, None] == torch.arange(start, min(start + WIDTH, keys))).float()[:, None].expand(-1, k.shape[-2], -1)
        v = unit if packed else unit.expand(q.shape[0], -1, -1, -1)
        made[..., start : start + WIDTH] = attention(q, k, v, **options)
    if not packed:
        return made.transpose(1, 2)
    sequence, row, inside = _place(options["cu_seqlens_q"], q.shape[0])
    apart = made.new_zeros(len(options["cu_seqlens_q"]) - 1, rows, *made.shape[1:])
    apart[sequence[inside], row[inside]] = made[inside]
    return apart.transpose(1, 2)


def signed(q: Tensor, k: Tensor, options: dict[str, Any], rows: int, keys: int) -> Tensor:
    """(sequences, heads, rows, keys) in q's dtype, rows and keys rounded up."""
    sequences = len(options["cu_seqlens_q"]) - 1 if options["layout"] == "thd" else q.shape[0]
    made = q.new_zeros(sequences, q.shape[-2], _rounded(rows), _rounded(keys))
    if made.numel() == 0:
        return made
    options = {**options, "p_dtype": None}
    q, k = q.detach().float(), k.detach().float()
    plain = _all(q, k, {**options, "dropout_p": 0.0}, rows, keys)
    kept = (_all(q, k, options, rows, keys) > 0) | (plain == 0)
    largest = plain.amax(-1, keepdim=True)
    value = torch.where(largest > 0, plain / largest, 0)
    made[:, :, :rows, :keys] = torch.where(kept, value, -value)
    return made
