# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a call to its problem text and its class, in the words of the library. The library prints both; here
is only what it cannot be asked for: dtypes that it has no kernels for, and backward."""
from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple, Optional

from .. import _core
from .._api import explain

DTYPES = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float64": "f64"}
LONG = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


@functools.lru_cache(None)
def dtype_word(dtype: Any) -> str:
    name = str(dtype)
    return DTYPES.get(name, name.removeprefix("torch."))


@functools.lru_cache(None)
def decode_rows(dtype: str) -> int:
    """How many rows of one KV head the bucket few-rows reaches to, asked of the library once."""

    def few(n: int) -> bool:
        return " few-rows " in explain((1, n, 1, 64), (1, n, 1, 64), dtype=LONG.get(dtype, "float32")).problem_class

    low, high = 1, 2
    while few(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if few(middle) else (low, middle)
    return low


def is_decode(rows: int, keys: int) -> bool:
    return rows == 1 or (rows <= 16 and keys > rows)


class Described(NamedTuple):
    """A class, and the text form with room for batch and lengths."""

    form: str
    problem_class: str
    phase: str
    bucket: str
    dtype: str

    def text(self, batch: int, rows: int, keys: int) -> str:
        return self.form.format(b=batch, q=rows, k=keys)


LENGTHS = re.compile(r"^(\S+) b\d+ (h\S+) q\d+ k\d+ ")


def plain_scale(scale: Optional[float], dim: int) -> Optional[float]:
    """None where a caller names what is the default: transformers always does."""
    return None if scale is None or dim < 1 or abs(scale * dim**0.5 - 1) < 1e-6 else scale


def by_hand(sizes: tuple[Any, ...], dims: tuple[Any, ...], dtype: str) -> tuple[str, str]:
    (batch, heads, rows, dim), (_, kv_heads, keys, _) = sizes
    phase = "decode" if is_decode(rows, keys) else "prefill"
    group = heads // kv_heads if kv_heads else 1
    bucket = "few-rows" if rows * group <= decode_rows(dtype) else "many-rows"
    width = f"d{dims[0]}" if dims[0] == dims[1] else f"d{dims[0]}/{dims[1]}"
    rest = f"h{heads}/{kv_heads} {width} {dtype}"
    return f"{phase} b{batch} h{heads}/{kv_heads} q{rows} k{keys} {width} {dtype}", f"{phase} {bucket} {rest}"


def describe(
    q_size: tuple[Any, ...], k_size: tuple[Any, ...], head_dim_v: int, dtype: str, *, bias: Optional[str] = None, bits: bool = False,
    backward: bool = False, words: tuple[Any, ...] = (), dropout_p: float = 0.0, scale: Optional[float] = None, **options: Any,
) -> Described:  # fmt: skip
    """options are those of explain(): causal, causal_align, window, softcap, sinks, alibi_slopes."""
    asked = dict(options, scale=plain_scale(scale, q_size[-1]), dropout_p=dropout_p, layout="bhsd")
    if bits:
        asked["mask"] = True
    if bias is not None:
        asked["bias"] = LONG.get(bias, "float32")
    v_size = (*k_size[:3], head_dim_v)
    try:
        found = explain(q_size, k_size, v_size, dtype=LONG.get(dtype, "float32"), **asked)
        text, problem_class = found.problem, found.problem_class
        if dtype not in LONG:
            text, problem_class = (re.sub(r" f32\b", f" {dtype}", x, count=1) for x in (text, problem_class))
        if bias is not None and bias not in LONG:
            text, problem_class = (x.replace("bias=f32", f"bias={bias}") for x in (text, problem_class))
    except (ValueError, TypeError, _core.Error):  # such as head dim 0, or heads that are no multiple
        text, problem_class = by_hand((q_size, k_size), (q_size[-1], head_dim_v), dtype)
    if words:
        text, problem_class = (f"{x} {' '.join(words)}" for x in (text, problem_class))
    if backward:
        text, problem_class = ("backward " + x.split(" ", 1)[1] for x in (text, problem_class))
    form = LENGTHS.sub(r"\1 b{b} \2 q{q} k{k} ", text.replace("{", "{{").replace("}", "}}"))
    phase, bucket = problem_class.split(" ", 2)[:2]
    return Described(form, problem_class, phase, bucket, dtype)


def class_of(text: str) -> tuple[str, str, str, str]:
    """(class, phase, bucket, dtype of k) of a text that the library wrote, such as a receipt's. Lengths that differ between the
    sequences of a batch (`b3=...`) go by the first."""
    phase, *words = text.split()
    rest = [re.sub(r"^cascade=\d+", "cascade", x) for x in words if not re.match(r"[bqk]\d", x)]
    lengths = {found[1]: int(found[2]) for x in words if (found := re.match(r"([qk])(\d+)", x))}
    heads, kv_heads = (int(n) for n in re.findall(r"h(\d+)/(\d+)", text)[0])
    dtype = next((x for x in rest if re.match(r"(f|bf)\d+", x)), "f32").split("/")[-1].split(",")[0]
    limit = decode_rows(dtype if dtype in LONG else "f32")
    few = lengths.get("q", 1) * (heads // kv_heads) <= limit
    bucket = "few-rows" if few and "invariant" not in words else "many-rows"
    return " ".join([phase, bucket, *rest]), phase, bucket, dtype
