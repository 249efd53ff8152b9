# SPDX-License-Identifier: Apache-2.0
"""Pages, and caches with packed rows: against the same call on plain tensors, and the definition."""
import unittest

import numpy as np
import reference
import tileproof

random = np.random.default_rng(3)
SIZE, COLUMNS = 4, 5
LENS = np.array([13, 0, 20, 7])


def data(*shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


def cut(x, dtype=np.int32):
    """A cache (sequences, tokens, heads, dim) as a pool whose unused elements are NaN, and its table; unused entries are bad."""
    b, _, g, d = x.shape
    pool = np.full((b * COLUMNS + 3, SIZE, g, d), np.nan, x.dtype)
    free = iter(random.permutation(len(pool)))
    table = np.full((b, COLUMNS), 10**6, dtype)
    for s in range(b):
        for at in range(0, LENS[s], SIZE):
            page = table[s, at // SIZE] = next(free)
            pool[page, : min(SIZE, LENS[s] - at)] = x[s, at : min(at + SIZE, LENS[s])]
    return pool, table


def pages(k, v, dtype=np.int32):
    """k and v by one table."""
    both, table = cut(np.concatenate([k, v], 3), dtype)
    return both[..., : k.shape[3]], both[..., k.shape[3] :], table


class Pages(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = data(4, 3, 4, 16), data(4, SIZE * COLUMNS, 2, 16), data(4, SIZE * COLUMNS, 2, 24)

    def test_values(self):
        options = (
            dict(), dict(causal=True), dict(window=(3, 0), softcap=2.0), dict(mask=random.random((3, SIZE * COLUMNS)) < 0.5),
            dict(bias=data(4, 1, 3, SIZE * COLUMNS)), dict(causal=True, q_lens=np.array([3, 1, 2, 0])),
        )  # fmt: skip
        for dtype in (np.int32, np.int64):
            k, v, table = pages(self.k, self.v, dtype)
            for extra in options:
                call = dict(extra, kv_lens=LENS.astype(dtype))
                out, lse = tileproof.attention(self.q, k, v, page_table=table, return_lse=True, **call)
                want, want_lse = reference.batch(self.q, self.k, self.v, **call)
                self.assertLess(reference.error(out, want), 2e-6, extra)
                self.assertLess(reference.error(lse, want_lse), 2e-5, extra)

    def test_layouts_give_the_same_bits(self):
        k, v, table = pages(self.k, self.v)
        want, receipt = tileproof.attention(self.q, k, v, page_table=table, kv_lens=LENS, return_receipt=True)
        self.assertIn("paged=4", receipt.problem)
        self.assertNotIn("copied", str(receipt.rewrites))
        turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (self.q, k, v)]
        out = tileproof.attention(*turned, page_table=table, kv_lens=LENS, layout="bhsd")
        self.assertTrue((out.transpose(0, 2, 1, 3) == want).all())
        wide = np.zeros((4, 2 * COLUMNS), np.int64)
        wide[:, ::2] = table
        self.assertTrue((tileproof.attention(self.q, k, v, page_table=wide[:, ::2], kv_lens=LENS) == want).all())

    def test_mixed_batches(self):
        """Prefill, decode and nothing at all in one call: rows packed, keys in pages or in a cache."""
        k, v, table = pages(self.k, self.v)
        cu = np.array([0, 9, 9, 10, 12], np.int32)
        q = data(12, 4, 16)
        out, lse, receipt = tileproof.attention(
            q, k, v, layout="thd", cu_seqlens_q=cu, page_table=table, kv_lens=LENS, causal=True, return_lse=True, return_receipt=True
        )
        self.assertIn("packed-q", receipt.problem)
        self.assertEqual((out.shape, lse.shape), ((12, 4, 24), (4, 12)))
        cache = tileproof.attention(q, self.k, self.v, layout="thd", cu_seqlens_q=cu, kv_lens=LENS, causal=True)
        self.assertTrue((cache == out).all())
        for s in range(4):
            rows = slice(cu[s], cu[s + 1])
            want, want_lse = reference.one(q[rows], self.k[s, : LENS[s]], self.v[s, : LENS[s]], causal=True)
            self.assertLess(reference.error(out[rows], want), 2e-6)
            self.assertLess(reference.error(lse[:, rows], want_lse), 2e-5)

    def test_without_lengths_a_sequence_has_all_keys_of_its_pages(self):
        k, v = data(6, SIZE, 2, 16), data(6, SIZE, 2, 16)
        table = np.array([[5, 0, 5]])
        whole = [x[table[0]].reshape(1, 12, 2, 16) for x in (k, v)]
        out = tileproof.attention(self.q[:1], k, v, page_table=table, causal=True)
        self.assertTrue((out == tileproof.attention(self.q[:1], *whole, causal=True)).all())
        none = tileproof.attention(self.q[:1], k, v, page_table=np.zeros((1, 0), np.int32))
        self.assertTrue((none == 0).all())

    def test_plans(self):
        k, v, table = pages(self.k, self.v)
        step = tileproof.plan(self.q.shape, k.shape, v.shape, page_table=table.shape)
        self.assertEqual(step.decision.problem, "decode b4 h4/2 q3 k20 d16/24 f32 paged=4")
        want = tileproof.attention(self.q, k, v, page_table=table, kv_lens=LENS)
        self.assertTrue((step.run(self.q, k, v, page_table=table, kv_lens=LENS) == want).all())
        with self.assertRaisesRegex(ValueError, "only lengths may differ"):
            step.run(self.q, self.k, self.v, kv_lens=LENS)
        self.assertEqual(tileproof.explain(self.q, k, v, page_table=table).problem, step.decision.problem)

    def refused(self, kind, text, *args, **options):
        with self.assertRaisesRegex(kind, text):
            tileproof.attention(*args, **options)

    def test_bad_input(self):
        k, v, table = pages(self.k, self.v)
        q, good = self.q, dict(kv_lens=LENS)
        self.refused(TypeError, "page_table is float32: it must be int32 or int64", q, k, v, page_table=table.astype(np.float32), **good)
        self.refused(TypeError, "page_table is a list", q, k, v, page_table=table.tolist(), **good)
        self.refused(ValueError, r"page_table has shape \(3, 5\): it must be \(4, any\), which is \(sequences, pages of a sequence\)", q, k, v, page_table=table[:3], **good)
        self.refused(ValueError, r"page_table has shape \(5,\)", q, k, v, page_table=table[0], **good)
        self.refused(ValueError, r"k has shape \(23, 4, 2\): with page_table it must be \(pages, tokens of a page, heads", q, k[..., 0], v, page_table=table, **good)
        self.refused(ValueError, "v has 22 pages and k 23", q, k, v[:-1], page_table=table, **good)
        self.refused(ValueError, "k_pages.*1000000", q, k, v, page_table=table, kv_lens=np.array([13, 1, 20, 7]))
        self.refused(ValueError, "kv_len", q, k, v, page_table=table, kv_lens=np.array([13, 0, 21, 7]))
        self.refused(ValueError, "page_size is 0", q, k[:, :0], v[:, :0], page_table=table, **good)
        cu = dict(layout="thd", cu_seqlens_q=np.array([0, 1, 2, 3, 12]))
        self.refused(ValueError, "cu_seqlens_k is given: only layout \"thd\" with k of three dim", data(12, 4, 16), k, v, page_table=table, cu_seqlens_k=np.arange(5), **cu)
        self.refused(ValueError, "k has 3 sequences and cu_seqlens_q 4", data(12, 4, 16), self.k[:3], self.v[:3], **cu)
        self.refused(ValueError, r"v has shape \(4, 20, 2\): this layout is", data(12, 4, 16), self.k, self.v[..., 0], **cu)


if __name__ == "__main__":
    unittest.main()
