# SPDX-License-Identifier: Apache-2.0
"""Attention that a model writes out: a product whose result goes through a softmax into a second product. Recognised by shape
and order on one thread: bmm gives (b, n, m), softmax takes (..., n, m) over m (or m + 1: a column of sinks), and the first
operand of the next bmm is (b, n, m). In a graph that inductor wrote the softmax is generated and not seen: there the code
between the two products must name one."""
from __future__ import annotations

import functools
import linecache
import sys
import time
from typing import Any, Callable, Iterator, Optional

from . import hooks as _hooks
from . import ops, where
from .hooks import Call, local, traced, watched

MASKS = ("attention_mask", "attn_mask", "mask", "causal_mask")
NAMES = (*MASKS, "key", "softcap", "dropout", "scaling")
WEIGHTS = 7  # how many fields say what a softmax gave; scores have fewer
_generated: dict[tuple[Any, ...], bool] = {}


def hooks() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, at in ops.PRODUCTS.items():
        yield name, lambda old, at=at: _product(old, at)
    for name in ops.SOFTMAXES:
        yield name, _softmax


class _Like:
    """A tensor that is no more, as far as a Read needs it."""

    is_nested = False

    def __init__(self, x: Any) -> None:
        self.dtype, self.is_cuda, self._size = x.dtype, x.is_cuda, int(x.element_size())

    def element_size(self) -> int:
        return self._size


def _mask(found: dict[str, Any]) -> tuple[Any, str]:
    """The caller's mask, where it has one by a usual name."""
    for name in MASKS:
        if name in found:
            return (found[name] if hasattr(found[name], "dtype") else None), ""
    return None, "mask not seen"


def _read(weights: tuple[Any, ...], a: Any, b: Any, frame: Any) -> tuple[str, ops.Read, str]:
    """Kernel, arguments and a note. What the shapes do not say is looked up in the frame that multiplies."""
    (_, rows, dim), keys, like, _, _, shape, _ = weights
    batch, heads = (shape[0], shape[1]) if len(shape) == 4 else (1, a.shape[0])
    kernel, kv_heads = "eager", heads
    options: tuple[tuple[str, Any], ...] = ()
    if frame.f_globals.get("__name__", "").endswith("_higher_order_ops.flex_attention"):
        kernel, mask, note = "flex_eager", None, "its mask and score functions are not in the text"
        while frame.f_back is not None and frame.f_code.co_name != "sdpa_dense":
            frame = frame.f_back
        found = where.local(frame, "key")
    else:
        found = where.local(frame, *NAMES)
        mask, note = _mask(found)
    key: Any = found.get("key")
    if getattr(key, "shape", None) is not None and len(key.shape) == 4 and key.shape[-2] == keys and heads % key.shape[1] == 0:
        kv_heads = key.shape[1]
    if isinstance(found.get("softcap"), (int, float)) and found["softcap"] > 0:
        options += (("softcap", float(found["softcap"])),)
    if shape[-1] == keys + 1:
        options += (("sinks", True),)
    scale = found.get("scaling")
    dropout = found.get("dropout")
    sizes = (batch, heads, rows, dim), (batch, kv_heads, keys, dim)
    read = ops.Read(
        like, like, like, *sizes, b.shape[2], mask, float(dropout) if isinstance(dropout, (int, float)) else 0.0, False,
        scale if isinstance(scale, float) else None, "bottom_right", (), options,
    )  # fmt: skip
    return kernel, read, note


def _is_generated_softmax(frame: Any, since: Any) -> bool:
    """Does the code of a compiled graph between two of its lines call a kernel with a softmax in its name?"""
    code, (file, first), last = frame.f_code, since, frame.f_lineno
    if code.co_filename != file or where.kind_of(code) != where.COMPILED:
        return False
    key = (file, first, last)
    if key not in _generated:
        lines = (linecache.getline(file, n) for n in range(first, last))
        _generated[key] = any("softmax" in x and not x.lstrip().startswith("#") for x in lines)
    return _generated[key]


def _follows(a: Any, b: Any) -> Optional[tuple[Any, ...]]:
    """The scores or weights that this product takes up, by their shape."""
    found = local.weights or local.scores
    local.weights = None
    if found is None:
        return None
    (batch, rows, _), keys = found[:2]
    return found if tuple(a.shape) == (batch, rows, keys) and b.shape[1] == keys else None


def _second(found: tuple[Any, ...], a: Any, b: Any, frame: Any) -> Optional[Call]:
    """The call, if this product is the last step of one."""
    if len(found) == WEIGHTS:
        kernel, read, note = _read(found, a, b, frame)
        call = Call("bmm, softmax, bmm", kernel, read, frame)
        call.note, call.peak_bytes, call.start_ns = note, found[4] + found[6], found[3]
        return call
    (batch, rows, dim), keys, like, start, size, since = found
    if not _is_generated_softmax(frame, since):
        return None
    sizes = (1, batch, rows, dim), (1, batch, keys, dim)
    call = Call("bmm, generated softmax, bmm", "compiled_math", ops.Read(like, like, like, *sizes, b.shape[2]), frame)
    call.note, call.peak_bytes, call.start_ns = "batch and heads are one number here; mask not seen", size, start
    return call


def _product(old: Callable[..., Any], at: int) -> Callable[..., Any]:
    def product(keyset: Any, *args: Any, **options: Any) -> Any:
        if not _hooks.listeners or local.call is not None or traced(args[at]):
            return old(keyset, *args, **options)
        a, b, frame = args[at], args[at + 1], where.caller(sys._getframe(1))
        found = _follows(a, b)
        made: list[Optional[Call]] = []

        def make() -> Optional[Call]:
            made.append(None if found is None else _second(found, a, b, frame))
            return made[0]

        start = time.perf_counter_ns()
        run = functools.partial(old, keyset, *args, **options)
        out = run() if found is None else watched(make, run)
        if made and made[0] is not None:
            local.scores = None
        else:
            size = out.numel() * out.element_size()
            local.scores = (tuple(a.shape), b.shape[2], _Like(a), start, size, (frame.f_code.co_filename, frame.f_lineno))
        return out

    return product


def _softmax(old: Callable[..., Any]) -> Callable[..., Any]:
    def softmax(keyset: Any, *args: Any, **options: Any) -> Any:
        scores = local.scores
        if scores is None or not _hooks.listeners or local.call is not None:
            return old(keyset, *args, **options)
        out = old(keyset, *args, **options)
        x = args[0]
        (batch, rows, _), keys = scores[:2]
        shape = tuple(x.shape)
        is_last = args[1] in (-1, len(shape) - 1)
        if len(shape) >= 3 and is_last and shape[-2] == rows and shape[-1] in (keys, keys + 1) and x.numel() == batch * rows * shape[-1]:
            # sizes of q, keys, q itself, start, bytes of the scores, the shape, bytes of the weights
            local.weights = (scores[0], keys, scores[2], scores[3], scores[4], shape, out.numel() * out.element_size())
        return out

    return softmax
