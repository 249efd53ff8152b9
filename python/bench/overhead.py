#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call costs beside its kernels: the smallest problem, one thread, best of many. The kernels' own time is that of
the receipt, which is what tp_attention takes; the rest is Python, descriptors and the new output."""
import sys
import time

import numpy as np

import tileproof

try:
    import torch
except ImportError:
    torch = None


TRIES = 2 if sys.argv[1:] == ["--quick"] else 100


def best(call, calls=200, tries=TRIES):
    """Microseconds of a call: the best mean of some calls in a row."""
    least = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        least = min(least, (time.perf_counter() - start) / calls)
    return 1e6 * least


def row(name, call, kernels):
    total = best(call)
    print(f"{name:44} {total:7.2f} us a call, {kernels:5.2f} of it in tp_attention, {total - kernels:5.2f} beside")


def kernel_time(q, k, v, **options):
    times = [tileproof.attention(q, k, v, threads=1, return_receipt=True, **options)[-1].time_ns for _ in range(2000)]
    return min(times) / 1e3


def main():
    q, k = np.ones((1, 1, 4, 64), np.float32), np.ones((1, 16, 4, 64), np.float32)
    out = np.empty_like(q)
    inside = kernel_time(q, k, k)
    row("NumPy attention", lambda: tileproof.attention(q, k, k, threads=1), inside)
    row("NumPy attention, out=", lambda: tileproof.attention(q, k, k, threads=1, out=out), inside)
    plan = tileproof.plan(q, k, threads=1)
    row("NumPy plan.run, out=", lambda: plan.run(q, k, k, out=out), inside)
    row("NumPy attention, receipt", lambda: tileproof.attention(q, k, k, threads=1, return_receipt=True), inside)
    try:
        import ml_dtypes

        low = [x.astype(ml_dtypes.bfloat16) for x in (q, k)]
        row("NumPy attention, bfloat16", lambda: tileproof.attention(low[0], low[1], low[1], threads=1), inside)
    except ImportError:
        print("NumPy attention, bfloat16: not run here: ml_dtypes is not installed")
    if torch is None:
        print("PyTorch: not run here: it is not installed")
        return
    tq, tk = torch.from_numpy(q), torch.from_numpy(k)
    row("PyTorch attention", lambda: tileproof.attention(tq, tk, tk, threads=1), inside)
    grad = tq.clone().requires_grad_()
    with torch.no_grad():
        row("PyTorch attention under no_grad", lambda: tileproof.attention(grad.detach(), tk, tk, threads=1), inside)
    turned = tq.transpose(1, 2).contiguous(), tk.transpose(1, 2).contiguous()
    row("PyTorch sdpa, all threads", lambda: tileproof.scaled_dot_product_attention(turned[0], turned[1], turned[1]), inside)
    theirs = best(lambda: torch.nn.functional.scaled_dot_product_attention(turned[0], turned[1], turned[1]))
    print(f"{'PyTorch, its own sdpa':44} {theirs:7.2f} us a call")


if __name__ == "__main__":
    main()
