/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of sequences. They are copied as 64-bit numbers: short, of either width and any stride,
   and nobody can change them while the call runs. */
#include "core.h"

#include <stdlib.h>

static int check(const view *v, int64_t count) {
    char text[160];
    if (view_check_integers(v) != 0) return -1;
    if (v->ndim == 1 && (count < 0 ? v->shape[0] > 0 : v->shape[0] == count)) return 0;
    if (count < 0)
        PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be (sequences + 1,)", v->name, view_shape_text(v, text));
    else
        PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be (%lld,)", v->name, view_shape_text(v, text),
                     (long long)count);
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
        for (int64_t i = 0; i < copied; i++) c->lengths[which][i] = view_integer(&v, v.data + i * v.stride[0]);
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

/* None: every sequence attends to itself. */
static int packed_keys(call *c, PyObject *object, int64_t count) {
    int alone = Py_IsNone(object);
    if (!alone && copy(c, CU_K, object, "cu_seqlens_k", count) < 0) return -1;
    const int64_t *kv = c->lengths[alone ? CU_Q : CU_K];
    c->tensors.cu_seqlens_kv = kv;
    c->problem.kv_len = longest(alone ? "cu_seqlens_q, for k too," : "cu_seqlens_k", kv, count - 1, c->tensors.kv_tokens);
    return c->problem.kv_len < 0 ? -1 : 0;
}

static int packed(call *c, PyObject *const *args) {
    if (Py_IsNone(args[ARG_cu_seqlens_q])) {
        PyErr_SetString(PyExc_ValueError, "cu_seqlens_q is None: layout \"thd\" needs the starts of its sequences");
        return -1;
    }
    int64_t count = copy(c, CU_Q, args[ARG_cu_seqlens_q], "cu_seqlens_q", -1);
    if (count < 0) return -1;
    c->tensors.batch = c->problem.batch = count - 1;
    c->tensors.cu_seqlens_q = c->lengths[CU_Q];
    c->problem.q_len = longest("cu_seqlens_q", c->lengths[CU_Q], count - 1, c->tensors.q_tokens);
    if (c->problem.q_len < 0) return -1;
    return c->kv_layout == LAYOUT_THD ? packed_keys(c, args[ARG_cu_seqlens_k], count) : 0;
}

static int refuse(PyObject *object, const char *name, int packed, const char *rule) {
    if (packed || Py_IsNone(object)) return 0;
    PyErr_Format(PyExc_ValueError, "%s is given: %s", name, rule);
    return -1;
}

int lengths_read(call *c, PyObject *const *args) {
    c->tensors.index_type = TP_I64;
    int thd = c->layout == LAYOUT_THD;
    if (refuse(args[ARG_cu_seqlens_q], "cu_seqlens_q", thd, "only layout \"thd\" has it") != 0 ||
        refuse(args[ARG_cu_seqlens_k], "cu_seqlens_k", c->kv_layout == LAYOUT_THD,
               "only layout \"thd\" with k of three dimensions has it; kv_lens is for a cache and for pages") != 0)
        return -1;
    if (thd && packed(c, args) != 0) return -1;
    if (!Py_IsNone(args[ARG_q_lens]) && copy(c, LENS_Q, args[ARG_q_lens], "q_lens", c->tensors.batch) < 0) return -1;
    if (!Py_IsNone(args[ARG_kv_lens]) && copy(c, LENS_KV, args[ARG_kv_lens], "kv_lens", c->tensors.batch) < 0) return -1;
    c->tensors.q_lens = c->lengths[LENS_Q];
    c->tensors.kv_lens = c->lengths[LENS_KV];
    return 0;
}
