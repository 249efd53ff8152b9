/* SPDX-License-Identifier: Apache-2.0 */
/* What an append does to q and k on the way: norm and rotation. Its rules, and the angles of a token. */
#include "kvcache/rotate.h"

#include <math.h>

#include "base/dtype.h"
#include "problem/overlap.h"

static int axes_of(const tp_rotary *rotary) {
    const int32_t *sections = rotary->options.sections;
    return sections[0] + sections[1] + sections[2] == 0 ? 1 : 3;
}

/* Of row `row` of all, the token `token` of its sequence; without sections all three are the same. */
static void position_of(const tp_cache_rows *rows, int64_t all, int64_t row, int64_t token, int64_t position[3]) {
    int64_t step = axes_of(rows->rotary) == 3 ? all : 0;
    for (int i = 0; i < 3; i++) position[i] = rows->positions != NULL ? rows->positions[i * step + row] : token;
}

int64_t tp__kv_last_position(const tp_cache *cache, const tp__kv_slot *slot, int64_t token) {
    while (token > 0) {
        int64_t position = *tp__kv_position(cache, slot, --token);
        if (position != TP__KV_NOWHERE) return position;
    }
    return 0;
}

/* The rows of one sequence begin at `row` of all. */
static tp_status check_positions(const tp_cache *cache, const tp__kv_slot *slot, int64_t layer, const tp_cache_rows *rows,
                                 int64_t all, int64_t row, int64_t tokens, tp_error *error) {
    int64_t token = slot->filled[layer], last = tokens > 0 ? tp__kv_last_position(cache, slot, token) : 0;
    for (int64_t n = 0; n < tokens; n++) {
        int64_t position[3];
        position_of(rows, all, row + n, token + n, position);
        TP_TRY(tp__rope_check_position(rows->rotary, position, error));
        TP_REQUIRE(position[0] >= last, error, TP_INVALID,
                   "token %lld of sequence %lld is at position %lld, behind one at %lld: positions must not run backwards; "
                   "tp_cache_truncate takes tokens back",
                   (long long)(token + n), (long long)slot->sequence, (long long)position[0], (long long)last);
        last = position[0];
        for (int i = 0; i < 3; i++)
            TP_REQUIRE(rows->length == 0 || rows->length > position[i], error, TP_INVALID,
                       "rows.length is %lld and a position %lld: the current length must be above every position, or 0",
                       (long long)rows->length, (long long)position[i]);
    }
    return TP_OK;
}

static tp_status check_rotary(const tp_cache *cache, int64_t layer, const tp_cache_rows *rows, int64_t all, tp_error *error) {
    int64_t dim = cache->layers[layer].is.head_dim_qk, row = 0;
    TP_REQUIRE(rows->rotary->options.head_dim == dim, error, TP_INVALID,
               "rows.rotary is for a head_dim of %lld: layer %lld has a head_dim_qk of %lld",
               (long long)rows->rotary->options.head_dim, (long long)layer, (long long)dim);
    TP_REQUIRE(rows->length >= 0, error, TP_INVALID, "rows.length is %lld: it must not be negative", (long long)rows->length);
    TP_REQUIRE((rows->cosines == NULL) == (rows->sines == NULL), error, TP_INVALID,
               "rows.%s is NULL beside the other: both must be given, or neither", rows->cosines == NULL ? "cosines" : "sines");
    TP_REQUIRE(rows->cosines == NULL || rows->positions == NULL, error, TP_INVALID,
               "rows.positions are given beside cosines and sines: one of them must go");
    for (int64_t i = 0; i < rows->count && rows->cosines == NULL; row += rows->tokens[i++])
        TP_TRY(check_positions(cache, tp__kv_find(cache, rows->sequences[i]), layer, rows, all, row, rows->tokens[i], error));
    return TP_OK;
}

/* q is written: its rows are apart from one another, and from everything that is read. */
static tp_status check_q(const tp__kv_layer *is, const tp_cache_rows *rows, int64_t all, tp_error *error) {
    const int64_t q[3] = {1, all, rows->q_heads}, kv[3] = {1, all, is->is.kv_heads};
    tp__region out, in[2];
    TP_REQUIRE(rows->q_heads >= 1 && rows->q_heads <= 65536, error, TP_INVALID, "rows.q_heads is %lld: it must be in 1..65536",
               (long long)rows->q_heads);
    TP_TRY(tp__kv_check_tensor("rows.q", &rows->q, rows->dtype, error));
    TP_TRY(tp__region_tensor(&out, "rows.q", &rows->q, q, is->is.head_dim_qk, (tp_dtype)rows->dtype, error));
    TP_TRY(tp__region_check_output(&out, error));
    TP_TRY(tp__region_tensor(&in[0], "rows.k", &rows->k, kv, is->is.head_dim_qk, (tp_dtype)rows->dtype, error));
    TP_TRY(tp__region_check_disjoint(&out, &in[0], error));
    if (is->is.latent) return TP_OK;
    TP_TRY(tp__region_tensor(&in[1], "rows.v", &rows->v, kv, is->is.head_dim_v, (tp_dtype)rows->dtype, error));
    return tp__region_check_disjoint(&out, &in[1], error);
}

tp_status tp__kv_check_rotation(const tp_cache *cache, int64_t layer, const tp_cache_rows *rows, int64_t all, tp_error *error) {
    const struct {
        const char *name;
        const void *data;
        size_t align;
    } arrays[] = {{"positions", rows->positions, sizeof(int64_t)},
                  {"cosines", rows->cosines, sizeof(float)},
                  {"sines", rows->sines, sizeof(float)},
                  {"q_norm", rows->q_norm, sizeof(float)},
                  {"k_norm", rows->k_norm, sizeof(float)}};
    for (int i = 0; i < 5; i++) {
        TP_REQUIRE((uintptr_t)arrays[i].data % arrays[i].align == 0, error, TP_INVALID,
                   "rows.%s is %p: it must be aligned to its elements of %zu bytes", arrays[i].name, arrays[i].data,
                   arrays[i].align);
        TP_REQUIRE(i > 2 || rows->rotary != NULL || arrays[i].data == NULL, error, TP_INVALID,
                   "rows.%s are given without a rotary: tp_rope_create makes one", arrays[i].name);
    }
    if (rows->q_norm != NULL || rows->k_norm != NULL) {
        TP_REQUIRE(isfinite(rows->norm_eps) && rows->norm_eps >= 0, error, TP_INVALID,
                   "rows.norm_eps is %g: it must be finite and not negative", rows->norm_eps);
        TP_REQUIRE(rows->norm_one_plus == 0 || rows->norm_one_plus == 1, error, TP_INVALID,
                   "rows.norm_one_plus is %d: it must be 0 or 1", rows->norm_one_plus);
    }
    TP_REQUIRE(rows->q_norm == NULL || rows->q.data != NULL, error, TP_INVALID, "rows.q.data is NULL beside q_norm");
    if (rows->rotary != NULL) TP_TRY(check_rotary(cache, layer, rows, all, error));
    return rows->q.data != NULL && all > 0 ? check_q(&cache->layers[layer], rows, all, error) : TP_OK;
}

int64_t tp__kv_current_length(const tp_cache_rows *rows, int64_t all, int64_t row, int64_t token, int64_t tokens) {
    int64_t greatest = rows->length - 1;
    for (int64_t n = 0; rows->length == 0 && n < tokens; n++) {
        int64_t position[3];
        position_of(rows, all, row + n, token + n, position);
        for (int i = 0; i < 3; i++) greatest = tp__max(greatest, position[i]);
    }
    return greatest + 1;
}

int64_t tp__kv_angles(tp__kv_rotation *rotation, const tp_cache_rows *rows, int64_t all, int64_t row, int64_t token,
                      int64_t length) {
    int64_t position[3];
    if (rows->cosines != NULL) {
        rotation->cosines = rows->cosines + row * rows->rotary->pairs;
        rotation->sines = rows->sines + row * rows->rotary->pairs;
        return TP__KV_NOWHERE;
    }
    position_of(rows, all, row, token, position);
    tp__rope_angles(rows->rotary, length, position, rotation->scratch[0], rotation->scratch[1]);
    rotation->cosines = rotation->scratch[0];
    rotation->sines = rotation->scratch[1];
    return position[0];
}
