# SPDX-License-Identifier: Apache-2.0
"""docs/results.md is what bench/results says, and lines go to the file of their host and day."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import results  # noqa: E402


def goal(**values):
    known = dict(kind="goal", name="a", kernel="avx2", figure=70.0, low=69.0, high=71.0, of_best=72.0, floor=60.0, aim=None, floor_met="met",
                 aim_met=None, metric="pct_fma", version="1", host="Some CPU", machine="x86-64 isa=avx2 threads=2", date="2026-01-02T03:04:05Z")
    return known | values


def peer(**values):
    known = dict(kind="peer", row="prefill b1 h1/1 q4 k4 d64 f32", threads=1, peer="torch 2", verdict="behind", ours_ns=1e6, ratio=0.5, ratio_lo=0.4,
                 ratio_hi=0.6, host="Some CPU, 2 CPUs, Linux", machine="x86-64 isa=avx2 threads=2", date="2026-01-02")
    return known | values


class Results(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.kept = results.ROOT, results.FOLDER, results.PAGE
        results.ROOT, results.FOLDER, results.PAGE = self.root, self.root / "results", self.root / "results.md"

    def tearDown(self):
        results.ROOT, results.FOLDER, results.PAGE = self.kept
        self.folder.cleanup()

    def add(self, *lines):
        path = self.root / "new.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        results.main(["add", str(path)])
        return results.PAGE.read_text()

    def test_goals_and_peers_of_a_host_share_a_file_and_other_hosts_have_their_own(self):
        self.add(goal(), peer(), goal(machine="x86-64 isa=avx2,avx512"), goal(machine="x86-64 isa=avx2 threads=2 l1d=49152 l2=1"))
        names = sorted(path.name for path in results.FOLDER.iterdir())
        self.assertEqual(names, ["some-cpu-avx2-2026-01-02.jsonl", "some-cpu-avx2-avx512-2026-01-02.jsonl",
                                 "some-cpu-avx2-l1d48k-2026-01-02.jsonl"])
        self.assertEqual(len((results.FOLDER / names[0]).read_text().splitlines()), 2)

    def test_the_newest_line_of_a_goal_is_shown_with_its_day(self):
        self.add(goal(figure=80.0, date="2026-01-05T00:00:00Z"))
        text = self.add(goal(), goal(name="b", date="2026-01-04T00:00:00Z"))
        self.assertIn("last run 2026-01-04 to 2026-01-05", text)
        self.assertIn("| a | avx2 | 80.0 [69.0, 71.0] | 72.0 | 60.00 | - | met |", text)
        text = self.add(goal(figure=81.0, date="2026-01-05T09:00:00Z"))
        self.assertIn("| a | avx2 | 81.0 ", text)

    def test_a_loss_is_bold_and_counted(self):
        text = self.add(peer(), peer(threads=2, verdict="ahead", ratio=2.0, ratio_lo=1.5, ratio_hi=2.5))
        self.assertIn("| prefill h1/1 q4 k4 d64 f32 | 1 | 1.000 | **0.50** [0.40, 0.60] |", text)
        self.assertIn("Ahead in 1, even in 0, behind in 1.", text)

    def test_other_lines_are_refused_by_place(self):
        with self.assertRaisesRegex(SystemExit, "new.jsonl:2: kind is 'rate'"):
            self.add(goal(), goal(kind="rate"))

    def test_a_stale_page_is_found(self):
        self.add(goal())
        results.main(["check"])
        results.PAGE.write_text("old")
        with self.assertRaisesRegex(SystemExit, "is not what bench/results says"):
            results.main(["check"])


class Kept(unittest.TestCase):
    def test_the_document_is_what_the_files_say(self):
        results.main(["check"])


if __name__ == "__main__":
    unittest.main()
