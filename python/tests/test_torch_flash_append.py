# SPDX-License-Identifier: Apache-2.0
"""What flash_attn_with_kvcache writes: by the C library, into the caller's tensors, bit for bit where rounding leaves no choice."""
import unittest

import tileproof.flash_attn as fa
import torch
from tileproof.flash_attn.layers.rotary import apply_rotary_emb
from torch.utils._python_dispatch import TorchDispatchMode

ARITHMETIC = ("mul", "add", "sub", "cat", "stack", "index_put", "where", "copy")


class Ops(TorchDispatchMode):
    """Names of the ops on tensors of floats with four dims: rows of q, k or v."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() >= 4 for x in args):
            self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def case(dtype, batch=3, new=5, room=24, dim=32, turned=32):
    torch.manual_seed(5)
    q, k, v = (torch.randn(batch, new, h, dim).to(dtype) for h in (4, 2, 2))
    caches = torch.randn(2, batch + 1, room, 2, dim).to(dtype)
    angles = torch.rand(room + 8, turned // 2) * 6.3
    return q, k, v, *caches, angles.cos().to(dtype), angles.sin().to(dtype), torch.tensor([0, 7, 19], dtype=torch.int32)[:batch]


class Append(unittest.TestCase):
    def test_what_is_written(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for interleaved in (False, True):
                q, k, v, k_cache, v_cache, cos, sin, used = case(dtype, turned=16)
                before = k_cache.clone()
                rows = torch.tensor([2, 0, 3], dtype=torch.int32)
                fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, used, rows, causal=True, rotary_interleaved=interleaved)
                meant = apply_rotary_emb(k.double(), cos, sin, interleaved, seqlen_offsets=used)
                for s in range(3):
                    at = slice(int(used[s]), int(used[s]) + 5)
                    got = k_cache[rows[s], at]
                    self.assertTrue(torch.equal(got[..., 16:], k[s, ..., 16:]))  # what is not rotated is copied
                    wide = got.double() - meant[s]
                    self.assertLess(float(wide.abs().max()), 2 * torch.finfo(dtype).eps * float(meant.abs().max()))
                    self.assertTrue(torch.equal(v_cache[rows[s], at], v[s]))
                    before[rows[s], at] = got
                self.assertTrue(torch.equal(k_cache, before))

    def test_rows_that_cross_a_page(self):
        torch.manual_seed(6)
        q, k, v = (torch.randn(2, 5, h, 32) for h in (4, 2, 2))
        angles = torch.rand(600, 16) * 6.3
        cos, sin, used = angles.cos(), angles.sin(), torch.tensor([254, 3], dtype=torch.int32)
        pools, table = torch.zeros(2, 5, 256, 2, 32), torch.tensor([[3, 1], [4, 0]], dtype=torch.int32)
        fa.flash_attn_with_kvcache(q, *pools, k, v, cos, sin, used, block_table=table, causal=True)
        meant = apply_rotary_emb(k.double(), cos, sin, True, seqlen_offsets=used)
        for pool, rows in zip(pools, (meant, v.double())):
            got = torch.cat((pool[3, 254:], pool[1, :3])).double()
            self.assertLess(float((got - rows[0]).abs().max()), 5e-6)
            self.assertLess(float((pool[4, 3:8].double() - rows[1]).abs().max()), 5e-6)
            self.assertEqual(int((pool != 0).any(-1).any(-1).sum()), 10)  # and nothing else

    def test_strided_rows_and_caches(self):
        q, k, v, k_cache, v_cache, cos, sin, used = case(torch.bfloat16)
        wide = torch.zeros(4, 2, 24, 64, dtype=torch.bfloat16)  # heads before tokens, every second half of a row
        strided = [wide.clone()[..., 32:].transpose(1, 2) for _ in range(2)]
        for to, x in zip(strided, (k_cache, v_cache)):
            to.copy_(x)
        spread = torch.stack((k, v), -1)[..., 0]  # its last dim is not contiguous
        one = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, used, causal=True)
        other = fa.flash_attn_with_kvcache(q, *strided, spread, v, cos.t().contiguous().t(), sin, used, causal=True)
        self.assertTrue(torch.equal(one, other))
        self.assertTrue(torch.equal(strided[0], k_cache) and torch.equal(strided[1], v_cache))

    def test_no_op_of_pytorch_touches_rows(self):
        q, k, v, k_cache, v_cache, cos, sin, used = case(torch.bfloat16)
        with Ops() as ops:
            fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, used, causal=True)
        self.assertTrue(ops.seen)
        self.assertEqual([x for x in ops.seen if any(word in x for word in ARITHMETIC)], [])

    def test_a_refused_call_writes_nothing(self):
        q, k, v, k_cache, v_cache, cos, sin, used = case(torch.float32, new=2)
        pool = [x.reshape(-1, 2, 32)[:, None].expand(-1, 256, 2, 32).clone()[:4] for x in (k_cache, v_cache)]
        before = [x.clone() for x in pool]
        table = torch.tensor([[0], [1], [9]], dtype=torch.int32)
        with self.assertRaisesRegex(RuntimeError, "the page of a new token is 9: it must be in 0..3, pages of the cache"):
            fa.flash_attn_with_kvcache(q, *pool, k, v, cache_seqlens=used, block_table=table)
        self.assertTrue(all(map(torch.equal, pool, before)))

    def test_autograd_hears_of_the_write(self):
        q, k, v, k_cache, v_cache, cos, sin, used = case(torch.float32)
        x = torch.ones_like(k_cache, requires_grad=True)
        product = x * k_cache  # keeps k_cache for backward
        fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=used)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.sum().backward()
        with torch.inference_mode():
            inside = [x.clone() for x in (k_cache, v_cache)]
            fa.flash_attn_with_kvcache(q, *inside, k, v, cache_seqlens=used)
            self.assertTrue(torch.equal(inside[1][0, :5], v[0]))


if __name__ == "__main__":
    unittest.main()
