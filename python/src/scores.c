/* SPDX-License-Identifier: Apache-2.0 */
/* What changes scores: a mask of bools, which is packed to bits, a bias, slopes and sinks. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* {sequences, query heads, rows, keys}, to which a mask or bias is broadcast from the right. */
static void target(const call *c, int64_t shape[4]) {
    shape[0] = c->tensors.batch;
    shape[1] = c->problem.q_heads;
    shape[2] = c->layout == LAYOUT_THD ? c->problem.q_len : c->tensors.q_len;
    shape[3] = c->kv_layout == LAYOUT_THD ? c->problem.kv_len : c->tensors.kv_len;
}

/* Which dim of v is dim i of the target; -1: it has none, so that one value serves all. */
static int source(const view *v, int i) {
    return v->ndim - 4 + i;
}

static int check_broadcast(const call *c, const view *v) {
    int64_t shape[4];
    char text[160];
    target(c, shape);
    int fits = v->ndim <= 4;
    for (int i = 0; fits && i < 4; i++)
        if (source(v, i) >= 0)
            fits = v->shape[source(v, i)] == shape[i] || v->shape[source(v, i)] == 1;
    if (fits) return 0;
    PyErr_Format(PyExc_ValueError,
                 "%s has shape %s: it must broadcast to (%lld, %lld, %lld, %lld), which is "
                 "(sequences, query heads, rows, "
                 "keys)",
                 v->name, view_shape_text(v, text), (long long)shape[0], (long long)shape[1],
                 (long long)shape[2], (long long)shape[3]);
    return -1;
}

/* A Mask's tree, "causal,first:4,or", as the text form reads it; joined with causal and window. */
static int join_tree(tp_problem *problem, PyObject *text) {
    tp_error error = TP_ERROR_INIT;
    tp_problem parsed;
    if (mask_parse(text, &parsed, &error) != 0) return -1;
    int have = problem->mask_nodes, more = parsed.mask_nodes, all = have + more + (have > 0);
    if (all > TP_MAX_MASK_NODES) {
        PyErr_Format(PyExc_ValueError, "mask has %d parts with causal and window: at most %d are possible", all,
                     TP_MAX_MASK_NODES);
        return -1;
    }
    memcpy(problem->mask + have, parsed.mask, (size_t)more * sizeof parsed.mask[0]);
    if (have > 0) problem->mask[have + more] = (tp_mask_node){.kind = TP_MASK_AND};
    problem->mask_nodes = all;
    return 0;
}

/* A mask of bools is the tree "bits"; a Mask has it as one of its parts. */
static int open_mask(call *c, PyObject *object, PyObject *tree) {
    view *v = &c->in[IN_MASK];
    if (!Py_IsNone(tree) && join_tree(&c->problem, tree) != 0) return -1;
    if (Py_IsNone(object)) return 0;
    if (Py_IsNone(tree))
        tp_problem_mask(&c->problem, TP_MASK_AND, TP_MASK_BITS, 0, 0); /* causal, window and this: there is room */
    if (object == Py_True) return 0;                                   /* of a plan: there will be one */
    if (view_open(v, "mask", object) != 0) return -1;
    if (v->dtype->code != DTYPE_BOOL) {
        PyErr_Format(PyExc_TypeError,
                     "mask is %s: it must be bool, True meaning visible (a float one is a bias)",
                     v->dtype->name);
        return -1;
    }
    if (check_broadcast(c, v) != 0) return -1;
    target(c, c->bits_shape);
    for (int i = 0; i < 3; i++)
        if (source(v, i) < 0 || v->shape[source(v, i)] == 1) c->bits_shape[i] = 1;
    return 0;
}

static int open_bias(call *c, PyObject *object) {
    view *v = &c->in[IN_BIAS];
    if (Py_IsNone(object)) return 0;
    if (PyUnicode_Check(object)) { /* of a plan: its dtype */
        const char *name = PyUnicode_AsUTF8AndSize(object, NULL);
        v->dtype = name != NULL ? dtype_of_name(name) : NULL;
        v->name = "bias";
        if (v->dtype == NULL) return -1;
    } else if (view_open(v, "bias", object) != 0) {
        return -1;
    }
    if (v->dtype->code > TP_BF16) {
        PyErr_Format(PyExc_TypeError, "bias is %s: it must be float32, float16 or bfloat16",
                     v->dtype->name);
        return -1;
    }
    c->problem.bias_dtype = v->dtype->code;
    if (v->object == NULL) return 0;
    view_plan_copy(v, 0);
    return check_broadcast(c, v);
}

/* Float32 for each query head, or for each sequence and query head. */
static int open_heads(call *c, view *v, const char *name, PyObject *object, int max_dims) {
    char text[160];
    if (object == Py_True) return 0;
    if (view_open(v, name, object) != 0) return -1;
    if (v->dtype->code != TP_F32) {
        PyErr_Format(PyExc_TypeError, "%s is %s: it must be float32", name, v->dtype->name);
        return -1;
    }
    int fits = v->ndim >= 1 && v->ndim <= max_dims && v->shape[v->ndim - 1] == c->problem.q_heads;
    if (fits && v->ndim == 2) fits = v->shape[0] == c->tensors.batch;
    if (!fits) {
        PyErr_Format(PyExc_ValueError,
                     "%s has shape %s: it must be (%lld,), a value for each query head%s", name,
                     view_shape_text(v, text), (long long)c->problem.q_heads,
                     max_dims == 2 ? ", or (sequences, query heads)" : "");
        return -1;
    }
    view_plan_copy(v, 1);
    return 0;
}

int scores_open(call *c, PyObject *const *args) {
    PyObject *slopes = args[ARG_alibi_slopes], *sinks = args[ARG_sinks];
    if (open_mask(c, args[ARG_mask], args[ARG_mask_tree]) != 0 || open_bias(c, args[ARG_bias]) != 0) return -1;
    c->problem.alibi = !Py_IsNone(slopes);
    c->problem.sinks = !Py_IsNone(sinks);
    if (c->problem.alibi && open_heads(c, &c->in[IN_ALIBI], "alibi_slopes", slopes, 2) != 0)
        return -1;
    return c->problem.sinks ? open_heads(c, &c->in[IN_SINKS], "sinks", sinks, 1) : 0;
}

/* Rows of one (sequence, head) to bits. Keys that are not bytes one after another go by way of a
 * row. */
static tp_status pack_rows(call *c, const char *from, int64_t row_stride, int64_t key_stride,
                           char *bits, int64_t row_bytes, char *row, tp_error *error) {
    int64_t rows = c->bits_shape[2], keys = c->bits_shape[3];
    if (key_stride == 1 && row_stride >= 0)
        return tp_mask_pack(rows, keys, from, row_stride, bits, row_bytes, error);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < keys; j++) row[j] = from[i * row_stride + j * key_stride];
        tp_status status = tp_mask_pack(1, keys, row, keys, bits + i * row_bytes, row_bytes, error);
        if (status != TP_OK) return status;
    }
    return TP_OK;
}

tp_status scores_pack(call *c, tp_error *error) {
    const view *v = &c->in[IN_MASK];
    const int64_t *n = c->bits_shape;
    int64_t bytes = (n[3] + 7) / 8, step[4], stride[4];
    if (v->object == NULL) return TP_OK;
    for (int i = 3; i >= 0; i--) {
        int dim = source(v, i);
        stride[i] = dim >= 0 && v->shape[dim] > 1 ? v->stride[dim] : 0;
        step[i] = bytes;
        if (i < 3 && __builtin_mul_overflow(bytes, n[i], &bytes)) bytes = INT64_MAX / 2;
    }
    char *row = malloc((size_t)n[3] + 1);
    c->bits = malloc((size_t)bytes + 1);
    tp_status status = row == NULL || c->bits == NULL ? TP_NO_MEMORY : TP_OK;
    if (status != TP_OK)
        snprintf(error->text, sizeof error->text, "no memory for %lld bytes of mask bits",
                 (long long)bytes);
    for (int64_t s = 0; s < n[0] && status == TP_OK; s++)
        for (int64_t h = 0; h < n[1] && status == TP_OK; h++)
            status = pack_rows(c, v->data + s * stride[0] + h * stride[1], stride[2], stride[3],
                               c->bits + s * step[0] + h * step[1], (n[3] + 7) / 8, row, error);
    free(row);
    c->tensors.bits = c->bits;
    for (int i = 0; i < 3; i++) c->tensors.bits_stride[i] = n[i] > 1 ? step[i] : 0;
    return status;
}
