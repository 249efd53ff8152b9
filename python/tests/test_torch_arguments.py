# SPDX-License-Identifier: Apache-2.0
"""What only tileproof.attention takes, with PyTorch: compiled, with gradients, or refused by name where there are none."""
import json
import unittest

import numpy as np
import tileproof
import tileproof.torch
import torch
from masks import Call

torch.manual_seed(5)


class Pages(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = torch.randn(2, 3, 4, 16), torch.randn(7, 4, 2, 16), torch.randn(7, 4, 2, 16)
        self.named = dict(page_table=torch.tensor([[3, 1, 6], [0, 2, 99]], dtype=torch.int32), kv_lens=torch.tensor([11, 7]), causal=True)
        self.want = tileproof.attention(*(x.numpy() for x in (self.q, self.k, self.v)), **{x: np.asarray(y) if y is not True else y for x, y in self.named.items()})

    def test_values_and_compile(self):
        self.assertTrue((tileproof.attention(self.q, self.k, self.v, **self.named).numpy() == self.want).all())
        compiled = torch.compile(lambda q, k, v, **named: tileproof.attention(q * 1, k, v, **named), fullgraph=True, backend="aot_eager")
        self.assertTrue((compiled(self.q, self.k, self.v, **self.named).numpy() == self.want).all())

    def test_gradients_are_refused_by_name(self):
        q = self.q.requires_grad_()
        with self.assertRaisesRegex(ValueError, "page_table is given and q requires grad: no gradient.*no_grad"):
            tileproof.attention(q, self.k, self.v, **self.named)
        with torch.no_grad():
            self.assertTrue((tileproof.attention(q, self.k, self.v, **self.named).numpy() == self.want).all())

    def test_gradients_flow_through_packed_rows_on_a_cache(self):
        q, k, v = torch.randn(5, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
        lens = [9, 6]
        rows = [slice(0, 4), slice(4, 5)]
        mine, plain = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
        out = tileproof.attention(*mine, layout="thd", cu_seqlens_q=torch.tensor([0, 4, 5]), kv_lens=torch.tensor(lens))
        want = torch.cat([tileproof.attention(plain[0][None, rows[s]], plain[1][s : s + 1, : lens[s]], plain[2][s : s + 1, : lens[s]])[0] for s in range(2)])
        self.assertTrue(torch.equal(out, want))
        for x in (out, want):
            (x * torch.arange(x.numel()).reshape(x.shape).cos()).sum().backward()
        for a, b in zip(mine, plain):
            self.assertLess((a.grad - b.grad).abs().max().item(), 1e-6)

def tensors(mask):
    """The same Mask with PyTorch's arrays."""
    return tileproof.Mask(mask._tree, {x: None if y is None else torch.from_numpy(np.ascontiguousarray(y)) for x, y in mask._arrays.items()})


class Masks(unittest.TestCase):
    def test_gradients_are_those_of_the_dense_mask(self):
        for seed in range(60):
            random = np.random.default_rng(1000 + seed)
            positions = seed % 3 == 0
            call = Call(random, 2, int(random.integers(1, 9)), int(random.integers(1, 14)), used=seed % 2 == 0, positions=positions)
            mask, dense = call.mask()
            given = [torch.randn(2, n, h, 16) for n, h in ((call.rows, 4), (call.keys, 2), (call.keys, 2))]
            lens = dict(q_lens=torch.from_numpy(call.q_lens), kv_lens=torch.from_numpy(call.kv_lens))
            more = dict(q_positions=torch.from_numpy(call.q_pos.copy()), kv_positions=torch.from_numpy(call.k_pos.copy())) if positions else {}
            made = []
            for named in (dict(mask=tensors(mask), **more), dict(mask=torch.from_numpy(dense[:, None].copy()))):
                mine = [x.clone().requires_grad_() for x in given]
                out, lse = tileproof.attention(*mine, return_lse=True, **lens, **named)
                (out * torch.arange(out.numel()).reshape(out.shape).cos()).sum().backward()
                made.append([out.detach(), *(x.grad for x in mine)])
            with self.subTest(seed=seed, mask=str(mask)):
                for a, b in zip(*made):
                    self.assertLess((a - b).abs().max().item() if a.numel() else 0.0, 3e-6)

    def test_query_scale_and_dropout_have_gradients(self):
        q, k, v = (torch.randn(1, 6, 2, 8, dtype=torch.float32, requires_grad=True) for _ in range(3))
        call = lambda q, k, v, **named: tileproof.attention(q, k, v, q_scale=(0.5, 2, 1), dropout_p=0.3, dropout_seed=2**64 - 5, dropout_offset=9, causal=True, **named)
        call(q, k, v).sum().backward()
        eye = torch.eye(6)[None, :, None].expand(1, 6, 2, 6)
        with torch.no_grad():
            kept = call(q, k, eye) != 0  # (1, rows, heads, keys)
        scale = 1 + 0.5 * torch.log1p((torch.arange(6) + 1) // 2)
        x = [y.detach().clone().requires_grad_() for y in (q, k, v)]
        s = torch.einsum("bqhd,bkhd->bqhk", x[0] * scale[None, :, None, None], x[1]) / 8**0.5
        s = s.masked_fill(torch.ones(6, 6).triu(1).bool()[None, :, None], float("-inf"))
        torch.einsum("bqhk,bkhd->bqhd", s.softmax(3) * kept / 0.7, x[2]).sum().backward()
        for a, b in zip((q, k, v), x):
            self.assertLess((a.grad - b.grad).abs().max().item(), 3e-6)

    def test_compiled(self):
        def step(q, k, v, ids, seed):
            mask = tileproof.Mask.causal() & tileproof.Mask.window(3, 0) | tileproof.Mask.documents(ids, ids)
            return tileproof.attention(q, k, v, mask=mask, q_positions=ids, kv_positions=ids, q_scale=(0.5, 2, 0), dropout_p=0.5, dropout_seed=seed)

        ids, seed = torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor(7)
        given = [torch.randn(1, 5, 2, 8) for _ in range(3)]
        mine, compiled = ([x.clone().requires_grad_() for x in given] for _ in range(2))
        torch._dynamo.reset()
        out = [step(*mine, ids, seed), torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled, ids, seed)]
        self.assertTrue(torch.equal(*out))
        for x in out:
            x.sum().backward()
        for a, b in zip(mine, compiled):
            self.assertTrue(torch.equal(a.grad, b.grad))

    def test_compiled_again_with_other_numbers(self):
        call = torch.compile(lambda q, p, cap: tileproof.attention(q, q, q, dropout_p=p, softcap=cap, dropout_seed=3), fullgraph=True, backend="aot_eager")
        torch._dynamo.reset()
        for p, cap in ((0.1, 1.5), (0.2, 2.5), (0.3, 3.5)):  # they become symbols
            q = torch.randn(1, 4, 2, 8, requires_grad=True)
            self.assertTrue(torch.equal(call(q, p, cap), tileproof.attention(q, q, q, dropout_p=p, softcap=cap, dropout_seed=3)))

    def test_latent_and_indices(self):
        q, k = torch.randn(2, 3, 4, 24), torch.randn(2, 9, 1, 24)
        indices = torch.randint(0, 9, (2, 3, 4), dtype=torch.int32)
        call = lambda q, k: tileproof.attention(q, k, latent=(4, 20), indices=indices)
        want = tileproof.attention(q, k, k[..., 4:20].contiguous(), indices=indices)
        torch._dynamo.reset()
        for x in (call(q, k), torch.compile(call, fullgraph=True, backend="aot_eager")(q, k)):
            self.assertLess((x - want).abs().max().item(), 1e-6)
        for named, name in ((dict(latent=8), "latent"), (dict(v=k, indices=indices), "indices"), (dict(v=k, invariant=True), "invariant")):
            with self.assertRaisesRegex(ValueError, f"{name} is given and q requires grad: no gradient goes through {name}"):
                tileproof.attention(q.clone().requires_grad_(), k, **named)


class Devices(unittest.TestCase):
    def test_tensors_that_are_not_there(self):
        x, ids = torch.randn(1, 4, 2, 8), torch.zeros(4, dtype=torch.long)
        documents, trained = tileproof.Mask.documents, x.clone().requires_grad_()
        for call, name in (
            (lambda: tileproof.attention(x.to("meta"), x, x), "q"),
            (lambda: tileproof.attention(*3 * [x.to("meta").requires_grad_()]), "q"),
            (lambda: tileproof.scaled_dot_product_attention(*3 * [x.to("meta").requires_grad_()]), "q"),
            (lambda: tileproof.attention(x, x.to("meta"), x), "k"),
            (lambda: tileproof.attention(x, x, x, mask=documents(ids.to("meta"))), "kv_documents"),
            (lambda: tileproof.attention(x, x, x, mask=documents(ids.to_sparse())), "kv_documents"),
            (lambda: tileproof.scaled_dot_product_attention(x, x, x.to("meta")), "v"),
        ):
            with self.assertRaisesRegex(ValueError, f"{name} cannot be read: it must be a dense tensor on the CPU") as caught:
                call()
            self.assertNotIn("\n", str(caught.exception))
        for named, name in ((dict(mask=documents(ids.to("meta"))), "kv_documents"), (dict(kv_lens=ids.to("meta")[:1]), "kv_lens")):
            with self.assertRaisesRegex(ValueError, f"{name} is on meta and q on cpu: all tensors must be on one device"):
                tileproof.attention(trained, x, x, **named)

    def test_arrays_of_numpy_with_gradients(self):
        x = torch.randn(1, 4, 2, 8)
        mask, ids = np.tri(4, dtype=bool), np.array([0, 0, 1, 1])
        for named in (dict(mask=mask, kv_lens=np.array([3])), dict(mask=tileproof.Mask.documents(ids) & tileproof.Mask.array(mask))):
            out = tileproof.attention(x.clone().requires_grad_(), x, x, **named)
            self.assertTrue(torch.equal(out.detach(), tileproof.attention(x, x, x, **named)))


class Logs(unittest.TestCase):
    def test_tags_go_with_gradients_and_graphs(self):
        x, lines = torch.randn(1, 6, 2, 8, requires_grad=True), []
        call = lambda x: tileproof.attention(x, x, x, tags=dict(model="m", layer=2))
        with tileproof.trace(lines.append):
            call(x).sum().backward()
            torch.compile(call, fullgraph=True, backend="aot_eager")(x.detach())
        self.assertEqual([(y["model"], y["layer"]) for y in map(json.loads, lines)], [("m", 2)] * 3)

    def test_a_log_has_the_receipts_of_plain_calls_and_of_plans(self):
        x = torch.randn(1, 5, 2, 16)
        plan = tileproof.plan(x, x)
        with tileproof.torch.log() as log:
            self.assertEqual(tileproof.attention(x, x, x).shape, x.shape)
            out, receipt = tileproof.attention(x, x, x, causal=True, return_receipt=True)
            self.assertEqual(plan.run(x, x, x).shape, x.shape)
        tileproof.attention(x, x, x)
        self.assertEqual(len(log.receipts), 3)
        self.assertIs(log.receipts[1], receipt)
        with tileproof.torch.log(limit=0) as log:
            tileproof.attention(x, x, x)
        self.assertEqual((log.receipts, log.forgotten), ([], 0))


if __name__ == "__main__":
    unittest.main()
