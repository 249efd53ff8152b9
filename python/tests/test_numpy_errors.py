# SPDX-License-Identifier: Apache-2.0
"""Bad input: an exception that names value and rule, whatever is wrong, and nothing written."""
import unittest

import numpy as np
import tileproof

random = np.random.default_rng(11)


def qkv(m=5, n=7):
    return tuple(random.standard_normal(x).astype(np.float32) for x in ((2, m, 4, 16), (2, n, 2, 16), (2, n, 2, 16)))


class Errors(unittest.TestCase):
    def refused(self, kind, text, *args, **options):
        with self.assertRaisesRegex(kind, text):
            tileproof.attention(*args, **options)

    def test_things_that_are_no_tensors(self):
        q, k, v = qkv()
        for bad in ([1.0], 3, "abc", object(), q.tolist()):
            self.refused(TypeError, "k is a .*: it must be a tensor", q, bad, v)
        self.refused(TypeError, "q is a NoneType", None, k, v)
        self.refused((TypeError, ValueError), "", b"abc", k, v)

    def test_dtypes(self):
        q, k, v = qkv()
        self.refused(TypeError, "q is float64: it must be float32, float16 or bfloat16", q.astype(float), k, v)
        self.refused(TypeError, "v is int32", q, k, v.astype(np.int32))
        self.refused(TypeError, "v is complex64|v is of an unknown dtype", q, k, v.astype(np.complex64))
        self.refused(TypeError, "unknown dtype", q.astype(">f4"), k, v)
        self.refused(TypeError, "unknown dtype", np.zeros((2, 5, 4, 16), [("x", "f4")]), k, v)
        self.refused(TypeError, "", np.zeros((2, 5, 4, 16), "M8[s]"), k, v)
        self.refused(TypeError, "", np.zeros((2, 5, 4, 16), object), k, v)

    def test_shapes(self):
        q, k, v = qkv()
        self.refused(ValueError, r"q has shape \(5, 4, 16\): this layout is \(batch, tokens, heads, head dim\)", q[0], k, v)
        self.refused(ValueError, "k has 1 sequences and q 2", q, k[:1], v[:1])
        self.refused(ValueError, "v has 6 tokens and k 7", q, k, v[:, :6])
        self.refused(ValueError, "v has 1 heads and k 2", q, k, v[:, :, :1])
        self.refused(ValueError, "k has head dim 8 and q 16", q, k[..., :8], v)
        self.refused(ValueError, "multiple", q[:, :, :3], k, v)
        self.refused(ValueError, "9 dimensions", np.zeros((1,) * 9, np.float32), k, v)
        self.refused(ValueError, "head_dim", q[..., :0], k[..., :0], v)

    def test_words_and_numbers(self):
        q, k, v = qkv()
        for options, kind, text in (
            (dict(layout="hbsd"), ValueError, 'layout is \'hbsd\': it must be "bshd", "bhsd" or "thd"'),
            (dict(layout=3), ValueError, "layout is 3"),
            (dict(causal_align="left"), ValueError, 'it must be "bottom_right" or "top_left"'),
            (dict(fallback="never"), ValueError, 'fallback is \'never\': it must be "refuse", "permit", "serve" or "locked"'),
            (dict(causal=1), TypeError, "causal is 1: it must be True or False"),
            (dict(return_lse="yes"), TypeError, "return_lse"),
            (dict(scale="big"), TypeError, "scale is 'big': it must be a number"),
            (dict(scale=float("nan")), ValueError, "scale"),
            (dict(scale=1e39), ValueError, "scale"),
            (dict(softcap=-1.0), ValueError, "softcap"),
            (dict(softcap=None), TypeError, "softcap"),
            (dict(window=3), ValueError, "window is 3: it must be None or"),
            (dict(window=(1, 2, 3)), ValueError, "window"),
            (dict(window="ab"), ValueError, "window"),
            (dict(window=(-1, 0)), ValueError, r"window\[0\] is -1: it must be at least 0, or None"),
            (dict(window=(0, 1.5)), TypeError, r"window\[1\] is 1.5"),
            (dict(window=(2**70, 0)), ValueError, "64 bits"),
            (dict(threads=0), ValueError, r"threads is 0: it must be in 1..1024"),
            (dict(threads=10**30), ValueError, "threads"),
            (dict(threads=2.0), TypeError, "threads"),
            (dict(kernel=7), TypeError, "kernel is 7"),
            (dict(strategy=7), TypeError, 'strategy is 7: it must be "prefill", "decode" or None'),
            (dict(strategy="both"), ValueError, "strategy is 'both': it must be prefill or decode"),
            (dict(disable=["math"]), TypeError, 'disable is .*: it must be names of kernels, "a,b", or None'),
            (dict(disable="nosuch"), ValueError, "disable names 'nosuch'"),
            (dict(kernel="nosuch"), (ValueError, tileproof.Error), "nosuch"),
        ):
            self.refused(kind, text, q, k, v, **options)
        with self.assertRaises(TypeError):
            tileproof.attention(q, k, v, casual=True)

    def test_outputs(self):
        q, k, v = qkv()
        good = np.zeros(q.shape, np.float32)
        locked = good.copy()
        locked.flags.writeable = False
        for out, kind, text in (
            (locked, ValueError, "read-only"),
            (np.broadcast_to(good[:1], good.shape), ValueError, "read-only|stride"),
            (np.lib.stride_tricks.as_strided(good, good.shape, (0, *good.strides[1:])), ValueError, "stride|overlap"),
            (np.lib.stride_tricks.as_strided(good, good.shape, (*good.strides[:2], 32, 4)), ValueError, "overlap|stride"),
            (good[:, :4], ValueError, r"out has shape \(2, 4, 4, 16\)"),
            (good.reshape(10, 4, 16), ValueError, "out has shape"),
            (good.astype(float), TypeError, "out is float64"),
            (np.empty((2, 5, 4, 32), np.float32)[..., ::2], ValueError, "contiguous"),
            (good[:, ::-1], ValueError, "negative"),
            (q, ValueError, "overlap|share|apart|q"),
            (good.tolist(), TypeError, "out is a list"),
        ):
            self.refused(kind, text, q, k, v, out=out)

    def test_masks_biases_slopes_and_sinks(self):
        q, k, v = qkv()
        ones = np.ones
        for options, kind, text in (
            (dict(mask=ones((5, 7), np.float32)), TypeError, "mask is float32: it must be bool"),
            (dict(mask=ones((5, 7), np.uint8)), TypeError, "mask is uint8"),
            (dict(mask=ones((5, 6), bool)), ValueError, r"mask has shape \(5, 6\): it must broadcast to \(2, 4, 5, 7\)"),
            (dict(mask=ones((3, 4, 5, 7), bool)), ValueError, "broadcast"),
            (dict(mask=ones((1, 1, 4, 5, 7), bool)), ValueError, "broadcast"),
            (dict(mask=3), TypeError, "mask is a int"),
            (dict(bias=ones((5, 7))), TypeError, "bias is float64"),
            (dict(bias=ones((2, 5, 7), np.float32)), ValueError, "broadcast"),
            (dict(alibi_slopes=ones(4)), TypeError, "alibi_slopes is float64: it must be float32"),
            (dict(alibi_slopes=ones(3, np.float32)), ValueError, r"alibi_slopes has shape \(3,\)"),
            (dict(alibi_slopes=np.full(4, np.nan, np.float32)), ValueError, "alibi_slopes"),
            (dict(sinks=ones((2, 4), np.float32)), ValueError, "sinks has shape"),
            (dict(sinks=ones(4, np.float16)), TypeError, "sinks is float16"),
        ):
            self.refused(kind, text, q, k, v, **options)

    def test_lengths(self):
        q, k, v = qkv()
        for options, kind, text in (
            (dict(kv_lens=np.array([1.0, 2.0])), TypeError, "kv_lens is float64: it must be int32 or int64"),
            (dict(kv_lens=np.array([1, 2, 3])), ValueError, r"kv_lens has shape \(3,\): it must be \(2,\)"),
            (dict(kv_lens=np.array([[1, 2]])), ValueError, "kv_lens has shape"),
            (dict(kv_lens=np.array([1, 8])), ValueError, "8"),
            (dict(q_lens=np.array([-1, 2])), ValueError, "-1"),
            (dict(q_lens=np.array([2**62, 2])), ValueError, "4611686018427387904"),
            (dict(cu_seqlens_q=np.array([0, 1, 2])), ValueError, 'only layout "thd" has it'),
            (dict(cu_seqlens_k=np.array([0, 1, 2])), ValueError, 'cu_seqlens_k is given'),
        ):
            self.refused(kind, text, q, k, v, **options)

    def test_garbage_in_cu_seqlens(self):
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in qkv())
        good = np.array([0, 3, 10])
        for cu, kind, text in (
            (None, ValueError, "cu_seqlens_q is None"),
            (np.array([], np.int64), ValueError, r"cu_seqlens_q has shape \(0,\)"),
            (np.array([0, 4, 3]), ValueError, r"cu_seqlens_q\[2\] is 3: it must be in 4..10"),
            (np.array([0, 3, 11]), ValueError, r"cu_seqlens_q\[2\] is 11"),
            (np.array([-1, 3, 10]), ValueError, r"cu_seqlens_q\[0\] is -1"),
            (np.array([0, -(2**63), 2**63 - 1]), ValueError, "cu_seqlens_q"),
            (np.array([0, 3, 10], np.uint32), TypeError, "uint32"),
        ):
            self.refused(kind, text, q, k, v, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=good)
        self.refused(ValueError, "cu_seqlens_k", q, k, v, layout="thd", cu_seqlens_q=good, cu_seqlens_k=good[:2])
        self.refused(ValueError, "cu_seqlens_k", q, k, v, layout="thd", cu_seqlens_q=good, cu_seqlens_k=good * 5)
        self.refused(ValueError, "for k too", q[:10], k[:9], v[:9], layout="thd", cu_seqlens_q=good)

    def test_dlpack_that_lies(self):
        class Liar:
            device, capsule = (1, 0), None

            def __dlpack_device__(self):
                return self.device

            def __dlpack__(self, **options):
                return self.capsule

        q, k, v = qkv()
        liar = Liar()
        self.refused(TypeError, "no DLPack capsule", liar, k, v)
        liar.device = (2, 0)
        self.refused(ValueError, "device of DLPack type 2: it must be on the CPU", liar, k, v)
        liar.device = "cpu"
        self.refused(TypeError, "no pair", liar, k, v)
        liar.device = (1, 0)
        liar.capsule = q.__dlpack__()
        np.from_dlpack(liar)  # takes it
        self.refused(TypeError, "no DLPack capsule", liar, k, v)

    def test_only_slower_paths(self):
        wide = np.zeros((1, 3, 1, 640), np.float32)
        for call in (tileproof.attention, tileproof.plan):
            with self.assertRaisesRegex(tileproof.FallbackRefused, 'math.*; fallback="permit" lets it serve$'):
                call(wide, wide, wide)
        out, receipt = tileproof.attention(wide, wide, wide, fallback="permit", return_receipt=True)
        self.assertEqual((receipt.kernel, receipt.fallback, out.shape), ("math", True, wide.shape))
        self.assertTrue(issubclass(tileproof.FallbackRefused, tileproof.Error))


if __name__ == "__main__":
    unittest.main()
