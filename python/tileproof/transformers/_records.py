# SPDX-License-Identifier: Apache-2.0
"""What every attention layer did, by module, and what became of masks, by config. Nothing here keeps a model alive."""
from __future__ import annotations

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
        self.calls: dict[tuple[str, str, str], list] = {}  # [how many, longest problem text]
        self.refusals: dict[str, int] = {}
        self.arrays: dict[str, int] = {}

    def note(self, receipt: Receipt, mask: str) -> None:
        key = (receipt.kernel, class_of(receipt.problem)[0], mask)
        with _lock:
            row = self.calls.setdefault(key, [0, receipt.problem, receipt.fallback])
            row[0] += 1
            row[1] = receipt.problem


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
