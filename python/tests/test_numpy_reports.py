# SPDX-License-Identifier: Apache-2.0
"""Receipts, decisions, plans, documents."""
import contextlib
import doctest
import inspect
import io
import json
import pathlib
import pickle
import subprocess
import sys
import unittest

import numpy as np
import tileproof
import tileproof._api
import tileproof._sdpa
from tileproof import _core

ROOT = pathlib.Path(__file__).resolve().parents[1]


def zeros(*shape):
    return np.zeros(shape, np.float32)


class Reports(unittest.TestCase):
    def test_a_receipt_says_what_ran(self):
        for name in ("generic", "math"):
            _, receipt = tileproof.attention(
                zeros(1, 3, 2, 8), zeros(1, 3, 2, 8), zeros(1, 3, 2, 8), kernel=name, fallback="permit", return_receipt=True
            )
            self.assertEqual((receipt.kernel, receipt.status), (name, "TP_OK"))
            self.assertEqual(receipt.scores_written > 0, name == "math")
            self.assertIn(f"kernel           {name}", repr(receipt))
            self.assertEqual(json.loads(json.dumps(receipt.to_dict()))["kernel"], name)
            again = pickle.loads(pickle.dumps(receipt))
            self.assertEqual((repr(again), again.to_dict()), (repr(receipt), receipt.to_dict()))
            self.assertIn("numerics_id", dir(receipt))
        with self.assertRaisesRegex(AttributeError, "nosuch"):
            receipt.nosuch

    def test_explain_by_shapes_names_every_refusal(self):
        decision = tileproof.explain((1, 5, 2, 640), (1, 5, 2, 640), dtype=np.float32)
        self.assertEqual(decision.status, "TP_FALLBACK_REFUSED")
        reasons = {c["kernel"]: c["reasons"] for c in decision.candidates}
        self.assertEqual(reasons["generic"][0]["have"], 640)
        self.assertIn("math", repr(decision))
        decision = tileproof.explain(
            (2, 3, 4, 16), (2, 9, 2, 16), (2, 9, 2, 24), dtype="f16", mask=True, bias="bf16", sinks=True, alibi_slopes=True
        )
        self.assertEqual(decision.problem, "decode b2 h4/2 q3 k9 d16/24 f16 bits alibi bias=bf16 sinks")
        self.assertEqual(tileproof.explain(zeros(1, 2, 1, 8), zeros(1, 2, 1, 8)).problem, "prefill b1 h1/1 q2 k2 d8 f32")
        for bad in (dict(dtype="float64"), dict(dtype="float32", out=1), dict(dtype="float32", nosuch=1)):
            with self.assertRaises(TypeError):
                tileproof.explain((1, 2, 1, 8), (1, 2, 1, 8), **bad)
        for word in ("f32:bf16", "f32:bf16:i8", "f32:f32:f32:f32", "f32->", "->f32", "bf16->f64", "f32" + ":" * 90):
            with self.assertRaisesRegex(TypeError, 'or these of q, k, v and o, as in "f32:bf16:bf16->f32"'):
                tileproof.explain((1, 2, 1, 8), (1, 2, 1, 8), dtype=word)

    def test_dtypes_of_each(self):
        shape = (1, 2, 1, 8)
        for dtype, text in (
            ("f32:bf16:f16->bf16", "f32:bf16:f16->bf16"), ("float16:f16:float16", "f16"), ("bf16->f32", "bf16->f32"),
        ):  # fmt: skip
            self.assertEqual(tileproof.explain(shape, shape, dtype=dtype).problem, f"prefill b1 h1/1 q2 k2 d8 {text}")
        half = zeros(*shape).astype(np.float16)
        for k, v, text in ((half, None, "f32:f16:f16->f32"), (half, zeros(*shape), "f32:f16:f32->f32"), (shape, half, "f32:f32:f16->f32")):
            self.assertEqual(tileproof.explain(zeros(*shape), k, v).problem, f"prefill b1 h1/1 q2 k2 d8 {text}")
        plan = tileproof.plan(shape, shape, dtype="f32:f16:f16->f16")
        self.assertEqual(plan.run(zeros(*shape), half, half).dtype, np.float16)
        with self.assertRaisesRegex(ValueError, "only lengths may differ"):
            plan.run(zeros(*shape), half, zeros(*shape))

    def test_strategy_and_disable(self):
        q, k = zeros(1, 4, 4, 16), zeros(1, 40, 2, 16)
        for strategy, decode in ((None, True), ("decode", True), ("prefill", False)):
            options = dict(strategy=strategy, kernel="generic", fallback="permit")
            self.assertEqual(tileproof.explain(q, k, **options).decode, decode)
            _, receipt = tileproof.attention(q, k, k, return_receipt=True, **options)
            self.assertEqual(any("_pack_k_" in x for x in receipt.functions), not decode)
            plan = tileproof.plan(q, k, **options)
            self.assertEqual(plan.decision.decode, decode)
            self.assertEqual(plan.run(q, k, k, return_receipt=True)[1].kernel, "generic")
        best = tileproof.explain(q, k).kernel
        names = ",".join(x for x in tileproof.kernels if x not in ("generic", "math"))
        made = "".join([names, ""])  # a plan keeps a text of its own
        plan = tileproof.plan(q, k, disable=made, fallback="permit")
        del made
        self.assertEqual(plan.run(q, k, k, return_receipt=True)[1].kernel, "generic")
        self.assertEqual(tileproof.attention(q, k, k, disable=best, fallback="permit", return_receipt=True)[1].kernel == best, False)
        for name in ("strategy", "disable"):
            with self.assertRaisesRegex(TypeError, f"'{name}' is an option of the plan"):
                plan.run(q, k, k, **{name: "decode"})
        for bad in ((1, -2, 1, 8), (2**40, 2**40, 1, 8), (1, 2, 8), (1,) * 12):
            with self.assertRaises(ValueError):
                tileproof.explain(bad, (1, 2, 1, 8), dtype="float32")

    def test_p_is_rounded_where_it_is_permitted_only(self):
        shapes = (1, 64, 4, 64), (1, 64, 4, 64)
        plain = tileproof.explain(*shapes, dtype="bfloat16")
        self.assertEqual((plain.problem, plain.arithmetic), ("prefill b1 h4/4 q64 k64 d64 bf16", "f32"))
        for word in ("bfloat16", "bf16"):
            permitted = tileproof.explain(*shapes, dtype="bfloat16", p_dtype=word)
            self.assertEqual(permitted.problem, plain.problem + " p=bf16")
            self.assertEqual(permitted.arithmetic, "p=bf16" if permitted.kernel.endswith("_bf16") else "f32")
        self.assertEqual(tileproof.explain(*shapes, dtype="bfloat16", p_dtype="float32").problem, plain.problem)
        few = tileproof.explain((1, 1, 4, 64), (1, 64, 4, 64), dtype="bfloat16", p_dtype="bfloat16")
        self.assertEqual((few.arithmetic, "p=bf16" in few.numerics_id), ("f32", False))  # decode rounds nothing
        plan = tileproof.plan(*shapes, dtype="float32", p_dtype="bfloat16")
        self.assertIn(" p=bf16", plan.run(*(zeros(1, 9, 4, 64) for _ in "qkv"), return_receipt=True)[1].problem)
        with self.assertRaisesRegex(ValueError, "p_dtype is 'f16': it must be None"):
            tileproof.explain(*shapes, dtype="bfloat16", p_dtype="f16")

    def test_plans_run_within_their_bounds_only(self):
        random = np.random.default_rng(3)
        plan = tileproof.plan((4, 16, 4, 32), (4, 64, 2, 32), dtype="float32", causal=True, mask=True)
        self.assertGreater(plan.workspace_bytes, 0)
        self.assertEqual(plan.decision.problem, "decode b4 h4/2 q16 k64 d32 f32 causal bits")
        self.assertIn("decode b4", repr(plan))
        for b, m, n in ((4, 16, 64), (1, 1, 64), (2, 7, 9)):
            q, k, v = (random.standard_normal(x).astype(np.float32) for x in ((b, m, 4, 32), (b, n, 2, 32), (b, n, 2, 32)))
            mask = random.random((m, n)) < 0.8
            out, lse, receipt = plan.run(q, k, v, mask=mask, return_lse=True, return_receipt=True)
            want, want_lse = tileproof.attention(q, k, v, mask=mask, causal=True, return_lse=True)
            self.assertTrue((out == want).all() and (lse == want_lse).all())
            # without kernels that this host lacks, and those that nobody permitted to round p
            able = [c["code"] for c in receipt.refused if c["code"] not in ("isa", "dtype")]
            self.assertEqual(able, ["not_best"] * len(able))
        for q, k, options, text in (
            (zeros(4, 17, 4, 32), zeros(4, 64, 2, 32), {}, "17"),
            (zeros(5, 16, 4, 32), zeros(5, 64, 2, 32), {}, "5"),
            (zeros(4, 16, 8, 32), zeros(4, 64, 2, 32), {}, "only lengths may differ"),
            (zeros(4, 16, 4, 64), zeros(4, 64, 2, 64), {}, "only lengths may differ"),
            (zeros(4, 16, 4, 32), zeros(4, 64, 2, 32), dict(sinks=zeros(4)), "only lengths may differ"),
            (zeros(4, 16, 4, 32), zeros(4, 64, 2, 32), dict(out=np.zeros((4, 16, 4, 32), np.float16)), "only lengths"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                plan.run(q, k, k, mask=np.ones((q.shape[1], k.shape[1]), bool), **options)
        with self.assertRaisesRegex(ValueError, "only lengths may differ"):
            plan.run(zeros(4, 16, 4, 32), zeros(4, 64, 2, 32), zeros(4, 64, 2, 32))


class Documents(unittest.TestCase):
    def test_the_order_of_arguments_is_that_of_the_extension(self):
        source = inspect.getsource(tileproof._api.attention)
        handed = source[source.index("_core.attention(") + 16 :].split(")")[0].replace("\n", " ").split(",")
        self.assertEqual([x.strip() for x in handed][:-1], list(_core.arguments[:-1]))
        names = {x for x in inspect.signature(tileproof.attention).parameters}
        own, codes = {"arrays", "mask_tree", "max_threads", "codes"}, {"k_scales", "v_scales", "kv_format", "kv_loss"}
        self.assertEqual(names - set(_core.arrays) - codes, set(_core.arguments) - own)
        self.assertLessEqual({"page_table", "v_page_table", "indices", "q_positions", "kv_positions"}, names & set(_core.arrays))

    def test_docstrings_run(self):
        for module in (tileproof, tileproof._api, tileproof._kvcache, tileproof._mask, tileproof._oracle, tileproof._quantise, tileproof._rotary, tileproof._sdpa, tileproof._telemetry):
            result = doctest.testmod(module)
            self.assertGreater(result.attempted, 2)
            self.assertEqual(result.failed, 0)

    def test_the_guide_runs(self):
        text = (ROOT.parent / "docs/python.md").read_text()
        blocks = [x.split("```")[0] for x in text.split("```python\n")[1:]]
        self.assertGreater(len(blocks), 0)
        for at, block in enumerate(blocks):
            test = doctest.DocTestParser().get_doctest(block, {}, f"docs/python.md {at}", None, 0)
            self.assertGreater(len(test.examples), 0)
            self.assertEqual(doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed, 0)

    def test_the_readme_runs(self):
        text = (ROOT / "README.md").read_text()
        blocks = [x.split("```")[0] for x in text.split("```python\n")[1:]]
        self.assertLessEqual(len(blocks[0].splitlines()), 10)
        for block in blocks:
            if not any(x in block for x in ("torch", "transformers")):  # those need PyTorch
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(block, "README.md", "exec"), {})
                self.assertIn("kernel", printed.getvalue())

    def test_examples_run(self):
        for name in ("decode_loop.py",):
            done = subprocess.run([sys.executable, ROOT / "examples" / name], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("kernel", done.stdout)

    def test_typed(self):
        self.assertTrue((pathlib.Path(tileproof.__file__).parent / "py.typed").exists())
        self.assertIn("causal_align", inspect.get_annotations(tileproof.attention))


if __name__ == "__main__":
    unittest.main()
