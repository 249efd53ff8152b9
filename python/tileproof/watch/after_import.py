# SPDX-License-Identifier: Apache-2.0
"""Something to be done when a module has been imported, and before anybody gets a name from it."""
from __future__ import annotations

import importlib.abc
import importlib.util
from typing import Any, Callable, Optional


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls a function when one of some modules has been imported."""

    def __init__(self, names: tuple[Any, ...], then: Callable[[], None]) -> None:
        self.names, self.then = names, then
        self._busy: set[Any] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        if name not in self.names or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        loader, run, then = spec.loader, spec.loader.exec_module, self.then

        def exec_module(module: Any) -> None:
            setattr(loader, "exec_module", run)
            run(module)
            then()

        setattr(loader, "exec_module", exec_module)
        return spec
