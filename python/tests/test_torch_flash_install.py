# SPDX-License-Identifier: Apache-2.0
"""install(), which makes `import flash_attn` tileproof's; flash_attn.bert_padding and flash_attn.layers.rotary."""
import contextlib
import importlib.util
import io
import pathlib
import re
import sys
import tempfile
import types
import unittest

import flash_reference as reference
import tileproof
import tileproof.flash_attn as ours
import torch
from tileproof.flash_attn import bert_padding, flash_attn_func, flash_attn_varlen_func
from tileproof.flash_attn.layers import rotary


@unittest.skipIf(importlib.util.find_spec("flash_attn") is not None, "not run here: flash_attn is installed")
class Install(unittest.TestCase):
    def tearDown(self):
        ours.uninstall()
        for name in [x for x in sys.modules if x.partition(".")[0] == "flash_attn"]:
            del sys.modules[name]

    def there(self):
        return importlib.util.find_spec("flash_attn") is not None

    def test_what_is_imported_is_tileproofs(self):
        ours.install()
        ours.install()
        self.assertTrue(self.there() and "flash_attn" not in sys.modules)
        import flash_attn
        import flash_attn.flash_attn_interface as interface
        from flash_attn import flash_attn_func
        from flash_attn.bert_padding import pad_input
        from flash_attn.layers.rotary import apply_rotary_emb

        self.assertIs(flash_attn_func, ours.flash_attn_func)
        self.assertIs(interface.flash_attn_with_kvcache, ours.flash_attn_with_kvcache)
        self.assertIs(pad_input, bert_padding.pad_input)
        self.assertIs(flash_attn.layers.rotary.apply_rotary_emb, apply_rotary_emb)
        self.assertIs(apply_rotary_emb, rotary.apply_rotary_emb)
        self.assertIs(flash_attn.flash_attn_interface, interface)
        self.assertEqual((flash_attn.__version__, flash_attn.__name__, ours.__name__), ("2.8.4+tileproof", "flash_attn", "tileproof.flash_attn"))
        self.assertIsNone(importlib.util.find_spec("flash_attn.ops"))

    def test_uninstall(self):
        self.assertFalse(self.there())
        for _ in range(2):
            ours.install()
            import flash_attn.bert_padding

            self.assertTrue(self.there())
            ours.uninstall()
            ours.uninstall()
            self.assertFalse(self.there() or any(x.startswith("flash_attn") for x in sys.modules))

    def test_what_is_there_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder, "flash_attn.py")
            place.write_text("theirs = True")
            sys.path.insert(0, folder)
            try:
                self.assertRaisesRegex(RuntimeError, f"already, from {place}: install.. does not replace it", ours.install)
                import flash_attn

                self.assertRaisesRegex(RuntimeError, f"already, from {place}: install.. does not replace it", ours.install)
                self.assertTrue(flash_attn.theirs)
            finally:
                sys.path.remove(folder)
        sys.modules["flash_attn"] = types.ModuleType("flash_attn")
        self.assertRaisesRegex(RuntimeError, "a place that it does not name", ours.install)

    def test_the_page_runs(self):
        text = (pathlib.Path(__file__).resolve().parents[2] / "docs/flash_attn.md").read_text()
        block, codes = re.findall("```python\n(.*?)```", text, re.S)
        said, names = io.StringIO(), {}
        with contextlib.redirect_stdout(said):
            exec(compile(block, "flash_attn.md", "exec"), names)
        self.assertRegex(said.getvalue(), r"2 on .*\n" + re.escape(re.search(r"prefill .*", block)[0]))
        exec(compile(codes, "flash_attn.md", "exec"), names)
        self.assertEqual((names["out"].shape, names["out"].dtype), ((2, 1, 8, 64), torch.bfloat16))
        self.assertTrue((names["scales"][0][:, :201] > 0).all() and (names["scales"][0][:, 201:] == 0).all())

    def test_the_watcher_does_not_take_it_for_flash_attn(self):
        q = torch.ones(1, 4, 2, 8)
        ours.install()
        with tileproof.watch() as seen:
            from flash_attn import flash_attn_func, flash_attn_with_kvcache

            flash_attn_with_kvcache(q, q.clone(), q.clone())
            flash_attn_func(q, q, q)
        rows = seen.to_dict()["rows"]
        self.assertEqual(({x["engine"] for x in rows}, sum(x["calls"] for x in rows)), ({"tileproof"}, 2))


class Padding(unittest.TestCase):
    def test_there_and_back(self):
        torch.manual_seed(1)
        x = torch.randn(3, 5, 2, 4).requires_grad_()
        mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 0]])
        for given in (mask, mask.bool()):
            packed, indices, starts, longest, used = bert_padding.unpad_input(x, given)
            self.assertEqual((indices.tolist(), starts.tolist(), longest), ([0, 1, 11, 12, 13], [0, 2, 2, 5], 3))
            self.assertEqual((starts.dtype, used.dtype, used.tolist(), type(longest)), (torch.int32, torch.int32, [2, 0, 3], int))
            back = bert_padding.pad_input(packed, indices, 3, 5)
            self.assertTrue(torch.equal(back, x * mask[..., None, None]))
        (made,) = torch.autograd.grad(back.square().sum(), x)
        self.assertTrue(torch.equal(made, 2 * x * mask[..., None, None]))

    def test_unused_tokens_take_room(self):
        x, mask = torch.arange(8.0).view(2, 4, 1), torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
        unused = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 0]])
        packed, indices, starts, longest, used = bert_padding.unpad_input(x, mask, unused)
        self.assertEqual((packed.flatten().tolist(), starts.tolist(), longest, used.tolist()), ([0, 1, 2, 4, 5, 6], [0, 3, 6], 3, [2, 1]))

    def test_several_sequences_in_a_row(self):
        x, lengths = torch.arange(18.0).view(3, 6, 1), torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
        packed, indices, starts, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
        self.assertEqual((starts.tolist(), starts.dtype, longest), ([0, 2, 5, 8, 10, 16], torch.int32, 6))
        self.assertEqual(packed.flatten().tolist(), [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17])

    def test_parts(self):
        x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
        at = torch.tensor([2, 0])
        rows, whole = bert_padding.index_first_axis_residual(x, at)
        self.assertTrue(torch.equal(rows, x[at]) and torch.equal(whole, x))
        self.assertTrue(torch.equal(torch.autograd.grad(rows.sum() + 2 * whole.sum(), x)[0], torch.tensor([[3.0], [2], [3], [2]]).expand(4, 2).double()))
        self.assertEqual(bert_padding.index_put_first_axis(torch.ones(2, 1), at, 4).flatten().tolist(), [1, 0, 1, 0])
        self.assertRaises(AssertionError, bert_padding.index_first_axis, torch.ones(3), at)
        self.assertRaises(AssertionError, bert_padding.index_put_first_axis, torch.ones(2), at, 4)
        self.assertRaises(AssertionError, bert_padding.index_put_first_axis, torch.ones(2, 1), at[None], 4)

    def test_a_padded_batch_is_its_sequences(self):
        torch.manual_seed(2)
        q, k, v = torch.randn(3, 2, 9, 2, 8)
        mask = torch.arange(9) < torch.tensor([[4], [9]])
        (packed, indices, starts, longest, _), *others = (bert_padding.unpad_input(x, mask) for x in (q, k, v))
        out = flash_attn_varlen_func(packed, *(x[0] for x in others), starts, starts, longest, longest, causal=True)
        out = bert_padding.pad_input(out, indices, 2, 9)
        self.assertTrue(torch.equal(out[0, :4], flash_attn_func(q[:1, :4], k[:1, :4], v[:1, :4], causal=True)[0]))
        self.assertTrue(torch.equal(out[1], flash_attn_func(q[1:], k[1:], v[1:], causal=True)[0]) and not out[0, 4:].any())


class Rotary(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(4)
        angles = torch.rand(40, 6) * 6
        self.cos, self.sin = angles.cos(), angles.sin()
        self.x = torch.randn(2, 5, 3, 16)

    def meant(self, x, offsets, interleaved):
        return torch.stack([reference.rotate(y, self.cos, self.sin, o + torch.arange(len(y)), interleaved) for y, o in zip(x, offsets)])

    def test_values(self):
        for interleaved in (False, True):
            for given, offsets in ((0, [0, 0]), (7, [7, 7]), (torch.tensor([3, 35]), [3, 35])):
                want = self.meant(self.x, offsets, interleaved)
                made = rotary.apply_rotary_emb(self.x, self.cos, self.sin, interleaved, seqlen_offsets=given)
                self.assertLess((made - want).abs().max(), 1e-6)
                x = self.x.clone()
                self.assertIs(rotary.apply_rotary_emb(x, self.cos, self.sin, interleaved, True, given), x)
                self.assertTrue(torch.equal(x, made))
                flat = rotary.apply_rotary_emb(self.x.flatten(0, 1), self.cos, self.sin, interleaved, False, given, torch.tensor([0, 5, 10]), 5)
                self.assertTrue(torch.equal(flat.view(made.shape), made))
            made = rotary.apply_rotary_emb_torch(self.x, self.cos[:5], self.sin[:5], interleaved)
            self.assertLess((made - self.meant(self.x, [0, 0], interleaved)).abs().max(), 1e-6)

    def test_products_are_rounded_once(self):
        x, cos, sin = (y.bfloat16() for y in (self.x, self.cos, self.sin))
        want = torch.stack([reference.rotate(y, cos, sin, torch.arange(5), True) for y in x])
        self.assertTrue(torch.equal(rotary.apply_rotary_emb(x, cos, sin, True), want.bfloat16()))

    def test_gradient_turns_back(self):
        x = self.x.clone().requires_grad_()
        made = rotary.apply_rotary_emb(x, self.cos, self.sin)
        (back,) = torch.autograd.grad(made, x, made.detach())
        self.assertLess((back - self.x).abs().max(), 1e-6)

    def test_packed_tensors_in_place(self):
        for interleaved in (False, True):
            qkv, want = torch.randn(2, 5, 3, 3, 16), []
            want = [self.meant(qkv[:, :, i], [2, 2], interleaved) for i in range(2)] + [qkv[:, :, 2].clone()]
            grouped = torch.cat([*qkv[:, :, 0].split(3, 2), qkv[:, :, 1], qkv[:, :, 2]], 2)
            given = (self.cos, self.sin, None, None, interleaved, 2)
            self.assertIs(rotary.apply_rotary_emb_qkv_(qkv, *given), qkv)
            self.assertLess((qkv - torch.stack(want, 2)).abs().max(), 1e-6)
            self.assertTrue(torch.equal(rotary.apply_rotary_emb_qkv_(grouped, *given, num_heads_q=3), qkv.flatten(2, 3)))
            kv = torch.randn(2, 5, 2, 3, 16)
            want = torch.stack([self.meant(kv[:, :, 0], [1, 4], interleaved), kv[:, :, 1]], 2)
            self.assertIs(rotary.apply_rotary_emb_kv_(kv, self.cos, self.sin, interleaved, torch.tensor([1, 4])), kv)
            self.assertLess((kv - want).abs().max(), 1e-6)
        other = torch.randn(1, 5, 3, 3, 16)
        k = self.meant(other[:, :, 1], [20], False)
        rotary.apply_rotary_emb_qkv_(other, self.cos, self.sin, self.cos[20:], self.sin[20:])
        self.assertLess((other[:, :, 1] - k).abs().max(), 1e-6)

    def test_beyond_the_table(self):
        made = rotary.apply_rotary_emb(self.x, self.cos, self.sin, seqlen_offsets=torch.tensor([38, 0]))
        self.assertTrue(torch.equal(made[0, 2:], self.x[0, 2:]) and not torch.equal(made[0, :2], self.x[0, :2]))
        self.assertRaisesRegex(AssertionError, "cos has 40 positions: tokens reach 41", rotary.apply_rotary_emb, self.x, self.cos, self.sin, seqlen_offsets=36)
        self.assertRaisesRegex(AssertionError, "cos rotates 12 dims", rotary.apply_rotary_emb, self.x[..., :8], self.cos, self.sin)
        self.assertRaisesRegex(AssertionError, "they must be equal", rotary.apply_rotary_emb, self.x, self.cos, self.sin[:9])
        self.assertRaisesRegex(AssertionError, r"must be \(2,\)", rotary.apply_rotary_emb, self.x, self.cos, self.sin, seqlen_offsets=torch.tensor([1]))


if __name__ == "__main__":
    unittest.main()
