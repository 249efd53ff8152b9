/* SPDX-License-Identifier: Apache-2.0 */
/* New tensors of the kind the caller uses: by the type's own allocator, otherwise NumPy's. */
#include "core.h"

static void set_error(void *context, const char *kind, const char *message) {
    (void)context;
    PyErr_Format(PyExc_MemoryError, "%s: %s", kind, message);
}

int allocate_by(const dl_exchange *exchange, const dtype_row *dtype, int ndim, const int64_t *shape, PyObject **object,
                void **data) {
    dl_managed_versioned *made = NULL;
    void *result = NULL;
    dl_tensor prototype = {
        .device = {DL_CPU, 0}, .ndim = ndim, .dtype = {dtype->dl_code, dtype->dl_bits, 1}};
    prototype.shape = (int64_t *)(uintptr_t)shape;
    int failed = exchange->allocate(&prototype, &made, NULL, set_error);
    if (!failed) *data = (char *)made->tensor.data + made->tensor.byte_offset;
    if (failed || exchange->to_object(made, &result) != 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_MemoryError, "no memory for the output");
        return -1;
    }
    *object = result;
    return 0;
}

/* numpy.float32 and so on; bfloat16 is ml_dtypes'. */
static PyObject *numpy_dtype(const dtype_row *dtype) {
    PyObject *module = PyImport_ImportModule(dtype->code == TP_BF16 ? "ml_dtypes" : "numpy");
    PyObject *found = module != NULL ? PyObject_GetAttrString(module, dtype->name) : NULL;
    Py_XDECREF(module);
    return found;
}

static int by_numpy(const dtype_row *dtype, int ndim, const int64_t *shape, PyObject **object) {
    static PyObject *empty, *dtypes[DTYPE_OTHER];
    PyObject *numpy = empty == NULL ? PyImport_ImportModule("numpy") : NULL;
    if (numpy != NULL) empty = PyObject_GetAttrString(numpy, "empty");
    Py_XDECREF(numpy);
    if (empty != NULL && dtypes[dtype->code] == NULL) dtypes[dtype->code] = numpy_dtype(dtype);
    PyObject *kind = dtypes[dtype->code], *sizes = kind != NULL ? PyTuple_New(ndim) : NULL;
    if (sizes == NULL) return -1;
    for (int i = 0; i < ndim; i++) {
        PyObject *size = PyLong_FromLongLong(shape[i]);
        if (size == NULL || PyTuple_SetItem(sizes, i, size) != 0) {
            Py_DECREF(sizes);
            return -1;
        }
    }
    *object = PyObject_CallFunctionObjArgs(empty, sizes, kind, NULL);
    Py_DECREF(sizes);
    return *object != NULL ? 0 : -1;
}

int view_allocate(view *v, const char *name, const view *like, const dtype_row *dtype, int ndim,
                  const int64_t *shape, PyObject **object) {
    void *data;
    if (like->exchange == NULL) return by_numpy(dtype, ndim, shape, object) != 0 ? -1 : view_open(v, name, *object);
    if (allocate_by(like->exchange, dtype, ndim, shape, object, &data) != 0) return -1;
    *v = (view){.name = name, .object = *object, .data = data, .ndim = ndim, .dtype = dtype, .exchange = like->exchange};
    int64_t stride = dtype->size;
    for (int i = ndim - 1; i >= 0; i--) {
        v->shape[i] = shape[i];
        v->stride[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
    return 0;
}
