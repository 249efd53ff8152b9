# SPDX-License-Identifier: Apache-2.0
"""Every model type of this transformers that eager attention can run from tokens, images or sound: tileproof against eager,
without padding and with it on either side. Prints a line a type; minutes. `python3 scripts/test_torch.py types` runs it."""
import collections
import inspect
import unittest
import warnings

import torch
import transformers

import tileproof.transformers as front
import tiny_models

EQUAL = 1e-4
# rows of padding see no key: transformers' eager gives them a mean of all values, tileproof 0, and these models let them count
PADDING_COUNTS = {"recurrent_gemma"}
TOWERS = {*tiny_models.IMAGES, *tiny_models.PATCHES, *tiny_models.SOUND, "gemma4_vision"}


def results(model, kind, side):
    torch.manual_seed(1)
    found = []
    hook = model.register_forward_hook(lambda _, __, out: found.append(out if torch.is_tensor(out) else out[0]))
    try:
        if kind in TOWERS:
            tiny_models.feed_tower(kind, model)
        elif side == "none":
            tiny_models.feed_tokens(model)
        else:
            return padded(model, side, found)
    finally:
        hook.remove()
    return found


def padded(model, side, found):
    ids, seen = torch.randint(2, 100, (2, 13)), torch.ones(2, 13, dtype=torch.long)
    seen[0, slice(0, 4) if side == "left" else slice(9, 13)] = 0
    pair = "decoder_input_ids" in inspect.signature(model.forward).parameters
    model(input_ids=ids, attention_mask=seen, **({"decoder_input_ids": ids[:, :7]} if pair else {}))
    return [x if pair or x.shape[:2] != seen.shape else x[seen.bool()] for x in found]


class Types(unittest.TestCase):
    def setUp(self):
        front.register()
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()

    def test_every_type_that_eager_can_run(self):
        count = collections.Counter()
        for kind in tiny_models.types():
            with self.subTest(kind):
                count[self.compare(kind)] += 1
        print(f"transformers {transformers.__version__}: {dict(count)}", flush=True)
        self.assertGreater(count["by position"], 150)

    def compare(self, kind):
        try:
            model = tiny_models.model(kind)
        except Exception:
            return "no model of this type alone"
        ran, words, arrays = 0, set(), set()
        for side in ("none", "left", "right") if kind not in TOWERS else ("none",):
            model.set_attn_implementation("eager")
            try:
                with torch.no_grad():
                    eager = results(model, kind, side)
            except Exception:
                continue  # it needs other inputs
            model.set_attn_implementation("tileproof")
            front.forget(model)
            with torch.no_grad():
                ours = results(model, kind, side)
            report = front.report(model)
            ran += report.calls
            words |= {x.mask for x in report.rows}
            arrays |= {*report.arrays, *report.elements}
            if not (side == "left" and kind in PADDING_COUNTS):
                for a, b in zip(eager, ours):
                    self.assertLess(float((a - b).abs().max()), EQUAL, side)
        if not ran:
            return "attention of its own, or inputs that are not known here"
        print(f"{kind:28} {'; '.join(sorted(words))}{'; '.join(['', *sorted(arrays)])}", flush=True)
        return "by array" if arrays else "by position"


if __name__ == "__main__":
    unittest.main()
