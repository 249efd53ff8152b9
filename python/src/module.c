/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

static PyMethodDef functions[] = {
#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))core_##name, METH_FASTCALL, NULL},
#include "functions.inc"
#undef FUNCTION
    {NULL, NULL, 0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "tileproof._core",
    "libtileproof by position; use the package tileproof.",
    -1,
    functions,
    NULL,
    NULL,
    NULL,
    NULL,
};

/* Names in order; NULL ends them. */
static PyObject *strings(const char *const *names) {
    int count = 0;
    while (names[count] != NULL) count++;
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) PyTuple_SetItem(tuple, i, PyUnicode_FromString(names[i]));
    return tuple;
}

static const char *const argument_names[] = {
#define ARGUMENT(name) #name,
#include "arguments.inc"
#undef ARGUMENT
    NULL};
static const char *const array_names[] = {
#define ARRAY(name, field, shape) #name,
#include "arrays.inc"
#undef ARRAY
    NULL};

static const char *const rope_names[] = {
#define OPTION(name, kind) #name,
#include "rope.inc"
#undef OPTION
    NULL};

static PyObject *kernels(void) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && tp_kernel_at(i) != NULL; i++) {
        PyObject *name = PyUnicode_FromString(tp_kernel_at(i)->name);
        if (name == NULL || PyList_Append(list, name) != 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    PyObject *tuple = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static int add(PyObject *module, const char *name, PyObject *value) {
    int failed = value == NULL || PyModule_AddObjectRef(module, name, value) != 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    openmp_init();
    formats_init();
    if (errors_init(module) == 0 && add(module, "arguments", strings(argument_names)) == 0 &&
        add(module, "arrays", strings(array_names)) == 0 && add(module, "kernels", kernels()) == 0 &&
        add(module, "rope_options", strings(rope_names)) == 0 &&
        add(module, "remedy", PyUnicode_FromString(remedy)) == 0 &&
        add(module, "version", PyUnicode_FromString(tp_version())) == 0)
        return module;
    Py_DECREF(module);
    return NULL;
}
