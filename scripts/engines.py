#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make engines`: the shipped models by every engine of this host, in one table.

    python3 scripts/engines.py [--quick] [--engines torch,ggml] [--phases prefill,decode] [MODEL ...]

A row a layer group and phase, a column an engine: kernel observed, right or not, temporary memory, time. Engines are those of
build/peers (bench/peers/setup.py). Finished cells are kept in build/engines and not run again; --fresh forgets them."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/engines"
PEERS = ROOT / "build/peers"
TOOL = ROOT / "build/main/tileproof"
ENGINES = ("tileproof", "torch", "flex", "onnxruntime", "openvino", "vllm", "ggml", "flash_attn")
MARKS = {"QUALIFIED": "right", "QUALIFIED_FALLBACK": "right, unfused", "NUMERIC_FAIL": "**WRONG**", "UNSUPPORTED": "refused",
         "MISTRUSTED": "not sure", "NOT_RUN": "not run"}  # fmt: skip
ORDER = ("QUALIFIED", "QUALIFIED_FALLBACK", "NOT_RUN", "MISTRUSTED", "UNSUPPORTED", "NUMERIC_FAIL")


def say(text):
    print(f"engines: {text}", file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(prog="make engines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="configs or names; default: all of models/")
    parser.add_argument("--engines", default=",".join(ENGINES), help="a list")
    parser.add_argument("--phases", default="prefill,decode", help="as of tileproof qualify (default: prefill,decode)")
    parser.add_argument("--quick", action="store_true", help="fewer lengths a phase")
    parser.add_argument("--fresh", action="store_true", help="run everything anew")
    parser.add_argument("--output", type=pathlib.Path, default=BUILD / "engines.md", help="where the table goes")
    return parser.parse_args()


def environment():
    known = {"PYTHONPATH": str(ROOT / "build/main/python"), "TILEPROOF_GGML": str(PEERS / "ggml/lib")}
    return {**os.environ, **known}


def qualify(engine, arguments, models):
    """(rows, why there are none) of an engine."""
    rows = BUILD / f"{engine}.json"
    command = [TOOL, "qualify", *models, "--engine", engine, "--python", PEERS / "venv/bin/python", "--phases", arguments.phases]
    command += ["--journal", BUILD / f"{engine}.journal", "--resume", "--save", rows, "--fallback", "permit"]
    command += ["--quick"] if arguments.quick else []
    rows.unlink(missing_ok=True)
    with open(BUILD / f"{engine}.log", "w") as log:
        say(f"{engine}: log in {log.name}")
        code = subprocess.run([str(x) for x in command], env=environment(), stdout=log, stderr=log).returncode
    told = [x for x in pathlib.Path(log.name).read_text().splitlines() if x.startswith("tileproof: ")]
    if any("its cells were made otherwise" in x for x in told):
        sys.exit(f"engines: {told[-1][11:]} (--fresh forgets them)")
    if code in (-2, -15, 4) and not rows.exists():
        sys.exit("engines: stopped; the same command goes on")
    if not rows.exists():
        return [], (told[-1][11:] if told else f"exit code {code}").removeprefix("not run here: ")
    return json.loads(rows.read_text()), ""


def kept(engine, arguments, models):
    """Rows of an engine that was finished before with the same words."""
    key = [arguments.phases, arguments.quick, models]
    done = BUILD / f"{engine}.done"
    if done.exists() and json.loads(done.read_text())["key"] == key:
        found = json.loads(done.read_text())
        return found["rows"], found["why"]
    found = qualify(engine, arguments, models)
    done.write_text(json.dumps({"key": key, "rows": found[0], "why": found[1]}))
    return found


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}"
        count /= 1024


def worst(rows):
    """Its mark. A runner that died, hung or broke the protocol gave no result that could be wrong."""
    row = max(rows, key=lambda row: ORDER.index(row["status"]))
    broke = row["status"] == "NUMERIC_FAIL" and "the runner " in (row["reason"] or "")
    return "**BROKE**" if broke else MARKS[row["status"]]


def cell(rows):
    """One place of the table."""
    if not rows:
        return ""
    kernels = "+".join(dict.fromkeys(row["kernel"] or row["observed"] or "" for row in rows if row["status"] != "UNSUPPORTED"))
    parts = [x for x in (kernels, worst(rows)) if x]
    memory = max((row["temporary"] or 0 for row in rows), default=0)
    times = [row["time_ns"] for row in rows if row["time_ns"]]
    parts += [size(memory)] if memory else []
    parts += [f"{times[0] * 1e-6:.3g} ms"] if times else []
    return ", ".join(parts)


def table(found, names):
    """Rows in the order of the first engine that has any."""
    keys = list(dict.fromkeys((r["model"], r["part"], r["layers"], r["phase"]) for rows, _ in found.values() for r in rows))
    lines = ["| model, layers, phase | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for key in keys:
        row = [cell([r for r in found[name][0] if (r["model"], r["part"], r["layers"], r["phase"]) == key]) for name in names]
        model, part, layers, phase = key
        lines.append(f"| {model.removesuffix('.json')}, {part} {layers}, {phase} | " + " | ".join(row) + " |")
    return lines


def notes(found, names):
    """What is wrong, refused or doubted, each reason once."""
    lines = []
    for name in names:
        reasons = {}
        for row in found[name][0]:
            for kind, text in (("status", row["reason"] if row["status"] not in ("QUALIFIED", "QUALIFIED_FALLBACK") else None),
                               ("why not fused", row["engine_reasons"]), ("doubt", row["doubt"])):  # fmt: skip
                if text:
                    what = f"{worst([row])}: {text}" if kind == "status" else f"{kind}: {text}"
                    reasons.setdefault(what[:300], []).append(f"{row['model'].removesuffix('.json')} {row['phase']}")
        lines += [f"- {name}: {what} ({', '.join(dict.fromkeys(where))})" for what, where in reasons.items()]
    return lines


def properties(found, names):
    lines = ["| engine | contained | deterministic | empty rows |", "|---|---|---|---|"]
    for name in names:
        rows = found[name][0]
        count = lambda field: ", ".join(
            f"{value} {n}" for value in ("kept", "leaks", "varies") if (n := sum(row[field] == value for row in rows))
        )
        if any(row["deterministic"] for row in rows):
            lines.append(f"| {name} | {count('contained')} | {count('deterministic')} | {count('empty_rows')} |")
    return lines


def main():
    arguments = options()
    names = [x for x in arguments.engines.split(",") if x]
    unknown = [x for x in names if x not in ENGINES]
    if unknown:
        sys.exit(f"engines: {unknown[0]} is none of {', '.join(ENGINES)}")
    models = arguments.models or sorted(str(x) for x in (ROOT / "models").glob("*.json"))
    if arguments.fresh:
        shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    found = {name: kept(name, arguments, models) for name in names}
    ran = [name for name in names if found[name][0]]
    lines = [f"**{name}**: {(found[name][0][0]['versions'] or 'this library').replace(chr(10), ', ')}" for name in ran]
    lines += ["", *table(found, ran), "", *properties(found, ran), "", *notes(found, ran)]
    lines += [f"- not run here: {name}: {found[name][1]}" for name in names if name not in ran]
    arguments.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
