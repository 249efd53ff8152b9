# SPDX-License-Identifier: Apache-2.0
"""tileproof.flash_attn as its callers see it: signatures, results, refusals, gradients, receipts."""
import inspect
import unittest

import flash_reference as reference
import tileproof
import tileproof.flash_attn as fa
import torch
from tileproof.flash_attn import flash_attn_interface as interface

TAIL = {
    "dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0, "alibi_slopes": None,
    "deterministic": False, "return_attn_probs": False,
}  # fmt: skip
NEEDED = inspect.Parameter.empty
EXTENSION = ("k_descale", "v_descale")
VARLEN = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), NEEDED)
SIGNATURES = {
    "flash_attn_func": {**dict.fromkeys("qkv", NEEDED), **TAIL},
    "flash_attn_kvpacked_func": {"q": NEEDED, "kv": NEEDED, **TAIL},
    "flash_attn_qkvpacked_func": {"qkv": NEEDED, **TAIL},
    "flash_attn_varlen_func": {**dict.fromkeys("qkv", NEEDED), **VARLEN, **TAIL, "block_table": None},
    "flash_attn_varlen_kvpacked_func": {"q": NEEDED, "kv": NEEDED, **VARLEN, **TAIL},
    "flash_attn_varlen_qkvpacked_func": {"qkv": NEEDED, "cu_seqlens": NEEDED, "max_seqlen": NEEDED, **TAIL},
    "flash_attn_with_kvcache": {
        "q": NEEDED, "k_cache": NEEDED, "v_cache": NEEDED, "k": None, "v": None, "rotary_cos": None, "rotary_sin": None,
        "cache_seqlens": None, "cache_batch_idx": None, "cache_leftpad": None, "block_table": None, "softmax_scale": None,
        "causal": False, "window_size": (-1, -1), "softcap": 0.0, "rotary_interleaved": True, "alibi_slopes": None,
        "num_splits": 0, "return_softmax_lse": False,
    },
}  # fmt: skip


def tensors(rows=4, keys=6, heads=4, kv_heads=2, dim=16, dtype=torch.float16, batch=2):
    torch.manual_seed(3)
    return [torch.randn(batch, n, h, dim).to(dtype) for n, h in ((rows, heads), (keys, kv_heads), (keys, kv_heads))]


def starts(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


class Results(unittest.TestCase):
    def test_signatures(self):
        for name, want in SIGNATURES.items():
            found = dict(inspect.signature(getattr(fa, name)).parameters)
            more = [found.pop(x) for x in EXTENSION if name == "flash_attn_with_kvcache"]  # flash-attn 3's, by name alone
            self.assertEqual({(x.kind, x.default) for x in more} or {(inspect.Parameter.KEYWORD_ONLY, None)}, {(inspect.Parameter.KEYWORD_ONLY, None)})
            self.assertEqual(list(found), list(want), name)
            self.assertEqual({x: y.default for x, y in found.items()}, want, name)
            self.assertEqual({y.kind for y in found.values()}, {inspect.Parameter.POSITIONAL_OR_KEYWORD}, name)
            self.assertIs(getattr(interface, name), getattr(fa, name))

    def test_return_shapes(self):
        q, k, v = tensors()
        self.assertIsInstance(fa.flash_attn_func(q, k, v), torch.Tensor)
        out, lse, probabilities = fa.flash_attn_func(q, k, v, return_attn_probs=True)
        self.assertEqual((out.shape, lse.shape, tuple(probabilities.shape)), (q.shape, (2, 4, 4), (0,)))
        out, lse, probabilities = fa.flash_attn_func(q, k, v, 0.5, return_attn_probs=True)
        self.assertEqual((out.shape, lse.shape, tuple(probabilities.shape)), (q.shape, (2, 4, 4), (2, 4, 128, 128)))
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        given = (*flat, starts(4, 4), starts(6, 6), 200, 150)
        out, lse, probabilities = fa.flash_attn_varlen_func(*given, 0.5, return_attn_probs=True)
        self.assertEqual((out.shape, lse.shape, tuple(probabilities.shape)), (flat[0].shape, (4, 8), (2, 4, 256, 256)))
        out, lse = fa.flash_attn_with_kvcache(q, k, v, return_softmax_lse=True)
        self.assertEqual((out.shape, lse.shape), (q.shape, (2, 4, 4)))
        self.assertIsInstance(fa.flash_attn_with_kvcache(q, k, v), torch.Tensor)
        self.assertEqual([tuple(x.shape) for x in interface._flash_attn_forward(q, k, v, 0.0, None, True, -1, -1, 0.0, None, False)],
                         [tuple(q.shape), (2, 4, 4), (0,), (2,)])  # fmt: skip

    def test_one_key_gives_its_value_bit_for_bit(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            q, k, v = tensors(rows=5, keys=1, dtype=dtype)
            q, v = 30 * q, 7 * v
            want = v.repeat_interleave(2, 2).expand(q.shape)
            self.assertTrue(torch.equal(fa.flash_attn_func(q, k, v), want))
            k, v = k.expand(-1, 9, -1, -1).contiguous(), v.repeat(1, 9, 1, 1) * torch.arange(1, 10)[:, None, None].to(dtype)
            alone = fa.flash_attn_func(q[:, :1].repeat(1, 9, 1, 1), k, v, window_size=(0, 0))
            self.assertTrue(torch.equal(alone, v.repeat_interleave(2, 2)))

    def test_rows_without_keys(self):
        q, k, v = (x.requires_grad_() for x in tensors(rows=6, keys=2, dtype=torch.bfloat16))
        out, lse, _ = fa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
        self.assertTrue((out[:, :4] == 0).all() and (lse[..., :4] == torch.inf).all() and lse[..., 4:].isfinite().all())
        made = torch.autograd.grad(out.float().sum() + lse[..., 4:].sum(), (q, k, v))
        self.assertTrue(all(x.isfinite().all() for x in made) and (made[0][:, :4] == 0).all())
        nothing = fa.flash_attn_func(q, k[:, :0], v[:, :0], return_attn_probs=True)
        self.assertTrue((nothing[0] == 0).all() and (nothing[1] == torch.inf).all())

    def test_window_beyond_all_keys_still_bounds_rows_that_stand_before_them(self):
        q, k, v = tensors(rows=9, keys=2, dtype=torch.float32)
        out = fa.flash_attn_func(q, k, v, window_size=(-1, 3))
        want = torch.stack([reference.sequence(*x, window=(-1, 3))[0] for x in zip(q, k, v)])
        self.assertTrue((out[:, :4] == 0).all() and not (out[:, 4:] == 0).all(-1).any())
        self.assertLess((out - want).abs().max(), 1e-5)

    def test_dropout_follows_the_seed(self):
        q, k, v = tensors(rows=64, keys=64, dtype=torch.float32)
        torch.manual_seed(5)
        a, b = (fa.flash_attn_func(q, k, v, 0.3) for _ in range(2))
        torch.manual_seed(5)
        c, lse, probabilities = fa.flash_attn_func(q, k, v, 0.3, return_attn_probs=True)
        self.assertTrue(torch.equal(a, c) and not torch.equal(a, b))
        self.assertTrue(torch.equal(lse, fa.flash_attn_func(q, k, v, return_attn_probs=True)[1]))
        self.assertAlmostEqual(float((probabilities[..., :64, :64] < 0).float().mean()), 0.3, delta=0.02)

    def test_tokens_of_no_sequence(self):
        q, k, v = (x.flatten(0, 1) for x in tensors())
        out, lse, _ = fa.flash_attn_varlen_func(q, k, v, starts(3, 2), starts(0, 9), 3, 9, return_attn_probs=True)
        self.assertTrue((out[:3] == 0).all() and (lse[:, :3] == torch.inf).all())  # no keys
        self.assertTrue((out[5:] == 0).all() and (lse[:, 5:] == torch.inf).all() and not (out[3:5] == 0).any())


class Gradients(unittest.TestCase):
    def test_the_same_bits_each_time_whatever_the_strides(self):
        q, k, v = (x.requires_grad_() for x in tensors(rows=40, keys=50, dim=59))
        out = fa.flash_attn_func(q, k, v, causal=True)
        g = torch.randn(2, 4, 40, 59).half().transpose(1, 2)
        first, again, plain = (torch.autograd.grad(out, (q, k, v), x, retain_graph=True) for x in (g, g, g.contiguous()))
        for a, b, c in zip(first, again, plain):
            self.assertTrue(torch.equal(a, b) and torch.equal(a, c))

    def test_groups_are_summed_before_they_are_rounded(self):
        q, k, v = (x.requires_grad_() for x in tensors(rows=3, keys=1, heads=8, kv_heads=1, dtype=torch.bfloat16))
        g = 1 + torch.rand(q.shape).bfloat16()
        (made,) = torch.autograd.grad(fa.flash_attn_func(q, k, v), v, g)
        want = g.float().sum((1, 2)).bfloat16()[:, None, None]
        self.assertTrue(torch.equal(made, want))

    def test_lse_has_one(self):
        q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32))
        lse = fa.flash_attn_func(q, k, v, return_attn_probs=True)[1]
        (made,) = torch.autograd.grad(lse.sum(), q)
        x = q.detach().double().requires_grad_()
        want = torch.autograd.grad(sum(reference.sequence(*y)[1].sum() for y in zip(x, k.detach(), v.detach())), x)[0]
        self.assertLess((made - want).abs().max(), 1e-5)

    def test_caches_refuse_when_it_is_asked_for(self):
        q, k, v = tensors(rows=2, keys=256)
        q.requires_grad_()
        out = fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=5)
        self.assertRaisesRegex(RuntimeError, "flash_attn_with_kvcache has no gradient", out.sum().backward)
        with torch.no_grad():
            self.assertFalse(fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=5).requires_grad)
        table = torch.tensor([[1], [0]]).int()
        out = fa.flash_attn_varlen_func(q.flatten(0, 1), k, v, starts(2, 2), starts(9, 256), 2, 256, block_table=table)
        self.assertRaisesRegex(RuntimeError, "with block_table has no gradient", out.sum().backward)
        want = reference.sequence(q[0], k[1, :9], v[1, :9])[0]
        self.assertLess((out[:2] - want).abs().max(), 2e-3)


class Receipts(unittest.TestCase):
    def test_logs_see_every_function(self):
        q, k, v = tensors()
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        with tileproof.torch.log() as log:
            fa.flash_attn_func(q, k, v, causal=True)
            fa.flash_attn_func(q, k, v, 0.1)
            fa.flash_attn_varlen_func(*flat, starts(4, 4), starts(6, 6), 4, 6)
            fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=3)
            fa.flash_attn_func(q.clone().requires_grad_(), k, v).sum().backward()
        problems = [x.problem for x in log.receipts]
        self.assertEqual(len(problems), 6, problems)
        self.assertIn("causal", problems[0])
        self.assertIn("dropout=0.1", problems[1])
        self.assertIn("backward", problems[5])
        self.assertTrue(all(x.scores_written == 0 for x in log.receipts))

    def test_watchers_see_them_once_and_as_tileproofs(self):
        q, k, v = tensors()
        with tileproof.watch() as seen:
            fa.flash_attn_func(q, k, v)
            fa.flash_attn_with_kvcache(q, k, v)
        rows = seen.to_dict()["rows"]
        self.assertEqual(({x["engine"] for x in rows}, sum(x["calls"] for x in rows)), ({"tileproof"}, 2), seen.table())

    def test_compiled_it_is_one_graph(self):
        q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32))
        for dropout_p in (0.0, 0.2):
            call = lambda q, k, v: fa.flash_attn_func(q, k, v, dropout_p, causal=True, window_size=(3, -1))
            torch._dynamo.reset()  # otherwise dropout_p becomes a symbol
            torch.manual_seed(1)
            want = call(q, k, v)
            torch.manual_seed(1)
            found = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v)
            self.assertTrue(torch.equal(found, want) or dropout_p > 0)
            found.sum().backward()


if __name__ == "__main__":
    unittest.main()
