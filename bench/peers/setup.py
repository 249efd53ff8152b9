# SPDX-License-Identifier: Apache-2.0
"""Sets up build/peers: a virtual environment with one pinned requirements file a peer, and ggml built for this host. PyTorch is the
one that `make test-torch` keeps. What fails is noted in build/peers/failed and stops nothing else. Quick when there is
nothing to do.

    python3 bench/peers/setup.py [PEER ...]     these alone; default all"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
import test_torch  # noqa: E402

BUILD = pathlib.Path("build/peers").resolve()
PYTHON = BUILD / "venv/bin/python"
# built from the source package of its Python binding: only ggml in it, for this host's instructions
SOURCES = {"ggml": "llama-cpp-python", "ik_llama": "ik-llama-cpp-python"}


class Failed(Exception):
    pass


def run(*command, log):
    with open(log, "a") as out:
        if subprocess.run([str(word) for word in command], stdout=out, stderr=subprocess.STDOUT).returncode:
            lines = [x.strip() for x in log.read_text().splitlines() if "error" in x.lower()]
            raise Failed(f"{lines[-1] if lines else command[0]}"[:200])


def install(name, requirements, log):
    """A requirements file; a first line '# no-deps' leaves out what it would pull in."""
    flags = ["--no-deps"] if requirements.read_text().startswith("# no-deps") else []
    run(PYTHON, "-m", "pip", "install", "-q", "--only-binary", ":all:", *flags, "-r", requirements, log=log)


def link_torch(name, requirements, log):
    """Gigabytes are kept once: the environment of `make test-torch` is on this one's path, behind its own packages."""
    pin = requirements.read_text().strip()
    if pin not in test_torch.requirements():
        raise Failed(f"{requirements.name} has {pin}: it must be that of python/tests/requirements.txt")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    try:
        theirs, mine = (subprocess.check_output([x, "-I", "-c", ask], text=True).strip() for x in (test_torch.environment(), PYTHON))
    except SystemExit as error:
        raise Failed(str(error))
    pathlib.Path(mine, "kept_torch.pth").write_text(theirs + "\n")


def compile_ggml(name, requirements, log):
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pin = [x for x in requirements.read_text().split("\n") if x and not x.startswith("#")][0]
    for tool in ("cmake", "ninja", "g++"):
        if not shutil.which(tool):
            raise Failed(f"{tool} is not installed")
    run(PYTHON, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", SOURCES[name], "-d", folder, pin, log=log)
    (folder / "source").mkdir()
    run("tar", "xzf", next(folder.glob("*.tar.gz")), "-C", folder / "source", log=log)
    source = next((folder / "source").glob("*/vendor/*/ggml"))
    (source / "ggml.pc.in").touch()  # left out of the package, though its build asks for it
    run(
        "cmake", "-S", source, "-B", folder / "lib", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
        "-DBUILD_SHARED_LIBS=ON", "-DGGML_CCACHE=OFF", "-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF",
        "-DCMAKE_CXX_FLAGS=-std=c++20", log=log,
    )  # fmt: skip
    run("ninja", "-C", folder / "lib", "-j", os.environ.get("JOBS", "2"), log=log)
    (folder / "version").write_text(pin + "\n")


def peer(requirements):
    """Installs one peer unless its file is the one installed before."""
    name = requirements.stem
    stamp, failed, log = (BUILD / x / name for x in ("done", "failed", "log"))
    want = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == want:
        return
    for path in (stamp, failed, log):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    print(f"peers: setting up {name}", file=sys.stderr, flush=True)
    try:
        (compile_ggml if name in SOURCES else link_torch if name == "torch" else install)(name, requirements, log)
        stamp.write_text(want)
    except Failed as error:
        failed.write_text(f"{error}\n")
        print(f"peers: {name} failed: {error}; log in {log}", file=sys.stderr)


def main():
    if not PYTHON.exists() and subprocess.run([sys.executable, "-m", "venv", BUILD / "venv"]).returncode:
        shutil.rmtree(BUILD / "venv", ignore_errors=True)
        sys.exit("peers: python3 -m venv failed (Debian: python3-venv)")
    for requirements in sorted((HERE / "requirements").glob("*.txt"), key=lambda x: (x.stem != "base", x.stem)):
        if requirements.stem == "base" or requirements.stem in (sys.argv[1:] or [requirements.stem]):
            peer(requirements)
    if (BUILD / "failed" / "base").exists():
        sys.exit("peers: numpy could not be installed")


if __name__ == "__main__":
    main()
