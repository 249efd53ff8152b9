# SPDX-License-Identifier: Apache-2.0
"""Runners without their engines: the protocol from the runner's side, cells and their parts. NumPy is enough."""
import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
import unittest

import numpy as np
from tileproof.engines import NAMES, wire
from tileproof.engines.cell import Answer, Cell, NotServed, from_bf16, load, store, to_bf16


def attention(cell):
    """[token][head][dim] in float64, by the definition."""
    rows = []
    for i, (q_len, kv_len) in enumerate(cell.lengths):
        q, k, v = (cell.sequence(x, i).astype(np.float64) for x in "qkv")
        if cell.q_factors is not None:
            q = q * cell.q_factors[cell.q_start[i] : cell.q_start[i + 1], None, None]
        k, v = (np.repeat(x, cell.group, axis=1) for x in (k, v))
        s = cell.scale * np.einsum("qhd,khd->hqk", q, k)
        if cell.softcap:
            s = cell.softcap * np.tanh(s / cell.softcap)
        if cell.slopes is not None:
            distance = np.abs(np.arange(q_len)[:, None] + kv_len - q_len - np.arange(kv_len))
            s = s - cell.slopes[i][:, None, None] * distance
        s = np.where(cell.visible(i), s, -np.inf)
        highest = np.maximum(s.max(axis=2, keepdims=True, initial=-1e30), -np.inf if cell.sinks is None else cell.sinks[:, None, None])
        p = np.exp(s - highest)
        total = p.sum(axis=2, keepdims=True) + (0 if cell.sinks is None else np.exp(cell.sinks[:, None, None] - highest))
        rows.append(np.einsum("hqk,khd->qhd", p / np.where(total == 0, 1, total), v))
    return np.concatenate(rows)


def make(dtype="f32", heads=(4, 2), dims=(16, 16), lengths=((9, 9),), seed=3, **more):
    """A cell with data."""
    random = np.random.default_rng(seed)
    q_tokens, kv_tokens = sum(q for q, _ in lengths), sum(k for _, k in lengths)
    shapes = {"q": (q_tokens, heads[0], dims[0]), "k": (kv_tokens, heads[1], dims[0]), "v": (kv_tokens, heads[1], dims[1])}
    stored = {name: store(random.standard_normal(shape, np.float32), dtype) for name, shape in shapes.items()}
    more.setdefault("scale", dims[0] ** -0.5)
    return Cell(text="made", dtype=dtype, q_heads=heads[0], kv_heads=heads[1], head_dim=dims[0], head_dim_v=dims[1],
                lengths=tuple(lengths), stored=stored, **more)  # fmt: skip


class Fake:
    name, device, mode, versions, host = "fake", "cpu", "eager", {"fake": "1.0 beta"}, {"gpu": "none\nat all", "empty": ""}

    def serve(self, cell):
        self.cell = cell
        if cell.softcap:
            raise NotServed("no\nsoftcap")
        if cell.sinks is not None:
            raise ValueError("broken")
        if cell.head_dim == 8:
            return Answer(np.zeros((1, 1, 1), np.float32))
        return Answer(attention(cell), "k\xe9rnel", "log", "yes", ("one", "two\nlines"), 77, 5.0 if cell.time_ns else 0.0)


class Protocol(unittest.TestCase):
    def setUp(self):
        self.mine, theirs = socket.socketpair()
        self.file = os.memfd_create("cell")
        self.engine = Fake()
        self.channel = wire.Channel(theirs.detach(), self.file)
        self.lines = self.mine.makefile("r")

    def tearDown(self):
        self.mine.close()
        self.lines.close()
        self.thread.join(10)
        self.channel.lines.close()
        os.close(self.channel.socket)
        os.close(self.file)

    def serve(self):
        self.thread = threading.Thread(target=self.channel.serve, args=(self.engine,))
        self.thread.start()

    def answer(self):
        found = []
        while not found or found[-1] != "end":
            found.append(self.lines.readline().rstrip("\n"))
        return found

    def ask(self, cell, **words):
        """A call as the tool sends it; the offset of o."""
        tensors, at, lines = {}, 0, []
        o = np.full((cell.stored["q"].shape[0], cell.q_heads, cell.head_dim_v), np.nan, np.float32)
        shown = np.concatenate([cell.visible(i).reshape(-1) for i in range(cell.batch)]).astype(np.uint8)
        parts = {**cell.stored, "o": store(o, cell.dtype), "visible": shown}
        parts |= {name: x for name, x in (("sinks", cell.sinks), ("slopes", cell.slopes), ("q_factors", cell.q_factors)) if x is not None}
        for name, x in parts.items():
            data = np.ascontiguousarray(x).tobytes()
            os.pwrite(self.file, data, at)
            lines.append(f"tensor {name} {at} {len(data)}")
            tensors[name] = (at, len(data))
            at += -(-len(data) // 4096) * 4096
        os.ftruncate(self.file, at)
        words = {
            "cell": 1, "problem": cell.text, "dtypes": " ".join([cell.dtype] * 4), "heads": f"{cell.q_heads} {cell.kv_heads}",
            "head_dims": f"{cell.head_dim} {cell.head_dim_v}", "scale": cell.scale, "softcap": cell.softcap, "mask": cell.mask,
            "window": cell.window, "sequences": cell.batch, "lengths": " ".join(f"{q}/{k}" for q, k in cell.lengths),
            "time_ns": cell.time_ns, **words,
        }  # fmt: skip
        text = "".join(f"{k} {v}\n" for k, v in words.items()) + "".join(f"{x}\n" for x in lines) + "end\n"
        self.mine.sendall(text.encode())
        return tensors["o"]

    def test_a_greeting_is_lines_of_printable_words(self):
        self.serve()
        self.channel.greet(self.engine)
        self.assertEqual(self.answer(), ["tileproof-runner 1", "engine fake", "device cpu", "mode eager", "version fake=1.0 beta",
                                         "host gpu=none at all", "end"])  # fmt: skip
        for device, said in (("cpu", ""), ("cuda", "CUDA: not run here: "), ("cuda:0", "CUDA: not run here: ")):
            self.engine.device = device
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                self.channel.greet(self.engine)
            self.assertIn(f"device {device}", self.answer())
            self.assertEqual(errors.getvalue()[: len(said) or 1], said)

    def test_cells_arrive_as_they_were_sent_and_outputs_go_back(self):
        self.serve()
        for dtype in ("f32", "f16", "bf16"):
            cell = make(dtype, lengths=((5, 9), (0, 3), (2, 2)), mask="causal", time_ns=10.0, slopes=np.ones((3, 4), np.float32),
                        q_factors=np.arange(7, dtype=np.float32))  # fmt: skip
            at, size = self.ask(cell)
            found = self.answer()
            self.assertEqual(found, ["served", "fused yes", f"written {size}", "kernel k?rnel", "observed log", "reason one",
                                     "reason two lines", "temporary 77", "time_ns 5", "end"])  # fmt: skip
            got = self.engine.cell
            for name in "qkv":
                self.assertTrue((got.stored[name] == cell.stored[name]).all())
            self.assertEqual((got.lengths, got.mask, got.slopes.shape, list(got.q_factors)), (cell.lengths, "causal", (3, 4), list(range(7))))
            kind = np.uint16 if dtype == "bf16" else np.float16 if dtype == "f16" else np.float32
            o = load(np.frombuffer(os.pread(self.file, size, at), kind), dtype).reshape(7, 4, 16)
            self.assertLess(np.abs(o - attention(cell)).max(), 0.03 if dtype == "bf16" else 2e-3)

    def test_refusals_faults_and_wrong_sizes_cost_one_call(self):
        self.serve()
        self.ask(make(softcap=5.0))
        self.assertEqual(self.answer(), ["refused no softcap", "end"])
        self.ask(make(sinks=np.zeros(4, np.float32)))
        self.assertEqual(self.answer(), ["failed ValueError: broken", "end"])
        self.ask(make(dims=(8, 8)))
        self.assertEqual(self.answer(), ["failed the engine's output has 4 bytes, o has 1152", "end"])
        self.ask(make(), dtypes="f32 bf16 bf16 f32")
        self.assertEqual(self.answer(), ["refused dtypes differ: f32 bf16 bf16 f32", "end"])
        self.ask(make())
        self.assertEqual(self.answer()[0], "served")


class Cells(unittest.TestCase):
    def test_parts_are_the_whole(self):
        for more in ({"mask": "causal"}, {"mask": "causal_window", "window": 3}, {"slopes": np.arange(12, dtype=np.float32).reshape(3, 4)}):
            for lengths in (((6, 6), (6, 6), (6, 6)), ((1, 7), (4, 9), (6, 6))):
                cell = make(lengths=lengths, **more)
                whole, parts = attention(cell), [attention(part) for part in cell.parts()]
                self.assertTrue(np.allclose(whole, np.concatenate(parts), atol=1e-12))
        self.assertEqual(len(make(lengths=((6, 6), (6, 6))).parts()), 1)

    def test_what_is_shown_wins_over_the_masks_name(self):
        shown = np.zeros(9 * 9, np.uint8)
        self.assertFalse(make(mask="visible", shown=shown).visible(0).any())
        self.assertEqual(make(mask="causal_window", window=2).visible(0).sum(), 1 + 2 + 3 * 7)

    def test_bf16_rounds_to_nearest_even_and_keeps_nan(self):
        values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, np.nan, -np.inf], np.float32)
        back = from_bf16(to_bf16(values))
        self.assertEqual(list(back[:3]) + [back[4]], [1.0, 1.0, 1 + 2**-6, -np.inf])
        self.assertTrue(np.isnan(back[3]))


class Command(unittest.TestCase):
    def run_alone(self, *words):
        return subprocess.run([sys.executable, "-m", "tileproof.engines", *words], capture_output=True, text=True, close_fds=True)

    def test_alone_it_says_who_starts_it(self):
        done = self.run_alone("ggml")
        self.assertEqual(done.returncode, 2)
        self.assertIn("it is started by tileproof qualify", done.stderr)
        self.assertEqual(self.run_alone("pytorch").returncode, 2)

    def test_an_engine_that_is_not_there_says_so(self):
        mine, theirs = socket.socketpair()
        file = os.memfd_create("cell")
        script = "import os, sys; a, b = map(int, sys.argv[1:3]); os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.executable, [sys.executable, *sys.argv[3:]])"
        words = [sys.executable, "-c", script, str(theirs.fileno()), str(file), "-m", "tileproof.engines", "ggml"]
        environ = {k: v for k, v in os.environ.items() if k != "TILEPROOF_GGML"}
        subprocess.run(words, pass_fds=(theirs.fileno(), file), env=environ, check=True)
        theirs.close()
        with mine, mine.makefile() as lines:
            self.assertEqual(lines.read(), "tileproof-runner 1\nunavailable TILEPROOF_GGML must name the folder of libggml*.so\n")
        os.close(file)

    def test_names_are_modules(self):
        folder = os.path.dirname(wire.__file__)
        self.assertTrue(all(os.path.exists(os.path.join(folder, f"{x}.py")) for x in NAMES))


if __name__ == "__main__":
    unittest.main()
