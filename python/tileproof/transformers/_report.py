# SPDX-License-Identifier: Apache-2.0
"""The report of a model: kernel, problem class, mask and refusals of every layer."""
from __future__ import annotations

import dataclasses
import re
from typing import Any

import torch

from ..watch.report import ranges
from . import _records


@dataclasses.dataclass
class Row:
    """Layers that did the same."""

    paths: list[str]
    kernel: str
    problem_class: str
    problem: str  # the last one
    mask: str
    fallback: bool
    calls: int

    @property
    def layers(self) -> str:
        """model.layers.0-3.self_attn"""
        return together(self.paths)


def together(paths: list[str]) -> str:
    """Paths that differ by their first number as one."""
    number = re.compile(r"(?<![^.])\d+(?![^.])")
    forms: dict[str, list[int]] = {}
    for path in paths:
        found = number.search(path)
        form = path if found is None else f"{path[: found.start()]}*{path[found.end() :]}"
        forms.setdefault(form, []).extend([] if found is None else [int(found[0])])
    return ", ".join(form.replace("*", ranges(numbers), 1) if numbers else form for form, numbers in forms.items())


class Report:
    """`rows`, one for each way in which layers were served; `refusals` and `arrays`, texts with the layers that they are of;
    print() shows them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = type(model).__name__
        self.rows: list[Row] = []
        self.refusals: dict[str, list[str]] = {}
        self.arrays: dict[str, list[str]] = {}
        self.layers: list[str] = []
        groups: dict[tuple[Any, ...], Row] = {}
        configs: dict[int, Any] = {}
        for path, module in model.named_modules():
            config = getattr(module, "config", None)
            configs.setdefault(id(config), config)
            found = _records.known(module)
            if found is None:
                continue
            self.layers.append(path)
            for (kernel, kind, mask), (calls, problem, fallback) in found.calls.items():
                row = groups.setdefault((kernel, kind, mask), Row([], kernel, kind, problem, mask, fallback, 0))
                row.paths.append(path)
                row.calls, row.problem, row.fallback = row.calls + calls, problem, row.fallback or fallback
            for into, texts in ((self.refusals, found.refusals), (self.arrays, found.arrays)):
                for text in texts:
                    into.setdefault(text, []).append(path)
        self.rows = sorted(groups.values(), key=lambda x: (not x.fallback, x.paths[0], -x.calls))
        self.elements = [f"mask of {text}" for x in configs.values() if x is not None for text in _records.arrays_of(x)]

    @property
    def calls(self) -> int:
        return sum(x.calls for x in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Fit for json.dumps."""
        return {
            "model": self.model, "layers": self.layers, "rows": [dataclasses.asdict(x) for x in self.rows],
            "refusals": self.refusals, "arrays": self.arrays, "elements": self.elements,
        }  # fmt: skip

    def __str__(self) -> str:
        arrays = len(self.arrays) + len(self.elements)
        lines = [
            f"{self.model}: {self.calls} calls of attention by tileproof in {len(self.layers)} layers, "
            f"{len(self.refusals)} refused, {arrays} masks by array"
        ]
        if not self.layers:
            lines.append(
                "  no layer called tileproof: the model has not run, has another attn_implementation, or its attention is code "
                "of its own, which no attn_implementation reaches"
            )
        if self.rows:
            lines.append(f"  {'calls':>5}  {'kernel':12}  layers, problem class, mask")
        for x in self.rows:
            lines.append(f"  {x.calls:5}  {x.kernel + (' FALLBACK' if x.fallback else ''):12}  {x.layers}")
            lines += [f"{'':23}{x.problem_class}", f"{'':23}mask: {x.mask}; last: {x.problem}"]
        lines += [f"  refused: {text} ({together(paths)})" for text, paths in self.refusals.items()]
        lines += [f"  {text} ({together(paths)})" for text, paths in self.arrays.items()]
        lines += [f"  {text}" for text in self.elements]
        return "\n".join(lines)

    __repr__ = __str__


def report(model: torch.nn.Module) -> Report:
    """What tileproof did for every attention layer of a model since it was made, or since forget(model)."""
    return Report(model)
