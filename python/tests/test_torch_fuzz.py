# SPDX-License-Identifier: Apache-2.0
"""Shapes, dtypes, strides and garbage, by hypothesis: right by the definition, or an exception; never a crash."""
import unittest

import ml_dtypes
import numpy as np
import reference
import tileproof
import torch
from masks import Call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
REFUSALS = (TypeError, ValueError, BufferError, tileproof.Error, RuntimeError, MemoryError, OverflowError)
quick = settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def strided(draw, shape, dtype, seed):
    """Random numbers in a view with odd strides: steps, flips, permuted and broadcast dims."""
    random = np.random.default_rng(seed)
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    shared = [draw(st.integers(0, 9)) == 0 for _ in shape]
    sizes = [1 if shared[i] else shape[i] * abs(steps[i]) for i in order]
    base = random.standard_normal(sizes).astype(dtype)
    view = base.transpose(np.argsort(order))
    view = view[tuple(slice(None) if shared[i] else slice(None, None, steps[i]) for i in range(len(shape)))]
    return np.broadcast_to(view[tuple(slice(0, 1 if shared[i] else n) for i, n in enumerate(shape))], shape)


def as_torch(x):
    if x.dtype == ml_dtypes.bfloat16:
        return as_torch(x.astype(np.float32)).bfloat16()
    if any(s < 0 for s in x.strides):
        x = x.copy()
    return torch.from_numpy(x if x.flags.writeable else x.copy())


class Fuzz(unittest.TestCase):
    @quick
    @given(st.data())
    def test_values(self, data):
        draw = data.draw
        b, m, n, g, group = (draw(st.integers(0 if i < 3 else 1, top)) for i, top in enumerate((3, 20, 40, 3, 4)))
        d, dv = draw(st.integers(1, 70)), draw(st.integers(1, 70))
        name = draw(st.sampled_from(sorted(DTYPES)))
        shapes = (b, m, g * group, d), (b, n, g, d), (b, n, g, dv)
        q, k, v = (draw(strided(x, DTYPES[name], i)) for i, x in enumerate(shapes))
        options, oracle = {}, {}
        options["causal"] = oracle["causal"] = draw(st.booleans())
        options["causal_align"] = oracle["align"] = draw(st.sampled_from(["bottom_right", "top_left"]))
        side = st.one_of(st.none(), st.integers(0, 30))
        options["window"] = oracle["window"] = draw(st.one_of(st.none(), st.tuples(side, side)))
        full = (b, g * group, m, n)
        cut = draw(st.integers(0, 4))
        small = tuple(1 if draw(st.booleans()) else x for x in full)[cut:]
        if draw(st.booleans()):
            options["mask"] = oracle["mask"] = draw(strided(small, np.float32, 9)) < 0.5
        if draw(st.booleans()):
            options["bias"] = oracle["bias"] = draw(strided(small, DTYPES[draw(st.sampled_from(sorted(DTYPES)))], 8))
        if draw(st.booleans()):
            options["kv_lens"] = oracle["kv_lens"] = np.array([draw(st.integers(0, n)) for _ in range(b)], draw(st.sampled_from([np.int32, np.int64])))
        want, want_lse = reference.batch(q, k, v, **oracle)
        out, lse, receipt = tileproof.attention(q, k, v, return_lse=True, return_receipt=True, **options)
        self.assertLess(reference.error(out, want), 3 * reference.TOLERANCE[name] * (1 + np.abs(want).max(initial=0)))
        self.assertLess(reference.error(lse, want_lse), 1e-4)
        again = {x: as_torch(y) if isinstance(y, np.ndarray) else y for x, y in options.items()}
        same = tileproof.attention(*(as_torch(x) for x in (q, k, v)), **again)
        self.assertEqual(np.abs(same.float().numpy() - out.astype(np.float32)).max(initial=0), 0)

    @quick
    @given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.sampled_from(["bottom_right", "top_left"]), st.sampled_from(["plain", "pages", "packed"]), st.data())
    def test_masks_positions_and_caches(self, seed, used, positions, align, cache, data):
        random, draw = np.random.default_rng(seed), data.draw
        call = Call(random, draw(st.integers(1, 3)), draw(st.integers(1, 20)), draw(st.integers(1, 40)), align, used, positions)
        group, d, dv = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
        q, k, v = (random.standard_normal((call.batch, *x)).astype(np.float32) for x in ((call.rows, 2 * group, d), (call.keys, 2, d), (call.keys, 2, dv)))
        mask, dense = call.mask()
        options = dict(mask=mask, causal_align=align, kv_lens=call.kv_lens)
        oracle = dict(mask=dense[:, None], q_lens=call.q_lens, kv_lens=call.kv_lens)
        if positions:
            options.update(q_positions=call.q_pos, kv_positions=call.k_pos)
        if draw(st.booleans()):
            options["q_scale"] = (0.5, 3, 1)
        scale = 1 + 0.5 * np.log1p(np.maximum(call.q_pos + 1, 0) // 3) if "q_scale" in options else np.ones_like(call.q_pos)
        if draw(st.booleans()):
            options["sinks"] = oracle["sinks"] = random.standard_normal(2 * group).astype(np.float32)
        options["invariant"] = draw(st.booleans())
        want, want_lse = reference.batch(q * scale[:, :, None, None], k, v, scale=d**-0.5, **oracle)
        if cache == "pages":
            size = draw(st.integers(1, 9))
            columns = -(-call.keys // size)
            table = random.permutation(call.batch * columns + 3)[: call.batch * columns].reshape(call.batch, columns).astype(np.int32)
            pools = []
            for x in (k, v):
                pool = np.full((call.batch * columns + 3, size, *x.shape[2:]), np.nan, np.float32)
                for s, j in np.ndindex(call.batch, call.keys):
                    pool[table[s, j // size], j % size] = x[s, j]
                pools.append(pool)
            wide = [call.k_pos, *(y for x, y in mask._arrays.items() if x in ("mask", "kv_documents", "kv_spans"))]
            if columns * size != call.keys and (positions or len(wide) > 1):
                return  # what is by key is as wide as the pages
            k, v, options["page_table"] = *pools, table
        if cache == "packed" and not positions and not set(mask._arrays) & {"q_documents", "q_spans", "parents"}:
            options.update(layout="thd", cu_seqlens_q=np.concatenate([[0], np.cumsum(call.q_lens)]))
            q = np.concatenate([q[s, : call.q_lens[s]] for s in range(call.batch)])
            if "mask" in mask._arrays:
                return  # it is as high as the longest sequence
            out, lse = tileproof.attention(q, k, v, return_lse=True, **options)
            want = np.concatenate([want[s, : call.q_lens[s]] for s in range(call.batch)])
            want_lse = np.concatenate([want_lse[s, :, : call.q_lens[s]] for s in range(call.batch)], 1)
        else:
            out, lse = tileproof.attention(q, k, v, q_lens=call.q_lens, return_lse=True, **options)
        self.assertLess(reference.error(out, want), 6e-6 * (1 + np.abs(want).max(initial=0)))
        self.assertLess(reference.error(lse, want_lse), 1e-4)

    @quick
    @given(st.integers(0, 2**32), st.sampled_from(["bshd", "bhsd", "pages", "pages bhsd", "thd"]), st.data())
    def test_quantised_caches(self, seed, how, data):
        random, draw = np.random.default_rng(seed), data.draw
        b, m, n, g, group = (draw(st.integers(1, top)) for top in (3, 20, 40, 3, 4))
        formats = [draw(st.sampled_from(["float", "i8", "e4m3/token", "e4m3 1", "i4", "i8/q8_0"])) for _ in range(2)]
        step = {"i4": 2, "i8/q8_0": 32}
        d, dv = (step.get(x, 1) * draw(st.integers(1, 70 // step.get(x, 1))) for x in formats)
        q = random.standard_normal((b, m, g * group, d)).astype(np.float32)
        size = draw(st.integers(1, 9))
        columns = -(-n // size)
        table = random.permutation(b * columns + 2)[: b * columns].reshape(b, columns)
        words, given, oracle, options = [], [], [], {}
        for name, format, width in zip("kv", formats, (d, dv)):
            x = random.standard_normal((b * columns + 2, size, g, width) if "pages" in how else (b, n, g, width)).astype(np.float32)
            word = format.split()[0]
            words.append(None if word == "float" else word)
            codes, scales, real = x, None, x
            if word != "float":
                codes, scales, _ = tileproof.quantise(x, word, scale=0.02 if " " in format else None)
                real = tileproof.dequantise(codes, scales, word)
            lie = lambda y: y.swapaxes(1, 2) if "bhsd" in how else y.reshape(b * n, *y.shape[2:]) if how == "thd" else y
            given.append(lie(codes))
            options[f"{name}_scales"] = lie(scales) if isinstance(scales, np.ndarray) else scales
            oracle.append(real[table].reshape(b, columns * size, g, width)[:, :n] if "pages" in how else real)
        want, want_lse = reference.batch(q, *oracle, causal=True)
        options["kv_format"] = words[0] if words[0] == words[1] else tuple(words)
        options.update(causal=True, return_lse=True, layout="bhsd" if "bhsd" in how else "thd" if how == "thd" else "bshd")
        if "pages" in how:
            options.update(page_table=table, kv_lens=np.full(b, n))
        if how == "thd":
            options.update(cu_seqlens_q=np.arange(b + 1) * m, cu_seqlens_k=np.arange(b + 1) * n)
        laid = q.swapaxes(1, 2) if "bhsd" in how else q.reshape(b * m, g * group, d) if how == "thd" else q
        out, lse = tileproof.attention(laid, *given, **options)
        options = {x: as_torch(np.ascontiguousarray(y)) if isinstance(y, np.ndarray) else y for x, y in options.items()}
        same = tileproof.attention(as_torch(laid), *(torch.from_numpy(np.ascontiguousarray(x)) for x in given), **options)[0]
        self.assertTrue((same.numpy() == out).all())
        out = out.swapaxes(1, 2) if "bhsd" in how else out.reshape(b, m, g * group, dv)
        self.assertLess(reference.error(out, want), 6e-6 * (1 + np.abs(want).max()))
        lse = lse.reshape(g * group, b, m).swapaxes(0, 1) if how == "thd" else lse
        self.assertLess(reference.error(lse, want_lse), 1e-4)

    @quick
    @given(st.data())
    def test_garbage_raises_or_works(self, data):
        draw = data.draw
        dims = st.integers(0, 5)
        shape = st.one_of(st.lists(dims, max_size=6).map(tuple), st.tuples(dims, dims, dims, dims), st.just((1, 4, 2, 8)))
        dtype = st.sampled_from([np.float32, np.float32, np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int32, np.int64, np.int8, np.uint8, ml_dtypes.float8_e4m3fn, np.bool_, np.complex64, ">f4", "U3", object])
        arrays = st.builds(lambda s, t: np.zeros(s, t), shape, dtype)
        tensors = st.builds(lambda s, t: torch.zeros(s, dtype=t), shape, st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.bool, torch.float64, torch.int64, torch.int8, torch.uint8, torch.float8_e4m3fn]))
        junk = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=9), st.lists(st.integers(), max_size=3), st.booleans())
        thing = st.one_of(arrays, arrays, tensors, junk)
        integers = st.lists(st.one_of(st.integers(-3, 9), st.integers(-(2**63), 2**63 - 1)), max_size=5).map(lambda x: np.array(x, np.int64))
        names = ("mask", "bias", "alibi_slopes", "sinks", "out", "window", "scale", "softcap", "causal", "causal_align", "fallback", "kernel", "return_lse")
        options = {x: draw(thing) for x in names if draw(st.integers(0, 5)) == 0}
        options |= {x: draw(st.one_of(integers, integers, thing)) for x in ("q_lens", "kv_lens", "cu_seqlens_q", "cu_seqlens_k") if draw(st.integers(0, 3)) == 0}
        names = ("page_table", "v_page_table", "indices", "q_positions", "kv_positions", "shared_with", "shared_lens")
        words = st.sampled_from(["i8", "e4m3", "e4m3/token", "i4", "i8/q8_0", "plain:i8", ("i4", "i8"), (None, "i8/q8_0"), "x"])
        options |= {x: draw(st.one_of(y, thing)) for x, y in (("kv_format", words), ("k_scales", thing), ("v_scales", thing)) if draw(st.integers(0, 4)) == 0}
        cells = st.builds(lambda s, seed: np.random.default_rng(seed).integers(-2, 9, s).astype(np.int32), shape, st.integers(0, 99))
        options |= {x: draw(st.one_of(cells, cells, cells, integers, thing)) for x in names if draw(st.integers(0, 5)) == 0}
        options |= {x: draw(thing) for x in ("latent", "invariant", "q_scale", "indices_sorted", "dropout_p", "dropout_seed") if draw(st.integers(0, 9)) == 0}
        if draw(st.integers(0, 3)) == 0:
            made = [lambda: tileproof.Mask.documents(draw(cells), draw(st.one_of(st.none(), cells))), lambda: tileproof.Mask.prefix(draw(thing)), lambda: tileproof.Mask.tree(draw(cells)), lambda: tileproof.Mask.spans(ranges=draw(cells), offsets=draw(integers)), lambda: tileproof.Mask.chunk(draw(st.integers(-1, 9))), lambda: tileproof.Mask.array(draw(thing))]
            try:
                options["mask"] = made[draw(st.integers(0, 5))]() | made[draw(st.integers(0, 5))]()
            except (TypeError, ValueError) as refused:
                self.assertTrue(str(refused))
        options["layout"] = draw(st.sampled_from(["bshd", "bhsd", "thd", "thd", "x"]))
        try:
            tileproof.attention(draw(thing), draw(thing), draw(thing), threads=draw(st.sampled_from([None, 1, 2])), **options)
        except REFUSALS as refused:
            self.assertTrue(str(refused))
        rotary = tileproof.Rotary(8, sections=draw(st.sampled_from([None, (2, 1, 1)])))
        cache = tileproof.Cache([tileproof.CacheLayer(2, 8, dtype=draw(st.sampled_from(["float32", "i8", "e4m3/token", "i4", "i8:i4"])))], bytes=1 << 16, sequences=2, tokens=9)
        cache.extend(cache.open(), 4)
        flat = st.one_of(st.just(np.ones((4, 2, 8), np.float32)), st.just(torch.ones(4, 2, 8)), thing)
        which = st.one_of(st.just(1), st.just([1]), st.integers(-1, 3), st.lists(st.integers(0, 2), max_size=2), junk)
        named = {x: draw(st.one_of(y, thing)) for x, y in (("tokens", integers), ("q", flat), ("positions", cells), ("k_norm", thing), ("angles", st.tuples(thing, thing)), ("length", junk), ("norm_eps", junk)) if draw(st.integers(0, 5)) == 0}
        more = {x: draw(y) for x, y in (("prefixes", st.tuples(cells, cells)), ("kv_lens", integers), ("bias", thing)) if draw(st.integers(0, 5)) == 0}
        for call in (
            lambda: tileproof.quantise(draw(thing), draw(st.one_of(words, junk)), scale=draw(st.one_of(st.none(), junk))),
            lambda: tileproof.dequantise(draw(thing), draw(thing), draw(st.one_of(st.none(), words))),
            lambda: rotary.apply(draw(thing), draw(st.one_of(st.none(), cells, thing)), layout=options["layout"], norm=draw(st.one_of(st.none(), thing))),
            lambda: rotary.angles(draw(st.one_of(cells, thing))),
            lambda: cache.append(0, draw(which), draw(flat), draw(flat), rotary=draw(st.sampled_from([None, rotary])), **named),
            lambda: cache.attention(0, draw(which), draw(flat), **more),
            lambda: cache.copy_in(1, draw(st.one_of(st.binary(max_size=200), junk))),
        ):
            try:
                call()
            except REFUSALS as refused:
                self.assertTrue(str(refused))

    @quick
    @given(st.lists(st.integers(-2, 12), min_size=1, max_size=5), st.lists(st.integers(-2, 12), min_size=1, max_size=5))
    def test_cu_seqlens(self, cu_q, cu_k):
        q, k = np.ones((10, 2, 8), np.float32), np.ones((9, 1, 8), np.float32)
        good = len(cu_q) == len(cu_k)
        for cu, tokens in ((cu_q, 10), (cu_k, 9)):
            good = good and cu[0] >= 0 and cu[-1] <= tokens and all(a <= b for a, b in zip(cu, cu[1:]))
        call = lambda: tileproof.attention(q, k, k, layout="thd", cu_seqlens_q=np.array(cu_q), cu_seqlens_k=np.array(cu_k, np.int32))
        if not good:
            self.assertRaises(ValueError, call)
            return
        out = call()
        for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
            self.assertTrue((out[a:b] == (1 if d > c else 0)).all())
        self.assertTrue((out[: cu_q[0]] == 0).all() and (out[cu_q[-1] :] == 0).all())

    @quick
    @given(st.data())
    def test_outputs_of_any_strides_are_written_right_or_refused(self, data):
        draw = data.draw
        random = np.random.default_rng(2)
        q, k, v = (random.standard_normal((2, 5, 3, 8)).astype(np.float32) for _ in range(3))
        room = np.full(4000, 7, np.float32)
        strides = [draw(st.integers(-1, 200)) for _ in range(3)] + [draw(st.sampled_from([1, 1, 1, 1, 2, 0]))]
        last = sum(s * (n - 1) for s, n in zip(strides, (2, 5, 3, 8)) if s > 0)
        if last >= 3000:
            return
        out = np.lib.stride_tricks.as_strided(room[500:], (2, 5, 3, 8), [4 * s for s in strides])
        try:
            tileproof.attention(q, k, v, out=out)
        except ValueError:
            self.assertTrue((room == 7).all())
            return
        self.assertTrue((out == tileproof.attention(q, k, v)).all())
        self.assertEqual((room != 7).sum(), 240)


if __name__ == "__main__":
    unittest.main()
