# SPDX-License-Identifier: Apache-2.0
"""patch(), torch.compile, processes."""
import contextlib
import doctest
import gc
import io
import itertools
import os
import pathlib
import subprocess
import sys
import threading
import unittest

import tileproof
import tileproof.torch
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[1]
original = F.scaled_dot_product_attention


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


class Patch(unittest.TestCase):
    def test_calls_are_ours_while_it_is_open(self):
        x = torch.randn(2, 3, 7, 16)
        with tileproof.torch.patch() as log:
            inside = F.scaled_dot_product_attention(x, x, x, is_causal=True)
            layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
            with torch.no_grad():
                layer.train()(torch.randn(2, 5, 32), torch.randn(2, 5, 32), torch.randn(2, 5, 32), need_weights=False)
        self.assertIs(F.scaled_dot_product_attention, original)
        texts = ["prefill b2 h3/3 q7 k7 d16 f32 top-left causal", "prefill b2 h4/4 q5 k5 d8 f32 top-left"]
        self.assertEqual([r.problem for r in log.receipts], texts)
        self.assertLess((inside - original(x, x, x, is_causal=True)).abs().max(), 2e-6)
        self.assertIn("2 on ", repr(log))

    def test_p_may_be_rounded_in_bfloat16_alone(self):
        x = torch.randn(1, 2, 40, 16)
        with tileproof.torch.patch() as log:
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                F.scaled_dot_product_attention(*(x.to(dtype),) * 3)
                y = x.to(dtype).requires_grad_()
                F.scaled_dot_product_attention(y, y, y).sum().backward()
        self.assertEqual([" p=bf16" in r.problem for r in log.receipts], [False] * 6 + [True] * 3)
        self.assertEqual({r.arithmetic for r in log.receipts[:6]}, {"f32"})
        for r in log.receipts[6:]:
            self.assertEqual(r.arithmetic, "p=bf16" if r.kernel.endswith("_bf16") else "f32")

    def test_what_is_not_ours_goes_to_pytorch_with_the_reason(self):
        x = torch.randn(1, 2, 5, 8)
        meta = x.to("meta")
        with tileproof.torch.patch() as log:
            self.assertEqual(F.scaled_dot_product_attention(x.double(), x.double(), x.double()).dtype, torch.float64)
            self.assertEqual(F.scaled_dot_product_attention(meta, meta, meta).device.type, "meta")
            with self.assertRaisesRegex(RuntimeError, "is_causal"):
                F.scaled_dot_product_attention(x, x, x, torch.ones(5, 5, dtype=torch.bool), is_causal=True)
        self.assertEqual(len(log.passed), 3)
        self.assertIn("torch.float64", log.passed[0])
        self.assertIn("meta", log.passed[1])
        self.assertIn("is_causal", log.passed[2])
        self.assertEqual([x.backend for x in log.passed], ["flash_for_cpu", "none", "none"])
        self.assertEqual(log.receipts, [])

    def test_a_log_has_a_limit(self):
        x = torch.randn(1, 2, 5, 8)
        with tileproof.torch.patch(limit=4) as log:
            for _ in range(9):
                F.scaled_dot_product_attention(x, x, x)
        self.assertLessEqual(len(log.receipts), 4)
        self.assertEqual(len(log.receipts) + log.forgotten, 9)
        with tileproof.torch.patch(limit=0) as log:
            F.scaled_dot_product_attention(x, x, x)
            F.scaled_dot_product_attention(x.double(), x.double(), x.double())
        self.assertEqual((log.receipts, log.passed, log.forgotten), ([], [], 2))

    def test_it_nests_and_survives_exceptions(self):
        x = torch.randn(1, 2, 5, 8)
        with self.assertRaises(KeyError):
            with tileproof.torch.patch():
                raise KeyError
        self.assertIs(F.scaled_dot_product_attention, original)
        with tileproof.torch.patch() as outer, tileproof.torch.patch() as inner:
            F.scaled_dot_product_attention(x, x, x)
        self.assertEqual((len(outer.receipts), len(inner.receipts)), (1, 1))
        self.assertIs(F.scaled_dot_product_attention, original)

    def test_a_statement_holds_until_it_is_closed(self):
        x = torch.randn(1, 2, 5, 8)
        tileproof.torch.patch()  # nobody keeps what it returns
        gc.collect()
        try:
            self.assertIsNot(F.scaled_dot_product_attention, original)
            second = tileproof.torch.patch()
            F.scaled_dot_product_attention(x, x, x)
            self.assertEqual(len(second.receipts), 1)
            second.close()
            second.close()
            F.scaled_dot_product_attention(x, x, x)
            self.assertEqual(len(second.receipts), 1)
            self.assertIsNot(F.scaled_dot_product_attention, original)
        finally:
            tileproof.torch.unpatch()
        self.assertIs(F.scaled_dot_product_attention, original)
        tileproof.torch.unpatch()
        self.assertIs(F.scaled_dot_product_attention, original)
        self.assertRaisesRegex(RuntimeError, "closed already: call patch", second.__enter__)
        with tileproof.torch.patch() as entered:
            self.assertRaisesRegex(RuntimeError, "entered already: call patch", entered.__enter__)
        self.assertIs(F.scaled_dot_product_attention, original)

    def test_patches_close_in_any_order(self):
        for order in itertools.permutations(range(3)):
            made = [tileproof.torch.patch() for _ in range(3)]
            for n, which in enumerate(order, 1):
                made[which].close()
                self.assertEqual(F.scaled_dot_product_attention is original, n == 3)

    def test_two_threads_close_in_the_order_they_opened(self):
        turns = [threading.Event() for _ in range(3)]

        def work(mine, after):
            with tileproof.torch.patch():
                turns[mine].set()
                turns[after].wait(60)

        workers = [threading.Thread(target=work, args=x) for x in ((0, 1), (1, 2))]
        for w, ready in zip(workers, turns):
            w.start()
            ready.wait(60)
        workers[0].join()
        self.assertIsNot(F.scaled_dot_product_attention, original)
        turns[2].set()
        workers[1].join()
        self.assertIs(F.scaled_dot_product_attention, original)

    def test_many_threads_may_open_and_close_them(self):
        x = torch.randn(1, 2, 5, 8)
        counts, meet = [], threading.Barrier(4)

        def work():
            meet.wait()
            for _ in range(50):
                with tileproof.torch.patch() as log:
                    F.scaled_dot_product_attention(x, x, x)
                counts.append(len(log.receipts))

        workers = [threading.Thread(target=work) for _ in range(4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        self.assertIs(F.scaled_dot_product_attention, original)
        self.assertEqual((len(counts), min(counts) >= 1), (200, True))

    def test_what_others_put_over_it_stays(self):
        x = torch.randn(1, 2, 5, 8)
        seen = []
        first = tileproof.torch.patch()
        ours = F.scaled_dot_product_attention

        def theirs(*args, **options):
            seen.append(1)
            return ours(*args, **options)

        try:
            F.scaled_dot_product_attention = theirs
            first.close()
            self.assertIs(F.scaled_dot_product_attention, theirs)
            F.scaled_dot_product_attention(x, x, x)
            self.assertEqual((len(seen), first.receipts), (1, []))
            with tileproof.torch.patch() as again:
                F.scaled_dot_product_attention(x, x, x)
                F.scaled_dot_product_attention(x.double(), x.double(), x.double())
            self.assertEqual((len(seen), len(again.receipts), len(again.passed)), (2, 1, 1))
            self.assertIs(F.scaled_dot_product_attention, theirs)
        finally:
            F.scaled_dot_product_attention = original

    def test_closing_one_of_two_puts_nothing_over_others(self):
        x = torch.randn(1, 2, 5, 8)
        seen = []
        for order in (0, 1), (1, 0):
            both = [tileproof.torch.patch(), tileproof.torch.patch()]
            ours = F.scaled_dot_product_attention

            def theirs(*args, **options):
                seen.append(1)
                return ours(*args, **options)

            try:
                F.scaled_dot_product_attention = theirs
                for n, which in enumerate(order):
                    both[which].close()
                    self.assertIs(F.scaled_dot_product_attention, theirs)
                    F.scaled_dot_product_attention(x, x, x)
                    self.assertEqual(len(both[order[1]].receipts), 1)  # it still was open, once
                self.assertEqual(both[order[0]].receipts, [])
            finally:
                tileproof.torch.unpatch()
                F.scaled_dot_product_attention = original
        self.assertEqual(len(seen), 4)

    def test_it_decorates(self):
        x = torch.randn(1, 2, 5, 8)

        def step(x, fail=False):
            """what it does"""
            if fail:
                raise KeyError
            return F.scaled_dot_product_attention, F.scaled_dot_product_attention(x, x, x)

        for decorated in (tileproof.torch.patch(step), tileproof.torch.patch()(step), tileproof.torch.patch(limit=3, threads=1)(step)):
            self.assertIs(F.scaled_dot_product_attention, original)
            with tileproof.torch.log() as log:
                function, out = decorated(x)
            self.assertIsNot(function, original)
            self.assertIs(F.scaled_dot_product_attention, original)
            self.assertEqual((len(log.receipts), decorated.__doc__), (1, "what it does"))
            self.assertRaises(KeyError, decorated, x, fail=True)
            self.assertIs(F.scaled_dot_product_attention, original)

        async def waits():
            pass

        def yields():
            yield

        for bad in (waits, yields, Patch):
            for decorate in (tileproof.torch.patch, tileproof.torch.patch()):
                self.assertRaisesRegex(TypeError, "use `with patch", decorate, bad)
            self.assertIs(F.scaled_dot_product_attention, original)

    def test_threads_are_those_asked_for(self):
        x = torch.randn(1, 8, 128, 64)
        asked = 1 if torch.get_num_threads() > 1 else 2
        for grad in (False, True):
            with tileproof.torch.patch(threads=3) as log, tileproof.torch.patch():
                F.scaled_dot_product_attention(x, x, x.clone().requires_grad_(grad)).sum()
                with tileproof.torch.patch(threads=asked):
                    F.scaled_dot_product_attention(x, x, x.clone().requires_grad_(grad)).sum()
                F.scaled_dot_product_attention(x, x, x.clone().requires_grad_(grad)).sum()
            self.assertEqual([r.tasks for r in log.receipts], [3, asked, 3])
        for bad, kind in ((0, ValueError), (1025, ValueError), ("two", TypeError), (1.5, TypeError)):
            self.assertRaises(kind, tileproof.torch.patch, threads=bad)
        self.assertRaisesRegex(ValueError, "limit is -1", tileproof.torch.patch, limit=-1)
        self.assertIs(F.scaled_dot_product_attention, original)

    def test_the_module_is_there_after_import_tileproof(self):
        done = run("import sys, tileproof; assert 'torch' not in sys.modules; tileproof.torch.patch(); tileproof.torch.unpatch()")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_docstrings_run(self):
        result = doctest.testmod(sys.modules["tileproof._torch_patch"])
        self.assertGreater(result.attempted, 3)
        self.assertEqual(result.failed, 0)


class Documents(unittest.TestCase):
    def test_the_readme_runs(self):
        text = (ROOT / "README.md").read_text()
        for block in (x.split("```")[0] for x in text.split("```python\n")[1:]):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block, "README.md", "exec"), {})
            self.assertTrue(printed.getvalue())

    def test_examples_and_scripts_run(self):
        for script, text in (
            ("examples/torch_patch.py", "0 scores written"), ("bench/overhead.py --quick", "PyTorch attention"),
            ("bench/sdpa.py --seconds 0.01 --match decode", "| GQA decode"), ("bench/ttft.py --lengths 8 --minutes 0.01", "| decode | bfloat16 | 8 |"),
        ):  # fmt: skip
            name, *options = script.split()
            done = subprocess.run([sys.executable, ROOT / name, *options], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(text, done.stdout)


class Compile(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()

    def test_one_graph(self):
        x = torch.randn(2, 12, 4, 16)
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph

        def f(x, lens):
            out, lse = tileproof.attention(x * 2, x[:, :, :2], x[:, :, :2], causal=True, window=(5, 0), kv_lens=lens, return_lse=True)
            return out.sin() + lse.transpose(1, 2)[..., None].clamp(-9)

        lens = torch.tensor([12, 7])
        got = torch.compile(f, fullgraph=True, backend=backend)(x, lens)
        self.assertEqual(len(graphs), 1)
        self.assertTrue(any("tileproof" in str(node.target) for node in graphs[0].graph.nodes))
        self.assertLess((got - f(x, lens)).abs().max(), 1e-6)

    def test_patched_calls_compile(self):
        x = torch.randn(2, 4, 12, 16)
        with tileproof.torch.patch() as log:
            f = torch.compile(lambda x, m: F.scaled_dot_product_attention(x, x, x, m) * 2, fullgraph=True, backend="aot_eager")
            mask = torch.rand(12, 12) < 0.7
            got = f(x, mask)
        self.assertLess((got - 2 * original(x, x, x, mask)).abs().max(), 5e-6)
        self.assertEqual(len(log.receipts), 1)

    def test_dynamic_shapes(self):
        f = torch.compile(lambda x: tileproof.scaled_dot_product_attention(x, x, x, is_causal=True), fullgraph=True, dynamic=True, backend="aot_eager")
        for n in (5, 9, 17):
            x = torch.randn(1, 2, n, 16)
            self.assertLess((f(x) - original(x, x, x, is_causal=True)).abs().max(), 5e-6)

    def test_ops_pass_the_checks_of_pytorch(self):
        x = torch.randn(1, 6, 2, 8)
        plain = tileproof._torch_ops._arguments(x, x, x, causal=True)
        torch.library.opcheck(tileproof._torch_ops._forward, plain, test_utils=("test_schema", "test_faketensor"))


class Process(unittest.TestCase):
    def test_import_order(self):
        use = "x = torch.randn(1, 300, 4, 64); y = tileproof.attention(x, x, x, threads=2, return_receipt=True)[1]; assert y.tasks == 2; torch.relu(torch.randn(512, 512) @ torch.randn(512, 512)); print(y.kernel)"
        loud = "import sys, os; sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)\n"
        for code in ("import torch, tileproof", "import tileproof, torch", loud + "import torch, tileproof", loud + "import tileproof, torch"):
            quantized = "\ntorch.backends.quantized.engine = 'qnnpack' if 'qnnpack' in torch.backends.quantized.supported_engines else torch.backends.quantized.engine\n"
            done = run(code + quantized + use)
            self.assertEqual(done.returncode, 0, (code, done.stderr))

    def test_fork_after_torch_has_threads(self):
        x = torch.randn(1, 64, 4, 64)
        want = tileproof.attention(x, x, x)
        torch.randn(256, 256) @ torch.randn(256, 256)
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(tileproof.attention(x, x, x), want) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_threads(self):
        x = torch.randn(1, 64, 4, 64)
        want, wrong = tileproof.attention(x, x, x), []

        def work():
            for _ in range(30):
                if not torch.equal(tileproof.attention(x, x, x), want):
                    wrong.append(1)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
