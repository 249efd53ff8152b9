/* SPDX-License-Identifier: Apache-2.0 */
/* Whole numbers: page tables and what else is listed in arrays.inc. They are read as numbers of either width and any strides, and
   copied as 64-bit numbers while the lock of the interpreter is released, so that nobody can change them while the call runs. */
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

typedef enum array_shape { SHAPE_TABLE } array_shape;

static const struct {
    const char *name;
    size_t field;
    array_shape shape;
} rows[] = {
#define ARRAY(name, field, shape) {#name, offsetof(tp_tensors, field), shape},
#include "arrays.inc"
#undef ARRAY
};

struct arrays {
    view view[ARRAY_COUNT];
    int64_t *copy[ARRAY_COUNT];
};

static const char *const rules[] = {
    [SHAPE_TABLE] = "(sequences, pages of a sequence)",
};

/* {sequences, pages}: -1 is any. */
static int wanted(const call *c, array_shape shape, int64_t sizes[2]) {
    (void)shape;
    sizes[0] = c->tensors.batch;
    sizes[1] = -1;
    return 2;
}

static int check(const call *c, int i) {
    const view *v = &c->arrays->view[i];
    char text[160];
    int64_t sizes[2];
    if (v->dtype->code != DTYPE_I32 && v->dtype->code != DTYPE_I64) {
        PyErr_Format(PyExc_TypeError, "%s is %s: it must be int32 or int64", v->name, v->dtype->name);
        return -1;
    }
    int dims = wanted(c, rows[i].shape, sizes), fits = v->ndim == dims;
    for (int d = 0; fits && d < dims; d++) fits = sizes[d] < 0 || v->shape[d] == sizes[d];
    if (fits) return 0;
    PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be %s, with %lld sequences", v->name, view_shape_text(v, text),
                 rules[rows[i].shape], (long long)c->tensors.batch);
    return -1;
}

static int open_array(call *c, int i, PyObject *object, int shapes) {
    view *v = &c->arrays->view[i];
    int shape = shapes && PyTuple_Check(object);
    if ((shape ? view_shape(v, rows[i].name, object, dtype_of_code(DTYPE_I64)) : view_open(v, rows[i].name, object)) != 0)
        return -1;
    return check(c, i);
}

/* The pool of k and v is cut into pages; a sequence has as many keys as its row of the table has pages for. */
static int place_pages(call *c) {
    const view *table = &c->arrays->view[ARRAY_page_table];
    tp_tensors *t = &c->tensors;
    t->page_slots = table->shape[1];
    if (__builtin_mul_overflow(t->page_slots, c->problem.page_size, &t->kv_len)) {
        PyErr_Format(PyExc_ValueError, "page_table has %lld pages of %lld keys for a sequence: too many to count",
                     (long long)t->page_slots, (long long)c->problem.page_size);
        return -1;
    }
    c->problem.kv_len = t->kv_len;
    return 0;
}

PyObject *arrays_page_table(PyObject *const *args) {
    PyObject *tuple = args[ARG_arrays];
    return Py_IsNone(tuple) ? NULL : PyTuple_GetItem(tuple, ARRAY_page_table);
}

int arrays_open(call *c, PyObject *const *args, int shapes) {
    PyObject *tuple = args[ARG_arrays];
    if (Py_IsNone(tuple)) return 0;
    c->arrays = calloc(1, sizeof *c->arrays);
    if (c->arrays == NULL) return PyErr_NoMemory(), -1;
    for (int i = 0; i < ARRAY_COUNT; i++) {
        PyObject *object = PyTuple_GetItem(tuple, i);
        if (object == NULL || (!Py_IsNone(object) && open_array(c, i, object, shapes) != 0)) return -1;
    }
    return c->kv_paged ? place_pages(c) : 0;
}

/* One dim after another; returns where the next number goes. */
static int64_t *widen(const view *v, int dim, const char *from, int64_t *to) {
    if (dim == v->ndim) {
        *to = view_integer(v, from);
        return to + 1;
    }
    for (int64_t i = 0; i < v->shape[dim]; i++) to = widen(v, dim + 1, from + i * v->stride[dim], to);
    return to;
}

static tp_status copy(call *c, int i, tp_error *error) {
    const view *v = &c->arrays->view[i];
    int64_t bytes = sizeof(int64_t);
    if (v->object == NULL || v->shape_only) return TP_OK;
    for (int d = 0; d < v->ndim; d++)
        if (__builtin_mul_overflow(bytes, v->shape[d], &bytes)) bytes = INT64_MAX / 2, d = v->ndim;
    int64_t *numbers = c->arrays->copy[i] = malloc((size_t)bytes + 1);
    if (numbers == NULL) {
        snprintf(error->text, sizeof error->text, "no memory for a copy of %s: %lld bytes", v->name, (long long)bytes);
        return error->status = TP_NO_MEMORY;
    }
    widen(v, 0, v->data, numbers);
    memcpy((char *)&c->tensors + rows[i].field, &numbers, sizeof numbers);
    return TP_OK;
}

tp_status arrays_copy(call *c, tp_error *error) {
    tp_status status = TP_OK;
    for (int i = 0; c->arrays != NULL && i < ARRAY_COUNT && status == TP_OK; i++) status = copy(c, i, error);
    return status;
}

void arrays_close(call *c) {
    for (int i = 0; c->arrays != NULL && i < ARRAY_COUNT; i++) {
        view_close(&c->arrays->view[i]);
        free(c->arrays->copy[i]);
    }
    free(c->arrays);
}
