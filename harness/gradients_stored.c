/* SPDX-License-Identifier: Apache-2.0 */
/* What the gradients of slopes and sinks lose because o was stored in its dtype, and what of each row says how much. */
#include "harness/gradients.h"
#include "harness/oracle.h"

#include <math.h>
#include <stdlib.h>

/* lse of all rows by the definition, with slopes in place of the call's own. */
static tp_status all_lse(const struct tensors *tensors, const float *slopes, const tp_row *rows, int64_t count, double *lse,
                         tp_error *error) {
    tp_tensors call = tensors->call;
    call.alibi_slopes = slopes;
    return tp_reference(&tensors->problem, &call, TP_DOUBLE, TP_ARITHMETIC_F32, count, rows, NULL, lse, NULL, NULL, error);
}

/* The keys' mean distance, as P weighs it, is what the lse loses for a step of the slope: by a small step of every slope. */
static tp_status mean_distances(struct gradients_oracle *oracle, const struct tensors *tensors, const tp_row *rows,
                                int64_t count, const double *lse, tp_error *error) {
    int64_t slopes = tensors->problem.q_heads * tensors->call.batch;
    float *stepped = malloc(((size_t)slopes + 1) * sizeof *stepped);
    tp_status status = stepped ? TP_OK : TP_NO_MEMORY;
    for (int64_t i = 0; stepped && i < slopes; i++) {
        float slope = tensors->call.alibi_slopes[i];
        stepped[i] = slope + fmaxf(fabsf(slope), 0x1p-10f) * 0x1p-10f;
    }
    if (status == TP_OK) status = all_lse(tensors, stepped, rows, count, oracle->distance, error);
    for (int64_t i = 0; status == TP_OK && i < count; i++) {
        int64_t at = rows[i].seq * tensors->call.alibi_stride + rows[i].head;
        oracle->distance[i] = (lse[i] - oracle->distance[i]) / ((double)stepped[at] - tensors->call.alibi_slopes[at]);
    }
    free(stepped);
    return status;
}

/* What is asked of all rows. The kernel's own lse would let it decide what it is allowed. */
tp_status gradients_look_at_rows(struct gradients_oracle *oracle, const struct tensors *tensors, tp_error *error) {
    tp_row *rows = NULL;
    int64_t count = sample_rows(tensors, INT64_MAX, 0, &rows);
    double *lse = count >= 0 ? malloc(((size_t)count + 1) * sizeof *lse) : NULL;
    if (lse) oracle->distance = calloc((size_t)count + 1, sizeof *oracle->distance);
    tp_status status =
        oracle->distance ? all_lse(tensors, tensors->call.alibi_slopes, rows, count, lse, error) : TP_NO_MEMORY;
    for (int64_t i = 0; status == TP_OK && i < count; i++)
        if (isfinite(lse[i])) oracle->max_lse = fmax(oracle->max_lse, fabs(lse[i]));
    if (status == TP_OK && tensors->problem.alibi) status = mean_distances(oracle, tensors, rows, count, lse, error);
    free(lse);
    free(rows);
    return status;
}

/* The variance of one row's D that comes from o as it was stored: each o_x is off by up to half an ulp, either way, and
   enters times d_o_x. */
static double stored_variance(const struct tensors *tensors, const struct gradients *gradients, int64_t seq, int64_t row,
                              int64_t head) {
    double sum = 0, half = half_ulp(tensors_dtype(tensors, TENSOR_O));
    for (int64_t x = 0; x < tensors->problem.head_dim_v; x++) {
        double term = half * tensors_get(&gradients->held, TENSOR_O, seq, row, head, x) *
                      tensors_get(tensors, TENSOR_O, seq, row, head, x);
        sum += term * term / 3;
    }
    return sum;
}

void gradients_stored(const struct gradients_oracle *oracle, const struct tensors *tensors,
                      const struct gradients *gradients, double *of_slopes, double *of_sinks) {
    const tp_problem *p = &tensors->problem;
    *of_slopes = *of_sinks = 0;
    for (int64_t h = 0; h < p->q_heads; h++) {
        double sinks = 0;
        const double *distance = oracle->distance;
        for (int64_t s = 0; s < tensors->sequences; distance += p->q_heads * tensors->q_lens[s++]) {
            double slopes = 0;
            for (int64_t r = 0; r < tensors->q_lens[s]; r++) {
                double variance = stored_variance(tensors, gradients, s, r, h);
                double by_slope = distance[h * tensors->q_lens[s] + r] * sqrt(variance);
                double by_sink = p->sinks ? exp((double)tensors->call.sinks[h] -
                                                tensors_get(tensors, TENSOR_LSE, s, r, h, 0)) * sqrt(variance) : 0;
                if (isfinite(by_slope)) slopes += by_slope * by_slope;
                if (isfinite(by_sink)) sinks += by_sink * by_sink;
            }
            *of_slopes = fmax(*of_slopes, sqrt(slopes));
        }
        *of_sinks = fmax(*of_sinks, sqrt(sinks));
    }
}
