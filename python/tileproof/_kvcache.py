# SPDX-License-Identifier: Apache-2.0
"""The KV cache (docs/cache.md): tp_cache from Python."""
from __future__ import annotations

import array
import operator
from typing import Any, Dict, Iterable, Literal, NamedTuple, Optional, Required, Sequence, Tuple, TypedDict, Union, Unpack

from . import _core
from ._api import Array, Format, _refuse_gradient, _written, attention
from ._rotary import Rotary
from .proof import Model

Dtype = Literal["float32", "float16", "bfloat16"]
Stored = Union[Dtype, Format]
Scale = Union[None, float, Sequence[float]]
Sequences = Union[int, Sequence[int]]


class CacheLayer(NamedTuple):
    """What one layer keeps of a token. dtype is k's, and v's unless v_dtype is given: "float32", "float16", "bfloat16", or a format of codes,
    in the words of docs/quantised.md: "i8", "i8/q8_0", "i4", "e4m3", "e4m3/token". k_scale and v_scale: of "e4m3", the one scale of the
    whole layer. latent: v's rows are the first head_dim_v elements of k's. kv_heads 0: it keeps nothing."""

    kv_heads: int
    head_dim: int
    head_dim_v: Optional[int] = None
    dtype: Stored = "bfloat16"
    v_dtype: Optional[Stored] = None
    k_scale: Optional[float] = None
    v_scale: Optional[float] = None
    latent: bool = False

    def _by_position(self) -> Tuple[Any, ...]:
        if self.v_dtype is not None and any(":" in str(x) for x in (self.dtype, self.v_dtype)):
            raise ValueError(f"dtype is {self.dtype!r} and v_dtype {self.v_dtype!r}: where both are given each is one side's; K:V stands alone, as dtype")
        v_dim = self.head_dim if self.head_dim_v is None else self.head_dim_v
        v_scale = self.k_scale if self.latent else self.v_scale
        return self.kv_heads, self.head_dim, v_dim, self.dtype, self.v_dtype or self.dtype, self.k_scale, v_scale, int(self.latent)


class CacheOptions(TypedDict, total=False):
    """Arguments of Cache and of Cache.plan, by name."""

    bytes: Required[int]
    sequences: Required[int]
    tokens: int
    page_size: int
    layout: Literal["bshd", "bhsd"]
    name: Optional[str]
    dtype: Optional[Dtype]
    cache: Optional[Format]
    part: Literal["text", "cross"]
    k_scale: Scale
    v_scale: Scale


_OF_A_MODEL: Dict[str, Any] = {"dtype": None, "cache": None, "part": "text", "k_scale": None, "v_scale": None}


def _options(
    layers: Union[Model, Iterable[CacheLayer]], *, bytes: int, sequences: int, tokens: int = 0, page_size: int = 16,
    layout: Literal["bshd", "bhsd"] = "bshd", name: Optional[str] = None, **of_a_model: Any,
) -> Tuple[Any, ...]:  # fmt: skip
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f'layout is {layout!r}: it must be "bshd", tokens of a page before heads, or "bhsd"')
    for option in of_a_model.keys() - _OF_A_MODEL:
        raise TypeError(f"{option!r} is no option of a Cache")
    if isinstance(layers, Model):
        of_model = {**_OF_A_MODEL, **of_a_model}
        return (layers._model, bytes, sequences, tokens, page_size, layout == "bhsd", name, *map(_scale, of_model.values()))
    for option, x in of_a_model.items():
        if x is not None:
            raise ValueError(f"{option} is {x!r} with layers: each CacheLayer has its own, so it must be left out")
    given = tuple(CacheLayer(*x)._by_position() for x in layers)
    return (given, bytes, sequences, tokens, page_size, layout == "bhsd", name, *_OF_A_MODEL.values())


def _scale(x: Any) -> Any:
    """A list of scales, one for each layer, as the extension takes it."""
    return x if x is None or isinstance(x, (str, int, float)) or not hasattr(x, "__len__") else tuple(x)


def _many(sequences: Sequences) -> Tuple[int, ...]:
    try:
        return (operator.index(sequences),)  # type: ignore[arg-type]  # what it refuses are several
    except TypeError:
        return tuple(sequences)  # type: ignore[arg-type]


def _each(tokens: Union[None, int, Sequence[int]], count: int, rows: Optional[int] = None) -> Tuple[int, ...]:
    """How many of each sequence; None: the rows, in equal parts."""
    if tokens is None and rows is not None:
        if count == 0 or rows % count != 0:
            raise ValueError(f"there are {rows} rows and {count} sequences: tokens must say how many rows each has")
        return (rows // count,) * count
    each = (tokens,) * count if isinstance(tokens, int) else tuple(tokens or ())
    return each


class Cache:
    """Keys and values of all layers of a model, in pages, for many sequences that come, grow, fork and go.

    layers      a CacheLayer for each, or a proof.Model, whose config says them, and of a model:
      cache     the format, as in proof.preflight: "plain", "i8", "e4m3/token", "plain:i8" (docs/quantised.md); None: plain
      dtype     of what is plain; None: the config's
      part      "text", or "cross": the layers whose keys are an encoder's, as of whisper, which have a cache of their own
      k_scale, v_scale   of "e4m3", which has one scale for a whole layer: a number, or one for each layer
    bytes       the most that everything may take; CacheFull when a step finds no page
    sequences   open at the same time, at most; tokens: of one sequence, at most (a model's own if left out)
    layout      of a page: "bshd" has tokens before heads, "bhsd" heads before tokens
    name        the label of its metrics

    A step: extend() once, then for each layer append() and attention(). Rows of several sequences lie one behind the other, in the
    order in which the sequences are named. A call that is refused changes nothing. One thread uses a sequence at a time.

    >>> import numpy as np
    >>> cache = Cache([CacheLayer(kv_heads=2, head_dim=16, dtype="float32")] * 2, bytes=1 << 20, sequences=4, tokens=64)
    >>> one, two = cache.open(), cache.open()
    >>> random = np.random.default_rng(0)
    >>> q, k, v = (random.standard_normal((5, heads, 16)).astype(np.float32) for heads in (4, 2, 2))
    >>> cache.extend([one, two], [3, 2])                          # a prompt of 3 tokens, another of 2
    >>> for layer in range(2):
    ...     cache.append(layer, [one, two], k, v, tokens=[3, 2], q=q, rotary=Rotary(16))
    ...     out = cache.attention(layer, [one, two], q, tokens=[3, 2], causal=True)
    >>> out.shape, cache.length(one), cache.stats()["tokens"]
    ((5, 4, 16), 3, 5)
    """

    def __init__(self, layers: Union[Model, Iterable[CacheLayer]], **options: Unpack[CacheOptions]) -> None:
        self._cache, self.capacity, self.layers = _core.cache_create(*_options(layers, **options), True)

    @staticmethod
    def plan(layers: Union[Model, Iterable[CacheLayer]], **options: Unpack[CacheOptions]) -> Dict[str, int]:
        """pages, tokens, page_bytes, token_bytes and bytes of such a cache, before anything is allocated."""
        capacity: Dict[str, int] = _core.cache_create(*_options(layers, **options), False)[1]
        return capacity

    def open(self) -> int:
        """A new sequence, without tokens: a number that is never given twice."""
        return _core.cache_open(self._cache, None, None)

    def fork(self, sequence: int) -> int:
        """A new sequence that begins as this one does, on the same pages; whoever writes in a shared page gets a copy of it."""
        return _core.cache_open(self._cache, sequence, None)

    def share(self, sequence: int, tokens: int) -> int:
        """The same with its first tokens alone."""
        return _core.cache_open(self._cache, sequence, tokens)

    def extend(self, sequences: Sequences, tokens: Union[int, Sequence[int]]) -> None:
        """Room for so many more tokens in every layer, for all of the sequences or, with CacheFull, for none."""
        many = _many(sequences)
        _core.cache_extend(self._cache, many, _each(tokens, len(many)))

    def truncate(self, sequence: int, tokens: int) -> None:
        """Its first tokens stay."""
        _core.cache_truncate(self._cache, sequence, tokens)

    def close(self, sequence: int) -> None:
        _core.cache_truncate(self._cache, sequence, None)

    def length(self, sequence: int) -> int:
        tokens: int = _core.cache_sequence(self._cache, sequence)[0]
        if tokens < 0:
            raise ValueError(f"sequence {sequence} is not open: it was closed, or never opened here")
        return tokens

    def append(
        self, layer: int, sequences: Sequences, k: Array, v: Optional[Array] = None, *, tokens: Union[None, int, Sequence[int]] = None,
        q: Optional[Array] = None, rotary: Optional[Rotary] = None, positions: Optional[Array] = None,
        angles: Optional[Tuple[Array, Array]] = None, length: int = 0, q_norm: Optional[Array] = None, k_norm: Optional[Array] = None,
        norm_eps: float = 1e-6, norm_one_plus: bool = False,
    ) -> None:  # fmt: skip
        """New keys and values of one layer, (rows, heads, head dim); the layer's dtype is what is kept. A layer in codes loses something here
        and nowhere else: stats()["loss"].

        tokens      rows of each sequence; None: the same for all
        q           (rows, query heads, head dim): normed and rotated in place, as k is on the way
        rotary      by each token's index in its sequence, or `positions` (rows), with sections (3, rows), or `angles`
        q_norm, k_norm   (head dim,): RMS norms before it"""
        _refuse_gradient("a cache", k=k, v=v, q=q, q_norm=q_norm, k_norm=k_norm)
        many = _many(sequences)
        _core.cache_append(
            self._cache, layer, many, _each(tokens, len(many), len(k)), k, v, q, None if rotary is None else rotary._rotary, positions,
            angles, length, q_norm, k_norm, norm_eps, norm_one_plus,
        )  # fmt: skip
        _written(q)

    def attention(
        self, layer: int, sequences: Sequences, q: Array, *, tokens: Union[None, int, Sequence[int]] = None,
        prefixes: Optional[Tuple[Array, Array]] = None, **options: Any,
    ) -> Any:  # fmt: skip
        """tileproof.attention of q, (rows, heads, head dim), to the keys and values of these sequences, where they lie. Options are those of
        attention(), without what the cache knows: layout, lengths, pages, scales.

        tokens      rows of each sequence: their last ones, if causal; None: the same for all
        prefixes    what prefixes(sequences) gave, once a step: what sequences share is read once for all of them"""
        _refuse_gradient("a cache", q=q)
        many = _many(sequences)
        starts = array.array("q", [0])
        for rows in _each(tokens, len(many), len(q)):
            starts.append(starts[-1] + rows)
        if prefixes is not None:
            options["shared_with"], options["shared_lens"] = prefixes
        return attention(q, _core.cache_batch(self._cache, layer, many), layout="thd", cu_seqlens_q=starts, **options)

    def prefixes(self, sequences: Sequence[int]) -> Tuple[Array, Array]:
        """Of each, an earlier one with which it has the most tokens on the same pages (-1: none), and how many."""
        with_, lens = _core.cache_prefixes(self._cache, tuple(sequences))
        return array.array("q", with_), array.array("q", lens)

    def copy_out(self, sequence: int, first: int = 0) -> bytes:
        """Its tokens from `first` on, for copy_in of this cache or of another with the same layers."""
        return _core.cache_copy_out(self._cache, sequence, first)

    def copy_in(self, sequence: int, copied: bytes) -> None:
        """To a sequence that has exactly the tokens before."""
        _core.cache_copy_in(self._cache, sequence, copied)

    def stats(self) -> Dict[str, Union[int, float]]:
        """pages_used, pages_shared, tail_tokens, sequences, tokens, refusals, loss, finite_loss and more."""
        counts: Dict[str, Union[int, float]] = _core.cache_stats(self._cache)[0]
        return counts

    def metrics(self) -> str:
        """The same as Prometheus text, to be written behind tileproof.metrics(). Texts of several caches must not be joined: metrics_of()."""
        return _core.cache_stats(self._cache)[1]

    @staticmethod
    def metrics_of(caches: Sequence[Cache]) -> str:
        """One text of several caches, such as one more for cross layers. Their names must differ."""
        return _core.cache_metrics(tuple(x._cache for x in caches))

    def __repr__(self) -> str:
        counts = self.stats()
        return f"<tileproof.Cache of {self.layers} layers, {counts['pages_used']} of {counts['pages']} pages used by {counts['sequences']} sequences>"
