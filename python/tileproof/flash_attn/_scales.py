# SPDX-License-Identifier: Apache-2.0
"""k_descale and v_descale of flash_attn_with_kvcache: what codes of a cache are multiplied by, as the library reads and writes it.

flash-attn 3 has one number for each sequence and kv head, (batch, kv heads), of which None is 1; here also one for all, and one for
each token and kv head, shaped like the cache without its last dimension, which new rows write."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from . import _checks as check


class Scales(NamedTuple):
    """Of one cache. by_token: new rows have scales of their own, which are written into `write`."""

    read: Union[None, float, Tensor]  # for attention: of None the cache is no codes
    write: Union[None, float, Tensor]  # for what is appended
    by_token: bool = False


def _one(x: Tensor) -> bool:
    """A tensor of one element, or one expanded to many, as engines that have a scale for a layer give it."""
    return all(n == 1 or step == 0 for n, step in zip(x.shape, x.stride()))


def _expanded(x: Tensor) -> bool:
    return any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride()))


def _by_page(name: str, x: Tensor, cache: Tensor, table: Tensor, total: Tensor) -> Tensor:
    """(pages, kv heads): each page has the numbers of the sequences that use it, which must be the same."""
    used = torch.arange(table.shape[1]) * cache.shape[1] < total[:, None]
    pages, given = table[used].long(), x.repeat_interleave(used.sum(1), 0)
    there = (pages >= 0) & (pages < cache.shape[0])  # attention refuses others by name
    pages, given = pages[there], given[there]
    made = torch.ones(cache.shape[0], x.shape[1])
    made[pages] = given
    differ = (made[pages].view(torch.int32) != given.view(torch.int32)).any(1)
    if differ.any():
        check.refuse(
            f"{name} has two numbers for page {int(pages[differ][0])} of the cache, which several sequences use: a page has one for each kv "
            f"head; give {name} for each token and kv head, of shape {tuple(cache.shape[:-1])}"
        )
    return made


def _above_zero(name: str, values: Tensor) -> None:
    wrong = ~(torch.isfinite(values) & (values > 0))
    if wrong.any():
        check.refuse(f"{name} has {float(values[wrong][0])}: new rows are divided by it, so it must be finite and above 0")


def read(name: str, x: Any, cache: Tensor, batch: int, table: Optional[Tensor], total: Tensor, new: int) -> Scales:
    """Of a cache with sequences of so many tokens, `new` of them to be written. Everything is refused before anything is written."""
    if cache.dtype not in check.CODES:
        if x is not None:
            check.refuse(f"{name} is given and the cache is {cache.dtype}: only codes, int8 and float8_e4m3fn, have scales; leave it out")
        return Scales(None, None)
    by_token, heads = tuple(cache.shape[:-1]), cache.shape[2]
    if new and _expanded(cache):
        check.refuse(f"the cache of {name} is expanded: new rows are written into it; contiguous() makes a copy that has room for them")
    if cache.dtype != torch.int8 and (x is None or (isinstance(x, (int, float)) and not isinstance(x, bool))):
        x = torch.tensor(1.0 if x is None else float(x))
    if x is None:
        check.refuse(f"{name} is None and the cache int8: it must be float32 of shape {by_token}, one for each token and kv head, as tileproof.quantise makes them")
    check.on_cpu(name, x)
    if x.dtype != torch.float32:
        check.refuse(f"{name} is {x.dtype}: it must be float32; {name}.float() makes it so")
    x = x.detach()
    if tuple(x.shape) == by_token:
        if new and _expanded(x):
            check.refuse(f"{name} is expanded: each new token has a scale of its own, which is written into it; {name}.contiguous() has room for them")
        return Scales(x if table is not None else x[:batch], x, True)
    if cache.dtype == torch.int8:
        check.refuse(f"{name} has shape {tuple(x.shape)}: of an int8 cache it must be {by_token}, one for each token and kv head")
    if tuple(x.shape) not in ((), (1,), (batch, heads)):
        check.refuse(f"{name} has shape {tuple(x.shape)}: it must be a number, ({batch}, {heads}) for each sequence and kv head, or {by_token} for each token and kv head")
    if new:
        _above_zero(name, x)
    if _one(x):
        number = float(x.flatten()[0])
        return Scales(number, number)
    rows = x if table is None else _by_page(name, x, cache, table, total)
    return Scales(rows[:, None].expand(len(rows), cache.shape[1], heads), x)
