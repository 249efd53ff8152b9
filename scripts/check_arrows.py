#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arrows go one way: each folder includes headers of its own and of those that SEES lists for it. The table of ARCHITECTURE.md
names the same folders."""
import pathlib
import re
import sys

# public headers, which stand for the libraries
CORE, BACKEND, CACHE, ROPE = "tileproof.h", "tileproof_backend.h", "tileproof_cache.h", "tileproof_rope.h"
PROOF, OPENCL = "tileproof_proof.h", "tileproof_opencl.h"
INSIDE = ["base", "quant", "kernels", "masks", "problem", "rope", "machine", "device", "reference", "strategies", "plan", "telemetry",
          "kvcache", "api"]  # of src/
SEES = {
    "src/base": {CORE, BACKEND, CACHE, ROPE},
    "src/quant": {CORE, "src/base"},
    "src/kernels": {CORE, "src/base"},
    "src/masks": {CORE, "src/base"},
    "src/problem": {CORE, "src/base", "src/masks", "src/quant"},
    "src/rope": {CORE, ROPE, "src/base", "src/problem"},
    "src/machine": {CORE, "src/base"},
    "src/device": {CORE, BACKEND, "src/base"},
    "src/reference": {CORE, "src/base", "src/masks", "src/problem", "src/quant"},
    "src/strategies": {CORE, "src/base", "src/kernels", "src/masks", "src/problem"},
    "src/plan": {CORE, "src/base", "src/device", "src/kernels", "src/masks", "src/problem", "src/strategies"},
    "src/telemetry": {CORE, "src/base", "src/device", "src/kernels", "src/masks", "src/problem", "src/strategies"},
    "src/kvcache": {CORE, CACHE, ROPE, "src/base", "src/problem", "src/quant", "src/rope", "src/telemetry"},
    "src/api": {CORE} | {f"src/{folder}" for folder in INSIDE},
    "harness": {CORE},
    "proof": {CORE, CACHE, ROPE, PROOF, "harness"},
    "opencl": {CORE, BACKEND, OPENCL},
    "cli": {CORE, BACKEND, CACHE, PROOF, OPENCL, "harness"},
    "python": {CORE, PROOF},
    "examples": {CORE, CACHE, ROPE, PROOF},
    "tests": {CORE, BACKEND, CACHE, ROPE, PROOF, OPENCL, "harness", "proof", "cli", "opencl"} | {f"src/{folder}" for folder in INSIDE},
    "include": {CORE, BACKEND, CACHE, ROPE},
}
BASES = ["include", "src", "cli", "tests", "."]  # where includes are looked up, behind the file's own folder
root = pathlib.Path(__file__).resolve().parent.parent
include = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def area(path):
    """The row of SEES that a file belongs to."""
    parts = path.relative_to(root).parts
    return parts[-1] if parts[0] == "include" else "/".join(parts[:2]) if parts[0] == "src" else parts[0]


def find(path, name):
    places = [path.parent / name] + [root / base / name for base in BASES]
    return next((place.resolve() for place in places if place.exists()), None)


bad, seen = [], 0
for path in sorted(p for top in sorted({key.split("/")[0] for key in SEES}) for p in (root / top).rglob("*.*")):
    if path.suffix not in {".c", ".h", ".inc"}:
        continue
    name, own = path.relative_to(root), "include" if path.parent.name == "include" else area(path)
    text = path.read_text()
    for included in include.findall(text):
        seen += 1
        target = find(path, included)
        if not target:
            bad.append(f"{name} includes {included}: there is no such file")
        elif area(target) != own and area(target) not in SEES[own]:
            bad.append(f"{name} includes {included}: {own} sees {', '.join(sorted(SEES[own]))} and itself")
    if own.startswith("src/") and "kernels/vec" not in str(path) and re.search(r"immintrin|_mm\d*_", text):
        bad.append(f"{name} has intrinsics: they belong in src/kernels/vec")
table = dict(re.findall(r"^\| \[`([\w/]+)`\].*\| ([^|]+) \|$", (root / "ARCHITECTURE.md").read_text(), re.M))
bad += [f"ARCHITECTURE.md: its table has no row of {own}" for own in SEES if own.startswith("src/") and own not in table]
for own, words in table.items():
    said = {x for x in SEES if re.search(rf"\b{x.removeprefix('src/')}\b", words)}
    sees = {x for x in SEES[own] if x in SEES}
    if said != sees and not words.startswith("every"):
        bad.append(f"ARCHITECTURE.md says that {own} may include {words}, and SEES {', '.join(sorted(sees)) or 'nothing'}")
print("\n".join(bad) if bad else f"{seen} include lines keep the arrows, and the table of ARCHITECTURE.md has them")
sys.exit(bool(bad) or not seen)
