/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof_proof: what a model asks of attention, and whether this host gives it: cells, locks, qualification, capacity.
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
 * Conventions (sizes, errors, ownership, floats) are those of tileproof.h. Nothing here is global; a model is immutable.
 * Functions that a call is given (writers, engines, progress) run in its default floating-point environment, too.
 * Out of memory, a call returns TP_NO_MEMORY, keeps what it was given as it was, and writes nothing: what goes to a
 * tp_write function goes there in one piece.
 *
 * Sizes     Structs that a program makes or has filled start from their TP_..._INIT, which sets struct_size. A cell, identity or
 *           layer group that the library gives by pointer has the library's size: whoever copies one, to change a field
 *           and give it back, sets struct_size of the copy to sizeof.
 * Texts     Texts inside structs are pointers. What the library gives is never NULL, but "" where there is nothing; in what it
 *           is given NULL counts as "".
 */
#ifndef TILEPROOF_PROOF_H
#define TILEPROOF_PROOF_H

#include "tileproof.h"
#include "tileproof_cache.h"
#include "tileproof_rope.h"

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

TP_API const char *tp_rope_name(tp_rope rope); /* of tileproof_rope.h */

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
    int64_t kv_shared;        /* of these layers, how many read keys and values of an earlier layer, and keep none of their own */
} tp_layer_group;

typedef struct tp_model {
    uint32_t struct_size;
    int32_t group_count;
    tp_layer_group *const *groups; /* in order of part, then of first layer */
    const char *name;              /* as given to tp_model_parse */
    const char *model_type;        /* of the file; "declared" for a file of layer groups */
    const char *ignored;           /* unknown keys the file itself asks to ignore, "a,b"; "" for none */
    const char *config_hash;       /* SHA-256 of the file's JSON with sorted keys and no blanks, in hex */
    const char *assumed;           /* tp_model_options.assume, where it was needed; "" otherwise */
    const char *label;             /* what locks and reports call it: the name without folders, and " (as llama)" where a
                                      family was assumed */
    const char *cache;             /* the format that the file wants keys and values kept in, "e4m3/tensor"; "": it says nothing.
                                      Nothing follows from it until somebody asks for that format */
} tp_model;

typedef struct tp_model_options {
    uint32_t struct_size;
    uint32_t reserved;  /* 0 */
    /* The decoder as which a file of an unknown model_type is read, such as "llama"; NULL: such a file is refused. That it is
       right is the caller's word: the model's label says so, in reports and locks. Known types are read as
       they are, keys that the assumed family does not know are refused as ever. */
    const char *assume;
    /* What locks and reports call the model; NULL: the name without folders. Revisions of one model have one label and different
       config hashes. 1..200 bytes of UTF-8 without '@', '/' and blanks at an end. */
    const char *label;
} tp_model_options;
#define TP_MODEL_OPTIONS_INIT { sizeof(tp_model_options), 0, NULL, NULL }

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

/* How a layer of the text rotates q and k, for tp_rope_create: options, which TP_ROPE_OPTIONS_INIT has set up, are filled whole.
   Lists of factors are the model's. A layer that is not rotated has kind none. Latent attention rotates the last dims of a row
   of head_dim_qk; on latents head_dim is the group's decode_dim_qk, and first what lies before them. TP_INVALID: there is no such
   layer; TP_UNSUPPORTED: it is no attention. What a file of layer groups does not say is 0, and tp_rope_create asks for it. */
TP_API tp_status tp_rope_from_model(const tp_model *model, int layer, tp_rope_options *options, tp_error *error);

/* "causal & window", "(causal & window) | same-span", "full". TP_INVALID when size is too small, here and
   below; 96 bytes are enough. */
TP_API tp_status tp_layer_group_formula(const tp_layer_group *group, char *text, size_t size);
/* "0-40/2", "3,7,11": ranges, with a step after the bar. */
TP_API tp_status tp_layer_group_layers(const tp_layer_group *group, char *text, size_t size);
/* The text form of one call: q_len rows on kv_len keys in each of batch sequences. Decode words are used when
   q_len is 1. TP_UNSUPPORTED for layers out of scope. */
TP_API tp_status tp_layer_group_problem(const tp_layer_group *group, int64_t batch, int64_t q_len,
                                        int64_t kv_len, char *text, size_t size);
/* The same of a call that reads a cache of this format, which tp_cache_format_name explains: "decode ... bf16:i8:i8->bf16 ...".
   Layers that keep nothing are plain in any, and so is prefill of latent attention, whose keys are made of the latents before
   the call. A file that names no dtype is taken as bf16 where the format is not plain. TP_INVALID too for what is no format. */
TP_API tp_status tp_layer_group_problem_in(const tp_layer_group *group, const char *cache, int64_t batch, int64_t q_len,
                                           int64_t kv_len, char *text, size_t size);
/* Lengths that suit a group's prefill or decode, at most 4096. Decode is 0 and 0 where a part has none. */
TP_API void tp_layer_group_lengths(const tp_layer_group *group, int decode, int64_t *q_len,
                                   int64_t *kv_len);

TP_API tp_status tp_model_write(const tp_model *model, tp_format format, tp_write write,
                                void *cookie);

/* The format of a cache: how keys and values are kept (docs/quantised.md). "plain": as the model's dtype says. "i8/token",
   "i8/q8_0", "i4/group", "e4m3/tensor", "e4m3/token": as codes with scales, which loses something. Two of these as K:V:
   "e4m3/token:i4/group", "plain:i8/token". Scales may be left out: i8, i4 and e4m3 are the first, third and fourth of these.
   NULL and "" are plain. Writes the whole name, that of locks and reports; 64 bytes are enough. */
TP_API tp_status tp_cache_format_name(const char *cache, char *text, size_t size, tp_error *error);
/* Rows of layers, as tp_cache_from_model wrote them, in this format. Rows that keep nothing stay as they are. The scale of a
   layer that has one for all its rows (e4m3/tensor) is the caller's to choose: here it becomes 1. */
TP_API tp_status tp_cache_format_layers(const char *cache, tp_cache_layer *layers, int64_t count, tp_error *error);

/* ------------------------------------------------------------------------------------------
 * Cells: calls that qualify a layer group, and what was seen. docs/qualify.md
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
/* How bad it is: 0 QUALIFIED, 1 QUALIFIED_FALLBACK, then NUMERICS_CHANGED, STALE, NOT_RUN, MISTRUSTED, UNSUPPORTED and, worst,
   NUMERIC_FAIL. What is above 1 must not be served. */
TP_API int tp_cell_status_rank(tp_cell_status status);

/* What was seen of a property of an engine. */
typedef enum tp_kept {
    TP_KEPT_UNKNOWN = 0, /* not asked */
    TP_KEPT_YES = 1,
    TP_KEPT_LEAKS = 2,   /* what must not be seen was: NaN of hidden keys or of other sequences; a row without keys is not 0 */
    TP_KEPT_VARIES = 3   /* not the same from call to call */
} tp_kept;
TP_API const char *tp_kept_name(tp_kept kept); /* "", "kept", "leaks", "varies" */

typedef struct tp_cell {
    uint32_t struct_size;
    int32_t status;           /* tp_cell_status */
    uint32_t phase;           /* TP_QUALIFY_*: one bit */
    int32_t timed;            /* one of the cells that a comparison of speed uses */
    const char *problem;      /* the text form of the call */
    const char *purpose;      /* "tile", "window", "long": which lengths */
    const char *shows;        /* the word of the mask that must hide or show something here, or "" */
    double gain;              /* q is multiplied by it, so that few keys decide */
    /* what was seen, and a lock keeps */
    const char *kernel;       /* that served it */
    const char *numerics_id;
    const char *output;       /* SHA-256 of o and lse, in hex; "": it did not run to its end */
    const char *reason;       /* why the status is not QUALIFIED */
    double error, allowed;    /* largest error against the double reference, and what was allowed */
    int64_t panels_full, panels_partial, panels_skipped;
    int64_t bytes, scratch;   /* modelled bytes moved; workspace with one task */
    /* what was seen, and a lock does not keep */
    double time_ns;           /* median of a call; 0: not measured */
    double gain_over_math;    /* how many times as fast as math, interleaved; 0: not measured */
    /* what was seen of another engine, and a lock keeps; "" and 0 for this library's own kernels */
    const char *rule;         /* that its error was judged by, "2 x naive in bf16"; "": the derived bound and twice naive */
    const char *observed;     /* who named the kernel: "profiler", "dispatcher", "log"; "not observable"; "": the receipt */
    const char *engine_reasons; /* the engine's own, for what it did not choose */
    const char *doubt;        /* what contradicts the kernel's name, such as its temporary memory */
    int32_t contained;        /* tp_kept: NaN in hidden keys and in neighbours changes nothing */
    int32_t deterministic;    /* tp_kept: the same bits from call to call */
    int32_t empty_rows;       /* tp_kept: a row that sees no key is 0 */
    int32_t reserved;         /* 0 */
    int64_t temporary;        /* peak bytes besides inputs and outputs; 0: not measured */
    double loss;              /* of a lossy cache: the largest error of any row of k or v that was stored, as tp_quantise says it;
                                 not part of `error` */
} tp_cell;
#define TP_CELL_INIT                                                                                           \
    { sizeof(tp_cell), TP_CELL_NOT_RUN, 0, 0, "", "", "", 1, "", "", "", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, "", "", \
      "", "", 0, 0, 0, 0, 0, 0 }

/* A cell as one JSON object on a line, without the line's end, and back: journals have these. measured: with time and
   gain over math. name and line stand in errors. The parsed cell is the caller's, until tp_cell_destroy. */
TP_API tp_status tp_cell_write(const tp_cell *cell, int measured, tp_write write, void *cookie);
TP_API tp_status tp_cell_parse(const char *text, size_t size, const char *name, int line, tp_cell **cell,
                               tp_error *error);
TP_API void tp_cell_destroy(tp_cell *cell);

/* What a cell does now against what a lock says of it. TP_CELL_QUALIFIED: the same; NUMERICS_CHANGED: other bits, within
   the rule; STALE: another kernel, or other panels, bytes or workspace; UNSUPPORTED: a fallback that the lock does not know;
   otherwise the status of `now`, where it is worse than the lock's. The text says what differs; 1,024 bytes are enough. */
TP_API tp_cell_status tp_cell_compare(const tp_cell *locked, const tp_cell *now, char *text, size_t size);

/* ------------------------------------------------------------------------------------------
 * Lock: what was qualified, where and with what. It is a list of revisions. One is a model's config as one engine on one kind
 * of device gave it: with these versions, on these hosts, these cells. So one file serves a mixed fleet, a rollback, and engines
 * beside this one. docs/lock.md has the format.
 * ------------------------------------------------------------------------------------------ */

#define TP_LOCK_SCHEMA "tileproof.lock/2" /* tileproof.lock/1 is read too */
#define TP_LOCK_MAX_BYTES (64u << 20)
#define TP_LOCK_KEEP 3                    /* revisions of a model that an update keeps, of those with one engine and device */

/* Which engine on what, and all that makes a lock stale when it differs. Texts of this library alone are "" for others. */
typedef struct tp_identity {
    uint32_t struct_size;
    int32_t parser;        /* TP_MODEL_PARSER_VERSION */
    const char *version;   /* tp_version */
    const char *build;     /* tp_build_hash */
    const char *compiler;  /* tp_build_compiler */
    const char *isa;       /* "avx2,avx512", "none" */
    const char *cpu;       /* CPU model */
    const char *os;        /* "Linux 6.1.0-13-amd64" */
    const char *libc;      /* "glibc 2.36" */
    const char *declared;  /* the caller's own: "torch=2.4,engine=0.6"; "" for none */
    /* What cells are kept by, with the ISA: other values are another revision in the lock, not a stale one. */
    const char *engine;    /* "tileproof", "torch", "vllm"; "": tileproof */
    const char *mode;      /* "eager", "compiled", "graph" where an engine has such; "" */
    const char *device;    /* "cpu", or a backend and its device: "opencl:NAME", "cuda:NVIDIA H100"; "": cpu */
    const char *cache;     /* how keys and values are kept: the name of tp_cache_format_name; "": plain. Where a lock is asked and
                              not changed, "any": whatever a revision has */
    /* More that makes it stale: lines of name=value. Names are letters, digits and . _ + -, values up to 255 bytes. */
    const char *versions;  /* of the engine: "torch=2.9.0\ncuda=13.0\ncudnn=9.1" */
    const char *host;      /* "gpu=NVIDIA H100\ndriver=580.65" */
} tp_identity;
/* Of this process and this library on the CPU. declared: "name=value,..." sorted or not, NULL for none; names and values are
   letters, digits and . _ + -. */
TP_API tp_status tp_identity_detect(const char *declared, tp_identity **identity, tp_error *error);
TP_API void tp_identity_destroy(tp_identity *identity);

typedef struct tp_lock tp_lock;
TP_API tp_status tp_lock_create(tp_lock **lock, tp_error *error); /* without any cell */
/* TP_INVALID: "NAME:LINE: FIELD is VALUE: RULE", for a file that is truncated, edited or of a newer schema. */
TP_API tp_status tp_lock_parse(const char *text, size_t size, const char *name, tp_lock **lock,
                               tp_error *error);
TP_API void tp_lock_destroy(tp_lock *lock);
TP_API tp_status tp_lock_write(const tp_lock *lock, tp_write write, void *cookie);

/* What a lock holds. Index runs from 0; TP_INVALID ends the list. The struct is the caller's, from its INIT; its texts live until
   the lock is changed or destroyed. */
typedef struct tp_lock_revision {
    uint32_t struct_size;
    int32_t status;       /* tp_cell_status: the worst of its cells */
    int64_t cell_count;
    const char *model, *config_hash;
    const char *date;     /* of the update that wrote it */
    const char *engine, *mode, *device, *isa, *cache; /* as in tp_identity, with defaults in place of "" */
} tp_lock_revision;
#define TP_LOCK_REVISION_INIT { sizeof(tp_lock_revision), 0, 0, "", "", "", "", "", "", "", "" }
/* config_hash of what tileproof.watch saved: calls that were seen and not judged. tp_lock_fresh leaves such revisions out. */
#define TP_LOCK_WATCHED "watched"
/* A model's revisions stand in the order of their updates, the last one last. */
TP_API tp_status tp_lock_revision_at(const tp_lock *lock, int64_t index, tp_lock_revision *revision);
/* A cell of a revision, and who uses it. */
typedef struct tp_lock_use {
    uint32_t struct_size;
    uint32_t phase;
    const char *model, *config_hash, *part, *layers, *problem;
    int64_t revision; /* index of tp_lock_revision_at */
} tp_lock_use;
#define TP_LOCK_USE_INIT { sizeof(tp_lock_use), 0, "", "", "", "", "", 0 }
/* Either of cell and use may be NULL. */
TP_API tp_status tp_lock_revision_cell(const tp_lock *lock, int64_t revision, int64_t index, tp_cell *cell,
                                       tp_lock_use *use);
/* The uses of all revisions, one after another. */
TP_API tp_status tp_lock_use_at(const tp_lock *lock, int64_t index, tp_lock_use *use);
/* Cells of this library on CPUs of an ISA, with any cache, each problem once: of several revisions with one problem the last. */
TP_API tp_status tp_lock_cell_at(const tp_lock *lock, const char *isa, int64_t index, tp_cell *cell);
TP_API tp_status tp_lock_cell_find(const tp_lock *lock, const char *isa, const char *problem,
                                   tp_cell *cell);

/* The same two for whatever engine, mode, device and cache the identity names. */
TP_API tp_status tp_lock_cell_of(const tp_lock *lock, const tp_identity *now, int64_t index, tp_cell *cell);
TP_API tp_status tp_lock_cell_for(const tp_lock *lock, const tp_identity *now, const char *problem, tp_cell *cell);

typedef struct tp_lock_history {
    uint32_t struct_size;
    uint32_t reserved;     /* 0 */
    const char *date, *engine, *device, *isa, *build;
    const char *revisions; /* that were written: "llama 1a2b3c4d5e6f", "llama 1a2b3c4d5e6f cache i8/token" */
    const char *dropped;   /* to keep no more than was asked for, or by tp_lock_drop; "" for none */
    const char *cells;     /* "9 new, 0 changed, 5 same" */
    const char *reason;
} tp_lock_history;
#define TP_LOCK_HISTORY_INIT { sizeof(tp_lock_history), 0, "", "", "", "", "", "", "", "", "" }
TP_API tp_status tp_lock_history_at(const tp_lock *lock, int64_t index, tp_lock_history *history);

/* TP_OK: this revision was made by this identity. TP_UNSUPPORTED: it was not, and the text names every field that differs, with
   both values. */
TP_API tp_status tp_lock_revision_fresh(const tp_lock *lock, int64_t revision, const tp_identity *now, char *text,
                                        size_t size);
/* The same of all revisions that the lock has for this engine, device and ISA. TP_UNSUPPORTED too when there is none; the text
   has the first that differs. */
TP_API tp_status tp_lock_fresh(const tp_lock *lock, const tp_identity *now, char *text, size_t size);

/* What differs between two revisions, of one lock or of two: what is asked (heads, dims, masks), who serves it or why it is
   refused, error, panels, bytes, bits; versions and hosts. In words, a line for each layer group and phase; or as JSON, a list of
   changes with where, phase, what, from and to. TP_INVALID: no such revision. */
TP_API tp_status tp_lock_diff(const tp_lock *from, int64_t from_revision, const tp_lock *to, int64_t to_revision,
                              tp_format format, tp_write write, void *cookie);

/* Changing a lock. What is put becomes part of it by tp_lock_finish: each model that was put is a revision with the uses and
   cells that were put since the finish before. It takes the place of the one with its name, config hash, engine, device and ISA;
   where that had the same versions and cells, this host joins its hosts. Others of its name stay, the last TP_LOCK_KEEP of them.
   Cells that no such model uses are forgotten. date is "2026-11-16", reason what the history keeps: 1..400 bytes of UTF-8, not
   blank. A call that fails leaves the lock as it was. */
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
/* Takes every revision of another lock that this one has not. TP_INVALID, with its name: both have it and its versions or cells
   differ. Hosts of equal ones are joined, histories too. */
TP_API tp_status tp_lock_merge(tp_lock *lock, const tp_lock *other, const char *date, const char *reason,
                               tp_error *error);
/* Without one revision. */
TP_API tp_status tp_lock_drop(tp_lock *lock, int64_t revision, const char *date, const char *reason, tp_error *error);

/* ------------------------------------------------------------------------------------------
 * Qualification: all cells of some models, run, and compared with a lock or written into one. The library prints
 * nothing, reads and writes no file and starts no process. examples/serve.c is a server that uses it.
 *
 *     tp_qualify_create(&model, 1, NULL, &q, &error);
 *     tp_qualify_run(q, context, NULL, &error);
 *     if (tp_cell_status_rank(tp_qualification_status(q)) > 1) ...       something is wrong or refused
 *     tp_qualify_update(q, lock, identity, &update, &error);
 *
 * A qualification is for one thread at a time. It refers to its models: they must outlive it.
 * ------------------------------------------------------------------------------------------ */

/* Of the inputs of every cell, for ever: other inputs have other bits, and locks keep those. */
#define TP_QUALIFY_SEED 1

typedef struct tp_qualification tp_qualification;

typedef struct tp_qualify_options {
    uint32_t struct_size;
    uint32_t phases;   /* TP_QUALIFY_*; 0: all */
    int32_t quick;     /* nonzero: fewer cells, and fewer rows of each are compared with the reference */
    int32_t dtype;     /* tp_dtype of models whose file names none; 0: bf16 */
    int64_t page_size; /* tokens of a page in cells with pages, 1..4096; 0: 16 */
    int64_t max_cells; /* of a layer group in a phase: its first ones, the main cell before all; 0: no limit */
    const char *cache; /* the format of the cache that the cells read (tp_cache_format_name); NULL: plain, and TP_INVALID for a
                          model whose file names another. Only calls that read the cache change: tp_layer_group_problem_in */
} tp_qualify_options;
#define TP_QUALIFY_OPTIONS_INIT { sizeof(tp_qualify_options), 0, 0, 0, 0, 0, NULL }

/* The cells of models; options may be NULL. A problem that several layer groups ask for is one cell with several uses.
   Cells whose words the core does not read, and cells that would take too much memory, are TP_CELL_UNSUPPORTED from the
   start. Layers out of scope have no cells. */
TP_API tp_status tp_qualify_create(tp_model *const *models, int model_count, const tp_qualify_options *options,
                                   tp_qualification **q, tp_error *error);
/* The cells that a lock has for an ISA, in its order, to run them once more, as canary does. Of the options `quick` counts
   alone. Those that the lock has as QUALIFIED or QUALIFIED_FALLBACK have no result yet; the others keep the lock's. There
   are no uses: tp_lock_use_at has them. */
TP_API tp_status tp_qualify_create_again(const tp_lock *lock, const char *isa, const tp_qualify_options *options,
                                         tp_qualification **q, tp_error *error);
/* The same of the engine, device and ISA that an identity names. */
TP_API tp_status tp_qualify_create_for(const tp_lock *lock, const tp_identity *now, const tp_qualify_options *options,
                                       tp_qualification **q, tp_error *error);
/* The same of one revision, whatever its engine. */
TP_API tp_status tp_qualify_create_revision(const tp_lock *lock, int64_t revision, const tp_qualify_options *options,
                                            tp_qualification **q, tp_error *error);
TP_API void tp_qualification_destroy(tp_qualification *q);

/* Cell by index, from 0; NULL behind the last one. The pointer lives as long as the qualification; what it points to changes
   when the cell is run, restored or compared. */
TP_API const tp_cell *tp_qualification_cell(const tp_qualification *q, int64_t index);
/* The worst status of all cells. Where there are none nothing was checked: TP_CELL_NOT_RUN. */
TP_API tp_cell_status tp_qualification_status(const tp_qualification *q);
/* Who asks for a cell: the group'th layer group of the model'th model. TP_INVALID behind the last one. */
typedef struct tp_qualify_use {
    uint32_t struct_size;
    int32_t model, group;
    uint32_t phase;
    int64_t cell;
} tp_qualify_use;
#define TP_QUALIFY_USE_INIT { sizeof(tp_qualify_use), 0, 0, 0, 0 }
TP_API tp_status tp_qualification_use(const tp_qualification *q, int64_t index, tp_qualify_use *use);

/* An engine: anything that computes attention, such as another library behind a process of its own (docs/engines.md). It is
   given the cells of a model, and judged by its outputs.

   A call. Tensors lie dense, [token][head][dim], sequences one after another, whatever layout the problem names: how keys are
   kept is the engine's own matter. They and the texts live until the function returns. Row r of a sequence has the position
   r + kv_len - q_len. */
typedef enum tp_engine_mask {
    TP_ENGINE_FULL = 0,          /* every row sees every key of its sequence */
    TP_ENGINE_CAUSAL = 1,        /* keys up to the row's position: bottom-right */
    TP_ENGINE_CAUSAL_WINDOW = 2, /* and of these the row's own and `window` before it */
    TP_ENGINE_VISIBLE = 3        /* none of these: `visible` alone says it */
} tp_engine_mask;
typedef struct tp_engine_call {
    uint32_t struct_size;
    int32_t mask;                /* tp_engine_mask: what the keys that these rows see really are */
    const char *text;            /* the problem, in words */
    const tp_problem *problem;   /* heads, dims, dtypes, scale, softcap */
    int64_t window;
    int64_t sequences;
    const int64_t *q_lens, *kv_lens; /* by sequence */
    int64_t q_tokens, kv_tokens;     /* of all */
    const void *q, *k, *v;
    void *o;                     /* filled with NaN beforehand */
    const uint8_t *visible;      /* [q_len][kv_len] by sequence, one after another: 1: the row sees the key. Always there */
    const float *sinks;          /* [query head] logits without key and value; NULL: none */
    const float *slopes;         /* [sequence][query head]: slope * |position - key| is taken from a score; NULL: none */
    const float *q_factors;      /* [q token]: the row's q is multiplied by it; NULL: none */
    double time_ns;              /* to measure a call's time; 0: it is not wanted */
} tp_engine_call;

typedef enum tp_engine_fused { TP_ENGINE_UNKNOWN = 0, TP_ENGINE_FUSED = 1, TP_ENGINE_UNFUSED = 2 } tp_engine_fused;
/* What was seen of it. Texts live until the engine is called again. */
typedef struct tp_engine_answer {
    uint32_t struct_size;
    int32_t fused;               /* tp_engine_fused: by the kernel that was observed, never by the arguments */
    const char *kernel;          /* that was observed; "": not observable */
    const char *observed;        /* who named it: "profiler", "dispatcher", "log" */
    const char *reasons;         /* the engine's own, for what it did not choose, or why it refused or broke */
    double time_ns;              /* median of a call; 0: not measured */
    int64_t temporary;           /* peak bytes besides inputs and outputs; 0: not measured */
} tp_engine_answer;
#define TP_ENGINE_ANSWER_INIT { sizeof(tp_engine_answer), 0, "", "", "", 0, 0 }

/* TP_OK: `o` is written. TP_UNSUPPORTED: the engine refuses. TP_NO_MEMORY, TP_MACHINE: no judgement is possible. All else: it
   broke. `reasons` say why. The answer comes as TP_ENGINE_ANSWER_INIT. */
typedef tp_status (*tp_engine_run)(void *user, const tp_engine_call *call, tp_engine_answer *answer);

/* Properties, where a cell can show them: keys that a row does not see, and other sequences, are filled with NaN (contained),
   a call is repeated (deterministic), rows see no key at all (empty rows). What is not kept fails a cell only where it is
   required. */
#define TP_REQUIRE_CONTAINED     1u
#define TP_REQUIRE_DETERMINISTIC 2u
#define TP_REQUIRE_EMPTY         4u /* rows without a key are 0 */
#define TP_REQUIRE_ALL           7u
typedef struct tp_engine {
    uint32_t struct_size;
    uint32_t require;            /* TP_REQUIRE_* */
    tp_engine_run run;
    void *user;
} tp_engine;
#define TP_ENGINE_INIT { sizeof(tp_engine), 0, NULL, NULL }

/* Called before a cell runs (done 0) and when it has its result (done 1); nonzero stops the run. It may look at the
   qualification, not change it. */
typedef int (*tp_qualify_progress)(void *user, const tp_qualification *q, int64_t cell, int done);

typedef struct tp_qualify_run_options {
    uint32_t struct_size;
    int32_t policy;               /* TP_REFUSE, or TP_PERMIT: a lower tier may serve, as QUALIFIED_FALLBACK */
    double time_ns;               /* for the times of one cell; 0: none are taken. With `quick` only timed cells have times */
    tp_qualify_progress progress; /* NULL: none */
    void *user;
    /* What runs the cells; NULL: this library. Of an engine o alone is judged, by the error of TP_NAIVE in the cell's dtype: at
       most twice as much. TP_CELL_QUALIFIED_FALLBACK: it was right, and not fused. `policy` does not count. */
    const tp_engine *engine;
    int32_t device;               /* that cells run on: TP_CPU, or the context's backend, where no times are taken */
    int32_t reserved;             /* 0 */
} tp_qualify_run_options;
#define TP_QUALIFY_RUN_OPTIONS_INIT { sizeof(tp_qualify_run_options), 0, 0, NULL, NULL, NULL, 0, 0 }

/* Runs every cell that has no result yet, on the context's threads, with its disable list; its own policy does not
   count. What is wrong with a cell is the cell's status and reason, and TP_OK; so is a stop by `progress`, after which cells
   are TP_CELL_NOT_RUN and may be run by another call. Other statuses mean that a cell could not be judged (TP_NO_MEMORY,
   TP_FORKED, TP_BUSY, TP_MACHINE): it has no result, and those before it keep theirs. */
TP_API tp_status tp_qualify_run(tp_qualification *q, tp_context *context, const tp_qualify_run_options *options,
                                tp_error *error);
/* One cell, if it has no result yet; `progress` is not called. */
TP_API tp_status tp_qualify_run_cell(tp_qualification *q, int64_t cell, tp_context *context,
                                     const tp_qualify_run_options *options, tp_error *error);
/* The result of an earlier run, from a journal, for the cell of the same problem, phase and gain. The caller answers for
   it: same library, host, options. TP_UNSUPPORTED: no such cell waits for a result. */
TP_API tp_status tp_qualify_restore(tp_qualification *q, const tp_cell *cell, tp_error *error);

/* Below, the identity's cache may be "" or plain: it is that of the options with which the qualification was made. Another
   one is TP_INVALID.

   Compares what was seen with a lock. TP_OK: this identity is one of the lock's, the lock has every model with this config,
   and every cell does what the lock says. TP_NOT_LOCKED: something differs. Cells that differ then have the status and the
   reason of tp_cell_compare; what differs of the lock as a whole is in the notes; the error has the first of all these. A cell
   without a result gives TP_INVALID. Comparing again starts from what was seen. */
TP_API tp_status tp_qualify_compare(tp_qualification *q, const tp_lock *lock, const tp_identity *now, tp_error *error);
/* "host cpu: lock has A, here B", "config of m.json: lock has ..., here ...". NULL behind the last one. They live until the
   next comparison. */
TP_API const char *tp_qualification_note(const tp_qualification *q, int index);

typedef struct tp_lock_update {
    uint32_t struct_size;
    int32_t reserved;
    const char *date, *reason; /* as for tp_lock_finish */
    int32_t keep;              /* revisions of a model; 0: TP_LOCK_KEEP */
    int32_t served_only;       /* nonzero: TP_UNSUPPORTED, and nothing is written, where a cell is refused */
} tp_lock_update;
#define TP_LOCK_UPDATE_INIT { sizeof(tp_lock_update), 0, NULL, NULL, 0, 0 }
/* Writes what was seen into a lock, all of it or nothing: a revision of each model, by its label, and the history.
   TP_INVALID: a cell has no result, or two models have one label. TP_UNSUPPORTED: there is no cell. */
TP_API tp_status tp_qualify_update(const tp_qualification *q, tp_lock *lock, const tp_identity *identity,
                                   const tp_lock_update *update, tp_error *error);

/* ------------------------------------------------------------------------------------------
 * Capacity: the memory that serving a model's attention takes, and what a host can do with it at best. Nothing is run.
 *
 *     options.context = 131072, options.concurrency = 8, options.limit = 64ll << 30;
 *     tp_capacity_create(model, context, &options, &capacity, &error);
 *     tp_capacity_cache_at(capacity, -1, 0, &cache);     bytes, pages, and what fits
 *     tp_capacity_work_at(capacity, -1, 1, &work);       a decode step: workspace, flops, bytes, least time
 *
 * Counted are keys and values that layers keep, and one workspace, which calls use in turn. Not counted: weights, activations,
 * page tables, and the states of layers out of scope. docs/capacity.md
 * ------------------------------------------------------------------------------------------ */

typedef struct tp_capacity tp_capacity;

typedef struct tp_capacity_options {
    uint32_t struct_size;
    int32_t cache_dtype; /* f32, f16 or bf16, in which keys and values are kept; 0: the file's, and bf16 where it names none */
    int64_t context;     /* tokens of a sequence: prompt and output together */
    int64_t concurrency; /* sequences at once */
    int64_t page_size;   /* tokens of a page, 1..4096; 0: no pages, the tokens of a sequence lie in one piece */
    int64_t limit;       /* bytes for cache and workspace; 0: none, and nothing is said of what fits */
    int32_t threads;     /* tasks that a call is cut into; 0: as many as the context has threads */
    int32_t reserved;    /* 0 */
    double gflops, read_gbps; /* what the host does at best, in 1e9 a second (tp_measure_fma, tp_measure_read); 0: not known */
    int32_t device;      /* that serves: TP_CPU, or the context's backend, whose kernels alone count */
    int32_t reserved_too; /* 0 */
    const char *cache;   /* the format of the cache (tp_cache_format_name), codes and scales counted; NULL: plain, in cache_dtype,
                            and TP_INVALID for a model whose file names another. cache_dtype is that of what is plain */
} tp_capacity_options;
#define TP_CAPACITY_OPTIONS_INIT { sizeof(tp_capacity_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL }

/* Refers to the model, which must outlive it; of the context it needs the planning alone, and counts as plans there.
       TP_INVALID           an option breaks a rule: more tokens than the model takes, a limit that holds none, bytes beyond int64
       TP_UNSUPPORTED       no layer of the model keeps keys; or no kernel reads the cache's dtype
       TP_FALLBACK_REFUSED  and others: what a layer group asks for would not be served; the text names it */
TP_API tp_status tp_capacity_create(const tp_model *model, tp_context *context, const tp_capacity_options *options,
                                    tp_capacity **capacity, tp_error *error);
TP_API void tp_capacity_destroy(tp_capacity *capacity);

/* What is kept for sequences of `context` tokens. */
typedef struct tp_capacity_cache {
    uint32_t struct_size;
    int32_t dtype;          /* tp_dtype of keys and values that are plain */
    int64_t layers;         /* that keep keys and values of their own */
    int64_t tokens;         /* of a sequence that a layer keeps; of all groups: the most */
    int64_t token_bytes;    /* that one more token of a sequence takes */
    int64_t sequence_bytes, bytes; /* of one sequence, of all */
    int64_t pages;          /* of all sequences, over all these layers; 0: no pages */
    int64_t page_bytes;     /* keys and values of one page in one layer; of all groups: 0 where they differ */
    /* of all groups: what fits the limit, with the workspace; 0 where nothing does, and where there is no limit */
    int64_t context_max;     /* tokens for each of `concurrency` sequences; never more than the model takes */
    int64_t concurrency_max; /* sequences of `context` tokens */
} tp_capacity_cache;
#define TP_CAPACITY_CACHE_INIT { sizeof(tp_capacity_cache), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* group: an index of the model's groups, -1: all. evicts 0: every token is kept. evicts 1: the engine drops keys that no later
   row sees, as layers with a window or a chunk allow; while a prompt is read, its rows come on top. TP_INVALID: no such group,
   or a struct of a wrong size. Groups that keep nothing have 0 layers. */
TP_API tp_status tp_capacity_cache_at(const tp_capacity *capacity, int group, int evicts, tp_capacity_cache *cache);

/* One step through these layers: of prefill, one prompt of `context` tokens at once; of decode, one row of every sequence. */
typedef struct tp_capacity_work {
    uint32_t struct_size;
    int32_t exact;             /* 1: flops are a count; 0: an estimate, as tp_decision.pairs_exact says */
    int64_t workspace_bytes;   /* of a call cut into `threads` tasks; of all groups: the largest */
    int64_t workspace_thread_bytes; /* of a call with one task */
    double flops, bytes;       /* bytes: q and o, and keys and values that some row sees, once */
    double seconds;            /* the least time that gflops and read_gbps leave; 0: they are not known */
    int32_t reads_bound;       /* 1: reading takes longer than the multiply-adds */
    int32_t reserved;
    const char *kernel;        /* that would serve; of all groups: "mixed" where they differ. Lives as long as the capacity */
    const char *problem;       /* the call's text form; of all groups: "" */
} tp_capacity_work;
#define TP_CAPACITY_WORK_INIT { sizeof(tp_capacity_work), 0, 0, 0, 0, 0, 0, 0, 0, "", "" }
TP_API tp_status tp_capacity_work_at(const tp_capacity *capacity, int group, int decode, tp_capacity_work *work);

/* A cache of this model (tileproof_cache.h): writes a row for each layer of the part, by its number in the model, to layers,
   which has room for so many (TP_MODEL_MAX_LAYERS is always enough), and sets layers, layer_count, same and, if the file says it,
   sequence_tokens of the options. dtype 0: the file's, and bf16 where it names none; TP_INVALID where the file names a lossy
   format (tp_model.cache), because that is nobody's choice yet. Groups may differ in heads, dims and dtype.
   Layers with latents keep those; with a window, every token; out of scope, or with the keys of an earlier layer, nothing.
   tp_cache_format_layers then makes a quantised cache of them.
   TP_PART_CROSS: a second cache, of the encoder's keys. TP_UNSUPPORTED: no layer of the part generates. */
TP_API tp_status tp_cache_from_model(const tp_model *model, tp_part part, tp_dtype dtype, tp_cache_layer *layers, int64_t room,
                                     tp_cache_options *options, tp_error *error);

/* At load: may this context serve this model by this lock? TP_UNSUPPORTED names the model and, where it is one
   group's fault, part, layers, phase and reason: the lock is stale for this host, the config is another, or a
   cell is not qualified. Otherwise every cell's class and kernel become permits of policy locked. However it
   ends, the context knows the model's state (tp_context_lock_state, by the model's label), so that metrics, trace and alerts
   do. A lock or config that could not be read is NULL: TP_INVALID, and the state is unreadable. declared as for
   tp_identity_detect. */
TP_API tp_status tp_preflight(tp_context *context, const tp_lock *lock, const tp_model *model,
                              const char *declared, tp_error *error);
typedef struct tp_preflight_options {
    uint32_t struct_size;
    uint32_t reserved;     /* 0 */
    const char *declared;  /* as for tp_identity_detect; NULL: none */
    const char *cache;     /* the format of the cache that will be served from (tp_cache_format_name); NULL: plain, and TP_INVALID
                              for a model whose file names another */
} tp_preflight_options;
#define TP_PREFLIGHT_OPTIONS_INIT { sizeof(tp_preflight_options), 0, NULL, NULL }
/* The same by the lock's revision with that cache: what was qualified with another says nothing of it. A server that reads two
   kinds of cache asks for both, and has the permits of both. Options may be NULL. */
TP_API tp_status tp_preflight_with(tp_context *context, const tp_lock *lock, const tp_model *model,
                                   const tp_preflight_options *options, tp_error *error);

#ifdef __cplusplus
}
#endif

#endif
