# SPDX-License-Identifier: Apache-2.0
"""python -m tileproof.watch [options] script.py ... | -m module ...

Runs a program as Python would, watches its attention, and prints one table at the end, on standard error. PyTorch is not
imported before the program does it."""
from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from typing import Any, Optional

SCRIPT_NEEDED = "a script or -m module is needed; --read-profile FILE reads a profile instead"


def arguments() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tileproof.watch", description="Runs a program, and says which attention kernels served it.",
        allow_abbrev=False,
    )  # fmt: skip
    made.add_argument("--every", type=int, default=100, metavar="N", help="measure memory on each N-th call of a class (100)")
    made.add_argument("--json", metavar="FILE", help="what was seen, for programs")
    made.add_argument("--metrics", metavar="FILE", help="Prometheus text, written anew while the program runs")
    made.add_argument("--metrics-seconds", type=float, default=15.0, metavar="S", help="how often (15)")
    made.add_argument("--trace", metavar="FILE", help="a line of JSON for each call")
    made.add_argument("--lock", metavar="FILE", help="hold calls against a lock")
    made.add_argument("--on-drift", choices=("warn", "raise", "count"), default="warn", help="what drift does (warn)")
    made.add_argument("--save-lock", metavar="FILE", help="write what was seen as a lock")
    made.add_argument("--model", default="", metavar="NAME", help="a name in place of the class of the outermost module")
    made.add_argument("--quiet", action="store_true", help="no table")
    made.add_argument("--read-profile", metavar="FILE", help="attention kernels in a torch.profiler trace (Chrome JSON)")
    made.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="a module to run, and its arguments")
    made.add_argument("script", nargs=argparse.REMAINDER, metavar="script.py ...", help="a script to run, and its arguments")
    return made


def run(options: argparse.Namespace) -> None:
    """The program, as `python script.py` or `python -m module` runs it."""
    if options.module:
        sys.argv = list(options.module)
        sys.path[0] = os.getcwd()
        runpy.run_module(options.module[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(options.script)
        sys.path[0] = os.path.dirname(os.path.abspath(options.script[0]))
        runpy.run_path(options.script[0], run_name="__main__")


class Session:
    """A watcher that opens when the program has imported PyTorch, and is told about at the end, however it ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.pid = options, os.getpid()
        self.watch: Any = None

    def open(self) -> None:
        from .records import Watch

        o = self.options
        self.watch = Watch(
            every=o.every, lock=o.lock, on_drift=o.on_drift, trace=o.trace, metrics=o.metrics,
            metrics_seconds=o.metrics_seconds, model=o.model,
        )  # fmt: skip

    def tell(self) -> None:
        if os.getpid() != self.pid:  # a child that was forked, and ended as the program does
            return
        if self.watch is None:
            print("tileproof watch: the program did not import torch: no attention of PyTorch's to see", file=sys.stderr)
            return
        self.watch.close()
        from .._files import write_file

        o = self.options
        try:
            if o.json:
                write_file(o.json, json.dumps(self.watch.to_dict(), indent=1) + "\n")
            if o.save_lock:
                self.watch.save_lock(o.save_lock)
        except OSError as error:
            print(f"tileproof watch: {error.filename}: {error.strerror}", file=sys.stderr)
        if not o.quiet:
            sys.stdout.flush()
            sys.stderr.write(self.watch.table())


def main(words: Optional[list[Any]] = None) -> Any:
    parser = arguments()
    options = parser.parse_args(words)
    if options.read_profile:
        from .profile import main as read

        return read(options.read_profile)
    if not options.script and not options.module:
        parser.error(SCRIPT_NEEDED)
    if options.script and not os.path.exists(options.script[0]):
        parser.error(f"{options.script[0]}: no such file")
    if options.every < 1:
        parser.error(f"--every is {options.every}: it must be at least 1")
    if not options.metrics_seconds > 0:
        parser.error(f"--metrics-seconds is {options.metrics_seconds:g}: it must be above 0")
    for path in filter(None, (options.json, options.metrics, options.trace, options.save_lock)):
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            parser.error(f"{path}: there is no such folder")
    if options.lock:
        from .lock import Lock, LockError

        try:
            Lock(options.lock)
        except LockError as error:
            parser.error(str(error))
    session = Session(options)
    from .after_import import AfterImport

    if "torch" in sys.modules:
        session.open()
    else:
        sys.meta_path.insert(0, AfterImport(("torch",), session.open))
    try:
        run(options)
    finally:
        session.tell()


if __name__ == "__main__":
    sys.exit(main())
