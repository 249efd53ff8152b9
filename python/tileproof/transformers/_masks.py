# SPDX-License-Identifier: Apache-2.0
"""The mask that transformers is given: a tensor of the shape that a mask has, without elements. It keeps what the model asked
for, by position; models hand it on, crop and move it like any other. Whatever else a model does with it gets the elements, and
the report of that model says so."""
from __future__ import annotations

import functools
import sys
from typing import Any, Optional

import torch
from transformers import PreTrainedModel, masking_utils
from transformers.utils.import_utils import is_tracing

from . import _records
from ._lower import Lowered, lower

aten = torch.ops.aten
KEPT = {aten.detach.default, aten.alias.default, aten.clone.default}
ADDED = {aten.add.Tensor, aten.add_.Tensor}


@functools.lru_cache(None)
def _adds(config: Any) -> bool:
    """Are models of this config written for masks that are added to scores? Those that do not support PyTorch's function are."""
    name = config.__module__.replace(".configuration_", ".modeling_")
    found = [x for x in vars(sys.modules.get(name, sys)).values() if isinstance(x, type) and x.__module__ == name]
    models: list[Any] = [x for x in found if issubclass(x, PreTrainedModel)]
    return bool(models) and not any(x._supports_sdpa for x in models)


def _to_add(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where visible and the least number elsewhere, as transformers' eager attention has it."""
    return torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)


class PositionMask(torch.Tensor):  # type: ignore[misc]  # PyTorch's types are not looked at
    """(sequences, 1, rows, keys): bool, True: visible; or, for models that add their masks to scores, of the model's dtype."""

    request: dict[str, Any]  # what the mask interface was called with
    _lowered: Optional[Lowered]

    @staticmethod
    def __new__(cls, request: dict[str, Any]) -> PositionMask:
        shape = (request["batch_size"], 1, request["q_length"], request["kv_length"])
        kind: Any = type(request.get("config"))
        adds = _adds(kind)
        made: PositionMask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=request["dtype"] if adds else torch.bool, device="cpu")
        made.request, made._lowered = request, None
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def lowered(self) -> Lowered:
        """How tileproof.attention is asked for it; found once, for all layers."""
        if self._lowered is None:
            self._lowered = lower(self.request, self.elements)
        return self._lowered

    def elements(self) -> torch.Tensor:
        """All of it, bool: True is visible."""
        asked = dict(self.request, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return masking_utils.sdpa_mask(**asked)

    def _cropped(self, dim: int, start: Optional[int], end: Optional[int], step: int) -> Optional[PositionMask]:
        """With fewer keys; None: this crop is no mask by position any more."""
        size = self.shape[dim]
        end = size if end is None else min(end if end >= 0 else end + size, size)
        if start not in (None, 0) or step != 1 or end < 1:
            return None
        if end == size:
            return PositionMask(self.request)
        return PositionMask(dict(self.request, kv_length=end)) if dim % 4 == 3 else None

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op in KEPT:
            return PositionMask(args[0].request)
        if op is aten._to_copy.default and kwargs.get("dtype") in (None, args[0].dtype):
            if str(kwargs.get("device") or "cpu") == "cpu":
                return PositionMask(args[0].request)
        if op is aten.slice.Tensor:
            made = args[0]._cropped(*(args[1:] + (0, None, None, 1)[len(args) - 1 :]))
            if made is not None:
                return made
        scores = next((x.dtype for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()), None)
        added = op in ADDED and scores is not None  # by a model that has its own attention whatever its attn_implementation
        seen = []

        def plain(x: Any) -> Any:
            if not isinstance(x, PositionMask):
                return x
            seen.append(x)
            whole, dtype = x.elements(), scores if added else x.dtype
            return whole if dtype == torch.bool else _to_add(whole, dtype)

        args, kwargs = torch.utils._pytree.tree_map(plain, (args, kwargs))
        for x in seen:
            by = "added to scores by the model's own attention" if added else f"given to {op}"
            _records.note_array(x.request.get("config"), f"{x.numel()} elements, {by}")
        return op(*args, **kwargs)

    def __deepcopy__(self, memo: dict[str, Any]) -> PositionMask:
        return PositionMask(self.request)

    def __repr__(self, **_: Any) -> str:
        return f"PositionMask({tuple(self.shape)}: {self.lowered.words})"


def position_mask(**request: Any) -> Optional[torch.Tensor]:
    """For transformers' AttentionMaskInterface. Arguments as those of masking_utils.sdpa_mask. There is a mask for encoders
    without padding, too: without one the module would be asked whether it is causal, and not every encoder's says no."""
    offset, padding = request.get("q_offset", 0), request.get("attention_mask")
    if any(isinstance(x, torch.Tensor) and is_tracing(x) for x in (offset, padding)) or torch.compiler.is_compiling():
        return masking_utils.sdpa_mask(**request)  # a graph has no values to read yet
    device = torch.device(request.get("device", "cpu"))
    if device.type != "cpu":
        raise _records.not_on_cpu("the mask", device)
    request = {"q_offset": 0, "kv_offset": 0, "mask_function": masking_utils.causal_mask_function, **request}
    request.update(q_offset=int(offset), kv_offset=int(request["kv_offset"]))  # now: a static cache counts on in its tensor
    return PositionMask(request)
