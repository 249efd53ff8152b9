/* SPDX-License-Identifier: Apache-2.0 */
#include "proof.h"

#include <string.h>

#define CAPSULE "tileproof.model"

const char *text_of(PyObject *value) {
    return Py_IsNone(value) ? NULL : PyUnicode_AsUTF8AndSize(value, NULL);
}

int64_t number_of(const char *name, PyObject *value, int64_t min, int64_t max) {
    int64_t number = 0;
    if (PyErr_Occurred() || integer_of(name, value, &number) != 0 || (number >= min && number <= max)) return number;
    PyErr_Format(PyExc_ValueError, "%s is %lld: it must be in %lld..%lld", name, (long long)number, (long long)min,
                 (long long)max);
    return 0;
}

int threads_of(PyObject *value) {
    return Py_IsNone(value) ? 0 : (int)number_of("threads", value, 1, 1024);
}

int dtype_or_none(const char *name, PyObject *value) {
    const char *text = text_of(value);
    const dtype_row *row = text != NULL ? dtype_of_name(text) : NULL;
    if (PyErr_Occurred()) return -1;
    if (text == NULL || (row != NULL && row->code <= TP_BF16)) return row != NULL ? row->code : 0;
    PyErr_Format(PyExc_ValueError,
                 "%s is %R: it must be \"float32\", \"float16\", \"bfloat16\" or None; codes are named by cache=", name, value);
    return -1;
}

int bytes_of(PyObject *value, const char **bytes, Py_ssize_t *size) {
    char *start;
    int failed = PyBytes_AsStringAndSize(value, &start, size);
    *bytes = start;
    return failed;
}

tp_model *model_of(PyObject *capsule) {
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

static void gone(PyObject *capsule) {
    tp_model_destroy(model_of(capsule));
}

/* The bytes of a file, its name, the family to assume and the label, or None. */
PyObject *core_model_parse(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_model_options options = TP_MODEL_OPTIONS_INIT;
    tp_model *model;
    const char *bytes;
    Py_ssize_t size;
    if (wrong_count("model_parse", count, 4) || bytes_of(args[0], &bytes, &size) != 0) return NULL;
    const char *name = text_of(args[1]);
    options.assume = text_of(args[2]);
    options.label = text_of(args[3]);
    if (PyErr_Occurred()) return NULL;
    tp_status status = tp_model_parse_with(bytes, (size_t)size, name, &options, &model, &error);
    if (status != TP_OK) return raise_status(status, &error), NULL;
    PyObject *capsule = PyCapsule_New(model, CAPSULE, gone);
    if (capsule == NULL) tp_model_destroy(model);
    return capsule;
}

/* (label, config hash, the format that its file wants for a cache or "", JSON) */
PyObject *core_model_about(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    buffer b = {0};
    const tp_model *model = wrong_count("model_about", count, 1) ? NULL : model_of(args[0]);
    PyObject *text = model != NULL ? buffer_text(&b, tp_model_write(model, TP_JSON, buffer_append, &b)) : NULL;
    return text != NULL ? Py_BuildValue("(sssN)", model->label, model->config_hash, model->cache, text) : NULL;
}

/* ---- the format of a cache ---- */

const char *format_words(const char *name, PyObject *value) {
    if (PyErr_Occurred()) return NULL;
    if (Py_IsNone(value) || PyUnicode_Check(value)) return text_of(value);
    PyErr_Format(PyExc_TypeError, "%s is %R: it must be a str that names the format of a cache, such as \"i8\", or None",
                 name, value);
    return NULL;
}

int raise_words(const char *name, PyObject *words, const char *before, const tp_error *error) {
    const char *rule = strstr(error->text, "it must be ");
    PyErr_Format(PyExc_ValueError, "%s is %R: it must be %s%s", name, words, before,
                 rule != NULL ? rule + strlen("it must be ") : "");
    return -1;
}

/* The name of an argument and its words, or None: their whole name. */
PyObject *core_cache_format(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    char whole[64];
    const char *name = wrong_count("cache_format", count, 2) ? NULL : text_of(args[0]);
    const char *words = name != NULL ? format_words(name, args[1]) : NULL;
    if (PyErr_Occurred()) return NULL;
    if (tp_cache_format_name(words, whole, sizeof whole, &error) == TP_OK) return PyUnicode_FromString(whole);
    return raise_words(name, args[1], "", &error), NULL;
}

/* ---- capacity ---- */

#define CACHE(field) #field, (long long)cache.field
static PyObject *cache_of(const tp_capacity *capacity, int group, int evicts) {
    tp_capacity_cache cache = TP_CAPACITY_CACHE_INIT;
    tp_capacity_cache_at(capacity, group, evicts, &cache);
    return Py_BuildValue("{ss,sL,sL,sL,sL,sL,sL,sL,sL,sL}", "dtype", tp_dtype_name((tp_dtype)cache.dtype), CACHE(layers),
                         CACHE(tokens), CACHE(token_bytes), CACHE(sequence_bytes), CACHE(bytes), CACHE(pages), CACHE(page_bytes),
                         CACHE(context_max), CACHE(concurrency_max));
}

static PyObject *work_of(const tp_capacity *capacity, int group, int decode) {
    tp_capacity_work work = TP_CAPACITY_WORK_INIT;
    tp_capacity_work_at(capacity, group, decode, &work);
    return Py_BuildValue("{ss,ss,sO,sL,sL,sd,sd,sd,ss}", "kernel", work.kernel, "problem", work.problem, "exact",
                         work.exact ? Py_True : Py_False, "workspace_bytes", (long long)work.workspace_bytes,
                         "workspace_thread_bytes", (long long)work.workspace_thread_bytes, "flops", work.flops, "bytes",
                         work.bytes, "seconds", work.seconds, "bound", work.reads_bound ? "reads" : "multiply-adds");
}

static PyObject *group_of(const tp_capacity *capacity, int group) {
    return Py_BuildValue("{sN,sN,sN,sN}", "kept", cache_of(capacity, group, 0), "evicted", cache_of(capacity, group, 1),
                         "prefill", work_of(capacity, group, 0), "decode", work_of(capacity, group, 1));
}

/* Model, context, concurrency, page size, limit, threads (None: what the host has), gflops, read_gbps, the cache's dtype and its
   format, or None. Returns what all layers take, then each layer group by itself. */
PyObject *core_capacity(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_capacity_options options = TP_CAPACITY_OPTIONS_INIT;
    tp_capacity *capacity;
    const tp_model *model = wrong_count("capacity", count, 10) ? NULL : model_of(args[0]);
    if (model == NULL) return NULL;
    options.context = number_of("context", args[1], 0, INT64_MAX);
    options.concurrency = number_of("concurrency", args[2], 0, INT64_MAX);
    options.page_size = number_of("page_size", args[3], 0, INT64_MAX);
    options.limit = number_of("limit", args[4], 0, INT64_MAX);
    int threads = threads_of(args[5]);
    options.gflops = PyFloat_AsDouble(args[6]);
    options.read_gbps = PyFloat_AsDouble(args[7]);
    options.cache_dtype = dtype_or_none("cache_dtype", args[8]);
    options.cache = format_words("cache", args[9]);
    if (PyErr_Occurred()) return NULL;
    shared_context *shared = context_take((crew){threads, 0});
    if (shared == NULL) return NULL;
    tp_status status = tp_capacity_create(model, context_of(shared), &options, &capacity, &error);
    context_give(shared);
    if (status != TP_OK) return raise_status(status, &error), NULL;
    PyObject *list = PyList_New(0);
    for (int i = -1; list != NULL && i < model->group_count; i++) {
        PyObject *group = group_of(capacity, i);
        if (group == NULL || PyList_Append(list, group) != 0) Py_CLEAR(list);
        Py_XDECREF(group);
    }
    tp_capacity_destroy(capacity);
    return list;
}
