/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Could this cell have failed? Its outputs must not be constant; the term of the mask that it is there for must
 * hide or show a key to a sampled row; and the rule must notice when two sampled rows, those with the smallest
 * outputs, are exchanged. What passes a test that cannot fail is MISTRUSTED, not QUALIFIED.
 */
#include "qualify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double row_size(const struct oracle *oracle, int64_t i) {
    double sum = 0;
    for (int64_t x = 0; x < oracle->dim; x++) {
        double value = oracle->o[i * oracle->dim + x];
        sum += isfinite(value) ? value * value : 0;
    }
    return sum;
}

static int is_constant(const struct oracle *oracle) {
    for (int64_t i = 1; i < oracle->count * oracle->dim; i++)
        if (oracle->o[i] != oracle->o[0]) return 0;
    return 1;
}

/* The problem without the word, and whether that changes what any sampled row sees. */
static int term_matters(const tp__trial *s) {
    char text[512], *at;
    tp_problem without;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    snprintf(text, sizeof text, "%s", s->cell.problem);
    at = strstr(text, s->cell.shows);
    if (!at) return 0;
    memset(at, ' ', strlen(s->cell.shows));
    if (tp_problem_parse(text, &without, &lengths, NULL) != TP_OK) return 0;
    for (int64_t i = 0; i < s->oracle.count; i++) {
        const tp_row *row = &s->oracle.rows[i];
        for (int64_t key = 0; key < s->tensors.kv_lens[row->seq]; key++)
            if (tp_mask_visible(&s->tensors.problem, &s->tensors.call, row->seq, row->head, row->row,
                                key) != tp_mask_visible(&without, &s->tensors.call, row->seq, row->head,
                                                        row->row, key))
                return 1;
    }
    return 0;
}

static void put_row(struct tensors *tensors, const tp_row *row, const double *values, int64_t dim) {
    for (int64_t x = 0; x < dim; x++)
        tensors_set(tensors, TENSOR_O, row->seq, row->row, row->head, x, (float)values[x]);
}

/* Exchanges two rows of the outputs by the oracle's own values; does the rule see it? */
static int exchange_is_seen(tp__trial *s, int64_t a, int64_t b) {
    struct measured_error measured;
    char reason[512];
    const struct oracle *oracle = &s->oracle;
    put_row(&s->tensors, &oracle->rows[a], oracle->o + b * oracle->dim, oracle->dim);
    put_row(&s->tensors, &oracle->rows[b], oracle->o + a * oracle->dim, oracle->dim);
    return oracle_compare(oracle, &s->tensors, &measured, reason, sizeof reason) != 0;
}

int tp__trial_trust(tp__trial *s) {
    const struct oracle *oracle = &s->oracle;
    int64_t small[2] = {-1, -1};
    if (oracle->count < 2)
        return tp__trial_fail(s, TP_CELL_MISTRUSTED, "%lld rows were sampled: at least 2 must be",
                            (long long)oracle->count);
    if (is_constant(oracle))
        return tp__trial_fail(s, TP_CELL_MISTRUSTED, "every sampled output is %g", oracle->o[0]);
    if (s->cell.shows[0] && !term_matters(s))
        return tp__trial_fail(s, TP_CELL_MISTRUSTED, "%s changes nothing for any sampled row",
                            s->cell.shows);
    for (int64_t i = 0; i < oracle->count; i++) {
        if (small[0] < 0 || row_size(oracle, i) < row_size(oracle, small[0])) {
            small[1] = small[0];
            small[0] = i;
        } else if (small[1] < 0 || row_size(oracle, i) < row_size(oracle, small[1])) {
            small[1] = i;
        }
    }
    if (!exchange_is_seen(s, small[0], small[1]))
        return tp__trial_fail(s, TP_CELL_MISTRUSTED,
                            "two rows could be exchanged within what is allowed: the error rule is too coarse here");
    return 0;
}
