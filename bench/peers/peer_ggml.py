# SPDX-License-Identifier: Apache-2.0
"""ggml's flash_attn_ext through its own C API. q and o are f32, as the op wants; k and v are f32 for f32 problems,
f16 for f16 ones, and either f16 or bf16 for bf16 ones (the same values). A mask is an f16 tensor, made beforehand. The
library is built by setup.py for this host. ik_llama is a fork with other kernels behind the same functions."""
import ctypes
import pathlib

import numpy as np

from problem import store
from timing import NotServed, Variant

TYPES = {"f32": 0, "f16": 1, "bf16": 30}  # enum ggml_type
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


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool)]


class Library:
    """The functions above, from whichever of the libraries in a folder has them."""

    def __init__(self, folder):
        loaded = [ctypes.CDLL(str(path)) for path in sorted(pathlib.Path(folder).rglob("libggml*.so"))]
        if not loaded:
            raise OSError(f"no libggml*.so under {folder}")
        SIGNATURES["ggml_init"] = (_P, [InitParams])
        for name, (result, arguments) in SIGNATURES.items():
            function = next((getattr(x, name) for x in loaded if hasattr(x, name)), None)
            if function is None:
                raise OSError(f"no {name} under {folder}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


class Peer:
    """fork: ik_llama, which wants a mask always and aborts on f32 k and v."""

    def __init__(self, folder, title, fork=False):
        self.library, self.title, self.fork = Library(folder), title, fork

    def name(self):
        return self.title

    def variants(self, case, threads):
        if self.fork and case.problem.dtype == "f32":
            raise NotServed("it takes no f32 k and v")
        kinds = ["f16", "bf16"] if case.problem.dtype == "bf16" else [case.problem.dtype]
        return [Graph(self.library, case, threads, kind, mask_always=self.fork).variant for kind in kinds]


class Graph:
    """A node a sequence; a plain batch is one node."""

    def __init__(self, library, case, threads, kind, mask_always):
        self.library, self.case, problem = library, case, case.problem
        self.kind, self.mask_always = kind, mask_always
        self.backend = library.ggml_backend_cpu_init()
        library.ggml_backend_cpu_set_n_threads(self.backend, threads)
        self.context = library.ggml_init(InitParams(self.bytes(), None, False))
        self.graph = library.ggml_new_graph(self.context)
        if problem.packed:
            tensors = [[case.sequence(x, i)[None] for x in "qkv"] for i in range(problem.batch)]
        else:
            tensors = [[case.batch(x) for x in "qkv"]]
        self.outputs = [self.node(*parts) for parts in tensors]
        self.variant = Variant(f"flash_attn_ext, {kind} k and v", self.run, self.output)

    def bytes(self):
        """Room for every tensor, twice the stored sizes to be safe, and masks."""
        elements = sum(x.size for x in self.case.values.values()) + self.case.values["q"].size
        masks = sum(q * (k + 64) for q, k in self.case.problem.lengths)
        return elements * 4 + masks * 2 + (64 << 20)

    def tensor(self, values, kind):
        """An array with its dims as ggml names them: the last is the first."""
        shape = (1,) * (4 - values.ndim) + values.shape
        made = self.library.ggml_new_tensor_4d(self.context, TYPES[kind], *reversed(shape))
        data = store(values, kind)
        ctypes.memmove(self.library.ggml_get_data(made), data.ctypes.data, data.nbytes)
        return made

    def mask(self, q_len, kv_len):
        problem = self.case.problem
        if not problem.masked and not self.mask_always:
            return None
        seen = problem.visible(q_len, kv_len, range(q_len))
        rows = np.zeros((-(-q_len // 64) * 64, kv_len), np.float32)  # older versions want rows in 64s
        rows[:q_len] = np.where(seen, 0, -np.inf)
        return self.tensor(rows, "f16")

    def node(self, q, k, v):
        shape, kv_len = q.shape, k.shape[1]  # [batch][token][head][dim], which is the op's output
        q, k, v = (
            self.tensor(x.transpose(0, 2, 1, 3), kind)
            for x, kind in ((q, "f32"), (k, self.kind), (v, self.kind))
        )
        mask = self.mask(shape[1], kv_len)
        o = self.library.ggml_flash_attn_ext(self.context, q, k, v, mask, self.case.problem.scale, 0.0, 0.0)
        self.library.ggml_build_forward_expand(self.graph, o)
        return o, shape

    def run(self):
        status = self.library.ggml_backend_graph_compute(self.backend, self.graph)
        if status:
            raise RuntimeError(f"ggml status {status}")

    def output(self):
        parts = []
        for o, shape in self.outputs:
            count = int(np.prod(shape))
            data = (ctypes.c_float * count).from_address(self.library.ggml_get_data(o))
            parts.append(np.frombuffer(data, np.float32).reshape((-1,) + shape[2:]).copy())
        return np.concatenate(parts)

    def __del__(self):
        if getattr(self, "context", None):
            self.library.ggml_free(self.context)
            self.library.ggml_backend_free(self.backend)
