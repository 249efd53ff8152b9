# SPDX-License-Identifier: Apache-2.0
"""Attention of every known model_type against transformers, and every other type refused by name."""
import os
import pathlib
import unittest

import torch
import transformers

import model_compare
import model_library
import model_table
import tiny_models

OUT, REFUSED = model_table.reasons(model_table.OUT_OF_SCOPE), model_table.reasons(model_table.REFUSED)


def known():
    return [x for x in tiny_models.types() if x not in OUT and x not in REFUSED]


@unittest.skipUnless(model_library.library, "TILEPROOF_MODELS names no library")
class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        transformers.logging.set_verbosity_error()
        cls.threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the models are tiny

    @classmethod
    def tearDownClass(cls):
        torch.set_num_threads(cls.threads)

    def test_each_known_type_attends_as_its_problem_texts_say(self):
        compared = 0
        for model_type in known():
            with self.subTest(model_type):
                compared += model_compare.compare(model_compare.INSIDE.get(model_type, model_type)) > 0
        print(f"{compared} model types of transformers {transformers.__version__} compared", flush=True)
        self.assertGreaterEqual(compared, 90)

    def test_every_other_type_is_refused_by_name(self):
        for model_type in sorted({*OUT, *REFUSED}):
            with self.subTest(model_type):
                self.assertIn(model_type, tiny_models.types(), "transformers does not have it any more")
                if model_type in OUT and self.is_read(model_type):
                    continue
                with self.assertRaises(model_library.Refused) as caught:
                    model_library.Model({"model_type": model_type})
                self.assertEqual(caught.exception.status, model_library.UNSUPPORTED)
                self.assertIn(f'model_type is "{model_type}"', str(caught.exception))

    def is_read(self, model_type):
        """One without attention in any layer."""
        try:
            groups = model_library.Model({"model_type": model_type, "num_hidden_layers": 2}).groups
        except model_library.Refused:
            return False
        return all("out_of_scope" in x for x in groups)

    def test_no_type_stands_in_two_places(self):
        for table in (model_table.OUT_OF_SCOPE, model_table.REFUSED):
            listed = [x for types in table.values() for x in types.split()]
            self.assertEqual(len(listed), len(set(listed)))
        self.assertFalse(set(OUT) & set(REFUSED))

    def test_a_key_that_no_one_knows_is_refused(self):
        for model_type in known():
            with self.subTest(model_type), self.assertRaisesRegex(model_library.Refused, "attention_twist is 1"):
                model_library.Model({**tiny_models.file(model_type)[0], "attention_twist": 1})

    def test_the_table_of_the_documents_is_this_one(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        text = (root / "docs/models.md").read_text()
        self.assertIn(model_table.text(known(), transformers.__version__), text, "python3 scripts/model_table.py writes it")


if __name__ == "__main__":
    unittest.main()
