# SPDX-License-Identifier: Apache-2.0
"""The watcher sees what the profiler sees, and changes nothing of it."""
import threading
import unittest
import warnings

import small_models
import tileproof
import torch
import torch.nn.functional as F
from tileproof.watch import hooks
from tileproof.watch.profile import OP_KERNELS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as imported_before
from torch.profiler import ProfilerActivity, profile

INSIDE = ("aten::_scaled_dot_product_attention_math", "aten::_native_multi_head_attention")


def setUpModule():
    """One thread: quicker for small problems, on a busy host by far."""
    global threads
    threads = torch.get_num_threads()
    torch.set_num_threads(1)


def tearDownModule():
    torch.set_num_threads(threads)


def inside(event):
    """Is this softmax a part of another op's attention?"""
    while event is not None:
        if event.name in INSIDE:
            return True
        event = event.cpu_parent
    return False


def profiled(call):
    """Kernels by the profiler, and what the call gave."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        out = call()
    counts = {}
    for event in found.events():
        name = OP_KERNELS.get(event.name)
        if event.name == "aten::_softmax" and not inside(event):
            name = "eager"
        if name:
            counts[name] = counts.get(name, 0) + 1
    return counts, out


def layer(kind, **options):
    torch.manual_seed(0)
    return kind(32, 4, batch_first=True, **options)


class Case(unittest.TestCase):
    def same(self, call, **expected):
        """Without a watcher, by the profiler; under a watcher, by the profiler and by it; all equal, and the results too."""
        torch.manual_seed(1)
        plain, want = profiled(call)
        with tileproof.watch() as seen:
            torch.manual_seed(1)
            watched, got = profiled(call)
        self.assertEqual(watched, plain)
        kernels = {("eager" if name == "flex_eager" else name): n for name, n in seen.kernels().items()}
        self.assertEqual(kernels, plain)
        self.assertEqual(plain, {name.replace("_backward", " backward"): n for name, n in expected.items()})
        if want is not None:
            self.assertTrue(torch.equal(want, got))
        self.assertEqual(hooks.failures, {})
        return seen


class Kernels(Case):
    def setUp(self):
        torch.manual_seed(2)
        self.x = torch.randn(2, 4, 12, 16)

    def test_functions_under_any_name(self):
        x = self.x
        for function in (F.scaled_dot_product_attention, imported_before, torch._C._nn.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention):
            self.same(lambda: function(x, x, x), flash_for_cpu=1)
            self.same(lambda: function(x, x, x[..., :8]), math=1)

    def test_a_forced_backend_changes_what_is_seen(self):
        x = self.x

        def forced():
            with sdpa_kernel(SDPBackend.MATH):
                return F.scaled_dot_product_attention(x, x, x)

        self.same(lambda: F.scaled_dot_product_attention(x, x, x), flash_for_cpu=1)
        seen = self.same(forced, math=1)
        self.assertEqual([x["reasons"][0]["code"] for x in seen.to_dict()["rows"]], ["switch"])

    def test_gradients(self):
        def step(v):
            x = self.x.clone().requires_grad_()
            F.scaled_dot_product_attention(x, x, x[..., :v], is_causal=True).square().sum().backward()
            return x.grad

        self.same(lambda: step(16), flash_for_cpu=1, flash_for_cpu_backward=1)
        self.same(lambda: step(8), math=1)

    def test_written_out(self):
        x = self.x

        def eager(scores, value):
            return torch.softmax(scores, -1) @ value

        self.same(lambda: eager(x @ x.mT, x), eager=1)
        self.same(lambda: eager(torch.baddbmm(torch.zeros(1), x[0], x[1].mT), x[0]), eager=1)
        self.same(lambda: torch.einsum("bhqk,bhkd->bhqd", torch.softmax(torch.einsum("bhqd,bhkd->bhqk", x, x), -1), x), eager=1)

    def test_products_and_softmaxes_alone_are_none(self):
        x = self.x
        with tileproof.watch() as seen:
            x @ x.mT @ x
            torch.softmax(x @ x.mT, -2) @ x
            torch.softmax(torch.randn(2, 4, 12, 9), -1) @ torch.randn(2, 4, 9, 3)
            torch.softmax(x @ x.mT, -1) + 1
            x[0] @ x[0].mT
            torch.softmax((x @ x.mT).flatten(2), -1)
            (x @ x.mT).logsumexp(-1)
        self.assertEqual(seen.calls, 0, seen)

    def test_products_inside_an_op_are_no_first_step(self):
        """math multiplies inside of its op: a softmax of its result and a product after it are no second attention."""
        x = self.x
        with tileproof.watch() as seen, sdpa_kernel(SDPBackend.MATH):
            torch.softmax(F.scaled_dot_product_attention(x, x, x), -1) @ torch.randn(2, 4, 16, 3)
        self.assertEqual(seen.kernels(), {"math": 1})

    def test_a_row_shows_its_largest_problem(self):
        with tileproof.watch() as seen:
            for n in (200, 400, 300):
                x = torch.randn(1, 2, n, 16)
                F.scaled_dot_product_attention(x, x, x)
        self.assertEqual([x["problem"] for x in seen.to_dict()["rows"]], ["prefill b1 h2/2 q400 k400 d16 f32"])

    def test_fast_paths(self):
        x = torch.randn(2, 5, 32)
        attention = layer(torch.nn.MultiheadAttention).eval()
        encoder = layer(torch.nn.TransformerEncoderLayer, dim_feedforward=64).eval()
        stack = torch.nn.TransformerEncoder(encoder, 3).eval()
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        with torch.no_grad():
            self.same(lambda: attention(x, x, x, need_weights=False)[0], native_mha=1)
            self.same(lambda: attention(x, x, x)[0], native_mha=1)
            self.same(lambda: encoder(x), native_mha=1)
            seen = self.same(lambda: stack(x), native_mha=3)
            self.same(lambda: stack(x, src_key_padding_mask=padding), native_mha=3)  # nested inside
        (row,) = seen.to_dict()["rows"]
        self.assertEqual((row["model"], row["path"], row["layers"]), ("TransformerEncoder", "layers.0-2", [0, 1, 2]))
        self.assertEqual(row["reasons"][0]["code"], "fast_path")

    def test_slow_paths(self):
        x = torch.randn(2, 5, 32)
        attention = layer(torch.nn.MultiheadAttention)
        self.same(lambda: attention(x, x, x)[0].detach(), eager=1)
        self.same(lambda: attention(x, x, x, need_weights=False)[0].detach(), flash_for_cpu=1)

    def test_contexts(self):
        x = self.x

        def attend():
            return F.scaled_dot_product_attention(x, x, x)

        with torch.inference_mode():
            self.same(attend, flash_for_cpu=1)
        with torch.autocast("cpu", torch.bfloat16):
            self.same(attend, flash_for_cpu=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with tileproof.watch() as seen:  # the profiler counts it twice: once more on its way to the CPU's kernel
                torch.vmap(lambda y: F.scaled_dot_product_attention(y, y, y))(x[None])
            self.assertEqual(seen.kernels(), {"flash_for_cpu": 1})
            traced = torch.jit.trace(lambda y: F.scaled_dot_product_attention(y, y, y), x)
            self.same(lambda: traced(x), flash_for_cpu=1)
        meta = x.to("meta")
        with tileproof.watch() as seen:
            F.scaled_dot_product_attention(meta, meta, meta)
            F.scaled_dot_product_attention(x[:0], x[:0], x[:0])  # nothing runs
        self.assertEqual(seen.calls, 0)

    def test_other_threads(self):
        x = self.x
        with tileproof.watch() as seen:
            workers = [threading.Thread(target=lambda: [F.scaled_dot_product_attention(x, x, x) for _ in range(50)]) for _ in range(4)]
            for w in workers:
                w.start()
            for w in workers:
                w.join()
        self.assertEqual(seen.kernels(), {"flash_for_cpu": 200})

    def test_eager_flex_attention(self):
        from torch.nn.attention.flex_attention import flex_attention

        x = self.x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = self.same(lambda: flex_attention(x, x, x), eager=1)
        self.assertEqual(seen.kernels(), {"flex_eager": 1})

    def test_our_own_calls(self):
        x = self.x
        with tileproof.watch() as seen:
            with tileproof.torch.patch():
                F.scaled_dot_product_attention(x, x, x, is_causal=True)
            tileproof.attention(x, x, x)
            y = x.clone().requires_grad_()
            tileproof.attention(y, y, y).sum().backward()
        rows = seen.to_dict()["rows"]
        self.assertEqual({x["engine"] for x in rows}, {"tileproof"})
        self.assertEqual((sum(x["calls"] for x in rows), sum(x["phase"] == "backward" for x in rows)), (4, 1))

    def test_two_watchers_and_none(self):
        x = self.x
        with tileproof.watch() as outer:
            with tileproof.watch() as inner:
                F.scaled_dot_product_attention(x, x, x)
            F.scaled_dot_product_attention(x, x, x)
        F.scaled_dot_product_attention(x, x, x)
        self.assertEqual((outer.calls, inner.calls), (2, 1))
        self.assertRaisesRegex(RuntimeError, "closed already: call tileproof.watch", inner.__enter__)
        hooks.unhook()
        self.assertEqual(profiled(lambda: F.scaled_dot_product_attention(x, x, x))[0], {"flash_for_cpu": 1})

    def test_a_call_that_pytorch_refuses_is_not_counted(self):
        x = self.x
        with tileproof.watch() as seen:
            with self.assertRaises(RuntimeError):
                F.scaled_dot_product_attention(x, x[..., :8], x)
            F.scaled_dot_product_attention(x, x, x)
        self.assertEqual(seen.calls, 1)

    def test_tensors_are_not_kept_alive(self):
        import weakref

        class Model(torch.nn.Module):
            def forward(self, x):
                early = x * 2
                gone.append(weakref.ref(early))
                out = F.scaled_dot_product_attention(early, early, early)
                del early
                return out, gone[0]() is None

        gone, model = [], Model()
        with tileproof.watch():
            self.assertTrue(model(self.x)[1])


class Models(Case):
    """transformers, with generate()."""

    def test_llama(self):
        model = small_models.llama()
        seen = self.same(lambda: small_models.generate(model), flash_for_cpu=12)
        rows = {x["phase"]: x for x in seen.to_dict()["rows"]}
        self.assertEqual({x["path"] for x in rows.values()}, {"model.layers.0-1.self_attn"})
        self.assertEqual({x["model"] for x in rows.values()}, {"LlamaForCausalLM"})
        self.assertEqual(rows["prefill"]["problem"], "prefill b1 h4/2 q20 k20 d16 f32 top-left causal")
        self.assertEqual(rows["decode"]["problem"], "decode b1 h4/2 q1 k25 d16 f32")
        self.assertEqual((rows["decode"]["calls"], rows["decode"]["layers"]), (10, [0, 1]))

    def test_llama_written_out(self):
        model = small_models.llama("eager")
        seen = self.same(lambda: small_models.generate(model), eager=12)
        texts = {x["problem"] for x in seen.to_dict()["rows"]}
        self.assertEqual(texts, {"prefill b1 h4/2 q20 k20 d16 f32 bias=f32", "decode b1 h4/2 q1 k25 d16 f32 bias=f32"})
        prefill = next(x for x in seen.to_dict()["rows"] if x["phase"] == "prefill")
        self.assertEqual(prefill["peak_temporary_bytes"], 2 * 4 * 4 * 20 * 20)  # scores and weights

    def test_gemma_3(self):
        model = small_models.gemma3()
        seen = self.same(lambda: small_models.generate(model), flash_for_cpu=24)
        layers = {tuple(x["layers"]) for x in seen.to_dict()["rows"]}
        self.assertEqual(layers, {(0, 2), (1, 3)})

    def test_whisper(self):
        model = small_models.whisper()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            n = small_models.generate(model).shape[1] and sum(profiled(lambda: small_models.generate(model))[0].values())
            seen = self.same(lambda: small_models.generate(model), flash_for_cpu=n)
        paths = {x["path"] for x in seen.to_dict()["rows"]}
        self.assertEqual(paths, {"model.encoder.layers.0-1.self_attn", "model.decoder.layers.0-1.self_attn", "model.decoder.layers.0-1.encoder_attn"})

    def test_a_backend_switched_off_is_seen_in_a_model(self):
        model = small_models.llama()
        with sdpa_kernel(SDPBackend.MATH):
            self.same(lambda: small_models.generate(model), math=12)


class Memory(unittest.TestCase):
    def peak(self, call):
        with tileproof.watch() as seen:
            call()
        return seen.to_dict()["rows"][0]["peak_temporary_bytes"]

    def test_peak_temporary_memory(self):
        x = torch.randn(1, 4, 256, 32)
        scores = 4 * 256 * 256 * 4
        fused = self.peak(lambda: F.scaled_dot_product_attention(x, x, x))
        unfused = self.peak(lambda: F.scaled_dot_product_attention(x, x, x[..., :16]))
        self.assertGreater(fused, 0)
        self.assertLess(fused, scores / 2)
        self.assertGreaterEqual(unfused, scores)

    def test_it_leaves_another_profiler_alone(self):
        x = torch.randn(1, 4, 16, 32)
        counts, _ = profiled(lambda: self.assertIsNone(self.peak(lambda: F.scaled_dot_product_attention(x, x, x))))
        self.assertEqual(counts, {"flash_for_cpu": 1})


if __name__ == "__main__":
    unittest.main()
