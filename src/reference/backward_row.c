/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of the gradients as they are defined. With P_j = exp(s_j - lse), z_j what dropout makes
 * of a pair, and f(s) all that stands between scale*q.k and the softmax:
 *
 *     dP_j = z_j sum_x dO_x v_jx
 *     D    = sum_x dO_x o_x - dLSE
 *     dS_j = P_j (dP_j - D)                     of the bias; times -|distance| of the slope; of the
 * sink ds_j = dS_j f'(s_j)                       (1 - tanh^2) of softcap, the factor by position
 *     dV_j += P_j z_j dO     dQ = scale sum_j ds_j k_j     dK_j += scale ds_j q
 */
#include "reference/backward.h"

#include <math.h>

/* Of the score with respect to scale * q.k. */
static double slope(const tp__reference_row *row, const tp__key *key) {
    double cap = row->problem->softcap;
    if (!(cap > 0)) return row->row_scale;
    double t = tanh(row->row_scale * key->plain / cap);
    return row->row_scale * (1 - t * t);
}

void tp__pairs_double(tp__backward_row *b) {
    const tp__reference_row *row = &b->row;
    int64_t dv = row->problem->head_dim_v;
    double delta = -b->d_lse;
    for (int64_t x = 0; x < dv; x++) delta += b->d_o[x] * row->o[x];
    for (int64_t i = 0; i < row->count; i++) {
        const tp__key *key = &row->keys[i];
        int sink = key->index == TP__SINK;
        double d_p = 0, p = isnan(row->lse) ? NAN : key->weight / row->sum;
        const double *v = tp__row_v(row, key);
        for (int64_t x = 0; x < dv && !sink; x++) d_p += b->d_o[x] * v[x];
        double d_score = p * (key->stays * d_p - delta);
        b->pairs[i] = (tp__pair){.p = p * key->stays,
                                 .d_score = d_score,
                                 .d_plain = sink ? 0 : d_score * slope(row, key)};
    }
}

/* A plain backward in the tensors' dtypes: P, dP and dS are tensors of their own. Floats, held by
 * doubles. */
void tp__pairs_naive(tp__backward_row *b) {
    const tp__reference_row *row = &b->row;
    const tp_problem *problem = row->problem;
    int64_t dv = problem->head_dim_v;
    float delta = 0; /* from the last to the first: in the order of dP, the two would agree to the bit where P is 1 */
    for (int64_t x = dv - 1; x >= 0; x--) delta += (float)b->d_o[x] * (float)row->o[x];
    delta -= (float)b->d_lse;
    for (int64_t i = 0; i < row->count; i++) {
        const tp__key *key = &row->keys[i];
        int sink = key->index == TP__SINK;
        float d_p = 0, stays = (float)key->stays;
        float p = isnan(row->lse)
                      ? NAN
                      : tp__rounded(problem->v_dtype, (float)key->weight / (float)row->sum);
        const double *v = tp__row_v(row, key);
        for (int64_t x = 0; x < dv && !sink; x++) d_p += (float)b->d_o[x] * (float)v[x];
        d_p = tp__rounded(problem->o_dtype, d_p * stays);
        float d_score = tp__rounded(problem->k_dtype, p * (d_p - delta)), d_plain = d_score;
        if (problem->softcap > 0 || problem->qscale_length > 0)
            d_plain = tp__rounded(problem->k_dtype, d_score * (float)slope(row, key));
        b->pairs[i] = (tp__pair){.p = tp__rounded(problem->v_dtype, p * stays),
                                 .d_score = d_score,
                                 .d_plain = sink ? 0 : d_plain};
    }
}
