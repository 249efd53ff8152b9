#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package that is on sys.path: run.py numpy | torch | patch | models | flash | watch | transformers | types | all,
or run.py test_torch_watch.py, one file. "numpy" is what `make test` runs: Python and NumPy are enough."""
import importlib.util
import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
PARTS = {
    "numpy": ("test_numpy*.py",), "torch": ("test_torch*.py",), "all": ("test_*.py",),
    "models": ("test_torch_models.py",), "flash": ("test_torch_flash*.py",),
    "patch": ("test_torch_honest.py", "test_torch_patch.py", "test_torch_others.py", "test_torch_plain.py", "test_torch_threads.py"),
    "watch": ("test_torch_watch*.py",),
    "transformers": ("test_torch_hf_masks.py", "test_torch_hf_front.py"),
    "types": ("long_torch_hf_types.py",),
}  # fmt: skip

if __name__ == "__main__":
    which = sys.argv[1] if len(sys.argv) == 2 else ""
    if which not in PARTS and not (HERE / which).is_file():
        sys.exit(f"usage: run.py {' | '.join(PARTS)} | FILE of this folder")
    if importlib.util.find_spec("numpy") is None:
        sys.exit(f"{sys.executable} has no NumPy: `make test` finds or makes a Python that has it (scripts/python_env.py)")
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(loader.discover(str(HERE), pattern) for pattern in PARTS.get(which, (which,)))
    first = os.environ.get("TILEPROOF_TEST_QUICK") == "1"  # a mutant is found by one
    sys.exit(not unittest.TextTestRunner(verbosity=1, failfast=first).run(suite).wasSuccessful())
