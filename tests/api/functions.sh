#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds what receipts say against what a profiler saw: runs functions_calls under callgrind and compares, case by case,
# the symbols of kernel functions of the profile, and how often each was called, with the receipts'. Every kernel function
# but the probes is in some case.     functions.sh FUNCTIONS_CALLS
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# valgrind 3.19 knows no AVX-512 and hides it from the program
valgrind -q --tool=callgrind --callgrind-out-file="$work/out" --dump-after=case_ends "$1" >"$work/said" ||
    { cat "$work/said"; exit 1; }
python3 - "$work" <<'PYTHON'
import collections, pathlib, re, sys
work, cases, functions = pathlib.Path(sys.argv[1]), [], set()  # every function that the library names
for line in (work / "said").read_text().splitlines():
    word, *rest = line.split()
    if word == "function":
        functions.add(rest[0])
    elif word == "case":
        cases.append((line[5:], collections.Counter()))
    elif line.startswith("not run here"):
        print(line)
    elif word in functions:
        cases[-1][1][word] += int(rest[0])
    else:
        sys.exit(f"a receipt names {word}, which the library does not")

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
            if names[callee] in functions:
                calls[names[callee]] += int(match.group(1))
    return calls

failed = 0
for number, (name, said) in enumerate(cases, 1):
    found = seen(work / f"out.{number}")
    if not said or said != found:
        print(f"receipt and profile differ: {name}\n  receipt {dict(said)}\n  profile {dict(found)}")
        failed += 1
# probes belong to no run; every other function was called in some case, of whichever set
def without_isa(names):
    return {re.match("tp_.*_(f32|f16|bf16|e4m3|i8|i4|q8_0)(?=_)", name).group() for name in names}

never = sorted(name for name in without_isa(functions) - without_isa(name for _, said in cases for name in said)
               if not re.match("tp_(peak|read|exp2|tanh)_", name))
if never:
    print(f"in no case: {', '.join(never)}")
print(f"{len(cases) - failed} passed, {failed} failed")
sys.exit(failed > 0 or not cases or bool(never))
PYTHON
