# SPDX-License-Identifier: Apache-2.0
"""OpenVINO's ScaledDotProductAttention as a compiled model, in its two forms: alone, and with k and v kept as states
of the model (the form its decoders use). Head dims first: [batch][head][token][dim]."""
import numpy as np
import openvino
from openvino import opset13

from timing import NotServed, Variant

ELEMENT = {"f32": openvino.Type.f32, "f16": openvino.Type.f16, "bf16": openvino.Type.bf16}


def name():
    return f"openvino {openvino.__version__.split('-')[0]}"


def variants(case, threads):
    problem = case.problem
    if problem.packed:
        raise NotServed("lengths that differ: only a padded batch is written here, which is not its best")
    core = openvino.Core()
    capable = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if problem.dtype != "f32" and {"f16": "FP16", "bf16": "BF16"}[problem.dtype] not in capable:
        raise NotServed(f"computes {problem.dtype} in f32 on this host")
    if problem.phase == "decode":
        return [Stateful(core, case, threads).variant, Alone(core, case, threads).variant]
    return [Alone(core, case, threads).variant]


def configuration(problem, threads):
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": "1",
        "INFERENCE_PRECISION_HINT": problem.dtype,
        "KV_CACHE_PRECISION": problem.dtype,
    }


def shared(array, dtype):
    """A tensor on the memory of an array of stored elements."""
    return openvino.Tensor(array, array.shape, ELEMENT[dtype])


def bhsd(case, which):
    return np.ascontiguousarray(case.batch(which, stored=True).transpose(0, 2, 1, 3))


def read(case, tensor):
    """bf16 outputs are read by their bits."""
    problem = case.problem
    shape = (problem.batch, problem.q_heads, problem.q_len, problem.head_dim)
    if problem.dtype == "bf16":
        bits = np.frombuffer(bytes(tensor.data.view(np.uint8)), np.uint16).reshape(shape)
        values = (bits.astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.array(tensor.data).reshape(shape).astype(np.float32)
    return case.unpad(values.transpose(0, 2, 1, 3))


class Alone:
    """The op takes no groups: k and v are repeated beforehand. Causal is top-left; windows need a dense mask."""

    def __init__(self, core, case, threads):
        problem = case.problem
        if problem.masked and not problem.square:
            raise NotServed("causal from the top left only")
        q, k, v = (bhsd(case, x) for x in "qkv")
        k, v = (np.ascontiguousarray(np.repeat(x, problem.group, axis=1)) for x in (k, v))
        arrays = {"q": q, "k": k, "v": v}
        if problem.windowed:
            seen = problem.visible(problem.q_len, problem.kv_len, range(problem.q_len))
            arrays["mask"] = store_mask(seen, problem.dtype)
        nodes = [opset13.parameter(x.shape, ELEMENT[problem.dtype], n) for n, x in arrays.items()]
        causal = problem.masked and not problem.windowed
        result = opset13.scaled_dot_product_attention(*nodes, causal=causal)
        model = openvino.Model([opset13.result(result)], nodes, "attention")
        compiled = core.compile_model(model, "CPU", configuration(problem, threads))
        self.request, self.arrays = compiled.create_infer_request(), arrays
        for i, x in enumerate(arrays.values()):
            self.request.set_input_tensor(i, shared(x, problem.dtype))
        label = "sdpa" if problem.group == 1 else "sdpa, k and v repeated"
        self.variant = Variant(label, self.run, lambda: read(case, self.request.get_output_tensor(0)))

    def run(self):
        self.request.start_async()
        self.request.wait()


def store_mask(seen, dtype):
    values = np.where(seen, np.float32(0), np.float32(-np.inf))[None, None]
    if dtype == "bf16":
        return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16))
    return np.ascontiguousarray(values, np.float16 if dtype == "f16" else np.float32)


class Stateful:
    """Decode: all keys but the last are states, set before each turn. Every call appends one key, so the later calls
    of a turn see a few more."""

    def __init__(self, core, case, threads):
        problem, self.case = case.problem, case
        element = ELEMENT[problem.dtype]
        self.arrays = {x: bhsd(case, x) for x in "qkv"}
        self.past = {x: np.ascontiguousarray(self.arrays[x][:, :, :-1]) for x in "kv"}
        nodes, kept, assigns = self.inputs(problem, element)
        out = opset13.scaled_dot_product_attention(nodes[0], *kept, causal=False)
        model = openvino.Model([opset13.result(out)], assigns, nodes, "decode")
        compiled = core.compile_model(model, "CPU", configuration(problem, threads))
        self.request = compiled.create_infer_request()
        self.request.set_input_tensor(0, shared(self.arrays["q"], problem.dtype))
        self.last = [np.ascontiguousarray(self.arrays[x][:, :, -1:]) for x in "kv"]
        for i, x in enumerate(self.last):
            self.request.set_input_tensor(1 + i, shared(x, problem.dtype))
        self.beam = np.arange(problem.batch, dtype=np.int32)
        self.request.set_input_tensor(3, openvino.Tensor(self.beam))
        self.variant = Variant("stateful", self.run, self.output, self.reset)
        self.reset()

    def inputs(self, problem, element):
        sizes = [-1, problem.q_heads, -1, problem.head_dim], [-1, problem.kv_heads, -1, problem.head_dim]
        q = opset13.parameter(sizes[0], element, "q")
        k, v = (opset13.parameter(sizes[1], element, x) for x in "kv")
        beam = opset13.parameter([-1], np.int32, "beam")
        empty = opset13.constant(np.zeros((problem.batch, problem.kv_heads, 0, problem.head_dim), np.float32))
        init = opset13.convert(empty, element)
        kept, assigns = [], []
        for new, label in ((k, "k"), (v, "v")):
            past = opset13.read_value(init, label, element, openvino.PartialShape(sizes[1]))
            past = opset13.gather(past, beam, opset13.constant(0, np.int32))
            whole = opset13.concat([past, new], 2)
            assigns.append(opset13.assign(whole, label))
            kept.append(self.group(whole, problem))
        return [q, k, v, beam], kept, assigns

    @staticmethod
    def group(whole, problem):
        """Heads of a group share k and v by a broadcast, the form that the fused op recognises."""
        if problem.group == 1:
            return whole
        wide = opset13.unsqueeze(whole, opset13.constant(2, np.int32))
        target = opset13.constant([1, 1, problem.group, 1, 1], np.int32)
        wide = opset13.broadcast(wide, target, broadcast_spec="BIDIRECTIONAL")
        shape = opset13.constant([0, problem.q_heads, -1, problem.head_dim], np.int32)
        return opset13.reshape(wide, shape, True)

    def reset(self):
        self.request.reset_state()
        for state in self.request.query_state():
            state.state = shared(self.past[state.name], self.case.problem.dtype)

    def run(self):
        self.request.start_async()
        self.request.wait()

    def output(self):
        """Of one call on the states as given."""
        self.reset()
        self.run()
        return read(self.case, self.request.get_output_tensor(0))
