# SPDX-License-Identifier: Apache-2.0
"""Attention by its definition, in float64, one row at a time."""
import numpy as np

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def visible(rows, keys, causal=False, align="bottom_right", window=None):
    """bool (rows, keys)"""
    q_pos = np.arange(rows)[:, None] + (keys - rows if align == "bottom_right" else 0)
    k_pos = np.arange(keys)[None, :]
    seen = np.ones((rows, keys), bool)
    if causal:
        seen &= k_pos <= q_pos
    left, right = window or (None, None)
    if left is not None:
        seen &= k_pos >= q_pos - left
    if right is not None:
        seen &= k_pos <= q_pos + right
    return seen, np.abs(q_pos - k_pos)


def one(q, k, v, mask=True, bias=0.0, scale=None, softcap=0.0, slopes=None, sinks=None, **visibility):
    """One sequence: q (rows, heads, d), k and v (keys, kv heads, d); mask and bias broadcast to (heads, rows, keys)."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    rows, heads, keys = q.shape[0], q.shape[1], k.shape[0]
    group = heads // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    seen, distance = visible(rows, keys, **visibility)
    s = np.einsum("qhd,khd->hqk", q, k) * (q.shape[2] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if slopes is not None:
        s = s - np.asarray(slopes, np.float64)[:, None, None] * distance
    s = np.where(seen & mask, s + bias, -np.inf)
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(np.asarray(sinks, np.float64)[:, None, None], (heads, rows, 1))], 2)
    top = s.max(2, initial=-np.inf, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(2, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0] if s.shape[2] else np.full((heads, rows), -np.inf)
    p = p[:, :, :keys] / np.where(total > 0, total, 1)
    return np.einsum("hqk,khd->qhd", p, v), lse  # (rows, heads, d), (heads, rows)


def batch(q, k, v, mask=None, bias=None, q_lens=None, kv_lens=None, slopes=None, **rest):
    """bshd; rows beyond q_lens are 0, and -inf as their lse."""
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    mask = np.broadcast_to(True if mask is None else mask, full)
    bias = np.broadcast_to(np.float64(0) if bias is None else np.asarray(bias).astype(np.float64), full)
    out = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.full(full[:3], -np.inf)
    for s in range(q.shape[0]):
        m = q.shape[1] if q_lens is None else q_lens[s]
        n = k.shape[1] if kv_lens is None else kv_lens[s]
        own = slopes if slopes is None or np.ndim(slopes) == 1 else slopes[s]
        o, x = one(q[s, :m], k[s, :n], v[s, :n], mask[s, :, :m, :n], bias[s, :, :m, :n], slopes=own, **rest)
        out[s, :m], lse[s, :, :m] = o, x
    return out, lse


def error(got, want):
    """Largest absolute difference; infinite ones must be equal."""
    got, want = np.asarray(got).astype(np.float64), np.asarray(want)
    there = np.isfinite(want)
    if not np.array_equal(got[~there], want[~there]):
        return np.inf
    difference = np.abs(got[there] - want[there])
    return 0.0 if difference.size == 0 else np.inf if np.isnan(difference).any() else difference.max()
