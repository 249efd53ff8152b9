# SPDX-License-Identifier: Apache-2.0
"""Metrics, flight recorder, trace and events."""
import json
import os
import sys
import threading
import unittest

import numpy as np
import tileproof

X = np.ones((1, 4, 2, 8), np.float32)
WIDE = np.ones((1, 2, 1, 640), np.float32)  # no fused kernel serves it


def value(text, start):
    """The sum of the series that start so."""
    return sum(float(x.rpartition(" ")[2]) for x in text.splitlines() if x.startswith(start))


class Metrics(unittest.TestCase):
    def test_they_are_the_sum_over_all_numbers_of_threads(self):
        before = tileproof.metrics()
        for threads in (1, 2, 2, 3):
            tileproof.attention(X, X, X, threads=threads)
        tileproof.attention(WIDE, WIDE, WIDE, fallback="permit", threads=2)
        with self.assertRaises(tileproof.FallbackRefused):
            tileproof.attention(WIDE, WIDE, WIDE, threads=1)
        after = tileproof.metrics()
        grown = lambda name: value(after, name) - value(before, name)
        self.assertEqual(grown("tileproof_calls_total"), 5)
        self.assertEqual(grown('tileproof_calls_total{kernel="math"'), 1)
        self.assertEqual(grown("tileproof_fallbacks_total"), 1)
        self.assertEqual(grown("tileproof_refusals_total"), 1)
        self.assertEqual(grown("tileproof_call_seconds_count"), 5)
        self.assertGreater(grown("tileproof_call_seconds_total"), 0)
        self.assertEqual(value(after, "tileproof_build_info"), 1)  # a gauge: no sum

    def test_nothing_is_lost_with_a_context(self):
        before = value(tileproof.metrics(), "tileproof_calls_total")
        for threads in (*range(1, 15), 1):
            tileproof.attention(X, X, X, threads=threads)
        self.assertLess(len(tileproof._core.telemetry(False)), 14)
        self.assertEqual(value(tileproof.metrics(), "tileproof_calls_total") - before, 15)

    def test_the_text_is_prometheus(self):
        tileproof.attention(X, X, X, threads=1)
        tileproof.attention(WIDE, WIDE, WIDE, fallback="permit", threads=2)  # series that the first context may not have
        families, series = [], set()
        for line in tileproof.metrics().splitlines():
            if line.startswith("# HELP "):
                families.append(line.split()[2])
            elif line.startswith("# TYPE "):
                self.assertEqual(line.split()[2], families[-1])
            else:
                name = line.partition("{")[0].split()[0]
                self.assertTrue(name.startswith(families[-1]), line)
                self.assertNotIn(line.rpartition(" ")[0], series)
                series.add(line.rpartition(" ")[0])
        self.assertEqual(len(families), len(set(families)))

    def test_the_recorder_has_the_last_calls_of_all(self):
        for threads in (2, 1):
            tileproof.attention(X, X, X, threads=threads, scale=0.25 * threads)
        last = tileproof.recorder()[-2:]
        self.assertEqual([x["problem"].split()[-1] for x in last], ["scale=0.5", "scale=0.25"])
        self.assertTrue(all(x["status"] == "TP_OK" for x in last))

    def test_a_child_starts_anew(self):
        tileproof.attention(X, X, X, threads=1)
        child = os.fork()
        if child == 0:
            fine = tileproof.metrics() == "" and tileproof.recorder() == []
            tileproof.attention(X, X, X, threads=1)
            os._exit(0 if fine and value(tileproof.metrics(), "tileproof_calls_total") == 1 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class Listening(unittest.TestCase):
    def test_a_trace_has_a_line_for_each_call(self):
        lines, other = [], []
        tileproof.attention(X, X, X)
        with tileproof.trace(lines.append):
            tileproof.attention(X, X, X, causal=True)
            with tileproof.trace(other.append):
                many = [threading.Thread(target=lambda: tileproof.attention(X, X, X, scale=0.5)) for _ in range(4)]
                [x.start() for x in many]
                [x.join() for x in many]
            tileproof.plan(X, X, softcap=2.0).run(X, X, X)
            with self.assertRaises(tileproof.FallbackRefused):
                tileproof.attention(WIDE, WIDE, WIDE)
        tileproof.attention(X, X, X)
        problems = [json.loads(x)["problem"].split()[-1] for x in lines]
        self.assertEqual(problems, ["causal", *["scale=0.5"] * 4, "softcap=2", "f32"])
        self.assertEqual(json.loads(lines[-1])["status"], "TP_FALLBACK_REFUSED")
        self.assertEqual(len(other), 4)
        self.assertTrue(all(x.endswith("}\n") for x in lines))

    def test_tags_say_whose_call_it_is(self):
        lines = []
        whose = dict(model="a model", layer=3, request="r-7")
        before = tileproof.metrics()
        with tileproof.trace(lines.append):
            tileproof.attention(X, X, X, tags=whose)
            tileproof.attention(X, X, X, tags=dict(layer=0))
            tileproof.plan(X, X).run(X, X, X, tags=dict(model="a model"))
        first, second, third = map(json.loads, lines)
        self.assertEqual({x: first[x] for x in whose}, whose)
        self.assertEqual((second["layer"], "model" in second, third["model"], "layer" in third), (0, False, "a model", False))
        grown = lambda text: value(tileproof.metrics(), text) - value(before, text)
        self.assertEqual(sum(x.startswith("tileproof_calls_total{") and 'model="a model"' in x for x in tileproof.metrics().splitlines()) > 0, True)
        self.assertEqual(grown("tileproof_calls_total"), 3)
        for bad, kind, text in (
            ("x", ValueError, "tags is 'x': it must be None or a dict with model, layer and request"),
            (dict(user="x"), ValueError, "tags is .*: it must be None or a dict"),
            (dict(model=""), ValueError, "tags: model is '': it must be a text of 1 to 63 bytes"),
            (dict(request="x" * 64), ValueError, "tags: request is .*: it must be a text of 1 to 63 bytes"),
            (dict(model="a\0b"), ValueError, "tags: model is .*: it must be a text"),
            (dict(model=7), ValueError, "tags: model is 7"),
            (dict(layer=-1), ValueError, "tags: layer is -1: it must be at least 0"),
            (dict(layer="x"), TypeError, "tags: layer is 'x': it must be an integer"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                tileproof.attention(X, X, X, tags=bad)

    def test_events(self):
        heard = []
        with tileproof.events(lambda *event: heard.append(event)):
            tileproof.attention(X, X, X)
            tileproof.attention(WIDE, WIDE, WIDE, fallback="permit")
            out, receipt = tileproof.attention(WIDE, WIDE, WIDE, fallback="serve", return_receipt=True)
            with self.assertRaises(tileproof.FallbackRefused):
                tileproof.attention(WIDE, WIDE, WIDE)
        self.assertTrue(receipt.fallback)
        self.assertEqual([x[0] for x in heard], ["fallback", "refused"])
        self.assertEqual((heard[0][1].kernel, heard[0][2].kernel), ("math", "math"))
        self.assertIsNone(heard[1][2])
        self.assertIn("head_dim", str(heard[1][1].candidates))

    def test_what_a_listener_raises_stops_nothing(self):
        raised, before = [], sys.unraisablehook
        sys.unraisablehook = lambda x: raised.append(str(x.exc_value))
        try:
            with tileproof.trace(lambda line: 1 / 0):
                out = tileproof.attention(X, X, X)
            with tileproof.trace(lambda line: tileproof.attention(X, X, X)):  # from inside a call
                tileproof.attention(X, X, X)
        finally:
            sys.unraisablehook = before
        self.assertTrue((out == 1).all())
        self.assertEqual(raised[0], "division by zero")
        self.assertEqual(len(raised), 2)
        for listen in (tileproof.trace, tileproof.events):
            with self.assertRaisesRegex(TypeError, "3 is no function: it must be callable"), listen(3):
                pass


if __name__ == "__main__":
    unittest.main()
