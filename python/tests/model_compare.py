# SPDX-License-Identifier: Apache-2.0
"""One model_type: every attention call of its tiny model against the problem text that tp_model_parse gives for that layer.
Results must be equal; results of texts that are wrong in one word must not be."""
import re

import torch

import model_calls
import model_library
import tiny_models

EQUAL, DIFFERENT = 5e-5, 1e-3


class Differs(AssertionError):
    pass


def layers(text):
    """The numbers of "0-4,6" and "0-40/2"."""
    for part in text.split(","):
        ends, _, step = part.partition("/")
        first, _, last = ends.partition("-")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


def slopes(heads):
    """ALiBi's, by the usual rule for head counts that are no power of two."""
    whole = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    return torch.tensor(first + [2 ** (-4 * (2 * i + 1) / whole) for i in range(heads - whole)])


def lists(mask):
    """The keys that a mask [batch, 1, row, key] shows to each row, ascending and filled up with -1."""
    seen = mask[:, 0] >= 0
    width = int(seen.sum(-1).max())
    keys = torch.where(seen, torch.arange(seen.shape[-1]), seen.shape[-1]).sort(-1).values[..., :width]
    return torch.where(keys < seen.shape[-1], keys, -1)


def borders(mask, length):
    """Of segments that see themselves only: where a row does not see the one before."""
    inner = [] if mask is None else [i for i in range(1, length) if mask[0, 0, i, i - 1] < 0]
    return torch.tensor([0, *inner, length])


def calls_of(model_type):
    """Calls of every part."""
    model = tiny_models.model(model_type)
    found = []
    with torch.no_grad():
        tower = tiny_models.tower_of(model)
        if tower:
            part, kind, module = tower
            with model_calls.watch(kind, module, part=lambda _: part) as watch:
                tiny_models.feed_tower(kind, module)
            found += watch.calls
        with model_calls.watch(model_type, model, part=PARTS.get(model_type, lambda _: "text")) as watch:
            FEED.get(model_type, feed)(model_type, model)
    return found + watch.calls


def feed(model_type, model):
    if not tiny_models.feed_tower(model_type, model):
        tiny_models.feed_tokens(model, cached=model_type not in UNCACHED)


def feed_whisper(_, model):
    sound = torch.randn(2, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    model(input_features=sound, decoder_input_ids=torch.randint(2, 100, (2, 13)))


UNCACHED = {*model_calls.LINEAR, "minimax"}  # minimax has a cache class of its own
# types without a model of their own; their owner's comparison is theirs
INSIDE = {"llama4_vision_model": "llama4", "ovis2_vision": "ovis2", "qwen2_vl_vision": "qwen2_vl"}
# gemma3's and gemma4's images see themselves; paligemma's image and prompt do
SPANS = torch.tensor([[0] * 4 + [1] * 6 + [0] * 11] * 2)


def feed_spans(model_type, model):
    name = "token_type_ids" if model_type in ("gemma3", "shieldgemma2") else "mm_token_type_ids"
    tiny_models.feed_tokens(model, **{name: SPANS})


def feed_prefix(_, model):
    model(input_ids=torch.randint(2, 100, (2, 21)), token_type_ids=torch.tensor([[0] * 16 + [1] * 5] * 2))


FEED = {"whisper": feed_whisper, "gemma3": feed_spans, "gemma4": feed_spans, "paligemma": feed_prefix}
_part = lambda part: lambda _: part
PARTS = {
    **{x: _part("vision") for x in (*tiny_models.IMAGES, *tiny_models.PATCHES, "gemma4_vision")},
    **{x: _part("audio") for x in tiny_models.SOUND},
    "whisper": lambda path: "cross" if "encoder_attn" in path else "audio" if path.startswith("encoder") else "text",
}  # fmt: skip


def ours(text, call):
    """What the library gives for the text on the call's tensors."""
    spans = None
    if " spans" in text:
        ids = torch.where(SPANS == 1, 0, -1)
        spans = torch.nn.functional.pad(ids, (0, max(0, call.k.shape[1] - ids.shape[1])), value=-1)
    q_spans = spans if spans is None else spans[:, spans.shape[1] - call.q.shape[1] :]
    packed = borders(call.mask, call.q.shape[1]) if " packed" in text else None
    return model_library.attention(
        text, call.q, call.k, call.v,
        sinks=call.sinks if " sinks" in text else None, slopes=slopes(call.q.shape[2]) if " alibi" in text else None,
        q_spans=q_spans, k_spans=spans, borders=packed, lists=lists(call.mask) if " sparse" in text else None,
    )  # fmt: skip


def distance(text, call):
    return float((ours(text, call) - call.o).abs().max())


def wrong_texts(text):
    """The same call with one word changed."""
    dims = re.search(r" d(\d+)", text)
    scale = re.search(r" scale=(\S+)", text)
    usual = float(scale[1]) if scale else int(dims[1]) ** -0.5
    yield re.sub(r" scale=\S+", "", text) + f" scale={usual * 1.25:.9g}"
    if " causal" in text and " window" not in text and " sparse" not in text:  # without causal a window to the left is the same
        yield text.replace(" causal", "")
    if not re.search(r" causal| window", text):
        yield text + " causal"
    for word, change in (("window", 1), ("window", -1), ("chunk", 1), ("prefix", -1)):
        found = re.search(rf" {word}=(\d+)", text)
        if found and int(found[1]) + change >= 0:
            yield text.replace(found[0], f" {word}={int(found[1]) + change}")
    for word in (" softcap=", " sinks", " alibi", " spans", " sparse-sorted="):
        if word in text:
            yield re.sub(rf"{word}[^ ]*", "", text)


def check_shapes(text, call):
    q, kv, dim, v_dim = re.search(r" h(\d+)/(\d+) .*? d(\d+)(?:/(\d+))?", text).groups()
    said = tuple(map(int, (q, kv, dim, v_dim or dim)))
    seen = (call.q.shape[2], call.k.shape[2], call.q.shape[3], call.v.shape[3])
    if said != seen:
        raise Differs(f"{call.path}: heads and dims are {seen}, and the text says {said}: {text}")


def absorbed(call):
    """A latent call as decode makes it: the keys' projection moves to q, the values' to o. Random latents take the place
    of keys and values; o is transformers' result for them."""
    module = call.module
    nope, latent = module.qk_nope_head_dim, module.kv_lora_rank
    heads, v_dim = call.q.shape[2], call.v.shape[3]
    weight = module.kv_b_proj.weight.detach() * 4
    up_k, up_v = weight.view(heads, nope + v_dim, latent).split([nope, v_dim], 1)
    latents = torch.randn(*call.k.shape[:2], latent)
    turned = torch.randn(*call.k.shape[:2], call.q.shape[3] - nope)
    k = torch.cat([torch.einsum("btl,hnl->bthn", latents, up_k), turned[:, :, None].expand(-1, -1, heads, -1)], -1)
    v = torch.einsum("btl,hvl->bthv", latents, up_v)
    q = torch.cat([torch.einsum("bthn,hnl->bthl", call.q[..., :nope], up_k), call.q[..., nope:]], -1)
    keys = torch.cat([latents, turned], -1)[:, :, None]
    return (k, v), (q, keys, latents[:, :, None]), lambda o: torch.einsum("bthl,hvl->bthv", o, up_v)


def check_absorbed(model, group, call):
    """One row: the text has the latents' dims."""
    (k, v), latent, up = absorbed(call)
    q_len, kv_len = call.q.shape[1], call.k.shape[1]
    plain = model.problem(group, call.q.shape[0], 2, kv_len)  # two rows: heads as they are
    if " sparse" in plain:
        return
    text = model.problem(group, call.q.shape[0], q_len, kv_len)
    wanted = model_library.attention(re.sub(r" q2 ", f" q{q_len} ", plain), call.q, k, v)
    for each, same in ((text, True), *((x, False) for x in list(wrong_texts(text))[:1])):
        apart = float((up(model_library.attention(each, *latent)) - wanted).abs().max())
        if (apart < EQUAL) != same:
            raise Differs(f"{call.path}: {apart:.2g} apart: {each}")


def compare(model_type):
    """How many calls were compared; Differs says which one is not as its text says."""
    whole, short = tiny_models.file(model_type)
    model = model_library.Model(whole)
    if model_library.Model(short).groups != model.groups:
        raise Differs(f"{model_type}: the class's defaults are others than those here")
    groups = [(i, g) for i, g in enumerate(model.groups) if "out_of_scope" not in g]
    where = {(g["part"], n): i for i, g in groups for n in layers(g["layers"])}
    seen, calls = set(), calls_of(model_type)
    for call in calls:
        group = where.get((call.part, call.layer))
        if group is None:
            raise Differs(f"{call.path}: no group has this layer of {call.part}")
        batch, q_len, kv_len = *call.q.shape[:2], call.k.shape[1]
        text = model.problem(group, batch, q_len, kv_len)
        if q_len == 1 and hasattr(call.module, "kv_b_proj"):
            check_absorbed(model, group, call)
            continue
        check_shapes(text, call)
        apart = distance(text, call)
        if not apart < EQUAL:
            raise Differs(f"{call.path}: {apart:.2g} apart: {text}")
        if group not in seen:
            check_wrong(text, call)
        seen.add(group)
    unseen = [g["layers"] for i, g in groups if i not in seen]
    if unseen:
        raise Differs(f"{model_type}: layers {unseen} were not called")
    return len(calls)


def check_wrong(text, call):
    for wrong in wrong_texts(text):
        apart = distance(wrong, call)
        if not apart > DIFFERENT:
            raise Differs(f"{call.path}: a wrong text is only {apart:.2g} apart: {wrong}")
