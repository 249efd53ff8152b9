# SPDX-License-Identifier: Apache-2.0
"""tileproof.Cache and tileproof.Rotary with PyTorch's tensors: dtypes, rotation in place, gradients and devices refused, receipts heard of."""
import unittest

import tileproof
import torch
from tileproof import Cache, CacheLayer, Rotary

HEADS, KV_HEADS, DIM = 4, 2, 32


def rows(count, heads, dtype):
    return torch.randn(count, heads, DIM).to(dtype)


class Caches(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)

    def test_decode(self):
        for dtype, stored in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16"), (torch.float32, "float32"), (torch.bfloat16, "i8")):
            with self.subTest(dtype=dtype, stored=stored):
                cache = Cache([CacheLayer(KV_HEADS, DIM, dtype=stored)] * 2, bytes=1 << 20, sequences=3, tokens=64)
                rotary, many = Rotary(DIM, theta=500.0), [cache.open(), cache.open()]
                k, v, q = rows(0, KV_HEADS, dtype), rows(0, KV_HEADS, dtype), None
                for step in range(6):
                    q, *new = (rows(2, h, dtype) for h in (HEADS, KV_HEADS, KV_HEADS))
                    before = q.clone()
                    cache.extend(many, 1)
                    with tileproof.torch.log() as log:
                        for layer in range(2):
                            q = before.clone()
                            cache.append(layer, many, *new, q=q, rotary=rotary)
                            out = cache.attention(layer, many, q, causal=True)
                    self.assertEqual(len(log.receipts), 2)
                    at = torch.full((2,), step)
                    self.assertTrue(torch.equal(q, rotary.apply(before, at, layout="thd")))
                    k = torch.cat((k, rotary.apply(new[0], at, layout="thd")))
                    v = torch.cat((v, new[1]))
                    for s in range(2):  # rows of the two take turns
                        want = tileproof.attention(q[None, s : s + 1].float(), k[None, s::2].float(), v[None, s::2].float())[0]
                        self.assertLess(float((out[s : s + 1].float() - want).abs().max()), 4 * max(torch.finfo(dtype).eps, 1e-6) if stored != "i8" else 0.1)
                self.assertEqual(out.dtype, dtype)

    def test_gradients_and_devices_are_refused(self):
        cache, x = Cache([CacheLayer(KV_HEADS, DIM)], bytes=1 << 20, sequences=2, tokens=16), rows(2, KV_HEADS, torch.bfloat16)
        s = cache.open()
        cache.extend(s, 2)
        grad = x.clone().requires_grad_()
        with self.assertRaisesRegex(ValueError, "k requires grad: no gradient goes through a cache; call it under torch.no_grad"):
            cache.append(0, s, grad, x)
        with self.assertRaisesRegex(ValueError, "k cannot be read: it must be a dense tensor on the CPU"):
            cache.append(0, s, x.to("meta"), x)
        with torch.no_grad():
            cache.append(0, s, grad, x)
        q = rows(2, HEADS, torch.bfloat16).requires_grad_()
        with self.assertRaisesRegex(ValueError, "q requires grad: no gradient goes through a cache"):
            cache.attention(0, s, q)
        with self.assertRaisesRegex(ValueError, "q cannot be read"):
            cache.attention(0, s, q.detach().to("meta"))
        self.assertEqual(cache.attention(0, s, q.detach()).shape, (2, HEADS, DIM))
        with self.assertRaisesRegex(ValueError, "x requires grad: no gradient goes through tileproof.Rotary"):
            Rotary(DIM).apply(q, torch.arange(2), layout="thd")

    def test_a_mode_is_open(self):
        from torch.utils.flop_counter import FlopCounterMode

        cache, x = Cache([CacheLayer(KV_HEADS, DIM)], bytes=1 << 20, sequences=2, tokens=16), rows(2, KV_HEADS, torch.bfloat16)
        s = cache.open()
        cache.extend(s, 2)
        cache.append(0, s, x, x)
        q = rows(2, HEADS, torch.bfloat16)
        want = cache.attention(0, s, q)
        with FlopCounterMode(display=False):
            self.assertTrue(torch.equal(cache.attention(0, s, q), want))

    def test_autograd_hears_of_out(self):
        x, out = torch.randn(1, 5, 2, 8), torch.ones(1, 5, 2, 8)
        for call in (tileproof.attention, tileproof.plan(x, x).run):
            product = torch.ones_like(out).requires_grad_() * out  # keeps out for backward
            call(x, x, x, out=out)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                product.sum().backward()

    def test_rotary_of_tensors(self):
        rotary, at = Rotary(DIM, style="interleaved"), torch.tensor([3, 900, 17], dtype=torch.int32)
        cos, sin = rotary.angles(at)
        self.assertEqual((cos.dtype, tuple(cos.shape)), (torch.float32, (3, 16)))
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = torch.randn(2, 3, HEADS, DIM).to(dtype)
            got = rotary.apply(x, at)
            a, b = x.double()[..., ::2], x.double()[..., 1::2]
            c, s = (y.double()[:, None] for y in (cos, sin))
            want = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
            self.assertEqual(got.dtype, dtype)
            self.assertLess(float((got.double() - want).abs().max()), 2 * torch.finfo(dtype).eps * float(want.abs().max()))
            view = x.transpose(1, 2)
            self.assertIs(rotary.apply(view, at, out=view, layout="bhsd"), view)
            self.assertTrue(torch.equal(x, got))  # in place, through the view
            self.assertEqual(x._version, 1)  # which autograd hears of


if __name__ == "__main__":
    unittest.main()
