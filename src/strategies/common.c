/* SPDX-License-Identifier: Apache-2.0 */
/* What strategies share. */
#include "strategies/strategy.h"

#include <math.h>

#include "base/constants.h"
#include "problem/sequence.h"

tp__units tp__units_of(const tp_problem *problem) {
    float scale = tp__scale(problem);
    int exponent = 0;
    float gain = scale == 0 ? 1.0f : 2 * frexpf(fabsf(scale), &exponent);
    float left = tp__modifies_scores(problem) ? 1.0f : gain;
    return (tp__units){scale == 0 ? 0.0f : copysignf(ldexpf(1.0f, exponent - 1), scale), gain, left,
                       (float)(left * TP__LOG2_E)};
}

int64_t tp__row_bytes(const tp_problem *problem, const tp_tensors *tensors) {
    int64_t bytes = problem->head_dim_qk * (int64_t)tp_dtype_bytes(problem->q_dtype) +
                    problem->head_dim_v * (int64_t)tp_dtype_bytes(problem->o_dtype);
    /* back: q and o are read, d_o as well, and d_q is written */
    if (problem->op == TP_BACKWARD) bytes *= 2;
    return bytes + (tensors == NULL || tensors->lse.data != NULL ? (int64_t)sizeof(float) : 0);
}

int64_t tp__key_bytes(const tp_problem *problem) {
    int64_t k = tp__row_all_bytes(problem->k_dtype, problem->k_scales, problem->head_dim_qk);
    int64_t v = tp__row_all_bytes(problem->v_dtype, problem->v_scales, problem->head_dim_v);
    if (problem->op == TP_BACKWARD) return 2 * (k + v); /* their gradients */
    return problem->latent ? k : k + v;
}

void tp__store_lse(const tp_tensors *tensors, int64_t start, int64_t head, const tp__rows *rows, const float *m,
                   const float *l, float left) {
    if (tensors->lse.data == NULL) return;
    int64_t offset = start + head * tensors->lse.stride[2];
    tp__rows lse_rows = *rows;
    lse_rows.stride_token = tensors->lse.stride[1];
    lse_rows.stride_head = tensors->lse.stride[2];
    tp__walk walk = tp__walk_start(&lse_rows);
    for (int64_t i = 0; i < rows->count; i++) {
        float *lse = (float *)tensors->lse.data + offset + tp__walk_next(&walk);
        /* no key: log(0) is -inf and so is m; a NaN in l comes through */
        *lse = (float)((double)left * (double)m[i] + log((double)l[i]));
    }
}

void tp__trace_masks(tp__trace *trace, int64_t bytes) {
    trace->bytes += bytes;
    trace->bytes_masks += bytes;
}

void tp__trace_add(tp__trace *sum, const tp__trace *one) {
    for (int i = 0; i < TP__FUNCTION_COUNT; i++) sum->calls[i] += one->calls[i];
    sum->panels_full += one->panels_full;
    sum->panels_partial += one->panels_partial;
    sum->panels_skipped += one->panels_skipped;
    sum->pairs_visible += one->pairs_visible;
    sum->pairs_computed += one->pairs_computed;
    sum->padded_rows += one->padded_rows;
    sum->bytes += one->bytes;
    sum->scores_written += one->scores_written;
    sum->bytes_scratch += one->bytes_scratch;
    sum->panels_conservative += one->panels_conservative;
    sum->bytes_masks += one->bytes_masks;
    sum->pairs_shared += one->pairs_shared;
    sum->bytes_shared += one->bytes_shared;
}
