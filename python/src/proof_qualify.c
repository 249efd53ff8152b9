/* SPDX-License-Identifier: Apache-2.0 */
#include "proof.h"

#include <stdlib.h>

#define CAPSULE "tileproof.qualification"

typedef struct qualification {
    tp_qualification *q;
    PyObject *models; /* a tuple, which must outlive q */
    int runs;         /* in another thread; guarded by the GIL */
} qualification;

static qualification *of(PyObject *capsule) {
    qualification *own = PyCapsule_GetPointer(capsule, CAPSULE);
    if (own == NULL || !own->runs) return own;
    PyErr_SetString(PyExc_RuntimeError, "the qualification runs in another thread: wait until it has ended");
    return NULL;
}

static void destroy(qualification *own) {
    tp_qualification_destroy(own->q);
    Py_XDECREF(own->models);
    free(own);
}

static void gone(PyObject *capsule) {
    destroy(PyCapsule_GetPointer(capsule, CAPSULE));
}

/* A tuple of models, phases as bits (0: all), quick, the dtype of models that name none, page size, cells of a phase at most, the
   format of the cache or None. */
PyObject *core_qualify_create(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    if (wrong_count("qualify_create", count, 7)) return NULL;
    Py_ssize_t models = PyTuple_Size(args[0]);
    options.phases = (uint32_t)number_of("phases", args[1], 0, UINT32_MAX);
    options.quick = args[2] == Py_True;
    options.page_size = number_of("page_size", args[4], 0, INT64_MAX);
    options.max_cells = number_of("max_cells", args[5], 0, INT64_MAX);
    options.dtype = dtype_or_none("dtype", args[3]);
    options.cache = format_words("cache", args[6]);
    tp_model **list = PyErr_Occurred() ? NULL : calloc((size_t)models + 1, sizeof *list);
    qualification *own = list != NULL ? calloc(1, sizeof *own) : NULL;
    if (own == NULL && !PyErr_Occurred()) PyErr_NoMemory();
    for (Py_ssize_t i = 0; own != NULL && i < models; i++) list[i] = model_of(PyTuple_GetItem(args[0], i));
    if (own != NULL && !PyErr_Occurred()) {
        tp_status status = tp_qualify_create(list, (int)models, &options, &own->q, &error);
        if (status != TP_OK) raise_status(status, &error);
    }
    free(list);
    if (own != NULL) own->models = Py_NewRef(args[0]);
    PyObject *capsule = PyErr_Occurred() ? NULL : PyCapsule_New(own, CAPSULE, gone);
    if (capsule == NULL && own != NULL) destroy(own);
    return capsule;
}

/* Python's function hears of every cell, before and after; what it raises, and Ctrl-C, stop the run. */
static int on_progress(void *user, const tp_qualification *q, int64_t cell, int done) {
    (void)q;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *function = user, *result = NULL;
    if (!PyErr_Occurred() && PyErr_CheckSignals() == 0 && function != Py_None)
        result = PyObject_CallFunction(function, "LO", (long long)cell, done ? Py_True : Py_False);
    int stops = PyErr_Occurred() != NULL || (result != NULL && PyObject_IsTrue(result) != 0);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return stops;
}

/* The capsule, threads (None: what the host has), whether a fallback may serve, nanoseconds for the times of a cell, a function
   or None. */
PyObject *core_qualify_run(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_qualify_run_options options = TP_QUALIFY_RUN_OPTIONS_INIT;
    qualification *own = wrong_count("qualify_run", count, 5) ? NULL : of(args[0]);
    if (own == NULL) return NULL;
    int threads = threads_of(args[1]);
    options.policy = args[2] == Py_True ? TP_PERMIT : TP_REFUSE;
    options.time_ns = PyFloat_AsDouble(args[3]);
    options.progress = on_progress;
    options.user = args[4];
    shared_context *shared = PyErr_Occurred() ? NULL : context_take((crew){threads, 0});
    if (shared == NULL) return NULL;
    tp_status status;
    own->runs = 1;
    Py_BEGIN_ALLOW_THREADS status = tp_qualify_run(own->q, context_of(shared), &options, &error);
    Py_END_ALLOW_THREADS context_give(shared);
    own->runs = 0;
    if (PyErr_Occurred()) return NULL;
    return status == TP_OK ? Py_NewRef(Py_None) : (raise_status(status, &error), NULL);
}

/* A cell by index, as JSON. Allowed while it runs, too: progress may look. */
PyObject *core_qualify_cell(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    buffer b = {0};
    qualification *own = wrong_count("qualify_cell", count, 2) ? NULL : PyCapsule_GetPointer(args[0], CAPSULE);
    int64_t index = own != NULL ? number_of("cell", args[1], 0, INT64_MAX) : -1;
    if (own == NULL || PyErr_Occurred()) return NULL;
    const tp_cell *cell = index >= 0 ? tp_qualification_cell(own->q, index) : NULL;
    if (cell != NULL) return buffer_text(&b, tp_cell_write(cell, 1, buffer_append, &b));
    PyErr_Format(PyExc_IndexError, "cell %lld: there is no such one", (long long)index);
    return NULL;
}

/* (status of all, how many cells, uses as (model, part, layers, phase, cell)) */
PyObject *core_qualify_about(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    qualification *own = wrong_count("qualify_about", count, 1) ? NULL : of(args[0]);
    PyObject *uses = own != NULL ? PyList_New(0) : NULL;
    tp_qualify_use use = TP_QUALIFY_USE_INIT;
    char layers[8 * TP_MODEL_MAX_LAYERS];
    long long cells = 0;
    while (own != NULL && tp_qualification_cell(own->q, cells) != NULL) cells++;
    for (int64_t i = 0; uses != NULL && tp_qualification_use(own->q, i, &use) == TP_OK; i++) {
        const tp_model *model = model_of(PyTuple_GetItem(own->models, use.model));
        const tp_layer_group *group = model->groups[use.group];
        tp_layer_group_layers(group, layers, sizeof layers);
        PyObject *row = Py_BuildValue("(ssssL)", model->label, tp_part_name((tp_part)group->part), layers,
                                      tp_qualify_phase_name(use.phase), (long long)use.cell);
        if (row == NULL || PyList_Append(uses, row) != 0) Py_CLEAR(uses);
        Py_XDECREF(row);
    }
    return uses != NULL ? Py_BuildValue("(sLN)", tp_cell_status_name(tp_qualification_status(own->q)), cells, uses) : NULL;
}

static tp_identity *identity_of(PyObject *declared) {
    tp_error error = TP_ERROR_INIT;
    tp_identity *here = NULL;
    const char *text = text_of(declared);
    tp_status status = PyErr_Occurred() ? TP_OK : tp_identity_detect(text, &here, &error);
    if (status != TP_OK) raise_status(status, &error);
    return here;
}

/* The capsule, a lock, declared or None: ("", []) where the lock says the same, otherwise the first difference, and all notes. */
PyObject *core_qualify_compare(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    qualification *own = wrong_count("qualify_compare", count, 3) ? NULL : of(args[0]);
    const tp_lock *lock = own != NULL ? lock_of(args[1]) : NULL;
    tp_identity *here = lock != NULL ? identity_of(args[2]) : NULL;
    if (here == NULL) return NULL;
    tp_status status = tp_qualify_compare(own->q, lock, here, &error);
    tp_identity_destroy(here);
    if (status != TP_OK && status != TP_NOT_LOCKED) return raise_status(status, &error), NULL;
    PyObject *notes = PyList_New(0);
    for (int i = 0; notes != NULL && tp_qualification_note(own->q, i) != NULL; i++) {
        PyObject *note = PyUnicode_FromString(tp_qualification_note(own->q, i));
        if (note == NULL || PyList_Append(notes, note) != 0) Py_CLEAR(notes);
        Py_XDECREF(note);
    }
    return notes != NULL ? Py_BuildValue("(sN)", status == TP_OK ? "" : error.text, notes) : NULL;
}

/* The capsule, a lock, declared or None, date, reason, revisions to keep, whether a refused cell forbids it. */
PyObject *core_qualify_update(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    qualification *own = wrong_count("qualify_update", count, 7) ? NULL : of(args[0]);
    tp_lock *lock = own != NULL ? lock_of(args[1]) : NULL;
    tp_identity *here = lock != NULL ? identity_of(args[2]) : NULL;
    if (here == NULL) return NULL;
    update.date = text_of(args[3]);
    update.reason = text_of(args[4]);
    update.keep = (int32_t)number_of("keep", args[5], 0, INT32_MAX);
    update.served_only = args[6] == Py_True;
    tp_status status = PyErr_Occurred() ? TP_OK : tp_qualify_update(own->q, lock, here, &update, &error);
    tp_identity_destroy(here);
    if (status != TP_OK) raise_status(status, &error);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
