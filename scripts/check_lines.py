#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No line of C, its tables and OpenCL kernels among it, is longer than .clang-format's ColumnLimit. check_lines.py [ROOT]"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
limit = int(re.search(r"^ColumnLimit: (\d+)$", (root / ".clang-format").read_text(), re.M)[1])
FOLDERS = ("bench", "cli", "examples", "harness", "include", "opencl", "proof", "python", "src", "tests")
SUFFIXES = {".c", ".h", ".inc", ".cl"}
paths = sorted(p for f in FOLDERS for p in (root / f).rglob("*") if p.suffix in SUFFIXES)
bad = [
    f"{path.relative_to(root)}:{number}: {len(line)} characters: a line has at most {limit} (clang-format --lines={number}:{number})"
    for path in paths
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if len(line) > limit
]
print("\n".join(bad) or f"{len(paths)} files, no line beyond {limit} characters")
sys.exit(bool(bad) or not paths)
