#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often `tileproof canary --against` is wrong, on this host: scripts/canary_proof.py TOOL LIBRARY.so [RUNS]

Runs take turns: this tool against its own shared library, and the same with --drill slow:KERNEL=1.2, which makes each
call of the tool's kernel take 20 % longer by waiting (simulated). Each run is a process of its own and gives a verdict
for each of a small model's timed cells. A run is SLOW when one of its cells is and none FAST; SAME when all are. Exit 1
when a run against itself is SLOW or FAST, a slowed one FAST or SAME, or of the slowed runs whose A/A is SAME fewer than 7
in 10 are SLOW. TILEPROOF_CONFIG may name another config.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

MODEL = {"tileproof_model": 1, "groups": [{"layers": "0-3", "problem": "h4/2 d64 f32 causal", "max_positions": 256}]}
PHASES = "prefill,decode"


def canary(tool, lock, library, extra, seed):
    command = [tool, "canary", lock, "--against", library, "--budget", "6s", "--seed", str(seed), "-o", "jsonl", *extra]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1, 4):
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}{done.stdout}")
    return [row for row in map(json.loads, done.stdout.splitlines()) if row["check"] == "speed"]


def verdict(rows):
    words = {row["status"] for row in rows}
    if "FAST" in words:
        return "FAST"
    if "SLOW" in words:
        return "SLOW"
    return "SAME" if words == {"SAME"} else "AMBIGUOUS"


def main():
    tool, library = sys.argv[1], sys.argv[2]
    runs, begin = int(sys.argv[3]) if len(sys.argv) > 3 else 10, time.time()
    with tempfile.TemporaryDirectory() as folder:
        config = os.environ.get("TILEPROOF_CONFIG") or str(pathlib.Path(folder) / "model.json")
        if "TILEPROOF_CONFIG" not in os.environ:
            pathlib.Path(config).write_text(json.dumps(MODEL))
        lock = str(pathlib.Path(folder) / "t.lock")
        rows = subprocess.check_output([tool, "qualify", config, "--quick", "--phases", PHASES, "--lock", lock, "--update",
                                        "--reason", "canary_proof.py", "-o", "jsonl"], text=True)
        kernel = json.loads(rows.splitlines()[0])["kernel"]
        kinds = {"itself": [], f"slow:{kernel}=1.2": ["--drill", f"slow:{kernel}=1.2"]}
        results = {kind: [] for kind in kinds}
        for seed in range(1, runs + 1):
            for kind, extra in kinds.items():
                results[kind].append(canary(tool, lock, library, extra, seed))
                print(f"{seed} {kind}: " + "; ".join(f"{row['phase']} {row['status']} {row['detail']}"
                                                     for row in results[kind][-1]), flush=True)
    bad = False
    print(f"\n{runs} runs of each, {time.time() - begin:.0f} s, {time.strftime('%Y-%m-%d', time.gmtime())}, kernel {kernel}\n")
    print("| run | SAME | FAST | SLOW | AMBIGUOUS | A/A SAME in all cells |\n|---|---:|---:|---:|---:|---:|")
    for kind, all_rows in results.items():
        words = [verdict(rows) for rows in all_rows]
        trusted = [word for word, rows in zip(words, all_rows) if all("A/A SAME" in row["detail"] for row in rows)]
        print(f"| {kind} | {words.count('SAME')} | {words.count('FAST')} | {words.count('SLOW')} "
              f"| {words.count('AMBIGUOUS')} | {len(trusted)} |")
        if kind == "itself":
            bad |= "SLOW" in words or "FAST" in words or "SAME" not in words
        else:
            bad |= "FAST" in words or "SAME" in words or trusted.count("SLOW") * 10 < len(trusted) * 7 or not trusted
    print(f"\n{'NOT HELD' if bad else 'held'}: itself never SLOW or FAST and at times SAME; 20 % slower never SAME or FAST, "
          "and SLOW in at least 7 of 10 runs whose A/A is SAME")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
