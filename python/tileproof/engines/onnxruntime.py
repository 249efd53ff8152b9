# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: MultiHeadAttention, GroupQueryAttention with its cache, and ONNX's own Attention. Inputs and outputs
are bound once; a cache is one buffer, bound as past and as present, so that no token copies it.

The runner is given the node that a model exported today has: GroupQueryAttention where it is causal, Attention of opset 23
otherwise. The profile names nodes and not kernels: whether one is fused inside is read from its memory."""
from __future__ import annotations

import functools
import json
import os
import tempfile
from typing import Any, Optional

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from . import host, measure
from .cell import Answer, Cell, NotServed, Variant

ELEMENT = {"f32": (np.float32, TensorProto.FLOAT), "f16": (np.float16, TensorProto.FLOAT16)}
MS = "com.microsoft"
NODES = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
onnxruntime.set_default_logger_severity(3)


def name() -> str:
    return f"onnxruntime {onnxruntime.__version__}"


class Session:
    """One node as a model, its inputs bound."""

    def __init__(
        self, threads: int, node: Any, inputs: Any, outputs: Any, element: Any, opsets: Any, spinning: bool = True,
        arena: bool = True, profile: Optional[str] = None,
    ) -> None:  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        options.enable_cpu_mem_arena = arena
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, profile
        kinds = {np.dtype(np.int32): TensorProto.INT32, np.dtype(bool): TensorProto.BOOL}
        infos = [helper.make_tensor_value_info(n, kinds.get(x.dtype, element), x.shape) for n, x in inputs.items()]
        results = [helper.make_tensor_value_info(n, element, x.shape) for n, x in outputs.items()]
        graph = helper.make_graph([node], "attention", infos, results)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets])
        model.ir_version = 10
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.inputs = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x) for n, x in inputs.items()}
        for n, x in self.inputs.items():
            self.binding.bind_ortvalue_input(n, x)
        self.outputs = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x) for n, x in outputs.items()}

    def bind(self, shared: Any = ()) -> Session:
        """Outputs in their own memory, or in that of an input."""
        for n, x in self.outputs.items():
            self.binding.bind_ortvalue_output(n, self.inputs[dict(shared)[n]] if n in dict(shared) else x)
        self.run()
        return self

    def run(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def output(self) -> np.ndarray:
        made: np.ndarray[Any, Any] = self.outputs["o"].numpy()
        return made


# ---- nodes ----


def tokens(cell: Cell, which: str, numpy_type: Any) -> np.ndarray:
    """[batch][token][head * dim]"""
    whole = cell.padded(which)
    return np.ascontiguousarray(whole.reshape(whole.shape[0], whole.shape[1], -1), numpy_type)


def heads_first(cell: Cell, which: str, numpy_type: Any) -> np.ndarray:
    return np.ascontiguousarray(cell.padded(which).transpose(0, 2, 1, 3), numpy_type)


def multi_head(cell: Cell, threads: int, dtype: str, **more: Any) -> Session:
    """Fused in f32 without a mask only."""
    numpy_type, element = ELEMENT[dtype]
    inputs = {x: tokens(cell, x, numpy_type) for x in "qkv"}
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["o"], domain=MS, num_heads=cell.q_heads, scale=cell.scale,
        unidirectional=int(cell.mask == "causal"),
    )  # fmt: skip
    outputs = {"o": np.zeros_like(inputs["q"])}
    return Session(threads, node, inputs, outputs, element, [("", 17), (MS, 1)], **more).bind()


def group_query(cell: Cell, threads: int, dtype: str, **more: Any) -> Session:
    """Causal. With one row all keys but the last are in the cache; in prefill the cache is empty, and it is filled."""
    numpy_type, element = ELEMENT[dtype]
    past = {x: heads_first(cell, x, numpy_type) for x in "kv"}
    inputs = {"q": tokens(cell, "q", numpy_type)}
    for x in "kv":
        inputs[x] = np.ascontiguousarray(tokens(cell, x, numpy_type)[:, -cell.q_len :])
        inputs["past_" + x] = past[x] if cell.q_len == 1 else np.zeros(past[x].shape, numpy_type)
    inputs["last"] = np.array([kv - 1 for _, kv in cell.lengths], np.int32)
    inputs["total"] = np.array([cell.kv_len], np.int32)
    names = ["q", "k", "v", "past_k", "past_v", "last", "total"]
    if cell.sinks is not None:
        inputs["sinks"] = cell.sinks.astype(numpy_type)
        names += ["", "", "", "", "sinks"]
    outputs = {"o": np.zeros_like(inputs["q"]), "new_k": past["k"], "new_v": past["v"]}
    attributes: dict[str, Any] = {"local_window_size": cell.window + 1} if cell.mask == "causal_window" else {}
    attributes |= {"softcap": cell.softcap} if cell.softcap else {}
    node = helper.make_node(
        "GroupQueryAttention", names, list(outputs), domain=MS, num_heads=cell.q_heads, kv_num_heads=cell.kv_heads,
        scale=cell.scale, **attributes,
    )  # fmt: skip
    session = Session(threads, node, inputs, outputs, element, [("", 17), (MS, 1)], **more)
    return session.bind({"new_k": "past_k", "new_v": "past_v"}.items())


def plain(cell: Cell, threads: int, dtype: str, **more: Any) -> Session:
    """ONNX's Attention, opset 23: any group; causal from the top left, any other mask as a tensor."""
    numpy_type, element = ELEMENT[dtype]
    inputs = {x: heads_first(cell, x, numpy_type) for x in "qkv"}
    names = ["q", "k", "v"]
    causal = cell.mask == "causal" and cell.square
    if cell.slopes is not None:
        inputs["mask"] = cell.bias().astype(numpy_type)[None]
    elif cell.mask != "full" and not causal:
        inputs["mask"] = np.ascontiguousarray(cell.visible(0))
    names += ["mask"] if "mask" in inputs else []
    attributes = {"softcap": cell.softcap} if cell.softcap else {}
    node = helper.make_node("Attention", names, ["o"], is_causal=int(causal and cell.slopes is None), scale=cell.scale, **attributes)
    outputs = {"o": np.zeros(inputs["q"].shape[:3] + inputs["v"].shape[3:], numpy_type)}
    return Session(threads, node, inputs, outputs, element, [("", 23)], **more).bind()


# ---- the runner ----


def choose(cell: Cell) -> Any:
    """The node for one of cell.parts()."""
    causal = cell.mask in ("causal", "causal_window") or cell.q_len == 1
    square_or_row = cell.q_len == cell.kv_len or (cell.q_len == 1 and cell.kv_len > 1)
    same_dims = cell.head_dim == cell.head_dim_v and cell.head_dim % 8 == 0
    if causal and square_or_row and same_dims and cell.slopes is None and cell.mask != "visible":
        return group_query
    if cell.sinks is not None:
        raise NotServed("sinks: GroupQueryAttention alone has them, for causal calls of one row or as many rows as keys")
    return plain


def executed(session: Session) -> list[str]:
    """The nodes that the last calls ran, from the session's own profile."""
    path = session.session.end_profiling()
    try:
        with open(path) as file:
            events = json.load(file)
    finally:
        os.unlink(path)
    return [x["args"]["op_name"] for x in events if x.get("cat") == "Node" and str(x.get("name", "")).endswith("_kernel_time")]


class Engine:
    name, device, mode = "onnxruntime", "cpu", "graph"

    def __init__(self, options: Any) -> None:
        if options.device == "cuda":
            raise NotServed("ONNX Runtime on CUDA: no runner was written for it, as there was no GPU to try it on")
        self.threads = host.threads(options.threads)
        self.versions, self.host = host.versions("onnxruntime", "onnx"), {"threads": self.threads}

    def serve(self, cell: Cell) -> Answer:
        dtype = "f16" if cell.dtype == "f16" else "f32"
        reasons = ["computed in f32: no bf16 attention on CPUs"] if cell.dtype == "bf16" else []
        parts = cell.parts()
        if cell.q_factors is not None:
            for part in parts:
                part.stored = part.stored | {"q": part.scaled_q()}
        made = [(choose(part), part) for part in parts]
        with tempfile.TemporaryDirectory() as folder:
            # profiles are named by the millisecond: each has a name of its own
            sessions = [
                node(part, self.threads, dtype, spinning=False, profile=os.path.join(folder, f"{i}"))
                for i, (node, part) in enumerate(made)
            ]
            nodes = list(dict.fromkeys(x for session in sessions for x in executed(session)))
        output = [self.read(part, session) for (_, part), session in zip(made, sessions)]
        largest = max(range(len(parts)), key=lambda i: parts[i].batch * parts[i].q_len * parts[i].kv_len)
        # without an arena every temporary is taken anew, and seen
        fresh = made[largest][0](parts[largest], self.threads, dtype, spinning=False, arena=False)
        peak = measure.peak_bytes(fresh.run)
        plain_nodes = [x for x in nodes if x in NODES]
        fused = "unknown" if plain_nodes and len(plain_nodes) == len(nodes) else "no"
        reasons += [] if fused == "unknown" else ["the session took the node apart"]
        time_ns = measure.median_ns(lambda: [x.run() for x in sessions], cell.time_ns)
        return Answer(np.concatenate(output), "+".join(nodes), "profiler", fused, tuple(reasons), peak, time_ns)

    @staticmethod
    def read(cell: Cell, session: Session) -> np.ndarray:
        o = session.output().astype(np.float32)
        whole = o.transpose(0, 2, 1, 3) if o.ndim == 4 else o.reshape(cell.batch, cell.q_len, cell.q_heads, -1)
        return cell.unpad(whole)


# ---- make peers ----


def variants(cell: Cell, threads: int) -> list[Variant]:
    if cell.dtype not in ELEMENT:
        raise NotServed(f"no {cell.dtype} attention on CPUs")
    makers = []
    full = cell.square or cell.mask == "full"
    if cell.group == 1 and full and cell.uniform and cell.mask != "causal_window":
        makers.append(("MultiHeadAttention", multi_head))
    if (cell.mask != "full" or cell.q_len == 1) and cell.head_dim % 8 == 0:
        makers.append(("GroupQueryAttention", group_query))
    if cell.mask != "causal_window" and cell.uniform and (cell.mask == "full" or cell.square):
        makers.append(("Attention", plain))
    found, reasons = [], []
    for label, maker in makers:
        try:
            session = maker(cell, threads, cell.dtype)
            found.append(Variant(label, session.run, functools.partial(Engine.read, cell, session)))
        except Exception as error:  # a missing kernel is any of several exception types
            reasons.append(str(error).splitlines()[0][:120])
    if not found:
        raise NotServed("; ".join(reasons) or "no op for this mask")
    return found
