/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a kernel that follows docs/maths.md section 9 may be from the gradients. A pair's
 * probability is recomputed from a score and a stored lse, both of which have errors of their own;
 * dP is a dot product; D is one of dO with the output as it was stored. What a pair hands on is
 * then off by
 *
 *     e(dS) = (P + e(P)) (e(dP) + e(D)) + e(P) |dP - D| + roundings
 *
 * and a sum of n such terms by the sum of their errors and n u times the sum of their magnitudes,
 * in whatever order it is taken.
 */
#include "reference/backward.h"

#include "reference/rounding.h"

/* Of the probability that is recomputed. One that is too small for a double may still grow, in a row of huge scores. */
static double probability_error(const tp__reference_row *row, const tp__key *key,
                                double lse_error) {
    double score = key->score * TP__LOG2_E, lse = row->lse * TP__LOG2_E, gap = fabs(score - lse);
    double log_factor = LN_2 * (key->error + UNIT * (fabs(score) + 3 * gap)) + lse_error + EXP2_ERROR;
    double p = key->weight / row->sum;
    if (lse - score - key->error - lse_error / LN_2 > row->rounding->lowest + 2) return p; /* exactly 0 */
    if (log_factor > 600 || key->weight < DBL_MIN) return exp(key->score - row->lse + log_factor);
    double up = expm1(log_factor);
    return p * (gap > row->rounding->lowest ? fmax(up, 1) : up);
}

/* Of softcap's derivative 1 - t^2. tanh is flat far out: it moves most when its argument is off towards 0. */
static double cap_error(const tp__reference_row *row, const tp__key *key, double t) {
    double cap = row->problem->softcap, x = fabs(row->row_scale * key->plain / cap);
    double off = LN_2 * key->plain_error / cap + 3 * UNIT * x;
    double error = fmin(tanh(x) - tanh(x - off), 2) + (TANH_ERROR + UNIT) * fabs(t) + TINY;
    return 2 * fabs(t) * error + error * error + 3 * UNIT;
}

/* The difference dP - D, and what it can be off. */
typedef struct difference {
    double value, error;
    int unsure; /* of D, which is infinite: its sign */
} difference;

static difference through_score(const tp__reference_row *row, const tp__key *key, difference d) {
    double steep = 1, error = 0, scale = fabs(row->row_scale), size = fabs(d.value) + d.error;
    if (row->problem->softcap > 0) {
        double t = tanh(row->row_scale * key->plain / row->problem->softcap);
        steep = 1 - t * t;
        error = cap_error(row, key, t);
    }
    d.error = scale * (d.error * steep + size * error + 5 * UNIT * size * (steep + error)) + TINY;
    return d;
}

static difference of_row(const tp__backward_row *b) {
    const tp__reference_row *row = &b->row;
    int64_t dv = row->problem->head_dim_v;
    double sum = -b->d_lse, stored = 0, size = 0;
    int unsure = 0;
    for (int64_t x = 0; x < dv; x++) {
        double d_o = fabs(b->d_o[x]), bound = row->columns.bound[x];
        sum += b->d_o[x] * row->o[x];
        stored += d_o * bound;
        size += d_o * (fabs(row->o[x]) + bound);
        unsure |= isinf(d_o) && fabs(row->o[x]) <= bound;
    }
    double walk =
        (double)(dv + 1) * UNIT * size + UNIT * (fabs(b->d_lse) + size) + (double)dv * TINY;
    if (!(size * SECOND_ORDER < FLT_MAX)) walk = INFINITY;
    return (difference){sum, stored + walk, unsure};
}

static difference of_pair(const tp__backward_row *b, const tp__key *key, const difference *delta) {
    int64_t dv = b->row.problem->head_dim_v;
    double sum = 0, size = 0;
    const double *v = tp__row_v(&b->row, key);
    for (int64_t x = 0; x < dv && key->index != TP__SINK; x++) {
        double term = b->d_o[x] * v[x];
        sum += term;
        size += fabs(term);
    }
    if (!(fmax(key->stays, 1) * size * SECOND_ORDER < FLT_MAX)) size = INFINITY; /* before dropout's factor and after */
    double value = key->stays * sum - delta->value;
    double error = (double)(dv + 3) * UNIT * key->stays * size + (double)dv * TINY + delta->error;
    error += UNIT * (fabs(value) + error);
    if (!((fabs(value) + error) * SECOND_ORDER < FLT_MAX)) error = INFINITY; /* the difference, too, is a float */
    return (difference){value, error, delta->unsure};
}

void tp__pairs_bound(tp__backward_row *b) {
    tp__reference_row *row = &b->row;
    double bound, lse_bound;
    tp__row_bound(row, &bound, &lse_bound);
    difference delta = of_row(b);
    for (int64_t i = 0; i < row->count; i++) {
        const tp__key *key = &row->keys[i];
        tp__pair *pair = &b->pairs[i];
        pair->overflows = !(bound < INFINITY);
        if (pair->overflows || !isfinite(row->lse)) {
            pair->p_error = pair->score_error = pair->d_error = INFINITY;
            continue;
        }
        double p = key->weight / row->sum, p_error = probability_error(row, key, lse_bound) + TINY;
        difference d = of_pair(b, key, &delta);
        /* NaN is infinity less infinity or 0 times infinity: but a float's D may have the other sign, and its P be more than 0 */
        if (d.unsure || (p == 0 && p_error > TINY && !isfinite(d.value))) pair->overflows = 1;
        double size = (p + p_error) * (fabs(d.value) + d.error);
        d.error = (p + p_error) * d.error + p_error * fabs(d.value) + 2 * UNIT * size + TINY;
        d.value *= p;
        pair->p_error =
            key->stays * (p_error + (row->problem->dropout > 0 ? 3 * UNIT * (p + p_error) : 0));
        pair->score_error = d.error;
        pair->d_error = through_score(row, key, d).error;
        double unit = row->rounding->weight, least = row->rounding->flushes; /* as they are rounded before they are summed */
        pair->p_error += unit * (pair->p + pair->p_error) + least;
        pair->d_error += unit * (fabs(pair->d_plain) + pair->d_error) + least;
    }
}

double tp__sum_bound(const tp__sum *sum, int64_t terms, double factor, int32_t dtype, double tiny) {
    if (sum->overflows) return INFINITY; /* a score that became -inf takes the row away, NaN and all */
    if (!isfinite(sum->value) || terms == 0) return 0; /* must be just that */
    double steps = (double)terms + 8, size = sum->size + sum->error;
    double error = sum->error + steps * UNIT / (1 - steps * UNIT) * size + steps * tiny;
    error = fabs(factor) * error * SECOND_ORDER + (2 * steps + 1) * tiny; /* d_k is summed with the factor in it */
    if (!(size * fmax(fabs(factor), 1) * SECOND_ORDER < FLT_MAX)) return INFINITY;
    return error + tp__store_error(dtype, fabs(factor * sum->value) + error);
}
