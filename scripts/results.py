# SPDX-License-Identifier: Apache-2.0
"""Results of `bench --goals` and `make peers`, kept as files: one for each kind of host and day, bench/results/<cpu>-<date>.jsonl. A kind of host is
its CPU's name, its ISAs and its L1d. docs/results.md is made from them.

    python3 scripts/results.py add FILE ...   lines of `tileproof bench --goals -o jsonl` and of build/peers/peers.jsonl: into their host's file of
                                              their day; a line measured again replaces the one before. Makes the document, too
    python3 scripts/results.py make           the document, from the newest line of each goal and row of a kind of host
    python3 scripts/results.py check          exit 1 when the document is not what the files say"""
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "bench/results"
PAGE = ROOT / "docs/results.md"
KINDS = ("goal", "peer")
HEAD = """# Results on each kind of host

Made by `scripts/results.py` from the files in [bench/results](../bench/results); edit neither by hand. The head of
`bench/goals.txt` says what a goal measures, [performance.md](performance.md) how, and why goals are missed; [peers.md](peers.md)
how peers are compared. A figure is of that host and that day, and a figure of one kernel says nothing about a model.
"""


def cpu(line):
    """The kind of host in one word: CPU, ISAs and L1d, since virtual machines hide the CPU's full name. Peers' lines name the
    system behind the CPU."""
    isa, l1d = (re.search(rf"{word}=(\S+)", line["machine"]) for word in ("isa", "l1d"))
    words = [line["host"].split(",")[0], isa[1] if isa else "", f"l1d{int(l1d[1]) // 1024}k" if l1d else ""]
    return re.sub(r"[^a-z0-9_]+", "-", " ".join(words).lower()).strip("-")


def key(line):
    """What a line is about; a later line with this key replaces it."""
    if line["kind"] == "goal":
        return "goal", line["name"], line["kernel"]
    return "peer", line["row"], line["threads"], line["peer"].split()[0]


def read(path):
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        line = json.loads(text)
        if line.get("kind") not in KINDS:
            sys.exit(f"{path}:{number}: kind is {line.get('kind')!r}: it must be one of {', '.join(KINDS)}")
        lines.append(line)
    return lines


def add(paths):
    files = {}
    for path in paths:
        for line in read(pathlib.Path(path)):
            files.setdefault(FOLDER / f"{cpu(line)}-{line['date'][:10]}.jsonl", []).append(line)
    FOLDER.mkdir(exist_ok=True)
    for path, lines in files.items():
        kept = {key(line): line for line in (read(path) if path.exists() else []) + lines}
        path.write_text("".join(json.dumps(line) + "\n" for line in kept.values()))
        print(f"{path.relative_to(ROOT)}: {len(kept)} lines")


def hosts():
    """Of each kind of host its newest line of each goal and row; dates in file names sort."""
    found = {}
    for path in sorted(FOLDER.glob("*.jsonl"), key=lambda x: x.stem[-10:]):
        for line in read(path):
            found.setdefault(cpu(line), {})[key(line)] = line
    return {name: list(lines.values()) for name, lines in sorted(found.items())}


def dates(lines):
    days = sorted({line["date"][:10] for line in lines})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def wrapped(text):
    return textwrap.wrap(text, 130, break_long_words=False, break_on_hyphens=False)


def number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def goals(lines):
    count = {word: sum(x["floor_met"] == word for x in lines) for word in ("met", "not met", "not run here")}
    aims = [x["aim_met"] for x in lines if x["aim"] is not None]
    head = f"Goals, last run {dates(lines)}, tileproof {lines[-1]['version']}: " + ", ".join(f"{n} floors {w}" for w, n in count.items())
    head += f"; {aims.count('met')} of {len(aims)} aims met. In % or as the metric says; in brackets the 99 % interval of a share; of best: the"
    text = wrapped(head + " best call over the highest limit seen.")
    text += ["", "| goal | kernel | figure | of best | floor | aim | floor is |", "|---|---|---:|---:|---:|---:|---|"]
    for x in lines:
        interval = f" [{x['low']:.1f}, {x['high']:.1f}]" if x.get("low") and x.get("high") else ""
        digits = 1 if x.get("of_best") or x["metric"].startswith("pct") else 3
        figure = number(x["figure"], digits) + interval
        cells = [x["name"], x["kernel"] or "-", figure, number(x.get("of_best"), 1), number(x["floor"], 2), number(x["aim"], 2), x["floor_met"]]
        text.append("| " + " | ".join(cells) + " |")
    return text


def cell(entry):
    """A peer's ratio; bold where tileproof is behind."""
    if entry is None or entry["verdict"] in ("not run", "wrong"):
        return "wrong" if entry and entry["verdict"] == "wrong" else "-"
    ratio = f"{entry['ratio']:.2f}"
    ratio = {"behind": f"**{ratio}**", "untrusted": f"({ratio})"}.get(entry["verdict"], ratio)
    return f"{ratio} [{entry['ratio_lo']:.2f}, {entry['ratio_hi']:.2f}]"


def peers(lines):
    names = list(dict.fromkeys(x["peer"].split()[0] for x in lines))
    verdicts = [x["verdict"] for x in lines]
    text = wrapped(f"Beside other libraries, last run {dates(lines)}: " + ", ".join(dict.fromkeys(x["peer"] for x in lines)) + ".")
    text += wrapped(
        "Time of the peer over tileproof's, 99 % interval in brackets: above 1 tileproof is faster, bold where it is behind, in round brackets where the "
        f"control failed. Ahead in {verdicts.count('ahead')}, even in {verdicts.count('even')}, behind in {verdicts.count('behind')}."
    )
    text += ["", "| problem | threads | ours, ms | " + " | ".join(names) + " |", "|---|---:|---:|" + "---:|" * len(names)]
    found = {key(x): x for x in lines}
    for row, threads in dict.fromkeys((x["row"], x["threads"]) for x in lines):
        entries = [found.get(("peer", row, threads, name)) for name in names]
        ours = sorted(x["ours_ns"] for x in entries if x and x["ours_ns"])
        time = f"{ours[len(ours) // 2] / 1e6:.3f}" if ours else "-"
        text.append("| " + " | ".join([row.replace(" b1 ", " "), str(threads), time] + [cell(x) for x in entries]) + " |")
    return text


def page():
    text = [HEAD]
    for name, lines in hosts().items():
        text += [f"## {lines[-1]['host'].split(',')[0]}: {name}", "", f"`{lines[-1]['machine']}`", ""]
        for kind, table in (("goal", goals), ("peer", peers)):
            chosen = [line for line in lines if line["kind"] == kind]
            text += table(chosen) + [""] if chosen else [f"No {kind}s have been run on it.", ""]
    return "\n".join(text)


def main(words):
    if words[:1] == ["add"] and len(words) > 1:
        add(words[1:])
    elif words == ["check"]:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit(f"{PAGE.relative_to(ROOT)} is not what bench/results says: python3 scripts/results.py make")
        return
    elif words != ["make"]:
        sys.exit(__doc__)
    PAGE.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
