#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants the bugs of mutants.toml one at a time in a copy of the tree and asks the tests to find each.

    run.py [--jobs N] [--only REGEX] [--list] [--sample SECONDS [--seed N]]

--sample takes mutants in an order drawn by the seed, by default the day's date, and begins no new one after so many
seconds; it trusts that the tests pass without a mutant, which `make test` shows.

A mutant is killed when a test fails or runs into the time limit. A mutant that has a command is killed by that one
alone, run in the build folder: it shows what that command finds. One that survives is a gap in the tests;
one that does not apply exactly once, or does not compile, is a mistake in mutants.toml. Exit 0: all killed.

PYTHON=off in the environment leaves out those of python/ and scripts/, whose tests need NumPy and PyTorch.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import python_env
import test_torch

KERNELS = "opencl/kernels/"
OF_PYTHON = ("python/", "scripts/")  # where files lie that only tests in Python see
LIMIT = 240  # seconds for one mutant's tests; the stated time
PATIENCE = 8 * LIMIT  # for tests without a mutant: a busy host is no mistake
TESTS = ["ctest", "--stop-on-failure", "--output-on-failure", "-LE", "slow", "-E", "^(install|header|arrows|lines|links|random_daily)$"]
# Tests that are asked first, by how the bug's file or the mutant's name begins: the others only where these find nothing.
TORCH = {  # parts of python/tests/run.py
    "patch": "tests of patch(), with PyTorch",
    "transformers": "tests of attn_implementation, with transformers",
    "watch": "tests of the watcher, with PyTorch",
    "flash": "tests of flash-attn's functions, with PyTorch",
}
DEVICE = "tests of the OpenCL backend"
FIRST = [
    ("opencl/", DEVICE),
    ("python/tileproof/transformers/", TORCH["transformers"]),
    ("python/tileproof/watch/", TORCH["watch"]),
    ("python/tileproof/flash_attn/", TORCH["flash"]),
    ("openmp-", TORCH["patch"]),
    ("caller-", "caller_threads"),
    ("python/tileproof/", TORCH["patch"]),
    ("python/", "python"),
    ("scripts/", "python"),
    ("cli/tool/nearest", "cli"),
    ("cli/manual/", "manual"),
    ("cli/terminal/", "terminal"),
    ("cli/qualify/matrix", "qualify"),
    ("cli/tool/models", "model_cli"),
    ("harness/gradients", "random_rule|cli"),
    ("harness/atomic_file", "file_calls"),
    ("harness/places", "file_calls"),
    ("cli/output", "file_calls"),
    ("proof/lock", "lock_revisions|lock|preflight|proof_memory_lock|lock_cli"),
    ("proof/preflight", "preflight|lock_revisions"),
    ("cli/tool/guard", "lock_cli"),
    ("cli/lock/", "lock_cli"),
    ("cli/qualify/canary_m", "lock_cli"),
    ("cli/qualify/lockfile", "lock_cli|qualify"),
    ("cli/engine/", "fuzz_runner|runner"),
    ("cli/qualify/journal_text", "journal_calls|fuzz_journal"),
    ("cli/qualify/journal", "journal_calls|files"),
    ("harness/text_file", "files"),
    ("cli/main", "files"),
    ("cli/bench/measure", "memory"),
    ("harness/workload", "memory"),
    ("cli/bench/simulated_run", "bytes"),
    ("cli/qualify/", "qualify"),
    ("harness/oracle", "qualify"),
    ("harness/tensors", "proof_memory_harness|random_rule"),
    ("harness/", "verdict|random_rule|random"),
    ("cli/report/", "report_cli|fuzz_report"),
    ("cli/plot/", "plot|report_cli"),
    ("cli/trace/", "trace_summary|fuzz_lines"),
    ("cli/tool/line_stream", "trace_summary|fuzz_lines"),
    ("cli/capacity", "capacity_cli"),
    ("cli/replay", "replay_cli"),
    ("cli/tool/evidence", "opencl_label"),
    ("units-", "capacity_cli"),
    ("cli/", "verdict|compare"),
    ("proof/qualify", "qualification|proof_memory_qualify|qualify"),
    ("proof/sized", "growth_proof_.*"),
    ("proof/capacity", "capacity.*"),
    ("kv-shared", "capacity"),
    ("proof/", "model_.*|json|lock|preflight|cells|hashes|proof_memory.*"),
    ("src/telemetry/", "metrics|watch|policy|device"),
    ("growth-", "growth_.*"),
    ("sets-", "one_dtype"),
    ("isa-bits", "machine"),
    ("event-for", "policy"),
    ("arithmetic-", "arithmetic"),
    ("pairs-", "p_bf16|dots|kernel_functions|problem_text"),
    ("decision-", "allocation|watch"),
    ("device-", "device|backend|tickets"),
    ("ticket-", "tickets|device"),
    ("src/masks/callback", "callback"),
    ("src/reference/row", "callback|bound|reference|reference_rules"),
    ("reference-gradient", "reference_backward|reference_backward_bound"),
    ("backward-", "backward|backward_bad"),
    ("dropout-", "dropout"),
    ("src/masks/", "masks|mask_kinds|mask_rules|mask_cache"),
    ("src/strategies/visibility", "masks|mask_kinds|mask_cache"),
    ("src/strategies/prepare", "mask_results"),
    ("src/kernels/modify", "mask_results|large"),
    ("src/kernels/backward", "backward|backward_bad|backward_nan"),
    ("src/kernels/gradient", "backward|backward_bad|backward_nan"),
    ("src/strategies/backward", "backward|backward_bad|backward_nan"),
    ("src/reference/", "bound|reference|reference_rules|reference_backward|reference_backward_bound"),
    ("src/kernels/qk", "decode|guard"),
    ("src/kernels/pv", "decode"),
    ("src/strategies/decode", "decode|mask_cache"),
    ("src/strategies/keys", "paged|mask_cache"),
    ("src/problem/cache_check", "paged|mask_cache|callback"),
    ("src/problem/mask_data", "abuse|mask_rules"),
    ("src/machine/trial", "starting"),
    ("src/api/", "starting|forked|callback"),
    ("src/plan/permits", "forked|policy"),
    ("src/plan/", "selection|reports"),
    ("", "borders|values"),
]


def sh(command, cwd, timeout=None, **more):
    env = dict(os.environ, TILEPROOF_TEST_QUICK="1", **more)
    child = subprocess.Popen(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             errors="replace", start_new_session=True)
    try:
        text, _ = child.communicate(timeout=timeout)
        return child.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # the test as well as ctest
        child.wait()
        return "timeout", ""


def first_asked(mutant):
    return next(tests for start, tests in FIRST
                if mutant["file"].startswith(start) or mutant["name"].startswith(start))


class Worker:
    """One copy of the tree with its own build folder, so that a mutant rebuilds one file; compiled with -O1, which takes a third."""

    def __init__(self, number, target, python):
        """python: None, or for whom the Python package is built."""
        self.tree = ROOT / "build" / "mutants" / str(number)
        shutil.rmtree(self.tree, ignore_errors=True)
        shutil.copytree(ROOT, self.tree, ignore=shutil.ignore_patterns("build", ".git"))
        self.build = self.tree / "build"
        package = [] if python is None else ["-DTILEPROOF_PYTHON=ON", f"-DPython_EXECUTABLE={python}"]
        self.target = target
        for command in (["cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1", *package],
                        ["cmake", "--build", "build", "--target", target]):
            code, text = sh(command, self.tree)
            if code != 0:
                sys.exit(text)
        self.tests = json.loads(sh(["ctest", "--show-only=json-v1"], self.build)[1])["tests"]

    def compile(self, targets=None):
        return sh(["cmake", "--build", "build", "--target", *(targets or [self.target])], self.tree)

    def needed(self, only):
        """What these tests run, as targets: their programs, the tool. None: they need the whole tree, or more than it."""
        if only == DEVICE or only in TORCH.values() or only == "python":
            return None
        words = {word for test in self.tests if re.fullmatch(only, test["name"]) for word in test["command"]}
        return sorted(os.path.relpath(word, self.build) for word in words
                      if word.startswith(f"{self.build}/") and os.path.isfile(word)) or None

    def test(self, only=None, limit=LIMIT):
        if only == DEVICE:
            return sh(["ctest", "--stop-on-failure", "--output-on-failure", "-R", "^opencl_(calls|bad|faults|values)$"], self.build, limit)
        part = next((name for name, text in TORCH.items() if text == only), None)
        if part is not None:
            command = [str(test_torch.environment()), str(self.tree / "python/tests/run.py"), part]
            return sh(command, self.build, limit, PYTHONPATH=str(self.build / "python"))
        return sh(TESTS + (["-R", f"^({only})$"] if only else []), self.build, limit)

    def run_kernel(self, mutant):
        """One of a kernel's source, which tests/opencl/shim.c plants when the program is compiled: nothing is built anew."""
        plant = {"OPENCL_FIND": mutant["find"], "OPENCL_REPLACE": mutant["replace"]}
        for words in (["./opencl_values", "brief"], ["./opencl_calls"], ["--oclgrind", "./opencl_values", "small"]):
            code, text = sh(["bash", str(self.tree / "tests/opencl/run.sh"), *words], self.build, LIMIT, **plant)
            if code != 0:
                said = re.findall(r"^(?:ERROR: .*|Read-write.*|Write-write.*|Invalid .*)", text, re.M)
                return "killed", "time limit" if code == "timeout" else " ".join(words) + " " + " ".join(said[:1])[:120]
        return "SURVIVED", ""

    def run(self, mutant):
        path = self.tree / mutant["file"]
        original = path.read_text()
        if original.count(mutant["find"]) != 1:
            return "MISTAKE", f"'{mutant['find']}' stands {original.count(mutant['find'])} times in {mutant['file']}"
        if mutant["file"].startswith(KERNELS):
            return self.run_kernel(mutant)
        path.write_text(original.replace(mutant["find"], mutant["replace"]))
        try:
            first = None if "command" in mutant else first_asked(mutant)
            code, text = self.compile(first and self.needed(first))
            if code != 0:
                return "MISTAKE", "does not compile:\n" + text[-2000:]
            if "command" in mutant:
                code, text = sh(shlex.split(mutant["command"]), self.build, LIMIT)
                found = "time limit" if code == "timeout" else "\n".join(re.findall(r"^FAILED.*\n.*\n.*", text, re.M)[:1])
                if code not in (0, 1, "timeout"):
                    return "MISTAKE", f"{mutant['command']}: exit {code}\n" + text[-2000:]
                return ("SURVIVED", "") if code == 0 else ("killed", f"{mutant['command']}\n{found}".rstrip())
            code, text = self.test(first)
            if code == 0:
                self.compile()
                code, text = self.test()
            if code == 0:
                return "SURVIVED", ""
            by = "time limit" if code == "timeout" else " ".join(re.findall(r"\d+ - (\S+) \((?!Skipped)[A-Z]", text))
            return "killed", by or "a test"
        finally:
            path.write_text(original)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="regular expression on the mutant's name")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sample", type=float, metavar="SECONDS", help="some of them, for about so long")
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")), help="of --sample; default the date")
    options = parser.parse_args()
    with open(ROOT / "tests/mutants/mutants.toml", "rb") as file:
        mutants = [m for m in tomllib.load(file)["mutant"] if re.search(options.only, m["name"])]
    if os.environ.get("PYTHON") == "off":
        left = [m for m in mutants if not m["file"].startswith(OF_PYTHON)]
        print(f"mutants: not run here: {len(mutants) - len(left)} of {' and '.join(OF_PYTHON)} (PYTHON=off)", file=sys.stderr)
        mutants = left
    if not shutil.which("oclgrind") or not any(pathlib.Path("/etc/OpenCL/vendors").glob("*")):
        left = [m for m in mutants if not (m["file"].startswith("opencl/") or m["name"].startswith("opencl-"))]
        if len(left) < len(mutants):
            print(f"mutants: not run here: {len(mutants) - len(left)} of opencl/ (make test-device installs PoCL)", file=sys.stderr)
        mutants = left
    if options.list:
        print("\n".join(f"{m['name']:40} {m['file']}" for m in mutants))
        return 0
    if not mutants:
        sys.exit(f"no mutant matches '{options.only}'")

    begin = time.monotonic()
    if options.sample:
        random.Random(options.seed).shuffle(mutants)
        print(f"mutants: a sample of {len(mutants)} for {options.sample:.0f} s, --seed {options.seed}", flush=True)
    workers = queue.Queue()
    jobs = max(1, min(options.jobs, len(mutants)))
    print(f"mutants: building {jobs} copies", flush=True)
    checks = sorted({m["command"] for m in mutants if "command" in m})
    asked = sorted({first_asked(m) for m in mutants if "command" not in m})
    with_python = any(m["file"].startswith(OF_PYTHON) for m in mutants)
    python = python_env.python_with_numpy(print) if with_python else None
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(lambda number: Worker(number, "all" if asked else "tileproof", python), range(jobs)))
    runs = [lambda only=only: made[0].test(only, PATIENCE) for only in asked]
    runs += [lambda c=c: sh(shlex.split(c), made[0].build, PATIENCE) for c in checks]
    for run in runs if not options.sample else []:
        code, text = run()
        if code != 0:
            sys.exit(f"mutants: the tests fail without any mutant ({code}):\n" + text[-4000:])
    for worker in made:
        workers.put(worker)

    def one(mutant):
        if options.sample and time.monotonic() - begin > options.sample and mutant is not mutants[0]:
            return "not run"
        worker, start = workers.get(), time.monotonic()
        try:
            state, why = worker.run(mutant)
        finally:
            workers.put(worker)
        print(f"{state:9} {mutant['name']:44} {time.monotonic() - start:5.0f} s  {why}", flush=True)
        return state

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        states = [state for state in pool.map(one, mutants) if state != "not run"]
    killed = states.count("killed")
    print(f"{killed} of {len(states)} mutants killed, {states.count('SURVIVED')} survived, "
          f"{states.count('MISTAKE')} mistakes (limit {LIMIT} s each)")
    return 0 if killed == len(states) else 1


sys.exit(main())
