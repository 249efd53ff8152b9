# SPDX-License-Identifier: Apache-2.0
"""flash_attn's own functions. Those that pass through a custom op are hooked in the dispatcher and seen under any name; those
that call their extension directly are wrapped in their module, when it is imported, so names imported from it before the
watcher began are not seen. Written against flash_attn 2.8, 3 and 4; not run here on a GPU."""
from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable, Optional

import torch

from . import hooks, ops
from .after_import import AfterImport

OPS = {  # op -> kernel
    "flash_attn::_flash_attn_forward": "flash_attn_2",
    "flash_attn::_flash_attn_varlen_forward": "flash_attn_2",
    "flash_attn_3::_flash_attn_forward": "flash_attn_3",
}
FUNCTIONS = {  # module -> functions that pass through no op, and their kernel
    "flash_attn.flash_attn_interface": (("flash_attn_with_kvcache",), "flash_attn_2"),
    "flash_attn": (("flash_attn_with_kvcache",), "flash_attn_2"),
    "flash_attn_interface": (("flash_attn_with_kvcache",), "flash_attn_3"),
    "flash_attn.cute.interface": (("flash_attn_func", "flash_attn_varlen_func"), "flash_attn_4"),
    "flash_attn.cute": (("flash_attn_func", "flash_attn_varlen_func"), "flash_attn_4"),
}
_hooked: dict[str, torch.library.Library] = {}


def read(given: dict[str, Any]) -> ops.Read:
    """By the names that flash_attn gives its arguments; which ones there are depends on its version."""
    get = given.get
    k, v = get("k_cache", get("k")), get("v_cache", get("v"))
    left, right = get("window_size") or (get("window_size_left", -1), get("window_size_right", -1))
    made = ops.by_tokens(
        given["q"], k, v, get("cu_seqlens_q"), get("max_seqlen_q"), get("max_seqlen_k"), bool(get("causal")),
        float(get("dropout_p") or 0.0), get("softmax_scale"), (left, right), get("alibi_slopes"),
        paged=get("block_table") is not None or get("page_table") is not None,
    )  # fmt: skip
    cap = get("softcap") or 0.0
    return made._replace(options=(*made.options, ("softcap", float(cap)))) if cap > 0 else made


def _watched(name: str, kernel: str, given: dict[str, Any], frame: Any, run: Callable[..., Any]) -> Any:
    if not hooks.listeners or hooks.local.call is not None or hooks.traced(given["q"]):
        return run()

    def make() -> hooks.Call:
        call = hooks.Call(name, kernel, read(given), frame)
        call.engine = "flash_attn"
        return call

    return hooks.watched(make, run)


def _hook_op(name: str, kernel: str) -> None:
    space, plain = name.split("::")
    library = torch.library.Library(space, "IMPL")
    schema = getattr(getattr(torch.ops, space), plain).default._schema
    names = [x.name for x in schema.arguments]
    for key in ("CUDA", "CPU"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            old = torch.library.get_kernel(name, key).call_boxed

            def hook(keyset: Any, *args: Any, _old: Any = old, **options: Any) -> Any:
                given = {**dict(zip(names, args)), **options}
                return _watched(name, kernel, given, sys._getframe(1), lambda: _old(keyset, *args, **options))

            library.impl(plain, hook, key, with_keyset=True)
    _hooked[name] = library


def _wrap(function: Callable[..., Any], kernel: str) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            given = signature.bind(*args, **options).arguments
        except TypeError:
            return function(*args, **options)  # which says what is wrong
        return _watched(function.__name__, kernel, given, sys._getframe(1), lambda: function(*args, **options))

    wrapped._tileproof_watch = True  # type: ignore[attr-defined]
    return wrapped


def _look() -> None:
    """Hooks and wraps what has been imported by now."""
    for name, kernel in OPS.items():
        if name not in _hooked and torch._C._dispatch_has_kernel(name):
            _hook_op(name, kernel)
    for module_name, (names, kernel) in FUNCTIONS.items():
        module = sys.modules.get(module_name)
        for name in names:
            function = getattr(module, name, None)
            if function is not None and not hasattr(function, "_tileproof_watch"):
                setattr(module, name, _wrap(function, kernel))


_finder: Optional[AfterImport] = None


def watch_packages() -> None:
    """From now on, whenever they are imported."""
    global _finder
    _look()
    if _finder is None:
        _finder = AfterImport(tuple(FUNCTIONS), _look)
        sys.meta_path.insert(0, _finder)
