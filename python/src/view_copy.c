/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes without tensors, strides as kernels want them, and the copy where they cannot be had. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int view_shape(view *v, const char *name, PyObject *shape, const dtype_row *dtype) {
    v->name = name;
    v->object = shape;
    v->shape_only = 1;
    v->dtype = dtype;
    Py_ssize_t ndim = PyTuple_Size(shape);
    if (ndim < 0) return -1;
    if (ndim > VIEW_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s has %zd dimensions: at most %d are known", name, ndim,
                     VIEW_DIMS);
        return -1;
    }
    v->ndim = (int)ndim;
    int64_t stride = dtype->size;
    for (int i = v->ndim - 1; i >= 0; i--) {
        v->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (v->shape[i] == -1 && PyErr_Occurred()) return -1;
        v->stride[i] = stride;
        if (v->shape[i] < 0 ||
            __builtin_mul_overflow(stride, v->shape[i] > 0 ? v->shape[i] : 1, &stride)) {
            PyErr_Format(
                PyExc_ValueError,
                "%s has %lld elements in dimension %d: it must be at least 0 and fit memory", name,
                (long long)v->shape[i], i);
            return -1;
        }
    }
    return 0;
}

const char *view_shape_text(const view *v, char text[160]) {
    int at = snprintf(text, 160, "(");
    for (int i = 0; i < v->ndim && at < 130; i++)
        at += snprintf(text + at, (size_t)(160 - at), "%s%lld", i > 0 ? ", " : "",
                       (long long)v->shape[i]);
    snprintf(text + at, (size_t)(160 - at), v->ndim == 1 ? ",)" : ")");
    return text;
}

int64_t view_elements(const view *v, int dim) {
    int64_t stride = v->stride[dim];
    return v->shape[dim] > 1 && stride > 0 ? stride / v->dtype->size
                                           : 0; /* below 0 only where there is nothing */
}

int view_check_integers(const view *v) {
    if (v->dtype->code == DTYPE_I32 || v->dtype->code == DTYPE_I64) return 0;
    PyErr_Format(PyExc_TypeError, "%s is %s: it must be int32 or int64", v->name, v->dtype->name);
    return -1;
}

int64_t view_integer(const view *v, const char *at) {
    int32_t narrow;
    int64_t wide;
    if (v->dtype->code == DTYPE_I32) return memcpy(&narrow, at, 4), narrow;
    return memcpy(&wide, at, 8), wide;
}

static int empty(const view *v) {
    for (int i = 0; i < v->ndim; i++)
        if (v->shape[i] == 0) return 1;
    return 0;
}

void view_plan_copy(view *v, int unit) {
    if (v->object == NULL || v->shape_only || empty(v)) return;
    int64_t size = v->dtype->size;
    if (unit && v->ndim > 0 && v->shape[v->ndim - 1] > 1 && v->stride[v->ndim - 1] != size)
        v->why = "its last dimension is not contiguous";
    for (int i = 0; i < v->ndim; i++)
        if (v->shape[i] > 1 && v->stride[i] < 0) v->why = "it has a negative stride";
    if ((uintptr_t)v->data % (uintptr_t)size != 0) v->why = "its elements are not aligned";
    for (int i = 0; i < v->ndim; i++)
        if (v->shape[i] > 1 && v->stride[i] % size != 0) v->why = "its elements are not aligned";
}

/* The rows of the last dimension, one after another. */
static void gather(const view *v, char *to, int dim, const char *from) {
    int64_t size = v->dtype->size;
    if (dim == v->ndim) {
        memcpy(to, from, (size_t)size);
        return;
    }
    int64_t inner = size;
    for (int i = dim + 1; i < v->ndim; i++) inner *= v->shape[i];
    if (dim == v->ndim - 1 && v->stride[dim] == size) {
        memcpy(to, from, (size_t)(v->shape[dim] * size));
        return;
    }
    for (int64_t i = 0; i < v->shape[dim]; i++)
        gather(v, to + i * inner, dim + 1, from + i * v->stride[dim]);
}

tp_status view_make_copy(view *v, tp_error *error) {
    if (v->why == NULL) return TP_OK;
    int64_t bytes = v->dtype->size;
    for (int i = 0; i < v->ndim; i++)
        if (__builtin_mul_overflow(bytes, v->shape[i], &bytes)) bytes = INT64_MAX, i = v->ndim;
    v->copy = malloc((size_t)bytes);
    if (v->copy == NULL) {
        snprintf(error->text, sizeof error->text, "no memory for a copy of %s (%s): %lld bytes",
                 v->name, v->why, (long long)bytes);
        return error->status = TP_NO_MEMORY;
    }
    gather(v, v->copy, 0, v->data);
    v->data = v->copy;
    int64_t stride = v->dtype->size;
    for (int i = v->ndim - 1; i >= 0; stride *= v->shape[i--]) v->stride[i] = stride;
    return TP_OK;
}
