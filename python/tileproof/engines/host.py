# SPDX-License-Identifier: Apache-2.0
"""What a lock holds of a host and its packages: detected, not typed. Nothing heavy is imported."""
from __future__ import annotations

import importlib.metadata
import os
import platform

# In every output of a CUDA path.
CUDA_NOT_RUN = "CUDA: not run here: tileproof's makers had no GPU. Kernels are told by their names, as traces written by hand have them"


def version(package: str) -> str:
    """"": it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions(*packages: str) -> dict[str, str]:
    return {name: found for name in packages if (found := version(name))}


def cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def driver() -> str:
    """NVIDIA's; not run here."""
    try:
        with open("/sys/module/nvidia/version") as file:
            return file.read().strip()
    except OSError:
        return ""


def threads(asked: int) -> int:
    return asked or len(os.sched_getaffinity(0))
