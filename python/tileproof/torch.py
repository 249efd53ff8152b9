# SPDX-License-Identifier: Apache-2.0
"""PyTorch: gradients, torch.compile, and patch(), which routes PyTorch's own scaled_dot_product_attention here.

Calls that need neither gradients nor tracing never come this way; they go straight to the extension.
"""
from ._torch_log import Log, log
from ._torch_ops import differentiable
from ._torch_patch import Patch, patch, unpatch

__all__ = ["Log", "Patch", "differentiable", "log", "patch", "unpatch"]
