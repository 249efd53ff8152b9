# SPDX-License-Identifier: Apache-2.0
"""A patched call in any context, by hypothesis: gives what PyTorch's own gives there, with its type, dtype, gradients and
tangents, or the same kind of exception."""
import contextlib
import unittest

import numpy as np
import tileproof
import tileproof.torch
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

f32, f16, bf16, f64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
LIMIT = {f32: 1e-4, f16: 5e-2, bf16: 0.4, f64: 1e-9}


class Renamed(torch.Tensor):
    pass


class FunctionMode(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        FunctionMode.seen += getattr(func, "__name__", "") == "scaled_dot_product_attention"
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        DispatchMode.seen += "attention" in str(func)
        return func(*args, **(kwargs or {}))


CONTEXTS = {
    "autocast bf16": lambda: torch.autocast("cpu", bf16), "autocast f16": lambda: torch.autocast("cpu", f16), "math": lambda: sdpa_kernel(SDPBackend.MATH),
    "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION), "function mode": FunctionMode, "dispatch mode": DispatchMode, "device": lambda: torch.device("cpu"),
    "no_grad": torch.no_grad, "inference": torch.inference_mode, "tangents": forward_ad.dual_level,
}  # fmt: skip


def outcome(data, names, dtypes, grads, subclass, foreign, tangents, causal, transform):
    """What a call gives: an exception's type, or (type, dtype, shape, seen by modes, tensors to compare)."""
    FunctionMode.seen = DispatchMode.seen = 0
    given = [None if x is None else x if x.dtype == torch.bool else x.to(dtype).requires_grad_(grad) for x, dtype, grad in zip(data, dtypes, grads)]
    leaves = [x for x in given if x is not None and x.requires_grad]
    try:
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(CONTEXTS[name]())
            if subclass is not None and given[subclass] is not None:
                given[subclass] = given[subclass].as_subclass(Renamed)
            if foreign is not None:
                given[foreign] = np.zeros((1, 2, 5, 7), np.float32)
            if "tangents" in names:
                given = [forward_ad.make_dual(x, torch.ones_like(x)) if x is not None and at in tangents and at != foreign and x.dtype != torch.bool else x for at, x in enumerate(given)]
            q, k, v, mask = given
            call = lambda q: F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal and mask is None)
            out = torch.vmap(call)(q[None])[0] if transform == "vmap" else call(q)
            made = [out, forward_ad.unpack_dual(out).tangent if "tangents" in names else None]
        if out.requires_grad:
            made += torch.autograd.grad(out.float().square().sum(), leaves)
        made = [None if x is None else x.detach().as_subclass(torch.Tensor).double().clone() for x in made]
        return type(out), out.dtype, out.shape, out.requires_grad, FunctionMode.seen, DispatchMode.seen, made
    except Exception as raised:
        return type(raised)


class Contexts(unittest.TestCase):
    @settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def test_a_patched_call_is_pytorchs(self, data):
        draw = data.draw
        torch.manual_seed(draw(st.integers(0, 9)))
        tensors = [torch.randn(1, 2, n, 8) for n in (5, 7, 7)] + [draw(st.sampled_from([None, torch.randn(5, 7), torch.rand(5, 7) < 0.8]))]
        if tensors[3] is not None and tensors[3].dtype == torch.bool:
            tensors[3][:, 0] = True  # a row that sees nothing is NaN in some backends of PyTorch's, 0 in others
        main = draw(st.sampled_from([f32, f32, f16, bf16, bf16, f64]))
        dtypes = [main] * 4 if draw(st.integers(0, 3)) else [draw(st.sampled_from(sorted(LIMIT, key=str))) for _ in range(4)]
        names = draw(st.lists(st.sampled_from(sorted(CONTEXTS)), max_size=3, unique=True))
        how = dict(
            grads=[draw(st.integers(0, 3)) == 0 for _ in range(4)], subclass=draw(st.sampled_from([None, None, None, 0, 1, 2, 3])), tangents=draw(st.sets(st.integers(0, 3))),
            foreign=draw(st.sampled_from([None] * 8 + [0, 1, 2, 3])), causal=draw(st.booleans()), transform=draw(st.sampled_from([None, None, None, "vmap"])),
        )  # fmt: skip
        want = outcome(tensors, names, dtypes, **how)
        with tileproof.torch.patch() as log:
            got = outcome(tensors, names, dtypes, **how)
        about = (names, dtypes, how, tensors[3] is None, log, log.passed, want, got)
        if isinstance(want, type) or isinstance(got, type):
            self.assertEqual(got, want, about)
            return
        self.assertEqual(got[:-1], want[:-1], about)
        for mine, theirs in zip(got[-1], want[-1]):
            self.assertEqual(mine is None, theirs is None, about)
            if mine is not None:
                self.assertLess((mine - theirs).abs().max(), max(LIMIT[want[1]], *(LIMIT[x] for x in dtypes)), about)


if __name__ == "__main__":
    unittest.main()
