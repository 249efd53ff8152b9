# SPDX-License-Identifier: Apache-2.0
"""Who called: the module, its path and layer, and whether the call came from a compiled graph. Read from the frames of the
call, not from hooks on modules: those cost on every module, and some turn fast paths off."""
from __future__ import annotations

import os
import re
import sys
import weakref
from typing import Any, NamedTuple, Optional

OPTIMIZED = 1  # CO_OPTIMIZED: a function's frame, not a module's or a class body's
INDUCTOR = re.compile(r"torchinductor|[/\\]inductor_cache[/\\]")
FIRST_NAMES = ("self", "module")


class Place(NamedTuple):
    model: str  # the class of the outermost module
    path: str  # of the module that called, inside the model
    layer: int  # -1: none
    mode: str  # eager, compiled (code that inductor wrote) or graph (a traced graph that runs op by op)


NOWHERE = Place("", "", -1, "eager")
_kinds: dict[int, int] = {}  # of code objects, by id: to hash one takes as long as to look at it
_codes: dict[int, Any] = {}  # weak references to them, which clear both when one goes
SKIP, MAYBE, COMPILED, GRAPH, INSIDE = range(5)
INSIDES = re.compile(r"torch[/\\](_ops|_compile|utils[/\\]_stats|_dynamo[/\\]eval_frame|_functorch[/\\]_aot_autograd[/\\]\w+)\.py$")  # between a caller and its op
_paths: dict[int, tuple[Any, ...]] = {}  # of modules, by id, with a weak reference that shows whether it is still that one
_sites: dict[tuple[Any, ...], str] = {}  # of compiled graphs: file and line


def _kind(code: Any) -> int:
    name = code.co_filename
    if code.co_name == "call" and (INDUCTOR.search(name) or _is_inductors(name)):
        return COMPILED
    if name.startswith("<eval_with_key>"):
        return GRAPH
    if INSIDES.search(name):
        return INSIDE
    if code.co_argcount and code.co_varnames[0] in FIRST_NAMES and code.co_flags & OPTIMIZED:
        return MAYBE
    return SKIP


def _is_inductors(name: str) -> bool:
    """A generated file, wherever TORCHINDUCTOR_CACHE_DIR puts it."""
    cache = sys.modules.get("torch._inductor.codecache")
    return cache is not None and any(getattr(x, "__file__", None) == name for x in cache.PyCodeCache.modules)


def local(frame: Any, *names: str) -> dict[str, Any]:
    """Some locals of a frame. Before Python 3.13 those of a function come as a copy that lives as long as the frame and would
    keep tensors alive that the function has let go of: it is emptied. Those of a module are no copy."""
    all_of_them = frame.f_locals
    found = {x: all_of_them[x] for x in names if x in all_of_them}
    if sys.version_info < (3, 13) and frame.f_code.co_flags & OPTIMIZED:
        all_of_them.clear()
    return found


def _first(frame: Any, kind: type) -> Optional[Any]:
    name = frame.f_code.co_varnames[0]
    found = local(frame, name).get(name)
    return found if isinstance(found, kind) else None


def kind_of(code: Any) -> int:
    found = _kinds.get(id(code))
    if found is None:
        known = id(code)
        _codes[known] = weakref.ref(code, lambda _: (_kinds.pop(known, None), _codes.pop(known, None)))
        found = _kinds[known] = _kind(code)
    return found


def caller(frame: Any) -> Any:
    """The frame that asked for the op: the first time that a compiled graph runs, PyTorch's own frames are in between."""
    while kind_of(frame.f_code) == INSIDE and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _site(frame: Any) -> str:
    """file:line inside a graph that inductor wrote: one for each call that stands in it."""
    key = (frame.f_code.co_filename, frame.f_lineno)
    found = _sites.get(key)
    if found is None:
        found = _sites[key] = f"{os.path.basename(key[0])}:{key[1]}"
    return found


def _name(module: Any, frame: Any, kind: type) -> tuple[Any, ...]:
    """(class of the outermost module, path in it, layer), found once for each module: the walk goes on to the outermost one."""
    root = module
    while frame is not None:
        if kind_of(frame.f_code) == MAYBE:
            found = _first(frame, kind)
            root = root if found is None else found  # not `or`: a module may have a length, or refuse to have one
        frame = frame.f_back
    root, module = (getattr(x, "_orig_mod", x) for x in (root, module))  # what torch.compile wraps
    path = next((name for name, x in root.named_modules() if x is module), "")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        layer = next((int(x) for x in path.split(".") if x.isdigit()), -1)
    return type(root).__name__, path, layer


def place(frame: Any) -> Place:
    """Of the call that this frame made."""
    module_type = sys.modules["torch"].nn.Module
    mode, site = "eager", ""
    while frame is not None:
        kind = kind_of(frame.f_code)
        if kind == COMPILED:
            mode, site = "compiled", _site(frame)
        elif kind == GRAPH and mode == "eager":
            mode = "graph"
        elif kind == MAYBE:
            module = _first(frame, module_type)
            if module is not None:
                known = _paths.get(id(module))
                if known is None or known[0]() is not module:
                    known = (weakref.ref(module), _name(module, frame, module_type), {})
                    _paths[id(module)] = known
                made: Optional[Place] = known[2].get((mode, site))
                if made is None:
                    model, path, layer = known[1]
                    path = f"{path} {site}".strip() if site else path
                    made = known[2][mode, site] = Place(model, path, -1 if site else layer, mode)
                return made
        frame = frame.f_back
    return NOWHERE if mode == "eager" else Place("", site, -1, mode)
