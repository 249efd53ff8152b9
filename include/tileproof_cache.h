/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tp_cache: keys and values of all layers of a model, in pages, for many sequences that come, grow, fork and go.
 *
 *     tp_cache_layer layer = TP_CACHE_LAYER_INIT;                   // the same for all 32 layers
 *     layer.kv_heads = 8; layer.head_dim_qk = layer.head_dim_v = 128; layer.k_dtype = layer.v_dtype = TP_BF16;
 *     tp_cache_options options = TP_CACHE_OPTIONS_INIT;
 *     options.layers = &layer; options.layer_count = 32; options.same = 1;
 *     options.bytes = 8ll << 30; options.sequences = 64; options.sequence_tokens = 8192;
 *     tp_cache_create(&options, &cache, &error);
 *     tp_cache_open(cache, &sequence, &error);
 *
 *     tp_cache_extend(cache, 1, &sequence, &tokens, &error);        // once a step: room in every layer, or a refusal
 *     for (each layer) {
 *         tp_cache_append(cache, layer, &rows, &error);             // its new keys and values
 *         tp_cache_tensors(cache, layer, slot, 1, &tensors, &error);// k, v, page table and lengths for tp_attention
 *         tp_attention(...);
 *     }
 *
 * examples/generate.c is a whole program, docs/cache.md the guide.
 *
 * Pages     A page holds page_size tokens of every layer. Page numbers are the same in all layers, so one table serves
 *           them. Tables and lengths lie in the cache, ready for tp_tensors: nothing is copied to attend.
 * Slots     An open sequence has a slot, the lowest that was free: its row of the table. A run of slots is a batch:
 *           sequences of it that take no part in a step have no rows of q, and cost nothing.
 * Refusals  A call that fails changes nothing. A full pool is TP_CACHE_FULL: close or copy out a sequence, and ask again.
 * Threads   Any number of threads may use a cache at once, one for each sequence at a time. A call uses each sequence that
 *           it names; tp_cache_share also uses the sequence that it shares from. Attention uses every sequence whose slot
 *           it reads. tp_cache_stats_read and tp_cache_metrics_write may be called at any time. Fork the process while
 *           no thread is inside a function of its caches: a child has a copy of its own.
 * Sizes, errors and ownership are those of tileproof.h.
 */
#ifndef TILEPROOF_CACHE_H
#define TILEPROOF_CACHE_H

#include "tileproof_rope.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tp_cache tp_cache;

/* How tokens and heads lie in a page of one layer. */
typedef enum tp_cache_layout {
    TP_CACHE_NHD = 0, /* [page][token][head][dim] */
    TP_CACHE_HND = 1  /* [page][head][token][dim] */
} tp_cache_layout;

/* What one layer keeps of a token. Lies in an array: it stays as it is for ever. */
typedef struct tp_cache_layer {
    int64_t kv_heads;               /* 0: the layer keeps nothing, as one that reads an earlier layer's keys */
    int64_t head_dim_qk, head_dim_v;
    int32_t k_dtype, v_dtype;       /* TP_F32, TP_F16 or TP_BF16; TP_I8, TP_I4 or TP_E4M3, with scales: docs/quantised.md */
    int32_t latent;                 /* 1: v's rows are the first head_dim_v elements of k's, and only k is kept */
    int32_t reserved;               /* 0 */
    int32_t k_scales, v_scales;     /* tp_scales of a quantised k and v; otherwise 0. The cache keeps them beside the codes */
    float k_scale, v_scale;         /* of TP_SCALES_TENSOR: the scale of all rows of the layer; otherwise 0 */
} tp_cache_layer;
#define TP_CACHE_LAYER_INIT { 0, 0, 0, TP_BF16, TP_BF16, 0, 0, 0, 0, 0, 0 }

typedef struct tp_cache_options {
    uint32_t struct_size;
    int32_t layout;            /* tp_cache_layout                                                               */
    int64_t bytes;             /* the most that the cache may take: pages, tables and all                       */
    int64_t page_size;         /* tokens of a page, 1..65536                                                    */
    int64_t sequences;         /* open at the same time, at most                                                */
    int64_t sequence_tokens;   /* of one sequence, at most: prompt and output together                          */
    const tp_cache_layer *layers; /* [layer_count], or one for all: `same`; copied                              */
    int64_t layer_count;       /* 1..4096 */
    int32_t same;              /* 1: layers points to one row, which is that of every layer                     */
    int32_t index_type;        /* tp_index_type of tables and lengths: that of all arrays of the call           */
    const char *name;          /* label of its metrics, 1..63 printable ASCII characters, copied; NULL: no label */
    const tp_allocator *allocator; /* copied; NULL: posix_memalign and free                                     */
} tp_cache_options;
#define TP_CACHE_OPTIONS_INIT { sizeof(tp_cache_options), TP_CACHE_NHD, 0, 16, 0, 0, NULL, 0, 0, TP_I32, NULL, NULL }

/* What a cache of these options holds. */
typedef struct tp_cache_capacity {
    uint32_t struct_size;
    int32_t reserved;
    int64_t pages;
    int64_t tokens;      /* pages * page_size: of all sequences together */
    int64_t page_bytes;  /* of all layers */
    int64_t token_bytes; /* page_bytes / page_size */
    int64_t page_slots;  /* of a sequence in the table */
    int64_t bytes;       /* everything that tp_cache_create allocates: at most options.bytes */
} tp_cache_capacity;

/* Before anything is allocated. TP_INVALID: an option breaks a rule, or not even one page fits into its bytes. */
TP_API tp_status tp_cache_plan_sized(const tp_cache_options *options, tp_cache_capacity *capacity, size_t size,
                                     tp_error *error);
static inline tp_status tp_cache_plan(const tp_cache_options *options, tp_cache_capacity *capacity, tp_error *error) {
    return tp_cache_plan_sized(options, capacity, sizeof *capacity, error);
}
TP_API tp_status tp_cache_create(const tp_cache_options *options, tp_cache **cache, tp_error *error);
/* Its sequences end with it; no call and no attention may be under way. */
TP_API void tp_cache_destroy(tp_cache *cache);

/* A sequence is a number that is never given twice. 0 and numbers of closed sequences are refused by every function. */

TP_API tp_status tp_cache_open(tp_cache *cache, int64_t *sequence, tp_error *error);
/* A new sequence that begins with the first `tokens` tokens of another, on the same pages. Every layer must have them.
   A sequence that grows into a page which others share gets its own copy of it first (tp_cache_extend). */
TP_API tp_status tp_cache_share(tp_cache *cache, int64_t from, int64_t tokens, int64_t *sequence, tp_error *error);
/* The same with all tokens it has. */
TP_API tp_status tp_cache_fork(tp_cache *cache, int64_t from, int64_t *sequence, tp_error *error);
/* Room for tokens[i] more tokens of sequences[i] in every layer, for all of them or for none. Lengths grow at once; what the
   new tokens are comes by tp_cache_append, layer by layer. Pages are neighbours of the sequence's last one where they can be. */
TP_API tp_status tp_cache_extend(tp_cache *cache, int64_t count, const int64_t *sequences, const int64_t *tokens,
                                 tp_error *error);
/* The first `tokens` tokens stay, in every layer; pages that nobody holds any more are free. */
TP_API tp_status tp_cache_truncate(tp_cache *cache, int64_t sequence, int64_t tokens, tp_error *error);
TP_API tp_status tp_cache_close(tp_cache *cache, int64_t sequence, tp_error *error);
/* Tokens; -1: there is no such sequence. */
TP_API int64_t tp_cache_length(const tp_cache *cache, int64_t sequence);
/* Its row of the table; -1: there is no such sequence. */
TP_API int64_t tp_cache_slot(const tp_cache *cache, int64_t sequence);
/* Slots up to the last one that is open: the batch of all sequences. */
TP_API int64_t tp_cache_slots(const tp_cache *cache);

/* Positions. The cache keeps the position of every token that it rotates, with sections its time, beside its page: it goes with
   the token wherever that is shared, forked or copied. In every layer an append is refused where a row lies in front of the last
   position that is known before it. tp_cache_truncate takes tokens back with their positions. Layers that are given
   different positions for a token share the least of them. Not known are positions of tokens that came with cosines and sines,
   without a rotary, or from a buffer that has none (it begins with tpcache1); what follows them is held against the last one
   that is known. */

/* New keys and values of one layer, and its q. The rows of all sequences lie behind one another, as in a packed tensor: first
   tokens[0] rows of sequences[0], and so on. They become the tokens that the layer does not have yet, the earliest first. A
   quantised layer loses something here and nowhere else: tp_cache_stats.loss. */
typedef struct tp_cache_rows {
    uint32_t struct_size;
    int32_t dtype;            /* of k and v as given: TP_F32, TP_F16, TP_BF16; rounded to the layer's, to nearest even */
    int64_t count;            /* sequences */
    const int64_t *sequences; /* [count], each once */
    const int64_t *tokens;    /* [count] rows of each */
    tp_tensor k, v;           /* stride[1] from row to row, stride[2] from head to head, stride[0] is ignored; latent: v NULL */
    /* On the way k is normed, then rotated, and then rounded to the layer's dtype; so is q, in place, if it is given. */
    tp_tensor q;              /* in and out, of `dtype`, rows and strides as k's; apart from k and v. data NULL: no q here */
    int64_t q_heads;
    const tp_rotary *rotary;  /* tileproof_rope.h, for the layer's head_dim_qk; NULL: no rotation */
    const int64_t *positions; /* [rows], with sections [3][rows]; NULL: a token's index in its sequence. Those of a sequence (with
                                 sections: their times) must not decrease: Positions, above */
    int64_t length;           /* by which dynamic and longrope rotate; 0: the greatest position of a sequence's rows here + 1 */
    const float *cosines, *sines; /* instead of positions: [rows][tp_rope_pairs] of tp_rope_angles, once for all layers. Whether
                                 their positions run backwards is not known */
    const float *q_norm, *k_norm; /* head_dim_qk weights of an RMS norm before the rotation; NULL: none */
    float norm_eps;           /* of both, finite and not negative */
    int32_t norm_one_plus;    /* 1: rows are multiplied by 1 + weight (Gemma), 0: by weight */
} tp_cache_rows;
#define TP_CACHE_ROWS_INIT \
    { sizeof(tp_cache_rows), 0, 0, NULL, NULL, TP_TENSOR_INIT, TP_TENSOR_INIT, TP_TENSOR_INIT, 0, NULL, NULL, 0, NULL, NULL, \
      NULL, NULL, 0, 0 }
TP_API tp_status tp_cache_append(tp_cache *cache, int64_t layer, const tp_cache_rows *rows, tp_error *error);

/* What the cache knows of a problem on this layer: batch and kv_len (bounds), kv_heads, head dims, dtypes and scales of k and v,
   pages, latent. The caller says the rest: q_heads, q_len, dtypes of q and o, mask. */
TP_API tp_status tp_cache_problem(const tp_cache *cache, int64_t layer, tp_problem *problem, tp_error *error);
/* What it knows of the tensors of the slots first..first+count-1: batch, kv_len, k, v, scales, tables, lengths, index_type.
   Pointers into the cache; they stay as they are for its life, so one call for each layer is enough where first and count stay.
   kv_loss is the greatest loss of any row of this layer so far, without rows in which a value was not finite; NULL where the
   layer is not quantised.
   TP_INVALID where the layer lacks tokens of a sequence. */
TP_API tp_status tp_cache_tensors(const tp_cache *cache, int64_t layer, int64_t first, int64_t count, tp_tensors *tensors,
                                  tp_error *error);
/* For sequences whose slots are no run: copies their table rows, [count][page_slots], and lengths, [count], to the caller's
   arrays of index_type, for k_pages and kv_lens. Once a step; all layers share them. */
TP_API tp_status tp_cache_gather(const tp_cache *cache, int64_t count, const int64_t *sequences, void *table, void *lens,
                                 tp_error *error);

/* Which of these sequences begin alike, for shared_with and shared_lens of tp_tensors (problem.cascade, such as the problem's
   kv_len): for each sequence the earlier one with the longest common beginning on the same pages, and its length. The slots
   first..first+count-1, as tp_cache_tensors takes them; or, where sequences is not NULL, those, as tp_cache_gather does, and
   first is 0. [count] of index_type each, the caller's. Once a step, after tp_cache_extend; all layers share them. */
TP_API tp_status tp_cache_prefixes(const tp_cache *cache, int64_t first, int64_t count, const int64_t *sequences,
                                   void *shared_with, void *shared_lens, tp_error *error);

/* Copies the tokens from `first` on out of the cache and into another sequence, of this cache or of one with the same layers;
   page size and layout may differ. Positions and losses go with them. The buffer needs no alignment. tp_cache_copy_bytes: what it
   takes, -1 where there are no such tokens. tp_cache_copy_in appends to a sequence of exactly `first` tokens: an empty one, or
   one that shares them again. */
TP_API int64_t tp_cache_copy_bytes(const tp_cache *cache, int64_t sequence, int64_t first);
TP_API tp_status tp_cache_copy_out(const tp_cache *cache, int64_t sequence, int64_t first, void *buffer, int64_t bytes,
                                   tp_error *error);
TP_API tp_status tp_cache_copy_in(tp_cache *cache, int64_t sequence, const void *buffer, int64_t bytes, tp_error *error);

typedef struct tp_cache_stats {
    uint32_t struct_size;
    int32_t reserved;
    int64_t pages, pages_used;
    int64_t pages_shared;  /* of those used, held by two sequences or more */
    int64_t tail_tokens;   /* of those used, tokens that no sequence uses: the ends of last pages */
    int64_t sequences;     /* open */
    int64_t tokens;        /* of all sequences, shared ones as often as they are held */
    int64_t neighbours;    /* entries of tables whose page lies right behind that of the entry before */
    int64_t breaks;        /* entries whose page does not */
    int64_t page_bytes, token_bytes;
    int64_t pages_copied;  /* since it was made: copies on write */
    int64_t refusals;      /* since it was made: calls refused because the pool was full */
    double loss;           /* since it was made, of quantised layers: the greatest |value - stored| of any row that was appended
                              or copied in, relative to its greatest |value|; infinity: a value was not finite. As
                              tp_quantise says it */
    double finite_loss;    /* the same without rows in which a value was not finite */
    int64_t rows_not_finite; /* since it was made, of quantised layers: rows of k or v, of one token and head, that were appended
                                with such a value */
} tp_cache_stats;
TP_API tp_status tp_cache_stats_read_sized(const tp_cache *cache, tp_cache_stats *stats, size_t size, tp_error *error);
static inline tp_status tp_cache_stats_read(const tp_cache *cache, tp_cache_stats *stats, tp_error *error) {
    return tp_cache_stats_read_sized(cache, stats, sizeof *stats, error);
}
/* The same as Prometheus text (version 0.0.4), to be written behind tp_metrics_write's: of one cache, or of several that have
   different names (tp_cache_options.name). Texts of two calls must not be joined, because a family may stand in a text once.
   count is in 1..64. TP_INVALID: two names are equal, or `write` failed. */
TP_API tp_status tp_cache_metrics_write(const tp_cache *cache, tp_write write, void *cookie);
TP_API tp_status tp_cache_metrics_write_all(const tp_cache *const *caches, int64_t count, tp_write write, void *cookie,
                                            tp_error *error);

#ifdef __cplusplus
}
#endif
#endif
