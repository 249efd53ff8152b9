/* SPDX-License-Identifier: Apache-2.0 */
/* Receipts and decisions as text and JSON, and statuses as exceptions. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

PyObject *error_type, *refused_type, *unsupported_type, *not_locked_type, *cache_full_type;

int buffer_append(void *cookie, const char *bytes, size_t size) {
    buffer *b = cookie;
    if (b->size + size + 1 > b->capacity) {
        size_t capacity = (b->size + size + 1) * 2;
        char *text = realloc(b->text, capacity);
        if (text == NULL) return 1;
        b->text = text;
        b->capacity = capacity;
    }
    memcpy(b->text + b->size, bytes, size);
    b->size += size;
    return 0;
}

PyObject *buffer_text(buffer *b, tp_status status) {
    PyObject *text = status == TP_OK ? PyUnicode_DecodeUTF8(b->text, (Py_ssize_t)b->size, "replace") : PyErr_NoMemory();
    free(b->text);
    *b = (buffer){0};
    return text;
}

static PyObject *texts(const tp_receipt *receipt, const tp_decision *decision) {
    PyObject *made[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        buffer b = {0};
        tp_format format = i == 0 ? TP_TEXT : TP_JSON;
        made[i] = buffer_text(&b, receipt != NULL ? tp_receipt_write(receipt, format, buffer_append, &b)
                                                  : tp_decision_write(decision, format, buffer_append, &b));
    }
    PyObject *pair = made[0] != NULL && made[1] != NULL ? PyTuple_Pack(2, made[0], made[1]) : NULL;
    Py_XDECREF(made[0]);
    Py_XDECREF(made[1]);
    return pair;
}

PyObject *receipt_texts(const tp_receipt *receipt) {
    return texts(receipt, NULL);
}

PyObject *receipt_raw(const tp_receipt *receipt) {
    return receipt->decision != NULL ? texts(receipt, NULL) : PyBytes_FromStringAndSize((const char *)receipt, sizeof *receipt);
}

static int read_raw(const char *function, PyObject *const *args, Py_ssize_t count, tp_receipt *receipt) {
    if (wrong_count(function, count, 1)) return -1;
    if (!PyBytes_Check(args[0]) || PyBytes_Size(args[0]) != sizeof *receipt) {
        PyErr_Format(PyExc_TypeError, "_core.%s takes the bytes of a receipt of this process", function);
        return -1;
    }
    memcpy(receipt, PyBytes_AsString(args[0]), sizeof *receipt);
    return 0;
}

PyObject *core_receipt_texts(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_receipt receipt;
    return read_raw("receipt_texts", args, count, &receipt) != 0 ? NULL : texts(&receipt, NULL);
}

/* What is asked of every call of a model: (kernel, problem, fallback). */
PyObject *core_receipt_said(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_receipt receipt;
    if (read_raw("receipt_said", args, count, &receipt) != 0) return NULL;
    return Py_BuildValue("(ssO)", receipt.kernel, receipt.problem, receipt.fallback ? Py_True : Py_False);
}

PyObject *decision_texts(const tp_decision *decision) {
    return texts(NULL, decision);
}

const char *const remedy = "; fallback=\"permit\" lets it serve";

int raise_status(tp_status status, const tp_error *error) {
    PyObject *type = error_type;
    if (status == TP_INVALID) type = PyExc_ValueError;
    if (status == TP_NO_MEMORY) type = PyExc_MemoryError;
    if (status == TP_FALLBACK_REFUSED) type = refused_type;
    if (status == TP_UNSUPPORTED) type = unsupported_type;
    if (status == TP_NOT_LOCKED) type = not_locked_type;
    if (status == TP_CACHE_FULL) type = cache_full_type;
    const char *text = error->text[0] != '\0' ? error->text : tp_status_name(status);
    PyErr_Format(type, "%s%s", text, status == TP_FALLBACK_REFUSED ? remedy : "");
    return -1;
}

static PyObject *exception(PyObject *module, const char *full, const char *doc, PyObject *base) {
    PyObject *type = PyErr_NewExceptionWithDoc(full, doc, base, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, strrchr(full, '.') + 1, type) != 0)
        Py_CLEAR(type);
    return type;
}

int errors_init(PyObject *module) {
    error_type = exception(module, "tileproof.Error", "The library cannot serve this call here.",
                           PyExc_RuntimeError);
    if (error_type == NULL) return -1;
    refused_type = exception(module, "tileproof.FallbackRefused",
                             "Only a slower path would serve, and fallback=\"refuse\" forbids it.",
                             error_type);
    unsupported_type =
        exception(module, "tileproof.Unsupported", "No kernel serves this call.", error_type);
    not_locked_type =
        exception(module, "tileproof.NotLocked", "fallback=\"locked\", and no lock that preflight() let in has it.", error_type);
    cache_full_type = exception(module, "tileproof.CacheFull", "A cache has too few free pages or sequences.", error_type);
    return refused_type != NULL && unsupported_type != NULL && not_locked_type != NULL && cache_full_type != NULL ? 0 : -1;
}

int wrong_count(const char *function, Py_ssize_t count, Py_ssize_t need) {
    if (count == need) return 0;
    PyErr_Format(PyExc_TypeError, "_core.%s takes %zd arguments, not %zd", function, need, count);
    return 1;
}
