# SPDX-License-Identifier: Apache-2.0
"""What every attention layer did, by module, and what became of masks, by config. Nothing here keeps a model alive."""
from __future__ import annotations

import functools
import re
import threading
import weakref
from typing import Any, Optional

import torch

from .._reports import Receipt
from ..watch.problem import class_of

NAME = "tileproof"


def not_on_cpu(what: str, device: Any) -> Exception:
    remedy = "model.to('cpu')" if device.type != "meta" else "load the weights first"
    return ValueError(
        f"{what} is on {device}: attn_implementation={NAME!r} serves the CPU; {remedy}, or model.set_attn_implementation('sdpa')"
    )


class Layer:
    """Of one module: calls by (kernel, problem class, mask), the largest problem of each, and refusals by text."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str, str], list[Any]] = {}  # [how many, longest problem text]
        self.refusals: dict[str, int] = {}
        self.arrays: dict[str, int] = {}

    def note(self, receipt: Receipt, mask: str) -> None:
        kernel, problem, fallback = _said(receipt)
        key = (kernel, _class_of(_KEYS.sub("", problem)), mask)
        with _lock:
            row = self.calls.setdefault(key, [0, problem, fallback])
            row[0] += 1
            row[1] = problem


_KEYS = re.compile(r" k\d+")
_class_of = functools.lru_cache(1024)(lambda text: class_of(text)[0])  # it does not depend on the number of keys


def _said(receipt: Receipt) -> tuple[str, str, bool]:
    """Kernel, problem and fallback, without reading the rest of the receipt: this is asked of every call."""
    fields = receipt._fields
    kernel, problem = (fields.split(f'"{name}":"', 1)[1].split('"', 1)[0] for name in ("kernel", "problem"))
    return kernel, problem, '"fallback":true' in fields


_lock = threading.Lock()
_layers: weakref.WeakKeyDictionary[torch.nn.Module, Layer] = weakref.WeakKeyDictionary()
_arrays: dict[int, tuple[Any, dict[str, int]]] = {}  # by id of a config: it has no hash


def layer(module: torch.nn.Module) -> Layer:
    with _lock:
        found = _layers.get(module)
        if found is None:
            found = _layers[module] = Layer()
    return found


def known(module: torch.nn.Module) -> Optional[Layer]:
    return _layers.get(module)


def count(into: dict[str, int], text: str) -> None:
    with _lock:
        into[text] = into.get(text, 0) + 1


def note_array(config: Any, text: str) -> None:
    """A mask whose elements a model asked for."""
    if config is None:
        return
    key = id(config)
    with _lock:
        if key not in _arrays:
            _arrays[key] = (weakref.ref(config, lambda _: _arrays.pop(key, None)), {})
    count(_arrays[key][1], text)


def arrays_of(config: Any) -> dict[str, int]:
    return dict(_arrays[id(config)][1]) if id(config) in _arrays else {}


def forget(model: torch.nn.Module) -> None:
    """So that the next report begins here."""
    for module in model.modules():
        _layers.pop(module, None)
        _arrays.pop(id(getattr(module, "config", None)), None)
