#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every link, path, file name, test name and function that a document names exists, and every C file that a comment of C names.
check_links.py [ROOT]"""
import fnmatch
import os
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
root = root if root.is_dir() else root.parent.parent
SKIPPED = {"build", "dist", "node_modules"}
HISTORY = {"CHANGELOG.md", "docs/upgrade.md"}  # name what is no more: only their links are checked
NAMES_TESTS = {"docs/numerics.md", "tests/README.md"}  # "threads: `name`" is a function of test_threads.c there
HEADERS = {"cmocka.h"}  # of other libraries
EXAMPLES = {"twelve.c", "script.py"}  # files of the reader, not of the tree
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|(/\*.*?\*/|//[^\n]*)', re.S)  # a text is skipped: "//" may stand there
FILE = r"[\w.*+-]+\.(?:c|h|inc|py|sh|cmake|toml|svg|md|yml)"
TOPS = "bench|cli|cmake|docs|examples|harness|include|models|ops|proof|python|scripts|src|tests"

files, folders = set(), set()
for folder, names, found in os.walk(root):
    if "CMakeCache.txt" in found or "pyvenv.cfg" in found:  # somebody's build or environment
        names[:] = []
        continue
    names[:] = [n for n in names if n not in SKIPPED and not n.startswith(".") and not n.endswith(".egg-info")]
    here = pathlib.Path(folder).relative_to(root).as_posix()
    folders.add(here)
    files.update(name if here == "." else f"{here}/{name}" for name in found)
bases = {path.rsplit("/", 1)[-1] for path in files}
source = {path: (root / path).read_text(errors="replace") for path in files if path.endswith((".c", ".h", ".inc", ".sh", ".py"))}
tests = {}  # ctest's short name -> text
for path, text in source.items():
    match = re.fullmatch(r"tests/\w+/test_(\w+)\.c", path)
    if match:
        tests[match[1]] = text
mutants = (root / "tests/mutants/mutants.toml").read_text()


def anchors(path):
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", (root / path).read_text(), flags=re.S)
    return {re.sub(r"[^\w\- ]", "", line.strip().lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.M)}


def exists(path, home):
    """A path from the root or from the document's folder; it may be a folder or hold a *."""
    path = path.rstrip("/.,")
    for full in (path, os.path.normpath(f"{home}/{path}").replace("\\", "/")):
        if full in files or full in folders or ("*" in full and (fnmatch.filter(files, full) or fnmatch.filter(folders, full))):
            return True
    return False


bad, seen = [], 0
for document in sorted(path for path in files if path.endswith(".md")):
    text = (root / document).read_text()
    home = os.path.dirname(document) or "."

    def wrong(at, what):
        bad.append(f"{document}:{text.count(chr(10), 0, at) + 1}: {what}")

    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = match[1].partition("#")
        if re.match(r"\w+:", target):
            continue
        seen += 1
        full = os.path.normpath(f"{home}/{target}") if target else document
        if full not in files and full not in folders:
            wrong(match.start(), f"link to {match[1]}: there is no {full}")
        elif anchor and full.endswith(".md") and anchor not in anchors(full):
            wrong(match.start(), f"link to {match[1]}: {full} has no heading #{anchor}")
    if document in HISTORY:
        continue
    for match in re.finditer(rf"(?<![\w./<>{{$*-])(?:\.\./)?(?:{TOPS})/[\w./*+-]*[\w*/](?![\w<{{])", text):
        seen += 1
        if "NAME" not in match[0] and not exists(match[0], home):
            wrong(match.start(), f"path {match[0]}: there is none")
    for match in re.finditer(rf"(?<![\w./<>*-])({FILE})(?![\w<(])", text):
        seen += 1
        if match[1] not in EXAMPLES and not fnmatch.filter(bases, match[1]):
            wrong(match.start(), f"file {match[1]}: no file of the tree has this name")
    # `name` in `file`, and `name` and `other` in `file`
    for match in re.finditer(r"((?:`\w+`(?:, | and )?)+) in `([\w/]+\.(?:c|h|inc))`", text):
        places = [path for path in source if path == match[2] or path.endswith("/" + match[2])]
        for name in re.findall(r"`(\w+)`", match[1]):
            seen += 1
            if not any(name in source[path] for path in places):
                wrong(match.start(), f"{name} is not in {match[2]}")
    for match in re.finditer(r"(?<![\w/`-])(\w+): ((?:`\w+`(?:, )?)+)", text if document in NAMES_TESTS else ""):
        for name in re.findall(r"`(\w+)`", match[2]) if match[1] in tests else []:
            seen += 1
            if name not in tests[match[1]]:
                wrong(match.start(), f"test {match[1]} has no {name}")
    # the last column of what was found names mutants
    for match in re.finditer(r"^\|[^|]*\|[^|]*\|([^|]*)\|$", text if document == "tests/README.md" else "", re.M):
        for name in re.findall(r"(?<![\w-])[a-z]+(?:-[a-z0-9]+)+(?![\w-])", match[1]):
            seen += 1
            if f'name = "{name}"' not in mutants:
                wrong(match.start(), f"mutant {name}: mutants.toml has none of this name")
for path in sorted(path for path in files if path.endswith((".c", ".h", ".inc", ".cl"))):
    text = (root / path).read_text(errors="replace")
    for comment in COMMENT.finditer(text):
        for match in re.finditer(r"(?<![\w./<>*-])(?:[\w-]+/)*[\w*-]+\.(?:c|h|inc|cl)(?![\w<(])", comment[1] or ""):
            seen += 1
            if match[0] not in HEADERS and not fnmatch.filter(files, match[0]) and not fnmatch.filter(files, f"*/{match[0]}"):
                line = text.count("\n", 0, comment.start(1) + match.start()) + 1
                bad.append(f"{path}:{line}: file {match[0]}: there is none")
print("\n".join(bad) if bad else f"{seen} links, paths and names of documents and comments exist")
sys.exit(bool(bad) or not seen)
