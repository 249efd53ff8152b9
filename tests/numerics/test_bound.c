/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error bound of tp_reference, tried from both sides: the kernel of docs/maths.md, step by step in float
 * (float_kernel.h), stays under it on all kinds of data; the same kernel with one thing wrong does not.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "numerics/float_kernel.h"

static const kernel sound[] = {
    {0, 0, NO_FAULT, 0}, {1, 0, NO_FAULT, 0}, {0, 1, NO_FAULT, 0}, {1, 1, NO_FAULT, 0}};

static void assert_sound(const call *c, const char *what) {
    for (size_t i = 0; i < sizeof sound / sizeof sound[0]; i++) {
        verdict is = judge(c, sound[i]);
        if (getenv("TP_SHOW_BOUNDS") && i == 1)
            print_message("%-34s o %.2e of %.2e  lse %.2e of %.2e\n", what, is.error, is.bound,
                          is.lse_error, is.lse_bound);
        if (!(is.error <= is.bound) || !(is.lse_error <= is.lse_bound))
            fail_msg("%s, kernel %zu: o %g of %g, lse %g of %g", what, i, is.error, is.bound,
                     is.lse_error, is.lse_bound);
    }
}

static void the_kernel_stays_under_it(void **unused) {
    (void)unused;
    const int64_t lengths[] = {1, 2, 3, 17, 257, 600, 1025, 4096, 4097, 9000},
                  dims[] = {1, 3, 64, 128, 200};
    const data kinds[] = {{1, 1, 1, 0},    {0.1f, 1, 1, 5},   {8, 4, 1, 0},
                          {100, 30, 1, 1}, {3000, 300, 2, 0}, {0, 1, 1, 0},
                          {1, 1, 0, 3},    {1, 1, 1e-42f, 0}, {1e-30f, 1e-12f, 1, 0}};
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
            for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
                if (lengths[n] * dims[i] > 600000) continue;
                call c = make(lengths[n], dims[i], dims[i] > 100 ? 5 : 9, TP_F32, kinds[k]);
                char what[64];
                snprintf(what, sizeof what, "k%d d%d data %zu", (int)lengths[n], (int)dims[i], k);
                assert_sound(&c, what);
                drop(&c);
            }
}

static void dtypes_scales_and_masks_too(void **unused) {
    (void)unused;
    const tp_dtype dtypes[] = {TP_F16, TP_BF16, TP_F32};
    const float scales[] = {0, -0.3f, 1e-40f, 1e-44f, 5};
    for (int i = 0; i < 3; i++) {
        call c = make(5000, 32, 16, dtypes[i], (data){1, 1, 1, 0.2f});
        assert_sound(&c, tp_dtype_name(dtypes[i]));
        for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
            c.problem.scale_set = 1;
            c.problem.scale = scales[s];
            assert_sound(&c, "scale");
        }
        c.problem.scale_set = 0;
        tp_problem_window(&c.problem, 4200, 0);
        assert_sound(&c, "window");
        drop(&c);
        c = make(300, 32, 16, dtypes[i], (data){1, 1, 1e-6f, 0}); /* f16: subnormal output */
        assert_sound(&c, "small values");
        drop(&c);
    }
}

/* Later keys always score higher, or lower, or alternate: every block rescales, or none. */
static void moving_maxima_too(void **unused) {
    (void)unused;
    for (int way = 0; way < 4; way++)
        for (int steep = 0; steep < 3; steep++) {
            const float step[] = {1e-4f, 0.03f, 1};
            call c = make(9000, 4, 8, TP_F32, (data){1, 0.5f, 1, 0});
            float *q = c.q, *k = c.k;
            q[0] = 1;
            for (int j = 0; j < 9000; j++) {
                float ramp = step[steep] * (float)j;
                k[j * 4] = way == 0   ? ramp
                           : way == 1 ? -ramp
                           : way == 2 ? ramp * (j % 2 ? 1 : -1)
                                      : 0;
            }
            assert_sound(&c, "moving maximum");
            drop(&c);
        }
}

static void minus_infinite_scores_cost_nothing(void **unused) {
    (void)unused;
    call c = make(700, 4, 8, TP_F32, (data){1, 1, 1, 0});
    float *q = c.q, *k = c.k;
    q[0] = 1;
    for (int j = 0; j < 700; j += 3) k[j * 4] = -INFINITY;
    for (int j = 0; j < 512; j++) k[j * 4] = -INFINITY; /* a whole block */
    assert_sound(&c, "-inf scores");
    verdict is = judge(&c, sound[0]);
    assert_true(is.bound < 1e-4);
    drop(&c);
}

/* One thing wrong, at sizes where a test would look, is more than the bound forgives. */
static void a_wrong_kernel_exceeds_it(void **unused) {
    (void)unused;
    const struct {
        const char *name;
        fault fault;
        int o, lse; /* which of the two must show it */
    } faults[] = {{"rough exp", ROUGH_EXP, 1, 1},       {"dropped key", DROPPED_KEY, 1, 1},
                  {"extra key", EXTRA_KEY, 1, 1},       {"stale sum", STALE_SUM, 1, 1},
                  {"stale output", STALE_OUTPUT, 1, 0}, {"bf16 weights", BF16_WEIGHTS, 1, 0},
                  {"bf16 scores", BF16_SCORES, 1, 1}};
    const struct { int64_t keys, d; } sizes[] = {{600, 64}, {1000, 128}, {5000, 64}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        call c = make(sizes[s].keys, sizes[s].d, 64, TP_F32, (data){1, 1, 1, 0});
        /* the last keys are hidden, so that there is an edge to get wrong */
        c.problem.align = TP_TOP_LEFT;
        tp_problem_window(&c.problem, -1, sizes[s].keys - 40);
        /* and a late key is the greatest, so that the maximum moves */
        for (int64_t x = 0; x < sizes[s].d; x++)
            ((float *)c.k)[(sizes[s].keys - 60) * sizes[s].d + x] = 0.6f * ((float *)c.q)[x];
        for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
            verdict is = judge(&c, (kernel){1, 0, faults[i].fault, 0});
            if (getenv("TP_SHOW_BOUNDS"))
                print_message("k%d d%d %-14s o %.2e of %.2e  lse %.2e of %.2e\n",
                              (int)sizes[s].keys, (int)sizes[s].d, faults[i].name, is.error,
                              is.bound, is.lse_error, is.lse_bound);
            if ((faults[i].o && !(is.error > is.bound)) ||
                (faults[i].lse && !(is.lse_error > is.lse_bound)))
                fail_msg("%s at k%d d%d: o %g of %g, lse %g of %g", faults[i].name,
                         (int)sizes[s].keys, (int)sizes[s].d, is.error, is.bound, is.lse_error,
                         is.lse_bound);
        }
        drop(&c);
    }
}

/* In units that anyone can judge: ordinary data, ordinary sizes. */
static void it_is_tight_on_ordinary_data(void **unused) {
    (void)unused;
    const struct {
        int64_t keys, d;
        tp_dtype dtype;
        double max;
    } sizes[] = {{256, 64, TP_F32, 2e-5}, {4096, 128, TP_F32, 2e-5}, {4096, 128, TP_BF16, 4e-4}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        call c = make(sizes[s].keys, sizes[s].d, 64, sizes[s].dtype, (data){1, 1, 1, 0});
        verdict is = judge(&c, sound[1]);
        if (getenv("TP_SHOW_BOUNDS"))
            print_message("k%d d%d %s: o %.2e of %.2e, lse %.2e of %.2e\n", (int)sizes[s].keys,
                          (int)sizes[s].d, tp_dtype_name(sizes[s].dtype), is.error, is.bound,
                          is.lse_error, is.lse_bound);
        assert_true(is.bound < sizes[s].max);
        assert_true(is.lse_bound < 2e-5);
        drop(&c);
    }
}

static void reference_bounds(const call *c, double *bound, double *lse_bound) {
    tp_row row = {0, 0, 0};
    assert_int_equal(tp_reference(&c->problem, &c->tensors, TP_NAIVE, TP_ARITHMETIC_F32, 1, &row, NULL, NULL, bound,
                                  lse_bound, NULL),
                     TP_OK);
}

static void it_says_when_nothing_is_promised(void **unused) {
    (void)unused;
    double bound, lse_bound;
    call c = make(8, 4, 2, TP_F32, (data){1, 1, 1, 0});
    ((float *)c.q)[0] = 3e30f;
    ((float *)c.k)[0] = 3e30f; /* a score beyond FLT_MAX */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound == INFINITY && lse_bound == INFINITY);
    drop(&c);

    c = make(8, 4, 2, TP_F32, (data){1, 1, 1, 0});
    ((float *)c.v)[0] = 3e38f; /* the sum of eight such may overflow; the row sum may not */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound == INFINITY && isfinite(lse_bound));
    drop(&c);

    c = make(8, 4, 2, TP_F32, (data){1, 1, 7e4f, 7e4f});
    c.problem.o_dtype = TP_F16; /* more than f16 holds */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound == INFINITY && isfinite(lse_bound));
    drop(&c);
}

static void rows_without_arithmetic_are_exact(void **unused) {
    (void)unused;
    double bound, lse_bound;
    call c = make(8, 4, 2, TP_F32, (data){1, 1, 1, 0});
    ((float *)c.k)[5] = NAN;
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound == 0 && lse_bound == 0);
    ((float *)c.k)[5] = 1;
    c.problem.align = TP_TOP_LEFT;
    tp_problem_window(&c.problem, 0, 0); /* one key */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound > 0 && bound < 1e-5);
    ((float *)c.v)[0] = INFINITY; /* the other column keeps its bound */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound > 0 && bound < 1e-5);
    drop(&c);
}

/* Of a row that sees no key but has a sink the lse is the sink. Its q was never read: what another row left there
   must not count. */
static void a_row_with_only_a_sink_is_exact(void **unused) {
    (void)unused;
    call c = make(2, 4, 2, TP_F32, (data){1, 1, 1, 0});
    float q[3 * 4] = {0}, sink = 3;
    double o[3 * 2], lse[3], bound[3], lse_bound[3];
    tp_row rows[3] = {{0, 0, 2}, {0, 0, 0}, {0, 0, 1}}; /* the last row sees both keys, the first none */
    for (int i = 0; i < 4; i++) q[2 * 4 + i] = 3e38f;
    c.problem.q_len = c.tensors.q_len = 3;
    c.problem.sinks = 1;
    c.tensors.q.data = q;
    c.tensors.sinks = &sink;
    tp_problem_causal(&c.problem);
    assert_int_equal(
        tp_reference(&c.problem, &c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 3, rows, o, lse, bound, lse_bound, NULL), TP_OK);
    assert_true(bound[0] == INFINITY); /* its scores may overflow */
    assert_true(lse[1] == 3 && bound[1] == 0 && lse_bound[1] == 0);
    assert_true(isfinite(bound[2]) && lse_bound[2] > 0 && lse_bound[2] < 1e-5);
    drop(&c);
}

/* Where a float cannot hold a score's small parts, the lse may be off by as much, and by no more. */
static void it_is_finite_where_scores_are_huge(void **unused) {
    (void)unused;
    static const float scales[] = {1e4f, 1e10f, 1e30f};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        call c = make(40, 16, 8, TP_F32, (data){1, 1, 1, 0});
        c.problem.scale_set = 1;
        c.problem.scale = scales[i];
        verdict is = judge(&c, sound[1]);
        assert_true(isfinite(is.bound) && is.lse_bound < scales[i] * 1e-4);
        assert_sound(&c, "huge scores");
        drop(&c);
    }
}

/* Two keys of one element, of which a row sees both alike: whatever their scores are off by shows in the output. */
static double bound_of_codes(const char *dtypes, float scale_of_v) {
    static const int8_t k[2] = {100, 100}, v[2] = {1, -1};
    static const float k_float[2] = {100, 100}, v_float[2] = {1, -1};
    float q = 64, o, ones[2] = {1, 1}, v_scales[2] = {scale_of_v, scale_of_v};
    char text[64];
    tp_problem problem;
    tp_tensors tensors;
    tp_error error = TP_ERROR_INIT;
    snprintf(text, sizeof text, "h1/1 q1 k2 d1 %s", dtypes);
    if (tp_problem_parse(text, &problem, NULL, &error) != TP_OK) fail_msg("%s", error.text);
    int coded = problem.k_dtype == TP_I8;
    tp_tensors_init(&tensors, &problem, &q, coded ? (const void *)k : k_float, coded ? (const void *)v : v_float, &o);
    tensors.k_scales.data = coded ? ones : NULL;
    tensors.v_scales.data = coded ? v_scales : NULL;
    tp_row row = {0, 0, 0};
    double bound, lse_bound;
    if (tp_reference(&problem, &tensors, TP_NAIVE, TP_ARITHMETIC_F32, 1, &row, NULL, NULL, &bound, &lse_bound, &error) != TP_OK)
        fail_msg("%s", error.text);
    return bound;
}

static void scales_of_codes_count(void **unused) {
    (void)unused;
    /* by one more rounding of each score, its product with the scale */
    assert_true(bound_of_codes("f32:i8:i8", 1) > 1.2 * bound_of_codes("f32", 1));
    /* a kernel may multiply another code by the scale, the largest there can be, before it looks at what is stored */
    assert_true(isfinite(bound_of_codes("f32:i8:i8", 1e35f)));
    assert_true(bound_of_codes("f32:i8:i8", 1e37f) == INFINITY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_stays_under_it),
        cmocka_unit_test(dtypes_scales_and_masks_too),
        cmocka_unit_test(moving_maxima_too),
        cmocka_unit_test(minus_infinite_scores_cost_nothing),
        cmocka_unit_test(a_wrong_kernel_exceeds_it),
        cmocka_unit_test(it_is_tight_on_ordinary_data),
        cmocka_unit_test(it_says_when_nothing_is_promised),
        cmocka_unit_test(scales_of_codes_count),
        cmocka_unit_test(rows_without_arithmetic_are_exact),
        cmocka_unit_test(a_row_with_only_a_sink_is_exact),
        cmocka_unit_test(it_is_finite_where_scores_are_huge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
