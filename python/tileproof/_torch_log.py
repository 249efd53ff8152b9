# SPDX-License-Identifier: Apache-2.0
"""Collecting the receipts of PyTorch's calls."""
from __future__ import annotations

import contextlib
import operator
import threading
from typing import Any, Iterator, Protocol

from ._reports import Receipt


class Passed(str):
    """Why a call was left to PyTorch; `backend` is the kernel of PyTorch's that served it, as it was seen to run; "none": it
    raised, or had nothing to do."""

    backend = "none"


class Bypassed(str):
    """Where a call came from that never reached the patch, and its problem; `backend` as above."""

    backend = "none"


def _by_backend(entries: list[Any]) -> str:
    counts: dict[str, int] = {}
    for x in tuple(entries):
        counts[x.backend] = counts.get(x.backend, 0) + 1
    return f" ({', '.join(f'{n} by {name}' for name, n in counts.items())})" if counts else ""


class Log:
    """What ran while it was open: `receipts`, oldest first; `passed`, the reason of each call that was left to PyTorch; and,
    for a patch, `bypassed`, calls of attention that never reached it. Of more than `limit` the older half goes, and `forgotten`
    counts it. With a limit of 0 nothing is kept."""

    def __init__(self, limit: int = 10000) -> None:
        if operator.index(limit) < 0:
            raise ValueError(f"limit is {limit}: it must be at least 0")
        self._receipts: list[Any] = []  # Receipt, or the bytes of one that nobody has read yet
        self._adding = threading.Lock()
        self.passed: list[Passed] = []
        self.bypassed: list[Bypassed] = []
        self.limit, self.forgotten = limit, 0

    @property
    def receipts(self) -> list[Receipt]:
        with self._adding:
            for at, x in enumerate(self._receipts):
                if type(x) is bytes:
                    self._receipts[at] = Receipt(x)
        return self._receipts

    def _add(self, to: list[Any], entry: Any) -> None:
        if self.limit == 0:
            self.forgotten += 1
            return
        if len(to) >= self.limit:
            gone = (len(to) + 1) // 2
            self.forgotten += gone
            del to[:gone]
        to.append(entry)

    def __repr__(self) -> str:
        kernels: dict[str, int] = {}
        for x in tuple(self.receipts):  # another thread may add one
            kernels[x.kernel] = kernels.get(x.kernel, 0) + 1
        ran = ", ".join(f"{n} on {name}" for name, n in kernels.items()) or "none"
        more = f"; {len(self.bypassed)} bypassed the patch{_by_backend(self.bypassed)}" if self.bypassed else ""
        more += f"; {self.forgotten} not kept" if self.forgotten else ""
        return f"<tileproof.torch.Log: {ran}; {len(self.passed)} left to PyTorch{_by_backend(self.passed)}{more}>"


class Listener(Protocol):
    """A watcher, which hears of every call."""

    def note_receipt(self, receipt: Receipt | None) -> None: ...


_changing = threading.Lock()
_logs: tuple[Log, ...] = ()  # open ones; backward runs in threads of autograd's, so they are the process's
_listeners: tuple[Listener, ...] = ()
_wanted = False  # whether any of them keeps receipts; these three are replaced, so that calls read them without a lock


def follow(more: Log | None = None, listener: Listener | None = None, gone: Log | Listener | None = None) -> None:
    """A log or a watcher more, or one less."""
    global _logs, _listeners, _wanted
    with _changing:
        _logs = (*(x for x in _logs if x is not gone), *([] if more is None else [more]))
        _listeners = (*(x for x in _listeners if x is not gone), *([] if listener is None else [listener]))
        _wanted = bool(_listeners) or any(x.limit > 0 for x in _logs)


def wants_receipts() -> bool:
    return _wanted


def note_receipt(receipt: Receipt | bytes | None) -> None:
    """A receipt or what it is made of. None: nobody wanted one when the call began. A log that was opened since goes without."""
    for x in _logs:
        if receipt is not None or x.limit == 0:
            with x._adding:
                x._add(x._receipts, receipt)
    for listener in _listeners:
        listener.note_receipt(Receipt(receipt) if isinstance(receipt, bytes) else receipt)


def note_passed(why: str) -> Passed:
    entry = Passed(why)
    for x in _logs:
        x._add(x.passed, entry)
    return entry


@contextlib.contextmanager
def log(limit: int = 10000) -> Iterator[Log]:
    """Collects the receipts of all calls of attention() and of plans, and of patched ones, while it is open."""
    made = Log(limit)
    follow(made)
    try:
        yield made
    finally:
        follow(gone=made)
