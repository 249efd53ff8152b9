#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds what receipts say against what a profiler saw: runs functions_calls under callgrind and compares, case by case,
# the symbols of kernel functions of the profile, and how often each was called, with the receipts'.     functions.sh FUNCTIONS_CALLS
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# valgrind 3.19 knows no AVX-512 and hides it from the program
valgrind -q --tool=callgrind --callgrind-out-file="$work/out" --dump-after=case_ends "$1" >"$work/said" ||
    { cat "$work/said"; exit 1; }
python3 - "$work" <<'PYTHON'
import collections, pathlib, re, sys
LEAF = r"tp_(load_q|pack_k|pack_v|dots|mix|store_o|attend|fold|math|delta|store_d\w|backward)_\w+"

def seen(path):
    """callgrind names a function once, (id) name, and later by (id); calls=N follows the callee's line."""
    names, calls, callee = {}, collections.Counter(), None
    for line in open(path):
        if match := re.match(r"c?fn=\((\d+)\)(?: (\S+))?", line):
            if match.group(2):
                names[match.group(1)] = match.group(2).split("'")[0]
            if line.startswith("cfn="):
                callee = match.group(1)
        elif match := re.match(r"calls=(\d+)", line):
            if re.fullmatch(LEAF, names[callee]):
                calls[names[callee]] += int(match.group(1))
    return calls

work, cases = pathlib.Path(sys.argv[1]), []
for line in (work / "said").read_text().splitlines():
    if line.startswith("case "):
        cases.append((line[5:], collections.Counter()))
    elif line.startswith("not run here"):
        print(line)
    elif re.fullmatch(LEAF, line.split()[0]):
        cases[-1][1][line.split()[0]] += int(line.split()[1])
failed = 0
for number, (name, said) in enumerate(cases, 1):
    found = seen(work / f"out.{number}")
    if not said or said != found:
        print(f"receipt and profile differ: {name}\n  receipt {dict(said)}\n  profile {dict(found)}")
        failed += 1
print(f"{len(cases) - failed} passed, {failed} failed")
sys.exit(failed > 0 or not cases)
PYTHON
