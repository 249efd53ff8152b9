# SPDX-License-Identifier: Apache-2.0
"""tileproof.Rotary: every kind, style and way in against the formula in float64, and what is refused."""
import inspect
import json
import pathlib
import unittest

import ml_dtypes
import numpy as np
import tileproof
from tileproof import Rotary, _core, proof

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
random = np.random.default_rng(31)
EPS = {np.float32: 2.0**-23, np.float16: 2.0**-10, ml_dtypes.bfloat16: 2.0**-7}


def rotate(x, cos, sin, interleaved=False, first=0):
    """x (..., tokens, heads, d) by (..., tokens, pairs), in float64."""
    x, cos, sin = x.astype(np.float64), cos[..., None, :], sin[..., None, :]
    pairs = cos.shape[-1]
    one, two = (slice(first, first + 2 * pairs, 2), slice(first + 1, first + 2 * pairs, 2)) if interleaved else (
        slice(first, first + pairs), slice(first + pairs, first + 2 * pairs))  # fmt: skip
    a, b, made = x[..., one], x[..., two], x.copy()
    made[..., one], made[..., two] = a * cos - b * sin, b * cos + a * sin
    return made


def inverse(dims, theta):
    return theta ** (-np.arange(0, dims, 2) / dims)


def frequencies(kind, dims, theta, factor, length, now):
    """By the papers' formulas."""
    f = inverse(dims, theta)
    if kind == "linear":
        return f / factor, 1.0
    if kind == "dynamic" and now > length:
        return inverse(dims, theta * (factor * now / length - (factor - 1)) ** (dims / (dims - 2))), 1.0
    if kind == "llama3":
        turns = length * f / (2 * np.pi)
        part = np.clip((turns - 1) / (4 - 1), 0, 1)
        return (1 - part) * f / factor + part * f, 1.0
    if kind == "yarn":
        pair = lambda turns: dims * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(theta))
        low, high = max(np.floor(pair(32)), 0), min(np.ceil(pair(1)), dims - 1)
        ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
        return f / factor * ramp + f * (1 - ramp), 0.1 * np.log(factor) + 1
    return f, 1.0


class Values(unittest.TestCase):
    def near(self, got, want, dtype=np.float32, times=2):
        self.assertEqual(got.dtype, dtype)
        self.assertLess(np.abs(got.astype(np.float64) - want).max(initial=0), times * EPS[dtype] * max(np.abs(want).max(initial=1), 1))

    def test_kinds(self):
        x, at = random.standard_normal((2, 7, 3, 32)).astype(np.float32), random.integers(0, 900, (2, 7))
        now = int(at.max()) + 1
        for kind, named in (
            ("default", {}), ("linear", dict(factor=4.0)), ("dynamic", dict(factor=2.0, original_length=100)),
            ("dynamic", dict(factor=2.0, original_length=10000)), ("llama3", dict(factor=8.0, original_length=200, low_freq_factor=1.0, high_freq_factor=4.0)),
            ("yarn", dict(factor=4.0, original_length=256)),
        ):  # fmt: skip
            with self.subTest(kind=kind):
                f, times = frequencies(kind, 32, 1000.0, named.get("factor"), named.get("original_length"), now)
                angle = at[..., None] * f
                got = Rotary(32, kind=kind, theta=1000.0, **named).apply(x, at)
                self.near(got, rotate(x, np.cos(angle) * times, np.sin(angle) * times), times=4)
        own = Rotary(32, kind="dynamic", theta=1000.0, factor=2.0, original_length=100)
        self.assertTrue((own.apply(x, at) == own.apply(x, at, length=now)).all())
        self.assertFalse((own.apply(x, at) == own.apply(x, at, length=now + 50)).all())

    def test_longrope_by_lists_and_arrays(self):
        x = random.standard_normal((1, 4, 2, 8)).astype(np.float32)
        short, long = [1.0, 2.0, 3.0, 4.0], np.array([2, 4, 8, 16], np.float32)
        named = dict(kind="longrope", original_length=10, factor=4.0, short_factors=short, long_factors=long)
        times = np.sqrt(1 + np.log(4) / np.log(10))
        for at, factors in ((np.arange(4), short), (np.arange(8, 12), long)):
            angle = at[:, None] * inverse(8, 1e4) / np.array(factors, float)
            self.near(Rotary(8, **named).apply(x, at), rotate(x, np.cos(angle) * times, np.sin(angle) * times), times=4)

    def test_styles_dims_dtypes_and_layouts(self):
        at = random.integers(0, 5000, (2, 6))
        angle = at[..., None] * inverse(16, 1e4)
        for dtype in EPS:
            x = random.standard_normal((2, 6, 3, 40)).astype(dtype)
            for style, first in ((s, f) for s in ("neox", "interleaved") for f in (0, 24)):
                rotary = Rotary(40, style=style, dims=16, first=first)
                self.assertEqual((rotary.head_dim, rotary.pairs), (40, 8))
                got = rotary.apply(x, at)
                self.near(got, rotate(x, np.cos(angle), np.sin(angle), style == "interleaved", first), dtype)
                swapped = rotary.apply(x.swapaxes(1, 2), at.astype(np.int32), layout="bhsd")
                self.assertTrue((swapped.swapaxes(1, 2) == got).all())
                self.assertTrue((rotary.apply(x[1], at[1], layout="thd") == got[1]).all())
                self.assertTrue((rotary.apply(x, angles=rotary.angles(at)) == got).all())
                same = x.copy()
                self.assertIs(rotary.apply(same, at, out=same), same)
                self.assertTrue((same == got).all())
                into, room = np.zeros((2, 6, 3, 80), dtype), np.zeros((2, 6, 3, 80), dtype)
                into[..., ::2] = x
                rotary.apply(into[..., ::2], at, out=room[..., :40])  # a copy of x, rows apart in out
                self.assertTrue((room[..., :40] == got).all() and (room[..., 40:] == 0).all())
        x = random.standard_normal((2, 6, 3, 16)).astype(np.float32)
        shared = Rotary(16).apply(x, at[0])  # one list for all of the batch
        self.assertTrue((shared[1] == Rotary(16).apply(x[1], at[0], layout="thd")).all())

    def test_tables(self):
        angle = np.arange(50)[:, None] * inverse(16, 1e4)
        tables = [f(angle).astype(np.float32) for f in (np.cos, np.sin)]
        x, at = random.standard_normal((2, 6, 3, 16)).astype(np.float32), random.integers(0, 50, (2, 6))
        rotary = Rotary(16, cos_table=tables[0], sin_table=np.asfortranarray(tables[1]))
        self.near(rotary.apply(x, at), rotate(x, tables[0][at], tables[1][at]))
        tables[0][:] = tables[1][:] = 0  # they were copied
        self.near(rotary.apply(x, at), rotate(x, np.cos(angle)[at], np.sin(angle)[at]))
        with self.assertRaisesRegex(ValueError, "50"):
            rotary.apply(x, at + 50)

    def test_sections(self):
        at = random.integers(0, 100, (3, 2, 6))
        x, f = random.standard_normal((2, 6, 3, 16)).astype(np.float32), inverse(16, 1e4)
        for turns, of in ((False, [0] * 4 + [1] * 2 + [2] * 2), (True, [0, 1, 2, 0, 1, 2, 0, 0])):
            rotary = Rotary(16, sections=(4, 2, 2), sections_interleave=turns)
            angle = np.stack([at[a] * f[i] for i, a in enumerate(of)], -1)
            self.near(rotary.apply(x, at), rotate(x, np.cos(angle), np.sin(angle)))
            self.assertTrue((rotary.apply(x[1], at[:, 1], layout="thd") == rotary.apply(x, at)[1]).all())
            cos, sin = rotary.angles(at)
            self.assertEqual(cos.shape, (2, 6, 8))
            self.assertTrue((rotary.apply(x, angles=(cos, sin)) == rotary.apply(x, at)).all())
            self.near(sin, np.sin(angle))

    def test_norms(self):
        x, weight = random.standard_normal((2, 6, 3, 16)).astype(np.float32) * 5, random.standard_normal(16).astype(np.float32)
        at = np.arange(6)
        angle = at[:, None] * inverse(16, 1e4)
        for one in (False, True):
            wide = x.astype(np.float64)
            normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 0.5) * (weight + one)
            got = Rotary(16).apply(x, at, norm=weight, norm_eps=0.5, norm_one_plus=one)
            self.near(got, rotate(normed, np.cos(angle), np.sin(angle)), times=4)

    def test_models(self):
        text = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 128, "vocab_size": 99, "intermediate_size": 64, "rope_theta": 500.0}'
        rotary = Rotary.of_model(proof.Model(text, "config.json"), 1)
        x, at = random.standard_normal((1, 6, 2, 16)).astype(np.float32), np.arange(6)
        self.assertTrue((rotary.apply(x, at) == Rotary(16, theta=500.0).apply(x, at)).all())
        with self.assertRaisesRegex(ValueError, "layer"):
            Rotary.of_model(proof.Model(text, "config.json"), 2)

    def test_lists_of_longrope_that_a_file_leaves_out(self):
        for name, pairs, original in (("phi-3.5-mini", 48, 4096), ("phi-4-mini", 48, 4096)):
            model = proof.Model.read(MODELS / f"{name}.json")
            short, long = [1 + 0.01 * i for i in range(pairs)], np.linspace(1, 60, pairs, dtype=np.float32)
            rotary = Rotary.of_model(model, 3, short_factors=short, long_factors=long)
            other = Rotary(rotary.head_dim, dims=2 * pairs, kind="longrope", factor=131072 / original, original_length=original, short_factors=short, long_factors=long)
            self.assertEqual(rotary.pairs, pairs)
            for at in (np.arange(6), np.arange(original - 3, original + 3)):
                self.assertTrue(all((a == b).all() for a, b in zip(rotary.angles(at), other.angles(at))))
            for given, text in (
                (dict(), f"{name}.json has no short_factor: longrope needs this list of rope_scaling, of {pairs} numbers; give it as short_factors=, from the model's own config.json"),
                (dict(short_factors=short), "has no long_factor: .* give it as long_factors="),
                (dict(short_factors=short[:-1], long_factors=long), f"short_factors has {pairs - 1} numbers: it must have half the rotated dims, {pairs}, as short_factor of rope_scaling"),
                (dict(short_factors=short, long_factors=long[1:]), "long_factors has shape|long_factors has 47 numbers"),
                (dict(short_factors=[0.0] * pairs, long_factors=long), r"short_factors\[0\] is 0: factors must be"),
                (dict(short_factors=np.ones((pairs, 1), np.float32), long_factors=long), r"short_factors has shape \(48, 1\): it must be \(pairs,\)"),
            ):
                with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                    Rotary.of_model(model, 3, **given)
        lists = {"short_factor": [1.0, 2, 3, 4], "long_factor": [5.0, 6, 7, 8]}
        phi = lambda **more: proof.Model(json.dumps({
            "model_type": "phi3", "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8, "original_max_position_embeddings": 99,
            "rope_scaling": {"type": "longrope", **more}}), "config.json")  # fmt: skip
        whole = Rotary.of_model(phi(**lists))
        for missing, given in (("short_factor", "short_factors"), ("long_factor", "long_factors")):  # a file with one of them
            rest = {name: x for name, x in lists.items() if name != missing}
            at = np.arange(95, 103)
            made = Rotary.of_model(phi(**rest), **{given: lists[missing]})
            for end in (4, 8):
                self.assertTrue((made.angles(at[:end])[0] == whole.angles(at[:end])[0]).all())
            with self.assertRaisesRegex(ValueError, f"config.json has no {missing}: "):
                Rotary.of_model(phi(**rest))
        with self.assertRaisesRegex(ValueError, "long_factors is given and config.json has long_factor: one of them must go"):
            Rotary.of_model(phi(**lists), long_factors=[1.0] * 4)
        llama = proof.Model('{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}', "config.json")
        with self.assertRaisesRegex(ValueError, "short_factors is given and this layer of config.json is no longrope, which alone has lists: leave it out"):
            Rotary.of_model(llama, short_factors=[1.0] * 8)

    def test_nothing(self):
        self.assertEqual(Rotary(8).apply(np.zeros((0, 3, 2, 8), np.float32), np.arange(3)).shape, (0, 3, 2, 8))
        self.assertEqual(Rotary(8).apply(np.zeros((2, 0, 2, 8), np.float32), np.zeros(0, int)).shape, (2, 0, 2, 8))


class Refusals(unittest.TestCase):
    def test_options_are_those_of_the_extension(self):
        given = list(inspect.signature(Rotary.__init__).parameters)[1:]
        self.assertEqual(given, list(_core.rope_options))

    def test_options(self):
        for named, kind, text in (
            (dict(kind="spiral"), ValueError, "kind is 'spiral': it must be none, default, linear"),
            (dict(style="gpt"), ValueError, "style is 'gpt': it must be neox or interleaved"),
            (dict(angle="half"), ValueError, "angle is 'half': it must be double or float32"),
            (dict(theta="x"), TypeError, "theta is 'x': it must be a number"),
            (dict(dims=1.5), TypeError, "dims is 1.5: it must be an integer"),
            (dict(dims=3), ValueError, "dims is 3"),
            (dict(kind="linear"), ValueError, "factor is 0"),
            (dict(sections=(1, 1)), ValueError, r"sections is \(1, 1\): it must be None or \(time, height, width\)"),
            (dict(sections=(1, 1, 1)), ValueError, "sections"),
            (dict(sections=(1, 2**40, 1)), ValueError, "sections"),
            (dict(sections=(1, 4, 3), sections_interleave=True), ValueError, "sections 1, 4, 3 take turns .*: of 8 pairs height has at most 3, every third"),
            (dict(kind="longrope", original_length=9, short_factors=[1.0] * 8, long_factors=[1.0] * 7), ValueError, r"long_factors has shape \(7,\): it must be that of short_factors"),
            (dict(kind="longrope", original_length=9, short_factors=np.ones((8, 1), np.float32)), ValueError, r"short_factors has shape \(8, 1\): it must be \(pairs,\)"),
            (dict(cos_table=np.ones((9, 8))), TypeError, "cos_table is float64: it must be float32"),
            (dict(cos_table=np.ones((9, 8), np.float32), sin_table=np.ones((9, 7), np.float32)), ValueError, r"sin_table has shape \(9, 7\): it must be that of cos_table"),
            (dict(cos_table=np.ones((9, 8), np.float32)), ValueError, "sin_table"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                Rotary(16, **named)

    def test_calls(self):
        rotary, x, at = Rotary(16), np.ones((2, 3, 1, 16), np.float32), np.arange(3)
        frozen = x.copy()
        frozen.flags.writeable = False
        for call, kind, text in (
            (lambda: rotary.apply(x), ValueError, "positions and angles are None: a rotation needs one"),
            (lambda: rotary.apply(x, at, angles=rotary.angles(at)), ValueError, "positions and angles are both given"),
            (lambda: rotary.apply(x, at[:2]), ValueError, r"positions has shape \(2,\): it must be \(3\) or \(2, 3\)"),
            (lambda: rotary.apply(x, at[None].repeat(3, 0)), ValueError, r"positions has shape \(3, 3\)"),
            (lambda: rotary.apply(x, at.astype(float)), TypeError, "positions is float64: it must be int32 or int64"),
            (lambda: rotary.apply(x, at - 1), ValueError, "-1"),
            (lambda: rotary.apply(x, at, length=2), ValueError, "length is 2"),
            (lambda: rotary.apply(x[..., :8], at), ValueError, "x has shape .*: with layout \"bshd\" it must have 4 dimensions, the last of 16"),
            (lambda: rotary.apply(x[0], at), ValueError, "it must have 4 dimensions"),
            (lambda: rotary.apply(x, at, layout="hsd"), ValueError, "layout is 'hsd'"),
            (lambda: rotary.apply(x.astype(np.float64), at), TypeError, "x is float64"),
            (lambda: rotary.apply(x, at, out=x[:, :2]), ValueError, "it must have the shape and dtype of x"),
            (lambda: rotary.apply(x, at, out=x.astype(np.float16)), ValueError, "it must have the shape and dtype of x"),
            (lambda: rotary.apply(x, at, out=frozen), ValueError, "it is read-only and must be writable"),
            (lambda: rotary.apply(x, at, out=np.ones((2, 3, 1, 32), np.float32)[..., ::2]), ValueError, "its last dimension is not contiguous"),
            (lambda: rotary.apply(x, at, norm=np.ones(8, np.float32)), ValueError, r"norm has shape \(8,\): it must be \(16,\)"),
            (lambda: rotary.apply(x, at, norm=np.ones(16, np.float32), norm_eps=-1.0), ValueError, "norm_eps"),
            (lambda: rotary.apply(x, angles=1), TypeError, r"angles is 1: it must be \(cosines, sines\)"),
            (lambda: rotary.apply(x, angles=rotary.angles(at[:2])), ValueError, r"angles\[0\] has shape \(2, 8\): it must be \(3, 8\) or \(2, 3, 8\)"),
            (lambda: rotary.angles(np.zeros((1, 1, 1), int)), ValueError, "positions has shape"),
            (lambda: Rotary(16, sections=(4, 2, 2)).angles(at), ValueError, "positions has shape"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                call()
        self.assertTrue((x == 1).all())
        over = np.ones(2 * 3 * 16 + 1, np.float32)
        with self.assertRaises(ValueError):  # overlaps what is read
            rotary.apply(over[:-1].reshape(2, 3, 1, 16), at, out=over[1:].reshape(2, 3, 1, 16))
        self.assertTrue((over == 1).all())


if __name__ == "__main__":
    unittest.main()
