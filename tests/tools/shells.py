# SPDX-License-Identifier: Apache-2.0
"""What a shell offers for a line that ends where the cursor stands: complete(shell, script, folder, words) -> set of words.
folder is first in PATH and holds the tool. bash runs the function; fish is asked; zsh completes at a pseudo-terminal."""
import atexit
import os
import pty
import re
import select
import subprocess
import tempfile
import time

ESCAPES = re.compile(r"\x1b(\[[0-9;?>=]*[a-zA-Z]|[=>]|\][^\x07]*\x07)")


def environment(folder):
    keep = {"PATH": f"{folder}:{os.environ['PATH']}", "TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": os.environ.get("HOME", "/")}
    return keep | ({"ASAN_OPTIONS": os.environ["ASAN_OPTIONS"]} if "ASAN_OPTIONS" in os.environ else {})


def run(command, folder):
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=60)
    if done.returncode or done.stderr:
        raise RuntimeError(f"{command[:2]}: exit {done.returncode}: {done.stderr}")
    return done.stdout


def bash(script, folder, words):
    ask = '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tileproof; printf "%s\\n" "${COMPREPLY[@]}"'
    return set(run(["bash", "--norc", "-c", ask, "bash", script, *words], folder).split())


def fish(script, folder, words):
    ask = 'source $argv[1]; complete -C "$argv[2..-1]"'
    # --no-config is younger than some fish; an empty home does the same
    text = run(["env", "HOME=/nonexistent", "fish", "-c", ask, script, *words], folder)
    return {line.split("\t")[0] for line in text.splitlines()}


def read_until(fd, mark, seconds=30.0):
    text, end = "", time.monotonic() + seconds
    while not re.search(mark, text):
        left = end - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise RuntimeError(f"zsh did not say {mark!r} but {text[-500:]!r}")
        text += ESCAPES.sub("", os.read(fd, 65536).decode(errors="replace"))
    return text


SETUP = """PS1='ready> '
stty -echo cols 200 rows 500
autoload -U compinit
compinit -D -u
. "$SCRIPT"
compadd() { # what is added is written down, too
    local -a hits
    if [[ ${@[1,(i)(-|--)]} != *-(O|A|D)\\ * ]]; then
        builtin compadd -A hits "$@"
        print -rl -- $hits >>$MATCHES
    fi
    builtin compadd "$@"
}
typeset -gi done=0
whole() { print -r -- "<END$((++done))>" >>$MATCHES }
zle -N whole
bindkey '^T' whole
bindkey '^I' complete-word
print SETUP
"""
started, asked = {}, {}


def start_zsh(script, folder):
    """One of them serves every line: it takes its time to start."""
    matches = tempfile.NamedTemporaryFile("r")
    with tempfile.NamedTemporaryFile("w", suffix=".zsh") as setup:
        setup.write(SETUP)
        setup.flush()
        pid, fd = pty.fork()
        if not pid:
            more = {"SCRIPT": os.path.abspath(script), "MATCHES": matches.name}
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment(folder) | more)
        os.write(fd, f". {setup.name}\n".encode())
        read_until(fd, "SETUP")
    atexit.register(end_zsh, pid, fd)
    return fd, matches


def end_zsh(pid, fd):
    os.close(fd)
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
    os.waitpid(pid, 0)


def zsh(script, folder, words):
    """^U empties the line, tab completes, ^T writes down that this is done."""
    if script not in started:
        started[script] = start_zsh(script, folder)
    fd, matches = started[script]
    matches.seek(0, os.SEEK_END)
    os.write(fd, ("\x15" + " ".join(words) + "\t\x14").encode())
    asked[fd] = asked.get(fd, 0) + 1
    text, end = "", time.monotonic() + 30
    while f"<END{asked[fd]}>" not in text:
        if time.monotonic() > end:
            raise RuntimeError(f"zsh did not complete {words}")
        if select.select([fd], [], [], 0.01)[0]:
            os.read(fd, 65536)
        text += matches.read()
    return set(text.split())


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
