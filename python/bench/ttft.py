#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to first token by prompt length for a small Llama-like model of random weights (8 layers, hidden 1024), with eager,
sdpa and patched sdpa, interleaved; attention's share of the time, and beside it the ratio of the attention calls alone, so
that neither number stands for the other."""
import argparse
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
import transformers

import shield
import tileproof
import tileproof.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/peers"))
import stats
import timing

ORIGINAL = F.scaled_dot_product_attention


def build(dtype):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4,
        head_dim=64, vocab_size=32000, max_position_embeddings=8192, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


class Clock:
    """Sums the time of the calls of a function."""

    def __init__(self, function):
        self.function, self.seconds, self.last = function, 0.0, None

    def __call__(self, *args, **options):
        start = time.perf_counter()
        out = self.function(*args, **options)
        self.seconds += time.perf_counter() - start
        self.last = args, options
        return out


def first_token(model, tokens, how, patched):
    """Seconds, seconds in attention (None for eager), the token, and the last attention call's arguments."""
    model.set_attn_implementation(how)
    before = F.scaled_dot_product_attention
    clock = F.scaled_dot_product_attention = Clock(patched if patched is not None else ORIGINAL)
    try:
        with torch.no_grad():
            start = time.perf_counter()
            logits = model(tokens, logits_to_keep=1, use_cache=True).logits
            token = int(logits[0, -1].argmax())
            return time.perf_counter() - start, clock.seconds if how == "sdpa" else None, token, clock.last
    finally:
        F.scaled_dot_product_attention = before


def middle(values):
    return sorted(values)[len(values) // 2]


def alone(call, seconds):
    """The attention call of a layer by itself: torch / ours."""
    args, options = call
    a = timing.Variant("ours", lambda: tileproof.scaled_dot_product_attention(*args, **options), None)
    b = timing.Variant("torch", lambda: ORIGINAL(*args, **options), None)
    with torch.no_grad():
        ours, theirs = timing.compare(a, b, seconds, 7, 100)
    return stats.paired([x for x, _ in ours], [x for x, _ in theirs])


def measure(model, length, rounds, seconds):
    tokens = torch.randint(32000, (1, length), generator=torch.Generator().manual_seed(length))
    times = {"eager": [], "sdpa": [], "patched": []}
    shares = {"sdpa": [], "patched": []}
    found, seen = {}, None
    with tileproof.torch.patch() as log:
        ours = F.scaled_dot_product_attention
        for turn in range(rounds + 1):
            names = list(times) if turn % 2 else list(times)[::-1]
            for name in names:
                how, patched = ("eager", None) if name == "eager" else ("sdpa", ours if name == "patched" else None)
                spent, attention, found[name], call = first_token(model, tokens, how, patched)
                seen = call if name == "patched" else seen
                if turn == 0:
                    continue  # brings weights and threads in
                times[name].append(spent)
                if attention is not None:
                    shares[name].append(attention / spent)
        kernels = "+".join(sorted({r.kernel for r in log.receipts})) or "left to PyTorch"
    whole = stats.paired(times["patched"], times["sdpa"])
    micro = alone(seen, seconds)
    agree = "same" if len(set(found.values())) == 1 else "DIFFERENT"
    print(
        f"| {length} | {1e3 * middle(times['eager']):.1f} | {1e3 * middle(times['sdpa']):.1f} | {1e3 * middle(times['patched']):.1f}"
        f" | {whole.median:.2f} ({whole.low:.2f} to {whole.high:.2f}) | {100 * middle(shares['sdpa']):.0f} %"
        f" | {100 * middle(shares['patched']):.0f} % | {micro.median:.2f} ({micro.low:.2f} to {micro.high:.2f}) | {kernels} | {agree} |",
        flush=True,
    )


def main():
    shield.without_broken_amx()
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lengths", default="128,256,512,1024,2048,4096")
    options.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=1.0, help="for the attention call alone")
    options = options.parse_args()
    model = build(getattr(torch, options.dtype))
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {options.dtype}, {torch.get_num_threads()} threads")
    print("| prompt | eager ms | sdpa ms | patched ms | sdpa / patched | attention of sdpa | of patched | attention alone | kernel | token |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---|---|")
    for length in options.lengths.split(","):
        measure(model, int(length), options.rounds, options.seconds)


if __name__ == "__main__":
    main()
