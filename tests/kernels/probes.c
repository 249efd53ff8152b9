/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to no run: peak, read, exp2, tanh. test_exp2.c holds the errors of the last two more closely. */
#include "kernels/trial.h"

/* Multiply-adds from registers: it says how many, and what it leaves is a number. */
void test_peak(struct trial *t) {
    float *out = output(t, 2, 4);
    int64_t rounds = pick(t, "rounds", 1, 200, 1000);
    double flops = 0;
    out[0] = 0.5f, out[1] = 1;
    RUN(t, flops = t->set->peak(rounds, out));
    if (flops != 2.0 * t->set->form.k.step * t->set->row_step * t->set->mr * (t->set->nr / t->set->row_step) * (double)rounds ||
        !isfinite(out[0]))
        wrong(t, "%g flops in %lld rounds, and it leaves %g", flops, (long long)rounds, (double)out[0]);
}

void test_read(struct trial *t) {
    int64_t floats = pick(t, "floats", 0, 5000, 4096);
    int streams = (int)pick(t, "streams", 1, 64, 8);
    float *from = input_floats(t, floats), *out = output_floats(t, 1);
    double sum = 0, size = 0;
    int64_t step = 8 * t->set->row_step, part = floats / streams / step * step;
    RUN(t, t->set->read(from, floats, streams, out));
    /* the first lane of what was read */
    for (int64_t i = 0; i < part * streams; i += t->set->row_step) {
        sum += (double)from[i];
        size += fabs((double)from[i]);
    }
    expect_near(t, "sum", 0, 0, out[0], sum, size < 3e38 ? size * sum_error(part * streams / t->set->row_step) : INFINITY);
}

static void vectors(struct trial *t, tp__exp2_fn *function, double (*exact)(double), double error, int negative) {
    int64_t n = pick(t, "vectors", 1, 20, 16) * t->set->row_step;
    float *x = input_floats(t, n), *y = output_floats(t, n);
    for (int64_t i = 0; i < n; i++) {
        if (one_in(t, 2)) x[i] *= (float)exp2((double)roll_below(t, 40) - 20);
        if (negative && !isnan(x[i])) x[i] = -fabsf(x[i]);
    }
    RUN(t, function(x, y, n));
    for (int64_t i = 0; i < n; i++) {
        double expected = exact((double)x[i]);
        expect_near(t, "y", 0, i, y[i], expected, error * expected * (expected < 0 ? -1 : 1) + (negative ? 0x1p-100 : 0x1p-149));
    }
}

static double exact_exp2(double x) { return exp2(x); }
static double exact_tanh(double x) { return tanh(x * 0.34657359027997264); }

void test_exp2(struct trial *t) { vectors(t, t->set->exp2, exact_exp2, 2e-7, 1); }
void test_tanh(struct trial *t) { vectors(t, t->set->tanh, exact_tanh, 2.6e-7, 0); }
