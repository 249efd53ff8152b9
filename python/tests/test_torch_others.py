# SPDX-License-Identifier: Apache-2.0
"""Who else has a say in a patched call: derivatives, tensor types, modes, chosen backends, autocast."""
import unittest

import numpy as np
import tileproof
import tileproof.torch
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

original = F.scaled_dot_product_attention
torch.manual_seed(23)


class Case(unittest.TestCase):
    def left_to_pytorch(self, text, call):
        """call gives with the patch what it gives without, and the log has the reason."""
        want = call()
        with tileproof.torch.patch() as log:
            got = call()
        self.assertEqual((len(log.receipts), len(log.passed)), (0, 1), log.passed)
        self.assertIn(text, log.passed[0])
        self.assertTrue(torch.equal(got, want))
        return got


class Derivatives(Case):
    def test_a_tangent_is_not_lost(self):
        x, t = torch.randn(2, 1, 2, 5, 8)
        for at in range(4):
            def call():
                with forward_ad.dual_level():
                    given = [x, x, x, torch.zeros(5, 5)]
                    given[at] = forward_ad.make_dual(given[at], t if at < 3 else torch.ones(5, 5).tril())
                    with sdpa_kernel(SDPBackend.MATH):
                        return forward_ad.unpack_dual(F.scaled_dot_product_attention(*given)).tangent

            self.assertGreater(self.left_to_pytorch("restricted", call).abs().max(), 0)
        with tileproof.torch.patch() as log, forward_ad.dual_level():
            with self.assertRaisesRegex(NotImplementedError, "forward AD"):  # PyTorch's own, without a backend that can
                F.scaled_dot_product_attention(forward_ad.make_dual(x, t), x, x)
            F.scaled_dot_product_attention(x, x, x)  # no tangent: ours
        self.assertEqual(log.passed, ["query has a tangent, and there is no forward-mode derivative here"])
        self.assertEqual(len(log.receipts), 1)

    def test_our_own_functions_refuse_a_tangent(self):
        x, t = torch.randn(2, 1, 2, 5, 8)
        bias = torch.zeros(1, 2, 5, 5)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, t)
            for call in (
                lambda: tileproof.attention(dual, x, x), lambda: tileproof.attention(x, x, dual.requires_grad_()), lambda: tileproof.attention(x.numpy(), dual, x.numpy()),
                lambda: tileproof.attention(x, x, x, layout="bhsd", bias=forward_ad.make_dual(bias, bias + 1)), lambda: tileproof.scaled_dot_product_attention(x, dual, x),
            ):  # fmt: skip
                with self.assertRaisesRegex(TypeError, "has a tangent.*SDPBackend.MATH"):
                    call()
            tileproof.attention(x, x, x)
        with self.assertRaisesRegex(TypeError, "has a tangent"):
            torch.func.jvp(lambda y: tileproof.attention(y, x, x), (x,), (t,))

    def test_transforms_of_functions(self):
        x = torch.randn(1, 2, 5, 8)
        attend = lambda y: F.scaled_dot_product_attention(y, x, x)
        self.left_to_pytorch("torch.func", lambda: torch.vmap(attend)(x[None]))
        self.left_to_pytorch("torch.func", lambda: torch.func.grad(lambda y: attend(y).square().sum())(x))
        def jvp():
            with sdpa_kernel(SDPBackend.MATH):
                return torch.func.jvp(attend, (x,), (x,))[1]

        self.left_to_pytorch("restricted", jvp)


class Renamed(torch.Tensor):
    pass


class Logging(torch.Tensor):
    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(torch.Tensor):
    """Has an inner tensor, and no data of its own."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = lambda x: x.inner if isinstance(x, cls) else x
        return func(*map(plain, args), **{name: plain(x) for name, x in (kwargs or {}).items()})


class NoTensor:
    """No Tensor, and yet PyTorch's functions ask it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func, [isinstance(x, cls) for x in args].index(True)


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * (2 if func is original else 1)


class DispatchMode(TorchDispatchMode):
    seen = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += (str(func),)
        return func(*args, **(kwargs or {}))


class Types(Case):
    def test_subclasses_have_their_way(self):
        x = torch.randn(1, 2, 5, 8)
        for kind in (Renamed, Logging):
            for at in range(4):
                given = [x, x, x, torch.zeros(5, 5)]
                given[at] = given[at].as_subclass(kind)
                got = self.left_to_pytorch(kind.__name__, lambda: F.scaled_dot_product_attention(*given))
                self.assertIs(type(got), kind)
        self.assertIn(original, Logging.seen)
        self.left_to_pytorch("Wrapper", lambda: F.scaled_dot_product_attention(Wrapper(x), x, x))

    def test_objects_that_are_no_tensors_have_their_way(self):
        x = torch.randn(1, 2, 5, 8)
        for at in range(4):
            given = [x, x, x, torch.zeros(5, 5)]
            given[at] = NoTensor()
            want = (original, at)
            self.assertEqual(F.scaled_dot_product_attention(*given), want)
            with tileproof.torch.patch() as log:
                self.assertEqual(F.scaled_dot_product_attention(*given), want)
            self.assertEqual((log.receipts, len(log.passed)), ([], 1))
            self.assertRegex(log.passed[0], "is a NoTensor, no Tensor")

    def test_what_pytorch_refuses_it_refuses_in_its_own_words(self):
        x = torch.randn(1, 2, 5, 8)
        for wrong in (np.zeros((1, 2, 5, 8), np.float32), [1.0], "query", 3):
            for at in range(4):
                given = [x, x, x, torch.zeros(5, 5)]
                given[at] = wrong
                with self.assertRaises(TypeError) as plain:
                    F.scaled_dot_product_attention(*given)
                with self.assertRaises(TypeError) as patched, tileproof.torch.patch() as log:
                    F.scaled_dot_product_attention(*given)
                self.assertEqual(str(patched.exception), str(plain.exception))
                self.assertRegex(log.passed[0], f"is a {type(wrong).__name__}, no Tensor")

    def test_parameters_are_ours(self):
        x = torch.nn.Parameter(torch.randn(1, 2, 5, 8))
        with tileproof.torch.patch() as log:
            F.scaled_dot_product_attention(x, x, x).sum().backward()
        self.assertEqual((len(log.receipts), log.passed), (2, []))


class Modes(Case):
    def under(self, mode):
        def call():
            x = torch.ones(1, 2, 5, 8)
            with mode:
                return F.scaled_dot_product_attention(x, x, x)

        return call

    def test_modes_see_pytorchs_own_function_and_ops(self):
        got = self.left_to_pytorch("FunctionMode", self.under(FunctionMode()))
        self.assertTrue((got == 2).all())
        mode = DispatchMode()
        self.left_to_pytorch("TorchDispatchMode", self.under(mode))
        self.assertEqual(len(mode.seen), 2)
        counter = FlopCounterMode(display=False)
        self.left_to_pytorch("TorchDispatchMode", self.under(counter))
        self.assertEqual(counter.get_total_flops(), 2 * 2 * 2 * 5 * 5 * 8)

    def test_a_default_device_changes_nothing(self):
        for mode in (torch.device("cpu"), torch.device("meta")):
            with tileproof.torch.patch() as log:
                self.under(mode)()
            self.assertEqual((len(log.receipts), log.passed), (1, []))

    def test_our_own_function_is_one_op_to_a_dispatch_mode(self):
        x = torch.randn(1, 5, 2, 8)
        with DispatchMode() as mode:
            got = tileproof.attention(x, x, x)
        self.assertEqual(mode.seen, ("tileproof.attention.default",))
        self.assertTrue(torch.equal(got, tileproof.attention(x, x, x)))
        with FakeTensorMode():
            fake = torch.empty(1, 5, 2, 8)
            self.assertEqual(tileproof.attention(fake, fake, fake).shape, fake.shape)
            self.assertEqual(tileproof.scaled_dot_product_attention(fake, fake, fake).shape, fake.shape)


class Backends(Case):
    def test_a_chosen_backend_is_pytorchs(self):
        x = torch.randn(1, 2, 5, 8)
        for backends in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            def call():
                with sdpa_kernel(backends):
                    return F.scaled_dot_product_attention(x, x, x)

            self.left_to_pytorch("sdpa_kernel", call)
        with tileproof.torch.patch() as log:
            F.scaled_dot_product_attention(x, x, x)
        self.assertEqual((len(log.receipts), log.passed), (1, []))

    def test_in_a_compiled_function_too(self):
        torch._dynamo.reset()
        x = torch.randn(1, 2, 5, 8)

        def f(x):
            with sdpa_kernel(SDPBackend.MATH):
                return F.scaled_dot_product_attention(x, x, x)

        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph

        with tileproof.torch.patch() as log:
            got = torch.compile(f, backend=backend)(x)
        self.assertEqual(log.receipts, [])
        self.assertLess((got - f(x)).abs().max(), 1e-6)
        self.assertFalse(any("tileproof" in str(node.target) for graph in graphs for node in graph.graph.nodes))


class Autocast(unittest.TestCase):
    def test_tensors_are_cast_as_pytorch_casts_them(self):
        x, mask = torch.randn(1, 2, 5, 8), torch.randn(5, 5)
        f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
        for to in (bf16, f16):
            for kinds in ((to, to, to, to), (to, to, to, torch.bool), (f32, f32, f32, f32), (f16, bf16, f32, f32), (to, f32, to, torch.bool)):
                given = [y.to(kind) for y, kind in zip((x, x, x, mask), kinds)]
                with torch.autocast("cpu", to):
                    want = F.scaled_dot_product_attention(*given)
                    with tileproof.torch.patch() as log:
                        got = F.scaled_dot_product_attention(*given)
                self.assertEqual((len(log.receipts), log.passed), (1, []))
                self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
                self.assertLess((got - want).abs().max(), 4e-2)

    def test_gradients_flow_through_the_cast(self):
        x = torch.randn(1, 2, 5, 8)
        grads = []
        for patched in (False, True):
            y = x.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                log = tileproof.torch.patch() if patched else None
                F.scaled_dot_product_attention(y, y, y).float().square().sum().backward()
                tileproof.torch.unpatch()
            grads.append(y.grad)
        self.assertEqual((len(log.receipts), log.passed, grads[1].dtype), (2, [], torch.float32))
        self.assertLess((grads[0] - grads[1]).abs().max(), 0.1)

    def test_float64_is_pytorchs(self):
        x = torch.randn(1, 2, 5, 8).double()
        with tileproof.torch.patch() as log, torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(F.scaled_dot_product_attention(x, x, x).dtype, torch.float64)
        self.assertEqual(len(log.passed), 1)

    def test_compiled(self):
        torch._dynamo.reset()
        x = torch.randn(1, 2, 5, 8)
        with tileproof.torch.patch() as log, torch.autocast("cpu", torch.bfloat16):
            got = torch.compile(lambda x: F.scaled_dot_product_attention(x, x, x), fullgraph=True, backend="aot_eager")(x)
        self.assertEqual((got.dtype, len(log.receipts)), (torch.bfloat16, 1))


if __name__ == "__main__":
    unittest.main()
