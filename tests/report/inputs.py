# SPDX-License-Identifier: Apache-2.0
"""Files of each kind that `tileproof report` reads, with hostile texts where files have texts: inputs.py FOLDER [CELLS]."""
import json
import pathlib
import sys

# Markup, the end of a script, quotes of every kind, what JavaScript once took for the end of a line, and a direction of text.
HOSTILE = "</script><img src=x onerror=alert(1)>\"'`&amp;{{data}}\u2028\u202e<!--"
ORIGIN = {"host": "Some CPU", "date": "2026-11-15T10:00:00Z", "version": "0.2.0", "seed": 7}
REFUSAL = "avx512: head_dim 640, need <= 576; math: a fallback, need policy permit"


def cell(model, layers, phase, status="QUALIFIED", **more):
    problem = more.pop("problem", f"{phase} b1 h4/2 q{1 if phase == 'decode' else 253} k253 d64 f32 causal")
    served = status != "UNSUPPORTED"
    return {
        "model": model, "config": "ab" * 32, "part": "text", "layers": layers, "phase": phase, "purpose": "main", "problem": problem,
        "status": status, "kernel": "avx512" if served else None, "reason": None if served else REFUSAL, "error": 3e-7 if served else None,
        "allowed": 1e-6 if served else None, "time_ns": 2e6 if served else None, "gain_over_math": 3.5 if served else None, "bytes": 4096,
        "scratch": 65536, "panels_full": 5, "panels_partial": 2, "panels_skipped": 1, "numerics_id": "fma-x", "output": "cd" * 32,
        "isa": "avx2,avx512", "build": "ef" * 32, "engine": "tileproof", "mode": None, "device": "cpu", "versions": None,
        "temporary": 65536, **ORIGIN, **more,
    }  # fmt: skip


def lines(folder, name, rows):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def whole(folder, name, value):
    (folder / name).write_text(json.dumps(value, indent=1) + "\n")


def write_all(folder):
    cells = [cell("good.json", "0-3", phase) for phase in ("prefill", "decode")]
    cells += [cell("good.json", "0-3", "decode", purpose="pages", problem="decode b2 h4/2 q1 k1030 d64 f32 causal paged=16")]
    cells += [cell(HOSTILE, "0-3", "prefill", "NUMERIC_FAIL", reason=HOSTILE, error=2e-6), cell("wide.json", "0-1", "prefill", "UNSUPPORTED")]
    whole(folder, "qualify.json", cells)
    whole(folder, "good.json", cells[:3])
    whole(folder, "quantised.json", [dict(x, cache="i8/token", loss=0.0039 + n / 1e5, time_ns=1e6) for n, x in enumerate(cells[:3])])
    whole(folder, "torch.json", [dict(x, engine="torch", mode="eager", kernel="flash", time_ns=4e6) for x in cells[:3]])
    rates = [
        {"kind": "rate", "problem": f"prefill b1 h1/1 q{s} k{s} d{d} f32", "phase": "prefill", "kernel": k, "isa": "avx2", "threads": 1,
         "gflops": 50 + d / 8 + s / 512, "min_ns": s * d * 9, "med_ns": s * d * 10, "p99_ns": s * d * 12, "bytes_model": 1e6, "fma_peak_gflops": 100,
         "read_gbps_limit": 10, "roofline_pct": 50 + d / 8, "workspace_bytes": s * d, "aa": "SAME", "aa_low": 0.998, "aa_ratio": 1, "aa_high": 1.003,
         "disturbed": HOSTILE if s == 512 else None, "round_ns": [1, 2, 3], "repro": f"tileproof bench -k {k} 'q{s} d{d}'", **ORIGIN}
        for s in (512, 1024) for d in (64, 128) for k in ("avx2", "math")]  # fmt: skip
    lines(folder, "rates.jsonl", rates)
    whole(folder, "bench.json", {"machine": "x", "limits": [], "rows": rates, "trust": "host: trusted"})
    lines(folder, "use.jsonl", [
        {"kind": kind, "problem": f"prefill b1 h1/1 q{s} k{s} d64 f32", "phase": "prefill", "kernel": k, "sim_bytes": s * n, "compulsory_read": s,
         "compulsory_written": s, "cache_ll": 1 << 20, "peak_bytes": s * n, "scores_written": 0 if n == 10 else s * s, **ORIGIN}
        for kind in ("bytes", "memory") for s in (512, 1024) for n, k in ((10, "avx2"), (1000, "math"))])  # fmt: skip
    peer = {"kind": "peer", "row": "prefill b1 h1/1 q512 k512 d64 f32", "phase": "prefill", "dtype": "f32", "threads": 2, "peer": "it's 2.x <b>",
            "variant": HOSTILE, "kernel": "avx2", **ORIGIN}  # fmt: skip
    lines(folder, "peers.jsonl", [
        dict(peer, verdict=v, ours_ns=10, peer_ns=10 * r, ratio=r, ratio_lo=0.9 * r, ratio_hi=1.1 * r)
        for v, r in (("ahead", 1.4), ("behind", 0.7), ("even", 1.0))] + [dict(peer, verdict="not run", ratio=None, why=HOSTILE)])  # fmt: skip
    lines(folder, "goals.jsonl", [
        {"name": name, "figure": 3.25, "floor": 3, "aim": 4, "floor_met": met, "aim_met": "not met", "attempts": 1, "metric": "ratio", "detail": HOSTILE}
        for name, met in (("d128", "met"), ("d64", "not met"))])  # fmt: skip
    lines(folder, "cliffs.jsonl", [{"sweep": "length", "value": 513, "kernel": "avx2", "ps_per_flop_before": 10, "ps_per_flop": 14,
                                    "ps_per_flop_after": 10, "ratio": 1.4, "problem": "prefill b1 h1/1 q513 k513 d64 f32"}])  # fmt: skip
    lines(folder, "against.jsonl", [{"problem": "prefill b1 h1/1 q64 k64 d64 f32", "kernel": "avx2", "against": "avx512", "verdict": "SLOW", "ratio": 1.6,
                                     "low": 1.5, "high": 1.7, "aa": "SAME", "aa_low": 0.99, "aa_ratio": 1, "aa_high": 1.01, "rounds": 8}])  # fmt: skip
    whole(folder, "replay.json", {
        "format": "tileproof.replay/1", "modelled": False, "observed": False, "requests": 9, "fleet_mean_ns": 5e6, "threads": 2, "p99_owner": {},
        "rows": [{"model": HOSTILE if n else "good", "phase": "decode", "bucket": f"{n + 1}k", "kernel": "avx2", "fallback": False, "n": 120,
                  "p50_ns": 1e6, "p90_ns": 2e6, "p99_ns": 4e6 + n, "mean_ns": 1.2e6} for n in range(3)]})  # fmt: skip
    whole(folder, "trace.json", {
        "file": "calls.jsonl", "summarised_by": "0.2.0", "summarised": "2026-11-16T10:00:00Z", "bytes": 9, "calls": 20, "seconds": 1, "relative_error": 0.015, "wrong": [], "by_all": [],
        "by_class": [{"model": "m", "kernel": "avx2", "class": "decode h8/2 d64", "calls": 20, "seconds": 0.1, "share_of_time": 1, "p50_s": 1e-4,
                      "p90_s": 2e-4, "p99_s": 3e-4, "max_s": 3e-4, "fallbacks": 0, "refused": 0}]})  # fmt: skip
    whole(folder, "watch.json", {
        "schema": "tileproof.watch/1", "date": "2026-11-15T10:00:00Z", "identity": {"torch": "2.9", "cpu": "A watched CPU"}, "lock": None, "calls": 3, "not_observable": [],
        "rows": [{"engine": "torch", "kernel": "math", "fused": False, "mode": "eager", "model": HOSTILE, "path": "layers.0-3", "layers": [0, 1],
                  "problem": "prefill b1 h1/1 q8 k8 d8 f32", "calls": 3, "seconds": 0.01, "peak_temporary_bytes": None,
                  "drift": {"by": "kernel", "text": HOSTILE}, "reasons": [{"code": "x", "text": "a mask was given", "calls": 3}]}]})  # fmt: skip
    whole(folder, "capacity.json", {
        "format": "tileproof.capacity/1", "model": "good.json", "context": 8192, "concurrency": 4, "limit_bytes": 1 << 34, "limits": None, "groups": [],
        "kept": {"bytes": 1 << 30, "total_bytes": 1 << 31, "fits": True, "context_max": 65536, "concurrency_max": 32},
        "evicted": {"bytes": 1 << 29}, "prefill": None, "decode": {"tokens_per_second_max": 123.4, "bound": "reads"}})  # fmt: skip


def write_many(path, count):
    """So many cells: a hundred models, groups of ten, every phase."""
    phases = ("prefill", "decode", "varlen", "mixed", "multimodal")
    statuses = ("QUALIFIED",) * 17 + ("UNSUPPORTED", "QUALIFIED_FALLBACK", "STALE")
    cells = [cell(f"model-{i // 50:03}.json", f"{i // 5 % 10}-{i // 5 % 10 + 30}", phases[i % 5], statuses[i % 20],
                  problem=f"prefill b1 h{1 + i % 7}/1 q253 k{253 + i} d64 f32 causal") for i in range(count)]  # fmt: skip
    path.write_text(json.dumps(cells))


if __name__ == "__main__":
    write_all(pathlib.Path(sys.argv[1]))
    if len(sys.argv) > 2:
        write_many(pathlib.Path(sys.argv[1]) / "many.json", int(sys.argv[2]))
