# SPDX-License-Identifier: Apache-2.0
"""Which attention does this PyTorch process really run? Watching routes nothing: docs/watch.md.

    python -m tileproof.watch script.py ...

    with tileproof.watch() as seen:
        model(x)
    print(seen.table())
"""
from __future__ import annotations

import importlib
import sys
import types
from typing import Any

__all__ = ["DriftError", "DriftWarning", "LockError", "Watch", "unhook"]
_HOMES = {"DriftError": "records", "DriftWarning": "records", "Watch": "records", "LockError": "lock", "unhook": "hooks"}


class _Callable(types.ModuleType):
    """tileproof.watch is this package, and can be called. What needs PyTorch is imported when it is first asked for: a program
    that `python -m tileproof.watch` runs may want to set its environment before."""

    def __call__(self, **options: Any) -> Any:
        """Watches all attention of the process until close() of what it returns, or until `with` ends.

        every       memory is measured on each so many calls of a class (and CUDA's times); class, kernel, time and drift
                    are taken on every call.
        lock        a file that save_lock() or `tileproof qualify` wrote; on_drift is what happens to a call that it does not
                    have, or that another kernel serves: "warn" (once a class), "raise" (DriftError, the call does not run),
                    "count".
        trace       a file for a line of JSON a call; metrics: a file of Prometheus text, written anew every metrics_seconds.
        model       a name for records, in place of the class of the outermost module.
        """
        return self.Watch(**options)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


sys.modules[__name__].__class__ = _Callable
