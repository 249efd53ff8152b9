# SPDX-License-Identifier: Apache-2.0
"""The work list: threads | op | problem."""
import dataclasses
import re

OPS = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class Row:
    threads: int
    op: str
    text: str


def read(text, canonical):
    """Rows of a file's text, one for each thread count; canonical() turns a problem into its text form."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3 or not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", parts[0]):
            raise ValueError(f"row {number} is '{line}': it must be THREADS | OP | PROBLEM")
        if parts[1] not in OPS:
            raise ValueError(f"row {number} has op '{parts[1]}': it must be one of {', '.join(OPS)}")
        text = canonical(("backward " if parts[1] == "backward" else "") + parts[2])
        rows += [Row(int(count), parts[1], text) for count in parts[0].split(",")]
    return rows


def choose(rows, match, threads):
    """Rows whose text, with its threads in front, has the pattern, and which the host has threads for."""
    kept = [row for row in rows if re.search(match, f"threads={row.threads} {row.op} {row.text}")]
    return [row for row in kept if row.threads <= threads]
