# SPDX-License-Identifier: Apache-2.0
"""From what a model asks for to arguments of tileproof.attention."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .._mask import Mask
from ._pieces import Chunk, ChunksOfDocuments, Documents, Joined, Padding, Piece, Spans, Unknown, Window, flat, read


@dataclasses.dataclass(frozen=True)
class Lowered:
    """Arguments of tileproof.attention, how many keys of the cache are looked at, and what a report says of it."""

    options: dict[str, Any]
    keys: int
    words: str
    array: str = ""  # why there is an array of elements; empty: there is none


@dataclasses.dataclass(frozen=True)
class Place:
    """Where rows and keys of a call stand: positions are first_row + i and first_key + j."""

    batch: int
    first_row: int
    rows: int
    first_key: int
    keys: int

    def cut(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the rows and those of the keys, of (sequences, positions); what is beyond is -1."""
        last = max(self.first_row + self.rows, self.first_key + self.keys)
        ids = torch.nn.functional.pad(ids, (0, max(0, last - ids.shape[1])), value=-1).expand(self.batch, -1)
        rows = ids[:, self.first_row : self.first_row + self.rows]
        return rows.contiguous(), ids[:, self.first_key : self.first_key + self.keys].contiguous()

    def rows_at(self) -> Tensor:
        return torch.arange(self.first_row, self.first_row + self.rows)[None]

    def keys_at(self) -> Tensor:
        return torch.arange(self.first_key, self.first_key + self.keys)[None]


def _without_idle_spans(piece: Piece, place: Place) -> Piece:
    """Spans that no row of the call is in let nobody see more: most calls after the first."""
    if not isinstance(piece, Joined):
        return piece
    parts = [_without_idle_spans(x, place) for x in piece.parts]
    if not piece.all:
        busy = [x for x in parts if not isinstance(x, Spans) or bool((place.cut(x.ids)[0] >= 0).any())]
        parts = busy or parts[:1]
    return parts[0] if len(parts) == 1 else Joined(piece.all, tuple(parts))


def _bounded(piece: Piece) -> bool:
    """Does it compare positions?"""
    if isinstance(piece, Joined):
        return any(map(_bounded, piece.parts))
    return isinstance(piece, Window) and piece != Window(None, None)


def _padding(seen: Optional[Tensor], place: Place) -> Optional[Tensor]:
    """bool (sequences, keys); None: every key counts."""
    if seen is None:
        return None
    end = place.first_key + place.keys
    seen = torch.nn.functional.pad(seen.bool(), (0, max(0, end - seen.shape[1])))[:, place.first_key : end]
    return None if bool(seen.all()) else seen


def _lengths(seen: Tensor) -> Optional[Tensor]:
    """How many keys count, where these are the first ones of each sequence."""
    lengths = seen.sum(-1, dtype=torch.int32)
    return lengths if bool((seen == (torch.arange(seen.shape[1]) < lengths[:, None])).all()) else None


def _joined_ids(parts: list[Any], seen: Optional[Tensor], place: Place) -> Optional[tuple[Tensor, Tensor]]:
    """One id by row and by key for all parts that compare ids, and for padding: equal where every part's are. -1: a key that
    does not count."""
    if not parts and seen is None:
        return None
    rows, keys = (torch.zeros(place.batch, n, dtype=torch.int64) for n in (place.rows, place.keys))
    for part in parts:
        if isinstance(part, Padding):
            rest = _padding(part.seen, place)
            seen = rest if seen is None else seen if rest is None else seen & rest
            continue
        row, key = (part.ids(place.rows_at()), part.ids(place.keys_at())) if isinstance(part, Chunk) else place.cut(part.ids)
        low = torch.minimum(row.min(), key.min())
        width = torch.maximum(row.max(), key.max()) - low + 1
        rows, keys = rows * width + row - low, keys * width + key - low
    if seen is not None:
        keys = torch.where(seen, keys, -1)
    return rows.to(torch.int32), keys.to(torch.int32)


def _expression(piece: Piece, place: Place) -> Any:
    """As a tileproof.Mask; None: everything."""
    if isinstance(piece, Window):
        if piece == Window(None, None):
            return None
        return Mask.causal() if piece == Window(None, 0) else Mask.window(piece.left, piece.right)
    if isinstance(piece, Joined):
        made = [_expression(x, place) for x in ([*flat(piece)] if piece.all else piece.parts)]
        if None in made and not piece.all:
            return None
        made = [x for x in made if x is not None]
        whole = made[0] if made else None
        for x in made[1:]:
            whole = whole & x if piece.all else whole | x
        return whole
    if isinstance(piece, Spans):
        return Mask.spans(*place.cut(piece.ids))
    return Mask.documents(*_joined_ids([piece], None, place) or ())


def _by_array(elements: Callable[[], Tensor], keys: int, why: str) -> Lowered:
    made = elements()
    return Lowered({"mask": made}, keys, "by array", f"mask by array, {made.numel()} bytes, because {why}")


def _window_options(window: Window) -> dict[str, Any]:
    made: dict[str, Any] = {"causal": window.right == 0}
    if window.left is not None or window.right not in (None, 0):
        made["window"] = (window.left, window.right)
    return made


def _window_words(window: Window) -> list[str]:
    if window.left is None:
        return {None: [], 0: ["causal"]}.get(window.right, [f"window=-1,{window.right}"])
    return [f"window={window.left},{-1 if window.right is None else window.right}"]


def lower(request: dict[str, Any], elements: Callable[[], Tensor]) -> Lowered:
    """request: what transformers' mask interface was called with, offsets as numbers."""
    place = Place(*(request[x] for x in ("batch_size", "q_offset", "q_length", "kv_offset", "kv_length")))
    try:
        window, *rest = flat(_without_idle_spans(read(request["mask_function"]), place))
    except Unknown as unknown:
        return _by_array(elements, place.keys, f"mask function {unknown} is not known")
    used = place.first_row + place.rows - place.first_key
    if window.right == 0 and 0 < used < place.keys:  # a static cache: nobody sees what is behind the last row
        place = dataclasses.replace(place, keys=used)
    options: dict[str, Any] = {}
    words = _window_words(window)
    chunks = [x for x in rest if isinstance(x, Chunk) and not place.first_key % x.size and not bool(x.start.any())]
    bounded = bool(chunks) or _bounded(window) or any(map(_bounded, rest))
    seen = _padding(request.get("attention_mask"), place)
    lengths = None if seen is None else _lengths(seen)
    if place.first_row == place.first_key and (used != place.keys or lengths is not None):
        options["causal_align"] = "top_left"
    elif bounded and used != place.keys:
        options |= {"q_positions": place.rows_at(), "kv_positions": place.keys_at()}
    elif bounded:
        lengths = None  # positions are counted from the end
    if lengths is not None:
        options["kv_lens"], seen = lengths, None
        words.append("padding right")
    by_ids = [x for x in rest if isinstance(x, (Documents, Chunk, Padding)) and not isinstance(x, Spans) and x not in chunks]
    others = [x for x in rest if x not in by_ids and x not in chunks]
    ids = _joined_ids(by_ids, seen, place)
    words += [f"chunk={x.size}" for x in chunks] + [_word(x) for x in by_ids + others] + ["padding"] * (seen is not None)
    if ids is None and not others and not chunks:
        return Lowered(options | _window_options(window), place.keys, ", ".join(words) or "none")
    try:
        mask = _composed([*others, *chunks], window, ids, place)
    except ValueError as error:
        return _by_array(elements, request["kv_length"], f"its parts do not compose ({error})")
    return Lowered(options | {"mask": mask}, place.keys, ", ".join(words))


def _composed(parts: list[Any], window: Window, ids: Optional[tuple[Tensor, Tensor]], place: Place) -> Any:
    terms = [Mask.chunk(x.size) if isinstance(x, Chunk) else _expression(x, place) for x in (window, *parts)]
    terms += [] if ids is None else [Mask.documents(*ids)]
    whole, *rest = [x for x in terms if x is not None]
    for x in rest:
        whole = whole & x
    return whole


def _word(piece: Piece) -> str:
    if isinstance(piece, Joined):
        inner = [x for y in piece.parts for x in (_window_words(y) if isinstance(y, Window) else [_word(y)])]
        return f"({(' and ' if piece.all else ' or ').join(inner)})"
    if isinstance(piece, Chunk):
        return f"chunk={piece.size} from the first token"
    if isinstance(piece, ChunksOfDocuments):
        return f"chunk={piece.size} of each document"
    return {Spans: "spans", Documents: "documents", Padding: "padding"}[type(piece)]
