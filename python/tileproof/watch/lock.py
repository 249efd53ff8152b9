# SPDX-License-Identifier: Apache-2.0
"""What a process is held against: a lock. Two kinds are read:

- what a watcher saved (tileproof.watch-lock/1): for each engine, class and mode (eager, compiled) the kernels that served;
- the lock of `tileproof qualify` (tileproof.lock/2, and 1 before it): classes of models, with this library's kernels. Calls of this library are
  held against class and kernel; calls of other engines against query heads, head dims and dtype alone, because models put
  their masks into tensors, and repeat KV heads, before another engine sees them.

A call whose class the lock has not drifts by class; one that another kernel serves drifts by kernel."""
from __future__ import annotations

import json
import os
import re
from typing import Any, Iterable, Optional

from .problem import class_of

SCHEMA = "tileproof.watch-lock/1"
QUALIFIED = ("tileproof.lock/2", "tileproof.lock/1")


class LockError(ValueError):
    """A lock that cannot be read; the text names file, field and rule."""


def write_file(path: str, text: str) -> None:
    """Whole or not at all, for whoever reads meanwhile. What is no regular file is written as it is."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w") as out:
            out.write(text)
        return
    path = os.path.realpath(path)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def _shape(problem_class: str) -> tuple:
    """What of a class every engine sees: query heads, head dims, dtype."""
    words = problem_class.split()
    heads = next((x[1:].split("/")[0] for x in words if re.match(r"h\d+/", x)), "")
    at = next((i for i, x in enumerate(words) if re.fullmatch(r"d\d+(/\d+)?", x)), -1)
    return heads, words[at] if at >= 0 else "", words[at + 1] if 0 <= at < len(words) - 1 else ""


def _need(value: Any, kind: type, path: str, field: str) -> Any:
    if not isinstance(value, kind):
        raise LockError(f"{path}: {field} is {json.dumps(value)[:60]}: it must be {'an object' if kind is dict else 'a list' if kind is list else 'a text'}")
    return value


def _lists_of_cells(read: dict, path: str) -> Iterable[tuple[str, Any]]:
    """Where cells of this library stand in a lock of tileproof qualify, with the name of the place."""
    if read["schema"] == QUALIFIED[1]:
        for isa, entry in _need(read.get("isas"), dict, path, "isas").items():
            yield f"isas.{isa}.cells", _need(entry, dict, path, f"isas.{isa}").get("cells")
        return
    for i, entry in enumerate(_need(read.get("revisions"), list, path, "revisions")):
        where = f"revisions[{i}]"
        _need(entry, dict, path, where)
        if _need(entry.get("engine"), dict, path, f"{where}.engine").get("name") != "tileproof":
            continue
        for j, group in enumerate(_need(entry.get("groups"), list, path, f"{where}.groups")):
            yield f"{where}.groups[{j}].cells", _need(group, dict, path, f"{where}.groups[{j}]").get("cells")


class Lock:
    def __init__(self, path: str) -> None:
        try:
            with open(path) as file:
                read = json.load(file)
        except OSError as error:
            raise LockError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise LockError(f"{path}: no JSON: {error}") from None
        _need(read, dict, path, "the file")
        self.path, self.identity = path, None
        self._cells: dict[tuple, set] = {}  # (engine, class, mode) -> kernels
        self._shapes: Optional[set] = None  # of a qualification's lock
        schema = read.get("schema")
        if schema == SCHEMA:
            self._read_saved(read)
        elif schema in QUALIFIED:
            self._read_qualified(read)
        else:
            raise LockError(f"{path}: schema is {schema!r}: it must be {SCHEMA!r} (--save-lock) or {QUALIFIED[0]!r} (tileproof qualify)")

    def _read_saved(self, read: dict) -> None:
        self.identity = _need(read.get("identity"), dict, self.path, "identity")
        for i, cell in enumerate(_need(read.get("cells"), list, self.path, "cells")):
            _need(cell, dict, self.path, f"cells[{i}]")
            engine, name, mode, kernel = (
                _need(cell.get(x), str, self.path, f"cells[{i}].{x}") for x in ("engine", "class", "mode", "kernel")
            )
            self._cells.setdefault((engine, name, mode), set()).add(kernel)

    def _read_qualified(self, read: dict) -> None:
        self._shapes = set()
        for where, cells in _lists_of_cells(read, self.path):
            for cell in _need(cells, list, self.path, where):
                name = class_of(_need(cell.get("problem"), str, self.path, "a cell's problem"))[0]
                self._shapes.add(_shape(name))
                self._cells.setdefault(("tileproof", name, "eager"), set()).add(str(cell.get("kernel", "")))

    def stale(self, identity: dict) -> list[str]:
        """What differs between the engine of the lock and this one, as texts."""
        if self.identity is None:
            return []
        names = sorted(self.identity.keys() | identity.keys())
        return [
            f"{x}: lock {self.identity.get(x, 'none')!r}, here {identity.get(x, 'none')!r}"
            for x in names
            if self.identity.get(x) != identity.get(x)
        ]

    def drift(self, engine: str, problem_class: str, mode: str, kernel: str) -> Optional[tuple[str, str]]:
        """(class or kernel, text); None: as locked."""
        if self._shapes is not None and engine != "tileproof":
            if _shape(problem_class) in self._shapes:
                return None
            heads, dim, dtype = _shape(problem_class)
            return "class", f"{self.path} has no problem of {heads} query heads, {dim} and {dtype}: {problem_class}"
        if self._shapes is not None:
            mode = "eager"  # the same kernels serve compiled graphs
        kernels = self._cells.get((engine, problem_class, mode))
        if kernels is None:
            others = sorted({m for e, c, m in self._cells if (e, c) == (engine, problem_class)})
            had = f", but {' and '.join(others)}" if others else ""
            return "class", f"{self.path} does not have {problem_class!r} of {engine} {mode}{had}"
        if kernel not in kernels:
            return "kernel", f"{problem_class!r} of {engine} {mode} is served by {kernel}; {self.path} has {' or '.join(sorted(kernels))}"
        return None


def save(path: str, identity: dict, cells: Iterable[tuple[str, str, str, str]]) -> None:
    """cells: (engine, class, mode, kernel). A line a cell, in a stable order."""
    names = ("engine", "class", "mode", "kernel")
    lines = [json.dumps(dict(zip(names, x))) for x in sorted(set(cells))]
    text = '{\n "schema": %s,\n "identity": %s,\n "cells": [\n  %s\n ]\n}\n' % (
        json.dumps(SCHEMA), json.dumps(identity, sort_keys=True), ",\n  ".join(lines),
    )  # fmt: skip
    write_file(path, text.replace('"cells": [\n  \n ]', '"cells": []'))
