#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often `tileproof bench --against` is wrong, on this host: scripts/stats_proof.py [--busy] TOOL [TRIALS]

Trials take turns: A/A (a problem against itself) and planted (the same problem with 11 sequences against 10,
which is 10 % more of the same work). Each is a process of its own. Wrong is an A/A trial called FAST or SLOW, or a
planted one called FAST or SAME. Exit 1 when more than 1 % are wrong or when, of the planted trials whose own A/A
control was SAME, fewer than 90 % are found SLOW. --busy keeps every CPU busy with another process meanwhile.
"""
import json
import os
import platform
import statistics
import subprocess
import sys
import time

WORDS = ("FAST", "SAME", "SLOW", "AMBIGUOUS")
KINDS = {"A/A": ("b10", "b10", ("FAST", "SLOW")), "planted +10 %": ("b11", "b10", ("FAST", "SAME"))}
REST = "h1/1 q64 k64 d64 f32"


def trial(tool, row, first, seed):
    """A problem against itself is one set of tensors; --against best says just that."""
    other = "best" if row == first else f"{first} {REST}"
    command = [tool, "bench", f"{row} {REST}", "--against", other, "--seed", str(seed), "--seconds", "3", "-o", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1, 4):
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def middle(rows, field):
    values = [row[field] for row in rows if row[field] is not None]
    return statistics.median(values) if values else float("nan")


def run_trials(tool, trials, busy):
    results = {kind: [] for kind in KINDS}
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() * busy)]
    try:
        for seed in range(1, trials + 1):
            for kind, (row, first, _) in KINDS.items():
                results[kind].append(trial(tool, row, first, seed))
            if sys.stderr.isatty():
                print(f"\r{seed} of {trials}", end="", file=sys.stderr)
    finally:
        for other in others:
            other.kill()
    return results


def main():
    busy = "--busy" in sys.argv
    words = [word for word in sys.argv[1:] if word != "--busy"]
    tool, trials, begin = words[0], int(words[1]) if len(words) > 1 else 300, time.time()
    results = run_trials(tool, trials, busy)
    machine = json.loads(subprocess.check_output([tool, "info", "--json"]))
    name = machine["machine"]["name"]
    version = results["A/A"][0]["version"]
    print(f"host: {name}, {platform.system()} {platform.machine()}; tileproof {version}; "
          f"{time.strftime('%Y-%m-%d', time.gmtime())}; seeds 1..{trials}; {time.time() - begin:.0f} s"
          f"{'; every CPU busy' if busy else ''}")
    print(f"problem: {KINDS['A/A'][0]} {REST}, kernel {results['A/A'][0]['kernel']}, "
          f"{middle(results['A/A'], 'wall_ns') / 1e3:.0f} us a call\n")
    print("| trials | n | FAST | SAME | SLOW | AMBIGUOUS | of these A/A not SAME | wrong | median ratio | median rounds "
          "| steal, mean | disturbed |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    bad = False
    for kind, (_, _, wrong_words) in KINDS.items():
        rows = results[kind]
        count = {word: sum(row["verdict"] == word for row in rows) for word in WORDS}
        untrusted = sum(row["aa"] != "SAME" for row in rows)
        wrong = sum(count[word] for word in wrong_words)
        bad |= wrong * 100 > trials
        steal = sum(row["steal"] or 0 for row in rows) / len(rows)
        print(f"| {kind} | {trials} | {count['FAST']} | {count['SAME']} | {count['SLOW']} | {count['AMBIGUOUS']} "
              f"| {untrusted} | {wrong} ({100 * wrong / trials:.1f} %) | {middle(rows, 'ratio'):.3f} "
              f"| {middle(rows, 'rounds'):.0f} | {100 * steal:.1f} % | {sum(bool(row['disturbed']) for row in rows)} |")
    planted = results["planted +10 %"]
    trusted = [row for row in planted if row["aa"] == "SAME"]
    found = sum(row["verdict"] == "SLOW" for row in planted)
    bad |= found * 10 < len(trusted) * 9 or not trusted
    share = 100 * found / len(trusted) if trusted else float("nan")
    print(f"\nfound: {found} of {len(trusted)} planted with A/A SAME ({share:.1f} %), of {trials} in all "
          f"({100 * found / trials:.1f} %)")
    print(f"{'NOT HELD' if bad else 'held'}: at most 1 % wrong, at least 90 % of the planted found where A/A is SAME")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
