/* SPDX-License-Identifier: Apache-2.0 */
/* States of rows that become one: merge_state, merge_sinks. */
#include "kernels/trial.h"

static const double exp2_error = 2e-7;

struct state {
    float *m, *l, *o;         /* as they come out */
    float *m1, *l1, *o1;      /* as they were */
    int64_t rows, ldo;
};

/* Some rows are empty: they have seen no key. */
static void state_make(struct trial *t, struct state *s, int64_t rows, int64_t ldo, int is_input) {
    s->rows = rows;
    s->ldo = ldo;
    s->m1 = input(t, rows, 4);
    s->l1 = input(t, rows, 4);
    s->o1 = input_floats(t, rows * ldo);
    for (int64_t i = 0; i < rows; i++) {
        int empty = one_in(t, 5);
        s->m1[i] = empty ? -INFINITY : ordinary(t) * (float)exp2((double)roll_below(t, 8));
        s->l1[i] = empty ? 0 : 1 + fabsf(ordinary(t)) * 50;
        for (int64_t x = 0; x < ldo && empty; x++) s->o1[i * ldo + x] = 0;
    }
    if (is_input) return;
    s->m = output(t, rows, 4);
    s->l = output(t, rows, 4);
    s->o = output(t, rows * ldo, 4);
    memcpy(s->m, s->m1, (size_t)rows * sizeof(float));
    memcpy(s->l, s->l1, (size_t)rows * sizeof(float));
    memcpy(s->o, s->o1, (size_t)(rows * ldo) * sizeof(float));
}

/* What a difference of two maxima of this size may be off by, as a factor. */
static double power(double down, double unit, double *error) {
    double y = down == -INFINITY ? -INFINITY : down * unit;
    *error = exp2_error + (isfinite(y) ? fabs(y) * 0x1p-22 : 0);
    return exp2(y);
}

void test_merge_state(struct trial *t) {
    struct state a, b;
    int64_t rows = pick(t, "rows", 1, 100, 96), ldo = up(pick(t, "ldo", 1, 150, 128), t->set->row_step);
    float unit = one_in(t, 2) ? 1.4426950408889634f : (float)exp2((double)roll_below(t, 8) - 4);
    state_make(t, &a, rows, ldo, 0);
    state_make(t, &b, rows, ldo, 1);
    RUN(t, t->set->merge_state(&t->trace, rows, ldo, a.m, a.l, a.o, b.m1, b.l1, b.o1, unit));
    for (int64_t i = 0; i < rows; i++) {
        int left = a.m1[i] == -INFINITY, right = b.m1[i] == -INFINITY;
        double best = fmax((double)a.m1[i], (double)b.m1[i]), wa = 0, wb = 0, ea = 0, eb = 0;
        expect_same(t, "m", i, 0, a.m[i], (float)best);
        if (best != -INFINITY)
            wa = power((double)a.m1[i] - best, (double)unit, &ea), wb = power((double)b.m1[i] - best, (double)unit, &eb);
        double l = (double)a.l1[i] * wa + (double)b.l1[i] * wb;
        if (left || right)
            expect_same(t, "l beside an empty state", i, 0, a.l[i], left ? b.l1[i] : a.l1[i]);
        else
            expect_near(t, "l", i, 0, a.l[i], l, l * (ea + eb + 0x1p-22) + 0x1p-90);
        for (int64_t x = 0; x < ldo; x++) {
            double o1 = (double)a.o1[i * ldo + x], o2 = (double)b.o1[i * ldo + x], size = fabs(o1) * wa + fabs(o2) * wb;
            int spoilt = !isfinite(o1) || !isfinite(o2);
            float other = left ? b.o1[i * ldo + x] : a.o1[i * ldo + x];
            if (!spoilt && (left || right)) { /* -0 may become 0 */
                if (a.o[i * ldo + x] != other)
                    wrong(t, "o[%lld][%lld] is %g beside an empty state: it must stay %g", (long long)i, (long long)x,
                          (double)a.o[i * ldo + x], (double)other);
            } else if (!spoilt)
                expect_near(t, "o", i, x, a.o[i * ldo + x], o1 * wa + o2 * wb,
                            size * (ea + eb + 0x1p-22) + (fabs(o1) + fabs(o2)) * 0x1p-99 + 0x1p-148);
            else if (isfinite(a.o[i * ldo + x]))
                wrong(t, "o[%lld][%lld] is %g: what is merged is not finite", (long long)i, (long long)x,
                      (double)a.o[i * ldo + x]);
        }
    }
}

void test_merge_sinks(struct trial *t) {
    struct state a;
    int64_t rows = pick(t, "rows", 1, 100, 96), ldo = up(pick(t, "ldo", 1, 150, 128), t->set->row_step),
            group = pick(t, "group", 1, 9, 4);
    tp__rows of = {.first = pick(t, "first", 0, 20, 0), .count = rows, .group = group};
    float left = one_in(t, 2) ? 1 : (float)exp2((double)roll_below(t, 5) - 3) * 1.1f, *sinks = input(t, group, 4);
    for (int64_t h = 0; h < group; h++)
        sinks[h] = one_in(t, 4) ? -INFINITY : t->content == WITH_NAN && one_in(t, 3) ? (one_in(t, 2) ? NAN : INFINITY)
                   : t->content == WITH_LARGE && one_in(t, 3) ? 3e38f : ordinary(t) * 8;
    state_make(t, &a, rows, ldo, 0);
    RUN(t, t->set->merge_sinks(&t->trace, &of, sinks, ldo, left, a.m, a.l, a.o));
    for (int64_t i = 0; i < rows; i++) {
        float sink = sinks[(of.first + i) % group], m = a.m1[i] * left;
        int none = sink == -INFINITY, spoils = isnan(sink) || sink == INFINITY;
        float best = m > sink ? m : sink;
        if (!spoils) expect_same(t, "m", i, 0, a.m[i], none ? m : best);
        double ea = 0, eb = 0, wa = 1, wb = 0;
        if (!none && !spoils) {
            wa = power((double)m - (double)best, 1.4426950408889634, &ea);
            wb = power((double)sink - (double)best, 1.4426950408889634, &eb);
        }
        double l = (double)a.l1[i] * wa + wb;
        if (spoils && !isnan(a.l[i])) wrong(t, "l[%lld] is %g with a sink of %g", (long long)i, (double)a.l[i], (double)sink);
        if (!spoils) expect_near(t, "l", i, 0, a.l[i], l, none ? 0 : l * (ea + eb + 0x1p-22) + 0x1p-90);
        for (int64_t x = 0; x < ldo; x++) {
            double o = (double)a.o1[i * ldo + x];
            if (none)
                expect_same(t, "o without a sink", i, x, a.o[i * ldo + x], a.o1[i * ldo + x]);
            else if (!spoils)
                expect_near(t, "o", i, x, a.o[i * ldo + x], o * wa,
                            isfinite(o) ? fabs(o) * wa * (ea + 0x1p-22) + fabs(o) * 0x1p-99 + 0x1p-148 : INFINITY);
        }
    }
}
