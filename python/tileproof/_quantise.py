# SPDX-License-Identifier: Apache-2.0
"""Rows to codes and scales, and back: what quantised caches hold (docs/quantised.md)."""
from __future__ import annotations

from typing import Any, Optional, Tuple, Union

from . import _core
from ._api import Array, Format, _dtype_name, _refuse_gradient


def quantise(x: Array, format: Format, *, scale: Optional[float] = None) -> Tuple[Array, Union[None, float, Array], float]:
    """Codes, scales and the loss: what attention() takes as k or v and k_scales or v_scales. Rows lie along the last dimension.

    format   the words of a cache's format (docs/quantised.md). "i8": int8 codes of x's shape, a float32 scale for each row. "e4m3/token":
             float8_e4m3fn codes (of NumPy arrays uint8), a float32 scale for each row. "e4m3": the same codes with one scale, which
             `scale` names. "i4": two codes in a byte, a float16 scale for each 32 elements. "i8/q8_0": ggml's blocks, which hold
             their scales; scales is None.
    loss     the greatest error of an element, relative to the greatest of its row; infinity where a value is not finite.

    >>> import numpy as np
    >>> codes, scales, loss = quantise(np.array([[1.0, -0.5, 0.25]], np.float32), "i8")
    >>> codes.tolist(), scales.tolist(), loss < 1 / 254
    ([[127, -64, 32]], [0.007874015718698502], True)
    >>> dequantise(codes, scales).round(2).tolist()
    [[1.0, -0.5, 0.25]]
    """
    _refuse_gradient("codes", x=x)
    return _core.quantise(x, format, scale)


def dequantise(codes: Array, scales: Union[None, float, Array] = None, format: Optional[Format] = None, *, dtype: Any = "float32") -> Array:
    """What is stored, code * scale, each rounded once to `dtype`. format may be left out where the dtype says it: int8, float8_e4m3fn,
    whose scales then say whether there is one."""
    return _core.dequantise(codes, scales, format, _dtype_name(dtype))
