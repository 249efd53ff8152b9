# SPDX-License-Identifier: Apache-2.0
"""tileproof.Mask, positions and query scale: against dense masks made by their formulas."""
import unittest

import numpy as np
import reference
import tileproof
from masks import Call
from tileproof import Mask
from tileproof._mask import _complete, _of_numbers


def data(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


class Masks(unittest.TestCase):
    def near(self, got, want, limit=3e-6):
        self.assertLess(reference.error(got, want), limit)

    def test_random_trees(self):
        for seed in range(250):
            random = np.random.default_rng(seed)
            align = str(random.choice(["bottom_right", "top_left"]))
            positions = random.random() < 0.3
            call = Call(random, int(random.integers(1, 4)), int(random.integers(1, 12)), int(random.integers(1, 30)), align, random.random() < 0.5, positions)
            q, k, v = data(random, call.batch, call.rows, 4, 16), data(random, call.batch, call.keys, 2, 16), data(random, call.batch, call.keys, 2, 16)
            mask, dense = call.mask()
            named = dict(causal_align=align, q_lens=call.q_lens, kv_lens=call.kv_lens)
            if positions:
                named.update(q_positions=call.q_pos, kv_positions=call.k_pos)
            want, want_lse = reference.batch(q, k, v, mask=dense[:, None], q_lens=call.q_lens, kv_lens=call.kv_lens)
            with self.subTest(seed=seed, mask=str(mask)):
                out, lse, receipt = tileproof.attention(q, k, v, mask=mask, return_lse=True, return_receipt=True, **named)
                self.near(out, want)
                self.near(lse, want_lse, 2e-5)
                self.assertIn(str(mask), receipt.problem)
                self.assertEqual("positions" in receipt.problem.split(), positions)
                # with causal and a window beside it, and in pages of one key
                table = np.arange(call.batch * call.keys).reshape(call.batch, call.keys)
                pool = [x.reshape(-1, 1, 2, 16) for x in (k, v)]
                both = tileproof.attention(q, *pool, page_table=table, mask=mask, causal=True, window=(7, None), **named)
                beside = call.dense(lambda a, b: (b <= a) & (b >= a - 7)) & dense
                self.near(both, reference.batch(q, k, v, mask=beside[:, None], q_lens=call.q_lens, kv_lens=call.kv_lens)[0])

    def test_packed(self):
        """By row and by key are by token of the whole tensor then."""
        random = np.random.default_rng(1)
        cu_q, cu_k = np.array([0, 5, 5, 9]), np.array([0, 8, 10, 14])
        q, k = data(random, 9, 2, 16), data(random, 14, 2, 16)
        q_ids, k_ids = random.integers(0, 3, 9), random.integers(0, 3, 14)
        q_pos, k_pos = random.integers(0, 9, 9), random.integers(0, 9, 14)
        mask = Mask.documents(q_ids, k_ids) | Mask.causal() & Mask.chunk(4)
        out = tileproof.attention(
            q, k, k, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, mask=mask, q_positions=q_pos, kv_positions=k_pos
        )
        for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
            x, y = q_pos[a:b, None], k_pos[None, c:d]
            dense = (q_ids[a:b, None] == k_ids[None, c:d]) | (y <= x) & (y // 4 == x // 4)
            self.near(out[a:b], reference.one(q[a:b], k[c:d], k[c:d], mask=dense)[0])

    def test_query_scale_and_slopes_go_by_positions(self):
        random = np.random.default_rng(2)
        q, k = data(random, 2, 5, 2, 16), data(random, 2, 9, 2, 16)
        slopes = np.array([0.5, 0.1], np.float32)
        for positions in (False, True):
            call = Call(random, 2, 5, 9, positions=positions)
            named = dict(q_positions=call.q_pos, kv_positions=call.k_pos) if positions else {}
            out, receipt = tileproof.attention(q, k, k, q_scale=(0.75, 3, 1), alibi_slopes=slopes, return_receipt=True, **named)
            self.assertIn("qscale=0.75,3,1", receipt.problem)
            scale = 1 + 0.75 * np.log1p(np.maximum(call.q_pos + 1, 0) // 3)
            bias = -slopes[:, None, None] * np.abs(call.q_pos[:, None, :, None] - call.k_pos[:, None, None, :])
            self.near(out, reference.batch(q * scale[:, :, None, None], k, k, bias=bias)[0])

    def test_text(self):
        ids = np.arange(4)
        for mask, words in (
            (Mask.causal() & Mask.window(3, None), "causal window=3,-1"),
            (Mask.window(3, 0) | Mask.first(1), "window=3,0 first=1"),
            ((Mask.window(3, 0) | Mask.first(1)) & Mask.causal(), "window=3,0 first=1 causal"),
            (Mask.causal() | Mask.prefix(ids), "causal prefix"),
            (Mask.causal() | Mask.spans(ids), "causal spans"),
            (Mask.causal() & Mask.spans(ids) & Mask.tree(ids) & Mask.array(ids > 1), "causal spans-and tree bits"),
            (Mask.documents(ids, ids), "documents"),
            (Mask.first(4) & (Mask.causal() | Mask.chunk(2)), "mask=first:4,causal,chunk:2,or,and"),
        ):
            self.assertEqual(str(mask), words)
            self.assertEqual(repr(mask), f"<tileproof.Mask {words}>")

    def test_every_kind_has_a_constructor(self):
        """By the library's table. Python has no callback; Mask.array is `bits`."""
        numbers = {"left": 3, "right": 0}
        for kind, values, data in tileproof._core.mask_kinds():
            with self.subTest(kind=kind):
                written = getattr(Mask, {"bits": "array"}.get(kind, kind), None)
                self.assertEqual(kind != "callback", callable(written))
                if not data:  # and the one that the table alone gives is the same
                    some = [numbers.get(name, 5) for name, _ in values]
                    self.assertEqual(str(_of_numbers(kind, values)(*some)), str(written(*some)))
                    for i, (name, min) in enumerate(values):
                        with self.assertRaisesRegex(ValueError, rf"{name} is {min - 1}: it must be in {min}..2\^40"):
                            _of_numbers(kind, values)(*some[:i], min - 1, *some[i + 1 :])
        with self.assertRaisesRegex(TypeError, r"Mask.window takes 2 numbers \(left, right\), 1 were given"):
            _of_numbers("window", (("left", -1), ("right", -1)))(3)

        class More(Mask):  # with a kind that the library does not have
            pass

        _complete(More, [("dilated", (("stride", 1), ("offset", 0)), 0), ("causal", (), 0), ("bits", (), 1)])
        self.assertEqual(More.dilated(3, 1)._tree, "dilated:3:1")
        self.assertIs(More.causal, Mask.causal)
        self.assertFalse(hasattr(More, "bits"))

    def test_plans(self):
        random = np.random.default_rng(4)
        q, k = data(random, 2, 5, 2, 16), data(random, 2, 9, 2, 16)
        mask = Mask.causal() & Mask.array(random.random((5, 9)) < 0.7) | Mask.spans(random.integers(0, 2, (2, 5)), random.integers(0, 2, (2, 9)))
        named = dict(mask=mask, q_positions=np.arange(5), kv_positions=np.arange(9))
        step = tileproof.plan(q, k, q_scale=(0.5, 2, 0), invariant=True, **named)
        self.assertIn("mask=causal,bits,and,spans,or positions qscale=0.5,2,0 invariant", step.decision.problem)
        want = tileproof.attention(q, k, k, q_scale=(0.5, 2, 0), invariant=True, **named)
        self.assertTrue((step.run(q, k, k, **named) == want).all())
        with self.assertRaisesRegex(ValueError, "only lengths may differ"):
            step.run(q, k, k, **{**named, "mask": mask & Mask.causal()})
        again = tileproof.plan(q, k, mask=mask, q_positions=True, kv_positions=True, q_scale=(0.5, 2, 0), invariant=True)
        self.assertEqual(again.decision.problem, step.decision.problem)

    def test_bad_masks(self):
        ids = np.arange(4)
        for call, kind, text in (
            (lambda: Mask.window(-1, 0), ValueError, r"left is -1: it must be in 0..2\^40"),
            (lambda: Mask.window(0, 2**41), ValueError, "right is"),
            (lambda: Mask.chunk(0), ValueError, r"size is 0: it must be in 1..2\^40"),
            (lambda: Mask.chunk(1.5), TypeError, "size is 1.5: it must be an integer"),
            (lambda: Mask.prefix([3]), TypeError, r"length is \[3\]"),
            (lambda: Mask.documents(None), ValueError, "documents has no ids: it needs those of the keys"),
            (lambda: Mask.spans(), ValueError, "by ids, or by ranges and offsets"),
            (lambda: Mask.spans(ids, ranges=ids, offsets=ids), ValueError, "exactly one"),
            (lambda: Mask.spans(ranges=ids), ValueError, "ranges with offsets"),
            (lambda: Mask.documents(ids, ids) & Mask.documents(ids, ids + 0), ValueError, "both masks have q_documents, and not the same.*Mask.array"),
            (lambda: Mask.spans(ids) | Mask.spans(ranges=ids, offsets=ids), ValueError, "both masks have q_spans"),
            (lambda: Mask.array(ids > 1) | Mask.array(ids > 1), ValueError, "both masks have mask"),
            (lambda: Mask.causal() & True, TypeError, "unsupported operand"),
        ):
            with self.assertRaisesRegex(kind, text):
                call()
        mask = shared = Mask.documents(ids, ids)
        for _ in range(7):
            mask = mask | shared
        with self.assertRaisesRegex(ValueError, "this mask has 17 parts: at most 15 are possible"):
            mask | shared
        x = np.zeros((1, 4, 2, 8), np.float32)
        with self.assertRaisesRegex(ValueError, "mask has 17 parts with causal and window: at most 15"):
            tileproof.attention(x, x, x, mask=mask, causal=True)
        with self.assertRaisesRegex(ValueError, "postfix order"):
            tileproof._core.mask_words("causal softcap=3")

    def test_bad_arrays(self):
        x, ids = np.zeros((2, 4, 2, 8), np.float32), np.zeros((2, 4), int)
        for mask, kind, text in (
            (Mask.documents(ids[:, :3], ids), ValueError, r"q_documents has shape \(2, 3\): it must broadcast to \(2, 4\), which is \(rows\) of each sequence"),
            (Mask.documents(ids, ids.astype(np.float32)), TypeError, "kv_documents is float32: it must be int32 or int64"),
            (Mask.documents(ids.tolist()), TypeError, "kv_documents is a list"),
            (Mask.prefix(np.zeros(3, int)), ValueError, r"prefix_lens has shape \(3,\): it must broadcast to \(2\), which is \(sequences\)"),
            (Mask.tree(ids), ValueError, r"parents.*earlier row"),
            (Mask.spans(ranges=np.zeros((3, 3), int), offsets=np.zeros(3, int)), ValueError, r"spans has shape \(3, 3\): it must be \(any, 2\)"),
            (Mask.spans(ranges=np.zeros((1, 2), int), offsets=np.zeros(2, int)), ValueError, r"span_offsets has shape \(2,\): it must be \(3\)"),
            (Mask.spans(ranges=np.array([[0, 2]]), offsets=np.array([0, 1, 2])), ValueError, r"span_offsets\[2\] is 2: it must be in 0..1, the spans there are"),
            (Mask.spans(ranges=np.array([[2, 2]]), offsets=np.array([0, 1, 1])), ValueError, "spans"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                tileproof.attention(x, x, x, mask=mask)
        for options, text in (
            (dict(q_positions=ids), "q_positions is given without kv_positions: it needs both"),
            (dict(kv_positions=ids), "kv_positions is given without q_positions"),
            (dict(q_positions=ids, kv_positions=ids + 2**41), "2\\^40"),
            (dict(q_scale=(0.1, 2)), r"q_scale is \(0.1, 2\): it must be None or a tuple"),
            (dict(q_scale=(0.1, 0, 0)), "its length must be at least 1"),
            (dict(q_scale=(float("inf"), 2, 0)), "qscale_beta is inf"),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                tileproof.attention(x, x, x, **options)


if __name__ == "__main__":
    unittest.main()
