#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the ABI of the libraries with the one stored in tests/abi, by abidiff (Debian: abigail-tools).

    abi.py BUILD_DIR            what section 0 of tileproof.h allows passes (Growth); anything else fails
    abi.py BUILD_DIR --renew    stores the ABI of this build: `make abi`, on purpose, and never to remove anything

Stored are functions, structs and enums as abidw writes them (NAME.abi), and every number that the header gives a name
(NAME.numbers), because most enums are in no function's type. Exit 0: compatible, 1: not, 77: not run here.
"""
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
STORED = ROOT / "tests/abi"
HEADERS = {  # of each library
    "tileproof": ["tileproof.h", "tileproof_backend.h", "tileproof_cache.h", "tileproof_rope.h"],
    "tileproof_proof": ["tileproof_proof.h", "tileproof_rope.h"],
    "tileproof_opencl": ["tileproof_opencl.h"],
}


def layout(library, headers, out):
    """Writes the library's ABI, without anything that says where it was built."""
    subprocess.run(["abidw", "--headers-dir", headers, "--drop-private-types", "--drop-undefined-syms", "--no-show-locs",
                    "--no-comp-dir-path", "--no-corpus-path", "--no-elf-needed", "--no-parameter-names", "--out-file", out, library],
                   check=True)
    text = pathlib.Path(out).read_text()
    pathlib.Path(out).write_text(re.sub(r" path='[^']*?([^'/]*)'", r" path='\1'", text))


def numbers(headers):
    """NAME value of each enumerator and each macro that is a number, but for the version."""
    text = "".join(re.sub(r"/\*.*?\*/", "", (ROOT / "include" / header).read_text(), flags=re.S) for header in headers)
    found = re.findall(r"^#define (TP_\w+) (\d+u?)\s*$", text, re.M)
    for body in re.findall(r"\benum tp_\w+ \{(.*?)\}", text, re.S):
        members = [member.strip() for member in body.split(",") if member.strip()]
        for member in members:
            name, equals, value = member.partition(" = ")
            if not equals:
                sys.exit(f"{' '.join(headers)}: {name} has no number of its own: write it out, since it is fixed for ever")
            found.append((name, value))
    return sorted(f"{name} {value}" for name, value in found if not name.startswith("TP_VERSION"))


def fields_of(abi):
    """{struct: ["name: type at bit offset"]}, of every struct with a name."""
    tree = xml.parse(abi)
    types = {element.get("id"): element for element in tree.iter() if element.get("id")}

    def name(type_id):
        element = types[type_id]
        if element.tag == "pointer-type-def":
            return name(element.get("type-id")) + " *"
        if element.tag == "qualified-type-def":
            return "const " + name(element.get("type-id"))
        if element.tag == "array-type-def":
            lengths = "".join(f"[{part.get('length')}]" for part in element.findall("subrange"))
            return name(element.get("type-id")) + lengths
        if element.tag == "function-type":
            takes = ", ".join(name(part.get("type-id")) for part in element.findall("parameter"))
            return f"{name(element.find('return').get('type-id'))} ({takes})"
        if element.tag == "typedef-decl" and types[element.get("type-id")].tag == "pointer-type-def":
            return f"{element.get('name')} = {name(element.get('type-id'))}"
        if element.get("is-anonymous") == "yes":
            return "{" + "; ".join(fields(element)) + "}"
        return element.get("name")

    def fields(struct):
        found = [(member.get("layout-offset-in-bits"), member.find("var-decl")) for member in struct.findall("data-member")]
        return [f"{field.get('name')}: {name(field.get('type-id'))} at bit {offset}" for offset, field in found]

    return {struct.get("name"): fields(struct) for struct in tree.iter("class-decl") if struct.get("is-anonymous") != "yes"}


def compare(old, new, old_numbers, new_numbers):
    """What a program that was built for the old ABI would notice: lines, none where it is compatible."""
    found = [f"number: {line} is gone or has changed" for line in old_numbers if line not in set(new_numbers)]
    # abidiff says nothing else of a struct that may grow and has; nor of fields that change places, which it takes for new names
    after = fields_of(new)
    for struct, fields in fields_of(old).items():
        now = after.get(struct, [])
        found += [f"{struct}.{field} is now {now[i] if i < len(now) else 'gone'}" for i, field in enumerate(fields)
                  if now[i:i + 1] != [field]]
    result = subprocess.run(["abidiff", "--no-added-syms", "--suppressions", STORED / "growth.suppr", old, new],
                            capture_output=True, text=True)
    return found + ([result.stdout + result.stderr] if result.returncode != 0 else [])


def available():
    if platform.machine() != "x86_64":
        return "the stored ABI is that of x86-64"
    return None if shutil.which("abidiff") else "abidiff is not installed (Debian: abigail-tools)"


def main():
    build, renew = pathlib.Path(sys.argv[1]), sys.argv[2:] == ["--renew"]
    if (why := available()) is not None:
        print(f"not run here: {why}")
        return 77
    bad = []
    for name, headers in HEADERS.items():
        if not (build / f"lib{name}.so").exists():
            print(f"not compared: lib{name}.so is not built")
            continue
        stored = STORED / f"{name}.abi"
        with tempfile.TemporaryDirectory() as folder:
            new = pathlib.Path(folder) / "new.abi"
            layout(build / f"lib{name}.so", ROOT / "include", new)
            if renew:
                shutil.copyfile(new, stored)
                stored.with_suffix(".numbers").write_text("".join(f"{line}\n" for line in numbers(headers)))
                print(f"stored tests/abi/{name}.abi and .numbers")
            else:
                bad += compare(stored, new, stored.with_suffix(".numbers").read_text().splitlines(), numbers(headers))
    if bad:
        print("\n".join(bad))
        print("The ABI has changed in a way that breaks programs. Section 0 of tileproof.h says what may change (Growth).")
    elif not renew:
        print("programs that were built for the stored ABI run with this one")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
