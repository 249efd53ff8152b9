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


def wheel():
    """One wheel, for every Python from 3.11 on, small."""
    shutil.rmtree(BUILD / "dist", ignore_errors=True)
    run(PYTHON, "-m", "pip", "wheel", "-q", "--no-deps", f"-Cbuild-dir={BUILD}/wheel", "-w", BUILD / "dist", ROOT)
    (made,) = (BUILD / "dist").iterdir()
    size = made.stat().st_size
    print(f"test-torch: {made.name}, {size} bytes", flush=True)
    if "-cp311-abi3-" not in made.name or size > 5_000_000:
        sys.exit("test-torch: it must be a cp311-abi3 wheel of at most 5,000,000 bytes")
    return made


def main():
    environment()
    run(PYTHON, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel())
    run(PYTHON, ROOT / "python/tests/run.py", "all", cwd=BUILD)  # not the tree: what was installed is tested


if __name__ == "__main__":
    main()
