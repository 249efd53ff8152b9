# SPDX-License-Identifier: Apache-2.0
"""patch() says what it did not serve: fallbacks, backends of calls left to PyTorch, and calls that bypassed it."""
import unittest
import warnings

import tileproof
import tileproof.torch
import torch
import torch.nn.functional as F
from tileproof import _torch_patch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as imported_before
from test_torch_watch import setUpModule, tearDownModule  # noqa: F401

original = F.scaled_dot_product_attention


def wide(rows=4, heads=2, dim=640):
    return torch.randn(1, heads, rows, dim, generator=torch.Generator().manual_seed(rows))


class Fallback(unittest.TestCase):
    def test_pytorch_serves_what_only_math_would_serve_here(self):
        with tileproof.torch.patch() as log, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for rows in (4, 5, 6):
                x = wide(rows)
                self.assertTrue(torch.equal(F.scaled_dot_product_attention(x, x, x), original(x, x, x)))
            x = wide(heads=3)
            F.scaled_dot_product_attention(x, x, x)
        self.assertEqual((log.receipts, [x.backend for x in log.passed]), ([], ["flash_for_cpu"] * 4))
        self.assertRegex(log.passed[0], "^only a slower path of tileproof's would serve .*d640.*head_dim 640, need <= 576$")
        self.assertNotIn("\n", log.passed[0])
        texts = [str(x.message) for x in told if x.category is tileproof.FallbackWarning]
        self.assertEqual(len(texts), 2, texts)  # h2 and h3: one for each class
        self.assertTrue(all("which served it by flash_for_cpu" in x for x in texts), texts)
        self.assertEqual({x.filename for x in told if x.category is tileproof.FallbackWarning}, {__file__})

    def test_the_backend_is_the_one_that_ran(self):
        x = wide()
        with tileproof.torch.patch() as log:
            F.scaled_dot_product_attention(x, x, x[..., :32])
            with sdpa_kernel(SDPBackend.MATH):
                F.scaled_dot_product_attention(x, x, x)
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                F.scaled_dot_product_attention(x, x, x)
        self.assertEqual([x.backend for x in log.passed], ["math", "math", "flash_for_cpu"])
        self.assertRegex(repr(log), r"none; 3 left to PyTorch \(2 by math, 1 by flash_for_cpu\)")

    def test_it_is_refused_where_asked(self):
        x = wide()
        with tileproof.torch.patch(fallback="refuse") as log:
            with self.assertRaisesRegex(tileproof.FallbackRefused, "head_dim 640"):
                F.scaled_dot_product_attention(x, x, x)
            F.scaled_dot_product_attention(x[..., :64], x[..., :64], x[..., :64])
        self.assertEqual((len(log.receipts), log.passed), (1, []))

    def test_it_serves_where_asked(self):
        x = wide()
        with tileproof.torch.patch(fallback="serve") as log, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                got = F.scaled_dot_product_attention(x, x, x)
        self.assertLess((got - original(x, x, x)).abs().max(), 1e-5)
        self.assertEqual([(r.kernel, r.fallback) for r in log.receipts], [("math", True)] * 3)
        self.assertEqual([x.category for x in told], [tileproof.FallbackWarning])

    def test_without_receipts_too(self):
        x = wide()
        for fallback, served in (("serve", 1), ("torch", 1)):
            with tileproof.torch.patch(limit=0, fallback=fallback) as log, warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                for _ in range(3):
                    F.scaled_dot_product_attention(x, x, x)
            self.assertEqual((len(told), log.forgotten), (served, 3))
            self.assertIn("3 not kept", repr(log))

    def test_the_last_patch_decides(self):
        x = wide()
        with tileproof.torch.patch(fallback="refuse"):
            with tileproof.torch.patch(fallback="serve") as log, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                F.scaled_dot_product_attention(x, x, x)
            self.assertRaises(tileproof.FallbackRefused, F.scaled_dot_product_attention, x, x, x)
        self.assertEqual(len(log.receipts), 1)
        self.assertRaisesRegex(ValueError, "fallback is 'permit': it must be one of torch, refuse, serve", tileproof.torch.patch, fallback="permit")
        self.assertIs(F.scaled_dot_product_attention, original)

    def test_in_a_compiled_graph(self):
        torch._dynamo.reset()
        x = wide()
        with tileproof.torch.patch() as log:
            got = torch.compile(lambda x: F.scaled_dot_product_attention(x, x, x) * 2, fullgraph=True, backend="aot_eager")(x)
        self.assertEqual((log.receipts, [x.backend for x in log.bypassed]), ([], ["flash_for_cpu"]))
        self.assertTrue(torch.equal(got, original(x, x, x) * 2))

    def test_head_dims_go_as_far_as_the_library_says(self):
        limit = _torch_patch.HEAD_DIM
        for dim, status in ((limit, "TP_OK"), (limit + 1, "TP_FALLBACK_REFUSED")):
            self.assertEqual(tileproof.explain((1, 8, 1, dim), (1, 8, 1, dim)).status, status)

    def test_gradients(self):
        x = wide().requires_grad_()
        with tileproof.torch.patch() as log:
            F.scaled_dot_product_attention(x, x, x).sum().backward()
        self.assertEqual((log.receipts, [x.backend for x in log.passed], log.bypassed), ([], ["flash_for_cpu"], []))


class Bypassed(unittest.TestCase):
    def seen(self, call):
        with tileproof.torch.patch() as log:
            call()
        self.assertNotIn("none; 0 left to PyTorch>", repr(log))
        return log

    def test_names_imported_before(self):
        x = torch.randn(1, 2, 5, 8)
        log = self.seen(lambda: imported_before(x, x, x, is_causal=True))
        self.assertEqual(log.bypassed, ["no module: prefill b1 h2/2 q5 k5 d8 f32 top-left causal"])
        self.assertEqual((log.bypassed[0].backend, log.receipts, log.passed), ("flash_for_cpu", [], []))
        self.assertIn("none; 0 left to PyTorch; 1 bypassed the patch (1 by flash_for_cpu)", repr(log))

    def test_pytorchs_inner_name(self):
        x = torch.randn(1, 2, 5, 8)
        log = self.seen(lambda: torch._C._nn.scaled_dot_product_attention(x, x, x[..., :4]))
        self.assertEqual([x.backend for x in log.bypassed], ["math"])

    def test_fast_paths(self):
        x = torch.randn(2, 5, 32)
        attention = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
        with torch.no_grad():
            for name, call in (("MultiheadAttention", lambda: attention(x, x, x, need_weights=False)), ("TransformerEncoderLayer", lambda: layer(x))):
                log = self.seen(call)
                self.assertEqual(log.bypassed, [f"{name}: prefill b2 h4/4 q5 k5 d8 f32"])
                self.assertEqual(log.bypassed[0].backend, "native_mha")

    def test_training_reaches_the_patch(self):
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        log = self.seen(lambda: layer(torch.randn(2, 5, 32)).sum().backward())
        self.assertEqual((len(log.receipts), log.passed, log.bypassed), (2, [], []))

    def test_a_log_has_a_limit(self):
        x = torch.randn(1, 2, 5, 8)
        with tileproof.torch.patch(limit=4) as log:
            for _ in range(9):
                imported_before(x, x, x)
        self.assertLessEqual(len(log.bypassed), 4)
        self.assertEqual(len(log.bypassed) + log.forgotten, 9)


if __name__ == "__main__":
    unittest.main()
