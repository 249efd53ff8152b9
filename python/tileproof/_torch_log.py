# SPDX-License-Identifier: Apache-2.0
"""Collecting the receipts of PyTorch's calls."""
from __future__ import annotations

import contextlib
import operator
from typing import Any, Iterator

from ._reports import Receipt


class Passed(str):
    """Why a call was left to PyTorch; `backend` is the kernel of PyTorch's that served it, as it was seen to run; "none": it
    raised, or had nothing to do."""

    backend = "none"


class Bypassed(str):
    """Where a call came from that never reached the patch, and its problem; `backend` as above."""

    backend = "none"


def _by_backend(entries: list) -> str:
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
        self.receipts: list[Receipt] = []
        self.passed: list[Passed] = []
        self.bypassed: list[Bypassed] = []
        self.limit, self.forgotten = limit, 0

    def _add(self, to: list, entry: Any) -> None:
        if len(to) >= self.limit:
            gone = (len(to) + 1) // 2
            self.forgotten += gone
            del to[:gone]
        if self.limit > 0:
            to.append(entry)
        else:
            self.forgotten += 1

    def __repr__(self) -> str:
        kernels: dict[str, int] = {}
        for x in tuple(self.receipts):  # another thread may add one
            kernels[x.kernel] = kernels.get(x.kernel, 0) + 1
        ran = ", ".join(f"{n} on {name}" for name, n in kernels.items()) or "none"
        more = f"; {len(self.bypassed)} bypassed the patch{_by_backend(self.bypassed)}" if self.bypassed else ""
        more += f"; {self.forgotten} not kept" if self.forgotten else ""
        return f"<tileproof.torch.Log: {ran}; {len(self.passed)} left to PyTorch{_by_backend(self.passed)}{more}>"


_logs: list[Log] = []  # open ones; backward runs in threads of autograd's, so they are the process's


listeners: list[Any] = []  # watchers, which hear of every call: note_receipt(receipt)


def wants_receipts() -> bool:
    return bool(listeners or _logs and any(x.limit > 0 for x in tuple(_logs)))  # another thread may open or close one


def note_receipt(receipt: Receipt | None) -> None:
    """None: nobody wanted one when the call began. A log that was opened since goes without."""
    for x in tuple(_logs):
        if receipt is not None or x.limit == 0:
            x._add(x.receipts, receipt)
    for x in tuple(listeners):
        x.note_receipt(receipt)


def note_passed(why: str) -> Passed:
    entry = Passed(why)
    for x in tuple(_logs):
        x._add(x.passed, entry)
    return entry


@contextlib.contextmanager
def log(limit: int = 10000) -> Iterator[Log]:
    """Collects the receipts of all calls of attention() and of plans, and of patched ones, while it is open."""
    made = Log(limit)
    _logs.append(made)
    try:
        yield made
    finally:
        _logs.remove(made)
