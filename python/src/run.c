/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: open, run without the GIL, hand over. */
#include "core.h"

/* "q copied: its last dimension is not contiguous (exact)" */
PyObject *call_rewrites(const call *c, uint32_t rewrites) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < IN_COUNT; i++) {
        const view *v = &c->in[i];
        PyObject *text =
            v->why != NULL ? PyUnicode_FromFormat("%s copied: %s (exact)", v->name, v->why) : NULL;
        if (text != NULL && PyList_Append(list, text) != 0) Py_CLEAR(list);
        Py_XDECREF(text);
    }
    if (list != NULL && (rewrites & TP_REWRITE_PADDED_V)) {
        PyObject *text = PyUnicode_FromString("head_dim_v padded in the workspace (exact)");
        if (text == NULL || PyList_Append(list, text) != 0) Py_CLEAR(list);
        Py_XDECREF(text);
    }
    return list;
}

/* out, or a tuple of out, lse and what a receipt is made of */
PyObject *call_result(call *c, const tp_receipt *receipt) {
    PyObject *out = Py_NewRef(c->out_object);
    if (!c->return_lse && !c->return_receipt) return out;
    PyObject *lse = c->return_lse ? Py_NewRef(c->lse_object) : NULL;
    PyObject *raw = c->return_receipt ? receipt_raw(receipt) : NULL;
    PyObject *rewrites = raw != NULL ? call_rewrites(c, receipt->rewrites) : NULL;
    PyObject *report = rewrites != NULL ? PyTuple_Pack(2, raw, rewrites) : NULL, *result = NULL;
    if (c->return_receipt && report != NULL)
        result = lse != NULL ? PyTuple_Pack(3, out, lse, report) : PyTuple_Pack(2, out, report);
    else if (!c->return_receipt)
        result = PyTuple_Pack(2, out, lse);
    Py_DECREF(out);
    Py_XDECREF(lse);
    Py_XDECREF(raw);
    Py_XDECREF(rewrites);
    Py_XDECREF(report);
    return result;
}

static PyObject *run(call *c, PyObject *const *args) {
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    if (call_open(c, args, NULL) != 0 || call_outputs(c, args[ARG_out]) != 0) return NULL;
    shared_context *shared = context_take(crew_of(&c->problem, c->threads, c->max_threads));
    if (shared == NULL) return NULL;
    if (c->return_receipt) tp_receipt_init(&receipt);
    tp_context *context = context_of(shared);
    tp_status status;
    Py_BEGIN_ALLOW_THREADS status = call_materialise(c, &error);
    if (status == TP_OK)
        status = tp_attention(context, &c->problem, &c->choice, &c->tensors,
                              c->return_receipt ? &receipt : NULL, &error);
    Py_END_ALLOW_THREADS context_give(shared);
    if (status != TP_OK) {
        raise_status(status, &error);
        return NULL;
    }
    return call_result(c, &receipt);
}

PyObject *core_attention(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    call c = {0};
    if (wrong_count("attention", count, ARG_COUNT)) return NULL;
    PyObject *result = run(&c, args);
    call_close(&c);
    return result;
}
