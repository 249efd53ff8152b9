# SPDX-License-Identifier: Apache-2.0
"""The runner of one engine. The tool starts it: tileproof qualify --engine NAME."""
from __future__ import annotations

import argparse
import importlib
import os
import sys

from . import NAMES, wire
from .cell import NotServed


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tileproof.engines", description=__doc__)
    parser.add_argument("engine", choices=NAMES)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=None, help="default: cpu, and cuda for flash_attn")
    parser.add_argument("--threads", type=int, default=0, help="default: all that this process may use")
    parser.add_argument("--compiled", action="store_true", help="torch: the call inside torch.compile")
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # PyTorch's profiler writes lines of its own
    channel = wire.Channel.open()
    if channel is None:
        print("tileproof.engines: it is started by tileproof qualify --engine (docs/runner-protocol.md)", file=sys.stderr)
        return 2
    try:
        engine = importlib.import_module(f".{options.engine}", __package__).Engine(options)
    except (NotServed, ImportError, OSError) as error:
        channel.unavailable(first_line(error))
        return 0
    channel.greet(engine)
    channel.serve(engine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
