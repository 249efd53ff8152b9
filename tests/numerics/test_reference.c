/* SPDX-License-Identifier: Apache-2.0 */
/* The double reference: rows by hand, identities, a brute force over masks and layouts, values that are not finite. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/small_call.h"

/* The same call on its own tensors. */
static void copy(call *to, const call *from) {
    *to = *from;
    to->tensors.q.data = to->q;
    to->tensors.k.data = to->k;
    to->tensors.v.data = to->v;
}

static void assert_near(double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance)) fail_msg("%.17g is not %.17g", a, b);
}

static void rows_computed_by_hand(void **state) {
    (void)state;
    static call c;
    double o[4], lse;
    setup(&c, 1, 1, 1, 1, 2, 1, 2);
    c.problem.scale_set = 1;
    c.problem.scale = 2;
    c.q[0] = 0.5f;
    c.k[0] = 0;
    c.k[1] = (float)log(3);
    c.v[0] = 0, c.v[1] = 8;
    c.v[2] = 4, c.v[3] = -8;
    lse = row_of(&c, TP_DOUBLE, (tp_row){0, 0, 0}, o); /* weights 1/4 and 3/4 */
    assert_near(o[0], 3, 1e-6);
    assert_near(o[1], -4, 1e-6);
    assert_near(lse, log(4), 1e-7);

    setup(&c, 1, 1, 1, 1, 1, 4, 3); /* one key: its value, whatever its score */
    lse = row_of(&c, TP_DOUBLE, (tp_row){0, 0, 0}, o);
    double dot = 0;
    for (int x = 0; x < 4; x++) dot += (double)c.q[x] * c.k[x];
    assert_near(lse, dot / 2, 1e-15);
    for (int x = 0; x < 3; x++) assert_true(o[x] == c.v[x]);

    setup(&c, 1, 1, 1, 1, 8, 4, 1); /* no preference: the mean */
    memset(c.q, 0, sizeof c.q);
    lse = row_of(&c, TP_DOUBLE, (tp_row){0, 0, 0}, o);
    double mean = 0;
    for (int j = 0; j < 8; j++) mean += c.v[j] / 8.0;
    assert_near(o[0], mean, 1e-15);
    assert_near(lse, log(8), 1e-15);

    setup(&c, 1, 1, 1, 5, 5, 1, 1); /* scores of 1, times what the row's position says */
    c.problem.scale_set = 1;
    c.problem.scale = 1;
    c.problem.qscale_beta = 0.5f;
    c.problem.qscale_length = 2;
    c.problem.qscale_offset = 1;
    static const int steps[] = {0, 1, 1, 2, 2}; /* (row + 1) / 2 */
    for (int i = 0; i < 5; i++) c.q[i] = c.k[i] = 1;
    for (int i = 0; i < 5; i++)
        assert_near(row_of(&c, TP_DOUBLE, (tp_row){0, 0, i}, o), 1 + 0.5 * log(1 + steps[i]) + log(5), 1e-14);
}

static void softmax_identities(void **state) {
    (void)state;
    static call c, other;
    double o[8], same[8], twice[8], lse;
    tp_row row = {0, 0, 0};
    setup(&c, 1, 1, 1, 1, 100, 8, 8);
    c.problem.scale_set = 1;
    c.problem.scale = 0.5f;
    for (int j = 0; j < 100; j++) c.k[j * 8] = 0; /* a spare column for constants */
    c.q[0] = 1;
    lse = row_of(&c, TP_DOUBLE, row, o);

    copy(&other, &c); /* a constant added to all scores moves lse alone */
    for (int j = 0; j < 100; j++) other.k[j * 8] = 6;
    assert_near(row_of(&other, TP_DOUBLE, row, same), lse + 3, 1e-13);
    for (int x = 0; x < 8; x++) assert_near(same[x], o[x], 1e-14);

    copy(&other, &c); /* the order of keys does not matter */
    for (int j = 0; j < 100; j++) {
        memcpy(other.k + j * 8, c.k + (j * 37 % 100) * 8, 8 * sizeof(float));
        memcpy(other.v + j * 8, c.v + (j * 37 % 100) * 8, 8 * sizeof(float));
    }
    assert_near(row_of(&other, TP_DOUBLE, row, same), lse, 1e-13);
    for (int x = 0; x < 8; x++) assert_near(same[x], o[x], 1e-14);

    copy(&other, &c); /* linear in v; v = 1 gives 1 */
    for (int i = 0; i < 800; i++) other.v[i] = i % 8 == 7 ? 1 : 2 * c.v[i];
    row_of(&other, TP_DOUBLE, row, twice);
    for (int x = 0; x < 7; x++) assert_near(twice[x], 2 * o[x], 1e-14);
    assert_near(twice[7], 1, 1e-14);
}

/* The masks of tileproof.h, written once more without any of the library's code. */
typedef struct rule {
    int causal, window;
    int64_t left, right;
} rule;

static int visible(const rule *r, int top_left, int64_t q_len, int64_t kv_len, int64_t i,
                   int64_t j) {
    int64_t at = top_left ? i : i + kv_len - q_len;
    if (r->causal && j > at) return 0;
    if (r->window && r->left >= 0 && j < at - r->left) return 0;
    return !(r->window && r->right >= 0 && j > at + r->right);
}

/* A dense row over the tensors' own strides and lengths. */
static void assert_row_is_dense(const call *c, const rule *r, tp_row row, int64_t q_len,
                                int64_t kv_len, const float *q, const float *k, const float *v) {
    const tp_problem *p = &c->problem;
    int64_t dv = p->head_dim_v, kv_head = row.head * p->kv_heads / p->q_heads;
    long double sum = 0, total[16] = {0};
    double o[16];
    q += row.row * c->tensors.q.stride[1] + row.head * c->tensors.q.stride[2];
    for (int64_t j = 0; j < kv_len; j++) {
        if (!visible(r, p->align == TP_TOP_LEFT, q_len, kv_len, row.row, j)) continue;
        const float *key = k + j * c->tensors.k.stride[1] + kv_head * c->tensors.k.stride[2];
        const float *value = v + j * c->tensors.v.stride[1] + kv_head * c->tensors.v.stride[2];
        long double dot = 0;
        for (int64_t x = 0; x < p->head_dim_qk; x++) dot += (long double)q[x] * key[x];
        long double weight = expl((float)(1 / sqrt((double)p->head_dim_qk)) * dot);
        sum += weight;
        for (int64_t x = 0; x < dv; x++) total[x] += weight * value[x];
    }
    double lse = row_of(c, TP_DOUBLE, row, o);
    if (sum == 0) {
        assert_true(lse == -INFINITY);
        for (int64_t x = 0; x < dv; x++) assert_true(o[x] == 0);
        return;
    }
    assert_near(lse, (double)logl(sum), 1e-13);
    for (int64_t x = 0; x < dv; x++) assert_near(o[x], (double)(total[x] / sum), 1e-13);
}

static const rule rules[] = {{0, 0, 0, 0},  {1, 0, 0, 0}, {0, 1, 2, 1}, {0, 1, -1, 3},
                             {0, 1, 0, -1}, {1, 1, 3, 0}, {0, 1, 0, 0}, {1, 1, 1, 5}};

static void set_rule(tp_problem *problem, const rule *r) {
    problem->mask_nodes = 0;
    if (r->causal) assert_int_equal(tp_problem_causal(problem), TP_OK);
    if (r->window) assert_int_equal(tp_problem_window(problem, r->left, r->right), TP_OK);
}

static void masks_alignments_and_groups(void **state) {
    (void)state;
    static call c;
    const int64_t lengths[][2] = {{5, 9}, {9, 5}, {1, 7}, {7, 7}, {4, 0}, {3, 1}};
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
        for (size_t m = 0; m < sizeof rules / sizeof rules[0]; m++)
            for (int top_left = 0; top_left < 2; top_left++) {
                int64_t q_len = lengths[n][0], kv_len = lengths[n][1];
                setup(&c, 2, 6, 2, q_len, kv_len, 3, 2);
                c.problem.align = top_left;
                set_rule(&c.problem, &rules[m]);
                for (int64_t s = 0; s < 2; s++)
                    for (int64_t h = 0; h < 6; h++)
                        for (int64_t i = 0; i < q_len; i++)
                            assert_row_is_dense(&c, &rules[m], (tp_row){s, h, i}, q_len, kv_len,
                                                c.q + s * q_len * 18, c.k + s * kv_len * 6,
                                                c.v + s * kv_len * 4);
            }
}

static void strides_of_all_kinds(void **state) {
    (void)state;
    static call c;
    setup(&c, 2, 4, 2, 3, 5, 4, 3);
    /* bhsd with gaps; v's heads share their tokens, k has one token for all */
    c.tensors.q = (tp_tensor){c.q, {1000, 7, 200}};
    c.tensors.k = (tp_tensor){c.k, {600, 0, 9}};
    c.tensors.v = (tp_tensor){c.v, {500, 5, 0}};
    for (int64_t s = 0; s < 2; s++)
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 0; i < 3; i++)
                assert_row_is_dense(&c, &rules[0], (tp_row){s, h, i}, 3, 5, c.q + s * 1000,
                                    c.k + s * 600, c.v + s * 500);
}

static void packed_and_padded_sequences(void **state) {
    (void)state;
    static call c;
    const int32_t cu_q[] = {2, 5, 5, 9}, cu_kv[] = {0, 6, 9, 14};
    const int64_t wide_q[] = {2, 5, 5, 9}, wide_kv[] = {0, 6, 9, 14};
    for (int wide = 0; wide < 2; wide++) {
        setup(&c, 3, 2, 1, 4, 6, 4, 3);
        c.problem.q_layout = c.problem.kv_layout = TP_PACKED;
        tp_tensors_init(&c.tensors, &c.problem, c.q, c.k, c.v, NULL);
        set_rule(&c.problem, &rules[1]);
        c.tensors.index_type = wide ? TP_I64 : TP_I32;
        c.tensors.cu_seqlens_q = wide ? (const void *)wide_q : cu_q;
        c.tensors.cu_seqlens_kv = wide ? (const void *)wide_kv : cu_kv;
        for (int i = 0; i < 2 * 8; i++) c.q[i] = NAN; /* before the first sequence */
        for (int64_t s = 0; s < 3; s++)
            for (int64_t i = 0; i < cu_q[s + 1] - cu_q[s]; i++)
                assert_row_is_dense(&c, &rules[1], (tp_row){s, 1, i}, cu_q[s + 1] - cu_q[s],
                                    cu_kv[s + 1] - cu_kv[s], c.q + cu_q[s] * 8, c.k + cu_kv[s] * 4,
                                    c.v + cu_kv[s] * 3);
    }
    const int32_t q_lens[] = {4, 0, 1}, kv_lens[] = {2, 6, 0};
    setup(&c, 3, 2, 1, 4, 6, 4, 3);
    set_rule(&c.problem, &rules[1]);
    c.tensors.q_lens = q_lens;
    c.tensors.kv_lens = kv_lens;
    for (int i = 2 * 4; i < 6 * 4; i++) c.k[i] = NAN; /* the unused tail of sequence 0 */
    for (int i = 2 * 3; i < 6 * 3; i++) c.v[i] = INFINITY;
    for (int64_t s = 0; s < 3; s++)
        for (int64_t i = 0; i < q_lens[s]; i++)
            assert_row_is_dense(&c, &rules[1], (tp_row){s, 0, i}, q_lens[s], kv_lens[s],
                                c.q + s * 32, c.k + s * 24, c.v + s * 18);
}

static void contract_of_values_that_are_not_finite(void **state) {
    (void)state;
    static call c;
    double o[2], lse;
    const tp_precision both[] = {TP_DOUBLE, TP_NAIVE};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 2; n++) {
        tp_precision precision = both[n];
        tp_row row = {0, 0, 2};
        for (int b = 0; b < 3; b++) { /* hidden keys reach nothing */
            setup(&c, 1, 1, 1, 6, 6, 2, 2);
            tp_problem_causal(&c.problem);
            double clean[2], clean_lse = row_of(&c, precision, row, clean);
            for (int i = 6; i < 12; i++) c.k[i] = c.v[i] = bad[b];
            assert_true(row_of(&c, precision, row, o) == clean_lse);
            assert_memory_equal(o, clean, sizeof o);
            c.v[2] = bad[b]; /* a visible value spoils its column, and no other */
            assert_true(row_of(&c, precision, row, o) == clean_lse);
            assert_true(!isfinite(o[0]) && o[1] == clean[1]);
        }
        setup(&c, 1, 1, 1, 6, 6, 2, 2);
        c.k[3] = NAN; /* a visible NaN spoils the row */
        assert_true(isnan(row_of(&c, precision, row, o)) && isnan(o[0]) && isnan(o[1]));
        c.k[3] = 1;
        c.q[5] = NAN;
        assert_true(isnan(row_of(&c, precision, row, o)) && isnan(o[0]) && isnan(o[1]));
        c.q[5] = 1;
        c.k[3] = INFINITY; /* so does a score of +inf */
        assert_true(isnan(row_of(&c, precision, row, o)) && isnan(o[0]) && isnan(o[1]));
        c.k[3] = -INFINITY; /* a score of -inf contributes nothing */
        double without[2], without_lse;
        static call shorter;
        copy(&shorter, &c);
        memmove(shorter.k + 2, c.k + 4, 8 * sizeof(float));
        memmove(shorter.v + 2, c.v + 4, 8 * sizeof(float));
        shorter.problem.kv_len = shorter.tensors.kv_len = 5;
        without_lse = row_of(&shorter, precision, row, without);
        lse = row_of(&c, precision, row, o);
        assert_true(lse == without_lse && o[0] == without[0] && o[1] == without[1]);
        for (int j = 0; j < 6; j++) c.k[2 * j + 1] = -INFINITY; /* nor do all of them */
        assert_true(row_of(&c, precision, row, o) == -INFINITY && o[0] == 0 && o[1] == 0);
        c.problem.scale_set = 1; /* 0 * inf is NaN; a scale of 0 with finite keys is a mean */
        c.problem.scale = 0;
        assert_true(isnan(row_of(&c, precision, row, o)));

        setup(&c, 1, 1, 1, 6, 3, 2, 2); /* rows before the first key see nothing, read nothing */
        tp_problem_causal(&c.problem);
        for (int i = 0; i < 6; i++) c.q[i] = NAN;
        assert_true(row_of(&c, precision, row, o) == -INFINITY && o[0] == 0 && o[1] == 0);
    }
}

/* Tensors of any dtype, filled with what the call's floats round to. */
static void convert(int32_t dtype, const float *from, void *to, int count) {
    for (int i = 0; i < count; i++)
        tp_from_float(dtype, from[i], (char *)to + (size_t)i * tp_dtype_bytes(dtype));
}

static void naive_is_near_and_rounded(void **state) {
    (void)state;
    static call c;
    static float q[CAPACITY], k[CAPACITY], v[CAPACITY];
    const struct {
        int32_t q, k, v, o;
        double max;
    } kinds[] = {{TP_F32, TP_F32, TP_F32, TP_F32, 2e-6},
                 {TP_F16, TP_F16, TP_F16, TP_F16, 3e-3},
                 {TP_BF16, TP_BF16, TP_BF16, TP_BF16, 2e-2},
                 {TP_F32, TP_BF16, TP_F16, TP_F32, 2e-2},
                 {TP_BF16, TP_F32, TP_F32, TP_F16, 1e-3}};
    for (size_t n = 0; n < sizeof kinds / sizeof kinds[0]; n++) {
        setup(&c, 1, 1, 1, 1, 300, 16, 8);
        convert(c.problem.q_dtype = kinds[n].q, c.q, q, 16);
        convert(c.problem.k_dtype = kinds[n].k, c.k, k, 300 * 16);
        convert(c.problem.v_dtype = kinds[n].v, c.v, v, 300 * 8);
        c.problem.o_dtype = kinds[n].o;
        c.tensors.q.data = q, c.tensors.k.data = k, c.tensors.v.data = v;
        double o[8], naive[8], worst = 0, lse = row_of(&c, TP_DOUBLE, (tp_row){0, 0, 0}, o);
        assert_near(row_of(&c, TP_NAIVE, (tp_row){0, 0, 0}, naive), lse, kinds[n].max);
        for (int x = 0; x < 8; x++) {
            uint32_t bits = 0;
            tp_from_float(kinds[n].o, (float)naive[x], &bits);
            assert_true(tp_to_float(kinds[n].o, &bits) == naive[x]);
            worst = fmax(worst, fabs(naive[x] - o[x]));
        }
        assert_true(worst > 0 && worst < kinds[n].max);
    }
}

static void long_rows_and_many_at_once(void **state) {
    (void)state;
    int64_t keys = 131072;
    static call c;
    setup(&c, 1, 2, 1, 4, keys, 2, 1);
    float *k = calloc((size_t)keys * 2, sizeof *k), *v = malloc((size_t)keys * sizeof *v);
    for (int64_t j = 0; j < keys; j++) v[j] = (float)(j % 1024);
    c.tensors.k.data = k, c.tensors.v.data = v;
    tp_problem_causal(&c.problem);
    const tp_row rows[] = {{0, 0, 3}, {0, 1, 0}, {0, 0, 2}};
    double o[3], lse[3], bound[3], lse_bound[3];
    assert_int_equal(
        tp_reference(&c.problem, &c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 3, rows, o, lse, bound, lse_bound, NULL),
        TP_OK);
    assert_near(o[0], 511.5, 1e-7);
    assert_near(o[1], (511.5 * (double)keys - 1023 - 1022 - 1021) / (double)(keys - 3), 1e-7);
    for (int i = 0; i < 3; i++) {
        assert_near(lse[i], log((double)(keys - 3 + rows[i].row)), 1e-10);
        assert_true(bound[i] > 0 && bound[i] < 0.1 && lse_bound[i] > 0 && lse_bound[i] < 2e-5);
    }
    free(k);
    free(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_computed_by_hand),
        cmocka_unit_test(softmax_identities),
        cmocka_unit_test(masks_alignments_and_groups),
        cmocka_unit_test(strides_of_all_kinds),
        cmocka_unit_test(packed_and_padded_sequences),
        cmocka_unit_test(contract_of_values_that_are_not_finite),
        cmocka_unit_test(naive_is_near_and_rounded),
        cmocka_unit_test(long_rows_and_many_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
