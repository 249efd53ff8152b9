/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache is one block of memory: this struct, layers, slots, tables, pages' holders, positions of tokens, and then the pools,
 * one of k and one of v for each layer. layout.c lays it out, pages.c hands pages out, sequences.c moves them between slots, and
 * append.c and copy.c write and read rows.
 *
 * Which tokens of a page may be written without a lock: those of the one slot that holds it, and of a page that several hold,
 * those behind everything that was shared. share() takes tokens that every layer has, append() writes only tokens that its layer
 * lacks, and extend() gives a slot a page of its own before it grows into a shared one.
 */
#ifndef TP_KVCACHE_KVCACHE_H
#define TP_KVCACHE_KVCACHE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/codes.h"
#include "base/error.h"
#include "tileproof_cache.h"

enum { TP__KV_SLOT_BITS = 20, TP__KV_NAME = 64, TP__KV_DIM_MAX = 4096 };

/* Pools of a layer. */
enum { TP__KV_K = 0, TP__KV_V = 1, TP__KV_K_SCALES = 2, TP__KV_V_SCALES = 3, TP__KV_POOLS = 4 };

/* Pages of k, v or scales of one layer, in bytes. */
typedef struct tp__kv_pool {
    char *data; /* NULL: none is kept */
    int64_t heads, dim, dtype;
    int32_t scales, reserved; /* tp_scales of k's and v's codes */
    int64_t row, page, token, head; /* of a row, and from one to the next */
} tp__kv_pool;

typedef struct tp__kv_layer {
    tp_cache_layer is;
    tp__kv_pool pool[TP__KV_POOLS];
} tp__kv_layer;

typedef struct tp__kv_slot {
    atomic_int_fast64_t sequence; /* its number; 0: closed */
    int64_t generation;           /* sequences that it has had */
    int64_t length;               /* changes under the lock; its user may read it without */
    int64_t *filled;              /* [layers] tokens that a layer has */
    int32_t listed, copies;       /* within one call: named before; needs a copy of its last page */
} tp__kv_slot;

struct tp_cache {
    tp_cache_options options;
    tp_cache_capacity capacity;
    tp_allocator allocator;
    char name[TP__KV_NAME];
    pthread_mutex_t mutex, *lock;
    tp__kv_layer *layers;
    tp__kv_slot *slots;
    void *table, *lens; /* [sequences][page_slots], [sequences], of index_type */
    /* under the lock */
    int32_t *holders; /* [pages] slots whose table has the page; 0: free */
    uint64_t *taken;  /* a bit a page */
    int64_t *counts;  /* the three below, which functions on a const cache raise too */
    int64_t free_pages;
    /* without it: raised by whoever appends, read by anybody */
    double *losses;    /* [layers] the greatest of rows whose values are finite */
    int64_t *infinite; /* rows that had a value that is not */
    /* without it, as rows are */
    int64_t *positions; /* [pages][page_size] of tokens, the least that a layer was given; TP__KV_NOWHERE: not known */
};
#define TP__KV_NOWHERE ((int64_t)-1)
enum { TP__KV_OPEN = 0, TP__KV_COPIED = 1, TP__KV_REFUSALS = 2, TP__KV_COUNTS = 3 };

static inline int64_t tp__kv_pages(const tp_cache *cache, int64_t tokens) {
    return tokens / cache->options.page_size + (tokens % cache->options.page_size > 0);
}

static inline int64_t tp__kv_get(const tp_cache *cache, const void *array, int64_t at) {
    return cache->options.index_type == TP_I32 ? ((const int32_t *)array)[at] : ((const int64_t *)array)[at];
}

static inline void tp__kv_set(const tp_cache *cache, void *array, int64_t at, int64_t value) {
    if (cache->options.index_type == TP_I32)
        ((int32_t *)array)[at] = (int32_t)value;
    else
        ((int64_t *)array)[at] = value;
}

static inline int64_t tp__kv_page(const tp_cache *cache, const tp__kv_slot *slot, int64_t at) {
    return tp__kv_get(cache, cache->table, (slot - cache->slots) * cache->capacity.page_slots + at);
}

/* Head 0 of one token of a slot. */
static inline char *tp__kv_row(const tp_cache *cache, const tp__kv_slot *slot, const tp__kv_pool *pool, int64_t token) {
    int64_t size = cache->options.page_size;
    return pool->data + tp__kv_page(cache, slot, token / size) * pool->page + token % size * pool->token;
}

static inline int64_t *tp__kv_position(const tp_cache *cache, const tp__kv_slot *slot, int64_t token) {
    int64_t size = cache->options.page_size;
    return &cache->positions[tp__kv_page(cache, slot, token / size) * size + token % size];
}

/* The last position that is known in front of this token; 0: there is none. */
int64_t tp__kv_last_position(const tp_cache *cache, const tp__kv_slot *slot, int64_t token);

static inline double tp__kv_loss(const tp_cache *cache, int64_t layer) {
    double loss;
    __atomic_load(&cache->losses[layer], &loss, __ATOMIC_RELAXED);
    return loss;
}

static inline void tp__kv_raise_loss(const tp_cache *cache, int64_t layer, double loss) {
    double greatest = tp__kv_loss(cache, layer);
    while (loss > greatest &&
           !__atomic_compare_exchange(&cache->losses[layer], &greatest, &loss, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* NULL: not open. */
tp__kv_slot *tp__kv_find(const tp_cache *cache, int64_t sequence);
tp_status tp__kv_not_open(int64_t sequence, tp_error *error);
/* The cache is there, and the sequence open: its slot in *slot. */
tp_status tp__kv_use(const tp_cache *cache, int64_t sequence, tp__kv_slot **slot, tp_error *error);
/* The cache is there, and has the layer. */
tp_status tp__kv_layer_at(const tp_cache *cache, int64_t layer, const tp__kv_layer **is, tp_error *error);
/* Every layer that keeps rows has the first tokens of the slot. */
tp_status tp__kv_filled(const tp_cache *cache, const tp__kv_slot *slot, int64_t tokens, tp_error *error);

/* One of the free pages: the one behind `after`, if it is free; otherwise where `more` pages may follow. */
int64_t tp__kv_take_page(tp_cache *cache, int64_t after, int64_t more);
void tp__kv_drop_page(tp_cache *cache, int64_t page);

#endif
