# SPDX-License-Identifier: Apache-2.0
"""The table of rules against PyTorch itself: a rule is broken if and only if math serves."""
import random
import unittest
import warnings

import tileproof
import torch
import torch.nn.functional as F
from tileproof.watch import hooks, ops, problem, rules
from torch.nn.attention import SDPBackend, sdpa_kernel
from test_torch_watch import setUpModule, tearDownModule  # noqa: F401

SEED, DRAWS = 20261117, 400


def draw(pick):
    """Arguments, most of them plain, now and then one that a rule is about."""
    odd = lambda chance, strange, plain: strange() if pick.random() < chance else plain
    dtype = odd(0.3, lambda: pick.choice([torch.float64, torch.float16, torch.bfloat16]), torch.float32)
    batch, heads, rows, keys, dim = pick.randint(1, 3), pick.choice([1, 2, 4]), pick.randint(1, 9), pick.randint(1, 9), pick.choice([1, 3, 8, 20, 300])
    kv_heads = pick.choice([h for h in (1, 2, 4) if heads % h == 0])
    dim_v = odd(0.1, lambda: dim + 4, dim)
    lead = odd(0.15, lambda: pick.choice([(), (1, batch)]), (batch,))
    shape = lambda h, n, d: (*lead, h, n, d) if lead else odd(0.3, lambda: (n, d), (h, n, d))
    if not lead or kv_heads not in (1, heads):
        kv_heads = heads
    q, k, v = (torch.randn(shape(h, n, d)).to(dtype) for h, n, d in ((heads, rows, dim), (kv_heads, keys, dim), (kv_heads, keys, dim_v)))
    if len({x.dim() for x in (q, k, v)}) > 1:
        q, k, v = (x if x.dim() == 2 else x[0] for x in (q, k, v))
    if q.dim() == 4 and pick.random() < 0.1:
        q = q[:1]
    for at in range(3):
        if pick.random() < 0.07:
            x = (q, k, v)[at]
            strided = torch.empty((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)[..., ::2].copy_(x)
            q, k, v = (strided if i == at else y for i, y in enumerate((q, k, v)))
    mask = None
    if pick.random() < 0.4:
        sizes = {2: (rows, keys), 3: (heads, rows, keys), 4: (1, 1, rows, keys), 5: (1, 1, 1, rows, keys)}
        sizes = {n: x for n, x in sizes.items() if n <= max(q.dim(), 2)}
        mask = torch.randn(sizes[odd(0.3, lambda: pick.choice(list(sizes)), 2)])
        mask = mask > 0 if pick.random() < 0.4 else mask.to(dtype)
        if mask.dtype != torch.bool and pick.random() < 0.15:
            mask.requires_grad_()
    return (q, k, v, mask, odd(0.08, lambda: 0.25, 0.0), mask is None and pick.random() < 0.3), {"enable_gqa": pick.random() < 0.2}


class Last:
    """A listener that keeps the last call."""

    call = None

    def begins(self, call):
        pass

    def ends(self, call):
        self.call, self.codes = call, {x for x, _ in rules.broken(call.kernel, call.read)} if not call.fused else set()


class Rules(unittest.TestCase):
    def setUp(self):
        self.last = Last()
        hooks.listen(self.last)
        self.addCleanup(hooks.leave, self.last)

    def check(self, args, options):
        """(kernel, codes of broken rules), after both were compared; None: PyTorch refused the call."""
        self.last.call = None
        try:
            F.scaled_dot_product_attention(*args, **options)
        except (RuntimeError, IndexError):
            return None
        kernel, codes = self.last.call.kernel, self.last.codes
        told = f"{kernel}: {[(tuple(x.shape), x.stride(), x.dtype) for x in args[:4] if x is not None]} {args[4:]} {options} {codes}"
        self.assertIn(kernel, ("math", "flash_for_cpu"), told)
        self.assertNotIn("not_known", codes, told)
        self.assertEqual(kernel == "math", any(rule.broken(ops._math(*args)) for rule in rules.CPU), told)
        return kernel, codes

    def test_random_calls(self):
        pick = random.Random(SEED)
        torch.manual_seed(SEED)
        seen = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(DRAWS):
                found = self.check(*draw(pick))
                for code in found[1] or {"fused"} if found else {"refused"}:
                    seen[code] = seen.get(code, 0) + 1
        want = {"fused", "dropout", "dims", "head_dim_v", "batch", "mask_grad", "mask_dims", "stride"}
        self.assertLessEqual(want, set(seen), seen)  # every rule was drawn
        self.assertGreater(seen["fused"], DRAWS / 4)

    def test_switches(self):
        x = torch.randn(1, 2, 4, 8)
        for backends, kernel in ((SDPBackend.MATH, "math"), (SDPBackend.FLASH_ATTENTION, "flash_for_cpu")):
            with sdpa_kernel(backends):
                self.assertEqual(self.check((x, x, x, None, 0.0, False), {})[0], kernel)

    def test_nested(self):
        x = torch.nested.nested_tensor([torch.randn(2, 3, 8), torch.randn(2, 5, 8)], layout=torch.strided)
        with tileproof.watch() as seen:
            F.scaled_dot_product_attention(x, x, x)
        (row,) = seen.to_dict()["rows"]
        self.assertEqual((row["kernel"], row["problem"]), ("math", "prefill b2 h2/2 q5 k5 d8 f32 nested"))
        self.assertIn("nested", [x["code"] for x in row["reasons"]])

    def test_math_by_name_is_said_so(self):
        x = torch.randn(1, 2, 4, 8)
        with tileproof.watch() as seen:
            torch._scaled_dot_product_attention_math(x, x, x)
        self.assertEqual(seen.to_dict()["rows"][0]["reasons"][0]["code"], "not_known")


class Problems(unittest.TestCase):
    def test_texts_and_classes_are_the_librarys(self):
        pick = random.Random(SEED)
        for _ in range(150):
            group, kv_heads = pick.choice([1, 2, 4, 40]), pick.choice([1, 2])
            rows, dtype = pick.choice([1, 2, 7, 16, 17, 24, 25, 32, 33, 100]), pick.choice(["f32", "f16", "bf16"])
            keys = rows + pick.choice([0, 1, 50])
            sizes = (pick.randint(1, 3), group * kv_heads, rows, 64), (1, kv_heads, keys, 64)
            causal = pick.random() < 0.5
            asked = dict(causal=causal, causal_align=pick.choice(["top_left", "bottom_right"]), scale=pick.choice([None, 0.125, 0.3]))
            made = problem.describe(sizes[0], (sizes[0][0], *sizes[1][1:]), pick.choice([64, 32]), dtype, bits=pick.random() < 0.3, **asked)
            text = made.text(sizes[0][0], rows, keys)
            self.assertEqual(problem.class_of(text), (made.problem_class, made.phase, made.bucket, dtype))
            self.assertIn(f" b{sizes[0][0]} ", text)
        self.assertNotIn("scale", problem.describe((1, 1, 4, 64), (1, 1, 4, 64), 64, "f32", scale=0.125).problem_class)
        self.assertIn("scale=0.3", problem.describe((1, 1, 4, 64), (1, 1, 4, 64), 64, "f32", scale=0.3).problem_class)

    def test_what_the_library_has_no_word_for(self):
        made = problem.describe((2, 4, 9, 64), (2, 4, 9, 64), 64, "f64", bias="f64", causal=True)
        self.assertRegex(made.problem_class, "^prefill (few|many)-rows h4/4 d64 f64 causal bias=f64$")
        self.assertEqual(made.text(2, 9, 9), "prefill b2 h4/4 q9 k9 d64 f64 causal bias=f64")
        self.assertEqual(problem.describe((1, 2, 3, 0), (1, 2, 3, 0), 0, "f32").text(1, 3, 3), "prefill b1 h2/2 q3 k3 d0 f32")
        self.assertEqual(problem.describe((1, 2, 3, 8), (1, 2, 3, 8), 8, "f32", backward=True).text(1, 3, 3), "backward b1 h2/2 q3 k3 d8 f32")


if __name__ == "__main__":
    unittest.main()
