/* SPDX-License-Identifier: Apache-2.0 */
/* What attention needs of a cache: the problem's bounds, pools and strides, tables and lengths. */
#include "kvcache/kvcache.h"

#include <string.h>

#include "base/structs.h"

tp_status tp_cache_problem(const tp_cache *cache, int64_t layer, tp_problem *problem, tp_error *error) {
    const tp__kv_layer *is = NULL;
    tp_problem here;
    TP_TRY(tp__kv_layer_at(cache, layer, &is, error));
    if (TP_IN(tp_problem, problem, &here, error) == NULL) return TP_INVALID;
    const int quantised = is->is.k_scales != 0 || is->is.v_scales != 0;
    TP_REQUIRE(!quantised || TP_HAS(problem, v_scales), error, TP_INVALID,
               "tp_problem.struct_size is %u: layer %lld is quantised, which takes a tp_problem with k_scales and v_scales",
               problem->struct_size, (long long)layer);
    problem->batch = cache->options.sequences;
    problem->kv_len = cache->options.sequence_tokens;
    problem->kv_heads = is->is.kv_heads;
    problem->head_dim_qk = is->is.head_dim_qk;
    problem->head_dim_v = is->is.head_dim_v;
    problem->k_dtype = is->is.k_dtype;
    problem->v_dtype = is->is.v_dtype;
    problem->latent = is->is.latent;
    if (quantised || TP_HAS(problem, v_scales)) problem->k_scales = is->is.k_scales, problem->v_scales = is->is.v_scales;
    problem->kv_layout = TP_PAGED;
    problem->page_size = cache->options.page_size;
    return TP_OK;
}

/* Strides in elements; of q8_0 in bytes. */
static tp_tensor tensor_of(const tp__kv_pool *pool) {
    const int64_t units = tp__row_units(pool->scales, pool->dim);
    if (pool->data == NULL) return (tp_tensor){0};
    return (tp_tensor){pool->data,
                       {pool->page / pool->row * units, pool->token / pool->row * units, pool->head / pool->row * units}};
}

/* Those of a whole layer are part of what it is. */
static tp_tensor scales_of(const tp__kv_pool *pool, int32_t scales, const float *one) {
    return scales == TP_SCALES_TENSOR ? (tp_tensor){(void *)(uintptr_t)one, {0, 0, 0}} : tensor_of(pool);
}

static tp_status check_slots(const tp_cache *cache, int64_t first, int64_t count, tp_error *error) {
    const int64_t all = cache->options.sequences;
    TP_REQUIRE(first >= 0 && count >= 0 && first <= all && count <= all - first, error, TP_INVALID,
               "first is %lld and count %lld: the cache has slots 0..%lld", (long long)first, (long long)count,
               (long long)all - 1);
    return TP_OK;
}

tp_status tp_cache_tensors(const tp_cache *cache, int64_t layer, int64_t first, int64_t count, tp_tensors *tensors,
                           tp_error *error) {
    const tp__kv_layer *is = NULL;
    tp_tensors here;
    TP_TRY(tp__kv_layer_at(cache, layer, &is, error));
    if (TP_IN(tp_tensors, tensors, &here, error) == NULL) return TP_INVALID;
    const int quantised = is->is.k_scales != 0 || is->is.v_scales != 0;
    TP_REQUIRE(!quantised || TP_HAS(tensors, v_scales), error, TP_INVALID,
               "tp_tensors.struct_size is %u: layer %lld is quantised, which takes tp_tensors with k_scales and v_scales",
               tensors->struct_size, (long long)layer);
    const int64_t index = cache->options.index_type == TP_I32 ? 4 : 8;
    TP_TRY(check_slots(cache, first, count, error));
    for (int64_t i = first; i < first + count; i++) {
        const tp__kv_slot *slot = &cache->slots[i];
        TP_REQUIRE(slot->filled[layer] == slot->length, error, TP_INVALID,
                   "layer %lld has %lld of the %lld tokens of sequence %lld, slot %lld: tp_cache_append the others first",
                   (long long)layer, (long long)slot->filled[layer], (long long)slot->length, (long long)slot->sequence,
                   (long long)i);
    }
    tensors->index_type = cache->options.index_type;
    tensors->batch = count;
    tensors->kv_len = cache->options.sequence_tokens;
    tensors->k = tensor_of(&is->pool[TP__KV_K]);
    tensors->v = tensor_of(&is->pool[is->is.latent ? TP__KV_K : TP__KV_V]);
    if (quantised || TP_HAS(tensors, v_scales)) {
        tensors->k_scales = scales_of(&is->pool[TP__KV_K_SCALES], is->is.k_scales, &is->is.k_scale);
        tensors->v_scales = is->is.latent ? tensors->k_scales
                                          : scales_of(&is->pool[TP__KV_V_SCALES], is->is.v_scales, &is->is.v_scale);
    }
    if (TP_HAS(tensors, kv_loss)) tensors->kv_loss = quantised ? &cache->losses[layer] : NULL;
    tensors->k_pages = (const char *)cache->table + first * cache->capacity.page_slots * index;
    tensors->v_pages = NULL;
    tensors->kv_lens = (const char *)cache->lens + first * index;
    tensors->page_slots = cache->capacity.page_slots;
    tensors->pages = cache->capacity.pages;
    return TP_OK;
}

static tp_status check_array(const char *name, const void *array, size_t align, int64_t count, tp_error *error) {
    TP_REQUIRE(array != NULL || count == 0, error, TP_INVALID, "%s is NULL with a count of %lld", name, (long long)count);
    TP_REQUIRE((uintptr_t)array % align == 0 || count == 0, error, TP_INVALID,
               "%s is %p: it must be aligned to its elements of %zu bytes", name, array, align);
    return TP_OK;
}

/* Keys that two slots have in common. Pages come to be shared from the first one on, and whoever writes in one gets another
   and new ones behind it: what two tables share is their beginning. */
static int64_t common_keys(const tp_cache *cache, const tp__kv_slot *a, const tp__kv_slot *b) {
    const int64_t tokens = tp__min(a->length, b->length);
    int64_t same = 0, end = tp__kv_pages(cache, tokens);
    while (same < end) {
        const int64_t middle = same + (end - same) / 2;
        if (tp__kv_page(cache, a, middle) == tp__kv_page(cache, b, middle))
            same = middle + 1;
        else
            end = middle;
    }
    return tp__min(same * cache->options.page_size, tokens);
}

static const tp__kv_slot *slot_of(const tp_cache *cache, int64_t first, const int64_t *sequences, int64_t i) {
    tp__kv_slot *slot = NULL;
    if (sequences == NULL) return &cache->slots[first + i];
    tp__kv_use(cache, sequences[i], &slot, NULL);
    return slot;
}

tp_status tp_cache_prefixes(const tp_cache *cache, int64_t first, int64_t count, const int64_t *sequences, void *shared_with,
                            void *shared_lens, tp_error *error) {
    tp__kv_slot *slot = NULL;
    TP_REQUIRE(cache != NULL, error, TP_INVALID, "cache is NULL");
    const size_t index = cache->options.index_type == TP_I32 ? sizeof(int32_t) : sizeof(int64_t);
    TP_REQUIRE(sequences == NULL || first == 0, error, TP_INVALID,
               "first is %lld with sequences: it is a slot, and must be 0 where sequences are named", (long long)first);
    if (sequences == NULL) TP_TRY(check_slots(cache, first, count, error));
    TP_REQUIRE(count >= 0, error, TP_INVALID, "count is %lld: it must not be negative", (long long)count);
    TP_TRY(check_array("shared_with", shared_with, index, count, error));
    TP_TRY(check_array("shared_lens", shared_lens, index, count, error));
    for (int64_t i = 0; sequences != NULL && i < count; i++) TP_TRY(tp__kv_use(cache, sequences[i], &slot, error));
    for (int64_t i = 0; i < count; i++) {
        int64_t with = -1, max = 0;
        const tp__kv_slot *own = slot_of(cache, first, sequences, i);
        for (int64_t j = 0; j < i; j++) {
            const int64_t keys = common_keys(cache, own, slot_of(cache, first, sequences, j));
            if (keys > max) with = j, max = keys;
        }
        tp__kv_set(cache, shared_with, i, with);
        tp__kv_set(cache, shared_lens, i, max);
    }
    return TP_OK;
}

tp_status tp_cache_gather(const tp_cache *cache, int64_t count, const int64_t *sequences, void *table, void *lens,
                          tp_error *error) {
    tp__kv_slot *slot = NULL;
    TP_REQUIRE(cache != NULL, error, TP_INVALID, "cache is NULL");
    TP_REQUIRE(count >= 0, error, TP_INVALID, "count is %lld: it must not be negative", (long long)count);
    const size_t index = cache->options.index_type == TP_I32 ? sizeof(int32_t) : sizeof(int64_t);
    TP_TRY(check_array("sequences", sequences, sizeof *sequences, count, error));
    TP_TRY(check_array("table", table, index, count, error));
    TP_TRY(check_array("lens", lens, index, count, error));
    for (int64_t i = 0; i < count; i++) TP_TRY(tp__kv_use(cache, sequences[i], &slot, error));
    const size_t row = (size_t)cache->capacity.page_slots * index;
    for (int64_t i = 0; i < count; i++) {
        tp__kv_use(cache, sequences[i], &slot, NULL);
        memcpy((char *)table + (size_t)i * row, (const char *)cache->table + (size_t)(slot - cache->slots) * row, row);
        tp__kv_set(cache, lens, i, slot->length);
    }
    return TP_OK;
}
