#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `make peers` that need no peer: python3 tests/peers/run.py PATH/TO/libtileproof_peers.so
NumPy is needed. No time is judged."""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
try:
    import numpy as np
except ImportError:
    sys.exit(f"{sys.executable} has no NumPy: `make test` finds or makes a Python that has it (scripts/python_env.py)")

import problem
import reference
import report
import rows
import run
import stats
import tileproof as tileproof_package
import timing
import worker
from ours import Tileproof

LIBRARY = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
if LIBRARY is None:
    sys.exit("usage: run.py PATH/TO/libtileproof_peers.so")
tileproof = Tileproof(LIBRARY)

TEXTS = (
    "h4/2 q33 k33 d64 f32 causal",
    "h2/2 q17 k40 d80 bf16",
    "h8/1 q1 k77 d128 f16 causal",
    "b3 h2/1 q20 k20 d96 f32 causal window=4,0",
    "h4/4 seqs=2x5/5,1x31/40,1x1/9 d64 f32 packed causal",
    "h4/2 q1 k77 d64 f16:i8:i8->f16 scales=q8_0",
    "h4/2 q1 k77 d64 bf16:e4m3:e4m3->bf16",
)


def case_of(text):
    return problem.Case(problem.parse(tileproof.canonical(text)))


class Parts(unittest.TestCase):
    def test_sequences_that_differ_become_cells_of_their_own(self):
        """As ggml and ik_llama are called, which serve one sequence at a time."""
        case = case_of("h4/4 seqs=2x5/5,1x31/40,1x1/9 d64 f32 packed causal")
        parts = case.parts()
        self.assertEqual([part.lengths for part in parts], [((5, 5),), ((5, 5),), ((31, 40),), ((1, 9),)])
        for i, part in enumerate(parts):
            for name in "qkv":
                np.testing.assert_array_equal(part.sequence(name, 0), case.sequence(name, i))


class Texts(unittest.TestCase):
    def test_what_the_library_prints_is_understood(self):
        made = problem.parse(tileproof.canonical("b2 h32/8 q512 k4096 d128 bf16 causal window=99,0"))
        self.assertEqual((made.batch, made.q_heads, made.kv_heads, made.group), (2, 32, 8, 4))
        self.assertEqual((made.q_len, made.kv_len, made.head_dim, made.dtype), (512, 4096, 128, "bf16"))
        self.assertEqual((made.phase, made.causal, made.left, made.windowed), ("prefill", True, 99, True))

    def test_sequences_are_counted_out(self):
        made = problem.parse(tileproof.canonical(TEXTS[4]))
        self.assertEqual(made.lengths, ((5, 5), (5, 5), (31, 40), (1, 9)))

    def test_a_mask_that_hides_nothing_is_none(self):
        self.assertFalse(problem.parse("decode b1 h1/1 q1 k9 d64 f32 causal").masked)
        self.assertTrue(problem.parse("decode b1 h1/1 q1 k9 d64 f32 causal window=7,0").masked)
        self.assertFalse(problem.parse("decode b1 h1/1 q1 k9 d64 f32 causal window=8,0").masked)

    def test_words_peers_cannot_be_given_are_refused_by_name(self):
        for word in ("top-left", "scale=2", "window=3,3", "f32:bf16:bf16->f32", "bf16:i8:e4m3->bf16", "scales=token"):
            with self.assertRaisesRegex(ValueError, "word"):
                problem.parse(f"prefill b1 h1/1 q4 k4 d64 f32 {word}")


    def test_of_quantised_caches_those_that_a_peer_has(self):
        self.assertEqual(problem.parse(tileproof.canonical(TEXTS[5])).cache, "i8/q8_0")
        self.assertEqual(problem.parse(tileproof.canonical(TEXTS[6])).cache, "e4m3")
        self.assertEqual(problem.parse(tileproof.canonical(TEXTS[0])).cache, "")
        with self.assertRaisesRegex(ValueError, "peers are given i8/q8_0 and e4m3"):
            problem.parse(tileproof.canonical("q1 k9 d64 bf16:i8:i8->bf16"))
        with self.assertRaisesRegex(timing.NotServed, "no i8/q8_0 cache"):
            worker.served(object(), case_of(TEXTS[5]), 1, None)


class Data(unittest.TestCase):
    def test_codes_are_what_every_party_is_given(self):
        for text in TEXTS[5:]:
            case = case_of(text)
            self.assertEqual(set(case.codes), {"k", "v"})
            for name, codes in case.codes.items():
                scale = problem.E4M3_SCALE if case.problem.cache == "e4m3" else None
                self.assertTrue((tileproof_package.dequantise(codes, scale, case.problem.cache) == case.values[name]).all())
        again = tileproof_package.quantise(problem.load(case.stored["k"], "bf16"), "e4m3", scale=problem.E4M3_SCALE)[0]
        self.assertTrue((again == case.codes["k"]).all())  # of e4m3 the stored values say the codes

    def test_bf16_rounds_to_nearest_even(self):
        exact = np.array([1.0, 1 + 2**-7], np.float32)
        self.assertTrue((problem.from_bf16(problem.to_bf16(exact)) == exact).all())
        ties = problem.from_bf16(problem.to_bf16(np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)))
        self.assertEqual(ties.tolist(), [1.0, 1 + 2**-6])

    def test_values_are_what_was_stored(self):
        case = case_of("h2/1 q9 k9 d64 bf16")
        self.assertTrue((problem.to_bf16(case.values["k"]) == case.stored["k"]).all())

    def test_tensors_begin_at_a_cache_line(self):
        for text in TEXTS:
            case = case_of(text)
            for array in [*case.stored.values(), *case.codes.values()]:
                self.assertEqual(array.ctypes.data % problem.LINE, 0)
                self.assertTrue(array.flags.c_contiguous and array.flags.aligned)

    def test_padding_and_back(self):
        case = case_of(TEXTS[4])
        whole = case.padded("q")
        self.assertEqual(whole.shape, (4, 31, 4, 64))
        self.assertTrue((case.unpad(whole) == case.values["q"]).all())
        self.assertTrue((whole[0, 5:] == 0).all())


class Truths(unittest.TestCase):
    def test_the_reference_follows_the_definition_by_hand(self):
        case = case_of("h1/1 q2 k3 d64 f32 causal")
        q, k, v = (case.values[x][:, 0].astype(float) for x in "qkv")
        weights = np.exp(k[:2] @ q[0] / 8)  # row 0 of 2 stands at position 1 of 3
        by_hand = weights @ v[:2] / weights.sum()
        self.assertLess(np.abs(reference.attention(case, 0, 0, [0])[0] - by_hand).max(), 1e-14)

    def test_windows_and_alignment(self):
        made = problem.parse("prefill b1 h1/1 q2 k5 d64 f32 causal window=2,0")
        self.assertEqual(made.visible(2, 5, [0, 1]).astype(int).tolist(), [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]])

    def test_errors_are_found_in_the_last_row_and_as_nan(self):
        case = case_of("h2/2 q50 k50 d64 f32")
        oracle = reference.Oracle(case)
        output = np.zeros(case.values["q"].shape, np.float32)
        for head in range(2):
            output[:, head] = reference.attention(case, 0, head, list(range(50)))
        self.assertLess(oracle.error(output), 1e-6)
        output[49, 1, 3] += 0.5
        self.assertGreater(oracle.error(output), 0.4)
        output[7, 0, 0] = np.nan
        self.assertEqual(oracle.error(output), float("inf"))
        with self.assertRaisesRegex(ValueError, "output is"):
            oracle.error(output[1:])


class Gradients(unittest.TestCase):
    def test_they_are_the_slope_of_the_reference(self):
        case = case_of("backward h2/1 q4 k6 d64 f32 causal")
        rows, d_o = list(range(4)), case.values["d_o"].astype(float)
        oracle = dict(zip("qkv", reference.gradients(case, 0, 0)))

        def loss():
            return sum((reference.attention(case, 0, head, rows) * d_o[:, head]).sum() for head in range(2))

        case.values = {name: x.astype(float) for name, x in case.values.items()}
        for name, at in (("q", (2, 1, 5)), ("k", (3, 0, 7)), ("v", (1, 0, 2))):
            value, sides = case.values[name][at], []
            for step in (1e-5, -1e-5):
                case.values[name][at] = value + step
                sides.append(loss())
            case.values[name][at] = value
            slope, found = (sides[0] - sides[1]) / 2e-5, oracle[name][at if name == "q" else (at[0], at[2])]
            self.assertLess(abs(found - slope), 1e-7 * (1 + abs(slope)), name)

    def test_ours_are_right_and_wrong_ones_are_found(self):
        for text in ("h4/2 q33 k40 d64 f32 causal", "b2 h2/2 q17 k40 d80 bf16", "h2/1 q40 k40 d64 f16 causal window=9,0"):
            case = case_of("backward " + text)
            oracle = reference.Gradients(case)
            for threads in (1, 2):
                ours = tileproof.variant(case, threads)
                ours.run()
                output = ours.output()
                self.assertLessEqual(oracle.error(output), problem.LIMIT[case.problem.dtype], text)
                output[1] = -output[1]
                self.assertGreater(oracle.error(output), 0.5)
                output[2][0, 0, 0] = np.nan
                self.assertEqual(oracle.error(output), float("inf"))


class Shim(unittest.TestCase):
    def test_every_kind_of_row_is_right_on_one_and_two_threads(self):
        for text in TEXTS:
            case = case_of(text)
            oracle = reference.Oracle(case)
            for threads in (1, 2):
                ours = tileproof.variant(case, threads)
                ours.run()
                limit = problem.LIMIT[case.problem.dtype] * oracle.largest
                self.assertLessEqual(oracle.error(ours.output()), limit, text)
                self.assertIn(ours.kernel(), ("avx512", "avx2", "generic"))

    def test_refusals_name_the_rule(self):
        for text, rule in (
            ("h3/2 q4 k4 d64 f32", "multiple of kv_heads"),
            ("h1/1 q4 k4 d64 f32 nosuch", "nosuch"),
            ("h1/1 seqs=2x4/4 d64 f32 padded", "packed"),
            ("h1/1 q4 k4 d64 f32 packed", "seqs="),
        ):
            with self.assertRaisesRegex(ValueError, rule):
                tileproof.canonical(text)

    def test_amx_is_one_of_three(self):
        self.assertIn(tileproof.amx(), (-1, 0, 1))


class Ratios(unittest.TestCase):
    def test_a_constant_factor_is_found_exactly_whatever_the_drift(self):
        ours = [1.0, 2.0, 4.0, 1.5, 1.1, 3.0, 1.0]
        ratio = stats.paired(ours, [2 * x for x in ours])
        for value in (ratio.median, ratio.low, ratio.high):
            self.assertAlmostEqual(value, 2)
        self.assertEqual(ratio.verdict(), "ahead")
        self.assertEqual(stats.paired([2 * x for x in ours], ours).verdict(), "behind")

    def test_the_interval_holds_the_true_ratio(self):
        random = np.random.default_rng(5)
        inside = 0
        for _ in range(100):
            ours, theirs = (np.exp(0.1 * random.standard_normal(15)) for _ in range(2))
            ratio = stats.paired(list(ours), list(1.3 * theirs), resamples=1000)
            inside += ratio.low <= 1.3 <= ratio.high
        self.assertGreaterEqual(inside, 93)

    def test_a_control_that_is_off_is_not_same(self):
        self.assertTrue(stats.Ratio(1.01, 1.005, 1.02).same())
        self.assertTrue(stats.Ratio(1.1, 0.9, 1.3).same())
        self.assertFalse(stats.Ratio(1.1, 1.05, 1.2).same())

    def test_odd_lists_are_refused(self):
        with self.assertRaisesRegex(ValueError, "2 and 1"):
            stats.paired([1, 2], [1])


class Turns(unittest.TestCase):
    def test_pairs_alternate_and_every_turn_warms_up(self):
        calls = []
        a, b = (timing.Variant(x, lambda x=x: calls.append(x), None) for x in "ab")
        timing.calls_for.__defaults__, kept = (0.0, 1), timing.calls_for.__defaults__
        try:
            ours, theirs = timing.compare(a, b, 0, 3, 3)
        finally:
            timing.calls_for.__defaults__ = kept
        self.assertEqual("".join(calls), "aabb" + "aabb" + "bbaa" + "aabb")
        self.assertEqual((len(ours), len(theirs)), (3, 3))
        with self.assertRaisesRegex(ValueError, "two variants"):
            timing.compare(a, a, 0, 1, 1)


def entry(**values):
    known = dict(row="prefill b1 h1/1 q4 k4 d64 f32", op="forward", phase="prefill", dtype="f32", threads=1)
    return report.line(**known | values)


class Tables(unittest.TestCase):
    lines = [
        entry(peer="a 1", variant="x", verdict="ahead", ours_ns=1e6, peer_ns=2e6, ratio=2, ratio_lo=1.9, ratio_hi=2.1),
        entry(peer="b", variant="y", verdict="behind", ours_ns=1e6, peer_ns=5e5, ratio=0.5, ratio_lo=0.4, ratio_hi=0.6),
        entry(peer="c 1", verdict="wrong", ours_ns=1e6, error_peer=0.25),
        entry(peer="d 1", verdict="not run", ours_ns=1e6, why="no such op"),
    ]

    def test_losses_stand_beside_wins(self):
        text = report.table(self.lines)
        self.assertIn("| h1/1 q4 k4 d64 f32 | 1 | a 1: x | 1.000 | 2.000 | 2.00 (1.90 to 2.10) | ahead |", text)
        self.assertIn("| b: y | 1.000 | 0.500 | 0.50 (0.40 to 0.60) | behind |", text)
        self.assertIn("wrong: max err 2.5e-01", text)
        self.assertIn("not run here: no such op", text)
        self.assertEqual(
            report.summary(self.lines), "ahead in 1 of 2, behind in 1, even in 0; wrong: 1; not run here: 1"
        )

    def test_the_overview_has_a_column_a_peer_and_marks_losses(self):
        last = report.overview(self.lines).splitlines()[-1]
        cells = "2.00 [1.90, 2.10] | **0.50** [0.40, 0.60] | wrong | -"
        self.assertEqual(last, f"| prefill h1/1 q4 k4 d64 f32 | 1 | 1.000 | {cells} |")

    def test_lines_come_back_and_merge_in_the_order_of_the_list(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "sub/peers.jsonl"
            report.write_lines(path, self.lines)
            self.assertEqual([p.name for p in path.parent.iterdir()], ["peers.jsonl"])
            old = report.read_lines(path)
        self.assertEqual(old, json.loads(json.dumps(self.lines)))
        other = entry(row="prefill b1 h1/1 q2 k2 d64 f32", peer="a 1", verdict="even")
        again = dict(self.lines[0], verdict="even")
        order = [rows.Row(1, "forward", x["row"]) for x in (other, again)]
        merged = report.merge(old, [again, other], order)
        self.assertEqual([x["row"] for x in merged][0], other["row"])
        self.assertEqual(len(merged), 5)
        self.assertEqual([x["verdict"] for x in merged if x["peer"] == "a 1"], ["even", "even"])

    def test_unknown_fields_are_refused(self):
        with self.assertRaisesRegex(ValueError, "nosuch"):
            entry(nosuch=1)


class Rows(unittest.TestCase):
    def test_the_work_list_is_good(self):
        listed = rows.read((ROOT / "bench/peers/rows.txt").read_text(), tileproof.canonical)
        self.assertEqual(len(listed), len(set(listed)))
        for row in listed:
            problem.parse(row.text)
            self.assertEqual(tileproof.canonical(row.text), row.text)  # what is prepared is that text
        self.assertEqual({row.threads for row in rows.choose(listed, "", 1)}, {1})
        self.assertTrue(all("decode" in row.text for row in rows.choose(listed, "decode", 2)))

    def test_bad_lines_are_named(self):
        bad = {"1 | forward": "row 2 is", "0 | forward | q4": "row 2 is", "1 | sideways | q4": "sideways"}
        for line, rule in bad.items():
            with self.assertRaisesRegex(ValueError, rule):
                rows.read("# first\n" + line, tileproof.canonical)


class Same:
    """A peer that is tileproof itself, and takes so many minutes of the clock for a row."""

    def __init__(self, clock, minutes):
        self.clock, self.minutes, self.asked = clock, minutes, []

    def name(self):
        return "same 1"

    def variants(self, case, threads):
        self.asked.append(case.problem.q_len)
        self.clock.now += 60 * self.minutes
        ours = tileproof.variant(case, threads)
        return [timing.Variant("itself", ours.run, ours.output)]


class Stops(unittest.TestCase):
    """`make peers` with its worker in this process, a clock of its own, and one peer."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name) / "peers"
        self.list = self.build.with_name("rows.txt")
        self.list.write_text("1 | forward | h1/1 q4 k4 d64 f32\n1 | forward | h1/1 q5 k5 d64 f32\n1 | forward | h1/1 q6 k6 d64 f32\n")
        self.clock, self.deaths = types.SimpleNamespace(now=1e9), []
        self.clock.time = lambda: self.clock.now
        self.peer = Same(self.clock, 10)

    def worker(self, command, env):
        if self.deaths:
            self.deaths.pop()()
            return types.SimpleNamespace(returncode=-11)
        with mock.patch.object(sys, "argv", command[1:]):
            run.main()
        return types.SimpleNamespace(returncode=0)

    def make(self, *words):
        """(what it printed, how it ended, rows that the peer was asked for)"""
        self.peer.asked.clear()
        command = ["run.py", "--quick", "--rows", str(self.list), "--library", LIBRARY, "--build", str(self.build), "--peers", "same", *words]
        even = stats.Ratio(1.0, 0.9, 1.1)
        ended, printed = None, io.StringIO()
        with contextlib.ExitStack() as stack:
            for patch in (
                mock.patch.object(sys, "argv", command), mock.patch.object(run.subprocess, "run", self.worker), mock.patch.object(run, "time", self.clock),
                mock.patch.object(worker, "time", self.clock), mock.patch.object(worker, "say", lambda text: None),
                mock.patch.object(worker, "open_peers", lambda names, build: ({"same": self.peer}, {})),
                mock.patch.object(worker, "measure", lambda *x: (even, [1.0, 1.0], [1.0, 1.0], 5)), contextlib.redirect_stdout(printed),
            ):  # fmt: skip
                stack.enter_context(patch)
            try:
                run.main()
            except SystemExit as end:
                ended = end.code
        return printed.getvalue(), ended, list(self.peer.asked)

    def table(self):
        return [problem.parse(x["row"]).q_len for x in report.read_lines(self.build / "peers.jsonl")]

    def test_a_whole_run_writes_the_table_and_the_next_one_begins_anew(self):
        for _ in range(2):
            printed, ended, asked = self.make("--minutes", "100")
            self.assertEqual((ended, asked, self.table()), (None, [4, 5, 6], [4, 5, 6]))
            self.assertIn("even in 3", printed)
            self.assertEqual((self.build / "peers.md").read_text(), printed)
            self.assertFalse((self.build / "progress.jsonl").exists() or (self.build / "asked.json").exists())

    def test_a_run_that_is_stopped_leaves_the_table_and_goes_on(self):
        self.make("--minutes", "100")
        before = [(self.build / name).read_bytes() for name in ("peers.jsonl", "peers.md")]
        for more in ([], ["--append"]):
            stays = lambda: self.assertEqual([(self.build / name).read_bytes() for name in ("peers.jsonl", "peers.md")], before)
            printed, ended, asked = self.make("--minutes", "-1", *more)  # before its first row
            self.assertEqual((printed, asked), ("", []))
            self.assertRegex(ended, "stopped after -1 minutes with 3 of 3 rows left: the same command goes on; .*peers.jsonl is that of an earlier run")
            stays()
            printed, ended, asked = self.make("--minutes", "15", *more)
            self.assertEqual(asked, [4, 5])
            self.assertIn("even in 2", printed)
            self.assertIn("with 1 of 3 rows left", ended)
            stays()
            printed, ended, asked = self.make("--minutes", "15", *more)
            self.assertEqual((ended, asked, self.table()), (None, [6], [4, 5, 6]))
            self.assertIn("even in 3", printed)
            self.assertFalse((self.build / "progress.jsonl").exists())
            before = [(self.build / name).read_bytes() for name in ("peers.jsonl", "peers.md")]

    def test_a_first_run_that_is_stopped_writes_no_table(self):
        _, ended, _ = self.make("--minutes", "5")
        self.assertRegex(ended, "with 2 of 3 rows left: .*peers.jsonl comes with the last row")
        self.assertFalse((self.build / "peers.jsonl").exists() or (self.build / "peers.md").exists())

    def test_what_was_measured_counts_for_the_same_command_alone(self):
        for words, asked in (([], [6]), (["--fresh"], [4, 5, 6]), (["--match", "q6"], [6]), (["--seconds", "2"], [4, 5, 6])):
            self.make("--minutes", "15", "--fresh")
            with self.subTest(words):
                self.assertEqual(self.make("--minutes", "100", *words)[1:], (None, asked))
        self.assertEqual(self.table(), [4, 5, 6])
        self.make("--minutes", "15")
        self.list.write_text(self.list.read_text() + "# other rows\n")
        self.assertEqual(self.make("--minutes", "100")[2], [4, 5, 6])

    def test_what_a_run_depends_on(self):
        library = self.build.with_name("libtileproof.so")
        base = dict(match="", peers="a,b", quick=False, seconds=1.0, rows=self.list, library=library)
        of = lambda **other: run.asked(types.SimpleNamespace(**base | other))
        library.write_bytes(b"one")
        first = of()
        self.assertEqual(of(), first)
        for other in (dict(match="q4"), dict(peers="a"), dict(quick=True), dict(seconds=2.0)):
            self.assertNotEqual(of(**other), first)
        library.write_bytes(b"two")
        self.assertNotEqual(of(), first)

    def test_append_keeps_other_rows_of_a_whole_table(self):
        self.make("--minutes", "100")
        self.assertEqual(self.make("--minutes", "100", "--match", "q5", "--append")[1:], (None, [5]))
        self.assertEqual(self.table(), [4, 5, 6])
        self.make("--minutes", "100", "--match", "q5")
        self.assertEqual(self.table(), [5])

    def test_a_crash_is_a_line_and_the_others_go_on(self):
        def dies():
            row = rows.read(self.list.read_text(), tileproof.canonical)[0]
            report.write(self.build / "trying.json", json.dumps(dict(row=row.text, op="forward", phase="prefill", threads=1, peer="same 1")))

        self.deaths = [dies]
        printed, ended, asked = self.make("--minutes", "100")
        self.assertEqual((ended, asked, self.table()), (None, [5, 6], [4, 5, 6]))
        self.assertIn("not run here: crashed: SIGSEGV", printed)
        before = (self.build / "peers.jsonl").read_bytes()
        self.deaths = [lambda: None]  # of no peer: nobody knows why
        self.assertEqual(self.make("--minutes", "100", "--fresh")[1], 1)
        self.assertEqual((self.build / "peers.jsonl").read_bytes(), before)

    def test_no_peer_at_all(self):
        """With a worker of its own."""
        command = [sys.executable, ROOT / "bench/peers/run.py", "--peers", "nosuch,none", "--rows", self.list, "--library", LIBRARY, "--build", self.build]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertRegex(ended.stderr, "none of nosuch,none runs here: nothing was measured, .*peers.jsonl comes with the last row")


if __name__ == "__main__":
    unittest.main()
