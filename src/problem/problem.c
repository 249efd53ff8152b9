/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked: its defaults, its rules, and the scale. */
#include "problem/sequence.h"

#include <math.h>
#include <string.h>

#include "base/constants.h"
#include "base/control.h"
#include "base/dtype.h"
#include "base/structs.h"
#include "masks/mask.h"
#include "problem/limits.h"
#include "quant/quant.h"

void tp_problem_init_sized(tp_problem *problem, size_t size) {
    static const tp_problem plain = {
        .q_dtype = TP_F32, .k_dtype = TP_F32, .v_dtype = TP_F32, .o_dtype = TP_F32, .batch = 1, .q_heads = 1, .kv_heads = 1};
    TP_STRUCT_INIT(tp_problem, problem, size, &plain);
}

void tp_problem_dtype(tp_problem *problem, tp_dtype all) {
    if (problem == NULL || problem->struct_size < TP__FIRST_tp_problem) return;
    problem->q_dtype = problem->k_dtype = problem->v_dtype = problem->o_dtype = all;
}

/* Only the tree is checked: the rest of the problem may not have been filled in yet. */
static tp_status append(tp_problem *problem, int32_t join, tp_mask_node node) {
    tp_problem here;
    const tp_problem *given = TP_IN(tp_problem, problem, &here, NULL);
    if (given == NULL) return TP_INVALID;
    int n = problem->mask_nodes, needed = n > 0 ? 2 : 1;
    if (n < 0 || n > TP_MAX_MASK_NODES - needed) return TP_INVALID;
    if (join != TP_MASK_AND && join != TP_MASK_OR) return TP_INVALID;
    tp_problem grown = *given;
    grown.mask[n] = node;
    if (n > 0) grown.mask[n + 1] = (tp_mask_node){.kind = join};
    grown.mask_nodes = n + needed;
    TP_TRY(tp__mask_check(&grown, NULL));
    memcpy(problem->mask, grown.mask, sizeof grown.mask);
    problem->mask_nodes = grown.mask_nodes;
    return TP_OK;
}

tp_status tp_problem_mask(tp_problem *problem, tp_mask_kind join, tp_mask_kind kind, int64_t a,
                          int64_t b) {
    return append(problem, join, (tp_mask_node){.kind = kind, .a = a, .b = b});
}

tp_status tp_problem_causal(tp_problem *problem) {
    return tp_problem_mask(problem, TP_MASK_AND, TP_MASK_CAUSAL, 0, 0);
}

tp_status tp_problem_window(tp_problem *problem, int64_t left, int64_t right) {
    return tp_problem_mask(problem, TP_MASK_AND, TP_MASK_WINDOW, left, right);
}

static tp_status check_range(const char *name, int64_t value, int64_t min, int64_t max,
                             int max_log2, tp_error *error) {
    TP_REQUIRE(value >= min && value <= max, error, TP_INVALID,
               "%s is %lld: it must be in %lld..2^%d", name, (long long)value, (long long)min,
               max_log2);
    return TP_OK;
}

static tp_status check_dtype(const char *name, int32_t dtype, tp_error *error) {
    TP_REQUIRE(dtype >= TP_F32 && dtype <= TP_I4, error, TP_INVALID,
               "%s is %d: it must be a tp_dtype in %d..%d", name, dtype, TP_F32, TP_I4);
    TP_REQUIRE(tp__dtype_is_float(dtype), error, TP_UNSUPPORTED,
               "%s is %s (%d): only f32, f16 and bf16 have kernels%s", name, tp_dtype_name(dtype), dtype,
               tp__is_code(dtype) ? "; k and v alone may be quantised" : "");
    return TP_OK;
}

/* Of k and v, which may be quantised. */
static tp_status check_stored(const char *name, int32_t dtype, int32_t scales, int64_t dim, tp_error *error) {
    if (!tp__is_code(dtype)) {
        TP_TRY(check_dtype(name, dtype, error));
        TP_REQUIRE(scales == TP_SCALES_NONE, error, TP_INVALID,
                   "%c_scales is %s (%d) with %s %s: only i8, i4 and e4m3 have scales, otherwise it must be 0", name[0],
                   tp_scales_name((tp_scales)scales), scales, name, tp_dtype_name(dtype));
        return TP_OK;
    }
    TP_REQUIRE(tp__scales_fit(dtype, scales), error, TP_INVALID, "%c_scales is %s (%d) with %s %s: its scales are %s", name[0],
               tp_scales_name((tp_scales)scales), scales, name, tp_dtype_name(dtype), tp__scales_for(dtype));
    TP_REQUIRE(dtype != TP_I4 || dim % 2 == 0, error, TP_INVALID,
               "%s is i4 with head dim %lld: it must be even, because two elements share a byte", name, (long long)dim);
    TP_REQUIRE(scales != TP_SCALES_Q8_0 || dim % TP__GROUP == 0, error, TP_INVALID,
               "%c_scales is q8_0 with head dim %lld: it must be a multiple of %d, the elements of a block", name[0],
               (long long)dim, TP__GROUP);
    return TP_OK;
}

static tp_status check_either(const char *name, int32_t value, const char *meaning,
                              tp_error *error) {
    TP_REQUIRE(value == 0 || value == 1, error, TP_INVALID, "%s is %d: it must be %s", name, value,
               meaning);
    return TP_OK;
}

static tp_status check_product(const char *names, const int64_t factor[4], int max_log2,
                               tp_error *error) {
    int64_t product = 1;
    int beyond = 0;
    for (int i = 0; i < 4; i++) {
        if (factor[i] == 0) return TP_OK;
        beyond |= __builtin_mul_overflow(product, factor[i], &product);
    }
    TP_REQUIRE(!beyond && product <= (int64_t)1 << max_log2, error, TP_INVALID,
               "%s = %lld * %lld * %lld * %lld: it must be at most 2^%d, so that counts fit in "
               "int64",
               names, (long long)factor[0], (long long)factor[1], (long long)factor[2],
               (long long)factor[3], max_log2);
    return TP_OK;
}

static tp_status check_sizes(const tp_problem *p, tp_error *error) {
    TP_TRY(check_range("batch", p->batch, 0, TP__LENGTH_MAX, 40, error));
    TP_TRY(check_range("q_heads", p->q_heads, 1, TP__HEADS_MAX, 20, error));
    TP_TRY(check_range("kv_heads", p->kv_heads, 1, TP__HEADS_MAX, 20, error));
    TP_TRY(check_range("head_dim_qk", p->head_dim_qk, 1, TP__DIM_MAX, 20, error));
    TP_TRY(check_range("head_dim_v", p->head_dim_v, 1, TP__DIM_MAX, 20, error));
    TP_TRY(check_range("q_len", p->q_len, 0, TP__LENGTH_MAX, 40, error));
    TP_TRY(check_range("kv_len", p->kv_len, 0, TP__LENGTH_MAX, 40, error));
    TP_REQUIRE(p->q_heads % p->kv_heads == 0, error, TP_INVALID,
               "q_heads is %lld and kv_heads %lld: q_heads must be a multiple of kv_heads",
               (long long)p->q_heads, (long long)p->kv_heads);
    const struct {
        const char *names;
        int64_t factor[4];
        int max_log2;
    } products[] = {
        {"batch * q_heads * q_len * head_dim_qk",
         {p->batch, p->q_heads, p->q_len, p->head_dim_qk},
         TP__ELEMENTS_LOG2},
        {"batch * q_heads * q_len * head_dim_v",
         {p->batch, p->q_heads, p->q_len, p->head_dim_v},
         TP__ELEMENTS_LOG2},
        {"batch * kv_heads * kv_len * head_dim_qk",
         {p->batch, p->kv_heads, p->kv_len, p->head_dim_qk},
         TP__ELEMENTS_LOG2},
        {"batch * kv_heads * kv_len * head_dim_v",
         {p->batch, p->kv_heads, p->kv_len, p->head_dim_v},
         TP__ELEMENTS_LOG2},
        {"batch * q_heads * q_len * kv_len",
         {p->batch, p->q_heads, p->q_len, p->kv_len},
         TP__PAIRS_LOG2},
        {"batch * q_heads * q_len * sparse_len",
         {p->batch, p->q_heads, p->q_len, p->sparse_len > 0 ? tp__row_keys_max(p) : 0},
         TP__PAIRS_LOG2},
    };
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
        TP_TRY(check_product(products[i].names, products[i].factor, products[i].max_log2, error));
    return TP_OK;
}

/* What is said of the keys: pages, sparse indices, a latent cache. */
static tp_status check_cache(const tp_problem *p, tp_error *error) {
    if (p->kv_layout == TP_PAGED)
        TP_TRY(check_range("page_size", p->page_size, 1, TP__LENGTH_MAX, 40, error));
    else
        TP_REQUIRE(p->page_size == 0, error, TP_INVALID,
                   "page_size is %lld though kv_layout is not TP_PAGED: it must be 0",
                   (long long)p->page_size);
    TP_TRY(check_range("sparse_len", p->sparse_len, 0, TP__LENGTH_MAX, 40, error));
    TP_TRY(check_either("sparse_sorted", p->sparse_sorted, "0 or 1", error));
    TP_TRY(check_either("latent", p->latent, "0 or 1", error));
    TP_TRY(check_either("invariant", p->invariant, "0 or 1", error));
    TP_REQUIRE(p->reserved == 0, error, TP_INVALID, "reserved is %d: it must be 0", p->reserved);
    TP_REQUIRE(!p->sparse_sorted || p->sparse_len > 0, error, TP_INVALID,
               "sparse_sorted is 1 with sparse_len 0: there are no sparse indices");
    TP_REQUIRE(p->sparse_len == 0 || p->sparse_sorted || p->mask_nodes == 0, error, TP_INVALID,
               "mask_nodes is %d with sparse indices that are not sorted: a mask needs sparse_sorted",
               p->mask_nodes);
    TP_REQUIRE(!p->latent || (p->k_dtype == p->v_dtype && p->head_dim_v <= p->head_dim_qk), error,
               TP_INVALID,
               "latent with k %s of head dim %lld and v %s of %lld: v must be part of k's rows",
               tp_dtype_name(p->k_dtype), (long long)p->head_dim_qk, tp_dtype_name(p->v_dtype),
               (long long)p->head_dim_v);
    TP_REQUIRE(!p->latent || p->k_scales == p->v_scales, error, TP_INVALID,
               "latent with k_scales %s and v_scales %s: v is part of k's rows, so they must be equal",
               tp_scales_name((tp_scales)p->k_scales), tp_scales_name((tp_scales)p->v_scales));
    return TP_OK;
}

static tp_status check_scores(const tp_problem *p, tp_error *error) {
    TP_TRY(check_either("positions", p->positions, "0 (of the alignment) or 1 (the tensors')", error));
    TP_TRY(check_either("alibi", p->alibi, "0 or 1", error));
    TP_TRY(check_either("sinks", p->sinks, "0 or 1", error));
    if (p->bias_dtype != 0) TP_TRY(check_dtype("bias_dtype", p->bias_dtype, error));
    TP_REQUIRE(p->softcap >= 0 && (p->softcap == 0 || p->softcap >= 0x1p-60f) && p->softcap <= 0x1p60f,
               error, TP_INVALID, "softcap is %g: it must be 0 (none) or in 2^-60..2^60",
               (double)p->softcap);
    TP_REQUIRE(isfinite(p->qscale_beta), error, TP_INVALID, "qscale_beta is %g: it must be finite",
               (double)p->qscale_beta);
    TP_REQUIRE(p->dropout >= 0 && p->dropout < 1, error, TP_INVALID,
               "dropout is %g: it must be at least 0 and below 1", (double)p->dropout);
    TP_REQUIRE(p->reserved2 == 0, error, TP_INVALID, "reserved2 is %d: it must be 0", p->reserved2);
    TP_REQUIRE(p->reserved3 == 0, error, TP_INVALID, "reserved3 is %d: it must be 0", p->reserved3);
    TP_REQUIRE(p->p_dtype == 0 || p->p_dtype == TP_BF16, error, TP_INVALID,
               "p_dtype is %d: it must be 0 (float32) or TP_BF16 (%d)", p->p_dtype, TP_BF16);
    TP_TRY(check_range("qscale_length", p->qscale_length, 0, TP__LENGTH_MAX, 40, error));
    return check_range("qscale_offset", p->qscale_offset, 0, TP__LENGTH_MAX, 40, error);
}

/* With sparse indices a row meets slots, not keys at their places: what goes by places cannot follow. */
static tp_status check_sparse(const tp_problem *p, tp_error *error) {
    if (p->sparse_len == 0) return TP_OK;
    const char *found = p->positions ? "positions" : p->alibi ? "alibi" : p->bias_dtype ? "bias"
                        : p->dropout > 0 ? "dropout"
                                         : NULL;
    for (int i = 0; i < p->mask_nodes && found == NULL; i++) {
        int32_t kind = p->mask[i].kind;
        if (kind == TP_MASK_OR) found = "mask or";
        if (kind == TP_MASK_AND || kind == TP_MASK_OR) continue;
        const tp_mask_info *info = &tp__mask_kind_of(kind)->info;
        if (!(info->traits & TP_MASK_MONOTONE)) found = info->name;
    }
    TP_REQUIRE(found == NULL, error, TP_UNSUPPORTED,
               "%s with sparse indices of %lld keys: they go with causal, window, softcap, sinks and qscale only",
               found, (long long)p->sparse_len);
    return TP_OK;
}

/* A pass over shared keys has rows of several sequences: what goes by the sequence cannot follow. */
static tp_status check_cascade(const tp_problem *p, tp_error *error) {
    TP_TRY(check_range("cascade", p->cascade, 0, TP__LENGTH_MAX, 40, error));
    if (p->cascade == 0) return TP_OK;
    TP_REQUIRE(p->kv_layout == TP_PAGED, error, TP_INVALID,
               "cascade is %lld though kv_layout is not TP_PAGED: sequences share keys by their pages", (long long)p->cascade);
    const char *found = p->sparse_len > 0         ? "sparse indices"
                        : p->positions            ? "positions"
                        : p->alibi                ? "alibi"
                        : p->bias_dtype           ? "bias"
                        : p->dropout > 0          ? "dropout"
                        : !tp__mask_is_plain(p)   ? "a mask that may leave holes"
                                                  : NULL;
    TP_REQUIRE(found == NULL, error, TP_UNSUPPORTED,
               "%s with cascade %lld: shared prefixes go with causal, window, qscale, softcap and sinks only", found,
               (long long)p->cascade);
    return TP_OK;
}

/* What serves caches and decoding is not trained through. */
static tp_status check_backward(const tp_problem *p, tp_error *error) {
    if (p->op != TP_BACKWARD) return TP_OK;
    const char *found = p->k_scales != 0 || p->v_scales != 0 ? "a quantised k or v"
                        : p->kv_layout == TP_PAGED ? "paged"
                        : p->sparse_len > 0        ? "sparse indices"
                        : p->latent              ? "latent"
                        : p->invariant           ? "invariant"
                                                 : NULL;
    TP_REQUIRE(found == NULL, error, TP_UNSUPPORTED,
               "%s with op TP_BACKWARD: gradients go through k and v of f32, f16 and bf16, in plain batches, used lengths and "
               "packed sequences, only", found);
    return TP_OK;
}

static tp_status check_all(const tp_problem *problem, tp_error *error) {
    TP_STRUCT_IN(tp_problem, problem, error);
    TP_REQUIRE(problem->op == TP_FORWARD || problem->op == TP_BACKWARD, error, TP_INVALID,
               "op is %d: it must be TP_FORWARD (0) or TP_BACKWARD (1)", problem->op);
    TP_TRY(check_dtype("q_dtype", problem->q_dtype, error));
    TP_TRY(check_stored("k_dtype", problem->k_dtype, problem->k_scales, problem->head_dim_qk, error));
    TP_TRY(check_stored("v_dtype", problem->v_dtype, problem->v_scales, problem->head_dim_v, error));
    TP_TRY(check_dtype("o_dtype", problem->o_dtype, error));
    TP_TRY(check_either("q_layout", problem->q_layout, "TP_BATCH (0) or TP_PACKED (1)", error));
    TP_REQUIRE(problem->kv_layout >= TP_BATCH && problem->kv_layout <= TP_PAGED, error, TP_INVALID,
               "kv_layout is %d: it must be TP_BATCH (0), TP_PACKED (1) or TP_PAGED (2)",
               problem->kv_layout);
    TP_TRY(check_either("align", problem->align, "TP_BOTTOM_RIGHT (0) or TP_TOP_LEFT (1)", error));
    TP_TRY(check_either("scale_set", problem->scale_set, "0 (default scale) or 1", error));
    TP_TRY(check_sizes(problem, error));
    if (problem->scale_set) {
        TP_REQUIRE(isfinite(problem->scale), error, TP_INVALID, "scale is %g: it must be finite",
                   (double)problem->scale);
        TP_REQUIRE(isfinite((float)((double)problem->scale * TP__LOG2_E)), error, TP_INVALID,
                   "scale is %g: scale * log2(e) must be finite in float", (double)problem->scale);
    }
    TP_TRY(check_cache(problem, error));
    TP_TRY(check_scores(problem, error));
    TP_TRY(tp__mask_check(problem, error));
    TP_TRY(check_sparse(problem, error));
    TP_TRY(check_cascade(problem, error));
    return check_backward(problem, error);
}

tp_status tp_problem_check(const tp_problem *problem, tp_error *error) {
    tp__control saved = tp__control_take();
    tp_status status = check_all(problem, error);
    tp__control_restore(saved);
    return status;
}

double tp__row_scale(const tp_problem *problem, int64_t q_pos) {
    if (problem->qscale_length == 0) return 1;
    int64_t at = q_pos + problem->qscale_offset, steps = at > 0 ? at / problem->qscale_length : 0;
    return 1 + (double)problem->qscale_beta * log1p((double)steps);
}

int64_t tp__row_keys_max(const tp_problem *p) {
    int repeats = p->sparse_len > 0 && !p->sparse_sorted && p->kv_len > 0;
    return repeats || (p->sparse_len > 0 && p->sparse_len < p->kv_len) ? p->sparse_len : p->kv_len;
}

int tp__modifies_scores(const tp_problem *problem) {
    return problem->bias_dtype != 0 || problem->alibi || problem->softcap > 0 ||
           problem->qscale_length > 0;
}

float tp__scale(const tp_problem *problem) {
    if (problem->scale_set) return problem->scale;
    return (float)(1.0 / sqrt((double)problem->head_dim_qk));
}

const char *tp__phase(int64_t q_len, int64_t kv_len) {
    return q_len == 1 || (q_len <= 16 && kv_len > q_len) ? "decode" : "prefill";
}
