#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What watching costs: a Llama-like model of random weights (12 layers, hidden 768) with hooks and a watcher, and without
either, interleaved, for a prompt and for decode steps, each after an untimed one; beside it the same without a watcher twice,
which must be 1. The cost of a call by itself, times the calls, stands for what whole runs on a busy host cannot show. All times are CPU time of the
process, so that other processes count less."""
import argparse
import contextlib
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
import transformers

import shield
from model import build
import tileproof
from tileproof.watch import hooks

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/peers"))
import stats


@contextlib.contextmanager
def watching(wanted):
    if not wanted:
        hooks.unhook()
        yield None
        return
    with tileproof.watch() as seen:
        yield seen


def prefill(model, tokens):
    model(tokens, logits_to_keep=1, use_cache=False)


def decode(model, tokens, steps=4):
    """Steps after a prompt, which is not timed."""
    cache = model(tokens, logits_to_keep=1, use_cache=True).past_key_values
    token = tokens[:, -1:]
    start = time.process_time()
    for _ in range(steps):
        model(token, past_key_values=cache, use_cache=True)
    return (time.process_time() - start) / steps


def timed(run, model, tokens):
    start = time.process_time()
    inner = run(model, tokens)
    return inner if inner is not None else time.process_time() - start


def of_one_call(seconds):
    """Microseconds that hooks and a watcher add to one decode call: the best of many, interleaved."""
    q, k = torch.randn(1, 12, 1, 64), torch.randn(1, 12, 128, 64)
    best, until = {False: 1.0, True: 1.0}, time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < until:
            for wanted in best:
                with watching(wanted):
                    F.scaled_dot_product_attention(q, k, k)
                    start = time.process_time()
                    for _ in range(100):
                        F.scaled_dot_product_attention(q, k, k)
                    best[wanted] = min(best[wanted], (time.process_time() - start) / 100)
    return 1e6 * (best[True] - best[False])


def main():
    shield.without_broken_amx()
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--seconds", type=float, default=3.0, help="for one call alone")
    options.add_argument("--threads", type=int, default=1)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    cost = of_one_call(options.seconds)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {options.threads} threads; a watched call takes {cost:.1f} us more")
    print("| attention | run | ms | watched / not (99 %) | not / not | best / best | not / not | calls | by the cost of a call |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    shares = []
    tokens = torch.randint(8192, (1, 128), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for how in ("sdpa", "eager"):
            model = build(how, options.layers)
            for name, run in (("prefill 128", prefill), ("decode", decode)):
                times = {"plain": [], "watched": [], "again": []}
                for turn in range(options.rounds + 1):
                    for kind in list(times) if turn % 2 else list(times)[::-1]:
                        with watching(kind == "watched"):
                            run(model, tokens)  # a watcher that has just opened looks at each layer's first call for longer
                            spent = timed(run, model, tokens)
                        if turn > 0:  # the first brings weights in
                            times[kind].append(spent)
                ratio, control = (stats.paired(times["plain"], times[x]) for x in ("watched", "again"))
                best = {x: min(times[x]) / min(times["plain"]) for x in ("watched", "again")}
                middle = sorted(times["plain"])[len(times["plain"]) // 2]
                share = f"{100 * cost * 1e-6 * options.layers / middle:.2f} %" if how == "sdpa" else "-"
                shares += [f"{share} of {name}"] if how == "sdpa" else []
                print(
                    f"| {how} | {name} | {1e3 * middle:.1f} | {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
                    f" | {control.median:.3f} | {best['watched']:.3f} | {best['again']:.3f} | {options.layers} | {share} |", flush=True,
                )  # fmt: skip
    print(f"watching takes {' and '.join(shares)} by the cost of a call; it shall take less than 3 %")


if __name__ == "__main__":
    main()
