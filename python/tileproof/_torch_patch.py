# SPDX-License-Identifier: Apache-2.0
"""patch() and unpatch(): PyTorch's own scaled_dot_product_attention, routed here. One function stands in for PyTorch's
while any patch is open, whatever the order in which patches close and the threads that open them."""
from __future__ import annotations

import functools
import inspect
import operator
import re
import threading
import warnings
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.utils._device import DeviceContext

from . import _core
from ._sdpa import FallbackWarning, _attend
from ._torch_log import Bypassed, Log, Passed, follow, note_passed, note_receipt, wants_receipts
from ._torch_ops import _sdpa_traced
from .watch import hooks

FALLBACKS = ("torch", "refuse", "serve")
HEAD_DIM = 576  # the largest that a fused kernel takes
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DECLINED = (ValueError, TypeError, BufferError, RuntimeError)
NAMES = ("query", "key", "value", "attn_mask")


def _tensor_not_ours(name: str, x: Any) -> Optional[str]:
    if not isinstance(x, Tensor):
        return f"{name} is a {type(x).__name__}, no Tensor"
    if x.device.type != "cpu":
        return f"{name} is on {x.device}, not on the CPU"
    if x.layout != torch.strided or x.is_nested:
        return f"{name} has layout {x.layout}{' and is nested' if x.is_nested else ''}, not torch.strided"
    if name != "attn_mask" and x.shape[-1:] > (HEAD_DIM,):
        if x.requires_grad and torch.is_grad_enabled():
            return f"{name} has head dim {x.shape[-1]} and needs a gradient: that goes up to {HEAD_DIM}"
        if _fallback == "torch" and is_compiling():  # a graph cannot turn back when it runs
            return f"{name} has head dim {x.shape[-1]}: fused kernels go up to {HEAD_DIM}"
    if x.dtype not in DTYPES and not (name == "attn_mask" and x.dtype == torch.bool):
        return f"{name} is {x.dtype}, not float32, float16 or bfloat16"
    return None


def _overrides(kind: Any) -> bool:
    """Does this type of tensor have a say in what functions and ops do to it?"""
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ or (
        kind is not Tensor and kind.__torch_function__ is not torch.nn.Parameter.__torch_function__
    )


def _someone_elses(tensors: tuple[Any, ...]) -> Optional[str]:
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


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # as it is when a graph is traced; PyTorch keeps its own choice of then, too
def _restricted() -> bool:
    cuda = torch.backends.cuda  # the switches are of all devices
    return not (cuda.flash_sdp_enabled() and cuda.math_sdp_enabled() and cuda.mem_efficient_sdp_enabled())


def _not_ours(query: Any, key: Any, value: Any, attn_mask: Any) -> Optional[str]:
    """Why a call is left to PyTorch; None: it is ours."""
    if _restricted():
        return "PyTorch's backends are restricted (sdpa_kernel), so one of them is meant"
    if not is_compiling():
        why = _someone_elses((query, key, value, attn_mask))
        if why is not None:
            return why
    for name, x in zip(NAMES, (query, key, value, attn_mask)):
        why = None if x is None and name == "attn_mask" else _tensor_not_ours(name, x)
        if why is not None:
            return why
    return None


def _ours(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: Optional[float],
    enable_gqa: bool,
) -> Any:  # fmt: skip
    given = (query, key, value, attn_mask)
    if torch.is_autocast_enabled("cpu"):  # as PyTorch's own function is cast: every float it gets
        to = torch.get_autocast_dtype("cpu")
        given = tuple(x if x is None or x.dtype == torch.bool else x.to(to) for x in given)
    compiling = is_compiling()
    if compiling or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)):
        permit = "permit" if _fallback == "serve" else "refuse"
        return _sdpa_traced(*given, dropout_p, is_causal, scale, enable_gqa, _threads, permit)
    call = (*given, dropout_p, is_causal, scale, enable_gqa, wants_receipts(), _threads)
    try:
        out, receipt = _attend(*call, serve=False)
    except _core.FallbackRefused as refused:
        if _fallback != "serve":
            raise
        _warn_once(given, is_causal, f"served by a fallback of tileproof: {_plain(refused)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # it has been said
            out, receipt = _attend(*call)
    note_receipt(receipt)
    return out


def _plain(error: Exception) -> str:
    """Its first line, without a backtrace of C++ and without advice for other entry points."""
    text = str(error).split("\n")[0].removesuffix(_core.remedy)
    if isinstance(error, _core.FallbackRefused):
        text = re.sub(r"^fallback refused \(.*?\) for ", "only a slower path of tileproof's would serve ", text)
        text = re.sub(r"; \w+: a fallback [^;]*$", "", text)
    return text


def _warn_once(given: tuple[Any, ...], is_causal: bool, text: str) -> None:
    """Once for each class of problems while patches are open."""
    query, key, value, mask = given
    kind = (query.dtype, query.shape[:-2][-1:], key.shape[:-2][-1:], query.shape[-1], value.shape[-1], mask is None, is_causal)
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(text, FallbackWarning, stacklevel=4)


def _left(original: Callable[..., Any], why: str, given: tuple[Any, ...], options: dict[str, Any], warn: bool) -> Any:
    """PyTorch's own, with the backend that it takes in the log."""
    entry = note_passed(why)
    if is_compiling():
        return original(*given, **options)
    before, _here.passed = _here.passed, entry
    try:
        out = original(*given, **options)
    finally:
        _here.passed = before
    if warn:
        seen = f"which served it by {entry.backend}" if entry.backend != "none" else "whose backend was not looked for (limit=0)"
        _warn_once(given[:4], given[5], f"left to PyTorch, {seen}: {why}")
    return out


def _stand_in(original: Callable[..., Any]) -> Callable[..., Any]:
    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: Optional[float] = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if _standing is not scaled_dot_product_attention:  # someone kept it after the last patch had closed
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if not is_compiling():
            kept = wants_receipts()
            try:
                made = _core.sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, True, _threads, True, kept)
            except DECLINED:  # asked again below, and what is said there counts
                made = None
            if made is not None:
                out, raw = made if kept else (made, None)
                note_receipt(raw)
                return out
        given, options = (query, key, value, attn_mask, dropout_p, is_causal), {"scale": scale, "enable_gqa": enable_gqa}
        why, warn = _not_ours(query, key, value, attn_mask), False
        if why is None:
            if is_compiling():
                return _ours(*given, scale, enable_gqa)
            try:
                return _ours(*given, scale, enable_gqa)
            except _core.FallbackRefused as refused:
                if _fallback == "refuse":
                    raise
                why, warn = _plain(refused), True
            except DECLINED as refused:
                why = _plain(refused)
        return _left(original, why, given, options, warn)

    scaled_dot_product_attention.__doc__ = original.__doc__
    setattr(scaled_dot_product_attention, "__wrapped__", original)
    return scaled_dot_product_attention


class _Here(threading.local):
    passed: Optional[Passed] = None  # the call that this thread has left to PyTorch


class _Seen:
    """Hears of every call of attention that PyTorch serves while patches are open: one that the patch left to it, or one that
    never reached the patch. Gradients follow their forward call and are not counted."""

    def begins(self, call: Any) -> None:
        pass

    def ends(self, call: Any) -> None:
        if call.backward:
            return
        if _here.passed is not None:
            _here.passed.backend = call.served_by
            return
        place = call.place
        whose = f"{place.model} {place.path}".strip() or "no module"
        entry = Bypassed(f"{whose}: {call.described().text(call.batch, call.rows, call.keys)}{'' if place.mode == 'eager' else ', compiled'}")
        entry.backend = call.served_by
        for x in tuple(_patches):
            if x.limit > 0:
                x._add(x.bypassed, entry)


_here, _seen = _Here(), _Seen()
_lock = threading.RLock()  # guards what follows
_patches: list[Patch] = []  # open ones, in the order opened
_standing: Optional[Callable[..., Any]] = None  # what stands in for PyTorch's function
_threads: Optional[int] = None  # of the patch opened last that names them
_fallback = "torch"  # of the patch opened last
_looking = False  # whether _seen hears of PyTorch's calls
_warned: set[Any] = set()  # classes of problems


def _settle(opening: bool) -> None:
    """Makes torch.nn.functional what the open patches ask for. What another library has put over ours stays when one closes:
    under it ours goes on while a patch is open, and then does nothing but call what it replaced."""
    global _standing, _threads, _fallback, _looking
    functional = torch.nn.functional
    named = [x.threads for x in _patches if x.threads is not None]
    _threads = named[-1] if named else None
    _fallback = _patches[-1].fallback if _patches else "torch"
    wanted = any(x.limit > 0 for x in _patches)
    if wanted != _looking:
        _looking = wanted
        (hooks.listen if wanted else hooks.leave)(_seen)
    if not _patches:
        _warned.clear()
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

    def __init__(self, limit: int, threads: Optional[int], fallback: str = "torch") -> None:
        super().__init__(limit)
        if fallback not in FALLBACKS:
            raise ValueError(f"fallback is {fallback!r}: it must be one of {', '.join(FALLBACKS)}")
        if threads is not None and not 1 <= operator.index(threads) <= 1024:
            raise ValueError(f"threads is {threads}: it must be in 1..1024, or None")
        self.threads, self.fallback = threads, fallback
        self._entered = False
        with _lock:
            _patches.append(self)
            follow(self)
            _settle(opening=True)

    def close(self) -> None:
        """Ends it; once is enough. PyTorch has its function back when no patch is open any more."""
        with _lock:
            if self in _patches:
                _patches.remove(self)
                follow(gone=self)
                _settle(opening=False)

    def __enter__(self) -> Patch:
        if self._entered or self not in _patches:
            raise RuntimeError(f"this patch is {'entered' if self._entered else 'closed'} already: call patch() again")
        self._entered = True
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """As a decorator: this one closes, and each call of the function has a patch of its own."""
        self.close()
        return _decorated(function, self.limit, self.threads, self.fallback)


def _decorated(function: Callable[..., Any], limit: int, threads: Optional[int], fallback: str) -> Callable[..., Any]:
    later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if isinstance(function, type) or not callable(function) or any(x(function) for x in later):
        raise TypeError(
            f"{function!r} cannot be decorated by patch(): it must be a plain function; otherwise use `with patch():` inside"
        )

    @functools.wraps(function)
    def patched(*args: Any, **options: Any) -> Any:
        with Patch(limit, threads, fallback):
            return function(*args, **options)

    return patched


def patch(limit: Any = 10000, threads: Optional[int] = None, fallback: str = "torch") -> Any:
    """From now on torch.nn.functional.scaled_dot_product_attention on CPU tensors of float32, float16 and bfloat16 is
    tileproof's, in all threads. Other calls go to PyTorch as before, with the reason in `passed` of the Patch it returns, and
    the backend of PyTorch's that served. Attention that never comes by that name is in `bypassed`.

    As a statement it holds until its close() or unpatch(); in `with` until the block ends; as a decorator, @patch or
    @patch(...), while the function runs. Patches may overlap and close in any order.

    limit       how many receipts and reasons are kept; 0: none, which is quicker where nobody looks.
    threads     of every call; default is torch.get_num_threads(), and never more than affinity and cgroup allow.
    fallback    where only a slower path of tileproof's would serve (math): "torch", the call goes to PyTorch; "refuse",
                FallbackRefused; "serve", it serves. "torch" and "serve" warn, once for each class of problems.

    >>> import torch.nn.functional as F
    >>> x = torch.zeros(1, 2, 8, 16)
    >>> with patch() as seen:
    ...     _ = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    ...     _ = F.scaled_dot_product_attention(x.double(), x.double(), x.double())
    >>> seen.receipts[0].problem
    'prefill b1 h2/2 q8 k8 d16 f32 top-left causal'
    >>> seen.passed
    ['query is torch.float64, not float32, float16 or bfloat16']
    >>> seen.passed[0].backend
    'flash_for_cpu'
    """
    if callable(limit):
        return _decorated(limit, 10000, threads, fallback)
    return Patch(limit, threads, fallback)


def unpatch() -> None:
    """Closes every open patch, whoever opened it; nothing happens where there is none."""
    with _lock:
        for x in tuple(_patches):
            x.close()
