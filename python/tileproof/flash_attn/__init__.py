# SPDX-License-Identifier: Apache-2.0
"""flash-attn 2's functions on the CPU: its names, arguments, results and errors, tileproof's kernels and receipts.

    import tileproof.flash_attn
    tileproof.flash_attn.install()              # `import flash_attn` is this, where flash-attn is not installed
    from flash_attn import flash_attn_func

float32 is an extension. docs/flash_attn.md has the rest."""
from ._install import install, uninstall
from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.4+tileproof"  # of flash-attn, whose signatures these are

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
    "uninstall",
]
