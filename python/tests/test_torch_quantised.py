# SPDX-License-Identifier: Apache-2.0
"""Quantised k and v as PyTorch tensors: their dtypes, autograd's refusal, torch.compile, and the same bits as NumPy's."""
import unittest

import numpy as np
import tileproof
import torch

FORMATS = (("i8", None), ("e4m3/token", None), ("e4m3", 0.0125), ("i4", None), ("i8/q8_0", None))
CODES = {"i8": torch.int8, "e4m3/token": torch.float8_e4m3fn, "e4m3": torch.float8_e4m3fn, "i4": torch.uint8, "i8/q8_0": torch.uint8}


def bytes_of(x):
    return x.view(torch.uint8).numpy() if isinstance(x, torch.Tensor) else np.asarray(x).view(np.uint8)


class Quantised(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)

    def test_as_numpy(self):
        for format, scale in FORMATS:
            with self.subTest(format=format, scale=scale):
                x = torch.randn(2, 30, 2, 64)
                codes, scales, loss = tileproof.quantise(x, format, scale=scale)
                plain, same, less = tileproof.quantise(x.numpy(), format, scale=scale)
                self.assertEqual((codes.dtype, loss), (CODES[format], less))
                self.assertTrue((bytes_of(codes) == bytes_of(plain)).all())
                self.assertTrue(np.array_equal(scales, same) if isinstance(scales, torch.Tensor) else scales == same)
                back = tileproof.dequantise(codes, scales, format, dtype=torch.bfloat16)
                self.assertEqual(back.dtype, torch.bfloat16)
                self.assertTrue(torch.equal(back, tileproof.dequantise(codes, scales, format).bfloat16()))
                q = torch.randn(2, 3, 4, 64).bfloat16()
                named = dict(k_scales=scales, v_scales=scales, kv_format=format)
                out, receipt = tileproof.attention(q, codes, codes, return_receipt=True, **named)
                self.assertEqual(out.dtype, torch.bfloat16)
                self.assertTrue(receipt.lossy)
                want = tileproof.attention(q.float(), back.float(), back.float())
                self.assertLess(float((out.float() - want).abs().max()), 0.03)
                wide = tileproof.attention(q.float(), codes, codes, **named)
                given = [tileproof.dequantise(codes, scales, format)] * 2
                self.assertLess(float((wide - tileproof.attention(q.float(), *given)).abs().max()), 3e-6)
                if isinstance(scales, float):  # a tensor of one, as engines keep it
                    named.update(k_scales=torch.tensor(scales), v_scales=torch.tensor([scales]))
                    self.assertTrue(torch.equal(tileproof.attention(q, codes, codes, **named), out))
                self.assertEqual(tileproof.explain(q, codes, codes, **named).problem, receipt.problem)

    def test_the_dtype_says_it(self):
        x, q = torch.randn(1, 9, 2, 32), torch.randn(1, 2, 4, 32)
        for format, scale in FORMATS[:3]:
            codes, scales, _ = tileproof.quantise(x, format, scale=scale)
            named = dict(k_scales=scales, v_scales=scales)
            self.assertTrue(torch.equal(tileproof.attention(q, codes, codes, **named), tileproof.attention(q, codes, codes, kv_format=format, **named)))

    def test_compiled_graphs_have_one_node(self):
        for format, scale in FORMATS:
            codes, scales, _ = tileproof.quantise(torch.randn(1, 30, 2, 64), format, scale=scale)
            q = torch.randn(1, 3, 4, 64)
            call = lambda q: 2 * tileproof.attention(q, codes, codes, k_scales=scales, v_scales=scales, kv_format=format, causal=True)
            self.assertTrue(torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q)))
        four, scales, _ = tileproof.quantise(torch.randn(1, 30, 2, 64), "i4/group")  # a word for both, of which v's says the width
        k = torch.randn(1, 30, 2, 64)
        call = lambda q: 2 * tileproof.attention(q, k, four, v_scales=scales, kv_format="plain:i4")
        self.assertTrue(torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q)))

    def test_graphs_know_the_width_of_what_comes_out(self):
        """It is v's, in elements, whatever a row of codes is wide."""
        q, k, x = torch.randn(1, 3, 4, 64), torch.randn(1, 30, 2, 64), torch.randn(1, 30, 2, 32)
        for format, word in (("i4", "plain:i4"), ("i4/group", (None, "i4")), ("i8/q8_0", "plain:i8/q8_0"), ("i8", None)):
            codes, scales, _ = tileproof.quantise(x, format)
            seen = []

            def backend(graph, inputs):
                (out,) = [node for node in graph.graph.nodes if node.op == "output"]
                seen.extend(tuple(node.meta["example_value"].shape) for node in out.args[0])
                return graph

            call = torch.compile(lambda q: 2 * tileproof.attention(q, k, codes, v_scales=scales, kv_format=word), fullgraph=True, backend=backend)
            self.assertEqual(call(q).shape, (1, 3, 4, 32))
            self.assertEqual(seen, [(1, 3, 4, 32)], word)

    def test_the_loss_goes_through_graphs(self):
        q, x = torch.randn(1, 3, 4, 32), torch.randn(1, 30, 2, 32)
        for format, word in (("i8", None), ("i4", ("i4", None)), ("i4", "i4:plain")):
            codes, scales, loss = tileproof.quantise(x, format)
            v, more = (codes, {"v_scales": scales}) if word is None else (x, {})
            call = torch.compile(lambda q: 2 * tileproof.attention(q, codes, v, k_scales=scales, kv_format=word, kv_loss=loss, **more), fullgraph=True, backend="eager")
            with tileproof.torch.log() as log:
                call(q)
            self.assertEqual(log.receipts[0].kv_loss, loss)

    def test_gradients_are_refused(self):
        codes, scales, _ = tileproof.quantise(torch.randn(1, 9, 2, 32), "i8")
        q = torch.randn(1, 3, 4, 32, requires_grad=True)
        with self.assertRaisesRegex(ValueError, "k_scales is given and q requires grad: no gradient goes through k_scales"):
            tileproof.attention(q, codes, codes, k_scales=scales, v_scales=scales)
        with torch.no_grad():
            tileproof.attention(q, codes, codes, k_scales=scales, v_scales=scales)
        with self.assertRaisesRegex(ValueError, "x requires grad: no gradient goes through codes; call it under torch.no_grad"):
            tileproof.quantise(q, "i8")
        self.assertEqual(tileproof.quantise(q.detach(), "i8")[0].dtype, torch.int8)

    def test_other_devices(self):
        codes, scales, _ = tileproof.quantise(torch.randn(1, 9, 2, 32), "i8")
        q = torch.randn(1, 3, 4, 32)
        with self.assertRaisesRegex(ValueError, "k_scales cannot be read: it must be a dense tensor on the CPU"):
            tileproof.attention(q, codes, codes, k_scales=scales.to("meta"), v_scales=scales)
        with self.assertRaisesRegex(ValueError, "x cannot be read"):
            tileproof.quantise(q.to("meta"), "i8")


if __name__ == "__main__":
    unittest.main()
