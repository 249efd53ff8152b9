# SPDX-License-Identifier: Apache-2.0
"""Which engine runs here: versions and devices, detected."""
from __future__ import annotations

import functools
import importlib.metadata
import platform
import sys
from typing import Any

PACKAGES = ("transformers", "flash-attn", "flash-attn-3", "triton")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _driver() -> str:
    try:
        with open("/sys/module/nvidia/version") as file:
            return file.read().strip()
    except OSError:
        return ""


@functools.lru_cache(None)
def _found() -> dict[str, Any]:
    import torch

    from .. import _core

    found = {
        "torch": torch.__version__,
        "cpu": _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": ".".join(map(str, sys.version_info[:2])),
        "tileproof": _core.version,
    }
    if torch.cuda.is_available():  # not run here
        found["cuda"], found["cudnn"] = torch.version.cuda, str(torch.backends.cudnn.version())
        found["gpu"], found["driver"] = torch.cuda.get_device_name(), _driver()
    found.update({name: _version(name) for name in PACKAGES})
    return {name: value for name, value in found.items() if value}


def identity() -> dict[str, Any]:
    """Only what is there: nothing of CUDA on a host without a GPU."""
    return dict(_found())
