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
 * Out of memory, a call returns TP_NO_MEMORY, keeps what it was given as it was, and writes nothing: what goes to a
 * tp_write function goes there in one piece.
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
    TP_ROPE_2D = 7, /* a vision tower's: rows and columns of patches */
    TP_ROPE_PROPORTIONAL = 8
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
    int64_t sparse;           /* keys that the model chooses for each row, at most; 0: all that the mask shows */
} tp_layer_group;

typedef struct tp_model {
    uint32_t struct_size;
    int32_t group_count;
    tp_layer_group *const *groups; /* in order of part, then of first layer */
    const char *name;              /* as given to tp_model_parse; "NAME (as llama)" where a family was assumed */
    const char *model_type;        /* of the file; "declared" for a file of layer groups */
    const char *ignored;           /* unknown keys the file itself asks to ignore, "a,b"; "" for none */
    const char *config_hash;       /* SHA-256 of the file's JSON with sorted keys and no blanks, in hex */
    const char *assumed;           /* tp_model_options.assume, where it was needed; "" otherwise */
} tp_model;

typedef struct tp_model_options {
    uint32_t struct_size;
    uint32_t reserved;  /* 0 */
    /* The decoder as which a file of an unknown model_type is read, such as "llama"; NULL: such a file is refused. That it is
       right is the caller's word: the name of the model says so, in all that is written and in locks. Known types are read as
       they are, keys that the assumed family does not know are refused as ever. */
    const char *assume;
} tp_model_options;
#define TP_MODEL_OPTIONS_INIT { sizeof(tp_model_options), 0, NULL }

#define TP_MODEL_MAX_BYTES  (16u << 20)
#define TP_MODEL_MAX_DEPTH  32
#define TP_MODEL_MAX_LAYERS 1024

/*
 * Reads a config.json, or a file of layer groups (docs/models.md), from memory; the text needs no ending 0.
 * name stands in error texts and in what is written, and may be NULL; it must be UTF-8.
 *     TP_INVALID      not JSON, or a field breaks a rule: "NAME:LINE: FIELD is VALUE: RULE"
 *     TP_UNSUPPORTED  well formed, but the model_type, a key or a value is not known to be understood
 * On failure *model is NULL.
 */
TP_API tp_status tp_model_parse(const char *text, size_t size, const char *name, tp_model **model,
                                tp_error *error);
/* The same with options, which may be NULL. TP_INVALID too when assume names no decoder that is known. */
TP_API tp_status tp_model_parse_with(const char *text, size_t size, const char *name, const tp_model_options *options,
                                     tp_model **model, tp_error *error);
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

/* ------------------------------------------------------------------------------------------
 * Cells: what is run to qualify a group, and what was seen. docs/qualify.md
 * ------------------------------------------------------------------------------------------ */

#define TP_QUALIFY_PREFILL    1u
#define TP_QUALIFY_DECODE     2u
#define TP_QUALIFY_VARLEN     4u  /* sequences packed: each must be as if it were alone          */
#define TP_QUALIFY_MIXED      8u  /* chunks of prefill and decode rows in one call, keys in pages */
#define TP_QUALIFY_MULTIMODAL 16u /* spans or a prefix, where a group has them                   */
#define TP_QUALIFY_ALL        31u
TP_API const char *tp_qualify_phase_name(uint32_t phase); /* of one bit; "phase?" when unknown */

typedef enum tp_cell_status {
    TP_CELL_NOT_RUN = 0,
    TP_CELL_QUALIFIED = 1,
    TP_CELL_QUALIFIED_FALLBACK = 2, /* right, from a lower tier, and that was permitted            */
    TP_CELL_NUMERIC_FAIL = 3,
    TP_CELL_UNSUPPORTED = 4,        /* refused: `reason` has every candidate                       */
    TP_CELL_MISTRUSTED = 5,         /* its inputs could prove nothing                              */
    TP_CELL_STALE = 6,              /* of a lock that was made elsewhere or earlier                */
    TP_CELL_NUMERICS_CHANGED = 7    /* right, but with other bits than the lock's                  */
} tp_cell_status;
TP_API const char *tp_cell_status_name(tp_cell_status status); /* "QUALIFIED" */
TP_API int tp_cell_status_parse(const char *name, int32_t *status); /* nonzero when it is none */

typedef struct tp_cell {
    uint32_t struct_size;
    int32_t status;         /* tp_cell_status */
    uint32_t phase;         /* TP_QUALIFY_*: one bit */
    int32_t timed;          /* one of the cells that a comparison of speed uses */
    char purpose[24];       /* "tile", "window", "long": which lengths */
    char shows[24];         /* the word of the mask that must hide or show something here, or "" */
    char problem[512];      /* the text form of the call */
    double gain;            /* q is multiplied by it, so that few keys decide */
    /* what was seen, and the lock keeps */
    char kernel[32], numerics_id[64];
    char output[65];        /* SHA-256 of o and lse, in hex */
    double error, allowed;  /* largest error against the double reference, and what was allowed */
    int64_t panels_full, panels_partial, panels_skipped;
    int64_t bytes, scratch; /* modelled bytes moved; workspace with one task */
    /* what was seen, and a lock does not keep */
    double time_ns;         /* median of a call; 0: not measured */
    double gain_over_math;  /* how many times as fast as math, interleaved; 0: not measured */
    char reason[1024];      /* why the status is not QUALIFIED */
} tp_cell;

#define TP_MAX_GROUP_CELLS 32
/* The cells of a group. dtype is taken where the file names none; page_size is that of cells with pages. Cells
   whose words the core does not read come out as TP_CELL_UNSUPPORTED. TP_INVALID for a bad argument, and for
   room below TP_MAX_GROUP_CELLS. Layers out of scope have no cells. */
TP_API tp_status tp_layer_group_cells(const tp_layer_group *group, uint32_t phases, int quick,
                                      tp_dtype dtype, int64_t page_size, tp_cell *cells, int capacity,
                                      int *count, tp_error *error);

/* SHA-256 in pieces. */
typedef struct tp_digest {
    uint32_t state[8];
    uint8_t block[64];
    uint64_t size;
} tp_digest;
TP_API void tp_digest_begin(tp_digest *digest);
TP_API void tp_digest_add(tp_digest *digest, const void *bytes, size_t size);
TP_API void tp_digest_end(tp_digest *digest, char text[65]);

/* A cell as one JSON object on a line, without the line's end, and back: journals have these. measured: with
   time, gain and reason. name and line stand in errors. */
TP_API tp_status tp_cell_write(const tp_cell *cell, int measured, tp_write write, void *cookie);
TP_API tp_status tp_cell_parse(const char *text, size_t size, const char *name, int line, tp_cell *cell,
                               tp_error *error);

/* ------------------------------------------------------------------------------------------
 * Lock: what was qualified, where and with what. One file for a mixed fleet: cells are kept by ISA.
 * docs/lock.md has the format.
 * ------------------------------------------------------------------------------------------ */

#define TP_LOCK_SCHEMA "tileproof.lock/1"
#define TP_LOCK_MAX_BYTES (64u << 20)

/* All that makes a lock stale when it differs. */
typedef struct tp_identity {
    uint32_t struct_size;
    int32_t parser;      /* TP_MODEL_PARSER_VERSION */
    char version[32];    /* tp_version */
    char build[65];      /* tp_build_hash */
    char compiler[512];  /* tp_build_compiler */
    char isa[64];        /* "avx2,avx512", "none" */
    char cpu[64];        /* CPU model */
    char os[160];        /* "Linux 6.1.0-13-amd64" */
    char libc[64];       /* "glibc 2.36" */
    char declared[256];  /* the caller's own: "torch=2.4,engine=0.6"; "" for none */
} tp_identity;
/* Of this process. declared: "name=value,..." sorted or not, NULL for none; names and values are letters, digits
   and . _ + -. */
TP_API tp_status tp_identity_detect(const char *declared, tp_identity *identity, tp_error *error);

typedef struct tp_lock tp_lock;
TP_API tp_status tp_lock_create(tp_lock **lock, tp_error *error); /* without any cell */
/* TP_INVALID: "NAME:LINE: FIELD is VALUE: RULE", for a file that is truncated, edited or of another schema. */
TP_API tp_status tp_lock_parse(const char *text, size_t size, const char *name, tp_lock **lock,
                               tp_error *error);
TP_API void tp_lock_destroy(tp_lock *lock);
TP_API tp_status tp_lock_write(const tp_lock *lock, tp_write write, void *cookie);

/* What a lock holds. Index runs from 0; TP_INVALID ends the list. */
TP_API tp_status tp_lock_cell_at(const tp_lock *lock, const char *isa, int index, tp_cell *cell);
TP_API tp_status tp_lock_cell_find(const tp_lock *lock, const char *isa, const char *problem,
                                   tp_cell *cell);
/* Who uses a problem. Pointers live as long as the lock. */
typedef struct tp_lock_use {
    uint32_t struct_size;
    uint32_t phase;
    const char *model, *config_hash, *part, *layers, *problem;
} tp_lock_use;
TP_API tp_status tp_lock_use_at(const tp_lock *lock, int64_t index, tp_lock_use *use);
/* TP_OK: this identity is one of those the lock was made with. TP_UNSUPPORTED: it is not, and the text names
   every field that differs, with both values; or there are no cells for its ISA. */
TP_API tp_status tp_lock_fresh(const tp_lock *lock, const tp_identity *now, char *text, size_t size);

/* Changing a lock. A model takes the place of the one with its name; a cell that of its problem. date is
   "2026-11-16", reason what the history keeps: 1..400 bytes of UTF-8, not blank. A call that fails leaves the lock as
   it was. Cells of an ISA that no model uses any more are
   dropped by tp_lock_finish. Hosts with the same cells, library and declared versions share them. */
TP_API tp_status tp_lock_put_model(tp_lock *lock, const char *name, const char *config_hash,
                                   tp_error *error);
TP_API tp_status tp_lock_put_use(tp_lock *lock, const char *model, const tp_layer_group *group,
                                 const tp_cell *cell, tp_error *error);
TP_API tp_status tp_lock_put_cell(tp_lock *lock, const char *isa, const tp_cell *cell,
                                  tp_error *error);
/* May this be the reason of an update? To be asked before what takes long. */
TP_API tp_status tp_lock_reason_check(const char *reason, tp_error *error);
TP_API tp_status tp_lock_finish(tp_lock *lock, const tp_identity *identity, const char *date,
                                const char *reason, tp_error *error);

/* At load: may this context serve this model by this lock? TP_UNSUPPORTED names the model and, where it is one
   group's fault, part, layers, phase and reason: the lock is stale for this host, the config is another, or a
   cell is not qualified. Otherwise every cell's class and kernel become permits of policy locked, and the
   context knows the state of its lock. declared as for tp_identity_detect. */
TP_API tp_status tp_preflight(tp_context *context, const tp_lock *lock, const tp_model *model,
                              const char *declared, tp_error *error);

#ifdef __cplusplus
}
#endif

#endif
