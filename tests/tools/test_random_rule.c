/* SPDX-License-Identifier: Apache-2.0 */
/* The error rule of `tileproof check`, given outputs that are wrong: in gradients of what changes scores, in what is not
   finite, and where the kernel's own lse would excuse it. */
#include "support/call.h"

#include <math.h>

#include "harness/gradients.h"
#include "harness/oracle.h"

struct held {
    struct tensors tensors;
    struct gradients gradients;
    struct gradients_oracle oracle;
    tp_context *context;
};

static void run(struct held *h) {
    tp_error error = TP_ERROR_INIT;
    tp_choice choice = TP_CHOICE_INIT;
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    options.threads = 1;
    choice.policy = TP_PERMIT;
    assert_int_equal(tp_context_create(&options, &h->context, &error), TP_OK);
    assert_int_equal(gradients_forward(&h->tensors, h->context, &error), TP_OK);
    assert_int_equal(tp_attention(h->context, &h->tensors.problem, &choice, &h->tensors.call, NULL, &error), TP_OK);
    assert_int_equal(gradients_oracle_create(&h->oracle, &h->tensors, &h->gradients, &error), TP_OK);
}

static void make(struct held *h, const char *text) {
    tp_problem problem = {0};
    tp_lengths lengths = {.struct_size = sizeof lengths};
    const struct tensors_style style = {.lse = 1};
    tp_error error = TP_ERROR_INIT;
    *h = (struct held){0};
    assert_int_equal(tp_problem_parse(text, &problem, &lengths, &error), TP_OK);
    assert_int_equal(tensors_create(&h->tensors, &problem, &lengths, &style), 0);
    assert_int_equal(tensors_fill(&h->tensors, 5), 0);
    assert_int_equal(gradients_create(&h->gradients, &h->tensors, &lengths, 5), 0);
}

static void drop(struct held *h) {
    gradients_oracle_destroy(&h->oracle);
    gradients_destroy(&h->gradients);
    tensors_destroy(&h->tensors);
    tp_context_destroy(h->context);
}

static int wrong(struct held *h) {
    char reason[400] = "";
    return gradients_compare(&h->oracle, &h->tensors, &h->gradients, reason, sizeof reason);
}

static void gradients_of_what_changes_scores_have_bounds(void **state) {
    struct held h;
    (void)state;
    make(&h, "h2 q20 k30 d8 f32 sinks alibi bias=f32 backward");
    run(&h);
    h.oracle.allowance = 4;
    h.oracle.bounds_alone = 1;
    assert_int_equal(wrong(&h), 0);
    float *const values[] = {h.gradients.d_sinks, h.gradients.d_slopes, h.gradients.d_bias};
    for (int i = 0; i < 3; i++) {
        float right = values[i][0];
        values[i][0] = right + 1;
        assert_int_not_equal(wrong(&h), 0);
        tensors_set(&h.tensors, TENSOR_LSE, 0, 0, 0, 0, 1e30f); /* of the kernel: excuses nothing */
        assert_int_not_equal(wrong(&h), 0);
        values[i][0] = right;
    }
    assert_int_equal(wrong(&h), 0);
    drop(&h);
}

static void gradients_are_nan_where_the_reference_says_so(void **state) {
    static const float others[] = {INFINITY, -INFINITY, 0};
    struct held h;
    (void)state;
    make(&h, "h1 q4 k5 d4 f32 backward");
    tensors_set(&h.gradients.held, TENSOR_O, 0, 1, 0, 2, NAN);
    run(&h);
    assert_int_equal(wrong(&h), 0);
    for (int i = 0; i < 3; i++) {
        tensors_set(&h.gradients.held, TENSOR_Q, 0, 1, 0, 0, others[i]);
        assert_int_not_equal(wrong(&h), 0);
    }
    drop(&h);
}

/* A dropped pair is multiplied by 0, and 0 times infinity is NaN. */
static void a_dropped_pair_of_an_infinite_gradient(void **state) {
    struct held h;
    (void)state;
    make(&h, "h1 q4 k30 d4 f32 dropout=0.5 backward");
    tensors_set(&h.gradients.held, TENSOR_O, 0, 1, 0, 2, INFINITY);
    run(&h);
    assert_int_equal(wrong(&h), 0);
    drop(&h);
}

static void an_infinite_output_has_its_sign_or_is_nan(void **state) {
    static const struct {
        float value;
        int wrong;
    } ways[] = {{INFINITY, 0}, {NAN, 0}, {-INFINITY, 1}, {1, 1}};
    struct measured_error measured;
    struct oracle oracle;
    struct held h;
    char reason[400];
    tp_error error = TP_ERROR_INIT;
    (void)state;
    make(&h, "h1 q1 k1 d4 f32");
    tensors_set(&h.tensors, TENSOR_V, 0, 0, 0, 2, INFINITY);
    assert_int_equal(oracle_create(&oracle, &h.tensors, 10, 1, &error), TP_OK);
    for (int x = 0; x < 4; x++) tensors_set(&h.tensors, TENSOR_O, 0, 0, 0, x, (float)oracle.o[x]);
    tensors_set(&h.tensors, TENSOR_LSE, 0, 0, 0, 0, (float)oracle.lse[0]);
    assert_true(oracle.o[2] == INFINITY);
    for (int i = 0; i < COUNT(ways); i++) {
        tensors_set(&h.tensors, TENSOR_O, 0, 0, 0, 2, ways[i].value);
        assert_int_equal(oracle_compare(&oracle, &h.tensors, &measured, reason, sizeof reason), ways[i].wrong);
    }
    oracle_destroy(&oracle);
    drop(&h);
}

/* Row 19 sees small values and has an error of half its bound; row 39 sees large ones and has a larger error, which is
   further from its bound. */
static void the_row_nearest_to_its_bound_is_named(void **state) {
    struct measured_error measured;
    struct oracle oracle;
    struct held h;
    char reason[400];
    tp_error error = TP_ERROR_INIT;
    (void)state;
    make(&h, "h1 q40 d4 f32 window=19,0");
    for (int64_t key = 20; key < 40; key++)
        for (int x = 0; x < 4; x++)
            tensors_set(&h.tensors, TENSOR_V, 0, key, 0, x, 1e4f * tensors_get(&h.tensors, TENSOR_V, 0, key, 0, x));
    assert_int_equal(oracle_create(&oracle, &h.tensors, 100, 1, &error), TP_OK);
    assert_int_equal(oracle.count, 40);
    for (int64_t i = 0; i < 40; i++) {
        double off = i == 19 ? 0.5 : i == 39 ? 0.2 : 0;
        for (int x = 0; x < 4; x++)
            tensors_set(&h.tensors, TENSOR_O, 0, i, 0, x, (float)(oracle.o[i * 4 + x] + off * oracle.bound[i]));
        tensors_set(&h.tensors, TENSOR_LSE, 0, i, 0, 0, (float)oracle.lse[i]);
    }
    if (oracle_compare(&oracle, &h.tensors, &measured, reason, sizeof reason)) fail_msg("%s", reason);
    assert_int_equal(measured.nearest.row.row, 19);
    assert_true(measured.nearest.bound == oracle.bound[19]);
    assert_true(measured.nearest.ratio == measured.nearest.error / measured.nearest.bound);
    assert_true(measured.nearest.ratio > 0.4 && measured.nearest.ratio < 0.6);
    assert_true(measured.max > 10 * measured.nearest.error); /* another row's */
    /* and one that is beyond */
    tensors_set(&h.tensors, TENSOR_O, 0, 5, 0, 2, (float)(oracle.o[5 * 4 + 2] + 3 * oracle.bound[5]));
    assert_int_not_equal(oracle_compare(&oracle, &h.tensors, &measured, reason, sizeof reason), 0);
    assert_int_equal(measured.nearest.row.row, 5);
    assert_true(measured.nearest.ratio > 2.5);
    oracle_destroy(&oracle);
    drop(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_what_changes_scores_have_bounds),
        cmocka_unit_test(gradients_are_nan_where_the_reference_says_so),
        cmocka_unit_test(a_dropped_pair_of_an_infinite_gradient),
        cmocka_unit_test(an_infinite_output_has_its_sign_or_is_nan),
        cmocka_unit_test(the_row_nearest_to_its_bound_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
