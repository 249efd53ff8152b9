# SPDX-License-Identifier: Apache-2.0
"""--help fits a terminal of 80 columns. Each command and option of it is in its man page, and is what bash, zsh and fish
offer; pages are clean by groff and mandoc.
    manual.py PATH/TO/tileproof FOLDER      the folder of the build with the pages and scripts
Shells and formatters that are not installed are named as not run."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import shells

TOOL, FOLDER = os.path.abspath(sys.argv[1]), sys.argv[2]
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = {"bash": "tileproof.bash", "zsh": "_tileproof", "fish": "tileproof.fish"}
failed = []
passed = 0


def expect(name, good, detail=""):
    global passed
    passed += bool(good)
    if not good:
        failed.append(name)
        print(f"FAILED {name}\n  {detail}")


def tool(*words):
    return subprocess.run([TOOL, *words], capture_output=True, text=True, check=True).stdout


def page(name):
    with open(os.path.join(FOLDER, "man1", name + ".1"), encoding="utf-8") as file:
        return file.read()


def plain(roff):
    for written, meant in (("\\-", "-"), ("\\(aq", "'"), ("\\(ha", "^"), ("\\(ti", "~"), ("\\e", "\\")):
        roff = roff.replace(written, meant)
    return roff


def commands():
    return re.findall(r"(?m)^  (\w+) +\S", tool("--help").split("Start with")[0].split("COMMAND [WORDS]")[1])


def options(command):
    """Long names, and letters, of its help."""
    part = tool("help", command).split("\nOptions:\n")[1].split("\n\n")[0]
    heads = re.findall(r"(?m)^  ((?:-[a-zA-Z], )?--?[a-z-]+)", part)
    return {name for head in heads for name in head.split(", ")}


def check_width(all_commands):
    for words in (["--help"], *(["help", one] for one in all_commands)):
        wide = [line for line in tool(*words).splitlines() if len(line) > 80]
        expect(f"within-80-columns-{words[-1]}", not wide, wide)


def check_pages(all_commands):
    names = ["tileproof"] + [f"tileproof-{one}" for one in all_commands]
    expect("pages", sorted(os.listdir(os.path.join(FOLDER, "man1"))) == sorted(f"{one}.1" for one in names),
           os.listdir(os.path.join(FOLDER, "man1")))
    main = page("tileproof")
    problem = tool("--help").split("\nExit codes:")[0].split("\n\n")[-1]
    expect("problem-lines", "A PROBLEM is" in problem and set(problem.splitlines()) <= set(plain(main).splitlines()), problem)
    for one in all_commands:
        expect(f"page-names-{one}", f"\\fB{one}\\fR" in main and f"tileproof\\-{one} (1)" in main)
        text = page(f"tileproof-{one}")
        for option in options(one):
            expect(f"page-{one}{option}", "\\fB" + option.replace("-", "\\-") + "\\fR" in text, "not in the page")
        for line in tool("help", one).split("\nExamples:\n")[1].split("\nOptions:")[0].strip("\n").splitlines():
            expect(f"page-{one}-example", line in plain(text), line)
    lints = {"groff": ["-man", "-ww", "-z"], "mandoc": ["-T", "lint", "-W", "style"]}
    for formatter, words in lints.items():
        if not shutil.which(formatter):
            print(f"not run here: {formatter}")
            continue
        for name in names:
            path = os.path.join(FOLDER, "man1", name + ".1")
            done = subprocess.run([formatter, *words, path], capture_output=True, text=True)
            expect(f"{formatter}-{name}", not done.returncode and not done.stdout + done.stderr, done.stdout + done.stderr)
            if formatter == "groff":
                shown = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", path], capture_output=True, text=True).stdout
                wide = [line for line in shown.splitlines() if len(line) > 80]
                expect(f"within-80-columns-{name}", shown and not wide, wide)


def in_script(shell, text, command):
    """Options that the script has for the command, as written there: needs no shell."""
    if shell == "bash":
        found = re.search(rf"(?m)^    {command}\) _tileproof_values '(.*)' ;;$", text)
        return set(found[1].split()) if found else set()
    if shell == "zsh":
        found = re.search(rf"(?ms)^    {command}\) _arguments(.*?) ;;$", text)
        return set(re.findall(r"(?m)^        '\*(--?[a-zA-Z-]+)[=+]?\[", found[1])) if found else set()
    lines = [line for line in text.splitlines() if f"-n '__tileproof_is {command}'" in line]
    heads = [line.split(" -d ")[0] for line in lines]
    return {f"--{name}" for head in heads for name in re.findall(r" -l (\S+)", head)} | {
        f"-{name}" for head in heads for name in re.findall(r" -s (\S)", head)}


def check_shell(shell, all_commands):
    script = os.path.join(FOLDER, SCRIPTS[shell])
    with open(script, encoding="utf-8") as file:
        text = file.read()
    expect(f"{shell}-is-the-tools", text == tool("completion", shell), "the build's script is an older one")
    for one in all_commands:
        got = in_script(shell, text, one)
        expect(f"{shell}-script-{one}", got == options(one), f"differ: {sorted(got ^ options(one))}")
    if not shutil.which(shell):
        print(f"not run here: {shell}")
        return

    def offers(name, words, wanted, unwanted=()):
        got = shells.SHELLS[shell](script, os.path.dirname(TOOL), ["tileproof", *words])
        expect(f"{shell}-{name}", set(wanted) <= got and not set(unwanted) & got,
               f"{' '.join(words)}: missing {sorted(set(wanted) - got)}, too many {sorted(set(unwanted) & got)}")

    offers("commands", [""], all_commands, ["manual", "simulated-run"])
    for one in all_commands:
        wanted = options(one)
        long = {name for name in wanted if name.startswith("--")}
        others = {"--bytes", "--phases", "--drill", "--generate"} - long
        offers(f"{one}-options", [one, "--"], long, others)
        if wanted - long:
            offers(f"{one}-letters", [one, "-"], wanted - long)
    kernels = set(tool("completion", "kernels").split())
    models = {name[:-5] for name in os.listdir(os.path.join(SOURCE, "models")) if name.startswith("llama-")}
    offers("formats", ["bench", "-o", ""], ["md", "csv", "json", "jsonl"], ["text"])
    offers("policies", ["run", "--fallback", ""], ["refuse", "permit", "serve"])
    for one in ("qualify", "canary", "capacity", "replay"):
        offers(f"caches-{one}", [one, "--kv-cache", ""], ["plain", "i8", "i8/q8_0", "i4", "e4m3", "e4m3/token"], ["bf16"])
    offers("kernels", ["run", "--kernel", ""], kernels)
    offers("models", ["qualify", "llama-"], models, ["gpt2"])
    offers("first-words", ["lock", ""], ["list", "show", "diff", "drop", "merge"])
    offers("shells", ["completion", ""], ["bash", "zsh", "fish"])
    offers("problem", ["run", "c"], ["causal", "chunk="])
    offers("help", ["help", "q"], ["qualify"], ["lock"])


os.chdir(SOURCE)
every = commands()
check_width(every)
check_pages(every)
for each in SCRIPTS:
    check_shell(each, every)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
