# SPDX-License-Identifier: Apache-2.0
"""Which engine runs here: versions and devices, detected."""
from __future__ import annotations

import functools
import sys
from typing import Any

from ..engines import host

PACKAGES = ("transformers", "flash-attn", "flash-attn-3", "triton")


@functools.lru_cache(None)
def _found() -> dict[str, Any]:
    import torch

    from .. import _core

    found = {
        "torch": torch.__version__,
        "cpu": host.cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": ".".join(map(str, sys.version_info[:2])),
        "tileproof": _core.version,
    }
    if torch.cuda.is_available():  # not run here
        found["cuda"], found["cudnn"] = torch.version.cuda, str(torch.backends.cudnn.version())
        found["gpu"], found["driver"] = torch.cuda.get_device_name(), host.driver()
    found.update(host.versions(*PACKAGES))
    return {name: value for name, value in found.items() if value}


def identity() -> dict[str, Any]:
    """Only what is there: nothing of CUDA on a host without a GPU."""
    return dict(_found())
