# SPDX-License-Identifier: Apache-2.0
"""A problem as the text form says it, and its data. Only numpy is needed."""
import dataclasses
import re

import numpy as np
import tileproof
from tileproof.engines.cell import Cell, from_bf16, load, store, to_bf16  # noqa: F401

# Largest error against float64, in parts of the largest output, beyond which a result is wrong and not just
# rounded. Wide on purpose: ggml sums f16 values in f16, and in the first rows a wrong mask is off by far more.
LIMIT = {"f32": 1e-4, "f16": 4e-2, "bf16": 4e-2}
# Quantised k and v that some peer has, too, by the words of the text form; others are refused.
CACHES = {("i8", "q8_0"): "i8/q8_0", ("e4m3", "tensor"): "e4m3"}
E4M3_SCALE = 2.0**-6  # of k and of v: values of a normal distribution stay below 448 of it


@dataclasses.dataclass(frozen=True)
class Problem:
    text: str
    phase: str
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    lengths: tuple  # (q_len, kv_len) of each sequence
    packed: bool
    causal: bool
    left: int  # keys seen to the left of a row's own position; -1: all
    cache: str  # "", or how k and v are quantised: one of CACHES

    @property
    def backward(self):
        return self.phase == "backward"

    @property
    def group(self):
        return self.q_heads // self.kv_heads

    @property
    def scale(self):
        return self.head_dim**-0.5

    @property
    def batch(self):
        return len(self.lengths)

    @property
    def q_len(self):
        return max(q for q, _ in self.lengths)

    @property
    def kv_len(self):
        return max(k for _, k in self.lengths)

    @property
    def square(self):
        return all(q == k for q, k in self.lengths)

    @property
    def masked(self):
        """Does a mask hide any key? One row at the end sees all keys when causal."""
        return (self.causal and self.q_len > 1) or self.windowed

    @property
    def windowed(self):
        return 0 <= self.left < self.kv_len - 1

    def visible(self, q_len, kv_len, rows):
        """[rows][kv_len] of bool, bottom-right aligned."""
        position = np.asarray(rows)[:, None] + kv_len - q_len
        key = np.arange(kv_len)[None, :]
        seen = np.ones((len(rows), kv_len), bool)
        if self.causal:
            seen &= key <= position
        if self.left >= 0:
            seen &= key >= position - self.left
        return seen


def parse(text):
    """The text form as tileproof prints it. What no peer can be given is refused."""
    words = text.split()
    phase = words.pop(0)
    found = {"packed": False, "causal": False, "left": -1, "cache": ""}
    batch, codes, scales = 1, None, "tensor"
    for word in words:
        if match := re.fullmatch(r"b(\d+)", word):
            batch = int(match[1])
        elif match := re.fullmatch(r"h(\d+)/(\d+)", word):
            found["q_heads"], found["kv_heads"] = int(match[1]), int(match[2])
        elif match := re.fullmatch(r"([qkd])(\d+)", word):
            found[match[1]] = int(match[2])
        elif word in LIMIT:
            found["dtype"] = word
        elif match := re.fullmatch(r"(\w+):(i8|e4m3):\2->\1", word):
            found["dtype"], codes = match[1], match[2]
        elif match := re.fullmatch(r"scales=(q8_0)", word):
            scales = match[1]
        elif word.startswith("seqs="):
            found["lengths"] = sequences(word[5:])
        elif word in ("packed", "causal"):
            found[word] = True
        elif word == "p=bf16":
            pass  # it permits tileproof what peers do unasked: probabilities rounded to bf16
        elif match := re.fullmatch(r"window=(\d+),0", word):
            found["left"] = int(match[1])
        else:
            raise ValueError(f"word '{word}' of '{text}': peers are not given such problems")
    if codes is not None and (codes, scales) not in CACHES:
        raise ValueError(f"'{text}': of quantised k and v peers are given {' and '.join(CACHES.values())}")
    if codes is not None:
        found["cache"] = CACHES[codes, scales]
    lengths = found.pop("lengths", None) or ((found.pop("q"), found.pop("k")),) * batch
    if found["left"] >= 0 and not found["causal"]:
        raise ValueError(f"'{text}': a window must be causal here")
    return Problem(text=text, phase=phase, head_dim=found.pop("d"), lengths=tuple(lengths), **found)


def sequences(text):
    lengths = []
    for entry in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d+)/(\d+)", entry)
        if not match:
            raise ValueError(f"seqs entry '{entry}': it must be COUNTxQ/K")
        lengths += [(int(match[2]), int(match[3]))] * int(match[1])
    return lengths


LINE = 64  # bytes of a cache line


def placed(array):
    """A copy that begins at a cache line, as tensors of frameworks and engines' caches do. NumPy's own memory may begin 16 bytes
    behind one, and every vector is then read from two."""
    memory = np.empty(array.nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Case(Cell):
    """A problem with its data, as engines are given it."""

    def __init__(self, problem, seed=1):
        self.problem = problem
        random = np.random.default_rng(seed)
        q_tokens = sum(q for q, _ in problem.lengths)
        kv_tokens = sum(k for _, k in problem.lengths)
        stored = {
            name: store(random.standard_normal((tokens, heads, problem.head_dim), np.float32), problem.dtype)
            for name, tokens, heads in (
                ("q", q_tokens, problem.q_heads),
                ("k", kv_tokens, problem.kv_heads),
                ("v", kv_tokens, problem.kv_heads),
            )
        }
        if problem.backward:
            d_o = random.standard_normal((q_tokens, problem.q_heads, problem.head_dim), np.float32)
            stored["d_o"] = store(d_o, problem.dtype)
        # what was stored, as float32: every peer gets these values and no others
        self.values = {name: load(elements, problem.dtype) for name, elements in stored.items()}
        self.codes = {}
        for name in "kv" if problem.cache else "":
            scale = E4M3_SCALE if problem.cache == "e4m3" else None
            self.codes[name] = tileproof.quantise(self.values[name], problem.cache, scale=scale)[0]
            self.values[name] = tileproof.dequantise(self.codes[name], scale, problem.cache)
            stored[name] = store(self.values[name], problem.dtype)
        stored = {name: placed(elements) for name, elements in stored.items()}
        self.codes = {name: placed(codes) for name, codes in self.codes.items()}
        super().__init__(
            text=problem.text, dtype=problem.dtype, q_heads=problem.q_heads, kv_heads=problem.kv_heads,
            head_dim=problem.head_dim, head_dim_v=problem.head_dim, scale=problem.scale, lengths=problem.lengths, stored=stored,
            mask="causal_window" if problem.windowed else "causal" if problem.masked else "full", window=max(problem.left, 0),
        )  # fmt: skip

    def sequence(self, name, index, stored=False):
        """[token][head][dim] of one sequence."""
        start = self.q_start if name in ("q", "d_o") else self.kv_start
        return (self.stored if stored else self.values)[name][start[index] : start[index + 1]]
