# SPDX-License-Identifier: Apache-2.0
"""Rows of `tileproof qualify --engine` as the tables of docs/engines.md."""
import datetime
import platform
import sys
import textwrap

BEGIN, END = "<!-- made by make engines -->", "<!-- end of what make engines made -->"
MARKS = {"QUALIFIED": "right", "QUALIFIED_FALLBACK": "right, unfused", "NUMERIC_FAIL": "**WRONG**", "UNSUPPORTED": "refused",
         "MISTRUSTED": "not sure", "NOT_RUN": "not run"}  # fmt: skip
ORDER = ("right", "right, unfused", "not run", "not sure", "refused", "**BROKE**", "**WRONG**")
SHORT = {"GroupQueryAttention": "GQA", "_C::cpu_attention_with_kv_cache": "cpu_attention"}  # names that make the tables wide
PROPERTIES = ("contained", "deterministic", "empty_rows")


def wrapped(text):
    """A paragraph or the item of a list."""
    return textwrap.wrap(text, 130, subsequent_indent="  " * text.startswith("- "), break_long_words=False, break_on_hyphens=False)


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}"
        count /= 1024


def milliseconds(time_ns):
    """Three digits, never with an exponent."""
    value = time_ns * 1e-6
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def times(ratio):
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def short(kernel):
    """Of many parts the first stands for all."""
    return SHORT.get(kernel, kernel if len(kernel) <= 40 else kernel.split("+")[0] + "+..")


def legend(found):
    """What is short in the tables, and what for."""
    names = {}
    for kernel in dict.fromkeys(row["kernel"] for rows, _ in found.values() for row in rows if row["kernel"]):
        if short(kernel) != kernel:
            names.setdefault(short(kernel), []).append(f"`{kernel}`")
    return [f"- `{name}` is {' or '.join(of)}" for name, of in names.items()]


def mark(row):
    """A runner that died, hung or broke the protocol gave no result that could be wrong."""
    broke = row["status"] == "NUMERIC_FAIL" and "the runner " in (row["reason"] or "")
    return "**BROKE**" if broke else MARKS[row["status"]]


def marks(rows):
    """One for all, or how many of each."""
    found = [mark(row) for row in rows]
    kinds = sorted(set(found), key=ORDER.index)
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{x} {found.count(x)}" for x in kinds)


def time_of(rows):
    return next((row["time_ns"] for row in rows if row["time_ns"]), None)


def place(rows, ours):
    """One place of the table: kernel, right or not, memory, time and how many times ours that is."""
    if not rows:
        return "not run"
    served = [row for row in rows if row["status"] != "UNSUPPORTED"]
    kernels = "+".join(dict.fromkeys(short(row["kernel"] or row["observed"] or "") for row in served))
    memory, time_ns = max((row["temporary"] or 0 for row in rows), default=0), time_of(rows)
    parts = [x for x in (kernels, marks(rows)) if x]
    parts += [size(memory)] if memory else []
    if time_ns:
        parts.append(milliseconds(time_ns) + (f" (x{times(time_ns / ours)})" if ours and rows[0]["engine"] != "tileproof" else ""))
    return ", ".join(parts)


def group_of(row):
    return row["model"].removesuffix(".json"), row["part"], row["layers"], row["phase"]


def layers(text):
    """0-4,6-10,12-16,...: the first two will do."""
    ranges = text.split(",")
    return text if len(ranges) < 3 else ",".join(ranges[:2]) + ",.."


def gathered(found):
    """{(phase, problems): groups that have these very problems}, in the order of the models. Problems are run once, so the rows
    of such groups are equal."""
    problems, same = {}, {}
    fullest = max((rows for rows, _ in found.values()), key=len, default=[])
    for row in fullest:
        problems.setdefault(group_of(row), []).append(row["problem"])
    for group, texts in problems.items():
        same.setdefault((group[3], tuple(texts)), []).append(group)
    return same


def tables(found, names):
    same, lines = gathered(found), []
    rows_of = {name: {} for name in names}
    for name in names:
        for row in found[name][0]:
            rows_of[name].setdefault(group_of(row), []).append(row)
    for phase in dict.fromkeys(phase for phase, _ in same):
        lines += [f"### {phase}", "", "| models: layers | main call | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
        for (of, problems), groups in same.items():
            if of != phase:
                continue
            title = "; ".join(f"{model}: {part} {layers(which)}" for model, part, which, _ in groups)
            found_of = {name: next((rows_of[name][x] for x in groups if x in rows_of[name]), []) for name in names}
            ours = time_of(found_of.get("tileproof", []))
            places = [place(found_of[name], ours) for name in names]
            lines.append(f"| {title} | {problems[0].removeprefix(phase + ' ')} | " + " | ".join(places) + " |")
        lines.append("")
    return lines


def some(names, limit=4):
    names = list(dict.fromkeys(names))
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def notes(found, names):
    """What is wrong, refused, not fused or doubted, each reason once."""
    lines = []
    for name in names:
        reasons = {}
        for row in found[name][0]:
            status = row["reason"] if row["status"] not in ("QUALIFIED", "QUALIFIED_FALLBACK") else None
            says = "why not fused" if row["status"] == "QUALIFIED_FALLBACK" and not row["doubt"] else "says"
            for kind, text in ((mark(row), status), (says, None if status else row["engine_reasons"]), ("doubt", row["doubt"])):
                if text:
                    reasons.setdefault(f"{kind}: {text[:300]}", []).append(f"{group_of(row)[0]} {row['phase']}")
        for what, where in reasons.items():
            lines += wrapped(f"- {name}: {what} ({some(where)})")
    return lines


def properties(found, names):
    """Of different problems."""
    lines = ["| engine | problems | " + " | ".join(x.replace("_", " ") for x in PROPERTIES) + " |", "|---" * (len(PROPERTIES) + 2) + "|"]
    for name in names:
        rows = list({row["problem"]: row for row in found[name][0]}.values())
        counts = [[f"{value} {n}" for value in ("kept", "leaks", "varies") if (n := sum(row[x] == value for row in rows))] for x in PROPERTIES]
        if any(counts):
            lines.append(f"| {name} | {len(rows)} | " + " | ".join(", ".join(x) for x in counts) + " |")
    return lines


def host(threads):
    cpu = platform.processor() or platform.machine()
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            cpu = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), cpu)
    return f"{cpu}, {threads} thread{'s' if threads > 1 else ''}, {datetime.date.today().isoformat()}"


def page(found, threads):
    names = [name for name in found if found[name][0]]
    versions = [f"{x}: {(found[x][0][0]['versions'] or '').replace(chr(10), ', ') or 'ISAs ' + found[x][0][0]['isa']}" for x in names]
    lines = [*wrapped(f"Host: {host(threads)}. " + "; ".join(versions) + "."), ""]
    lines += [*legend(found), ""]
    lines += tables(found, names)
    lines += ["### Properties", "", *properties(found, names), "", "### Wrong, refused, not fused, in doubt", "", *notes(found, names)]
    for name, (rows, why) in found.items():
        lines += [] if rows else wrapped(f"- {name}: not run here: {why}")
    return "\n".join(lines) + "\n"


def document(text, made):
    """A page with what stands between its marks replaced."""
    if BEGIN not in text or END not in text:
        sys.exit(f"engines: the document has no {BEGIN} and {END}")
    return text[: text.index(BEGIN)] + BEGIN + "\n\n" + made + "\n" + text[text.index(END) :]
