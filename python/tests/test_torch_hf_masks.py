# SPDX-License-Identifier: Apache-2.0
"""tileproof.transformers: what a mask function of transformers means here, against its own elements."""
import copy
import itertools
import unittest

import torch
from transformers import LlamaConfig, masking_utils as mu
from transformers.models.gemma3.modeling_gemma3 import _bidirectional_window_overlay
from transformers.models.gemma4.modeling_gemma4 import sliding_window_mask_function as two_sided
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeConfig
from transformers.models.t5gemma2.modeling_t5gemma2 import sliding_window_mask_function as halved

import tileproof
from tileproof.transformers import PositionMask, _pieces, _records
from tileproof.transformers._masks import position_mask

BATCH, LAST = 2, 40
SPANS = torch.tensor([[-1] * 3 + [0] * 6 + [-1] * 4 + [1] * 4 + [-1] * 23, [0] * 5 + [-1] * 35])
PACKED = torch.tensor([[0] * 9 + [1] * 4 + [2] * 27, [0] * 17 + [1] * 23])
STARTS = torch.tensor([0, 3])
ZERO = torch.zeros(BATCH, dtype=torch.long)
CAUSAL, ALL = mu.causal_mask_function, mu.bidirectional_mask_function
FUNCTIONS = {
    "causal": CAUSAL,
    "all": ALL,
    "sliding": mu.sliding_window_causal_mask_function(5),
    "sliding both": mu.sliding_window_bidirectional_mask_function(4),
    "gemma3 both": mu.and_masks(ALL, _bidirectional_window_overlay(4)),
    "gemma4 audio": mu.and_masks(ALL, two_sided((5, 3))),
    "gemma4 audio, no future": mu.and_masks(ALL, two_sided((5, 0))),
    "t5gemma2": mu.and_masks(ALL, halved(6, is_causal=False)),
    "t5gemma2 causal": mu.and_masks(ALL, halved(6, is_causal=True)),
    "chunk": mu.chunked_causal_mask_function(6, ZERO),
    "chunk from the first token": mu.chunked_causal_mask_function(6, STARTS),
    "documents": mu.and_masks(CAUSAL, mu.packed_sequence_mask_function(PACKED)),
    "documents, sliding": mu.and_masks(mu.sliding_window_causal_mask_function(5), mu.packed_sequence_mask_function(PACKED)),
    "documents in chunks": mu.and_masks(mu.chunked_causal_mask_function(6, STARTS), mu.packed_sequence_mask_function(PACKED)),
    "documents of an encoder": mu.and_masks(ALL, mu.packed_sequence_mask_function(PACKED)),
    "spans": mu.or_masks(CAUSAL, mu.blockwise_overlay(SPANS)),
    "spans, sliding": mu.or_masks(mu.sliding_window_causal_mask_function(5), mu.blockwise_overlay(SPANS)),
    "spans inside a window": mu.and_masks(mu.or_masks(CAUSAL, mu.blockwise_overlay(SPANS)), mu.sliding_window_overlay(4)),
    "spans over documents": mu.or_masks(
        mu.and_masks(CAUSAL, mu.packed_sequence_mask_function(PACKED)), mu.blockwise_overlay(SPANS)
    ),
    "two windows": mu.and_masks(mu.sliding_window_causal_mask_function(6), mu.sliding_window_overlay(4)),
    "two windows of an encoder": mu.and_masks(_bidirectional_window_overlay(4), mu.sliding_window_bidirectional_overlay(2)),
    "padding as a function": mu.and_masks(CAUSAL, mu.padding_mask_function(torch.arange(LAST)[None] >= torch.tensor([[2], [0]]))),
}
POSITIONS = torch.stack([torch.cat([torch.arange(n) for n in x]) for x in ((9, 4, 27), (17, 23))])
if hasattr(mu, "packed_sequence_compatibility_function"):  # transformers 5.23: positions begin anew in each document
    for name, inner in {
        "causal": CAUSAL,
        "of an encoder": ALL,
        "sliding": mu.sliding_window_causal_mask_function(5),
        "in chunks": mu.chunked_causal_mask_function(6, ZERO),
        "in chunks that begin later": mu.chunked_causal_mask_function(6, STARTS),
        "spans by position": mu.or_masks(CAUSAL, mu.blockwise_overlay(SPANS)),
        "padding by position": mu.and_masks(CAUSAL, mu.padding_mask_function(torch.arange(LAST)[None] >= torch.tensor([[2], [0]]))),
    }.items():
        FUNCTIONS[f"restarted documents, {name}"] = mu.packed_sequence_compatibility_function(inner, POSITIONS, PACKED)
# (first row, rows, first key, keys): whole, decode, more rows on a cache, a window's cache, static caches, and what no cache of
# today has: keys behind the last row of a cache that does not begin at 0
PLACES = [
    (0, 12, 0, 12), (20, 1, 0, 21), (13, 4, 0, 17), (13, 3, 8, 8), (0, 9, 0, 30), (14, 1, 0, 30), (14, 3, 0, 30), (3, 5, 1, 12),
]  # fmt: skip
NONE, LEFT, RIGHT, HOLES = (
    None, torch.arange(LAST)[None] >= torch.tensor([[4], [0]]), torch.arange(LAST)[None] < torch.tensor([[7], [30]]),
    torch.tensor([[1, 1, 0, 1, 0, 1, 1, 1] * 5, [1] * LAST]).bool(),
)  # fmt: skip
PADDINGS = {"none": NONE, "left": LEFT, "right": RIGHT, "holes": HOLES}


def made(function, place, padding, config=None):
    row, rows, key, keys = place
    return position_mask(
        batch_size=BATCH, q_length=rows, kv_length=keys, q_offset=row, kv_offset=key, mask_function=function,
        attention_mask=None if padding is None else padding[:, : key + keys - 1 if padding is LEFT else key + keys],
        config=config or LlamaConfig(), dtype=torch.float32, device="cpu",
    )  # fmt: skip


def by_hand(q, k, v, seen):
    """The definition; a row that sees no key is 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    return (torch.nan_to_num(scores.softmax(-1)) @ v).transpose(1, 2)


class Masks(unittest.TestCase):
    def compare(self, mask):
        generator = torch.Generator().manual_seed(0)
        rows, keys = mask.shape[2:]
        q, k, v = (torch.randn(BATCH, h, n, 16, generator=generator) for h, n in ((4, rows), (2, keys), (2, keys)))
        low = mask.lowered
        tensors = (x.transpose(1, 2) for x in (q, k[:, :, : low.keys], v[:, :, : low.keys]))
        out = tileproof.attention(*tensors, **low.options)
        torch.testing.assert_close(out, by_hand(q, k, v, mask.elements()), atol=2e-6, rtol=0)
        return low

    def test_every_function_at_every_place_is_its_elements(self):
        for (name, function), place, (how, padding) in itertools.product(FUNCTIONS.items(), PLACES, PADDINGS.items()):
            with self.subTest(name, place=place, padding=how):
                low = self.compare(made(function, place, padding))
                if name != "spans over documents" or how == "none":
                    self.assertEqual(low.array, "", low.words)

    def test_ids_of_two_kinds_that_do_not_compose_go_by_array(self):
        """Documents inside of spans, and padding around both: no model of today."""
        low = self.compare(made(FUNCTIONS["spans over documents"], (0, 12, 0, 12), LEFT))
        self.assertRegex(low.array, "mask by array, 288 bytes, because its parts do not compose .both masks have q_documents")

    def test_positions_that_restart_elsewhere_than_documents_go_by_array(self):
        if not hasattr(mu, "remap_positions_for_packed_sequence"):
            return
        restarted = mu.remap_positions_for_packed_sequence(CAUSAL, POSITIONS)
        gaps, scattered = PACKED.clone(), PACKED.clone()
        gaps[0, 9:13] = 0  # one document with two beginnings
        scattered[0, 3] = 2  # a document in two pieces
        for ids in (gaps, scattered, PACKED[:, :20]):
            function = mu.and_masks(mu.packed_sequence_mask_function(ids), restarted)
            self.assertRaisesRegex(_pieces.Unknown, "remap_positions_for_packed_sequence", _pieces.read, function)
        self.assertRegex(self.compare(made(restarted, (0, 12, 0, 12), NONE)).array, "remap_positions_for_packed_sequence")
        either = mu.or_masks(mu.packed_sequence_mask_function(PACKED), restarted)
        self.assertRegex(self.compare(made(either, (0, 12, 0, 12), NONE)).array, "remap_positions_for_packed_sequence")

    def test_gradients_flow_through_every_mask(self):
        for name in ("sliding", "chunk from the first token", "documents", "spans inside a window", *(x for x in FUNCTIONS if x.startswith("restarted"))):
            mask = made(FUNCTIONS[name], (0, 12, 0, 12), LEFT)
            generator = torch.Generator().manual_seed(0)
            given = [torch.randn(BATCH, h, 12, 16, generator=generator, requires_grad=True) for h in (4, 2, 2)]
            wanted = torch.autograd.grad(by_hand(*given, mask.elements()).square().sum(), given)
            out = tileproof.attention(*(x.transpose(1, 2) for x in given), **mask.lowered.options)
            for ours, theirs in zip(torch.autograd.grad(out.square().sum(), given), wanted):
                torch.testing.assert_close(ours, torch.nan_to_num(theirs), atol=2e-5, rtol=1e-4)

    def test_nothing_of_the_size_of_a_mask_is_made(self):
        """Neither by the mask nor by what attention is asked with: ids by token at most."""
        rows = keys = 4096
        for name in ("causal", "sliding", "all", "chunk"):
            for padding in (None, torch.arange(keys)[None] >= torch.tensor([[100], [0]])):
                low = position_mask(
                    batch_size=BATCH, q_length=rows, kv_length=keys, mask_function=FUNCTIONS[name], attention_mask=padding
                ).lowered
                self.assertEqual(low.array, "")
                self.assertFalse(any(isinstance(x, torch.Tensor) and x.numel() > BATCH * keys for x in low.options.values()))

    def test_words(self):
        wanted = {
            ("causal", NONE): "causal", ("sliding", NONE): "window=4,0", ("chunk", NONE): "causal, chunk=6",
            ("chunk from the first token", LEFT): "causal, chunk=6 from the first token, padding",
            ("documents", NONE): "causal, documents", ("spans", NONE): "(causal or spans)",
            ("all", RIGHT): "padding right", ("all", LEFT): "padding", ("sliding both", NONE): "window=4,4",
        }  # fmt: skip
        for (name, padding), words in wanted.items():
            self.assertEqual(made(FUNCTIONS[name], (0, 12, 0, 12), padding).lowered.words, words, name)

    def test_spans_that_no_row_is_in_are_left_out(self):
        self.assertEqual(made(FUNCTIONS["spans"], (20, 1, 0, 21), None).lowered.words, "causal")
        self.assertEqual(made(FUNCTIONS["spans inside a window"], (20, 1, 0, 21), None).lowered.words, "window=3,0")

    def test_what_is_not_known_goes_by_array_and_says_so(self):
        def every_third(b, h, q, k):
            return (q - k) % 3 == 0

        for function in (every_third, mu.and_masks(CAUSAL, every_third), mu.or_masks(CAUSAL, mu.and_masks(ALL, every_third))):
            low = self.compare(made(function, (0, 12, 0, 12), LEFT))
            self.assertRegex(low.array, r"mask by array, 288 bytes, because mask function .*every_third is not known")
            self.assertEqual(low.words, "by array")

    def test_a_name_alone_is_not_trusted(self):
        """The same name with another meaning, as a later release may have it."""

        def sliding_window_overlay(sliding_window):
            def inner_mask(b, h, q, k):
                return k >= q - sliding_window  # one key more

            return inner_mask

        other = sliding_window_overlay(5)
        other.__module__, other.__qualname__ = mu.__name__, "sliding_window_overlay.<locals>.inner_mask"
        low = self.compare(made(mu.and_masks(CAUSAL, other), (0, 12, 0, 12), None))
        self.assertIn("sliding_window_overlay.inner_mask is not known", low.array)
        mine = mu.sliding_window_overlay(5)
        mine.__module__ = "elsewhere"  # not a function of transformers, whatever it does
        self.assertRaisesRegex(_pieces.Unknown, "elsewhere", _pieces.read, mine)
        with self.assertRaises(_pieces.Unknown):
            _pieces.read(two_sided((0, 3)))  # a row that does not see itself

    def test_models_may_crop_move_and_copy_it(self):
        config = LlamaConfig()
        mask = position_mask(batch_size=2, q_length=3, kv_length=30, mask_function=CAUSAL, config=config, q_offset=14)
        self.assertEqual((mask.shape, mask.dtype, mask.device.type, mask.ndim), ((2, 1, 3, 30), torch.bool, "cpu", 4))
        kept = (mask[:, :, :, :17], mask[..., :17], mask.to("cpu")[:, :, :, :17], mask.detach().clone().contiguous()[..., :-13])
        for x in kept:
            self.assertIsInstance(x, PositionMask)
            self.assertEqual(tuple(x.shape), (2, 1, 3, 17))
            self.assertEqual(self.compare(x).words, "causal")
        self.assertIsInstance(copy.deepcopy(mask), PositionMask)
        self.assertIn("causal", repr(mask))
        self.assertEqual(_records.arrays_of(config), {})

    def test_anything_else_gets_the_elements_and_is_noted(self):
        config = LlamaConfig()
        mask = made(CAUSAL, (0, 12, 0, 12), LEFT, config)
        whole = mask.elements()
        for x in (mask[:, 0], mask & True, ~~mask, mask[:, :, -3:], mask[:, :, ::2], mask.expand(2, 4, 12, 12)):
            self.assertNotIsInstance(x, PositionMask)
        self.assertTrue(torch.equal(mask[:, :, 3:, :5], whole[:, :, 3:, :5]))
        self.assertTrue(torch.equal(torch.cat([mask, mask]), torch.cat([whole, whole])))
        self.assertIn("288 elements, given to aten.cat.default", _records.arrays_of(config))

    def test_a_model_that_adds_it_to_scores_of_its_own_gets_numbers_to_add(self):
        for dtype in (torch.float32, torch.bfloat16):
            config = LlamaConfig()
            mask = made(CAUSAL, (0, 12, 0, 12), LEFT, config)
            wanted = torch.where(mask.elements(), 1.0, torch.finfo(dtype).min).to(dtype)
            scores = torch.ones(2, 4, 12, 12, dtype=dtype)
            self.assertTrue(torch.equal(scores + mask, wanted.expand_as(scores)))
            self.assertTrue(torch.equal(mask + scores, wanted.expand_as(scores)))
            scores += mask
            self.assertTrue(torch.equal(scores, wanted.expand_as(scores)))
            self.assertEqual(_records.arrays_of(config), {"288 elements, added to scores by the model's own attention": 3})

    def test_models_that_only_know_masks_to_add_get_such(self):
        """Those that do not support PyTorch's function compute with their masks as eager has them."""
        for config, dtype in ((NllbMoeConfig(), torch.float32), (LlamaConfig(), torch.bool)):
            mask = made(CAUSAL, (0, 12, 0, 12), LEFT, config)
            self.assertEqual(mask.dtype, dtype)
            last = mask.elements()[:, :, -1]
            wanted = last if dtype == torch.bool else torch.where(last, 0.0, torch.finfo(dtype).min)
            self.assertTrue(torch.equal(mask[:, :, -1], wanted))
            self.assertEqual(self.compare(mask).words, "causal, padding")

    def test_an_encoder_without_padding_has_a_mask_that_hides_nothing(self):
        """Where its module does not say that it is no decoder, None would make it one."""
        for padding in (None, torch.ones(2, 12).bool()):
            mask = position_mask(
                batch_size=2, q_length=12, kv_length=12, mask_function=ALL, attention_mask=padding,
                allow_is_bidirectional_skip=True,
            )
            self.assertEqual((mask.lowered.words, mask.lowered.options), ("none", {"causal": False}))

    def test_the_place_of_a_static_cache_is_read_when_the_mask_is_made(self):
        at = torch.tensor(14)
        mask = position_mask(batch_size=2, q_length=1, kv_length=30, mask_function=CAUSAL, q_offset=at)
        at += 1
        self.assertEqual(mask.lowered.keys, 15)

    def test_other_devices_are_refused(self):
        with self.assertRaisesRegex(ValueError, r"the mask is on meta: .* serves the CPU; load the weights first, or"):
            position_mask(batch_size=2, q_length=1, kv_length=3, mask_function=CAUSAL, device="meta")


if __name__ == "__main__":
    unittest.main()
