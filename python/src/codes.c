/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised k and v: which format their codes have, and the scales beside them. The argument `codes` is None or a tuple: formats
   of k and v, scales of k and v, and kv_loss, None for what is not given. */
#include <stdio.h>
#include <string.h>

#include "proof.h"

static code_format rows[] = {
#define FORMAT(dtype, kind, holds, or_this) {dtype, kind, {holds, or_this}, ""},
#include "formats.inc"
#undef FORMAT
};
#define FORMATS    ((int)(sizeof rows / sizeof rows[0]))
#define BLOCK      32 /* elements of a group of i4, and of a block of q8_0 */
#define Q8_0_BYTES 34

void formats_init(void) {
    for (int i = 0; i < FORMATS; i++)
        snprintf(rows[i].word, sizeof rows[i].word, "%s/%s", tp_dtype_name((tp_dtype)rows[i].dtype),
                 tp_scales_name((tp_scales)rows[i].kind));
}

/* The C library reads the words, as it does those of a layer. */
int format_of_word(const char *name, PyObject *word, const char *before, int of_v, const code_format **format) {
    tp_error error = TP_ERROR_INIT;
    tp_cache_layer row = TP_CACHE_LAYER_INIT;
    const char *words = format_words(name, word);
    row.kv_heads = 1;
    row.k_dtype = row.v_dtype = 0;
    *format = NULL;
    if (PyErr_Occurred()) return -1;
    if (tp_cache_format_layers(words, &row, 1, &error) != TP_OK) return raise_words(name, word, before, &error);
    for (int i = 0; i < FORMATS; i++)
        if (rows[i].dtype == (of_v ? row.v_dtype : row.k_dtype) && rows[i].kind == (of_v ? row.v_scales : row.k_scales))
            *format = &rows[i];
    return 0;
}

const code_format *format_of_rows(const char *name, PyObject *word) {
    const code_format *k, *v;
    if (format_of_word(name, word, "", 0, &k) != 0 || format_of_word(name, word, "", 1, &v) != 0) return NULL;
    if (k == v && k != NULL) return k;
    PyErr_Format(PyExc_ValueError, "%s is %R: rows have one format, and that of codes, such as \"i8\"", name, word);
    return NULL;
}

/* Codes whose dtype says it; NULL: it does not. */
static const code_format *format_of_dtype(const dtype_row *dtype) {
    for (int i = 0; i < FORMATS && dtype->code != DTYPE_U8; i++)
        if (rows[i].holds[0] == dtype->code) return &rows[i];
    return NULL;
}

int is_codes(const dtype_row *dtype) {
    return dtype->code == DTYPE_U8 || dtype->code == DTYPE_I8 || dtype->code == DTYPE_E4M3;
}

static int wrong_dtype(const view *v, const code_format *format) {
    PyErr_Format(PyExc_TypeError, "%s is %s: codes of %s are %s%s%s; tileproof.quantise(x, \"%s\") makes them", v->name,
                 v->dtype->name, format->word, dtype_of_code(format->holds[0])->name,
                 format->holds[0] != format->holds[1] ? " or " : "",
                 format->holds[0] != format->holds[1] ? dtype_of_code(format->holds[1])->name : "", format->word);
    return -1;
}

const code_format *format_find(const view *v, const char *name, PyObject *word, int of_v) {
    const code_format *format = Py_IsNone(word) ? format_of_dtype(v->dtype) : NULL;
    if (!Py_IsNone(word) && format_of_word(name, word, "", of_v, &format) != 0) return NULL;
    if (format == NULL)
        PyErr_Format(PyExc_TypeError, "%s is %s%s: %s must say what its codes are, such as \"i4\", \"i8/q8_0\" or \"e4m3\"",
                     v->name, v->dtype->name, Py_IsNone(word) ? "" : " and plain is no code", name);
    if (format == NULL || v->dtype->code == format->holds[0] || v->dtype->code == format->holds[1]) return format;
    return wrong_dtype(v, format), NULL;
}

int64_t format_dim(const code_format *format, const view *v) {
    int64_t bytes = v->ndim > 0 ? v->shape[v->ndim - 1] : 0;
    char text[160];
    if (format->dtype == TP_I4) return 2 * bytes;
    if (format->kind != TP_SCALES_Q8_0) return bytes;
    if (bytes % Q8_0_BYTES == 0) return bytes / Q8_0_BYTES * BLOCK;
    PyErr_Format(
        PyExc_ValueError,
        "%s has shape %s: rows of q8_0 are blocks of %d bytes, for %d elements each, so the last must be a multiple of %d",
        v->name, view_shape_text(v, text), Q8_0_BYTES, BLOCK, Q8_0_BYTES);
    return -1;
}

int scales_shape(const code_format *format, const view *codes, int64_t dim, int64_t shape[VIEW_DIMS]) {
    int ndim = codes->ndim - 1;
    memcpy(shape, codes->shape, (size_t)ndim * sizeof shape[0]);
    if (format->kind == TP_SCALES_GROUP) shape[ndim++] = (dim + BLOCK - 1) / BLOCK;
    return ndim;
}

/* One for a whole tensor: a number, or a tensor of one. *is: whether it is. */
static int one_scale(view *v, PyObject *object, float *scale, int *is) {
    *is = PyFloat_Check(object) || PyLong_Check(object);
    if (*is) {
        *scale = (float)PyFloat_AsDouble(object);
        return PyErr_Occurred() ? -1 : 0;
    }
    *is = v->ndim == 0 || (v->ndim == 1 && v->shape[0] == 1);
    if (*is && v->dtype->code == TP_F32) memcpy(scale, v->data, sizeof *scale);
    return 0;
}

static int no_scales(const char *name, const char *codes, const code_format *format, int said) {
    PyErr_Format(PyExc_ValueError, "%s is None: %s in %s has scales, %s", name, codes,
                 said ? format->word : tp_dtype_name((tp_dtype)format->dtype),
                 format->kind == TP_SCALES_GROUP     ? "a float16 for each 32 elements of a row"
                 : !said && format->dtype == TP_E4M3 ? "one number, or a float32 for each token and head"
                 : format->kind == TP_SCALES_TENSOR  ? "one number for all of it"
                                                     : "a float32 for each token and head");
    return -1;
}

static int check_scales(const view *v, const view *codes, const code_format *format, int64_t dim) {
    view want = {0};
    char has[160], of[160], need[160];
    const dtype_row *dtype = dtype_of_code(format->kind == TP_SCALES_GROUP ? TP_F16 : TP_F32);
    if (v->dtype != dtype) {
        PyErr_Format(PyExc_TypeError, "%s is %s: scales of %s are %s", v->name, v->dtype->name, format->word, dtype->name);
        return -1;
    }
    want.ndim = scales_shape(format, codes, dim, want.shape);
    int fits = v->ndim == want.ndim;
    for (int i = 0; fits && i < v->ndim; i++) fits = v->shape[i] == want.shape[i];
    if (fits) return 0;
    PyErr_Format(PyExc_ValueError, "%s has shape %s: with %s of shape %s in %s it must be %s", v->name, view_shape_text(v, has),
                 codes->name, view_shape_text(codes, of), format->word, view_shape_text(&want, need));
    return -1;
}

/* A number where each token has a scale, or scales where there is one. */
static int wrong_scales(const view *v, const char *name, PyObject *object, const view *codes, const code_format *format) {
    char text[160];
    if (format->kind != TP_SCALES_TENSOR)
        PyErr_Format(PyExc_TypeError, "%s is %R: only e4m3/tensor has one scale for a whole tensor, and %s is %s", name, object,
                     codes->name, format->word);
    else if (v->object != NULL)
        PyErr_Format(PyExc_ValueError,
                     "%s has shape %s: %s in e4m3/tensor has one scale, a number or a tensor of one; "
                     "\"e4m3/token\" has one for each token and head",
                     name, view_shape_text(v, text), codes->name);
    else
        PyErr_Format(PyExc_ValueError,
                     "%s is for each token: %s in e4m3/tensor has one scale; \"e4m3/token\" has one for each "
                     "token and head",
                     name, codes->name);
    return -1;
}

int scales_open(view *v, const char *name, PyObject *object, const view *codes, const code_format *format, int said, int64_t dim,
                float *scale, int *kind) {
    int one = 0;
    *kind = format->kind;
    if (format->kind == TP_SCALES_Q8_0) {
        if (!Py_IsNone(object))
            PyErr_Format(PyExc_ValueError, "%s is given: blocks of q8_0 hold their scales, so it must be None", name);
        return Py_IsNone(object) ? 0 : -1;
    }
    if (codes->shape_only) /* of a plan, where True says that each token will have one */
        return format->kind == TP_SCALES_TENSOR && object == Py_True ? wrong_scales(v, name, object, codes, format) : 0;
    if (Py_IsNone(object)) return no_scales(name, codes->name, format, said);
    if (!PyFloat_Check(object) && !PyLong_Check(object) && view_open(v, name, object) != 0) return -1;
    if (one_scale(v, object, scale, &one) != 0) return -1;
    if (one && !said && format->dtype == TP_E4M3) *kind = TP_SCALES_TENSOR;
    if (*kind != TP_SCALES_TENSOR)
        return v->object != NULL ? check_scales(v, codes, format, dim) : wrong_scales(v, name, object, codes, format);
    if (!one) return wrong_scales(v, name, object, codes, format);
    if (v->object == NULL || v->dtype->code == TP_F32) return 0;
    PyErr_Format(PyExc_TypeError, "%s is %s: scales of e4m3 are float32", name, v->dtype->name);
    return -1;
}

int codes_open(call *c, int of_v, PyObject *tuple) {
    static const char *const names[] = {"k_scales", "v_scales"};
    const view *codes = &c->in[IN_K + of_v];
    view *v = &c->in[IN_K_SCALES + of_v];
    PyObject *word = Py_IsNone(tuple) ? Py_None : PyTuple_GetItem(tuple, of_v);
    PyObject *scales = Py_IsNone(tuple) ? Py_None : PyTuple_GetItem(tuple, 2 + of_v);
    if (word == NULL || scales == NULL) return -1;
    const code_format *format = NULL;
    if (!Py_IsNone(word) && format_of_word("kv_format", word, "", of_v, &format) != 0) return -1;
    int has_codes = is_codes(codes->dtype);
    if (!has_codes || (!Py_IsNone(word) && format == NULL)) {
        if (!has_codes && format == NULL && Py_IsNone(scales)) return 0;
        if (has_codes)
            PyErr_Format(PyExc_TypeError, "kv_format is %R and %s %s: plain is no code, such as \"i8\"", word, codes->name,
                         codes->dtype->name);
        else if (format == NULL)
            PyErr_Format(PyExc_ValueError, "%s is given and %s is %s: only codes have scales; leave it out, or quantise %s",
                         names[of_v], codes->name, codes->dtype->name, codes->name);
        else
            PyErr_Format(PyExc_TypeError,
                         "kv_format is %R and %s %s, which is no code: tileproof.quantise(%s, %R) makes codes, and "
                         "kv_format=\"plain:WORD\" or \"WORD:plain\" says that one is none",
                         word, codes->name, codes->dtype->name, codes->name, word);
        return -1;
    }
    format = format_find(codes, "kv_format", word, of_v);
    if (format == NULL) return -1;
    c->format[of_v] = format;
    c->dim[IN_K + of_v] = format_dim(format, codes);
    if (c->dim[IN_K + of_v] < 0) return -1;
    if (scales_open(v, names[of_v], scales, codes, format, !Py_IsNone(word), c->dim[IN_K + of_v], &c->scale[of_v],
                    &c->kind[of_v]) != 0)
        return -1;
    if (c->kind[of_v] == TP_SCALES_TENSOR) return view_close(v), *v = (view){0}, 0; /* its value was read */
    view_plan_copy(v, format->kind == TP_SCALES_GROUP);
    return 0;
}

/* Elements of i4 are half a byte. */
static void codes_stride(const code_format *format, tp_tensor *t) {
    for (int i = 0; i < 3 && format != NULL && format->dtype == TP_I4; i++) t->stride[i] *= 2;
}

void codes_place(call *c) {
    tp_tensors *t = &c->tensors;
    tp_tensor *const codes[] = {&t->k, &t->v}, *const scales[] = {&t->k_scales, &t->v_scales};
    for (int i = 0; i < 2; i++) {
        if (c->format[i] == NULL) continue;
        codes_stride(c->format[i], codes[i]);
        if (c->kind[i] == TP_SCALES_TENSOR) scales[i]->data = &c->scale[i];
        if (c->in[IN_K_SCALES + i].object != NULL) call_place(c->kv_layout, &c->in[IN_K_SCALES + i], scales[i]);
    }
    if (!c->problem.latent || c->format[0] == NULL) return;
    const code_format *k = c->format[0];
    int64_t start = c->latent;
    t->v = t->k;
    t->v.data = (char *)t->k.data + (k->dtype == TP_I4           ? start / 2
                                     : k->kind == TP_SCALES_Q8_0 ? start / BLOCK * Q8_0_BYTES
                                                                 : start);
    t->v_scales = t->k_scales;
    if (k->kind == TP_SCALES_GROUP) t->v_scales.data = (uint16_t *)t->k_scales.data + start / BLOCK;
}

/* Where v's rows begin inside k's. */
int codes_latent(const call *c) {
    const code_format *k = c->format[0];
    int whole = k != NULL && (k->kind == TP_SCALES_GROUP || k->kind == TP_SCALES_Q8_0);
    if (!whole || c->latent % BLOCK == 0) return 0;
    PyErr_Format(PyExc_ValueError,
                 "latent begins at %lld: with k in %s it must be a multiple of %d, where one of its scales begins",
                 (long long)c->latent, k->word, BLOCK);
    return -1;
}

int codes_loss(call *c, PyObject *tuple) {
    PyObject *loss = Py_IsNone(tuple) ? Py_None : PyTuple_GetItem(tuple, 4);
    if (loss == NULL) return -1;
    if (Py_IsNone(loss)) return 0;
    c->kv_loss = PyFloat_AsDouble(loss);
    c->tensors.kv_loss = &c->kv_loss;
    return PyErr_Occurred() ? -1 : 0;
}
