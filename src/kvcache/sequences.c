/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences: open, share, extend, truncate, close. Tables, lengths and holders of pages change here, under the lock. */
#include "kvcache/kvcache.h"

#include <string.h>

tp__kv_slot *tp__kv_find(const tp_cache *cache, int64_t sequence) {
    int64_t at = sequence & (((int64_t)1 << TP__KV_SLOT_BITS) - 1);
    if (sequence <= 0 || at >= cache->options.sequences || atomic_load(&cache->slots[at].sequence) != sequence) return NULL;
    return &cache->slots[at];
}

tp_status tp__kv_not_open(int64_t sequence, tp_error *error) {
    return tp__fail(error, TP_INVALID, "sequence %lld is not open: it was closed, or this cache has never given it",
                    (long long)sequence);
}

tp_status tp__kv_use(const tp_cache *cache, int64_t sequence, tp__kv_slot **slot, tp_error *error) {
    TP_REQUIRE(cache != NULL, error, TP_INVALID, "cache is NULL");
    *slot = tp__kv_find(cache, sequence);
    return *slot != NULL ? TP_OK : tp__kv_not_open(sequence, error);
}

tp_status tp__kv_filled(const tp_cache *cache, const tp__kv_slot *slot, int64_t tokens, tp_error *error) {
    for (int64_t i = 0; i < cache->options.layer_count; i++)
        TP_REQUIRE(slot->filled[i] >= tokens || cache->layers[i].is.kv_heads == 0, error, TP_INVALID,
                   "layer %lld has %lld of the first %lld tokens of sequence %lld: tp_cache_append the others first",
                   (long long)i, (long long)slot->filled[i], (long long)tokens, (long long)slot->sequence);
    return TP_OK;
}

static void set_page(tp_cache *cache, const tp__kv_slot *slot, int64_t at, int64_t page) {
    tp__kv_set(cache, cache->table, (slot - cache->slots) * cache->capacity.page_slots + at, page);
}

static void set_length(tp_cache *cache, tp__kv_slot *slot, int64_t length) {
    slot->length = length;
    tp__kv_set(cache, cache->lens, slot - cache->slots, length);
}

/* The lowest slot that is free. */
static tp_status take_slot(tp_cache *cache, tp__kv_slot **slot, int64_t *sequence, tp_error *error) {
    int64_t at = 0;
    while (at < cache->options.sequences && cache->slots[at].sequence != 0) at++;
    if (at == cache->options.sequences) {
        cache->counts[TP__KV_REFUSALS]++;
        return tp__fail(error, TP_CACHE_FULL, "all %lld sequences of the cache are open: close one, or make it for more",
                        (long long)at);
    }
    *slot = &cache->slots[at];
    *sequence = ++(*slot)->generation << TP__KV_SLOT_BITS | at;
    (*slot)->sequence = *sequence;
    cache->counts[TP__KV_OPEN]++;
    return TP_OK;
}

tp_status tp_cache_open(tp_cache *cache, int64_t *sequence, tp_error *error) {
    tp__kv_slot *slot;
    TP_REQUIRE(cache != NULL && sequence != NULL, error, TP_INVALID, "%s is NULL", cache == NULL ? "cache" : "sequence");
    pthread_mutex_lock(cache->lock);
    tp_status status = take_slot(cache, &slot, sequence, error);
    pthread_mutex_unlock(cache->lock);
    return status;
}

tp_status tp_cache_share(tp_cache *cache, int64_t from, int64_t tokens, int64_t *sequence, tp_error *error) {
    tp__kv_slot *old, *slot;
    TP_REQUIRE(sequence != NULL, error, TP_INVALID, "sequence is NULL");
    TP_TRY(tp__kv_use(cache, from, &old, error));
    TP_REQUIRE(tokens >= 0 && tokens <= old->length, error, TP_INVALID, "tokens is %lld: sequence %lld has %lld to share",
               (long long)tokens, (long long)from, (long long)old->length);
    TP_TRY(tp__kv_filled(cache, old, tokens, error));
    pthread_mutex_lock(cache->lock);
    tp_status status = take_slot(cache, &slot, sequence, error);
    for (int64_t i = 0; status == TP_OK && i < tp__kv_pages(cache, tokens); i++) {
        int64_t page = tp__kv_page(cache, old, i);
        cache->holders[page]++;
        set_page(cache, slot, i, page);
    }
    if (status == TP_OK) set_length(cache, slot, tokens);
    pthread_mutex_unlock(cache->lock);
    if (status != TP_OK) return status;
    for (int64_t i = 0; i < cache->options.layer_count; i++) slot->filled[i] = tokens;
    return TP_OK;
}

tp_status tp_cache_fork(tp_cache *cache, int64_t from, int64_t *sequence, tp_error *error) {
    tp__kv_slot *old;
    TP_TRY(tp__kv_use(cache, from, &old, error));
    return tp_cache_share(cache, from, old->length, sequence, error);
}

/* The tokens that the slot has in this page, to its copy. */
static void copy_page(const tp_cache *cache, int64_t from, int64_t to, int64_t tokens) {
    const int64_t size = cache->options.page_size;
    memcpy(&cache->positions[to * size], &cache->positions[from * size], (size_t)tokens * sizeof *cache->positions);
    for (int64_t i = 0; i < cache->options.layer_count; i++)
        for (int part = 0; part < TP__KV_POOLS; part++) {
            const tp__kv_pool *pool = &cache->layers[i].pool[part];
            int64_t pieces = cache->options.layout == TP_CACHE_NHD ? 1 : pool->heads;
            for (int64_t h = 0; pool->data != NULL && h < pieces; h++)
                memcpy(pool->data + to * pool->page + h * pool->head, pool->data + from * pool->page + h * pool->head,
                       (size_t)(tokens * pool->token));
        }
}

/* One sequence of a step: its rules, and how many pages it needs. A shared last page is given up at once, so that the last of
   its holders needs no copy; give_up_nothing() takes that back. */
static tp_status list(tp_cache *cache, int64_t sequence, int64_t tokens, int64_t *need, tp_error *error) {
    const int64_t size = cache->options.page_size;
    tp__kv_slot *slot = tp__kv_find(cache, sequence);
    if (slot == NULL) return tp__kv_not_open(sequence, error);
    TP_REQUIRE(!slot->listed, error, TP_INVALID, "sequence %lld stands twice in the list: each may stand there once",
               (long long)sequence);
    TP_REQUIRE(tokens >= 0 && tokens <= cache->options.sequence_tokens - slot->length, error, TP_INVALID,
               "%lld more tokens for sequence %lld, which has %lld: a sequence of this cache has at most %lld, and tokens must "
               "not be negative",
               (long long)tokens, (long long)sequence, (long long)slot->length, (long long)cache->options.sequence_tokens);
    slot->listed = 1;
    *need += tp__kv_pages(cache, slot->length + tokens) - tp__kv_pages(cache, slot->length);
    if (tokens == 0 || slot->length % size == 0) return TP_OK;
    int32_t *holders = &cache->holders[tp__kv_page(cache, slot, slot->length / size)];
    if (*holders == 1) return TP_OK;
    --*holders;
    slot->copies = 1;
    ++*need;
    return TP_OK;
}

static void give_up_nothing(tp_cache *cache, const tp__kv_slot *slot) {
    if (slot->copies) cache->holders[tp__kv_page(cache, slot, slot->length / cache->options.page_size)]++;
}

static void grow(tp_cache *cache, tp__kv_slot *slot, int64_t tokens) {
    const int64_t size = cache->options.page_size, all = tp__kv_pages(cache, slot->length + tokens);
    int64_t at = tp__kv_pages(cache, slot->length) - slot->copies;
    int64_t last = at > 0 ? tp__kv_page(cache, slot, at - 1) : -1;
    int64_t shared = slot->copies ? tp__kv_page(cache, slot, at) : -1;
    for (; at < all; at++) {
        last = tp__kv_take_page(cache, last, all - at);
        set_page(cache, slot, at, last);
        if (shared >= 0) {
            copy_page(cache, shared, last, slot->length % size);
            cache->counts[TP__KV_COPIED]++;
            shared = -1;
        }
    }
    for (int64_t n = 0; n < tokens; n++) *tp__kv_position(cache, slot, slot->length + n) = TP__KV_NOWHERE;
    set_length(cache, slot, slot->length + tokens);
}

static tp_status extend(tp_cache *cache, int64_t count, const int64_t *sequences, const int64_t *tokens, tp_error *error) {
    tp_status status = TP_OK;
    int64_t listed = 0, need = 0;
    for (; listed < count && status == TP_OK; listed++) status = list(cache, sequences[listed], tokens[listed], &need, error);
    if (status != TP_OK) listed--; /* that one was not */
    if (status == TP_OK && need > cache->free_pages) {
        cache->counts[TP__KV_REFUSALS]++;
        status = tp__fail(error, TP_CACHE_FULL,
                          "the cache is full: %lld sequences need %lld more pages of %lld tokens, and of %lld pages %lld are "
                          "free: close, truncate or copy out others first",
                          (long long)count, (long long)need, (long long)cache->options.page_size,
                          (long long)cache->capacity.pages, (long long)cache->free_pages);
    }
    for (int64_t i = 0; i < listed; i++) {
        tp__kv_slot *slot = tp__kv_find(cache, sequences[i]);
        if (status == TP_OK)
            grow(cache, slot, tokens[i]);
        else
            give_up_nothing(cache, slot);
        slot->listed = slot->copies = 0;
    }
    return status;
}

tp_status tp_cache_extend(tp_cache *cache, int64_t count, const int64_t *sequences, const int64_t *tokens, tp_error *error) {
    TP_REQUIRE(cache != NULL, error, TP_INVALID, "cache is NULL");
    TP_REQUIRE(count >= 0, error, TP_INVALID, "count is %lld: it must not be negative", (long long)count);
    TP_REQUIRE(count == 0 || (sequences != NULL && tokens != NULL), error, TP_INVALID, "%s is NULL with a count of %lld",
               sequences == NULL ? "sequences" : "tokens", (long long)count);
    pthread_mutex_lock(cache->lock);
    tp_status status = extend(cache, count, sequences, tokens, error);
    pthread_mutex_unlock(cache->lock);
    return status;
}

static void cut(tp_cache *cache, tp__kv_slot *slot, int64_t tokens) {
    for (int64_t i = tp__kv_pages(cache, tokens); i < tp__kv_pages(cache, slot->length); i++) {
        tp__kv_drop_page(cache, tp__kv_page(cache, slot, i));
        set_page(cache, slot, i, -1);
    }
    set_length(cache, slot, tokens);
    for (int64_t i = 0; i < cache->options.layer_count; i++) slot->filled[i] = tp__min(slot->filled[i], tokens);
}

tp_status tp_cache_truncate(tp_cache *cache, int64_t sequence, int64_t tokens, tp_error *error) {
    tp__kv_slot *slot;
    TP_TRY(tp__kv_use(cache, sequence, &slot, error));
    TP_REQUIRE(tokens >= 0 && tokens <= slot->length, error, TP_INVALID,
               "tokens is %lld: sequence %lld can be cut to 0..%lld tokens, tp_cache_extend makes it longer", (long long)tokens,
               (long long)sequence, (long long)slot->length);
    pthread_mutex_lock(cache->lock);
    cut(cache, slot, tokens);
    pthread_mutex_unlock(cache->lock);
    return TP_OK;
}

tp_status tp_cache_close(tp_cache *cache, int64_t sequence, tp_error *error) {
    tp__kv_slot *slot;
    TP_TRY(tp__kv_use(cache, sequence, &slot, error));
    pthread_mutex_lock(cache->lock);
    cut(cache, slot, 0);
    slot->sequence = 0;
    cache->counts[TP__KV_OPEN]--;
    pthread_mutex_unlock(cache->lock);
    return TP_OK;
}

int64_t tp_cache_length(const tp_cache *cache, int64_t sequence) {
    tp__kv_slot *slot = cache != NULL ? tp__kv_find(cache, sequence) : NULL;
    return slot != NULL ? slot->length : -1;
}

int64_t tp_cache_slot(const tp_cache *cache, int64_t sequence) {
    tp__kv_slot *slot = cache != NULL ? tp__kv_find(cache, sequence) : NULL;
    return slot != NULL ? slot - cache->slots : -1;
}

int64_t tp_cache_slots(const tp_cache *cache) {
    if (cache == NULL) return 0;
    pthread_mutex_lock(cache->lock);
    int64_t end = cache->options.sequences;
    while (end > 0 && cache->slots[end - 1].sequence == 0) end--;
    pthread_mutex_unlock(cache->lock);
    return end;
}
