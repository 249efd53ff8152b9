# SPDX-License-Identifier: Apache-2.0
"""tileproof.reference and tileproof.merge."""
import itertools
import unittest

import numpy as np
import reference
import tileproof

random = np.random.default_rng(31)


def data(*shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


def qkv(layout="bshd", m=5, n=9, dtype=np.float32):
    made = [data(2, m, 4, 16, dtype=dtype), data(2, n, 2, 16, dtype=dtype), data(2, n, 2, 24, dtype=dtype)]
    return [x.swapaxes(1, 2) for x in made] if layout == "bhsd" else [x.reshape(-1, *x.shape[2:]) for x in made] if layout == "thd" else made


class Reference(unittest.TestCase):
    def test_it_is_the_definition_and_kernels_keep_its_bound(self):
        for dtype, options in itertools.product((np.float32, np.float16), (dict(), dict(causal=True), dict(window=(2, 1), scale=0.3))):
            q, k, v = qkv(dtype=dtype)
            found = tileproof.reference(q, k, v, **options)
            out, lse = tileproof.attention(q, k, v, return_lse=True, **options)
            want, want_lse = reference.batch(q, k, v, **options)
            s, h, r = found.rows.T
            self.assertEqual(found.rows.tolist(), [list(x) for x in np.ndindex(2, 4, 5)])
            self.assertEqual([x.dtype for x in found], [np.dtype(np.int64)] + 4 * [np.dtype(np.float64)])
            np.testing.assert_allclose(found.out, want[s, r, h], atol=1e-7)
            np.testing.assert_allclose(found.lse, want_lse[s, h, r], atol=1e-7)
            self.assertTrue((abs(out[s, r, h] - found.out) <= found.bound[:, None]).all())
            self.assertTrue((abs(lse[s, h, r] - found.lse) <= found.lse_bound).all())
            self.assertTrue((0 < found.bound).all() and found.bound.max() < (1e-5 if dtype == np.float32 else 4e-3))
            naive = tileproof.reference(q, k, v, precision="naive", **options)
            self.assertTrue(0 < abs(naive.out - found.out).max() < 1e-2 and not naive.bound.any() and not naive.lse_bound.any())
            rounded = tileproof.reference(q, k, v, arithmetic="p=bf16", **options)
            self.assertTrue((rounded.bound > found.bound).all())

    def test_rows_lengths_masks_and_layouts(self):
        q, k, v = qkv()
        mask = random.random((5, 9)) < 0.6
        whole = tileproof.reference(q, k, v, mask=mask)
        some = tileproof.reference(q, k, v, mask=mask, rows=[(1, 3, 4), (0, 0, 2)])
        at = [whole.rows.tolist().index(x) for x in ([1, 3, 4], [0, 0, 2])]
        for a, b in zip(some, whole):
            np.testing.assert_array_equal(a, b[at])
        self.assertEqual([len(x) for x in tileproof.reference(q, k, v, rows=[])], [0] * 5)
        used = tileproof.reference(q, k, v, q_lens=np.array([2, 0]), kv_lens=np.array([9, 3]))
        self.assertEqual(used.rows.tolist(), [[0, h, r] for h in range(4) for r in range(2)])
        packed = tileproof.reference(*qkv("thd"), layout="thd", cu_seqlens_q=np.array([0, 3, 10]), cu_seqlens_k=np.array([0, 9, 18]))
        self.assertEqual((packed.rows[:, 0] == 0).sum(), 4 * 3)
        self.assertEqual(len(packed.out), 4 * 10)
        tree = tileproof.reference(q, k, v, mask=tileproof.Mask.window(2, 0))
        np.testing.assert_array_equal(tree.out, tileproof.reference(q, k, v, window=(2, 0)).out)

    def test_options_that_few_calls_have(self):
        q, k, v = qkv()
        k8, scales, _ = tileproof.quantise(k, "i8")
        for keys, options in ((k, dict(q_scale=(0.5, 2, 0))), (k8, dict(k_scales=scales))):
            found = tileproof.reference(q, keys, v, **options)
            s, h, r = found.rows.T
            out = tileproof.attention(q, keys, v, **options)[s, r, h]
            self.assertTrue((abs(out - found.out) <= found.bound[:, None]).all())
            self.assertGreater(abs(out - tileproof.attention(q, k, v)[s, r, h]).max(), 1e-4)

    def test_bad_input(self):
        q, k, v = qkv()
        for options, kind, text in (
            (dict(rows=[(0, 0)]), ValueError, "triples"), (dict(rows=[(0, 4, 0)]), ValueError, "4"), (dict(rows=[(0, 0, -1)]), ValueError, "-1"),
            (dict(precision="half"), ValueError, 'precision is \'half\': it must be "double" or "naive"'),
            (dict(arithmetic="bf16"), ValueError, 'arithmetic is \'bf16\': it must be "f32", "opencl" or "p=bf16"'),
            (dict(kernel="math"), TypeError, "'kernel' says how a call runs"), (dict(nosuch=1), TypeError, "nosuch"),
            (dict(mask=np.ones((5, 8), bool)), ValueError, "mask has shape"),
        ):  # fmt: skip
            with self.subTest(options), self.assertRaisesRegex(kind, text):
                tileproof.reference(q, k, v, **options)


class Merge(unittest.TestCase):
    def test_parts_of_the_keys_in_every_layout(self):
        for layout, cuts in itertools.product(("bshd", "bhsd"), ((0, 9), (0, 4, 9), (0, 1, 2, 9))):
            q, k, v = qkv(layout)
            at = 2 if layout == "bhsd" else 1
            part = lambda x, a, b: x.take(range(a, b), at)
            states = [
                tileproof.attention(q, part(k, a, b), part(v, a, b), layout=layout, return_lse=True) for a, b in zip(cuts, cuts[1:])
            ]
            out, lse = tileproof.merge(*states, layout=layout)
            whole = tileproof.attention(q, k, v, layout=layout, return_lse=True)
            self.assertEqual((out.shape, lse.shape), (whole[0].shape, whole[1].shape))
            for a, b in zip((out, lse), whole):
                self.assertLess(abs(a - b).max(), 2e-6 if len(states) > 1 else 1e-30)
            spread = [(np.repeat(o, 2, -1)[..., ::2], np.repeat(x, 2, -1)[..., ::2]) for o, x in states]
            np.testing.assert_array_equal(tileproof.merge(*spread, layout=layout)[0], out)
            apart = [(np.concatenate((o, o), -1)[..., :24], x) for o, x in states]  # rows with something between them
            np.testing.assert_array_equal(tileproof.merge(*apart, layout=layout)[0], out)
        q, k, v = qkv("thd", n=5)
        cu = np.array([0, 3, 10])
        states = [tileproof.attention(q, k * s, v, layout="thd", cu_seqlens_q=cu, return_lse=True) for s in (1, -1)]
        out, lse = tileproof.merge(*states, layout="thd")
        np.testing.assert_allclose(lse, np.logaddexp(states[0][1], states[1][1]), atol=1e-6)
        shares = [np.exp(x - lse).T[..., None] for _, x in states]
        np.testing.assert_allclose(out, sum(o * w for (o, _), w in zip(states, shares)), atol=1e-6)

    def test_empty_states(self):
        q, k, v = qkv()
        out, lse = tileproof.attention(q, k, v, return_lse=True)
        nothing = np.full_like(out, np.nan), np.full_like(lse, -np.inf)
        for states in (((out, lse), nothing), (nothing, (out, lse)), ((out, lse),)):
            merged = tileproof.merge(*states)
            np.testing.assert_array_equal(merged[0], out)
            np.testing.assert_array_equal(merged[1], lse)
        merged = tileproof.merge(nothing, nothing)
        self.assertTrue((merged[0] == 0).all() and (merged[1] == -np.inf).all())

    def test_bad_input(self):
        out, lse = np.zeros((2, 5, 4, 16), np.float32), np.zeros((2, 4, 5), np.float32)
        for states, options, kind, text in (
            ((), {}, ValueError, "at least one"), ((out, lse), {}, ValueError, "each a tuple"), (((out, lse, lse),), {}, ValueError, "each a tuple"),
            (((out, lse),), dict(layout="sbhd"), ValueError, "layout is 'sbhd'"),
            (((out.astype(np.float16), lse),), {}, ValueError, "out of a state is float16 of shape .*: it must be float32"),
            (((out, lse.astype(float)),), {}, ValueError, "lse of a state is float64"),
            (((out, lse), (out[:, :4], lse)), {}, ValueError, r"out of a state is float32 of shape \(2, 4, 4, 16\): .* shaped like the first"),
            (((out, lse.swapaxes(1, 2)),), {}, ValueError, r"lse of a state is float32 of shape \(2, 5, 4\): .*\(batch, heads, rows\)"),
            (((out, lse),), dict(layout="thd"), ValueError, "as attention"), (((out, 3),), {}, TypeError, "lse is a int"),
        ):  # fmt: skip
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                tileproof.merge(*states, **options)


if __name__ == "__main__":
    unittest.main()
