#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a whole model gains: time to first token by prompt length, and time of a decode step by keys in its cache, in float32 and bfloat16, with
PyTorch's attention and with patch(), interleaved; the ratio has a 99 % interval. Beside it attention's share of the time, so that neither number stands
for the other. A row whose whole interval lies above 1 is slower for the patch, and the last line counts these."""
import argparse
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
import transformers

import model as bench_model
import shield
import tileproof
import tileproof.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/peers"))
import stats
import timing

ORIGINAL = F.scaled_dot_product_attention
MIN_ROUNDS, MAX_ROUNDS = 5, 60  # rounds of a row
LONG = 0.5  # seconds: such a run needs none before it that is not timed


class Clock:
    """Sums the time of the calls of a function."""

    def __init__(self, function):
        self.function, self.seconds = function, 0.0

    def __call__(self, *args, **options):
        start = time.perf_counter()
        out = self.function(*args, **options)
        self.seconds += time.perf_counter() - start
        return out


class Prefill:
    """A prompt, until its first token is there."""

    def __init__(self, model, length):
        self.model = model
        self.tokens = torch.randint(bench_model.VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))

    def run(self):
        return int(self.model(self.tokens, logits_to_keep=1, use_cache=True).logits[0, -1].argmax())


class Decode:
    """One token more, with so many keys in the cache, which afterwards is as it was."""

    def __init__(self, model, length):
        self.model = model
        tokens = torch.randint(bench_model.VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))
        self.token = tokens[:, -1:]
        self.cache = model(tokens, logits_to_keep=1, use_cache=True).past_key_values

    def run(self):
        out = int(self.model(self.token, past_key_values=self.cache, use_cache=True).logits[0, -1].argmax())
        self.cache.crop(-1)
        return out


PHASES = {"prefill": Prefill, "decode": Decode}


def turn(work, function, calls, warm=True):
    """Seconds of a run, the part of them in attention, and the token, after one that is not timed unless it is long."""
    before = F.scaled_dot_product_attention
    clock = F.scaled_dot_product_attention = Clock(function)
    try:
        timing.settle()
        if warm:
            work.run()
        clock.seconds, start = 0.0, time.perf_counter()
        for _ in range(calls):
            token = work.run()
        spent = time.perf_counter() - start
        return spent / calls, clock.seconds / spent, token
    finally:
        F.scaled_dot_product_attention = before


def middle(values):
    return sorted(values)[len(values) // 2]


def measure(work, seconds):
    """Times of both, shares of both, whether the tokens are the same, and the kernels."""
    end = time.perf_counter() + seconds
    with tileproof.torch.patch(limit=0):  # a patch with a log listens to PyTorch's own kernels, which costs them time
        ways = {"sdpa": ORIGINAL, "patched": F.scaled_dot_product_attention}
        once, _, _ = turn(work, ORIGINAL, 1)
        calls = max(1, min(20, int(0.02 / once)))
        kept = {name: [] for name in ways}
        while len(kept["sdpa"]) < MIN_ROUNDS or (time.perf_counter() < end and len(kept["sdpa"]) < MAX_ROUNDS):
            for name in list(ways) if len(kept["sdpa"]) % 2 else list(ways)[::-1]:
                kept[name].append(turn(work, ways[name], calls, once < LONG))
        with tileproof.torch.log() as log:
            turn(work, ways["patched"], 1, False)
        kernels = "+".join(sorted({r.kernel for r in log.receipts})) or "left to PyTorch"
    times = {name: [x[0] for x in rows] for name, rows in kept.items()}
    shares = {name: middle([x[1] for x in rows]) for name, rows in kept.items()}
    tokens = {x[2] for rows in kept.values() for x in rows}
    return times, shares, len(tokens) == 1, kernels


def main():
    shield.without_broken_amx()
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lengths", default="128,256,512,1024,2048,4096")
    options.add_argument("--phases", default="prefill,decode")
    options.add_argument("--dtypes", default="float32,bfloat16")
    options.add_argument("--minutes", type=float, default=8.0, help="for all rows together; a row has at least five rounds")
    options = options.parse_args()
    rows = [(dtype, phase, int(length)) for dtype in options.dtypes.split(",") for phase in options.phases.split(",")
            for length in options.lengths.split(",")]  # fmt: skip
    print(f"{bench_model.NAME}; torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads; "
          f"tileproof {tileproof.__version__}")  # fmt: skip
    print("| phase | dtype | tokens | sdpa ms | patched ms | patched / sdpa (99 %) | attention of sdpa | of patched | rounds | kernel | token |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|", flush=True)
    begin, slower, models = time.perf_counter(), [], {}
    for at, (dtype, phase, length) in enumerate(rows):
        left = 60 * options.minutes - (time.perf_counter() - begin)
        print(f"ttft: {at} of {len(rows)} rows, about {max(0, left):.0f} s left", file=sys.stderr, end="\r" if sys.stderr.isatty() else "\n", flush=True)
        with torch.no_grad():
            if dtype not in models:
                models = {dtype: bench_model.build("sdpa", dtype=getattr(torch, dtype))}
            times, shares, same, kernels = measure(PHASES[phase](models[dtype], length), left / (len(rows) - at))
        ratio = stats.paired(times["sdpa"], times["patched"])
        name = f"{phase}, {dtype}, {length}"
        slower += [name] if ratio.low > 1 else []
        print(f"| {phase} | {dtype} | {length} | {1e3 * middle(times['sdpa']):.2f} | {1e3 * middle(times['patched']):.2f} | {ratio.median:.3f} ({ratio.low:.3f} to "
              f"{ratio.high:.3f}) | {100 * shares['sdpa']:.0f} % | {100 * shares['patched']:.0f} % | {len(times['sdpa'])} | {kernels} | "
              f"{'same' if same else 'DIFFERENT'} |", flush=True)  # fmt: skip
    print(f"\n{len(rows)} rows in {time.perf_counter() - begin:.0f} s; slower for the patch: {'; '.join(slower) if slower else 'none'}")


if __name__ == "__main__":
    main()
