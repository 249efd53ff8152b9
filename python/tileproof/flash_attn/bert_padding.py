# SPDX-License-Identifier: Apache-2.0
"""flash_attn.bert_padding: from batches with padding to packed sequences, and back. Gradients flow by PyTorch's own ops."""
from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows of a tensor with at least two dims."""
    assert input.ndim >= 2, f"input has shape {tuple(input.shape)}: it must have at least two dims"
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """A tensor of first_axis_dim rows, which are 0 but for `indices`."""
    assert indices.ndim == 1, f"indices has shape {tuple(indices.shape)}: it must have one dim"
    assert values.ndim >= 2, f"values has shape {tuple(values.shape)}: it must have at least two dims"
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> Tuple[Tensor, Tensor]:
    """Rows of a tensor, and the tensor."""
    return index_first_axis(input, indices), input.view_as(input)


def _starts(lengths: Tensor) -> Tensor:
    """Cumulative lengths from 0 on, int32."""
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """From (batch, tokens, ...) and masks (batch, tokens) the tokens of either mask, one sequence after another; their indices
    among all tokens; cu_seqlens; the longest sequence; and how many tokens of each sequence attention_mask has (seqused)."""
    either = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = either.sum(-1, dtype=torch.int32)
    indices = either.flatten().nonzero().flatten()
    packed = index_first_axis(hidden_states.flatten(0, 1), indices)
    return packed, indices, _starts(lengths), int(lengths.max()), attention_mask.sum(-1, dtype=torch.int32)


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> Tuple[Tensor, Tensor, Tensor, int]:
    """The same for rows that hold several sequences: attention_mask_in_length (batch, tokens) has their lengths, then zeros."""
    tokens = torch.arange(attention_mask_in_length.shape[-1], device=attention_mask_in_length.device)
    indices = (tokens < attention_mask_in_length.sum(-1, keepdim=True)).flatten().nonzero().flatten()
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, _starts(lengths), int(lengths.max())


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Back to (batch, seqlen, ...), with zeros for padding."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
