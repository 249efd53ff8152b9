# SPDX-License-Identifier: Apache-2.0
"""patch() and unpatch(): PyTorch's own scaled_dot_product_attention, routed here. One function stands in for PyTorch's
while any patch is open, whatever the order in which patches close and the threads that open them."""
from __future__ import annotations

import functools
import inspect
import operator
import threading
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from ._sdpa import _attend
from ._torch_log import Log, _logs, note_passed, note_receipt, wants_receipts
from ._torch_ops import _sdpa_traced

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NAMES = ("query", "key", "value", "attn_mask")


def _tensor_not_ours(name: str, x: Any) -> Optional[str]:
    if not isinstance(x, Tensor):
        return f"{name} is a {type(x).__name__}, no Tensor"
    if x.device.type != "cpu":
        return f"{name} is on {x.device}, not on the CPU"
    if x.layout != torch.strided or x.is_nested:
        return f"{name} has layout {x.layout}{' and is nested' if x.is_nested else ''}, not torch.strided"
    if x.requires_grad and torch.is_grad_enabled() and x.shape[-1:] > (576,) and name != "attn_mask":
        return f"{name} has head dim {x.shape[-1]} and needs a gradient: that goes up to 576"
    if x.dtype not in DTYPES and not (name == "attn_mask" and x.dtype == torch.bool):
        return f"{name} is {x.dtype}, not float32, float16 or bfloat16"
    return None


def _overrides(kind: type) -> bool:
    """Does this type of tensor have a say in what functions and ops do to it?"""
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ or (
        kind is not Tensor and kind.__torch_function__ is not torch.nn.Parameter.__torch_function__
    )


def _someone_elses(tensors: tuple) -> Optional[str]:
    """Who else has a say in this call: PyTorch's own function asks them, and a call from here would not."""
    for name, x in zip(NAMES, tensors):
        if not isinstance(x, Tensor):  # None, or PyTorch's: _tensor_not_ours says so
            continue
        if type(x) is not Tensor and _overrides(type(x)):
            return f"{name} is a {type(x).__name__}, which has its own way with PyTorch's functions"
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            return f"{name} is inside a transform of torch.func (vmap, grad, jvp), which knows PyTorch's function"
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
            return f"{name} has a tangent, and there is no forward-mode derivative here"
    if torch._C._len_torch_dispatch_stack() > 0:
        return "a TorchDispatchMode is active, which sees PyTorch's ops"
    if torch._C._len_torch_function_stack() > 0:  # one that sets the device of new tensors changes nothing here
        for mode in torch.overrides._get_current_function_mode_stack():
            if not isinstance(mode, DeviceContext):
                return f"{type(mode).__name__} is active, a TorchFunctionMode, which sees PyTorch's function"
    return None


@torch.compiler.assume_constant_result  # as it is when a graph is traced; PyTorch keeps its own choice of then, too
def _restricted() -> bool:
    cuda = torch.backends.cuda  # the switches are of all devices
    return not (cuda.flash_sdp_enabled() and cuda.math_sdp_enabled() and cuda.mem_efficient_sdp_enabled())


def _not_ours(query, key, value, attn_mask) -> Optional[str]:
    """Why a call is left to PyTorch; None: it is ours."""
    if _restricted():
        return "PyTorch's backends are restricted (sdpa_kernel), so one of them is meant"
    if not torch.compiler.is_compiling():
        why = _someone_elses((query, key, value, attn_mask))
        if why is not None:
            return why
    for name, x in zip(NAMES, (query, key, value, attn_mask)):
        why = None if x is None and name == "attn_mask" else _tensor_not_ours(name, x)
        if why is not None:
            return why
    return None


def _ours(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    given = (query, key, value, attn_mask)
    if torch.is_autocast_enabled("cpu"):  # as PyTorch's own function is cast: every float it gets
        to = torch.get_autocast_dtype("cpu")
        given = tuple(x if x is None or x.dtype == torch.bool else x.to(to) for x in given)
    compiling = torch.compiler.is_compiling()
    if compiling or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)):
        return _sdpa_traced(*given, dropout_p, is_causal, scale, enable_gqa, _threads)
    out, receipt = _attend(*given, dropout_p, is_causal, scale, enable_gqa, wants_receipts(), _threads)
    note_receipt(receipt)
    return out


def _stand_in(original: Callable) -> Callable:
    def scaled_dot_product_attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
    ):
        if _standing is scaled_dot_product_attention:  # or someone kept it after the last patch had closed
            why = _not_ours(query, key, value, attn_mask)
            if why is None:
                if torch.compiler.is_compiling():
                    return _ours(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
                try:
                    return _ours(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
                except (ValueError, TypeError, BufferError, RuntimeError) as refused:
                    why = str(refused)
            note_passed(why)
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    scaled_dot_product_attention.__doc__ = original.__doc__
    scaled_dot_product_attention.__wrapped__ = original
    return scaled_dot_product_attention


_lock = threading.RLock()  # guards what follows
_patches: list[Patch] = []  # open ones, in the order opened
_standing: Optional[Callable] = None  # what stands in for PyTorch's function
_threads: Optional[int] = None  # of the patch opened last that names them


def _settle(opening: bool) -> None:
    """Makes torch.nn.functional what the open patches ask for. What another library has put over ours stays when one closes:
    under it ours goes on while a patch is open, and then does nothing but call what it replaced."""
    global _standing, _threads
    functional = torch.nn.functional
    named = [x.threads for x in _patches if x.threads is not None]
    _threads = named[-1] if named else None
    present = functional.scaled_dot_product_attention
    if opening and present is not _standing:
        _standing = _stand_in(present)
        functional.scaled_dot_product_attention = _standing
    if not _patches and _standing is not None:
        if present is _standing:
            functional.scaled_dot_product_attention = _standing.__wrapped__
        _standing = None


class Patch(Log):
    """A patch and what ran under it; made open by patch(). `close()` ends it, and so does leaving `with`."""

    def __init__(self, limit: int, threads: Optional[int]) -> None:
        super().__init__(limit)
        if threads is not None and not 1 <= operator.index(threads) <= 1024:
            raise ValueError(f"threads is {threads}: it must be in 1..1024, or None")
        self.threads = threads
        self._entered = False
        with _lock:
            _patches.append(self)
            _logs.append(self)
            _settle(opening=True)

    def close(self) -> None:
        """Ends it; once is enough. PyTorch has its function back when no patch is open any more."""
        with _lock:
            if self in _patches:
                _patches.remove(self)
                _logs.remove(self)
                _settle(opening=False)

    def __enter__(self) -> Patch:
        if self._entered or self not in _patches:
            raise RuntimeError(f"this patch is {'entered' if self._entered else 'closed'} already: call patch() again")
        self._entered = True
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def __call__(self, function: Callable) -> Callable:
        """As a decorator: this one closes, and each call of the function has a patch of its own."""
        self.close()
        return _decorated(function, self.limit, self.threads)


def _decorated(function: Callable, limit: int, threads: Optional[int]) -> Callable:
    later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if isinstance(function, type) or not callable(function) or any(x(function) for x in later):
        raise TypeError(
            f"{function!r} cannot be decorated by patch(): it must be a plain function; otherwise use `with patch():` inside"
        )

    @functools.wraps(function)
    def patched(*args: Any, **options: Any) -> Any:
        with Patch(limit, threads):
            return function(*args, **options)

    return patched


def patch(limit: Any = 10000, threads: Optional[int] = None) -> Any:
    """From now on torch.nn.functional.scaled_dot_product_attention on CPU tensors of float32, float16 and bfloat16 is
    tileproof's, in all threads. Other calls go to PyTorch as before, with the reason in `passed` of the Patch it returns.

    As a statement it holds until its close() or unpatch(); in `with` until the block ends; as a decorator, @patch or
    @patch(...), while the function runs. Patches may overlap and close in any order.

    limit       how many receipts and reasons are kept; 0: none, which is quicker where nobody looks.
    threads     of every call; default is torch.get_num_threads(), and never more than affinity and cgroup allow.

    >>> import torch.nn.functional as F
    >>> x = torch.zeros(1, 2, 8, 16)
    >>> with patch() as seen:
    ...     _ = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    ...     _ = F.scaled_dot_product_attention(x.double(), x.double(), x.double())
    >>> seen.receipts[0].problem
    'prefill b1 h2/2 q8 k8 d16 f32 top-left causal'
    >>> seen.passed
    ['query is torch.float64, not float32, float16 or bfloat16']
    """
    if callable(limit):
        return _decorated(limit, 10000, threads)
    return Patch(limit, threads)


def unpatch() -> None:
    """Closes every open patch, whoever opened it; nothing happens where there is none."""
    with _lock:
        for x in tuple(_patches):
            x.close()
