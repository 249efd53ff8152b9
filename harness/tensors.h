/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a problem with random content. A value depends only on (seed, tensor, logical index),
 * so the same seed gives the same numbers in every layout. Whatever is not part of a used row
 * (padding, gaps, slack, unused pages, and all of o and lse before a run) holds bytes 0xFF, which
 * is a NaN in every dtype; table entries and sparse indices that no row may look at hold numbers that
 * no pool and no sequence has.
 */
#ifndef TILEPROOF_HARNESS_TENSORS_H
#define TILEPROOF_HARNESS_TENSORS_H

#include <stdint.h>

#include "harness/guarded.h"
#include "harness/mask_data.h"
#include "tileproof.h"

enum tensor_id { TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_O, TENSOR_LSE, TENSOR_COUNT };

enum index_id {
    INDEX_CU_Q,
    INDEX_CU_KV,
    INDEX_Q_LENS,
    INDEX_KV_LENS,
    INDEX_K_PAGES,
    INDEX_V_PAGES,
    INDEX_SPARSE,
    INDEX_SHARED_WITH,
    INDEX_SHARED_LENS,
    INDEX_COUNT
};

/* In a page, too: FORM_TOKENS is NHD and FORM_HEADS is HND there. */
enum tensors_form {
    FORM_TOKENS,   /* bshd, or thd when packed */
    FORM_HEADS,    /* bhsd, or htd when packed */
    FORM_QKV,      /* q, k and v are slices of one buffer: equal dtypes, both sides packed or neither, v not latent */
    FORM_BROADCAST /* stride 0: every q head, and every k and v head and sequence, is the same */
};

struct tensors_style {
    enum tensors_form form;
    int index64; /* length arrays of int64 instead of int32 */
    int lse;
    int ragged;      /* start one element off, and leave gaps of three elements between rows, more between what holds rows */
    int slack;       /* unused tokens after each sequence, told by the used lengths */
    int two_tables;  /* paged: v has a table and an order of its own */
    int short_sparse; /* 1: three of four rows' sparse indices end early, some at once; 2: one of three; 0: none, where it may */
    int repeat;  /* values recur: rows are cut from one short table, which fills large tensors fast
                  */
    double gain; /* q is multiplied by it; 0 means 1 */
    enum guarded_side guarded; /* every tensor and array lies against a page without access */
    int empty_ends; /* the first and the last row of a sequence see nothing, where sparse indices, bits or a bias decide */
    int extreme;    /* biases, slopes and sinks of every size a float has */
    int scattered;  /* what neighbouring rows see is far apart, where ids, positions, parents, bits or a callback decide */
    int prefixes;    /* cascade: 0: all sequences begin as the first one does, as far as they can; 1: in trees, by the seed */
    int shared_bias; /* strides of 0: 1 over rows, 2 over sequences, 3 over both */
    int shared_slopes; /* a stride of 0 over sequences */
    int spare; /* tokens before and behind packed sequences and entries behind a row's sparse indices, all nobody's; a latent v
                  lies at the end of k's rows */
    int exact; /* memory ends where its tensor does: no margin of poison behind it */
};

struct tensors {
    tp_problem problem;
    tp_tensors call;
    struct tensors_style style;
    int64_t sequences;
    int64_t *q_lens, *kv_lens;   /* used lengths by sequence */
    int64_t *q_start, *kv_start; /* first token by sequence, when packed; one entry more */
    void *indices[INDEX_COUNT];  /* the arrays of the call as given */
    int64_t *shared_with, *shared_keys; /* cascade: keys that lie as those of an earlier sequence, or are copies of them */
    int64_t *pages[2];           /* paged: the page of each slot, for k and for v, seen or not */
    struct {
        void *memory; /* NULL: a slice of another tensor's */
        size_t bytes;
    } buffer[TENSOR_COUNT], scales[2]; /* of a quantised k and v */
    int poison;     /* the byte that outputs held before the run */
    double loss[2]; /* likewise: the greatest of any row that was filled, as tp_quantise says it */
    struct mask_data masks; /* what masks and scores read */
    tp_arithmetic arithmetic; /* of the kernels that o and lse are judged by: what the oracle's bound goes by */
    const struct gradients *gradients; /* of a backward call */
};

/* Bytes tensors_create would allocate, as a double so that it cannot overflow. */
double tensors_bytes(const tp_problem *problem, const tp_lengths *lengths,
                     const struct tensors_style *style);
/* Everything is poison afterwards. 0, or nonzero when memory ran out. */
int tensors_create(struct tensors *tensors, const tp_problem *problem, const tp_lengths *lengths,
                   const struct tensors_style *style);
void tensors_destroy(struct tensors *tensors);

/* 0, or nonzero when memory ran out. */
int tensors_fill(struct tensors *tensors, uint64_t seed);
/* What masks, sparse indices and page tables hold, and not q, k and v. Likewise. */
int tensors_fill_indices(struct tensors *tensors, uint64_t seed);
/* One of them alone, with normal numbers times gain. */
void tensors_fill_one(struct tensors *tensors, enum tensor_id id, uint64_t seed, float gain);
void tensors_poison_outputs(struct tensors *tensors, int byte);
/* Nonzero when a used output element still holds poison, or an unused one no longer does. */
int tensors_badly_written(const struct tensors *tensors, char *reason, size_t size);
int tensors_one_badly_written(const struct tensors *tensors, enum tensor_id id, const char *name, char *reason,
                              size_t size);

int64_t tensors_heads(const struct tensors *tensors, enum tensor_id id);
int64_t tensors_dim(const struct tensors *tensors, enum tensor_id id);
int64_t tensors_len(const struct tensors *tensors, enum tensor_id id, int64_t seq);
tp_dtype tensors_dtype(const struct tensors *tensors, enum tensor_id id);
/* Bytes of a row of elements or codes, and of its scales, where it has some of its own. */
size_t tensors_row_bytes(const struct tensors *tensors, enum tensor_id id);
size_t tensors_scales_bytes(const struct tensors *tensors, enum tensor_id id);
int64_t stored_row_bytes(tp_dtype dtype, tp_scales kind, int64_t dim);
tp_scales tensors_scales(const struct tensors *tensors, enum tensor_id id);
/* A row's scales, or those of its tensor; NULL: there are none, or they lie in the row. */
void *tensors_scales_at(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head);
/* Where a row lies, in what the strides of a tensor count that is laid out like this one. */
int64_t tensors_place(const struct tensors *tensors, enum tensor_id id, const tp_tensor *tensor, int64_t seq, int64_t token,
                      int64_t head);
/* Where a row begins, and element x of one that is not quantised. */
void *tensors_at(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token,
                 int64_t head, int64_t x);
/* 1: the key is one that another sequence has before this one (cascade), and its row is as there. */
int tensors_fill_shared(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head);
void tensors_copy_row(struct tensors *to, int64_t to_seq, int64_t to_token, const struct tensors *from, int64_t from_seq,
                      int64_t from_token, enum tensor_id id, int64_t head);
/* Bytes 0xFF, which read as NaN. */
void tensors_poison_row(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head);
/* What is stored, exactly; and rounded to a float. */
double tensors_value(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head, int64_t x);
float tensors_get(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token,
                  int64_t head, int64_t x);
/* The i-th key that a token may look at, masks aside: by its sparse indices, or simply i. -1: no more. */
int64_t tensors_key(const struct tensors *tensors, int64_t seq, int64_t token, int64_t i);
/* A row as floats, to be freed. */
float *tensors_take_row(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head);
/* A whole row, rounded or quantised. */
void tensors_set_row(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head, const float *values);
/* Where a row is quantised its other elements may change, too. */
void tensors_set(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token,
                 int64_t head, int64_t x, float value);
/* Largest finite magnitude among the used values. */
double tensors_max(const struct tensors *tensors, enum tensor_id id);

/* tensors_codes.c: fills a quantised k or v. Nonzero when memory ran out. */
int tensors_fill_codes(struct tensors *tensors, enum tensor_id id, uint64_t seed, float gain);
/* The number of this index among those that fill a tensor. */
float tensors_random(uint64_t seed, enum tensor_id id, uint64_t index, float gain);

/* tensors_cache.c: page tables and sparse indices. The first allocates what the call needs besides
   the pools, the second puts pages and keys into the seed's order; the data of masks is there, to tell which pages are
   seen. Both: nonzero when memory ran out. */
int64_t cache_pages(const tp_problem *problem, const tp_lengths *lengths, const struct tensors_style *style); /* of a pool */
int cache_create(struct tensors *tensors, int64_t pages);
int cache_fill(struct tensors *tensors, uint64_t seed);
/* The sequence whose key this is: an earlier one, where it is shared. */
int64_t cache_source(const struct tensors *tensors, int64_t seq, int64_t key);

/* A well mixed 64-bit number for (seed, a, b). */
uint64_t random_bits(uint64_t seed, uint64_t a, uint64_t b);

#endif
