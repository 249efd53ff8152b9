/* SPDX-License-Identifier: Apache-2.0 */
#include "proof.h"

#define CAPSULE "tileproof.lock"

tp_lock *lock_of(PyObject *capsule) {
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

static void gone(PyObject *capsule) {
    tp_lock_destroy(lock_of(capsule));
}

/* The bytes of a file and its name; None for the bytes: a lock without any cell. */
PyObject *core_lock_parse(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock;
    const char *bytes = NULL, *name;
    Py_ssize_t size = 0;
    if (wrong_count("lock_parse", count, 2) || (!Py_IsNone(args[0]) && bytes_of(args[0], &bytes, &size) != 0)) return NULL;
    name = text_of(args[1]);
    if (PyErr_Occurred()) return NULL;
    tp_status status =
        bytes != NULL ? tp_lock_parse(bytes, (size_t)size, name, &lock, &error) : tp_lock_create(&lock, &error);
    if (status != TP_OK) return raise_status(status, &error), NULL;
    PyObject *capsule = PyCapsule_New(lock, CAPSULE, gone);
    if (capsule == NULL) tp_lock_destroy(lock);
    return capsule;
}

PyObject *core_lock_text(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    buffer b = {0};
    const tp_lock *lock = wrong_count("lock_text", count, 1) ? NULL : lock_of(args[0]);
    return lock != NULL ? buffer_text(&b, tp_lock_write(lock, buffer_append, &b)) : NULL;
}

/* A list of revisions, each (model, config hash, date, engine, mode, device, isa, cache, status, cells, why it is stale for this
   process or ""). */
PyObject *core_lock_revisions(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_identity *here = NULL;
    const tp_lock *lock = wrong_count("lock_revisions", count, 2) ? NULL : lock_of(args[0]);
    if (lock == NULL) return NULL;
    const char *declared = text_of(args[1]);
    if (PyErr_Occurred()) return NULL;
    tp_status status = tp_identity_detect(declared, &here, &error);
    if (status != TP_OK) return raise_status(status, &error), NULL;
    here->cache = "any"; /* which cache a revision is of makes none stale */
    PyObject *list = PyList_New(0);
    tp_lock_revision r = TP_LOCK_REVISION_INIT;
    for (int64_t i = 0; list != NULL && tp_lock_revision_at(lock, i, &r) == TP_OK; i++) {
        char why[1024] = "";
        tp_lock_revision_fresh(lock, i, here, why, sizeof why);
        PyObject *row = Py_BuildValue("(sssssssssLs)", r.model, r.config_hash, r.date, r.engine, r.mode, r.device, r.isa, r.cache,
                                      tp_cell_status_name((tp_cell_status)r.status), (long long)r.cell_count, why);
        if (row == NULL || PyList_Append(list, row) != 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    tp_identity_destroy(here);
    return list;
}

/* Two locks and the index of a revision in each, then whether as JSON. */
PyObject *core_lock_diff(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    buffer b = {0};
    if (wrong_count("lock_diff", count, 5)) return NULL;
    const tp_lock *from = lock_of(args[0]), *to = from != NULL ? lock_of(args[2]) : NULL;
    int64_t a = to != NULL ? number_of("first", args[1], 0, INT64_MAX) : 0,
            z = to != NULL ? number_of("second", args[3], 0, INT64_MAX) : 0;
    if (to == NULL || PyErr_Occurred()) return NULL;
    tp_status status = tp_lock_diff(from, a, to, z, args[4] == Py_True ? TP_JSON : TP_TEXT, buffer_append, &b);
    if (status != TP_INVALID) return buffer_text(&b, status);
    PyErr_Format(PyExc_IndexError, "revision %lld or %lld: there is no such one", (long long)a, (long long)z);
    return NULL;
}

/* ---- preflight. What was let in, as (lock, model, declared, cache), so that a context that is made later knows it, too. ---- */

static PyObject *let_in; /* a list; guarded by the GIL */

static tp_status preflight(tp_context *context, PyObject *entry, tp_error *error) {
    tp_preflight_options options = TP_PREFLIGHT_OPTIONS_INIT;
    options.declared = text_of(PyTuple_GetItem(entry, 2));
    options.cache = text_of(PyTuple_GetItem(entry, 3));
    return tp_preflight_with(context, lock_of(PyTuple_GetItem(entry, 0)), model_of(PyTuple_GetItem(entry, 1)), &options, error);
}

void preflight_again(tp_context *context) {
    tp_error error = TP_ERROR_INIT;
    for (Py_ssize_t i = 0; let_in != NULL && i < PyList_Size(let_in); i++)
        preflight(context, PyList_GetItem(let_in, i), &error); /* it passed before, in this process */
}

/* Lock, model, declared or None, the format of the cache or None: from now on policy locked serves what the lock has of the model
   with that cache. */
PyObject *core_preflight(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    if (wrong_count("preflight", count, 4) || lock_of(args[0]) == NULL || model_of(args[1]) == NULL) return NULL;
    text_of(args[2]);
    format_words("cache", args[3]);
    if (PyErr_Occurred() || (let_in == NULL && (let_in = PyList_New(0)) == NULL)) return NULL;
    PyObject *entry = PyTuple_Pack(4, args[0], args[1], args[2], args[3]);
    shared_context *one = entry != NULL ? context_take((crew){1, 0}) : NULL; /* there is at least one */
    tp_status status = TP_OK;
    for (shared_context *s = one != NULL ? context_next(NULL) : NULL; s != NULL && status == TP_OK; s = context_next(s))
        status = preflight(context_of(s), entry, &error);
    context_give(one);
    int failed = one == NULL || (status == TP_OK && PyList_Append(let_in, entry) != 0);
    Py_XDECREF(entry);
    if (one != NULL && status != TP_OK) raise_status(status, &error);
    return failed || status != TP_OK ? NULL : Py_NewRef(Py_None);
}

/* Nothing is permitted any more. */
PyObject *core_permit_nothing(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self, (void)args;
    tp_error error = TP_ERROR_INIT;
    if (wrong_count("permit_nothing", count, 0)) return NULL;
    Py_CLEAR(let_in);
    for (shared_context *s = context_next(NULL); s != NULL; s = context_next(s))
        tp_context_permit(context_of(s), NULL, 0, &error);
    return Py_NewRef(Py_None);
}
