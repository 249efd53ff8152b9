/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the caller: everything is checked, then every row is read, normed, rotated and written. */
#include "rope/rope.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/control.h"
#include "base/floats.h"
#include "base/structs.h"
#include "problem/overlap.h"

#define RULE(condition, ...) TP_REQUIRE(condition, error, TP_INVALID, __VA_ARGS__)

static tp_status check_aligned(const char *name, const void *data, size_t bytes, tp_error *error) {
    RULE((uintptr_t)data % bytes == 0, "%s is %p: it must be aligned to its element, %zu bytes", name, data, bytes);
    return TP_OK;
}

static int axes_of(const tp_rotary *rotary) {
    const int32_t *sections = rotary->options.sections;
    return sections[0] + sections[1] + sections[2] == 0 ? 1 : 3;
}

/* The position of one token; without sections all three are the same. */
static void position_of(const tp_rotary *rotary, const int64_t *positions, int64_t all, int64_t token, int64_t position[3]) {
    int64_t step = axes_of(rotary) == 3 ? all : 0;
    for (int i = 0; i < 3; i++) position[i] = positions[i * step + token];
}

/* Every position is one, and *length, where it is 0, becomes that of the call. */
static tp_status check_positions(const tp_rotary *rotary, const int64_t *positions, int64_t all, int64_t *length,
                                 tp_error *error) {
    int64_t greatest = 0;
    RULE(positions != NULL, "positions is NULL: there must be one for each token");
    TP_TRY(check_aligned("positions", positions, sizeof *positions, error));
    for (int64_t t = 0; t < all; t++) {
        int64_t position[3];
        position_of(rotary, positions, all, t, position);
        TP_TRY(tp__rope_check_position(rotary, position, error));
        for (int i = 0; i < 3; i++) greatest = tp__max(greatest, position[i]);
    }
    RULE(*length == 0 || *length > greatest,
         "length is %lld and a position %lld: the current length must be above every position, or 0", (long long)*length,
         (long long)greatest);
    if (*length == 0) *length = greatest + 1;
    return TP_OK;
}

static tp_status check_count(const char *name, int64_t count, tp_error *error) {
    RULE(count >= 1 && count <= (int64_t)1 << 40, "%s is %lld: it must be in 1..2^40", name, (long long)count);
    return TP_OK;
}

/* batch * tokens * width elements of `bytes` fit the address space. */
static tp_status check_sizes(int64_t batch, int64_t tokens, int64_t width, int64_t bytes, tp_error *error) {
    TP_TRY(check_count("batch", batch, error));
    TP_TRY(check_count("tokens", tokens, error));
    RULE(tp__times(tp__times(tp__times(batch, tokens), tp__max(width, 3)), bytes) < INT64_MAX,
         "batch is %lld and tokens %lld: their positions, cosines and sines must fit the address space", (long long)batch,
         (long long)tokens);
    return TP_OK;
}

tp_status tp_rope_angles(const tp_rotary *rotary, int64_t batch, int64_t tokens, const int64_t *positions, int64_t length,
                         float *cosines, float *sines, tp_error *error) {
    RULE(rotary != NULL, "rotary is NULL: tp_rope_create makes one");
    TP_TRY(check_sizes(batch, tokens, rotary->pairs, 8, error));
    RULE(cosines != NULL && sines != NULL, "%s is NULL: there must be room for batch * tokens * pairs floats",
         cosines == NULL ? "cosines" : "sines");
    TP_TRY(check_aligned("cosines", cosines, sizeof(float), error));
    TP_TRY(check_aligned("sines", sines, sizeof(float), error));
    int64_t all = batch * tokens, bytes = all * rotary->pairs * (int64_t)sizeof(float);
    TP_TRY(check_positions(rotary, positions, all, &length, error));
    tp__region out[2], in;
    tp__region_array(&out[0], "cosines", cosines, bytes);
    tp__region_array(&out[1], "sines", sines, bytes);
    tp__region_array(&in, "positions", positions, axes_of(rotary) * all * (int64_t)sizeof(int64_t));
    TP_TRY(tp__region_check_disjoint(&out[0], &out[1], error));
    TP_TRY(tp__region_check_disjoint(&out[0], &in, error));
    TP_TRY(tp__region_check_disjoint(&out[1], &in, error));
    tp__control saved = tp__control_take();
    for (int64_t t = 0; t < all; t++) {
        int64_t position[3];
        position_of(rotary, positions, all, t, position);
        tp__rope_angles(rotary, length, position, cosines + t * rotary->pairs, sines + t * rotary->pairs);
    }
    tp__control_restore(saved);
    return TP_OK;
}

static tp_status check_strides(const char *name, const tp_tensor *tensor, tp_error *error) {
    RULE(tensor->data != NULL, "%s.data is NULL: there must be rows", name);
    for (int i = 0; i < 3; i++)
        RULE(tensor->stride[i] >= 0, "%s.stride[%d] is %lld: it must not be negative", name, i, (long long)tensor->stride[i]);
    return TP_OK;
}

/* Outputs are apart from inputs, or are the rows of in, one by one. */
static tp_status check_memory(const tp_rotary *rotary, const tp_rope_rows *r, tp_error *error) {
    const int64_t extent[3] = {r->batch, r->tokens, r->heads}, dim = rotary->options.head_dim, all = r->batch * r->tokens;
    int64_t angles = all * rotary->pairs * (int64_t)sizeof(float), positions = axes_of(rotary) * all * (int64_t)sizeof(int64_t);
    tp__region out, in[5];
    TP_TRY(check_strides("in", &r->in, error));
    TP_TRY(check_strides("out", &r->out, error));
    TP_TRY(tp__region_tensor(&out, "out", &r->out, extent, dim, (tp_dtype)r->dtype, error));
    TP_TRY(tp__region_tensor(&in[0], "in", &r->in, extent, dim, (tp_dtype)r->dtype, error));
    TP_TRY(tp__region_check_output(&out, error));
    tp__region_array(&in[1], "positions", r->positions, positions);
    tp__region_array(&in[2], "cosines", r->cosines, angles);
    tp__region_array(&in[3], "sines", r->sines, angles);
    tp__region_array(&in[4], "norm_weight", r->norm_weight, dim * (int64_t)sizeof(float));
    int same = r->in.data == r->out.data;
    for (int i = 0; i < 3; i++) same &= extent[i] == 1 || r->in.stride[i] == r->out.stride[i];
    for (int i = same; i < 5; i++) TP_TRY(tp__region_check_disjoint(&out, &in[i], error));
    return TP_OK;
}

static tp_status check_rows(const tp_rotary *rotary, const tp_rope_rows *r, int64_t *length, tp_error *error) {
    RULE(tp__dtype_is_float(r->dtype), "dtype is %d: it must be f32 (%d), f16 (%d) or bf16 (%d)", r->dtype, TP_F32, TP_F16,
         TP_BF16);
    TP_TRY(check_sizes(r->batch, r->tokens, rotary->pairs, 8, error));
    TP_TRY(check_count("heads", r->heads, error));
    RULE((r->cosines == NULL) == (r->sines == NULL), "%s is NULL beside the other: both must be given, or neither",
         r->cosines == NULL ? "cosines" : "sines");
    RULE(r->cosines == NULL || r->positions == NULL, "positions are given beside cosines and sines: one of them must go");
    if (r->norm_weight != NULL) {
        RULE(isfinite(r->norm_eps) && r->norm_eps >= 0, "norm_eps is %g: it must be finite and not negative", r->norm_eps);
        RULE(r->norm_one_plus == 0 || r->norm_one_plus == 1, "norm_one_plus is %d: it must be 0 or 1", r->norm_one_plus);
    }
    TP_TRY(check_aligned("cosines", r->cosines, sizeof(float), error));
    TP_TRY(check_aligned("sines", r->sines, sizeof(float), error));
    TP_TRY(check_aligned("norm_weight", r->norm_weight, sizeof(float), error));
    TP_TRY(check_memory(rotary, r, error));
    *length = r->length;
    if (r->cosines != NULL) return TP_OK;
    return check_positions(rotary, r->positions, r->batch * r->tokens, length, error);
}

static void rotate_token(const tp_rotary *rotary, const tp_rope_rows *r, int64_t b, int64_t t, const float *cosines,
                         const float *sines) {
    int64_t dim = rotary->options.head_dim, size = (int64_t)tp_dtype_bytes((tp_dtype)r->dtype);
    float row[TP__ROPE_DIM_MAX];
    for (int64_t h = 0; h < r->heads; h++) {
        int64_t from = b * r->in.stride[0] + t * r->in.stride[1] + h * r->in.stride[2];
        int64_t to = b * r->out.stride[0] + t * r->out.stride[1] + h * r->out.stride[2];
        tp__to_floats(r->dtype, (const char *)r->in.data + from * size, dim, row);
        tp__rope_norm(r->norm_weight, r->norm_eps, r->norm_one_plus, 1, dim, row);
        tp__rope_turn(rotary, cosines, sines, 1, row);
        tp__from_floats(r->dtype, row, dim, (char *)r->out.data + to * size);
    }
}

/* Sequences of a batch are mostly at the same positions: angles are computed again where a position is not the one before. */
static void rotate(const tp_rotary *rotary, const tp_rope_rows *r, int64_t length) {
    float cosines[TP__ROPE_PAIRS_MAX], sines[TP__ROPE_PAIRS_MAX];
    int64_t last[3] = {-1, -1, -1}, position[3];
    for (int64_t t = 0; t < r->tokens; t++)
        for (int64_t b = 0; b < r->batch; b++) {
            int64_t token = b * r->tokens + t;
            if (r->cosines != NULL) {
                rotate_token(rotary, r, b, t, r->cosines + token * rotary->pairs, r->sines + token * rotary->pairs);
                continue;
            }
            position_of(rotary, r->positions, r->batch * r->tokens, token, position);
            if (memcmp(position, last, sizeof last) != 0) {
                tp__rope_angles(rotary, length, position, cosines, sines);
                memcpy(last, position, sizeof last);
            }
            rotate_token(rotary, r, b, t, cosines, sines);
        }
}

tp_status tp_rope_apply(const tp_rotary *rotary, const tp_rope_rows *rows, tp_error *error) {
    TP__IN_DEFAULT_CONTROL;
    int64_t length;
    TP_STRUCT_IN(tp_rope_rows, rows, error);
    RULE(rotary != NULL, "rotary is NULL: tp_rope_create makes one");
    TP_TRY(check_rows(rotary, rows, &length, error));
    rotate(rotary, rows, length);
    return TP_OK;
}
