# SPDX-License-Identifier: Apache-2.0
"""What tileproof.flash_attn refuses, as flash-attn does, by RuntimeError; each text names the value and the rule."""
import unittest

import tileproof.flash_attn as fa
import torch
from test_torch_flash_front import starts, tensors
from tileproof.flash_attn import flash_attn_interface as interface

Q, K, V = tensors()
WIDE = tensors(dim=264)
FLAT = [x.flatten(0, 1) for x in (Q, K, V)]
LENGTHS = (starts(4, 4), starts(6, 6), 4, 6)
ROOM = [torch.zeros(2, 8, 2, 16, dtype=torch.float16) for _ in range(2)]
POOL = [torch.zeros(3, 256, 2, 16, dtype=torch.float16) for _ in range(2)]
TABLE = torch.tensor([[0], [1]]).int()
NEW = [torch.ones(2, 2, 2, 16, dtype=torch.float16) for _ in range(2)]
COS = torch.ones(512, 8, dtype=torch.float16)
AT = torch.tensor([1, 2]).int()
LIST = [1, 2]


def dense(*change, **given):
    q, k, v = change or (Q, K, V)
    return lambda: fa.flash_attn_func(q, k, v, **given)


def varlen(*given, **more):
    return lambda: fa.flash_attn_varlen_func(*(FLAT if len(given) < 7 else ()), *given, **more)


def used(**given):
    return lambda: interface._flash_attn_varlen_forward(*FLAT, *LENGTHS, 0.0, None, False, **given)


CACHED = []  # arguments of every refused call with a cache


def cache(q=Q, room=ROOM, **given):
    CACHED.append((q, room, given))
    return lambda: fa.flash_attn_with_kvcache(q, *room, **given)


def paged(**given):
    return cache(room=POOL, **{"block_table": TABLE, **given})


def rotary(**given):
    return cache(**{"k": NEW[0], "v": NEW[1], "cache_seqlens": AT, "rotary_cos": COS, "rotary_sin": COS, **given})


NAN = float("nan")
NUMBERS = [
    (dict(window_size=(1, 2, 3)), r"window_size is \(1, 2, 3\): it must be two integers"),
    (dict(window_size=(1.5, 2)), r"window_size is \(1.5, 2\): it must be two integers"),
    (dict(window_size=None), "window_size is None: it must be two integers"),
    (dict(window_size=(2**40, 0)), "window_size is .*: its sides must be below 2"),
    (dict(softcap=NAN), "softcap is nan: it must be finite"),
    (dict(softcap="x"), "softcap is 'x': it must be a number"),
    (dict(softcap=1e39), r"softcap is 1e\+39: it must be finite"),
    (dict(softmax_scale=NAN), "softmax_scale is nan: it must be finite"),
    (dict(softmax_scale="x"), "softmax_scale is 'x': it must be a number"),
    (dict(softmax_scale=3e38), r"softmax_scale is 3e\+38: it must be finite, and at most 2.3e\+38"),
    (dict(alibi_slopes=torch.tensor([0.5, NAN, 0.5, 0.5])), "alibi_slopes is .*nan.*: all of it must be finite"),
    (dict(alibi_slopes=torch.ones(4).half()), "alibi_slopes is torch.float16: it must be float32"),
    (dict(alibi_slopes=torch.ones(2)), r"alibi_slopes has shape \(2,\): it must be \(4,\) or \(2, 4\)"),
    (dict(alibi_slopes=torch.ones(4, device="meta")), "alibi_slopes is on meta"),
]  # of every function

REFUSED = [
    (dense(Q.to("meta"), K, V), r"q is on meta: .* on the CPU; move it there \(q.cpu\(\)\)"),
    (dense(Q, K.to("meta"), V), "k is on meta"),
    (dense(Q, K, 5), "v is a int: it must be a torch.Tensor"),
    (dense(Q.double(), K.double(), V.double()), "q is torch.float64: it must be float16 or bfloat16, or float32"),
    (dense(Q, K.bfloat16(), V), "k is torch.bfloat16 and q torch.float16"),
    (dense(Q, K, V.float()), "v is torch.float32 and q torch.float16"),
    (dense(Q[0], K, V), r"q has shape \(4, 4, 16\): it must be \(batch, tokens, heads, head dim\)"),
    (dense(Q[:0], K[:0], V[:0]), "there are 0 sequences"),
    (dense(*WIDE), "the head dim is 264: it must be at most 256"),
    (dense(Q, K[..., :8], V), "k has head dim 8 and q 16"),
    (dense(Q, K, V[..., :8]), r"v has shape \(2, 6, 2, 8\): it must be \(2, 6, 2, 16\)"),
    (dense(Q[:1], K, V), r"k has shape \(2, 6, 2, 16\): it must be \(1, 6, 2, 16\)"),
    (dense(Q[:, :, :3], K, V), "q has 3 heads and k 2"),
    (dense(Q, K[:, :, :0], V[:, :, :0]), "q has 4 heads and k 0"),
    (dense(dropout_p=1.0), "dropout_p is 1.0"),
    (dense(dropout_p=-0.1), "dropout_p is -0.1"),
    (dense(dropout_p=0.1, softcap=3.0), "softcap is 3.0 and dropout_p 0.1"),
    (lambda: fa.flash_attn_qkvpacked_func(torch.stack([Q, Q], 2)), r"qkv has shape .*: it must be \(batch, tokens, 3, heads, head dim\)"),
    (lambda: fa.flash_attn_kvpacked_func(Q, torch.stack([K, V], 1)), r"kv has shape .*: it must be \(batch, tokens, 2, heads, head dim\)"),
    (lambda: fa.flash_attn_varlen_qkvpacked_func(FLAT[0], LENGTHS[0], 4), r"qkv .*: it must be \(tokens, 3, heads, head dim\)"),
    (varlen(LENGTHS[0].long(), *LENGTHS[1:]), "cu_seqlens_q is torch.int64: it must be int32"),
    (varlen(LENGTHS[0], LENGTHS[1].long(), 4, 6), "cu_seqlens_k is torch.int64: it must be int32"),
    (varlen(LENGTHS[0], starts(12), 4, 6), r"cu_seqlens_k has shape \(2,\): it must be \(3,\)"),
    (varlen(starts(), starts(), 4, 6), "there are 0 sequences"),
    (varlen(LENGTHS[0], LENGTHS[1], 3, 6), r"the length of a sequence is 4: it must be in 0..3, which max_seqlen_q says"),
    (varlen(Q, *FLAT[1:], *LENGTHS), r"q has shape .*: it must be \(tokens, heads, head dim\)"),
    (varlen(FLAT[0].float(), *FLAT[1:], *LENGTHS), "k is torch.float16 and q torch.float32"),
    (varlen(FLAT[0], *POOL, LENGTHS[0], starts(6, 257), 4, 6, block_table=TABLE), r"a length in cu_seqlens_k is 257: it must be in 0..256, what block_table"),
    (varlen(FLAT[0], *POOL, *LENGTHS, 0.1, block_table=TABLE), "dropout_p is 0.1 and block_table is given"),
    (used(seqused_k=torch.tensor([6, 7]).int()), r"seqused_k is 7: it must be in 0..6"),
    (used(seqused_k=AT.long()), "seqused_k is torch.int64"),
    (used(leftpad_k=AT[:1]), r"leftpad_k has shape \(1,\): it must be \(2,\)"),
    (used(leftpad_k=AT - 4), "leftpad_k is -3: it must be at least 0"),
    (lambda: interface._flash_attn_varlen_forward(
        FLAT[0], *POOL, *LENGTHS, 0.0, None, False, block_table=TABLE, leftpad_k=AT), "block_table and leftpad_k are both given"),
    *((make(**given), text) for make in (dense, cache) for given, text in NUMBERS),
    (varlen(FLAT[0], *ROOM, *LENGTHS, block_table=TABLE), "a page of the cache has 8 tokens: it must be a multiple of 256"),
    (varlen(FLAT[0], *POOL, *LENGTHS, block_table=TABLE.long()), "block_table is torch.int64"),
    (varlen(FLAT[0], *POOL, *LENGTHS, block_table=TABLE[:1]), r"block_table has shape \(1, 1\): it must be \(2, 1\)"),
    (varlen(FLAT[0], *POOL, *LENGTHS, block_table=TABLE[0]), r"block_table has shape \(1,\): it must be \(sequences, columns\)"),
    (lambda: interface._flash_attn_varlen_forward(
        FLAT[0], *POOL, *LENGTHS, 0.0, None, False, block_table=TABLE, num_splits=2), "num_splits > 1 is not supported"),
    (cache(cache_seqlens=9), r"cache_seqlens is 9: it must be in 0..8"),
    (cache(cache_seqlens=-1), r"cache_seqlens is -1: it must be in 0..8"),
    (cache(cache_seqlens=AT.long()), "cache_seqlens is torch.int64: it must be int32"),
    (cache(cache_seqlens=AT[:1]), r"cache_seqlens has shape \(1,\): it must be \(2,\)"),
    (cache(cache_seqlens=LIST), "cache_seqlens is a list"),
    (cache(cache_seqlens=AT.to("meta")), "cache_seqlens is on meta"),
    (cache(room=[x[:1] for x in ROOM]), "k_cache has 1 rows and q 2 sequences"),
    (cache(room=[ROOM[0], ROOM[1][:, :5]]), r"v_cache has shape \(2, 5, 2, 16\)"),
    (cache(cache_batch_idx=AT), r"cache_batch_idx is 2: it must be in 0..1"),
    (cache(cache_batch_idx=AT - 2), r"cache_batch_idx is -1: it must be in 0..1"),
    (cache(cache_batch_idx=AT.long()), "cache_batch_idx is torch.int64"),
    (cache(cache_leftpad=AT.long()), "cache_leftpad is torch.int64"),
    (cache(cache_leftpad=AT - 4), "cache_leftpad is -3: it must be at least 0"),
    (cache(k=NEW[0], cache_seqlens=3), "k is given and v is not"),
    (cache(k=NEW[0], v=NEW[1]), "k is given and cache_seqlens is not"),
    (cache(k=NEW[0], v=NEW[1], cache_seqlens=7), r"cache_seqlens \+ 2 new tokens is 9: it must be in 2..8"),
    (cache(k=NEW[0].float(), v=NEW[1], cache_seqlens=3), "k is torch.float32 and q torch.float16"),
    (cache(k=NEW[0][:1], v=NEW[1][:1], cache_seqlens=3), r"k has shape \(1, 2, 2, 16\): it must be \(2, 2, 2, 16\)"),
    (cache(k=NEW[0], v=NEW[1][:, :1], cache_seqlens=3), r"v has shape \(2, 1, 2, 16\)"),
    (cache(tensors(rows=9)[0], k=NEW[0], v=NEW[1], cache_seqlens=3), "q has 9 rows and the cache room for 8 tokens"),
    (cache(num_splits=129), "num_splits is 129"),
    (cache(alibi_slopes=torch.ones(3)), "alibi_slopes has shape"),
    (rotary(k=None, v=None), "rotary_cos is given and k is not"),
    (rotary(rotary_sin=None), "rotary_cos is given and rotary_sin is not"),
    (rotary(rotary_cos=COS.float()), "rotary_cos is torch.float32 and q torch.float16"),
    (rotary(rotary_sin=COS[:9]), r"rotary_sin has shape \(9, 8\): it must be \(512, 8\)"),
    (rotary(rotary_sin=COS[0]), r"rotary_sin has shape \(8,\): it must be \(positions, rotary dim / 2\)"),
    (rotary(rotary_cos=COS[:, :5], rotary_sin=COS[:, :5]), "which rotate 10 dims: that must be a multiple of 16"),
    (rotary(rotary_cos=COS.repeat(1, 2), rotary_sin=COS.repeat(1, 2)), "which rotate 32 dims: that must be a multiple of 16 and at most 16"),
    (rotary(rotary_cos=COS[:7], rotary_sin=COS[:7]), "rotary_cos has 7 positions: it needs 8"),
    (rotary(rotary_cos=COS[:8], rotary_sin=COS[:8], cache_seqlens=6, causal=True), "rotary_cos has 8 positions: it needs 10"),
    (paged(cache_batch_idx=AT), "block_table and cache_batch_idx are both given"),
    (paged(cache_leftpad=AT), "block_table and cache_leftpad are both given"),
    (paged(cache_seqlens=257), r"cache_seqlens is 257: it must be in 0..256, what block_table has room for"),
    (paged(cache_seqlens=256, k=NEW[0], v=NEW[1]), r"cache_seqlens \+ 2 new tokens is 258: .*block_table"),
    (paged(cache_seqlens=3, k=NEW[0], v=NEW[1], block_table=TABLE + 2), r"the page of a new token is 3: it must be in 0..2"),
    (paged(cache_seqlens=3, k=NEW[0], v=NEW[1], block_table=TABLE - 1), r"the page of a new token is -1: it must be in 0..2"),
]  # fmt: skip
WITH_A_CACHE = list(CACHED)


class Refusals(unittest.TestCase):
    def test_each(self):
        for call, text in REFUSED:
            before = [x.clone() for x in (*ROOM, *POOL)]
            with self.subTest(text):
                self.assertRaisesRegex(RuntimeError, text, call)
            self.assertTrue(all(torch.equal(x, y) for x, y in zip(before, (*ROOM, *POOL))), f"a cache was written: {text}")

    def test_none_of_them_writes_new_tokens(self):
        """Each again with new k and v, which there is room for."""
        for q, room, given in WITH_A_CACHE:
            given = given if "k" in given else {"k": NEW[0], "v": NEW[1], "cache_seqlens": 1, **given}
            room = [x.clone() for x in room]
            before = [x.clone() for x in room]
            with self.subTest(given), self.assertRaises(RuntimeError):
                fa.flash_attn_with_kvcache(q, *room, **given)
            self.assertTrue(all(map(torch.equal, room, before)), f"a cache was written: {given}")
        self.assertGreater(len(WITH_A_CACHE), 50)

    def test_a_page_before_the_new_tokens(self):
        for page in (3, -1):
            given = dict(k=NEW[0], v=NEW[1], cache_seqlens=257, block_table=torch.tensor([[0, 2], [page, 1]]).int())
            with self.assertRaisesRegex(RuntimeError, f"the page of a token before the new ones is {page}: it must be in 0..2"):
                cache(room=POOL, **given)()
            self.assertFalse(any(x.any() for x in POOL))

    def test_a_v_that_cannot_be_read_leaves_k_unwritten(self):
        odd = torch.zeros(2 * ROOM[1].nbytes + 1, dtype=torch.uint8)[1 : 1 + ROOM[1].nbytes].numpy()
        odd = torch.from_numpy(odd.view("f2").reshape(ROOM[1].shape))
        for room, v, text in (
            (ROOM, torch._neg_view(NEW[1]), "v is a view that is negated when read"),
            ([ROOM[0], torch._neg_view(ROOM[1])], NEW[1], "v_cache is a view that is negated when read"),
            ([ROOM[0], odd], NEW[1], "v_cache is at an address that is no multiple of its 2 bytes"),
        ):
            with self.assertRaisesRegex(RuntimeError, text):
                cache(room=room, k=NEW[0], v=v, cache_seqlens=1)()
            self.assertFalse(any(x.any() for x in ROOM))

    def test_caches_have_contiguous_dims(self):
        turned = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in ROOM]
        for at in range(2):
            room = [turned[0], ROOM[1]] if at == 0 else [ROOM[0], turned[1]]
            self.assertRaisesRegex(AssertionError, f"{'kv'[at]}_cache must have a contiguous last dimension", cache(room=room))

    def test_full_caches_and_the_largest_head_dim_are_served(self):
        self.assertFalse(dense(*tensors(dim=256))().isnan().any())
        self.assertFalse(paged(cache_seqlens=256)().isnan().any())
        self.assertFalse(cache(cache_seqlens=8)().isnan().any())
        self.assertFalse(cache(k=NEW[0], v=NEW[1], cache_seqlens=6)().isnan().any())
        for x in ROOM:
            x.zero_()


if __name__ == "__main__":
    unittest.main()
