/* SPDX-License-Identifier: Apache-2.0 */
/* The bound of tp_reference for each arithmetic: what a kernel rounds is in its row of the table, and what is in no row is
   not excused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reference/reference.h"
#include "reference/rounding.h"

#include "numerics/float_kernel.h"

/* The bound of the row for a kernel that rounds these; with ROUND_P it is that of p=bf16. */
static verdict judge_rounded(const call *c, int rounds) {
    const double unit = 0x1p-8; /* of bf16 */
    const tp__rounding of = {.sum = UNIT,
                             .lowest = 99,
                             .query = rounds & ROUND_Q ? unit : 0,
                             .key = rounds & ROUND_K ? unit : 0,
                             .weight = rounds & ROUND_P ? unit : 0,
                             .value = rounds & ROUND_V ? unit : 0};
    verdict is = judge(c, (kernel){1, 0, NO_FAULT, rounds});
    tp__reference_row row = {.problem = &c->problem, .rounding = &of, .tensors = &c->tensors, .scale = tp__scale(&c->problem)};
    void *memory = malloc(tp__row_scratch(&c->problem, c->problem.kv_len));
    tp__row_memory(&row, c->problem.kv_len, memory);
    tp__row_place(&row, &(tp_row){0, 0, 0});
    tp__row_double(&row);
    tp__row_bound(&row, &is.bound, &is.lse_bound);
    free(memory);
    return is;
}

/* Operands that are rounded cost what their term of the table says: without it the bound is too small. */
static void it_knows_what_an_arithmetic_rounds(void **unused) {
    (void)unused;
    const int64_t lengths[] = {1, 3, 257, 4097};
    const data kinds[] = {{1, 1, 1, 0}, {8, 4, 1, 0}, {1, 1, 1, 5}};
    for (int rounds = 0; rounds < 16; rounds++) {
        int beyond_f32 = 0;
        for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
            for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
                call c = make(lengths[n], 64, 16, TP_F32, kinds[k]);
                verdict is = judge_rounded(&c, rounds), f32 = judge(&c, (kernel){1, 0, NO_FAULT, rounds});
                if (!(is.error <= is.bound) || !(is.lse_error <= is.lse_bound))
                    fail_msg("%d rounded, %lld keys, data %zu: o %g of %g, lse %g of %g", rounds, (long long)lengths[n], k,
                             is.error, is.bound, is.lse_error, is.lse_bound);
                assert_true(isfinite(is.bound) && is.bound >= f32.bound && is.lse_bound >= f32.lse_bound);
                if (rounds == ROUND_P) assert_true(tp__rounding_of(TP_ARITHMETIC_P_BF16)->weight == 0x1p-8);
                if (rounds == 0) assert_true(is.bound == f32.bound && is.lse_bound == f32.lse_bound);
                beyond_f32 += is.error > f32.bound;
                drop(&c);
            }
        assert_int_equal(beyond_f32 > 0, rounds != 0);
    }
}

static void it_takes_an_arithmetic_that_exists(void **unused) {
    (void)unused;
    call c = make(4, 8, 8, TP_F32, (data){1, 1, 1, 0});
    tp_row row = {0, 0, 0};
    tp_error error = TP_ERROR_INIT;
    double bound;
    for (int arithmetic = -1; arithmetic < 5; arithmetic++) {
        tp_status status = tp_reference(&c.problem, &c.tensors, TP_DOUBLE, (tp_arithmetic)arithmetic, 1, &row, NULL, NULL,
                                        &bound, NULL, &error);
        int known = strcmp(tp_arithmetic_name((tp_arithmetic)arithmetic), "arithmetic?") != 0;
        assert_int_equal(status, known ? TP_OK : TP_INVALID);
        if (!known) assert_non_null(strstr(error.text, "arithmetic is "));
    }
    assert_string_equal(tp_arithmetic_name(TP_ARITHMETIC_F32), "f32");
    drop(&c);
}

/* AMX sums 32 products in two chains, which may be far larger than any sum in ascending order: the even products rise, the odd
   ones take them away. The error of such a sum is within the bound of p=bf16, which is more than that of float32. */
static void it_counts_the_chains_of_a_step(void **unused) {
    (void)unused;
    enum { D = 128, STEP = 32, TRIALS = 200 };
    call c = make(1, D, 1, TP_BF16, (data){1, 1, 1, 0});
    const tp_row row = {0, 0, 0};
    for (int trial = 0; trial < TRIALS; trial++) {
        double exact = 0, lse, bounds[2];
        float sum = 0, part[2];
        for (int x = 0; x < D; x++) {
            float taken = x % 2 ? tp_to_float(TP_BF16, (uint16_t *)c.k + x - 1) * -1.01f : (float)(1 + uniform());
            tp_from_float(TP_BF16, (float)(1 + uniform() / 16), (uint16_t *)c.q + x);
            tp_from_float(TP_BF16, taken, (uint16_t *)c.k + x);
        }
        for (int x = 0; x < D; x++) {
            float q = tp_to_float(TP_BF16, (uint16_t *)c.q + x), k = tp_to_float(TP_BF16, (uint16_t *)c.k + x);
            if (x % STEP == 0) part[0] = part[1] = 0;
            part[x % 2] = fmaf(q, k, part[x % 2]);
            exact += (double)q * k;
            if (x % STEP == STEP - 1) sum += part[0] + part[1];
        }
        const tp_arithmetic of[] = {TP_ARITHMETIC_F32, TP_ARITHMETIC_P_BF16};
        for (int i = 0; i < 2; i++)
            assert_int_equal(tp_reference(&c.problem, &c.tensors, TP_DOUBLE, of[i], 1, &row, NULL, &lse, NULL, &bounds[i], NULL),
                             TP_OK);
        double scale = lse / exact, error = fabs(sum - exact) * fabs(scale); /* of one key the lse is the score */
        if (!(error <= bounds[1])) fail_msg("sum %g, exact %g: error %g of %g", (double)sum, exact, error, bounds[1]);
        assert_true(bounds[1] > 2 * bounds[0]);
    }
    drop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_knows_what_an_arithmetic_rounds),
        cmocka_unit_test(it_takes_an_arithmetic_that_exists),
        cmocka_unit_test(it_counts_the_chains_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
