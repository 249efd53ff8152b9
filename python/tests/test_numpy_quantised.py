# SPDX-License-Identifier: Apache-2.0
"""Quantised k and v: every format in every layout against what is stored, what quantising loses, and what is refused."""
import unittest

import ml_dtypes
import numpy as np
import reference
import tileproof

random = np.random.default_rng(29)
FORMATS = (("i8", None), ("e4m3/token", None), ("e4m3", 0.0125), ("i4", None), ("i8/q8_0", None))
STEP = {"i8": 1 / 254, "e4m3/token": 1 / 28, "e4m3": 1 / 28, "i4": 1 / 14, "i8/q8_0": 1 / 254}  # of the greatest of a row, where nothing is cut off


def data(*shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


def stored(x, format, scale):
    """Codes, scales, and what they stand for."""
    codes, scales, _ = tileproof.quantise(x, format, scale=scale)
    return codes, scales, tileproof.dequantise(codes, scales, format)


def each(x, change):
    return change(x) if isinstance(x, np.ndarray) else x


class Rows(unittest.TestCase):
    def test_what_is_lost(self):
        for (format, scale), dtype in ((f, d) for f in FORMATS for d in (np.float32, np.float16, ml_dtypes.bfloat16)):
            with self.subTest(format=format, scale=scale, dtype=dtype):
                x = data(3, 5, 96, dtype=dtype)
                codes, scales, loss = tileproof.quantise(x, format, scale=scale)
                back = tileproof.dequantise(codes, scales, format)
                wide = x.astype(np.float32)
                found = (np.abs(back - wide).max(-1) / np.abs(wide).max(-1)).max()
                self.assertAlmostEqual(found, loss, delta=1e-6)
                self.assertLess(loss, STEP[format] * (1.01 if scale is None else 2))
                self.assertGreater(loss, STEP[format] / 4)
                self.assertEqual(back.dtype, np.float32)
                again = tileproof.dequantise(codes, scales, format, dtype=dtype)
                self.assertEqual(again.dtype, dtype)
                self.assertTrue((again == back.astype(dtype)).all())

    def test_shapes_of_codes_and_scales(self):
        for format, last, dtype, groups in (("i8", 96, np.int8, ()), ("e4m3/token", 96, np.uint8, ()), ("i4", 48, np.uint8, (3,)), ("i8/q8_0", 102, np.uint8, None)):
            codes, scales, _ = tileproof.quantise(data(2, 5, 96), format)
            self.assertEqual((codes.shape, codes.dtype), ((2, 5, last), dtype))
            if groups is None:
                self.assertIsNone(scales)
            else:
                self.assertEqual((scales.shape, scales.dtype), ((2, 5, *groups), np.float16 if groups else np.float32))
        codes, scales, _ = tileproof.quantise(data(4, 20), "i4")  # the last group is shorter
        self.assertEqual((codes.shape, scales.shape), ((4, 10), (4, 1)))

    def test_any_strides(self):
        x = data(6, 4, 64)
        view = x[::-2, :, ::2].transpose(1, 0, 2)
        for format, scale in FORMATS:
            codes, scales, loss = tileproof.quantise(view, format, scale=scale)
            plain, same, less = tileproof.quantise(view.copy(), format, scale=scale)
            self.assertTrue((codes == plain).all() and loss == less and np.array_equal(scales, same))
            wide = np.zeros((*codes.shape[:-1], 2 * codes.shape[-1]), codes.dtype)
            wide[..., ::2] = codes
            spread = each(scales, lambda s: np.repeat(s, 2, axis=0)[::2])
            got = tileproof.dequantise(wide[..., ::2], spread, format)
            self.assertTrue((got == tileproof.dequantise(codes, scales, format)).all())

    def test_special_rows(self):
        x = np.array([[0.0] * 32, [np.inf] + [1.0] * 31, [np.nan] + [2.0] * 31], np.float32)
        for format, scale in FORMATS:
            codes, scales, loss = tileproof.quantise(x, format, scale=scale)
            back = tileproof.dequantise(codes, scales, format)
            self.assertEqual(loss, np.inf)
            self.assertTrue((back[0] == 0).all() and np.isnan(back[1:, 0]).all())
        self.assertEqual(tileproof.quantise(np.zeros((0, 32), np.float32), "i8")[0].shape, (0, 32))

    def test_refusals(self):
        x = data(2, 32)
        codes, scales, _ = tileproof.quantise(x, "i8")
        for call, kind, text in (
            (lambda: tileproof.quantise(x, "i5"), ValueError, "format is 'i5': it must be plain, i8, i8/q8_0, i4, e4m3 or e4m3/token, or two"),
            (lambda: tileproof.quantise(x, 8), TypeError, "format is 8: it must be a str that names the format of a cache"),
            (lambda: tileproof.quantise(x, "q8_0"), ValueError, "format is 'q8_0': it must be plain, i8, i8/q8_0"),
            (lambda: tileproof.quantise(x, "i8:i4"), ValueError, "format is 'i8:i4': rows have one format, and that of codes"),
            (lambda: tileproof.quantise(x, "plain"), ValueError, "format is 'plain': rows have one format, and that of codes"),
            (lambda: tileproof.quantise(x, "e4m3"), ValueError, 'scale is None: "e4m3" has one scale .* so it must be a number; "e4m3/token" has one for each row'),
            (lambda: tileproof.quantise(x, "e4m3/token", scale=0.1), ValueError, 'format "e4m3/token": only e4m3/tensor has one scale'),
            (lambda: tileproof.dequantise(codes, scales, "i8:i4"), ValueError, "format is 'i8:i4': rows have one format"),
            (lambda: tileproof.quantise(x.astype(np.float64), "i8"), TypeError, "x is float64: it must be float32"),
            (lambda: tileproof.quantise(x[:, :31], "i4"), ValueError, "x has rows of 31 elements: for i4/group it must be a multiple of 2"),
            (lambda: tileproof.quantise(x[:, :16], "i8/q8_0"), ValueError, "x has rows of 16 elements: for i8/q8_0 it must be a multiple of 32"),
            (lambda: tileproof.quantise(x[:, :0], "i8"), ValueError, "x has rows of 0 elements"),
            (lambda: tileproof.quantise(np.float32(1), "i8"), ValueError, r"x has shape \(\): it must have rows"),
            (lambda: tileproof.quantise(x, "i8", scale=0.1), ValueError, "scale is 0.1 and format \"i8/token\": only e4m3/tensor has one scale"),
            (lambda: tileproof.quantise(x, "e4m3", scale=0.0), ValueError, "scale is 0.0: it must be finite and above 0"),
            (lambda: tileproof.quantise(x, "e4m3", scale=np.inf), ValueError, "scale is inf: it must be finite"),
            (lambda: tileproof.quantise(x, "e4m3", scale="x"), TypeError, "scale is 'x': it must be a number"),
            (lambda: tileproof.dequantise(x, scales), TypeError, "codes is float32: it must be int8, uint8 or float8_e4m3fn"),
            (lambda: tileproof.dequantise(codes), ValueError, "scales is None: codes in i8 has scales, a float32 for each token and head"),
            (lambda: tileproof.dequantise(codes.view(np.uint8), scales), TypeError, "codes is uint8: format must say what its codes are"),
            (lambda: tileproof.dequantise(codes, scales, "i4"), TypeError, "codes is int8: codes of i4/group are uint8;"),
            (lambda: tileproof.dequantise(codes, scales[:1]), ValueError, r"scales has shape \(1,\): with codes of shape \(2, 32\) in i8/token it must be \(2,\)"),
            (lambda: tileproof.dequantise(codes, scales, dtype="int8"), TypeError, "dtype is 'int8': it must be"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                call()


class Attention(unittest.TestCase):
    def check(self, q, k, v, real_k, real_v, tolerance=3e-6, oracle={}, **options):
        """Against the definition, on what is stored, in whichever dtype q is."""
        out, receipt = tileproof.attention(q, k, v, return_receipt=True, **options)
        want = reference.batch(q, real_k, real_v, **oracle)[0]
        self.assertLess(reference.error(out, want), tolerance)
        self.assertTrue(receipt.lossy)
        return out, receipt

    def test_batches(self):
        for format, scale in FORMATS:
            for dtype, rows in ((np.float32, 2), (np.float32, 40), (ml_dtypes.bfloat16, 1), (np.float16, 20)):
                with self.subTest(format=format, scale=scale, dtype=dtype, rows=rows):
                    q, (k, ks, kr), (v, vs, vr) = data(2, rows, 4, 64, dtype=dtype), stored(data(2, 50, 2, 64), format, scale), stored(data(2, 50, 2, 32), format, scale)
                    named = dict(k_scales=ks, v_scales=vs, kv_format=format, causal=True)
                    tolerance = 3e-6 if dtype is np.float32 else 0.02
                    out, receipt = self.check(q, k, v, kr, vr, tolerance, dict(causal=True), **named)
                    self.assertIn("{0}:{0}".format(format.split("/")[0]), receipt.problem)
                    self.assertEqual("scales=q8_0" in receipt.problem, format == "i8/q8_0")
                    self.assertEqual("scales=token" in receipt.problem, format == "e4m3/token")
                    swap = lambda x: each(x, lambda y: np.ascontiguousarray(y.swapaxes(1, 2)))
                    named.update(k_scales=swap(ks), v_scales=swap(vs))
                    other = tileproof.attention(swap(q), swap(k), swap(v), layout="bhsd", **named)
                    self.assertTrue((other.swapaxes(1, 2) == out).all())

    def test_packed_and_mixed(self):
        starts, keys = np.array([0, 3, 4, 9]), np.array([0, 10, 10, 40])
        for format, scale in FORMATS:
            q, (k, ks, kr), (v, vs, vr) = data(9, 4, 32), stored(data(40, 2, 32), format, scale), stored(data(40, 2, 32), format, scale)
            named = dict(k_scales=ks, v_scales=vs, kv_format=format, layout="thd", cu_seqlens_q=starts)
            out = tileproof.attention(q, k, v, cu_seqlens_k=keys, **named)
            for s in range(3):
                of, to = slice(starts[s], starts[s + 1]), slice(keys[s], keys[s + 1])
                want = reference.batch(q[None, of], kr[None, to], vr[None, to])[0][0]
                self.assertLess(reference.error(out[of], want), 3e-6)
            cache, table = (lambda x: each(x, lambda y: y[:36].reshape(3, 12, *y.shape[1:]))), np.array([3, 0, 12])
            named.update(k_scales=cache(ks), v_scales=cache(vs), kv_lens=table)
            out = tileproof.attention(q, cache(k), cache(v), **named)
            for s in range(3):
                of = slice(starts[s], starts[s + 1])
                want = reference.batch(q[None, of], cache(kr)[s : s + 1, : table[s]], cache(vr)[s : s + 1, : table[s]])[0][0]
                self.assertLess(reference.error(out[of], want), 3e-6)

    def test_pages(self):
        table, lens = np.array([[5, 0], [2, 1]], np.int32), np.array([7, 8])
        for format, scale in FORMATS:
            q, (k, ks, kr), (v, vs, vr) = data(2, 1, 4, 32), stored(data(6, 4, 2, 32), format, scale), stored(data(6, 4, 2, 32), format, scale)
            named = dict(k_scales=ks, v_scales=vs, kv_format=format, page_table=table, kv_lens=lens)
            gathered = [x[table].reshape(2, 8, 2, 32) for x in (kr, vr)]
            out, receipt = self.check(q, k, v, *gathered, oracle=dict(kv_lens=lens), **named)
            self.assertIn("page", receipt.problem)
            swap = lambda x: each(x, lambda y: np.ascontiguousarray(y.swapaxes(1, 2)))
            named.update(k_scales=swap(ks), v_scales=swap(vs))
            self.assertTrue((tileproof.attention(swap(q), swap(k), swap(v), layout="bhsd", **named).swapaxes(1, 2) == out).all())

    def test_one_of_them_and_two_formats(self):
        q, k, v = data(1, 3, 4, 32), data(1, 9, 2, 32), data(1, 9, 2, 32)
        v8, vs, vr = stored(v, "i8", None)
        self.check(q, k, v8, k, vr, v_scales=vs)
        k4, ks, kr = stored(k, "i4", None)
        self.check(q, k4, v, kr, v, k_scales=ks, kv_format=("i4", None))
        self.check(q, k4, v8, kr, vr, k_scales=ks, v_scales=vs, kv_format=("i4", "i8"))
        self.check(q, k4, v8, kr, vr, k_scales=ks, v_scales=vs, kv_format=("i4", None))
        self.check(q, k4, v8, kr, vr, k_scales=ks, v_scales=vs, kv_format="i4/group:i8")  # as one word for both
        self.check(q, k, v8, k, vr, v_scales=vs, kv_format="plain:i8")
        self.check(q, k, v8, k, vr, v_scales=vs, kv_format=("plain", "i8"))
        e4, es, er = stored(v, "e4m3", 0.02)
        typed = e4.view(ml_dtypes.float8_e4m3fn)
        self.assertTrue((typed.astype(np.float32) * np.float32(es) == er).all())
        for one in (es, np.float32(es), np.array([es], np.float32)):  # one scale, however it comes; the dtype says the format
            self.check(q, k, typed, k, er, v_scales=one)
        self.check(q, typed, typed, er, er, k_scales=es, v_scales=es)

    def test_one_token_has_one_scale_either_way(self):
        """The word says which it is; without one it is that of the whole tensor."""
        q, (k, ks, kr) = data(1, 4, 16), stored(data(1, 1, 16), "e4m3/token", None)
        typed = k[0].view(ml_dtypes.float8_e4m3fn)[None]
        for word, scales, of in (("e4m3/token", ks, "scales=token"), ("e4m3", ks[0], ""), (None, ks[0], "")):
            out, receipt = tileproof.attention(q, typed, typed, k_scales=scales, v_scales=scales, kv_format=word, layout="thd",
                                               cu_seqlens_q=np.array([0, 1]), return_receipt=True)  # fmt: skip
            self.assertEqual("scales=token" in receipt.problem, bool(of))
            self.assertLess(reference.error(out, np.broadcast_to(kr, (1, 4, 16)).astype(np.float64)), 3e-6)

    def test_plans_by_word_and_by_dtype(self):
        """A dtype of e4m3 does not say how many scales there are: the plan's scales do, or the word."""
        q, typed = data(2, 3, 4, 64), np.zeros((2, 20, 2, 64), ml_dtypes.float8_e4m3fn)
        for named, token in ((dict(), False), (dict(k_scales=True, v_scales=True), True), (dict(kv_format="e4m3/token"), True), (dict(kv_format="e4m3"), False),
                             (dict(k_scales=0.5, v_scales=0.5), False)):  # fmt: skip
            self.assertEqual("scales=token" in tileproof.explain(q, typed, typed, **named).problem, token, named)
        told = tileproof.explain(q.shape, typed.shape, typed.shape, dtype="float32", kv_format="plain:i8")
        self.assertIn("f32:f32:i8->f32", told.problem)
        with self.assertRaisesRegex(ValueError, 'k_scales is for each token: k in e4m3/tensor has one scale; "e4m3/token" has one for each'):
            tileproof.explain(q, typed, typed, kv_format="e4m3", k_scales=True)

    def test_latent(self):
        q, k = data(2, 3, 4, 96), data(2, 20, 1, 96)
        for format, scale in FORMATS:
            for latent in ((0, 64), (32, 96)):
                codes, scales, real = stored(k, format, scale)
                out = tileproof.attention(q, codes, k_scales=scales, kv_format=format, latent=latent)
                self.assertLess(reference.error(out, reference.batch(q, real, real[..., slice(*latent)])[0]), 3e-6)
                step = tileproof.plan(q, codes, latent=latent, kv_format=format, k_scales=scales)
                self.assertTrue((step.run(q, codes, k_scales=scales) == out).all())
        codes, scales, _ = stored(k, "i4", None)
        with self.assertRaisesRegex(ValueError, "latent begins at 8: with k in i4/group it must be a multiple of 32"):
            tileproof.attention(q, codes, k_scales=scales, kv_format="i4", latent=(8, 40))
        with self.assertRaisesRegex(ValueError, "v_scales is given with latent: v's scales are k's"):
            tileproof.attention(q, codes, k_scales=scales, v_scales=scales, kv_format="i4", latent=64)

    def test_the_loss_is_on_the_receipt(self):
        q, x = data(2, 3, 4, 64), data(2, 20, 2, 64)
        codes, scales, loss = tileproof.quantise(x, "i8")
        named = dict(k_scales=scales, v_scales=scales)
        step = tileproof.plan(q, codes, codes, **named)
        for run in (tileproof.attention, step.run):
            for said in (None, 0, loss):
                receipt = run(q, codes, codes, return_receipt=True, kv_loss=said, **named)[1]
                self.assertEqual(receipt.kv_loss, said or 0)
                self.assertEqual(f", loss {loss:.3g}" in str(receipt), said == loss)
        self.assertEqual(tileproof.attention(q, x, x, kv_loss=0.25, return_receipt=True)[1].kv_loss, 0.25)  # as in C, the caller's word
        for said, kind, text in ((-0.5, ValueError, "kv_loss is -0.5: it must be finite and not negative"), (float("inf"), ValueError, "kv_loss is inf"),
                                 (float("nan"), ValueError, "kv_loss is nan"), ("x", TypeError, "kv_loss is 'x': it must be a number")):  # fmt: skip
            with self.subTest(said), self.assertRaisesRegex(kind, text):
                tileproof.attention(q, codes, codes, kv_loss=said, **named)
        with self.assertRaisesRegex(TypeError, "'kv_loss' is no option of a plan"):
            tileproof.explain(q, codes, codes, kv_loss=loss, **named)

    def test_plans_explain_and_copies(self):
        q = data(2, 3, 4, 64)
        for format, scale in FORMATS:
            (k, ks, kr), (v, vs, vr) = stored(data(2, 20, 2, 64), format, scale), stored(data(2, 20, 2, 64), format, scale)
            out, receipt = tileproof.attention(q, k, v, k_scales=ks, v_scales=vs, kv_format=format, return_receipt=True)
            step = tileproof.plan(q, k, v, kv_format=format, k_scales=ks, v_scales=vs)
            self.assertEqual(step.decision.problem, receipt.problem)
            self.assertTrue((step.run(q, k, v, k_scales=ks, v_scales=vs) == out).all())
            shapes = None if not isinstance(ks, np.ndarray) else True
            told = tileproof.explain(q.shape, k.shape, v.shape, dtype="float32", kv_format=format, k_scales=shapes, v_scales=shapes)
            self.assertEqual(told.problem, receipt.problem)
            spread = np.zeros((*k.shape[:-1], 2 * k.shape[-1]), k.dtype)
            spread[..., ::2] = k
            scales = each(ks, lambda x: x[..., ::-1].copy()[..., ::-1])
            again, receipt = tileproof.attention(q, spread[..., ::2], v, k_scales=scales, v_scales=vs, kv_format=format, return_receipt=True)
            self.assertTrue((again == out).all())
            self.assertIn("k copied: its last dimension is not contiguous (exact)", receipt.rewrites)
            self.assertEqual("k_scales copied" in str(receipt.rewrites), isinstance(ks, np.ndarray))
        with self.assertRaisesRegex(TypeError, "'kv_format' is an option of the plan"):
            step.run(q, k, v, kv_format="i8/q8_0")
        self.assertIn("f32:i8:i8", tileproof.explain(q, np.zeros((2, 20, 2, 64), np.int8), k_scales=True).problem)  # by the dtype
        with self.assertRaisesRegex(ValueError, "only lengths may differ"):
            tileproof.plan(q, k, v, kv_format="i8/q8_0", invariant=True).run(q[..., :32], k[..., :34], v)

    def test_refusals(self):
        q, x = data(1, 3, 4, 32), data(1, 9, 2, 32)
        (k, ks, _), (four, fs, _), (q8, _, _) = (stored(x, f, None) for f in ("i8", "i4", "i8/q8_0"))
        for named, kind, text in (
            (dict(k=k, v=k), ValueError, "k_scales is None: k in i8 has scales, a float32 for each token and head"),
            (dict(k=k, v=k, k_scales=ks), ValueError, "v_scales is None: v in i8"),
            (dict(k=four, v=four, k_scales=fs, v_scales=fs), TypeError, "k is uint8: kv_format must say what its codes are"),
            (dict(k=four, v=four, k_scales=fs, kv_format="i4"), ValueError, "v_scales is None: v in i4/group has scales, a float16 for each 32 elements"),
            (dict(k=four, v=four, kv_format="e4m3"), ValueError, "k_scales is None: k in e4m3/tensor has scales, one number for all of it"),
            (dict(k=four, v=four, kv_format="e4m3/token"), ValueError, "k_scales is None: k in e4m3/token has scales, a float32 for each token and head"),
            (dict(k=four.view(ml_dtypes.float8_e4m3fn), v=four), ValueError, "k_scales is None: k in e4m3 has scales, one number, or a float32"),
            (dict(k=k.view(np.uint8), v=k, k_scales=ks, v_scales=ks, kv_format=("e4m3", None)), ValueError, r'k_scales has shape \(1, 9, 2\): k in e4m3/tensor has one scale.*"e4m3/token" has one for each'),
            (dict(k=k.view(np.uint8), v=k, k_scales=0.5, v_scales=ks, kv_format=("e4m3/token", None)), TypeError, "k_scales is 0.5: only e4m3/tensor has one scale for a whole tensor, and k is e4m3/token"),
            (dict(k=k, v=k, k_scales=ks, v_scales=ks, kv_format="plain"), TypeError, "kv_format is 'plain' and k int8: plain is no code"),
            (dict(k=x, v=k, v_scales=ks, kv_format=("plain", "plain:i8")), ValueError, "kv_format is .*: a pair has a word for k and one for v"),
            (dict(k=x, v=k, k_scales=ks, v_scales=ks), ValueError, "k_scales is given and k is float32: only codes have scales"),
            (dict(k=x, v=k, v_scales=ks, kv_format="i8"), TypeError, "kv_format is 'i8' and k float32, which is no code"),
            (dict(k=k, v=k, k_scales=ks, v_scales=ks, kv_format="i4"), TypeError, "k is int8: codes of i4/group are uint8"),
            (dict(k=k, v=k, k_scales=ks, v_scales=ks, kv_format="int8"), ValueError, "kv_format is 'int8': it must be"),
            (dict(k=k, v=k, k_scales=ks, v_scales=ks, kv_format=("i8",)), TypeError, "kv_format is .*: it must be a str"),
            (dict(k=k, v=k, k_scales=ks.astype(np.float64), v_scales=ks), TypeError, "k_scales is float64: scales of i8/token are float32"),
            (dict(k=k, v=k, k_scales=ks, v_scales=ks[..., :1]), ValueError, r"v_scales has shape \(1, 9, 1\): with v of shape \(1, 9, 2, 32\) in i8/token it must be \(1, 9, 2\)"),
            (dict(k=k, v=k, k_scales=ks[..., None], v_scales=ks), ValueError, r"k_scales has shape \(1, 9, 2, 1\)"),
            (dict(k=k, v=k, k_scales=0.5, v_scales=ks), TypeError, "k_scales is 0.5: only e4m3/tensor has one scale for a whole tensor, and k is i8/token"),
            (dict(k=k, v=k, k_scales="x", v_scales=ks), TypeError, "k_scales is a str"),
            (dict(k=four, v=four, k_scales=fs.astype(np.float32), v_scales=fs, kv_format="i4"), TypeError, "k_scales is float32: scales of i4/group are float16"),
            (dict(k=q8, v=q8, k_scales=ks, kv_format="i8/q8_0"), ValueError, "k_scales is given: blocks of q8_0 hold their scales"),
            (dict(k=q8[..., :33], v=q8, kv_format="i8/q8_0"), ValueError, r"k has shape \(1, 9, 2, 33\): rows of q8_0 are blocks of 34 bytes"),
            (dict(k=four[..., :15], v=four, k_scales=fs, v_scales=fs, kv_format="i4"), ValueError, "k has head dim 30 and q 32"),
            (dict(k=x.astype(np.int16), v=x), TypeError, "k is int16: it must be float32, float16 or bfloat16, or codes"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                tileproof.attention(q, **named)
        with self.assertRaisesRegex(TypeError, "q is int8: it must be float32, float16 or bfloat16$"):
            tileproof.attention(np.zeros((1, 3, 4, 32), np.int8), k, k, k_scales=ks, v_scales=ks)


class Cascade(unittest.TestCase):
    def test_prefixes_are_read_once(self):
        pool = data(9, 16, 2, 32)
        q, table, lens = data(4, 1, 8, 32), np.array([[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5], [6, 7, 8, 8]]), np.array([60, 52, 49, 33])
        shared = dict(shared_with=np.array([-1, 0, 0, -1], np.int32), shared_lens=np.array([0, 48, 48, 0]))
        plain = tileproof.attention(q, pool, pool, page_table=table, kv_lens=lens)
        out, receipt = tileproof.attention(q, pool, pool, page_table=table, kv_lens=lens, return_receipt=True, **shared)
        self.assertIn("cascade=64", receipt.problem)
        self.assertLess(reference.error(out, plain.astype(np.float64)), 3e-6)
        step = tileproof.plan(q, pool, page_table=table, shared_with=True, shared_lens=True)
        self.assertTrue((step.run(q, pool, pool, page_table=table, kv_lens=lens, **shared) == out).all())
        same = dict(invariant=True, page_table=table, kv_lens=lens)
        self.assertTrue((tileproof.attention(q, pool, pool, **same) == tileproof.attention(q, pool, pool, **same, **shared)).all())
        with self.assertRaisesRegex(ValueError, "shared_with is given without shared_lens: it needs both"):
            tileproof.attention(q, pool, pool, page_table=table, kv_lens=lens, shared_with=shared["shared_with"])
        with self.assertRaisesRegex(ValueError, "shared_lens is given without shared_with: it needs both"):
            tileproof.attention(q, pool, pool, page_table=table, kv_lens=lens, shared_lens=shared["shared_lens"])
        with self.assertRaisesRegex(ValueError, r"shared_with has shape \(3,\): it must broadcast to \(4\)"):
            tileproof.attention(q, pool, pool, page_table=table, kv_lens=lens, shared_with=np.zeros(3, int), shared_lens=np.zeros(4, int))
        with self.assertRaises(ValueError):  # pages differ there
            tileproof.attention(q, pool, pool, page_table=table, kv_lens=lens, shared_with=np.array([-1, 0, 0, 0]), shared_lens=np.array([0, 48, 48, 16]))


if __name__ == "__main__":
    unittest.main()
