/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache beside its model: plain arrays of stamps, one for each token of each sequence. A stamp gives every element of the
 * token's rows, in every layer, exactly in each dtype, or as tp_quantise has it; so a row that was lost, mixed up or written
 * twice shows. A token may have a position, by which k is rotated; that too is in its row.
 */
#ifndef TP_TESTS_SUPPORT_KV_H
#define TP_TESTS_SUPPORT_KV_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tileproof_cache.h"

/* Fails on any thread. */
#define KV_CHECK(condition, ...)                                                                                                 \
    do {                                                                                                                         \
        if (condition) break;                                                                                                    \
        fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                                          \
        fprintf(stderr, __VA_ARGS__);                                                                                            \
        fprintf(stderr, "\n");                                                                                                   \
        abort();                                                                                                                 \
    } while (0)

enum { KV_LAYERS = 6, KV_TOKENS = 160, KV_STEP = 64, KV_ROW = 128 /* elements of a token in a layer, at most */ };
/* Different heads, dims and dtypes; a latent one; one that keeps nothing; quantised ones, with every kind of scales. */
extern const tp_cache_layer kv_layers[KV_LAYERS];
/* Of these layers, with a page size, a layout, an index type, sequences, and bytes for about this many pages. */
tp_cache_options kv_options(int64_t page_size, int layout, int index_type, int64_t sequences, int64_t pages);

/* How a token is rotated: not; by a position; by its index; by angles, whose position the cache does not know. */
enum { KV_PLAIN = 0, KV_POSITION = 1, KV_INDEX = 2, KV_ANGLES = 3, KV_WAYS = 4 };
enum { KV_POSITIONS = 512 };

typedef struct kv_model {
    int64_t sequence; /* 0: none */
    int64_t length;
    uint64_t stamps[KV_TOKENS];
    int16_t positions[KV_TOKENS];
    uint8_t ways[KV_TOKENS];
} kv_model;

float kv_element(uint64_t stamp, int layer, int part, int64_t head, int64_t x);
/* A row of k or v as the cache must have it: k rotated, and a quantised layer's what tp_quantise makes of the elements. */
void kv_stored(int layer, int part, const kv_model *model, int64_t token, int64_t head, float *row);
/* The last position in front of this token that a cache knows; 0: none. */
int64_t kv_last_position(const kv_model *model, int64_t token);
/* Appends the stamps of tokens from..from+count-1 of each sequence to one layer, given as this dtype, in one call: all of them
   rotated in the same way. */
tp_status kv_append(tp_cache *cache, int layer, int64_t count, kv_model *const *models, const int64_t *from,
                    const int64_t *tokens, int dtype, tp_error *error);
/* To every layer that keeps rows. */
void kv_append_all(tp_cache *cache, kv_model *model, int64_t from, int64_t tokens, int dtype);
/* extend, then append, with stamps that begin at `stamp`. */
tp_status kv_grow(tp_cache *cache, kv_model *model, int64_t tokens, uint64_t stamp, tp_error *error);
/* Every element of every layer is the model's; length and slot too. */
void kv_verify(const tp_cache *cache, const kv_model *model);
/* What some of them have in common, by tp_cache_prefixes, and their tables and lengths, by tp_cache_gather, against the table of
   each. The most that any two share. */
int64_t kv_verify_batch(const tp_cache *cache, kv_model *const *models, int64_t count);
/* Attention of one row of q of each, in one call, with keys that they share read once or not, against plain sums in double. */
void kv_attend(tp_context *context, const tp_cache *cache, kv_model *const *models, int64_t count, int layer, int cascade);
/* Tables of all slots against one another and against the stats: holders, pages used and shared, tails. */
void kv_verify_pages(const tp_cache *cache, int64_t page_size);

#endif
