# SPDX-License-Identifier: Apache-2.0
"""The incident inside a PyTorch service: a config changes, everything still answers, another kernel serves or another class is
asked for. The watcher drifts, its metrics move, and the alerts of ops/ fire on them under promtool; before, none does."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import small_models
import tileproof
from torch.nn.attention import SDPBackend, sdpa_kernel
from test_torch_watch import setUpModule, tearDownModule  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMTOOL = shutil.which("promtool", path=f"{os.environ.get('PATH', '')}:{ROOT / 'build/tools'}")


class Incident(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if PROMTOOL is None:
            raise unittest.SkipTest("not run here: promtool is not installed (Debian: prometheus)")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.lock, cls.before = cls.path("lock"), cls.path("before.prom")
        with tileproof.watch() as seen:
            small_models.generate(small_models.llama())
        seen.save_lock(cls.lock)
        with tileproof.watch(lock=cls.lock, on_drift="raise", metrics=cls.before):
            small_models.generate(small_models.llama())

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def alerts(self, after, *expected):
        """Does promtool see exactly these alerts fire?"""
        story = [sys.executable, ROOT / "tests/ops/story.py", ROOT / "ops/alerts.yml", self.before, after, *expected]
        pathlib.Path(self.path("story.yml")).write_text(subprocess.run(story, capture_output=True, text=True, check=True).stdout)
        done = subprocess.run([PROMTOOL, "test", "rules", self.path("story.yml")], capture_output=True, text=True)
        return "SUCCESS" in done.stdout, done.stdout + done.stderr

    def test_nothing_happened(self):
        held, text = self.alerts(self.before)
        self.assertTrue(held, text)
        self.assertFalse(self.alerts(self.before, "TileproofRefused")[0])  # and it can fail
        with open(self.before) as metrics:
            checked = subprocess.run([PROMTOOL, "check", "metrics"], stdin=metrics, capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_another_head_dim_is_refused(self):
        after = self.path("refused.prom")
        with tileproof.watch(lock=self.lock, on_drift="raise", metrics=after):
            with self.assertRaisesRegex(tileproof.watch.DriftError, "d32"):
                small_models.generate(small_models.llama(head_dim=32))
        held, text = self.alerts(after, "TileproofRefused:engine=torch,reason=not_locked,phase=prefill,model=LlamaForCausalLM", "TileproofLockDrift")
        self.assertTrue(held, text)

    def test_another_kernel_is_counted(self):
        after = self.path("served.prom")
        with tileproof.watch(lock=self.lock, on_drift="count", metrics=after) as seen, sdpa_kernel(SDPBackend.MATH):
            small_models.generate(small_models.llama())
        self.assertEqual(seen.drifted, 12)
        mix = [f"TileproofKernelMixChanged:kernel={kernel},phase={phase}" for kernel in ("math", "flash_for_cpu") for phase in ("prefill", "decode")]
        fallbacks = [f"TileproofNewFallback:kernel=math,reason=switch,phase={phase}" for phase in ("prefill", "decode")]
        held, text = self.alerts(after, "TileproofLockDrift", "~TileproofP99Shifted", *fallbacks, *mix)
        self.assertTrue(held, text)


if __name__ == "__main__":
    unittest.main()
