/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor of Python's without a copy: buffer protocol, NumPy's own struct (for bfloat16, which no
   buffer can name), DLPack by C functions of the type, DLPack by capsule. */
#include "core.h"

#include <stdlib.h>

/* NumPy's __array_struct__ */
typedef struct array_struct {
    int two, nd;
    char kind;
    int itemsize, flags;
    Py_ssize_t *shape, *strides;
    void *data;
    PyObject *descr;
} array_struct;
enum { ARRAY_NATIVE = 0x200, ARRAY_WRITEABLE = 0x400 };

static int check_ndim(const view *v, int64_t ndim) {
    if (ndim >= 0 && ndim <= VIEW_DIMS) return 0;
    PyErr_Format(PyExc_ValueError, "%s has %lld dimensions: at most %d are known", v->name,
                 (long long)ndim, VIEW_DIMS);
    return -1;
}

static int from_buffer(view *v) {
    const Py_buffer *b = &v->buffer;
    v->has_buffer = 1;
    if (check_ndim(v, b->ndim) != 0) return -1;
    v->data = b->buf;
    v->ndim = b->ndim;
    v->readonly = b->readonly;
    v->dtype = dtype_of_format(b->format, b->itemsize);
    for (int i = 0; i < b->ndim; i++) {
        v->shape[i] = b->shape[i];
        v->stride[i] = b->strides[i];
    }
    return 0;
}

/* The name of a dtype NumPy cannot export: ml_dtypes has its own. */
static const dtype_row *named_dtype(PyObject *object) {
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *name = dtype != NULL ? PyObject_GetAttrString(dtype, "name") : NULL;
    const char *text = name != NULL ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    const dtype_row *row = text != NULL ? dtype_of_name(text) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(dtype);
    return row;
}

static int from_array_struct(view *v) {
    v->capsule = PyObject_GetAttrString(v->object, "__array_struct__");
    if (v->capsule == NULL) return -1;
    const array_struct *a = PyCapsule_GetPointer(v->capsule, NULL);
    if (a == NULL || check_ndim(v, a->nd) != 0) return -1;
    v->dtype = named_dtype(v->object);
    if (v->dtype == NULL) return -1;
    if (!(a->flags & ARRAY_NATIVE) || v->dtype->size != a->itemsize) v->dtype = dtype_of_name("");
    v->data = a->data;
    v->ndim = a->nd;
    v->readonly = !(a->flags & ARRAY_WRITEABLE);
    for (int i = 0; i < a->nd; i++) {
        v->shape[i] = a->shape[i];
        v->stride[i] = a->strides[i];
    }
    return 0;
}

static int from_dlpack(view *v, const dl_tensor *t) {
    if (t->device.type != DL_CPU) {
        PyErr_Format(PyExc_ValueError,
                     "%s is on a device of DLPack type %d: it must be on the CPU (1)", v->name,
                     (int)t->device.type);
        return -1;
    }
    if (check_ndim(v, t->ndim) != 0) return -1;
    v->data = t->data != NULL ? (char *)t->data + t->byte_offset : NULL;
    v->ndim = t->ndim;
    v->dtype = dtype_of_dlpack(t->dtype.code, t->dtype.bits, t->dtype.lanes);
    int64_t packed = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        int64_t stride = t->strides != NULL ? t->strides[i] : packed;
        v->shape[i] = t->shape[i];
        if (t->shape[i] < 0 ||
            __builtin_mul_overflow(stride, (int64_t)v->dtype->size, &v->stride[i]) ||
            __builtin_mul_overflow(packed, t->shape[i] > 0 ? t->shape[i] : 1, &packed)) {
            PyErr_Format(
                PyExc_ValueError,
                "%s has %lld elements and stride %lld in dimension %d: too large to address",
                v->name, (long long)t->shape[i], (long long)stride, i);
            return -1;
        }
    }
    return 0;
}

/* PyTorch negates some views only when they are read, which DLPack knows nothing of. */
static int check_sign(const view *v) {
    static PyObject *name;
    if (name == NULL) name = PyUnicode_InternFromString("is_neg");
    PyObject *answer = PyObject_CallMethodObjArgs(v->object, name, NULL);
    if (answer == NULL) PyErr_Clear();
    Py_XDECREF(answer);
    if (answer != Py_True) return 0;
    PyErr_Format(PyExc_ValueError,
                 "%s is a view that is negated when read: call resolve_neg() first", v->name);
    return -1;
}

/* The first line, of which the rest says where in the type's own sources it happened. */
static PyObject *first_line(PyObject *text) {
    PyObject *lines = text != NULL ? PyUnicode_Splitlines(text, 0) : NULL;
    PyObject *line = lines != NULL && PyList_Size(lines) > 0 ? Py_NewRef(PyList_GetItem(lines, 0)) : NULL;
    Py_XDECREF(lines);
    return line;
}

/* A meta or sparse tensor: what the type's own function says, with the argument's name and the rule. */
static int unreadable(const view *v) {
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *whole = value != NULL ? PyObject_Str(value) : NULL, *text = first_line(whole);
    const char *said = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s cannot be read: it must be a dense tensor on the CPU (%.80s)", v->name,
                 said != NULL ? said : "DLPack");
    Py_XDECREF(whole);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return -1;
}

static int from_exchange(view *v) {
    if (v->exchange->from_object(v->object, &v->versioned) != 0) {
        v->versioned = NULL;
        return unreadable(v);
    }
    v->readonly = (v->versioned->flags & DL_READ_ONLY) != 0;
    return from_dlpack(v, &v->versioned->tensor) == 0 ? check_sign(v) : -1;
}

/* The device is asked first: a capsule of another device may wait for that device. */
static int on_cpu(view *v) {
    PyObject *device = PyObject_CallMethod(v->object, "__dlpack_device__", NULL);
    if (device == NULL) return -1;
    int type = 0, id;
    int fine = PyTuple_Check(device) && PyArg_ParseTuple(device, "ii", &type, &id);
    Py_DECREF(device);
    if (fine && type == DL_CPU) return 0;
    if (fine)
        PyErr_Format(PyExc_ValueError,
                     "%s is on a device of DLPack type %d: it must be on the CPU (1)", v->name,
                     type);
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%s.__dlpack_device__() is no pair of integers", v->name);
    return -1;
}

static PyObject *dlpack_capsule(PyObject *object) {
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *none = PyTuple_New(0), *named = Py_BuildValue("{s:(ii)}", "max_version", DL_MAJOR, 0);
    PyObject *capsule = method && none && named ? PyObject_Call(method, none, named) : NULL;
    if (capsule == NULL && method != NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* it is older than versions */
        capsule = PyObject_CallNoArgs(method);
    }
    Py_XDECREF(named);
    Py_XDECREF(none);
    Py_XDECREF(method);
    return capsule;
}

static int from_capsule(view *v) {
    if (on_cpu(v) != 0) return -1;
    PyObject *capsule = dlpack_capsule(v->object);
    if (capsule == NULL) return -1;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        v->versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        PyCapsule_SetName(capsule, "used_dltensor_versioned");
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        v->managed = PyCapsule_GetPointer(capsule, "dltensor");
        PyCapsule_SetName(capsule, "used_dltensor");
    }
    Py_DECREF(capsule);
    if (v->managed != NULL) return from_dlpack(v, &v->managed->tensor);
    if (v->versioned == NULL || v->versioned->version.major != DL_MAJOR) {
        PyErr_Format(PyExc_TypeError,
                     "%s.__dlpack__() gave no DLPack capsule of version %d or before", v->name,
                     DL_MAJOR);
        return -1;
    }
    v->readonly = (v->versioned->flags & DL_READ_ONLY) != 0;
    return from_dlpack(v, &v->versioned->tensor);
}

/* The last type that had C functions, so that a loop does not look for them again. */
const dl_exchange *exchange_of(PyObject *object) {
    static PyObject *known;
    static const dl_exchange *functions;
    PyObject *type = (PyObject *)Py_TYPE(object);
    if (type == known) return functions;
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const dl_exchange *found =
        capsule != NULL ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    PyErr_Clear();
    Py_XDECREF(capsule);
    while (found != NULL && found->version.major != DL_MAJOR) found = found->previous;
    if (found == NULL || found->from_object == NULL || found->to_object == NULL ||
        found->allocate == NULL)
        return NULL;
    Py_XDECREF(known);
    known = Py_NewRef(type);
    return functions = found;
}

int view_open(view *v, const char *name, PyObject *object) {
    v->name = name;
    v->object = object;
    if (PyObject_CheckBuffer(object)) {
        if (PyObject_GetBuffer(object, &v->buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) == 0)
            return from_buffer(v);
        if (!PyObject_HasAttrString(object, "__array_struct__")) return -1;
        PyErr_Clear();
        return from_array_struct(v);
    }
    v->exchange = exchange_of(object);
    if (v->exchange != NULL) return from_exchange(v);
    if (PyObject_HasAttrString(object, "__dlpack__")) return from_capsule(v);
    PyObject *type = PyType_GetName(Py_TYPE(object));
    PyErr_Format(PyExc_TypeError,
                 "%s is a %U: it must be a tensor, that is have the buffer protocol or __dlpack__ "
                 "(NumPy, PyTorch on "
                 "the CPU)",
                 name, type);
    Py_XDECREF(type);
    return -1;
}

void view_close(view *v) {
    if (v->has_buffer) PyBuffer_Release(&v->buffer);
    if (v->versioned != NULL && v->versioned->deleter != NULL) v->versioned->deleter(v->versioned);
    if (v->managed != NULL && v->managed->deleter != NULL) v->managed->deleter(v->managed);
    Py_XDECREF(v->capsule);
    free(v->copy);
}
