# SPDX-License-Identifier: Apache-2.0
"""Exact attention on the CPU that never writes the score matrix and says what ran.

>>> import numpy as np, tileproof
>>> q = np.ones((1, 5, 4, 64), np.float32)  # batch, tokens, heads, head dim
>>> k = v = np.ones((1, 5, 2, 64), np.float32)
>>> out, receipt = tileproof.attention(q, k, v, causal=True, return_receipt=True)
>>> out.shape, float(out.max()), receipt.scores_written
((1, 5, 4, 64), 1.0, 0)
>>> receipt.problem
'prefill b1 h4/2 q5 k5 d64 f32 causal'
"""
from typing import Any

from . import proof
from ._api import Plan, attention, explain, plan
from ._core import CacheFull, Error, FallbackRefused, NotLocked, Unsupported, kernels
from ._core import version as __version__
from ._kvcache import Cache, CacheLayer
from ._mask import Mask
from ._oracle import Reference, merge, reference
from ._quantise import dequantise, quantise
from ._reports import Decision, Receipt
from ._rotary import Rotary
from ._sdpa import FallbackWarning, scaled_dot_product_attention
from ._telemetry import events, metrics, recorder, trace

__all__ = [
    "Cache",
    "CacheFull",
    "CacheLayer",
    "Decision",
    "Error",
    "FallbackRefused",
    "FallbackWarning",
    "Mask",
    "NotLocked",
    "Plan",
    "Receipt",
    "Reference",
    "Rotary",
    "Unsupported",
    "attention",
    "dequantise",
    "events",
    "explain",
    "kernels",
    "merge",
    "metrics",
    "plan",
    "proof",
    "quantise",
    "recorder",
    "reference",
    "scaled_dot_product_attention",
    "trace",
]


def __getattr__(name: str) -> Any:
    """These are imported when they are first asked for: PyTorch is large, and may be missing."""
    if name not in ("flash_attn", "torch", "transformers", "watch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return importlib.import_module(f".{name}", __name__)
    except ModuleNotFoundError as missing:
        raise AttributeError(f"tileproof.{name} needs PyTorch (pip install torch): {missing}") from missing
