/* SPDX-License-Identifier: Apache-2.0 */
/* Every known trap of reading a config: what the file means, not what it seems to say. */
#include "summary.h"

typedef struct trap {
    const char *name, *config, *expected;
} trap;

#define LLAMA "\"model_type\":\"llama\",\"num_hidden_layers\":2,"
#define ROPE4 " rope=default/4@10000"

static const trap traps[] = {
    /* head_dim: explicit, else hidden / heads; absent, null and a number are three things */
    {"head dim absent", "{" LLAMA "\"hidden_size\":4096,\"num_attention_heads\":32,\"num_key_value_heads\":8}",
     "text 0-1 h32/8 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"head dim null", "{" LLAMA "\"hidden_size\":4096,\"num_attention_heads\":32,\"head_dim\":null}",
     "text 0-1 h32/32 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"head dim explicit and different (qwen3, gpt-oss)",
     "{\"model_type\":\"qwen3\",\"num_hidden_layers\":1,\"hidden_size\":1024,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":8,\"head_dim\":128}",
     "text 0 h16/8 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"head dim null where the class has a default: not the default",
     "{\"model_type\":\"qwen3\",\"num_hidden_layers\":1,\"hidden_size\":1024,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":8,\"head_dim\":null}",
     "text 0 h16/8 d64 causal scale=0.125 rope=default/64@10000"},
    {"head dim explicit, hidden size no multiple of heads",
     "{" LLAMA "\"hidden_size\":2880,\"num_attention_heads\":64,\"head_dim\":64}",
     "text 0-1 h64/64 d64 causal scale=0.125 rope=default/64@10000"},
    {"class default of head_dim wins over hidden / heads",
     "{\"model_type\":\"gemma\",\"num_hidden_layers\":1,\"hidden_size\":2048,\"num_attention_heads\":8,"
     "\"num_key_value_heads\":1}",
     "text 0 h8/1 d256 causal scale=0.0625 rope=default/256@10000"},
    /* KV heads */
    {"kv heads missing: as many as heads", "{" LLAMA "\"hidden_size\":64,\"num_attention_heads\":16}",
     "text 0-1 h16/16 d4 causal scale=0.5" ROPE4},
    {"kv heads null", "{" LLAMA "\"hidden_size\":64,\"num_attention_heads\":16,\"num_key_value_heads\":null}",
     "text 0-1 h16/16 d4 causal scale=0.5" ROPE4},
    {"kv heads missing: the class default (mistral)",
     "{\"model_type\":\"mistral\",\"num_hidden_layers\":1,\"sliding_window\":null}",
     "text 0 h32/8 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"falcon: multi_query means one KV head", "{\"model_type\":\"falcon\"}",
     "text 0-31 h71/1 d64 causal scale=0.125 rope=default/64@10000"},
    {"falcon: multi_query wins over num_kv_heads", "{\"model_type\":\"falcon\",\"num_kv_heads\":71}",
     "text 0-31 h71/1 d64 causal scale=0.125 rope=default/64@10000"},
    {"falcon: neither", "{\"model_type\":\"falcon\",\"multi_query\":false}",
     "text 0-31 h71/71 d64 causal scale=0.125 rope=default/64@10000"},
    {"falcon: the new architecture ignores multi_query",
     "{\"model_type\":\"falcon\",\"num_hidden_layers\":60,\"hidden_size\":8192,\"num_attention_heads\":128,"
     "\"num_kv_heads\":8,\"multi_query\":true,\"new_decoder_architecture\":true}",
     "text 0-59 h128/8 d64 causal scale=0.125 rope=default/64@10000"},
    {"bigcode: multi_query by default", "{\"model_type\":\"gpt_bigcode\"}", "text 0-11 h12/1 d64 causal scale=0.125"},
    /* aliases */
    {"gpt2 names", "{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_head\":4,\"n_layer\":3,\"n_positions\":99,\"n_ctx\":99}",
     "text 0-2 h4/4 d16 causal scale=0.25"},
    {"aliases that agree", "{" LLAMA "\"n_layers\":2,\"hidden_size\":64,\"n_head\":16,\"num_attention_heads\":16}",
     "text 0-1 h16/16 d4 causal scale=0.5" ROPE4},
    {"mpt: nested attn_config",
     "{\"model_type\":\"mpt\",\"d_model\":64,\"n_heads\":4,\"n_layers\":1,\"attn_config\":{\"alibi\":true,"
     "\"softmax_scale\":0.5,\"clip_qkv\":null}}",
     "text 0 h4/4 d16 causal scale=0.5 alibi"},
    {"mpt: alibi off", "{\"model_type\":\"mpt\",\"attn_config\":{\"alibi\":false}}",
     "text 0-23 h16/16 d128 causal scale=0.0883883"},
    {"mpt: alibi is the class default", "{\"model_type\":\"mpt\"}", "text 0-23 h16/16 d128 causal scale=0.0883883 alibi"},
    {"bloom: alibi without a key", "{\"model_type\":\"bloom\",\"n_embed\":128,\"n_layer\":1,\"n_head\":8}",
     "text 0 h8/8 d16 causal scale=0.25 alibi"},
    /* windows: W keys with the row's own */
    {"sliding_window W is W-1 to the left", "{\"model_type\":\"mistral\",\"num_hidden_layers\":1,\"sliding_window\":4096}",
     "text 0 h32/8 d128 causal & window w=4095,0 scale=0.0883883 rope=default/128@10000"},
    {"a window of 1 sees its own key", "{\"model_type\":\"mistral\",\"num_hidden_layers\":1,\"sliding_window\":1}",
     "text 0 h32/8 d128 causal & window w=0,0 scale=0.0883883 rope=default/128@10000"},
    {"sliding_window absent is the class default", "{\"model_type\":\"mistral\",\"num_hidden_layers\":1}",
     "text 0 h32/8 d128 causal & window w=4095,0 scale=0.0883883 rope=default/128@10000"},
    {"phi3's 2047", "{\"model_type\":\"phi3\",\"num_hidden_layers\":1,\"sliding_window\":2047}",
     "text 0 h32/32 d96 causal & window w=2046,0 scale=0.102062 rope=default/96@10000"},
    {"use_sliding_window false switches it off",
     "{\"model_type\":\"qwen2\",\"num_hidden_layers\":4,\"sliding_window\":131072,\"use_sliding_window\":false,"
     "\"max_window_layers\":2}",
     "text 0-3 h32/32 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"max_window_layers: the layers from there on slide",
     "{\"model_type\":\"qwen2\",\"num_hidden_layers\":4,\"sliding_window\":100,\"use_sliding_window\":true,"
     "\"max_window_layers\":3}",
     "text 0-2 h32/32 d128 causal scale=0.0883883 rope=default/128@10000; "
     "text 3 h32/32 d128 causal & window w=99,0 scale=0.0883883 rope=default/128@10000"},
    {"max_window_layers beyond the last layer",
     "{\"model_type\":\"qwen2\",\"num_hidden_layers\":4,\"use_sliding_window\":true,\"max_window_layers\":70}",
     "text 0-3 h32/32 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"layer_types wins over the pattern",
     "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":3,\"sliding_window\":8,\"sliding_window_pattern\":2,"
     "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}",
     "text 0 h8/4 d256 causal scale=0.0625 rope=default/256@1e+06; "
     "text 1-2 h8/4 d256 causal & window w=7,0 scale=0.0625 rope=default/256@10000"},
    {"gemma2: even layers slide", "{\"model_type\":\"gemma2\",\"num_hidden_layers\":4}",
     "text 0,2 h8/4 d256 causal & window w=4095,0 scale=0.0625 cap=50 rope=default/256@10000; "
     "text 1,3 h8/4 d256 causal scale=0.0625 cap=50 rope=default/256@10000"},
    {"gemma3: five local, one global, two thetas, scaling on the global ones only",
     "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":7,\"sliding_window\":512,\"sliding_window_pattern\":6,"
     "\"rope_theta\":1000000,\"rope_local_base_freq\":10000,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}",
     "text 0-4,6 h8/4 d256 causal & window w=511,0 scale=0.0625 rope=default/256@10000; "
     "text 5 h8/4 d256 causal scale=0.0625 rope=linear/256@1e+06x8"},
    {"gemma3, new names: rope_parameters by layer type",
     "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":2,\"dtype\":\"bfloat16\",\"_sliding_window_pattern\":2,"
     "\"sliding_window\":512,\"rope_parameters\":{"
     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0},"
     "\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1000000.0}}}",
     "text 0 h8/4 d256 bf16 causal & window w=511,0 scale=0.0625 rope=default/256@10000; "
     "text 1 h8/4 d256 bf16 causal scale=0.0625 rope=linear/256@1e+06x8"},
    {"gemma3 both ways: half the window on either side",
     "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":2,\"sliding_window\":512,\"sliding_window_pattern\":2,"
     "\"use_bidirectional_attention\":true}",
     "text 0 h8/4 d256 window w=256,256 scale=0.0625 rope=default/256@10000; "
     "text 1 h8/4 d256 full scale=0.0625 rope=default/256@1e+06"},
    {"cohere2: full layers are not rotated",
     "{\"model_type\":\"cohere2\",\"num_hidden_layers\":4,\"sliding_window\":4096,\"sliding_window_pattern\":4}",
     "text 0-2 h64/64 d128 causal & window w=4095,0 scale=0.0883883 rope=default/128@10000; "
     "text 3 h64/64 d128 causal scale=0.0883883"},
    /* chunks are no windows */
    {"llama4: every fourth layer is full, not rotated, and scales q", "{\"model_type\":\"llama4_text\",\"num_hidden_layers\":4}",
     "text 0-2 h40/8 d128 causal & chunk c=8192 scale=0.0883883 rope=default/128@500000; "
     "text 3 h40/8 d128 causal scale=0.0883883 qscale=0.1/8192+1"},
    {"llama4: 1 in no_rope_layers means rope and chunks",
     "{\"model_type\":\"llama4_text\",\"num_hidden_layers\":2,\"no_rope_layers\":[0,1],\"attn_temperature_tuning\":false}",
     "text 0 h40/8 d128 causal scale=0.0883883; "
     "text 1 h40/8 d128 causal & chunk c=8192 scale=0.0883883 rope=default/128@500000"},
    {"llama4: the first files write 4 for true",
     "{\"model_type\":\"llama4_text\",\"num_hidden_layers\":1,\"no_rope_layers\":[0],\"attn_temperature_tuning\":4}",
     "text 0 h40/8 d128 causal scale=0.0883883 qscale=0.1/8192+1"},
    /* scale: query_pre_attn_scalar, softmax_scale, mscale, else 1/sqrt(d) */
    {"query_pre_attn_scalar is not the head dim",
     "{\"model_type\":\"gemma2\",\"num_hidden_layers\":1,\"num_attention_heads\":32,\"num_key_value_heads\":16,"
     "\"head_dim\":128,\"query_pre_attn_scalar\":144}",
     "text 0 h32/16 d128 causal & window w=4095,0 scale=0.0833333 cap=50 rope=default/128@10000"},
    {"softcap null", "{\"model_type\":\"gemma2\",\"num_hidden_layers\":1,\"attn_logit_softcapping\":null}",
     "text 0 h8/4 d256 causal & window w=4095,0 scale=0.0625 rope=default/256@10000"},
    {"deepseek: latents, mscale squared, absorbed decode",
     "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
     "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096}}",
     "text 0 h128/128 d192/128 decode=1:576/512 causal scale=0.135234 rope=yarn/64@10000x40"},
    {"deepseek without scaling", "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":1}",
     "text 0 h128/128 d192/128 decode=1:576/512 causal scale=0.0721688 rope=default/64@10000"},
    {"yarn elsewhere leaves the scale alone",
     "{" LLAMA "\"hidden_size\":64,\"num_attention_heads\":16,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
     "\"mscale_all_dim\":1.0}}",
     "text 0-1 h16/16 d4 causal scale=0.5 rope=yarn/4@10000x4"},
    {"gpt2: scale_attn_weights false", "{\"model_type\":\"gpt2\",\"n_layer\":1,\"scale_attn_weights\":false}",
     "text 0 h12/12 d64 causal scale=1"},
    {"gpt2: scale by layer makes groups of one layer",
     "{\"model_type\":\"gpt2\",\"n_layer\":2,\"scale_attn_by_inverse_layer_idx\":true}",
     "text 0 h12/12 d64 causal scale=0.125; text 1 h12/12 d64 causal scale=0.0625"},
    {"ministral3: q scaled by position",
     "{\"model_type\":\"ministral3\",\"num_hidden_layers\":1,\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":16.0,"
     "\"rope_theta\":1000000.0,\"original_max_position_embeddings\":16384,\"llama_4_scaling_beta\":0.1,"
     "\"mscale\":1.0,\"mscale_all_dim\":1.0}}",
     "text 0 h32/8 d128 causal scale=0.0883883 qscale=0.1/16384+0 rope=yarn/128@1e+06x16"},
    {"gpt-oss: sinks have no key",
     "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":2,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0}}",
     "text 0 h64/8 d64 causal & window w=127,0 scale=0.125 sinks rope=yarn/64@150000x32; "
     "text 1 h64/8 d64 causal scale=0.125 sinks rope=yarn/64@150000x32"},
    /* rope */
    {"gpt-neox: a quarter of the dims", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":1,\"rotary_pct\":0.25}",
     "text 0 h64/64 d96 causal scale=0.102062 rope=default/24@10000"},
    {"su is longrope", "{\"model_type\":\"phi3\",\"num_hidden_layers\":1,\"rope_scaling\":{\"type\":\"su\"}}",
     "text 0 h32/32 d96 causal scale=0.102062 rope=longrope/96@10000"},
    {"mrope by type, and by its section when the type says default",
     "{\"model_type\":\"qwen2_vl_text\",\"num_hidden_layers\":1,\"rope_scaling\":{\"type\":\"mrope\","
     "\"rope_type\":\"default\",\"mrope_section\":[16,24,24]}}",
     "text 0 h64/8 d128 causal scale=0.0883883 rope=default/128@1e+06 mrope=16,24,24"},
    {"mrope interleaved",
     "{\"model_type\":\"qwen3_vl_text\",\"num_hidden_layers\":1,\"rope_parameters\":{\"mrope_interleaved\":true,"
     "\"mrope_section\":[24,20,20],\"rope_theta\":5000000}}",
     "text 0 h32/32 d128 causal scale=0.0883883 rope=default/128@5e+06 mrope=24,20,20i"},
    {"rope_theta at the top and inside may agree",
     "{" LLAMA "\"hidden_size\":64,\"num_attention_heads\":16,\"rope_theta\":10000,\"rope_parameters\":{\"rope_theta\":10000.0}}",
     "text 0-1 h16/16 d4 causal scale=0.5" ROPE4},
    {"torch_dtype and dtype",
     "{" LLAMA "\"hidden_size\":64,\"num_attention_heads\":16,\"torch_dtype\":\"float16\",\"dtype\":\"float16\"}",
     "text 0-1 h16/16 d4 f16 causal scale=0.5" ROPE4},
    /* parts */
    {"gemma3: image spans, in both kinds of layer; a tower of d 72",
     "{\"model_type\":\"gemma3\",\"mm_tokens_per_image\":256,\"torch_dtype\":\"bfloat16\",\"text_config\":{"
     "\"model_type\":\"gemma3_text\",\"num_hidden_layers\":2,\"sliding_window\":1024,\"sliding_window_pattern\":2},"
     "\"vision_config\":{\"num_hidden_layers\":1,\"hidden_size\":1152,\"num_attention_heads\":16,\"image_size\":896,"
     "\"patch_size\":14}}",
     "text 0 h8/4 d256 bf16 (causal & window) | same-span w=1023,0 span=256 scale=0.0625 rope=default/256@10000; "
     "text 1 h8/4 d256 bf16 causal | same-span span=256 scale=0.0625 rope=default/256@1e+06; "
     "vision 0 h16/16 d72 bf16 full scale=0.117851"},
    {"paligemma: the prefix is at least the image",
     "{\"model_type\":\"paligemma\",\"hidden_size\":2048,\"text_config\":{\"model_type\":\"gemma\",\"num_hidden_layers\":1,"
     "\"num_attention_heads\":8,\"num_key_value_heads\":1},\"vision_config\":{\"model_type\":\"siglip_vision_model\","
     "\"num_hidden_layers\":1,\"hidden_size\":1152,\"num_attention_heads\":16,\"image_size\":224,\"patch_size\":14}}",
     "text 0 h8/1 d256 causal | prefix prefix=256 scale=0.0625 rope=default/256@10000; "
     "vision 0 h16/16 d72 full scale=0.117851"},
    {"qwen2-vl: text at the top, the tower's width is embed_dim",
     "{\"model_type\":\"qwen2_vl\",\"num_hidden_layers\":1,\"hidden_size\":3584,\"num_attention_heads\":28,"
     "\"num_key_value_heads\":4,\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,24]},"
     "\"vision_config\":{\"depth\":1,\"embed_dim\":1280,\"hidden_size\":3584,\"num_heads\":16}}",
     "text 0 h28/4 d128 causal scale=0.0883883 rope=default/128@1e+06 mrope=16,24,24; "
     "vision 0 h16/16 d80 same-segment scale=0.111803 rope=2d/80@10000"},
    {"qwen2.5-vl: named blocks see the image, the others a window of it",
     "{\"model_type\":\"qwen2_5_vl\",\"text_config\":{\"num_hidden_layers\":1},\"vision_config\":{\"depth\":4,"
     "\"hidden_size\":1280,\"num_heads\":16,\"window_size\":112,\"fullatt_block_indexes\":[3],\"patch_size\":14}}",
     "text 0 h64/8 d128 causal scale=0.0883883 rope=default/128@1e+06; "
     "vision 0-2 h16/16 d80 same-segment scale=0.111803 rope=2d/80@10000; "
     "vision 3 h16/16 d80 same-segment scale=0.111803 rope=2d/80@10000"},
    {"audio_config",
     "{\"model_type\":\"qwen2_audio\",\"text_config\":{\"model_type\":\"qwen2\",\"num_hidden_layers\":1},"
     "\"audio_config\":{\"model_type\":\"qwen2_audio_encoder\",\"encoder_layers\":1}}",
     "text 0 h32/32 d128 causal scale=0.0883883 rope=default/128@10000; audio 0 h20/20 d64 full scale=0.125"},
    {"whisper: three sites",
     "{\"model_type\":\"whisper\",\"is_encoder_decoder\":true,\"d_model\":1280,\"encoder_layers\":2,"
     "\"encoder_attention_heads\":20,\"decoder_layers\":1,\"decoder_attention_heads\":20}",
     "text 0 h20/20 d64 causal scale=0.125; audio 0-1 h20/20 d64 full scale=0.125; "
     "cross 0 h20/20 d64 full scale=0.125"},
    {"bert sees everything", "{\"model_type\":\"bert\",\"position_embedding_type\":\"absolute\"}",
     "text 0-11 h12/12 d64 full scale=0.125"},
    /* not softmax attention */
    {"jamba: mamba layers are out of scope", "{\"model_type\":\"jamba\",\"num_hidden_layers\":8,\"mamba_d_state\":16}",
     "text 0-3,5-7 out: mamba; text 4 h32/8 d128 causal scale=0.0883883"},
    {"qwen3-next: linear attention is out of scope",
     "{\"model_type\":\"qwen3_next\",\"num_hidden_layers\":4,\"linear_key_head_dim\":128}",
     "text 0-2 out: linear attention; text 3 h16/2 d256 causal scale=0.0625 rope=default/64@10000"},
    {"mamba: nothing is in scope", "{\"model_type\":\"mamba\",\"num_hidden_layers\":24,\"state_size\":16}",
     "text 0-23 out: mamba"},
    /* keys of single classes */
    {"olmo3: scaling is for full layers only",
     "{\"model_type\":\"olmo3\",\"num_hidden_layers\":4,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8}}",
     "text 0-2 h32/32 d128 causal & window w=4095,0 scale=0.0883883 rope=default/128@500000; "
     "text 3 h32/32 d128 causal scale=0.0883883 rope=yarn/128@500000x8"},
    {"exaone4: full layers are not rotated beside those that slide", "{\"model_type\":\"exaone4\",\"num_hidden_layers\":4}",
     "text 0-2 h32/32 d128 causal & window w=4095,0 scale=0.0883883 rope=default/128@10000; "
     "text 3 h32/32 d128 causal scale=0.0883883"},
    {"exaone4: without a window all are rotated",
     "{\"model_type\":\"exaone4\",\"num_hidden_layers\":2,\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"full_"
     "attention\"]}",
     "text 0-1 h32/32 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"exaone4: a pattern in words counts for nothing beside a list",
     "{\"model_type\":\"exaone4\",\"num_hidden_layers\":1,\"sliding_window_pattern\":\"LLLG\",\"layer_types\":[\"full_"
     "attention\"]}",
     "text 0 h32/32 d128 causal scale=0.0883883"},
    {"cwm: the first layer and every fourth after it are full",
     "{\"model_type\":\"cwm\",\"num_hidden_layers\":5,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":16}}",
     "text 0,4 h48/8 d128 causal scale=0.0883883 rope=llama3/128@1e+06x16; "
     "text 1-3 h48/8 d128 causal & window w=8191,0 scale=0.0883883 rope=llama3/128@1e+06x16"},
    {"ministral: every layer slides, where there is a window", "{\"model_type\":\"ministral\",\"num_hidden_layers\":2}",
     "text 0-1 h32/8 d128 causal & window w=4095,0 scale=0.0883883 rope=default/128@10000"},
    {"ministral: without a window none does", "{\"model_type\":\"ministral\",\"num_hidden_layers\":2,\"sliding_window\":null}",
     "text 0-1 h32/8 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"modernbert-decoder: half of local_attention, whatever sliding_window says",
     "{\"model_type\":\"modernbert-decoder\",\"num_hidden_layers\":2,\"local_attention\":32,\"sliding_window\":64,\"global_rope_"
     "theta\":7000,\"local_rope_theta\":300}",
     "text 0 h12/12 d64 causal scale=0.125 rope=default/64@7000; "
     "text 1 h12/12 d64 causal & window w=15,0 scale=0.125 rope=default/64@300"},
    {"granite: attention_multiplier is the scale, 1 by default", "{\"model_type\":\"granite\",\"num_hidden_layers\":1}",
     "text 0 h32/32 d128 causal scale=1 rope=default/128@10000"},
    {"granite: attention_multiplier", "{\"model_type\":\"granite\",\"num_hidden_layers\":1,\"attention_multiplier\":0.015625}",
     "text 0 h32/32 d128 causal scale=0.015625 rope=default/128@10000"},
    {"granite_swa: sinks without a key; a theta of 0 is no rotation",
     "{\"model_type\":\"granite_swa\",\"num_hidden_layers\":2,\"layer_rope_theta\":[0,500]}",
     "text 0 h20/4 d128 causal scale=1 sinks; "
     "text 1 h20/4 d128 causal & window w=127,0 scale=1 sinks rope=default/128@500"},
    {"granitemoehybrid: no rotation unless its name is given",
     "{\"model_type\":\"granitemoehybrid\",\"num_hidden_layers\":2,\"layer_types\":[\"mamba\",\"attention\"],\"attention_"
     "multiplier\":0.5}",
     "text 0 out: mamba; "
     "text 1 h32/32 d128 causal scale=0.5"},
    {"granitemoehybrid: rope by name",
     "{\"model_type\":\"granitemoehybrid\",\"num_hidden_layers\":2,\"layer_types\":[\"mamba\",\"attention\"],\"attention_"
     "multiplier\":0.5,\"position_embedding_type\":\"rope\"}",
     "text 0 out: mamba; "
     "text 1 h32/32 d128 causal scale=0.5 rope=default/128@10000"},
    {"smollm3: every fourth layer is not rotated", "{\"model_type\":\"smollm3\",\"num_hidden_layers\":4}",
     "text 0-2 h16/4 d128 causal scale=0.0883883 rope=default/128@2e+06; "
     "text 3 h16/4 d128 causal scale=0.0883883"},
    {"dots1: a window from max_window_layers on, without a switch",
     "{\"model_type\":\"dots1\",\"num_hidden_layers\":3,\"max_window_layers\":2,\"sliding_window\":100}",
     "text 0-1 h32/32 d144 causal scale=0.0833333 rope=default/144@10000; "
     "text 2 h32/32 d144 causal & window w=99,0 scale=0.0833333 rope=default/144@10000"},
    {"qwen2_moe: a window of 0 that is switched off",
     "{\"model_type\":\"qwen2_moe\",\"num_hidden_layers\":1,\"sliding_window\":0,\"use_sliding_window\":false}",
     "text 0 h16/16 d128 causal scale=0.0883883 rope=default/128@10000"},
    {"laguna: heads by layer",
     "{\"model_type\":\"laguna\",\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"sliding_attention\"],\"num_"
     "attention_heads_per_layer\":[48,64]}",
     "text 0 h48/8 d128 causal scale=0.0883883 rope=default/64@500000; "
     "text 1 h64/8 d128 causal & window w=511,0 scale=0.0883883 rope=default/128@10000"},
    {"gemma4: the scale is 1, full layers are wider, the last one is full",
     "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":2,\"rope_parameters\":{\"full_attention\":{\"rope_type\":"
     "\"proportional\",\"partial_rotary_factor\":0.25,\"rope_theta\":1000000.0},\"sliding_attention\":{\"rope_type\":\"default\","
     "\"rope_theta\":10000.0}}}",
     "text 0 h8/4 d256 causal & window w=511,0 scale=1 rope=default/256@10000; "
     "text 1 h8/4 d512 causal scale=1 rope=proportional/128@1e+06"},
    {"gemma4: fewer KV heads on full layers only where k is v",
     "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":1,\"global_head_dim\":128,\"num_global_key_value_heads\":2,"
     "\"attention_k_eq_v\":true,\"rope_parameters\":{\"full_attention\":{}}}",
     "text 0 h8/2 d128 causal scale=1 rope=default/32@1e+06"},
    {"gemma4: layers by number win",
     "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":2,\"global_head_dim\":128,\"per_layer_config\":{\"00\":{\"head_dim\":"
     "64,\"num_key_value_heads\":8}},\"rope_parameters\":{\"full_attention\":{}}}",
     "text 0 h8/8 d64 causal & window w=511,0 scale=1 rope=default/64@10000; "
     "text 1 h8/4 d256 causal scale=1 rope=default/64@1e+06"},
    {"gemma4: images are spans where layers slide, and only with the name",
     "{\"model_type\":\"gemma4\",\"vision_config\":null,\"audio_config\":{\"num_hidden_layers\":3},\"text_config\":{\"num_hidden_"
     "layers\":2,\"use_bidirectional_attention\":\"vision\",\"rope_parameters\":{\"full_attention\":{}}}}",
     "text 0 h8/4 d256 (causal & window) | same-span w=511,0 scale=1 rope=default/256@10000; "
     "text 1 h8/4 d512 causal scale=1 rope=default/128@1e+06; "
     "audio 0-2 out: other"},
    {"gemma4: without it they are not",
     "{\"model_type\":\"gemma4\",\"text_config\":{\"num_hidden_layers\":2,\"rope_parameters\":{\"full_attention\":{}}}}",
     "text 0 h8/4 d256 causal & window w=511,0 scale=1 rope=default/256@10000; "
     "text 1 h8/4 d512 causal scale=1 rope=default/128@1e+06"},
    {"deepseek_v32: sparse indices for each row", "{\"model_type\":\"deepseek_v32\",\"num_hidden_layers\":1}",
     "text 0 h128/128 d192/128 decode=1:576/512 causal sparse=2048 scale=0.0721688 rope=default/64@10000"},
    {"minicpm3: latents of its own size", "{\"model_type\":\"minicpm3\",\"num_hidden_layers\":1}",
     "text 0 h40/40 d96/64 decode=1:288/256 causal scale=0.102062 rope=default/32@10000"},
    {"beam: null by layer type is no rotation",
     "{\"model_type\":\"beam\",\"num_hidden_layers\":2,\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"rope_"
     "parameters\":{\"full_attention\":null,\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}}",
     "text 0 h48/8 d128 causal & window w=511,0 scale=0.0883883 rope=default/128@10000; "
     "text 1 h48/8 d128 causal scale=0.0883883"},
    {"gemma3: null by layer type is the default",
     "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":1,\"layer_types\":[\"full_attention\"],\"rope_parameters\":{\"full_"
     "attention\":null,\"sliding_attention\":null}}",
     "text 0 h8/4 d256 causal scale=0.0625 rope=default/256@1e+06"},
    {"nemotron_h: a pattern counts the layers",
     "{\"model_type\":\"nemotron_h\",\"num_hidden_layers\":9,\"hybrid_override_pattern\":\"M-*E\"}",
     "text 0 out: mamba; "
     "text 1,3 out: other; "
     "text 2 h32/8 d128 causal scale=0.0883883"},
    {"bamba: attention by number", "{\"model_type\":\"bamba\",\"num_hidden_layers\":3,\"attn_layer_indices\":[1]}",
     "text 0,2 out: mamba; "
     "text 1 h32/8 d128 causal scale=0.0883883 rope=default/64@10000"},
    {"minimax: the first of two is attention", "{\"model_type\":\"minimax\",\"num_hidden_layers\":3,\"block_size\":256}",
     "text 0,2 h32/8 d128 causal scale=0.0883883 rope=default/128@1e+06; "
     "text 1 out: linear attention"},
    {"gpt_neo: the scale is 1, local layers have a window",
     "{\"model_type\":\"gpt_neo\",\"num_layers\":2,\"attention_layers\":[\"global\",\"local\"],\"window_size\":16}",
     "text 0 h16/16 d128 causal scale=1; "
     "text 1 h16/16 d128 causal & window w=15,0 scale=1"},
    {"lfm2: convolutions are out of scope",
     "{\"model_type\":\"lfm2\",\"num_hidden_layers\":2,\"layer_types\":[\"conv\",\"full_attention\"]}",
     "text 0 out: convolution; "
     "text 1 h32/8 d80 causal scale=0.111803 rope=default/80@1e+06"},
    {"internvl: sizes as pairs",
     "{\"model_type\":\"internvl_vision\",\"num_hidden_layers\":1,\"image_size\":[448,448],\"patch_size\":[14,14]}",
     "vision 0 h16/16 d64 full scale=0.125"},
    {"registers are tokens",
     "{\"model_type\":\"dinov2_with_registers\",\"num_hidden_layers\":1,\"image_size\":32,\"patch_size\":16,\"num_register_"
     "tokens\":3}",
     "vision 0 h12/12 d64 full scale=0.125"},
};

static void a_trap_is_read_as_the_model_means(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++) {
        tp_error error = TP_ERROR_INIT;
        tp_model *model;
        char summary[4096];
        tp_status status =
            tp_model_parse(traps[i].config, strlen(traps[i].config), traps[i].name, &model, &error);
        if (status != TP_OK) fail_msg("%s: %s", traps[i].name, error.text);
        summarise(model, summary, sizeof summary);
        if (strcmp(summary, traps[i].expected))
            fail_msg("%s:\n  got      %s\n  expected %s", traps[i].name, summary, traps[i].expected);
        tp_model_destroy(model);
    }
}

/* The masks that windows become, against the rule kv > q - W. */
static void a_window_shows_as_many_keys_as_the_file_says(void **state) {
    (void)state;
    for (int window = 1; window < 9; window++) {
        char config[128], text[256];
        tp_error error = TP_ERROR_INIT;
        tp_model *model;
        tp_problem problem;
        snprintf(config, sizeof config,
                 "{\"model_type\":\"mistral\",\"num_hidden_layers\":1,\"sliding_window\":%d}", window);
        assert_int_equal(tp_model_parse(config, strlen(config), NULL, &model, &error), TP_OK);
        assert_int_equal(tp_layer_group_problem(model->groups[0], 1, 32, 32, text, sizeof text), TP_OK);
        assert_int_equal(tp_problem_parse(text, &problem, NULL, &error), TP_OK);
        int seen = 0;
        for (int64_t key = 0; key < 32; key++) {
            int visible = 1;
            for (int i = 0; i < problem.mask_nodes; i++) {
                const tp_mask_node *node = &problem.mask[i];
                if (node->kind == TP_MASK_CAUSAL) visible &= key <= 20;
                if (node->kind == TP_MASK_WINDOW) visible &= key >= 20 - node->a && key <= 20 + node->b;
            }
            assert_int_equal(visible, key <= 20 && key > 20 - window);
            seen += visible;
        }
        assert_int_equal(seen, window);
        tp_model_destroy(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trap_is_read_as_the_model_means),
        cmocka_unit_test(a_window_shows_as_many_keys_as_the_file_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
