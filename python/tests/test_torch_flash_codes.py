# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache on caches of codes: k_descale and v_descale in every form, read and written, and what is refused."""
import unittest

import numpy as np
import tileproof
import tileproof.flash_attn as fa
import torch
from test_torch_flash_append import ARITHMETIC, Ops
from tileproof import Cache, CacheLayer, Rotary

BATCH, ROOM, HEADS, DIM = 3, 24, 2, 32
E4M3 = torch.float8_e4m3fn


def tensors(new=5, dtype=torch.float32, dim=DIM):
    torch.manual_seed(11)
    return [torch.randn(BATCH, new, h, dim).to(dtype) for h in (4, HEADS, HEADS)]


def stored(codes, scales):
    """code * scale, in float32: each product is rounded once."""
    if isinstance(scales, float):
        return (codes.double() * np.float32(scales)).float()
    return (codes.double() * scales.double()[..., None]).float()


def codes_of(form, rows, tokens, lie):
    """A cache of rows in codes, its k_descale, and the scales by (row, token, head) that it stands for. lie: sequence -> rows of the cache."""
    values = torch.randn(rows, tokens, HEADS, DIM)
    if form in ("int8", "e4m3 by token"):
        codes, scales, _ = tileproof.quantise(values, "i8" if form == "int8" else "e4m3/token")
        return codes, scales, scales
    by_head = torch.rand(BATCH, HEADS) * 0.03 + 0.01
    if form != "by head":
        by_head = torch.full((BATCH, HEADS), 1.0 if form == "none" else 0.0125)
    by_row = torch.ones(rows, HEADS)
    for s, of in enumerate(lie):
        by_row[of] = by_head[s]
    wide = by_row[:, None].expand(rows, tokens, HEADS)
    given = {"none": None, "number": 0.0125, "one": torch.tensor(0.0125), "list of one": torch.tensor([0.0125]),
             "expanded": torch.tensor(0.0125).expand(BATCH, HEADS), "by head": by_head}[form]  # fmt: skip
    return (values / wide[..., None]).to(E4M3), given, wide


FORMS = ("none", "number", "one", "list of one", "expanded", "by head", "e4m3 by token", "int8")
TABLE = torch.tensor([[4, 0], [2, 5], [1, 6]], dtype=torch.int32)
LISTS = {"rows": [[0], [1], [2]], "chosen rows": [[3], [0], [4]], "pages": TABLE.tolist()}


class Read(unittest.TestCase):
    def test_every_form_in_every_kind_of_cache(self):
        torch.manual_seed(2)
        used = torch.tensor([20, 6, 11], dtype=torch.int32)
        for kind, lie in LISTS.items():
            tokens = 256 if kind == "pages" else ROOM
            lengths = used * 24 if kind == "pages" else used
            options = {"cache_seqlens": lengths, "causal": True, "window_size": (300, 0)}
            if kind == "pages":
                options["block_table"] = TABLE
            elif kind == "chosen rows":
                options["cache_batch_idx"] = torch.tensor([3, 0, 4], dtype=torch.int32)
            for form in FORMS:
                made = [codes_of(form, 7, tokens, lie) for _ in "kv"]
                for dtype, worst in ((torch.float32, 4e-6), (torch.bfloat16, 0.03)):
                    with self.subTest(kind=kind, form=form, dtype=dtype):
                        q = tensors(dtype=dtype)[0]
                        caches, given = [x[0] for x in made], {f"{name}_descale": x[1] for name, x in zip("kv", made)}
                        before = [x.view(torch.uint8).clone() for x in caches]
                        with tileproof.torch.log() as log:
                            out, lse = fa.flash_attn_with_kvcache(q, *caches, return_softmax_lse=True, **options, **given)
                        floats = [stored(x[0], x[2]) for x in made]
                        want, want_lse = fa.flash_attn_with_kvcache(q.float(), *floats, return_softmax_lse=True, **options)
                        self.assertEqual((out.dtype, out.shape), (dtype, q.shape))
                        scale = 1 + float(want.abs().max())
                        self.assertLess(float((out.float() - want).abs().max()), worst * scale)
                        self.assertLess(float((lse - want_lse).abs().max()), worst * (1 + float(want_lse.abs().max())))
                        (receipt,) = log.receipts
                        self.assertTrue(receipt.lossy)
                        word = "i8" if form == "int8" else "e4m3"
                        self.assertIn(f":{word}:{word}->", receipt.problem)
                        self.assertEqual("scales=token" in receipt.problem, form in ("by head", "e4m3 by token"))
                        self.assertTrue(all(torch.equal(x.view(torch.uint8), y) for x, y in zip(caches, before)))

    def test_padding_and_other_options(self):
        k, ks, real = codes_of("int8", BATCH, ROOM, LISTS["rows"])
        q, options = tensors()[0], dict(cache_seqlens=torch.tensor([20, 9, 11], dtype=torch.int32), cache_leftpad=torch.tensor([3, 0, 2], dtype=torch.int32),
                                        softcap=4.0, softmax_scale=0.3, alibi_slopes=torch.rand(4))  # fmt: skip
        out = fa.flash_attn_with_kvcache(q, k, k, k_descale=ks, v_descale=ks, **options)
        self.assertLess(float((out - fa.flash_attn_with_kvcache(q, *[stored(k, real)] * 2, **options)).abs().max()), 1e-5)

    def test_a_page_of_several_sequences(self):
        table = torch.tensor([[0, 1], [0, 2], [0, 3]], dtype=torch.int32)
        cache, by_head = torch.randn(4, 256, HEADS, DIM).to(E4M3), torch.full((BATCH, HEADS), 0.5)
        by_head[:, 1] = 0.25
        call = lambda **more: fa.flash_attn_with_kvcache(
            tensors()[0], cache, cache, cache_seqlens=torch.tensor([300, 256, 1], dtype=torch.int32), block_table=table, **more)  # fmt: skip
        want = stored(cache, by_head[0].expand(4, 256, HEADS))
        out = call(k_descale=by_head, v_descale=by_head)
        self.assertLess(float((out - fa.flash_attn_with_kvcache(
            tensors()[0], want, want, cache_seqlens=torch.tensor([300, 256, 1], dtype=torch.int32), block_table=table)).abs().max()), 1e-5)  # fmt: skip
        other = by_head.clone()
        other[2, 0] = 0.125
        with self.assertRaisesRegex(RuntimeError, r"v_descale has two numbers for page 0 of the cache, which several .* of shape \(4, 256, 2\)"):
            call(k_descale=by_head, v_descale=other)
        table[2, 0], table[2, 1], table[1, 1] = 3, 0, 3  # then no page is of two: nobody reads second pages of the last two
        call(k_descale=by_head, v_descale=other)

    def test_pages_that_are_none(self):
        cache, by_head = torch.randn(4, 256, HEADS, DIM).to(E4M3), torch.rand(BATCH, HEADS)
        for page in (-1, 4):
            table = torch.tensor([[0, page], [1, page], [3, page]], dtype=torch.int32)
            call = lambda length: fa.flash_attn_with_kvcache(tensors()[0], cache, cache, cache_seqlens=length, block_table=table, k_descale=by_head, v_descale=by_head)
            self.assertFalse(call(256).isnan().any())  # nobody uses it
            self.assertRaisesRegex(ValueError, rf"k_pages\[0\]\[1\] is {page}: a page that is seen must be at least 0 and below pages = 4", call, 257)


class Append(unittest.TestCase):
    def test_what_is_written(self):
        used = torch.tensor([17, 0, 9], dtype=torch.int32)
        angles = torch.rand(600, DIM // 2) * 6.3
        for kind, lie in LISTS.items():
            tokens = 256 if kind == "pages" else ROOM
            first = used + 237 if kind == "pages" else used  # a run that crosses a page
            options = {"cache_seqlens": first, "causal": True}
            if kind == "pages":
                options["block_table"] = TABLE
            elif kind == "chosen rows":
                options["cache_batch_idx"] = torch.tensor([3, 0, 4], dtype=torch.int32)
            for form in FORMS:
                for dtype in (torch.float32, torch.bfloat16):
                    for turned in (False, True):
                        with self.subTest(kind=kind, form=form, dtype=dtype, turned=turned):
                            self.once(form, dtype, lie, tokens, first, {**options, **(dict(
                                rotary_cos=angles.cos().to(dtype), rotary_sin=angles.sin().to(dtype)) if turned else {})})  # fmt: skip

    def once(self, form, dtype, lie, tokens, first, options):
        q, *new = tensors(dtype=dtype)
        made = [codes_of(form, 7, tokens, lie) for _ in "kv"]
        caches, given = [x[0].clone() for x in made], [x[1].clone() if form in ("int8", "e4m3 by token") else x[1] for x in made]
        out = fa.flash_attn_with_kvcache(q, *caches, *new, k_descale=given[0], v_descale=given[1], **options)
        self.assertFalse(out.isnan().any())
        for which, (cache, scales, (codes, old, wide), rows) in enumerate(zip(caches, given, made, new)):
            codes, wide = codes.clone(), wide.clone()
            rows = rows.float()
            if which == 0 and "rotary_cos" in options:
                at = first[:, None] + torch.arange(5, dtype=torch.int32)
                rows = tileproof._core.flash_rotate(rows, *(options[x].float() for x in ("rotary_cos", "rotary_sin")), at, True)
            for s in range(BATCH):
                for i in range(5):
                    page, slot = lie[s][int(first[s] + i) // tokens], int(first[s] + i) % tokens
                    for h in range(HEADS):
                        if form in ("int8", "e4m3 by token"):
                            codes[page, slot, h], wide[page, slot, h], _ = tileproof.quantise(rows[s, i, h], "i8" if form == "int8" else "e4m3/token")
                        else:
                            codes[page, slot, h] = tileproof.quantise(rows[s, i, h], "e4m3", scale=float(wide[page, slot, h]))[0]
            self.assertTrue(torch.equal(cache.view(torch.uint8), codes.view(torch.uint8)))
            if form in ("int8", "e4m3 by token"):
                self.assertTrue(torch.equal(scales, wide))
            elif isinstance(scales, torch.Tensor):
                self.assertTrue(torch.equal(scales, old))  # one that the caller chose stays
        without = {x: y for x, y in options.items() if "rotary" not in x}
        if "rotary_cos" not in options:  # what was written is what attention reads
            again = fa.flash_attn_with_kvcache(q, *caches, k_descale=given[0], v_descale=given[1], **{**without, "cache_seqlens": first + 5})
            self.assertTrue(torch.equal(out, again))

    def test_the_loss_is_on_the_receipt(self):
        """What quantise says of the rows that this call wrote, k and v, after the rotation; a call that writes none says nothing."""
        angles = torch.rand(600, DIM // 2) * 6.3
        used = torch.tensor([17, 0, 9], dtype=torch.int32)
        for kind in ("rows", "pages"):  # 5 tokens cross a page
            for form in FORMS:
                for turned in (False, True):
                    for worse in "kv":
                        with self.subTest(kind=kind, form=form, turned=turned, worse=worse):
                            q, *new = tensors()
                            new["kv".index(worse)][1, 3, 1, 1:] *= 1e-3  # a row that loses more than the others, where a scale is each row's own
                            made = [codes_of(form, 7, 256 if kind == "pages" else ROOM, LISTS[kind]) for _ in "kv"]
                            options = dict(cache_seqlens=used + 237 if kind == "pages" else used, k_descale=made[0][1], v_descale=made[1][1])
                            options |= dict(block_table=TABLE) if kind == "pages" else {}
                            options |= dict(rotary_cos=angles.cos(), rotary_sin=angles.sin()) if turned else {}
                            with tileproof.torch.log() as log:
                                fa.flash_attn_with_kvcache(q, made[0][0], made[1][0], *new, **options)
                                options = {name: x for name, x in options.items() if "rotary" not in name}
                                fa.flash_attn_with_kvcache(q, made[0][0], made[1][0], **{**options, "cache_seqlens": options["cache_seqlens"] + 5})
                            wrote, read = log.receipts
                            self.assertTrue(wrote.lossy and read.lossy)
                            self.assertEqual(read.kv_loss, 0)
                            if turned:
                                at = (used + 237 * (kind == "pages"))[:, None] + torch.arange(5, dtype=torch.int32)
                                new[0] = tileproof._core.flash_rotate(new[0], angles.cos(), angles.sin(), at, True)
                            if form in ("int8", "e4m3 by token"):
                                want = max(tileproof.quantise(x, "i8" if form == "int8" else "e4m3/token")[2] for x in new)
                            else:
                                by_row = [x[2] for x in made]
                                want = max(
                                    tileproof.quantise(x[s, :, h], "e4m3", scale=float(wide[LISTS[kind][s][0], 0, h]))[2]
                                    for x, wide in zip(new, by_row) for s in range(BATCH) for h in range(HEADS))  # fmt: skip
                            self.assertGreater(want, 0)
                            self.assertEqual(wrote.kv_loss, want)
                            self.assertIn(f", loss {want:.3g}", str(wrote))

    def test_the_loss_of_rows_that_are_not_finite(self):
        """They are left out, as in a Cache, and hide no other row's; of caches of floats nothing is said."""
        q, k, v = tensors()
        for form, word in (("int8", "i8"), ("e4m3 by token", "e4m3/token")):
            made = [codes_of(form, BATCH, ROOM, LISTS["rows"]) for _ in "kv"]
            broken = k.sign()  # codes for it lose next to nothing
            broken[0, 4, 1] = k[0, 4, 1]  # the greatest loss, in the run of one that is not finite
            v, want = v.sign(), tileproof.quantise(k[0, 4, 1], word)[2]
            broken[0, 2, 1, 7], broken[2, 0, 0, 0] = float("nan"), float("inf")
            self.assertGreater(want, 100 * tileproof.quantise(v, word)[2])
            with tileproof.torch.log() as log, Ops():  # as an op of PyTorch's
                fa.flash_attn_with_kvcache(q, made[0][0], made[1][0], broken, v, cache_seqlens=3, k_descale=made[0][1], v_descale=made[1][1])
            self.assertEqual(log.receipts[0].kv_loss, want)
            broken[:], v = float("nan"), torch.zeros_like(v)
            with tileproof.torch.log() as log:
                fa.flash_attn_with_kvcache(q, made[0][0], made[1][0], broken, v, cache_seqlens=3, k_descale=made[0][1], v_descale=made[1][1])
            self.assertEqual(log.receipts[0].kv_loss, 0)
            _, _, v = tensors()
        caches = [torch.zeros(BATCH, ROOM, HEADS, DIM) for _ in "kv"]
        with tileproof.torch.log() as log:
            fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=3)
        self.assertEqual((log.receipts[0].kv_loss, log.receipts[0].lossy), (0, False))

    def test_the_same_as_tp_cache_append(self):
        q, k, v = tensors(new=7)
        angles = Rotary(DIM).angles(np.arange(ROOM))
        cos, sin = (torch.as_tensor(np.asarray(x)).reshape(ROOM, DIM // 2).clone() for x in angles)
        for word, dtype, options in (("i8", torch.int8, {}), ("e4m3/token", E4M3, {}), ("e4m3", E4M3, dict(k_scale=0.01, v_scale=0.015))):
            cache = Cache([CacheLayer(HEADS, DIM, dtype=word, **options)], bytes=1 << 20, sequences=BATCH, tokens=ROOM)
            sequences = [cache.open() for _ in range(BATCH)]
            cache.extend(sequences, 7)
            turned = q.flatten(0, 1).clone()
            cache.append(0, sequences, k.flatten(0, 1), v.flatten(0, 1), q=turned, rotary=Rotary(DIM))
            want, theirs = cache.attention(0, sequences, turned, causal=True, return_receipt=True)
            caches = [torch.zeros(BATCH, ROOM, HEADS, DIM, dtype=dtype) for _ in "kv"]
            scales = [torch.zeros(BATCH, ROOM, HEADS) for _ in "kv"] if not options else list(options.values())
            with tileproof.torch.log() as log:
                out = fa.flash_attn_with_kvcache(
                    q, *caches, k, v, cos, sin, cache_seqlens=0, causal=True, rotary_interleaved=False, k_descale=scales[0], v_descale=scales[1])  # fmt: skip
            self.assertAlmostEqual(log.receipts[0].kv_loss, theirs.kv_loss, delta=1e-6)
            self.assertGreater(theirs.kv_loss, 0)
            self.assertLess(float((out.flatten(0, 1) - want).abs().max()), 2e-6, word)

    def test_strided_caches_scales_and_rows(self):
        q, k, v = tensors(dtype=torch.bfloat16)
        plain = [torch.zeros(BATCH, ROOM, HEADS, DIM, dtype=torch.int8) for _ in "kv"]
        wide = [torch.zeros(BATCH, HEADS, ROOM, 3 * DIM, dtype=torch.int8)[..., DIM : 2 * DIM].transpose(1, 2) for _ in "kv"]  # heads before tokens
        one = [torch.zeros(BATCH, ROOM, HEADS) for _ in "kv"]
        other = [torch.zeros(BATCH, HEADS, 3 * ROOM)[..., ::3].transpose(1, 2) for _ in "kv"]
        used = torch.tensor([0, 7, 19], dtype=torch.int32)
        out = [fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=used, k_descale=scales[0], v_descale=scales[1]) for caches, scales in ((plain, one), (wide, other))]
        self.assertTrue(torch.equal(*out) and all(map(torch.equal, plain, wide)) and all(map(torch.equal, one, other)))

    def test_special_values(self):
        q, k, v = tensors(new=1)
        k[0, 0, 0, 0], v[1] = float("nan"), 0
        caches, scales = [torch.zeros(BATCH, ROOM, HEADS, DIM, dtype=torch.int8) for _ in "kv"], [torch.zeros(BATCH, ROOM, HEADS) for _ in "kv"]
        out = fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=0, k_descale=scales[0], v_descale=scales[1])
        self.assertTrue(scales[0][0, 0, 0].isnan() and not scales[0].flatten()[1:].isnan().any())  # no code stands for it: its scale does
        self.assertTrue(out[0, :, :2].isnan().all() and not out[0, :, 2:].isnan().any() and (out[1] == 0).all())

    def test_no_op_of_pytorch_touches_rows(self):
        q, k, v = tensors(dtype=torch.bfloat16)
        caches, scales = [torch.zeros(BATCH, ROOM, HEADS, DIM, dtype=torch.int8) for _ in "kv"], [torch.zeros(BATCH, ROOM, HEADS) for _ in "kv"]
        with Ops() as ops:
            fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=3, causal=True, k_descale=scales[0], v_descale=scales[1])
        self.assertTrue(ops.seen)
        self.assertEqual([x for x in ops.seen if any(word in x for word in ARITHMETIC)], [])

    def test_autograd(self):
        q, k, v = tensors()
        caches, scales = [torch.zeros(BATCH, ROOM, HEADS, DIM, dtype=torch.int8) for _ in "kv"], [torch.zeros(BATCH, ROOM, HEADS) for _ in "kv"]
        call = lambda q: fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=0, k_descale=scales[0], v_descale=scales[1])
        x = torch.ones_like(scales[1], requires_grad=True)
        product = x * scales[1]  # keeps it for backward
        call(q)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.sum().backward()
        with self.assertRaisesRegex(RuntimeError, "flash_attn_with_kvcache has no gradient"):
            call(q.clone().requires_grad_()).sum().backward()
        by_head = torch.ones(BATCH, HEADS, requires_grad=True)
        caches = [x.to(E4M3) for x in caches]
        with self.assertRaisesRegex(RuntimeError, "flash_attn_with_kvcache has no gradient"):
            fa.flash_attn_with_kvcache(q, *caches, cache_seqlens=3, k_descale=by_head).sum().backward()


class Refusals(unittest.TestCase):
    def test_each(self):
        q, k, v = tensors()
        eight, e4m3, floats = (torch.zeros(BATCH, ROOM, HEADS, DIM).to(x) for x in (torch.int8, E4M3, torch.float32))
        by_token, by_head, page = torch.ones(BATCH, ROOM, HEADS), torch.ones(BATCH, HEADS), torch.zeros(4, 256, HEADS, DIM).to(E4M3)
        new = dict(k=k, v=v, cache_seqlens=3)
        nan, zero, wide = by_head.clone(), by_head.clone(), by_token[:1].expand(BATCH, ROOM, HEADS)
        nan[1, 0], zero[2, 1] = float("nan"), 0
        for caches, ks, vs, more, text in (
            ((floats, floats), by_token, None, {}, "k_descale is given and the cache is torch.float32: only codes, int8 and float8_e4m3fn, have scales"),
            ((floats, floats), None, 0.5, {}, "v_descale is given and the cache is torch.float32"),
            ((eight, eight), None, None, {}, r"k_descale is None and the cache int8: it must be float32 of shape \(3, 24, 2\), one for each token and kv head"),
            ((eight, eight), by_token, None, {}, "v_descale is None and the cache int8"),
            ((eight, eight), 0.5, by_token, {}, "k_descale is a float: it must be a torch.Tensor"),
            ((eight, eight), by_head, by_token, {}, r"k_descale has shape \(3, 2\): of an int8 cache it must be \(3, 24, 2\)"),
            ((eight, eight), by_token.double(), by_token, {}, r"k_descale is torch.float64: it must be float32; k_descale.float\(\) makes it so"),
            ((eight, eight), by_token.to("meta"), by_token, {}, "k_descale is on meta"),
            ((eight, eight), by_token[:2], by_token, {}, r"k_descale has shape \(2, 24, 2\): of an int8 cache"),
            ((eight, e4m3), by_token, by_token, {}, "v_cache is torch.float8_e4m3fn and k_cache torch.int8: they must have one dtype"),
            ((floats, eight), None, by_token, {}, "v_cache is torch.int8 and k_cache torch.float32: they must have one dtype"),
            ((e4m3, e4m3.to("meta")), None, None, {}, "v_cache is on meta"),
            ((e4m3[0], e4m3[0]), None, None, {}, r"k_cache has shape \(24, 2, 32\)"),
            ((eight.view(torch.uint8), eight), by_token, by_token, {}, "v_cache is torch.int8 and k_cache torch.uint8"),
            ((eight.view(torch.uint8),) * 2, None, None, {}, "k_cache is torch.uint8: it must be float16 or bfloat16"),
            ((e4m3, e4m3), by_head[:2], None, {}, r"k_descale has shape \(2, 2\): it must be a number, \(3, 2\) for each sequence and kv head, or \(3, 24, 2\)"),
            ((e4m3, e4m3), torch.ones(HEADS), None, {}, r"k_descale has shape \(2,\): it must be a number"),
            ((e4m3, e4m3), torch.tensor(1.0).expand(2, 5), None, {}, r"k_descale has shape \(2, 5\): it must be a number"),
            ((e4m3, e4m3), torch.ones(1, 1), None, {}, r"k_descale has shape \(1, 1\): it must be a number"),
            ((e4m3, e4m3[:1].expand(BATCH, ROOM, HEADS, DIM)), None, None, new, "the cache of v_descale is expanded: new rows are written into it"),
            ((eight[:, :1].expand(BATCH, ROOM, HEADS, DIM), eight), by_token, by_token.clone(), new, "the cache of k_descale is expanded"),
            ((e4m3, e4m3), True, None, {}, "k_descale is a bool: it must be a torch.Tensor"),
            ((e4m3, e4m3), "x", None, {}, "k_descale is a str"),
            ((page, page), torch.ones(4, 256, 3), None, dict(block_table=TABLE[:, :1] % 4, cache_seqlens=3), r"k_descale has shape \(4, 256, 3\)"),
            ((e4m3, e4m3), None, nan, new, "v_descale has nan: new rows are divided by it, so it must be finite and above 0"),
            ((e4m3, e4m3), zero, None, new, "k_descale has 0.0: new rows are divided by it"),
            ((e4m3, e4m3), None, -1.0, new, "v_descale has -1.0: new rows"),
            ((eight, eight), by_token, wide, new, r"v_descale is expanded: each new token has a scale of its own, .* v_descale.contiguous\(\) has room"),
            ((eight, eight), by_token, by_token, new, "k_descale and v_descale are one tensor: scales of new k and v are written into them"),
            ((eight, eight), by_token, by_token.clone(), {**new, "k": k.bfloat16()}, "k is torch.bfloat16 and q torch.float32"),
            ((eight, eight), by_token, by_token.clone(), {**new, "cache_seqlens": 20}, r"cache_seqlens \+ 5 new tokens is 25: it must be in 5..24"),
        ):
            caches_before = [x.clone() for x in (eight, by_token)]
            with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                fa.flash_attn_with_kvcache(q, *caches, k_descale=ks, v_descale=vs, **more)
            self.assertTrue(all(map(torch.equal, caches_before, (eight, by_token))), text)
            self.assertEqual(int(e4m3.view(torch.uint8).sum()), 0)
        self.assertRaisesRegex(RuntimeError, "q is torch.int8: it must be float16", fa.flash_attn_with_kvcache, eight, eight, eight, k_descale=by_token, v_descale=by_token)
        self.assertRaises(TypeError, fa.flash_attn_with_kvcache, q, e4m3, e4m3, *[None] * 15, 0.5)  # by name alone
        for call in (lambda: fa.flash_attn_func(q, eight, eight), lambda: fa.flash_attn_func(q, e4m3[:, :5], e4m3[:, :5])):
            self.assertRaisesRegex(RuntimeError, "k is torch.(int8|float8_e4m3fn): it must be float16", call)

    def test_the_extension_refuses_what_python_would_not_give(self):
        q, k, v = tensors(new=1)
        append = lambda cache, scales, rows=k: tileproof._core.flash_append(cache, rows, torch.zeros(BATCH, dtype=torch.int32), None, None, None, True, scales)
        eight, floats = torch.zeros(BATCH, ROOM, HEADS, DIM, dtype=torch.int8), torch.zeros(BATCH, ROOM, HEADS, DIM)
        for cache, scales, text in (
            (eight, None, "the cache is int8 and its scales are None: codes have some, and only they"),
            (floats, 0.5, "the cache is float32 and its scales are given"),
            (eight, torch.ones(BATCH, ROOM), r"the cache's scales are float32 of shape \(3, 24\): they must be float32, by sequence and head"),
            (eight, torch.ones(BATCH, ROOM, HEADS).double(), "the cache's scales are float64"),
            (eight, torch.ones(BATCH, HEADS), "kind"),
            (eight, torch.ones(BATCH), r"of shape \(3,\)"),
        ):
            with self.subTest(text), self.assertRaisesRegex((ValueError, TypeError, tileproof.Error), text):
                append(cache, scales)
        readonly = np.ones((BATCH, ROOM, HEADS), np.float32)
        readonly.flags.writeable = False
        self.assertRaisesRegex(ValueError, "written in place", append, eight, readonly)
        self.assertRaisesRegex(ValueError, "new rows are float32 .* and the cache int8", append, eight[:, :, :1], torch.ones(BATCH, ROOM, 1))


if __name__ == "__main__":
    unittest.main()
