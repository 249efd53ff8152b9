/* SPDX-License-Identifier: Apache-2.0 */
/* Rotations as capsules, and what their calls read: floats, positions, angles. */
#include "rotary.h"

#include <stdlib.h>
#include <string.h>

#include "proof.h"

#define CAPSULE "tileproof.rotary"

typedef enum option_kind { INTEGER, NUMBER, WORD, FLAG, FACTORS, TABLE, SECTIONS } option_kind;
static const struct {
    const char *name;
    option_kind kind;
    size_t field;
} rows[] = {
#define OPTION(name, kind) {#name, kind, offsetof(tp_rope_options, name)},
#include "rope.inc"
#undef OPTION
};
#define OPTIONS ((Py_ssize_t)(sizeof rows / sizeof rows[0]))

static const struct {
    const char *option, *words[10], *rule;
} words[] = {
    {"kind",
     {"none", "default", "linear", "dynamic", "yarn", "longrope", "llama3", "2d", "proportional"},
     "none, default, linear, dynamic, yarn, longrope, llama3 or proportional"},
    {"style", {"neox", "interleaved"}, "neox or interleaved"},
    {"angle", {"double", "float32"}, "double or float32"},
};

static int word_of(const char *name, PyObject *value, int32_t *out) {
    const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
    const char *rule = "";
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(name, words[i].option) != 0) continue;
        rule = words[i].rule;
        for (int at = 0; text != NULL && at < 10 && words[i].words[at] != NULL; at++)
            if (strcmp(text, words[i].words[at]) == 0) return *out = at, 0;
    }
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s is %R: it must be %s", name, value, rule);
    return -1;
}

static int number(const char *name, PyObject *value, double *out) {
    *out = PyFloat_AsDouble(value);
    if (!PyErr_Occurred()) return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s is %R: it must be a number", name, value);
    return -1;
}

static void widen(const view *v, int dim, const char *from, float **to) {
    if (dim == v->ndim) {
        *(*to)++ = tp_to_float((tp_dtype)v->dtype->code, from);
        return;
    }
    for (int64_t i = 0; i < v->shape[dim]; i++) widen(v, dim + 1, from + i * v->stride[dim], to);
}

float *floats_of(view *v, const char *name, PyObject *object) {
    int64_t count = 1;
    if (view_open(v, name, object) != 0) return NULL;
    if (v->dtype->code > TP_BF16) {
        PyErr_Format(PyExc_TypeError, "%s is %s: it must be float32, float16 or bfloat16", name, v->dtype->name);
        return NULL;
    }
    for (int i = 0; i < v->ndim; i++) count *= v->shape[i];
    float *made = malloc((size_t)count * sizeof *made + 1), *at = made;
    if (made == NULL) return PyErr_NoMemory(), NULL;
    widen(v, 0, v->data, &at);
    return made;
}

/* Lists of factors have one dimension, tables two. */
static int read_floats(rotary *r, int which, const char *name, PyObject *value, int dims) {
    static const char *const shapes[] = {"", "(pairs,)", "(positions, pairs)"};
    view v = {0};
    char text[160];
    if (Py_IsNone(value)) return 0;
    r->own[which] = floats_of(&v, name, value);
    int failed = r->own[which] == NULL;
    if (!failed && v.ndim != dims) {
        PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be %s", name, view_shape_text(&v, text), shapes[dims]);
        failed = 1;
    }
    int64_t *first = dims == 1 ? &r->options.factor_count : &r->options.table_positions;
    if (!failed && which % 2 == 1 && r->own[which - 1] != NULL &&
        (v.shape[0] != *first || (dims == 2 && v.shape[1] != r->options.table_width))) {
        PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be that of %s", name, view_shape_text(&v, text),
                     dims == 1 ? "short_factors" : "cos_table");
        failed = 1;
    }
    if (!failed) *first = v.shape[0];
    if (!failed && dims == 2) r->options.table_width = v.shape[1];
    view_close(&v);
    return failed ? -1 : 0;
}

static int read_sections(rotary *r, PyObject *value) {
    int64_t size;
    if (Py_IsNone(value)) return 0;
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 3) {
        PyErr_Format(PyExc_ValueError, "sections is %R: it must be None or (time, height, width), pairs of each", value);
        return -1;
    }
    for (int i = 0; i < 3; i++) {
        if (integer_of("sections", PyTuple_GetItem(value, i), &size) != 0) return -1;
        r->options.sections[i] = size < 0 || size > 4096 ? -1 : (int32_t)size;
    }
    return 0;
}

static int read_option(rotary *r, int i, PyObject *value) {
    char *field = (char *)&r->options + rows[i].field;
    const char *name = rows[i].name;
    switch (rows[i].kind) {
    case INTEGER: return integer_of(name, value, (int64_t *)(void *)field);
    case NUMBER: return number(name, value, (double *)(void *)field);
    case WORD: return word_of(name, value, (int32_t *)(void *)field);
    case FLAG: *(int32_t *)(void *)field = PyObject_IsTrue(value); return PyErr_Occurred() ? -1 : 0;
    case FACTORS: return read_floats(r, name[0] == 'l', name, value, 1);
    case TABLE: return read_floats(r, 2 + (name[0] == 's'), name, value, 2);
    case SECTIONS: return read_sections(r, value);
    }
    return -1;
}

static void destroy(rotary *r) {
    tp_rope_destroy(r->rotary);
    for (int i = 0; i < 4; i++) free(r->own[i]);
    free(r);
}

const rotary *rotary_of(PyObject *capsule) {
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

static void gone(PyObject *capsule) {
    destroy(PyCapsule_GetPointer(capsule, CAPSULE));
}

/* A list of factors of a model's, which may go before this does. */
static int keep(rotary *r, int which, const float **list) {
    if (*list == NULL || *list == r->own[which]) return 0;
    size_t bytes = (size_t)r->options.factor_count * sizeof **list;
    r->own[which] = malloc(bytes + 1);
    if (r->own[which] == NULL) return PyErr_NoMemory(), -1;
    memcpy(r->own[which], *list, bytes);
    *list = r->own[which];
    return 0;
}

static PyObject *made(rotary *r) {
    tp_error error = TP_ERROR_INIT;
    tp_status status = tp_rope_create(&r->options, &r->rotary, &error);
    PyObject *capsule = status == TP_OK ? PyCapsule_New(r, CAPSULE, gone) : NULL;
    if (status != TP_OK) raise_status(status, &error);
    if (capsule == NULL) destroy(r);
    return capsule;
}

static rotary *begin(void) {
    static const tp_rope_options defaults = TP_ROPE_OPTIONS_INIT;
    rotary *r = calloc(1, sizeof *r);
    if (r == NULL) return PyErr_NoMemory(), NULL;
    r->options = defaults;
    return r;
}

/* The options of rope.inc. */
PyObject *core_rope_create(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    rotary *r = wrong_count("rope_create", count, OPTIONS) ? NULL : begin();
    if (r == NULL) return NULL;
    for (int i = 0; i < OPTIONS; i++)
        if (read_option(r, i, args[i]) != 0) return destroy(r), NULL;
    r->options.short_factors = r->own[0], r->options.long_factors = r->own[1];
    r->options.cos_table = r->own[2], r->options.sin_table = r->own[3];
    return made(r);
}

/* Lists of longrope that the caller has, because the model's file leaves them out. */
static int lists_of_caller(rotary *r, const char *label, PyObject *const given[2]) {
    static const char *const names[] = {"short_factors", "long_factors"}, *const keys[] = {"short_factor", "long_factor"};
    const int64_t wanted = r->options.dims / 2;
    const int longrope = r->options.kind == TP_ROPE_LONGROPE;
    for (int i = 0; i < 2; i++) {
        if (Py_IsNone(given[i]) && (r->own[i] != NULL || !longrope)) continue;
        if (!longrope)
            PyErr_Format(PyExc_ValueError, "%s is given and this layer of %s is no longrope, which alone has lists: leave it out",
                         names[i], label);
        else if (Py_IsNone(given[i]))
            PyErr_Format(PyExc_ValueError,
                         "%s has no %s: longrope needs this list of rope_scaling, of %lld numbers; give it as %s=, from the "
                         "model's own config.json, or read that",
                         label, keys[i], (long long)wanted, names[i]);
        else if (r->own[i] != NULL)
            PyErr_Format(PyExc_ValueError, "%s is given and %s has %s: one of them must go; leave it out", names[i], label,
                         keys[i]);
        else if (read_floats(r, i, names[i], given[i], 1) == 0 && r->options.factor_count != wanted)
            PyErr_Format(PyExc_ValueError, "%s has %lld numbers: it must have half the rotated dims, %lld, as %s of rope_scaling",
                         names[i], (long long)r->options.factor_count, (long long)wanted, keys[i]);
        if (PyErr_Occurred()) return -1;
    }
    r->options.short_factors = r->own[0], r->options.long_factors = r->own[1];
    return 0;
}

/* A model and the number of one of its layers; short_factors and long_factors, or None. */
PyObject *core_rope_of_model(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    const tp_model *model = wrong_count("rope_of_model", count, 4) ? NULL : model_of(args[0]);
    int layer = model != NULL ? (int)number_of("layer", args[1], 0, INT32_MAX) : 0;
    rotary *r = model == NULL || PyErr_Occurred() ? NULL : begin();
    if (r == NULL) return NULL;
    tp_status status = tp_rope_from_model(model, layer, &r->options, &error);
    if (status != TP_OK) return raise_status(status, &error), destroy(r), NULL;
    if (keep(r, 0, &r->options.short_factors) != 0 || keep(r, 1, &r->options.long_factors) != 0) return destroy(r), NULL;
    if (lists_of_caller(r, model->label, args + 2) != 0) return destroy(r), NULL;
    return made(r);
}

/* (head dim, pairs that are rotated, whether a token has three positions) */
PyObject *core_rope_about(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    const rotary *r = wrong_count("rope_about", count, 1) ? NULL : rotary_of(args[0]);
    if (r == NULL) return NULL;
    const int32_t *s = r->options.sections;
    return Py_BuildValue("(LLO)", (long long)r->options.head_dim, (long long)tp_rope_pairs(r->rotary),
                         s[0] + s[1] + s[2] > 0 ? Py_True : Py_False);
}

static int axes(const rotary *r) {
    const int32_t *s = r->options.sections;
    return s[0] + s[1] + s[2] > 0 ? 3 : 1;
}

int64_t *positions_of(PyObject *object, const rotary *r, int64_t batch, int64_t tokens) {
    view v = {0};
    char text[160];
    int64_t *made = NULL;
    int leading = axes(r) == 3, failed = view_open(&v, "positions", object) != 0 || view_check_integers(&v) != 0;
    int dims = v.ndim - leading;
    if (!failed && ((dims != 1 && dims != 2) || (leading && v.shape[0] != 3) || v.shape[v.ndim - 1] != tokens ||
                    (dims == 2 && v.shape[leading] != batch && v.shape[leading] != 1))) {
        PyErr_Format(PyExc_ValueError, "positions has shape %s: it must be (%s%lld) or (%s%lld, %lld)%s",
                     view_shape_text(&v, text), leading ? "3, " : "", (long long)tokens, leading ? "3, " : "", (long long)batch,
                     (long long)tokens, leading ? ", of time, height and width" : "");
        failed = 1;
    }
    if (!failed) made = malloc((size_t)(axes(r) * batch * tokens) * sizeof *made + 1);
    if (!failed && made == NULL) PyErr_NoMemory();
    int64_t step_b = dims == 2 && v.shape[leading] > 1 ? v.stride[leading] : 0;
    for (int64_t a = 0, at = 0; made != NULL && a < axes(r); a++)
        for (int64_t b = 0; b < batch; b++)
            for (int64_t t = 0; t < tokens; t++)
                made[at++] = view_integer(&v, v.data + (leading ? a * v.stride[0] : 0) + b * step_b + t * v.stride[v.ndim - 1]);
    view_close(&v);
    return made;
}

int norm_of(const char *name, PyObject *object, int64_t dim, float **weights) {
    view v = {0};
    char text[160];
    if (Py_IsNone(object)) return 0;
    *weights = floats_of(&v, name, object);
    int failed = *weights == NULL;
    if (!failed && (v.ndim != 1 || v.shape[0] != dim)) {
        PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be (%lld,), a weight for each element of a row", name,
                     view_shape_text(&v, text), (long long)dim);
        failed = 1;
    }
    view_close(&v);
    return failed ? -1 : 0;
}

int angles_of(PyObject *pair, const rotary *r, int64_t batch, int64_t tokens, float *made[2]) {
    static const char *const names[] = {"angles[0]", "angles[1]"};
    int64_t pairs = tp_rope_pairs(r->rotary), one = tokens * pairs;
    char text[160];
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "angles is %R: it must be (cosines, sines), as Rotary.angles() gives them", pair);
        return -1;
    }
    for (int i = 0; i < 2; i++) {
        view v = {0};
        float *floats = floats_of(&v, names[i], PyTuple_GetItem(pair, i));
        int fits = floats != NULL && (v.ndim == 2 || v.ndim == 3) && v.shape[v.ndim - 1] == pairs &&
                   v.shape[v.ndim - 2] == tokens && (v.ndim == 2 || v.shape[0] == batch || v.shape[0] == 1);
        int64_t lists = v.ndim == 3 ? v.shape[0] : 1;
        if (floats != NULL && !fits)
            PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be (%lld, %lld) or (%lld, %lld, %lld), tokens and pairs",
                         names[i], view_shape_text(&v, text), (long long)tokens, (long long)pairs, (long long)batch,
                         (long long)tokens, (long long)pairs);
        view_close(&v);
        made[i] = fits ? malloc((size_t)(batch * one) * sizeof(float) + 1) : NULL;
        if (fits && made[i] == NULL) PyErr_NoMemory();
        for (int64_t b = 0; made[i] != NULL && b < batch; b++)
            memcpy(made[i] + b * one, floats + (lists > 1 ? b : 0) * one, (size_t)one * sizeof(float));
        free(floats);
        if (made[i] == NULL) return -1;
    }
    return 0;
}
