/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens out of the cache and back: a head, a row for each layer, then for each layer its k, its v and their scales,
 * [token][head][dim], whatever the pages were like, then the tokens' positions, and the greatest loss of each layer. A buffer is
 * checked as if a stranger had made it. One of before these were kept begins with tpcache1 and ends with the rows.
 */
#include "kvcache/kvcache.h"

#include <math.h>
#include <string.h>

typedef struct head {
    char magic[8];
    int64_t layers, first, tokens, bytes; /* of the whole buffer */
} head;
static const char magic[8] = "tpcache2", magic_of_rows[8] = "tpcache1";

/* Bytes of this many tokens with everything before them: below 2^62, as the pool itself. */
static int64_t size_of_rows(const tp_cache *cache, int64_t tokens) {
    return (int64_t)sizeof(head) + cache->options.layer_count * (int64_t)sizeof(tp_cache_layer) +
           tokens * cache->capacity.token_bytes;
}

/* With what is behind them. */
static int64_t size_of(const tp_cache *cache, int64_t tokens) {
    return size_of_rows(cache, tokens) + tokens * (int64_t)sizeof(int64_t) + cache->options.layer_count * (int64_t)sizeof(double);
}

int64_t tp_cache_copy_bytes(const tp_cache *cache, int64_t sequence, int64_t first) {
    const tp__kv_slot *slot = cache != NULL ? tp__kv_find(cache, sequence) : NULL;
    return slot != NULL && first >= 0 && first <= slot->length ? size_of(cache, slot->length - first) : -1;
}

/* Rows between pages and a buffer. Returns what is behind them. */
static char *move(const tp_cache *cache, const tp__kv_slot *slot, int64_t first, char *buffer, int in) {
    for (int64_t i = 0; i < TP__KV_POOLS * cache->options.layer_count; i++) {
        const tp__kv_pool *pool = &cache->layers[i / TP__KV_POOLS].pool[i % TP__KV_POOLS];
        for (int64_t token = first; pool->data != NULL && token < slot->length; token++) {
            char *row = tp__kv_row(cache, slot, pool, token);
            for (int64_t h = 0; h < pool->heads; h++, row += pool->head, buffer += pool->row)
                memcpy(in ? row : buffer, in ? buffer : row, (size_t)pool->row);
        }
    }
    return buffer;
}

tp_status tp_cache_copy_out(const tp_cache *cache, int64_t sequence, int64_t first, void *buffer, int64_t bytes,
                            tp_error *error) {
    tp__kv_slot *slot;
    TP_TRY(tp__kv_use(cache, sequence, &slot, error));
    TP_REQUIRE(first >= 0 && first <= slot->length, error, TP_INVALID, "first is %lld: sequence %lld has %lld tokens",
               (long long)first, (long long)sequence, (long long)slot->length);
    TP_TRY(tp__kv_filled(cache, slot, slot->length, error));
    head h = {.layers = cache->options.layer_count, .first = first, .tokens = slot->length - first};
    h.bytes = size_of(cache, h.tokens);
    memcpy(h.magic, magic, sizeof magic);
    TP_REQUIRE(buffer != NULL && bytes >= h.bytes, error, TP_INVALID,
               "buffer is %p with %lld bytes: %lld tokens of sequence %lld need %lld (tp_cache_copy_bytes)", buffer,
               (long long)bytes, (long long)h.tokens, (long long)sequence, (long long)h.bytes);
    char *to = (char *)memcpy(buffer, &h, sizeof h) + sizeof h;
    for (int64_t i = 0; i < h.layers; i++, to += sizeof(tp_cache_layer)) memcpy(to, &cache->layers[i].is, sizeof(tp_cache_layer));
    to = move(cache, slot, first, to, 0);
    for (int64_t token = first; token < slot->length; token++, to += sizeof(int64_t))
        memcpy(to, tp__kv_position(cache, slot, token), sizeof(int64_t));
    for (int64_t i = 0; i < h.layers; i++, to += sizeof(double)) {
        const double loss = tp__kv_loss(cache, i);
        memcpy(to, &loss, sizeof loss);
    }
    return TP_OK;
}

/* The first position that is known must not lie in front of the sequence's last one. */
static tp_status check_positions(const tp_cache *cache, const tp__kv_slot *slot, const char *positions, const head *h,
                                 tp_error *error) {
    int64_t last = tp__kv_last_position(cache, slot, slot->length), position;
    for (int64_t i = 0; i < h->tokens; i++) {
        memcpy(&position, positions + i * (int64_t)sizeof position, sizeof position);
        if (position == TP__KV_NOWHERE) continue;
        TP_REQUIRE(position >= 0 && position < (int64_t)1 << 40, error, TP_INVALID,
                   "buffer's token %lld is at position %lld: it must be in 0..2^40-1, or -1 where it is not known",
                   (long long)(h->first + i), (long long)position);
        TP_REQUIRE(position >= last, error, TP_INVALID,
                   "buffer's token %lld is at position %lld, behind one at %lld: positions must not run backwards; copy it into "
                   "a sequence that begins as the one did that it came from",
                   (long long)(h->first + i), (long long)position, (long long)last);
        last = 0; /* the others are as they were */
    }
    return TP_OK;
}

static tp_status check_losses(const char *losses, const head *h, tp_error *error) {
    for (int64_t i = 0; i < h->layers; i++) {
        double loss;
        memcpy(&loss, losses + i * (int64_t)sizeof loss, sizeof loss);
        TP_REQUIRE(loss >= 0 && isfinite(loss), error, TP_INVALID,
                   "buffer's layer %lld has a loss of %g: it must be finite and not negative", (long long)i, loss);
    }
    return TP_OK;
}

/* What each layer keeps, which a buffer of other layers is told before anything else: all sizes follow from it. */
static tp_status check_layers(const tp_cache *cache, const char *buffer, int64_t bytes, const head *h, tp_error *error) {
    TP_REQUIRE(h->layers == cache->options.layer_count, error, TP_INVALID, "buffer has %lld layers, and the cache %lld",
               (long long)h->layers, (long long)cache->options.layer_count);
    TP_REQUIRE(bytes >= size_of_rows(cache, 0), error, TP_INVALID,
               "buffer has %lld bytes: what its %lld layers keep is said in the first %lld", (long long)bytes,
               (long long)h->layers, (long long)size_of_rows(cache, 0));
    for (int64_t i = 0; i < h->layers; i++) {
        tp_cache_layer theirs, *ours = &cache->layers[i].is;
        memcpy(&theirs, buffer + sizeof *h + (size_t)i * sizeof theirs, sizeof theirs);
        TP_REQUIRE(memcmp(&theirs, ours, sizeof theirs) == 0, error, TP_INVALID,
                   "buffer's layer %lld keeps %lld heads of %lld and %lld in %s and %s (scales %s and %s), the cache's %lld of "
                   "%lld and %lld in %s and %s (scales %s and %s): they must be the same",
                   (long long)i, (long long)theirs.kv_heads, (long long)theirs.head_dim_qk, (long long)theirs.head_dim_v,
                   tp_dtype_name((tp_dtype)theirs.k_dtype), tp_dtype_name((tp_dtype)theirs.v_dtype),
                   tp_scales_name((tp_scales)theirs.k_scales), tp_scales_name((tp_scales)theirs.v_scales),
                   (long long)ours->kv_heads, (long long)ours->head_dim_qk, (long long)ours->head_dim_v,
                   tp_dtype_name((tp_dtype)ours->k_dtype), tp_dtype_name((tp_dtype)ours->v_dtype),
                   tp_scales_name((tp_scales)ours->k_scales), tp_scales_name((tp_scales)ours->v_scales));
    }
    return TP_OK;
}

static tp_status check_buffer(const tp_cache *cache, const tp__kv_slot *slot, const char *buffer, int64_t bytes, head *h,
                              tp_error *error) {
    TP_REQUIRE(buffer != NULL && bytes >= (int64_t)sizeof *h, error, TP_INVALID,
               "buffer is %p with %lld bytes: it must be one that tp_cache_copy_out wrote", (const void *)buffer,
               (long long)bytes);
    memcpy(h, buffer, sizeof *h);
    const int rows_alone = memcmp(h->magic, magic_of_rows, sizeof magic) == 0;
    TP_REQUIRE(rows_alone || memcmp(h->magic, magic, sizeof magic) == 0, error, TP_INVALID,
               "buffer does not begin with %.8s: it must be one that tp_cache_copy_out wrote", magic);
    TP_TRY(check_layers(cache, buffer, bytes, h, error));
    TP_REQUIRE(h->first == slot->length, error, TP_INVALID,
               "buffer begins with token %lld: the sequence must have as many tokens, and has %lld", (long long)h->first,
               (long long)slot->length);
    TP_REQUIRE(h->tokens >= 0 && h->tokens <= cache->options.sequence_tokens - slot->length, error, TP_INVALID,
               "buffer has %lld tokens from token %lld on: a sequence of this cache has at most %lld", (long long)h->tokens,
               (long long)h->first, (long long)cache->options.sequence_tokens);
    const int64_t needed = rows_alone ? size_of_rows(cache, h->tokens) : size_of(cache, h->tokens);
    TP_REQUIRE(h->bytes == needed && bytes >= needed, error, TP_INVALID,
               "buffer has %lld bytes and says %lld: %lld tokens of this cache are %lld", (long long)bytes, (long long)h->bytes,
               (long long)h->tokens, (long long)needed);
    if (rows_alone) return TP_OK;
    const char *positions = buffer + size_of_rows(cache, h->tokens);
    TP_TRY(check_positions(cache, slot, positions, h, error));
    return check_losses(positions + h->tokens * (int64_t)sizeof(int64_t), h, error);
}

tp_status tp_cache_copy_in(tp_cache *cache, int64_t sequence, const void *buffer, int64_t bytes, tp_error *error) {
    tp__kv_slot *slot;
    head h;
    TP_TRY(tp__kv_use(cache, sequence, &slot, error));
    TP_TRY(tp__kv_filled(cache, slot, slot->length, error));
    TP_TRY(check_buffer(cache, slot, buffer, bytes, &h, error));
    TP_TRY(tp_cache_extend(cache, 1, &sequence, &h.tokens, error));
    char *rows = (char *)(uintptr_t)buffer + sizeof h + (size_t)h.layers * sizeof(tp_cache_layer);
    const char *from = move(cache, slot, h.first, rows, 1);
    for (int64_t i = 0; i < h.layers; i++) slot->filled[i] = slot->length;
    if (from == (const char *)buffer + h.bytes) return TP_OK; /* of before these were kept */
    for (int64_t token = h.first; token < slot->length; token++, from += sizeof(int64_t))
        memcpy(tp__kv_position(cache, slot, token), from, sizeof(int64_t));
    for (int64_t i = 0; i < h.layers; i++, from += sizeof(double)) {
        double loss;
        memcpy(&loss, from, sizeof loss);
        tp__kv_raise_loss(cache, i, loss);
    }
    return TP_OK;
}
