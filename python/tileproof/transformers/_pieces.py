# SPDX-License-Identifier: Apache-2.0
"""What a mask function of transformers means. Its masks are closures that and_masks and or_masks join; each piece that is known
becomes a small object here, by the name of the function and the variables it closes over.

A name is not enough: a later release may give it another meaning. So the first time that a function is met it is asked about
the positions at its edges, and one that answers differently is unknown."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor


class Unknown(Exception):
    """The name of a mask function that is not known here."""


@dataclasses.dataclass(frozen=True)
class Window:
    """q - left <= k <= q + right by position; None: unbounded. Causal is Window(None, 0)."""

    left: Optional[int]
    right: Optional[int]

    def visible(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = torch.ones_like(q - k, dtype=torch.bool)
        if self.left is not None:
            seen = seen & (k >= q - self.left)
        return seen if self.right is None else seen & (k <= q + self.right)

    def edges(self) -> list[int]:
        """The row at position 2 left + 4, and keys beside each border of what it sees."""
        left, right = self.left or 0, self.right or 0
        row = 2 * left + 4
        return sorted({row, *(row - left + x for x in (-1, 0, 1)), *(row + right + x for x in (-1, 0, 1, 2))})


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """Keys of the row's own chunk of `size`, counted from `start` of each sequence."""

    size: int
    start: Tensor

    def ids(self, positions: Tensor) -> Tensor:
        return (positions - self.start[:, None]) // self.size

    def visible(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k - self.start[b]) // self.size == (q - self.start[b]) // self.size

    def edges(self) -> list[int]:
        first = int(self.start.max())
        return sorted({max(0, first + n * self.size + x) for n in (0, 1, 2) for x in (-1, 0)})


@dataclasses.dataclass(frozen=True, eq=False)
class Documents:
    """Keys whose id is the row's own; ids (sequence, position)."""

    ids: Tensor

    def visible(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.ids[b, q] == self.ids[b, k]

    def edges(self) -> list[int]:
        return list(range(min(32, self.ids.shape[1])))


@dataclasses.dataclass(frozen=True, eq=False)
class Spans(Documents):
    """As documents, but a negative id sees nothing and is seen by nothing."""

    def visible(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return super().visible(b, q, k) & (self.ids[b, q] >= 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Padding:
    """Keys that are True in (sequence, position)."""

    seen: Tensor

    def visible(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.seen[b, k].bool() & (q >= 0)

    def edges(self) -> list[int]:
        return list(range(min(32, self.seen.shape[1])))


@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """All of the parts, or any of them."""

    all: bool
    parts: tuple[Any, ...]

    def visible(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen: Tensor = self.parts[0].visible(b, q, k)
        for part in self.parts[1:]:
            seen = seen & part.visible(b, q, k) if self.all else seen | part.visible(b, q, k)
        return seen


@dataclasses.dataclass(frozen=True, eq=False)
class ChunksOfDocuments(Documents):
    """Keys of the row's own chunk of `size`; chunks are counted in each document."""

    size: int


@dataclasses.dataclass(frozen=True, eq=False)
class Restarted:
    """The inner mask at positions (sequence, token) that begin anew with each document of a packed sequence."""

    inner: Any
    positions: Tensor

    def visible(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen: Tensor = self.inner.visible(b, self.positions[b, q], self.positions[b, k])
        return seen

    @property
    def _begins(self) -> Tensor:
        """Where a position does not follow the one before it (sequence, tokens - 1)."""
        return self.positions.diff() != 1

    def edges(self) -> list[int]:
        """Tokens beside the first borders between documents."""
        borders = self._begins.any(0).nonzero().flatten()[:4].tolist()
        return sorted({0, *(border + x for border in borders for x in (0, 1, 2) if border + x < self.positions.shape[1])})

    def within(self, documents: Documents) -> bool:
        """Do positions count by one in each of these documents, and does each lie in one piece?"""
        ids = documents.ids
        if ids.shape != self.positions.shape:
            return False
        step = ids.diff()
        return bool(((step > 0) | ((step == 0) & ~self._begins)).all())

    def by_token(self, piece: Any) -> Piece:
        """The inner mask by tokens, for a row and a key of one document: these are as far apart as their positions."""
        if isinstance(piece, Joined):
            return Joined(piece.all, tuple(self.by_token(x) for x in piece.parts))
        if isinstance(piece, Window):
            return piece
        if isinstance(piece, Chunk):
            return ChunksOfDocuments(piece.ids(self.positions), piece.size)
        if isinstance(piece, Padding):
            return Padding(self._at_positions(piece.seen))
        made: Documents = dataclasses.replace(piece, ids=self._at_positions(piece.ids))
        return made

    def _at_positions(self, by_position: Tensor) -> Tensor:
        return by_position.expand(len(self.positions), -1).gather(1, self.positions)


Leaf = Union[Window, Chunk, Documents, Padding, Restarted]
Piece = Union[Leaf, Joined]


def _two_sided(cells: dict[str, Any]) -> Window:
    """Keys less than `left` before the row and less than `right` behind it."""
    given = cells["sliding_window"]
    if "is_causal" in cells:  # one number: half of it on each side, or all of it before
        given = (given, 0) if cells["is_causal"] else ((given + 1) // 2, given // 2 + 1)
    left, right = given
    if left < 1:  # the row does not see itself
        raise Unknown
    return Window(left - 1, max(right - 1, 0))


INNER = ".<locals>.inner_mask"
RESTARTS = "remap_positions_for_packed_sequence"
LEAVES: dict[str, Callable[[dict[str, Any]], Leaf]] = {
    "causal_mask_function": lambda _: Window(None, 0),
    "bidirectional_mask_function": lambda _: Window(None, None),
    "sliding_window_overlay" + INNER: lambda c: Window(c["sliding_window"] - 1, None),
    "sliding_window_bidirectional_overlay" + INNER: lambda c: Window(c["sliding_window"], c["sliding_window"]),
    "_bidirectional_window_overlay" + INNER: lambda c: Window(c["sliding_window"] - 1, c["sliding_window"] - 1),
    "sliding_window_mask_function" + INNER: _two_sided,
    "chunked_overlay" + INNER: lambda c: Chunk(c["chunk_size"], c["left_padding"]),
    "blockwise_overlay" + INNER: lambda c: Spans(c["block_sequence_ids"]),
    "packed_sequence_mask_function" + INNER: lambda c: Documents(c["packed_sequence_mask"]),
    "padding_mask_function" + INNER: lambda c: Padding(c["padding_mask"]),
    RESTARTS + INNER: lambda c: Restarted(_read(c["mask_function"]), c["position_ids"]),
}
JOINS = {"and_masks.<locals>.and_mask": True, "or_masks.<locals>.or_mask": False}

_asked: dict[tuple[Any, ...], bool] = {}  # (code, numbers): whether the function means what its name says


def name_of(function: Any) -> str:
    module, name = getattr(function, "__module__", "?"), getattr(function, "__qualname__", repr(function))
    return f"{module}.{name.replace('.<locals>', '')}"


def _cells(function: Any) -> dict[str, Any]:
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}


def _means(leaf: Leaf, function: Callable[..., Any]) -> bool:
    at = torch.tensor(leaf.edges())
    b = torch.arange(len(leaf.positions) if isinstance(leaf, Restarted) else 1)[:, None, None, None]
    q, k = at[None, None, :, None], at[None, None, None, :]
    ours, theirs = torch.broadcast_tensors(leaf.visible(b, q, k), function(b, b, q, k))
    return bool((ours == theirs).all())


def _trusted(leaf: Leaf, function: Any, cells: dict[str, Any]) -> bool:
    numbers = tuple((name, x) for name, x in cells.items() if isinstance(x, (int, tuple)))
    key = (function.__code__, numbers)
    if key not in _asked:
        try:
            _asked[key] = _means(leaf, function)
        except Exception:  # whatever it raises, it is not the function that is known here
            _asked[key] = False
    return _asked[key]


def _by_token(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Parts of which all must hold, without positions that restart: beside the documents in which they do, tokens say as much."""
    made = []
    for part in parts:
        if isinstance(part, Restarted):
            if not any(type(x) is Documents and part.within(x) for x in parts):
                raise Unknown(f"transformers.masking_utils.{RESTARTS} without its documents")
            part = part.by_token(part.inner)
        made.append(part)
    return tuple(made)


def read(function: Any) -> Piece:
    """The meaning of a mask function; Unknown with its name if it has a part that is not known."""
    piece = _read(function)
    if isinstance(piece, Restarted):
        raise Unknown(name_of(function))
    return piece


def _read(function: Any) -> Piece:
    """The same; what is in it may be restarted by document."""
    name = getattr(function, "__qualname__", "")
    if not hasattr(function, "__code__") or not str(function.__module__).startswith("transformers."):
        raise Unknown(name_of(function))
    try:
        cells = _cells(function)
        if name in JOINS:
            functions = cells["mask_functions"]
            if not JOINS[name]:
                return Joined(False, tuple(map(read, functions)))
            return Joined(True, _by_token(tuple(map(_read, functions))))
        leaf = LEAVES[name](cells)
    except (KeyError, TypeError, ValueError) as missing:
        raise Unknown(name_of(function)) from missing
    except Unknown as inside:
        raise inside if inside.args else Unknown(name_of(function))
    if not _trusted(leaf, function, cells):
        raise Unknown(name_of(function))
    return leaf


def flat(piece: Piece) -> list[Any]:
    """The parts of which all must hold, windows joined into one, which comes first."""
    todo, parts, left, right = [piece], [], None, None
    while todo:
        part = todo.pop(0)
        if isinstance(part, Joined) and part.all:
            todo[:0] = part.parts
        elif isinstance(part, Window):
            left = part.left if left is None else left if part.left is None else min(left, part.left)
            right = part.right if right is None else right if part.right is None else min(right, part.right)
        else:
            parts.append(part)
    return [Window(left, right), *parts]
