# SPDX-License-Identifier: Apache-2.0
"""Which keys a row sees, by position or by data, composed by & and |."""
from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, Union

from . import _core

Array = Any  # whole numbers, int32 or int64, of NumPy, PyTorch on the CPU, or anything else that attention() takes

PARTS = 15  # that the library takes: each mask, and each & and |
LARGEST = 2**40


def _whole(name: str, value: Any, minimum: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: it must be an integer") from None
    if not minimum <= number <= LARGEST:
        raise ValueError(f"{name} is {number}: it must be in {minimum}..2^40")
    return number


class Mask:
    """Which keys a row sees: a mask for each word of the text form (docs/masks.md), joined by & and |.

    >>> from tileproof import Mask
    >>> Mask.causal() & Mask.window(1023, 0) | Mask.prefix(4)
    <tileproof.Mask causal window=1023,0 prefix=4>
    >>> Mask.first(4) & (Mask.causal() | Mask.chunk(8))
    <tileproof.Mask mask=first:4,causal,chunk:8,or,and>

    Positions of rows and keys are those of attention(): causal_align, or q_positions and kv_positions. Arrays are int32 or int64 and
    broadcast: by row means (batch, rows), by key (batch, keys), or (tokens) where the layout is "thd". A call has one set of
    each kind of array, so masks of the same kind may be joined only if they share theirs.
    """

    __slots__ = ("_tree", "_arrays")

    def __init__(self, tree: str, arrays: Optional[Dict[str, Array]] = None) -> None:
        self._tree = tree  # in postfix order: "causal,first:4,or"
        self._arrays = {} if arrays is None else arrays

    @staticmethod
    def causal() -> Mask:
        """Keys up to the row's own position."""
        return Mask("causal")

    @staticmethod
    def window(left: Optional[int] = None, right: Optional[int] = None) -> Mask:
        """Keys so far to the left and right of the row's own position, which counts on neither side; None: unbounded."""
        sides = [-1 if x is None else _whole(name, x, 0) for name, x in (("left", left), ("right", right))]
        return Mask(f"window:{sides[0]}:{sides[1]}")

    @staticmethod
    def chunk(size: int) -> Mask:
        """Keys of the row's own chunk of so many positions."""
        return Mask(f"chunk:{_whole('size', size, 1)}")

    @staticmethod
    def prefix(length: Union[int, Array]) -> Mask:
        """Keys at positions below a length, for all sequences or (sequences) one each."""
        if hasattr(length, "shape") and len(length.shape) > 0:
            return Mask("prefix", {"prefix_lens": length})
        return Mask(f"prefix:{_whole('length', length, 0)}")

    @staticmethod
    def first(count: int) -> Mask:
        """The first keys, by index."""
        return Mask(f"first:{_whole('count', count, 0)}")

    @staticmethod
    def documents(q_ids: Optional[Array], kv_ids: Optional[Array] = None) -> Mask:
        """Keys of the row's own id, by row and by key; negative ids see nothing and are not seen. One array alone is by key: a row
        then has the id of the first key at its position."""
        q_ids, kv_ids = _ids("documents", q_ids, kv_ids)
        return Mask("documents", {"q_documents": q_ids, "kv_documents": kv_ids})

    @staticmethod
    def spans(
        q_ids: Optional[Array] = None, kv_ids: Optional[Array] = None, *, ranges: Optional[Array] = None, offsets: Optional[Array] = None
    ) -> Mask:
        """Keys of the row's own span: by ids, as documents() has them, or by ranges (spans, 2), the first position of each and the
        one behind its last, ascending and apart; sequence s has those from offsets[s] to offsets[s + 1], (sequences + 1)."""
        if (ranges is None) != (offsets is None) or (ranges is None) == (q_ids is None and kv_ids is None):
            raise ValueError("spans are given by ids, or by ranges and offsets: exactly one of the two, and ranges with offsets")
        if ranges is not None:
            return Mask("spans", {"spans": ranges, "span_offsets": offsets})
        q_ids, kv_ids = _ids("spans", q_ids, kv_ids)
        return Mask("spans", {"q_spans": q_ids, "kv_spans": kv_ids})

    @staticmethod
    def tree(parents: Array) -> Mask:
        """Rows are the last keys, drafts that each name an earlier row as their parent, or -1: a row sees all keys before the drafts,
        itself and its ancestors."""
        return Mask("tree", {"parents": parents})

    @staticmethod
    def array(visible: Array) -> Mask:
        """Bool, True: visible; broadcast to (sequences, query heads, rows, keys)."""
        return Mask("bits", {"mask": visible})

    def _join(self, other: Mask, word: str) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        tree = f"{self._tree},{other._tree},{word}"
        if tree.count(",") >= PARTS:
            raise ValueError(f"this mask has {tree.count(',') + 1} parts: at most {PARTS} are possible, each & and | being one")
        arrays = dict(self._arrays)
        for family in FAMILIES:
            mine, theirs = ({x: y for x, y in m._arrays.items() if x in family} for m in (self, other))
            if mine and theirs and (mine.keys() != theirs.keys() or any(mine[x] is not theirs[x] for x in mine)):
                raise ValueError(
                    f"both masks have {family[0]}, and not the same arrays: a call has one set of them; join them in one array, or "
                    f"make one side a Mask.array"
                )
            arrays.update(theirs)
        return Mask(tree, arrays)

    def __and__(self, other: Mask) -> Mask:
        """Keys that both see."""
        return self._join(other, "and")

    def __or__(self, other: Mask) -> Mask:
        """Keys that one of them sees."""
        return self._join(other, "or")

    def __str__(self) -> str:
        """The words of the text form."""
        return _core.mask_words(self._tree)

    def __repr__(self) -> str:
        return f"<tileproof.Mask {self}>"


FAMILIES = (
    ("mask",), ("prefix_lens",), ("q_documents", "kv_documents"), ("q_spans", "kv_spans", "spans", "span_offsets"), ("parents",),
)  # fmt: skip


def _ids(name: str, q_ids: Optional[Array], kv_ids: Optional[Array]) -> tuple[Any, ...]:
    if q_ids is None and kv_ids is None:
        raise ValueError(f"{name} has no ids: it needs those of the keys")
    return (None, q_ids) if kv_ids is None else (q_ids, kv_ids)


def _of_numbers(kind: str, values: Tuple[Tuple[str, int], ...]) -> Callable[..., Mask]:
    """The constructor of a kind that takes numbers alone: their names, and the least that each may be."""

    def make(*numbers: int) -> Mask:
        if len(numbers) != len(values):
            raise TypeError(f"Mask.{kind} takes {len(values)} numbers ({', '.join(x for x, _ in values)}), {len(numbers)} were given")
        return Mask(":".join([kind, *(str(_whole(name, x, minimum)) for (name, minimum), x in zip(values, numbers))]))

    return make


def _complete(masks: Type[Mask], table: List[Tuple[str, Tuple[Tuple[str, int], ...], int]]) -> None:
    """Constructors of what the library's table has beyond those above, as far as it needs no arrays."""
    for kind, values, data in table:
        if not data and not hasattr(masks, kind):
            setattr(masks, kind, staticmethod(_of_numbers(kind, values)))


_complete(Mask, _core.mask_kinds())
