# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: MultiHeadAttention, GroupQueryAttention with its cache, and ONNX's own Attention. Inputs and outputs
are bound once; a cache is one buffer, bound as past and as present, so that no token copies it."""
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from timing import NotServed, Variant

ELEMENT = {"f32": (np.float32, TensorProto.FLOAT), "f16": (np.float16, TensorProto.FLOAT16)}
MS = "com.microsoft"
onnxruntime.set_default_logger_severity(3)


def name():
    return f"onnxruntime {onnxruntime.__version__}"


def variants(case, threads):
    if case.problem.dtype not in ELEMENT:
        raise NotServed(f"no {case.problem.dtype} attention on CPUs")
    makers = []
    full = case.problem.square or not case.problem.masked
    if case.problem.group == 1 and full and not case.problem.packed and not case.problem.windowed:
        makers.append(multi_head)
    if case.problem.causal and case.problem.head_dim % 8 == 0:
        makers.append(group_query)
    if not case.problem.windowed and not case.problem.packed:
        makers.append(plain)
    found, reasons = [], []
    for maker in makers:
        try:
            found.append(maker(case, threads))
        except Exception as error:  # a missing kernel is any of several exception types
            reasons.append(str(error).splitlines()[0][:120])
    if not found:
        raise NotServed("; ".join(reasons) or "no op for this mask")
    return found


class Session:
    """One node as a model, its inputs bound."""

    def __init__(self, threads, node, inputs, outputs, element, opsets):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        kinds = {np.dtype(np.int32): TensorProto.INT32}
        infos = [
            helper.make_tensor_value_info(n, kinds.get(x.dtype, element), x.shape) for n, x in inputs.items()
        ]
        results = [helper.make_tensor_value_info(n, element, x.shape) for n, x in outputs.items()]
        graph = helper.make_graph([node], "attention", infos, results)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets])
        model.ir_version = 10
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.binding = self.session.io_binding()
        self.inputs = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x) for n, x in inputs.items()}
        for n, x in self.inputs.items():
            self.binding.bind_ortvalue_input(n, x)
        self.outputs = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x) for n, x in outputs.items()}

    def bind(self, shared=()):
        """Outputs in their own memory, or in that of an input."""
        for n, x in self.outputs.items():
            self.binding.bind_ortvalue_output(n, self.inputs[dict(shared)[n]] if n in dict(shared) else x)
        self.run()
        return self

    def run(self):
        self.session.run_with_iobinding(self.binding)


def tokens(case, which):
    """[batch][token][head * dim]"""
    whole = case.batch(which, stored=True)
    return np.ascontiguousarray(whole.reshape(whole.shape[0], whole.shape[1], -1))


def read_tokens(case, session):
    problem = case.problem
    whole = session.outputs["o"].numpy().astype(np.float32)
    return case.unpad(whole.reshape(problem.batch, problem.q_len, problem.q_heads, problem.head_dim))


def multi_head(case, threads):
    """Fused in f32 without a mask only."""
    inputs = {x: tokens(case, x) for x in "qkv"}
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["o"], domain=MS, num_heads=case.problem.q_heads,
        unidirectional=int(case.problem.masked),
    )  # fmt: skip
    _, element = ELEMENT[case.problem.dtype]
    outputs = {"o": np.zeros_like(inputs["q"])}
    session = Session(threads, node, inputs, outputs, element, [("", 17), (MS, 1)]).bind()
    return Variant("MultiHeadAttention", session.run, lambda: read_tokens(case, session))


def group_query(case, threads):
    """Causal. In decode all keys but the last are in the cache; in prefill the cache is empty, and it is filled."""
    problem = case.problem
    numpy_type, element = ELEMENT[problem.dtype]
    past = {x: np.ascontiguousarray(case.batch(x, stored=True).transpose(0, 2, 1, 3)) for x in "kv"}
    inputs = {"q": tokens(case, "q")}
    for x in "kv":
        inputs[x] = np.ascontiguousarray(tokens(case, x)[:, -problem.q_len :])
        inputs["past_" + x] = past[x] if problem.phase == "decode" else np.zeros(past[x].shape, numpy_type)
    inputs["last"] = np.array([kv - 1 for _, kv in problem.lengths], np.int32)
    inputs["total"] = np.array([problem.kv_len], np.int32)
    outputs = {"o": np.zeros_like(inputs["q"]), "new_k": past["k"], "new_v": past["v"]}
    attributes = {"local_window_size": problem.left + 1} if problem.windowed else {}
    node = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "last", "total"], list(outputs), domain=MS,
        num_heads=problem.q_heads, kv_num_heads=problem.kv_heads, **attributes,
    )  # fmt: skip
    session = Session(threads, node, inputs, outputs, element, [("", 17), (MS, 1)])
    session.bind({"new_k": "past_k", "new_v": "past_v"}.items())
    return Variant("GroupQueryAttention", session.run, lambda: read_tokens(case, session))


def plain(case, threads):
    """ONNX's Attention, opset 23: any group, causal when square."""
    problem = case.problem
    _, element = ELEMENT[problem.dtype]
    if problem.masked and not problem.square:
        raise NotServed("Attention is causal from the top left only")
    inputs = {x: np.ascontiguousarray(case.batch(x, stored=True).transpose(0, 2, 1, 3)) for x in "qkv"}
    node = helper.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=int(problem.masked))
    outputs = {"o": np.zeros_like(inputs["q"])}
    session = Session(threads, node, inputs, outputs, element, [("", 23)]).bind()

    def output():
        return case.unpad(session.outputs["o"].numpy().astype(np.float32).transpose(0, 2, 1, 3))

    return Variant("Attention", session.run, output)
