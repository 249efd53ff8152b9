# SPDX-License-Identifier: Apache-2.0
"""The ops of PyTorch's dispatcher that are attention, one row each: which kernel an op is, whether it is fused, and where its
arguments stand. What is not in this table is not seen."""
from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional


class Read(NamedTuple):
    """The arguments of a call that say which problem it is. Sizes of q and k are (batch, heads, tokens, head dim)."""

    q: Any
    k: Any
    v: Any
    q_size: tuple
    k_size: tuple
    head_dim_v: int
    mask: Any = None  # a tensor that is added to the scores
    dropout_p: float = 0.0
    causal: bool = False
    scale: Optional[float] = None
    align: str = "top_left"
    words: tuple = ()  # of the text form, for what nothing above says
    options: tuple = ()  # of tileproof.explain, as pairs


class Op(NamedTuple):
    name: str  # with the overload
    kernel: str
    fused: bool
    read: Callable[..., Read]
    backward: bool = False
    composite: bool = False  # one kernel for all devices


def _four(x: Any) -> tuple:
    """(..., heads, tokens, dim), as PyTorch takes it, with all before the heads as the batch."""
    shape = x.shape
    if len(shape) == 4:
        return tuple(shape)
    *lead, tokens, dim = shape
    batch = 1
    for n in lead[:-1]:
        batch *= n
    return (batch, lead[-1] if lead else 1, tokens, dim)


def nested_size(x: Any) -> tuple:
    """(batch, longest of each dimension) of a nested tensor."""
    sizes = x._nested_tensor_size()
    return (sizes.shape[0], *(int(n) for n in sizes.amax(0))) if sizes.numel() else (sizes.shape[0], 0, 0, 0)


def _plain(q, k, v, mask, dropout_p, causal, scale) -> Read:
    if q.is_nested:
        return Read(q, k, v, nested_size(q), nested_size(k), nested_size(v)[-1], mask, dropout_p, causal, scale, words=("nested",))
    return Read(q, k, v, _four(q), _four(k), v.shape[-1], mask, dropout_p, causal, scale)


def _cpu(q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    return _plain(q, k, v, attn_mask, dropout_p, is_causal, scale)


def _cpu_backward(grad, q, k, v, out, lse, dropout_p, is_causal, *, attn_mask=None, scale=None):
    return _plain(q, k, v, attn_mask, dropout_p, is_causal, scale)


def _math(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, dropout_mask=None, *, scale=None, enable_gqa=False):
    return _plain(q, k, v, attn_mask, dropout_p, is_causal, scale)


def _flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    return _plain(q, k, v, None, dropout_p, is_causal, scale)


def _flash_quantized(q, k, v, q_descale, k_descale, v_descale, dropout_p=0.0, is_causal=False, debug=False, *, scale=None):
    return _plain(q, k, v, None, dropout_p, is_causal, scale)


def _flash_backward(grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset, *, scale=None):
    return _plain(q, k, v, None, dropout_p, is_causal, scale)


def _biased(q, k, v, attn_bias, compute_lse, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    return _plain(q, k, v, attn_bias, dropout_p, is_causal, scale)


def _efficient_backward(grad, q, k, v, bias, out, lse, seed, offset, dropout_p, wanted, is_causal=False, *, scale=None):
    return _plain(q, k, v, bias, dropout_p, is_causal, scale)


def _cudnn_backward(
    grad, q, k, v, out, lse, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, *, scale=None
):  # fmt: skip
    return _plain(q, k, v, bias, dropout_p, is_causal, scale)


def _overrideable(q, k, v, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None, **more):
    return _plain(q, k, v, attn_bias, dropout_p, is_causal, scale)


def by_tokens(q, k, v, cum_q, max_q, max_k, causal, dropout_p, scale, window=(None, None), slopes=None, bias=None, paged=False):
    """Tensors of (batch, tokens, heads, dim), or packed (tokens, heads, dim) with starts: the lower-level CUDA ops and
    flash_attn. Their causal mask is aligned to the bottom right."""
    if q.dim() == 4:
        batch, rows, heads, dim = q.shape
        keys, kv_heads = k.shape[1:3]
        words = ()
    else:
        batch, heads, dim = cum_q.numel() - 1 if cum_q is not None else 1, q.shape[1], q.shape[2]
        rows, keys, kv_heads = max_q, max_k, k.shape[-2]
        words = ("packed",)
    if paged:  # (pages, page size, heads, dim): how many keys of them are used is known on the device alone
        words += ("paged",)
    left, right = (None if x is None or x < 0 else int(x) for x in window)
    options = () if left is None and right is None else (("window", (left, right)),)
    if slopes is not None:
        options += (("alibi_slopes", True),)
    sizes = (batch, heads, int(rows), dim), (batch, kv_heads, int(keys), dim)
    return Read(q, k, v, *sizes, v.shape[-1], bias, dropout_p, causal, scale, "bottom_right", words, options)


def _flash_forward(
    q, k, v, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale=None, window_size_left=None,
    window_size_right=None, alibi_slopes=None, block_table=None, **more,
):  # fmt: skip
    window = (window_size_left, window_size_right)
    return by_tokens(q, k, v, cum_q, max_q, max_k, is_causal, dropout_p, scale, window, alibi_slopes, paged=block_table is not None)


def _flash_inplace(out, *args, **options):
    return _flash_forward(*args, **options)


def _efficient_forward(
    q, k, v, bias, cum_q, cum_k, max_q, max_k, dropout_p, mask_type, compute_lse=False, *, scale=None, window_size=None, **more
):
    """mask_type: 0 none, 1 causal from the top left, 2 from the bottom right."""
    window = (None, None) if window_size is None else (window_size - 1, None)
    made = by_tokens(q, k, v, cum_q, max_q, max_k, mask_type > 0, dropout_p, scale, window, bias=bias)
    return made._replace(align="top_left" if mask_type == 1 else "bottom_right")


def _cudnn_forward(
    q, k, v, bias, cum_q, cum_k, max_q, max_k, compute_lse, dropout_p=0.0, is_causal=False, debug=False, *, scale=None, **more
):
    return by_tokens(q, k, v, cum_q, max_q, max_k, is_causal, dropout_p, scale, bias=bias)


def _native(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None, need_weights=True,
    average_attn_weights=True, mask_type=None,
):  # fmt: skip
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
