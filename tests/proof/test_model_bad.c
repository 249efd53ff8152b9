/* SPDX-License-Identifier: Apache-2.0 */
/* Bad files: a status, and a text with the file, the line, the field and the rule; no model. */
#include "summary.h"

#include <stdlib.h>

typedef struct bad {
    const char *config;
    tp_status status;
    const char *text; /* must stand in the error */
} bad;

#define LLAMA "\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":16"
#define PARTS                                                                                       \
    "\"vision_config\":{\"hidden_size\":64,\"num_attention_heads\":4},\"text_config\":{\"num_hidden_layers\":2"

static const bad files[] = {
    /* not JSON, or not as a config is */
    {"", TP_INVALID, "f.json:1: not JSON"},
    {"{", TP_INVALID, "f.json:1: not JSON"},
    {"{\n\"model_type\": \"llama\",\n\"a\" 1}", TP_INVALID, "f.json:3: not JSON"},
    {"{\"model_type\":\"llama\",\n\"num_hidden_layers\":2,\n\"num_hidden_layers\":3}", TP_INVALID,
     "f.json:3: column 1 is beyond what is read here: a key must stand once: \"num_hidden_layers\""},
    {"[]", TP_INVALID, "it must be an object"},
    {"{} x", TP_INVALID, "not JSON"},
    {"{\"a\":1e400}", TP_INVALID, "f.json:1: column 6 is beyond what is read here: a number must be below 1.8e308"},
    {"{\"a\":\"\xff\"}", TP_INVALID, "not JSON"},
    {"{}", TP_INVALID, "model_type is missing"},
    {"{\"model_type\":7}", TP_INVALID, "model_type is 7: it must be a string"},
    /* not known: fail closed, by name */
    {"{\"model_type\":\"llama9\"}", TP_UNSUPPORTED, "model_type is \"llama9\": it is not known"},
    {"{" LLAMA ",\n\"attention_multiplier\":0.5}", TP_UNSUPPORTED,
     "f.json:2: attention_multiplier is 0.5: this key is not known here and could change attention"},
    {"{" LLAMA ",\"sliding_window\":4096}", TP_UNSUPPORTED, "sliding_window is 4096: it must be null"},
    {"{" LLAMA ",\"layer_types\":[]}", TP_UNSUPPORTED, "layer_types is []"},
    {"{" LLAMA ",\"is_causal\":false}", TP_UNSUPPORTED, "is_causal is false"},
    {"{" LLAMA ",\"add_cross_attention\":true}", TP_UNSUPPORTED, "add_cross_attention is true: it must be false"},
    {"{" LLAMA ",\"scale_attn_weights\":false}", TP_UNSUPPORTED, "scale_attn_weights is false: it must be true"},
    {"{" LLAMA ",\"full_attn_mod\":2}", TP_UNSUPPORTED, "full_attn_mod is 2: it must be 1"},
    {"{" LLAMA ",\"linear_attention_layers\":2}", TP_UNSUPPORTED, "linear_attention_layers is 2"},
    {"{" LLAMA ",\"pruned_heads\":{\"0\":[1]}}", TP_UNSUPPORTED, "pruned_heads is"},
    {"{" LLAMA ",\"quantization_config\":{\"kv_cache_scheme\":{}}}", TP_UNSUPPORTED, "kv_cache_scheme is set"},
    {"{" LLAMA ",\"torch_dtype\":\"float8_e4m3fn\"}", TP_UNSUPPORTED, "torch_dtype is \"float8_e4m3fn\""},
    {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"spiral\",\"factor\":2}}", TP_UNSUPPORTED,
     "rope_scaling.rope_type is \"spiral\""},
    {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"alpha\":1}}", TP_UNSUPPORTED,
     "rope_scaling.alpha is 1: this key is not known"},
    {"{" LLAMA ",\"text_config\":{}}", TP_UNSUPPORTED, "text_config is {}"},
    {"{\"model_type\":\"gpt_neox\",\"num_key_value_heads\":8}", TP_UNSUPPORTED, "num_key_value_heads is 8"},
    {"{\"model_type\":\"falcon\",\"alibi\":true}", TP_UNSUPPORTED, "alibi is true"},
    {"{\"model_type\":\"mpt\",\"attn_config\":{\"alibi_bias_max\":16}}", TP_UNSUPPORTED, "attn_config.alibi_bias_max is 16"},
    {"{\"model_type\":\"mpt\",\"attn_config\":{\"attn_type\":\"multiquery_attention\"}}", TP_UNSUPPORTED,
     "attn_config.attn_type"},
    {"{\"model_type\":\"mpt\",\"attn_config\":{\"prefix_lm\":true}}", TP_UNSUPPORTED, "prefix_lm is true"},
    {"{\"model_type\":\"mpt\",\"attn_config\":{\"rope\":true}}", TP_UNSUPPORTED, "attn_config.rope is true"},
    {"{\"model_type\":\"mpt\",\"attn_config\":{\"attn_uses_sequence_id\":true}}", TP_UNSUPPORTED, "attn_uses_sequence_id"},
    {"{\"model_type\":\"gemma2\",\"use_bidirectional_attention\":true}", TP_UNSUPPORTED, "mapped for gemma3_text only"},
    {"{\"model_type\":\"gemma3_text\",\"use_bidirectional_attention\":\"vision\"}", TP_INVALID,
     "use_bidirectional_attention is \"vision\": it must be true, false or null"},
    {"{\"model_type\":\"gemma3_text\",\"layer_types\":[\"ring_attention\"],\"num_hidden_layers\":1}", TP_UNSUPPORTED,
     "layer_types holds \"ring_attention\" for layer 0"},
    {"{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"rope_type\":\"default\"}}", TP_UNSUPPORTED, "must be split"},
    {"{\"model_type\":\"gpt_oss\"}", TP_UNSUPPORTED, "rope_scaling is missing"},
    {"{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}", TP_UNSUPPORTED, "longrope or su"},
    {"{\"model_type\":\"qwen3_moe\",\"use_sliding_window\":true}", TP_UNSUPPORTED, "use_sliding_window is true"},
    {"{\"model_type\":\"llama4_text\",\"num_hidden_layers\":2,\"no_rope_layers\":[1,0],"
     "\"layer_types\":[\"full_attention\",\"full_attention\"]}",
     TP_UNSUPPORTED, "differs from no_rope_layers"},
    {"{\"model_type\":\"bert\",\"is_decoder\":true}", TP_UNSUPPORTED, "is_decoder is true"},
    {"{\"model_type\":\"bert\",\"position_embedding_type\":\"relative_key\"}", TP_UNSUPPORTED, "position_embedding_type"},
    {"{\"model_type\":\"deepseek_v3\",\"num_key_value_heads\":8}", TP_UNSUPPORTED, "num_key_value_heads is 8"},
    {"{\"model_type\":\"gpt2\",\"scale_attn_weights\":false,\"scale_attn_by_inverse_layer_idx\":true}", TP_UNSUPPORTED,
     "not mapped"},
    {"{\"model_type\":\"gemma3\",\"text_config\":{}}", TP_UNSUPPORTED, "vision_config is missing"},
    {"{\"model_type\":\"gemma3\",\"vision_config\":{}}", TP_UNSUPPORTED, "text_config is missing"},
    {"{\"model_type\":\"gemma3\"," PARTS ",\"model_type\":\"gemma9\"}}", TP_UNSUPPORTED, "text_config.model_type is \"gemma9\""},
    {"{\"model_type\":\"gemma3\",\n" PARTS ",\n\"window_shape\":1}}", TP_UNSUPPORTED, "f.json:3: text_config.window_shape is 1"},
    {"{\"model_type\":\"llava\",\"text_config\":{},\"vision_config\":{\"model_type\":\"bert\"}}", TP_UNSUPPORTED,
     "vision_config.model_type is \"bert\""},
    {"{\"model_type\":\"pixtral\",\"rope_parameters\":{\"rope_type\":\"yarn\"}}", TP_UNSUPPORTED, "rope_parameters.rope_type"},
    {"{\"model_type\":\"paligemma\",\"text_config\":{\"use_bidirectional_attention\":false},\"vision_config\":{}}",
     TP_UNSUPPORTED, "text_config.use_bidirectional_attention is false"},
    /* keys of single classes, and layers with something of their own */
    {"{\"model_type\":\"lfm2\"}", TP_UNSUPPORTED, "layer_types is missing"},
    {"{\"model_type\":\"llama4_text\",\"num_hidden_layers\":1,\"layer_types\":[\"indexed_attention\"],\"no_rope_layers\":[0]}",
     TP_UNSUPPORTED, "differs from no_rope_layers"},
    {"{\"model_type\":\"olmo3\",\"num_hidden_layers\":1,\"layer_types\":[\"indexed_attention\"]}", TP_UNSUPPORTED,
     "it is not mapped for this model_type"},
    {"{\"model_type\":\"qwen3_next\",\"layer_group_size\":4}", TP_UNSUPPORTED, "layer_group_size is 4: this key is not known"},
    {"{\"model_type\":\"bailing_hybrid\",\"full_attention_interval\":4}", TP_UNSUPPORTED,
     "full_attention_interval is 4: this key is not known"},
    {"{\"model_type\":\"gemma3_text\",\"global_attn_every_n_layers\":4}", TP_UNSUPPORTED,
     "global_attn_every_n_layers is 4: this key is not known"},
    {"{\"model_type\":\"mistral\",\"local_attention\":16}", TP_UNSUPPORTED, "local_attention is 16: this key is not known"},
    {"{\"model_type\":\"laguna\",\"layer_rope_theta\":[1]}", TP_UNSUPPORTED, "layer_rope_theta is [1]: this key is not known"},
    {"{\"model_type\":\"laguna\",\"num_hidden_layers\":2,\"num_attention_heads_per_layer\":[48]}", TP_INVALID,
     "has 1 entries and the model 2 layers"},
    {"{\"model_type\":\"laguna\",\"num_hidden_layers\":1,\"num_attention_heads_per_layer\":[0]}", TP_INVALID,
     "must hold a whole number in 1..1048576 for layer 0"},
    {"{\"model_type\":\"laguna\",\"num_hidden_layers\":1,\"num_attention_heads_per_layer\":[9]}", TP_INVALID,
     "there are 9 query heads"},
    {"{\"model_type\":\"granite_swa\",\"num_hidden_layers\":1,\"layer_rope_theta\":[-1]}", TP_INVALID,
     "a number that is not negative for layer 0"},
    {"{\"model_type\":\"smollm3\",\"num_hidden_layers\":1,\"no_rope_layers\":[2]}", TP_INVALID,
     "no_rope_layers must hold 0 or 1 for layer 0"},
    {"{\"model_type\":\"granite\",\"attention_multiplier\":0}", TP_INVALID, "attention_multiplier is 0"},
    {"{\"model_type\":\"granitemoehybrid\",\"position_embedding_type\":\"absolute\"}", TP_UNSUPPORTED,
     "must be rope, nope or null"},
    {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":0}", TP_INVALID, "sliding_window is 0"},
    {"{\"model_type\":\"minimax\",\"sliding_window\":8}", TP_UNSUPPORTED, "sliding_window is 8: it must be null"},
    {"{\"model_type\":\"gpt_bigcode\",\"num_key_value_heads\":2}", TP_INVALID,
     "num_key_value_heads is 2: with this multi_query it must be 1"},
    {"{\"model_type\":\"gpt_neo\"}", TP_UNSUPPORTED, "attention_layers is missing"},
    {"{\"model_type\":\"gpt_neo\",\"num_layers\":1,\"attention_layers\":[\"middle\"]}", TP_UNSUPPORTED,
     "holds \"middle\" for layer 0"},
    {"{\"model_type\":\"nemotron_h\"}", TP_UNSUPPORTED, "hybrid_override_pattern gives 0 layers"},
    {"{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"M?\"}", TP_UNSUPPORTED, "holds '?' for layer 1"},
    {"{\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"ring\"]}", TP_UNSUPPORTED,
     "layers_block_type holds \"ring\" for layer 0"},
    {"{\"model_type\":\"bamba\",\"num_hidden_layers\":2,\"attn_layer_indices\":[2]}", TP_INVALID,
     "attn_layer_indices must hold layers in 0..1, as entry 0 is not"},
    {"{\"model_type\":\"gemma4_text\"}", TP_UNSUPPORTED, "rope_scaling is missing"},
    {"{\"model_type\":\"gemma4_text\",\"use_bidirectional_attention\":\"all\"}", TP_UNSUPPORTED, "must be null or \"vision\""},
    {"{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":2,\"rope_parameters\":{\"full_attention\":{}},\"per_layer_config\":{"
     "\"2\":{}}}",
     TP_INVALID, "per_layer_config must hold objects by layer, 0..1, as \"2\" is not"},
    {"{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":2,\"rope_parameters\":{\"full_attention\":{}},\"per_layer_config\":{"
     "\"1\":{\"twist\":1}}}",
     TP_UNSUPPORTED, "per_layer_config.twist is 1: this key is not known"},
    {"{\"model_type\":\"gemma4_vision\",\"num_key_value_heads\":4}", TP_UNSUPPORTED, "in this tower they must be as many"},
    /* numbers */
    {"{" LLAMA ",\n\n\"num_hidden_layers\":0}", TP_INVALID,
     "f.json:3: num_hidden_layers is 0: it must be a whole number in 1..1024"},
    {"{" LLAMA ",\"num_hidden_layers\":1025}", TP_INVALID, "num_hidden_layers is 1025"},
    {"{" LLAMA ",\"num_hidden_layers\":-1}", TP_INVALID, "num_hidden_layers is -1"},
    {"{" LLAMA ",\"num_hidden_layers\":null}", TP_INVALID, "num_hidden_layers is null"},
    {"{" LLAMA ",\"num_hidden_layers\":1e308}", TP_INVALID, "num_hidden_layers is 1e308"},
    {"{" LLAMA ",\"num_hidden_layers\":-1e308}", TP_INVALID, "num_hidden_layers is -1e308"},
    {"{" LLAMA ",\"num_hidden_layers\":2.5}", TP_INVALID, "num_hidden_layers is 2.5"},
    {"{" LLAMA ",\"num_hidden_layers\":\"2\"}", TP_INVALID, "num_hidden_layers is \"2\""},
    {"{" LLAMA ",\"num_hidden_layers\":[2]}", TP_INVALID, "num_hidden_layers is [2]"},
    {"{" LLAMA ",\"num_hidden_layers\":true}", TP_INVALID, "num_hidden_layers is true"},
    {"{" LLAMA ",\"num_hidden_layers\":9223372036854775807}", TP_INVALID, "num_hidden_layers is 9223372036854775807"},
    {"{" LLAMA ",\"num_hidden_layers\":9223372036854775808}", TP_INVALID, "a whole number must fit 64 bits"},
    {"{" LLAMA ",\"num_key_value_heads\":0}", TP_INVALID, "num_key_value_heads is 0"},
    {"{" LLAMA ",\"num_key_value_heads\":3}", TP_INVALID, "num_key_value_heads is 3 and there are 16 query heads"},
    {"{" LLAMA ",\"head_dim\":0}", TP_INVALID, "head_dim is 0"},
    {"{" LLAMA ",\"n_head\":15}", TP_INVALID, "n_head is 15 and num_attention_heads is 16: they must agree"},
    {"{" LLAMA ",\"head_dim\":5}", TP_INVALID, "rotates 5 dims"},
    {"{" LLAMA ",\"rope_theta\":0}", TP_INVALID, "rope_theta is 0"},
    {"{" LLAMA ",\"rope_theta\":1e308}", TP_INVALID, "rope_theta is 1e308"},
    {"{" LLAMA ",\"rope_theta\":\"big\"}", TP_INVALID, "rope_theta is \"big\": it must be a number"},
    {"{" LLAMA ",\"rope_theta\":5,\"rope_parameters\":{\"rope_theta\":6}}", TP_INVALID, "they must agree"},
    {"{" LLAMA ",\"rope_scaling\":[]}", TP_INVALID, "rope_scaling is []: it must be an object"},
    {"{" LLAMA ",\"rope_scaling\":{},\"rope_parameters\":{}}", TP_INVALID, "stands beside rope_parameters"},
    {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", TP_INVALID, "rope_scaling.factor is missing"},
    {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"yarn\",\"factor\":2}}", TP_INVALID, "they must agree"},
    {"{" LLAMA ",\"rope_scaling\":{\"type\":\"mrope\"}}", TP_INVALID, "mrope_section is missing"},
    {"{" LLAMA ",\"rope_scaling\":{\"mrope_section\":[1,1,1]}}", TP_INVALID, "sums to 3"},
    {"{" LLAMA ",\"head_dim\":16,\"rope_scaling\":{\"mrope_section\":[1,4,3],\"mrope_interleaved\":true}}", TP_INVALID,
     "an mrope_section of 1, 4, 3, whose pairs take turns: of 8 pairs height has at most 3, every third from pair 1 on"},
    {"{\"model_type\":\"qwen3_vl_text\",\"head_dim\":16,\"rope_parameters\":{\"mrope_section\":[2,3,3]}}", TP_INVALID,
     "of 8 pairs width has at most 2, every third from pair 2 on"},
    {"{" LLAMA ",\"rope_scaling\":{\"mrope_section\":[1,1]}}", TP_INVALID, "has 2 entries"},
    {"{" LLAMA ",\"rope_scaling\":{\"mrope_section\":[1,-1,2]}}", TP_INVALID, "entry 1"},
    {"{\"model_type\":\"llama\",\"hidden_size\":65,\"num_attention_heads\":16}", TP_INVALID,
     "hidden_size is 65 and there are 16 heads"},
    {"{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1,2]}}", TP_INVALID,
     "long_factor has 2 entries: it must have half the rotated dims, 48"},
    {"{\"model_type\":\"mistral\",\"sliding_window\":0}", TP_INVALID, "sliding_window is 0"},
    {"{\"model_type\":\"mistral\",\"sliding_window\":-4096}", TP_INVALID, "sliding_window is -4096"},
    {"{\"model_type\":\"gemma2\",\"sliding_window\":null}", TP_INVALID, "sliding_window gives no window and layer 0 slides"},
    {"{\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":0}", TP_INVALID, "query_pre_attn_scalar is 0"},
    {"{\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":null}", TP_INVALID, "query_pre_attn_scalar is null"},
    {"{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":-50}", TP_INVALID, "attn_logit_softcapping is -50"},
    {"{\"model_type\":\"gemma2\",\"layer_types\":[\"full_attention\"]}", TP_INVALID,
     "layer_types has 1 entries and the model 26 layers"},
    {"{\"model_type\":\"gemma2\",\"layer_types\":\"full_attention\"}", TP_INVALID, "it must be a list"},
    {"{\"model_type\":\"gemma2\",\"layer_types\":[3],\"num_hidden_layers\":1}", TP_UNSUPPORTED, "(not a string)"},
    {"{\"model_type\":\"qwen2\",\"use_sliding_window\":\"no\"}", TP_INVALID, "use_sliding_window is \"no\""},
    {"{\"model_type\":\"qwen2\",\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]}", TP_INVALID, "layer 0 slides"},
    {"{\"model_type\":\"llama4_text\",\"num_hidden_layers\":2,\"no_rope_layers\":[2,1]}", TP_INVALID, "0 or 1 for layer 0"},
    {"{\"model_type\":\"llama4_text\",\"attention_chunk_size\":null}", TP_INVALID, "attention_chunk_size gives no chunk"},
    {"{\"model_type\":\"deepseek_v3\",\"head_dim\":77}", TP_INVALID, "head_dim is 77"},
    {"{\"model_type\":\"deepseek_v3\",\"qk_head_dim\":77}", TP_INVALID, "qk_head_dim is 77"},
    {"{\"model_type\":\"ministral3\",\"rope_parameters\":{\"llama_4_scaling_beta\":0.1}}", TP_INVALID,
     "llama_4_scaling_beta needs it"},
    {"{\"model_type\":\"siglip_vision_model\",\"hidden_size\":65}", TP_INVALID, "hidden_size is 65"},
    {"{\"model_type\":\"siglip_vision_model\",\"image_size\":[224,225]}", TP_UNSUPPORTED,
     "image_size must be a whole number in 1..1048576, or two that are equal"},
    {"{\"model_type\":\"siglip_vision_model\",\"image_size\":8}", TP_INVALID, "must hold a patch"},
    {"{\"model_type\":\"qwen2_5_vl\",\"vision_config\":{\"fullatt_block_indexes\":[32]}}", TP_INVALID, "fullatt_block_indexes"},
    {"{\"model_type\":\"qwen2_5_vl\",\"vision_config\":{\"window_size\":7}}", TP_INVALID, "window_size is 7"},
    {"{\"model_type\":\"mamba\"}", TP_INVALID, "num_hidden_layers is missing"},
    {"{" LLAMA ",\"_tileproof_ignore\":\"x\"}", TP_INVALID, "must be a list of keys"},
    {"{" LLAMA ",\"_tileproof_ignore\":[1]}", TP_INVALID, "must hold strings"},
    /* what changes attention cannot be ignored by hand */
    {"{" LLAMA ",\"add_cross_attention\":true,\"_tileproof_ignore\":[\"add_cross_attention\"]}", TP_UNSUPPORTED,
     "add_cross_attention"},
    /* files of layer groups */
    {"{\"tileproof_model\":2,\"groups\":[]}", TP_INVALID, "tileproof_model is 2"},
    {"{\"tileproof_model\":1}", TP_INVALID, "groups is missing"},
    {"{\"tileproof_model\":1,\"groups\":[]}", TP_INVALID, "groups is missing or empty"},
    {"{\"tileproof_model\":1,\"groups\":[7]}", TP_INVALID, "entry 0 is not"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\"}]}", TP_INVALID, "one and not both"},
    {"{\"tileproof_model\":1,\"groups\":[{\"problem\":\"d64\"}]}", TP_INVALID, "layers is missing"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64 x9\"}]}", TP_INVALID, "word 'x9'"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"h3/2 d64\"}]}", TP_INVALID, "multiple of kv_heads"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64 q16\"}]}", TP_INVALID,
     "'q16': lengths belong to a call"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64 b2\"}]}", TP_INVALID, "must not give b"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64 chunk=0\"}]}", TP_INVALID, "'chunk=0'"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64 softcap=x\"}]}", TP_INVALID, "'softcap=x'"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64 softcap=1e999\"}]}", TP_INVALID, "'softcap=1e999'"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64 sinks sinks\"}]}", TP_INVALID, "stands twice"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64 window=1,0 window=2,0\"}]}", TP_INVALID,
     "two windows"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"3-1\",\"problem\":\"d64\"}]}", TP_INVALID, "layers is \"3-1\""},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0,0\",\"problem\":\"d64\"}]}", TP_INVALID, "layers is \"0,0\""},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0-9/0\",\"problem\":\"d64\"}]}", TP_INVALID, "layers is \"0-9/0\""},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"1024\",\"problem\":\"d64\"}]}", TP_INVALID, "layers in 0..1023"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"99999999999999999999\",\"problem\":\"d64\"}]}", TP_INVALID,
     "layers in 0..1023"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"\",\"problem\":\"d64\"}]}", TP_INVALID, "layers is \"\""},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0-3\",\"problem\":\"d64\"},{\"layers\":\"3\",\"problem\":\"d64 "
     "causal\"}]}",
     TP_INVALID, "groups[1].layers gives layer 3 to a second group"},
    {"{\"tileproof_model\":1,\n\"groups\":[{\"layers\":\"x\",\"problem\":\"d64\"}]}", TP_INVALID,
     "f.json:2: groups[0].layers is"},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64\",\"rope\":\"spiral\"}]}", TP_INVALID,
     "rope is \"spiral\""},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"out_of_scope\":\"magic\"}]}", TP_INVALID,
     "out_of_scope is \"magic\""},
    {"{\"tileproof_model\":1,\"groups\":[{\"layers\":\"0\",\"problem\":\"d64\",\"heads\":3}]}", TP_UNSUPPORTED,
     "f.json:1: groups[0].heads is 3"},
};

static void expect(const char *text, size_t size, tp_status status, const char *wanted) {
    tp_error error = TP_ERROR_INIT;
    tp_model *model = (tp_model *)&error;
    tp_status got = tp_model_parse(text, size, "f.json", &model, &error);
    if (got != status || !strstr(error.text, wanted) || model)
        fail_msg("%.200s\n  got %s: %s\n  expected %s: %s", text, tp_status_name(got), error.text,
                 tp_status_name(status), wanted);
    assert_int_equal(error.status, status);
}

static void a_bad_file_is_refused_with_line_field_and_rule(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        expect(files[i].config, strlen(files[i].config), files[i].status, files[i].text);
}

static void depth_and_size_have_limits(void **state) {
    (void)state;
    size_t max = (size_t)TP_MODEL_MAX_BYTES + 1;
    char *text = malloc(max);
    assert_non_null(text);
    memset(text, '[', max);
    expect(text, max, TP_INVALID, "has 16777217 bytes: a config has at most 16777216");
    expect(text, max - 1, TP_INVALID, "f.json:1: column 33 is beyond what is read here: nested deeper than 32 levels");
    expect(text, TP_MODEL_MAX_DEPTH + 1, TP_INVALID, "nested deeper");
    expect(text, TP_MODEL_MAX_DEPTH, TP_INVALID, "not JSON");
    memset(text, ' ', max - 1);
    expect(text, max - 1, TP_INVALID, "not JSON");
    free(text);
}

/* A file that ends early is never half a model. */
static void every_truncation_is_refused(void **state) {
    (void)state;
    static const char config[] = "{" LLAMA ",\"num_hidden_layers\":2,\"rope_scaling\":{\"rope_type\":\"llama3\","
                                 "\"factor\":8.0,\"low_freq_factor\":1.0},\"torch_dtype\":\"bfloat16\"}";
    tp_error error = TP_ERROR_INIT;
    tp_model *model;
    for (size_t size = 0; size < sizeof config - 1; size++)
        expect(config, size, TP_INVALID, "f.json:1: not JSON");
    assert_int_equal(tp_model_parse(config, sizeof config - 1, NULL, &model, &error), TP_OK);
    tp_model_destroy(model);
}

static void missing_arguments_are_refused(void **state) {
    (void)state;
    tp_error error = TP_ERROR_INIT;
    tp_model *model;
    char text[8];
    int64_t q_len = 5, kv_len = 5;
    assert_int_equal(tp_model_parse(NULL, 0, "f", &model, &error), TP_INVALID);
    assert_null(model);
    assert_int_equal(tp_model_parse("{}", 2, "f", NULL, &error), TP_INVALID);
    assert_int_equal(tp_model_parse("{}", 2, "f", &model, NULL), TP_INVALID);
    tp_model_destroy(NULL);
    assert_int_equal(tp_layer_group_formula(NULL, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_layer_group_layers(NULL, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_layer_group_problem(NULL, 1, 1, 1, text, sizeof text), TP_INVALID);
    tp_layer_group_lengths(NULL, 0, &q_len, &kv_len);
    assert_int_equal(q_len + kv_len, 0);
    assert_int_equal(tp_model_write(NULL, TP_TEXT, NULL, NULL), TP_INVALID);
    assert_string_equal(tp_part_name((tp_part)9), "part?");
    assert_string_equal(tp_rope_name((tp_rope)99), "rope?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_file_is_refused_with_line_field_and_rule),
        cmocka_unit_test(depth_and_size_have_limits),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(missing_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
