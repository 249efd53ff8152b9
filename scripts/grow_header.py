#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a public header as a later version may have it: every struct with a struct_size has one field more at its end.

    grow_header.py HEADER OUT

tests/growth builds the library with such headers, and programs with the one kind against libraries of the other.
"""
import pathlib
import re
import sys

SIZED = re.compile(r"^((?:typedef )?struct (tp_\w+) \{\n    uint32_t struct_size;.*?)(^\})", re.M | re.S)

text = pathlib.Path(sys.argv[1]).read_text()
names = [match[1] for match in SIZED.findall(text)]
if not names or len(names) != len(re.findall(r"^\s+uint32_t struct_size;", text, re.M)):
    sys.exit(f"{sys.argv[1]}: a struct with struct_size was not understood; those that were: {' '.join(names)}")
text = SIZED.sub(r"\1    int64_t grown;\n\3", text)
rows = " ".join(f"X({name})" for name in names)
macro = re.sub(r"\W", "_", pathlib.Path(sys.argv[1]).stem.upper())
text = re.sub(r"^(#define \w+_H)$", rf"\1\n#define {macro}_GROWN(X) {rows}", text, count=1, flags=re.M)
out = pathlib.Path(sys.argv[2])
out.parent.mkdir(parents=True, exist_ok=True)
out.write_text(text)
