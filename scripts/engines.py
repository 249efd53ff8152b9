#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make engines`: the shipped models by every engine of this host, in one table.

    python3 scripts/engines.py [--quick] [--engines torch,ggml] [--phases prefill,decode] [--document docs/engines.md] [MODEL ...]

A row a layer group and phase, a column an engine: kernel observed, right or not, temporary memory, time beside this library's.
Engines are those of build/peers (bench/peers/setup.py). A problem that several models have is run once for each engine.
Finished cells are kept in build/engines and not run again: the same command goes on where it was stopped; --fresh forgets
them. flex compiles every call for seconds: with --quick it runs the main calls of one model of each kind, unless models are named."""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from engines_table import document, page

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/engines"
PEERS = ROOT / "build/peers"
TOOL = ROOT / "build/main/tileproof"
ENGINES = ("tileproof", "torch", "flex", "onnxruntime", "openvino", "vllm", "ggml", "flash_attn")
COMPILES = ("flex",)
# a model of each kind: f32, f16, bf16; windows, softcap, sinks, slopes, latents; encoders, cross attention, one KV head
KINDS = ("arctic-embed-m", "aya-23-8b", "deepseek-v2-lite", "gemma-2-2b", "gemma-3-1b-it", "gpt-oss-20b", "llama-3.2-1b", "mpt-7b",
         "qwen2.5-vl-7b", "whisper-large-v3")  # fmt: skip


def say(text):
    print(f"engines: {text}", file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(prog="make engines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="configs or names; default: all of models/")
    parser.add_argument("--engines", default=",".join(ENGINES), help="a list")
    parser.add_argument("--phases", default="prefill,decode", help="as of tileproof qualify (default: prefill,decode)")
    parser.add_argument("--threads", type=int, default=0, help="of every engine (default: all that this process may use)")
    parser.add_argument("--quick", action="store_true", help="fewer lengths a phase")
    parser.add_argument("--fresh", action="store_true", help="run everything anew")
    parser.add_argument("--output", type=pathlib.Path, default=BUILD / "engines.md", help="where the tables go")
    parser.add_argument("--document", type=pathlib.Path, help="a page whose tables they replace")
    return parser.parse_args()


def environment():
    known = {"PYTHONPATH": str(ROOT / "build/main/python"), "TILEPROOF_GGML": str(PEERS / "ggml/lib")}
    return {**os.environ, **known}


def words(engine, arguments):
    """What decides an engine's rows, as words of the tool."""
    brief = arguments.quick and engine in COMPILES
    names = KINDS if brief else [x.stem for x in (ROOT / "models").glob("*.json")]
    models = arguments.models or sorted(f"models/{name}.json" for name in names)
    found = [*models, "--engine", engine, "--phases", arguments.phases, "--fallback", "permit"]
    found += ["--threads", str(arguments.threads)] if arguments.threads else []
    found += ["--quick"] if arguments.quick else []
    return found + (["--cells", "1"] if brief else [])


def run(command, log):
    """Its exit code. A stop is the tool's to obey, which ends behind the cell at hand."""
    with subprocess.Popen([str(x) for x in command], env=environment(), stdout=log, stderr=log) as tool:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda which, _frame: tool.send_signal(which))
        return tool.wait()


def qualify(engine, asked):
    """(rows, why there are none) of an engine."""
    rows = BUILD / f"{engine}.json"
    command = [TOOL, "qualify", *asked, "--python", PEERS / "venv/bin/python"]
    command += ["--journal", BUILD / f"{engine}.journal", "--resume", "--save", rows]
    rows.unlink(missing_ok=True)
    with open(BUILD / f"{engine}.log", "w") as log:
        say(f"{engine}: log in {log.name}")
        code = run(command, log)
    told = [x for x in pathlib.Path(log.name).read_text().splitlines() if x.startswith("tileproof: ")]
    if any("its cells were made otherwise" in x for x in told):
        sys.exit(f"engines: {told[-1][11:]} (--fresh forgets them)")
    if code in (-2, -15, 4) and not rows.exists():
        sys.exit("engines: stopped; the same command goes on")
    if not rows.exists():
        return [], (told[-1][11:] if told else f"exit code {code}").removeprefix("not run here: ")
    return json.loads(rows.read_text()), ""


def kept(engine, arguments):
    """Rows of an engine that was finished before with the same words."""
    asked = words(engine, arguments)
    done = BUILD / f"{engine}.done"
    if done.exists() and json.loads(done.read_text())["asked"] == asked:
        found = json.loads(done.read_text())
        return found["rows"], found["why"]
    found = qualify(engine, asked)
    done.write_text(json.dumps({"asked": asked, "rows": found[0], "why": found[1]}))
    return found


def main():
    arguments = options()
    names = [x for x in arguments.engines.split(",") if x]
    unknown = [x for x in names if x not in ENGINES]
    if unknown:
        sys.exit(f"engines: {unknown[0]} is none of {', '.join(ENGINES)}")
    if not arguments.models:
        os.chdir(ROOT)
    if arguments.fresh:
        shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    found = {name: kept(name, arguments) for name in names}
    text = page(found, arguments.threads or len(os.sched_getaffinity(0)))
    arguments.output.write_text(text)
    if arguments.document:
        arguments.document.write_text(document(arguments.document.read_text(), text))
    print(text, end="")


if __name__ == "__main__":
    main()
