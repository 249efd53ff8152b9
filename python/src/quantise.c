/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to codes and scales, and back. Rows are what lies along the last dimension. */
#include "core.h"

#include <string.h>

/* As rows one behind the other; whatever lies otherwise is copied. */
static void plan_rows(view *v) {
    int64_t packed = v->dtype->size;
    view_plan_copy(v, 1);
    for (int i = v->ndim - 1; i >= 0; packed *= v->shape[i--])
        if (v->shape[i] > 1 && v->stride[i] != packed) v->why = "it is not contiguous";
    for (int i = 0; i < v->ndim; i++)
        if (v->shape[i] == 0) v->why = NULL;
}

static int64_t rows_of(const view *v) {
    int64_t rows = 1;
    for (int i = 0; i < v->ndim - 1; i++) rows *= v->shape[i];
    return rows;
}

static int has_rows(const view *v) {
    char text[160];
    if (v->ndim > 0) return 0;
    PyErr_Format(PyExc_ValueError, "%s has shape %s: it must have rows, along its last dimension", v->name,
                 view_shape_text(v, text));
    return -1;
}

typedef struct work {
    view values, codes, scales;
    PyObject *values_object, *codes_object, *scales_object; /* owned */
    const code_format *format;
    float scale;
    int kind;
    double loss;
    tp_quantised rows;
} work;

static void fill(work *w, int64_t dim, int64_t rows) {
    w->rows = (tp_quantised)TP_QUANTISED_INIT;
    w->rows.dtype = w->format->dtype;
    w->rows.kind = w->kind;
    w->rows.values_dtype = w->values.dtype->code;
    w->rows.rows = rows;
    w->rows.dim = w->rows.values_stride = dim;
    w->rows.codes_stride = w->format->kind == TP_SCALES_Q8_0 ? tp_codes_bytes(TP_I8, TP_SCALES_Q8_0, dim) : dim;
    w->rows.scales_stride = w->format->kind == TP_SCALES_GROUP ? (dim + 31) / 32 : 1;
}

static int run(work *w, int back) {
    tp_error error = TP_ERROR_INIT;
    view *const in[] = {&w->values, &w->codes, &w->scales};
    tp_status status = TP_OK;
    Py_BEGIN_ALLOW_THREADS for (int i = 0; i < 3 && status == TP_OK; i++) status = view_make_copy(in[i], &error);
    w->rows.values = w->values.data, w->rows.codes = w->codes.data;
    w->rows.scales = w->kind == TP_SCALES_TENSOR ? (void *)&w->scale : w->scales.data;
    if (status == TP_OK && w->rows.rows > 0)
        status = back ? tp_dequantise(&w->rows, &error) : tp_quantise(&w->rows, &w->loss, &error);
    Py_END_ALLOW_THREADS return status == TP_OK ? 0 : raise_status(status, &error);
}

static void done(work *w) {
    view_close(&w->values);
    view_close(&w->codes);
    view_close(&w->scales);
    Py_XDECREF(w->values_object);
    Py_XDECREF(w->codes_object);
    Py_XDECREF(w->scales_object);
}

static int check_dim(const work *w, int64_t dim) {
    int64_t whole = w->format->dtype == TP_I4 ? 2 : w->format->kind == TP_SCALES_Q8_0 ? 32 : 1;
    if (dim > 0 && dim % whole == 0) return 0;
    PyErr_Format(PyExc_ValueError, "%s has rows of %lld elements: for %s it must be a multiple of %lld, and not 0",
                 w->values.name, (long long)dim, w->format->word, (long long)whole);
    return -1;
}

/* Codes and scales of the kind of the values: float8_e4m3fn where they are no NumPy array, which has no such dtype. */
static int make_codes(work *w, int64_t dim) {
    const view *x = &w->values;
    int64_t shape[VIEW_DIMS];
    int holds = w->format->holds[0] == DTYPE_E4M3 && x->exchange == NULL ? DTYPE_U8 : w->format->holds[0];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = tp_codes_bytes((tp_dtype)w->format->dtype, (tp_scales)w->kind, dim);
    if (view_allocate(&w->codes, "codes", x, dtype_of_code(holds), x->ndim, shape, &w->codes_object) != 0) return -1;
    if (w->kind == TP_SCALES_Q8_0) return w->scales_object = Py_NewRef(Py_None), 0;
    if (w->kind == TP_SCALES_TENSOR) return (w->scales_object = PyFloat_FromDouble((double)w->scale)) != NULL ? 0 : -1;
    int ndim = scales_shape(w->format, x, dim, shape);
    const dtype_row *dtype = dtype_of_code(w->format->kind == TP_SCALES_GROUP ? TP_F16 : TP_F32);
    return view_allocate(&w->scales, "scales", x, dtype, ndim, shape, &w->scales_object);
}

static int read_scale(work *w, PyObject *scale) {
    w->kind = w->format->kind;
    if (Py_IsNone(scale) && w->kind != TP_SCALES_TENSOR) return 0;
    if (w->kind != TP_SCALES_TENSOR) {
        PyErr_Format(PyExc_ValueError,
                     "scale is %R and format \"%s\": only e4m3/tensor has one scale for a whole tensor, so it must be None",
                     scale, w->format->word);
        return -1;
    }
    if (Py_IsNone(scale)) {
        PyErr_SetString(PyExc_ValueError,
                        "scale is None: \"e4m3\" has one scale for a whole tensor, such as the greatest absolute "
                        "value / 448, so it must be a number; \"e4m3/token\" has one for each row");
        return -1;
    }
    w->scale = (float)PyFloat_AsDouble(scale);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "scale is %R: it must be a number", scale);
        return -1;
    }
    if (w->scale > 0 && w->scale - w->scale == 0) return 0;
    PyErr_Format(PyExc_ValueError, "scale is %R: it must be finite and above 0, such as the greatest absolute value / 448",
                 scale);
    return -1;
}

static int quantise(work *w, PyObject *const *args) {
    w->format = format_of_rows("format", args[1]);
    if (w->format == NULL || read_scale(w, args[2]) != 0 || view_open(&w->values, "x", args[0]) != 0 || has_rows(&w->values) != 0)
        return -1;
    if (w->values.dtype->code > TP_BF16) {
        PyErr_Format(PyExc_TypeError, "x is %s: it must be float32, float16 or bfloat16", w->values.dtype->name);
        return -1;
    }
    int64_t dim = w->values.shape[w->values.ndim - 1];
    if (check_dim(w, dim) != 0 || make_codes(w, dim) != 0) return -1;
    plan_rows(&w->values);
    fill(w, dim, rows_of(&w->values));
    return run(w, 0);
}

/* Values, a format's word, and the scale of a whole tensor or None. Returns codes, scales (None: they are inside the codes) and
   the loss. */
PyObject *core_quantise(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    work w = {0};
    if (wrong_count("quantise", count, 3)) return NULL;
    PyObject *made = quantise(&w, args) == 0 ? Py_BuildValue("(OOd)", w.codes_object, w.scales_object, w.loss) : NULL;
    done(&w);
    return made;
}

static int dequantise(work *w, PyObject *const *args) {
    const char *name = PyUnicode_Check(args[3]) ? PyUnicode_AsUTF8AndSize(args[3], NULL) : NULL;
    const dtype_row *dtype = name != NULL ? dtype_of_name(name) : NULL;
    if (dtype == NULL || dtype->code > TP_BF16) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "dtype is %R: it must be \"float32\", \"float16\" or \"bfloat16\"", args[3]);
        return -1;
    }
    if (view_open(&w->codes, "codes", args[0]) != 0 || has_rows(&w->codes) != 0) return -1;
    if (!is_codes(w->codes.dtype)) {
        PyErr_Format(PyExc_TypeError, "codes is %s: it must be int8, uint8 or float8_e4m3fn", w->codes.dtype->name);
        return -1;
    }
    w->format =
        Py_IsNone(args[2]) || format_of_rows("format", args[2]) != NULL ? format_find(&w->codes, "format", args[2], 0) : NULL;
    int64_t dim = w->format != NULL ? format_dim(w->format, &w->codes) : -1;
    int64_t shape[VIEW_DIMS];
    if (dim < 0 ||
        scales_open(&w->scales, "scales", args[1], &w->codes, w->format, !Py_IsNone(args[2]), dim, &w->scale, &w->kind) != 0)
        return -1;
    memcpy(shape, w->codes.shape, sizeof shape);
    shape[w->codes.ndim - 1] = dim;
    if (view_allocate(&w->values, "values", &w->codes, dtype, w->codes.ndim, shape, &w->values_object) != 0) return -1;
    plan_rows(&w->codes);
    if (w->scales.object != NULL) plan_rows(&w->scales);
    fill(w, dim, dim > 0 ? rows_of(&w->codes) : 0);
    return run(w, 1);
}

/* Codes, scales, a format's word or None, a dtype's name. */
PyObject *core_dequantise(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    work w = {0};
    if (wrong_count("dequantise", count, 4)) return NULL;
    PyObject *made = dequantise(&w, args) == 0 ? Py_NewRef(w.values_object) : NULL;
    done(&w);
    return made;
}
