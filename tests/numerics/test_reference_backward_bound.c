/* SPDX-License-Identifier: Apache-2.0 */
/* The yardstick and the bounds of tp_reference_backward: near, able to tell wrong gradients, no promise where floats overflow. */
#include "numerics/reference_gradients.h"

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

/* The slope takes 3e22 from key 0's score of 1e30, which no float shows: its P is 0 as a double and 1/2 as a float. With 3e28,
   the other way, P is 0 in both. */
static back drowned_slope(int way) {
    static const float bias[] = {1e30f, 1e30f}, slopes[] = {3e22f, 3e28f};
    back b = back_new("q1 k2 d1 f32 alibi bias=f32", 0, 0, 0);
    b.c->tensors.bias = bias;
    b.c->tensors.alibi_slopes = &slopes[way];
    return b;
}

/* The dP - D of key 0 is infinite. */
static void bound_where_p_decides_between_nan_and_infinity(void **state) {
    (void)state;
    for (int way = 0; way < 2; way++) {
        back b = drowned_slope(way);
        b.d_lse[0] = INFINITY;
        back_run(&b, TP_DOUBLE);
        assert_true(isnan(b.out.d_k[0]) && isnan(b.out.d_bias[0]));
        assert_true(b.out.d_k_bound[0] == (way ? 0 : INFINITY));
        assert_true(b.out.d_bias_bound[0] == (way ? 0 : INFINITY));
        back_free(&b);
    }
}

/* The same scores with values of two signs and an infinite d_o: o is v[1] in double and nearer to v[0] in float, so that D is an
   infinity of either sign, and dP - D NaN or infinite. */
static void bound_where_p_decides_the_sign_of_infinity(void **state) {
    (void)state;
    for (int way = 0; way < 2; way++) {
        back b = drowned_slope(way);
        call_set(b.c, CALL_V, 0, 0, 0, 0, -3);
        call_set(b.c, CALL_V, 0, 1, 0, 0, 1);
        b.d_o[0] = INFINITY;
        b.d_lse[0] = 0;
        back_run(&b, TP_DOUBLE);
        assert_true(isnan(b.out.d_k[1]) && isnan(b.out.d_bias[1]));
        assert_true(b.out.d_k_bound[1] == (way ? 0 : INFINITY) && b.out.d_bias_bound[1] == (way ? 0 : INFINITY));
        call_set(b.c, CALL_V, 0, 0, 0, 0, 1.5f); /* D is then sure, and d_v still 0 times infinity or half of it */
        back_run(&b, TP_DOUBLE);
        assert_true(isnan(b.out.d_v[0]) && b.out.d_v_bound[0] == (way ? 0 : INFINITY));
        assert_true(isnan(b.out.d_k[1]) && b.out.d_k_bound[1] == 0);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(naive_is_near),
        cmocka_unit_test(bound_tells),
        cmocka_unit_test(bound_of_a_weight_that_vanished),
        cmocka_unit_test(bound_where_a_score_overflows),
        cmocka_unit_test(no_bound_where_infinities_meet),
        cmocka_unit_test(naive_rounds_both_sums),
        cmocka_unit_test(bound_where_p_decides_between_nan_and_infinity),
        cmocka_unit_test(bound_where_p_decides_the_sign_of_infinity),
        cmocka_unit_test(bound_where_dropout_makes_dp_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
