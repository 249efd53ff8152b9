# SPDX-License-Identifier: Apache-2.0
"""Gradients against float64 autograd of the definition."""
import unittest

import tileproof
import tileproof.torch
import torch
import torch.nn.functional as F

LIMIT = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}
torch.manual_seed(17)


def definition(q, k, v, causal=False, align="bottom_right", window=None, scale=None, softcap=0.0, mask=None, bias=None,
               alibi_slopes=None, sinks=None, kept=None):  # fmt: skip
    """bshd in float64; kept: what dropout left, already divided by 1 - p. Gives out and lse (batch, heads, rows)."""
    rows, keys, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    q_pos = torch.arange(rows)[:, None] + (keys - rows if align == "bottom_right" else 0)
    k_pos = torch.arange(keys)[None]
    if alibi_slopes is not None:
        s = s - alibi_slopes.reshape(-1, q.shape[2], 1, 1) * (q_pos - k_pos).abs()
    if bias is not None:
        s = s + bias
    seen = torch.ones(rows, keys, dtype=torch.bool) if mask is None else mask
    if causal:
        seen = seen & (k_pos <= q_pos)
    left, right = window or (None, None)
    seen = seen if left is None else seen & (k_pos >= q_pos - left)
    seen = seen if right is None else seen & (k_pos <= q_pos + right)
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
    lse = s.logsumexp(3)
    p = torch.exp(s - torch.where(lse.isinf(), 0, lse)[..., None])[..., :keys]
    return torch.einsum("bhqk,bkhd->bqhd", p if kept is None else p * kept, v), lse


class Gradients(unittest.TestCase):
    def compare(self, given, call, oracle, dtype=torch.float32, with_lse=True):
        """given: the tensors gradients go to, by name."""
        ours = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
        theirs = {name: x.detach().double().requires_grad_() for name, x in given.items()}
        out, lse = call(**ours)
        want, want_lse = oracle(**theirs)
        weight, weight_lse = torch.randn(want.shape, dtype=torch.float64), torch.randn(want_lse.shape, dtype=torch.float64)
        ((out * weight.to(out.dtype)).sum() + (lse * weight_lse.float()).sum() * with_lse).backward()
        ((want * weight.to(out.dtype).double()).sum() + (want_lse * weight_lse.float().double()).sum() * with_lse).backward()
        for name in given:
            got, right = ours[name].grad, theirs[name].grad
            self.assertEqual((got.dtype, got.shape), (given[name].dtype, right.shape), name)
            error = ((got.double() - right).abs().max() / (1 + right.abs().max())).item()
            self.assertLess(error, LIMIT[dtype], name)

    def check(self, q=(2, 9, 4, 16), k=(2, 13, 2, 16), dv=None, dtype=torch.float32, options={}, align=None, with_lse=True, **extra):
        given = dict(q=torch.randn(q).to(dtype), k=torch.randn(k).to(dtype), v=torch.randn(*k[:3], dv or k[3]).to(dtype), **extra)
        ours = dict(options, **({"causal_align": align} if align else {}))
        theirs = dict(options, **({"align": align} if align else {}))
        self.compare(
            given, lambda **x: tileproof.attention(**x, **ours, return_lse=True), lambda **x: definition(**x, **theirs), dtype, with_lse
        )

    def test_dtypes_and_head_dims(self):
        for dtype in LIMIT:
            for d, dv in ((16, 16), (40, 24), (59, 111), (128, 128)):
                self.check((2, 9, 4, d), (2, 13, 2, d), dv, dtype)

    def test_masks_and_scores(self):
        for options in (
            dict(causal=True), dict(causal=True, window=(3, 0)), dict(window=(2, 2)), dict(scale=0.7), dict(softcap=1.5),
            dict(mask=torch.rand(9, 13) < 0.6), dict(mask=torch.rand(2, 4, 9, 13) < 0.6, causal=True),
        ):  # fmt: skip
            self.check(options=options)
            self.check(options=options, align="top_left")
        self.check((1, 70, 8, 64), (1, 300, 2, 64), options=dict(causal=True))
        self.check((1, 1, 8, 64), (1, 300, 2, 64), with_lse=False)

    def test_bias_slopes_and_sinks_get_gradients(self):
        for shape in ((9, 13), (4, 1, 13), (2, 4, 9, 13), (2, 1, 1, 1), (13,)):
            self.check(bias=torch.randn(shape), options=dict(causal=True))
        self.check(bias=torch.randn(4, 9, 13).half(), options=dict(), dtype=torch.float16)
        self.check(sinks=torch.randn(4), options=dict(causal=True))
        self.check(alibi_slopes=torch.rand(4))
        self.check(alibi_slopes=torch.rand(2, 4), sinks=torch.randn(4), bias=torch.randn(9, 13))

    def test_rows_that_see_nothing_have_finite_gradients(self):
        q, k, v = (torch.randn(1, n, 2, 16, requires_grad=True) for n in (4, 6, 6))
        mask = torch.ones(4, 6, dtype=torch.bool)
        mask[1] = False
        tileproof.attention(q, k, v, mask=mask).square().sum().backward()
        self.assertTrue((q.grad[:, 1] == 0).all())
        self.assertTrue(all(x.grad.isfinite().all() for x in (q, k, v)))

    def test_used_lengths_and_packed_sequences(self):
        q, k, v = (torch.randn(2, n, 2, 16, requires_grad=True) for n in (5, 7, 7))
        weight = torch.randn(2, 5, 2, 16)
        out = tileproof.attention(q, k, v, q_lens=torch.tensor([5, 3]), kv_lens=torch.tensor([4, 7]), causal=True)
        (out * weight).sum().backward()
        for s, m, n in ((0, 5, 4), (1, 3, 7)):
            parts = [x[s : s + 1, :y].detach().double().requires_grad_() for x, y in ((q, m), (k, n), (v, n))]
            (definition(*parts, causal=True)[0] * weight[s : s + 1, :m]).sum().backward()
            for x, part, y in zip((q, k, v), parts, (m, n, n)):
                self.assertLess((x.grad[s : s + 1, :y] - part.grad).abs().max(), 2e-5)
                self.assertTrue((x.grad[s, y:] == 0).all())
        flat = [x.detach().reshape(-1, 2, 16).requires_grad_() for x in (q, k, v)]
        cu_q, cu_k = torch.tensor([0, 5, 10]), torch.tensor([0, 7, 14])
        out = tileproof.attention(*flat, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True)
        (out * weight.reshape(-1, 2, 16)).sum().backward()
        whole = [x.detach().double().requires_grad_() for x in (q, k, v)]
        (definition(*whole, causal=True)[0] * weight).sum().backward()
        for x, y in zip(flat, whole):
            self.assertLess((x.grad - y.grad.reshape(-1, 2, 16)).abs().max(), 2e-5)

    def test_sdpa_as_autograd_of_pytorch(self):
        for shape_q, shape_k, gqa in (((2, 4, 5, 16), (2, 4, 9, 16), False), ((3, 5, 16), (3, 9, 16), False), ((2, 4, 5, 16), (2, 2, 9, 16), True), ((2, 1, 5, 16), (1, 4, 9, 16), False)):
            for mask in (None, torch.rand(5, 9) < 0.7, torch.randn(5, 9)):
                given = [torch.randn(shape_q), torch.randn(shape_k), torch.randn(shape_k)]
                if mask is not None and mask.dtype != torch.bool:
                    given.append(mask)
                ours = [x.clone().requires_grad_() for x in given]
                theirs = [x.double().requires_grad_() for x in given]
                with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                    want = F.scaled_dot_product_attention(*theirs, *([mask] if mask is not None and len(given) == 3 else []), enable_gqa=gqa)
                got = tileproof.scaled_dot_product_attention(*ours, *([mask] if mask is not None and len(given) == 3 else []), enable_gqa=gqa)
                weight = torch.randn(want.shape)
                (got * weight).sum().backward()
                (want * weight).sum().backward()
                for x, y in zip(ours, theirs):
                    self.assertLess((x.grad - y.grad).abs().max(), 2e-5)

    def test_dropout(self):
        p, seed = 0.4, torch.tensor([12345])
        q, k, v = (torch.randn(2, n, 2, 16) for n in (8, 24, 24))
        eye = torch.eye(24)[None, :, None].expand(2, 24, 2, 24)  # makes out the probabilities that stay
        call = lambda q, k, v: tileproof._torch_ops._call(q, k, v, dropout_p=p, seed=seed)
        stay = (call(q, k, eye)[0] != 0).permute(0, 2, 1, 3)
        self.assertTrue(0.4 < stay.double().mean() < 0.8)
        kept = stay.double() / (1 - p)
        self.compare(dict(q=q, k=k, v=v), call, lambda q, k, v: definition(q, k, v, kept=kept))
        x = torch.randn(1, 4, 64, 16)
        sdpa = tileproof.scaled_dot_product_attention
        torch.manual_seed(5)
        first, other = sdpa(x, x, x, dropout_p=0.5), sdpa(x, x, x, dropout_p=0.5)
        torch.manual_seed(5)
        self.assertTrue(torch.equal(first, sdpa(x, x, x, dropout_p=0.5)))
        self.assertFalse(torch.equal(first, other))
        mean = torch.stack([sdpa(x, x, x, dropout_p=0.5) for _ in range(400)]).mean(0)
        self.assertLess((mean - sdpa(x, x, x)).abs().max(), 0.6)
        torch.manual_seed(5)
        self.assertTrue(torch.equal(first, sdpa(x.clone().requires_grad_(), x, x, dropout_p=0.5)))


class Autograd(unittest.TestCase):
    def test_only_what_was_promised_is_kept(self):
        q, k, v = (torch.randn(1, 64, 2, 16, requires_grad=True) for _ in range(3))
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
            out, lse = tileproof.attention(q, k, v, causal=True, return_lse=True)
        self.assertEqual(sorted(tuple(x.shape) for x in kept), [(1, 2, 64)] + [(1, 64, 2, 16)] * 4)
        self.assertEqual({x.data_ptr() for x in kept}, {x.data_ptr() for x in (q, k, v, out, lse)})

    def test_twice_through_one_graph_gives_equal_bits(self):
        q, k, v = (torch.randn(1, 64, 2, 16, requires_grad=True) for _ in range(3))
        loss = tileproof.attention(q, k, v).square().sum()
        first = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
        second = torch.autograd.grad(loss, (q, k, v))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(first, second)))

    def test_only_what_needs_a_gradient_gets_one(self):
        q, k, v = (torch.randn(1, 8, 2, 16) for _ in range(3))
        k.requires_grad_()
        with tileproof.torch.log() as log:
            tileproof.attention(q, k, v).sum().backward()
        self.assertIsNone(q.grad)
        self.assertIsNotNone(k.grad)
        self.assertTrue(log.receipts[-1].problem.startswith("backward"))
        with torch.no_grad():
            self.assertFalse(tileproof.attention(q, k, v).requires_grad)
        with self.assertRaisesRegex(ValueError, "out is given"):
            tileproof.attention(q, k, v, out=torch.empty(1, 8, 2, 16))

    def test_gradients_that_are_expanded_or_strided(self):
        q, k, v = (torch.randn(1, 8, 2, 16, requires_grad=True) for _ in range(3))
        tileproof.attention(q, k, v).sum().backward()  # its gradient is one number, expanded
        want = q.grad.clone()
        q.grad = None
        out = tileproof.attention(q, k, v)
        out.backward(torch.ones(1, 16, 2, 8).transpose(1, 3))
        self.assertTrue(torch.equal(q.grad, want))
        q.grad = None
        _, lse = tileproof.attention(q, k, v, return_lse=True)
        lse.sum().backward()
        self.assertGreater(q.grad.abs().max(), 0)

    def test_compiled_training_step_is_one_graph(self):
        torch._dynamo.reset()
        x = torch.randn(2, 4, 12, 16)
        w = torch.randn(16, 16, requires_grad=True)

        def step(x, w):
            y = x @ w
            return tileproof.scaled_dot_product_attention(y, y, y, is_causal=True).square().mean()

        step(x, w).backward()
        want, w.grad = w.grad.clone(), None
        torch.compile(step, fullgraph=True, backend="aot_eager")(x, w).backward()
        self.assertLess((w.grad - want).abs().max(), 1e-6)
        with tileproof.torch.patch() as log:
            w.grad = None
            patched = lambda x, w: F.scaled_dot_product_attention(x @ w, x @ w, x @ w, is_causal=True).square().mean()
            torch.compile(patched, fullgraph=True, backend="aot_eager")(x, w).backward()
        self.assertLess((w.grad - want).abs().max(), 1e-6)
        self.assertEqual(len(log.receipts), 2)

    def test_training_inside_patch(self):
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        x = torch.randn(2, 10, 32)
        layer(x).square().mean().backward()
        want = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        with tileproof.torch.patch() as log:
            layer(x).square().mean().backward()
        self.assertEqual((len(log.receipts), log.passed), (2, []))
        for p, right in zip(layer.parameters(), want):
            self.assertLess((p.grad - right).abs().max(), 1e-5)

    def test_a_gradient_is_not_lost_in_silence(self):
        x = torch.randn(1, 2, 6, 8, requires_grad=True)
        plain = x.detach().numpy()
        for call in (tileproof.attention, tileproof.scaled_dot_product_attention):
            with self.assertRaisesRegex(TypeError, "ndarray.*would be lost"):
                call(plain, x, plain)
            with torch.no_grad():
                call(plain, x.detach(), plain)

    def test_ops_pass_the_checks_of_pytorch(self):
        x = torch.randn(1, 6, 2, 8, requires_grad=True)
        plain = tileproof._torch_ops._arguments(x, x, x, causal=True)
        torch.library.opcheck(tileproof._torch_ops._forward, plain)


if __name__ == "__main__":
    unittest.main()
