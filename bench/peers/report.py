# SPDX-License-Identifier: Apache-2.0
"""The table for people and the lines for programs. Files are written whole or not at all."""
import json
import os
import pathlib
import platform

FIELDS = (
    "kind", "row", "op", "phase", "dtype", "threads", "peer", "variant", "verdict", "ours_ns", "peer_ns", "ratio",
    "ratio_lo", "ratio_hi", "pairs", "control_lo", "control_hi", "kernel", "error_ours", "error_peer", "cpu_ours",
    "cpu_peer", "why", "host", "machine", "date",
)  # fmt: skip
TIMED = ("ahead", "even", "behind")


def host():
    """CPU model and system, from /proc where it exists; no host name."""
    model = platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")]
        model = names[0] if names else model
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()}"


def line(**values):
    """One measured pair, every field there; None where there is nothing to say."""
    unknown = set(values) - set(FIELDS)
    if unknown:
        raise ValueError(f"fields {sorted(unknown)}: not among those of a line")
    return {field: values.get(field) for field in FIELDS} | {"kind": "peer"}


def milliseconds(ns):
    return "-" if ns is None else f"{ns / 1e6:.3f}" if ns < 1e8 else f"{ns / 1e6:.1f}"


def result(entry):
    """The cells of time and ratio."""
    if entry["verdict"] in TIMED + ("untrusted",):
        ratio = f"{entry['ratio']:.2f} ({entry['ratio_lo']:.2f} to {entry['ratio_hi']:.2f})"
        return [milliseconds(entry["ours_ns"]), milliseconds(entry["peer_ns"]), ratio]
    return [milliseconds(entry["ours_ns"]), "-", "-"]


def last(entry):
    if entry["verdict"] == "wrong":
        return f"wrong: max err {entry['error_peer']:.1e}"
    if entry["verdict"] == "not run":
        return f"not run here: {entry['why']}"
    return entry["verdict"]


def table(entries):
    """Markdown, one block a phase; rows as they came."""
    text = []
    for phase in dict.fromkeys(entry["phase"] for entry in entries):
        text += [f"## {phase}", ""]
        text += ["| problem | threads | peer, its fastest path | ours, ms | peer, ms | peer / ours | |"]
        text += ["|---|---:|---|---:|---:|---:|---|"]
        for entry in entries:
            if entry["phase"] == phase:
                problem = entry["row"].removeprefix(phase + " ").removeprefix("b1 ")
                peer = entry["peer"] + (f": {entry['variant']}" if entry["variant"] else "")
                cells = [problem, str(entry["threads"]), peer] + result(entry) + [last(entry)]
                text.append("| " + " | ".join(cells) + " |")
        text.append("")
    return "\n".join(text)


def cell(entry):
    """A peer's ratio in the overview; bold where tileproof is behind."""
    if entry is None or entry["verdict"] == "not run":
        return "-"
    if entry["verdict"] == "wrong":
        return "wrong"
    ratio = f"{entry['ratio']:.2f}"
    marked = {"behind": f"**{ratio}**", "untrusted": f"({ratio}, untrusted)"}.get(entry["verdict"], ratio)
    return f"{marked} [{entry['ratio_lo']:.2f}, {entry['ratio_hi']:.2f}]"


def overview(entries):
    """A line a problem, a column a peer."""
    peers = list(dict.fromkeys(entry["peer"] for entry in entries))
    found = {key(entry): entry for entry in entries}
    text = ["| problem | threads | ours, ms | " + " | ".join(peers) + " |"]
    text += ["|---|---:|---:|" + "---:|" * len(peers)]
    for row, threads in dict.fromkeys((entry["row"], entry["threads"]) for entry in entries):
        cells = [found.get((row, threads, peer)) for peer in peers]
        ours = [entry["ours_ns"] for entry in cells if entry and entry["ours_ns"]]
        # of all pairs of the row, the median one
        time = milliseconds(sorted(ours)[len(ours) // 2]) if ours else "-"
        text.append("| " + " | ".join([row.replace(" b1 ", " "), str(threads), time] + [cell(x) for x in cells]) + " |")
    return "\n".join(text + [""])


def summary(entries):
    """The counts, losses like wins."""
    count = {word: sum(entry["verdict"] == word for entry in entries) for word in TIMED}
    timed = sum(count.values())
    text = f"ahead in {count['ahead']} of {timed}, behind in {count['behind']}, even in {count['even']}"
    for word, words in (("untrusted", "control failed"), ("wrong", "wrong"), ("not run", "not run here")):
        number = sum(entry["verdict"] == word for entry in entries)
        if number:
            text += f"; {words}: {number}"
    return text


def header(version, kernels, peers, notes, when):
    text = [
        "# tileproof and its peers",
        "",
        f"Host: {host()}. Date: {when}. tileproof {version}, kernel {', '.join(sorted(kernels)) or 'none'}. "
        f"Peers: {', '.join(peers) or 'none'}.",
        "",
        "peer / ours: time of the peer over ours, above 1 where tileproof is faster; the median of paired calls,",
        "interleaved in one process, with a 99 % bootstrap interval.",
        "",
    ]
    return "\n".join(text + [f"- {note}" for note in notes] + [""])


def write(path, text):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text)
    scratch.replace(path)


def write_lines(path, entries):
    write(path, "".join(json.dumps(entry) + "\n" for entry in entries))


def read_lines(path):
    path = pathlib.Path(path)
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def key(entry):
    return entry["row"], entry["threads"], entry["peer"]


def merge(old, new, rows):
    """Old lines that were not measured again, and the new ones, in the order of the work list."""
    taken = {key(entry) for entry in new}
    order = {(row.text, row.threads): place for place, row in enumerate(rows)}
    kept = [entry for entry in old if key(entry) not in taken] + new
    return sorted(kept, key=lambda entry: order.get((entry["row"], entry["threads"]), len(order)))
