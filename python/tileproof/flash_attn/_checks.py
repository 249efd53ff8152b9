# SPDX-License-Identifier: Apache-2.0
"""What flash-attn refuses, with its exception (RuntimeError), in texts that name the value, the rule and the remedy."""
from __future__ import annotations

import itertools
import operator
from typing import Any, NoReturn, Optional, Tuple, Union

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
CODES = (torch.int8, torch.float8_e4m3fn)  # of flash_attn_with_kvcache's caches, with k_descale and v_descale
HEAD_DIM = 256
PAGE = 256
MOST_SPLITS = 128
FLOAT_MAX = 3.4028234663852886e38
SCALE_MAX = 2.3e38  # times log2(e) it is still a float32
SHAPES = {  # how many dims -> what they are
    3: "(tokens, heads, head dim)",
    4: "(batch, tokens, heads, head dim)",
}


def refuse(text: str) -> NoReturn:
    raise RuntimeError(text)


def on_cpu(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        refuse(f"{name} is a {type(x).__name__}: it must be a torch.Tensor")
    if x.device.type != "cpu":
        refuse(
            f"{name} is on {x.device}: tileproof.flash_attn runs on the CPU; move it there ({name}.cpu()), or use flash-attn itself on a GPU"
        )


def tensors(dims: int, given: dict[str, Any]) -> None:
    """Of one dtype, on the CPU, with so many dims."""
    first = next(iter(given.values()))
    for name, x in given.items():
        on_cpu(name, x)
        if x.dtype not in DTYPES:
            refuse(f"{name} is {x.dtype}: it must be float16 or bfloat16, or float32, which only this front takes; {name}.to(...) casts it")
        if x.dtype != first.dtype:
            refuse(f"{name} is {x.dtype} and {next(iter(given))} {first.dtype}: they must have one dtype")
        if x.dim() != dims:
            refuse(f"{name} has shape {tuple(x.shape)}: it must be {SHAPES[dims]}")


def caches(q: Any, k_cache: Any, v_cache: Any) -> None:
    """In q's dtype, or both as codes."""
    codes = [isinstance(x, Tensor) and x.dtype in CODES for x in (k_cache, v_cache)]
    if not any(codes):
        return tensors(4, {"q": q, "k_cache": k_cache, "v_cache": v_cache})
    tensors(4, {"q": q})
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        on_cpu(name, x)
        if x.dim() != 4:
            refuse(f"{name} has shape {tuple(x.shape)}: it must be {SHAPES[4]}")
    if v_cache.dtype != k_cache.dtype:
        refuse(f"v_cache is {v_cache.dtype} and k_cache {k_cache.dtype}: they must have one dtype")


def memory(given: dict[str, Tensor]) -> None:
    """What the extension would not read or write, said before it has written some of them."""
    for name, x in given.items():
        if x.is_neg():
            refuse(f"{name} is a view that is negated when read: {name}.resolve_neg() makes a tensor of it")
        if x.data_ptr() % x.element_size():
            refuse(f"{name} is at an address that is no multiple of its {x.element_size()} bytes an element: {name}.clone() is")


def shape(name: str, x: Tensor, *want: int) -> None:
    if tuple(x.shape) != want:
        refuse(f"{name} has shape {tuple(x.shape)}: it must be {want}")


def heads(q: Tensor, k: Tensor) -> None:
    """Of the last two dims: head dims are equal and not too large, query heads a multiple of kv heads."""
    if q.shape[-1] > HEAD_DIM:
        refuse(f"the head dim is {q.shape[-1]}: it must be at most {HEAD_DIM}; tileproof.attention takes larger ones")
    if k.shape[-1] != q.shape[-1]:
        refuse(f"k has head dim {k.shape[-1]} and q {q.shape[-1]}: they must be equal")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2] != 0:
        refuse(f"q has {q.shape[-2]} heads and k {k.shape[-2]}: the heads of q must be a multiple of those of k")


def index(name: str, x: Any, *want: int) -> None:
    """int32, of this shape."""
    on_cpu(name, x)
    if x.dtype != torch.int32:
        refuse(f"{name} is {x.dtype}: it must be int32; {name}.to(torch.int32) makes it so")
    shape(name, x, *want)


def within(name: str, x: Tensor, low: int, high: Union[int, Tensor], what: str) -> None:
    """Each of x from low to high, which may differ from one to the next."""
    tops = high.tolist() if isinstance(high, Tensor) else itertools.repeat(high)
    for value, top in zip(x.flatten().tolist(), tops):
        if not low <= value <= top:
            refuse(f"{name} is {value}: it must be in {low}..{top}, {what}")


def batch(count: int) -> None:
    if count < 1:
        refuse(f"there are {count} sequences: the batch must have at least one")


def slopes(x: Optional[Tensor], sequences: int, count: int) -> None:
    if x is None:
        return
    on_cpu("alibi_slopes", x)
    if x.dtype != torch.float32:
        refuse(f"alibi_slopes is {x.dtype}: it must be float32; alibi_slopes.float() makes it so")
    if tuple(x.shape) not in ((count,), (sequences, count)):
        refuse(f"alibi_slopes has shape {tuple(x.shape)}: it must be ({count},) or ({sequences}, {count})")
    if not torch.compiler.is_compiling() and not bool(x.isfinite().all()):
        refuse(f"alibi_slopes is {x.tolist()}: all of it must be finite")


def _number(name: str, x: Any, most: float) -> None:
    try:
        value = float(x)
    except (TypeError, ValueError):
        refuse(f"{name} is {x!r}: it must be a number")
    if not -most <= value <= most:  # nor NaN
        refuse(f"{name} is {value}: it must be finite, and at most {most:.2g}")


def numbers(softmax_scale: Any, softcap: Any) -> None:
    _number("softcap", softcap, FLOAT_MAX)
    if softmax_scale is not None:
        _number("softmax_scale", softmax_scale, SCALE_MAX)


def window(size: Any) -> Tuple[int, int]:
    try:
        left, right = (operator.index(x) for x in size)
    except (TypeError, ValueError):
        refuse(f"window_size is {size!r}: it must be two integers, (left, right)")
    if max(left, right) >= 2**31:
        refuse(f"window_size is {size!r}: its sides must be below 2^31; a negative one is unbounded")
    return left, right


def leftpad(name: str, x: Any, batch: int) -> None:
    index(name, x, batch)
    if not torch.compiler.is_compiling() and bool((x < 0).any()):
        refuse(f"{name} is {int(x.min())}: it must be at least 0, how many keys of a sequence are hidden")


def dropout(p: float, softcap: float) -> None:
    if not 0 <= p < 1:
        refuse(f"dropout_p is {p}: it must be at least 0 and below 1")
    if p > 0 and softcap > 0:
        refuse(f"softcap is {softcap} and dropout_p {p}: flash-attn has no dropout with softcap; one of them must be 0")


def pages(pool: Tensor, block_table: Any, sequences: int) -> None:
    on_cpu("block_table", block_table)
    if block_table.dim() != 2:
        refuse(f"block_table has shape {tuple(block_table.shape)}: it must be (sequences, columns)")
    index("block_table", block_table, sequences, block_table.shape[1])
    if pool.shape[1] % PAGE != 0:
        refuse(f"a page of the cache has {pool.shape[1]} tokens: it must be a multiple of {PAGE}; tileproof.attention(page_table=...) takes any")


def longest(name: str, most: Any, lengths: Tensor) -> None:
    """A GPU leaves the rows beyond unwritten."""
    if not torch.compiler.is_compiling():
        within("the length of a sequence", lengths, 0, int(most), f"which {name} says is the longest")


def same_dtype(q: Tensor, k: Tensor) -> None:
    if k.dtype != q.dtype:
        refuse(f"k is {k.dtype} and q {q.dtype}: they must have one dtype")


def splits(count: int, most: int, whose: str = "") -> None:
    """How a GPU would cut the keys; here it changes nothing."""
    if count > most:
        refuse(f"num_splits is {count}: num_splits > {most} is not supported{whose}; 0 lets the kernel choose")
