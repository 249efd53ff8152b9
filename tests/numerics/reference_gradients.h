/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of one KV head of one sequence by tp_reference_backward, from inputs that lie on a grid. */
#ifndef TP_TESTS_NUMERICS_REFERENCE_GRADIENTS_H
#define TP_TESTS_NUMERICS_REFERENCE_GRADIENTS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"

#define GRID 0x1p-12
#define STEP 0x1p-9f
#define NEAR 2e-8 /* the differences' own error: about STEP^4 */

typedef struct back {
    call *c;
    float *d_o, *d_lse; /* [batch or 1][tokens][q_heads][..] */
    tp_gradients gradients;
    int64_t seq, kv_head, group, rows, keys, d, dv;
    tp_reference_gradients out;
} back;

static inline void to_grid(call *c, call_tensor which) {
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t t = 0; t < call_tokens(c, which, s); t++)
            for (int64_t h = 0; h < call_heads(c, which); h++)
                for (int64_t x = 0; x < call_dim(c, which); x++) {
                    double value = call_get(c, which, s, t, h, x);
                    call_set(c, which, s, t, h, x, (float)(rint(value / GRID) * GRID));
                }
}

/* What is so large that a step is lost in it becomes -2. */
static inline void floats_to_grid(float *at, int64_t n) {
    for (int64_t i = 0; i < n && at != NULL; i++)
        if (isfinite(at[i])) at[i] = fabsf(at[i]) > 1e30f ? -2.0f : (float)(rint(at[i] / GRID) * GRID);
}

static inline double *doubles(int64_t n) {
    double *p = malloc((size_t)(n + 1) * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = 1e300; /* must be overwritten */
    return p;
}

/* tensors.o may be NULL: strides are those of a contiguous output. */
static inline back back_new(const char *text, float dropout, int64_t seq, int64_t kv_head) {
    back b = {.c = call_new(text, NULL), .seq = seq, .kv_head = kv_head};
    call *c = b.c;
    tp_problem *p = &c->problem;
    p->dropout = dropout;
    c->tensors.dropout_seed = 0x123456789abcdefu;
    c->tensors.dropout_offset = (uint64_t)7 << 33;
    b.group = p->q_heads / p->kv_heads;
    b.rows = c->q_lens[seq];
    b.keys = c->kv_lens[seq];
    b.d = p->head_dim_qk;
    b.dv = p->head_dim_v;
    for (int t = CALL_Q; t <= CALL_V; t++)
        if (call_dtype(c, (call_tensor)t) == TP_F32) to_grid(c, (call_tensor)t);
    int64_t tokens = p->q_layout == TP_PACKED ? c->tensors.q_tokens : p->batch * c->tensors.q_len;
    b.d_o = malloc((size_t)(tokens * p->q_heads * b.dv + 1) * sizeof(float));
    b.d_lse = malloc((size_t)(tokens * p->q_heads + 1) * sizeof(float));
    assert_true(b.d_o != NULL && b.d_lse != NULL);
    for (int64_t i = 0; i < tokens * p->q_heads * b.dv; i++)
        b.d_o[i] = (float)((i * 7919 + 13) % 257 - 128) / 64;
    for (int64_t i = 0; i < tokens * p->q_heads; i++)
        b.d_lse[i] = (float)((i * 31 + 5) % 65 - 32) / 32;
    b.gradients = (tp_gradients)TP_GRADIENTS_INIT;
    b.gradients.d_o =
        (tp_tensor){b.d_o, {c->tensors.q_len * p->q_heads * b.dv, p->q_heads * b.dv, b.dv}};
    b.gradients.d_lse = (tp_tensor){b.d_lse, {c->tensors.q_len * p->q_heads, p->q_heads, 1}};
    b.out = (tp_reference_gradients){.struct_size = sizeof b.out,
                                     .d_q = doubles(b.rows * b.group * b.d),
                                     .d_k = doubles(b.keys * b.d),
                                     .d_v = doubles(b.keys * b.dv),
                                     .d_bias = doubles(b.rows * b.group * b.keys),
                                     .d_alibi_slopes = doubles(b.group),
                                     .d_sinks = doubles(b.group),
                                     .d_q_bound = doubles(b.rows * b.group),
                                     .d_k_bound = doubles(b.keys),
                                     .d_v_bound = doubles(b.keys),
                                     .d_bias_bound = doubles(b.rows * b.group * b.keys),
                                     .d_alibi_slopes_bound = doubles(b.group),
                                     .d_sinks_bound = doubles(b.group)};
    return b;
}

static inline void back_free(back *b) {
    double *all[] = {
        b->out.d_q,     b->out.d_k,       b->out.d_v,       b->out.d_bias,   b->out.d_alibi_slopes,
        b->out.d_sinks, b->out.d_q_bound, b->out.d_k_bound, b->out.d_v_bound, b->out.d_bias_bound,
        b->out.d_alibi_slopes_bound, b->out.d_sinks_bound};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
    free(b->d_o);
    free(b->d_lse);
    call_free(b->c);
}

static inline void back_run(back *b, tp_precision precision) {
    tp_error error = TP_ERROR_INIT;
    tp_reference_gradients out = b->out;
    b->c->tensors.gradients = &b->gradients;
    if (precision == TP_NAIVE)
        out.d_q_bound = out.d_k_bound = out.d_v_bound = out.d_bias_bound = out.d_alibi_slopes_bound = out.d_sinks_bound = NULL;
    if (tp_reference_backward(&b->c->problem, &b->c->tensors, precision, b->seq, b->kv_head, &out,
                              &error))
        fail_msg("%s", error.text);
}

#endif
