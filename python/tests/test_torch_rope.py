# SPDX-License-Identifier: Apache-2.0
"""Rotation of every shipped config against transformers' own rotary classes and functions, on random rows and positions.

What may differ, element by element, for a pair (a, b) and the attention factor A, with u = 2^-24:

    (|a| + |b|) * A * (angle * r + s)

angle * r: by how much the angles of both sides may differ. Both compute frequencies in float32 and in the same order where
"float32" is asked; their powers may differ by one unit in the last place, 2u, which a sum of two frequencies (yarn, llama3) doubles:
r = 6u with the rounding of the product. In double one side is exact, and r is what float32 loses: the exponent 2i/d is rounded,
which the power multiplies by ln(theta) <= 18, then come up to 14 roundings, and llama3 divides by a factor of up to 32 what was
rounded before: r = 32u, 80u for llama3.

s: cosine, sine, two products and a sum, in float32 on either side: 8u. In a 16-bit dtype transformers rounds cosine and sine, each
product and the sum to it, and this library the sum alone: 4 units of that dtype. A norm before is 3 roundings here, and there as
many and a sum of squares in float32: 24u, or 2 more units of a 16-bit dtype."""
import importlib
import inspect
import itertools
import json
import pathlib
import re
import unittest

import tileproof
import torch
import transformers

import model_library

MODELS = sorted((pathlib.Path(__file__).resolve().parents[2] / "models").glob("*.json"))
U = 2.0**-24
UNIT = {torch.float32: U, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
BATCH, TOKENS, HEADS = 2, 33, 3


def module_of(config):
    name = type(config).__module__.replace("configuration_", "modeling_")
    return importlib.import_module(name)


def rotary_of(config):
    """The text's rotary class; None: the model has none."""
    module = module_of(config)
    names = [x for x in vars(module) if "Rotary" in x and "Vision" not in x and getattr(module, x).__module__ == module.__name__]
    return getattr(module, names[0])(config) if names else None


class Turned:
    """transformers' rotation of rows [batch, token, head, dim] for one config."""

    def __init__(self, config):
        self.config, self.module, self.rotary = config, module_of(config), rotary_of(config)
        self.kind = config.model_type
        self.interleaved = self.kind in ("cohere", "llama4_text", "deepseek_v2", "deepseek_v3", "gptj")

    def layer_type(self, layer):
        takes = self.rotary and "layer_type" in inspect.signature(inspect.unwrap(type(self.rotary).forward)).parameters
        return {"layer_type": self.config.layer_types[layer]} if takes else {}

    def __call__(self, rows, positions, layer):
        if self.kind == "gptj":
            table, n = self.module.create_sinusoidal_positions(int(positions.max()) + 1, self.config.rotary_dim), self.config.rotary_dim
            sin, cos = table[positions].to(rows.dtype).chunk(2, -1)
            return torch.cat([self.module.apply_rotary_pos_emb(rows[..., :n], sin, cos), rows[..., n:]], -1)
        found, heads_first = self.rotary(rows, positions, **self.layer_type(layer)), rows.transpose(1, 2)
        if self.kind == "llama4_text":
            return self.module.apply_rotary_emb(rows, rows, found)[0]
        if self.kind == "deepseek_v2":
            return self.module.apply_rotary_emb(heads_first, heads_first, found)[0].transpose(1, 2)
        if self.kind == "deepseek_v3":  # writes the first of every pair, then the second: any order is right, if q and k share it
            out = self.module.apply_rotary_pos_emb_interleave(heads_first, heads_first, *found)[0].transpose(1, 2)
            return torch.stack(out.chunk(2, -1), -1).flatten(-2)
        return self.module.apply_rotary_pos_emb(heads_first, heads_first, *found)[0].transpose(1, 2)

    def angles(self, positions, layer):
        """Of each pair, with the greatest of a token's positions."""
        if self.kind == "gptj":
            frequencies = 1 / 1e4 ** (torch.arange(0, self.config.rotary_dim, 2, dtype=torch.double) / self.config.rotary_dim)
        else:
            name = self.layer_type(layer).get("layer_type")
            frequencies = getattr(self.rotary, f"{name}_inv_freq" if name else "inv_freq").double()
        tokens = positions.double() if positions.dim() == 2 else positions.double().amax(0)
        return tokens[..., None] * frequencies

    def by_pair(self, rows, pairs):
        """Rotated elements as [..., 2, pair]."""
        part = rows[..., : 2 * pairs]
        return part.unflatten(-1, (pairs, 2)).transpose(-1, -2) if self.interleaved else part.unflatten(-1, (2, pairs))

    def attention(self, layer):
        name = self.layer_type(layer).get("layer_type")
        found = getattr(self.rotary, f"{name}_attention_scaling" if name else "attention_scaling", 1.0)
        return float(found)


def text_of(fields):
    """The config of a file's text; some files call the whole model by its text's type."""
    inner = fields.get("text_config")
    if isinstance(inner, dict) and inner.get("model_type") == fields["model_type"]:
        fields = inner
    return transformers.CONFIG_MAPPING[fields["model_type"]].from_dict(dict(fields)).get_text_config(decoder=True)


def shipped():
    """(name, config of the text, our model). Shipped files leave out the lists of longrope: random ones stand in."""
    for path in MODELS:
        fields = json.loads(path.read_text())
        scaling = fields.get("rope_scaling") or {}
        if scaling.get("type") == "longrope":
            head_dim = fields["hidden_size"] // fields["num_attention_heads"]
            count = int(head_dim * fields.get("partial_rotary_factor", 1)) // 2
            scaling |= {f"{x}_factor": (1 + y * torch.rand(count)).tolist() for x, y in (("short", 2), ("long", 60))}
        yield path.stem, text_of(fields), model_library.Model(fields)


def text_groups(model):
    """(first layer, group) of each group of the text that is attention."""
    for group in model.groups:
        if group["part"] == "text" and "out_of_scope" not in group:
            yield int(re.match(r"\d+", group["layers"])[0]), group


def positions_of(sections, end):
    shape = (3, BATCH, TOKENS) if sections else (BATCH, TOKENS)
    positions = torch.randint(0, end, shape)
    positions[..., :4] = torch.arange(4)
    return positions


def norm_of(config, dim):
    """transformers' norm of q with random weights, and what our rotation takes for it; None: the model has none by head."""
    names = {"qwen3": "Qwen3RMSNorm", "qwen3_vl_text": "Qwen3VLTextRMSNorm", "gemma3_text": "Gemma3RMSNorm"}
    if config.model_type not in names:
        return None
    norm = getattr(module_of(config), names[config.model_type])(dim, eps=config.rms_norm_eps)
    with torch.no_grad():
        norm.weight.normal_()
    return norm, (norm.weight.detach(), config.rms_norm_eps, config.model_type == "gemma3_text")


@unittest.skipUnless(model_library.library, "TILEPROOF_MODELS names no library")
class Rope(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        transformers.logging.set_verbosity_error()
        torch.manual_seed(0)

    @torch.no_grad()
    def compare(self, turned, model, layer, group, end, dtype, angle, norm=None):
        """The greatest difference as a share of what it may be."""
        rope, llama3 = group["rope"], group["rope"]["kind"] == "llama3"
        latent = turned.kind.startswith("deepseek")
        dim, pairs = rope["dims"] if latent else group["head_dim_qk"], rope["dims"] // 2
        rows = (torch.randn(BATCH, TOKENS, HEADS, dim) * 3).to(dtype)
        positions = positions_of("mrope_section" in rope, end)
        start, s = rows, 8 * U if dtype == torch.float32 else 4 * UNIT[dtype]
        if norm is not None:
            start, s = norm[0](rows), s + (24 * U if dtype == torch.float32 else 2 * UNIT[dtype])
        want = turned(start, positions, layer).double()
        got = model.rotate(layer, rows, positions, angle, None if norm is None else norm[1]).double()
        self.assertFalse(torch.isnan(got).any())
        r = 6 * U if angle == "float32" else (80 if llama3 else 32) * U
        angles = turned.angles(positions, layer)[:, :, None, None, :]
        sizes = turned.by_pair(start.double().abs(), pairs).sum(-2, keepdim=True)
        allowed = sizes * turned.attention(layer) * (angles * r + s) + 1e-30
        share = (turned.by_pair((want - got).abs(), pairs) / allowed).max().item()
        rest = (want - got)[..., 2 * pairs :].abs() / (want[..., 2 * pairs :].abs() + 1e-30)  # normed at most
        if dim > 2 * pairs:
            self.assertLessEqual(rest.max().item(), 0 if norm is None else s)
        return share

    def test_every_shipped_config_turns_as_transformers_does(self):
        compared, worst = 0, {}
        for name, config, model in shipped():
            turned = Turned(config)
            for layer, group in text_groups(model):
                if group["rope"]["kind"] == "none":
                    rows = torch.randn(BATCH, TOKENS, HEADS, group["head_dim_qk"])
                    self.assertTrue(torch.equal(model.rotate(layer, rows, positions_of(False, 100)), rows))
                    continue
                ends = [getattr(config, "max_position_embeddings", None) or 2048, 1 << 20]
                if turned.kind == "gptj":
                    ends.pop()  # transformers keeps a table of all positions
                for end, dtype, angle in itertools.product(ends, UNIT, ("float32", "double")):
                    with self.subTest(name, layer=layer, end=end, dtype=dtype, angle=angle):
                        share = self.compare(turned, model, layer, group, end, dtype, angle)
                        worst[dtype, angle] = max(worst.get((dtype, angle), 0), share)
                        self.assertLessEqual(share, 1)
                        compared += 1
        for (dtype, angle), share in worst.items():
            print(f"{dtype}, angles in {angle}: at most {share:.2f} of what may differ", flush=True)
        self.assertGreaterEqual(compared, 500)

    def test_sections_in_turns(self):
        """Each that is taken, up to 16 pairs, and those of Qwen3-VL and Qwen3.5: every pair goes by the position that transformers gives it."""
        theirs = importlib.import_module("transformers.models.qwen3_vl.modeling_qwen3_vl").Qwen3VLTextRotaryEmbedding
        lists = [(n - h - w, h, w) for n in range(1, 17) for h in range(n + 1) for w in range(n + 1 - h)]
        taken = 0
        for sections in [*lists, (24, 20, 20), (11, 11, 10)]:
            pairs = sum(sections)
            try:
                rotary = tileproof.Rotary(2 * pairs, sections=sections, sections_interleave=True)
            except ValueError:
                continue
            frequencies = 1e4 ** (-torch.arange(pairs) / pairs)
            positions = torch.tensor([[[5]], [[70]], [[900]]])
            turned = theirs.__new__(theirs)
            torch.nn.Module.__init__(turned)
            turned.rope_type, turned.mrope_section, turned.inv_freq, turned.attention_scaling = "default", list(sections), frequencies, 1.0
            cos, _ = turned(torch.zeros(1), positions)
            want, got = cos[..., :pairs], torch.as_tensor(rotary.angles(positions)[0])
            self.assertLess((want - got).abs().max().item(), 1e-3, sections)
            taken += 1
        self.assertGreater(taken, 100)

    def test_norms_before_the_rotation(self):
        compared = set()
        for name, config, model in shipped():
            for layer, group in text_groups(model):
                norm = norm_of(config, group["head_dim_qk"])
                for dtype in UNIT if norm else ():
                    with self.subTest(name, layer=layer, dtype=dtype):
                        module = norm[0].to(dtype)
                        ours = (module.weight.float().contiguous(), *norm[1][1:])
                        share = self.compare(Turned(config), model, layer, group, 5000, dtype, "float32", (module, ours))
                        self.assertLessEqual(share, 1)
                        compared.add(config.model_type)
        self.assertEqual(compared, {"qwen3", "qwen3_vl_text", "gemma3_text"})
