# SPDX-License-Identifier: Apache-2.0
"""What the library counts and tells: metrics, the flight recorder, a line of trace for each call, events."""
from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Callable, Dict, Iterator, List, Optional

from . import _core
from ._reports import Decision, Receipt

Trace = Callable[[str], Any]
Event = Callable[[str, Decision, Optional[Receipt]], Any]

_traces: List[Trace] = []
_events: List[Event] = []


def _tell_traces(line: str) -> None:
    for function in tuple(_traces):
        function(line)


def _tell_events(kind: str, decision: tuple[Any, ...], receipt: Optional[tuple[Any, ...]]) -> None:
    made = None if receipt is None else Receipt(receipt)
    for function in tuple(_events):
        function(kind, Decision(*decision), made)


def _observe() -> None:
    _core.observe(_tell_traces if _traces else None, _tell_events if _events else None, _keep)


@contextlib.contextmanager
def _added(functions: list[Any], function: Any) -> Iterator[None]:
    if not callable(function):
        raise TypeError(f"{function!r} is no function: it must be callable")
    functions.append(function)
    _observe()
    try:
        yield
    finally:
        functions.remove(function)
        _observe()


def trace(function: Trace) -> Any:
    """Calls the function with a line of JSON and its end, as `tileproof trace` reads it, for each call inside `with`, in any thread. A plan
    tells if it was made inside. What the function raises is printed and stops nothing; it must not call attention itself.

    >>> import numpy as np, tileproof, json
    >>> x = np.ones((1, 4, 2, 8), np.float32)
    >>> with tileproof.trace(lambda line: print(json.loads(line)["problem"])):
    ...     out = tileproof.attention(x, x, x, causal=True)
    prefill b1 h2/2 q4 k4 d8 f32 causal
    """
    return _added(_traces, function)


def events(function: Event) -> Any:
    """Calls the function inside `with` for each call that was refused, and for each that a slower path served under
    fallback="serve", in any thread: with "refused" or "fallback", its Decision, and of a fallback its Receipt. Otherwise as trace().

    >>> import numpy as np, tileproof
    >>> x = np.ones((1, 2, 1, 640), np.float32)
    >>> with tileproof.events(lambda kind, decision, receipt: print(kind, receipt.kernel)):
    ...     out = tileproof.attention(x, x, x, fallback="serve")
    fallback math
    """
    return _added(_events, function)


def recorder() -> List[Dict[str, Any]]:
    """The last decisions of this process, oldest first: up to 64 for each number of threads."""
    lines = [json.loads(x) for text in _core.telemetry(True) for x in text.splitlines()]
    return sorted(lines, key=lambda x: x["ts_ns"])


def metrics() -> str:
    """Counts, times and bytes of all calls of this process as Prometheus text (version 0.0.4), the sum over the library's contexts, of
    which there is one for each number of threads."""
    return _joined([_gone, *_core.telemetry(False)])


_gone = ""  # metrics of contexts that are no longer kept


def _keep(text: str) -> None:
    global _gone
    _gone = _joined([_gone, text])


def _forget() -> None:
    """A forked child starts with none."""
    global _gone
    _gone = ""


def _joined(texts: List[str]) -> str:
    order: List[str] = []
    values: Dict[str, float] = {}
    joined: Any = None
    for text in texts:
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                joined = max if line.endswith(" gauge") else sum
            series, _, value = (line, "", "") if line.startswith("#") else line.rpartition(" ")
            if series not in values:
                order.append(series)
                values[series] = float(value) if value else 0.0
            elif value:
                values[series] = joined((values[series], float(value)))
    return "".join(_families(order, values))


def _families(order: List[str], values: Dict[str, float]) -> Iterator[str]:
    """Series of one family together, in the order in which they were found."""
    families: Dict[str, List[str]] = {}
    of = ""
    for series in order:
        if series.startswith("# HELP "):
            of = series.split()[2]
        elif not series.startswith("#"):
            of = next(x for x in sorted(families, key=len, reverse=True) if series.startswith(x))
        families.setdefault(of, []).append(series)
    for lines in families.values():
        for series in lines:
            yield f"{series}\n" if series.startswith("#") else f"{series} {_number(values[series])}\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


os.register_at_fork(after_in_child=_forget)
_observe()
