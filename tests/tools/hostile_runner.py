#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A runner that computes what it is asked for, but for one fault, once.

    hostile_runner.py FAULT MARK [CALL]     FAULT in call CALL (default 3), unless the file MARK is there, which it then makes"""
import array
import math
import os
import signal
import struct
import subprocess
import sys
import time

FAULT, MARK, CALL = sys.argv[1], sys.argv[2], int((sys.argv + ["3"])[3])
lines = os.fdopen(os.dup(3), "r")


def say(text):
    os.write(3, text.encode("latin-1"))


def once():
    """Is it time for the fault?"""
    if os.path.exists(MARK):
        return False
    open(MARK, "w").close()
    return True


def read():
    cell, tensors = {}, {}
    for line in lines:
        key, _, value = line.rstrip("\n").partition(" ")
        if key == "tensor":
            name, at, size = value.split()
            tensors[name] = int(at), int(size)
        elif key == "end":
            return cell, tensors
        else:
            cell[key] = value
    sys.exit(0)


def get(tensors, name):
    at, size = tensors[name]
    values = array.array("f")
    values.frombytes(os.pread(4, size, at))
    return values


def attention(cell, tensors):
    heads, kv_heads = map(int, cell["heads"].split())
    dim, dim_v = map(int, cell["head_dims"].split())
    q, k, v = (get(tensors, x) for x in "qkv")
    at, size = tensors["visible"]
    visible = os.pread(4, size, at)
    o, q0, k0, seen0, scale = array.array("f"), 0, 0, 0, float(cell["scale"])
    for rows, keys in (map(int, x.split("/")) for x in cell["lengths"].split()):
        for r in range(rows):
            seen = [x for x in range(keys) if visible[seen0 + r * keys + x]]
            for h in range(heads):
                row = q[((q0 + r) * heads + h) * dim :][:dim]
                place = [((k0 + x) * kv_heads + h * kv_heads // heads) for x in seen]
                scores = [scale * math.fsum(a * b for a, b in zip(row, k[p * dim : (p + 1) * dim])) for p in place]
                most = max(scores, default=0)
                weights = [math.exp(s - most) for s in scores]
                total = sum(weights) or 1
                o.extend(sum(w * v[p * dim_v + x] for w, p in zip(weights, place)) / total for x in range(dim_v))
        q0, k0, seen0 = q0 + rows, k0 + keys, seen0 + rows * keys
    return o.tobytes()


RIGHT = "served\nwritten {size}\nend\n"
ANSWERS = {
    "rubbish": "Segmentation fault \xff\n",
    "zero": "served\0\n",
    "long": "x" * 100000,
    "cut": RIGHT,
    "size": "served\nwritten 12\nend\n",
    "sizeless": "served\nend\n",
    "undecided": "kernel x\nwritten {size}\nend\n",
    "both": "served\nrefused no\nend\n",
    "number": "time_ns -1\nend\n",
    "unwritten": RIGHT,
    "wrong": RIGHT,
    "refuse": "refused no such head dim\nend\n",
    "wordy": "refused" + 3 * (" " + "a" * 66) + "\nend\n",
    "fail": "failed out of luck\nend\n",
    "twice": RIGHT + "served\nwritten 1\nend\n",
}


def misbehave(cell, tensors):
    """True: an answer is still to be given."""
    if FAULT == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif FAULT == "exit":
        os._exit(3)
    elif FAULT == "close":
        os.close(3)
        lines.close()
        time.sleep(100)
    elif FAULT == "hang":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "1234.5"])
        with open(MARK, "w") as mark:  # who it is
            mark.write(str(child.pid))
        time.sleep(1234.5)
    elif FAULT == "endless":
        while True:
            say("reason it goes on\n")
    elif FAULT == "cut":
        os.ftruncate(4, 0)
    elif FAULT == "wrong":
        at, size = tensors["o"]
        os.pwrite(4, struct.pack("f", 0.25) * (size // 4), at)
    say(ANSWERS[FAULT].format(size=tensors["o"][1]))
    return FAULT == "twice"


def main():
    os.write(1, b"noise on stdout\n")
    first = {"none": "", "no-greeting": "hello\n", "newer": "tileproof-runner 2\n", "gone": None, "unavailable": "", "odd": ""}.get(FAULT, "")
    if FAULT == "gone":
        os._exit(7)
    if FAULT == "mute":
        time.sleep(1234.5)
    if FAULT == "restless" and os.path.exists(MARK):
        os._exit(7)
    other = "-other" if FAULT == "changes" and os.path.exists(MARK) else ""
    more = {"unavailable": "unavailable no such device\n", "odd": "colour blue\n", "nameless": "end\n", "version": "version none\n",
            "mode": "mode fast\n", "speechless": "unavailable \n"}.get(FAULT, "")  # fmt: skip
    say(first or f"tileproof-runner 1\n{more}engine plain{other}\nmode eager\ndevice cpu\nversion plain=1.0\nhost room=4 b\nend\n")
    call = 0
    while True:
        cell, tensors = read()
        call += 1
        at, size = tensors["o"]
        assert cell["seed"] == "1", cell
        if call == CALL and FAULT != "none" and once():
            if FAULT in ("restless", "changes"):
                os._exit(1)
            if not misbehave(cell, tensors):
                continue
        os.pwrite(4, attention(cell, tensors), at)
        time_ns = "time_ns 1000\n" if float(cell["time_ns"]) > 0 else ""
        say(f"served\nkernel plain\nobserved log\nfused yes\ntemporary 100\n{time_ns}written {size}\nend\n")


main()
