# SPDX-License-Identifier: Apache-2.0
"""docs/runner-protocol.md from the runner's side: lines on descriptor 3, tensors in the file of descriptor 4."""
from __future__ import annotations

import mmap
import os
import sys
import traceback
from typing import Any, Iterator, Optional

import numpy as np

from . import host
from .cell import ELEMENT, Answer, Cell, NotServed, store

FIRST_LINE = "tileproof-runner 1"
SOCKET, FILE = 3, 4


def one_line(text: Any) -> str:
    return " ".join(str(text).split())[:1000] or "?"


class Channel:
    def __init__(self, socket: int, file: int) -> None:
        self.lines = os.fdopen(os.dup(socket), "r", encoding="ascii", errors="replace")
        self.socket, self.file = socket, file

    @staticmethod
    def open() -> Optional[Channel]:
        """None: nobody is at the other end."""
        try:
            os.fstat(SOCKET), os.fstat(FILE)
            return Channel(SOCKET, FILE)
        except OSError:
            return None

    def say(self, lines: list[str]) -> None:
        data = "".join(f"{x}\n" for x in lines).encode("ascii", "replace")
        while data:
            data = data[os.write(self.socket, data) :]

    def unavailable(self, why: str) -> None:
        self.say([FIRST_LINE, f"unavailable {one_line(why)}"])

    def greet(self, engine: Any) -> None:
        """engine.name, .device, .mode, .versions and .host (dicts)."""
        lines = [FIRST_LINE, f"engine {engine.name}", f"device {engine.device}", f"mode {engine.mode}"]
        lines += [f"version {k}={one_line(v)[:200]}" for k, v in engine.versions.items() if v]
        lines += [f"host {k}={one_line(v)[:200]}" for k, v in engine.host.items() if v]
        if engine.device.partition(":")[0] == "cuda":
            print(host.CUDA_NOT_RUN, file=sys.stderr)
        self.say([*lines, "end"])

    def requests(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        words: dict[str, str] = {}
        tensors: dict[str, tuple[int, int]] = {}
        for line in self.lines:
            key, _, value = line.rstrip("\n").partition(" ")
            if key == "tensor":
                name, at, size = value.split()
                tensors[name] = int(at), int(size)
            elif key == "end":
                yield words, tensors
                words, tensors = {}, {}
            else:
                words[key] = value

    def serve(self, engine: Any) -> None:
        """engine.serve(cell) -> Answer, until the tool closes its end."""
        for words, tensors in self.requests():
            end = max(at + size for at, size in tensors.values())
            with mmap.mmap(self.file, max(end, 1)) as memory:
                self.say(self.answer(engine, words, tensors, memory))

    @staticmethod
    def answer(engine: Any, words: dict[str, Any], tensors: dict[str, Any], memory: mmap.mmap) -> list[str]:
        try:
            cell = read_cell(words, tensors, memory)
            answer: Answer = engine.serve(cell)
            at, size = tensors["o"]
            stored = answer.output if answer.output.dtype == ELEMENT[cell.dtype] and cell.dtype == "bf16" else store(answer.output, cell.dtype)
            data = np.ascontiguousarray(stored).tobytes()
            if len(data) != size:
                return [f"failed the engine's output has {len(data)} bytes, o has {size}", "end"]
            memory[at : at + size] = data
        except NotServed as error:
            return [f"refused {one_line(error)}", "end"]
        except Exception as error:  # whatever an engine raises costs this call alone
            traceback.print_exc(file=sys.stderr)
            return [f"failed {type(error).__name__}: {one_line(error)[:600]}", "end"]
        lines = ["served", f"fused {answer.fused}", f"written {size}"]
        lines += [f"kernel {one_line(answer.kernel)[:200]}", f"observed {one_line(answer.observed)}"] if answer.kernel else []
        lines += [f"reason {one_line(x)[:400]}" for x in answer.reasons[:8]]
        lines += [f"temporary {answer.temporary}"] if answer.temporary > 0 else []
        lines += [f"time_ns {answer.time_ns:.0f}"] if answer.time_ns > 0 else []
        return [*lines, "end"]


def read_cell(words: dict[str, Any], tensors: dict[str, Any], memory: mmap.mmap) -> Cell:
    dtypes = words["dtypes"].split()
    if len(set(dtypes)) != 1:
        raise NotServed(f"dtypes differ: {words['dtypes']}")
    dtype = dtypes[0]
    q_heads, kv_heads = map(int, words["heads"].split())
    dim, dim_v = map(int, words["head_dims"].split())

    def read(name: str, kind: Any, *shape: int) -> Optional[np.ndarray]:
        if name not in tensors:
            return None
        at, size = tensors[name]
        # a copy: the file may change, and engines want aligned memory of their own
        return np.frombuffer(memory[at : at + size], kind).reshape(shape)

    lengths = tuple(tuple(map(int, x.split("/"))) for x in words["lengths"].split())
    kind = ELEMENT[dtype]
    stored = {"q": read("q", kind, -1, q_heads, dim), "k": read("k", kind, -1, kv_heads, dim), "v": read("v", kind, -1, kv_heads, dim_v)}
    return Cell(
        text=words["problem"], dtype=dtype, q_heads=q_heads, kv_heads=kv_heads, head_dim=dim, head_dim_v=dim_v,
        scale=float(words["scale"]), lengths=lengths, stored=stored, mask=words["mask"], window=int(words["window"]),
        softcap=float(words["softcap"]), shown=read("visible", np.uint8, -1), sinks=read("sinks", np.float32, -1),
        slopes=read("slopes", np.float32, len(lengths), q_heads), q_factors=read("q_factors", np.float32, -1),
        time_ns=float(words["time_ns"]),
    )  # fmt: skip
