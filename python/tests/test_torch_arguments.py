# SPDX-License-Identifier: Apache-2.0
"""What only tileproof.attention takes, with PyTorch: compiled, with gradients, or refused by name where there are none."""
import unittest

import numpy as np
import tileproof
import tileproof.torch
import torch

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

class Logs(unittest.TestCase):
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
