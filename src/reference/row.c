/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of attention as it is defined, with nothing clever:
 *
 *     s_j = scale * sum_x q_x k_jx           over the keys j that the mask allows
 *     s_j = softcap(row_scale * s_j) - slope*|q_pos - k_pos| + bias_j     where asked for
 *     and one more s, the sink, with v = 0                                where asked for
 *     o_x = sum_j exp(s_j - max s) z_j v_jx / sum_j exp(s_j - max s)      z_j: 1; with dropout 0 or 1/(1 - p)
 *     lse = max s + log(sum_j exp(s_j - max s))
 *
 * A score of NaN or +inf makes the row NaN. A row whose scores are all -inf, or that sees no key,
 * gives o = 0 and lse = -inf. Keys that the mask hides are never read.
 */
#include "reference/reference.h"

#include <math.h>

#include "base/dtype.h"
#include "base/philox.h"
#include "masks/mask.h"

int64_t tp__row_k(const tp__reference_row *row, int64_t key) {
    return tp__key_place_of(row->problem, row->tensors, row->view.seq, &row->sequence, key).k + row->k_head;
}

int64_t tp__row_v(const tp__reference_row *row, int64_t key) {
    return tp__key_place_of(row->problem, row->tensors, row->view.seq, &row->sequence, key).v + row->v_head;
}

/* Kernels hold distances relative to some key of the sequence. */
static double farthest(const tp__mask_view *view, int64_t position) {
    double far = (double)view->kv_len;
    for (int64_t j = 0; view->k_pos != NULL && j < view->kv_len; j++)
        far = fmax(far, fabs((double)tp__mask_k_pos(view, j)));
    return 2 * (far + fabs((double)position));
}

void tp__row_place(tp__reference_row *at, const tp_row *chosen) {
    const tp_problem *problem = at->problem;
    const tp_tensors *tensors = at->tensors;
    tp__sequence sequence = tp__sequence_at(problem, tensors, chosen->seq);
    int64_t kv_head = chosen->head / (problem->q_heads / problem->kv_heads);
    at->kv_len = sequence.kv_len;
    at->view = tp__sequence_view(problem, &sequence);
    at->row = chosen->row;
    at->head = chosen->head;
    at->position = tp__mask_q_pos(&at->view, chosen->row);
    at->row_scale = tp__row_scale(problem, at->position);
    at->farthest = farthest(&at->view, at->position);
    at->q_at =
        sequence.q + chosen->row * tensors->q.stride[1] + chosen->head * tensors->q.stride[2];
    at->sequence = sequence;
    at->k_head = kv_head * tensors->k.stride[2];
    at->v_head = kv_head * tensors->v.stride[2];
    at->dropout = tp__dropout_row_of(tensors->dropout_seed, chosen->seq, chosen->head, chosen->row);
}

size_t tp__row_room(const tp_problem *problem, int64_t kv_len) {
    size_t dims = (size_t)(problem->head_dim_qk + problem->head_dim_v);
    return ((size_t)kv_len + 1) * sizeof(tp__key) + (size_t)problem->head_dim_v * sizeof(tp__column) +
           dims * sizeof(double);
}

void tp__row_memory(tp__reference_row *row, int64_t kv_len, void *memory) {
    row->keys = memory;
    row->columns = (tp__column *)(row->keys + kv_len + 1);
    row->q = (double *)(row->columns + row->problem->head_dim_v);
    row->o = row->q + row->problem->head_dim_qk;
}

/* Keys to ask the mask about: all of the sequence, or those of the row's list. */
static int64_t keys_met(const tp__reference_row *row) {
    if (row->problem->list_len == 0) return row->kv_len;
    return tp__list_count(row->problem, row->tensors, &row->sequence, row->row);
}

static int64_t key_met(const tp__reference_row *row, int64_t i) {
    if (row->problem->list_len == 0) return i;
    return tp__list_key(row->tensors, &row->sequence, row->row, i);
}

/* What dropout makes of a probability: a factor. */
static double stays(const tp__reference_row *row, int64_t key) {
    float p = row->problem->dropout;
    uint32_t word = tp__dropout_word(&row->dropout, row->tensors->dropout_offset, key);
    return word >= tp__dropout_threshold(p) ? 1 / (1 - (double)p) : 0;
}

double tp__value_at(const tp__reference_row *row, const tp__key *key, int64_t x) {
    if (key->index == TP__SINK) return 0;
    return tp__load(row->problem->v_dtype, row->tensors->v.data, tp__row_v(row, key->index) + x);
}

double tp__alibi_at(const tp__reference_row *row, int64_t key) {
    const tp_tensors *t = row->tensors;
    if (!row->problem->alibi) return 0;
    double slope = t->alibi_slopes[row->view.seq * t->alibi_stride + row->head];
    return -slope * fabs((double)(row->position - tp__mask_k_pos(&row->view, key)));
}

double tp__bias_value(const tp__reference_row *row, int64_t key) {
    const int64_t *stride = row->tensors->bias_stride;
    if (row->problem->bias_dtype == 0) return 0;
    return tp__load(row->problem->bias_dtype, row->tensors->bias,
                    row->view.seq * stride[0] + row->head * stride[1] + row->row * stride[2] +
                        key * stride[3]);
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
        if (!tp__mask_allowed(&row->view, row->head, row->row, j)) continue;
        /* the check was told that no row sees it: a callback that says otherwise now is not believed */
        if (!tp__key_has_page(problem, tensors, row->view.seq, j)) continue;
        double bias = tp__bias_value(row, j);
        if (bias == -INFINITY) continue;
        if (row->count == 0) /* a row that sees no key does not even read q */
            for (int64_t x = 0; x < d; x++)
                row->q[x] = tp__load(problem->q_dtype, tensors->q.data, row->q_at + x);
        int64_t at = tp__row_k(row, j);
        double dot = 0;
        for (int64_t x = 0; x < d; x++)
            dot += row->q[x] * tp__load(problem->k_dtype, tensors->k.data, at + x);
        double plain = row->scale * dot, score = row->row_scale * plain;
        if (problem->softcap > 0) score = problem->softcap * tanh(score / problem->softcap);
        score += tp__alibi_at(row, j);
        score += bias;
        spoilt |= isnan(score) || score == INFINITY;
        if (score > row->max) row->max = score;
        row->keys[row->count++] = (tp__key){
            .index = j, .place = i, .score = score, .plain = plain, .stays = 1};
        if (problem->dropout > 0) row->keys[row->count - 1].stays = stays(row, j);
    }
    double sink = problem->sinks ? (double)tensors->sinks[row->head] : -INFINITY;
    if (sink != -INFINITY) {
        spoilt |= isnan(sink) || sink == INFINITY;
        if (sink > row->max) row->max = sink;
        row->keys[row->count++] =
            (tp__key){.index = TP__SINK, .place = TP__SINK, .score = sink, .plain = sink, .stays = 1};
    }
    if (settle(row, spoilt, row->max)) return;

    row->sum = 0;
    for (int64_t x = 0; x < dv; x++) row->o[x] = 0;
    for (int64_t i = 0; i < row->count; i++) {
        tp__key *key = &row->keys[i];
        key->weight = exp(key->score - row->max);
        row->sum += key->weight;
        for (int64_t x = 0; x < dv; x++) row->o[x] += key->weight * key->stays * tp__value_at(row, key, x);
    }
    for (int64_t x = 0; x < dv; x++) row->o[x] /= row->sum;
    row->lse = row->max + log(row->sum);
}

float tp__rounded(int32_t dtype, float value) {
    return dtype == TP_F16    ? tp__from_f16(tp__to_f16(value))
           : dtype == TP_BF16 ? tp__from_bf16(tp__to_bf16(value))
                              : value;
}

static float naive_score(const tp__reference_row *row, int64_t key) {
    const tp_problem *problem = row->problem;
    int64_t at = tp__row_k(row, key);
    float dot = 0;
    for (int64_t x = 0; x < problem->head_dim_qk; x++)
        dot += (float)row->q[x] * tp__load(problem->k_dtype, row->tensors->k.data, at + x);
    float score = dot * row->scale;
    if (problem->qscale_length > 0) score *= (float)row->row_scale;
    if (problem->softcap > 0) score = problem->softcap * tanhf(score / problem->softcap);
    if (problem->alibi) score += (float)tp__alibi_at(row, key);
    if (problem->bias_dtype != 0) score += (float)tp__bias_value(row, key);
    return tp__rounded(problem->k_dtype, score);
}

/* Every float passes through a double without change, so keys and o can hold them. */
void tp__row_naive(tp__reference_row *row) {
    const tp_problem *problem = row->problem;
    int64_t dv = problem->head_dim_v;
    float max = -INFINITY, sum = 0;
    int spoilt = 0;
    for (int64_t i = 0; i < row->count; i++) {
        tp__key *key = &row->keys[i];
        float score = (float)key->score; /* of the sink */
        if (key->index != TP__SINK) score = naive_score(row, key->index);
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
        float p = tp__rounded(problem->v_dtype, (float)key->weight / sum * (float)key->stays);
        for (int64_t x = 0; x < dv; x++)
            row->o[x] = (float)row->o[x] + p * (float)tp__value_at(row, key, x);
    }
    for (int64_t x = 0; x < dv; x++) row->o[x] = tp__rounded(problem->o_dtype, (float)row->o[x]);
    row->sum = sum;
    row->lse = max + logf(sum);
}
