/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/oracle.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const double float_ulp = 0x1p-23;
enum { FEW_ROWS = 32 };

double half_ulp(tp_dtype dtype) {
    return dtype == TP_F32 ? 0x1p-24 : dtype == TP_F16 ? 0x1p-11 : 0x1p-8;
}

void oracle_destroy(struct oracle *oracle) {
    free(oracle->rows);
    free(oracle->memory);
    *oracle = (struct oracle){0};
}

/* What one thread takes of an oracle: so many rows from the first on, then those a step further, and so on. */
struct share {
    struct oracle *oracle;
    const struct tensors *tensors;
    int64_t first, rows, step;
    tp_status status;
    tp_error error;
    pthread_t thread;
    int started;
};

static void *take_share(void *argument) {
    struct share *s = argument;
    struct oracle *t = s->oracle;
    const tp_problem *problem = &s->tensors->problem;
    /* an oracle without rows is checked, too */
    for (int64_t i = s->first; (i < t->count || i == 0) && s->status == TP_OK; i += s->step) {
        int64_t n = t->count - i < s->rows ? t->count - i : s->rows;
        for (int a = 0; a < ORACLE_ARITHMETICS && s->status == TP_OK; a++)
            if (t->bound[a])
                s->status = tp_reference(problem, &s->tensors->call, TP_DOUBLE, (tp_arithmetic)a, n, t->rows + i,
                                         t->o + i * t->dim, t->lse + i, t->bound[a] + i, t->lse_bound[a] + i, &s->error);
        if (s->status == TP_OK)
            s->status = tp_reference(problem, &s->tensors->call, TP_NAIVE, TP_ARITHMETIC_F32, n, t->rows + i,
                                     t->naive_o + i * t->dim, t->naive_lse + i, NULL, NULL, &s->error);
    }
    return NULL;
}

enum { MAX_SHARES = 16, SHARED_ROWS = 2 };

/* Rows know nothing of each other, so any number of threads gives the same numbers. */
static tp_status take_rows(struct oracle *oracle, const struct tensors *tensors, int threads, tp_error *error) {
    struct share shares[MAX_SHARES];
    int count = threads < 1 ? 1 : threads > MAX_SHARES ? MAX_SHARES : threads;
    tp_status status = TP_OK;
    for (int i = 0; i < count; i++)
        shares[i] = (struct share){.oracle = oracle,
                                   .tensors = tensors,
                                   .first = i * SHARED_ROWS,
                                   .rows = count == 1 ? oracle->count : SHARED_ROWS,
                                   .step = count == 1 ? oracle->count + 1 : count * SHARED_ROWS,
                                   .error = TP_ERROR_INIT};
    for (int i = 1; i < count; i++)
        shares[i].started = !pthread_create(&shares[i].thread, NULL, take_share, &shares[i]);
    for (int i = 0; i < count; i++)
        if (!shares[i].started) take_share(&shares[i]);
    for (int i = 0; i < count; i++) {
        if (shares[i].started) pthread_join(shares[i].thread, NULL);
        if (status != TP_OK || shares[i].status == TP_OK) continue;
        status = shares[i].status;
        *error = shares[i].error;
    }
    return status;
}

tp_status oracle_create_on(struct oracle *oracle, const struct tensors *tensors, int64_t limit,
                          uint64_t seed, int threads, tp_error *error) {
    *oracle = (struct oracle){.dim = tensors->problem.head_dim_v};
    oracle->count = sample_rows(tensors, limit, seed, &oracle->rows);
    int64_t count = oracle->count;
    if (count >= 0)
        oracle->memory = calloc((size_t)count * (2 * (size_t)oracle->dim + 2 + 2 * ORACLE_ARITHMETICS) + 1, sizeof(double));
    if (!oracle->memory) {
        oracle_destroy(oracle);
        error->status = TP_NO_MEMORY;
        snprintf(error->text, sizeof error->text, "no memory for the reference rows");
        return TP_NO_MEMORY;
    }
    oracle->o = oracle->memory;
    oracle->naive_o = oracle->o + count * oracle->dim;
    oracle->lse = oracle->naive_o + count * oracle->dim;
    oracle->naive_lse = oracle->lse + count;
    for (int a = 0; a < ORACLE_ARITHMETICS; a++) {
        int judged = a == TP_ARITHMETIC_P_BF16 ? tensors->problem.p_dtype == TP_BF16
                                               : a == TP_ARITHMETIC_F32 || a == (int)tensors->arithmetic;
        if (!judged) continue;
        oracle->bound[a] = oracle->naive_lse + (1 + 2 * a) * count;
        oracle->lse_bound[a] = oracle->bound[a] + count;
    }
    oracle->max_v = tensors_max(tensors, TENSOR_V);
    tp_status status = take_rows(oracle, tensors, threads, error);
    if (status != TP_OK) oracle_destroy(oracle);
    return status;
}

tp_status oracle_create(struct oracle *oracle, const struct tensors *tensors, int64_t limit,
                       uint64_t seed, tp_error *error) {
    return oracle_create_on(oracle, tensors, limit, seed, 1, error);
}

/* One value against the oracle: an error, or a disagreement about being finite. */
static int differs(double expected, double got, double *error) {
    *error = 0;
    if (isnan(expected)) return !isnan(got);
    if (isinf(expected)) return got != expected;
    if (!isfinite(got)) return 1;
    *error = fabs(got - expected);
    return 0;
}

struct place {
    char *reason;
    size_t size;
    const tp_row *row;
};

static int report(const struct place *place, const char *what, double expected, double got,
                  double error, double limit) {
    snprintf(
        place->reason, place->size,
        "%s of seq %lld head %lld row %lld: expected %.9g, got %.9g (error %.3g, allowed %.3g)",
        what, (long long)place->row->seq, (long long)place->row->head, (long long)place->row->row,
        expected, got, error, limit);
    return 1;
}

struct totals {
    double sum, naive_sum, max_o;
    int64_t values;
    double worst_expected, worst_got;
    const tp_row *worst_row;
};

static void look_nearest(const tp_row *row, double bound, double error, struct measured_error *measured) {
    double ratio = error / bound;
    if (!(bound > 0) || !isfinite(bound) || ratio < measured->nearest.ratio) return;
    measured->nearest.row = *row;
    measured->nearest.error = error;
    measured->nearest.bound = bound;
    measured->nearest.ratio = ratio;
}

static int compare_row(const struct oracle *oracle, const struct tensors *tensors, int64_t i, double bound,
                       struct measured_error *measured, struct totals *totals,
                       const struct place *place) {
    const tp_row *row = &oracle->rows[i];
    int empty = oracle->lse[i] == -INFINITY;
    if (empty && oracle->foreign) return 0;
    for (int64_t x = 0; x < oracle->dim; x++) {
        double expected = oracle->o[i * oracle->dim + x], error, naive_error;
        double got = tensors_get(tensors, TENSOR_O, row->seq, row->row, row->head, x);
        if (isinf(expected) && isnan(got) && !oracle->strict) continue; /* an infinite v shows, as infinity or as NaN */
        if (differs(expected, got, &error)) return report(place, "o", expected, got, NAN, 0);
        if (empty && got != 0) return report(place, "o of an empty row", 0, got, error, 0);
        if (!oracle->foreign) {
            look_nearest(row, bound, error, measured);
            if (isfinite(expected) && !isfinite(bound))
                return report(place, "o has no finite bound: nothing would be checked", expected, got, error, bound);
            if (error > bound) return report(place, "o beyond its derived bound", expected, got, error, bound);
        }
        if (!isfinite(expected)) continue;
        if (differs(expected, oracle->naive_o[i * oracle->dim + x], &naive_error)) naive_error = 0;
        if (error > measured->max || !totals->worst_row) {
            measured->max = error;
            totals->worst_expected = expected;
            totals->worst_got = got;
            totals->worst_row = row;
        }
        if (naive_error > measured->naive_max) measured->naive_max = naive_error;
        if (fabs(expected) > totals->max_o) totals->max_o = fabs(expected);
        totals->sum += error;
        totals->naive_sum += naive_error;
        totals->values++;
    }
    return 0;
}

static int compare_lse(const struct oracle *oracle, const struct tensors *tensors, int64_t i, double bound,
                       struct measured_error *measured, const struct place *place) {
    const tp_row *row = &oracle->rows[i];
    double expected = oracle->lse[i], error, naive_error;
    double got = tensors_get(tensors, TENSOR_LSE, row->seq, row->row, row->head, 0);
    if (differs(expected, got, &error)) return report(place, "lse", expected, got, NAN, 0);
    if (isfinite(expected) && !isfinite(bound))
        return report(place, "lse has no finite bound: nothing would be checked", expected, got, error, bound);
    if (error > bound)
        return report(place, "lse beyond its derived bound", expected, got, error, bound);
    if (!isfinite(expected)) return 0;
    if (differs(expected, oracle->naive_lse[i], &naive_error)) naive_error = 0;
    if (error > measured->lse_max) measured->lse_max = error;
    if (naive_error > measured->lse_naive_max) measured->lse_naive_max = naive_error;
    return 0;
}

int oracle_compare(const struct oracle *oracle, const struct tensors *tensors, int32_t arithmetic,
                   struct measured_error *measured, char *reason, size_t size) {
    struct totals totals = {0};
    double max_lse = 1;
    *measured = (struct measured_error){0};
    if (arithmetic < 0 || arithmetic >= ORACLE_ARITHMETICS || !oracle->bound[arithmetic]) {
        snprintf(reason, size, "the kernel's arithmetic is %s, which the problem does not permit",
                 tp_arithmetic_name((tp_arithmetic)arithmetic));
        return 1;
    }
    for (int64_t i = 0; i < oracle->count; i++) {
        struct place place = {reason, size, &oracle->rows[i]};
        if (compare_row(oracle, tensors, i, oracle->bound[arithmetic][i], measured, &totals, &place)) return 1;
        if (isfinite(oracle->lse[i])) max_lse = fmax(max_lse, fabs(oracle->lse[i]));
        if (tensors->style.lse && compare_lse(oracle, tensors, i, oracle->lse_bound[arithmetic][i], measured, &place)) return 1;
    }
    if (!totals.values || oracle->bounds_alone) return 0;
    tp_dtype dtype = tensors_dtype(tensors, TENSOR_O);
    double luck = (oracle->count < FEW_ROWS ? 2 : 1) * (oracle->allowance > 0 ? oracle->allowance : 1),
           coarse = fmax(1, max_lse / 16);
    measured->floor = 4 * float_ulp * coarse * oracle->max_v + half_ulp(dtype) * totals.max_o +
                      (dtype == TP_F16 ? 0x1p-25 : 0) + /* f16 outputs reach subnormals */
                      (double)tensors->problem.kv_len * 0x1p-149;
    measured->mean = totals.sum / (double)totals.values;
    measured->naive_mean = totals.naive_sum / (double)totals.values;
    struct place place = {reason, size, totals.worst_row};
    double limit = luck * (2 * measured->naive_max + measured->floor);
    if (measured->max > limit)
        return report(&place, "o worse than twice the naive kernel", totals.worst_expected,
                      totals.worst_got, measured->max, limit);
    limit = luck * (2 * measured->naive_mean + measured->floor / 2);
    if (measured->mean > limit) {
        snprintf(reason, size, "mean error of o: %.3g, allowed %.3g (twice naive's %.3g + floor/2)",
                 measured->mean, limit, measured->naive_mean);
        return 1;
    }
    limit = luck * (2 * measured->lse_naive_max + 4 * float_ulp * max_lse);
    if (measured->lse_max > limit) {
        snprintf(reason, size, "max error of lse: %.3g, allowed %.3g (twice naive's %.3g + floor)",
                 measured->lse_max, limit, measured->lse_naive_max);
        return 1;
    }
    return 0;
}
