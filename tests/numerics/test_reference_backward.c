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
#include "numerics/reference_gradients.h"

static int64_t d_row(const back *b, int64_t row, int64_t head) {
    const call *c = b->c;
    int64_t token = c->problem.q_layout == TP_PACKED ? c->held.q_start[b->seq] + row
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
    FAILS(TP_UNSUPPORTED, "sparse indices", tp_reference_backward(p, t, TP_DOUBLE, 0, 0, &b.out, &error));
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
        cmocka_unit_test(wrong_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
