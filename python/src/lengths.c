/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of sequences. They are copied as 64-bit numbers: short, of either width and any stride,
   and nobody can change them while the call runs. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

static int64_t at(const view *v, int64_t i) {
    const char *p = v->data + i * v->stride[0];
    int32_t narrow;
    int64_t wide;
    if (v->dtype->code == DTYPE_I32) return memcpy(&narrow, p, 4), narrow;
    return memcpy(&wide, p, 8), wide;
}

static int check(const view *v, int64_t count) {
    char text[160];
    if (v->dtype->code != DTYPE_I32 && v->dtype->code != DTYPE_I64) {
        PyErr_Format(PyExc_TypeError, "%s is %s: it must be int32 or int64", v->name,
                     v->dtype->name);
        return -1;
    }
    if (v->ndim == 1 && (count < 0 ? v->shape[0] > 0 : v->shape[0] == count)) return 0;
    if (count < 0)
        PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be (sequences + 1,)", v->name,
                     view_shape_text(v, text));
    else
        PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be (%lld,)", v->name,
                     view_shape_text(v, text), (long long)count);
    return -1;
}

/* count -1: as many as it has. Returns how many were copied, or -1. */
static int64_t copy(call *c, int which, PyObject *object, const char *name, int64_t count) {
    view v = {0};
    int64_t copied = -1;
    if (view_open(&v, name, object) == 0 && check(&v, count) == 0) {
        c->lengths[which] = malloc(((size_t)v.shape[0] + 1) * sizeof(int64_t));
        if (c->lengths[which] != NULL)
            copied = v.shape[0];
        else
            PyErr_NoMemory();
        for (int64_t i = 0; i < copied; i++) c->lengths[which][i] = at(&v, i);
    }
    view_close(&v);
    return copied;
}

/* The longest sequence of a packed tensor, or -1. */
static int64_t longest(const char *name, const int64_t *cu, int64_t batch, int64_t tokens) {
    int64_t max = 0;
    for (int64_t i = 0; i <= batch; i++) {
        int64_t min = i > 0 ? cu[i - 1] : 0;
        if (cu[i] < min || cu[i] > tokens) {
            PyErr_Format(PyExc_ValueError,
                         "%s[%lld] is %lld: it must be in %lld..%lld, not below the one before and "
                         "at most the tokens "
                         "there are",
                         name, (long long)i, (long long)cu[i], (long long)min, (long long)tokens);
            return -1;
        }
        if (cu[i] - min > max && i > 0) max = cu[i] - min;
    }
    return max;
}

static int packed(call *c, PyObject *const *args) {
    if (Py_IsNone(args[ARG_cu_seqlens_q])) {
        PyErr_SetString(PyExc_ValueError,
                        "cu_seqlens_q is None: layout \"thd\" needs the starts of its sequences");
        return -1;
    }
    int alone = Py_IsNone(args[ARG_cu_seqlens_k]); /* then every sequence attends to itself */
    int64_t count = copy(c, CU_Q, args[ARG_cu_seqlens_q], "cu_seqlens_q", -1);
    if (count < 0 || (!alone && copy(c, CU_K, args[ARG_cu_seqlens_k], "cu_seqlens_k", count) < 0))
        return -1;
    const int64_t *q = c->lengths[CU_Q], *kv = alone ? q : c->lengths[CU_K];
    c->tensors.batch = c->problem.batch = count - 1;
    c->tensors.cu_seqlens_q = q;
    c->tensors.cu_seqlens_kv = kv;
    c->problem.q_len = longest("cu_seqlens_q", q, count - 1, c->tensors.q_tokens);
    if (c->problem.q_len < 0) return -1;
    c->problem.kv_len = longest(alone ? "cu_seqlens_q, for k too," : "cu_seqlens_k", kv, count - 1,
                                c->tensors.kv_tokens);
    return c->problem.kv_len < 0 ? -1 : 0;
}

static int refuse_packed(PyObject *const *args) {
    int q = !Py_IsNone(args[ARG_cu_seqlens_q]);
    if (!q && Py_IsNone(args[ARG_cu_seqlens_k])) return 0;
    PyErr_Format(PyExc_ValueError, "cu_seqlens_%s is given: only layout \"thd\" has it",
                 q ? "q" : "k");
    return -1;
}

int lengths_read(call *c, PyObject *const *args) {
    c->tensors.index_type = TP_I64;
    if ((c->layout == LAYOUT_THD ? packed(c, args) : refuse_packed(args)) != 0) return -1;
    if (!Py_IsNone(args[ARG_q_lens]) &&
        copy(c, LENS_Q, args[ARG_q_lens], "q_lens", c->tensors.batch) < 0)
        return -1;
    if (!Py_IsNone(args[ARG_kv_lens]) &&
        copy(c, LENS_KV, args[ARG_kv_lens], "kv_lens", c->tensors.batch) < 0)
        return -1;
    c->tensors.q_lens = c->lengths[LENS_Q];
    c->tensors.kv_lens = c->lengths[LENS_KV];
    return 0;
}
