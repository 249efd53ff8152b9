#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants the bugs of mutants.toml one at a time in a copy of the tree and asks the tests to find each.

    run.py [--jobs N] [--only REGEX] [--changed] [--record] [--list] [--sample SECONDS [--seed N]]

--sample takes mutants that were found before, in an order drawn by the seed, by default the day's date, and begins no new one
after so many seconds: it shows that tests still find what they found. It trusts that they pass without a mutant, which
`make test` shows.

killed.tsv says which test last found each mutant, and of which file: that test is asked first. --record keeps it, as
`make mutants` does. --changed takes only those that were never found, or whose file or text has changed since; that a test
became weaker it does not see.

A mutant is killed when a test fails, or hangs: runs longer than the limit for one test. The first time that a test finds one
in this tree, it is asked again without it: where it fails then too, the mutant counts as not found ("UNSOUND"). After the test
that found it last, the tests of its file are asked. What they do not find ("second") waits until all others are done: then all
of `make test` is asked, of the Python package all of its tests, those that are known to be quick first. A mutant that has a
command is killed by that one alone, run in the build folder: it shows what that command finds; one with `emulated = true` in a
build with emulated kernels. One that survives is a gap in the tests; one that does not apply exactly once, or does not
compile, is a mistake in mutants.toml. Exit 0: all killed.

PYTHON=off in the environment leaves out those of python/, scripts/ and bench/peers/, whose tests need NumPy and PyTorch.
"""
import argparse
import concurrent.futures
import filecmp
import hashlib
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
import threading
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import python_env
import test_torch

KERNELS = "opencl/kernels/"
OF_PYTHON = ("python/", "scripts/", "bench/peers/")  # where files lie that only tests in Python see
LIMIT = 240  # seconds for one test: longer is a hang. Less where twenty times what it took without a mutant is less
KILLED = ROOT / "tests/mutants/killed.tsv"
COSTS = ROOT / "build/main/Testing/Temporary/CTestCostData.txt"  # what tests took in `make test`: name, runs, seconds
NOT_ASKED = {"install", "header", "arrows", "lines", "links",  # what they look at, no mutant changes
             "functions", "spills"}  # they look at code of -O3
# Tests that are asked first, by how the bug's file or the mutant's name begins: the others only where these find nothing.
FIRST = [
    ("numbers-read-in-", "control|dtype"),
    ("errors-printed-", "control"),
    ("rows-that-see-none-of-a-panel-", "masks"),
    ("row-lost-at-a-border", "masks"),
    ("factor-of-the-", "mask_results"),
    ("last-rows-of-a-strip-", "mask_kinds"),
    ("tile-with-several-", "masks"),
    ("callers-environment-", "control|proof_control"),
    ("scale-folded-", "values"),
    ("sparse-hidden-keys-are-", "paged"),
    ("sparse-tasks-", "paged"),
    ("sparse-scores-", "paged"),
    ("record-number-", "journal_calls|lock"),
    ("journal-after-the-lock", "files|file_calls"),
    ("journal-of-fewer-cells", "runner"),
    ("engine-bound-", "engine"),
    ("engine-canary-", "runner"),
    ("lock-what-was-watched-", "runner"),
    ("nearest-row-", "cli"),
    ("reference-score-gradients-", "random_rule"),
    ("memory-permits-", "proof_memory_lock|preflight"),
    ("memory-scratch-", "proof_memory_lock|preflight"),
    ("codes-bound-", "bound|quant_attention|kernel_functions|random_cli"),
    ("codes-", "quant_attention|kernel_functions|quant|random_cli"),
    ("index-in-32-bits", "strides"),
    ("key-offset-in-32-bits", "strides"),
    ("full-tile-counted", "masks"),
    ("masked-tile-", "masks"),
    ("invariant-", "invariance"),
    ("cascade-", "cascade"),
    ("prefixes-", "kv_cache"),
    ("kv-format-", "cache_format"),
    ("kv-bytes-", "cache_model"),
    ("kv-tool-", "kv_cache_cli"),
    ("kv-loss-", "kv_loss"),
    ("math-distances-", "guard"),
    ("pairs-of-one-head", "mask_cache"),
    ("row-scale-", "reference"),
    ("class-", "policy|watch"),
    ("tag-", "watch"),
    ("trace-", "trace_cli|trace_summary|watch"),
    ("drill-", "canary|selection"),
    ("opencl/", "opencl_(calls|bad|faults|values)"),
    ("python/tileproof/transformers/_lower", r"test_torch_hf_masks\.py"),
    ("python/tileproof/transformers/_pieces", r"test_torch_hf_masks\.py"),
    ("python/tileproof/transformers/_masks", r"test_torch_hf_masks\.py"),
    ("python/tileproof/transformers/", r"test_torch_hf_(masks|front)\.py"),
    ("python-proof-", r"test_numpy_proof\.py"),
    ("python-preflight-", r"test_numpy_proof\.py"),
    ("python/tileproof/watch/", "test_torch_watch.*"),
    ("python/tileproof/flash_attn/", "test_torch_flash.*"),
    ("flash-", r"test_torch_flash_(codes|refusals)\.py"),
    ("python-omp-num-threads-", r"test_numpy_process\.py"),
    ("python-process-one-", r"test_numpy_process\.py"),
    ("python-child-keeps-", r"test_numpy_process\.py"),
    ("python-remedy-", r"test_numpy_errors\.py"),
    ("python-pages-trained-", r"test_torch_arguments\.py"),
    ("python-dropout-offset-", r"test_torch_arguments\.py"),
    ("python-masks-of-other-", r"test_numpy_mask\.py"),
    ("python-gauges-", r"test_numpy_telemetry\.py"),
    ("engine-runner-", r"test_numpy_engines\.py"),
    ("python-cache-gradient", r"test_torch_kvcache\.py"),
    ("python-cache-", r"test_numpy_kvcache\.py"),
    ("python-rotary-", r"test_numpy_rotary\.py"),
    ("python-kv-loss-", r"test_numpy_quantised\.py"),
    ("bench/peers/", "peers"),
    ("python-compiled-", r"test_torch_quantised\.py"),
    ("python-codes-trained", r"test_torch_quantised\.py"),
    ("python-plan-forgets-the-dtype-", r"test_numpy_reports\.py"),
    ("python-explain-", r"test_numpy_reports\.py"),
    ("python-backward-with-", r"test_torch_values\.py"),
    ("python-sdpa-", r"test_torch_(values|plain|patch)\.py"),
    ("python-texts-with-", r"test_torch_arguments\.py"),
    ("python-meta-", r"test_torch_arguments\.py"),
    ("python-plan-forgets", r"test_numpy_quantised\.py"),
    ("python-plan-of-", r"test_numpy_quantised\.py"),
    ("python-pair-of-words-", r"test_numpy_quantised\.py"),
    ("python-layer-", r"test_numpy_kvcache\.py"),
    ("python-shared-", r"test_numpy_quantised\.py"),
    ("python/src/codes", r"test_numpy_quantised\.py"),
    ("python/src/quantise", r"test_numpy_quantised\.py"),
    ("openmp-", r"test_torch_threads\.py"),
    ("python/src/sdpa", r"test_torch_(plain|patch)\.py"),
    ("caller-", "caller_threads"),
    ("python/tileproof/_api", "test_numpy.*"),
    ("python/tileproof/_mask", r"test_numpy_mask\.py"),
    ("python/tileproof/_oracle", r"test_numpy_oracle\.py"),
    ("python/tileproof/_kvcache", "test_numpy.*"),
    ("python/tileproof/", r"test_torch_(patch|others|honest|plain|threads)\.py"),
    ("python/", "test_numpy.*"),
    ("scripts/", r"test_numpy_environment\.py"),
    ("cli/tool/nearest", "cli"),
    ("cli/tool/info", "cli"),
    ("cli/manual/", "manual"),
    ("cli/terminal/", "terminal"),
    ("cli/qualify/matrix", "qualify"),
    ("cli/tool/models", "model_cli"),
    ("harness/gradients", "random_rule|cli"),
    ("harness/atomic_file", "file_calls"),
    ("harness/places", "file_calls"),
    ("cli/output", "file_calls|manual|runner"),
    ("proof/lock", "lock_revisions|lock_engines|lock|lock_diff|preflight|proof_memory_lock|lock_cli"),
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
    ("harness/attempt", "attempt|random_isolated"),
    ("harness/", "verdict|random_rule|random"),
    ("cli/report/", "report_cli|fuzz_report"),
    ("cli/plot/", "plot|report_cli"),
    ("cli/trace/", "trace_summary|fuzz_lines"),
    ("cli/tool/line_stream", "trace_summary|fuzz_lines"),
    ("cli/capacity", "capacity_cli"),
    ("cli/replay", "replay_cli"),
    ("cli/tool/evidence", "opencl_label"),
    ("units-", "capacity_cli"),
    ("stop-", "terminal"),
    ("cli/check/", "random_isolated|random_cli|cli"),
    ("cli/", "verdict|compare"),
    ("proof/qualify_engine", "engine"),
    ("proof/qualify_lock", "qualification|lock_revisions|proof_memory_qualify|lock_cli"),
    ("proof/engine", "engine|cells"),
    ("proof/qualify", "qualification|proof_memory_qualify|qualify"),
    ("proof/sized", "growth_proof_.*|lock"),
    ("proof/capacity", "capacity.*"),
    ("kv-shared", "capacity"),
    ("src/kvcache/", "kv_.*"),
    ("proof/cache_layers", "cache_model"),
    ("proof/rotation", "rotation|fuzz_model"),
    ("proof/", "model_.*|json|lock|preflight|cells|hashes|proof_memory.*"),
    ("src/rope/", "rope|rope_bad|control"),
    ("src/telemetry/", "metrics|watch|policy|device|reports|call_text"),
    ("rotation-", "rotation|fuzz_model"),
    ("growth-", "growth_.*|backend_(old|new)"),
    ("sets-", "one_dtype"),
    ("isa-bits", "machine"),
    ("event-for", "policy"),
    ("arithmetic-", "arithmetic"),
    ("src/masks/callback", "callback|mask_cache|mask_kinds"),
    ("src/masks/", "masks|mask_kinds|mask_rules|mask_cache|mask_results|paged"),
    ("pairs-", "p_bf16|dots|kernel_functions|problem_text"),
    ("decision-printed-", "control"),
    ("decision-", "allocation|watch"),
    ("device-outcome-", "backend_old"),
    ("device-", "device|device_arrays|backend|tickets"),
    ("ticket-", "tickets|device"),
    ("src/reference/row", "callback|bound|reference|reference_rules"),
    ("reference-gradient", "reference_backward|reference_backward_bound"),
    ("backward-slot-taken-", "held_up"),
    ("backward-", "backward|backward_bad|backward_nan|kernel_functions|control"),
    ("dropout-", "dropout"),
    ("src/strategies/visibility", "masks|mask_kinds|mask_cache|borders"),
    ("src/strategies/prepare", "mask_results"),
    ("src/kernels/modify", "mask_results|large"),
    ("src/kernels/backward", "backward|backward_bad|backward_nan"),
    ("src/kernels/gradient", "backward|backward_bad|backward_nan"),
    ("src/strategies/backward", "backward|backward_bad|backward_nan"),
    ("src/reference/", "bound|reference|reference_rules|reference_backward|reference_backward_bound"),
    ("src/kernels/qk", "decode|guard"),
    ("src/kernels/pv", "decode"),
    ("src/strategies/decode", "decode|mask_cache|mask_results|nonfinite|dropout"),
    ("src/strategies/keys", "paged|mask_cache"),
    ("src/problem/cache_check", "paged|mask_cache|callback"),
    ("src/problem/mask_data", "abuse|mask_rules"),
    ("src/problem/mask_text", "mask_rules|problem_text"),
    ("src/problem/tensors", "call_text|paged|tensors|overlap|abuse"),
    ("src/machine/trial", "starting"),
    ("src/machine/amx", "machine"),
    ("src/api/", "starting|forked|callback|watch|policy|cache|metrics|tensors|selection|abuse|reports"),
    ("src/plan/permits", "forked|policy"),
    ("src/plan/", "selection|reports|policy"),
    ("src/strategies/", "mask_cache|mask_results|paged|decode|dropout|borders"),
    ("src/problem/", "problem|problem_text|tensors|overlap|abuse|call_text"),
    ("src/quant/", "quant.*"),
    ("src/rope/", "rope.*"),
    ("src/kvcache/", "kv_.*"),
    ("", "borders|values|dtype|exp2|control|nonfinite|merge|mask_cache|mask_results|large|kernel_functions|dots|call_text"),
]


def sh(command, cwd, timeout=None, **more):
    env = dict(os.environ, TILEPROOF_TEST_QUICK="1", PYTHONDONTWRITEBYTECODE="1", **more)  # a .pyc may outlive a mutant
    child = subprocess.Popen(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             errors="replace", start_new_session=True)
    try:
        text, _ = child.communicate(timeout=timeout)
        return child.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # the test as well as ctest
        child.wait()
        return "timeout", ""


def read_lines(path):
    return path.read_text().splitlines() if path.exists() else []


class Killed:
    """Which test found each mutant, and a digest of the mutant and of the file that it was planted in."""

    def __init__(self):
        self.lock = threading.Lock()
        self.rows = {name: (test, digest) for name, test, digest in (row.split("\t") for row in read_lines(KILLED))}

    @staticmethod
    def digest(mutant):
        text = "\0".join((mutant["find"], mutant["replace"], mutant.get("command", ""), (ROOT / mutant["file"]).read_text()))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def test(self, mutant):
        return self.rows.get(mutant["name"], (None,))[0]

    def is_new(self, mutant):
        return self.rows.get(mutant["name"], (None, None))[1] != self.digest(mutant)

    def keep(self, mutant, test, names):
        """names: of all mutants; rows of those that are no more go."""
        with self.lock:
            self.rows[mutant["name"]] = test, self.digest(mutant)
            part = KILLED.with_suffix(".part")
            part.write_text("".join("\t".join((name, *self.rows[name])) + "\n" for name in sorted(names & self.rows.keys())))
            part.replace(KILLED)


def first_asked(mutant):
    """By its name, if any begins so, else by its file."""
    by_name = [tests for start, tests in FIRST if start and mutant["name"].startswith(start)]
    return by_name[0] if by_name else next(tests for start, tests in FIRST if mutant["file"].startswith(start))


def copy_changes(tree, to):
    """What differs is written anew, so that it is younger than what was built of the text before; build folders stay."""
    def copy(source, target):
        if not os.path.exists(target) or not filecmp.cmp(source, target, shallow=False):
            shutil.copy(source, target)

    built = (to / "build", to / "emulated")
    for path in sorted(to.rglob("*"), reverse=True) if to.exists() else ():
        if not (tree / path.relative_to(to)).exists() and not any(path.is_relative_to(folder) for folder in built):
            path.rmdir() if path.is_dir() else path.unlink()
    shutil.copytree(tree, to, ignore=shutil.ignore_patterns("build", ".git", "__pycache__"), copy_function=copy, dirs_exist_ok=True)


class Passed(dict):
    """Seconds of each test that has passed without a mutant, kept for as long as nothing in the tree changes."""

    def __init__(self):
        files = sorted(path for path in map(pathlib.Path, sh(["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT)[1].splitlines()) if (ROOT / path).is_file())
        told = hashlib.sha256()
        for path in files:
            if path.parts[:2] != ("tests", "mutants"):
                told.update(f"{path}\0".encode() + (ROOT / path).read_bytes() + b"\0")
        self.path, self.tree, self.lock = ROOT / "build/mutants/passed.json", told.hexdigest(), threading.Lock()
        kept = json.loads(self.path.read_text()) if self.path.exists() else {}
        super().__init__(kept["seconds"] if files and kept.get("tree") == self.tree else {})

    def keep(self, test, seconds):
        with self.lock:
            self[test] = seconds
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({"tree": self.tree, "seconds": self}))
            part.replace(self.path)


class Worker:
    """One copy of the tree with its own build folder, so that a mutant rebuilds one file; compiled with -O1, which takes a third.
    Only what is asked is built, and what was built in an earlier run is kept."""

    took = Passed()
    costs = {row[0]: float(row[2]) for row in map(str.split, read_lines(COSTS)) if len(row) == 3 and row[1] != "0"}
    killed = Killed()

    def __init__(self, number, python):
        """python: None, or for whom the Python package is built."""
        self.tree = ROOT / "build" / "mutants" / str(number)
        copy_changes(ROOT, self.tree)
        self.build = self.tree / "build"
        package = ["-DTILEPROOF_PYTHON=OFF"] if python is None else ["-DTILEPROOF_PYTHON=ON", f"-DPython_EXECUTABLE={python}"]
        for code, text in (self.configure("build", *package), self.compile(["tileproof_static"])):
            if code != 0:
                sys.exit(text)
        rules = dict(line.split(": ", 1) for line in sh(["ninja", "-t", "targets", "all"], self.build)[1].splitlines() if ": " in line)
        self.made = {str(self.build / name) for name, rule in rules.items() if rule != "phony" and "/" not in name}
        self.tests = {test["name"]: test for test in json.loads(sh(["ctest", "--show-only=json-v1"], self.build)[1])["tests"]}
        # ctest names no command of a test whose program is not built yet
        for line in read_lines(self.build / "CTestTestfile.cmake"):
            if (found := re.match(r"add_test\(\[=*\[(.*?)\]=*\] (.*)\)$", line)) and found[1] in self.tests:
                self.tests[found[1]]["command"] = shlex.split(found[2])
        for path in sorted(self.tree.glob("python/tests/test_*.py")) if python is not None else ():
            runs = test_torch.environment() if "torch" in path.name else python
            self.tests[path.name] = {"command": [str(runs), str(path.parent / "run.py"), path.name], "properties": [
                {"name": "ENVIRONMENT", "value": [f"PYTHONPATH={self.build / 'python'}"]}, {"name": "LABELS", "value": ["slow"]}]}

    def configure(self, build, *flags):
        return sh(["cmake", "-S", ".", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Quick", "-DCMAKE_C_FLAGS_QUICK=-O1", *flags], self.tree)

    def compile(self, targets=None, build="build"):
        return sh(["cmake", "--build", build, "--target", *(targets or ["all"])], self.tree)

    def place(self, mutant):
        """Where its command runs, and what is built there for it; None: as for any other mutant."""
        if mutant["file"].startswith(KERNELS):
            return self.build, ["opencl_values", "opencl_calls"]
        if not mutant.get("emulated"):
            program = os.path.basename(shlex.split(mutant.get("command", "-"))[0])
            return self.build, [program] if str(self.build / program) in self.made else None
        if not (folder := self.tree / "emulated").exists():
            self.configure(folder.name, "-DTILEPROOF_EMULATED=ON")
        return folder, [os.path.basename(shlex.split(mutant["command"])[0])]

    def matching(self, pattern):
        return [name for name in self.tests if re.fullmatch(pattern, name)]

    def every(self, mutant):
        """Every test that could find it, the quickest first: no test in C sees the Python package."""
        names = self.matching(r"test_.*\.py") if mutant["file"].startswith(OF_PYTHON) else self.quick()
        return sorted(names, key=lambda name: self.took.get(name, self.costs.get(name, self.property(name, "COST", 0))))

    def quick(self):
        return [name for name in self.tests if name not in NOT_ASKED and not self.property(name, "DISABLED", False)
                and "slow" not in self.property(name, "LABELS", [])]

    def property(self, name, wanted, otherwise):
        return next((p["value"] for p in self.tests[name].get("properties", []) if p["name"] == wanted), otherwise)

    def needed(self, names):
        """What these tests run, as targets: their programs, the tool, the package. None: they need the whole tree, or more."""
        targets = set()
        for name in names:
            made = {os.path.basename(word) for word in self.tests[name]["command"] if word in self.made}
            made |= {"tileproof_python", "tileproof_python_package"} if re.match(r"(python|peers)$|test_.*\.py", name) else set()
            if not made or name == "manual":
                return None
            targets |= made
        return sorted(targets)

    def limit(self, name):
        took = self.took.get(name)
        return LIMIT if took is None else max(30, min(20 * took, LIMIT), 3 * took)

    def first(self, mutant):
        """The test that found it last time, if any did; then those of its file."""
        last = self.matching(re.escape(self.killed.test(mutant) or ""))
        return [names for names in (last, [name for name in self.matching(first_asked(mutant)) if name not in last]) if names]

    def ask(self, name, limit=None):
        """None, or how the test failed, and its output."""
        env = dict(pair.split("=", 1) for pair in self.property(name, "ENVIRONMENT", []))
        code, text = sh(self.tests[name]["command"], self.property(name, "WORKING_DIRECTORY", self.build), limit, **env)
        if code in (0, self.property(name, "SKIP_RETURN_CODE", 0)):
            return None, text
        return (f"{name} (hangs)" if code == "timeout" else name), text

    def run_kernel(self, mutant):
        """One of a kernel's source, which tests/opencl/shim.c plants when the program is compiled: nothing is built anew."""
        plant = {"OPENCL_FIND": mutant["find"], "OPENCL_REPLACE": mutant["replace"]}
        asked = ("./opencl_values brief", "./opencl_calls", "--oclgrind ./opencl_values small")
        for words in sorted(asked, key=lambda words: words != self.killed.test(mutant)):
            code, text = self.ask_kernel(words, **plant)
            if code != 0:
                said = re.findall(r"^(?:ERROR: .*|Read-write.*|Write-write.*|Invalid .*)", text, re.M)
                return "killed", f"{words} (hangs)" if code == "timeout" else "\n".join([words, *said[:1]])
        return "SURVIVED", ""

    def ask_kernel(self, words, **plant):
        return sh(["bash", str(self.tree / "tests/opencl/run.sh"), *words.split()], self.build, 4 * LIMIT, **plant)

    def is_sound(self, mutant, test):
        """Whether what has found this mutant passes without it: asked once of each test."""
        if test not in self.took:
            by_command = "command" in mutant or mutant["file"].startswith(KERNELS)
            folder, targets = self.place(mutant)
            self.compile(targets or (None if by_command else self.needed([test])), folder.name)
            start = time.monotonic()
            if mutant["file"].startswith(KERNELS):
                failed = self.ask_kernel(test)[0] != 0
            elif by_command:
                failed = sh(shlex.split(test), folder, 4 * LIMIT)[0] != 0
            else:
                failed = self.ask(test, 4 * LIMIT)[0] is not None
            if not failed:
                self.took.keep(test, time.monotonic() - start)
        return test in self.took

    def run(self, mutant, whole):
        """Asks the mutant's first tests or, if whole, every quick one: what the first ones find, they find again."""
        path = self.tree / mutant["file"]
        original = path.read_text()
        if original.count(mutant["find"]) != 1:
            return "MISTAKE", f"'{mutant['find']}' stands {original.count(mutant['find'])} times in {mutant['file']}"
        folder, targets = self.place(mutant)
        if mutant["file"].startswith(KERNELS):
            self.compile(targets)
            return self.run_kernel(mutant)
        path.write_text(original.replace(mutant["find"], mutant["replace"]))
        try:
            rounds = [self.every(mutant)] if whole else [] if "command" in mutant else self.first(mutant)
            code, text = self.compile(targets or (self.needed(rounds[0]) if rounds else None), folder.name)
            if code != 0:
                return "MISTAKE", "does not compile:\n" + text[-2000:]
            if "command" in mutant:
                code, text = sh(shlex.split(mutant["command"]), folder, self.limit(mutant["command"]))
                found = "\n".join(re.findall(r"^FAILED.*\n.*\n.*", text, re.M)[:1])
                failed = code == 8 if mutant["command"].startswith("ctest ") else code == 1
                if mutant["command"].startswith("./test_") and code != "timeout":
                    failed = 0 < code < 100  # so many tests of the program
                if not failed and code not in (0, "timeout"):
                    return "MISTAKE", f"{mutant['command']}: exit {code}\n" + text[-2000:]
                return ("SURVIVED", "") if code == 0 else ("killed", f"{mutant['command']}{' (hangs)' * (code == 'timeout')}\n{found}".rstrip())
            for number, names in enumerate(rounds):
                if number > 0:
                    self.compile(self.needed(names))
                for name in names:
                    if (by := self.ask(name, self.limit(name))[0]) is not None:
                        return "killed", by
            return ("SURVIVED" if whole else "second"), ""
        finally:
            path.write_text(original)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="regular expression on the mutant's name")
    parser.add_argument("--changed", action="store_true", help="those whose file or text has changed since they were found")
    parser.add_argument("--record", action="store_true", help="keep in killed.tsv which test found them")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sample", type=float, metavar="SECONDS", help="some of them, for about so long")
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")), help="of --sample; default the date")
    options = parser.parse_args()
    with open(ROOT / "tests/mutants/mutants.toml", "rb") as file:
        every = tomllib.load(file)["mutant"]
    names = {m["name"] for m in every}
    mutants = [m for m in every if re.search(options.only, m["name"]) and (not options.changed or Worker.killed.is_new(m))]
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
    if options.sample:
        known = [m for m in mutants if Worker.killed.test(m) and not m.get("emulated")]
        if len(known) < len(mutants):
            print(f"mutants: not run here: {len(mutants) - len(known)} that were never found, or need emulated kernels (make mutants)",
                  file=sys.stderr)
        mutants = known
    if not mutants and options.changed:
        print("mutants: none has changed since it was found")
        return 0
    if not mutants:
        sys.exit(f"no mutant matches '{options.only}'")

    begin = time.monotonic()
    mutants.sort(key=lambda m: (m["file"], Worker.killed.test(m) or ""))  # neighbours rebuild the same file, for the same test
    if options.sample:
        random.Random(options.seed).shuffle(mutants)
        print(f"mutants: a sample of {len(mutants)} for {options.sample:.0f} s, --seed {options.seed}", flush=True)
    workers = queue.Queue()
    jobs = max(1, min(options.jobs, len(mutants)))
    print(f"mutants: building {jobs} copies", flush=True)
    with_python = any(m["file"].startswith(OF_PYTHON) for m in mutants)
    python = python_env.python_with_numpy(print) if with_python else None
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(lambda number: Worker(number, python), range(jobs)))
    for worker in made:
        workers.put(worker)

    def one(mutant, whole=False):
        if options.sample and not whole and time.monotonic() - begin > options.sample and mutant is not mutants[0]:
            return "not run"
        worker, start = workers.get(), time.monotonic()
        try:
            for _ in range(2):
                state, why = worker.run(mutant, whole)
                by = why.split("\n")[0].removesuffix(" (hangs)")
                if state == "killed" and not options.sample and not worker.is_sound(mutant, by):
                    state = "UNSOUND"
                if state != "killed" or by == why.split("\n")[0] or worker.limit(by) <= LIMIT:
                    break  # otherwise it may only be slow, on a busy host: once more, with the time it has now been seen to take
        finally:
            workers.put(worker)
        print(f"{state:9} {mutant['name']:44} {time.monotonic() - start:5.0f} s  {why}", flush=True)
        if state == "killed" and options.record:
            Worker.killed.keep(mutant, by, names)
        return state

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        states = dict(zip((m["name"] for m in mutants), pool.map(one, mutants)))
        second = [m for m in mutants if states[m["name"]] == "second"]
        states.update(zip((m["name"] for m in second), pool.map(lambda mutant: one(mutant, whole=True), second)))
    states = [state for state in states.values() if state != "not run"]
    killed = states.count("killed")
    print(f"{killed} of {len(states)} mutants killed, {states.count('SURVIVED')} survived, "
          f"{states.count('MISTAKE')} mistakes, {states.count('UNSOUND')} by tests that fail without them")
    return 0 if killed == len(states) else 1


sys.exit(main())
