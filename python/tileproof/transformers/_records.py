# SPDX-License-Identifier: Apache-2.0
"""What every attention layer did, by module, and what became of masks, by config. Nothing here keeps a model alive."""
from __future__ import annotations

import functools
import re
import threading
import weakref
from typing import Any, Optional, Union

import torch

from .. import _core
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

    def note(self, receipt: Union[Receipt, bytes], mask: str) -> None:
        kernel, problem, fallback = _said(receipt)
        key = (kernel, _class_of(problem), mask)
        with _lock:
            row = self.calls.setdefault(key, [0, problem, fallback])
            row[0] += 1
            row[1] = problem


_KEYS = re.compile(r" k\d+")
_of_any_keys = functools.lru_cache(1024)(lambda text: class_of(text)[0])


@functools.lru_cache(1024)  # layers of one step have the same problem
def _class_of(problem: str) -> str:
    """It does not depend on the number of keys, which grows from step to step."""
    return _of_any_keys(_KEYS.sub("", problem))


def _said(receipt: Union[Receipt, bytes]) -> tuple[str, str, bool]:
    """Kernel, problem and fallback, without a text of the whole receipt: this is asked of every call."""
    made = Receipt(receipt) if isinstance(receipt, bytes) else receipt
    return _core.receipt_said(made._raw) if isinstance(made._raw, bytes) else (made.kernel, made.problem, made.fallback)


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
