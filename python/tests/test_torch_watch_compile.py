# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs: watching leaves them compiled, their ops are seen, and what is generated is named as not observable."""
import unittest
import warnings

import tileproof
import torch
import torch.nn.functional as F
from test_torch_watch import profiled, setUpModule, tearDownModule  # noqa: F401
from tileproof.watch import hooks
from torch._inductor.codecache import PyCodeCache


class Block(torch.nn.Module):
    """Flash, and math with a value of another width."""

    def __init__(self, width=8):
        super().__init__()
        self.width = width

    def forward(self, x):
        fused = F.scaled_dot_product_attention(x * 2, x, x)
        return fused[..., : self.width] + F.scaled_dot_product_attention(x * 3, x, x[..., : self.width])


class Compile(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        PyCodeCache.cache_clear()  # graphs of other tests count as the process's own
        self.x = torch.randn(1, 3, 10, 16)

    def test_inductor(self):
        """Compiled before and while a watcher is open: the same graphs, the same kernels."""
        model, x = Block(), self.x
        before = torch.compile(model)
        want = before(x)
        plain, _ = profiled(lambda: before(x))
        with tileproof.watch() as seen:
            watched, got = profiled(lambda: before(x))
            self.assertEqual(watched, plain)
            self.assertTrue(torch.equal(got, want))
            self.assertEqual(seen.kernels(), {"flash_for_cpu": 1, "compiled_math": 1})
            torch._dynamo.reset()
            again = torch.compile(model)
            self.assertTrue(torch.equal(again(x), want))
            self.assertTrue(torch.equal(again(x), want))
            self.assertEqual(profiled(lambda: again(x))[0], plain)
        self.assertEqual(seen.kernels(), {"flash_for_cpu": 4, "compiled_math": 4})
        for row in seen.to_dict()["rows"]:
            self.assertEqual((row["mode"], row["model"]), ("compiled", "Block"))
            self.assertRegex(row["path"], r"\w+\.py:\d+$")
        self.assertEqual(hooks.failures, {})
        self.assertFalse([x for x in seen.to_dict()["not_observable"] if "softmax" in x])

    def test_a_softmax_between_generated_products_is_named(self):
        """A product with one column is no bmm any more: nothing of it is an op."""
        with tileproof.watch() as seen:
            torch.compile(Block(1))(self.x)
        self.assertEqual(seen.kernels(), {"flash_for_cpu": 1})
        self.assertTrue([x for x in seen.to_dict()["not_observable"] if x.startswith("a generated softmax")], seen.table())

    def test_compiled_and_eager_are_told_apart(self):
        model, x = Block(), self.x
        with tileproof.watch() as seen:
            model(x)
            torch.compile(model, backend="aot_eager")(x)
        modes = {(x["kernel"], x["mode"]): x["calls"] for x in seen.to_dict()["rows"]}
        self.assertEqual(modes, {("flash_for_cpu", "eager"): 1, ("math", "eager"): 1, ("flash_for_cpu", "graph"): 1, ("eager", "graph"): 1})

    def test_compiled_flex_attention_is_named(self):
        from torch.nn.attention.flex_attention import flex_attention

        x = self.x
        with warnings.catch_warnings(), tileproof.watch() as seen:
            warnings.simplefilter("ignore")
            torch.compile(flex_attention)(x, x, x)
        self.assertEqual(seen.calls, 0)
        self.assertTrue(any(x.startswith("compiled flex_attention") for x in seen.to_dict()["not_observable"]))
        self.assertIn("compiled flex_attention: a generated kernel", seen.table())


if __name__ == "__main__":
    unittest.main()
