/* SPDX-License-Identifier: Apache-2.0 */
/* What masks and scores read of a call's tensors: is it there, and does every value keep its rule? */
#include "problem/sequence.h"

#include <math.h>

#include "base/arena.h"
#include "base/control.h"
#include "base/structs.h"

#define POSITION_MAX ((int64_t)1 << 40)

static int64_t tokens(int packed, int64_t batch, int64_t len, int64_t total) {
    return packed ? total : tp__times(batch, len);
}

int64_t tp__span_bytes(const int64_t *stride, const int64_t *extent, int dims, int64_t unit,
                          int64_t row_bytes) {
    int64_t last = 0;
    for (int i = 0; i < dims; i++) {
        int64_t step = extent[i] > 1 ? tp__times(tp__times(stride[i], unit), extent[i] - 1) : 0;
        if (__builtin_add_overflow(last, step, &last)) return INT64_MAX;
    }
    return __builtin_add_overflow(last, row_bytes, &last) ? INT64_MAX : last;
}

int64_t tp__rows_max(const tp_problem *p, const tp_tensors *t) {
    return p->q_layout == TP_PACKED ? p->q_len : t->q_len;
}

int64_t tp__keys_max(const tp_problem *p, const tp_tensors *t) {
    return p->kv_layout == TP_PACKED ? p->kv_len : t->kv_len;
}

static int64_t bits_bytes(const tp_problem *p, const tp_tensors *t) {
    const int64_t extent[3] = {t->batch, p->q_heads, tp__rows_max(p, t)};
    return tp__span_bytes(t->bits_stride, extent, 3, 1, (tp__keys_max(p, t) + 7) / 8);
}

static int64_t bias_bytes(const tp_problem *p, const tp_tensors *t) {
    int64_t unit = (int64_t)tp_dtype_bytes((tp_dtype)p->bias_dtype);
    const int64_t extent[4] = {t->batch, p->q_heads, tp__rows_max(p, t), tp__keys_max(p, t)};
    return tp__span_bytes(t->bias_stride, extent, 4, unit, unit);
}

/* Spans up to the last one that any sequence with rows has; 0 where that cannot be read. span_offsets is known to be
   aligned. */
static int64_t spans_listed(const tp_problem *p, const tp_tensors *t) {
    int64_t spans = 0;
    for (int64_t s = 0; tp__reads_indices(t) && s < t->batch; s++)
        if (tp__sequence_at(p, t, s).q_len > 0) spans = tp__max(spans, tp__index_at(t, t->span_offsets, s + 1));
    return spans;
}

enum { SPANS = 9 }; /* behind span_offsets, which measures it and is found aligned before */

tp__mask_array tp__mask_array_at(const tp_problem *p, const tp_tensors *t, int index) {
    int64_t size = tp__index_size(t), real = sizeof(float);
    int64_t rows = tp__times(tokens(p->q_layout == TP_PACKED, t->batch, t->q_len, t->q_tokens), size);
    int64_t keys = tp__times(tokens(p->kv_layout == TP_PACKED, t->batch, t->kv_len, t->kv_tokens), size);
    int documents = tp__mask_has(p, TP_MASK_DOCUMENTS), ids = tp__mask_has(p, TP_MASK_SPANS);
    int listed = ids && t->k_spans == NULL && t->span_offsets != NULL && t->batch > 0;
    const tp__mask_array arrays[] = {
        {"q_positions", p->positions ? t->q_positions : NULL, rows, size},
        {"k_positions", p->positions ? t->k_positions : NULL, keys, size},
        {"prefix_lens", tp__mask_has(p, TP_MASK_PREFIX) ? t->prefix_lens : NULL, t->batch * size, size},
        {"q_documents", documents ? t->q_documents : NULL, rows, size},
        {"k_documents", documents ? t->k_documents : NULL, keys, size},
        {"q_spans", ids ? t->q_spans : NULL, rows, size},
        {"k_spans", ids ? t->k_spans : NULL, keys, size},
        {"parents", tp__mask_has(p, TP_MASK_TREE) ? t->parents : NULL, rows, size},
        {"span_offsets", listed ? t->span_offsets : NULL, (t->batch + 1) * size, size},
        [SPANS] = {"spans", listed ? t->spans : NULL, 0, size},
        {"bits", tp__mask_has(p, TP_MASK_BITS) ? t->bits : NULL, bits_bytes(p, t), 1},
        {"bias", p->bias_dtype ? t->bias : NULL, bias_bytes(p, t), (int64_t)tp_dtype_bytes((tp_dtype)p->bias_dtype)},
        {"alibi_slopes", p->alibi ? t->alibi_slopes : NULL,
         tp__span_bytes(&t->alibi_stride, &t->batch, 1, real, p->q_heads * real), real},
        {"sinks", p->sinks ? t->sinks : NULL, p->q_heads * real, real},
        {"shared_with", p->cascade ? t->shared_with : NULL, t->batch * size, size},
        {"shared_lens", p->cascade ? t->shared_lens : NULL, t->batch * size, size},
    };
    if (index >= (int)(sizeof arrays / sizeof arrays[0])) return (tp__mask_array){0};
    tp__mask_array array = arrays[index];
    if (index == SPANS && array.data != NULL) array.bytes = tp__times(spans_listed(p, t), 2 * size);
    return array;
}

tp_status tp__mask_array_check(const tp__mask_array *array, tp_error *error) {
    uintptr_t end;
    if (array->data == NULL) return TP_OK;
    TP_REQUIRE((uintptr_t)array->data % (uintptr_t)array->unit == 0, error, TP_INVALID,
               "%s is %p: it must be aligned to its elements of %lld bytes", array->name, array->data,
               (long long)array->unit);
    TP_REQUIRE(!__builtin_add_overflow((uintptr_t)array->data, (uintptr_t)array->bytes, &end) &&
                   array->bytes < INT64_MAX,
               error, TP_INVALID,
               "%s spans %lld bytes from %p: its last byte must be within the address space",
               array->name, (long long)array->bytes, array->data);
    return TP_OK;
}

static tp_status check_arrays(const tp_problem *p, const tp_tensors *t, tp_error *error) {
    for (int i = 0;; i++) {
        tp__mask_array array = tp__mask_array_at(p, t, i);
        if (array.name == NULL) return TP_OK;
        TP_TRY(tp__mask_array_check(&array, error));
    }
}

static tp_status need(const char *name, const void *data, const char *why, tp_error *error) {
    TP_REQUIRE(data != NULL, error, TP_INVALID, "%s is NULL: %s needs it", name, why);
    return TP_OK;
}

static tp_status check_strides(const char *name, const int64_t *stride, int dims, tp_error *error) {
    for (int i = 0; i < dims; i++)
        TP_REQUIRE(stride[i] >= 0, error, TP_INVALID, "%s[%d] is %lld: it must be at least 0", name, i,
                   (long long)stride[i]);
    return TP_OK;
}

/* Is all that the problem asks for there? */
static tp_status check_there(const tp_problem *p, const tp_tensors *t, int rows, int keys,
                             tp_error *error) {
    if (p->positions && rows) TP_TRY(need("q_positions", t->q_positions, "positions", error));
    if (p->positions && keys) TP_TRY(need("k_positions", t->k_positions, "positions", error));
    for (int i = 0; i < p->mask_nodes; i++)
        if (p->mask[i].kind == TP_MASK_PREFIX && p->mask[i].a < 0)
            TP_TRY(need("prefix_lens", t->prefix_lens, "mask prefix without a length", error));
    if (tp__mask_has(p, TP_MASK_CALLBACK))
        TP_REQUIRE(t->callback != NULL, error, TP_INVALID,
                   "callback is NULL: mask callback needs a function");
    if (p->alibi) {
        TP_TRY(need("alibi_slopes", t->alibi_slopes, "alibi", error));
        TP_TRY(check_strides("alibi_stride", &t->alibi_stride, 1, error));
    }
    if (p->sinks) TP_TRY(need("sinks", t->sinks, "sinks", error));
    if (!keys) return TP_OK;
    if (tp__mask_has(p, TP_MASK_DOCUMENTS))
        TP_TRY(need("k_documents", t->k_documents, "mask documents", error));
    if (tp__mask_has(p, TP_MASK_SPANS) && t->k_spans == NULL)
        TP_TRY(need("k_spans and span_offsets", t->span_offsets, "mask spans", error));
    if (tp__mask_has(p, TP_MASK_TREE) && rows) TP_TRY(need("parents", t->parents, "mask tree", error));
    if (tp__mask_has(p, TP_MASK_BITS)) {
        TP_TRY(need("bits", t->bits, "mask bits", error));
        TP_TRY(check_strides("bits_stride", t->bits_stride, 3, error));
    }
    if (p->bias_dtype != 0) {
        TP_TRY(need("bias", t->bias, "bias_dtype", error));
        TP_TRY(check_strides("bias_stride", t->bias_stride, 4, error));
    }
    return TP_OK;
}

static tp_status check_position(const char *name, const tp__mask_view *view, const void *array,
                                int64_t i, tp_error *error) {
    int64_t position = tp__mask_index(view, array, i);
    TP_REQUIRE(position >= -POSITION_MAX && position <= POSITION_MAX, error, TP_INVALID,
               "%s[%lld] is %lld: it must be within +-2^40", name, (long long)i, (long long)position);
    return TP_OK;
}

static tp_status check_spans(const tp__mask_view *view, tp_error *error) {
    const tp_tensors *t = view->tensors;
    int64_t from = tp__mask_index(view, t->span_offsets, view->seq), last = -POSITION_MAX;
    int64_t to = tp__mask_index(view, t->span_offsets, view->seq + 1);
    TP_REQUIRE(from >= 0 && to >= from, error, TP_INVALID,
               "span_offsets[%lld..%lld] is %lld..%lld: it must start at 0 or above and not decrease",
               (long long)view->seq, (long long)view->seq + 1, (long long)from, (long long)to);
    if (to > from) TP_TRY(need("spans", t->spans, "span_offsets", error));
    for (int64_t i = from; i < to; i++) {
        int64_t start = tp__mask_index(view, t->spans, 2 * i);
        int64_t end = tp__mask_index(view, t->spans, 2 * i + 1);
        TP_REQUIRE(start >= last && start < end && end <= POSITION_MAX, error, TP_INVALID,
                   "spans[%lld] of sequence %lld is [%lld, %lld) after one that ends at %lld: spans must "
                   "hold a position, ascend and not overlap, within +-2^40",
                   (long long)i, (long long)view->seq, (long long)start, (long long)end, (long long)last);
        last = end;
    }
    return TP_OK;
}

static tp_status check_tree(const tp__mask_view *view, tp_error *error) {
    TP_REQUIRE(view->kv_len >= view->q_len, error, TP_INVALID,
               "sequence %lld has %lld rows and %lld keys: mask tree needs a key for each row",
               (long long)view->seq, (long long)view->q_len, (long long)view->kv_len);
    for (int64_t row = 0; row < view->q_len; row++) {
        int64_t parent = tp__mask_index(view, view->tensors->parents, view->q_token + row);
        TP_REQUIRE(parent >= -1 && parent < row, error, TP_INVALID,
                   "parents[%lld], row %lld of sequence %lld, is %lld: it must be -1 or an earlier row",
                   (long long)(view->q_token + row), (long long)row, (long long)view->seq,
                   (long long)parent);
    }
    return TP_OK;
}

static tp_status check_sequence(const tp_problem *p, const tp_tensors *t, int64_t index,
                                tp_error *error) {
    TP__IN_DEFAULT_CONTROL;
    tp__sequence seq = tp__sequence_at(p, t, index);
    tp__mask_view view = tp__sequence_view(p, &seq);
    if (seq.q_len == 0) return TP_OK; /* nothing of it is read */
    for (int64_t i = 0; p->positions && i < seq.q_len; i++)
        TP_TRY(check_position("q_positions", &view, t->q_positions, seq.q_token + i, error));
    for (int64_t i = 0; p->positions && i < seq.kv_len; i++)
        TP_TRY(check_position("k_positions", &view, t->k_positions, seq.kv_token + i, error));
    for (int i = 0; i < p->mask_nodes; i++)
        if (p->mask[i].kind == TP_MASK_PREFIX && p->mask[i].a < 0)
            TP_TRY(check_position("prefix_lens", &view, t->prefix_lens, index, error));
    if (tp__mask_has(p, TP_MASK_SPANS) && t->k_spans == NULL && t->span_offsets != NULL)
        TP_TRY(check_spans(&view, error));
    if (tp__mask_has(p, TP_MASK_TREE)) TP_TRY(check_tree(&view, error));
    for (int64_t head = 0; p->alibi && tp__reads_data(t) && head < p->q_heads; head++) {
        float slope = t->alibi_slopes[index * t->alibi_stride + head];
        TP_REQUIRE(isfinite(slope), error, TP_INVALID,
                   "alibi_slopes of sequence %lld, head %lld is %g: it must be finite",
                   (long long)index, (long long)head, (double)slope);
    }
    return TP_OK;
}

tp_status tp__mask_data_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    int rows = 0, keys = 0;
    if (!tp__mask_reads_data(problem) && !tp__modifies_scores(problem) && !problem->sinks) return TP_OK;
    int read = tp__reads_indices(tensors);
    if (!read && tensors->batch > 0) { /* there may be some */
        rows = tp__rows_max(problem, tensors) > 0;
        keys = rows && tp__keys_max(problem, tensors) > 0;
    }
    for (int64_t s = 0; read && s < tensors->batch; s++) {
        tp__sequence seq = tp__sequence_at(problem, tensors, s);
        rows |= seq.q_len > 0;
        keys |= seq.q_len > 0 && seq.kv_len > 0;
    }
    TP_TRY(check_there(problem, tensors, rows, keys, error));
    TP_TRY(check_arrays(problem, tensors, error));
    for (int64_t s = 0; read && s < tensors->batch; s++)
        TP_TRY(check_sequence(problem, tensors, s, error));
    return TP_OK;
}

int tp_mask_visible(const tp_problem *problem, const tp_tensors *tensors, int64_t seq, int64_t head,
                    int64_t row, int64_t key) {
    tp_problem problem_here;
    tp__tensors_here here;
    problem = TP_IN(tp_problem, problem, &problem_here, NULL);
    if (problem == NULL || tp_problem_check(problem, NULL) != TP_OK) return -1;
    if (tp__tensors_in(&tensors, TP_FORWARD, &here, NULL) != TP_OK || tensors == NULL) return -1;
    if (!tp__reads_indices(tensors) || !tp__reads_data(tensors)) return -1;
    if (seq < 0 || seq >= tensors->batch || head < 0 || head >= problem->q_heads) return -1;
    tp__sequence sequence = tp__sequence_at(problem, tensors, seq);
    if (row < 0 || row >= sequence.q_len || key < 0 || key >= sequence.kv_len) return -1;
    tp__mask_view view = tp__sequence_view(problem, &sequence);
    return tp__mask_allowed(&view, head, row, key);
}
