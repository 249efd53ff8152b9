# SPDX-License-Identifier: Apache-2.0
"""tileproof.transformers: registration, report, refusals, dropout, compiled models, and the examples of the documents."""
import copy
import gc
import json
import os
import pathlib
import subprocess
import sys
import unittest
import warnings
import weakref

import torch
import transformers

import small_models
import tileproof
import tileproof.transformers as front
import tiny_models
from tileproof.transformers import _attention, _records

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENS = torch.arange(1, 21)[None]


def run(code, *before):
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *before, "-c", code], capture_output=True, text=True, env=environ)
    return done.stdout.strip() + done.stderr.strip() if done.returncode else done.stdout.strip()


class Front(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        front.register()
        transformers.logging.set_verbosity_error()

    def tearDown(self):
        front.register()

    def llama(self, **more):
        return small_models.llama("tileproof", **more)


class Registration(Front):
    def test_nothing_large_is_imported_before_it_is_asked_for(self):
        code = "import sys, tileproof; print([x for x in ('torch', 'transformers') if x in sys.modules])"
        self.assertEqual(run(code), "[]")

    def test_it_is_known_after_register_and_not_before(self):
        code = "import small_models\ntry: small_models.llama('tileproof')\nexcept ValueError as e: print('refused')\n"
        code += "import tileproof\ntileproof.transformers.register()\nsmall_models.llama('tileproof')\nprint('made')"
        self.assertEqual(run(f"import sys; sys.path.insert(0, {str(ROOT / 'python/tests')!r})\n{code}"), "refused\nmade")

    def test_fallback_is_one_of_two_words(self):
        with self.assertRaisesRegex(ValueError, "fallback is 'torch': it must be 'refuse' or 'permit'"):
            front.register(fallback="torch")

    def test_a_model_may_be_switched(self):
        model = small_models.llama("eager")
        with torch.no_grad():
            wanted = model(TOKENS).logits
            model.set_attn_implementation("tileproof")
            torch.testing.assert_close(model(TOKENS).logits, wanted, atol=1e-5, rtol=0)
        self.assertEqual(front.report(model).calls, 2)


class Reports(Front):
    def test_each_layer_has_kernel_class_and_mask(self):
        model = small_models.gemma3("tileproof")
        small_models.generate(model)
        report = front.report(model)
        rows = {(x.layers, x.problem_class.split()[0]): x for x in report.rows}
        self.assertEqual(len(rows), 4)
        row = rows["model.layers.0,2.self_attn", "prefill"]
        self.assertEqual((row.calls, row.mask, row.fallback), (2, "window=7,0", False))
        self.assertEqual(row.problem_class, "prefill many-rows h4/2 d16 f32 causal window=7,0")
        self.assertEqual(row.problem, "prefill b1 h4/2 q20 k20 d16 f32 causal window=7,0")
        self.assertEqual(rows["model.layers.1,3.self_attn", "decode"].calls, 10)
        for x in report.rows:
            self.assertIn(x.kernel, tileproof.kernels)
        self.assertEqual(report.calls, 24)
        text = str(report)
        self.assertIn("Gemma3ForCausalLM: 24 calls of attention by tileproof in 4 layers, 0 refused, 0 masks by array", text)
        self.assertIn("prefill many-rows h4/2 d16 f32 causal window=7,0", text)
        self.assertEqual(json.loads(json.dumps(report.to_dict()))["rows"][0]["calls"], report.rows[0].calls)
        front.forget(model)
        self.assertEqual(front.report(model).calls, 0)

    def test_paths_of_layers_are_joined(self):
        joined = front._report.together(["a.0.x.1", "a.2.x.1", "a.1.x.1", "b", "c.4"])
        self.assertEqual(joined, "a.0-2.x.1, b, c.4")

    def test_a_model_that_never_comes_here_is_told(self):
        model = small_models.llama("sdpa")
        with torch.no_grad():
            model(TOKENS)
        self.assertIn("no layer called tileproof", str(front.report(model)))

    def test_attention_of_a_models_own_is_eager_still_and_is_told(self):
        config = copy.deepcopy(tiny_models.config("bloom"))
        models = []
        for name in ("eager", "tileproof"):
            torch.manual_seed(0)
            models.append(transformers.AutoModel.from_config(copy.deepcopy(config), attn_implementation=name).eval())
        ids = torch.randint(2, 100, (2, 13), generator=torch.Generator().manual_seed(1))
        seen = torch.ones(2, 13, dtype=torch.long)
        seen[0, :4] = 0
        with torch.no_grad():
            wanted, out = (m(ids, attention_mask=seen)[0][seen.bool()] for m in models)
        torch.testing.assert_close(out, wanted)
        report = front.report(models[1])
        self.assertEqual(report.calls, 0)
        self.assertIn("mask of 338 elements, added to scores by the model's own attention", str(report))

    def test_masks_of_callers_are_arrays_and_told(self):
        model, eager = self.llama(), small_models.llama("eager")
        seen = torch.ones(20, 20).tril().bool()[None, None]
        added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        with torch.no_grad():
            wanted = eager(TOKENS, attention_mask=added).logits
            for mask, size in ((seen, 400), (added, 1600)):
                front.forget(model)
                torch.testing.assert_close(model(TOKENS, attention_mask=mask).logits, wanted, atol=1e-5, rtol=0)
                told = f"mask by array, {size} bytes, because the model or its caller made it"
                self.assertEqual(front.report(model).arrays, {told: ["model.layers.0.self_attn", "model.layers.1.self_attn"]})
                self.assertIn(f"{told} (model.layers.0-1.self_attn)", str(front.report(model)))
            with self.assertRaisesRegex(TypeError, "attention mask is torch.int64: it must be bool .* or a float that is added"):
                model(TOKENS, attention_mask=seen.long())

    def test_nothing_keeps_a_model_alive(self):
        model = self.llama()
        with torch.no_grad():
            model(TOKENS)
        _records.note_array(model.config, "x")
        gone, config, known = weakref.ref(model), id(model.config), len(_records._layers)
        del model
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(len(_records._layers), known - 2)
        self.assertNotIn(config, _records._arrays)


class Refusals(Front):
    def test_probabilities_are_not_to_be_had(self):
        for model in (self.llama(), tiny_models.model("bert"), tiny_models.model("gpt2")):  # gpt2 does not tell its layers
            given = {"input_ids": TOKENS}
            model.set_attn_implementation("tileproof")
            with self.assertRaisesRegex(ValueError, r"which tileproof never writes: model.set_attn_implementation\('eager'\)"):
                model(**given, output_attentions=True)
            self.assertIn("refused: output_attentions=True", str(front.report(model)))
            model.set_attn_implementation("eager")
            self.assertIsNotNone(model(**given, output_attentions=True).attentions[0])

    def test_hidden_states_are(self):
        self.assertEqual(len(self.llama()(TOKENS, output_hidden_states=True).hidden_states), 3)

    def test_other_devices_and_dtypes(self):
        with torch.device("meta"):
            model = self.llama()
        with self.assertRaisesRegex(ValueError, r"is on meta: .* serves the CPU; load the weights first"):
            model(TOKENS.to("meta"))
        x = torch.randn(1, 2, 4, 8)
        with self.assertRaisesRegex(ValueError, "key is on meta"):
            _attention.attention_forward(torch.nn.Identity(), x, x.to("meta"), x, None)
        with self.assertRaisesRegex(TypeError, r"query is torch.float64: it must be float32, float16 or bfloat16; model.to"):
            self.llama().double()(TOKENS)

    def test_what_is_not_served_is_named(self):
        x, module = torch.randn(1, 2, 4, 8), torch.nn.Identity()
        for name, text in (("cache", "continuous batching"), ("block_indices", "block_indices"), ("head_mask", "head_mask")):
            with self.assertRaisesRegex(ValueError, text):
                _attention.attention_forward(module, x, x, x, None, **{name: torch.ones(1)})
        mask = front._masks.position_mask(batch_size=1, q_length=4, kv_length=5)
        with self.assertRaisesRegex(ValueError, "the mask is for 4 rows and 5 keys, and there are 4 and 4"):
            _attention.attention_forward(module, x, x, x, mask)
        self.assertEqual(len(_records.known(module).refusals), 4)

    def test_a_fallback_is_refused_or_told(self):
        model = self.llama(hidden_size=600, num_attention_heads=1, num_key_value_heads=1, head_dim=600)
        with torch.no_grad(), self.assertRaises(tileproof.FallbackRefused):
            model(TOKENS)
        self.assertEqual(len(front.report(model).refusals), 1)
        front.register(fallback="permit")
        with torch.no_grad():
            model(TOKENS)
        self.assertIn("FALLBACK", str(front.report(model)))
        self.assertTrue(front.report(model).rows[0].fallback)


class Arguments(Front):
    def attend(self, module=None, rows=5, **given):
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, h, n, 16, generator=generator) for h, n in ((4, rows), (2, 9), (2, 9)))
        given = {"attention_mask": None, **given}
        return (q, k, v), _attention.attention_forward(module or torch.nn.Identity(), q, k, v, **given)[0]

    def expected(self, tensors, seen=None, **more):
        q, k, v = (x.transpose(1, 2) for x in tensors)
        return tileproof.attention(q, k, v, mask=seen, **more)

    def test_without_a_mask_the_module_says_whether_it_is_causal(self):
        causal = torch.ones(5, 9).tril().bool()
        plain, decoder = torch.nn.Identity(), torch.nn.Identity()
        plain.is_causal, decoder.is_causal = False, True
        for module, word, seen in ((plain, None, None), (decoder, None, causal), (plain, True, causal), (decoder, False, None)):
            tensors, out = self.attend(module, is_causal=word)
            torch.testing.assert_close(out, self.expected(tensors, seen))

    def test_bias_softcap_sinks_and_scale(self):
        bias, sinks = torch.randn(1, 4, 5, 9), torch.randn(4, dtype=torch.bfloat16)
        seen = torch.rand(2, 1, 5, 9) > 0.3
        module = torch.nn.Identity()
        module.is_causal = False
        tensors, out = self.attend(module, position_bias=bias, softcap=2.0, s_aux=sinks, scaling=0.7, attention_mask=seen)
        wanted = self.expected(tensors, seen, bias=bias, softcap=2.0, sinks=sinks.float(), scale=0.7)
        torch.testing.assert_close(out, wanted)
        added = torch.where(seen, 0.0, -torch.inf)
        tensors, again = self.attend(module, position_bias=bias, softcap=2.0, s_aux=sinks, scaling=0.7, attention_mask=added)
        torch.testing.assert_close(again, wanted)
        module.is_causal = True
        tensors, cut = self.attend(module, position_bias=bias)
        torch.testing.assert_close(cut, self.expected(tensors, torch.ones(5, 9).tril().bool(), bias=bias))

    def test_a_decode_step(self):
        """Plain ones go through the extension alone; whatever is asked for beside counts all the same."""
        bias, sinks = torch.randn(1, 4, 1, 9), torch.randn(4)
        asked = ({}, {"scaling": 0.7}, {"softcap": 0.5}, {"s_aux": sinks}, {"position_bias": bias}, {"s_aux": sinks, "softcap": 0.5, "scaling": 0.7})
        names = {"scaling": "scale", "softcap": "softcap", "s_aux": "sinks", "position_bias": "bias"}
        for given in asked:
            module = torch.nn.Identity()
            with tileproof.torch.log() as log:
                tensors, out = self.attend(module, rows=1, **given)
            wanted = self.expected(tensors, **{names[name]: x for name, x in given.items()})
            self.assertTrue(torch.equal(out, wanted), given)
            self.assertEqual((out.shape, out.is_contiguous(), len(log.receipts)), ((2, 1, 4, 16), True, 1))
            self.assertEqual([x[0] for x in _records.layer(module).calls.values()], [1])

    def test_lists_of_keys(self):
        lists = torch.tensor([[0, 3, -1], [1, 8, 2], [5, 5, -1], [0, 1, 2], [8, -1, -1]])[None].expand(2, 5, 3)
        seen = torch.zeros(5, 9, dtype=torch.bool)
        for row, keys in enumerate(lists[0].tolist()):
            seen[row, [x for x in keys if x >= 0]] = True
        module = torch.nn.Identity()
        module.is_causal = False
        tensors, out = self.attend(module, indices=lists)
        torch.testing.assert_close(out, self.expected(tensors, seen))
        mask = front._masks.position_mask(batch_size=2, q_length=5, kv_length=9, q_offset=4)
        tensors, out = self.attend(module, indices=lists, attention_mask=mask)
        torch.testing.assert_close(out, self.expected(tensors, seen & mask.elements()))
        self.assertTrue(any("because lists of keys" in x for x in _records.known(module).arrays))

    def test_dropout_drops_in_training_and_repeats_with_the_seed(self):
        model = self.llama(attention_dropout=0.5)
        with torch.no_grad():
            exact = model(TOKENS).logits
            model.train()
            runs = [(torch.manual_seed(seed), model(TOKENS).logits)[1] for seed in (1, 1, 2)]
        self.assertTrue(torch.equal(runs[0], runs[1]))
        self.assertFalse(torch.equal(runs[0], runs[2]))
        self.assertGreater(float((runs[0] - exact).abs().max()), 1e-3)
        model(TOKENS, labels=TOKENS).loss.backward()
        self.assertGreater(float(model.model.layers[0].self_attn.q_proj.weight.grad.abs().max()), 0)

    def test_autocast_casts_as_pytorchs_own_function_does(self):
        model = self.llama()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            model(TOKENS)
        self.assertTrue(all(" bf16" in x.problem for x in front.report(model).rows))

    def test_gradient_checkpointing(self):
        grads = []
        for again in (False, True):
            model = self.llama().train()
            if again:
                model.gradient_checkpointing_enable()
            model(TOKENS, attention_mask=torch.ones_like(TOKENS), labels=TOKENS).loss.backward()
            grads.append(model.model.layers[0].self_attn.q_proj.weight.grad)
        self.assertTrue(torch.equal(*grads))

    def test_a_compiled_model_is_one_graph_without_a_mask(self):
        model, eager = self.llama(), small_models.llama("eager")
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with torch.no_grad(), warnings.catch_warnings(), tileproof.torch.log() as log:
            warnings.simplefilter("ignore")
            torch.testing.assert_close(compiled(TOKENS).logits, eager(TOKENS).logits, atol=1e-5, rtol=0)
        self.assertEqual([x.problem for x in log.receipts], ["prefill b1 h4/2 q20 k20 d16 f32 causal"] * 2)


class Documents(Front):
    def test_the_example(self):
        example = str(ROOT / "python/examples/transformers_report.py")
        done = subprocess.run([sys.executable, example], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^generated \[\[.*\nLlamaForCausalLM: ")  # as the guide shows it
        self.assertIn("0 refused, 0 masks by array", done.stdout)

    def test_the_lines_of_the_guide(self):
        """As they stand there, in a process of their own."""
        guide = (ROOT / "docs/transformers.md").read_text()
        told = run(guide.split("```python\n")[1].split("```")[0])
        self.assertRegex(told, "LlamaForCausalLM: 2 calls of attention by tileproof in 2 layers, 0 refused, 0 masks by array")
        self.assertIn("prefill b1 h8/8 q10 k10 d16 f32 causal", told)

    def test_the_same_model_under_the_watcher(self):
        example = str(ROOT / "python/examples/transformers_report.py")
        done = subprocess.run([sys.executable, "-m", "tileproof.watch", example], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        table = done.stdout + done.stderr
        self.assertRegex(table, r"tileproof watch: \d+ calls of attention, 0 of them not fused")
        self.assertIn("LlamaForCausalLM model.layers.0-3.self_attn", table)


if __name__ == "__main__":
    unittest.main()
