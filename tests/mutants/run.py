#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants the bugs of mutants.toml one at a time in a copy of the tree and asks the tests to find each.

    run.py [--jobs N] [--only REGEX] [--list]

A mutant is killed when a test fails or runs into the time limit. One that survives is a gap in the tests;
one that does not apply exactly once, or does not compile, is a mistake in mutants.toml. Exit 0: all killed.
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 240  # seconds for one mutant's tests; the stated time
TESTS = ["ctest", "--stop-on-failure", "--output-on-failure", "-LE", "slow", "-E", "^(install|header|arrows)$"]
# Tests that are asked first, by where the bug is: the others only where these find nothing.
FIRST = [
    ("cli/whole", "file_calls"),
    ("cli/places", "file_calls"),
    ("cli/output", "file_calls"),
    ("cli/journal_text", "file_calls|fuzz_journal"),
    ("cli/qualify_journal", "file_calls|files"),
    ("cli/file_text", "files"),
    ("cli/main", "files"),
    ("cli/measure", "memory"),
    ("cli/bench_problem", "memory"),
    ("cli/simulated_run", "bytes"),
    ("cli/", "verdict|compare"),
    ("proof/", "model_.*|json|lock|proof_memory"),
    ("src/masks/", "masks|mask_kinds|mask_cache"),
    ("src/strategies/sight", "masks|mask_kinds|mask_cache"),
    ("src/strategies/prepare", "mask_kinds"),
    ("src/kernels/modify", "mask_kinds"),
    ("src/kernels/dots", "decode|guard"),
    ("src/kernels/mix", "decode"),
    ("src/strategies/decode", "decode|mask_cache"),
    ("src/strategies/keys", "paged|mask_cache"),
    ("src/problem/cache_check", "paged|mask_cache"),
    ("src/problem/mask_data", "abuse|mask_kinds"),
    ("src/plan/", "selection"),
    ("", "borders|values"),
]


def sh(command, cwd, timeout=None):
    env = dict(os.environ, TILEPROOF_TEST_QUICK="1")
    child = subprocess.Popen(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             errors="replace", start_new_session=True)
    try:
        text, _ = child.communicate(timeout=timeout)
        return child.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # the test as well as ctest
        child.wait()
        return "timeout", ""


class Worker:
    """One copy of the tree with its own build folder, so that a mutant rebuilds one file."""

    def __init__(self, number):
        self.tree = ROOT / "build" / "mutants" / str(number)
        shutil.rmtree(self.tree, ignore_errors=True)
        shutil.copytree(ROOT, self.tree, ignore=shutil.ignore_patterns("build", ".git"))
        self.build = self.tree / "build"
        for command in (["cmake", "-S", ".", "-B", "build", "-G", "Ninja"], ["cmake", "--build", "build"]):
            code, text = sh(command, self.tree)
            if code != 0:
                sys.exit(text)

    def compile(self):
        return sh(["cmake", "--build", "build"], self.tree)

    def test(self, only=None):
        return sh(TESTS + (["-R", f"^({only})$"] if only else []), self.build, LIMIT)

    def run(self, mutant):
        path = self.tree / mutant["file"]
        original = path.read_text()
        if original.count(mutant["find"]) != 1:
            return "MISTAKE", f"'{mutant['find']}' stands {original.count(mutant['find'])} times in {mutant['file']}"
        path.write_text(original.replace(mutant["find"], mutant["replace"]))
        try:
            code, text = self.compile()
            if code != 0:
                return "MISTAKE", "does not compile:\n" + text[-2000:]
            code, text = self.test(next(tests for path, tests in FIRST if mutant["file"].startswith(path)))
            if code == 0:
                code, text = self.test()
            if code == 0:
                return "SURVIVED", ""
            by = "time limit" if code == "timeout" else " ".join(re.findall(r"\d+ - (\S+) \((?:Failed|SEGFAULT|Timeout|[A-Z]\w*)", text))
            return "killed", by or "a test"
        finally:
            path.write_text(original)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="regular expression on the mutant's name")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    with open(ROOT / "tests/mutants/mutants.toml", "rb") as file:
        mutants = [m for m in tomllib.load(file)["mutant"] if re.search(options.only, m["name"])]
    if options.list:
        print("\n".join(f"{m['name']:40} {m['file']}" for m in mutants))
        return 0
    if not mutants:
        sys.exit(f"no mutant matches '{options.only}'")

    workers = queue.Queue()
    jobs = max(1, min(options.jobs, len(mutants)))
    print(f"mutants: building {jobs} copies", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(Worker, range(jobs)))
    code, text = made[0].test()
    if code != 0:
        sys.exit("mutants: the tests fail without any mutant:\n" + text[-4000:])
    for worker in made:
        workers.put(worker)

    def one(mutant):
        worker, start = workers.get(), time.monotonic()
        try:
            state, why = worker.run(mutant)
        finally:
            workers.put(worker)
        print(f"{state:9} {mutant['name']:44} {time.monotonic() - start:5.0f} s  {why}", flush=True)
        return state

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        states = list(pool.map(one, mutants))
    killed = states.count("killed")
    print(f"{killed} of {len(states)} mutants killed, {states.count('SURVIVED')} survived, "
          f"{states.count('MISTAKE')} mistakes (limit {LIMIT} s each)")
    return 0 if killed == len(states) else 1


sys.exit(main())
