/* SPDX-License-Identifier: Apache-2.0 */
/* Whole numbers: page tables, sparse indices, positions, and what masks read (arrays.inc). They are of either width and any
   strides, and copied as 64-bit numbers while the interpreter's lock is released, so that nobody can change them while the
   call runs. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
#define ARRAY(name, field, shape) ARRAY_##name,
#include "arrays.inc"
#undef ARRAY
    ARRAY_COUNT
};

typedef enum array_shape {
    SHAPE_TABLE,
    SHAPE_SPARSE,
    SHAPE_BY_ROW,
    SHAPE_BY_KEY,
    SHAPE_BY_SEQUENCE,
    SHAPE_PAIRS,
    SHAPE_STARTS
} array_shape;

static const struct {
    const char *name;
    size_t field;
    array_shape shape;
} rows[] = {
#define ARRAY(name, field, shape) {#name, offsetof(tp_tensors, field), shape},
#include "arrays.inc"
#undef ARRAY
};

/* What a shape is made of, in this order, and whether one value may stand for all of a dimension. */
enum { SEQUENCES = 1, ROWS = 2, KEYS = 4, ANY = 8, TWO = 16, STARTS = 32 };
static const struct {
    int dims, shared;
    const char *text;
} shapes[] = {
    [SHAPE_TABLE] = {SEQUENCES | ANY, 0, "(sequences, pages of a sequence)"},
    [SHAPE_SPARSE] = {ROWS | ANY, 1, "(rows, keys that a row may see)"},
    [SHAPE_BY_ROW] = {ROWS, 1, "(rows)"},
    [SHAPE_BY_KEY] = {KEYS, 1, "(keys)"},
    [SHAPE_BY_SEQUENCE] = {SEQUENCES, 1, "(sequences)"},
    [SHAPE_PAIRS] = {ANY | TWO, 0, "(spans, 2)"},
    [SHAPE_STARTS] = {STARTS, 0, "(sequences + 1)"},
};

#define DIMS 3

typedef struct array {
    view view;
    int dims;
    int64_t size[DIMS], stride[DIMS]; /* as it is read, in bytes; behind its own dims 1 and 0 */
    int64_t *copy;
} array;

struct arrays {
    array array[ARRAY_COUNT];
};

/* Sizes that its shape has in this call; -1: any. Rows and keys are (sequences, tokens), or (tokens) when packed. */
static int wanted(const call *c, array_shape shape, int64_t size[DIMS]) {
    const tp_tensors *t = &c->tensors;
    int dims = shapes[shape].dims, n = 0;
    int packed = (dims & ROWS && c->layout == LAYOUT_THD) || (dims & KEYS && c->kv_layout == LAYOUT_THD);
    if (dims & SEQUENCES || (dims & (ROWS | KEYS) && !packed)) size[n++] = t->batch;
    if (dims & ROWS) size[n++] = packed ? t->q_tokens : t->q_len;
    if (dims & KEYS) size[n++] = packed ? t->kv_tokens : t->kv_len;
    if (dims & ANY) size[n++] = -1;
    if (dims & TWO) size[n++] = 2;
    if (dims & STARTS) size[n++] = t->batch + 1;
    return n;
}

/* From the right; dims that are missing or 1 are shared where the shape allows that. */
static int fit(const call *c, int i) {
    array *a = &c->arrays->array[i];
    const view *v = &a->view;
    int shared = shapes[rows[i].shape].shared;
    a->dims = wanted(c, rows[i].shape, a->size);
    for (int d = a->dims; d < DIMS; d++) a->size[d] = 1;
    if (v->ndim > a->dims || (!shared && v->ndim < a->dims)) return 0;
    for (int d = a->dims - 1, from = v->ndim - 1; d >= 0; d--, from--) {
        int64_t given = from >= 0 ? v->shape[from] : 1;
        if (a->size[d] < 0) a->size[d] = given;
        if (given != a->size[d] && !(shared && given == 1)) return 0;
        a->stride[d] = from >= 0 && given > 1 ? v->stride[from] : 0;
    }
    return 1;
}

static int check(const call *c, int i) {
    const array *a = &c->arrays->array[i];
    const view *v = &a->view;
    int64_t size[DIMS];
    char has[160], needs[160];
    if (view_check_integers(v) != 0) return -1;
    if (fit(c, i)) return 0;
    int at = snprintf(needs, sizeof needs, "(");
    for (int d = 0, dims = wanted(c, rows[i].shape, size); d < dims; d++) {
        at += snprintf(needs + at, sizeof needs - (size_t)at, d > 0 ? ", " : "");
        if (size[d] < 0) at += snprintf(needs + at, sizeof needs - (size_t)at, "any");
        if (size[d] >= 0) at += snprintf(needs + at, sizeof needs - (size_t)at, "%lld", (long long)size[d]);
    }
    PyErr_Format(PyExc_ValueError, "%s has shape %s: it must %s %s), which is %s%s", v->name, view_shape_text(v, has),
                 shapes[rows[i].shape].shared ? "broadcast to" : "be", needs, shapes[rows[i].shape].text,
                 shapes[rows[i].shape].dims & (ROWS | KEYS) ? " of each sequence" : "");
    return -1;
}

static int given(const call *c, int i) {
    return c->arrays->array[i].view.object != NULL;
}

/* True, of a plan: there will be one. */
static int open_array(call *c, int i, PyObject *object, int shape_only) {
    view *v = &c->arrays->array[i].view;
    if (object == Py_True && shape_only) return v->object = object, v->shape_only = 1, 0;
    int shape = shape_only && PyTuple_Check(object);
    if ((shape ? view_shape(v, rows[i].name, object, dtype_of_code(DTYPE_I64)) : view_open(v, rows[i].name, object)) != 0)
        return -1;
    return check(c, i);
}

/* Before the other arrays: a sequence has as many keys as its row of the table has pages for. */
static int open_pages(call *c, PyObject *table, int shape_only) {
    tp_tensors *t = &c->tensors;
    if (open_array(c, ARRAY_page_table, table, shape_only) != 0) return -1;
    int64_t columns = t->page_slots = c->arrays->array[ARRAY_page_table].size[1];
    if (__builtin_mul_overflow(columns, c->problem.page_size, &t->kv_len)) {
        PyErr_Format(PyExc_ValueError, "page_table has %lld pages of %lld keys for a sequence: too many to count",
                     (long long)columns, (long long)c->problem.page_size);
        return -1;
    }
    c->problem.kv_len = t->kv_len;
    return 0;
}

static int check_tables(const call *c) {
    int64_t v = c->arrays->array[ARRAY_v_page_table].size[1];
    if (!given(c, ARRAY_v_page_table) || v == c->tensors.page_slots) return 0;
    PyErr_Format(PyExc_ValueError, "v_page_table has %lld pages for a sequence and page_table %lld: they must be equal",
                 (long long)v, (long long)c->tensors.page_slots);
    return -1;
}

static int place_sparse(call *c) {
    const array *a = &c->arrays->array[ARRAY_indices];
    if (!given(c, ARRAY_indices)) return 0;
    int64_t length = a->size[a->dims - 1];
    if (length < 1) {
        PyErr_SetString(PyExc_ValueError, "indices names 0 keys for a row: it must name at least 1, of which -1 is none");
        return -1;
    }
    c->problem.sparse_len = c->tensors.sparse_stride = length;
    c->problem.sparse_sorted = c->sorted;
    return 0;
}

static int together(const call *c, int one, int other) {
    if (!given(c, one) || given(c, other)) return 0;
    PyErr_Format(PyExc_ValueError, "%s is given without %s: it needs both", rows[one].name, rows[other].name);
    return -1;
}

PyObject *arrays_page_table(PyObject *const *args) {
    PyObject *tuple = args[ARG_arrays], *table = Py_IsNone(tuple) ? NULL : PyTuple_GetItem(tuple, ARRAY_page_table);
    return table != NULL && Py_IsNone(table) ? NULL : table;
}

int arrays_open(call *c, PyObject *const *args, int shape_only) {
    PyObject *tuple = args[ARG_arrays];
    if (Py_IsNone(tuple)) return 0;
    c->arrays = calloc(1, sizeof *c->arrays);
    if (c->arrays == NULL) return PyErr_NoMemory(), -1;
    if (c->kv_paged && open_pages(c, arrays_page_table(args), shape_only) != 0) return -1;
    for (int i = ARRAY_page_table + 1; i < ARRAY_COUNT; i++) {
        PyObject *object = PyTuple_GetItem(tuple, i);
        if (object == NULL || (!Py_IsNone(object) && open_array(c, i, object, shape_only) != 0)) return -1;
    }
    if (together(c, ARRAY_v_page_table, ARRAY_page_table) != 0 || together(c, ARRAY_q_positions, ARRAY_kv_positions) != 0 ||
        together(c, ARRAY_kv_positions, ARRAY_q_positions) != 0 || together(c, ARRAY_shared_with, ARRAY_shared_lens) != 0 ||
        together(c, ARRAY_shared_lens, ARRAY_shared_with) != 0)
        return -1;
    if (given(c, ARRAY_shared_with)) c->problem.cascade = c->problem.kv_len;
    c->problem.positions = given(c, ARRAY_q_positions);
    return check_tables(c) == 0 ? place_sparse(c) : -1;
}

static void widen(const array *a, int64_t *to) {
    for (int64_t x = 0; x < a->size[0]; x++)
        for (int64_t y = 0; y < a->size[1]; y++)
            for (int64_t z = 0; z < a->size[2]; z++)
                *to++ = view_integer(&a->view, a->view.data + x * a->stride[0] + y * a->stride[1] + z * a->stride[2]);
}

static tp_status copy(call *c, int i, tp_error *error) {
    array *a = &c->arrays->array[i];
    int64_t bytes = sizeof(int64_t);
    if (a->view.object == NULL) return TP_OK;
    for (int d = 0; d < DIMS; d++)
        if (__builtin_mul_overflow(bytes, a->size[d], &bytes)) bytes = INT64_MAX / 2, d = DIMS;
    a->copy = malloc((size_t)bytes + 1);
    if (a->copy == NULL) {
        snprintf(error->text, sizeof error->text, "no memory for a copy of %s: %lld bytes", rows[i].name, (long long)bytes);
        return error->status = TP_NO_MEMORY;
    }
    widen(a, a->copy);
    memcpy((char *)&c->tensors + rows[i].field, &a->copy, sizeof a->copy);
    return TP_OK;
}

/* The library trusts that there are as many spans as the offsets say. */
static tp_status check_offsets(const call *c, tp_error *error) {
    const array *offsets = &c->arrays->array[ARRAY_span_offsets], *spans = &c->arrays->array[ARRAY_spans];
    for (int64_t s = 0; offsets->copy != NULL && s < offsets->size[0]; s++) {
        int64_t at = offsets->copy[s], max = spans->copy != NULL ? spans->size[0] : 0;
        if (at >= 0 && at <= max) continue;
        snprintf(error->text, sizeof error->text, "span_offsets[%lld] is %lld: it must be in 0..%lld, the spans there are",
                 (long long)s, (long long)at, (long long)max);
        return error->status = TP_INVALID;
    }
    return TP_OK;
}

tp_status arrays_copy(call *c, tp_error *error) {
    tp_status status = TP_OK;
    if (c->arrays == NULL) return TP_OK;
    for (int i = 0; i < ARRAY_COUNT && status == TP_OK; i++) status = copy(c, i, error);
    return status == TP_OK ? check_offsets(c, error) : status;
}

void arrays_close(call *c) {
    for (int i = 0; c->arrays != NULL && i < ARRAY_COUNT; i++) {
        view_close(&c->arrays->array[i].view);
        free(c->arrays->array[i].copy);
    }
    free(c->arrays);
}
