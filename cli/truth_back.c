/* SPDX-License-Identifier: Apache-2.0 */
#include "truth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double work_most = 4e8; /* multiplications of the reference: some seconds */
enum { FEW_VALUES = 1024 };

static double half_ulp(tp_dtype dtype) {
    return dtype == TP_F32 ? 0x1p-24 : dtype == TP_F16 ? 0x1p-11 : 0x1p-8;
}

/* The gradients of one KV head of one sequence, by definition and naive. */
struct head {
    int64_t seq, kv, group, rows, keys;
    double *memory;
    tp_reference_gradients exact, naive;
};

static tp_status head_open(struct head *head, const struct tensors *tensors, int64_t seq, int64_t kv,
                           tp_error *error) {
    const tp_problem *p = &tensors->problem;
    *head = (struct head){.seq = seq, .kv = kv, .group = p->q_heads / p->kv_heads};
    head->rows = tensors->q_lens[seq] * head->group;
    head->keys = tensors->kv_lens[seq];
    size_t dq = (size_t)(head->rows * p->head_dim_qk), dk = (size_t)(head->keys * p->head_dim_qk);
    size_t dv = (size_t)(head->keys * p->head_dim_v);
    double *at = head->memory =
        calloc(2 * (dq + dk + dv) + (size_t)(head->rows + 2 * head->keys) + 1, sizeof(double));
    if (!at) {
        error->status = TP_NO_MEMORY;
        snprintf(error->text, sizeof error->text, "no memory for the reference gradients");
        return TP_NO_MEMORY;
    }
    tp_reference_gradients *both[2] = {&head->exact, &head->naive};
    for (int i = 0; i < 2; i++, at += dv) {
        *both[i] = (tp_reference_gradients){.struct_size = sizeof *both[i]};
        both[i]->d_q = at;
        both[i]->d_k = at += dq;
        both[i]->d_v = at += dk;
    }
    head->exact.d_q_bound = at;
    head->exact.d_k_bound = at + head->rows;
    head->exact.d_v_bound = at + head->rows + head->keys;
    tp_status status =
        tp_reference_backward(p, &tensors->call, TP_DOUBLE, seq, kv, &head->exact, error);
    if (status == TP_OK)
        status = tp_reference_backward(p, &tensors->call, TP_NAIVE, seq, kv, &head->naive, error);
    return status;
}

struct totals {
    double max, sum, naive_max, naive_sum, most;
    int64_t values;
};

/* One gradient of the head: d_q, d_k or d_v. */
static int compare_one(const struct tensors *tensors, const struct head *head, enum tensor_id id,
                       struct totals *totals, struct measured_error *measured, char *reason,
                       size_t size) {
    const double *exact[] = {head->exact.d_q, head->exact.d_k, head->exact.d_v};
    const double *naive[] = {head->naive.d_q, head->naive.d_k, head->naive.d_v};
    const double *bounds[] = {head->exact.d_q_bound, head->exact.d_k_bound, head->exact.d_v_bound};
    int i = id - TENSOR_DQ;
    int64_t dim = tensors_dim(tensors, id), heads = id == TENSOR_DQ ? head->group : 1;
    int64_t count = (id == TENSOR_DQ ? head->rows : head->keys) * dim;
    for (int64_t at = 0; at < count; at++) {
        int64_t row = at / dim, token = row / heads, of = head->kv * heads + row % heads;
        double want = exact[i][at], bound = bounds[i][row];
        double got = tensors_get(tensors, id, head->seq, token, of, at % dim), error = fabs(got - want);
        if (isnan(want) ? !isnan(got) : !(error <= bound) && got != want) {
            snprintf(reason, size,
                     "%s of seq %lld head %lld token %lld column %lld: expected %.9g, got %.9g "
                     "(error %.3g, derived bound %.3g)",
                     tensors_name(id), (long long)head->seq, (long long)of, (long long)token,
                     (long long)(at % dim), want, got, error, bound);
            return 1;
        }
        if (!isfinite(want)) continue;
        double other = fabs(naive[i][at] - want);
        if (!isfinite(other)) other = 0;
        totals->max = fmax(totals->max, error);
        totals->naive_max = fmax(totals->naive_max, other);
        totals->most = fmax(totals->most, fabs(want));
        totals->sum += error;
        totals->naive_sum += other;
        totals->values++;
        if (bound > 0 && error / bound >= measured->worst_share) {
            measured->worst_share = error / bound;
            measured->worst_bound = bound;
        }
    }
    return 0;
}

static int judge(const struct totals *t, enum tensor_id id, tp_dtype dtype, double lse,
                 char *reason, size_t size) {
    double floor = (16 * 0x1p-23 * fmax(1, lse / 16) + half_ulp(dtype)) * t->most +
                   (dtype == TP_F16 ? 0x1p-24 : 0);
    double luck = t->values < FEW_VALUES ? 2 : 1;
    double max = luck * (2 * t->naive_max + floor);
    double mean = luck * (2 * t->naive_sum / (double)t->values + floor / 2);
    if (t->max <= max && t->sum / (double)t->values <= mean) return 0;
    snprintf(reason, size,
             "%s: max error %.3g, allowed %.3g; mean error %.3g, allowed %.3g: twice naive's + floor",
             tensors_name(id), t->max, max, t->sum / (double)t->values, mean);
    return 1;
}

static double lse_most(const struct tensors *tensors) {
    double most = 0;
    for (int64_t s = 0; s < tensors->sequences; s++)
        for (int64_t r = 0; r < tensors->q_lens[s]; r++)
            for (int64_t h = 0; h < tensors->problem.q_heads; h++) {
                double lse = fabs(tensors_get(tensors, TENSOR_LSE, s, r, h, 0));
                if (isfinite(lse)) most = fmax(most, lse);
            }
    return most;
}

int gradients_compare(const struct tensors *tensors, struct measured_error *measured, int64_t *rows,
                      char *reason, size_t size) {
    const tp_problem *p = &tensors->problem;
    struct totals totals[3] = {{0}};
    double work = 0;
    *measured = (struct measured_error){0};
    *rows = 0;
    for (int64_t unit = 0; unit < tensors->sequences * p->kv_heads; unit++) {
        struct head head;
        tp_error error = TP_ERROR_INIT;
        int64_t seq = unit / p->kv_heads;
        double here = (double)tensors->q_lens[seq] * (double)tensors->kv_lens[seq] *
                      (double)(p->q_heads / p->kv_heads) * (double)(3 * p->head_dim_qk + 2 * p->head_dim_v);
        if (unit > 0 && work + here > work_most) continue;
        work += here;
        int wrong = head_open(&head, tensors, seq, unit % p->kv_heads, &error) != TP_OK;
        if (wrong) snprintf(reason, size, "%s", error.text);
        for (int i = 0; i < 3 && !wrong; i++)
            wrong = compare_one(tensors, &head, (enum tensor_id)(TENSOR_DQ + i), &totals[i], measured,
                                reason, size);
        *rows += head.rows;
        free(head.memory);
        if (wrong) return 1;
    }
    double lse = lse_most(tensors), values = 0;
    for (int i = 0; i < 3; i++) {
        enum tensor_id id = (enum tensor_id)(TENSOR_DQ + i);
        if (!totals[i].values) continue;
        measured->max = fmax(measured->max, totals[i].max);
        measured->naive_max = fmax(measured->naive_max, totals[i].naive_max);
        measured->mean += totals[i].sum;
        measured->naive_mean += totals[i].naive_sum;
        values += (double)totals[i].values;
        if (judge(&totals[i], id, tensors_dtype(tensors, id), lse, reason, size)) return 1;
    }
    if (values > 0) measured->mean /= values, measured->naive_mean /= values;
    return 0;
}
