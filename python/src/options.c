/* SPDX-License-Identifier: Apache-2.0 */
/* Scalars and words of a call. */
#include "core.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* The place of a word in a list; -1 with an exception that has the rule. */
static int word(const char *name, PyObject *value, const char *const *words, const char *rule) {
    const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
    for (int i = 0; text != NULL && words[i] != NULL; i++)
        if (strcmp(text, words[i]) == 0) return i;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s is %R: it must be %s", name, value, rule);
    return -1;
}

static int number(const char *name, PyObject *value, double *out) {
    *out = PyFloat_AsDouble(value);
    if (*out != -1.0 || !PyErr_Occurred()) return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R: it must be a number", name, value);
    return -1;
}

int integer_of(const char *name, PyObject *value, int64_t *out) {
    PyObject *index = PyNumber_Index(value);
    *out = index != NULL ? PyLong_AsLongLong(index) : -1;
    Py_XDECREF(index);
    if (!PyErr_Occurred()) return 0;
    int large = PyErr_ExceptionMatches(PyExc_OverflowError);
    PyErr_Clear();
    PyErr_Format(large ? PyExc_ValueError : PyExc_TypeError,
                 "%s is %R: it must be an integer of 64 bits", name, value);
    return -1;
}

static int flag(const char *name, PyObject *value, int *out) {
    *out = value == Py_True;
    if (value == Py_True || value == Py_False) return 0;
    PyErr_Format(PyExc_TypeError, "%s is %R: it must be True or False", name, value);
    return -1;
}

static int side(PyObject *pair, int at, int64_t *out) {
    static const char *const names[] = {"window[0]", "window[1]"};
    PyObject *value = PySequence_GetItem(pair, at);
    if (value == NULL) return -1;
    int none = Py_IsNone(value), failed = !none && integer_of(names[at], value, out) != 0;
    Py_DECREF(value);
    if (none) *out = -1;
    if (!none && !failed && *out < 0) {
        PyErr_Format(PyExc_ValueError, "%s is %lld: it must be at least 0, or None for unbounded",
                     names[at], (long long)*out);
        return -1;
    }
    return failed ? -1 : 0;
}

static int window(call *c, PyObject *value) {
    int64_t left, right;
    if (Py_IsNone(value)) return 0;
    if (PyUnicode_Check(value) || !PySequence_Check(value) || PySequence_Size(value) != 2) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "window is %R: it must be None or (left, right)", value);
        return -1;
    }
    if (side(value, 0, &left) != 0 || side(value, 1, &right) != 0) return -1;
    if (left < 0 && right < 0) return 0;
    if (tp_problem_window(&c->problem, left, right) == TP_OK) return 0;
    PyErr_Format(PyExc_ValueError, "window is %R: its sides must be below 2^40", value);
    return -1;
}

static int scale(call *c, PyObject *value, PyObject *softcap, PyObject *dropout) {
    double s = 0, cap, drop;
    if (!Py_IsNone(value) && number("scale", value, &s) != 0) return -1;
    if (number("softcap", softcap, &cap) != 0 || number("dropout_p", dropout, &drop) != 0)
        return -1;
    c->problem.scale_set = !Py_IsNone(value);
    c->problem.scale = (float)s;
    c->problem.softcap = (float)cap;
    c->problem.dropout = (float)drop;
    if (drop >= 0 && drop < 1) return 0;
    PyErr_Format(PyExc_ValueError, "dropout_p is %R: it must be at least 0 and below 1", dropout);
    return -1;
}

/* None, or what probabilities may be rounded to. */
static int weights(call *c, PyObject *value) {
    static const char *const names[] = {"bfloat16", "bf16", "float32", "f32", NULL};
    if (Py_IsNone(value)) return 0;
    int at = word("p_dtype", value, names, "None, \"float32\" or \"bfloat16\"");
    if (at < 0) return -1;
    c->problem.p_dtype = at < 2 ? TP_BF16 : 0;
    return 0;
}

/* None, or (beta, length, offset): scores grow with the position of their row. */
static int q_scale(call *c, PyObject *value) {
    double beta;
    if (Py_IsNone(value)) return 0;
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 3) {
        PyErr_Format(PyExc_ValueError, "q_scale is %R: it must be None or a tuple (beta, length, offset)", value);
        return -1;
    }
    if (number("q_scale[0]", PyTuple_GetItem(value, 0), &beta) != 0 ||
        integer_of("q_scale[1]", PyTuple_GetItem(value, 1), &c->problem.qscale_length) != 0 ||
        integer_of("q_scale[2]", PyTuple_GetItem(value, 2), &c->problem.qscale_offset) != 0)
        return -1;
    c->problem.qscale_beta = (float)beta;
    if (c->problem.qscale_length > 0) return 0;
    PyErr_Format(PyExc_ValueError, "q_scale is %R: its length must be at least 1", value);
    return -1;
}

/* None, or (start, stop): v is that part of k's rows. */
static int latent(call *c, PyObject *value, PyObject *v) {
    c->latent = -1;
    if (Py_IsNone(value)) return 0;
    if (!Py_IsNone(v)) {
        PyErr_Format(PyExc_ValueError, "latent is %R and v is given: v must be None, because it is a part of k then", value);
        return -1;
    }
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 2) {
        PyErr_Format(PyExc_ValueError, "latent is %R: it must be None or a tuple (start, stop)", value);
        return -1;
    }
    c->problem.latent = 1;
    return integer_of("latent[0]", PyTuple_GetItem(value, 0), &c->latent) != 0 ||
                   integer_of("latent[1]", PyTuple_GetItem(value, 1), &c->problem.head_dim_v) != 0
               ? -1
               : 0;
}

static int seeds(call *c, PyObject *const *args) {
    if (c->problem.dropout == 0) return 0;
    c->tensors.dropout_seed = PyLong_AsUnsignedLongLongMask(args[ARG_dropout_seed]);
    if (!PyErr_Occurred())
        c->tensors.dropout_offset = PyLong_AsUnsignedLongLongMask(args[ARG_dropout_offset]);
    return PyErr_Occurred() ? -1 : 0;
}

/* None, or a text, which lives as long as the arguments. */
static int text_or_none(const char *name, PyObject *value, const char *what, const char **out) {
    if (Py_IsNone(value)) return 0;
    *out = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
    if (*out != NULL) return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R: it must be %s or None", name, value, what);
    return -1;
}

static int choice(call *c, PyObject *const *args) {
    static const char *const policies[] = {
        [TP_REFUSE] = "refuse", [TP_PERMIT] = "permit", [TP_SERVE] = "serve", [TP_LOCKED] = "locked", NULL};
    int policy = word("fallback", args[ARG_fallback], policies, "\"refuse\", \"permit\", \"serve\" or \"locked\"");
    if (policy < 0) return -1;
    c->choice.policy = policy;
    if (text_or_none("kernel", args[ARG_kernel], "a name", &c->choice.kernel) != 0 ||
        text_or_none("strategy", args[ARG_strategy], "\"prefill\", \"decode\"", &c->choice.strategy) != 0)
        return -1;
    return text_or_none("disable", args[ARG_disable], "names of kernels, \"a,b\",", &c->choice.disable);
}

/* None, or (model, layer, request), each None where it is not said. */
static int tags(call *c, PyObject *value) {
    static const char *const names[] = {"model", "layer", "request"};
    static const tp_tags init = TP_TAGS_INIT;
    int64_t layer = -1;
    if (Py_IsNone(value)) return 0;
    c->tags = init;
    for (int i = 0; i < 3; i++) {
        PyObject *tag = PyTuple_GetItem(value, i);
        if (tag == NULL) return -1;
        if (Py_IsNone(tag)) continue;
        Py_ssize_t bytes = 0;
        const char *text = i != 1 && PyUnicode_Check(tag) ? PyUnicode_AsUTF8AndSize(tag, &bytes) : NULL;
        int fits = i == 1 ? integer_of("tags: layer", tag, &layer) == 0 && layer >= 0 && layer <= INT_MAX
                          : text != NULL && bytes >= 1 && bytes <= 63 && (size_t)bytes == strlen(text);
        if (!fits && !PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "tags: %s is %R: it must be %s", names[i], tag,
                         i == 1 ? "at least 0" : "a text of 1 to 63 bytes");
        if (!fits) return -1;
        if (i != 1) *(i == 0 ? &c->tags.model : &c->tags.request) = text;
    }
    c->tags.layer = (int32_t)layer;
    c->tensors.tags = &c->tags;
    return 0;
}

/* How many exactly, or where that is None how many at most. */
static int threads(call *c, PyObject *exactly, PyObject *max) {
    int64_t wanted = 0;
    if (!Py_IsNone(max)) {
        if (integer_of("max_threads", max, &wanted) != 0) return -1;
        c->max_threads = wanted < 1 ? 1 : wanted > INT_MAX ? INT_MAX : (int)wanted;
    }
    if (Py_IsNone(exactly)) return 0;
    if (integer_of("threads", exactly, &wanted) != 0) return -1;
    if (wanted < 1 || wanted > 1024) {
        PyErr_Format(PyExc_ValueError, "threads is %lld: it must be in 1..1024, or None",
                     (long long)wanted);
        return -1;
    }
    c->threads = (int)wanted;
    return 0;
}

int options_read(call *c, PyObject *const *args) {
    static const char *const aligns[] = {"bottom_right", "top_left", NULL};
    static const char *const layouts[] = {"bshd", "bhsd", "thd", NULL};
    int causal, align = word("causal_align", args[ARG_causal_align], aligns,
                             "\"bottom_right\" or \"top_left\"");
    int lay =
        align < 0 ? -1 : word("layout", args[ARG_layout], layouts, "\"bshd\", \"bhsd\" or \"thd\"");
    if (lay < 0) return -1;
    c->problem.align = align;
    c->layout = (layout)lay;
    if (flag("causal", args[ARG_causal], &causal) != 0) return -1;
    if (causal) tp_problem_causal(&c->problem);
    if (window(c, args[ARG_window]) != 0) return -1;
    if (scale(c, args[ARG_scale], args[ARG_softcap], args[ARG_dropout_p]) != 0 ||
        weights(c, args[ARG_p_dtype]) != 0 || seeds(c, args) != 0 || q_scale(c, args[ARG_q_scale]) != 0 ||
        latent(c, args[ARG_latent], args[ARG_v]) != 0)
        return -1;
    if (flag("invariant", args[ARG_invariant], &c->problem.invariant) != 0) return -1;
    if (flag("indices_sorted", args[ARG_indices_sorted], &c->sorted) != 0) return -1;
    if (flag("return_lse", args[ARG_return_lse], &c->return_lse) != 0) return -1;
    if (flag("return_receipt", args[ARG_return_receipt], &c->return_receipt) != 0) return -1;
    if (choice(c, args) != 0 || tags(c, args[ARG_tags]) != 0) return -1;
    return threads(c, args[ARG_threads], args[ARG_max_threads]);
}
