# SPDX-License-Identifier: Apache-2.0
"""What a process is held against: a lock of the one schema, tileproof.lock/2 (docs/lock.md), with two kinds of revisions:

- what a watcher saved: for each engine and mode (eager, compiled) the classes that were seen and the kernels that served. Nobody judged
  their numbers: their cells are NOT_RUN, and `problem` is the class;
- what `tileproof qualify` wrote: problems of models. Calls of this library are held against class and kernel; calls of other engines that no
  watcher saved against query heads, head dims and dtype alone, because models put their masks into tensors, and repeat KV heads,
  before another engine sees them.

tileproof.lock/1 and tileproof.watch-lock/1, which came before, are read.

A call whose class the lock has not drifts by class; one that another kernel serves drifts by kernel."""
from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
from typing import Any, Iterable, Optional

from .._files import write_file
from .problem import class_of

SCHEMA = "tileproof.lock/2"
QUALIFIED_BEFORE, SAVED_BEFORE = "tileproof.lock/1", "tileproof.watch-lock/1"
WATCHED = "watched"  # in place of a config's hash, and the reason of every cell
OF_HOST = ("cpu", "cpu_capability", "gpu", "driver")  # of an identity; the rest are versions
PHASES = ("prefill", "decode", "varlen", "mixed", "multimodal")


class LockError(ValueError):
    """A lock that cannot be read; the text names file, field and rule."""


def _shape(problem_class: str) -> tuple[Any, ...]:
    """What of a class every engine sees: query heads, head dims, dtype."""
    words = problem_class.split()
    heads = next((x[1:].split("/")[0] for x in words if re.match(r"h\d+/", x)), "")
    at = next((i for i, x in enumerate(words) if re.fullmatch(r"d\d+(/\d+)?", x)), -1)
    return heads, words[at] if at >= 0 else "", words[at + 1] if 0 <= at < len(words) - 1 else ""


def _need(value: Any, kind: type, path: str, field: str) -> Any:
    if not isinstance(value, kind):
        raise LockError(f"{path}: {field} is {json.dumps(value)[:60]}: it must be {'an object' if kind is dict else 'a list' if kind is list else 'a text'}")
    return value


def _lists_of_cells(read: dict[str, Any], path: str) -> Iterable[tuple[str, Any, Optional[dict[str, Any]]]]:
    """Lists of cells of a lock, each with its place and revision; of the schema before, None."""
    if read["schema"] == QUALIFIED_BEFORE:
        for isa, entry in _need(read.get("isas"), dict, path, "isas").items():
            yield f"isas.{isa}.cells", _need(entry, dict, path, f"isas.{isa}").get("cells"), None
        return
    for i, entry in enumerate(_need(read.get("revisions"), list, path, "revisions")):
        where = f"revisions[{i}]"
        _need(entry, dict, path, where)
        for key in ("revision", "engine"):
            _need(entry.get(key), dict, path, f"{where}.{key}")
        for j, group in enumerate(_need(entry.get("groups"), list, path, f"{where}.groups")):
            yield f"{where}.groups[{j}].cells", _need(group, dict, path, f"{where}.groups[{j}]").get("cells"), entry


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
        self.path = path
        self.identity: Optional[dict[str, Any]] = None  # of the engine whose calls were saved
        self._cells: dict[tuple[Any, ...], set[Any]] = {}  # (engine, class, mode) -> kernels
        self._shapes: Optional[set[Any]] = None  # of what was qualified; None: nothing was
        self._watched: set[Any] = set()  # engines whose calls were saved
        schema = read.get("schema")
        if schema == SAVED_BEFORE:
            self._read_saved_before(read)
        elif schema in (SCHEMA, QUALIFIED_BEFORE):
            self._read(read)
        else:
            raise LockError(f"{path}: schema is {schema!r}: it must be {SCHEMA!r}, as --save-lock and tileproof qualify write it")

    def _read_saved_before(self, read: dict[str, Any]) -> None:
        self.identity = _need(read.get("identity"), dict, self.path, "identity")
        for i, cell in enumerate(_need(read.get("cells"), list, self.path, "cells")):
            _need(cell, dict, self.path, f"cells[{i}]")
            engine, name, mode, kernel = (
                _need(cell.get(x), str, self.path, f"cells[{i}].{x}") for x in ("engine", "class", "mode", "kernel")
            )
            self._cells.setdefault((engine, name, mode), set()).add(kernel)

    def _read(self, read: dict[str, Any]) -> None:
        for where, cells, entry in _lists_of_cells(read, self.path):
            watched = entry if entry is not None and entry["revision"].get("config") == WATCHED else None
            if watched is not None:
                self._read_identity(watched)
            for cell in _need(cells, list, self.path, where):
                problem = _need(_need(cell, dict, self.path, where).get("problem"), str, self.path, "a cell's problem")
                kernel, name = str(cell.get("kernel", "")), problem if watched is not None else class_of(problem)[0]
                if watched is not None:
                    engine = watched["engine"]
                    self._cells.setdefault((str(engine.get("name")), name, str(engine.get("mode"))), set()).add(kernel)
                    continue
                self._shapes = (self._shapes or set()) | {_shape(name)}
                if entry is None or entry["engine"].get("name") == "tileproof":
                    self._cells.setdefault(("tileproof", name, ""), set()).add(kernel)
        self._watched = {engine for engine, _, mode in self._cells if mode}

    def _read_identity(self, entry: dict[str, Any]) -> None:
        """The last one counts: a watcher saves all engines of its process with one."""
        hosts = _need(entry.get("hosts"), list, self.path, "hosts")
        versions = dict(_need(entry.get("versions"), dict, self.path, "versions"))
        self.identity = versions | (_need(hosts[0], dict, self.path, "hosts[0]") if hosts else {})

    def stale(self, identity: dict[str, Any]) -> list[str]:
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
        if self._shapes is not None and engine != "tileproof" and engine not in self._watched:
            if _shape(problem_class) in self._shapes:
                return None
            heads, dim, dtype = _shape(problem_class)
            return "class", f"{self.path} has no problem of {heads} query heads, {dim} and {dtype}: {problem_class}"
        kernels = self._cells.get((engine, problem_class, mode))
        if kernels is None:
            kernels = self._cells.get((engine, problem_class, ""))  # qualified: the same kernels serve compiled graphs
        if kernels is None:
            others = sorted({m for e, c, m in self._cells if (e, c) == (engine, problem_class) and m})
            had = f", but {' and '.join(others)}" if others else ""
            return "class", f"{self.path} does not have {problem_class!r} of {engine} {mode}{had}"
        if kernel not in kernels:
            return "kernel", f"{problem_class!r} of {engine} {mode} is served by {kernel}; {self.path} has {' or '.join(sorted(kernels))}"
        return None


def _checksum(lock: dict[str, Any]) -> str:
    """As docs/lock.md says; what a watcher saves has no number but 1.0."""
    return hashlib.sha256(json.dumps(lock, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def _lines(value: Any, indent: str = "") -> str:
    """What holds no other object or list stands on one line, as `tileproof qualify` writes it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(x, (dict, list)) for x in inner):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    deeper = indent + " "
    rows = [f"{json.dumps(k, ensure_ascii=False)}: {_lines(v, deeper)}" for k, v in value.items()] if isinstance(value, dict) else [_lines(x, deeper) for x in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + ",".join(f"\n{deeper}{row}" for row in rows) + f"\n{indent}{end}"


def _revision(model: str, date: str, identity: dict[str, Any], key: tuple[str, str], cells: list[Any]) -> dict[str, Any]:
    engine, mode = key
    texts = {name: str(value) for name, value in identity.items()}
    made = [
        {"problem": name, "phase": phase if phase in PHASES else "prefill", "purpose": WATCHED, "gain": 1.0, "status": "NOT_RUN",
         "kernel": kernel, "reason": "watched: its numbers were not judged", "observed": "watcher"}
        for name, phase, kernel in cells
    ]  # fmt: skip
    return {
        "revision": {"model": model or WATCHED, "config": WATCHED, "date": date},
        "engine": {"name": engine, "mode": mode, "device": f"cuda:{texts['gpu']}" if "gpu" in texts else "cpu", "cache": "plain"},
        "versions": {name: value for name, value in texts.items() if name not in OF_HOST},
        "hosts": [{name: value for name, value in texts.items() if name in OF_HOST}],
        "groups": [{"part": "text", "layers": "all", "cells": made}],
    }


def save(path: str, identity: dict[str, Any], cells: Iterable[tuple[str, str, str, str, str]], model: str = "") -> None:
    """cells: (engine, class, mode, kernel, phase). A line a cell, in a stable order; a revision for each engine and mode."""
    found: dict[tuple[str, str], list[Any]] = {}
    for engine, name, mode, kernel, phase in sorted(set(cells)):
        found.setdefault((engine, mode), []).append((name, phase, kernel))
    date = datetime.date.today().isoformat()
    revisions = [_revision(model, date, identity, key, list_) for key, list_ in found.items()]
    count = sum(map(len, found.values()))
    past = {"date": date, "cells": f"{count} new, 0 changed, 0 same", "reason": "saved by tileproof.watch"}
    lock = {"schema": SCHEMA, "revisions": revisions, "history": [past]}
    whole = {"schema": SCHEMA, "checksum": _checksum(lock), "revisions": revisions, "history": [past]}
    write_file(path, _lines(whole) + "\n")
