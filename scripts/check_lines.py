#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No line of C, its tables and OpenCL kernels among it, and none of a document's paragraphs and lists, is longer than
.clang-format's ColumnLimit; each row of a table is one line, and numbered lists count up. check_lines.py [ROOT]"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
limit = int(re.search(r"^ColumnLimit: (\d+)$", (root / ".clang-format").read_text(), re.M)[1])
FOLDERS = ("bench", "cli", "examples", "harness", "include", "opencl", "proof", "python", "src", "tests")
SUFFIXES = {".c", ".h", ".inc", ".cl"}
paths = sorted(p for f in FOLDERS for p in (root / f).rglob("*") if p.suffix in SUFFIXES)
documents = sorted([*root.glob("*.md"), *(p for f in (*FOLDERS, "docs", "ops") for p in (root / f).rglob("*.md"))])
bad = []


def long(path, number, line, remedy=""):
    if len(line) > limit:
        bad.append(f"{path.relative_to(root)}:{number}: {len(line)} characters: a line has at most {limit}{remedy}")


for path in paths:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        long(path, number, line, f" (clang-format --lines={number}:{number})")
for path in documents:
    code = made = in_row = False
    item = 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        made = line.startswith("<!-- made by") or made and not line.startswith("<!-- end of")
        was_row, in_row = in_row, line.startswith("|") and not code
        if in_row and not line.endswith("|") or was_row and line and not in_row:
            bad.append(f"{path.relative_to(root)}:{number}: a row of a table is one line")
        if line.startswith("#"):
            item = 0
        elif (numbered := re.match(r"(\d+)\. ", line)) and not code:
            if int(numbered[1]) not in (1, item + 1):
                bad.append(f"{path.relative_to(root)}:{number}: item {numbered[1]} of a list after item {item}: is one within a line?")
            item = int(numbered[1])
        if not (code or made or in_row or line.startswith("    ")) and " " in line.strip():  # a link does not break
            long(path, number, line)
print("\n".join(bad) or f"{len(paths)} files and {len(documents)} documents, no line beyond {limit} characters")
sys.exit(bool(bad) or not paths or not documents)
