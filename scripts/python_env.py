#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the Python that `make test` builds the package for and tests it with: this one, if it has NumPy and ml_dtypes;
otherwise one of a virtual environment in build/python-env with both from PyPI, made once. Quick when there is nothing to do.

    python3 scripts/python_env.py

Also the way any such environment is made (ensure), which scripts/test_torch.py uses."""
import fcntl
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
WANTED = ["numpy>=1.24", "ml_dtypes"]
REMEDY = "PYTHON=/path/to/python3 names another Python, PYTHON=off leaves the tests of the Python package out"


class Failed(Exception):
    """What was tried and what came of it, on one line."""


def name_of(requirement):
    """'torch==2.15.0' -> 'torch'"""
    return re.match(r"[A-Za-z0-9._-]+", requirement).group()


def run(*command):
    """The output of a command, or Failed with its last line."""
    try:
        done = subprocess.run([str(x) for x in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}")
    if done.returncode:
        lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
        told = [x for x in lines if x.startswith("ERROR:")] or lines[-1:]
        raise Failed(f"{command[2] if command[1] == '-m' else command[0]}: {told[-1]}")
    return done.stdout


def pip_install(python, *words):
    run(python, "-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:", *words)


def is_whole(folder, key, requirements):
    """Was it finished, for these requirements, and are its Python and they still there?"""
    stamp, names = folder / "done", [name_of(x) for x in requirements]
    if not stamp.exists() or stamp.read_text() != key:
        return False
    ask = "import importlib.metadata, sys\nfor name in sys.argv[1:]: importlib.metadata.version(name)"
    try:
        run(folder / "bin/python", "-I", "-c", ask, *names)
    except Failed:
        return False
    return True


def ensure(folder, requirements, install, say):
    """A virtual environment with these requirements, as install(python) leaves it; its Python. Whoever comes first makes it,
    the others wait. It counts as made when its stamp is written, last of all: one that was left half-made is made anew."""
    key = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.lock", "w") as lock:  # stays: to remove it would let two in
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another process is setting up {folder}: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(folder, key, requirements):
                say(f"setting up {folder}: {', '.join(requirements)}")
                shutil.rmtree(folder, ignore_errors=True)
                run(sys.executable, "-m", "venv", folder)
                install(folder / "bin/python")
                (folder / "done").write_text(key)
        return folder / "bin/python"
    except OSError as error:  # a read-only tree, a full disk
        raise Failed(f"{error.filename or folder}: {error.strerror}")


def is_here(code):
    try:
        return bool(run(sys.executable, "-c", code))
    except Failed:
        return False


def python_with_numpy(say, folder=ROOT / "build/python-env"):
    if sys.version_info < OLDEST:
        raise Failed(f"{sys.executable} is Python {'.'.join(map(str, sys.version_info[:3]))}: the package needs 3.11 or later")
    numpy = "import numpy\nassert [int(x) for x in numpy.__version__.split('.')[:2]] >= [1, 24]\nprint(1)"
    if is_here(f"import ml_dtypes\n{numpy}"):
        return pathlib.Path(sys.executable)
    try:
        return ensure(folder, WANTED, lambda python: pip_install(python, "--retries", "1", *WANTED), say)
    except Failed as error:
        if is_here(numpy):
            say(f"not run here: NumPy's bfloat16, as ml_dtypes could not be had from PyPI ({error})")
            return pathlib.Path(sys.executable)
        raise Failed(f"{sys.executable} has no NumPy, and it could not be had from PyPI ({error}): install it for this Python")


def main():
    try:
        print(python_with_numpy(lambda text: print(f"set-up: {text}", file=sys.stderr, flush=True)))
    except Failed as error:
        sys.exit(f"set-up: {error}; or: {REMEDY}")


if __name__ == "__main__":
    main()
