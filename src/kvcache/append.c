/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of one layer, from the caller's packed tensors to the tokens that the layer lacks; normed and rotated on the way. */
#include "kvcache/rotate.h"

#include <float.h>
#include <string.h>

#include "base/control.h"
#include "base/floats.h"
#include "base/structs.h"
#include "quant/quant.h"

tp_status tp__kv_layer_at(const tp_cache *cache, int64_t layer, const tp__kv_layer **is, tp_error *error) {
    TP_REQUIRE(cache != NULL, error, TP_INVALID, "cache is NULL");
    TP_REQUIRE(layer >= 0 && layer < cache->options.layer_count, error, TP_INVALID, "layer is %lld: the cache has layers 0..%lld",
               (long long)layer, (long long)cache->options.layer_count - 1);
    *is = &cache->layers[layer];
    TP_REQUIRE((*is)->is.kv_heads > 0, error, TP_INVALID, "layer %lld keeps nothing: its kv_heads is 0", (long long)layer);
    return TP_OK;
}

tp_status tp__kv_check_tensor(const char *name, const tp_tensor *tensor, int32_t dtype, tp_error *error) {
    size_t element = tp_dtype_bytes((tp_dtype)dtype);
    TP_REQUIRE(tensor->data != NULL, error, TP_INVALID, "%s.data is NULL with rows to append", name);
    TP_REQUIRE((uintptr_t)tensor->data % element == 0, error, TP_INVALID,
               "%s.data is %p: it must be aligned to its elements of %zu bytes", name, tensor->data, element);
    for (int i = 1; i < 3; i++)
        TP_REQUIRE(tensor->stride[i] >= 0 && tensor->stride[i] <= (int64_t)1 << 40, error, TP_INVALID,
                   "%s.stride[%d] is %lld: it must be in 0..2^40 elements", name, i, (long long)tensor->stride[i]);
    return TP_OK;
}

/* One sequence of the list; *all grows by its rows. */
static tp_status list(const tp_cache *cache, int64_t layer, int64_t sequence, int64_t tokens, int64_t *all, tp_error *error) {
    tp__kv_slot *slot = tp__kv_find(cache, sequence);
    if (slot == NULL) return tp__kv_not_open(sequence, error);
    TP_REQUIRE(!slot->listed, error, TP_INVALID, "sequence %lld stands twice in the list: each may stand there once",
               (long long)sequence);
    int64_t lacks = slot->length - slot->filled[layer];
    TP_REQUIRE(tokens >= 0 && tokens <= lacks, error, TP_INVALID,
               "%lld rows for sequence %lld: layer %lld has %lld of its %lld tokens, so 0..%lld can be appended; "
               "tp_cache_extend makes room for more",
               (long long)tokens, (long long)sequence, (long long)layer, (long long)slot->filled[layer], (long long)slot->length,
               (long long)lacks);
    slot->listed = 1;
    *all += tokens;
    return TP_OK;
}

/* Every rule, before anything is written. */
static tp_status check(const tp_cache *cache, int64_t layer, const tp_cache_rows *rows, int64_t *all, tp_error *error) {
    const tp__kv_layer *is = NULL;
    tp_status status = TP_OK;
    int64_t listed = 0;
    *all = 0;
    TP_TRY(tp__kv_layer_at(cache, layer, &is, error));
    TP_REQUIRE(tp__dtype_is_float(rows->dtype), error, TP_INVALID, "rows.dtype is %s: it must be f32, f16 or bf16",
               tp_dtype_name((tp_dtype)rows->dtype));
    TP_REQUIRE(rows->count >= 0, error, TP_INVALID, "rows.count is %lld: it must not be negative", (long long)rows->count);
    TP_REQUIRE(rows->count == 0 || (rows->sequences != NULL && rows->tokens != NULL), error, TP_INVALID,
               "rows.%s is NULL with a count of %lld", rows->sequences == NULL ? "sequences" : "tokens", (long long)rows->count);
    TP_REQUIRE(!is->is.latent || rows->v.data == NULL, error, TP_INVALID,
               "rows.v.data is %p: layer %lld is latent, and keeps k alone", rows->v.data, (long long)layer);
    for (; listed < rows->count && status == TP_OK; listed++)
        status = list(cache, layer, rows->sequences[listed], rows->tokens[listed], all, error);
    if (status != TP_OK) listed--; /* that one was not */
    for (int64_t i = 0; i < listed; i++) tp__kv_find(cache, rows->sequences[i])->listed = 0;
    TP_TRY(status);
    if (*all > 0) TP_TRY(tp__kv_check_tensor("rows.k", &rows->k, rows->dtype, error));
    if (*all > 0 && !is->is.latent) TP_TRY(tp__kv_check_tensor("rows.v", &rows->v, rows->dtype, error));
    return tp__kv_check_rotation(cache, layer, rows, *all, error);
}

/* Where one row of all heads comes from, what happens to it on the way, and the shape of where it goes. */
typedef struct way {
    const tp_tensor *from;
    const tp_rotary *rotary; /* NULL: not rotated */
    const float *norm;       /* NULL: none */
    tp__kv_pool to;
    tp__kv_pool scales;      /* of codes that have some beside them */
    float scale;             /* of TP_SCALES_TENSOR */
} way;

/* What codes lose: tp__quantise_row. */
typedef struct lost {
    double greatest;  /* of rows whose values are finite */
    int64_t infinite; /* rows whose values are not */
} lost;

/* All heads of one token; `to` may be where they come from. */
static lost put_token(const way *w, const tp_cache_rows *rows, int64_t row, const tp__kv_rotation *rotation, char *to,
                      char *scales) {
    const int64_t element = (int64_t)tp_dtype_bytes((tp_dtype)rows->dtype);
    const int as_it_is = rows->dtype == w->to.dtype && w->rotary == NULL && w->norm == NULL;
    float floats[TP__KV_DIM_MAX];
    lost sum = {0, 0};
    double loss = 0;
    for (int64_t h = 0; h < w->to.heads; h++, to += w->to.head, scales += w->scales.head) {
        const char *from = (const char *)w->from->data + (row * w->from->stride[1] + h * w->from->stride[2]) * element;
        if (as_it_is) {
            memcpy(to, from, (size_t)w->to.row);
            continue;
        }
        tp__to_floats(rows->dtype, from, w->to.dim, floats);
        tp__rope_norm(w->norm, rows->norm_eps, rows->norm_one_plus, 1, w->to.dim, floats);
        if (w->rotary != NULL) tp__rope_turn(w->rotary, rotation->cosines, rotation->sines, 1, floats);
        if (w->to.scales == TP_SCALES_NONE) {
            tp__from_floats((int32_t)w->to.dtype, floats, w->to.dim, to);
            continue;
        }
        tp__quantise_row((tp_dtype)w->to.dtype, (tp_scales)w->to.scales, w->to.dim, floats, w->scale, to, scales, &loss);
        if (loss > DBL_MAX)
            sum.infinite++;
        else
            sum.greatest = loss > sum.greatest ? loss : sum.greatest;
    }
    return sum;
}

/* The token of a slot; what it lost is noted. */
static void keep_token(const tp_cache *cache, int64_t layer, const tp__kv_slot *slot, const way *w, const tp_cache_rows *rows,
                       int64_t row, const tp__kv_rotation *rotation, int64_t token) {
    char *scales = w->scales.data != NULL ? tp__kv_row(cache, slot, &w->scales, token) : NULL;
    const lost sum = put_token(w, rows, row, rotation, tp__kv_row(cache, slot, &w->to, token), scales);
    tp__kv_raise_loss(cache, layer, sum.greatest);
    if (sum.infinite > 0) __atomic_fetch_add(cache->infinite, sum.infinite, __ATOMIC_RELAXED);
}

/* Of several layers' positions the least is kept, so that none of them is held against more than it was given. */
static void place(const tp_cache *cache, const tp__kv_slot *slot, int64_t token, int64_t position) {
    int64_t *kept = tp__kv_position(cache, slot, token);
    if (position != TP__KV_NOWHERE && (*kept == TP__KV_NOWHERE || position < *kept)) *kept = position;
}

/* q goes to where it comes from. */
static way way_of_q(const tp_cache_rows *rows, int64_t dim) {
    const int64_t element = (int64_t)tp_dtype_bytes((tp_dtype)rows->dtype);
    way w = {&rows->q, rows->rotary, rows->q_norm, {.heads = rows->q_heads, .dim = dim, .dtype = rows->dtype}, {0}, 0};
    w.to.token = rows->q.stride[1] * element;
    w.to.head = rows->q.stride[2] * element;
    return w;
}

static void append(const tp_cache *cache, int64_t layer, const tp_cache_rows *rows, int64_t all) {
    const tp__kv_layer *is = &cache->layers[layer];
    const way k = {&rows->k, rows->rotary, rows->k_norm, is->pool[TP__KV_K], is->pool[TP__KV_K_SCALES], is->is.k_scale};
    const way v = {&rows->v, NULL, NULL, is->pool[TP__KV_V], is->pool[TP__KV_V_SCALES], is->is.v_scale};
    const way q = way_of_q(rows, is->is.head_dim_qk);
    const int rotates_q = rows->q.data != NULL && (rows->rotary != NULL || rows->q_norm != NULL);
    tp__kv_rotation rotation;
    for (int64_t i = 0, row = 0; i < rows->count; i++) {
        tp__kv_slot *slot = tp__kv_find(cache, rows->sequences[i]);
        int64_t length = 0;
        if (rows->rotary != NULL && rows->cosines == NULL)
            length = tp__kv_current_length(rows, all, row, slot->filled[layer], rows->tokens[i]);
        for (int64_t n = 0; n < rows->tokens[i]; n++, row++) {
            int64_t token = slot->filled[layer]++;
            if (rows->rotary != NULL) place(cache, slot, token, tp__kv_angles(&rotation, rows, all, row, token, length));
            keep_token(cache, layer, slot, &k, rows, row, &rotation, token);
            if (v.to.data != NULL) keep_token(cache, layer, slot, &v, rows, row, &rotation, token);
            if (rotates_q) put_token(&q, rows, row, &rotation, (char *)rows->q.data + row * q.to.token, NULL);
        }
    }
}

tp_status tp_cache_append(tp_cache *cache, int64_t layer, const tp_cache_rows *rows, tp_error *error) {
    TP__IN_DEFAULT_CONTROL;
    int64_t all = 0;
    TP_STRUCT_IN(tp_cache_rows, rows, error);
    TP_TRY(check(cache, layer, rows, &all, error));
    append(cache, layer, rows, all);
    return TP_OK;
}
