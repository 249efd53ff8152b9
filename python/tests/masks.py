# SPDX-License-Identifier: Apache-2.0
"""Random calls with everything that a mask may be, and what they mean: a dense mask made by the formulas of docs/masks.md."""
import numpy as np
from tileproof import Mask

KINDS = ("causal", "window", "chunk", "prefix", "prefix-each", "first", "documents", "documents-by-key", "spans", "ranges", "tree", "array")


class Call:
    """Lengths and positions of a batch; `random` is NumPy's generator."""

    def __init__(self, random, batch, rows, keys, align="bottom_right", used=False, positions=False):
        self.random, self.batch, self.rows, self.keys = random, batch, rows, keys
        full = lambda n: np.full(batch, n)
        self.q_lens = random.integers(0, rows + 1, batch) if used else full(rows)
        self.kv_lens = random.integers(0, keys + 1, batch) if used else full(keys)
        shift = (self.kv_lens - self.q_lens)[:, None] if align == "bottom_right" else 0
        self.q_pos = np.broadcast_to(np.arange(rows) + shift, (batch, rows))
        self.k_pos = np.broadcast_to(np.arange(keys), (batch, keys))
        if positions:
            self.q_pos, self.k_pos = random.integers(-9, keys, (batch, rows)), random.integers(-9, keys, (batch, keys))

    def dense(self, formula):
        """bool (batch, rows, keys) of a function of (positions of rows, positions of keys)"""
        return np.broadcast_to(formula(self.q_pos[:, :, None], self.k_pos[:, None, :]), (self.batch, self.rows, self.keys))

    def ids(self, n):
        return np.sort(self.random.integers(-1, 4, (self.batch, n)), 1) if self.random.random() < 0.5 else self.random.integers(-1, 3, (self.batch, n))

    def same(self, q_ids, kv_ids):
        return (q_ids[:, :, None] == kv_ids[:, None, :]) & (q_ids >= 0)[:, :, None]

    def of_keys(self, ids):
        """By row: the id of the first key at its position."""
        found = np.full((self.batch, self.rows), -1)
        for s in range(self.batch):
            for i in range(self.rows):
                at = np.flatnonzero(self.k_pos[s, : self.kv_lens[s]] == self.q_pos[s, i])
                found[s, i] = ids[s, at[0]] if at.size else -1
        return found

    def leaf(self, kind):
        """A Mask and what it means; None where the kind cannot be had."""
        random, number = self.random, int(self.random.integers(1, 12))
        width = random.choice([np.int32, np.int64])
        if kind == "causal":
            return Mask.causal(), self.dense(lambda q, k: k <= q)
        if kind == "window":
            left, right = (None if random.random() < 0.2 else int(random.integers(0, 9)) for _ in range(2))
            return Mask.window(left, right), self.dense(lambda q, k: (k >= q - (9e9 if left is None else left)) & (k <= q + (9e9 if right is None else right)))
        if kind == "chunk":
            return Mask.chunk(number), self.dense(lambda q, k: k // number == q // number)
        if kind == "prefix":
            return Mask.prefix(number), self.dense(lambda q, k: k < number)
        if kind == "prefix-each":
            each = random.integers(0, 12, self.batch)
            return Mask.prefix(each.astype(width)), self.dense(lambda q, k: k < each[:, None, None])
        if kind == "first":
            return Mask.first(number), np.broadcast_to(np.arange(self.keys) < number, (self.batch, self.rows, self.keys))
        if kind in ("documents", "spans"):
            q_ids, kv_ids = self.ids(self.rows).astype(width), self.ids(self.keys).astype(width)
            return getattr(Mask, kind)(q_ids, kv_ids), self.same(q_ids, kv_ids)
        if kind == "documents-by-key":
            ids = self.ids(self.keys)
            return Mask.documents(ids), self.same(self.of_keys(ids), ids)
        if kind == "ranges":
            cuts = [np.unique(random.integers(-9, 25, 2 * int(random.integers(1, 3)))) for _ in range(self.batch)]
            lists = [x[: len(x) // 2 * 2].reshape(-1, 2) for x in cuts]
            offsets = np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(int)
            seen = np.zeros((self.batch, self.rows, self.keys), bool)
            for s, own in enumerate(lists):
                for a, b in own:
                    inside = [(x[s] >= a) & (x[s] < b) for x in (self.q_pos, self.k_pos)]
                    seen[s] |= inside[0][:, None] & inside[1]
            return Mask.spans(ranges=np.concatenate([np.zeros((0, 2), int), *lists]), offsets=offsets), seen
        if kind == "tree":
            if (self.q_lens > self.kv_lens).any():
                return None
            parents = np.array([[int(random.integers(-1, i)) if i else -1 for i in range(self.rows)] for _ in range(self.batch)]).reshape(self.batch, self.rows)
            seen = np.zeros((self.batch, self.rows, self.keys), bool)
            for s in range(self.batch):
                past = self.kv_lens[s] - self.q_lens[s]
                for i in range(self.q_lens[s]):
                    seen[s, i, :past] = True
                    at = i
                    while at >= 0:
                        seen[s, i, past + at] = True
                        at = parents[s, at]
            return Mask.tree(parents), seen
        visible = random.random((self.batch, 1, self.rows, self.keys)) < 0.6
        return Mask.array(visible), visible[:, 0]

    def mask(self, parts=4):
        """A tree of a few different kinds."""
        random = self.random
        kinds = random.permutation(KINDS)[: random.integers(1, parts + 1)]
        spans = [x for x in kinds if x in ("spans", "ranges")]
        documents = [x for x in kinds if x.startswith("documents")]
        made = [self.leaf(x) for x in kinds if x not in spans[1:] + documents[1:]]
        made = [x for x in made if x is not None] or [self.leaf("causal")]
        while len(made) > 1:
            (a, x), (b, y) = made.pop(int(random.integers(len(made)))), made.pop(0)
            made.append((a & b, x & y) if random.random() < 0.5 else (a | b, x | y))
        return made[0]
