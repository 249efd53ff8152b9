#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disassembles the register tiles and fails when an inner loop keeps a vector on the stack.

    check_spills.py OBJECT...

Looks at the tiles of KINDS, scores_N and scores_narrow_N and so on, in every object that has them: the loop with the most
multiply-adds must touch no stack slot with a vector register. A kind that no object has fails too. Optimised builds only.
"""
import re
import subprocess
import sys

KINDS = ["scores", "values", "gemm_tn"]  # src/kernels/gemm.h
PAIRS = ["scores_dot", "scores_fma", "values_dot", "values_fma", "values_ordered", "pair_tn"]  # src/kernels/bf16, where its objects are given
TILE = re.compile(rf"^[0-9a-f]+ <(({'|'.join(KINDS + PAIRS)})(?:_narrow)?_\d+)>:$")
LINE = re.compile(r"^\s+([0-9a-f]+):\s+(.*)$")
VECTOR = re.compile(r"%[xyz]mm\d+")


def functions(path):
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True).stdout
    name, kind, lines = None, None, []
    for line in text.splitlines() + [""]:
        start = TILE.match(line)
        if start or not line.strip():
            if name:
                yield name, kind, lines
            name, kind, lines = (*start.groups(), []) if start else (None, None, [])
        elif name and (match := LINE.match(line)):
            lines.append((int(match.group(1), 16), match.group(2)))


def arithmetic(body):
    return sum(any(op in text for op in ("mul", "fma", "dpbf16")) for text in body)


def inner_loop(lines):
    """The instructions between the target of a backward jump and the jump: the one with most arithmetic."""
    best = []
    for i, (address, text) in enumerate(lines):
        jump = re.match(r"j\w+\s+([0-9a-f]+)", text)
        if jump and int(jump.group(1), 16) < address:
            body = [t for a, t in lines[: i + 1] if a >= int(jump.group(1), 16)]
            if arithmetic(body) > arithmetic(best):
                best = body
    return best


checked, bad, seen = 0, [], set()
for path in ";".join(sys.argv[1:]).split(";"):
    for name, kind, lines in functions(path):
        seen.add(kind)
        isa = re.search(r"kernels_(\w+)\.dir", path)
        where = f"{name} of {isa.group(1) if isa else path}"
        loop = inner_loop(lines)
        if not loop:
            bad.append(f"{where}: no loop found")
        # rbp is the stack only where the function makes it its frame
        framed = any(re.match(r"mov\s+%rsp,%rbp", t) for _, t in lines)
        stack = re.compile(r"\(%r[sb]p" if framed else r"\(%rsp")
        spills = [t for t in loop if VECTOR.search(t) and stack.search(t) and not t.startswith("vmovq")]  # vmovq: a pointer
        if spills:
            bad.append(f"{where}: {len(spills)} vector spills in its inner loop, such as '{spills[0]}'")
        checked += 1
wanted = KINDS + PAIRS * any("kernels_avx512_bf16.dir" in path for path in sys.argv)
bad += [f"{kind}: no object has such a tile" for kind in wanted if kind not in seen]
print("\n".join(bad) if bad else f"{checked} register tiles keep their accumulators in registers")
sys.exit(bool(bad))
