# SPDX-License-Identifier: Apache-2.0
"""`import flash_attn` where flash-attn is not installed."""
from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any, Optional

HERE = __package__  # tileproof.flash_attn
MODULES = {  # what can be imported -> whether it has modules inside
    "flash_attn": True,
    "flash_attn.bert_padding": False,
    "flash_attn.flash_attn_interface": False,
    "flash_attn.layers": True,
    "flash_attn.layers.rotary": False,
}


class _Loader(importlib.abc.Loader):
    """A module with the names of tileproof's, and the modules inside it."""

    def create_module(self, spec: ModuleSpec) -> Optional[types.ModuleType]:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        ours = importlib.import_module(HERE + name.removeprefix("flash_attn"))
        kept = ("__version__", "__doc__", "__all__")
        for key, value in vars(ours).items():
            if not isinstance(value, types.ModuleType) and (key in kept or not key.startswith("__")):
                setattr(module, key, value)
        for child in MODULES:
            if child.rpartition(".")[0] == name:
                importlib.import_module(child)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name not in MODULES:
            return None
        return ModuleSpec(name, _Loader(), origin=f"{HERE}.install()", is_package=MODULES[name])


_finder = _Finder()


def install() -> None:
    """From now on `import flash_attn`, and its modules of these names, give tileproof's functions. It is refused where flash_attn
    is installed or has been imported: that one stays what it is. Calling it again does nothing."""
    if _finder in sys.meta_path:
        return
    there = sys.modules.get("flash_attn") or importlib.util.find_spec("flash_attn")
    if there is not None:
        place = getattr(there, "__file__", None) or getattr(there, "origin", None) or "a place that it does not name"
        raise RuntimeError(
            f"flash_attn is there already, from {place}: install() does not replace it. Call tileproof.flash_attn's functions by "
            "their own names, or uninstall that package (pip uninstall flash-attn)"
        )
    sys.meta_path.append(_finder)


def uninstall() -> None:
    """`import flash_attn` fails again. Functions that somebody has imported stay tileproof's."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        for name in MODULES:
            sys.modules.pop(name, None)
