/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof_proof: what a model asks of attention.
 *
 * A second library, so that the core needs no JSON. A model's config.json becomes layer groups: layers whose
 * attention is the same problem, each with heads, dims, mask, scale and positions, and with the text form that
 * tp_problem_parse reads. What the file does not say is taken from its model_type's class defaults; what is not
 * known is refused by name, never guessed. docs/models.md has the fields, the defaults and the refusals.
 *
 *     tp_model *model;
 *     if (tp_model_parse(text, size, "config.json", &model, &error) != TP_OK) ...
 *     for (int i = 0; i < model->group_count; i++) use(model->groups[i]);
 *     tp_model_destroy(model);
 *
 * Conventions (sizes, errors, ownership) are those of tileproof.h. Nothing here is global; a model is immutable.
 */
#ifndef TILEPROOF_PROOF_H
#define TILEPROOF_PROOF_H

#include "tileproof.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever the same file could give other groups, so that a record can name it. */
#define TP_MODEL_PARSER_VERSION 1

typedef enum tp_part {
    TP_PART_TEXT = 0,
    TP_PART_VISION = 1,
    TP_PART_AUDIO = 2,
    TP_PART_CROSS = 3 /* rows of the text, keys of the audio */
} tp_part;
TP_API const char *tp_part_name(tp_part part);

/*
 * The mask of a group is a formula: every term of all_of must hold, or any one of or_of.
 *     (causal & window) | same-span       all_of = CAUSAL | WINDOW, or_of = SPAN
 * No term in all_of: every key is visible.
 */
#define TP_TERM_CAUSAL  1u /* k_pos <= q_pos                                                      */
#define TP_TERM_WINDOW  2u /* q_pos - window_left <= k_pos <= q_pos + window_right                 */
#define TP_TERM_CHUNK   4u /* floor(k_pos / chunk) == floor(q_pos / chunk)                         */
#define TP_TERM_SEGMENT 8u /* row and key in the same packed sequence: an image, a window of one   */
#define TP_TERM_SPAN    1u /* or_of: row and key in the same bidirectional span, such as an image  */
#define TP_TERM_PREFIX  2u /* or_of: the key is in the prefix: k_pos < prefix length               */
#define TP_TERM_FIRST   4u /* or_of: the key is one of the first `first` and not after the row     */

typedef enum tp_rope {
    TP_ROPE_NONE = 0, /* q and k are not rotated */
    TP_ROPE_DEFAULT = 1,
    TP_ROPE_LINEAR = 2,
    TP_ROPE_DYNAMIC = 3,
    TP_ROPE_YARN = 4,
    TP_ROPE_LONGROPE = 5,
    TP_ROPE_LLAMA3 = 6,
    TP_ROPE_2D = 7 /* a vision tower's: rows and columns of patches */
} tp_rope;
TP_API const char *tp_rope_name(tp_rope rope);

/* Layers of one model that ask for the same attention. */
typedef struct tp_layer_group {
    uint32_t struct_size;
    int32_t part;             /* tp_part */
    int32_t layer_count;
    int32_t dtype;            /* tp_dtype; 0: the file does not say */
    const int32_t *layers;    /* ascending */
    const char *out_of_scope; /* NULL: softmax attention. Otherwise what these layers are instead, and
                                 nothing below is set */
    int64_t q_heads, kv_heads, head_dim_qk, head_dim_v;
    /* Multi-head latent attention decodes on the latents instead: other KV heads and dims. 0: it does not. */
    int64_t decode_kv_heads, decode_dim_qk, decode_dim_v;
    int64_t q_max, kv_max;    /* the longest the file allows; 0: it does not say */

    uint32_t all_of, or_of;   /* TP_TERM_*, above */
    int64_t window_left, window_right;
    int64_t chunk;
    int64_t span;             /* keys of one span where the file says so; 0: known from the data only */
    int64_t prefix;           /* the least prefix, image tokens for example; 0: known from the data only */
    int64_t first;

    double scale;             /* of the scores, before any softcap */
    const char *scale_source; /* "1/sqrt(d)", "query_pre_attn_scalar", ... */
    double softcap;           /* 0: none */
    int32_t sinks;            /* a learnt logit a head joins the row sum */
    int32_t alibi;            /* slopes 2^(-8 (h+1) / heads) and the usual rule for other head counts */
    /* q is scaled by 1 + beta * ln(1 + floor((q_pos + offset) / period)); beta 0: it is not. */
    double query_scale_beta;
    int64_t query_scale_period, query_scale_offset;

    int32_t rope;             /* tp_rope */
    int32_t mrope_interleaved;
    int64_t rope_dims;        /* rotated dims of a head */
    double rope_theta, rope_factor;
    int32_t mrope_section[3]; /* all 0: one position a token */
    int32_t reserved;
} tp_layer_group;

typedef struct tp_model {
    uint32_t struct_size;
    int32_t group_count;
    tp_layer_group *const *groups; /* in order of part, then of first layer */
    const char *name;              /* as given to tp_model_parse */
    const char *model_type;        /* of the file; "declared" for a file of layer groups */
    const char *ignored;           /* unknown keys the file itself asks to ignore, "a,b"; "" for none */
} tp_model;

#define TP_MODEL_MAX_BYTES  (16u << 20)
#define TP_MODEL_MAX_DEPTH  32
#define TP_MODEL_MAX_LAYERS 1024

/*
 * Reads a config.json, or a file of layer groups (docs/models.md), from memory; the text needs no ending 0.
 * name stands in error texts and may be NULL.
 *     TP_INVALID      not JSON, or a field breaks a rule: "NAME:LINE: FIELD is VALUE: RULE"
 *     TP_UNSUPPORTED  well formed, but the model_type, a key or a value is not known to be understood
 * On failure *model is NULL.
 */
TP_API tp_status tp_model_parse(const char *text, size_t size, const char *name, tp_model **model,
                                tp_error *error);
TP_API void tp_model_destroy(tp_model *model);

/* "causal & window", "(causal & window) | same-span", "full". TP_INVALID when size is too small, here and
   below; 96 bytes are enough. */
TP_API tp_status tp_layer_group_formula(const tp_layer_group *group, char *text, size_t size);
/* "0-40/2", "3,7,11": ranges, with a step after the bar. */
TP_API tp_status tp_layer_group_layers(const tp_layer_group *group, char *text, size_t size);
/* The text form of one call: q_len rows on kv_len keys in each of batch sequences. Decode words are used when
   q_len is 1. TP_UNSUPPORTED for layers out of scope. */
TP_API tp_status tp_layer_group_problem(const tp_layer_group *group, int64_t batch, int64_t q_len,
                                        int64_t kv_len, char *text, size_t size);
/* Lengths that suit a group's prefill or decode, at most 4096. Decode is 0 and 0 where a part has none. */
TP_API void tp_layer_group_lengths(const tp_layer_group *group, int decode, int64_t *q_len,
                                   int64_t *kv_len);

TP_API tp_status tp_model_write(const tp_model *model, tp_format format, tp_write write,
                                void *cookie);

#ifdef __cplusplus
}
#endif

#endif
