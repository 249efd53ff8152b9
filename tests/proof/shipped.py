#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shipped models against what is published of them, written here by hand and not by the tool.

    shipped.py PATH/TO/tileproof MODELS_DIR
"""
import json
import math
import pathlib
import subprocess
import sys

# file: [(part, layers in the group, heads, kv heads, d_qk, d_v, formula, window or chunk, 1/scale^2, extras)]
C, CW = "causal", "causal & window"


def text(layers, h, kv, d, formula=C, width=None, scalar=None, extras="", dv=None):
    return ("text", layers, h, kv, d, dv or d, formula, width, scalar or d, extras)


def vision(layers, h, d, formula="full", part="vision"):
    return (part, layers, h, h, d, d, formula, None, d, "")


def gemma2(layers, h, kv, d, scalar):
    return [text(layers // 2, h, kv, d, CW, [4095, 0], scalar, "softcap"), text(layers // 2, h, kv, d, C, None, scalar, "softcap")]


def gemma3(layers, h, kv, d, scalar):
    full = layers // 6
    return [text(layers - full, h, kv, d, "(causal & window) | same-span", [1023, 0], scalar),
            text(full, h, kv, d, "causal | same-span", None, scalar), vision(27, 16, 72)]


def oss(layers):
    return [text(layers // 2, 64, 8, 64, CW, [127, 0], extras="sinks"), text(layers // 2, 64, 8, 64, extras="sinks")]


def latent(layers, h, mscale):
    factor = (0.1 * mscale * math.log(40) + 1) ** 2
    return [text(layers, h, h, 192, scalar=192 / factor**2, dv=128)]


EXPECTED = {
    "llama-3.1-8b": [text(32, 32, 8, 128)], "llama-3.1-70b": [text(80, 64, 8, 128)],
    "llama-3.2-1b": [text(16, 32, 8, 64)], "llama-3.2-3b": [text(28, 24, 8, 128)],
    "mistral-7b-v0.1": [text(32, 32, 8, 128, CW, [4095, 0])], "mistral-7b-v0.3": [text(32, 32, 8, 128)],
    "mixtral-8x7b-v0.1": [text(32, 32, 8, 128)],
    "ministral-3-3b-2512": [text(26, 32, 8, 128, extras="query_scale"), vision(24, 16, 64, "same-segment")],
    "gemma-2b": [text(18, 8, 1, 256)],
    "gemma-2-2b": gemma2(26, 8, 4, 256, 256), "gemma-2-9b": gemma2(42, 16, 8, 256, 256),
    "gemma-2-27b": gemma2(46, 32, 16, 128, 144), "gemma-2-2b-jpn-it": gemma2(26, 8, 4, 256, 224),
    "gemma-3-1b-it": [text(22, 4, 1, 256, CW, [511, 0]), text(4, 4, 1, 256)],
    "gemma-3-4b-it": gemma3(34, 8, 4, 256, 256), "gemma-3-12b-it": gemma3(48, 16, 8, 256, 256),
    "gemma-3-27b-it": gemma3(62, 32, 16, 128, 168),
    "qwen2.5-7b": [text(28, 28, 4, 128)], "qwen2.5-0.5b": [text(24, 14, 2, 64)], "qwen2.5-3b": [text(36, 16, 2, 128)],
    "qwen3-0.6b": [text(28, 16, 8, 128)], "qwen3-1.7b": [text(28, 16, 8, 128)],
    "qwen2-vl-7b": [text(28, 28, 4, 128, extras="mrope"), vision(32, 16, 80, "same-segment")],
    "qwen2.5-vl-7b": [text(28, 28, 4, 128, extras="mrope"), vision(28, 16, 80, "same-segment"), vision(4, 16, 80, "same-segment")],
    "qwen3-vl-2b": [text(28, 16, 8, 128, extras="mrope"), vision(24, 16, 64, "same-segment")],
    "phi-3.5-mini": [text(32, 32, 32, 96, CW, [262143, 0])], "phi-4-mini": [text(32, 24, 8, 128, CW, [262143, 0])],
    "deepseek-v3": latent(61, 128, 1.0), "deepseek-v2-lite": latent(27, 16, 0.707),
    "gpt-oss-20b": oss(24), "gpt-oss-120b": oss(36),
    "gpt-neox-20b": [text(44, 64, 64, 96)], "gpt-j-6b": [text(28, 16, 16, 256)], "gpt2": [text(12, 12, 12, 64)],
    "falcon-7b": [text(32, 71, 1, 64)], "falcon-40b": [text(60, 128, 8, 64)],
    "mpt-7b": [text(32, 32, 32, 128, extras="alibi")],
    "paligemma-3b-pt-224": [text(18, 8, 1, 256, "causal | prefix"), vision(27, 16, 72)],
    "llama-4-scout": [text(36, 40, 8, 128, "causal & chunk", 8192), text(12, 40, 8, 128, extras="query_scale"), vision(34, 16, 88)],
    "whisper-large-v3": [text(32, 20, 20, 64), vision(32, 20, 64, part="audio"), vision(32, 20, 64, part="cross")],
    "aya-23-8b": [text(32, 32, 8, 128)], "olmo-2-7b": [text(32, 32, 32, 128)],
    "arctic-embed-m": [text(12, 12, 12, 64, "full")],
}


def extras_of(group):
    names = [n for n in ("softcap", "sinks", "alibi", "query_scale") if group.get(n)]
    return " ".join(names + (["mrope"] if "mrope_section" in group["rope"] else []))


def compare(got, wanted):
    part, layers, h, kv, d, dv, formula, width, scalar, extras = wanted
    mask = got["mask"]
    pairs = [("part", got["part"], part), ("layers", got["layer_count"], layers), ("heads", (got["q_heads"], got["kv_heads"]), (h, kv)),
             ("dims", (got["head_dim_qk"], got["head_dim_v"]), (d, dv)), ("formula", mask["formula"], formula),
             ("width", mask.get("window", mask.get("chunk")), width), ("extras", extras_of(got), extras),
             ("scale", f'{got["scale"]:.6g}', f"{1 / math.sqrt(scalar):.6g}")]
    return [f"{name} is {one}, expected {other}" for name, one, other in pairs if one != other]


def main():
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    files = sorted(folder.glob("*.json"))
    bad = [f"{p.stem}: shipped, but not expected here" for p in files if p.stem not in EXPECTED]
    bad += [f"{n}: expected, but not shipped" for n in EXPECTED if not (folder / f"{n}.json").exists()]
    models = json.loads(subprocess.run([tool, "model", "-o", "json", *map(str, files)], check=True, capture_output=True).stdout)
    for path, model in zip(files, models):
        wanted = EXPECTED.get(path.stem, [])
        if "_source" not in json.loads(path.read_text()):
            bad.append(f"{path.stem}: no _source")
        if len(wanted) != len(model["groups"]):
            bad.append(f"{path.stem}: {len(model['groups'])} groups, expected {len(wanted)}")
        for i, (got, one) in enumerate(zip(model["groups"], wanted)):
            bad += [f"{path.stem} group {i}: {text}" for text in compare(got, one)]
    print("\n".join(bad) if bad else f"{len(files)} models, {sum(len(m['groups']) for m in models)} groups as published")
    return bool(bad) or len(files) < 24


if __name__ == "__main__":
    sys.exit(main())
