/* SPDX-License-Identifier: Apache-2.0 */
/* The exp2 of the softmax and the tanh of softcap, on every ISA this host has: its error, and its values where one is exact. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "kernels/set.h"

enum { N = 64 };

static void each_set(void (*check)(const tp__kernel_set *)) {
    tp_machine machine = {.struct_size = sizeof machine};
    assert_int_equal(tp_machine_detect(&machine, NULL), TP_OK);
    for (int i = 0; i < TP__SETS; i++) {
        if (tp__kernel_sets[i]->exp2 == NULL) continue; /* another's is lent */
        if (tp__kernel_sets[i]->needs & ~machine.isa)
            printf("not run here: exp2 of %s\n", tp__kernel_sets[i]->isa);
        else
            check(tp__kernel_sets[i]);
    }
}

static void check_error(const tp__kernel_set *kernels) {
    float x[N], y[N];
    double worst = 0;
    for (int64_t step = 0; step < 100 * 40000; step += N) {
        for (int i = 0; i < N; i++) x[i] = -(float)((double)(step + i) / 40000.0);
        kernels->exp2(x, y, N);
        for (int i = 0; i < N; i++) {
            double error = fabs((double)y[i] / exp2((double)x[i]) - 1.0);
            if (error > worst) worst = error;
        }
    }
    printf("exp2 of %s: relative error %.3g\n", kernels->isa, worst);
    assert_true(worst <= 2e-7); /* the figure docs/maths.md builds its bound on */
}

static void check_values(const tp__kernel_set *kernels) {
    static const float at[][2] = {
        {0.0f, 1.0f},      {-0.0f, 1.0f},        {-1.0f, 0.5f},        {-100.0f, 0x1p-100f},
        {-101.0f, 0.0f},   {-100.51f, 0.0f},   {-1000.0f, 0.0f},     {-3e38f, 0.0f},
        {-INFINITY, 0.0f}, {-0x1p23f, 0.0f},     {-0x1p31f, 0.0f},     {-64.0f, 0x1p-64f},
    };
    float x[N], y[N];
    for (size_t c = 0; c < sizeof at / sizeof at[0]; c++) {
        for (int i = 0; i < N; i++) x[i] = i % 3 == 0 ? at[c][0] : -0.25f;
        kernels->exp2(x, y, N);
        for (int i = 0; i < N; i += 3) {
            assert_true(y[i] == at[c][1]);
            assert_false(signbit(y[i]));
        }
    }
    for (int i = 0; i < N; i++) x[i] = i % 5 == 0 ? NAN : -1.0f;
    kernels->exp2(x, y, N);
    for (int i = 0; i < N; i++) assert_true(i % 5 == 0 ? isnan(y[i]) : y[i] == 0.5f);
}

/* tanh(x * ln2/2), near 0 as well, where its relative error could grow. */
static void check_tanh(const tp__kernel_set *kernels) {
    const double half_ln2 = 0.34657359027997264;
    float x[N], y[N];
    double worst = 0;
    for (int64_t step = 0; step < 4000000; step += N) {
        for (int i = 0; i < N; i++) {
            double size = step + i < 2000000 ? (double)(step + i) * 2e-5 : exp2(-(double)(step + i) * 3e-5);
            x[i] = (float)((i & 1) ? -size : size);
        }
        kernels->tanh(x, y, N);
        for (int i = 0; i < N; i++) {
            double exact = tanh((double)x[i] * half_ln2);
            double error = exact == 0 ? fabs((double)y[i]) : fabs((double)y[i] / exact - 1.0);
            if (error > worst) worst = error;
            assert_true(signbit(y[i]) == signbit(x[i]) && fabsf(y[i]) <= 1.0f);
        }
    }
    printf("tanh of %s: relative error %.3g\n", kernels->isa, worst);
    assert_true(worst <= 2.5e-7); /* TANH_ERROR of the bound */
    static const float at[][2] = {{0.0f, 0.0f}, {INFINITY, 1.0f}, {-INFINITY, -1.0f}, {3e38f, 1.0f},
                                  {-100.0f, -1.0f}};
    for (size_t c = 0; c < sizeof at / sizeof at[0]; c++) {
        for (int i = 0; i < N; i++) x[i] = at[c][0];
        kernels->tanh(x, y, N);
        for (int i = 0; i < N; i++) assert_true(y[i] == at[c][1]);
    }
    for (int i = 0; i < N; i++) x[i] = i % 5 == 0 ? NAN : 0.0f;
    kernels->tanh(x, y, N);
    for (int i = 0; i < N; i++) assert_true(i % 5 == 0 ? isnan(y[i]) : y[i] == 0.0f);
}

static void tanh_is_bounded(void **state) {
    (void)state;
    each_set(check_tanh);
}

static void error_is_bounded(void **state) {
    (void)state;
    each_set(check_error);
}

static void exact_where_it_must_be(void **state) {
    (void)state;
    each_set(check_values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_bounded),
        cmocka_unit_test(exact_where_it_must_be),
        cmocka_unit_test(tanh_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
