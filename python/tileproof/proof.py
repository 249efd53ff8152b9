# SPDX-License-Identifier: Apache-2.0
"""What a model asks of attention, and whether this host gives it: models, qualification, locks, preflight, capacity.

    model = proof.Model.read("config.json")
    done = proof.qualify(model, quick=True)                    # runs every layer group against the double reference
    done.check()                                               # raises NotQualified where a cell must not be served
    with proof.updated("attention.lock") as lock:              # at deploy time, once for each kind of host
        done.update(lock, reason="release 7")
    proof.preflight(proof.Lock.read("attention.lock"), model)  # at load
    tileproof.attention(q, k, v, causal=True, fallback="locked")   # serves what the lock permits, and nothing else

cache= of cells, qualify, preflight and capacity, and of tileproof.Cache, is the format in which keys and values are kept, in the words of
the tool: "plain", "i8", "i8/q8_0", "i4", "e4m3" (one scale for a tensor), "e4m3/token", or two of these for k and v, "plain:i8"
(docs/quantised.md). What was qualified with one cache says nothing of another.

docs/qualify.md and docs/lock.md say what cells and locks are; the tool and the C library read and write the same files."""
from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from . import _core
from ._files import write_file

PHASES = ("prefill", "decode", "varlen", "mixed", "multimodal")
SERVED = ("QUALIFIED", "QUALIFIED_FALLBACK")
Path = Union[str, "os.PathLike[str]"]
Progress = Callable[["Cell", bool], Any]


def cache_format(words: Optional[str]) -> str:
    """The whole name of a cache's format, that of locks and reports: "i8/token" of "i8", "plain" of None; ValueError where it is none."""
    return _core.cache_format("words", words)


class NotQualified(_core.Error):
    """A cell was not right, or not served, or differs from the lock; the text has the first of them."""


def _bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Model:
    """The layer groups of a config.json, or of a file of layer groups (docs/models.md). It does not change. cache: the format that the file
    wants keys and values kept in, "" where it says nothing; nothing follows from it until somebody asks for that format."""

    def __init__(self, text: Union[str, bytes], name: str = "config.json", *, assume: Optional[str] = None, label: Optional[str] = None) -> None:
        self._model = _core.model_parse(text.encode() if isinstance(text, str) else text, name, assume, label)
        self.label, self.config_hash, self.cache, about = _core.model_about(self._model)
        self._about: Dict[str, Any] = json.loads(about)

    @classmethod
    def read(cls, path: Path, *, assume: Optional[str] = None, label: Optional[str] = None) -> Model:
        """assume: the decoder family as which a file of an unknown model_type is read. label: what locks call the model."""
        return cls(_bytes(path), os.fspath(path), assume=assume, label=label)

    @property
    def groups(self) -> List[Dict[str, Any]]:
        """Layers that ask for the same attention, as `tileproof model --json` has them."""
        groups: List[Dict[str, Any]] = self._about["groups"]
        return groups

    def to_dict(self) -> Dict[str, Any]:
        return self._about

    def __repr__(self) -> str:
        return f"<tileproof.proof.Model {self.label!r}, {len(self.groups)} groups, config {self.config_hash[:12]}>"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A call that qualifies a layer group, and what was seen of it. `seen` has every field, as journals have them."""

    index: int
    problem: str
    phase: str
    status: str
    kernel: str
    reason: str
    seen: Dict[str, Any] = dataclasses.field(repr=False)

    @property
    def served(self) -> bool:
        return self.status in SERVED


@dataclasses.dataclass(frozen=True)
class Use:
    """Who asks for a cell."""

    model: str
    part: str
    layers: str
    phase: str
    cell: int


class Qualification:
    """All cells of some models; made by qualify() or cells(). For one thread at a time."""

    def __init__(self, models: Sequence[Model], phases: Iterable[str], quick: bool, dtype: Optional[str], page_size: int, max_cells: int, cache: Optional[str] = None) -> None:
        bits = 0
        for phase in [phases] if isinstance(phases, str) else phases:
            if phase not in PHASES:
                raise ValueError(f"phases has {phase!r}: it must be of {', '.join(PHASES)}")
            bits |= 1 << PHASES.index(phase)
        self.models = tuple(models)
        for model in self.models:
            if not isinstance(model, Model):
                raise TypeError(f"{model!r} is no tileproof.proof.Model: Model.read(path) reads one")
        self._q = _core.qualify_create(tuple(x._model for x in self.models), bits, bool(quick), dtype, page_size, max_cells, cache)

    def run(
        self, *, threads: Optional[int] = None, fallback: str = "refuse", seconds: float = 0.0, progress: Optional[Progress] = None
    ) -> Qualification:
        """Runs every cell that has no result yet. fallback="permit": a slower path may serve, as QUALIFIED_FALLBACK. seconds: for the
        times of one cell; 0: none are taken. progress(cell, done) is called before a cell and after; what it returns that is true stops
        the run, and another run() goes on."""
        if fallback not in ("refuse", "permit"):
            raise ValueError(f'fallback is {fallback!r}: it must be "refuse" or "permit"')
        heard = None if progress is None else lambda at, done: progress(self._cell(at), done)
        _core.qualify_run(self._q, threads, fallback == "permit", 1e9 * seconds, heard)
        return self

    def _cell(self, at: int) -> Cell:
        seen = json.loads(_core.qualify_cell(self._q, at))
        return Cell(at, seen["problem"], seen["phase"], seen["status"], seen.get("kernel") or "", seen.get("reason") or "", seen)

    @property
    def status(self) -> str:
        """The worst status of all cells."""
        return _core.qualify_about(self._q)[0]

    @property
    def cells(self) -> List[Cell]:
        return [self._cell(at) for at in range(_core.qualify_about(self._q)[1])]

    @property
    def uses(self) -> List[Use]:
        return [Use(*x) for x in _core.qualify_about(self._q)[2]]

    def check(self) -> None:
        """Raises NotQualified, with the first reason, unless every cell may be served."""
        bad = [x for x in self.cells if not x.served]
        if bad or not self.cells:
            why = f"{bad[0].status}: {bad[0].problem}: {bad[0].reason or 'it was not run'}" if bad else "there is no cell: no layer of the models has one"
            raise NotQualified(f"{why}" + (f"; and {len(bad) - 1} more" if len(bad) > 1 else ""))

    def compare(self, lock: Lock, *, declared: Optional[str] = None) -> List[str]:
        """What differs from the lock, in words; [] where nothing does. Cells that differ have status and reason of that from then on."""
        first, notes = _core.qualify_compare(self._q, lock._lock, declared)
        if not first:
            return []
        return notes + [f"{x.status}: {x.problem}: {x.reason}" for x in self.cells if x.reason and x.status != "QUALIFIED"] or [first]

    def update(self, lock: Lock, *, reason: str, declared: Optional[str] = None, keep: int = 0, served_only: bool = True) -> None:
        """Writes what was seen into a lock, all of it or nothing: a revision of each model, and the history."""
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        _core.qualify_update(self._q, lock._lock, declared, date, reason, keep, bool(served_only))

    def __repr__(self) -> str:
        return f"<tileproof.proof.Qualification of {', '.join(x.label for x in self.models)}: {len(self.cells)} cells, {self.status}>"


def cells(
    *models: Model, phases: Iterable[str] = (), quick: bool = False, dtype: Optional[str] = None, page_size: int = 0, max_cells: int = 0,
    cache: Optional[str] = None,
) -> Qualification:  # fmt: skip
    """The cells of models, none run yet. dtype: of models whose file names none. cache: the format of the cache that the cells read; None:
    plain, and a ValueError for a model whose file names another."""
    return Qualification(models, phases, quick, dtype, page_size, max_cells, cache)


def qualify(
    *models: Model, phases: Iterable[str] = (), quick: bool = False, dtype: Optional[str] = None, page_size: int = 0, max_cells: int = 0,
    cache: Optional[str] = None, threads: Optional[int] = None, fallback: str = "refuse", seconds: float = 0.0, progress: Optional[Progress] = None,
) -> Qualification:  # fmt: skip
    """cells(), run."""
    made = cells(*models, phases=phases, quick=quick, dtype=dtype, page_size=page_size, max_cells=max_cells, cache=cache)
    return made.run(threads=threads, fallback=fallback, seconds=seconds, progress=progress)


@dataclasses.dataclass(frozen=True)
class Revision:
    """A model's config as one engine on one kind of device gave it. stale: what differs from this process, or ""."""

    model: str
    config_hash: str
    date: str
    engine: str
    mode: str
    device: str
    isa: str
    cache: str
    status: str
    cells: int
    stale: str


class Lock:
    """What was qualified, where and with what (docs/lock.md)."""

    def __init__(self, text: Union[None, str, bytes] = None, name: str = "lock") -> None:
        self._lock = _core.lock_parse(text.encode() if isinstance(text, str) else text, name)

    @classmethod
    def read(cls, path: Path) -> Lock:
        return cls(_bytes(path), os.fspath(path))

    def text(self) -> str:
        return _core.lock_text(self._lock)

    def write(self, path: Path) -> None:
        """Whole or not at all, for whoever reads meanwhile. Two writers at once: see updated()."""
        write_file(os.fspath(path), self.text())

    def revisions(self, *, declared: Optional[str] = None) -> List[Revision]:
        return [Revision(*x) for x in _core.lock_revisions(self._lock, declared)]

    def history(self) -> List[Dict[str, Any]]:
        history: List[Dict[str, Any]] = json.loads(self.text())["history"]
        return history

    def diff(self, first: int, second: int, other: Optional[Lock] = None) -> List[Dict[str, Any]]:
        """What differs between two revisions, by index; the second may be another lock's."""
        read = json.loads(_core.lock_diff(self._lock, first, (other or self)._lock, second, True))
        changes: List[Dict[str, Any]] = read["changes"]
        return changes

    def __repr__(self) -> str:
        return f"<tileproof.proof.Lock, {len(self.revisions())} revisions>"


def _guard(path: str, wait: float) -> Tuple[int, str]:
    """What the tool takes before it changes a lock: a file beside it, by flock. Another process may remove it between open and flock."""
    folder, base = os.path.split(path)
    name = os.path.join(folder, os.fsdecode(os.fsencode(base)[:200]) + ".tileproof-guard")
    end = time.monotonic() + wait
    while True:
        held = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(held), os.lstat(name)):
                return held, name
        os.close(held)
        if time.monotonic() > end:
            raise TimeoutError(f"{path} is being changed by another process, which did not end within {wait:g} s: nothing was written")
        time.sleep(0.05)


@contextlib.contextmanager
def updated(path: Path, *, wait: float = 60.0) -> Iterator[Lock]:
    """The lock of a file, or a new one, to change it: written when the block ends without an exception. Other updates of the file,
    the tool's too, wait meanwhile; this one waits so many seconds for them."""
    name = os.path.realpath(os.fspath(path))
    held, guard = _guard(name, wait)
    try:
        lock = Lock.read(name) if os.path.exists(name) else Lock()
        yield lock
        lock.write(name)
    finally:
        os.unlink(guard)  # before it is unlocked: who waits sees that it went, and makes a new one
        os.close(held)


def preflight(lock: Lock, model: Model, *, declared: Optional[str] = None, cache: Optional[str] = None) -> None:
    """May this process serve this model by this lock? tileproof.Unsupported names what is stale, another config, or a cell that is not
    qualified. From then on fallback="locked" serves the model's problems by the kernels that the lock has, and raises NotLocked for
    all else. cache: the format of the cache that will be served from, by the lock's revision with that one; None: plain, and a ValueError
    for a model whose file names another. Who serves from two kinds asks for both."""
    _core.preflight(lock._lock, model._model, declared, cache)


def permit_nothing() -> None:
    """What preflight() let in is forgotten."""
    _core.permit_nothing()


def capacity(
    model: Model, *, context: int, concurrency: int, page_size: int = 0, limit: int = 0, threads: Optional[int] = None,
    gflops: float = 0.0, read_gbps: float = 0.0, cache_dtype: Optional[str] = None, cache: Optional[str] = None,
) -> Dict[str, Any]:  # fmt: skip
    """What serving takes (docs/capacity.md): keys and values `kept` by all layers, and where an engine drops what no later row sees
    (`evicted`); a step of `prefill` and of `decode`; and `groups`, the same of each layer group. cache: the format of the cache, whose codes and
    scales are counted; cache_dtype: of what is plain ("float32", "float16", "bfloat16"; None: the file's)."""
    whole, *groups = _core.capacity(
        model._model, context, concurrency, page_size, limit, threads, gflops, read_gbps, cache_dtype, cache,
    )
    return {**whole, "groups": groups}
