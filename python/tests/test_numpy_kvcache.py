# SPDX-License-Identifier: Apache-2.0
"""tileproof.Cache against plain arrays: random steps, forks, cuts and copies, every dtype and layout, and what is refused."""
import gc
import json
import pathlib
import sys
import threading
import unittest

import letting_go
import ml_dtypes
import numpy as np
import reference
import tileproof
from test_numpy_process import in_a_child
from tileproof import Cache, CacheFull, CacheLayer, Rotary, proof

HEADS, KV_HEADS, DIM = 4, 2, 32
ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS = {
    "float32": CacheLayer(KV_HEADS, DIM, dtype="float32"),
    "float16": CacheLayer(KV_HEADS, DIM, 16, "float16"),
    "bfloat16": CacheLayer(KV_HEADS, DIM),
    "i8": CacheLayer(KV_HEADS, DIM, dtype="i8"),
    "e4m3 by token": CacheLayer(KV_HEADS, DIM, dtype="e4m3/token"),
    "e4m3 of a layer": CacheLayer(KV_HEADS, DIM, dtype="e4m3", k_scale=0.02, v_scale=0.015),
    "i4": CacheLayer(KV_HEADS, DIM, dtype="i4"),
    "q8_0": CacheLayer(KV_HEADS, DIM, dtype="i8/q8_0"),
    "two": CacheLayer(KV_HEADS, DIM, dtype="i8", v_dtype="i4"),
    "plain and codes": CacheLayer(KV_HEADS, DIM, dtype="float32", v_dtype="e4m3", v_scale=0.02),
    "latent": CacheLayer(1, DIM, 16, "float32", latent=True),
}
FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def kept(x, dtype, scale):
    """What the cache keeps of rows."""
    if dtype in FLOATS:
        return x.astype(FLOATS[dtype]).astype(np.float32)
    codes, scales, _ = tileproof.quantise(x, dtype, scale=scale)
    return tileproof.dequantise(codes, scales, dtype)


class Model:
    """A cache, and the same as plain arrays of one layer."""

    def __init__(self, test, layer, seed, pages=40, rotary=None, **options):
        self.test, self.layer, self.rotary, self.random = test, layer, rotary, np.random.default_rng(seed)
        bytes_ = Cache.plan([layer], bytes=1 << 30, sequences=6, tokens=70, page_size=4)["page_bytes"] * pages + 20000
        self.cache = Cache([CacheLayer(0, 0), layer], bytes=bytes_, sequences=6, tokens=70, page_size=4, **options)
        self.rows = {}  # sequence: (k, v)

    def data(self, *shape):
        dtype = FLOATS.get(self.layer.dtype, np.float32)
        return self.random.standard_normal(shape).astype(np.float32).astype(dtype)

    def step(self, sequences, tokens):
        layer, rows = self.layer, sum(tokens)
        q, k = self.data(rows, HEADS, DIM), self.data(rows, layer.kv_heads, DIM)
        v = None if layer.latent else self.data(rows, layer.kv_heads, layer.head_dim_v or DIM)
        try:
            self.cache.extend(sequences, tokens)
        except CacheFull:
            return False
        given = q.copy()
        self.cache.append(1, sequences, k, v, tokens=tokens, q=given, rotary=self.rotary)
        at = 0
        for s, n in zip(sequences, tokens):
            of, position = slice(at, at + n), len(self.rows[s][0]) + np.arange(n)
            turned = k[of]
            if self.rotary is not None and n:
                turned = self.rotary.apply(k[of].astype(np.float32), position, layout="thd")
                want = self.rotary.apply(q[of], position, layout="thd")
                self.test.assertTrue((given[of] == want).all())
            new_k = kept(turned.astype(np.float32), layer.dtype, layer.k_scale)
            new_v = new_k[..., : layer.head_dim_v] if layer.latent else kept(v[of].astype(np.float32), layer.v_dtype or layer.dtype, layer.v_scale)
            self.rows[s] = tuple(np.concatenate(pair) for pair in zip(self.rows[s], (new_k, new_v)))
            at += n
        self.check(sequences, given, tokens)
        return True

    def empty(self):
        v_dim = self.layer.head_dim_v or DIM
        return np.zeros((0, self.layer.kv_heads, DIM), np.float32), np.zeros((0, self.layer.kv_heads, v_dim), np.float32)

    def check(self, sequences, q, tokens, **options):
        out, receipt = self.cache.attention(1, sequences, q, tokens=tokens, causal=True, return_receipt=True, **options)
        self.test.assertEqual(bool(receipt.lossy), any((x or "float32") not in FLOATS for x in (self.layer.dtype, self.layer.v_dtype)))
        self.test.assertEqual(receipt.kv_loss, self.cache.stats()["finite_loss"])  # one layer keeps rows
        self.test.assertEqual(f", loss {receipt.kv_loss:.3g}\n" in repr(receipt), receipt.kv_loss > 0)
        at, tolerance = 0, 6e-6 if out.dtype == np.float32 else 0.03
        for s, n in zip(sequences, tokens):
            k, v = self.rows[s]
            self.test.assertEqual(self.cache.length(s), len(k))
            want = reference.batch(q[None, at : at + n].astype(np.float32), k[None], v[None], causal=True)[0][0]
            self.test.assertLess(reference.error(out[at : at + n], want), tolerance * (1 + np.abs(v).max(initial=0)))
            at += n
        return out, receipt

    def some(self, count):
        open_ = sorted(self.rows)
        return [int(x) for x in self.random.permutation(open_)[:count]]

    def operate(self):
        what = self.random.choice(["open", "step", "step", "step", "fork", "share", "truncate", "close", "copy"])
        if what == "open" or not self.rows:
            try:
                self.rows[self.cache.open()] = self.empty()
            except CacheFull:
                self.test.assertEqual(len(self.rows), 6)
            return
        (one,) = self.some(1)
        length = len(self.rows[one][0])
        if what == "step":
            many = self.some(self.random.integers(1, 4))
            tokens = [int(min(n, 70 - len(self.rows[s][0]))) for s, n in zip(many, self.random.integers(0, 9, 4))]
            self.step(many, tokens)
        elif what in ("fork", "share"):
            tokens = length if what == "fork" else int(self.random.integers(0, length + 1))
            try:
                made = self.cache.fork(one) if what == "fork" else self.cache.share(one, tokens)
            except CacheFull:
                return self.test.assertEqual(len(self.rows), 6)
            self.test.assertNotIn(made, self.rows)
            self.rows[made] = tuple(x[:tokens] for x in self.rows[one])
        elif what == "truncate":
            tokens = int(self.random.integers(0, length + 1))
            self.cache.truncate(one, tokens)
            self.rows[one] = tuple(x[:tokens] for x in self.rows[one])
        elif what == "close":
            self.cache.close(one)
            del self.rows[one]
        else:
            first = int(self.random.integers(0, length + 1))
            copied = self.cache.copy_out(one, first)
            self.cache.truncate(one, first)
            self.cache.copy_in(one, copied)


class Soak(unittest.TestCase):
    def test_random_operations(self):
        for at, (name, layer) in enumerate(LAYERS.items()):
            for layout in ("bshd", "bhsd"):
                with self.subTest(layer=name, layout=layout):
                    rotary = None if at % 2 else Rotary(DIM, style="interleaved", dims=16)
                    model = Model(self, layer, at, rotary=rotary, layout=layout)
                    for _ in range(40):
                        model.operate()
                    for s in list(model.rows):  # what each has, once more
                        if len(model.rows[s][0]):
                            model.check([s], model.data(1, HEADS, DIM), [1])
                    stats = model.cache.stats()
                    self.assertEqual((stats["sequences"], stats["tokens"]), (len(model.rows), sum(len(x[0]) for x in model.rows.values())))
                    self.assertEqual(stats["loss"] > 0, any(x not in FLOATS for x in (layer.dtype, layer.v_dtype or layer.dtype)))
                    self.assertEqual((stats["finite_loss"], stats["rows_not_finite"]), (stats["loss"], 0))
                    for s in list(model.rows):
                        model.cache.close(s)
                    self.assertEqual(model.cache.stats()["pages_used"], 0)

    def test_threads_have_sequences_of_their_own(self):
        cache = Cache([CacheLayer(KV_HEADS, DIM, dtype="float32")], bytes=1 << 22, sequences=4, tokens=100)
        failed = []

        def work(seed):
            random = np.random.default_rng(seed)
            try:
                for _ in range(20):
                    s, keys = cache.open(), random.standard_normal((30, KV_HEADS, DIM)).astype(np.float32)
                    for i in range(0, 30, 3):
                        cache.extend(s, 3)
                        cache.append(0, s, keys[i : i + 3], keys[i : i + 3])
                    q = random.standard_normal((1, HEADS, DIM)).astype(np.float32)
                    want = reference.batch(q[None], keys[None], keys[None])[0][0]
                    if not reference.error(cache.attention(0, s, q), want) < 6e-6:
                        failed.append(seed)
                    cache.close(s)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for x in threads:
            x.start()
        for x in threads:
            x.join()
        self.assertEqual(failed, [])
        self.assertEqual(cache.stats()["pages_used"], 0)


class Attention(unittest.TestCase):
    def test_slots_that_are_no_run(self):
        model = Model(self, LAYERS["i8"], 3)
        a, b, c = (model.cache.open() for _ in range(3))
        model.rows.update((s, model.empty()) for s in (a, b, c))
        model.step([a, b, c], [5, 9, 2])
        together = model.check([a, b, c], model.data(3, HEADS, DIM), [1, 1, 1])
        for order in ([c, a], [a, c], [c, b, a], [b]):
            model.check(order, model.data(2 * len(order), HEADS, DIM), [2] * len(order))
        self.assertIn("page", together[1].problem)

    def test_prefixes(self):
        model = Model(self, LAYERS["float32"], 5)
        a = model.cache.open()
        model.rows[a] = model.empty()
        model.step([a], [30])
        others = [model.cache.fork(a), model.cache.share(a, 16)]
        model.rows.update((s, tuple(x[:n] for x in model.rows[a])) for s, n in zip(others, (30, 16)))
        many = [a, *others]
        model.step(many, [1, 1, 1])
        with_, lens = model.cache.prefixes(many)
        self.assertEqual((list(with_), list(lens)), ([-1, 0, 0], [0, 28, 16]))
        q = model.data(3, HEADS, DIM)
        out, receipt = model.check(many, q, [1] * 3, prefixes=(with_, lens))
        self.assertIn("cascade=", receipt.problem)
        same = model.cache.attention(1, many, q, causal=True, invariant=True)
        self.assertTrue((same == model.cache.attention(1, many, q, causal=True, invariant=True, prefixes=(with_, lens))).all())

    def test_norms_positions_and_angles(self):
        random = np.random.default_rng(9)
        rotary, weight = Rotary(DIM, sections=(8, 4, 4)), random.standard_normal((2, DIM)).astype(np.float32)
        cache = Cache([CacheLayer(KV_HEADS, DIM, dtype="float32")] * 2, bytes=1 << 20, sequences=2, tokens=50)
        s = cache.open()
        q, k, v = (random.standard_normal((7, h, DIM)).astype(np.float32) for h in (HEADS, KV_HEADS, KV_HEADS))
        at = np.sort(random.integers(0, 40, (3, 7)))
        named = dict(norm_eps=0.25, norm_one_plus=True)
        cache.extend(s, 7)
        one, other = q.copy(), q.copy()
        cache.append(0, s, k, v, q=one, rotary=rotary, positions=at, q_norm=weight[0], k_norm=weight[1], **named)
        cache.append(1, s, k, v, q=other, rotary=rotary, angles=rotary.angles(at), q_norm=weight[0], k_norm=weight[1], **named)
        turned = [rotary.apply(x, at, layout="thd", norm=w, **named) for x, w in zip((q, k), weight)]
        self.assertTrue((one == turned[0]).all() and (other == one).all())
        want = reference.batch(turned[0][None], turned[1][None], v[None], causal=True)[0][0]
        for layer in range(2):
            self.assertLess(reference.error(cache.attention(layer, s, one, causal=True), want), 2e-5)

    def test_options_of_attention(self):
        random = np.random.default_rng(10)
        cache = Cache([CacheLayer(KV_HEADS, DIM, dtype="float32")], bytes=1 << 20, sequences=2, tokens=48)
        s = cache.open()
        k, v, q = (random.standard_normal((20, h, DIM)).astype(np.float32) for h in (KV_HEADS, KV_HEADS, HEADS))
        cache.extend(s, 20)
        cache.append(0, s, k, v)
        sinks = random.standard_normal(HEADS).astype(np.float32)
        room = np.empty_like(q)
        out, lse, receipt = cache.attention(0, s, q, causal=True, window=(6, 0), softcap=9.0, sinks=sinks, out=room, return_lse=True, return_receipt=True)
        want, want_lse = reference.batch(q[None], k[None], v[None], causal=True, window=(6, 0), softcap=9.0, sinks=sinks)
        self.assertIs(out, room)
        self.assertLess(reference.error(out, want[0]), 6e-6)
        self.assertLess(reference.error(lse, want_lse[0]), 2e-5)

    def test_models_and_capacity(self):
        text = '{"tileproof_model": 1, "groups": [{"layers": "0-1", "max_positions": 64, "problem": "h2/1 d16 f32 causal"}]}'
        model = proof.Model(text, "small.json")
        holds = Cache.plan(model, bytes=1 << 20, sequences=3, dtype="float32")
        cache = Cache(model, bytes=1 << 20, sequences=3, dtype="float32", name="of a model")
        self.assertEqual(cache.capacity, holds)
        self.assertEqual((cache.layers, holds["token_bytes"]), (2, 2 * 2 * 16 * 4))
        self.assertEqual(holds["tokens"], 16 * holds["pages"])
        self.assertLessEqual(holds["bytes"], 1 << 20)
        for format, bytes_, more in (("i8", 2 * (16 + 4), {}), ("e4m3", 2 * 16, {}), ("e4m3/token", 2 * (16 + 4), {}), ("plain:i8", 64 + 20, {}),
                                     ("i4:plain", 8 + 2 + 32, {"dtype": "float16"}), (None, 128, {}), ("plain", 128, {})):  # fmt: skip
            codes = Cache.plan(model, bytes=1 << 20, sequences=3, tokens=32, cache=format, **more)
            self.assertEqual(codes["token_bytes"], 2 * bytes_, format)
        s = cache.open()
        with self.assertRaisesRegex(ValueError, "64"):
            cache.extend(s, 65)
        self.assertIn('tileproof_cache_pages_used{cache="of a model"} 0', cache.metrics())
        self.assertIn("2 layers, 0 of", repr(cache))
        other = Cache(model, bytes=1 << 20, sequences=3, dtype="float32", name="cross")
        text = Cache.metrics_of([cache, other])
        self.assertEqual(text.count("# TYPE tileproof_cache_pages_used gauge"), 1)
        for name in ("of a model", "cross"):
            self.assertIn(f'\ntileproof_cache_pages_used{{cache="{name}"}} 0\n', text)
        with self.assertRaisesRegex(ValueError, r'caches\[0\] and caches\[1\] are both named "cross"'):
            Cache.metrics_of([other, other])
        for count in (0, 65):
            with self.assertRaisesRegex(ValueError, f"count is {count}: it must be in 1..64"):
                Cache.metrics_of([other] * count)

    def test_formats_of_models_are_those_of_layers(self):
        text = '{"tileproof_model": 1, "groups": [{"layers": "0-1", "max_positions": 64, "problem": "h4/2 d32 f32 causal"}]}'
        model, random = proof.Model(text, "small.json"), np.random.default_rng(4)
        options = dict(bytes=1 << 20, sequences=1)
        q, k, v = (random.standard_normal((9, heads, 32)).astype(np.float32) for heads in (4, 2, 2))
        for format, k_scale, v_scale in (("i8", None, None), ("i8/q8_0", None, None), ("e4m3/token:i4", None, None), ("e4m3", [0.01, 0.017], 0.03), ("e4m3:i8", 0.01, None)):
            of_model = Cache(model, cache=format, k_scale=k_scale, v_scale=v_scale, **options)
            each = lambda x, at: x[at] if isinstance(x, list) else x
            by_hand = Cache([CacheLayer(2, 32, dtype=format, k_scale=each(k_scale, at), v_scale=v_scale) for at in range(2)], tokens=64, **options)
            opened = [(cache, cache.open()) for cache in (of_model, by_hand)]
            for cache, s in opened:
                cache.extend(s, 9)
            for layer in range(2):
                for cache, s in opened:
                    cache.append(layer, s, k, v)
                one, other = (cache.attention(layer, s, q, causal=True) for cache, s in opened)
                self.assertTrue((one == other).all(), format)
        self.assertRaisesRegex(ValueError, "k_scale is None: e4m3/tensor has one scale for a whole layer.*\"e4m3/token\" has one", Cache, model, cache="e4m3", **options)
        self.assertRaisesRegex(ValueError, "v_scale is None: e4m3/tensor", Cache, model, cache="e4m3", k_scale=1.0, **options)
        self.assertRaisesRegex(ValueError, "k_scale is 0.5: only e4m3/tensor has one scale for a whole layer", Cache, model, cache="i8", k_scale=0.5, **options)
        self.assertRaisesRegex(ValueError, "k_scale has 3 numbers and the model 2 layers", Cache, model, cache="e4m3", k_scale=[1, 2, 3], v_scale=1, **options)
        self.assertRaisesRegex(ValueError, "dtype is 'i8': it must be \"float32\".*; codes are named by cache=", Cache, model, dtype="i8", **options)

    def test_parts_of_a_model(self):
        whisper = proof.Model.read(ROOT / "models/whisper-large-v3.json")
        options = dict(bytes=1 << 31, sequences=1)
        text, cross = Cache.plan(whisper, **options), Cache.plan(whisper, part="cross", **options)
        self.assertEqual(text, Cache.plan(whisper, part="text", **options))
        self.assertEqual((text["token_bytes"], cross["token_bytes"]), (32 * 20 * 64 * 2 * 2,) * 2)
        self.assertEqual((text["pages"], cross["pages"]), (448 // 16, 94))  # 1500 keys of the encoder
        codes = Cache.plan(whisper, part="cross", cache="i8", **options)
        self.assertEqual(codes["token_bytes"], 32 * 20 * 2 * (64 + 4))
        for part in ("vision", "audio", 3, None):
            self.assertRaisesRegex(ValueError, f'part is {part!r}: it must be "text" or "cross", whose layers keep keys and values', Cache.plan, whisper, part=part, **options)
        small = proof.Model.read(ROOT / "models/llama-3.2-1b.json")
        self.assertRaisesRegex(tileproof.Unsupported, "no cross layer of it generates", Cache.plan, small, part="cross", **options)

    def test_latent_models(self):
        text = {"model_type": "deepseek_v2", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "kv_lora_rank": 32, "v_head_dim": 32, "max_position_embeddings": 300}  # fmt: skip
        model = proof.Model(json.dumps(text), "latents.json")
        self.assertEqual(Cache(model, bytes=1 << 20, sequences=1, cache="e4m3", k_scale=0.5).capacity["token_bytes"], 2 * 64)

    def test_copies_between_caches(self):
        layer = CacheLayer(KV_HEADS, DIM, dtype="i4")
        one, other = (Cache([layer], bytes=1 << 20, sequences=2, tokens=50, page_size=p, layout=x) for p, x in ((4, "bshd"), (16, "bhsd")))
        a, b, x = one.open(), other.open(), np.random.default_rng(1).standard_normal((21, KV_HEADS, DIM)).astype(np.float32)
        one.extend(a, 21)
        one.append(0, a, x, x)
        other.copy_in(b, one.copy_out(a))
        q = np.random.default_rng(2).standard_normal((1, HEADS, DIM)).astype(np.float32)
        self.assertTrue((one.attention(0, a, q) == other.attention(0, b, q)).all())
        losses = [c.attention(0, s, q, return_receipt=True)[1].kv_loss for c, s in ((one, a), (other, b))]
        self.assertTrue(losses[0] == losses[1] and 1 / 28 < losses[0] <= 1 / 13)  # of i4

    def test_a_loss_outlives_what_is_not_finite(self):
        cache = Cache([CacheLayer(KV_HEADS, DIM, dtype="i8"), CacheLayer(KV_HEADS, DIM, dtype="i4")], bytes=1 << 20, sequences=2, tokens=50)
        s, x = cache.open(), np.random.default_rng(4).standard_normal((3, KV_HEADS, DIM)).astype(np.float32)
        cache.extend(s, 3)
        x[1, 0, 5] = np.nan
        for layer in range(2):
            cache.append(layer, s, x, x)
        stats, q = cache.stats(), np.ones((1, HEADS, DIM), np.float32)
        self.assertEqual((stats["loss"], stats["rows_not_finite"]), (np.inf, 4))
        losses = [cache.attention(layer, s, q, return_receipt=True)[1].kv_loss for layer in range(2)]
        self.assertTrue(0 < losses[0] < 1 / 200 < losses[1] == stats["finite_loss"] < 1 / 12)
        self.assertEqual(tileproof.attention(q[None], q[None], q[None], return_receipt=True)[1].kv_loss, 0)


class Refusals(unittest.TestCase):
    def setUp(self):
        self.cache = Cache([CacheLayer(KV_HEADS, DIM, dtype="float32")] * 2, bytes=60000, sequences=2, tokens=48, page_size=16)
        self.s = self.cache.open()
        self.x = np.ones((4, KV_HEADS, DIM), np.float32)

    def test_making_one(self):
        layer = [CacheLayer(KV_HEADS, DIM)]
        for layers, named, kind, text in (
            (layer, dict(layout="thd"), ValueError, "layout is 'thd': it must be \"bshd\""),
            (layer, dict(dtype="float32"), ValueError, "dtype is 'float32' with layers: each CacheLayer has its own, so it must be left out"),
            (layer, dict(cache="i8"), ValueError, "cache is 'i8' with layers"),
            (layer, dict(part="cross"), ValueError, "part is 'cross' with layers"),
            (layer, dict(k_scale=0.5), ValueError, "k_scale is 0.5 with layers"),
            (layer, dict(format="i8"), TypeError, "'format' is no option of a Cache"),
            (layer, dict(bytes=100), ValueError, "100"),
            (layer, dict(page_size=0), ValueError, "page_size is 0"),
            (layer, dict(tokens=0), ValueError, "sequence_tokens is 0"),
            (layer, dict(sequences="2"), TypeError, "sequences is '2': it must be an integer"),
            ([CacheLayer(2, 32, dtype="int8")], {}, ValueError, "k_dtype is 'int8': it must be \"float32\", \"float16\", \"bfloat16\", or as the format of a cache plain, i8, i8/q8_0"),
            ([CacheLayer(2, 32, v_dtype="x")], {}, ValueError, "v_dtype is 'x': it must be"),
            ([CacheLayer(2, 32, dtype="i8", k_scale=0.5)], {}, ValueError, "k_scale is 0.5: only e4m3/tensor has one scale for a whole layer"),
            ([CacheLayer(2, 32, dtype="e4m3")], {}, ValueError, "k_scale is None: e4m3/tensor has one scale for a whole layer"),
            ([CacheLayer(2, 32, dtype="plain:i8")], {}, ValueError, "k_dtype is 'plain:i8': a layer that is plain names its dtype"),
            ([CacheLayer(2, 32, dtype="i8:i4", v_dtype="i8")], {}, ValueError, "dtype is 'i8:i4' and v_dtype 'i8'"),
            ([CacheLayer(2, 32, dtype=8)], {}, TypeError, "k_dtype is 8: it must be a str"),
            ([CacheLayer(2, 33, dtype="i4")], {}, ValueError, "33"),
            ([CacheLayer(2.5, 33)], {}, TypeError, "kv_heads is 2.5: it must be an integer"),
            ([], {}, ValueError, "layer_count is 0"),
            (layer * 5000, {}, ValueError, "layer_count is 5000"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                Cache(layers, **{**dict(bytes=1 << 20, sequences=2, tokens=10), **named})

    def test_sequences(self):
        cache, s = self.cache, self.s
        closed = cache.open()
        cache.close(closed)
        for call, kind, text in (
            (lambda: cache.extend(s, 49), ValueError, "48"),
            (lambda: cache.extend([s], [1, 2]), ValueError, "tokens has 2 numbers and there are 1 sequences"),
            (lambda: cache.extend([s, closed], 1), ValueError, str(closed)),
            (lambda: cache.extend(s, -1), ValueError, "-1"),
            (lambda: cache.fork(closed), ValueError, str(closed)),
            (lambda: cache.share(s, 1), ValueError, "1"),
            (lambda: cache.truncate(s, 1), ValueError, "1"),
            (lambda: cache.close(closed), ValueError, str(closed)),
            (lambda: cache.length(closed), ValueError, f"sequence {closed} is not open: it was closed, or never opened here"),
            (lambda: cache.length("x"), TypeError, "sequence is 'x': it must be an integer"),
            (lambda: cache.copy_out(s, 1), ValueError, "1"),
            (lambda: cache.copy_in(s, b"abc"), ValueError, "3"),
            (lambda: cache.copy_in(s, "abc"), TypeError, "bytes-like"),
            (lambda: cache.prefixes([closed]), ValueError, str(closed)),
            (lambda: cache.attention(0, closed, np.ones((1, HEADS, DIM), np.float32)), ValueError, f"sequence {closed} is not open"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                call()
        cache.open()
        with self.assertRaisesRegex(CacheFull, "2"):
            cache.open()
        self.assertEqual(cache.stats()["refusals"], 1)
        self.assertIsInstance(CacheFull("x"), tileproof.Error)

    def test_a_full_pool(self):
        other = self.cache.open()
        self.cache.extend(self.s, 48)
        before = self.cache.stats()
        free = before["pages"] - before["pages_used"]
        self.assertLess(free, 3)
        with self.assertRaisesRegex(CacheFull, "page"):
            self.cache.extend(other, 16 * free + 1)
        self.assertEqual(self.cache.length(other), 0)
        self.assertEqual(self.cache.stats()["pages_used"], before["pages_used"])

    def test_append(self):
        cache, s, x = self.cache, self.s, self.x
        cache.extend(s, 4)
        q = np.ones((4, HEADS, DIM), np.float32)
        frozen = q.copy()
        frozen.flags.writeable = False
        rotary, at = Rotary(DIM), np.arange(4)
        for named, kind, text in (
            (dict(k=x, v=x, layer=2), ValueError, "layer is 2"),
            (dict(k=x), ValueError, "v"),
            (dict(k=x, v=x[:3]), ValueError, r"v has shape \(3, 2, 32\): it must be \(4, heads, head dim\)"),
            (dict(k=x[:, :1], v=x), ValueError, r"k has shape \(4, 1, 32\): the layer has 2 KV heads, and rows of 32 elements"),
            (dict(k=x, v=x[..., :8]), ValueError, r"v has shape \(4, 2, 8\)"),
            (dict(k=x, v=x.astype(np.float16)), TypeError, "v is float16: it must be float32, float16 or bfloat16, as k is"),
            (dict(k=x.astype(np.int8), v=x), TypeError, "k is int8"),
            (dict(k=x, v=x, tokens=3), ValueError, r"k has shape \(4, 2, 32\): it must be \(3, heads"),
            (dict(k=x, v=x, tokens=[-1]), ValueError, "tokens is -1: it must be at least 0"),
            (dict(k=x, v=x, sequences=[s, s]), ValueError, "sequence"),
            (dict(k=x, v=x, sequences=[]), ValueError, "there are 4 rows and 0 sequences: tokens must say"),
            (dict(k=x, v=x, q=q[..., :8]), ValueError, r"q has shape \(4, 4, 8\)"),
            (dict(k=x, v=x, q=frozen, rotary=rotary), ValueError, "q is rotated in place: it is read-only"),
            (dict(k=x, v=x, q=np.ones((4, HEADS, 2 * DIM), np.float32)[..., ::2]), ValueError, "q is rotated in place: its last dimension is not contiguous"),
            (dict(k=x, v=x, positions=at), ValueError, "positions is given without rotary"),
            (dict(k=x, v=x, rotary=rotary, positions=at, angles=rotary.angles(at)), ValueError, "positions and angles are both given"),
            (dict(k=x, v=x, rotary=rotary, positions=at[::-1]), ValueError, "backwards"),
            (dict(k=x, v=x, rotary=Rotary(16)), ValueError, "16"),
            (dict(k=x, v=x, k_norm=np.ones(8, np.float32)), ValueError, r"k_norm has shape \(8,\): it must be \(32,\)"),
            (dict(k=np.ones((5, KV_HEADS, DIM), np.float32), v=np.ones((5, KV_HEADS, DIM), np.float32)), ValueError, "5"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                cache.append(**{**dict(layer=0, sequences=s), **named})
        self.assertTrue((q == 1).all())
        with self.assertRaisesRegex(ValueError, "layer 0 has 0 of the 4 tokens of sequence"):
            cache.attention(0, s, q)

    def test_attention(self):
        cache, s, x = self.cache, self.s, self.x
        cache.extend(s, 4)
        cache.append(0, s, x, x)
        q = np.ones((4, HEADS, DIM), np.float32)
        for named, kind, text in (
            (dict(layer=1), ValueError, "layer 1 has 0 of the 4 tokens"),
            (dict(layer=7), ValueError, "layer is 7"),
            (dict(q=q[..., :8]), ValueError, "q has head dim 8 and layer 0 of the cache 32: they must be equal"),
            (dict(q=q[:, :3]), ValueError, "q_heads is 3"),
            (dict(q=q[None]), ValueError, "q has shape"),
            (dict(kv_lens=np.array([2])), ValueError, "kv_lens is given with a cache: it has its own"),
            (dict(v=x), ValueError, "v is given with a cache"),
            (dict(page_table=np.zeros((1, 1), int)), ValueError, "page_table is given with a cache"),
            (dict(latent=4), ValueError, "latent is given with a cache"),
            (dict(k_scales=0.5), ValueError, "k_scales, v_scales, kv_format or kv_loss is given with a cache"),
            (dict(kv_loss=0.5), ValueError, "kv_format or kv_loss is given with a cache"),
            (dict(tokens=[3, 1]), ValueError, "cu_seqlens_q|sequences"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                cache.attention(**{**dict(layer=0, sequences=s, q=q), **named})


class Process(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(11)
        self.q, self.k, self.v = (self.random.standard_normal((64, h, DIM)).astype(np.float32) for h in (HEADS, KV_HEADS, KV_HEADS))

    def filled(self):
        cache = Cache([CacheLayer(KV_HEADS, DIM, dtype="i8")], bytes=1 << 20, sequences=4, tokens=200)
        s = cache.open()
        cache.extend(s, 64)
        cache.append(0, s, self.k, self.v)
        return cache, s

    def test_a_child_has_a_copy_of_its_own(self):
        cache, s = self.filled()
        want = cache.attention(0, s, self.q, causal=True)

        def child():
            fine = (cache.attention(0, s, self.q, causal=True) == want).all()
            cache.extend(s, 64)
            cache.append(0, s, -self.k, -self.v)
            return fine and not (cache.attention(0, s, self.q) == want).all()

        self.assertEqual(in_a_child(child), 0)
        self.assertEqual(cache.length(s), 64)
        self.assertTrue((cache.attention(0, s, self.q, causal=True) == want).all())

    def test_arrays_whose_owner_lets_go_of_them_during_a_call(self):
        cache, s = self.filled()
        want = cache.attention(0, s, self.q)
        other = cache.open()
        cache.extend(other, 64)
        letting_go.during(lambda k, v: cache.append(0, other, k, v), [self.k, self.v], np.copy, lambda x: np.full_like(x, np.nan))
        self.assertTrue((cache.attention(0, other, self.q) == want).all())
        (k, ks, _), (v, vs, _) = tileproof.quantise(self.k[None], "i8"), tileproof.quantise(self.v[None], "i8")
        call = lambda q, k, v, ks, vs: tileproof.attention(q, k, v, k_scales=ks, v_scales=vs)
        arrays = [self.q[None].repeat(4, 1), k, v, ks, vs]
        got = letting_go.during(call, arrays, np.copy, lambda x: np.full_like(x, 7))
        self.assertTrue((got == call(*arrays)).all())

    def test_a_batch_outlives_the_name_of_its_cache(self):
        cache, s = self.filled()
        want = cache.attention(0, s, self.q)
        batch = tileproof._core.cache_batch(cache._cache, 0, (s,))
        del cache
        gc.collect()
        self.assertTrue((tileproof.attention(self.q, batch, layout="thd", cu_seqlens_q=np.array([0, 64])) == want).all())

    def test_nothing_is_kept(self):
        cache, s = self.filled()
        rotary, weight, at, few = Rotary(DIM), np.ones(DIM, np.float32), np.arange(64, 128), np.zeros(3, int)
        codes, scales, _ = tileproof.quantise(self.k[None], "i4")

        def once():
            tileproof.dequantise(codes, scales, "i4")
            tileproof.attention(self.q[None], codes, codes, k_scales=scales, v_scales=scales, kv_format="i4")
            cache.extend(s, 64)
            cache.append(0, s, self.k, self.v, q=self.q.copy(), rotary=rotary, positions=at, k_norm=weight)
            cache.attention(0, [s], self.q, prefixes=cache.prefixes([s]))
            cache.truncate(s, 64)
            cache.close(cache.fork(s))
            rotary.apply(self.q, angles=rotary.angles(at), layout="thd", norm=weight)
            for bad in (
                lambda: tileproof.quantise(self.k, "i5"), lambda: tileproof.dequantise(codes, few, "i4"), lambda: rotary.apply(self.q, few, layout="thd"),
                lambda: tileproof.attention(self.q[None], codes, codes, k_scales=scales, v_scales=weight, kv_format="i4"),
                lambda: cache.append(0, s, self.k, self.v), lambda: cache.attention(0, 99, self.q), lambda: rotary.apply(self.q, angles=(weight, at), layout="thd"),
                lambda: Cache([CacheLayer(1, 1, dtype="x")], bytes=9, sequences=1), lambda: Rotary(DIM, short_factors=weight, long_factors=at),
            ):  # fmt: skip
                try:
                    bad()
                    self.fail("it was not refused")
                except (TypeError, ValueError):
                    pass

        for _ in range(20):
            once()
        things = (self.q, self.k, self.v, codes, scales, weight, at, few, cache._cache, rotary._rotary, None, True)
        grown = []
        for _ in range(2):
            gc.collect()
            counts, blocks = [sys.getrefcount(x) for x in things], sys.getallocatedblocks()
            for _ in range(100):
                once()
            gc.collect()
            for thing, before in zip(things, counts):
                self.assertLess(abs(sys.getrefcount(thing) - before), 50, type(thing))
            grown.append(sys.getallocatedblocks() - blocks)
        self.assertLess(min(grown), 100, grown)


if __name__ == "__main__":
    unittest.main()
