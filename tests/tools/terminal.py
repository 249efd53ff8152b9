# SPDX-License-Identifier: Apache-2.0
"""A person at a terminal, by pseudo-terminals: progress, colours, 80 columns, Ctrl-C of every long command.
    terminal.py PATH/TO/tileproof SOURCE_FOLDER
Every run is stopped at its first line of progress, or ends by itself, so that no host is too fast or too slow: a command that
ends before it shows progress has to end well."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

TOOL, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
passed, failed = 0, []
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def expect(name, good, detail):
    global passed
    passed += bool(good)
    if not good:
        failed.append(name)
        print(f"FAILED {name}\n  {detail!r:.3000}")


def environment(changes):
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")} | {"TERM": "xterm"} | changes
    return {name: value for name, value in env.items() if value is not None}


def at_terminal(words, stop_at=None, columns=80, **changes):
    """Exit code and all that the terminal got; ^C once what it got matches stop_at."""
    pid, fd = pty.fork()
    if not pid:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execve(TOOL, [TOOL, *words], environment(changes))
    got, end, sent = "", time.monotonic() + 240, False
    while True:
        if stop_at and not sent and re.search(stop_at, got):
            os.write(fd, b"\x03")
            sent = True
        if not select.select([fd], [], [], 1)[0]:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
            continue
        try:
            piece = os.read(fd, 65536)
        except OSError:  # it has ended
            break
        if not piece:
            break
        got += piece.decode(errors="replace")
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), got, sent


def piped(words, **changes):
    done = subprocess.run([TOOL, *words], env=environment(changes), capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


def stops(name, words, says, progress, codes=(4,)):
    """^C at the first progress: exit 4, what is done, the line that begins again; no line is wider than the terminal."""
    code, got, sent = at_terminal(words, stop_at=progress)
    if not sent:
        expect(f"{name}-short", code in (0, 1), got)
        return False
    text = CONTROL.sub("", got).replace("^C", "")
    expect(f"{name}-exit", code in codes, f"exit {code}: {got}")
    expect(f"{name}-says", re.search(f"tileproof: stopped: {says}", text), got)
    expect(f"{name}-line", re.search(r"tileproof: (from the beginning|to go on): \S*tileproof " + words[0], text), got)
    expect(f"{name}-width", max(map(len, re.findall(r"\r([^\r\n\x1b]*)\x1b\[K", got))) < 80, got)
    return True


scratch = tempfile.TemporaryDirectory()
os.chdir(scratch.name)
NUMBER = r"[0-9.,]+"
HOW_FAR = rf"\r\S[^\r]*: {NUMBER} of {NUMBER} %s"

# What a long command shows: how far, how fast, how long still.
code, shown, sent = at_terminal(["check", "--random", "400", "--kernel", "^generic$"], stop_at=r"problems, [0-9.e+]+/s, about [0-9]+ ")
expect("rate-and-time", not sent or code == 4, shown)

# Every long command is stopped. Words that are known to take longer than a second on any host.
stops("check", ["check"], r"[0-9]+ of [0-9]+ cases were run, and 0 failed", HOW_FAR % "cases")
stops("check-random", ["check", "--random", "100000"], r"[0-9]+ passed and 0 failed of the problems", HOW_FAR % "problems")
stops("check-problem", ["check", "h4 q2048 k2048 d128"], r"[0-9]+ of [0-9]+ kernels were tried, and 0 failed", HOW_FAR % "kernels")
bench = ["bench", "-s", "q64,q128,q256", "-d", "64", "--seconds", "4", "--read-mib", "0"]
stops("bench", bench, r"[0-9]+ of 6 problems are measured", HOW_FAR % "rounds")
against = ["bench", "-s", "q512,q1k,q2k", "-d", "64", "--seconds", "4", "--read-mib", "0", "-k", "generic", "--against", "math"]
stops("bench-against", against, r"[0-9]+ of 6 problems are measured", HOW_FAR % "problems",
      codes=(1, 4))  # 1: what was measured is slower
stops("bench-goals", ["bench", "--goals", "--read-mib", "0"], r"[0-9]+ of [0-9]+ goals were attempted", HOW_FAR % "attempts")
stops("bench-cliffs", ["bench", "--cliffs", "--quick"], r"[0-9]+ points are measured", HOW_FAR % "measurements")
stops("bench-memory", ["bench", "--memory"], r"[0-9]+ of 12 rows are measured", HOW_FAR % "rows")
if shutil.which("valgrind"):
    stops("bench-bytes", ["bench", "--bytes"], r"[0-9]+ of [0-9]+ rows are measured", HOW_FAR % "rows")
    expect("bench-bytes-no-folder", not [one for one in os.listdir(".") if one.startswith("tileproof-")], os.listdir("."))
else:
    print("not run here: bench --bytes (needs valgrind)")
stops("run", ["run", "q2k", "d64", "--repeat", "100000"], r"[0-9]+ of 100000 runs", HOW_FAR % "runs")
stops("demo", ["demo"], "both runs are needed", HOW_FAR % "runs")

models = os.path.join(SOURCE, "models")
if os.path.isdir(models) and "qualify" in piped(["--help"])[1]:
    # qualify: the line that it says goes on, and only from there
    long = ["qualify", os.path.join(models, "llama-3.1-70b.json"), os.path.join(models, "deepseek-v3.json"), "--lock", "t.lock",
            "--update", "--reason", "it's a test", "--save", "t.json"]
    if stops("qualify", long, r"[0-9]+ of [0-9]+ cells are done and kept in the journal", HOW_FAR % "cells"):
        expect("qualify-files", sorted(os.listdir(".")) == ["t.lock.journal"], os.listdir("."))
        code, shown, _ = at_terminal(long, stop_at=HOW_FAR % "cells")
        line = re.search(r"to go on: ([^\r\n]*)", shown)
        done = re.search(r"stopped: ([0-9]+) of", shown)
        expect("qualify-says-resume", line and line[1].endswith("'it'\\''s a test' --save t.json --resume"), shown)
        if line and done:
            again = subprocess.Popen(line[1], shell=True, env=environment({}), stderr=subprocess.PIPE, text=True)
            first = again.stderr.readline()
            again.kill()  # of the shell's own process, which the tool replaced or is a child of
            again.wait()
            again.stderr.close()
            expect("qualify-resumes", f", {done[1]} done" in first or done[1] == "0", first)
    small = ["qualify", os.path.join(models, "gpt2.json"), "--quick", "--phases", "decode"]
    # colours on a terminal alone, and only where they are welcome; 80 columns
    code, shown, _ = at_terminal(small)
    expect("colour", code == 0 and "\x1b[32mQ\x1b[0m" in shown, shown)
    expect("columns", all(len(line) <= 80 for line in CONTROL.sub("", shown).replace("\r\n", "\n").split("\n") if "\r" not in line), shown)
    for name, changes in {"no-color": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}, "no-term": {"TERM": None}, "empty-term": {"TERM": ""}}.items():
        code, shown, _ = at_terminal(small, **changes)
        expect(f"colour-{name}", code == 0 and "\x1b[3" not in shown and "\x1b[0m" not in shown, shown)
    expect("colour-no-color-empty", "\x1b[32mQ" in at_terminal(small, NO_COLOR="")[1], "")
    code, out, errors = piped(small)
    expect("colour-pipe", code == 0 and "\x1b" not in out + errors and "Q" in out, out + errors)
    # canary: the lock stays as it is
    large = ["qualify", os.path.join(models, "llama-3.1-70b.json"), "--quick"]
    code, out, errors = piped([*large, "--lock", "c.lock", "--update", "--reason", "x"])
    with open("c.lock", encoding="utf-8") as file:
        before = file.read()
    stops("canary", ["canary", "c.lock"], r"[0-9]+ of [0-9]+ cells were run", HOW_FAR % "cells")
    with open("c.lock", encoding="utf-8") as file:
        expect("canary-lock-whole", file.read() == before, "")
    # replay: no file holds a part
    subprocess.run([TOOL, "replay", "--generate", "--models", models, "-o", "r.jsonl", "llama-3.2-1b"], check=True)
    if stops("replay", ["replay", "r.jsonl", "--models", models, "-o", "report.json", "--steps", "50"], r"[0-9]+ of the requests were run",
             HOW_FAR % "requests"):
        expect("replay-no-report", not os.path.exists("report.json"), os.listdir("."))

# A trace that takes its time: stopped, it is summed up as far as it was read.
subprocess.run([TOOL, "run", "q8", "d8", "--repeat", "50", "--trace", "few.jsonl"], check=True, stdout=subprocess.DEVNULL)
with open("few.jsonl", encoding="utf-8") as file:
    few = file.read()
with open("many.jsonl", "w", encoding="utf-8") as file:
    for _ in range(800):
        file.write(few)
stops("trace-summary", ["trace", "summary", "many.jsonl"], "the first [0-9]+ lines are summed up", rf"\rtrace summary: {NUMBER} \w+ of ")
# It ends by itself: nothing of it could be kept.
code, shown, _ = at_terminal(["trace", "convert", "many.jsonl", "-o", "many.json"])
expect("trace-convert", code == 0 and os.path.exists("many.json") and re.search(rf"\rtrace convert: {NUMBER} calls", shown), shown)
for term in (None, "", "dumb"):  # one that cannot write over a line gets none
    code, shown, _ = at_terminal(["trace", "convert", "many.jsonl", "-o", "again.json"], TERM=term)
    expect(f"progress-term-{term}", code == 0 and "\x1b" not in shown and "trace convert:" not in shown, shown)

# Without a terminal there is no progress, unless it is asked for; JSON stays JSON either way.
words = ["bench", "-s", "q64", "-d", "64", "-c", "0", "--seconds", "4", "--threads", "1", "--read-mib", "0", "-o", "json"]
code, out, errors = piped(words)
expect("quiet-pipe", code == 0 and not errors and json.loads(out), errors)
code, out, errors = piped([*words, "--progress"])
expect("progress-asked", code == 0 and json.loads(out) and re.search(r"(?m)^bench: [0-9]+ of 5 rounds", errors) and "\r" not in errors,
       errors)

# SIGTERM does what ^C does; -o json is whole.
child = subprocess.Popen([TOOL, "run", "q2k", "d64", "--repeat", "100000", "--json", "--progress"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=environment({}))
child.stderr.readline()
child.terminate()
out, errors = child.communicate(timeout=100)
expect("sigterm", child.returncode == 4 and json.loads(out) and "stopped: " in errors, errors)

print(f"{passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
