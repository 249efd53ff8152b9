#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package that is on sys.path: run.py numpy | torch | all
"numpy" is what `make test` runs: Python and NumPy are enough. Exit code 77, which ctest shows as skipped, without NumPy."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
PARTS = {"numpy": ("test_numpy*.py",), "torch": ("test_torch*.py",), "all": ("test_*.py",)}

if __name__ == "__main__":
    which = sys.argv[1] if len(sys.argv) == 2 else ""
    if which not in PARTS:
        sys.exit(f"usage: run.py {' | '.join(PARTS)}")
    try:
        import numpy
    except ImportError:
        print("not run here: numpy is not installed")
        sys.exit(77)
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(loader.discover(str(HERE), pattern) for pattern in PARTS[which])
    sys.exit(not unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful())
