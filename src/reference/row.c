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
#include "quant/quant.h"

/* Elements from this one on; a loop for each dtype, since all else waits for this one. */
static void load(tp_dtype dtype, const void *base, int64_t at, int64_t count, double *to) {
    switch (dtype) {
    case TP_F16:
        for (int64_t x = 0; x < count; x++) to[x] = tp__load(TP_F16, base, at + x);
        break;
    case TP_BF16:
        for (int64_t x = 0; x < count; x++) to[x] = tp__load(TP_BF16, base, at + x);
        break;
    default:
        for (int64_t x = 0; x < count; x++) to[x] = tp__load(TP_F32, base, at + x);
    }
}

static tp__key_place place_of(const tp__reference_row *row, int64_t key) {
    return tp__key_place_of(row->problem, row->tensors, row->view.seq, &row->sequence, key);
}

static const char *scales_of(const tp__reference_row *row, int of_v, int64_t place) {
    int32_t kind = of_v ? row->problem->v_scales : row->problem->k_scales;
    const tp_tensor *scales = of_v ? &row->tensors->v_scales : &row->tensors->k_scales;
    if (kind == TP_SCALES_TENSOR || kind == TP_SCALES_Q8_0) return scales->data;
    place += row->kv_head * scales->stride[2];
    return (const char *)scales->data + place * (int64_t)tp_dtype_bytes((tp_dtype)tp__scale_dtype(kind));
}

/* Elements of k or v: as they are, or code * scale, which a double holds. */
static void load_stored(const tp__reference_row *row, int of_v, int64_t key, double *to) {
    const tp_problem *p = row->problem;
    const tp_tensor *tensor = of_v ? &row->tensors->v : &row->tensors->k;
    int32_t dtype = of_v ? p->v_dtype : p->k_dtype, kind = of_v ? p->v_scales : p->k_scales;
    int64_t dim = of_v ? p->head_dim_v : p->head_dim_qk;
    tp__key_place place = place_of(row, key);
    int64_t at = of_v ? place.v + row->v_head : place.k + row->k_head;
    if (kind == TP_SCALES_NONE) {
        load((tp_dtype)dtype, tensor->data, at, dim, to);
        return;
    }
    const char *codes = (const char *)tensor->data + tp__units_bytes(dtype, at);
    const char *scales = scales_of(row, of_v, of_v ? place.v_scales : place.k_scales);
    for (int64_t x = 0; x < dim; x++) to[x] = tp__stored(dtype, kind, codes, scales, x);
}

double tp__code_scale(const tp__reference_row *row, int of_v, int64_t key) {
    if (!tp__scales_by_row(of_v ? row->problem->v_scales : row->problem->k_scales)) return 1;
    tp__key_place place = place_of(row, key);
    return fabs((double)*(const float *)scales_of(row, of_v, of_v ? place.v_scales : place.k_scales));
}

const double *tp__row_k(const tp__reference_row *row, int64_t key) {
    load_stored(row, 0, key, row->key);
    return row->key;
}

const double *tp__row_v(const tp__reference_row *row, const tp__key *key) {
    const tp_problem *problem = row->problem;
    if (key->index == TP__SINK)
        for (int64_t x = 0; x < problem->head_dim_v; x++) row->key[x] = 0;
    else
        load_stored(row, 1, key->index, row->key);
    return row->key;
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
    at->kv_head = kv_head;
    at->k_head = kv_head * tensors->k.stride[2];
    at->v_head = kv_head * tensors->v.stride[2];
    at->dropout = tp__dropout_row_of(tensors->dropout_seed, chosen->seq, chosen->head, chosen->row);
}

size_t tp__row_scratch(const tp_problem *problem, int64_t kv_len) {
    /* q and o; the key at hand, for which either is long enough; the columns */
    size_t dims = 2 * (size_t)(problem->head_dim_qk + problem->head_dim_v) +
                  (size_t)problem->head_dim_v * sizeof(tp__columns) / sizeof(double *);
    return ((size_t)kv_len + 1) * sizeof(tp__key) + dims * sizeof(double);
}

void tp__row_memory(tp__reference_row *row, int64_t kv_len, void *memory) {
    int64_t d = row->problem->head_dim_qk, dv = row->problem->head_dim_v;
    tp__columns *c = &row->columns;
    double **const of_columns[] = {&c->block, &c->chunk,  &c->total,   &c->walk,     &c->size,
                                   &c->shift, &c->spread, &c->largest, &c->farthest, &c->bound};
    _Static_assert(sizeof of_columns == sizeof *c, "every column has its place");
    row->keys = memory;
    row->q = (double *)(row->keys + kv_len + 1);
    row->o = row->q + d;
    row->key = row->o + dv;
    double *at = row->key + d + dv;
    for (size_t i = 0; i < sizeof *c / sizeof *of_columns; i++, at += dv) *of_columns[i] = at;
}

/* Keys to ask the mask about: all of the sequence, or the row's sparse indices. */
static int64_t keys_met(const tp__reference_row *row) {
    if (row->problem->sparse_len == 0) return row->kv_len;
    return tp__sparse_count(row->problem, row->tensors, &row->sequence, row->row);
}

static int64_t key_met(const tp__reference_row *row, int64_t i) {
    if (row->problem->sparse_len == 0) return i;
    return tp__sparse_key(row->tensors, &row->sequence, row->row, i);
}

/* What dropout makes of a probability: a factor. */
static double stays(const tp__reference_row *row, int64_t key) {
    float p = row->problem->dropout;
    uint32_t word = tp__dropout_word(&row->dropout, row->tensors->dropout_offset, key);
    return word >= tp__dropout_threshold(p) ? 1 / (1 - (double)p) : 0;
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

void tp__row_keys(tp__reference_row *row) {
    const tp_problem *problem = row->problem;
    row->count = 0;
    for (int64_t i = 0, met = keys_met(row); i < met; i++) {
        int64_t j = key_met(row, i);
        if (!tp__mask_allowed(&row->view, row->head, row->row, j)) continue;
        /* the check was told that no row sees it: a callback that says otherwise now is not believed */
        if (!tp__key_has_page(problem, row->tensors, row->view.seq, j)) continue;
        if (tp__bias_value(row, j) == -INFINITY) continue;
        if (row->count == 0) /* a row that sees no key does not even read q */
            load((tp_dtype)problem->q_dtype, row->tensors->q.data, row->q_at, problem->head_dim_qk, row->q);
        row->keys[row->count++] = (tp__key){.index = j, .place = i, .stays = 1};
        if (problem->dropout > 0) row->keys[row->count - 1].stays = stays(row, j);
    }
    double sink = problem->sinks ? (double)row->tensors->sinks[row->head] : -INFINITY;
    if (sink == -INFINITY) return;
    row->keys[row->count++] =
        (tp__key){.index = TP__SINK, .place = TP__SINK, .score = sink, .plain = sink, .stays = 1};
}

static void score(const tp__reference_row *row, tp__key *key) {
    const tp_problem *problem = row->problem;
    const double *k = tp__row_k(row, key->index);
    double dot = 0;
    for (int64_t x = 0; x < problem->head_dim_qk; x++) dot += row->q[x] * k[x];
    key->plain = row->scale * dot;
    key->score = row->row_scale * key->plain;
    if (problem->softcap > 0) key->score = problem->softcap * tanh(key->score / problem->softcap);
    key->score += tp__alibi_at(row, key->index);
    key->score += tp__bias_value(row, key->index);
}

void tp__row_double(tp__reference_row *row) {
    int64_t dv = row->problem->head_dim_v;
    int spoilt = 0;
    tp__row_keys(row);
    row->max = -INFINITY;
    for (int64_t i = 0; i < row->count; i++) {
        tp__key *key = &row->keys[i];
        if (key->index != TP__SINK) score(row, key);
        spoilt |= isnan(key->score) || key->score == INFINITY;
        if (key->score > row->max) row->max = key->score;
    }
    if (settle(row, spoilt, row->max)) return;

    row->sum = 0;
    for (int64_t x = 0; x < dv; x++) row->o[x] = 0;
    for (int64_t i = 0; i < row->count; i++) {
        tp__key *key = &row->keys[i];
        key->weight = exp(key->score - row->max);
        row->sum += key->weight;
        const double *v = tp__row_v(row, key);
        for (int64_t x = 0; x < dv; x++) row->o[x] += key->weight * key->stays * v[x];
    }
    for (int64_t x = 0; x < dv; x++) row->o[x] /= row->sum;
    row->lse = row->max + log(row->sum);
}

float tp__rounded(int32_t dtype, float value) {
    return dtype == TP_F16    ? tp__from_f16(tp__to_f16(value))
           : dtype == TP_BF16 ? tp__from_bf16(tp__to_bf16(value))
                              : value;
}

/* What a plain kernel rounds to: codes have nothing to round to, there it is as q. */
static int32_t naive_dtype(const tp_problem *problem, int32_t stored) {
    return tp__is_code(stored) ? problem->q_dtype : stored;
}

static float naive_score(const tp__reference_row *row, int64_t key) {
    const tp_problem *problem = row->problem;
    const double *k = tp__row_k(row, key);
    float dot = 0;
    for (int64_t x = 0; x < problem->head_dim_qk; x++) dot += (float)row->q[x] * (float)k[x];
    float score = dot * row->scale;
    if (problem->qscale_length > 0) score *= (float)row->row_scale;
    if (problem->softcap > 0) score = problem->softcap * tanhf(score / problem->softcap);
    if (problem->alibi) score += (float)tp__alibi_at(row, key);
    if (problem->bias_dtype != 0) score += (float)tp__bias_value(row, key);
    return tp__rounded(naive_dtype(problem, problem->k_dtype), score);
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
        float p = tp__rounded(naive_dtype(problem, problem->v_dtype), (float)key->weight / sum * (float)key->stays);
        const double *v = tp__row_v(row, key);
        for (int64_t x = 0; x < dv; x++) row->o[x] = (float)row->o[x] + p * (float)v[x];
    }
    for (int64_t x = 0; x < dv; x++) row->o[x] = tp__rounded(problem->o_dtype, (float)row->o[x]);
    row->sum = sum;
    row->lse = max + logf(sum);
}
