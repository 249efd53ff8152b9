# SPDX-License-Identifier: Apache-2.0
"""One call of tileproof.attention for each function of flash-attn, by the meaning of its arguments."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .._api import attention
from . import _checks as check
from ._probabilities import signed


def sides(window_size: Any, causal: bool) -> tuple[Any, ...]:
    """(left, right) for tileproof.attention: None for an unbounded side, and to the right where causal bounds it."""
    left, right = check.window(window_size)
    return None if left < 0 else left, None if right < 0 or causal else right


def seen_from(leftpad: Tensor, keys: int) -> Tensor:
    """A mask that hides the keys before leftpad. Positions stay as they are: causal and windows count from the last key."""
    return (torch.arange(keys) >= leftpad[:, None])[:, None, None]


def attend(
    q: Tensor, k: Tensor, v: Tensor, where: dict[str, Any], dropout_p: float, softmax_scale: Optional[float], causal: bool,
    window_size: Any, softcap: float, alibi_slopes: Optional[Tensor], want: str, rows: int = 0, keys: int = 0,
) -> Any:  # fmt: skip
    """where: the layout and what says which tokens a sequence has, as tileproof.attention takes it. want: "out", "lse" for
    (out, lse), "probs" for (out, lse, signed probabilities of so many rows and keys) as return_attn_probs means them."""
    check.numbers(softmax_scale, softcap)
    check.dropout(dropout_p, softcap)
    options = {
        **where, "causal": bool(causal), "window": sides(window_size, causal), "scale": softmax_scale,
        "softcap": max(float(softcap), 0.0), "alibi_slopes": alibi_slopes,
        "p_dtype": "bfloat16" if q.dtype == torch.bfloat16 else None,
    }  # fmt: skip
    if dropout_p > 0:
        options |= {"dropout_p": float(dropout_p), "dropout_seed": torch.randint(2**63 - 1, (1,))}
    if want == "out":
        return attention(q, k, v, **options)
    out, lse = attention(q, k, v, return_lse=True, **options)
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # a row that sees no key, as version 2 says it
    if want == "lse":
        return out, lse
    return out, lse, signed(q, k, options, rows, keys) if dropout_p > 0 else q.new_empty(0)


class _ForwardOnly(torch.autograd.Function):  # type: ignore[misc]  # PyTorch's types are not looked at
    """A result whose gradient is refused when somebody asks for it, and not lost."""

    @staticmethod
    def forward(ctx: Any, name: str, compute: Callable[..., Any], *tensors: Tensor) -> Any:
        ctx.name = name
        return compute()

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> Any:
        raise RuntimeError(f"{ctx.name} has no gradient, in flash-attn as here: call it in torch.no_grad(), or give it k and v without a cache")


def forward_only(name: str, compute: Callable[..., Any], *tensors: Optional[Tensor]) -> Any:
    given = [x for x in tensors if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return _ForwardOnly.apply(name, compute, *given)
    return compute()
