# SPDX-License-Identifier: Apache-2.0
"""Sparse indices, latent caches, tables of v's own, invariant bits and dropout."""
import unittest

import numpy as np
import reference
import tileproof

random = np.random.default_rng(13)


def data(*shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


class Lists(unittest.TestCase):
    def check(self, indices, named, counts):
        """counts: how often each row sees each key, (batch, rows, keys); a key that stands twice counts twice."""
        q, k, v = data(2, 3, 4, 16), data(2, 20, 2, 16), data(2, 20, 2, 16)
        with np.errstate(divide="ignore"):
            bias = np.log(counts.astype(float))[:, None]
        want, want_lse = reference.batch(q, k, v, bias=bias, kv_lens=named.get("kv_lens"))
        out, lse, receipt = tileproof.attention(q, k, v, indices=indices, return_lse=True, return_receipt=True, **named)
        self.assertLess(reference.error(out, want), 3e-6)
        self.assertLess(reference.error(lse, want_lse), 2e-5)
        flat = tileproof.attention(
            q.reshape(6, 4, 16), k.reshape(40, 2, 16), v.reshape(40, 2, 16), indices=indices.reshape(6, -1), layout="thd",
            cu_seqlens_q=np.array([0, 3, 6]), cu_seqlens_k=np.array([0, 20, 40]), **named,
        )  # fmt: skip
        self.assertTrue((flat.reshape(out.shape) == out).all())
        wide = np.zeros((2, 3, 2 * indices.shape[2]), indices.dtype)
        wide[..., ::2] = indices
        self.assertTrue((tileproof.attention(q, k, v, indices=wide[..., ::2], **named) == out).all())
        return receipt.problem

    def count(self, indices, seen=None):
        counts = np.zeros((2, 3, 20), int)
        for at in np.ndindex(2, 3):
            for key in indices[at]:
                if key < 0:
                    break
                counts[(*at, key)] += 1 if seen is None else seen[at][key]
        return counts

    def test_values(self):
        for dtype in (np.int32, np.int64):
            indices = random.integers(0, 13, (2, 3, 7)).astype(dtype)
            indices[0, 1, 3:] = -1
            indices[1, 2] = -1
            self.assertIn(" sparse=7", self.check(indices, dict(kv_lens=np.array([20, 13])), self.count(indices)))
            ascending = np.sort(np.stack([random.permutation(20)[:6] for _ in range(6)])).reshape(2, 3, 6).astype(dtype)
            causal = np.broadcast_to(np.arange(20) <= np.arange(3)[:, None] + 17, (2, 3, 20))
            problem = self.check(ascending, dict(causal=True, indices_sorted=True), self.count(ascending, causal))
            self.assertIn(" sparse-sorted=6", problem)

    def test_plans_and_bad_input(self):
        q, k = data(2, 3, 4, 16), data(2, 20, 2, 16)
        indices = random.integers(0, 20, (2, 3, 5))
        step = tileproof.plan(q, k, indices=(2, 3, 5))
        self.assertTrue((step.run(q, k, k, indices=indices) == tileproof.attention(q, k, k, indices=indices)).all())
        for bad, named, kind, text in (
            (indices[:, :2], {}, ValueError, r"indices has shape \(2, 2, 5\): it must broadcast to \(2, 3, any\)"),
            (indices[..., :0], {}, ValueError, "indices names 0 keys"),
            (indices + 20, {}, ValueError, "sparse"),
            (indices, dict(causal=True), ValueError, "a mask needs sparse_sorted"),
            (indices, dict(indices_sorted=1), TypeError, "indices_sorted is 1: it must be True or False"),
            (indices, dict(bias=np.zeros(20, np.float32)), tileproof.Unsupported, "bias with sparse indices"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                tileproof.attention(q, k, k, indices=bad, **named)


class Latent(unittest.TestCase):
    def test_values(self):
        q, k = data(2, 3, 4, 24), data(2, 20, 1, 24)
        for latent, v in ((16, k[..., :16]), ((8, 20), k[..., 8:20]), ((0, 24), k)):
            out, receipt = tileproof.attention(q, k, latent=latent, causal=True, return_receipt=True)
            self.assertIn("latent", receipt.problem.split())
            self.assertLess(reference.error(out, reference.batch(q, k, v, causal=True)[0]), 3e-6)
            wide = np.zeros((2, 20, 1, 48), np.float32)
            wide[..., ::2] = k  # is copied, and v with it
            again, receipt = tileproof.attention(q, wide[..., ::2], latent=latent, causal=True, return_receipt=True)
            self.assertTrue((again == out).all())
            self.assertIn("k copied", str(receipt.rewrites))
            step = tileproof.plan(q, k, latent=latent, causal=True)
            self.assertTrue((step.run(q, k) == out).all())

    def test_pages(self):
        q, pool = data(2, 1, 8, 24), data(6, 4, 1, 24)
        table = np.array([[5, 0], [2, 1]], np.int32)
        k = pool[table].reshape(2, 8, 1, 24)
        out = tileproof.attention(q, pool, latent=16, page_table=table)
        self.assertLess(reference.error(out, reference.batch(q, k, k[..., :16])[0]), 3e-6)

    def test_bad_input(self):
        q, k = data(1, 3, 4, 24), data(1, 20, 1, 24)
        for latent, text in (
            (25, r"latent is \(0, 25\): it must be a part of k's head dim of 24"),
            (0, "latent is 0: it must be N or"),
            ((8, 8), r"latent is \(8, 8\): it must be N or"),
            ((1, 2, 3), r"latent is \(1, 2, 3\)"),
            ("x", "latent is 'x'"),
        ):
            with self.subTest(latent=latent), self.assertRaisesRegex(ValueError, text):
                tileproof.attention(q, k, latent=latent)
        with self.assertRaisesRegex(ValueError, "and v is given: v must be None"):
            tileproof.attention(q, k, k, latent=16)
        with self.assertRaisesRegex(TypeError, "v is a NoneType"):
            tileproof.attention(q, k)


class Tables(unittest.TestCase):
    def test_v_has_pages_of_its_own(self):
        q, k, v = data(2, 1, 4, 16), data(6, 4, 2, 16), data(6, 4, 2, 16)
        one, other = np.array([[5, 0], [2, 1]]), np.array([[1, 1], [3, 4]], np.int32)
        out = tileproof.attention(q, k, v, page_table=one, v_page_table=other)
        want = reference.batch(q, k[one].reshape(2, 8, 2, 16), v[other].reshape(2, 8, 2, 16))[0]
        self.assertLess(reference.error(out, want), 3e-6)
        with self.assertRaisesRegex(ValueError, "v_page_table has 1 pages for a sequence and page_table 2"):
            tileproof.attention(q, k, v, page_table=one, v_page_table=other[:, :1])
        with self.assertRaisesRegex(ValueError, "v_page_table is given without page_table"):
            tileproof.attention(q, data(2, 4, 2, 16), data(2, 4, 2, 16), v_page_table=other)


class Bits(unittest.TestCase):
    def test_invariant(self):
        q, k, v = data(1, 40, 4, 16), data(1, 40, 2, 16), data(1, 40, 2, 16)
        whole, receipt = tileproof.attention(q, k, v, causal=True, invariant=True, return_receipt=True)
        self.assertIn("invariant", receipt.problem.split())
        steps = [tileproof.attention(q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1], causal=True, invariant=True) for i in range(40)]
        self.assertTrue((np.concatenate(steps, 1) == whole).all())
        with self.assertRaisesRegex(TypeError, "invariant is 1: it must be True or False"):
            tileproof.attention(q, k, v, invariant=1)


class Dropout(unittest.TestCase):
    def test_what_is_dropped(self):
        q, k = data(2, 30, 2, 16), data(2, 40, 2, 16)
        v = np.broadcast_to(np.eye(40, dtype=np.float32)[None, :, None], (2, 40, 2, 40))  # then out is the probabilities
        whole = tileproof.attention(q, k, v)
        call = lambda **named: tileproof.attention(q, k, v, dropout_p=0.25, **named)
        got = call(dropout_seed=3)
        kept = got != 0
        self.assertLess(abs(kept.mean() - 0.75), 0.03)
        self.assertLess(np.abs(got - np.where(kept, whole / 0.75, 0)).max(), 1e-6)
        self.assertTrue((got == call(dropout_seed=np.int64(3), dropout_offset=0)).all())
        self.assertTrue((call(dropout_seed=-1) == call(dropout_seed=2**64 - 1)).all())
        for other in (call(dropout_seed=4), call(dropout_seed=3, dropout_offset=1)):
            self.assertGreater(((other != 0) != kept).mean(), 0.2)
        step = tileproof.plan(q, k, v, dropout_p=0.25)
        self.assertTrue((step.run(q, k, v, dropout_seed=3) == got).all())

    def test_bad_input(self):
        x = data(1, 3, 2, 16)
        for p in (-0.1, 1.0, float("nan")):
            with self.assertRaisesRegex(ValueError, "dropout_p is .*: it must be at least 0 and below 1"):
                tileproof.attention(x, x, x, dropout_p=p)
        with self.assertRaises(ValueError):
            tileproof.attention(x, x, x, dropout_p=0.5, dropout_seed="x")


if __name__ == "__main__":
    unittest.main()
