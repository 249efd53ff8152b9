# SPDX-License-Identifier: Apache-2.0
"""What flash-attn's functions mean, in float64 with every score written out, for one sequence at a time. Gradients by PyTorch."""
import torch

EPS = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def visible(rows, keys, first, causal, window):
    """bool (rows, keys) and the distance of each pair. Row i stands at key i + keys - rows; keys before `first` are padding."""
    left, right = (int(x) for x in window)
    key = torch.arange(keys)
    distance = torch.arange(rows)[:, None] + (keys - rows) - key
    seen = (key >= first).expand(rows, keys).clone()
    if causal:
        seen &= distance >= 0
    elif right >= 0:
        seen &= distance >= -right
    if left >= 0:
        seen &= distance <= left
    return seen, distance.abs()


def sequence(q, k, v, first=0, scale=None, causal=False, window=(-1, -1), softcap=0.0, slopes=None, keep=None, p=0.0):
    """q (rows, heads, d), k and v (keys, kv heads, d). Out (rows, heads, d), lse (heads, rows),
    exp(score - the largest), and the largest magnitude of a score, which rounding goes by."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    seen, distance = visible(len(q), len(k), first, causal, window)
    s = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * distance
    s = s.masked_fill(~seen, -torch.inf)
    some = seen.any(-1)[None, :, None]
    top = s.amax(-1, keepdim=True).detach() if len(k) else s.new_zeros(*s.shape[:2], 1)
    top = torch.where(some, top, 0)
    e = torch.where(seen, torch.exp(s - top), 0)
    total = e.sum(-1, keepdim=True)
    lse = torch.where(some, total.log() + top, torch.inf)[..., 0]
    weight = e / torch.where(some, total, 1)
    if keep is not None:
        weight = weight * keep / (1 - p)
    most = float(s.detach()[:, seen].abs().max()) if seen.any() else 0.0
    return torch.einsum("hqk,khd->qhd", weight, v), lse, e, most


def rotate(x, cos, sin, at, interleaved):
    """x (tokens, heads, d); token i by row at[i] of cos and sin."""
    x, half = x.double().clone(), cos.shape[1]
    c, s = cos.double()[at][:, None], sin.double()[at][:, None]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = x[..., first].clone(), x[..., second].clone()
    x[..., first], x[..., second] = a * c - b * s, a * s + b * c
    return x


def error(got, want, dtype, size, most=0.0):
    """The largest error in units in the last place of `size`, or of the largest value if that is larger. Where scores are as
    large as `most`, so are the units: float32 rounds them. Infinite where shapes, or what is infinite, differ."""
    got, want = got.detach().double(), want.detach().double()
    if got.shape != want.shape or got.isnan().any() or not torch.equal(got.isinf() * got.sign(), want.isinf() * want.sign()):
        return float("inf")
    finite = ~want.isinf()
    if not finite.any():
        return 0.0
    size = max(float(want[finite].abs().max()), size)
    found = float((got - want)[finite].abs().max())
    return found / size / (EPS[dtype] + EPS[torch.float32] * most) if size else float("inf") if found else 0.0
