/* SPDX-License-Identifier: Apache-2.0 */
/* tp_reference_backward: the entry point, and the sums over the rows of one KV head of one sequence. */
#include "reference/backward.h"
#include "reference/rounding.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/control.h"
#include "base/arena.h"
#include "base/dtype.h"
#include "base/structs.h"

typedef struct job {
    const tp_problem *problem;
    const tp_tensors *tensors;
    const tp_reference_gradients *out;
    tp_precision precision;
    int bounds; /* asked for */
    int64_t seq, kv_head, group;
    tp__sequence sequence;
    tp__backward_row at;
    tp__sum *d_q, *d_k,
        *d_v;      /* [head_dim_qk] of the row; [kv_len][head_dim_qk], [kv_len][head_dim_v] */
    tp__sum *d_slopes, *d_sinks; /* [group] */
    int64_t *rows; /* [kv_len]: that see the key */
} job;

static tp_status check_served(const tp_problem *problem, tp_error *error) {
    const char *found = problem->kv_layout == TP_PAGED ? "a paged layout"
                        : problem->sparse_len > 0        ? "sparse indices"
                        : problem->latent              ? "a latent cache"
                        : problem->k_scales != 0 || problem->v_scales != 0 ? "a quantised k or v"
                                                       : NULL;
    TP_REQUIRE(found == NULL, error, TP_UNSUPPORTED, "%s has no gradients: it belongs to decoding",
               found);
    return TP_OK;
}

static tp_status check_arguments(const job *j, tp_error *error) {
    TP_REQUIRE(j->out->reserved == 0, error, TP_INVALID, "reserved is %d: it must be 0",
               j->out->reserved);
    TP_REQUIRE(j->precision == TP_DOUBLE || j->precision == TP_NAIVE, error, TP_INVALID,
               "precision is %d: it must be TP_DOUBLE (0) or TP_NAIVE (1)", (int)j->precision);
    TP_REQUIRE(!j->bounds || j->precision == TP_DOUBLE, error, TP_INVALID,
               "bounds with TP_NAIVE: they belong to TP_DOUBLE's results");
    TP_REQUIRE(j->seq >= 0 && j->seq < j->tensors->batch, error, TP_INVALID,
               "seq is %lld: it must be in 0..%lld", (long long)j->seq,
               (long long)j->tensors->batch - 1);
    TP_REQUIRE(j->kv_head >= 0 && j->kv_head < j->problem->kv_heads, error, TP_INVALID,
               "kv_head is %lld: it must be in 0..%lld", (long long)j->kv_head,
               (long long)j->problem->kv_heads - 1);
    return TP_OK;
}

/* The first walk counts bytes, the second sets pointers. */
static size_t lay_out(job *j, void *memory) {
    tp__arena arena = {.base = memory};
    int64_t keys = j->sequence.kv_len, d = j->problem->head_dim_qk, dv = j->problem->head_dim_v;
    void *row = tp__take(&arena, (int64_t)tp__row_scratch(j->problem, keys), 1);
    j->at.d_o = TP_TAKE(&arena, double, dv);
    j->at.pairs = TP_TAKE(&arena, tp__pair, keys + 1);
    j->d_q = TP_TAKE(&arena, tp__sum, d);
    j->d_k = TP_TAKE(&arena, tp__sum, tp__times(keys, d));
    j->d_v = TP_TAKE(&arena, tp__sum, tp__times(keys, dv));
    j->d_slopes = TP_TAKE(&arena, tp__sum, j->group);
    j->d_sinks = TP_TAKE(&arena, tp__sum, j->group);
    j->rows = TP_TAKE(&arena, int64_t, keys);
    if (memory != NULL) tp__row_memory(&j->at.row, keys, row);
    return arena.used;
}

static void place(job *j, int64_t row, int64_t head) {
    const tp_gradients *given = j->tensors->gradients;
    int first =
        j->problem->q_layout == TP_PACKED; /* the stride that a sequence's start counts in */
    int64_t start = j->problem->q_layout == TP_PACKED ? j->sequence.q_token : j->seq;
    tp__row_place(&j->at.row, &(tp_row){j->seq, head, row});
    tp__row_double(&j->at.row);
    if (j->at.row.lse == -INFINITY) return; /* its gradients are not read */
    int sees = j->at.row.keys[0].index != TP__SINK; /* a row that sees no key has o = 0 whatever d_o is */
    const int64_t *stride = given->d_o.stride;
    int64_t at = start * stride[first] + row * stride[1] + head * stride[2];
    for (int64_t x = 0; x < j->problem->head_dim_v; x++)
        j->at.d_o[x] = sees ? tp__load(j->problem->o_dtype, given->d_o.data, at + x) : 0;
    j->at.d_lse = 0;
    if (given->d_lse.data == NULL) return;
    stride = given->d_lse.stride;
    j->at.d_lse =
        ((const float *)
             given->d_lse.data)[start * stride[first] + row * stride[1] + head * stride[2]];
}

/* loaded: b as the kernel has it */
static void add(const job *j, tp__sum *sum, const tp__pair *pair, double a, double b, double a_error, double loaded) {
    if (j->precision == TP_NAIVE)
        sum->value = (float)sum->value + (float)a * (float)b;
    else
        sum->value += a * b;
    if (!j->bounds) return;
    sum->overflows |= pair->overflows;
    sum->error += a_error * fabs(b);
    if (fabs(loaded) < j->at.row.rounding->flushes) sum->error += (fabs(a) + a_error) * fabs(b);
    sum->size += fabs(a * b);
}

/* What the row's pairs add to the sums. */
static void add_pairs(job *j) {
    const tp__reference_row *row = &j->at.row;
    int64_t d = j->problem->head_dim_qk, dv = j->problem->head_dim_v;
    for (int64_t i = 0; i < row->count && row->keys[i].index != TP__SINK; i++) {
        const tp__pair *pair = &j->at.pairs[i];
        int64_t key = row->keys[i].index;
        const double *k = tp__row_k(row, key);
        /* d_k is summed from q as it was loaded, times a power of two of the scale: it may be subnormal there */
        double lost = row->scale == 0 ? 0 : (fabs(pair->d_plain) + pair->d_error) * 2 * TINY / fabs((double)row->scale);
        j->rows[key]++;
        for (int64_t x = 0; x < d; x++) {
            add(j, &j->d_q[x], pair, pair->d_plain, k[x], pair->d_error, k[x]);
            add(j, &j->d_k[key * d + x], pair, pair->d_plain, row->q[x], pair->d_error, row->scale * row->q[x]);
            if (j->bounds && fabs(row->scale * row->q[x]) < 4 * FLT_MIN) j->d_k[key * d + x].error += lost;
        }
        for (int64_t x = 0; x < dv; x++)
            add(j, &j->d_v[key * dv + x], pair, pair->p, j->at.d_o[x], pair->p_error, j->at.d_o[x]);
    }
}

/* The gradients of what changes scores: sums of d_score itself. */
static void add_scores(job *j, int64_t row_index, int64_t g) {
    const tp__reference_row *row = &j->at.row;
    for (int64_t i = 0; i < row->count; i++) {
        const tp__pair *pair = &j->at.pairs[i];
        int64_t key = row->keys[i].index;
        if (key == TP__SINK) {
            add(j, &j->d_sinks[g], pair, pair->d_score, 1, pair->score_error, 1);
            continue;
        }
        double distance = fabs((double)(row->position - tp__mask_k_pos(&row->view, key)));
        add(j, &j->d_slopes[g], pair, pair->d_score, -distance, pair->score_error, 1);
        tp__sum bias = {0};
        add(j, &bias, pair, pair->d_score, 1, pair->score_error, 1);
        int64_t at = (row_index * j->group + g) * j->sequence.kv_len + key;
        if (j->out->d_bias != NULL) j->out->d_bias[at] = bias.value;
        if (j->out->d_bias_bound != NULL) j->out->d_bias_bound[at] = tp__sum_bound(&bias, 1, 1, TP_F32, TINY);
    }
}

/* Of a row that has no contributing key by the definition, though a kernel may find NaN in it. */
static void promise_nothing(job *j, int64_t row_index, int64_t g) {
    const tp__reference_row *row = &j->at.row;
    int64_t d = j->problem->head_dim_qk, dv = j->problem->head_dim_v;
    j->d_slopes[g].overflows = j->d_sinks[g].overflows = 1;
    for (int64_t x = 0; x < d; x++) j->d_q[x].overflows = 1;
    for (int64_t i = 0; i < row->count && row->keys[i].index != TP__SINK; i++) {
        int64_t key = row->keys[i].index;
        for (int64_t x = 0; x < d; x++) j->d_k[key * d + x].overflows = 1;
        for (int64_t x = 0; x < dv; x++) j->d_v[key * dv + x].overflows = 1;
        if (j->out->d_bias_bound != NULL)
            j->out->d_bias_bound[(row_index * j->group + g) * j->sequence.kv_len + key] = INFINITY;
    }
}

static void finish(const job *j, tp__sum *sums, int64_t dim, int64_t terms, double factor,
                   int32_t dtype, double *out, double *bound) {
    if (bound != NULL) *bound = 0;
    for (int64_t x = 0; x < dim; x++) {
        double value = factor * sums[x].value;
        if (j->precision == TP_NAIVE)
            value = tp__rounded(dtype, (float)factor * (float)sums[x].value);
        if (out != NULL) out[x] = value;
        if (bound != NULL) *bound = fmax(*bound, tp__sum_bound(&sums[x], terms, factor, dtype, j->at.row.rounding->tiny));
    }
}

static void do_row(job *j, int64_t row, int64_t g) {
    int64_t d = j->problem->head_dim_qk, at = row * j->group + g, seen = 0;
    const tp_reference_gradients *out = j->out;
    memset(j->d_q, 0, (size_t)d * sizeof *j->d_q);
    place(j, row, j->kv_head * j->group + g);
    if (j->precision == TP_NAIVE && j->at.row.lse != -INFINITY) tp__row_naive(&j->at.row);
    if (j->bounds && j->at.row.lse == -INFINITY) {
        double bound, lse_bound;
        tp__row_bound(&j->at.row, &bound, &lse_bound);
        if (bound == INFINITY) promise_nothing(j, row, g);
    }
    if (j->at.row.lse != -INFINITY) {
        (j->precision == TP_NAIVE ? tp__pairs_naive : tp__pairs_double)(&j->at);
        if (j->bounds) tp__pairs_bound(&j->at);
        add_pairs(j);
        add_scores(j, row, g);
        seen = j->at.row.count;
    }
    finish(j, j->d_q, d, seen, j->at.row.scale, j->problem->q_dtype,
           out->d_q == NULL ? NULL : out->d_q + at * d,
           out->d_q_bound == NULL ? NULL : out->d_q_bound + at);
}

static void compute(job *j) {
    const tp_problem *p = j->problem;
    const tp_reference_gradients *out = j->out;
    int64_t keys = j->sequence.kv_len, rows = j->sequence.q_len, d = p->head_dim_qk,
            dv = p->head_dim_v;
    for (int64_t i = 0; i < rows * j->group * keys; i++) {
        if (out->d_bias != NULL) out->d_bias[i] = 0;
        if (out->d_bias_bound != NULL) out->d_bias_bound[i] = 0;
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t g = 0; g < j->group; g++) do_row(j, row, g);
    for (int64_t i = 0; i < keys; i++) {
        finish(j, j->d_k + i * d, d, j->rows[i], j->at.row.scale, p->k_dtype,
               out->d_k == NULL ? NULL : out->d_k + i * d,
               out->d_k_bound == NULL ? NULL : out->d_k_bound + i);
        finish(j, j->d_v + i * dv, dv, j->rows[i], 1, p->v_dtype,
               out->d_v == NULL ? NULL : out->d_v + i * dv,
               out->d_v_bound == NULL ? NULL : out->d_v_bound + i);
    }
    for (int64_t g = 0; g < j->group; g++) {
        finish(j, &j->d_slopes[g], 1, rows * keys, 1, TP_F32, out->d_alibi_slopes == NULL ? NULL : out->d_alibi_slopes + g,
               out->d_alibi_slopes_bound == NULL ? NULL : out->d_alibi_slopes_bound + g);
        finish(j, &j->d_sinks[g], 1, rows, 1, TP_F32, out->d_sinks == NULL ? NULL : out->d_sinks + g,
               out->d_sinks_bound == NULL ? NULL : out->d_sinks_bound + g);
    }
}

tp_status tp_reference_backward(const tp_problem *problem, const tp_tensors *tensors,
                                tp_precision precision, int64_t seq, int64_t kv_head,
                                const tp_reference_gradients *out, tp_error *error) {
    TP_STRUCT_IN(tp_problem, problem, error);
    tp_problem forward = *problem; /* whose gradients these are */
    forward.op = TP_FORWARD;
    TP_TRY(tp_problem_check(&forward, error));
    TP_TRY(check_served(&forward, error));
    TP_REQUIRE(tensors != NULL, error, TP_INVALID, "tp_tensors is NULL");
    tp__tensors_here here;
    TP_TRY(tp__tensors_in(&tensors, TP_BACKWARD, &here, error));
    TP_STRUCT_IN(tp_reference_gradients, out, error);
    tp_tensors given = *tensors, inputs; /* o and lse are computed anew */
    given.o = given.lse = (tp_tensor){0};
    TP_TRY(tp__reference_inputs(&forward, &given, &inputs, error));
    TP_TRY(tp__reference_d_o(&forward, &inputs, error));
    job j = {.problem = &forward,
             .tensors = &inputs,
             .out = out,
             .precision = precision,
             .seq = seq,
             .kv_head = kv_head,
             .group = forward.q_heads / forward.kv_heads};
    j.bounds = out->d_q_bound != NULL || out->d_k_bound != NULL || out->d_v_bound != NULL || out->d_bias_bound != NULL ||
               out->d_alibi_slopes_bound != NULL || out->d_sinks_bound != NULL;
    TP_TRY(check_arguments(&j, error));
    j.sequence = tp__sequence_at(&forward, &inputs, seq);
    TP_TRY(tp__reference_data(problem, &inputs, seq, &j.sequence, error));

    /* o and lse came from a forward call, which could do what the problem permits */
    const tp__rounding *rounding = tp__rounding_of(forward.p_dtype == TP_BF16 ? TP_ARITHMETIC_P_BF16 : TP_ARITHMETIC_F32);
    j.at.row = (tp__reference_row){.problem = &forward, .rounding = rounding, .tensors = &inputs};
    size_t bytes = lay_out(&j, NULL);
    void *memory = bytes == SIZE_MAX ? NULL : calloc(1, bytes);
    TP_REQUIRE(memory != NULL, error, TP_NO_MEMORY, "no memory for the gradients of %lld keys",
               (long long)j.sequence.kv_len);
    lay_out(&j, memory);
    tp__control saved = tp__control_take();
    j.at.row.scale = tp__scale(&forward);
    compute(&j);
    tp__control_restore(saved);
    free(memory);
    return TP_OK;
}
