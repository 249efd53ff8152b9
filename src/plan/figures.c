/* SPDX-License-Identifier: Apache-2.0 */
/* What a decision says of the problem at its bounds: text, numerics id, pairs, flops, bytes. */
#include "plan/plan.h"

#include "base/arena.h"
#include "base/control.h"
#include "masks/mask.h"
#include "strategies/prepare.h"

/* Raised whenever a change to the kernel functions changes bits. */
#define NUMERICS_VERSION 2
#define CODES_VERSION 2 /* the same for what concerns quantised k and v alone */

static double times(int64_t a, int64_t b) { return (double)a * (double)b; }

/* Each path's own constants, so that equal ids mean equal bits: of both where rows decide. */
static const char *fused_id(const tp_problem *p, tp__path path, const char *isa, int64_t dim, tp_decision *decision) {
    int block = tp_block_keys(dim), few = tp_decode_block_keys(dim, (tp_dtype)p->k_dtype);
    if (path == TP__PREFILL)
        return tp__decision_text(decision, "prefill/%s-%d bk%d c%d exp2p5", isa, NUMERICS_VERSION, block, TP_CHUNK_KEYS);
    if (path == TP__DECODE)
        return tp__decision_text(decision, "decode/%s-%d bk%d c%d exp2p5", isa, NUMERICS_VERSION, few,
                                 TP_DECODE_CHUNK_KEYS);
    return tp__decision_text(decision, "fused/%s-%d bk%d c%d r%d:bk%d,c%d exp2p5", isa, NUMERICS_VERSION, block,
                             TP_CHUNK_KEYS, tp_decode_rows((tp_dtype)p->k_dtype), few, TP_DECODE_CHUNK_KEYS);
}

/* " k=i8/token-2" and so on; "" for what is not quantised. */
static const char *stored_id(const char *name, int32_t dtype, int32_t scales, tp_decision *decision) {
    if (scales == TP_SCALES_NONE) return "";
    return tp__decision_text(decision, " %s=%s/%s-%d", name, tp_dtype_name((tp_dtype)dtype), tp_scales_name((tp_scales)scales),
                             CODES_VERSION);
}

/* What else decides bits. */
static void finish_id(const tp_problem *p, int fused, tp_decision *decision) {
    int plain = decision->arithmetic == TP_ARITHMETIC_F32;
    decision->numerics_id = tp__decision_text(
        decision, "%s%s%s%s%s%s%s%s", decision->numerics_id, plain ? "" : " ",
        plain ? "" : tp_arithmetic_name((tp_arithmetic)decision->arithmetic), p->softcap > 0 ? " tanhp6" : "",
        p->dropout > 0 ? " philox" : "", fused && p->cascade > 0 && !p->invariant ? " cascade16,r48" : "",
        stored_id("k", p->k_dtype, p->k_scales, decision), stored_id("v", p->v_dtype, p->v_scales, decision));
}

/* How a call at the bounds is cut: by sequences and heads, by ranges of rows, by chunks of keys. */
static void split_figures(const tp_problem *p, int decode, int threads, int64_t keys,
                          tp_decision *decision) {
    int64_t heads = tp__times(p->batch, p->kv_heads);
    int64_t ranges = tp__times(tp__times(p->batch, p->q_len), p->q_heads) / TP__RANGE_ROWS_MIN;
    if (p->sparse_len > 0) heads = tp__times(heads, p->q_len); /* every token by itself */
    decision->decode = decode;
    decision->chunk_keys = tp__chunk_keys(decode);
    decision->chunks = keys / decision->chunk_keys + (keys % decision->chunk_keys > 0);
    int64_t parts = tp__max(tp__times(heads, decision->chunks), tp__max(ranges, heads));
    decision->threads = (int32_t)tp__max(tp__min(threads, parts), 1);
}

/* Blocks of keys are its tasks. */
static void backward_figures(const tp_problem *p, const char *isa, int64_t dim, int threads,
                             tp_decision *decision) {
    int block = tp__back_block(dim);
    decision->numerics_id = tp__decision_text(decision, "backward/%s-%d bk%d r%d exp2p5", isa, NUMERICS_VERSION, block,
                                              TP__BACK_ROWS);
    decision->chunk_keys = block;
    decision->chunks = p->kv_len / block + (p->kv_len % block > 0);
    int64_t tasks = tp__times(tp__times(p->batch, p->kv_heads), tp__max(decision->chunks, 1));
    decision->threads = (int32_t)tp__max(tp__min(threads, tasks), 1);
}

static void count_flops(const tp_problem *problem, tp_decision *decision) {
    int64_t dims = problem->head_dim_qk + problem->head_dim_v;
    tp__control saved = tp__control_take();
    double usual = 2.0 * (double)dims;
    if (problem->op == TP_BACKWARD) dims = 3 * problem->head_dim_qk + 2 * problem->head_dim_v;
    if (problem->op == TP_BACKWARD) usual *= 2.5; /* ten for each four */
    decision->flops = 2.0 * times(decision->pairs, dims);
    decision->flops_usual = times(problem->batch, problem->q_heads) *
                            times(problem->q_len, problem->kv_len) * usual *
                            (tp__mask_has(problem, TP_MASK_CAUSAL) ? 0.5 : 1.0);
    tp__control_restore(saved);
}

void tp__figures(const tp_problem *problem, const tp__strategy *strategy, tp__path path,
                 const tp__kernel_set *kernels, int threads, tp_decision *decision) {
    int64_t dim = tp__max(problem->head_dim_qk, problem->head_dim_v);
    char text[512];
    decision->problem = tp_problem_print(problem, NULL, text, sizeof text) == TP_OK
                            ? tp__decision_text(decision, "%s", text)
                            : "(its text form is too long)";
    /* of sparse indices in any order no more is known than how many there are */
    int64_t scores = tp__times(problem->q_len, tp__row_keys_max(problem));
    int exact;
    decision->pairs = tp__mask_pairs(problem, problem->q_len, problem->kv_len, &exact);
    if (problem->sparse_len > 0)
        decision->pairs = problem->sparse_sorted ? tp__min(decision->pairs, scores) : scores;
    decision->pairs_exact = exact && problem->sparse_len == 0;
    decision->pairs = tp__times(decision->pairs, tp__times(problem->batch, problem->q_heads));
    count_flops(problem, decision);
    decision->scores_per_head = scores; /* of all keys, without sparse indices */
    int64_t q_rows = tp__times(problem->batch, tp__times(problem->q_len, problem->q_heads));
    int64_t seen = problem->kv_len; /* of a sequence; with sparse indices, each row its own */
    if (problem->sparse_len > 0) seen = scores;
    decision->bytes_kv = tp__times(tp__times(problem->batch, tp__times(seen, problem->kv_heads)),
                                   tp__key_bytes(problem));
    if (problem->kv_layout == TP_PAGED)
        decision->pages = tp__times(problem->batch, problem->kv_len / problem->page_size +
                                                        (problem->kv_len % problem->page_size > 0));
    decision->bytes_compulsory =
        q_rows * (problem->head_dim_qk * (int64_t)tp_dtype_bytes((tp_dtype)problem->q_dtype) +
                  problem->head_dim_v * (int64_t)tp_dtype_bytes((tp_dtype)problem->o_dtype)) +
        decision->bytes_kv;
    if (problem->op == TP_BACKWARD)
        decision->bytes_compulsory = tp__times(q_rows, tp__row_bytes(problem, NULL)) + decision->bytes_kv;
    if (kernels == NULL) return;
    if (problem->op == TP_BACKWARD) {
        backward_figures(problem, kernels->isa, dim, threads, decision);
    } else if (strategy->fused) {
        decision->numerics_id = fused_id(problem, tp__path_of(problem, path), kernels->isa, dim, decision);
        split_figures(problem, tp__decodes(problem, tp__path_of(problem, path), problem->q_len), threads,
                      tp__row_keys_max(problem), decision);
    } else
        decision->numerics_id = tp__decision_text(decision, "%s/%s-%d bk%d c%d exp2p5", strategy->name, kernels->isa,
                                                  NUMERICS_VERSION, tp_block_keys(dim), TP_CHUNK_KEYS);
    finish_id(problem, strategy->fused, decision);
    decision->workspace_bytes = (int64_t)tp__workspace(strategy, problem, kernels, path, 1);
    if (problem->head_dim_v % kernels->row_step != 0) decision->rewrites |= TP_REWRITE_PADDED_V;
}
