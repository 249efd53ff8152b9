# SPDX-License-Identifier: Apache-2.0
"""What ran, and what would run: plain objects made from the library's own JSON."""
from __future__ import annotations

import json
from typing import Any, Sequence

from . import _core


class _Report:
    """The fields of the JSON as attributes; repr is the text people read."""

    _text: str
    _fields: str
    _read: dict[str, Any] | None = None

    def __init__(self, text: str, fields: str) -> None:
        self._text = text
        self._fields = fields

    def to_dict(self) -> dict[str, Any]:
        """All fields, fit for json.dumps."""
        if self._read is None:
            self._read = json.loads(self._fields)
        return dict(self._read)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.to_dict()[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}: {', '.join(self.to_dict())}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.to_dict()]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._text, self._fields)

    def __repr__(self) -> str:
        return self._text.rstrip("\n")


class Receipt(_Report):
    """What one call ran: kernel, fallback, numerics_id, functions, pairs_visible, scores_written, time_ns and more.

    `rewrites` lists what was done to the request before it ran, such as a copy of a tensor whose last dimension is not
    contiguous; it is empty for most calls.

    `kv_loss`: what the rows of a quantised cache lost at most, where `Cache` or the caller's `kv_loss=` says it, as `quantise` does;
    of `flash_attn_with_kvcache` what the rows lost that the call wrote; otherwise 0.

    Most receipts are never read: text and JSON are made of the library's own struct when they are first asked for.
    """

    kernel: str
    fallback: bool
    problem: str
    kv_loss: float
    scores_written: int
    time_ns: int
    rewrites: tuple[str, ...] = ()
    _raw: bytes | tuple[str, str]

    def __init__(self, raw: bytes | tuple[str, str], rewrites: Sequence[str] = ()) -> None:
        self._raw = raw
        if rewrites:
            self.rewrites = tuple(rewrites)

    def __getattr__(self, name: str) -> Any:
        if name not in ("_text", "_fields") or "_raw" not in self.__dict__:
            return super().__getattr__(name)
        text, fields = _core.receipt_texts(self._raw) if isinstance(self._raw, bytes) else self._raw
        copies = [f"{'rewritten':16} {x}\n" for x in self.rewrites if " copied: " in x]
        self._text, self._fields = text.rstrip("\n") + "\n" + "".join(copies), fields
        return self.__dict__[name]

    def to_dict(self) -> dict[str, Any]:
        return {"kv_loss": 0.0} | super().to_dict() | {"rewrites": list(self.rewrites)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _receipt_again, (self._text, self._fields, self.rewrites)


def _receipt_again(text: str, fields: str, rewrites: tuple[str, ...]) -> Receipt:
    made = Receipt((text, fields), rewrites)
    made._text, made._fields = text, fields
    return made


class Decision(_Report):
    """Which kernel would serve a problem, and why not the others: kernel, status, candidates, hint, flops and more."""

    problem: str
    status: str
    fallback: bool
    candidates: list[dict[str, Any]]
