/* SPDX-License-Identifier: Apache-2.0 */
/* What contexts tell: metrics and the flight recorder of those there are, and trace lines and events while somebody listens. */
#include "core.h"

/* What Python has given, owned; NULL: nobody listens. Guarded by the GIL. */
static PyObject *tracer, *listener, *keeper;

int telemetry_wanted(void) {
    return tracer != NULL || listener != NULL;
}

/* Calls a function of Python's; what it raises is shown and stops nothing, because the call that it hears of is over. */
static void tell(PyObject *function, PyObject *arguments) {
    if (function == NULL || arguments == NULL) {
        if (PyErr_Occurred()) PyErr_WriteUnraisable(NULL);
    } else {
        PyObject *held = Py_NewRef(function), *result = PyObject_CallObject(held, arguments);
        if (result == NULL) PyErr_WriteUnraisable(held);
        Py_XDECREF(result);
        Py_DECREF(held);
    }
    Py_XDECREF(arguments);
}

/* A line comes in one piece. */
static int on_trace(void *cookie, const char *bytes, size_t size) {
    (void)cookie;
    PyGILState_STATE state = PyGILState_Ensure();
    if (tracer != NULL) {
        PyObject *line = PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)size, "replace");
        tell(tracer, line != NULL ? Py_BuildValue("(N)", line) : NULL);
    }
    PyGILState_Release(state);
    return 0;
}

static void on_event(void *user, const tp_event *event) {
    static const char *const kinds[] = {"", "fallback", "refused", "not-locked"};
    (void)user;
    PyGILState_STATE state = PyGILState_Ensure();
    if (listener != NULL) {
        PyObject *decision = decision_texts(event->decision);
        PyObject *receipt = event->receipt != NULL ? receipt_texts(event->receipt) : Py_NewRef(Py_None);
        int fine = decision != NULL && receipt != NULL;
        tell(listener, fine ? Py_BuildValue("(sOO)", kinds[event->kind], decision, receipt) : NULL);
        Py_XDECREF(decision);
        Py_XDECREF(receipt);
    }
    PyGILState_Release(state);
}

void telemetry_options(tp_context_options *options) {
    if (!telemetry_wanted()) return;
    options->trace = on_trace;
    options->event = on_event;
}

void telemetry_gone(const tp_context *context) {
    if (keeper == NULL) return;
    buffer b = {0};
    PyObject *text = buffer_text(&b, tp_metrics_write(context, buffer_append, &b));
    tell(keeper, text != NULL ? Py_BuildValue("(N)", text) : NULL);
}

/* Three functions, or None for nobody: of a line of the trace, of an event, and of the metrics of a context that goes. */
PyObject *core_observe(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    PyObject **const to[] = {&tracer, &listener, &keeper};
    if (wrong_count("observe", count, 3)) return NULL;
    for (int i = 0; i < 3; i++) {
        PyObject *before = *to[i];
        *to[i] = Py_IsNone(args[i]) ? NULL : Py_NewRef(args[i]);
        Py_XDECREF(before);
    }
    return Py_NewRef(Py_None);
}

/* Texts of all contexts: metrics, or with True what the flight recorder holds. */
PyObject *core_telemetry(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (wrong_count("telemetry", count, 1)) return NULL;
    PyObject *list = PyList_New(0);
    for (shared_context *s = context_next(NULL); list != NULL && s != NULL; s = context_next(s)) {
        buffer b = {0};
        PyObject *text =
            buffer_text(&b, (args[0] == Py_True ? tp_recorder_write : tp_metrics_write)(context_of(s), buffer_append, &b));
        if (text == NULL || PyList_Append(list, text) != 0) Py_CLEAR(list);
        Py_XDECREF(text);
    }
    return list;
}
