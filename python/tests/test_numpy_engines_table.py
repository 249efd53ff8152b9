# SPDX-License-Identifier: Apache-2.0
"""The tables of `make engines`: scripts/engines_table.py on rows made by hand; what scripts/engines.py asks of the tool."""
import argparse
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import engines  # noqa: E402
import engines_table as table  # noqa: E402


def row(model, problem, engine="torch", status="QUALIFIED", layers="0-3", **more):
    known = dict(model=model + ".json", part="text", layers=layers, phase=problem.split()[0], problem=problem, status=status, engine=engine,
                 kernel="flash", observed="dispatcher", reason=None, temporary=2 << 20, time_ns=None, versions="torch=2", isa="avx2",
                 engine_reasons=None, doubt=None, contained=None, deterministic=None, empty_rows=None)  # fmt: skip
    return {**known, **more}


class Table(unittest.TestCase):
    def test_equal_problems_are_one_row_that_names_all_models(self):
        rows = [row(m, f"prefill b1 h4/2 q{q} k{q} d64 bf16 causal") for m in ("a", "b") for q in (509, 7)]
        rows.append(row("c", "prefill b1 h4/2 q509 k509 d64 bf16 causal", layers="0-4,6-10,12-16"))
        lines = table.page({"torch": (rows, "")}, 2).splitlines()
        found = [x for x in lines if x.startswith("| a") or x.startswith("| c")]
        self.assertEqual([x.split("|")[1:3] for x in found], [[" a: text 0-3; b: text 0-3 ", " b1 h4/2 q509 k509 d64 bf16 causal "],
                                                              [" c: text 0-4,6-10,.. ", " b1 h4/2 q509 k509 d64 bf16 causal "]])  # fmt: skip

    def test_a_place_says_kernel_verdict_memory_and_time_beside_ours(self):
        text = "decode b2 h4/2 q1 k99 d64 bf16 causal"
        ours = [row("a", text, "tileproof", kernel="avx2", temporary=512, time_ns=2e6)]
        theirs = [row("a", text, time_ns=1.5e8, status="QUALIFIED_FALLBACK", kernel="math", engine_reasons="head dims differ")]
        page = table.page({"tileproof": (ours, ""), "torch": (theirs, ""), "flash_attn": ([], "no CUDA device")}, 1)
        self.assertIn("| avx2, right, 512 B, 2 ms | math, right, unfused, 2 MiB, 150 ms (x75) |", page)
        self.assertIn("- torch: why not fused: head dims differ (a decode)\n", page)
        self.assertIn("- flash_attn: not run here: no CUDA device\n", page)
        self.assertIn("1 thread,", page)
        self.assertEqual([table.times(x) for x in (0.834, 1.27, 9.96, 262.9)], ["0.83", "1.3", "10", "263"])

    def test_long_names_are_short_and_explained(self):
        page = table.page({"onnxruntime": ([row("a", "prefill q1", kernel="GroupQueryAttention")], "")}, 1)
        self.assertIn("| GQA, right, 2 MiB |", page)
        self.assertIn("- `GQA` is `GroupQueryAttention`\n", page)
        parts = "Subgraph with softmax jit_avx512_bf16+Transpose unknown_bf16"
        page = table.page({"openvino": ([row("a", "prefill q1", kernel=parts), row("a", "prefill q2", kernel=parts + "+More")], "")}, 1)
        self.assertIn("| Subgraph with softmax jit_avx512_bf16+.., right, 2 MiB |", page)
        self.assertIn(f"- `Subgraph with softmax jit_avx512_bf16+..` is `{parts}` or `{parts}+More`\n", page)
        self.assertNotIn("cpu_attention", page)

    def test_what_is_mixed_is_counted_and_a_dead_runner_is_not_a_wrong_result(self):
        wrong = dict(status="NUMERIC_FAIL", temporary=0, time_ns=None)
        rows = [row("a", "p"), row("a", "p", status="UNSUPPORTED", kernel=None, observed=None, reason="no sinks")]
        self.assertEqual(table.place(rows, 1.0), "flash, right 1, refused 1, 2 MiB")
        self.assertEqual(table.place([row("a", "p", reason="the runner died of signal 9", **wrong)], 1.0), "flash, **BROKE**")
        self.assertEqual(table.place([row("a", "p", reason="o worse than twice the naive kernel", **wrong)], 1.0), "flash, **WRONG**")
        self.assertEqual(table.place([row("a", "p", kernel=None, observed="not observable")], 1.0), "not observable, right, 2 MiB")
        self.assertEqual(table.place([], 1.0), "not run")

    def test_properties_count_each_problem_once(self):
        rows = [row(m, f"prefill q{n}", contained=c, deterministic="kept") for m in "ab" for n, c in ((1, "leaks"), (2, "kept"), (3, None))]
        self.assertIn("| torch | 3 | kept 1, leaks 1 | kept 3 |  |", table.properties({"torch": (rows, "")}, ["torch"]))

    def test_a_document_keeps_what_stands_around_its_tables(self):
        old = f"# Title\n\n{table.BEGIN}\nold\n{table.END}\n\nbehind\n"
        new = table.document(old, "new\n")
        self.assertEqual(new, f"# Title\n\n{table.BEGIN}\n\nnew\n\n{table.END}\n\nbehind\n")
        self.assertEqual(table.document(new, "new\n"), new)
        with self.assertRaises(SystemExit):
            table.document("no marks", "new\n")


class Words(unittest.TestCase):
    def words(self, engine, **more):
        return engines.words(engine, argparse.Namespace(**{"models": [], "phases": "decode", "threads": 0, "quick": False, **more}))

    def test_every_shipped_model_is_asked_for(self):
        shipped = sorted(f"models/{x.name}" for x in (engines.ROOT / "models").glob("*.json"))
        self.assertEqual(self.words("torch", quick=True)[: len(shipped)], shipped)
        self.assertEqual(self.words("flex")[: len(shipped)], shipped)

    def test_what_compiles_long_is_brief_in_quick_runs_unless_models_are_named(self):
        found = self.words("flex", quick=True, threads=3)
        models = [x for x in found if x.startswith("models/")]
        self.assertTrue(all((engines.ROOT / x).exists() for x in models) and 5 < len(models) < 20, models)
        self.assertEqual(found[len(models) :], ["--engine", "flex", "--phases", "decode", "--fallback", "permit", "--threads", "3", "--quick", "--cells", "1"])
        self.assertEqual(self.words("flex", models=["a.json"])[0], "a.json")


if __name__ == "__main__":
    unittest.main()
