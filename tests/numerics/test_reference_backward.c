/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tp_reference_backward against differences of tp_reference in double. The loss of one KV head of
 * one sequence
 *
 *     L = sum over its rows of dO.o + dLSE*lse
 *
 * is evaluated at inputs moved by h and 2h either way, which floats hold exactly because all inputs
 * lie on a grid.
 */
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

static void to_grid(call *c, call_tensor which) {
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t t = 0; t < call_tokens(c, which, s); t++)
            for (int64_t h = 0; h < call_heads(c, which); h++)
                for (int64_t x = 0; x < call_dim(c, which); x++) {
                    double value = call_get(c, which, s, t, h, x);
                    call_set(c, which, s, t, h, x, (float)(rint(value / GRID) * GRID));
                }
}

/* What is so large that a step is lost in it becomes -2. */
static void floats_to_grid(float *at, int64_t n) {
    for (int64_t i = 0; i < n && at != NULL; i++)
        if (isfinite(at[i])) at[i] = fabsf(at[i]) > 1e30f ? -2.0f : (float)(rint(at[i] / GRID) * GRID);
}

static double *doubles(int64_t n) {
    double *p = malloc((size_t)(n + 1) * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = 1e300; /* must be overwritten */
    return p;
}

/* tensors.o may be NULL: strides are those of a contiguous output. */
static back back_new(const char *text, float dropout, int64_t seq, int64_t kv_head) {
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

static void back_free(back *b) {
    double *all[] = {
        b->out.d_q,     b->out.d_k,       b->out.d_v,       b->out.d_bias,   b->out.d_alibi_slopes,
        b->out.d_sinks, b->out.d_q_bound, b->out.d_k_bound, b->out.d_v_bound, b->out.d_bias_bound,
        b->out.d_alibi_slopes_bound, b->out.d_sinks_bound};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
    free(b->d_o);
    free(b->d_lse);
    call_free(b->c);
}

static void back_run(back *b, tp_precision precision) {
    tp_error error = TP_ERROR_INIT;
    tp_reference_gradients out = b->out;
    b->c->tensors.gradients = &b->gradients;
    if (precision == TP_NAIVE)
        out.d_q_bound = out.d_k_bound = out.d_v_bound = out.d_bias_bound = out.d_alibi_slopes_bound = out.d_sinks_bound = NULL;
    if (tp_reference_backward(&b->c->problem, &b->c->tensors, precision, b->seq, b->kv_head, &out,
                              &error))
        fail_msg("%s", error.text);
}

static int64_t d_row(const back *b, int64_t row, int64_t head) {
    const call *c = b->c;
    int64_t token = c->problem.q_layout == TP_PACKED ? c->q_starts[b->seq] + row
                                                     : b->seq * c->tensors.q_len + row;
    return token * c->problem.q_heads + head;
}

static double loss(const back *b) {
    call *c = b->c;
    double sum = 0, o[64], lse;
    for (int64_t row = 0; row < b->rows; row++)
        for (int64_t g = 0; g < b->group; g++) {
            tp_row at = {b->seq, b->kv_head * b->group + g, row};
            tp_error error = TP_ERROR_INIT;
            if (tp_reference(&c->problem, &c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &at, o, &lse, NULL, NULL,
                             &error))
                fail_msg("%s", error.text);
            if (lse == -INFINITY) continue;
            int64_t i = d_row(b, row, at.head);
            for (int64_t x = 0; x < b->dv; x++) sum += b->d_o[i * b->dv + x] * o[x];
            if (b->gradients.d_lse.data != NULL) sum += b->d_lse[i] * lse;
        }
    return sum;
}

static double difference(const back *b, float *at) {
    double f[5] = {0};
    float old = *at;
    for (int i = -2; i <= 2; i++) {
        if (i == 0) continue;
        *at = old + (float)i * STEP;
        assert_true((double)*at - old == i * (double)STEP);
        f[i + 2] = loss(b);
    }
    *at = old;
    return (8 * (f[3] - f[1]) - (f[4] - f[0])) / (12 * (double)STEP);
}

static void same(const char *text, const char *what, int64_t i, double found, double wanted) {
    if (!(fabs(found - wanted) <= NEAR * (1 + fabs(wanted))))
        fail_msg("%s: %s[%d] is %.12g, differences say %.12g", text, what, (int)i, found, wanted);
}

static void check_tensors(const char *text, const back *b) {
    const call *c = b->c;
    for (int64_t row = 0; row < b->rows; row++)
        for (int64_t g = 0; g < b->group; g++) {
            float *q = call_at(c, CALL_Q, b->seq, row, b->kv_head * b->group + g);
            int64_t i = (row * b->group + g) * b->d;
            for (int64_t x = 0; x < b->d; x++)
                same(text, "d_q", i + x, b->out.d_q[i + x], difference(b, q + x));
        }
    for (int64_t key = 0; key < b->keys; key++) {
        float *k = call_at(c, CALL_K, b->seq, key, b->kv_head),
              *v = call_at(c, CALL_V, b->seq, key, b->kv_head);
        for (int64_t x = 0; x < b->d; x++)
            same(text, "d_k", key * b->d + x, b->out.d_k[key * b->d + x], difference(b, k + x));
        for (int64_t x = 0; x < b->dv; x++)
            same(text, "d_v", key * b->dv + x, b->out.d_v[key * b->dv + x], difference(b, v + x));
    }
}

static void check_scores(const char *text, const back *b) {
    const tp_tensors *t = &b->c->tensors;
    for (int64_t g = 0; g < b->group; g++) {
        int64_t head = b->kv_head * b->group + g;
        float *slope = (float *)t->alibi_slopes + b->seq * t->alibi_stride + head,
              *sink = (float *)t->sinks + head;
        if (b->c->problem.alibi)
            same(text, "d_alibi_slopes", g, b->out.d_alibi_slopes[g], difference(b, slope));
        if (b->c->problem.sinks)
            same(text, "d_sinks", g, b->out.d_sinks[g], isfinite(*sink) ? difference(b, sink) : 0);
        for (int64_t row = 0; row < b->rows && b->c->problem.bias_dtype == TP_F32; row++)
            for (int64_t key = 0; key < b->keys; key++) {
                float *bias = (float *)t->bias + b->seq * t->bias_stride[0] +
                              head * t->bias_stride[1] + row * t->bias_stride[2] +
                              key * t->bias_stride[3];
                int64_t i = (row * b->group + g) * b->keys + key;
                double d_bias = b->out.d_bias[i];
                for (int64_t other = 0; other < b->group && t->bias_stride[1] == 0;
                     other++) /* heads share it */
                    if (other != g)
                        d_bias += b->out.d_bias[(row * b->group + other) * b->keys + key];
                same(text, "d_bias", i, d_bias, isfinite(*bias) ? difference(b, bias) : 0);
            }
    }
}

static void check_case(const char *text, float dropout, int64_t seq, int64_t kv_head) {
    back b = back_new(text, dropout, seq, kv_head);
    tp_tensors *t = &b.c->tensors;
    tp_problem *p = &b.c->problem;
    if (p->alibi)
        floats_to_grid((float *)t->alibi_slopes, t->alibi_stride * (p->batch - 1) + p->q_heads);
    if (p->sinks) floats_to_grid((float *)t->sinks, p->q_heads);
    if (p->bias_dtype == TP_F32) floats_to_grid((float *)t->bias, t->bias_stride[0] * p->batch);
    back_run(&b, TP_DOUBLE);
    check_tensors(text, &b);
    check_scores(text, &b);
    b.gradients.d_lse.data = NULL;
    back_run(&b, TP_DOUBLE);
    check_tensors(text, &b);
    back_free(&b);
}

static void differences_agree(void **state) {
    (void)state;
    static const char *const words[] = {
        "",
        "causal",
        "window=2,1",
        "chunk=3",
        "prefix=2 causal",
        "prefix causal",
        "first=2 window=1,0 causal",
        "documents",
        "spans causal",
        "tree",
        "bits",
        "callback",
        "top-left causal",
        "causal positions",
        "scale=-0.3",
        "scale=0",
        "qscale=0.5,2,1",
        "softcap=1.5",
        "alibi",
        "alibi positions causal",
        "bias=f32",
        "sinks",
        "bits sinks",
        "qscale=-0.7,2,0 softcap=2 alibi bias=f32 sinks causal documents"};
    for (int i = 0; i < COUNT(words); i++) {
        char text[160];
        snprintf(text, sizeof text, "b2 h4/2 q5 k7 d4/3 f32 %s", words[i]);
        check_case(text, 0, 1, 1);
        if (i % 3 == 0) check_case(text, 0.3f, 1, 0);
    }
}

static void layouts_agree(void **state) {
    (void)state;
    check_case("b3 h3/1 seqs=1x2/3,1x6/4,1x3/5 d3/5 f32 packed causal", 0.25f, 1,
               0); /* rows that see nothing */
    check_case("b3 h2/2 seqs=1x2/3,1x4/4,1x3/5 d5 f32 padded causal softcap=3", 0, 2, 1);
    check_case("b2 h4/1 q4 k6 d2 f32 packed-q sinks bias=f32", 0.5f, 1, 0);
}

/* Where no key is seen nothing is read, and nothing comes back. */
static void empty_rows_and_hidden_keys(void **state) {
    (void)state;
    back b = back_new("h2/1 q7 k4 d4 f32 causal", 0, 0, 0);
    for (int64_t row = 0; row < 3; row++) /* rows 0..2 see no key */
        for (int64_t h = 0; h < 2; h++)
            for (int64_t x = 0; x < 4; x++) {
                call_set(b.c, CALL_Q, 0, row, h, x, NAN);
                b.d_o[d_row(&b, row, h) * 4 + x] = NAN;
            }
    back_run(&b, TP_DOUBLE);
    for (int64_t i = 0; i < 3 * 2 * 4; i++) assert_true(b.out.d_q[i] == 0);
    for (int64_t i = 0; i < 3 * 2; i++) assert_true(b.out.d_q_bound[i] == 0);
    for (int64_t i = 0; i < 4 * 4; i++)
        assert_true(isfinite(b.out.d_k[i]) && isfinite(b.out.d_v[i]));
    back_free(&b);

    b = back_new("h2/1 q4 k9 d4 f32 window=1,0 causal", 0, 0,
                 0); /* keys 0..3 are hidden from all */
    for (int64_t key = 0; key < 4; key++)
        for (int64_t x = 0; x < 4; x++) {
            call_set(b.c, CALL_K, 0, key, 0, x, NAN);
            call_set(b.c, CALL_V, 0, key, 0, x, INFINITY);
        }
    back_run(&b, TP_DOUBLE);
    for (int64_t i = 0; i < 9 * 4; i++) {
        assert_true(isfinite(b.out.d_k[i]) && isfinite(b.out.d_v[i]));
        if (i < 4 * 4) assert_true(b.out.d_k[i] == 0 && b.out.d_v[i] == 0);
    }
    for (int64_t i = 0; i < 4 * 2 * 4; i++) assert_true(isfinite(b.out.d_q[i]));
    call_set(b.c, CALL_K, 0, 4, 0, 1, NAN); /* seen by row 0 alone */
    back_run(&b, TP_DOUBLE);
    for (int64_t i = 0; i < 4 * 2 * 4; i++) assert_true(isnan(b.out.d_q[i]) == (i < 2 * 4));
    for (int64_t i = 0; i < 9 * 4; i++)
        assert_true(isnan(b.out.d_k[i]) == (i / 4 == 4 || i / 4 == 5));
    back_free(&b);
}

static double worst(const double *a, const double *b, int64_t n) {
    double max = 0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, fabs(a[i] - b[i]));
    return max;
}

/* The yardstick errs as its dtypes do, within the derived bound in f32, and rounds what it writes.
 */
static void naive_is_near(void **state) {
    (void)state;
    static const struct {
        const char *dtype;
        double unit;
    } kinds[] = {{"f32", 0x1p-24}, {"bf16", 0x1p-9}, {"f16", 0x1p-12}};
    for (int i = 0; i < COUNT(kinds); i++) {
        char text[160];
        snprintf(text, sizeof text, "h4/2 q40 k50 d16/24 %s causal softcap=5", kinds[i].dtype);
        back b = back_new(text, 0.2f, 0, 1), n = back_new(text, 0.2f, 0, 1);
        tp_dtype dtype = (tp_dtype)b.c->problem.k_dtype;
        char *d_o = malloc(40 * 4 * 24 * 4); /* as the output's dtype wants it */
        for (int64_t at = 0; at < 40 * 4 * 24; at++)
            tp_from_float(dtype, b.d_o[at], d_o + at * (int64_t)tp_dtype_bytes(dtype));
        b.gradients.d_o.data = n.gradients.d_o.data = d_o;
        back_run(&b, TP_DOUBLE);
        back_run(&n, TP_NAIVE);
        double q = worst(b.out.d_q, n.out.d_q, 40 * 2 * 16),
               k = worst(b.out.d_k, n.out.d_k, 50 * 16), v = worst(b.out.d_v, n.out.d_v, 50 * 24);
        double min = kinds[i].unit * 0.1, max = kinds[i].unit * 200;
        if (!(q > min && q < max && k > min && k < max && v > min && v < max))
            fail_msg("%s: errors %g %g %g, unit %g", text, q, k, v, kinds[i].unit);
        for (int64_t at = 0; at < 50 * 16; at++) {
            char bytes[4];
            tp_from_float(dtype, (float)n.out.d_k[at], bytes);
            assert_true(tp_to_float(dtype, bytes) == n.out.d_k[at]);
            double bound = b.out.d_k_bound[at / 16];
            if (i == 0 && !(fabs(b.out.d_k[at] - n.out.d_k[at]) <= bound))
                fail_msg("%s: d_k beyond %g", text, bound);
            assert_true(bound > 0 && bound < kinds[i].unit * 4000);
        }
        free(d_o);
        back_free(&b);
        back_free(&n);
    }
}

/* The bound is near enough to tell a wrong gradient: moving D by 1 % of its terms goes beyond it.
 */
static void bound_tells(void **state) {
    (void)state;
    back b = back_new("h2/1 q64 k64 d32 f32 causal", 0, 0, 0),
         moved = back_new("h2/1 q64 k64 d32 f32 causal", 0, 0, 0);
    for (int64_t i = 0; i < 64 * 2; i++) moved.d_lse[i] += 0.01f;
    back_run(&b, TP_DOUBLE);
    back_run(&moved, TP_DOUBLE);
    int beyond = 0;
    for (int64_t row = 0; row < 64 * 2; row++)
        beyond += worst(b.out.d_q + row * 32, moved.out.d_q + row * 32, 32) > b.out.d_q_bound[row];
    assert_true(beyond > 100);
    for (int64_t key = beyond = 0; key < 64; key++)
        beyond += worst(b.out.d_k + key * 32, moved.out.d_k + key * 32, 32) > b.out.d_k_bound[key];
    assert_true(beyond > 50);
    back_free(&b);
    back_free(&moved);
}

/* Scores of about -FLT_MAX are all the same to a float: a key whose weight is 0 by the definition, 1e30 below the
   greatest, has a kernel's share like the others, and its gradients a bound that is no promise. */
static void bound_of_a_weight_that_vanished(void **state) {
    (void)state;
    back b = back_new("q1 k2 d8 f32 alibi bias=f32", 0, 0, 0);
    float bias[] = {-0x1.FFFFFEp127f, -0x1.FFFFFEp127f}, slope = 1e30f;
    b.c->tensors.bias = bias;
    b.c->tensors.alibi_slopes = &slope;
    back_run(&b, TP_DOUBLE);
    assert_true(b.out.d_k[0] == 0);
    assert_true(isinf(b.out.d_k_bound[0]) && isinf(b.out.d_v_bound[0]) && isinf(b.out.d_q_bound[0]));
    bias[0] = bias[1] = -2; /* scores that floats tell apart */
    back_run(&b, TP_DOUBLE);
    assert_true(b.out.d_k[0] == 0 && b.out.d_k_bound[0] < 1e-30 && b.out.d_v_bound[0] < 1e-30);
    back_free(&b);
}

/* A slope so steep that the only score is finite in double and -inf in float: the kernel's row sees nothing and its
   gradients are 0, the definition's are NaN with d_o. Nothing is promised of either. */
static void bound_where_a_score_overflows(void **state) {
    (void)state;
    static const float slope = 3e38f;
    back b = back_new("q4 k1 d4 f32 alibi", 0, 0, 0);
    b.c->tensors.alibi_slopes = &slope;
    b.d_o[0] = NAN;
    back_run(&b, TP_DOUBLE);
    assert_true(isnan(b.out.d_q[0]) && isinf(b.out.d_q_bound[0]));
    assert_true(isinf(b.out.d_k_bound[0]) && isinf(b.out.d_v_bound[0]));
    assert_true(b.out.d_q_bound[3] < 1); /* its own key is at no distance */
    back_free(&b);
}

/* Key 0's score is -inf, and the slope's product 6e38: a kernel that rounds it before the sum finds NaN, one that does not
   finds a row without any key. */
static void no_bound_where_infinities_meet(void **state) {
    static const float slopes[] = {-3e38f, -3e37f};
    (void)state;
    for (int way = 0; way < 2; way++) {
        back b = back_new("q3 k1 d1 f32 alibi", 0, 0, 0);
        const tp_row first = {0};
        double bound, lse, lse_bound, want = way ? 0 : INFINITY;
        tp_error error = TP_ERROR_INIT;
        b.c->tensors.alibi_slopes = &slopes[way];
        for (int row = 0; row < 3; row++) call_set(b.c, CALL_Q, 0, row, 0, 0, 1);
        call_set(b.c, CALL_K, 0, 0, 0, 0, -INFINITY);
        assert_int_equal(tp_reference(&b.c->problem, &b.c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &first, NULL, &lse, &bound,
                                      &lse_bound, &error), TP_OK);
        assert_true(lse == -INFINITY && bound == want && lse_bound == want);
        back_run(&b, TP_DOUBLE);
        assert_true(b.out.d_q[0] == 0 && b.out.d_q_bound[0] == want && b.out.d_k_bound[0] == want && b.out.d_v_bound[0] == want);
        assert_true(isinf(b.out.d_alibi_slopes_bound[0]) == !way && b.out.d_bias_bound[0] == want);
        assert_true(b.out.d_q_bound[2] == 0); /* at no distance */
        back_free(&b);
    }
}

/* Where P is 1, dP - D is 0, and what a plain backward makes of it is its rounding. */
static void naive_rounds_both_sums(void **state) {
    (void)state;
    back b = back_new("h1 q8 k1 d1/576 f32", 0, 0, 0);
    double max = 0;
    for (int x = 0; x < 576; x++) call_set(b.c, CALL_V, 0, 0, 0, x, 1.0f / (float)(x + 3));
    for (int i = 0; i < 8; i++) b.d_lse[i] = 0;
    back_run(&b, TP_NAIVE);
    for (int i = 0; i < 8; i++) max = fmax(max, fabs(b.out.d_q[i]));
    assert_true(max > 0 && max < 1e-3);
    back_free(&b);
}

/* The slope takes 3e22 from key 0's score of 1e30, which no float shows: its P is 0 as a double and 1/2 as a float, and its
   dP - D is infinite. With 3e28, P is 0 either way. */
static void bound_where_p_decides_between_nan_and_infinity(void **state) {
    static const float bias[] = {1e30f, 1e30f}, slopes[] = {3e22f, 3e28f};
    (void)state;
    for (int way = 0; way < 2; way++) {
        back b = back_new("q1 k2 d1 f32 alibi bias=f32", 0, 0, 0);
        b.c->tensors.bias = bias;
        b.c->tensors.alibi_slopes = &slopes[way];
        b.d_lse[0] = INFINITY;
        back_run(&b, TP_DOUBLE);
        assert_true(isnan(b.out.d_k[0]) && isnan(b.out.d_bias[0]));
        assert_true(b.out.d_k_bound[0] == (way ? 0 : INFINITY));
        assert_true(b.out.d_bias_bound[0] == (way ? 0 : INFINITY));
        back_free(&b);
    }
}

/* dP of a pair that stays is 4e38 before D = 2e38 is subtracted: more than a float holds, though the difference is not. */
static void bound_where_dropout_makes_dp_overflow(void **state) {
    (void)state;
    back b = back_new("q16 k2 d1 f32", 0.5f, 0, 0);
    int stay = 0;
    for (int key = 0; key < 2; key++) {
        call_set(b.c, CALL_K, 0, key, 0, 0, 1);
        call_set(b.c, CALL_V, 0, key, 0, 0, key == 0 ? 1e37f : 0);
    }
    for (int row = 0; row < 16; row++) {
        call_set(b.c, CALL_Q, 0, row, 0, 0, 0);
        b.d_o[row] = 20, b.d_lse[row] = 0;
    }
    back_run(&b, TP_DOUBLE);
    for (int row = 0; row < 16; row++) {
        int stays = b.out.d_bias[row * 2] > 0;
        if (stays) assert_true(fabs(b.out.d_bias[row * 2] - 1e38) < 1e32);
        assert_int_equal(isinf(b.out.d_q_bound[row]) != 0, stays);
        stay += stays;
    }
    assert_in_range(stay, 1, 15);
    back_free(&b);
}

static void wrong_arguments_are_named(void **state) {
    (void)state;
    back b = back_new("b2 h4/2 q5 k7 d4 f32", 0, 0, 0);
    tp_problem *p = &b.c->problem;
    tp_tensors *t = &b.c->tensors;
    tp_error error = TP_ERROR_INIT;
    t->gradients = &b.gradients;
#define FAILS(status, words, call)                                                                 \
    do {                                                                                           \
        assert_int_equal(call, status);                                                            \
        if (strstr(error.text, words) == NULL)                                                     \
            fail_msg("\"%s\" does not say \"%s\"", error.text, words);                             \
    } while (0)
    FAILS(TP_INVALID, "seq is 2", tp_reference_backward(p, t, TP_DOUBLE, 2, 0, &b.out, &error));
    FAILS(TP_INVALID, "kv_head is -1",
          tp_reference_backward(p, t, TP_DOUBLE, 0, -1, &b.out, &error));
    FAILS(TP_INVALID, "precision is 5",
          tp_reference_backward(p, t, (tp_precision)5, 0, 0, &b.out, &error));
    FAILS(TP_INVALID, "bounds with TP_NAIVE",
          tp_reference_backward(p, t, TP_NAIVE, 0, 0, &b.out, &error));
    FAILS(TP_INVALID, "tp_reference_gradients is NULL",
          tp_reference_backward(p, t, TP_DOUBLE, 0, 0, NULL, &error));
    b.gradients.d_o.stride[1] = -1;
    FAILS(TP_INVALID, "d_o.stride[1] is -1",
          tp_reference_backward(p, t, TP_DOUBLE, 0, 0, &b.out, &error));
    b.gradients.d_o.data = NULL;
    FAILS(TP_INVALID, "d_o.data is NULL",
          tp_reference_backward(p, t, TP_DOUBLE, 0, 0, &b.out, &error));
    t->gradients = NULL;
    FAILS(TP_INVALID, "tp_gradients is NULL",
          tp_reference_backward(p, t, TP_DOUBLE, 0, 0, &b.out, &error));
    p->latent = 1;
    FAILS(TP_UNSUPPORTED, "latent cache",
          tp_reference_backward(p, t, TP_DOUBLE, 0, 0, &b.out, &error));
    p->latent = 0, p->sparse_len = 3;
    FAILS(TP_UNSUPPORTED, "lists", tp_reference_backward(p, t, TP_DOUBLE, 0, 0, &b.out, &error));
    p->sparse_len = 0, p->kv_layout = TP_PAGED, p->page_size = 16;
    FAILS(TP_UNSUPPORTED, "paged", tp_reference_backward(p, t, TP_DOUBLE, 0, 0, &b.out, &error));
    p->kv_layout = TP_BATCH, p->page_size = 0, p->dropout = 1;
    FAILS(TP_INVALID, "dropout is 1", tp_reference_backward(p, t, TP_DOUBLE, 0, 0, &b.out, &error));
    p->dropout = 0;
    back_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_agree),
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(empty_rows_and_hidden_keys),
        cmocka_unit_test(naive_is_near),
        cmocka_unit_test(bound_tells),
        cmocka_unit_test(bound_of_a_weight_that_vanished),
        cmocka_unit_test(bound_where_a_score_overflows),
        cmocka_unit_test(no_bound_where_infinities_meet),
        cmocka_unit_test(naive_rounds_both_sums),
        cmocka_unit_test(bound_where_p_decides_between_nan_and_infinity),
        cmocka_unit_test(bound_where_dropout_makes_dp_overflow),
        cmocka_unit_test(wrong_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
