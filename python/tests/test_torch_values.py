# SPDX-License-Identifier: Apache-2.0
"""PyTorch: values against its own float64 math, and what must be refused."""
import itertools
import unittest

import numpy as np
import tileproof
import tileproof.torch
import torch
import torch.nn.functional as F
from tileproof import scaled_dot_product_attention as sdpa

LIMIT = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
torch.manual_seed(3)


def oracle(q, k, v, mask=None, **options):
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.double()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask, **options)


class Values(unittest.TestCase):
    def near(self, got, want, dtype):
        self.assertEqual((got.dtype, got.shape), (dtype, want.shape))
        self.assertLess((got.double() - want).abs().max().item() if want.numel() else 0.0, LIMIT[dtype])

    def test_sdpa_has_the_meaning_of_pytorch(self):
        for dtype in LIMIT:
            for q, k, dv, gqa in (
                ((2, 3, 5, 16), (2, 3, 9, 16), 16, False), ((2, 3, 9, 16), (2, 3, 5, 16), 8, False), ((2, 6, 1, 64), (2, 2, 33, 64), 64, True),
                ((3, 5, 16), (3, 9, 16), 24, False), ((5, 16), (9, 16), 16, False), ((2, 4, 5, 16), (2, 1, 9, 16), 16, False),
                ((2, 1, 5, 16), (2, 4, 9, 16), 16, False), ((7, 1, 3, 5, 16), (2, 1, 9, 16), 16, False), ((2, 2, 6, 5, 8), (2, 2, 3, 4, 8), 8, True),
                ((1, 3, 5, 16), (4, 3, 9, 16), 16, False), ((0, 3, 5, 16), (0, 3, 5, 16), 16, False),
            ):  # fmt: skip
                q, k, v = torch.randn(q).to(dtype), torch.randn(k).to(dtype), torch.randn((*k[:-1], dv)).to(dtype)
                for options in (dict(), dict(is_causal=True), dict(scale=0.3)):
                    self.near(sdpa(q, k, v, enable_gqa=gqa, **options), oracle(q, k, v, enable_gqa=gqa, **options), dtype)

    def test_each_of_q_k_and_v_in_a_dtype_of_its_own(self):
        for of_q, of_k, of_v in itertools.product(LIMIT, repeat=3):
            given = [torch.randn(2, 3, n, 16).to(dtype).requires_grad_() for n, dtype in ((5, of_q), (9, of_k), (9, of_v))]
            exact = [x.detach().double().requires_grad_() for x in given]
            want = oracle(*exact)
            with torch.no_grad():
                self.near(tileproof.attention(*given, layout="bhsd"), want.detach(), of_q)
            out = tileproof.attention(*given, layout="bhsd")
            self.near(out.detach(), want.detach(), of_q)
            out.double().square().sum().backward()
            want.square().sum().backward()
            for x, y in zip(given, exact):
                self.assertEqual(x.grad.dtype, x.dtype)
                most = 8 * max(LIMIT[x.dtype], LIMIT[of_q])  # d_o is rounded to the dtype of o
                self.assertLess((x.grad.double() - y.grad).abs().max().item(), most * max(1, y.grad.abs().max().item()))

    def test_dropout_of_everything_leaves_zeros(self):
        for grad in (False, True):
            x = torch.randn(1, 2, 4, 16, requires_grad=grad)
            out = sdpa(x, x, x, dropout_p=1.0)
            self.assertTrue(torch.equal(out.detach(), F.scaled_dot_product_attention(x, x, x, dropout_p=1.0).detach()))
            if grad:
                out.sum().backward()
                self.assertTrue((x.grad == 0).all())
        for p in (1.5, -0.1):
            with self.assertRaisesRegex(ValueError, f"dropout_p is {p}"):
                sdpa(x, x, x, dropout_p=p)

    def test_sdpa_takes_one_dtype_as_pytorch_does(self):
        q, k, v = (torch.randn(1, 2, 4, 16) for _ in range(3))
        for given in ((q, k.half(), v), (q, k, v.bfloat16()), (q.half(), k, v)):
            for grad in (False, True):
                with self.assertRaisesRegex(TypeError, "must have one dtype; tileproof.attention takes any mix"):
                    sdpa(given[0].requires_grad_(grad), *given[1:])
            with tileproof.torch.patch() as log, self.assertRaisesRegex(RuntimeError, "same dtype"):
                F.scaled_dot_product_attention(*(x.detach() for x in given))
            self.assertEqual(len(log.receipts), 0)

    def test_strategy_and_disable_go_with_gradients(self):
        q, k, v = (torch.randn(1, n, 2, 16, requires_grad=True) for n in (4, 40, 40))
        with tileproof.torch.log() as log:
            tileproof.attention(q, k, v, strategy="prefill", disable="avx512,avx512_bf16,amx_bf16,avx2", fallback="permit").sum().backward()
        self.assertEqual([x.kernel for x in log.receipts], ["generic", "generic"])
        self.assertTrue(any("_pack_k_" in x for x in log.receipts[0].functions))

    def test_masks_in_every_shape(self):
        q, k, v = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 16)
        for shape in ((5, 9), (3, 5, 9), (1, 5, 9), (2, 1, 1, 9), (2, 3, 5, 9), (1, 1, 5, 1)):
            mask, bias = torch.rand(shape) < 0.5, torch.randn(shape)
            self.near(sdpa(q, k, v, mask), oracle(q, k, v, mask), torch.float32)
            self.near(sdpa(q, k, v, bias), oracle(q, k, v, bias), torch.float32)
            view = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
            self.near(sdpa(q, k, v, view), oracle(q, k, v, view), torch.float32)
        hidden = torch.zeros(5, 9, dtype=torch.bool)
        self.assertTrue((sdpa(q, k, v, hidden) == 0).all())

    def test_the_lowest_bias_is_no_mask(self):
        """Padding as transformers writes it: finfo.min, in every key of rows that do not count."""
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = (torch.randn(2, 3, n, 16).to(dtype) for n in (6, 9, 9))
            low = torch.finfo(dtype).min
            bias = torch.where(torch.rand(2, 1, 6, 9) < 0.5, low, 0.0).to(dtype)
            bias[:, :, 2] = low
            bias[:, :, 3, 0] = 0
            self.near(sdpa(q, k, v, bias), oracle(q, k, v, bias), dtype)
            with tileproof.torch.patch():
                self.near(F.scaled_dot_product_attention(q, k, v, bias), oracle(q, k, v, bias), dtype)
            self.near(sdpa(q, k, v, bias)[:, :, 2], v.double().mean(2), dtype)

    def test_strided_tensors_are_read_in_place(self):
        packed = torch.randn(2, 9, 3, 4, 32)
        q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
        out, receipt = tileproof.attention(q, k, v, layout="bhsd", return_receipt=True)
        self.assertEqual(receipt.rewrites, ())
        self.near(out, oracle(q, k, v), torch.float32)
        q, k, v = (packed.transpose(3, 4).contiguous().transpose(3, 4)[:, :, i].transpose(1, 2) for i in range(3))
        out, receipt = tileproof.attention(q, k, v, layout="bhsd", return_receipt=True)
        self.assertEqual(len(receipt.rewrites), 3)
        self.near(out, oracle(q, k, v), torch.float32)

    def test_numpy_and_pytorch_give_the_same_bits(self):
        q, k, v = (torch.randn(1, 40, 2, 64) for _ in range(3))
        out, lse = tileproof.attention(q, k, v, causal=True, return_lse=True)
        want, want_lse = tileproof.attention(q.numpy(), k.numpy(), v.numpy(), causal=True, return_lse=True)
        self.assertTrue((out.numpy() == want).all() and (lse.numpy() == want_lse).all())
        self.assertIsInstance(tileproof.attention(q, k.numpy(), v.numpy()), torch.Tensor)
        given = torch.empty(1, 40, 2, 64)
        self.assertIs(tileproof.attention(q, k, v, out=given), given)
        import ml_dtypes

        low = [x.bfloat16() for x in (q, k, v)]
        also = [x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for x in low]
        got = tileproof.attention(*low).view(torch.int16).numpy()
        self.assertTrue((got == tileproof.attention(*also).view(np.int16)).all())

    def test_packed_lengths_as_tensors(self):
        q, k, v = (torch.randn(10, 2, 16) for _ in range(3))
        for kind in (torch.int32, torch.int64):
            out = tileproof.attention(q, k, v, layout="thd", cu_seqlens_q=torch.tensor([0, 4, 10], dtype=kind), causal=True)
            for a, b in ((0, 4), (4, 10)):
                part = [x[a:b].transpose(0, 1) for x in (q, k, v)]
                self.near(out[a:b].transpose(0, 1), oracle(*part, is_causal=True), torch.float32)

    def test_bad_tensors_raise(self):
        x = torch.randn(1, 2, 4, 8)
        negative = torch.view_as_complex(torch.randn(1, 2, 4, 8, 2)).conj().imag
        self.assertTrue(negative.is_neg())
        for bad, kind in (
            (x.double(), TypeError), (x.long(), TypeError), (x.to("meta"), (ValueError, TypeError, BufferError, RuntimeError)),
            (x.to_sparse(), (ValueError, TypeError, BufferError, RuntimeError)), (x.to(torch.complex64), TypeError), (x[0], ValueError),
            (torch.nested.nested_tensor([x[0], x[0]]), Exception), (x.to(torch.float8_e4m3fn), (TypeError, BufferError)),
        ):  # fmt: skip
            with self.assertRaises(kind):
                tileproof.attention(bad, x, x)
            with self.assertRaises(Exception):
                tileproof.attention(x, bad, x, out=None)
        with self.assertRaisesRegex(ValueError, "q is a view that is negated when read: call resolve_neg"):
            tileproof.attention(negative, x, x)
        with self.assertRaises(Exception):
            torch.vmap(lambda y: tileproof.attention(y, y, y))(x[None])
        with self.assertRaisesRegex(ValueError, "enable_gqa"):
            sdpa(torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8))


if __name__ == "__main__":
    unittest.main()
