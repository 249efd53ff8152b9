#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arrows go one way: which folder of src/ may include which; cli/, proof/ and python/ see public headers. See ARCHITECTURE.md."""
import pathlib
import re
import sys

ALLOWED = {
    "base": set(),
    "kernels": {"base"},
    "masks": {"base"},
    "problem": {"base", "masks"},
    "machine": {"base"},
    "reference": {"base", "masks", "problem"},
    "strategies": {"base", "kernels", "masks", "problem"},
    "plan": {"base", "kernels", "masks", "problem", "strategies"},
    "telemetry": {"base", "kernels", "masks", "problem", "strategies"},
    "api": {"base", "kernels", "masks", "problem", "machine", "strategies", "plan", "telemetry", "reference"},
}
root = pathlib.Path(__file__).resolve().parent.parent
include = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
bad, seen = [], 0
OUTSIDE = {"cli", "harness", "proof", "python"}  # see the public headers, their own folder and SHARED
SHARED = {"cli": "harness", "proof": "harness", "harness": "harness"}
PUBLIC = {"tileproof.h", "tileproof_proof.h"}
for path in sorted((root / "src").rglob("*.[chi]*")) + [p for d in sorted(OUTSIDE) for p in sorted((root / d).rglob("*.[chi]*"))]:
    if path.suffix not in {".c", ".h", ".inc"}:
        continue
    parts = path.relative_to(root).parts
    for name in include.findall(path.read_text()):
        seen += 1
        if name == "tileproof.h" or (parts[0] in OUTSIDE and name in PUBLIC):
            continue
        if parts[0] in OUTSIDE:
            generated = parts[0] == "cli" and not (root / "src" / name).exists()
            shared = name.startswith(f"{SHARED.get(parts[0])}/") and (root / name).exists()
            own = (path.parent / name).exists() or (root / parts[0] / name).exists()
            if not generated and not shared and not own:
                bad.append(f"{'/'.join(parts)} includes {name}: {parts[0]}/ sees the public headers only")
            continue
        folder = name.split("/")[0]
        if folder != parts[1] and folder not in ALLOWED.get(parts[1], set()):
            bad.append(f"{'/'.join(parts)} includes {name}: {parts[1]} may include {sorted(ALLOWED.get(parts[1], []))}")
    if parts[0] == "src" and "kernels/vec" not in str(path) and re.search(r"immintrin|_mm\d*_", path.read_text()):
        bad.append(f"{'/'.join(parts)} has intrinsics: they belong in src/kernels/vec")
print("\n".join(bad) if bad else f"{seen} include lines keep the arrows")
sys.exit(bool(bad) or not seen)
