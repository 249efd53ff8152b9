#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention with tileproof and without, interleaved in one process: the ratio of times with a
99 % interval, an A/A control, and the kernel by the receipt. Above 1 tileproof is faster."""
import argparse
import pathlib
import sys
import time

import torch
import torch.nn.functional as F

import shield
import tileproof
import tileproof.torch
from tileproof._torch_log import note_receipt

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/peers"))
import stats
import timing

ORIGINAL = F.scaled_dot_product_attention


def window_mask(rows, keys, left):
    distance = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)[None]
    return (distance >= 0) & (distance <= left)


def case(name, heads, kv_heads, rows, keys, dim, dtype, causal=False, left=None, backward=False):
    """(name, theirs, ours): calls that give the output"""
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, h, n, dim).to(dtype) for h, n in ((heads, rows), (kv_heads, keys), (kv_heads, keys)))
    options = dict(enable_gqa=heads != kv_heads)
    if left is not None:
        options["attn_mask"] = window_mask(rows, keys, left)
    elif causal:
        options["is_causal"] = True

    def forward(which):
        with torch.no_grad():
            return which(q, k, v, **options)

    def both(which):
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        out = which(*given, **options)
        out.backward(torch.ones_like(out))
        return given[0].grad

    step = both if backward else forward
    text = f"{name}: h{heads}/{kv_heads} q{rows} k{keys} d{dim} {str(dtype).removeprefix('torch.')}"
    return text, lambda: step(ORIGINAL), lambda: step(F.scaled_dot_product_attention)


def native_window(text, heads, kv_heads, rows, dim, dtype, left):
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, h, rows, dim).to(dtype) for h in (heads, kv_heads, kv_heads))
    mask = window_mask(rows, rows, left)

    def theirs():
        with torch.no_grad():
            return ORIGINAL(q, k, v, mask, enable_gqa=heads != kv_heads)

    def ours():
        out, receipt = tileproof.attention(q, k, v, causal=True, window=(left, 0), layout="bhsd", return_receipt=True)
        note_receipt(receipt)
        return out

    return f"{text}: h{heads}/{kv_heads} q{rows} d{dim} {str(dtype).removeprefix('torch.')}", theirs, ours


def cases():
    f32, bf16 = torch.float32, torch.bfloat16
    yield case("prefill", 8, 8, 1024, 1024, 64, f32)
    yield case("prefill causal", 8, 8, 1024, 1024, 128, f32, causal=True)
    yield case("prefill causal", 8, 8, 1024, 1024, 128, bf16, causal=True)
    yield case("GQA prefill causal", 32, 8, 512, 512, 128, f32, causal=True)
    yield case("GQA prefill causal", 32, 8, 512, 512, 128, bf16, causal=True)
    for dtype in (f32, bf16):
        yield case("decode, in cache", 12, 12, 1, 256, 64, dtype)
        yield case("decode, in cache", 12, 12, 1, 1024, 64, dtype)
        yield case("decode", 8, 8, 1, 4096, 128, dtype)
        yield case("GQA decode", 32, 8, 1, 4096, 128, dtype)
    yield case("window by mask", 4, 4, 4096, 4096, 64, f32, left=255)
    yield native_window("window by window=", 4, 4, 4096, 64, f32, 255)
    yield case("forward and backward causal", 8, 8, 512, 512, 64, f32, causal=True, backward=True)
    yield case("GQA forward and backward causal", 8, 2, 512, 512, 64, bf16, causal=True, backward=True)


def main():
    shield.without_broken_amx()
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0, help="for each row")
    options.add_argument("--match", default="", help="only rows with this text")
    options = options.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; tileproof {tileproof.__version__}")
    print("| case | torch ms | ours ms | torch / ours (99 %) | ours / ours | kernel | max difference |")
    print("|---|---:|---:|---:|---:|---|---:|")
    behind, begin = [], time.perf_counter()
    for text, theirs, ours in cases():
        if options.match not in text:
            continue
        print(f"sdpa: {time.perf_counter() - begin:.0f} s, {text}", file=sys.stderr, flush=True)
        with tileproof.torch.patch(limit=0):  # a patch with a log listens to PyTorch's own kernels, which costs them time
            with tileproof.torch.log() as log:
                difference = (ours().float() - theirs().float()).abs().max().item()
            kernels = "+".join(sorted({r.kernel + (", a FALLBACK" if r.fallback else "") for r in log.receipts}))
            a, b = timing.Variant("ours", ours, None), timing.Variant("torch", theirs, None)
            mine, other = timing.compare(a, b, options.seconds, 7, 200)
            control = timing.compare(a, timing.Variant("again", ours, None), options.seconds / 2, 7, 100)
        walls = [[wall for wall, _ in x] for x in (mine, other, *control)]
        ratio, same = stats.paired(walls[0], walls[1]), stats.paired(walls[2], walls[3])
        middle = [1e3 * sorted(x)[len(x) // 2] for x in walls[:2]]
        print(
            f"| {text} | {middle[1]:.3f} | {middle[0]:.3f} | {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            f" | {same.median:.2f}{'' if same.same() else ' NOT SAME'} | {kernels or 'left to PyTorch'} | {difference:.1e} |",
            flush=True,
        )
        behind += [text] if ratio.high < 1 else []
    print(f"\nPyTorch is ahead in: {'; '.join(behind) if behind else 'no row'}")


if __name__ == "__main__":
    main()
