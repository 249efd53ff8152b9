# SPDX-License-Identifier: Apache-2.0
"""One call of attention as engines are given it: sizes, mask, and q, k, v as [token][head][dim], sequences one after another.
Only NumPy is needed."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Optional

import numpy as np


class NotServed(Exception):
    """An engine has no path for this; the text says why."""


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 to bf16 bits, round to nearest even; NaN stays one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def store(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values as the elements of a dtype; bf16 as uint16."""
    if dtype == "bf16":
        return to_bf16(values)
    return np.ascontiguousarray(values, np.float16 if dtype == "f16" else np.float32)


def load(elements: np.ndarray, dtype: str) -> np.ndarray:
    return from_bf16(elements) if dtype == "bf16" else elements.astype(np.float32)


ELEMENT = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


@dataclasses.dataclass
class Variant:
    """One way in which an engine can serve a cell."""

    name: str
    run: Callable[[], object]
    output: Callable[[], Any]  # of the last run, float32 [token][head][dim]
    reset: Callable[[], object] = lambda: None  # before each turn, not timed
    stored: Callable[[], Any] = lambda: None  # as output, in the cell's own dtype; of engines whose runner asks for it


@dataclasses.dataclass
class Answer:
    """What a runner says of one call."""

    output: np.ndarray  # [token][head][dim]; float32, or as stored
    kernel: str = ""  # that was observed; "": not observable
    observed: str = ""  # who named it: profiler, dispatcher, log
    fused: str = "unknown"  # yes, no
    reasons: tuple[Any, ...] = ()
    temporary: int = 0  # bytes; 0: not measured
    time_ns: float = 0.0


@dataclasses.dataclass
class Cell:
    text: str
    dtype: str
    q_heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    scale: float
    lengths: tuple[Any, ...]  # (q_len, kv_len) of each sequence
    stored: dict[str, Any]  # q, k, v
    mask: str = "full"  # causal, causal_window (bottom-right), visible: none of these
    window: int = 0
    softcap: float = 0.0
    shown: Optional[np.ndarray] = None  # bytes: [q_len][kv_len] of each sequence, one after another
    sinks: Optional[np.ndarray] = None  # [q_heads]
    slopes: Optional[np.ndarray] = None  # [sequence][q_heads]
    q_factors: Optional[np.ndarray] = None  # [q token]
    time_ns: float = 0.0  # for a time of the call; 0: it is not wanted

    def __post_init__(self) -> None:
        self.q_start = np.cumsum([0] + [q for q, _ in self.lengths])
        self.kv_start = np.cumsum([0] + [k for _, k in self.lengths])

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def q_len(self) -> int:
        return max(int(q) for q, _ in self.lengths)

    @property
    def kv_len(self) -> int:
        return max(int(k) for _, k in self.lengths)

    @property
    def uniform(self) -> bool:
        return len(set(self.lengths)) == 1

    @property
    def square(self) -> bool:
        return all(q == k for q, k in self.lengths)

    @property
    def usual_scale(self) -> bool:
        """1/sqrt(head dim), as far as a float32 says."""
        return math.isclose(self.scale, self.head_dim**-0.5, rel_tol=1e-6)

    def sequence(self, name: str, index: int, stored: bool = False) -> np.ndarray:
        """[token][head][dim] of one sequence."""
        start = self.q_start if name in ("q", "d_o") else self.kv_start
        part = self.stored[name][start[index] : start[index + 1]]
        return part if stored else load(part, self.dtype)

    def padded(self, name: str, stored: bool = False) -> np.ndarray:
        """[batch][token][head][dim], short sequences padded at their end with zeros."""
        parts = [self.sequence(name, i, stored) for i in range(self.batch)]
        whole = np.zeros((len(parts), max(len(x) for x in parts)) + parts[0].shape[1:], parts[0].dtype)
        for i, part in enumerate(parts):
            whole[i, : len(part)] = part
        return whole

    def unpad(self, whole: np.ndarray) -> np.ndarray:
        """[batch][token][head][dim] back to [token][head][dim]."""
        return np.concatenate([whole[i, :q] for i, (q, _) in enumerate(self.lengths)])

    def visible(self, index: int) -> np.ndarray:
        """[q_len][kv_len] of bool."""
        q_len, kv_len = self.lengths[index]
        if self.shown is not None:
            first = sum(q * k for q, k in self.lengths[:index])
            return self.shown[first : first + q_len * kv_len].reshape(q_len, kv_len).astype(bool)
        position, key = np.arange(q_len)[:, None] + kv_len - q_len, np.arange(kv_len)[None, :]
        seen = np.ones((q_len, kv_len), bool)
        if self.mask != "full":
            seen &= key <= position
        if self.mask == "causal_window":
            seen &= key >= position - self.window
        return seen

    def alone(self, index: int) -> Cell:
        """One of its sequences as a cell."""
        q, k = self.lengths[index]
        first = sum(a * b for a, b in self.lengths[:index])
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Cell)}  # without what a subclass adds
        own |= {
            "lengths": ((q, k),),
            "stored": {name: self.sequence(name, index, stored=True) for name in "qkv"},
            "shown": None if self.shown is None else self.shown[first : first + q * k],
            "slopes": None if self.slopes is None else self.slopes[index : index + 1],
            "q_factors": None if self.q_factors is None else self.q_factors[self.q_start[index] : self.q_start[index + 1]],
        }
        return Cell(**own)

    def parts(self) -> list[Cell]:
        """Itself, where all sequences have the same lengths and, so, one mask; otherwise a cell a sequence that has rows."""
        if self.uniform and (self.mask != "visible" or self.batch == 1) and (self.slopes is None or self.batch == 1):
            return [self]
        return [self.alone(i) for i, (q, _) in enumerate(self.lengths) if q]

    def bias(self) -> np.ndarray:
        """[1 or q_heads][q_len][kv_len] of float32 for one of parts(): -inf where a key is hidden, and slopes."""
        q_len, kv_len = self.lengths[0]
        hidden = np.where(self.visible(0), np.float32(0), np.float32(-np.inf))[None]
        if self.slopes is None:
            return hidden
        distance = np.abs(np.arange(q_len)[:, None] + kv_len - q_len - np.arange(kv_len)[None, :]).astype(np.float32)
        biased: np.ndarray[Any, Any] = hidden - self.slopes[0][:, None, None] * distance
        return biased

    def scaled_q(self) -> np.ndarray:
        """q as stored, with the factors of its rows."""
        if self.q_factors is None:
            stored: np.ndarray[Any, Any] = self.stored["q"]
            return stored
        return store(load(self.stored["q"], self.dtype) * self.q_factors[:, None, None], self.dtype)
