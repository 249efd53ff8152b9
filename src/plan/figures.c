/* SPDX-License-Identifier: Apache-2.0 */
/* What a decision says of the problem at its bounds: text, numerics id, pairs, flops, bytes. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "masks/mask.h"
#include "strategies/prepare.h"

/* Raised whenever a change to the leaves changes bits. */
#define NUMERICS_VERSION 1

static double times(int64_t a, int64_t b) { return (double)a * (double)b; }

void tp__figures(const tp_problem *problem, const tp__strategy *strategy,
                 const tp__kernels *kernels, tp_decision *decision) {
    int64_t dims = problem->head_dim_qk + problem->head_dim_v;
    int64_t dim = tp__max(problem->head_dim_qk, problem->head_dim_v);
    if (tp_problem_print(problem, NULL, decision->problem, sizeof decision->problem) != TP_OK)
        strcpy(decision->problem, "(its text form is too long)");
    decision->pairs = tp__times(tp__mask_pairs(problem, problem->q_len, problem->kv_len),
                                tp__times(problem->batch, problem->q_heads));
    decision->flops = 2.0 * times(decision->pairs, dims);
    decision->flops_usual = times(problem->batch, problem->q_heads) *
                            times(problem->q_len, problem->kv_len) * 2.0 * (double)dims *
                            (tp__mask_has(problem, TP_MASK_CAUSAL) ? 0.5 : 1.0);
    decision->scores_per_head = tp__times(problem->q_len, problem->kv_len);
    int64_t q_rows = tp__times(problem->batch, tp__times(problem->q_len, problem->q_heads));
    int64_t keys = tp__times(problem->batch, tp__times(problem->kv_len, problem->kv_heads));
    decision->bytes_compulsory =
        q_rows * (problem->head_dim_qk * (int64_t)tp_dtype_bytes((tp_dtype)problem->q_dtype) +
                  problem->head_dim_v * (int64_t)tp_dtype_bytes((tp_dtype)problem->o_dtype)) +
        keys * tp__key_bytes(problem);
    if (kernels == NULL) return;
    if (strategy->fused)
        snprintf(decision->numerics_id, sizeof decision->numerics_id, "%s/%s-%d bk%d c%d exp2p5",
                 strategy->name, kernels->isa, NUMERICS_VERSION, tp_block_keys(dim), TP_CHUNK_KEYS);
    else
        snprintf(decision->numerics_id, sizeof decision->numerics_id, "%s/%s-%d exp2p5",
                 strategy->name, kernels->isa, NUMERICS_VERSION);
    if (problem->softcap > 0)
        strncat(decision->numerics_id, " tanhp6",
                sizeof decision->numerics_id - strlen(decision->numerics_id) - 1);
    decision->workspace_bytes = (int64_t)tp__workspace(strategy, problem, kernels, 1);
    if (problem->head_dim_v % kernels->lanes != 0) decision->rewrites |= TP_REWRITE_PADDED_V;
}
