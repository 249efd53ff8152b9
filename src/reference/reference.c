/* SPDX-License-Identifier: Apache-2.0 */
/* tp_reference: the door. Everything is checked before the first result is written. */
#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "masks/mask.h"

#define OFFSET_MAX ((int64_t)1 << 58) /* elements: the byte offset fits in int64 */

/* The tokens of q, or of k and v: what the tensors say and the most the problem allows. */
typedef struct side {
    const char *name;
    int32_t packed;
    const void *cu, *lens;
    int64_t len, tokens, most;
} side;

static tp_status check_side(const tp_tensors *tensors, const side *s, tp_error *error) {
    int64_t start = 0;
    if (s->packed) {
        TP_REQUIRE(s->cu != NULL, error, TP_INVALID,
                   "cu_seqlens_%s is NULL: a packed layout needs it", s->name);
        start = tp__index_at(tensors, s->cu, 0);
        TP_REQUIRE(start >= 0, error, TP_INVALID, "cu_seqlens_%s[0] is %lld: it must be >= 0",
                   s->name, (long long)start);
    } else {
        TP_REQUIRE(s->len >= 0 && s->len <= s->most, error, TP_INVALID,
                   "tensors %s_len is %lld: it must be in 0..%lld, the problem's", s->name,
                   (long long)s->len, (long long)s->most);
    }
    for (int64_t i = 0; i < tensors->batch; i++) {
        int64_t len = s->len;
        if (s->packed) {
            int64_t end = tp__index_at(tensors, s->cu, i + 1);
            TP_REQUIRE(end >= start && end - start <= s->most && end <= s->tokens, error,
                       TP_INVALID,
                       "cu_seqlens_%s[%lld] is %lld after %lld: it must not fall, not rise by more "
                       "than %lld, and not exceed %s_tokens, %lld",
                       s->name, (long long)(i + 1), (long long)end, (long long)start,
                       (long long)s->most, s->name, (long long)s->tokens);
            len = end - start;
            start = end;
        }
        int64_t used = s->lens != NULL ? tp__index_at(tensors, s->lens, i) : len;
        TP_REQUIRE(used >= 0 && used <= len, error, TP_INVALID,
                   "%s_lens[%lld] is %lld: it must be in 0..%lld, the tokens the sequence holds",
                   s->name, (long long)i, (long long)used, (long long)len);
    }
    return TP_OK;
}

static tp_status check_strides(const char *name, const tp_tensor *tensor, const int64_t extent[3],
                               tp_error *error) {
    int64_t offset = 0;
    for (int i = 0; i < 3; i++) {
        int64_t most = extent[i] > 0 ? extent[i] - 1 : 0, step;
        TP_REQUIRE(tensor->stride[i] >= 0 || most == 0, error, TP_INVALID,
                   "%s.stride[%d] is %lld: it must be >= 0", name, i, (long long)tensor->stride[i]);
        TP_REQUIRE(!__builtin_mul_overflow(tensor->stride[i], most, &step) && step <= OFFSET_MAX,
                   error, TP_INVALID,
                   "%s.stride[%d] is %lld over %lld steps: offsets must stay within 2^58 elements",
                   name, i, (long long)tensor->stride[i], (long long)most);
        offset += step;
    }
    TP_REQUIRE(offset <= OFFSET_MAX, error, TP_INVALID,
               "%s reaches element %lld: offsets must stay within 2^58 elements", name,
               (long long)offset);
    return TP_OK;
}

/* What tp__tensors_check finds out about inputs, for tensors that come without an output. */
static tp_status check_inputs(const tp_problem *problem, const tp_tensors *tensors,
                              tp_error *error) {
    int q_packed = problem->q_layout == TP_PACKED, kv_packed = problem->kv_layout == TP_PACKED;
    TP_REQUIRE(tensors->device == TP_CPU, error, TP_UNSUPPORTED,
               "device is %d: only TP_CPU (0) can be read", tensors->device);
    TP_REQUIRE(tensors->reserved == 0, error, TP_INVALID, "reserved is %d: it must be 0",
               tensors->reserved);
    TP_REQUIRE(tensors->index_type == TP_I32 || tensors->index_type == TP_I64, error, TP_INVALID,
               "index_type is %d: it must be TP_I32 (0) or TP_I64 (1)", tensors->index_type);
    TP_REQUIRE(tensors->batch >= 0 && tensors->batch <= problem->batch, error, TP_INVALID,
               "tensors batch is %lld: it must be in 0..%lld, the problem's",
               (long long)tensors->batch, (long long)problem->batch);
    const side q = {"q",
                    q_packed,
                    tensors->cu_seqlens_q,
                    tensors->q_lens,
                    tensors->q_len,
                    tensors->q_tokens,
                    problem->q_len};
    const side kv = {"kv",
                     kv_packed,
                     tensors->cu_seqlens_kv,
                     tensors->kv_lens,
                     tensors->kv_len,
                     tensors->kv_tokens,
                     problem->kv_len};
    TP_TRY(check_side(tensors, &q, error));
    TP_TRY(check_side(tensors, &kv, error));
    const int64_t q_extent[3] = {q_packed ? 1 : tensors->batch,
                                 q_packed ? tensors->q_tokens : tensors->q_len, problem->q_heads};
    int paged = problem->kv_layout == TP_PAGED;
    const int64_t kv_extent[3] = {kv_packed ? 1 : paged ? tensors->pages : tensors->batch,
                                  kv_packed ? tensors->kv_tokens
                                  : paged   ? problem->page_size
                                            : tensors->kv_len,
                                  problem->kv_heads};
    TP_TRY(check_strides("q", &tensors->q, q_extent, error));
    TP_TRY(check_strides("k", &tensors->k, kv_extent, error));
    TP_TRY(check_strides("v", &tensors->v, kv_extent, error));
    TP_TRY(tp__mask_data_check(problem, tensors, error));
    return tp__cache_check(problem, tensors, error);
}

static tp_status check_row(const tp_problem *problem, const tp_tensors *tensors, int64_t i,
                           const tp_row *row, int64_t *kv_len, tp_error *error) {
    TP_REQUIRE(row->seq >= 0 && row->seq < tensors->batch, error, TP_INVALID,
               "rows[%lld].seq is %lld: it must be in 0..%lld", (long long)i, (long long)row->seq,
               (long long)tensors->batch - 1);
    TP_REQUIRE(row->head >= 0 && row->head < problem->q_heads, error, TP_INVALID,
               "rows[%lld].head is %lld: it must be a query head in 0..%lld", (long long)i,
               (long long)row->head, (long long)problem->q_heads - 1);
    tp__sequence sequence = tp__sequence_at(problem, tensors, row->seq);
    TP_REQUIRE(row->row >= 0 && row->row < sequence.q_len, error, TP_INVALID,
               "rows[%lld].row is %lld: it must be in 0..%lld, the rows of sequence %lld",
               (long long)i, (long long)row->row, (long long)sequence.q_len - 1,
               (long long)row->seq);
    const struct {
        const char *name;
        const void *data;
    } inputs[] = {{"q", tensors->q.data}, {"k", tensors->k.data}, {"v", tensors->v.data}};
    for (int t = 0; t < 3; t++)
        TP_REQUIRE(inputs[t].data != NULL || sequence.kv_len == 0, error, TP_INVALID,
                   "%s.data is NULL: sequence %lld has %lld keys to read", inputs[t].name,
                   (long long)row->seq, (long long)sequence.kv_len);
    int64_t keys = problem->list_len > 0 ? tp__list_count(problem, tensors, &sequence, row->row)
                                         : sequence.kv_len;
    if (keys > *kv_len) *kv_len = keys;
    return TP_OK;
}

/* Kernels hold distances relative to some key of the sequence. */
static double farthest(const tp__mask_view *view, int64_t position) {
    double far = (double)view->kv_len;
    for (int64_t j = 0; view->k_pos != NULL && j < view->kv_len; j++)
        far = fmax(far, fabs((double)tp__mask_k_pos(view, j)));
    return 2 * (far + fabs((double)position));
}

static void place_row(tp__reference_row *at, const tp_row *chosen) {
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
}

tp_status tp_reference(const tp_problem *problem, const tp_tensors *tensors, tp_precision precision,
                       int64_t count, const tp_row *rows, double *o, double *lse, double *bound,
                       double *lse_bound, tp_error *error) {
    TP_TRY(tp_problem_check(problem, error));
    TP_REQUIRE_STRUCT(tensors, tp_tensors, error);
    TP_REQUIRE(precision == TP_DOUBLE || precision == TP_NAIVE, error, TP_INVALID,
               "precision is %d: it must be TP_DOUBLE (0) or TP_NAIVE (1)", (int)precision);
    TP_REQUIRE(count >= 0, error, TP_INVALID, "count is %lld: it must be >= 0", (long long)count);
    TP_REQUIRE(rows != NULL || count == 0, error, TP_INVALID,
               "rows is NULL: it must hold count = %lld rows", (long long)count);
    tp_tensors inputs = *tensors; /* outputs are neither read nor written */
    if (tensors->o.data != NULL) TP_TRY(tp__tensors_check(problem, tensors, error));
    inputs.o = inputs.lse = (tp_tensor){0};
    TP_TRY(check_inputs(problem, &inputs, error));
    int64_t kv_len = 0, d = problem->head_dim_qk, dv = problem->head_dim_v;
    for (int64_t i = 0; i < count; i++)
        TP_TRY(check_row(problem, &inputs, i, &rows[i], &kv_len, error));

    tp__reference_row row = {.problem = problem, .tensors = &inputs, .scale = tp__scale(problem)};
    size_t keys_size = ((size_t)kv_len + 1) * sizeof *row.keys;
    size_t columns_size = (size_t)dv * sizeof *row.columns;
    char *memory = malloc(keys_size + columns_size + (size_t)(d + dv) * sizeof(double));
    TP_REQUIRE(memory != NULL, error, TP_NO_MEMORY, "no memory for a row of %lld keys",
               (long long)kv_len);
    row.keys = (tp__key *)memory;
    row.columns = (tp__column *)(memory + keys_size);
    row.q = (double *)(memory + keys_size + columns_size);
    row.o = row.q + d;
    for (int64_t i = 0; i < count; i++) {
        double row_bound = 0, row_lse_bound = 0;
        place_row(&row, &rows[i]);
        tp__row_double(&row);
        if (bound != NULL || lse_bound != NULL) tp__row_bound(&row, &row_bound, &row_lse_bound);
        if (precision == TP_NAIVE) tp__row_naive(&row);
        for (int64_t x = 0; x < dv && o != NULL; x++) o[i * dv + x] = row.o[x];
        if (lse != NULL) lse[i] = row.lse;
        if (bound != NULL) bound[i] = row_bound;
        if (lse_bound != NULL) lse_bound[i] = row_lse_bound;
    }
    free(memory);
    return TP_OK;
}
