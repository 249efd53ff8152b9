#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make test-torch`: installs python/tests/requirements.txt (once) and this tree, by pip, into build/test-torch/venv, and
runs every test of the Python package there. Quick when only the tree has changed."""
import hashlib
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/test-torch"
PYTHON = BUILD / "venv/bin/python"


def run(*command, **options):
    if subprocess.run([str(x) for x in command], **options).returncode:
        sys.exit(f"test-torch: failed: {' '.join(str(x) for x in command)}")


def environment():
    wanted = ROOT / "python/tests/requirements.txt"
    stamp, want = BUILD / "done", hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == want:
        return
    print("test-torch: setting up build/test-torch/venv", flush=True)
    shutil.rmtree(BUILD / "venv", ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "venv", BUILD / "venv")
    run(PYTHON, "-m", "pip", "install", "-q", "--only-binary", ":all:", "-r", wanted)
    stamp.write_text(want)


def main():
    environment()
    pip = [PYTHON, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", f"-Cbuild-dir={BUILD}/wheel", ROOT]
    run(*pip)
    run(PYTHON, ROOT / "python/tests/run.py", "all", cwd=BUILD)  # not the tree: what was installed is tested


if __name__ == "__main__":
    main()
