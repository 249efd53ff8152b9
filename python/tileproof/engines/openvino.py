# SPDX-License-Identifier: Apache-2.0
"""OpenVINO's ScaledDotProductAttention as a compiled model, in its two forms: alone, and with k and v kept as states
of the model (the form its decoders use). Head dims first: [batch][head][token][dim]. What ran is read from the runtime model and
the counters of the run: a node's friendly name says nothing, as it stays when the node has been taken apart."""
from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13

from . import host, measure
from .cell import Answer, Cell, NotServed, Variant, from_bf16, store

ELEMENT = {"f32": openvino.Type.f32, "f16": openvino.Type.f16, "bf16": openvino.Type.bf16}
SDPA = "ScaledDotProductAttention"


def name() -> str:
    return f"openvino {openvino.__version__.split('-')[0]}"


def configuration(dtype: str, threads: int) -> dict[str, Any]:
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": "1",
        "INFERENCE_PRECISION_HINT": dtype,
        "KV_CACHE_PRECISION": dtype,
        "PERF_COUNT": True,
    }


def shared(array: np.ndarray, dtype: str) -> Any:
    """A tensor on the memory of an array of stored elements."""
    return openvino.Tensor(array, array.shape, ELEMENT[dtype])


def bhsd(cell: Cell, which: str) -> np.ndarray:
    whole = cell.padded(which, stored=True)
    if which == "q" and cell.q_factors is not None:
        whole = cell.scaled_q().reshape(whole.shape)
    return np.ascontiguousarray(whole.transpose(0, 2, 1, 3))


def read(cell: Cell, tensor: Any) -> np.ndarray:
    """bf16 outputs are read by their bits."""
    shape = (cell.batch, cell.q_heads, cell.q_len, cell.head_dim_v)
    if cell.dtype == "bf16":
        values = from_bf16(np.frombuffer(bytes(tensor.data.view(np.uint8)), np.uint16).reshape(shape))
    else:
        values = np.array(tensor.data).reshape(shape).astype(np.float32)
    return cell.unpad(values.transpose(0, 2, 1, 3))


class Alone:
    """The op takes no groups: k and v are repeated beforehand. Causal is top-left; other masks are dense."""

    def __init__(self, core: Any, cell: Cell, threads: int) -> None:
        self.cell, dtype = cell, cell.dtype
        q, k, v = (bhsd(cell, x) for x in "qkv")
        k, v = (np.ascontiguousarray(np.repeat(x, cell.group, axis=1)) for x in (k, v))
        arrays = {"q": q, "k": k, "v": v}
        causal = cell.mask == "causal" and cell.square and cell.slopes is None
        if cell.slopes is not None or (cell.mask != "full" and not causal):
            arrays["mask"] = store(cell.bias()[None], dtype)
        nodes = [opset13.parameter(x.shape, ELEMENT[dtype], n) for n, x in arrays.items()]
        more = {}
        if not cell.usual_scale:  # the fifth input, behind a mask
            if "mask" not in arrays:
                arrays["mask"] = store(np.zeros((1, 1, 1, 1), np.float32), dtype)
                nodes.append(opset13.parameter(arrays["mask"].shape, ELEMENT[dtype], "mask"))
            more["scale"] = opset13.convert(opset13.constant(np.array(cell.scale, np.float32)), ELEMENT[dtype])
        result = opset13.scaled_dot_product_attention(*nodes, **more, causal=causal)
        model = openvino.Model([opset13.result(result)], nodes, "attention")
        self.compiled, self.arrays = core.compile_model(model, "CPU", configuration(dtype, threads)), arrays
        self.request = self.make_request()
        label = "sdpa" if cell.group == 1 else "sdpa, k and v repeated"
        self.variant = Variant(label, self.run, self.output)

    def make_request(self) -> Any:
        request = self.compiled.create_infer_request()
        for i, x in enumerate(self.arrays.values()):
            request.set_input_tensor(i, shared(x, self.cell.dtype))
        return request

    def run(self) -> None:
        self.request.start_async()
        self.request.wait()

    def fresh(self) -> None:
        """With memory of its own."""
        self.request = self.make_request()
        self.run()

    def output(self) -> np.ndarray:
        return read(self.cell, self.request.get_output_tensor(0))


class Stateful:
    """Decode: all keys but the last are states, set before each turn. Every call appends one key, so the later calls
    of a turn see a few more."""

    def __init__(self, core: Any, cell: Cell, threads: int) -> None:
        self.cell = cell
        element = ELEMENT[cell.dtype]
        self.arrays = {x: bhsd(cell, x) for x in "qkv"}
        self.past = {x: np.ascontiguousarray(self.arrays[x][:, :, :-1]) for x in "kv"}
        nodes, kept, assigns = self.inputs(cell, element)
        out = opset13.scaled_dot_product_attention(nodes[0], *kept, causal=False)
        model = openvino.Model([opset13.result(out)], assigns, nodes, "decode")
        self.compiled = core.compile_model(model, "CPU", configuration(cell.dtype, threads))
        self.request = self.compiled.create_infer_request()
        self.request.set_input_tensor(0, shared(self.arrays["q"], cell.dtype))
        self.last = [np.ascontiguousarray(self.arrays[x][:, :, -1:]) for x in "kv"]
        for i, x in enumerate(self.last):
            self.request.set_input_tensor(1 + i, shared(x, cell.dtype))
        self.beam = np.arange(cell.batch, dtype=np.int32)
        self.request.set_input_tensor(3, openvino.Tensor(self.beam))
        self.variant = Variant("stateful", self.run, self.output, self.reset)
        self.reset()

    def inputs(self, cell: Cell, element: Any) -> tuple[Any, ...]:
        sizes = [-1, cell.q_heads, -1, cell.head_dim], [-1, cell.kv_heads, -1, cell.head_dim]
        q = opset13.parameter(sizes[0], element, "q")
        k, v = (opset13.parameter(sizes[1], element, x) for x in "kv")
        beam = opset13.parameter([-1], np.int32, "beam")
        empty = opset13.constant(np.zeros((cell.batch, cell.kv_heads, 0, cell.head_dim), np.float32))
        init = opset13.convert(empty, element)
        kept, assigns = [], []
        for new, label in ((k, "k"), (v, "v")):
            past = opset13.read_value(init, label, element, openvino.PartialShape(sizes[1]))
            past = opset13.gather(past, beam, opset13.constant(0, np.int32))
            whole = opset13.concat([past, new], 2)
            assigns.append(opset13.assign(whole, label))
            kept.append(self.group(whole, cell))
        return [q, k, v, beam], kept, assigns

    @staticmethod
    def group(whole: Any, cell: Cell) -> Any:
        """Heads of a group share k and v by a broadcast, the form that the fused op recognises."""
        if cell.group == 1:
            return whole
        wide = opset13.unsqueeze(whole, opset13.constant(2, np.int32))
        target = opset13.constant([1, 1, cell.group, 1, 1], np.int32)
        wide = opset13.broadcast(wide, target, broadcast_spec="BIDIRECTIONAL")
        shape = opset13.constant([0, cell.q_heads, -1, cell.head_dim], np.int32)
        return opset13.reshape(wide, shape, True)

    def reset(self) -> None:
        self.request.reset_state()
        for state in self.request.query_state():
            state.state = shared(self.past[state.name], self.cell.dtype)

    def run(self) -> None:
        self.request.start_async()
        self.request.wait()

    def fresh(self) -> None:
        self.reset()
        self.run()

    def output(self) -> np.ndarray:
        """Of one call on the states as given."""
        self.reset()
        self.run()
        return read(self.cell, self.request.get_output_tensor(0))


# ---- the runner ----


TOLD = ("layerType", "originalLayersNames", "primitiveType", "runtimePrecision")


def executed(way: Any) -> tuple[list[Any], str, str]:
    """(kernels, fused, precision) of what ran: layer type and primitive from the runtime model, of nodes that the counters say
    were executed."""
    ran = {x.node_name for x in way.request.get_profiling_info() if x.status == x.Status.EXECUTED}
    kernels, types, precisions = [], [], []
    for op in way.compiled.get_runtime_model().get_ops():
        info = op.get_rt_info()
        value = {key: info[key].astype(str) if key in info else "" for key in TOLD}
        kind = value["layerType"]
        if op.get_friendly_name() not in ran or kind in ("Input", "Output", "Reorder", "MemoryInput", "MemoryOutput", "Const"):
            continue
        parts = set(value["originalLayersNames"].replace(",", " ").split())
        soft = any("oftmax" in x for x in parts)
        types.append("Subgraph with softmax" if kind == "Subgraph" and soft else kind)
        kernels.append(f"{types[-1]} {value['primitiveType']}".strip())
        precisions.append(value["runtimePrecision"])
    fused = "yes" if any(x.startswith(SDPA) for x in types) else "no" if any(x.lower() == "softmax" for x in types) else "unknown"
    return kernels, fused, "/".join(dict.fromkeys(filter(None, precisions)))


class Engine:
    name, device, mode = "openvino", "cpu", "graph"

    def __init__(self, options: Any) -> None:
        if options.device == "cuda":
            raise NotServed("OpenVINO has no CUDA device")
        self.core, self.threads = openvino.Core(), host.threads(options.threads)
        self.versions = {"openvino": openvino.__version__}
        self.host = {"capabilities": ".".join(self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")), "threads": self.threads}

    def way(self, cell: Cell) -> Any:
        """Decoders keep their keys as states."""
        if cell.q_len == 1 and cell.kv_len > 1 and cell.mask == "full" and cell.slopes is None and cell.head_dim == cell.head_dim_v and cell.usual_scale:
            return Stateful(self.core, cell, self.threads)
        return Alone(self.core, cell, self.threads)

    def serve(self, cell: Cell) -> Answer:
        if cell.softcap or cell.sinks is not None:
            raise NotServed(f"{SDPA} of opset 13 has no {'softcap' if cell.softcap else 'sinks'}")
        parts = cell.parts()
        ways = [self.way(part) for part in parts]
        largest = max(range(len(parts)), key=lambda i: parts[i].batch * parts[i].q_len * parts[i].kv_len)
        peak = measure.peak_bytes(ways[largest].fresh)
        for x in ways:
            x.fresh()
        outputs = [x.output() for x in ways]
        found = [executed(x) for x in ways]
        kernels = "+".join(dict.fromkeys(x for names, _, _ in found for x in names))
        kinds = [x for _, x, _ in found]
        fused = "no" if "no" in kinds else "unknown" if "unknown" in kinds else "yes"
        precision = "/".join(dict.fromkeys(x for _, _, x in found if x))
        reasons = [f"runs in {precision}"] if precision and precision != {"f32": "f32", "f16": "f16", "bf16": "bf16"}[cell.dtype] else []
        run, reset = (lambda: [x.run() for x in ways]), (lambda: [x.variant.reset() for x in ways])
        return Answer(
            np.concatenate(outputs), kernels, "profiler", fused, tuple(reasons), peak, measure.median_ns(run, cell.time_ns, reset)
        )  # fmt: skip


# ---- make peers ----


def variants(cell: Cell, threads: int) -> list[Variant]:
    if not cell.uniform:
        raise NotServed("lengths that differ: only a padded batch is written here, which is not its best")
    core = openvino.Core()
    capable = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if cell.dtype != "f32" and {"f16": "FP16", "bf16": "BF16"}[cell.dtype] not in capable:
        raise NotServed(f"computes {cell.dtype} in f32 on this host")
    if cell.mask == "causal" and not cell.square:
        raise NotServed("causal from the top left only")
    if cell.q_len == 1:
        return [Stateful(core, cell, threads).variant, Alone(core, cell, threads).variant]
    return [Alone(core, cell, threads).variant]
