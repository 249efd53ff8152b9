# SPDX-License-Identifier: Apache-2.0
"""ggml's flash_attn_ext through its own C API. q and o are f32, as the op wants; k and v are f32 for f32 cells,
f16 for f16 ones, and either f16 or bf16 for bf16 ones (the same values). A mask is an f16 tensor, made beforehand. ik_llama is a
fork with other kernels behind the same functions. The folder of the libraries is named by TILEPROOF_GGML."""
from __future__ import annotations

import ctypes
import os
import pathlib
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import host, measure
from .cell import Answer, Cell, NotServed, Variant, load, store

TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # enum ggml_type
_P = ctypes.c_void_p
_N = ctypes.c_int64
SIGNATURES = {
    "ggml_new_tensor_4d": (_P, [_P, ctypes.c_int] + [_N] * 4),
    "ggml_get_data": (_P, [_P]),
    "ggml_flash_attn_ext": (_P, [_P] * 5 + [ctypes.c_float] * 3),
    "ggml_new_graph": (_P, [_P]),
    "ggml_build_forward_expand": (None, [_P, _P]),
    "ggml_free": (None, [_P]),
    "ggml_backend_cpu_init": (_P, []),
    "ggml_backend_cpu_set_n_threads": (None, [_P, ctypes.c_int]),
    "ggml_backend_graph_compute": (ctypes.c_int, [_P, _P]),
    "ggml_backend_free": (None, [_P]),
}
OPTIONAL = {  # forks and older versions lack some
    "ggml_graph_n_nodes": (ctypes.c_int, [_P]),
    "ggml_graph_node": (_P, [_P, ctypes.c_int]),
    "ggml_op_desc": (ctypes.c_char_p, [_P]),
    "ggml_flash_attn_ext_add_sinks": (None, [_P, _P]),
}


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool)]


class Library:
    """The functions above, from whichever of the libraries in a folder has them."""

    def __init__(self, folder: Any) -> None:
        loaded = [ctypes.CDLL(str(path)) for path in sorted(pathlib.Path(folder).rglob("libggml*.so"))]
        if not loaded:
            raise OSError(f"no libggml*.so under {folder}")
        for name, (result, arguments) in (SIGNATURES | OPTIONAL | {"ggml_init": (_P, [InitParams])}).items():
            function = next((getattr(x, name) for x in loaded if hasattr(x, name)), None)
            if function is None and name not in OPTIONAL:
                raise OSError(f"no {name} under {folder}")
            if function is not None:
                function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Peer:
    """For `make peers`. fork: ik_llama, which wants a mask always and aborts on f32 k and v."""

    def __init__(self, folder: Any, title: str, fork: bool = False) -> None:
        self.library, self.title, self.fork = Library(folder), title, fork

    def name(self) -> str:
        return self.title

    def variants(self, cell: Cell, threads: int) -> list[Variant]:
        if self.fork and cell.dtype == "f32":
            raise NotServed("it takes no f32 k and v")
        kinds = ["f16", "bf16"] if cell.dtype == "bf16" else [cell.dtype]
        return [Graph(self.library, cell, threads, kind, mask_always=self.fork).variant for kind in kinds]

    CACHE = "i8/q8_0"

    def cached(self, cell: Cell, threads: int, codes: dict[str, np.ndarray], scale: float) -> list[Variant]:
        """k and v as blocks of q8_0: codes, [token][head][bytes], which hold their scales."""
        return [Graph(self.library, cell, threads, "q8_0", self.fork, codes).variant]


class Graph:
    """A node for each of the cell's parts; a plain batch is one node."""

    def __init__(
        self, library: Library, cell: Cell, threads: int, kind: str, mask_always: bool = False,
        codes: Optional[dict[str, np.ndarray]] = None,
    ) -> None:  # fmt: skip
        self.library, self.cell, self.kind, self.mask_always, self.codes = library, cell, kind, mask_always, codes
        self.backend = library.ggml_backend_cpu_init()
        library.ggml_backend_cpu_set_n_threads(self.backend, threads)
        self.context = library.ggml_init(InitParams(self.bytes(), None, False))
        self.graph = library.ggml_new_graph(self.context)
        self.outputs = [self.node(part) for part in cell.parts()]
        self.variant = Variant(f"flash_attn_ext, {kind} k and v", self.run, self.output)

    def bytes(self) -> int:
        """Room for every tensor, twice the stored sizes to be safe, and masks."""
        elements = sum(x.size for x in self.cell.stored.values()) + self.cell.stored["q"].size
        heads = self.cell.q_heads if self.cell.slopes is not None else 1
        masks = sum(q * (k + 64) for q, k in self.cell.lengths) * heads
        return int(elements * 4 + masks * 2 + (64 << 20))

    def tensor(self, values: np.ndarray, kind: str) -> Any:
        """An array with its dims as ggml names them: the last is the first. Of q8_0, blocks of 34 bytes hold 32 elements."""
        data = values if kind == "q8_0" else store(values, kind)
        last = data.shape[-1] // 34 * 32 if kind == "q8_0" else data.shape[-1]
        shape = (1,) * (4 - data.ndim) + data.shape[:-1] + (last,)
        made = self.library.ggml_new_tensor_4d(self.context, TYPES[kind], *reversed(shape))
        ctypes.memmove(self.library.ggml_get_data(made), data.ctypes.data, data.nbytes)
        return made

    def mask(self, cell: Cell) -> Any:
        if cell.mask == "full" and cell.slopes is None and not self.mask_always:
            return None
        bias, q_len = cell.bias(), cell.q_len
        rows = np.zeros((len(bias), -(-q_len // 64) * 64, cell.kv_len), np.float32)  # older versions want rows in 64s
        rows[:, :q_len] = bias
        return self.tensor(rows, "f16")

    def node(self, cell: Cell) -> Any:
        q_len, kv_len = cell.lengths[0]
        q = load(cell.scaled_q(), cell.dtype).reshape(cell.batch, q_len, cell.q_heads, -1)
        k, v = (self.codes[x] if self.codes else load(cell.stored[x], cell.dtype) for x in "kv")
        k, v = (x.reshape(cell.batch, kv_len, cell.kv_heads, -1) for x in (k, v))
        made = [
            self.tensor(np.ascontiguousarray(x.transpose(0, 2, 1, 3)), kind)
            for x, kind in ((q, "f32"), (k, self.kind), (v, self.kind))
        ]
        # with a softcap the op divides the scale by it itself
        o = self.library.ggml_flash_attn_ext(self.context, *made, self.mask(cell), cell.scale, 0.0, cell.softcap)
        if cell.sinks is not None:
            if self.library.ggml_flash_attn_ext_add_sinks is None:
                raise NotServed("this ggml has no sinks")
            self.library.ggml_flash_attn_ext_add_sinks(o, self.tensor(cell.sinks, "f32"))
        self.library.ggml_build_forward_expand(self.graph, o)
        return o, (cell.batch, q_len, cell.q_heads, cell.head_dim_v)

    def run(self) -> None:
        status = self.library.ggml_backend_graph_compute(self.backend, self.graph)
        if status:
            raise RuntimeError(f"ggml status {status}")

    def ops(self) -> str:
        """What the nodes of the graph are, as ggml names them."""
        library = self.library
        if None in (library.ggml_graph_n_nodes, library.ggml_graph_node, library.ggml_op_desc):
            return ""
        nodes = [library.ggml_graph_node(self.graph, i) for i in range(library.ggml_graph_n_nodes(self.graph))]
        return "+".join(dict.fromkeys(library.ggml_op_desc(x).decode() for x in nodes))

    def output(self) -> np.ndarray:
        parts = []
        for o, shape in self.outputs:
            count = int(np.prod(shape))
            data = (ctypes.c_float * count).from_address(self.library.ggml_get_data(o))
            parts.append(np.ctypeslib.as_array(data).reshape((-1,) + shape[2:]).copy())
        return np.concatenate(parts)

    def __del__(self) -> None:
        if getattr(self, "context", None):
            self.library.ggml_free(self.context)
            self.library.ggml_backend_free(self.backend)


class Engine:
    name, device, mode = "ggml", "cpu", "graph"

    def __init__(self, options: Any) -> None:
        folder = os.environ.get("TILEPROOF_GGML")
        if options.device == "cuda":
            raise NotServed("ggml on CUDA: no runner was written for it, as there was no GPU to try it on")
        if not folder:
            raise NotServed("TILEPROOF_GGML must name the folder of libggml*.so")
        self.library, self.threads = Library(folder), host.threads(options.threads)
        beside = pathlib.Path(folder).parent / "version"
        self.versions = {"ggml": beside.read_text().strip() if beside.exists() else "unknown"}
        self.host = {"threads": self.threads}

    def serve(self, cell: Cell) -> Answer:
        graph = Graph(self.library, cell, self.threads, cell.dtype)
        peak = measure.peak_bytes(graph.run)
        ops = graph.ops()
        return Answer(
            graph.output(), ops, "the graph's nodes, after the run", "yes" if ops == "FLASH_ATTN_EXT" else "unknown", (), peak,
            measure.median_ns(graph.run, cell.time_ns),
        )  # fmt: skip
