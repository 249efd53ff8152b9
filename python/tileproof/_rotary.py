# SPDX-License-Identifier: Apache-2.0
"""Rotary positions (docs/rope.md): tp_rope from Python."""
from __future__ import annotations

import array
from typing import Any, Literal, Optional, Sequence, Tuple, Union

from . import _core
from ._api import Array, Layout, _refuse_gradient, _written
from .proof import Model

Kind = Literal["none", "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]
Style = Literal["neox", "interleaved"]


def _floats(x: Union[None, Sequence[float], Array]) -> Any:
    """A list as an array of float32; tensors as they are."""
    return array.array("f", x) if isinstance(x, (list, tuple)) else x


class Rotary:
    """How q and k are rotated by their positions: pair i of a row by position * theta^(-2 i / dims), as its kind changes it.

    head_dim    elements of a row; `dims` of them are rotated, from `first` on (0: all)
    style       "neox": i and i + dims / 2 are a pair; "interleaved": 2 i and 2 i + 1
    kind        "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"; the other options are its own, by the names
                of tp_rope_options: docs/rope.md has them
    cos_table, sin_table   (positions, dims / 2) instead of theta; copied
    sections    (time, height, width): how many pairs go by each of a token's three positions (M-RoPE); sections_interleave: in turns
    angle       "double", or "float32" for transformers' own rounding

    >>> import numpy as np
    >>> rotary = Rotary(4, theta=100.0)
    >>> x = np.ones((1, 3, 1, 4), np.float32)  # batch, tokens, heads, head dim
    >>> print(rotary.apply(x, np.arange(3))[0, 2].round(2))
    [[-1.33  0.78  0.49  1.18]]
    """

    def __init__(
        self, head_dim: int, *, kind: Kind = "default", style: Style = "neox", angle: Literal["double", "float32"] = "double",
        dims: int = 0, first: int = 0, theta: Optional[float] = None, factor: float = 0.0, original_length: int = 0,
        attention_factor: float = 0.0, low_freq_factor: float = 0.0, high_freq_factor: float = 0.0, beta_fast: float = 0.0,
        beta_slow: float = 0.0, mscale: float = 0.0, mscale_all_dim: float = 0.0, short_factors: Union[None, Sequence[float], Array] = None,
        long_factors: Union[None, Sequence[float], Array] = None, cos_table: Optional[Array] = None, sin_table: Optional[Array] = None,
        sections: Optional[Tuple[int, int, int]] = None, sections_interleave: bool = False, yarn_untruncated: bool = False,
    ) -> None:  # fmt: skip
        if theta is None:
            theta = 1e4 if cos_table is None and sin_table is None else 0.0
        self._rotary = _core.rope_create(
            head_dim, kind, style, angle, dims, first, theta, factor, original_length, attention_factor, low_freq_factor, high_freq_factor,
            beta_fast, beta_slow, mscale, mscale_all_dim, _floats(short_factors), _floats(long_factors), cos_table, sin_table,
            None if sections is None else tuple(sections), sections_interleave, yarn_untruncated,
        )  # fmt: skip

    @classmethod
    def of_model(
        cls, model: Model, layer: int = 0, *, short_factors: Union[None, Sequence[float], Array] = None,
        long_factors: Union[None, Sequence[float], Array] = None,
    ) -> Rotary:  # fmt: skip
        """As this layer of a config.json rotates. short_factors and long_factors: short_factor and long_factor of its rope_scaling, for a
        file that leaves these lists of longrope out, as those of models/ do."""
        made = cls.__new__(cls)
        made._rotary = _core.rope_of_model(model._model, layer, _floats(short_factors), _floats(long_factors))
        return made

    @property
    def head_dim(self) -> int:
        return _core.rope_about(self._rotary)[0]

    @property
    def pairs(self) -> int:
        """How many are rotated: the width of cosines and sines."""
        return _core.rope_about(self._rotary)[1]

    def apply(
        self, x: Array, positions: Optional[Array] = None, *, out: Optional[Array] = None, layout: Layout = "bshd",
        angles: Optional[Tuple[Array, Array]] = None, length: int = 0, norm: Optional[Array] = None, norm_eps: float = 1e-6,
        norm_one_plus: bool = False,
    ) -> Array:  # fmt: skip
        """x rotated: a new tensor, or `out`, which may be x itself. float32, float16 or bfloat16; arithmetic is float32, rounded once.

        positions   int32 or int64 (tokens) or (batch, tokens); with sections (3, tokens) or (3, batch, tokens)
        angles      instead of positions: what angles() gave, once for q and k of every layer
        length      the current length, by which "dynamic" and "longrope" rotate; 0: the greatest position + 1
        norm        (head dim,): each row is first divided by the root of its mean square + norm_eps and multiplied by this, or by
                    1 + this with norm_one_plus"""
        _refuse_gradient("tileproof.Rotary", x=x, norm=norm)
        made = _core.rope_apply(self._rotary, x, out, positions, angles, length, norm, norm_eps, norm_one_plus, layout)
        _written(out)
        return made

    def angles(self, positions: Array, *, length: int = 0) -> Tuple[Array, Array]:
        """Cosines and sines of these positions, float32 (..., pairs)."""
        return _core.rope_angles(self._rotary, positions, length)

    def __repr__(self) -> str:
        return f"<tileproof.Rotary of {self.pairs} pairs in rows of {self.head_dim}>"
