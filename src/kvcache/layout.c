/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the options, how much fits, and the block of memory. */
#include "kvcache/kvcache.h"

#include <string.h>

#include "base/allocator.h"
#include "base/control.h"
#include "base/dtype.h"
#include "base/structs.h"
#include "quant/quant.h"

#include <math.h>

static tp_status check_range(const char *name, int64_t value, int64_t low, int64_t high, tp_error *error) {
    TP_REQUIRE(value >= low && value <= high, error, TP_INVALID, "%s is %lld: it must be in %lld..%lld", name, (long long)value,
               (long long)low, (long long)high);
    return TP_OK;
}

/* What k or v of a layer is kept as. */
static tp_status check_stored(int64_t layer, char part, int32_t dtype, int32_t scales, float scale, int64_t dim,
                              tp_error *error) {
    const char *name = tp_dtype_name((tp_dtype)dtype);
    int code = tp__is_code(dtype);
    TP_REQUIRE(tp__dtype_is_float(dtype) || code, error, TP_UNSUPPORTED,
               "layers[%lld].%c_dtype is %s: a cache keeps f32, f16 or bf16, and with scales i8, i4 or e4m3", (long long)layer,
               part, name);
    TP_REQUIRE(code ? tp__scales_fit(dtype, scales) : scales == TP_SCALES_NONE, error, TP_INVALID,
               "layers[%lld].%c_scales is %s (%d) with %s: its scales are %s", (long long)layer, part,
               tp_scales_name((tp_scales)scales), scales, name, tp__scales_for(dtype));
    TP_REQUIRE(scales == TP_SCALES_TENSOR ? scale > 0 && isfinite(scale) : scale == 0, error, TP_INVALID,
               "layers[%lld].%c_scale is %g with scales %s: it must be %s", (long long)layer, part, (double)scale,
               tp_scales_name((tp_scales)scales),
               scales == TP_SCALES_TENSOR ? "positive and finite; greatest |value| / 448 uses all of e4m3's range" : "0");
    TP_REQUIRE(dtype != TP_I4 || dim % 2 == 0, error, TP_INVALID,
               "layers[%lld].%c_dtype is i4 with head dim %lld: it must be even, because two elements share a byte",
               (long long)layer, part, (long long)dim);
    TP_REQUIRE(scales != TP_SCALES_Q8_0 || dim % TP__GROUP == 0, error, TP_INVALID,
               "layers[%lld].%c_scales is q8_0 with head dim %lld: it must be a multiple of %d, the elements of a block",
               (long long)layer, part, (long long)dim, TP__GROUP);
    return TP_OK;
}

static tp_status check_layer(const tp_cache_layer *layer, int64_t number, tp_error *error) {
    const struct {
        const char *name;
        int64_t value, low, high;
    } rules[] = {{"kv_heads", layer->kv_heads, 0, 65536},
                 {"head_dim_qk", layer->head_dim_qk, 1, TP__KV_DIM_MAX},
                 {"head_dim_v", layer->head_dim_v, 1, layer->latent == 1 ? layer->head_dim_qk : TP__KV_DIM_MAX},
                 {"latent", layer->latent, 0, 1},
                 {"reserved", layer->reserved, 0, 0}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        TP_REQUIRE(rules[i].value >= rules[i].low && rules[i].value <= rules[i].high, error, TP_INVALID,
                   "layers[%lld].%s is %lld: it must be in %lld..%lld", (long long)number, rules[i].name,
                   (long long)rules[i].value, (long long)rules[i].low, (long long)rules[i].high);
        if (layer->kv_heads == 0) return TP_OK; /* nothing else counts */
    }
    TP_TRY(check_stored(number, 'k', layer->k_dtype, layer->k_scales, layer->k_scale, layer->head_dim_qk, error));
    TP_TRY(check_stored(number, 'v', layer->v_dtype, layer->v_scales, layer->v_scale, layer->head_dim_v, error));
    TP_REQUIRE(!layer->latent || layer->k_dtype == layer->v_dtype, error, TP_INVALID,
               "layers[%lld].v_dtype is %s and k's %s: latent needs them equal, because v's rows are parts of k's",
               (long long)number, tp_dtype_name((tp_dtype)layer->v_dtype), tp_dtype_name((tp_dtype)layer->k_dtype));
    TP_REQUIRE(!layer->latent || (layer->k_scales == layer->v_scales && layer->k_scale == layer->v_scale), error, TP_INVALID,
               "layers[%lld].v_scales is %s (%g) and k's %s (%g): latent needs them equal, because v's rows are parts of k's",
               (long long)number, tp_scales_name((tp_scales)layer->v_scales), (double)layer->v_scale,
               tp_scales_name((tp_scales)layer->k_scales), (double)layer->k_scale);
    return TP_OK;
}

static tp_status check_name(const char *name, tp_error *error) {
    size_t size = name != NULL ? strnlen(name, TP__KV_NAME) : 1;
    TP_REQUIRE(size > 0 && size < TP__KV_NAME, error, TP_INVALID, "name has %zu characters: it must have 1..%d", size,
               TP__KV_NAME - 1);
    for (size_t i = 0; name != NULL && i < size; i++)
        TP_REQUIRE(name[i] >= 0x20 && name[i] < 0x7f, error, TP_INVALID,
                   "name has the byte %d at %zu: it must be printable ASCII", (unsigned char)name[i], i);
    return TP_OK;
}

static tp_status check_options(const tp_cache_options *o, tp_error *error) {
    TP__IN_DEFAULT_CONTROL;
    int kept = 0;
    TP_TRY(check_range("layout", o->layout, TP_CACHE_NHD, TP_CACHE_HND, error));
    TP_TRY(check_range("bytes", o->bytes, 1, INT64_MAX, error));
    TP_TRY(check_range("page_size", o->page_size, 1, 65536, error));
    TP_TRY(check_range("sequences", o->sequences, 1, (int64_t)1 << TP__KV_SLOT_BITS, error));
    TP_TRY(check_range("sequence_tokens", o->sequence_tokens, 1, INT32_MAX, error));
    TP_TRY(check_range("layer_count", o->layer_count, 1, 4096, error));
    TP_TRY(check_range("same", o->same, 0, 1, error));
    TP_TRY(check_range("index_type", o->index_type, TP_I32, TP_I64, error));
    TP_REQUIRE(o->layers != NULL, error, TP_INVALID, "layers is NULL: it must point to %s",
               o->same ? "the row of all layers" : "a row for each layer");
    for (int64_t i = 0; i < (o->same ? 1 : o->layer_count); i++) {
        TP_TRY(check_layer(&o->layers[i], i, error));
        kept |= o->layers[i].kv_heads > 0;
    }
    TP_REQUIRE(kept, error, TP_INVALID, "layers: kv_heads is 0 in all of them: at least one must keep rows");
    return check_name(o->name, error);
}

/* Where rows of one head lie, without the memory. */
static tp__kv_pool pool_of(const tp_cache_options *o, int64_t heads, int64_t dim, int32_t dtype, int32_t scales) {
    tp__kv_pool pool = {.heads = heads, .dim = dim, .dtype = dtype, .scales = scales};
    pool.row = tp__units_bytes(dtype, tp__row_units(scales, dim));
    pool.page = heads * pool.row * o->page_size; /* below 2^47 */
    pool.token = o->layout == TP_CACHE_NHD ? heads * pool.row : pool.row;
    pool.head = o->layout == TP_CACHE_NHD ? pool.row : pool.row * o->page_size;
    return pool;
}

static tp__kv_layer layer_of(const tp_cache_options *o, int64_t number) {
    tp__kv_layer layer = {.is = o->layers[o->same ? 0 : number]};
    if (layer.is.kv_heads == 0) return layer;
    const int64_t heads = layer.is.kv_heads, k_dim = layer.is.head_dim_qk, v_dim = layer.is.head_dim_v;
    const int32_t k = layer.is.k_scales, v = layer.is.v_scales;
    layer.pool[TP__KV_K] = pool_of(o, heads, k_dim, layer.is.k_dtype, k);
    if (tp__row_scales(k, k_dim) > 0)
        layer.pool[TP__KV_K_SCALES] = pool_of(o, heads, tp__row_scales(k, k_dim), tp__scale_dtype(k), TP_SCALES_NONE);
    if (layer.is.latent) return layer;
    layer.pool[TP__KV_V] = pool_of(o, heads, v_dim, layer.is.v_dtype, v);
    if (tp__row_scales(v, v_dim) > 0)
        layer.pool[TP__KV_V_SCALES] = pool_of(o, heads, tp__row_scales(v, v_dim), tp__scale_dtype(v), TP_SCALES_NONE);
    return layer;
}

/* The block: with a base NULL its size, otherwise the pointers too. What must begin as zeros comes before the pools. */
static tp_cache *lay_out(const tp_cache_options *o, tp__arena *arena, int64_t pages) {
    const int64_t slots = (o->sequence_tokens - 1) / o->page_size + 1;
    const size_t index = o->index_type == TP_I32 ? sizeof(int32_t) : sizeof(int64_t);
    tp_cache here, *cache = TP_TAKE(arena, tp_cache, 1);
    if (cache == NULL) cache = &here;
    cache->layers = TP_TAKE(arena, tp__kv_layer, o->layer_count);
    cache->slots = TP_TAKE(arena, tp__kv_slot, o->sequences);
    int64_t *filled = TP_TAKE(arena, int64_t, o->sequences * o->layer_count);
    cache->table = tp__take(arena, tp__times(o->sequences, slots), index);
    cache->lens = tp__take(arena, o->sequences, index);
    cache->holders = TP_TAKE(arena, int32_t, pages);
    cache->taken = TP_TAKE(arena, uint64_t, pages / 64 + 1);
    cache->counts = TP_TAKE(arena, int64_t, TP__KV_COUNTS);
    cache->losses = TP_TAKE(arena, double, o->layer_count);
    cache->infinite = TP_TAKE(arena, int64_t, 1);
    if (arena->base != NULL) {
        memset(cache->layers, 0, (size_t)(arena->base + arena->used - (char *)cache->layers));
        for (int64_t i = 0; i < o->sequences; i++) cache->slots[i].filled = filled + i * o->layer_count;
    }
    cache->positions = TP_TAKE(arena, int64_t, tp__times(pages, o->page_size)); /* tp_cache_extend sets them */
    for (int64_t i = 0; i < o->layer_count; i++) {
        tp__kv_layer layer = layer_of(o, i);
        for (int part = 0; part < TP__KV_POOLS; part++)
            if (layer.pool[part].heads > 0) layer.pool[part].data = tp__take(arena, pages, (size_t)layer.pool[part].page);
        if (arena->base != NULL) cache->layers[i] = layer;
    }
    return (tp_cache *)(void *)arena->base;
}

static size_t size_of(const tp_cache_options *o, int64_t pages) {
    tp__arena arena = {0};
    lay_out(o, &arena, pages);
    return arena.used;
}

static tp_status plan(const tp_cache_options *o, tp_cache_capacity *capacity, tp_error *error) {
    TP_TRY(check_options(o, error));
    *capacity = (tp_cache_capacity){.struct_size = sizeof *capacity};
    for (int64_t i = 0; i < o->layer_count; i++) {
        tp__kv_layer layer = layer_of(o, i);
        for (int part = 0; part < TP__KV_POOLS; part++) capacity->page_bytes += layer.pool[part].page; /* below 2^60 */
    }
    capacity->page_slots = (o->sequence_tokens - 1) / o->page_size + 1;
    /* more than all sequences can hold would lie idle */
    int64_t low = 0, high = tp__min(tp__times(o->sequences, capacity->page_slots), o->bytes / capacity->page_bytes);
    high = tp__min(high, o->index_type == TP_I32 ? INT32_MAX : (int64_t)1 << 40);
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (size_of(o, middle) <= (size_t)o->bytes)
            low = middle;
        else
            high = middle - 1;
    }
    TP_REQUIRE(low > 0, error, TP_INVALID,
               "bytes is %lld: one page of %lld tokens takes %lld bytes, and with the tables of %lld sequences of %lld tokens it "
               "must be at least %zu",
               (long long)o->bytes, (long long)o->page_size, (long long)capacity->page_bytes, (long long)o->sequences,
               (long long)o->sequence_tokens, size_of(o, 1));
    capacity->pages = low;
    capacity->tokens = low * o->page_size;
    capacity->token_bytes = capacity->page_bytes / o->page_size;
    capacity->bytes = (int64_t)size_of(o, low);
    return TP_OK;
}

tp_status tp_cache_plan_sized(const tp_cache_options *options, tp_cache_capacity *capacity, size_t size, tp_error *error) {
    tp_cache_capacity known;
    TP_STRUCT_IN(tp_cache_options, options, error);
    TP_REQUIRE(capacity != NULL, error, TP_INVALID, "capacity is NULL: it must point to a struct");
    TP_REQUIRE_SIZE(tp_cache_capacity, size, error);
    TP_TRY(plan(options, &known, error));
    tp__struct_out(capacity, size, &known, sizeof known);
    return TP_OK;
}

/* By the allocator, aligned as the arena needs it. */
static tp_status allocate(const tp_allocator *allocator, const tp_cache_capacity *capacity, void **memory, tp_error *error) {
    *memory = allocator->allocate(allocator->user, (size_t)capacity->bytes, TP__ALIGN);
    TP_REQUIRE(*memory != NULL, error, TP_NO_MEMORY, "no memory for a cache of %lld pages, %lld bytes",
               (long long)capacity->pages, (long long)capacity->bytes);
    if (allocator->allocate == tp__default_allocator.allocate) tp__ask_huge_pages(*memory, (size_t)capacity->bytes);
    if ((uintptr_t)*memory % TP__ALIGN == 0) return TP_OK;
    void *crooked = *memory;
    allocator->release(allocator->user, crooked, (size_t)capacity->bytes);
    return tp__fail(error, TP_NO_MEMORY, "memory of the cache is at %p: it must be %d-byte aligned", crooked, TP__ALIGN);
}

tp_status tp_cache_create(const tp_cache_options *options, tp_cache **cache, tp_error *error) {
    tp_cache_capacity capacity;
    tp_allocator allocator = tp__default_allocator, given;
    void *memory;
    TP_REQUIRE(cache != NULL, error, TP_INVALID, "cache is NULL: it must point to a pointer");
    *cache = NULL;
    TP_STRUCT_IN(tp_cache_options, options, error);
    if (options->allocator != NULL) {
        const tp_allocator *own = TP_IN(tp_allocator, options->allocator, &given, error);
        if (own == NULL) return TP_INVALID;
        TP_TRY(tp__allocator_check(own, error));
        allocator = *own;
    }
    TP_TRY(plan(options, &capacity, error));
    TP_TRY(allocate(&allocator, &capacity, &memory, error));
    tp__arena arena = {.base = memory};
    tp_cache *made = lay_out(options, &arena, capacity.pages);
    made->options = *options;
    made->options.layers = NULL; /* the caller's */
    made->options.allocator = NULL;
    made->options.name = NULL;
    made->capacity = capacity;
    made->allocator = allocator;
    memset(made->name, 0, sizeof made->name);
    if (options->name != NULL) memcpy(made->name, options->name, strnlen(options->name, TP__KV_NAME - 1));
    made->free_pages = capacity.pages;
    memset(made->table, 0xff, (size_t)((char *)made->lens - (char *)made->table)); /* -1: no page */
    made->lock = &made->mutex;
    if (pthread_mutex_init(made->lock, NULL) != 0) {
        allocator.release(allocator.user, memory, (size_t)capacity.bytes);
        return tp__fail(error, TP_NO_MEMORY, "no memory for the lock of a cache");
    }
    *cache = made;
    return TP_OK;
}

void tp_cache_destroy(tp_cache *cache) {
    if (cache == NULL) return;
    tp_allocator allocator = cache->allocator;
    size_t bytes = (size_t)cache->capacity.bytes;
    pthread_mutex_destroy(cache->lock);
    allocator.release(allocator.user, cache, bytes);
}
