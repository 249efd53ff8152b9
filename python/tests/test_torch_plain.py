# SPDX-License-Identifier: Apache-2.0
"""Plain calls of scaled_dot_product_attention go through C alone: the same bits as by the longer way, and every call that somebody else has a say in
takes the longer way."""
import contextlib
import itertools
import unittest
from unittest import mock

import letting_go
import tileproof
import tileproof.torch
import torch
import torch.nn.functional as F
from tileproof import _core, _sdpa, _torch_patch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

OPTIONS = dict(attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, top_left=True, threads=None, of_patch=True, receipt=False)


def plain(q, k, v, **options):
    """None: it is not."""
    return _core.sdpa(q, k, v, *{**OPTIONS, **options}.values())


class Bits(unittest.TestCase):
    def test_both_ways_give_the_same(self):
        torch.manual_seed(0)
        sizes = [(1, 1, 1, 1, 1, 8, 8), (1, 4, 4, 1, 16, 64, 64), (2, 6, 2, 5, 9, 16, 24), (1, 12, 12, 1, 300, 64, 64), (1, 8, 8, 130, 130, 64, 64)]
        dtypes = (torch.float32, torch.float16, torch.bfloat16)
        for (b, h, g, rows, keys, dim, width), dtype in itertools.product(sizes, dtypes):
            q, k, v = torch.randn(b, h, rows, dim).to(dtype), torch.randn(b, g, keys, dim).to(dtype), torch.randn(b, g, keys, width).to(dtype)
            turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
            for options in ({}, {"is_causal": True}, {"scale": 0.3}, {"threads": 1}, {"is_causal": True, "scale": 2.0, "threads": 2}):
                asked = {name: x for name, x in options.items() if name != "threads"}
                want, receipt = _sdpa._attend(
                    q, k, v, None, 0.0, asked.get("is_causal", False), asked.get("scale"), h != g, True, options.get("threads")
                )
                for given in ((q, k, v), turned):
                    got, raw = plain(*given, **options, enable_gqa=h != g, receipt=True)
                    self.assertTrue(torch.equal(got, want), (q.shape, k.shape, dtype, options))
                    self.assertEqual((got.dtype, got.shape, got.is_contiguous()), (dtype, want.shape, True))
                    said = tileproof.Receipt(raw)
                    self.assertEqual((said.problem, said.kernel, said.tasks), (receipt.problem, receipt.kernel, receipt.tasks))

    def test_they_go_through_c_alone(self):
        x, low = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
        never = mock.Mock(side_effect=AssertionError)
        with mock.patch.object(_sdpa, "_attend", never), mock.patch.object(_torch_patch, "_attend", never):
            for given in (x, low, x.transpose(1, 2), x[:, :, ::2], x.expand(3, -1, -1, -1), x.clone().requires_grad_().detach()):
                tileproof.scaled_dot_product_attention(given, given, given, is_causal=True)
                for limit in (0, 10):
                    with tileproof.torch.patch(limit=limit) as log:
                        F.scaled_dot_product_attention(given, given, given)
                    self.assertEqual((len(log.receipts), log.forgotten, log.passed), (1, 0, []) if limit else (0, 1, []))
                    self.assertEqual([r.scores_written for r in log.receipts], [0] * (limit > 0))


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Kind(torch.Tensor):
    pass


@contextlib.contextmanager
def tangents():
    with forward_ad.dual_level():
        yield


class Declined(unittest.TestCase):
    def setUp(self):
        self.x = torch.randn(1, 2, 5, 8)
        self.assertIsNotNone(plain(self.x, self.x, self.x))

    def test_tensors_that_are_not_plain(self):
        x = self.x
        needs = x.clone().requires_grad_()
        others = {
            "subclass": x.as_subclass(Kind), "parameter": torch.nn.Parameter(x), "gradient": needs, "float64": x.double(), "three dims": x[0],
            "strided": x.transpose(2, 3).contiguous().transpose(2, 3), "empty": x[:, :, :0], "negated": torch._neg_view(x), "meta": x.to("meta"),
            "sparse": x.to_sparse(), "no tensor": x.numpy(), "wide": torch.randn(1, 2, 5, 577), "nested": torch.nested.nested_tensor([x[0], x[0]]),
        }  # fmt: skip
        self.assertTrue(others["negated"].is_neg() and others["negated"].is_contiguous())
        for name, other in others.items():
            if name not in ("gradient", "wide"):  # k and v have the same head dim, and gradients flow to each alone
                self.assertIsNone(plain(other, other, other), name)
            for at in range(3):
                self.assertIsNone(plain(*(other if i == at else x for i in range(3))), (name, at))
        self.assertIsNone(plain(x, others["wide"], others["wide"]))
        with torch.no_grad():
            self.assertIsNotNone(plain(needs, x, x))
        self.assertIsNone(plain(torch.randn(1, 4, 5, 8), x, x))  # heads differ
        self.assertIsNotNone(plain(torch.randn(1, 4, 5, 8), x, x, enable_gqa=True))
        self.assertIsNone(plain(x.expand(2, -1, -1, -1), x, x))
        self.assertIsNone(plain(x, x, x[:, :, :4]))
        self.assertIsNone(plain(x, x[:, :1], x[:, :1]))
        self.assertIsNone(plain(x, x.half(), x.half()))

    def test_arguments_that_are_not_plain(self):
        x = self.x
        for options in ({"attn_mask": torch.zeros(5, 5)}, {"dropout_p": 0.5}, {"dropout_p": 0}, {"is_causal": 1}, {"scale": 1}, {"enable_gqa": None}):
            self.assertIsNone(plain(x, x, x, **options), options)
        with self.assertRaisesRegex(ValueError, "q_heads is 3 and kv_heads 2"):
            plain(torch.randn(1, 3, 5, 8), x, x, enable_gqa=True)

    def test_others_have_a_say(self):
        x = self.x
        of_all = (tangents(), Dispatch())
        of_patch = (Mode(), torch.autocast("cpu"), *(sdpa_kernel(x) for x in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)),
                    sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]), sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]),
                    sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]))  # fmt: skip
        for context in of_all + of_patch:
            with context:
                self.assertIsNone(plain(x, x, x), context)
                self.assertEqual(plain(x, x, x, of_patch=False) is None, context in of_all, context)
            self.assertIsNotNone(plain(x, x, x))

    def test_inside_transforms(self):
        x, seen = self.x, []
        torch.vmap(lambda y: seen.append(plain(y, y, y)) or y)(torch.stack([x, x]))
        torch.func.grad(lambda y: (seen.append(plain(y, y, y)) or y).sum())(x)
        self.assertEqual(seen, [None, None])

    def test_other_devices(self):
        """PyTorch's own path where its name is called, and an error that says so elsewhere."""
        x, meta = self.x, self.x.to("meta")
        with FakeTensorMode():
            cuda = torch.empty(1, 2, 5, 8, device="cuda")
        for call in (tileproof.attention, tileproof.scaled_dot_product_attention, tileproof.plan((1, 2, 5, 8), (1, 2, 5, 8)).run):
            for other, text in ((cuda, "is on a device of DLPack type 2: it must be on the CPU"), (meta, "cannot be read: it must be a dense tensor on the CPU")):
                for given in ((other, other, other), (x, other, other), (x, x, other)):
                    with self.assertRaisesRegex(ValueError, text):
                        call(*given)
        with tileproof.torch.patch() as log:
            self.assertEqual([F.scaled_dot_product_attention(y, y, y).device.type for y in (meta, cuda)], ["meta", "cuda"])
            with self.assertRaisesRegex(RuntimeError, "same device"):
                F.scaled_dot_product_attention(x, meta, meta)
        self.assertEqual((len(log.passed), log.receipts), (3, []))

    def test_tensors_whose_owner_lets_go_of_them_during_a_call(self):
        tensors = [torch.randn(1, 4, 1024, 64) for _ in range(3)]
        want = tileproof.scaled_dot_product_attention(*tensors)
        for _ in range(5):
            got = letting_go.during(tileproof.scaled_dot_product_attention, tensors, torch.clone, lambda x: torch.full_like(x, torch.nan))
            self.assertTrue(torch.equal(got, want))


if __name__ == "__main__":
    unittest.main()
