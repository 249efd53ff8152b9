/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The definition written down once more, from the manual and not from the library: scale, mask
 * positions, heads and softmax. The library's reference must agree with it, or kernel and
 * reference could share one mistake.
 */
#include "check.h"

#include <math.h>
#include <stdlib.h>

enum { ALL_ROWS = 1 << 20 };

static int visible(const tp_problem *problem, int64_t q_len, int64_t kv_len, int64_t row,
                   int64_t key) {
    int64_t position = problem->align == TP_TOP_LEFT ? row : row + kv_len - q_len;
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_node *node = &problem->mask[i];
        if (node->kind == TP_MASK_CAUSAL && key > position) return 0;
        if (node->kind != TP_MASK_WINDOW) continue;
        if (node->a >= 0 && key < position - node->a) return 0;
        if (node->b >= 0 && key > position + node->b) return 0;
    }
    return 1;
}

static double score(const struct tensors *tensors, tp_row at, int64_t key, double scale) {
    int64_t group = tensors->problem.q_heads / tensors->problem.kv_heads;
    double sum = 0;
    for (int64_t x = 0; x < tensors->problem.head_dim_qk; x++)
        sum += (double)tensors_get(tensors, TENSOR_Q, at.seq, at.row, at.head, x) *
               (double)tensors_get(tensors, TENSOR_K, at.seq, key, at.head / group, x);
    return scale * sum;
}

/* o and the returned lse of one row. */
static double define_row(const struct tensors *tensors, tp_row at, double *o) {
    const tp_problem *problem = &tensors->problem;
    int64_t q_len = tensors->q_lens[at.seq], kv_len = tensors->kv_lens[at.seq];
    int64_t group = problem->q_heads / problem->kv_heads;
    double scale = problem->scale_set ? (double)problem->scale
                                      : (double)(float)(1 / sqrt((double)problem->head_dim_qk));
    double most = -INFINITY, sum = 0;
    for (int64_t x = 0; x < problem->head_dim_v; x++) o[x] = 0;
    int64_t j;
    for (int64_t i = 0; (j = tensors_key(tensors, at.seq, at.row, i)) >= 0; i++)
        if (visible(problem, q_len, kv_len, at.row, j))
            most = fmax(most, score(tensors, at, j, scale));
    if (most == -INFINITY) return -INFINITY;
    for (int64_t i = 0; (j = tensors_key(tensors, at.seq, at.row, i)) >= 0; i++) {
        if (!visible(problem, q_len, kv_len, at.row, j)) continue;
        double weight = exp(score(tensors, at, j, scale) - most);
        sum += weight;
        for (int64_t x = 0; x < problem->head_dim_v; x++)
            o[x] += weight * (double)tensors_get(tensors, TENSOR_V, at.seq, j, at.head / group, x);
    }
    for (int64_t x = 0; x < problem->head_dim_v; x++) o[x] /= sum;
    return most + log(sum);
}

static int near(double a, double b) {
    return a == b || fabs(a - b) <= 1e-11 * fmax(1, fabs(a));
}

static int check_row(struct check_env *env, const struct tensors *tensors,
                     const struct truth *truth, int64_t i, double *o) {
    tp_row at = truth->rows[i];
    int64_t q_len = tensors->q_lens[at.seq], kv_len = tensors->kv_lens[at.seq];
    for (int64_t j = 0; j < kv_len; j++) {
        int expected = visible(&tensors->problem, q_len, kv_len, at.row, j);
        int got = tp_mask_allowed(&tensors->problem, q_len, kv_len, at.row, j);
        if (got != expected)
            return check_fail(env, "tp_mask_allowed of row %lld key %lld: expected %d, got %d",
                              (long long)at.row, (long long)j, expected, got);
    }
    double lse = define_row(tensors, at, o);
    if (!near(lse, truth->lse[i]))
        return check_fail(
            env, "tp_reference lse of seq %lld head %lld row %lld: expected %.15g, got %.15g",
            (long long)at.seq, (long long)at.head, (long long)at.row, lse, truth->lse[i]);
    for (int64_t x = 0; x < truth->dim; x++)
        if (!near(o[x], truth->o[i * truth->dim + x]))
            return check_fail(
                env, "tp_reference o of seq %lld head %lld row %lld: expected %.15g, got %.15g",
                (long long)at.seq, (long long)at.head, (long long)at.row, o[x],
                truth->o[i * truth->dim + x]);
    return 0;
}

static int definition(struct check_env *env) {
    const struct check_case *test = env->test;
    struct tensors tensors;
    struct truth truth = {0};
    struct measured_error measured;
    tp_error error = TP_ERROR_INIT;
    double *o = calloc((size_t)test->problem.head_dim_v, sizeof *o);
    int failed = check_make(env, &tensors, &test->problem, &test->lengths, &test->style);
    if (!failed && !o) failed = check_fail(env, "no memory");
    if (!failed && truth_create(&truth, &tensors, ALL_ROWS, env->seed, &error) != TP_OK)
        failed = check_fail(env, "the reference refused: %s", error.text);
    for (int64_t i = 0; !failed && i < truth.count; i++)
        failed = check_row(env, &tensors, &truth, i, o);
    if (!failed)
        failed = check_attend(env, &tensors) ||
                 truth_compare(&truth, &tensors, &measured, env->reason, sizeof env->reason);
    truth_destroy(&truth);
    tensors_destroy(&tensors);
    free(o);
    return failed;
}

void check_add_definition(struct check_list *list) {
    static const struct tensors_style style = {.lse = 1};
    static const char *const texts[] = {
        "h6/2 q20 k33 d64/16 f32",
        "h6/2 q20 k33 d16/64 bf16 causal",
        "h5/1 q33 k20 d24 f16 causal",
        "h2/2 q20 k33 d24 f32 causal top-left",
        "h4/1 q33 k20 d24 f32 causal top-left window=5,-1",
        "h2/1 q20 k33 d24 bf16->f32 window=4,7",
        "h2/1 q20 k33 d24 f32:bf16:f16->f32 window=-1,3 scale=-0.7",
        "h2/1 q20 k33 d24 f32 top-left window=0,0 scale=2",
        "h4/2 seqs=2x7/20,1x0/3,1x12/5,1x1/40 d16/8 f32 packed causal window=9,2",
        "h4/2 seqs=2x7/20,1x0/3,1x12/5,1x1/40 d16/8 f32 padded causal",
        "h4/2 seqs=2x7/20,1x0/3,1x12/5,1x1/40 d16/8 f32 packed-q paged=3 causal",
        "h4/2 q7 k20 d16/8 f32 latent causal",
        "h4/2 q7 k40 d16/8 bf16 lists=9",
        "h4/2 seqs=2x7/20,1x0/3,1x12/5,1x1/40 d16/8 f16 padded paged=4 lists-sorted=12 causal",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_add(list, "hostile", "definition", definition, style, "%s", texts[i]);
}
