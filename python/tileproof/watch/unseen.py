# SPDX-License-Identifier: Apache-2.0
"""What of attention in this process no hook can see, named rather than left out. Graphs that inductor wrote are looked through
in their own text, so those that were compiled before the watcher began, or came from a cache, count too."""
from __future__ import annotations

import gc
import os
import re
import sys
from typing import Any, Iterator

from . import hooks

FLEX = re.compile(r"flex_attention")
SHIM = re.compile(r"aoti_torch_\w*(scaled_dot_product|attention)\w*")
SOFTMAX = re.compile(r"^\s*(?:cpp|triton)\w*softmax\w*(?:\.run)?\(", re.M)
ALWAYS = "child processes, and code that calls no op of PyTorch's dispatcher: other extensions, replays of CUDA graphs"


def _inductor_files() -> Iterator[tuple[str, str]]:
    cache = sys.modules.get("torch._inductor.codecache")
    seen = set()
    for module in getattr(getattr(cache, "PyCodeCache", None), "modules", None) or ():
        path = getattr(module, "__file__", None)
        if path and path not in seen:
            seen.add(path)
            try:
                with open(path) as file:
                    yield path, file.read()
            except OSError:
                continue


def _aot_models() -> int:
    if "torch._inductor.package" not in sys.modules and "torch._export" not in sys.modules:
        return 0
    return sum(type(x).__name__ in ("AOTICompiledModel", "AOTIModelPackageLoader") for x in gc.get_objects())


def _seen_softmaxes(watch: Any) -> dict[str, int]:
    """How many generated softmaxes of a file stand between two products that were seen."""
    sites = {x.place.path.split(" ")[-1] for x in list(watch.records.values()) if x.kernel == "compiled_math"}
    names = [x.split(":")[0] for x in sites]
    return {x: names.count(x) for x in names}


def not_observable(watch: Any) -> list[str]:
    seen, found = _seen_softmaxes(watch), []
    for path, text in _inductor_files():
        name = os.path.basename(path)
        softmaxes = len(SOFTMAX.findall(text)) - seen.get(name, 0)
        if FLEX.search(text):
            found.append(f"compiled flex_attention: a generated kernel without an op, in {name}")
        elif shim := SHIM.search(text):
            found.append(f"cpp_wrapper: a graph that calls {shim.group()} in C++, in {name}")
        elif softmaxes > 0:
            found.append(f"a generated softmax, perhaps of attention, without an op: {softmaxes} in {name}")
    models = _aot_models()
    if models:
        found.append(f"AOTInductor: {models} loaded model{'s' if models > 1 else ''}, whose ops are called in C++")
    if watch.calls and any(not x.fused and x.engine == "torch" and x.kernel != "native_mha" for x in list(watch.records.values())):
        if sys.modules["torch"].is_grad_enabled():
            found.append("gradients of unfused attention: plain products, not told from others")
    found += [f"{n} calls that the watcher could not read: {text}" for text, n in hooks.failures.items()]
    return [*found, ALWAYS]
