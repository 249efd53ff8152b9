# SPDX-License-Identifier: Apache-2.0
"""Values against the definition in float64: dtypes, layouts, strides, masks, lengths."""
import itertools
import unittest

import numpy as np
import reference
import tileproof

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

DTYPES = [np.float32, np.float16] + ([ml_dtypes.bfloat16] if ml_dtypes else [])
random = np.random.default_rng(7)


def data(*shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


def qkv(b=2, m=9, n=13, h=4, g=2, d=32, dv=None, dtype=np.float32):
    return data(b, m, h, d, dtype=dtype), data(b, n, g, d, dtype=dtype), data(b, n, g, dv or d, dtype=dtype)


class Values(unittest.TestCase):
    def check(self, q, k, v, call={}, definition={}):
        out, lse = tileproof.attention(q, k, v, return_lse=True, **call)
        want, want_lse = reference.batch(q, k, v, **definition)
        limit = reference.TOLERANCE[np.dtype(q.dtype).name]
        self.assertEqual(out.dtype, q.dtype)
        self.assertEqual(out.shape, want.shape)
        self.assertLess(reference.error(out, want), limit, (call, definition))
        self.assertLess(reference.error(lse, want_lse), 2e-5, (call, definition))

    def test_dtypes_and_head_dims(self):
        for dtype in DTYPES:
            for d, dv in ((1, 1), (8, 24), (64, 64), (80, 33), (128, 128)):
                self.check(*qkv(d=d, dv=dv, dtype=dtype))

    def test_each_of_q_k_and_v_in_a_dtype_of_its_own(self):
        own = np.random.default_rng(21)  # others draw what they drew
        for of_q, of_k, of_v in itertools.product(DTYPES, repeat=3):
            q, k, v = (own.standard_normal((2, n, h, 32)).astype(x) for n, h, x in ((9, 4, of_q), (13, 2, of_k), (13, 2, of_v)))
            self.check(q, k, v)
            wide = np.empty(q.shape, np.float32)
            tileproof.attention(q, k, v, out=wide)
            self.assertLess(reference.error(wide, reference.batch(q, k, v)[0]), reference.TOLERANCE["float32"])

    def test_bfloat16_of_ml_dtypes(self):
        if ml_dtypes is None:
            self.skipTest("not run here: ml_dtypes is not installed")
        out = tileproof.attention(*qkv(dtype=ml_dtypes.bfloat16))
        self.assertEqual(out.dtype, np.dtype(ml_dtypes.bfloat16))

    def test_causal_and_window_with_both_alignments(self):
        for align in ("bottom_right", "top_left"):
            for window in (None, (3, 0), (None, 2), (2, None), (0, 0), (None, None)):
                for causal in (False, True):
                    for m, n in ((9, 13), (13, 9), (1, 20)):
                        self.check(
                            *qkv(m=m, n=n), dict(causal=causal, causal_align=align, window=window),
                            dict(causal=causal, align=align, window=window),
                        )  # fmt: skip

    def test_scale_softcap_sinks_and_slopes(self):
        q, k, v = qkv()
        sinks, slopes, each = data(4), np.abs(data(4)), np.abs(data(2, 4))
        for scale in (0.0, -0.5, 2.0):
            self.check(q, k, v, dict(scale=scale), dict(scale=scale))
        self.check(q, k, v, dict(softcap=0.7), dict(softcap=0.7))
        self.check(q, k, v, dict(sinks=sinks, causal=True), dict(sinks=sinks, causal=True))
        self.check(q, k, v, dict(alibi_slopes=slopes), dict(slopes=slopes))
        self.check(q, k, v, dict(alibi_slopes=each), dict(slopes=each))

    def test_masks_and_biases_in_every_shape_that_broadcasts(self):
        q, k, v = qkv()
        for shape in ((13,), (1,), (9, 1), (9, 13), (4, 9, 13), (1, 9, 13), (2, 1, 9, 13), (2, 4, 9, 13), (2, 4, 1, 1), (2, 1, 1, 13)):
            mask = random.random(shape) < 0.6
            for causal in (False, True):
                self.check(q, k, v, dict(mask=mask, causal=causal), dict(mask=mask, causal=causal))
            for dtype in DTYPES:
                bias = data(*shape, dtype=dtype)
                bias[random.random(shape) < 0.2] = -np.inf
                self.check(q, k, v, dict(bias=bias, mask=mask), dict(bias=bias, mask=mask))

    def test_masks_of_any_strides(self):
        q, k, v = qkv()
        mask = random.random((4, 26, 18)) < 0.5
        bias = data(4, 26, 18)
        for cut in (np.s_[:, ::2, ::2], np.s_[:, 25:12:-1, :9], np.s_[::-1, :13, 8::-1]):
            for turned in (mask[cut].transpose(0, 2, 1), np.asfortranarray(mask[cut].transpose(0, 2, 1))):
                self.check(q, k, v, dict(mask=turned), dict(mask=turned))
            turned = bias[cut].transpose(0, 2, 1)
            self.check(q, k, v, dict(bias=turned), dict(bias=turned))

    def test_lengths_with_masks(self):
        q, k, v = qkv(b=3)
        for kind in (np.int32, np.int64):
            q_lens, kv_lens = np.array([9, 0, 4], kind), np.array([13, 5, 7], kind)
            mask = random.random((3, 4, 9, 13)) < 0.7
            self.check(
                q, k, v, dict(q_lens=q_lens, kv_lens=kv_lens, mask=mask, causal=True, window=(4, 0)),
                dict(q_lens=q_lens, kv_lens=kv_lens, mask=mask, causal=True, window=(4, 0)),
            )  # fmt: skip
            self.check(q, k, v, dict(kv_lens=kv_lens[::-1]), dict(kv_lens=kv_lens[::-1]))

    def test_every_layout_gives_the_same_bits(self):
        q, k, v = qkv()
        want = tileproof.attention(q, k, v, causal=True)
        turned = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
        for x in (turned, [np.ascontiguousarray(y) for y in turned]):
            out, lse, receipt = tileproof.attention(*x, causal=True, layout="bhsd", return_lse=True, return_receipt=True)
            self.assertTrue((out.transpose(0, 2, 1, 3) == want).all())
            self.assertEqual(lse.shape, (2, 4, 9))
            self.assertEqual(receipt.rewrites, ())

    def test_packed_sequences(self):
        lens_q, lens_k = [3, 0, 7], [5, 2, 7]
        q, k, v = data(10, 4, 16), data(14, 2, 16), data(14, 2, 16)
        for kind in (np.int32, np.int64):
            cu_q, cu_k = (np.concatenate([[0], np.cumsum(x)]).astype(kind) for x in (lens_q, lens_k))
            out, lse = tileproof.attention(q, k, v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True, return_lse=True)
            self.assertEqual(lse.shape, (4, 10))
            for s in range(3):
                a, b, c, d = cu_q[s], cu_q[s + 1], cu_k[s], cu_k[s + 1]
                want, want_lse = reference.one(q[a:b], k[c:d], v[c:d], causal=True)
                self.assertLess(reference.error(out[a:b], want), 2e-6)
                self.assertLess(reference.error(lse[:, a:b], want_lse), 2e-5)
        both = tileproof.attention(q, q[:, :2], q[:, :2], layout="thd", cu_seqlens_q=cu_q)
        self.assertLess(reference.error(both[:3], reference.one(q[:3], q[:3, :2], q[:3, :2])[0]), 2e-6)

    def test_strides_that_cannot_be_read_are_copied_and_recorded(self):
        q, k, v = qkv(d=64)
        wide = np.zeros((2, 13, 2, 128), np.float32)
        wide[..., ::2] = k
        flipped = np.ascontiguousarray(v[:, ::-1])[:, ::-1]
        odd = np.frombuffer(b"x" + q.tobytes(), np.uint8)[1:].view(np.float32).reshape(q.shape)
        out, receipt = tileproof.attention(odd, wide[..., ::2], flipped, return_receipt=True)
        self.assertTrue((out == tileproof.attention(q, k, v)).all())
        self.assertEqual(len(receipt.rewrites), 3)
        self.assertIn("k copied: its last dimension is not contiguous (exact)", receipt.rewrites)
        self.assertIn("v copied: it has a negative stride (exact)", receipt.rewrites)
        self.assertIn("q copied: its elements are not aligned (exact)", receipt.rewrites)
        self.assertIn("k copied", repr(receipt))
        self.assertEqual(receipt.to_dict()["rewrites"], list(receipt.rewrites))

    def test_views_are_not_copied(self):
        packed = data(2, 9, 3, 4, 32)
        q, k, v = packed[:, :, 0], packed[:, ::2, 1, :2], packed[:, ::2, 2, 2:]
        out, receipt = tileproof.attention(q, k, v, return_receipt=True)
        self.assertEqual(receipt.rewrites, ())
        self.assertLess(reference.error(out, reference.batch(q, k, v)[0]), 2e-6)
        one = np.broadcast_to(data(1, 9, 2, 32), (2, 9, 2, 32))
        self.check(packed[:, :, 0], one, one)

    def test_outputs_of_the_caller(self):
        q, k, v = qkv(dtype=np.float16)
        want = tileproof.attention(q, k, v)
        store = np.full((2, 9, 8, 64), 7, np.float16)
        out = store[:, :, ::2, :32]
        self.assertIs(tileproof.attention(q, k, v, out=out), out)
        self.assertTrue((out == want).all() and (store[:, :, 1::2] == 7).all() and (store[..., 32:] == 7).all())
        wide = np.empty(q.shape, np.float32)
        tileproof.attention(q, k, v, out=wide)
        self.assertTrue((wide.astype(np.float16) == want).all())

    def test_nothing_of_nothing(self):
        q, k, v = qkv(n=0)
        out, lse = tileproof.attention(q, k, v, return_lse=True)
        self.assertTrue((out == 0).all() and (lse == -np.inf).all())
        self.assertEqual(tileproof.attention(*qkv(m=0)).shape, (2, 0, 4, 32))
        self.assertEqual(tileproof.attention(*qkv(b=0), mask=np.ones((9, 13), bool)).shape, (0, 9, 4, 32))
        self.assertTrue((tileproof.attention(q, k, v, mask=np.ones((9, 0), bool)) == 0).all())
        flipped = np.zeros((0, 5, 2, 32), np.float32)[:, ::-1]
        self.assertEqual(tileproof.attention(flipped, flipped, flipped).shape, (0, 5, 2, 32))
        hidden, lse = tileproof.attention(*qkv(), mask=np.zeros(13, bool), return_lse=True)
        self.assertTrue((hidden == 0).all() and (lse == -np.inf).all())

    def test_buffers_and_dlpack_without_numpy(self):
        class Old:  # before versions
            def __init__(self, x):
                self.x = x

            def __dlpack__(self, stream=None):
                return self.x.__dlpack__()

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        class New(Old):
            def __dlpack__(self, **options):
                return self.x.__dlpack__(**options)

        q, k, v = qkv()
        want = tileproof.attention(q, k, v)
        kinds = [memoryview, Old] + ([New] if np.__version__ >= "2.1" else [])
        for kind in kinds:
            self.assertTrue((tileproof.attention(kind(q), kind(k), kind(v)) == want).all(), kind)


if __name__ == "__main__":
    unittest.main()
