# SPDX-License-Identifier: Apache-2.0
"""What a model of transformers does in each attention layer, on random tensors: its own attention computes once more with
random q, k and v in place of the model's, beside its own mask, scale and weights. Three ways in, by how a class is written:
a function eager_attention_forward, a method _attn, or only projections."""
import contextlib
import dataclasses
import inspect
import re
import sys

import torch


@dataclasses.dataclass
class Call:
    path: str  # of the module: layers.3.self_attn
    part: str  # text, vision, audio, cross
    layer: int
    q: torch.Tensor  # [batch, token, head, dim]
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    mask: torch.Tensor  # what was added to the scores; None: nothing, or it was not seen
    sinks: torch.Tensor
    module: torch.nn.Module


def part_of(path):
    for part, words in (("cross", r"encoder_attn|cross_att"), ("vision", r"vision|visual|image"), ("audio", r"audio")):
        if re.search(words, path):
            return part
    return "text"


def tokens_first(x):
    """[batch, head, token, dim] -> [batch, token, head, dim]"""
    return x.transpose(1, 2).contiguous()


class Watch:
    """Collects the calls of a model's attention while it is open."""

    def __init__(self, model, part=part_of, seed=0):
        self.model, self.part, self.calls = model, part, []
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.files = {sys.modules[type(module).__module__] for module in model.modules()}
        self.random = torch.Generator().manual_seed(seed)
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        self.open()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def change(self, holder, name, value):
        self.stack.callback(setattr, holder, name, getattr(holder, name))
        setattr(holder, name, value)

    def draw(self, like):
        return torch.randn(like.shape, generator=self.random)

    def add(self, module, q, k, v, o, mask):
        path = self.paths[id(module)]
        layer = int(re.search(r"\.(\d+)(\.|$)", "." + path).group(1))
        o = o.reshape(*q.shape[:3], v.shape[3])
        sinks = getattr(module, "sinks", None)
        self.calls.append(Call(path, self.part(path), layer, q, k, v, o, mask, sinks, module))


class FunctionWatch(Watch):
    def open(self):
        for file in self.files:
            for name in [x for x in vars(file) if x.endswith("eager_attention_forward")]:
                self.change(file, name, self.watched(getattr(file, name)))

    def watched(self, function):
        signature = inspect.signature(function)

        def attention(*words, **named):
            bound = dict(signature.bind(*words, **named).arguments)
            more = bound.pop("kwargs", {})
            q, k, v = (self.draw(bound[name]) for name in ("query", "key", "value"))
            out = function(**{**bound, **more, "query": q, "key": k, "value": v})[0]
            self.add(bound["module"], *map(tokens_first, (q, k, v)), out, bound.get("attention_mask"))
            return function(*words, **named)

        return attention


class MethodWatch(Watch):
    def open(self):
        for kind in {type(x) for x in self.model.modules() if hasattr(x, "_attn")}:
            self.change(kind, "_attn", self.watched(kind._attn))

    def watched(self, method):
        def attention(module, query, key, value, *words, **named):
            q, k, v = map(self.draw, (query, key, value))
            out = method(module, q, k, v, *words, **named)[0]
            k = k if k.shape[2] == v.shape[2] else k.transpose(2, 3)  # openai-gpt has the dims first
            self.add(module, *map(tokens_first, (q, k, v)), tokens_first(out), None)
            return method(module, query, key, value, *words, **named)

        return attention


class LinearWatch(Watch):
    """What the projections give is replaced by random numbers, and what goes into the output projection is the result.
    Rotations are left out meanwhile. split(module, outputs) gives q, k and v, [batch, token, head, dim]."""

    def __init__(self, model, projections, out, split, **more):
        super().__init__(model, **more)
        self.projections, self.out, self.split = projections, out, split

    def open(self):
        for file in self.files:
            if hasattr(file, "apply_rotary_pos_emb"):
                self.change(file, "apply_rotary_pos_emb", lambda q, k, *_, **__: (q, k))
        for module in self.model.modules():
            if all(hasattr(module, x) for x in (*self.projections, self.out)):
                self.watch(module)

    def watch(self, module):
        seen = {}

        def projected(name):
            def hook(_, __, output):
                seen[name] = self.draw(output)
                return seen[name]

            return hook

        def result(_, inputs):
            self.add(module, *self.split(module, *(seen[x] for x in self.projections)), inputs[0], None)

        for name in self.projections:
            self.stack.callback(getattr(module, name).register_forward_hook(projected(name)).remove)
        self.stack.callback(getattr(module, self.out).register_forward_pre_hook(result).remove)


def _by_heads(module, *outputs):
    return [x.reshape(*x.shape[:2], -1, module.head_dim) for x in outputs]


SEPARATE = ("q_proj", "k_proj", "v_proj"), "out_proj", _by_heads
LINEAR = {
    "opt": SEPARATE, "xglm": SEPARATE, "whisper": SEPARATE, "qwen2_audio_encoder": SEPARATE, "voxtral_encoder": SEPARATE,
    "audioflamingo3_encoder": SEPARATE,
    "bloom": (("query_key_value",), "dense", lambda m, x: x.view(*x.shape[:2], m.num_heads, 3, -1).unbind(3)),
    "falcon": (("query_key_value",), "dense", lambda m, x: m._split_heads(x)),
    "mpt": (("Wqkv",), "out_proj", lambda m, x: [y.view(*y.shape[:2], m.n_heads, -1) for y in x.chunk(3, 2)]),
}  # fmt: skip
METHOD = {"gptj", "codegen", "gpt_neo", "openai-gpt", "gpt_neox_japanese"}


def watch(model_type, model, **more):
    """The way into this type's attention."""
    if model_type in LINEAR:
        return LinearWatch(model, *LINEAR[model_type], **more)
    return (MethodWatch if model_type in METHOD else FunctionWatch)(model, **more)
