#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ABI of this build against the stored one, and scripts/abi.py itself: it accepts what may grow and sees what may not.

    run.py BUILD_DIR GROWN_LIBRARY GROWN_HEADERS
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import abi

build, grown, grown_headers = map(pathlib.Path, sys.argv[1:])
code = subprocess.run([sys.executable, ROOT / "scripts/abi.py", build]).returncode
if code != 0:
    sys.exit(code)


def once(text, old, new):
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return text.replace(old, new)


def swap(text, struct, a, b):
    """Two fields of one struct change their names, which is their places."""
    begin = text.index(f"<class-decl name='{struct}' size")
    end = text.index("</class-decl>", begin)
    body = once(text[begin:end], f"name='{a}'", "name='@'")
    body = once(once(body, f"name='{b}'", f"name='{a}'"), "name='@'", f"name='{b}'")
    return text[:begin] + body + text[end:]


def shorten(text):
    """An int64_t becomes an int32_t."""
    int32 = re.search(r"name='int32_t' type-id='[^']*' id='([^']*)'", text)[1]
    return re.sub(r"(name='head_dim_qk' type-id=')[^']*", lambda match: match[1] + int32, text)


CHANGES = {  # each made to the ABI of the grown library, as the next version's
    "a function is gone": lambda text: re.sub(r".*<elf-symbol name='tp_merge'.*\n", "", text),
    "two fields change places": lambda text: swap(text, "tp_choice", "kernel", "disable"),
    "a field changes its type": shorten,
    "a struct that stays for ever has grown": lambda text: once(text, "name='tp_row' size-in-bits='192'",
                                                                "name='tp_row' size-in-bits='256'"),
    "a number has changed": lambda text: re.sub(r"(name='TP_BUSY' value=')7", r"\g<1>70", text),
    "another SONAME": lambda text: once(text, "soname='libtileproof.so.0'", "soname='libtileproof.so.1'"),
}
stored = abi.STORED / "tileproof.abi"
numbers = stored.with_suffix(".numbers").read_text().splitlines()
with tempfile.TemporaryDirectory() as folder:
    later, changed = pathlib.Path(folder) / "later.abi", pathlib.Path(folder) / "changed.abi"
    abi.layout(grown, grown_headers, later)
    text = re.sub(r"soname='[^']*'", "soname='libtileproof.so.0'", later.read_text())
    later.write_text(text)
    found = abi.compare(stored, later, numbers, numbers + ["TP_NEW 1"])
    assert not found, f"every struct has a field more, and a number was added: {found}"
    for what, change in CHANGES.items():
        changed.write_text(change(text))
        assert changed.read_text() != text and abi.compare(stored, changed, numbers, numbers), f"not noticed: {what}"
    assert abi.compare(stored, later, numbers, numbers[1:]), "not noticed: a number is gone"
print(f"structs may grow; {len(CHANGES) + 1} other changes are noticed")
