/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of attention as it is defined, with nothing clever:
 *
 *     s_j = scale * sum_x q_x k_jx           over the keys j that the mask allows
 *     o_x = sum_j exp(s_j - max s) v_jx / sum_j exp(s_j - max s)
 *     lse = max s + log(sum_j exp(s_j - max s))
 *
 * A score of NaN or +inf makes the row NaN. A row whose scores are all -inf, or that sees no key,
 * gives o = 0 and lse = -inf. Keys that the mask hides are never read.
 */
#include "reference/reference.h"

#include <math.h>

#include "base/dtype.h"
#include "masks/mask.h"

int64_t tp__row_k(const tp__reference_row *row, int64_t key) {
    return tp__key_place_of(row->problem, row->tensors, row->seq, &row->sequence, key).k + row->k_head;
}

int64_t tp__row_v(const tp__reference_row *row, int64_t key) {
    return tp__key_place_of(row->problem, row->tensors, row->seq, &row->sequence, key).v + row->v_head;
}

/* Keys to ask the mask about: all of the sequence, or those of the row's list. */
static int64_t keys_met(const tp__reference_row *row) {
    if (row->problem->list_len == 0) return row->kv_len;
    return tp__list_count(row->problem, row->tensors, &row->sequence, row->token);
}

static int64_t key_met(const tp__reference_row *row, int64_t i) {
    if (row->problem->list_len == 0) return i;
    return tp__list_key(row->tensors, &row->sequence, row->token, i);
}

/* Fills in o and lse of a row that needs no arithmetic; 0 when it does. */
static int settle(tp__reference_row *row, int spoilt, double max) {
    if (!spoilt && max > -INFINITY) return 0;
    row->lse = spoilt ? NAN : -INFINITY;
    for (int64_t x = 0; x < row->problem->head_dim_v; x++) row->o[x] = spoilt ? NAN : 0;
    return 1;
}

void tp__row_double(tp__reference_row *row) {
    const tp_problem *problem = row->problem;
    const tp_tensors *tensors = row->tensors;
    int64_t d = problem->head_dim_qk, dv = problem->head_dim_v;
    int spoilt = 0;
    row->count = 0;
    row->max = -INFINITY;
    for (int64_t i = 0, met = keys_met(row); i < met; i++) {
        int64_t j = key_met(row, i);
        if (!tp__mask_allowed(problem, row->position, j)) continue;
        if (row->count == 0) /* a row that sees no key does not even read q */
            for (int64_t x = 0; x < d; x++)
                row->q[x] = tp__load(problem->q_dtype, tensors->q.data, row->q_at + x);
        int64_t at = tp__row_k(row, j);
        double dot = 0;
        for (int64_t x = 0; x < d; x++)
            dot += row->q[x] * tp__load(problem->k_dtype, tensors->k.data, at + x);
        double score = row->scale * dot;
        spoilt |= isnan(score) || score == INFINITY;
        if (score > row->max) row->max = score;
        row->keys[row->count++] = (tp__key){.index = j, .place = i, .score = score};
    }
    if (settle(row, spoilt, row->max)) return;

    row->sum = 0;
    for (int64_t x = 0; x < dv; x++) row->o[x] = 0;
    for (int64_t i = 0; i < row->count; i++) {
        tp__key *key = &row->keys[i];
        int64_t at = tp__row_v(row, key->index);
        key->weight = exp(key->score - row->max);
        row->sum += key->weight;
        for (int64_t x = 0; x < dv; x++)
            row->o[x] += key->weight * tp__load(problem->v_dtype, tensors->v.data, at + x);
    }
    for (int64_t x = 0; x < dv; x++) row->o[x] /= row->sum;
    row->lse = row->max + log(row->sum);
}

static float rounded(int32_t dtype, float value) {
    return dtype == TP_F16    ? tp__from_f16(tp__to_f16(value))
           : dtype == TP_BF16 ? tp__from_bf16(tp__to_bf16(value))
                              : value;
}

/* Every float passes through a double without change, so keys and o can hold them. */
void tp__row_naive(tp__reference_row *row) {
    const tp_problem *problem = row->problem;
    const tp_tensors *tensors = row->tensors;
    int64_t d = problem->head_dim_qk, dv = problem->head_dim_v;
    float max = -INFINITY, sum = 0;
    int spoilt = 0;
    for (int64_t i = 0; i < row->count; i++) {
        tp__key *key = &row->keys[i];
        int64_t at = tp__row_k(row, key->index);
        float dot = 0;
        for (int64_t x = 0; x < d; x++)
            dot += (float)row->q[x] * tp__load(problem->k_dtype, tensors->k.data, at + x);
        float score = rounded(problem->k_dtype, dot * row->scale);
        spoilt |= isnan(score) || score == INFINITY;
        if (score > max) max = score;
        key->weight = score;
    }
    if (settle(row, spoilt, max)) return;

    for (int64_t i = 0; i < row->count; i++) {
        float power = expf((float)row->keys[i].weight - max);
        row->keys[i].weight = power;
        sum += power;
    }
    for (int64_t x = 0; x < dv; x++) row->o[x] = 0;
    for (int64_t i = 0; i < row->count; i++) {
        const tp__key *key = &row->keys[i];
        int64_t at = tp__row_v(row, key->index);
        float p = rounded(problem->v_dtype, (float)key->weight / sum);
        for (int64_t x = 0; x < dv; x++)
            row->o[x] = (float)row->o[x] + p * tp__load(problem->v_dtype, tensors->v.data, at + x);
    }
    for (int64_t x = 0; x < dv; x++) row->o[x] = rounded(problem->o_dtype, (float)row->o[x]);
    row->lse = max + logf(sum);
}
