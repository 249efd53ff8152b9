/* SPDX-License-Identifier: Apache-2.0 */
#include "support/back.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int of_q(back_tensor which) { return which <= BACK_DQ; }

static int64_t dim_of(const back *b, back_tensor which) {
    const tp_problem *p = &b->problem;
    return which == BACK_DLSE ? 1 : which == BACK_DQ || which == BACK_DK ? p->head_dim_qk : p->head_dim_v;
}

static int32_t dtype_of(const back *b, back_tensor which) {
    const int32_t dtypes[] = {b->problem.o_dtype, TP_F32, b->problem.q_dtype, b->problem.k_dtype,
                              b->problem.v_dtype};
    return dtypes[which];
}

static int64_t heads_of(const back *b, back_tensor which) {
    return of_q(which) ? b->problem.q_heads : b->problem.kv_heads;
}

static int64_t len_of(const back *b, back_tensor which, int64_t seq) {
    return of_q(which) ? b->c->q_lens[seq] : b->c->kv_lens[seq];
}

tp_tensor *back_tensor_of(back *b, back_tensor which) {
    tp_tensor *const all[] = {&b->gradients.d_o, &b->gradients.d_lse, &b->gradients.d_q, &b->gradients.d_k,
                              &b->gradients.d_v};
    return all[which];
}

void *back_at(const back *b, back_tensor which, int64_t seq, int64_t token, int64_t head) {
    const tp_tensor *t = back_tensor_of((back *)(uintptr_t)b, which);
    int packed = (of_q(which) ? b->problem.q_layout : b->problem.kv_layout) == TP_PACKED;
    int64_t start = of_q(which) ? b->c->q_starts[seq] : b->c->kv_starts[seq];
    int64_t at = packed ? (start + token) * t->stride[1] : seq * t->stride[0] + token * t->stride[1];
    return (char *)t->data +
           (at + head * t->stride[2]) * (int64_t)tp_dtype_bytes((tp_dtype)dtype_of(b, which));
}

float back_get(const back *b, back_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x) {
    tp_dtype dtype = (tp_dtype)dtype_of(b, which);
    return tp_to_float(dtype, (char *)back_at(b, which, seq, token, head) + (size_t)x * tp_dtype_bytes(dtype));
}

void back_set(back *b, back_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x, float value) {
    tp_dtype dtype = (tp_dtype)dtype_of(b, which);
    tp_from_float(dtype, value, (char *)back_at(b, which, seq, token, head) + (size_t)x * tp_dtype_bytes(dtype));
}

static float noise(int64_t which, int64_t seq, int64_t token, int64_t head, int64_t x) {
    uint64_t h = 0x51ed27u + (uint64_t)which;
    const int64_t place[] = {seq, token, head, x};
    for (int i = 0; i < COUNT(place); i++) {
        h = (h ^ (uint64_t)place[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
        h *= 0xbf58476d1ce4e5b9u;
        h ^= h >> 32;
    }
    return ((float)(h & 0xffffff) * 0x1p-23f - 1.0f) * 1.5f;
}

/* Tokens outside the used ones are NaN. */
static void make_tensor(back *b, back_tensor which) {
    const tp_tensors *t = &b->c->tensors;
    int packed = (of_q(which) ? b->problem.q_layout : b->problem.kv_layout) == TP_PACKED;
    int64_t len = of_q(which) ? t->q_len : t->kv_len, all = of_q(which) ? t->q_tokens : t->kv_tokens;
    int64_t dim = dim_of(b, which), heads = heads_of(b, which), tokens = packed ? all : t->batch * len;
    tp_tensor *tensor = back_tensor_of(b, which);
    b->capacity[which].bytes = (size_t)(tokens * heads * dim) * tp_dtype_bytes((tp_dtype)dtype_of(b, which));
    b->capacity[which].memory = malloc(b->capacity[which].bytes + 1);
    memset(b->capacity[which].memory, 0xff, b->capacity[which].bytes);
    *tensor = (tp_tensor){b->capacity[which].memory, {len * heads * dim, heads * dim, dim}};
    if (which > BACK_DLSE) return;
    for (int64_t s = 0; s < t->batch; s++)
        for (int64_t i = 0; i < len_of(b, which, s); i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t x = 0; x < dim; x++) back_set(b, which, s, i, h, x, noise(which, s, i, h, x));
}

/* [token][d_q | d_k | d_v]: equal lengths and dtypes. */
static void make_slices(back *b) {
    const tp_problem *p = &b->problem;
    int64_t dims[3] = {p->q_heads * p->head_dim_qk, p->kv_heads * p->head_dim_qk, p->kv_heads * p->head_dim_v};
    int64_t token = dims[0] + dims[1] + dims[2], at = 0;
    size_t unit = tp_dtype_bytes((tp_dtype)p->q_dtype);
    for (int i = BACK_DQ; i <= BACK_DV; i++) free(b->capacity[i].memory), b->capacity[i].memory = NULL;
    b->capacity[BACK_DQ].bytes = (size_t)(b->c->tensors.batch * b->c->tensors.q_len * token) * unit;
    b->capacity[BACK_DQ].memory = malloc(b->capacity[BACK_DQ].bytes + 1);
    for (int i = 0; i < 3; i++) {
        tp_tensor *t = back_tensor_of(b, (back_tensor)(BACK_DQ + i));
        *t = (tp_tensor){b->capacity[BACK_DQ].memory + (size_t)at * unit,
                         {b->c->tensors.q_len * token, token, dim_of(b, (back_tensor)(BACK_DQ + i))}};
        at += dims[i];
    }
}

back *back_new(const char *text, int flags) {
    back *b = calloc(1, sizeof *b);
    b->c = call_new(text, NULL);
    b->flags = flags;
    b->problem = b->c->problem;
    b->problem.op = TP_BACKWARD;
    b->gradients = (tp_gradients)TP_GRADIENTS_INIT;
    for (int i = 0; i < BACK_TENSORS; i++)
        if (i != BACK_DLSE || flags & BACK_D_LSE) make_tensor(b, (back_tensor)i);
    if (flags & BACK_SLICES) make_slices(b);
    const tp_problem *p = &b->problem;
    const tp_tensors *t = &b->c->tensors;
    if (flags & BACK_SHARE_SLOPES) b->c->tensors.alibi_stride = 0;
    if (p->bias_dtype) {
        int64_t rows = p->q_len, keys = p->kv_len;
        int shared = flags & BACK_SHARE_BIAS;
        const int64_t strides[4] = {shared ? 0 : p->q_heads * rows * keys, shared ? 0 : rows * keys, keys, 1};
        b->bias_count = (size_t)((shared ? 1 : t->batch * p->q_heads) * rows * keys);
        b->d_bias = malloc(b->bias_count * sizeof(float) + 1);
        b->gradients.d_bias = b->d_bias;
        memcpy(b->gradients.d_bias_stride, strides, sizeof strides);
    }
    if (p->alibi) {
        b->slope_count = (size_t)(t->alibi_stride ? t->batch * p->q_heads : p->q_heads);
        b->gradients.d_alibi_slopes = b->d_slopes = malloc(b->slope_count * sizeof(float) + 1);
        b->gradients.d_alibi_stride = t->alibi_stride ? p->q_heads : 0;
    }
    if (p->sinks) b->gradients.d_sinks = b->d_sinks = malloc((size_t)p->q_heads * sizeof(float));
    b->c->tensors.gradients = &b->gradients;
    return b;
}

void back_free(back *b) {
    for (int i = 0; i < BACK_TENSORS; i++) free(b->capacity[i].memory);
    back_forget(b);
    free(b->d_bias);
    free(b->d_slopes);
    free(b->d_sinks);
    call_free(b->c);
    free(b);
}

const char *back_kernel(int index) {
    const tp_kernel_info *info = call_kernel_info(index);
    return info != NULL && strcmp(info->strategy, "math") != 0 ? info->name : NULL;
}

static void poison(void *cookie, int byte) {
    back *b = cookie;
    for (int i = BACK_DQ; i <= BACK_DV; i++)
        if (b->capacity[i].memory != NULL) memset(b->capacity[i].memory, byte, b->capacity[i].bytes);
    if (b->d_bias != NULL) memset(b->d_bias, byte, b->bias_count * sizeof(float));
    if (b->d_slopes != NULL) memset(b->d_slopes, byte, b->slope_count * sizeof(float));
    if (b->d_sinks != NULL) memset(b->d_sinks, byte, (size_t)b->problem.q_heads * sizeof(float));
}

tp_status back_try(back *b, const call_how *how, tp_receipt *receipt, tp_error *error) {
    return call_plan_run(&b->problem, &b->c->tensors, how, poison, b, receipt, error);
}

/* What lies outside the rows of an output keeps its poison. */
static void check_untouched(const back *b, int byte) {
    for (int i = BACK_DQ; i <= BACK_DV; i++) {
        if (b->capacity[i].memory == NULL) continue;
        char *used = calloc(b->capacity[i].bytes + 1, 1);
        for (int j = i; j <= BACK_DV; j++) {
            if (j != i && b->capacity[j].memory != NULL) break; /* slices of this one's memory follow */
            size_t row = (size_t)dim_of(b, (back_tensor)j) * tp_dtype_bytes((tp_dtype)dtype_of(b, (back_tensor)j));
            for (int64_t s = 0; s < b->c->tensors.batch; s++)
                for (int64_t t = 0; t < len_of(b, (back_tensor)j, s); t++)
                    for (int64_t h = 0; h < heads_of(b, (back_tensor)j); h++)
                        memset(used + ((char *)back_at(b, (back_tensor)j, s, t, h) - b->capacity[i].memory), 1, row);
        }
        for (size_t at = 0; at < b->capacity[i].bytes; at++)
            if (!used[at] && (unsigned char)b->capacity[i].memory[at] != byte)
                fail_msg("byte %zu of gradient %d is no row's and was written", at, i);
        free(used);
    }
}

void back_run(back *b, const call_how *how, tp_receipt *receipt) {
    tp_error error = TP_ERROR_INIT;
    call_run(b->c, how, NULL);
    if (back_try(b, how, receipt, &error))
        fail_msg("%s: %s", how->kernel != NULL ? how->kernel : "any kernel", error.text);
    check_untouched(b, how->fill != 0 ? how->fill : 0xff);
}

void back_same(const back *a, const back *b, const char *what) {
    for (int i = BACK_DQ; i <= BACK_DV; i++) {
        if (a->capacity[i].memory == NULL) continue;
        assert_int_equal(a->capacity[i].bytes, b->capacity[i].bytes);
        if (memcmp(a->capacity[i].memory, b->capacity[i].memory, a->capacity[i].bytes) != 0)
            fail_msg("%s: gradient %d differs", what, i);
    }
    const struct {
        const float *a, *b;
        size_t count;
    } sums[] = {{a->d_bias, b->d_bias, a->bias_count},
                {a->d_slopes, b->d_slopes, a->slope_count},
                {a->d_sinks, b->d_sinks, a->d_sinks ? (size_t)a->problem.q_heads : 0}};
    for (int i = 0; i < COUNT(sums); i++)
        if (sums[i].count > 0 && memcmp(sums[i].a, sums[i].b, sums[i].count * sizeof(float)) != 0)
            fail_msg("%s: sum %d differs", what, i);
}
