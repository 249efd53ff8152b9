# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with attn_implementation="tileproof" against "eager", on tiny random weights."""
import inspect
import unittest
import warnings

import torch
import transformers

import tileproof.transformers as front
import tiny_models

# What the masks of each are, as the report says it, without padding
WINDOW, CHUNK = "window=7,0", "causal, chunk=8"
CAUSAL_LM = {
    "llama": "causal", "mistral": WINDOW, "mixtral": WINDOW, "qwen2": "causal", "qwen3": "causal", "qwen3_moe": "causal",
    "gemma": "causal", "gemma2": "causal|" + WINDOW, "gemma3_text": "causal|" + WINDOW, "gemma4_text": "causal|" + WINDOW,
    "gpt_oss": "causal|" + WINDOW, "llama4_text": "causal|" + CHUNK, "phi3": WINDOW, "olmo2": "causal",
    "olmo3": "causal|" + WINDOW,
    "cohere2": "causal|" + WINDOW, "granite": "causal", "deepseek_v3": "causal", "starcoder2": WINDOW, "gpt_neox": "causal",
    "gpt2": "causal", "stablelm": "causal", "smollm3": "causal", "exaone4": "causal|" + WINDOW, "falcon_h1": "causal",
    "opt": "causal",
}  # fmt: skip
ENCODERS = ("bert", "roberta", "distilbert", "electra", "modernbert", "albert")
TOWERS = ("vit", "siglip_vision_model", "clip_vision_model", "dinov2", "deit")
PAIRS = ("t5", "bart", "whisper", "t5gemma")
EQUAL = 2e-5  # logits of float32
ROUNDED = 2.0  # of bfloat16: against the float32 model, at most so many times as far as eager
TOKENS = 8
RESTARTS = hasattr(transformers.masking_utils, "packed_sequence_compatibility_function")


def made(kind, auto=transformers.AutoModel):
    model = tiny_models.model(kind, auto=auto)
    if auto is transformers.AutoModelForCausalLM:
        model.generation_config.eos_token_id = None  # go on
    return model


def ids(rows=2, n=21, seed=1):
    return torch.randint(2, 100, (rows, n), generator=torch.Generator().manual_seed(seed))


def masks_of(model):
    return "|".join(sorted({x.mask for x in front.report(model).rows}))


def both(model, run):
    """What run(model) gives by eager and by tileproof."""
    results = []
    for name in ("eager", "tileproof"):
        model.set_attn_implementation(name)
        torch.manual_seed(3)
        results.append(run(model))
    return results


class Tiny(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        front.register()
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore")
        cls.threads = torch.get_num_threads()
        torch.set_num_threads(1)

    @classmethod
    def tearDownClass(cls):
        torch.set_num_threads(cls.threads)
        warnings.resetwarnings()

    def near(self, eager, ours, limit=EQUAL):
        apart, size = float((eager - ours).abs().max()), float(eager.abs().max())
        self.assertLess(apart, limit * max(1.0, size))
        self.assertGreater(size, 0)
        return apart


class Decoders(Tiny):
    def test_logits_generate_gradients_and_padding(self):
        compared = 0
        for kind, masks in CAUSAL_LM.items():
            with self.subTest(kind):
                model = made(kind, transformers.AutoModelForCausalLM)
                self.logits(model, masks)
                compared += self.generate(model)
                self.gradients(model)
                self.rounded(model)
        print(f"{len(CAUSAL_LM)} decoders of transformers {transformers.__version__}, {compared} tokens compared", flush=True)
        self.assertGreater(compared, len(CAUSAL_LM) * TOKENS)

    def logits(self, model, masks):
        with torch.no_grad():
            eager, ours = both(model, lambda m: m(ids()).logits)
        self.near(eager, ours)
        self.assertEqual(masks_of(model), masks)
        report = front.report(model)
        self.assertEqual((report.arrays, report.elements, report.refusals), ({}, [], {}))

    def generate(self, model):
        """Left padding, as batches are generated; a token counts while what makes it first is clear of the error."""
        prompt, seen = ids(), torch.ones(2, 21, dtype=torch.long)
        seen[0, :6] = 0
        config = dict(max_new_tokens=TOKENS, do_sample=False, return_dict_in_generate=True, output_logits=True, pad_token_id=0)
        eager, ours = both(model, lambda m: m.generate(prompt, attention_mask=seen, **config))
        compared = 0
        for row in range(2):
            for step in range(TOKENS):
                a, b = eager.logits[step][row], ours.logits[step][row]
                first, second = a.topk(2).values.tolist()
                if not first - second > 100 * float((a - b).abs().max()):
                    break
                self.assertEqual(int(eager.sequences[row, 21 + step]), int(ours.sequences[row, 21 + step]))
                self.near(a, b)
                compared += 1
        return compared

    def gradients(self, model):
        model.train()
        for module in model.modules():
            for name in [x for x in vars(module) if "dropout" in x and isinstance(vars(module)[x], float)]:
                setattr(module, name, 0.0)
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0

        def step(m):
            m.zero_grad()
            m(ids(), labels=ids()).loss.backward()
            return [x.grad.clone() for x in m.parameters() if x.grad is not None]

        eager, ours = both(model, step)
        self.assertEqual(len(eager), len(ours))
        largest = max(float(x.abs().max()) for x in eager)
        for a, b in zip(eager, ours):
            self.assertLess(float((a - b).abs().max()), 2e-4 * float(a.abs().max()) + 1e-5 * largest)
        model.eval().zero_grad()

    def rounded(self, model):
        with torch.no_grad():
            model.set_attn_implementation("eager")
            exact = model(ids()).logits
            eager, ours = both(model.to(torch.bfloat16), lambda m: m(ids()).logits.float())
        scale = float((eager - exact).abs().max())
        self.assertLess(float((ours - exact).abs().max()), ROUNDED * scale)
        self.assertTrue(any(" bf16" in x.problem for x in front.report(model).rows))


class Padded(Tiny):
    def test_a_padded_batch_is_its_sequences_alone(self):
        lengths, longest = (9, 21, 14), 21
        for kind in CAUSAL_LM:
            if kind in ("mixtral", "qwen3_moe", "gpt_oss", "falcon_h1"):
                continue  # eager does not keep a sequence apart either: experts and recurrences see padding
            with self.subTest(kind), torch.no_grad():
                model = made(kind, transformers.AutoModelForCausalLM)
                model.set_attn_implementation("tileproof")
                tokens = ids(3, longest)
                alone = [model(tokens[i : i + 1, :n]).logits[0] for i, n in enumerate(lengths)]
                for side in ("left", "right"):
                    self.batch(model, tokens, lengths, longest, side, alone)
                self.assertEqual(front.report(model).arrays, {})

    def batch(self, model, tokens, lengths, longest, side, alone):
        at = [slice(longest - n, longest) if side == "left" else slice(0, n) for n in lengths]
        padded, seen = torch.zeros(3, longest, dtype=torch.long), torch.zeros(3, longest, dtype=torch.long)
        for i, n in enumerate(lengths):
            padded[i, at[i]], seen[i, at[i]] = tokens[i, :n], 1
        more = {}
        if "position_ids" in inspect.signature(model.forward).parameters:
            more["position_ids"] = (seen.cumsum(-1) - 1).clamp(min=0)
        together = model(padded, attention_mask=seen, **more).logits
        for i, wanted in enumerate(alone):
            self.near(wanted, together[i, at[i]])


class Others(Tiny):
    def test_encoders_with_padding(self):
        for kind in ENCODERS:
            with self.subTest(kind), torch.no_grad():
                model, seen = made(kind), torch.ones(2, 21, dtype=torch.long)
                for side, at in (("none", slice(0, 0)), ("right", slice(14, 21)), ("left", slice(0, 5))):
                    seen[:] = 1
                    seen[0, at] = 0
                    eager, ours = both(model, lambda m: m(ids(), attention_mask=seen).last_hidden_state[seen.bool()])
                    self.near(eager, ours)
                report = front.report(model)
                self.assertGreater(report.calls, 0)
                self.assertEqual((report.arrays, report.elements), ({}, []))

    def test_towers(self):
        for kind in TOWERS:
            with self.subTest(kind), torch.no_grad():
                model = made(kind)

                def run(m):
                    found = []
                    hook = m.register_forward_hook(lambda _, __, out: found.append(out[0]))
                    tiny_models.feed_tower(kind, m)
                    hook.remove()
                    return found[0]

                eager, ours = both(model, run)
                self.near(eager, ours)
                self.assertEqual(masks_of(model), "none")

    def test_encoder_and_decoder(self):
        for kind in PAIRS:
            with self.subTest(kind), torch.no_grad():
                model = made(kind)
                seen = torch.ones(2, 21, dtype=torch.long)
                seen[0, 15:] = 0
                given = dict(input_ids=ids(), attention_mask=seen)
                if kind == "whisper":
                    given = dict(input_features=torch.randn(2, 16, 48, generator=torch.Generator().manual_seed(2)))
                eager, ours = both(model, lambda m: m(decoder_input_ids=ids(2, 9, 5), **given).last_hidden_state)
                self.near(eager, ours)
                report = front.report(model)
                self.assertEqual((report.arrays, report.elements), ({}, []))
                self.assertTrue(any("padding right" in x.mask for x in report.rows) or kind == "whisper", report)

    def test_spans_of_images(self):
        kinds = torch.tensor([[0] * 4 + [1] * 6 + [0] * 11] * 2)
        for kind, name, given in (
            ("gemma3", "token_type_ids", kinds), ("paligemma", "token_type_ids", torch.tensor([[0] * 16 + [1] * 5] * 2)),
        ):  # fmt: skip
            with self.subTest(kind), torch.no_grad():
                model = made(kind)
                seen = torch.ones(2, 21, dtype=torch.long)
                seen[0, :3] = 0
                for mask in (None, seen):
                    more = {"attention_mask": mask, name: given}
                    eager, ours = both(model, lambda m: m(input_ids=ids(), **more).last_hidden_state)
                    kept = slice(None) if mask is None else seen.bool()
                    self.near(eager[kept], ours[kept])
                self.assertIn("spans", masks_of(model))
                self.assertEqual(front.report(model).arrays, {})

    def test_packed_documents(self):
        places = torch.cat([torch.arange(n) for n in (5, 9, 7)])[None]
        for kind in ("llama", "mistral", "gemma3_text", "llama4_text"):
            with self.subTest(kind), torch.no_grad():
                model = made(kind, transformers.AutoModelForCausalLM)
                eager, ours = both(model, lambda m: m(ids(1), position_ids=places, use_cache=False).logits)
                self.near(eager, ours)
                alone = model(ids(1)[:, 5:14], use_cache=False).logits
                if kind != "llama4_text" or RESTARTS:  # before transformers 5.23 chunks count from the first token of all
                    self.near(alone, ours[:, 5:14])
                self.assertIn("documents", masks_of(model))
                self.assertEqual(front.report(model).arrays, {})

    def test_static_caches(self):
        for kind in ("llama", "mistral", "gemma3_text", "gpt_oss", "llama4_text"):
            with self.subTest(kind):
                model = made(kind, transformers.AutoModelForCausalLM)
                seen = torch.ones(2, 21, dtype=torch.long)
                seen[0, :6] = 0
                more = dict(max_new_tokens=TOKENS, do_sample=False, cache_implementation="static", pad_token_id=0)
                more.update(return_dict_in_generate=True, output_logits=True, disable_compile=True)
                for mask in (torch.ones_like(seen), seen):
                    eager, ours = both(model, lambda m: m.generate(ids(), attention_mask=mask, **more))
                    for a, b in zip(eager.logits, ours.logits):
                        self.near(a, b)
                report = front.report(model)
                self.assertEqual((report.arrays, report.elements), ({}, []))
                self.assertFalse(any("k128" in x.problem for x in report.rows))


if __name__ == "__main__":
    unittest.main()
