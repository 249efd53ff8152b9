/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders: from a config object and its family's row to layers. */
#ifndef TP_PROOF_TEXT_H
#define TP_PROOF_TEXT_H

#include "builder.h"

typedef enum tp__window_rule {
    NO_WINDOW,
    EVERY_LAYER, /* sliding_window, if any, on all layers                                */
    PATTERN,     /* layer_types, or every n-th layer is full; n < 0: from the first on   */
    HALF_PATTERN, /* the same, and local_attention, twice the window, wins over sliding_window */
    BY_USE,      /* use_sliding_window and max_window_layers, or layer_types             */
    CHUNKS,      /* no_rope_layers: 1 rotates and is chunked, 0 does neither             */
    MAMBA_MIX,   /* attn_layer_period and attn_layer_offset, or attn_layer_indices; else mamba */
    LINEAR_MIX,  /* layer_types, or every n-th is attention; the others linear attention */
    LOCAL_LIST,  /* attention_layers: global, or local with window_size                  */
    BLOCK_MIX,   /* layers_block_type, or hybrid_override_pattern, which count layers    */
    INDEX_MIX    /* layer_types, or every layer chooses index_topk keys for each row     */
} tp__window_rule;

enum {
    BIDIRECTIONAL_KEY = 1u << 0, /* use_bidirectional_attention                        */
    PRE_SCALAR = 1u << 1,        /* query_pre_attn_scalar, default 256                 */
    CAP_50 = 1u << 2,            /* attn_logit_softcapping, default 50                 */
    CAP_NONE = 1u << 3,          /* the same, default none                             */
    LOCAL_ROPE = 1u << 4,        /* layers that slide have a theta of their own        */
    PATTERN_KEY = 1u << 5,       /* sliding_window_pattern                             */
    NO_ROPE_WHEN_FULL = 1u << 6,
    SINKS = 1u << 7,         /* weights, no key                                    */
    MUST_ROPE = 1u << 8,     /* the class default of the rope object is no plain one */
    ROPE_SCALES_Q = 1u << 9, /* llama_4_scaling_beta                               */
    ONLY_LONGROPE = 1u << 10,
    NEVER_SLIDES = 1u << 11, /* use_sliding_window true is not mapped              */
    LLAMA4 = 1u << 12,       /* attn_temperature_tuning, floor_scale, attn_scale   */
    LATENT = 1u << 13,       /* multi-head latent attention                        */
    NO_KV_KEY = 1u << 14,    /* as many KV heads as heads, and no key for it       */
    ROTARY_DIM = 1u << 15,
    UNIT_KEYS = 1u << 16, /* scale_attn_weights, scale_attn_by_inverse_layer_idx */
    FALCON = 1u << 17,
    NO_ROPE = 1u << 18,
    BIGCODE = 1u << 19,
    MPT = 1u << 20,
    ALIBI = 1u << 21,
    MULTIPLIER = 1u << 22,        /* attention_multiplier is the scale, default 1           */
    UNIT_SCALE = 1u << 23,        /* the scale is 1                                         */
    MUST_TYPES = 1u << 24,        /* layer_types, for the class default is no plain pattern */
    ALWAYS_USE = 1u << 25,        /* windows by max_window_layers, and no use_sliding_window */
    NO_ROPE_BESIDE_WINDOW = 1u << 26, /* full layers, where others slide                    */
    LOCAL_PLAIN = 1u << 27,       /* layers that slide are rotated without rope_scaling     */
    OWN_DIMS = 1u << 28,          /* full layers have dims of their own: gemma4             */
    NULL_IS_STILL = 1u << 29,     /* null in rope_parameters by layer type: no rotation     */
    LAST_FULL = 1u << 30,         /* the last layer is full, whatever the list says         */
    POSITION_NAME = 1u << 31      /* position_embedding_type rope; without it no rotation   */
};

/* Keys that single classes have. */
typedef enum tp__own_key {
    NO_OWN_KEY,
    EVERY_N_KEY,    /* global_attn_every_n_layers: the pattern                 */
    INTERVAL_KEY,   /* full_attention_interval: the pattern                    */
    GROUP_SIZE_KEY, /* layer_group_size: the pattern                           */
    HEADS_KEY,      /* num_attention_heads_per_layer                           */
    THETAS_KEY,     /* layer_rope_theta, 0: not rotated                        */
    STILL_KEY,      /* no_rope_layers and its interval: who is not rotated     */
    KV_SHARED_KEY   /* num_kv_shared_layers: the last ones read earlier keys   */
} tp__own_key;

typedef struct tp__family {
    const char *type;
    int64_t layers, hidden, heads, kv_heads, head_dim, positions;
    tp__window_rule window;
    int64_t sliding, pattern;
    double theta, rotated;
    unsigned flags;
    tp__own_key own_key;
} tp__family;

typedef struct tp__rope {
    int32_t kind, interleaved;
    double theta, factor, rotated, mscale_all_dim, beta;
    int64_t original;
    int32_t section[3];
    tp_rope_options rest; /* what only the rotation itself needs */
    json_t *factors[2];   /* longrope's, short and long; NULL: none */
} tp__rope;

enum { LAYER_FULL, LAYER_SLIDING, LAYER_CHUNKED, LAYER_INDEXED, LAYER_MAMBA, LAYER_LINEAR, LAYER_CONVOLUTION, LAYER_FORWARD };

/* What one layer has instead of what all share; 0: nothing of its own. */
typedef struct tp__own {
    int64_t heads, kv_heads, dim;
    double theta;
    int still;     /* not rotated */
    int kv_shared; /* reads keys and values of an earlier layer */
} tp__own;

typedef struct tp__text {
    const tp__family *family;
    tp__scope *scope;
    uint32_t or_of; /* from the whole model: spans or a prefix */
    int64_t span, prefix;
    int64_t layers, hidden;
    int64_t sliding, chunk;
    int bidirectional, sliding_spans;
    int inverse_layer; /* scale / (layer + 1) */
    uint8_t kind[TP_MODEL_MAX_LAYERS];
    tp__own own[TP_MODEL_MAX_LAYERS];
    int64_t sparse;
    tp_layer_group base;  /* what all layers share */
    tp__rope rope, local; /* of full layers, and of those that slide */
    int side_by_side;     /* pairs of rotated dims are neighbours */
    double tuning_beta;   /* llama4: on layers without rope */
    int64_t tuning_period;
} tp__text;

/* NULL when there is no such decoder. */
const tp__family *tp__family_find(const char *type);
/* Reads all the family's keys of text->scope and adds the layers. family, scope, or_of, span,
   prefix and base.dtype are set before. */
tp_status tp__text_read(tp__text *text, tp__builder *builder);

tp_status tp__text_kinds(tp__text *text); /* text_layers.c */
tp_status tp__text_list(tp__text *text, const char *key, json_t **list); /* as long as there are layers */
tp_status tp__text_ropes(tp__text *text); /* rope.c */
void tp__rope_apply(const tp__rope *rope, int64_t head_dim, tp_layer_group *group);
/* rotation.c: for tp_rope_from_model */
int tp__rope_interleaves(const tp__family *family); /* unless the file says otherwise */
int tp__rope_takes_turns(const tp__family *family); /* whatever the file says */
tp_status tp__text_rotations(tp__text *text, tp__builder *builder);
tp_status tp__text_latent(tp__text *text); /* text_latent.c: dims */
void tp__text_latent_scale(tp__text *text);
tp_status tp__text_own(tp__text *text); /* text_own.c, when kinds are known */
/* text_special.c: what single families have beside the table */
tp_status tp__text_special(tp__text *text); /* scale and extras */
tp_status tp__scope_dtype(tp__scope *scope, int32_t *dtype);

#endif
