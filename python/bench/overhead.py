#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call costs beside its kernels: the smallest problem, one thread, best of many. The kernels' own time is that of
the receipt, which is what tp_attention takes; the rest is Python, descriptors and the new output."""
import sys
import time

import numpy as np

import tileproof

try:
    import tileproof.torch
    import torch
    from torch.nn import functional
except ImportError:
    torch = None


OWN = "PyTorch's own"
TRIES = 2 if sys.argv[1:] == ["--quick"] else 100


def best(call, calls=200, tries=TRIES):
    """Microseconds of a call: the best mean of some calls in a row."""
    fastest = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        fastest = min(fastest, (time.perf_counter() - start) / calls)
    return 1e6 * fastest


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
    with torch.no_grad():
        rows = [sdpa(*sizes) for sizes in ((4, 16, 64), (1, 1, 8))]
        for row_of in rows:  # last: a patch with a log listens to PyTorch's own kernels, too, and what listens stays in their way
            show(*row_of)


def sdpa(heads, keys, dim):
    """PyTorch's function and this library's in turns."""
    q, k = torch.randn(1, heads, 1, dim), torch.randn(1, heads, keys, dim)
    own = functional.scaled_dot_product_attention
    with tileproof.torch.patch(limit=0):
        stands_in = functional.scaled_dot_product_attention
        ways = {OWN: own, "tileproof's": tileproof.scaled_dot_product_attention, "patched, limit=0": stands_in}
        times = {name: [] for name in ways}
        for _ in range(TRIES):
            for name, way in ways.items():
                times[name].append(best(lambda: way(q, k, k), tries=1))
    fastest = {name: min(x) for name, x in times.items()}
    return f"sdpa h{heads} k{keys} d{dim}", q, k, fastest


def show(title, q, k, fastest):
    with tileproof.torch.patch():
        fastest["patched"] = best(lambda: functional.scaled_dot_product_attention(q, k, k))
    for name, x in fastest.items():
        print(f"{title + ', ' + name:44} {x:7.2f} us a call, {x - fastest[OWN]:+5.2f} to PyTorch's own")


if __name__ == "__main__":
    main()
