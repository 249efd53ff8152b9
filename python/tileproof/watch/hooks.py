# SPDX-License-Identifier: Apache-2.0
"""Hooks in PyTorch's dispatcher on every op of .ops. A hook calls the kernel it stands before, with the same arguments, and
tells the listeners: nothing is rerouted. Modes would: under them compiled code runs eager and fast paths are turned off.

Hooks stay once they are registered (a kernel cannot be taken away while another thread may be inside it); without a listener
they only call on. unhook() takes them away, for programs that know that no other thread runs PyTorch."""
from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from . import measure, ops, where
from .problem import Described, decode_rows, describe, dtype_word, is_decode, plain_scale


class Refused(RuntimeError):
    """A listener that refuses a call raises one of these."""


class Call:
    """One call of attention as it was seen. Listeners get it before the kernel runs (begins) and after (ends)."""

    engine = "torch"
    backward = False
    inner: Optional[str] = None  # the fused kernel inside a fast path
    peak_bytes: Optional[int] = None  # temporary memory
    measure = False  # a listener asks for it in begins()
    stopwatch: Optional[tuple[Any, ...]] = None  # CUDA's events
    note = ""
    time_ns = 0
    start_ns = 0  # set before the last of several ops runs: the time of the first; such calls bring their peak_bytes along

    def __init__(self, op: str, kernel: str, read: ops.Read, frame: Any, backward: bool = False) -> None:
        self.op, self.kernel, self.read, self.backward = op, kernel, read, backward
        self.place = where.place(frame)
        batch, heads, rows, dim = read.q_size
        kv_heads, keys = read.k_size[1:3]
        self.batch, self.rows, self.keys = batch, rows, keys
        dtype = dtype_word(read.q.dtype)
        few = rows * (heads // kv_heads if kv_heads else 1) <= decode_rows(dtype)
        mask = None if read.mask is None else read.mask.dtype
        # All that class, kernel and place depend on, and no length: equal keys are calls of one record.
        self.key = (
            op, self.place, dtype, heads, kv_heads, dim, read.head_dim_v, is_decode(rows, keys), few, mask, read.causal,
            read.scale, read.dropout_p, read.words, read.options,
        )  # fmt: skip

    @property
    def served_by(self) -> str:
        return self.kernel if self.inner is None else f"{self.kernel}/{self.inner}"

    @property
    def fused(self) -> bool:
        return self.inner is not None or self.kernel not in ops.UNFUSED

    def described(self) -> Described:
        r = self.read
        mask = None if r.mask is None else dtype_word(r.mask.dtype)
        return describe(
            r.q_size, r.k_size, r.head_dim_v, dtype_word(r.q.dtype), bias=None if mask == "bool" else mask, bits=mask == "bool",
            backward=self.backward, words=r.words, causal=r.causal, causal_align=r.align if r.causal or r.options else "bottom_right", scale=plain_scale(r.scale, r.q_size[-1]),
            dropout_p=r.dropout_p, **dict(r.options),
        )  # fmt: skip

    def bytes_model(self) -> int:
        """q, k, v and o once."""
        batch, heads, rows, dim = self.read.q_size
        kv_heads, keys = self.read.k_size[1:3]
        width = dim + self.read.head_dim_v
        return int(batch * (heads * rows + kv_heads * keys) * width * self.read.q.element_size())


class _Local(threading.local):
    call: Optional[Call] = None  # that this thread is inside of
    scores: Optional[tuple[Any, ...]] = None  # of the last product: see .unfused
    weights: Optional[tuple[Any, ...]] = None  # of the softmax after it


local = _Local()
listeners: tuple[Any, ...] = ()  # read without a lock: replaced as a whole
failures: dict[str, int] = {}  # what went wrong here, which the watched program must not feel
_lock = threading.Lock()
_library: Optional[torch.library.Library] = None


def traced(x: Any) -> bool:
    """Is it no tensor with values: torch.compile is tracing, or the device is meta?"""
    kind = type(x)
    if kind is Tensor or kind is torch.nn.Parameter:
        return bool(x.is_meta)
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ or bool(x.is_meta)


def failed(op: str, error: Exception) -> None:
    text = f"{op}: {type(error).__name__}: {error}"[:200]
    failures[text] = failures.get(text, 0) + 1


def _tell(call: Call, functions: list[Any]) -> None:
    """What a listener refuses or warns of reaches the program; its own faults are counted."""
    for function in functions:
        try:
            function(call)
        except (Refused, Warning):
            raise
        except Exception as error:
            failed(call.op, error)


def watched(make: Callable[[], Optional[Call]], run: Callable[[], Any]) -> Any:
    """The kernel, between begins() and ends() of the listeners."""
    told = listeners
    try:
        call = make()
    except Exception as error:
        failed("arguments", error)
        call = None
    if call is None:
        return run()
    _tell(call, [x.begins for x in told])
    wanted, device = call.measure and call.start_ns == 0, call.read.q.is_cuda
    local.call = call
    try:
        if device and wanted:
            call.stopwatch = measure.stopwatch()
        call.start_ns = call.start_ns or time.perf_counter_ns()
        if wanted:
            result, call.peak_bytes = measure.measured(run, device)
        else:
            result = run()
        call.time_ns = time.perf_counter_ns() - call.start_ns
        if call.stopwatch is not None:
            call.stopwatch[1].record()
    finally:
        local.call = None
    _tell(call, [x.ends for x in told])
    return result


def _flash_version(kernel: str) -> str:
    """FA3 and FA4 take the place of flash under its own name."""
    attention = sys.modules.get("torch.nn.attention")
    ask = getattr(attention, "current_flash_attention_impl", None)
    version = ask() if ask is not None else None
    return kernel if version in (None, "FA2") else f"{kernel}[{version}]"


def _hook(op: ops.Op, old: Callable[..., Any]) -> Callable[..., Any]:
    at = 1 if op.backward or op.read is ops._flash_inplace else 0

    def attention(keyset: Any, *args: Any, **options: Any) -> Any:
        if not listeners or traced(args[at]):
            return old(keyset, *args, **options)
        outer = local.call
        if outer is not None:
            if outer.kernel == "native_mha" and op.fused:
                outer.inner = op.kernel
            return old(keyset, *args, **options)
        kernel, frame = _flash_version(op.kernel) if op.kernel == "flash" else op.kernel, sys._getframe(1)
        make = lambda: Call(op.name, kernel, op.read(*args, **options), frame, op.backward)
        return watched(make, lambda: old(keyset, *args, **options))

    return attention


def _kernels(op: ops.Op) -> list[tuple[str, str]]:
    """(the key to register at, the key to fetch the kernel by); none where this PyTorch has no such op."""
    if not torch._C._dispatch_has_kernel(f"aten::{op.name}"):
        return []
    if op.composite:
        return [("CompositeImplicitAutograd", "CPU")]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [(key, key) for key in ops.KEYS if has(f"aten::{op.name}", key)]


def _register() -> torch.library.Library:
    from . import unfused  # it needs this module

    library = torch.library.Library("aten", "IMPL")
    for op in ops.OPS:
        for key, source in _kernels(op):
            old = torch.library.get_kernel(f"aten::{op.name}", source).call_boxed
            library.impl(op.name, _hook(op, old), key, with_keyset=True)
    for key in ("CPU", "CUDA"):
        for name, make in unfused.hooks():
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                old = torch.library.get_kernel(f"aten::{name}", key).call_boxed
                library.impl(name, make(old), key, with_keyset=True)
    return library


def listen(listener: Any) -> None:
    """listener.begins(call) may raise, and the call does not run; listener.ends(call) comes after one that ran."""
    global listeners, _library
    if not hasattr(torch.library, "get_kernel"):
        raise RuntimeError(f"PyTorch {torch.__version__} has no torch.library.get_kernel: watching needs 2.10 or later")
    with _lock:
        if _library is None:
            _library = _register()
        listeners = (*listeners, listener)


def leave(listener: Any) -> None:
    global listeners
    with _lock:
        listeners = tuple(x for x in listeners if x is not listener)


def unhook() -> None:
    """Takes the hooks out of PyTorch's dispatcher. No other thread may run PyTorch meanwhile."""
    global _library
    with _lock:
        if listeners:
            raise RuntimeError(f"{len(listeners)} watchers or patches are open: close them first")
        if _library is not None:
            _library._destroy()
            _library = None
