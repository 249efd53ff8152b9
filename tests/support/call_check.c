/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing a call with the reference, and two calls with each other. */
#include "support/call.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MIN = 64 }; /* with fewer, which of two roundings errs more is mere luck */
#define WORK_MAX 3e6    /* multiplications of the reference before rows are sampled */

typedef struct rows {
    tp_row *list;
    int64_t count;
} rows;

/* About every step-th row, whatever the heads, and the corners of every sequence. */
static rows choose_rows(const call *c) {
    double work = 0;
    int64_t total = 0;
    for (int64_t s = 0; s < c->tensors.batch; s++) {
        int64_t heads = c->q_lens[s] * c->problem.q_heads;
        total += heads;
        work += (double)heads * (double)c->kv_lens[s] *
                (double)(c->problem.head_dim_qk + c->problem.head_dim_v);
    }
    double max = call_quick() ? WORK_MAX / 8 : WORK_MAX;
    int64_t step = work > max ? (int64_t)(work / max) + 1 : 1, index = 0;
    rows chosen = {malloc((size_t)(total + 1) * sizeof(tp_row)), 0};
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t r = 0; r < c->q_lens[s]; r++)
            for (int64_t h = 0; h < c->problem.q_heads; h++, index++) {
                int edge =
                    (r == 0 || r + 1 == c->q_lens[s]) && (h == 0 || h + 1 == c->problem.q_heads);
                if ((uint32_t)index * 2654435761u / 65536 % step == 0 || edge)
                    chosen.list[chosen.count++] = (tp_row){s, h, r};
            }
    return chosen;
}

/* Half an ulp at this magnitude. */
static double half_ulp(int32_t dtype, double magnitude) {
    int digits = dtype == TP_F16 ? 11 : dtype == TP_BF16 ? 8 : 24;
    int min = dtype == TP_F16 ? -13 : -125, exponent;
    frexp(magnitude, &exponent);
    return ldexp(0.5, (exponent > min ? exponent : min) - digits);
}

typedef struct call_oracle {
    rows chosen;
    double *o, *lse, *bound, *lse_bound, *naive_o, *naive_lse, largest_v;
} oracle;

static double largest_value(const call *c) {
    double max = 0;
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t t = 0; t < c->kv_lens[s]; t++)
            for (int64_t h = 0; h < c->problem.kv_heads; h++)
                for (int64_t x = 0; x < c->problem.head_dim_v; x++)
                    max = fmax(max, fabs(call_get(c, CALL_V, s, t, h, x)));
    return max;
}

static oracle *oracle_of(const call *c) {
    oracle *t = malloc(sizeof *t);
    assert_non_null(t);
    t->chosen = choose_rows(c);
    size_t n = (size_t)t->chosen.count, values = n * (size_t)c->problem.head_dim_v;
    t->o = malloc((2 * values + 4 * n + 1) * sizeof *t->o);
    assert_non_null(t->o);
    t->lse = t->o + values;
    t->bound = t->lse + n;
    t->lse_bound = t->bound + n;
    t->naive_o = t->lse_bound + n;
    t->naive_lse = t->naive_o + values;
    t->largest_v = largest_value(c);
    tp_error error = TP_ERROR_INIT;
    if (tp_reference(&c->problem, &c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, t->chosen.count, t->chosen.list, t->o, t->lse,
                     t->bound, t->lse_bound, &error) ||
        tp_reference(&c->problem, &c->tensors, TP_NAIVE, TP_ARITHMETIC_F32, t->chosen.count, t->chosen.list, t->naive_o,
                     t->naive_lse, NULL, NULL, &error))
        fail_msg("%s", error.text);
    return t;
}

void call_oracle_free(oracle *t) {
    if (t == NULL) return;
    free(t->chosen.list);
    free(t->o);
    free(t);
}

void call_keep(call *c) { c->keeps = 1; }

typedef struct figures {
    double error, naive, magnitude; /* the largest over all rows */
} figures;

/* One value against the oracle; NaN and infinities must be the same. */
static void compare(const char *what, const char *name, const tp_row *row, int64_t x, double got,
                    double want, double naive, double bound, figures *f) {
    if (isnan(want) || isinf(want) || isnan(got) || isinf(got)) {
        if (isnan(want) ? !isnan(got) : got != want)
            fail_msg("%s: seq %lld head %lld row %lld: %s[%lld] is %g, not %g", what,
                     (long long)row->seq, (long long)row->head, (long long)row->row, name,
                     (long long)x, got, want);
        return;
    }
    if (!isfinite(bound))
        fail_msg("%s: seq %lld head %lld row %lld: %s is finite, its bound is not: nothing would be checked", what,
                 (long long)row->seq, (long long)row->head, (long long)row->row, name);
    double error = fabs(got - want);
    if (!(error <= bound))
        fail_msg("%s: seq %lld head %lld row %lld: %s[%lld] is %.9g, not %.9g: error %g, bound %g",
                 what, (long long)row->seq, (long long)row->head, (long long)row->row, name,
                 (long long)x, got, want, error, bound);
    f->error = fmax(f->error, error);
    if (isfinite(naive)) f->naive = fmax(f->naive, fabs(naive - want));
    f->magnitude = fmax(f->magnitude, fabs(want));
}

static void check_rule(const char *what, const char *name, const figures *f, double allowance) {
    if (!(f->error <= 2 * f->naive + allowance))
        fail_msg("%s: %s: largest error %g, naive's %g: it must be at most twice that + %g", what,
                 name, f->error, f->naive, allowance);
}

static void check(call *c, const char *what, int rule) {
    oracle *t = c->oracle != NULL ? c->oracle : oracle_of(c);
    int64_t dv = c->problem.head_dim_v;
    figures o = {0, 0, 0}, lse = {0, 0, 0};
    if (c->keeps) c->oracle = t;
    for (int64_t i = 0; i < t->chosen.count; i++) {
        const tp_row *r = &t->chosen.list[i];
        for (int64_t x = 0; x < dv; x++)
            compare(what, "o", r, x, call_get(c, CALL_O, r->seq, r->row, r->head, x),
                    t->o[i * dv + x], t->naive_o[i * dv + x], t->bound[i], &o);
        if (c->tensors.lse.data != NULL)
            compare(what, "lse", r, 0, call_get(c, CALL_LSE, r->seq, r->row, r->head, 0), t->lse[i],
                    t->naive_lse[i], t->lse_bound[i], &lse);
    }
    if (rule && t->chosen.count >= ROWS_MIN) {
        check_rule(what, "o", &o,
                   4 * FLT_EPSILON * t->largest_v + half_ulp(c->problem.o_dtype, o.magnitude));
        check_rule(what, "lse", &lse, 4 * FLT_EPSILON * fmax(lse.magnitude, 1));
    }
    if (!c->keeps) call_oracle_free(t);
}

void call_check(call *c, const char *what) {
    check(c, what, 1);
}

void call_check_bounds(call *c, const char *what) {
    check(c, what, 0);
}

void call_same_row(const call *a, int64_t a_seq, int64_t a_row, int64_t a_head, const call *b,
                   int64_t b_seq, int64_t b_row, int64_t b_head, const char *what) {
    for (int which = CALL_O; which <= CALL_LSE; which++) {
        size_t size = tp_dtype_bytes((tp_dtype)call_dtype(a, which));
        const char *x = call_at(a, which, a_seq, a_row, a_head);
        const char *y = call_at(b, which, b_seq, b_row, b_head);
        if (memcmp(x, y, (size_t)call_dim(a, which) * size) == 0) continue;
        int64_t at = 0;
        while (memcmp(x + (size_t)at * size, y + (size_t)at * size, size) == 0) at++;
        fail_msg(
            "%s: %s[%lld] of row %lld, head %lld, seq %lld is %.9g, and %.9g in row %lld, head "
            "%lld, seq %lld of the other",
            what, which == CALL_O ? "o" : "lse", (long long)at, (long long)a_row, (long long)a_head,
            (long long)a_seq, call_get(a, which, a_seq, a_row, a_head, at),
            call_get(b, which, b_seq, b_row, b_head, at), (long long)b_row, (long long)b_head,
            (long long)b_seq);
    }
}

void call_same_seq(const call *a, int64_t a_seq, const call *b, int64_t b_seq, const char *what) {
    assert_int_equal(a->q_lens[a_seq], b->q_lens[b_seq]);
    for (int64_t r = 0; r < a->q_lens[a_seq]; r++)
        for (int64_t h = 0; h < a->problem.q_heads; h++)
            call_same_row(a, a_seq, r, h, b, b_seq, r, h, what);
}

void call_same(const call *a, const call *b, const char *what) {
    assert_int_equal(a->tensors.batch, b->tensors.batch);
    for (int64_t s = 0; s < a->tensors.batch; s++) call_same_seq(a, s, b, s, what);
}
