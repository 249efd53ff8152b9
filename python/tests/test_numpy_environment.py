# SPDX-License-Identifier: Apache-2.0
"""The environments that tests run in: made once, whoever asks; made anew when half-made; a clear line where there is none."""
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import python_env
import run as tests
import test_torch

# Environments without pip, whose one package is a name: quick, and no network.
FAST = """
import pathlib, sys, time
sys.path.insert(0, {scripts!r})
import python_env
whole_run = python_env.run

def run(*command):
    return whole_run(*command, *(["--without-pip"] if "venv" in command else []))

python_env.run = run

def install(python):
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    (site / "thing-1.dist-info").mkdir()
    (site / "thing-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\\nName: thing\\nVersion: 1\\n")
""".format(scripts=str(ROOT / "scripts"))


class Environments(unittest.TestCase):
    def setUp(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.room = pathlib.Path(room.name)
        self.folder = self.room / "deep/er/env"
        self.said, self.names = [], {}
        whole_run = python_env.run
        self.addCleanup(setattr, python_env, "run", whole_run)
        exec(FAST, self.names)

    def ensure(self, requirements=("thing==1",)):
        """How often it had to be made: 0 or 1."""
        before = len(self.said)
        python = python_env.ensure(self.folder, list(requirements), self.names["install"], self.said.append)
        self.assertEqual(python, self.folder / "bin/python")
        return len(self.said) - before

    def test_it_is_made_once(self):
        self.assertEqual([self.ensure(), self.ensure()], [1, 0])
        self.assertIn("thing==1", self.said[0])

    def test_other_requirements_make_it_anew(self):
        self.assertEqual([self.ensure(), self.ensure(["thing<2"]), self.ensure(["thing<2"])], [1, 1, 0])

    def test_one_that_is_not_whole_is_made_anew(self):
        (site,) = [self.folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"]
        for damage in (
            lambda: (self.folder / "done").unlink(), lambda: (self.folder / "bin/python").unlink(), lambda: (site / "thing-1.dist-info").rename(site / "x"),
            lambda: (self.folder / "done").write_text("other"), lambda: (self.folder / "done").write_text(""),
        ):  # fmt: skip
            self.ensure()
            (self.folder / "left-over").touch()
            damage()
            self.assertEqual(self.ensure(), 1)
            self.assertFalse((self.folder / "left-over").exists())
            self.assertEqual(self.ensure(), 0)

    def test_a_failure_leaves_none(self):
        def half(python):
            self.names["install"](python)
            raise python_env.Failed("pip: no network")

        with self.assertRaisesRegex(python_env.Failed, "no network"):
            python_env.ensure(self.folder, ["thing==1"], half, self.said.append)
        self.assertEqual(self.ensure(), 1)

    def test_a_folder_that_cannot_be_written_is_a_clear_line(self):
        (self.room / "file").touch()
        self.folder = self.room / "file/env"
        with self.assertRaisesRegex(python_env.Failed, f"^{self.room}/file: (File exists|Not a directory)$"):
            self.ensure()

    def test_processes_at_once_make_one(self):
        code = FAST + """
room, mine = pathlib.Path(sys.argv[1]), sys.argv[2]
(room / f"started-{mine}").touch()

def slowly(python):
    with open(room / "made", "a") as made:
        made.write(mine)
    while len(list(room.glob("started-*"))) < 3:  # all are there before any is done
        time.sleep(0.01)
    install(python)

print(python_env.ensure(room / "env", ["thing==1"], slowly, lambda text: None))
"""
        workers = [subprocess.Popen([sys.executable, "-c", code, self.room, str(i)], stdout=subprocess.PIPE, text=True) for i in range(3)]
        told = [x.communicate()[0].strip() for x in workers]
        self.assertEqual([x.returncode for x in workers], [0, 0, 0])
        self.assertEqual(told, [str(self.room / "env/bin/python")] * 3)
        self.assertEqual(len((self.room / "made").read_text()), 1)


class Missing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.room = tempfile.TemporaryDirectory()
        cls.python = f"{cls.room.name}/bare/bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{cls.room.name}/bare"], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.room.cleanup()

    def run_bare(self, *command):
        """In a Python without NumPy that reaches no index: exit code and output."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("P")} | {"PATH": os.environ["PATH"]}
        done = subprocess.run([self.python, *command], env=plain | {"PIP_NO_INDEX": "1"}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def set_up(self, folder):
        """What scripts/python_env.py does, with its environment in this folder: exit code and last line."""
        code = "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import python_env; real = python_env.python_with_numpy; "
        code += "python_env.python_with_numpy = lambda say: real(say, pathlib.Path(sys.argv[2])); python_env.main()"
        status, text = self.run_bare("-c", code, str(ROOT / "scripts"), f"{self.room.name}/{folder}")
        self.assertNotIn("Traceback", text)
        return status, text.strip().splitlines()[-1]

    def test_no_numpy_and_no_network_is_a_clear_line(self):
        status, last = self.set_up("env")
        self.assertEqual(status, 1)
        self.assertRegex(last, r"has no NumPy, and it could not be had from PyPI \(pip: ERROR: .*numpy.*PYTHON=off")

    def test_no_numpy_and_no_place_for_it_is_a_clear_line(self):
        pathlib.Path(self.room.name, "file").touch()
        status, last = self.set_up("file/env")
        self.assertEqual(status, 1)
        self.assertRegex(last, r"has no NumPy, and it could not be had from PyPI \(.*/file: .*PYTHON=off")

    def test_tests_fail_without_numpy_and_are_not_skipped(self):
        for script in ("python/tests/run.py", "tests/peers/run.py"):
            self.assertEqual(self.run_bare(ROOT / script, "numpy")[0], 1)
            self.assertIn("has no NumPy: `make test` finds or makes", self.run_bare(ROOT / script, "numpy")[1])

    def test_an_old_python_is_refused(self):
        with mock.patch.object(sys, "version_info", (3, 10, 13)):
            with self.assertRaisesRegex(python_env.Failed, "is Python 3.10.13: the package needs 3.11"):
                python_env.python_with_numpy(print, None)


class PyTorch(unittest.TestCase):
    def test_its_folder_is_the_users_and_named_by_what_is_in_it(self):
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": "/somewhere"}):
            first = test_torch.environment_folder()
            self.assertEqual(first.parent, pathlib.Path("/somewhere/tileproof"))
            self.assertIn(".".join(map(str, sys.version_info[:3])), first.name)
            with mock.patch.object(test_torch, "requirements", lambda: ["torch==2.10"]):
                self.assertNotEqual(test_torch.environment_folder(), first)
            with mock.patch.object(sys, "version", "another build of this version"):
                self.assertNotEqual(test_torch.environment_folder(), first)
            with mock.patch.object(sys, "version_info", (3, 99, 0)):
                self.assertNotEqual(test_torch.environment_folder(), first)
        for relative in ("", "here"):
            with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": relative, "HOME": "/home/someone"}):
                self.assertEqual(test_torch.environment_folder().parent, pathlib.Path("/home/someone/.cache/tileproof"))

    def test_what_a_cpu_does_not_need_is_left_out(self):
        for needed, left in (
            ("filelock", "filelock"), ('triton~=3.9.0; platform_system == "Linux"', None), ("cuda-bindings<14,>=13.0.3", None), ('optree>=0.13.0; extra == "optree"', None),
            ("nvidia-nccl-cu13==2.30.7", "nvidia-nccl-cu13==2.30.7"), ("cuda-toolkit[cublas,cusolver,nvtx]==13.2.2; x", "cuda-toolkit[cublas]==13.2.2; x"),
        ):  # fmt: skip
            self.assertEqual(test_torch.trimmed(needed), left)


class Parts(unittest.TestCase):
    def test_every_part_is_in_the_usage(self):
        for part in tests.PARTS:
            self.assertRegex(test_torch.__doc__, rf"\b{part}\b")

    def test_every_file_is_in_one_of_the_two_parts_that_ctest_runs(self):
        for file in pathlib.Path(tests.HERE).glob("test_*.py"):
            of = [part for part in ("numpy", "torch") for pattern in tests.PARTS[part] if fnmatch.fnmatch(file.name, pattern)]
            self.assertEqual(len(of), 1, file.name)


# cmake and ctest that write down how they are called
STAND_IN = """#!/bin/bash
echo "$(basename "$0") $*" >>"$CALLS"
while [ $# -gt 0 ]; do
    if [ "$1" = -B ]; then mkdir -p "$2"; fi
    shift
done
"""


class Named(unittest.TestCase):
    """PYTHON=off leaves out what needs Python, and PYTHON=/path takes that one, wherever PYTHON is asked."""

    def setUp(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.room = pathlib.Path(room.name)

    def run_with(self, python, *command, **more):
        done = subprocess.run(command, env={**os.environ, "PYTHON": python, **more}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_by_slow_tests(self):
        mine = os.path.normpath(sys.executable)

        def slow(*flags):
            self.run_with("", "cmake", "-S", ROOT, "-B", self.room, "-G", "Ninja", *flags)
            told = json.loads(self.run_with("", "ctest", "--test-dir", self.room, "--show-only=json-v1"))
            return {x["name"]: (x.get("command", []), {p["name"]: p["value"] for p in x["properties"]}) for x in told["tests"]}

        without = slow("-DTILEPROOF_PYTHON=OFF")
        for name in ("torch", "python", "peers"):
            self.assertTrue(without[name][1].get("DISABLED"), name)
            self.assertNotIn("test_torch", " ".join(without[name][0]))
        having = slow("-DTILEPROOF_PYTHON=ON", f"-DPython_EXECUTABLE={mine}")
        self.assertEqual(having["torch"][0], [mine, f"{ROOT}/scripts/test_torch.py", "torch"])
        self.assertFalse(having["torch"][1].get("DISABLED", False))
        for made, python in ((without, "off"), (having, mine)):
            for name in ("compilers", "mutants"):
                self.assertEqual(made[name][1]["ENVIRONMENT"], [f"PYTHON={python}"])

    def test_by_mutants(self):
        listed = [self.run_with(python, sys.executable, ROOT / "tests/mutants/run.py", "--list") for python in ("", "off")]
        files = [{line.split()[1].split("/")[0] for line in x.splitlines()} for x in listed]
        self.assertEqual(files[0] - files[1], {"python", "scripts", "bench"})
        self.assertIn("src", files[1])

    def test_by_compilers(self):
        (self.room / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/compilers.sh", self.room / "scripts")
        (self.room / "scripts/python_env.py").write_text("print('/one/with/numpy')")
        for name in ("cmake", "ctest"):
            (self.room / name).write_text(STAND_IN)
            (self.room / name).chmod(0o755)

        def configured(python):
            (self.room / "calls").write_text("")
            path = f"{self.room}:{os.environ['PATH']}"
            self.run_with(python, "bash", self.room / "scripts/compilers.sh", PATH=path, CALLS=str(self.room / "calls"))
            lines = (self.room / "calls").read_text().splitlines()
            self.assertEqual([x.split()[0] for x in lines], ["cmake"] * 4 + ["ctest"])
            return [x for x in lines if " -S " in x]

        for line in configured("off"):
            self.assertIn("-DTILEPROOF_PYTHON=OFF", line)
            self.assertNotIn("Python_EXECUTABLE", line)
        for line in configured(sys.executable):
            self.assertIn("-DTILEPROOF_PYTHON=ON -DPython_EXECUTABLE=/one/with/numpy", line)


if __name__ == "__main__":
    unittest.main()
