/* SPDX-License-Identifier: Apache-2.0 */
/* A mask in the text form, whose parser and printer are the library's: "causal,first:4,or" in, "first=4 causal" out. */
#include "core.h"

#include <stdio.h>
#include <string.h>

static const char plain[] = "q1 k1 d1 f32"; /* a problem for the mask to stand in */

int mask_parse(PyObject *text, tp_problem *problem, tp_error *error) {
    tp_lengths lengths;
    char whole[1024];
    const char *tree = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (tree == NULL) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "mask_tree is %R: it must be a text", text);
        return -1;
    }
    if (snprintf(whole, sizeof whole, "%s mask=%s", plain, tree) >= (int)sizeof whole || strchr(tree, ' ') != NULL) {
        PyErr_Format(PyExc_ValueError, "mask_tree is %R: it must be a tree in postfix order, as \"causal,first:4,or\"", text);
        return -1;
    }
    tp_status status = tp_problem_parse(whole, problem, &lengths, error);
    return status == TP_OK ? 0 : raise_status(status, error);
}

/* The words of a tree: what its text form says behind the dtype. */
PyObject *core_mask_words(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    char text[1024];
    if (wrong_count("mask_words", count, 1) || mask_parse(args[0], &problem, &error) != 0) return NULL;
    if (tp_problem_print(&problem, NULL, text, sizeof text) != TP_OK) return PyErr_NoMemory();
    const char *words = strstr(text, " f32 ");
    return PyUnicode_FromString(words != NULL ? words + strlen(" f32 ") : "");
}

/* The library's table: (name, ((name of a value, the least that it may be), ...), 1 if arrays are always read) of each kind. */
PyObject *core_mask_kinds(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self, (void)args;
    if (wrong_count("mask_kinds", count, 0)) return NULL;
    PyObject *kinds = PyList_New(0);
    const tp_mask_info *info;
    for (int i = 0; kinds != NULL && (info = tp_mask_at(i)) != NULL; i++) {
        PyObject *values = PyTuple_New(info->values), *kind = NULL;
        for (int n = 0; values != NULL && n < info->values; n++) {
            PyObject *value = Py_BuildValue("(sL)", info->value[n], (long long)info->min[n]);
            if (value == NULL)
                Py_CLEAR(values);
            else
                PyTuple_SetItem(values, n, value);
        }
        if (values != NULL) kind = Py_BuildValue("(sNi)", info->name, values, info->reads == TP_MASK_READS_DATA);
        if (kind == NULL || PyList_Append(kinds, kind) != 0) Py_CLEAR(kinds);
        Py_XDECREF(kind);
    }
    return kinds;
}
