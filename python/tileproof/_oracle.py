# SPDX-License-Identifier: Apache-2.0
"""The oracle: the definition of attention in double, with the bound that a kernel keeps; and states of keys apart, merged."""
from __future__ import annotations

import array
import sys
from typing import Any, Literal, NamedTuple, Optional, Sequence, Tuple

from . import _core
from ._api import Array, Layout, More, _more, _refuse_gradient, attention

Precision = Literal["double", "naive"]
Arithmetic = Literal["f32", "opencl", "p=bf16"]
_LAYOUTS = ("bshd", "bhsd", "thd")
_OF_A_RUN = ("out", "return_lse", "return_receipt", "fallback", "kernel", "strategy", "disable", "threads", "tags")


class Reference(NamedTuple):
    """Of the rows (sequence, query head, row) that were asked for, in their order: float64, and rows int64 (count, 3)."""

    rows: Array
    out: Array  # (count, head dim of v)
    lse: Array
    bound: Array  # no element of out may be farther from a kernel's; 0 where there is only a sink, or nothing: equal
    lse_bound: Array


def _by_position(q: Any, k: Any, v: Any, options: dict[str, Any]) -> list[Any]:
    """attention()'s arguments as the extension takes them."""
    for name in options.keys() & set(_OF_A_RUN):
        raise TypeError(f"{name!r} says how a call runs: the reference has no such option")
    signature: Any = getattr(attention, "__signature__")
    bound = signature.bind(q, k, v, **options)
    bound.apply_defaults()
    given = dict(bound.arguments)
    few = {name: given.pop(name) for name in More.__annotations__}
    names = (
        "mask", "mask_tree", "arrays", "q_scale", "indices_sorted", "latent", "codes", "invariant", "dropout_p", "dropout_seed",
        "dropout_offset", "tags", "strategy", "disable",
    )  # fmt: skip
    given |= dict(zip(names, _more(given["mask"], **few)), max_threads=None)
    given |= {name: int(given[name]) for name in ("dropout_seed", "dropout_offset")}
    return [given[name] for name in _core.arguments]


def _array(raw: bytes, kind: str, shape: Tuple[int, ...], like: Any) -> Array:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        dtype = {"d": torch.float64, "q": torch.int64}[kind]
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
    import numpy

    return numpy.frombuffer(raw, kind).reshape(shape).copy()


def reference(
    q: Array, k: Array, v: Optional[Array] = None, *, rows: Optional[Sequence[Tuple[int, int, int]]] = None,
    precision: Precision = "double", arithmetic: Arithmetic = "f32", **options: Any,
) -> Reference:  # fmt: skip
    """attention() by its definition, in naive loops of doubles on one thread, and how far a kernel may be from it.

    rows        (sequence, query head, row) of each row that is computed; None: all of them, which is slow on long inputs.
    precision   "naive": the same loops in float32 with scores, probabilities and outputs rounded to the tensors' dtype, as a plain
                kernel would; bounds are then 0.
    arithmetic  of the kernel that is judged, as its receipt has it: the bound goes by it.
    options     what attention() computes: masks, scale, lengths, pages, codes. Not how: kernel, threads, out. out counts as being of q's dtype.

    >>> import numpy as np
    >>> q, k, v = (np.random.default_rng(0).standard_normal((1, 3, 2, 8)).astype(np.float32) for _ in "qkv")
    >>> out, exact = attention(q, k, v, causal=True), reference(q, k, v, causal=True)
    >>> s, h, r = exact.rows.T
    >>> bool((abs(out[s, r, h] - exact.out) <= exact.bound[:, None]).all()), float(exact.bound.max()) < 1e-5
    (True, True)
    """
    _refuse_gradient("the reference", q=q, k=k, v=v, bias=options.get("bias"), alibi_slopes=options.get("alibi_slopes"), sinks=options.get("sinks"))
    if precision not in ("double", "naive"):
        raise ValueError(f'precision is {precision!r}: it must be "double" or "naive"')
    wanted = None
    if rows is not None:
        triples = [tuple(map(int, row)) for row in rows]
        if any(len(row) != 3 for row in triples):
            raise ValueError("rows must be triples (sequence, query head, row)")
        wanted = array.array("q", [x for row in triples for x in row]).tobytes()
    raw, *doubles = _core.reference(*_by_position(q, k, v, options), wanted, precision == "naive", arithmetic)
    count = len(raw) // 24
    shapes = ((count, len(doubles[0]) // 8 // max(count, 1)), (count,), (count,), (count,))
    return Reference(_array(raw, "q", (count, 3), q), *(_array(x, "d", shape, q) for x, shape in zip(doubles, shapes)))


def merge(*states: Tuple[Array, Array], layout: Layout = "bshd") -> Tuple[Array, Array]:
    """(out, lse) of all keys, from the (out, lse) of keys apart, each as attention(..., return_lse=True) gives them in this layout.

    float32. Sums are in double, rounded once; each lse came in as a float, which costs up to 2^-23 * max|lse| * max|out|. A state
    whose lse is -inf is empty, and its out is not read; one that is alone comes back bit for bit.

    >>> import numpy as np
    >>> q, k, v = (np.random.default_rng(1).standard_normal((1, 6, 2, 8)).astype(np.float32) for _ in "qkv")
    >>> parts = [attention(q, k[:, at], v[:, at], return_lse=True) for at in (slice(0, 4), slice(4, 6))]
    >>> out, lse = merge(*parts)
    >>> bool(abs(out - attention(q, k, v)).max() < 1e-6)
    True
    """
    if layout not in _LAYOUTS:
        raise ValueError(f'layout is {layout!r}: it must be "bshd", "bhsd" or "thd"')
    if not states or any(not isinstance(x, tuple) or len(x) != 2 for x in states):
        raise ValueError("merge() takes states, each a tuple (out, lse), and at least one")
    for out, lse in states:
        _refuse_gradient("merge()", out=out, lse=lse)
    return _core.merge(states, _LAYOUTS.index(layout))
