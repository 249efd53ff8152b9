# SPDX-License-Identifier: Apache-2.0
"""Some virtual machines say that they have AMX and hide its palettes; PyTorch's bfloat16 then dies of SIGILL."""
import os
import signal
import subprocess
import sys

TRY = "import torch; x = torch.ones(1, 4, 512, 64, dtype=torch.bfloat16); torch.nn.functional.scaled_dot_product_attention(x, x, x)"


def without_broken_amx():
    """Tries it in a child; where it dies, starts this program anew with PyTorch told not to use AMX."""
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    if subprocess.run([sys.executable, "-c", TRY], stderr=subprocess.DEVNULL).returncode == -signal.SIGILL:
        print("AMX: this host says it has it but not how; PyTorch was told not to use it.", flush=True)
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
        os.execv(sys.executable, [sys.executable, *sys.argv])
