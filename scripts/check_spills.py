#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disassembles the register tiles and fails when an inner loop keeps a vector on the stack.

    check_spills.py OBJECT...

Looks at scores_N, values_N, turned_N and their narrow forms in every object that has them: the loop with the most
multiply-adds must touch no stack slot with a vector register. Optimised builds only.
"""
import re
import subprocess
import sys

TILE = re.compile(r"^[0-9a-f]+ <((?:scores|values|turned)(?:_narrow)?_\d+)>:$")
LINE = re.compile(r"^\s+([0-9a-f]+):\s+(.*)$")
VECTOR = re.compile(r"%[xyz]mm\d+")


def functions(path):
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True).stdout
    name, lines = None, []
    for line in text.splitlines() + [""]:
        start = TILE.match(line)
        if start or not line.strip():
            if name:
                yield name, lines
            name, lines = (start.group(1), []) if start else (None, [])
        elif name and (match := LINE.match(line)):
            lines.append((int(match.group(1), 16), match.group(2)))


def inner_loop(lines):
    """The instructions between the target of a backward jump and the jump: the one with most arithmetic."""
    best = []
    for i, (address, text) in enumerate(lines):
        jump = re.match(r"j\w+\s+([0-9a-f]+)", text)
        if jump and int(jump.group(1), 16) < address:
            body = [t for a, t in lines[: i + 1] if a >= int(jump.group(1), 16)]
            if sum("mul" in t or "fma" in t for t in body) > sum("mul" in t or "fma" in t for t in best):
                best = body
    return best


checked, bad = 0, []
for path in ";".join(sys.argv[1:]).split(";"):
    for name, lines in functions(path):
        isa = re.search(r"kernels_(\w+)\.dir", path)
        where = f"{name} of {isa.group(1) if isa else path}"
        loop = inner_loop(lines)
        if not loop:
            bad.append(f"{where}: no loop found")
        # rbp is the stack only where the function makes it its frame
        framed = any(re.match(r"mov\s+%rsp,%rbp", t) for _, t in lines)
        stack = re.compile(r"\(%r[sb]p" if framed else r"\(%rsp")
        spills = [t for t in loop if VECTOR.search(t) and stack.search(t)]
        if spills:
            bad.append(f"{where}: {len(spills)} vector spills in its inner loop, such as '{spills[0]}'")
        checked += 1
print("\n".join(bad) if bad else f"{checked} register tiles keep their accumulators in registers")
sys.exit(bool(bad) or checked == 0)
