# SPDX-License-Identifier: Apache-2.0
"""transformers: attn_implementation="tileproof".

>>> import transformers, tileproof.transformers
>>> tileproof.transformers.register()
>>> config = transformers.LlamaConfig(
...     vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
... )
>>> model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="tileproof").eval()
>>> _ = model(torch.arange(20)[None])
>>> print(tileproof.transformers.report(model))  # doctest: +ELLIPSIS
LlamaForCausalLM: 2 calls of attention by tileproof in 2 layers, 0 refused, 0 masks by array
...
"""
import torch

from . import _attention
from ._masks import PositionMask, position_mask
from ._records import NAME, forget
from ._report import Report, report

__all__ = ["PositionMask", "Report", "forget", "register", "report"]


def register(fallback: str = "refuse") -> None:
    """From now on transformers' models may have attn_implementation="tileproof", when they are made or by
    model.set_attn_implementation("tileproof"). Nothing else of transformers is changed.

    fallback    where only a slower path than this host's best would serve: "refuse", FallbackRefused; "permit", it serves, and
                the report says so.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    if fallback not in ("refuse", "permit"):
        raise ValueError(f"fallback is {fallback!r}: it must be 'refuse' or 'permit'")
    _attention.fallback = fallback
    AttentionInterface.register(NAME, _attention.attention_forward)
    AttentionMaskInterface.register(NAME, position_mask)
