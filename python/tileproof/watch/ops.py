# SPDX-License-Identifier: Apache-2.0
"""The ops of PyTorch's dispatcher that are attention, one row each: which kernel an op is, whether it is fused, and where its
arguments stand. What is not in this table is not seen."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

if TYPE_CHECKING:
    from torch import Tensor


class Read(NamedTuple):
    """The arguments of a call that say which problem it is. Sizes of q and k are (batch, heads, tokens, head dim)."""

    q: Any
    k: Any
    v: Any
    q_size: tuple[Any, ...]
    k_size: tuple[Any, ...]
    head_dim_v: int
    mask: Any = None  # a tensor that is added to the scores
    dropout_p: float = 0.0
    causal: bool = False
    scale: Optional[float] = None
    align: str = "top_left"
    words: tuple[Any, ...] = ()  # of the text form, for what nothing above says
    options: tuple[Any, ...] = ()  # of tileproof.explain, as pairs


class Op(NamedTuple):
    name: str  # with the overload
    kernel: str
    fused: bool
    read: Callable[..., Read]
    backward: bool = False
    composite: bool = False  # one kernel for all devices


def _four(x: Any) -> tuple[Any, ...]:
    """(..., heads, tokens, dim), as PyTorch takes it, with all before the heads as the batch."""
    shape = x.shape
    if len(shape) == 4:
        return tuple(shape)
    *lead, tokens, dim = shape
    batch = 1
    for n in lead[:-1]:
        batch *= n
    return (batch, lead[-1] if lead else 1, tokens, dim)


def nested_size(x: Any) -> tuple[Any, ...]:
    """(batch, longest of each dimension) of a nested tensor."""
    sizes = x._nested_tensor_size()
    return (sizes.shape[0], *(int(n) for n in sizes.amax(0))) if sizes.numel() else (sizes.shape[0], 0, 0, 0)


def _plain(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], dropout_p: float, causal: bool, scale: Optional[float],
) -> Read:  # fmt: skip
    if q.is_nested:
        return Read(q, k, v, nested_size(q), nested_size(k), nested_size(v)[-1], mask, dropout_p, causal, scale, words=("nested",))
    return Read(q, k, v, _four(q), _four(k), v.shape[-1], mask, dropout_p, causal, scale)


def _cpu(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: Optional[Tensor] = None,
    scale: Optional[float] = None,
) -> Read:  # fmt: skip
    return _plain(q, k, v, attn_mask, dropout_p, is_causal, scale)


def _cpu_backward(
    grad: Any, q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, dropout_p: float, is_causal: bool, *,
    attn_mask: Optional[Tensor] = None, scale: Optional[float] = None,
) -> Read:  # fmt: skip
    return _plain(q, k, v, attn_mask, dropout_p, is_causal, scale)


def _math(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0, is_causal: bool = False,
    dropout_mask: Optional[Tensor] = None, *, scale: Optional[float] = None, enable_gqa: bool = False,
) -> Read:  # fmt: skip
    return _plain(q, k, v, attn_mask, dropout_p, is_causal, scale)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: Any = False, *,
    scale: Optional[float] = None,
) -> Read:  # fmt: skip
    return _plain(q, k, v, None, dropout_p, is_causal, scale)


def _flash_quantized(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Any, k_descale: Any, v_descale: Any, dropout_p: float = 0.0,
    is_causal: bool = False, debug: Any = False, *, scale: Optional[float] = None,
) -> Read:  # fmt: skip
    return _plain(q, k, v, None, dropout_p, is_causal, scale)


def _flash_backward(
    grad: Any, q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, cum_q: Optional[Tensor], cum_k: Optional[Tensor],
    max_q: Any, max_k: Any, dropout_p: float, is_causal: bool, seed: Any, offset: Any, *, scale: Optional[float] = None,
) -> Read:  # fmt: skip
    return _plain(q, k, v, None, dropout_p, is_causal, scale)


def _biased(
    q: Tensor, k: Tensor, v: Tensor, attn_bias: Optional[Tensor], compute_lse: Any, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: Any = False, *, scale: Optional[float] = None,
) -> Read:  # fmt: skip
    return _plain(q, k, v, attn_bias, dropout_p, is_causal, scale)


def _efficient_backward(
    grad: Any, q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], out: Any, lse: Any, seed: Any, offset: Any,
    dropout_p: float, wanted: Any, is_causal: bool = False, *, scale: Optional[float] = None,
) -> Read:  # fmt: skip
    return _plain(q, k, v, bias, dropout_p, is_causal, scale)


def _cudnn_backward(
    grad: Any, q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, seed: Any, offset: Any, bias: Optional[Tensor],
    cum_q: Optional[Tensor], cum_k: Optional[Tensor], max_q: Any, max_k: Any, dropout_p: float, is_causal: bool, *,
    scale: Optional[float] = None,
) -> Read:  # fmt: skip
    return _plain(q, k, v, bias, dropout_p, is_causal, scale)


def _overrideable(
    q: Tensor, k: Tensor, v: Tensor, attn_bias: Optional[Tensor] = None, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: Any = False, *, scale: Optional[float] = None, **more: Any,
) -> Read:  # fmt: skip
    return _plain(q, k, v, attn_bias, dropout_p, is_causal, scale)


def by_tokens(
    q: Tensor, k: Tensor, v: Tensor, cum_q: Optional[Tensor], max_q: Any, max_k: Any, causal: bool, dropout_p: float,
    scale: Optional[float], window: tuple[Any, Any] = (None, None), slopes: Optional[Tensor] = None,
    bias: Optional[Tensor] = None, paged: bool = False,
) -> Read:  # fmt: skip
    """Tensors of (batch, tokens, heads, dim), or packed (tokens, heads, dim) with starts: the lower-level CUDA ops and
    flash_attn. Their causal mask is aligned to the bottom right."""
    if q.dim() == 4:
        batch, rows, heads, dim = q.shape
        keys, kv_heads = k.shape[1:3]
        words: tuple[str, ...] = ()
    else:
        batch, heads, dim = cum_q.numel() - 1 if cum_q is not None else 1, q.shape[1], q.shape[2]
        rows, keys, kv_heads = max_q, max_k, k.shape[-2]
        words = ("packed",)
    if paged:  # (pages, page size, heads, dim): how many keys of them are used is known on the device alone
        words += ("paged",)
    left, right = (None if x is None or x < 0 else int(x) for x in window)
    options: tuple[tuple[str, Any], ...] = () if left is None and right is None else (("window", (left, right)),)
    if slopes is not None:
        options += (("alibi_slopes", True),)
    sizes = (batch, heads, int(rows), dim), (batch, kv_heads, int(keys), dim)
    return Read(q, k, v, *sizes, v.shape[-1], bias, dropout_p, causal, scale, "bottom_right", words, options)


def _flash_forward(
    q: Tensor, k: Tensor, v: Tensor, cum_q: Optional[Tensor], cum_k: Optional[Tensor], max_q: Any, max_k: Any, dropout_p: float,
    is_causal: bool, return_debug_mask: Any, *, scale: Optional[float] = None, window_size_left: Any = None,
    window_size_right: Any = None, alibi_slopes: Optional[Tensor] = None, block_table: Optional[Tensor] = None, **more: Any,
) -> Read:  # fmt: skip
    window = (window_size_left, window_size_right)
    return by_tokens(q, k, v, cum_q, max_q, max_k, is_causal, dropout_p, scale, window, alibi_slopes, paged=block_table is not None)


def _flash_inplace(out: Any, *args: Any, **options: Any) -> Read:
    return _flash_forward(*args, **options)


def _efficient_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], cum_q: Optional[Tensor], cum_k: Optional[Tensor], max_q: Any,
    max_k: Any, dropout_p: float, mask_type: Any, compute_lse: Any = False, *, scale: Optional[float] = None,
    window_size: Optional[int] = None, **more: Any,
) -> Read:  # fmt: skip
    """mask_type: 0 none, 1 causal from the top left, 2 from the bottom right."""
    window = (None, None) if window_size is None else (window_size - 1, None)
    made = by_tokens(q, k, v, cum_q, max_q, max_k, mask_type > 0, dropout_p, scale, window, bias=bias)
    return made._replace(align="top_left" if mask_type == 1 else "bottom_right")


def _cudnn_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], cum_q: Optional[Tensor], cum_k: Optional[Tensor], max_q: Any,
    max_k: Any, compute_lse: Any, dropout_p: float = 0.0, is_causal: bool = False, debug: Any = False, *,
    scale: Optional[float] = None, **more: Any,
) -> Read:  # fmt: skip
    return by_tokens(q, k, v, cum_q, max_q, max_k, is_causal, dropout_p, scale, bias=bias)


def _native(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, mask: Optional[Tensor] = None, need_weights: Any = True, average_attn_weights: Any = True,
    mask_type: Any = None,
) -> Read:  # fmt: skip
    """(batch, tokens, embed): the projections are inside."""
    batch, rows = nested_size(query)[:2] if query.is_nested else query.shape[:2]
    keys = nested_size(key)[1] if key.is_nested else key.shape[1]
    dim = embed_dim // num_head
    words = ("nested",) if query.is_nested else ()
    return Read(
        query, key, value, (batch, num_head, rows, dim), (batch, num_head, keys, dim), dim, mask, align="bottom_right", words=words
    )  # fmt: skip


OPS = (
    Op("_scaled_dot_product_flash_attention_for_cpu", "flash_for_cpu", True, _cpu),
    Op("_scaled_dot_product_flash_attention_for_cpu_backward", "flash_for_cpu", True, _cpu_backward, backward=True),
    Op("_scaled_dot_product_attention_math", "math", False, _math, composite=True),
    Op("_native_multi_head_attention", "native_mha", False, _native),
    Op("_scaled_dot_product_flash_attention", "flash", True, _flash),
    Op("_scaled_dot_product_flash_attention.quantized", "flash", True, _flash_quantized),
    Op("_scaled_dot_product_flash_attention_backward", "flash", True, _flash_backward, backward=True),
    Op("_scaled_dot_product_efficient_attention", "efficient", True, _biased),
    Op("_scaled_dot_product_efficient_attention_backward", "efficient", True, _efficient_backward, backward=True),
    Op("_scaled_dot_product_cudnn_attention", "cudnn", True, _biased),
    Op("_scaled_dot_product_cudnn_attention_backward", "cudnn", True, _cudnn_backward, backward=True),
    Op("_scaled_dot_product_fused_attention_overrideable", "overrideable", True, _overrideable),
    Op("_flash_attention_forward", "flash", True, _flash_forward),
    Op("_flash_attention_forward_no_dropout_inplace", "flash", True, _flash_inplace),
    Op("_efficient_attention_forward", "efficient", True, _efficient_forward),
    Op("_cudnn_attention_forward", "cudnn", True, _cudnn_forward),
)
KEYS = ("CPU", "CUDA", "NestedTensorCPU", "NestedTensorCUDA", "XPU", "PrivateUse1")
# Products and softmax outside of these ops: attention that a model writes out. What a product's scores are, and its operands.
PRODUCTS = {"bmm": 0, "bmm.out": 0, "baddbmm": 1, "baddbmm.out": 1}  # where the first operand stands
SOFTMAXES = ("_softmax", "_softmax.out")
UNFUSED = {"math", "native_mha", "eager", "flex_eager", "compiled_math"}
