/* SPDX-License-Identifier: Apache-2.0 */
#include "rotary.h"

#include <stdlib.h>
#include <string.h>

/* Rows: (batch, tokens, heads, head dim), (batch, heads, tokens, head dim), or (tokens, heads, head dim). */
typedef struct work {
    view x, out;
    PyObject *object; /* owned: out */
    int64_t *positions;
    float *angles[2], *norm;
    tp_rope_rows rows;
} work;

static const int places[3][3] = {{0, 1, 2}, {0, 2, 1}, {-1, 0, 1}};

static int open_rows(work *w, const rotary *r, PyObject *x, PyObject *layout_word, layout *lay) {
    static const char *const layouts[] = {"bshd", "bhsd", "thd"};
    const char *text = PyUnicode_Check(layout_word) ? PyUnicode_AsUTF8AndSize(layout_word, NULL) : NULL;
    char shape[160];
    int found = -1;
    for (int i = 0; text != NULL && i < 3; i++)
        if (strcmp(text, layouts[i]) == 0) found = i;
    if (found < 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "layout is %R: it must be \"bshd\", \"bhsd\" or \"thd\"", layout_word);
        return -1;
    }
    *lay = (layout)found;
    if (view_open(&w->x, "x", x) != 0) return -1;
    const view *v = &w->x;
    if (v->dtype->code > TP_BF16) {
        PyErr_Format(PyExc_TypeError, "x is %s: it must be float32, float16 or bfloat16", v->dtype->name);
        return -1;
    }
    if (v->ndim == (*lay == LAYOUT_THD ? 3 : 4) && v->shape[v->ndim - 1] == r->options.head_dim) return 0;
    PyErr_Format(PyExc_ValueError, "x has shape %s: with layout \"%s\" it must have %d dimensions, the last of %lld",
                 view_shape_text(v, shape), text, *lay == LAYOUT_THD ? 3 : 4, (long long)r->options.head_dim);
    return -1;
}

/* out is x: its own memory. */
static int open_out(work *w, PyObject *x, PyObject *out) {
    const view *v = &w->x;
    char text[160];
    const char *rule = NULL;
    if (Py_IsNone(out)) return view_allocate(&w->out, "out", v, v->dtype, v->ndim, v->shape, &w->object);
    w->object = Py_NewRef(out);
    if (view_open(&w->out, "out", out) != 0) return -1;
    view *o = &w->out;
    int fits = o->ndim == v->ndim && o->dtype == v->dtype;
    for (int i = 0; fits && i < o->ndim; i++) fits = o->shape[i] == v->shape[i];
    view_plan_copy(o, 1);
    if (!fits) rule = "it must have the shape and dtype of x";
    if (fits && o->why != NULL) rule = o->why;
    if (fits && o->readonly) rule = "it is read-only and must be writable";
    o->why = NULL;
    if (rule == NULL) return 0;
    PyErr_Format(PyExc_ValueError, "out is %s of shape %s%s: %s", o->dtype->name, view_shape_text(o, text),
                 out == x ? ", x itself" : "", rule);
    return -1;
}

static void place(layout lay, const view *v, tp_tensor *t) {
    t->data = v->data;
    for (int i = 0; i < 3; i++) t->stride[i] = places[lay][i] >= 0 ? view_elements(v, places[lay][i]) : 0;
}

static int read_rest(work *w, const rotary *r, PyObject *const *args) {
    tp_rope_rows *rows = &w->rows;
    if (Py_IsNone(args[3]) == Py_IsNone(args[4])) {
        PyErr_SetString(PyExc_ValueError, Py_IsNone(args[3])
                                              ? "positions and angles are None: a rotation needs one of them"
                                              : "positions and angles are both given: angles stand for positions; leave out one");
        return -1;
    }
    if (!Py_IsNone(args[3])) {
        w->positions = positions_of(args[3], r, rows->batch, rows->tokens);
        if (w->positions == NULL) return -1;
    } else if (angles_of(args[4], r, rows->batch, rows->tokens, w->angles) != 0)
        return -1;
    if (integer_of("length", args[5], &rows->length) != 0 || norm_of("norm", args[6], r->options.head_dim, &w->norm) != 0)
        return -1;
    rows->norm_eps = (float)PyFloat_AsDouble(args[7]);
    rows->norm_one_plus = PyObject_IsTrue(args[8]);
    rows->positions = w->positions, rows->cosines = w->angles[0], rows->sines = w->angles[1], rows->norm_weight = w->norm;
    return PyErr_Occurred() ? -1 : 0;
}

static int apply(work *w, const rotary *r, PyObject *const *args) {
    static const tp_rope_rows init = TP_ROPE_ROWS_INIT;
    tp_error error = TP_ERROR_INIT;
    layout lay;
    if (open_rows(w, r, args[1], args[9], &lay) != 0 || open_out(w, args[1], args[2]) != 0) return -1;
    tp_rope_rows *rows = &w->rows;
    *rows = init;
    rows->dtype = w->x.dtype->code;
    rows->batch = lay == LAYOUT_THD ? 1 : w->x.shape[0];
    rows->tokens = w->x.shape[places[lay][1]];
    rows->heads = w->x.shape[places[lay][2]];
    if (read_rest(w, r, args) != 0) return -1;
    if (rows->batch == 0 || rows->tokens == 0 || rows->heads == 0) return 0;
    tp_status status;
    if (w->out.data != w->x.data) view_plan_copy(&w->x, 1);
    Py_BEGIN_ALLOW_THREADS status = view_make_copy(&w->x, &error);
    place(lay, &w->x, &rows->in);
    place(lay, &w->out, &rows->out);
    if (status == TP_OK) status = tp_rope_apply(r->rotary, rows, &error);
    Py_END_ALLOW_THREADS return status == TP_OK ? 0 : raise_status(status, &error);
}

/* Rotation, x, out or None, positions or None, angles or None, length, norm or None, eps, one_plus, layout. */
PyObject *core_rope_apply(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    work w = {0};
    const rotary *r = wrong_count("rope_apply", count, 10) ? NULL : rotary_of(args[0]);
    PyObject *made = r != NULL && apply(&w, r, args) == 0 ? Py_NewRef(w.object) : NULL;
    view_close(&w.x);
    view_close(&w.out);
    Py_XDECREF(w.object);
    free(w.positions);
    free(w.angles[0]);
    free(w.angles[1]);
    free(w.norm);
    return made;
}

/* Rotation, positions, length: (cosines, sines) of the kind of positions. */
PyObject *core_rope_angles(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    view v = {0}, made[2] = {{0}, {0}};
    PyObject *objects[2] = {NULL, NULL}, *result = NULL;
    int64_t shape[VIEW_DIMS + 1], tokens = 1, length, *positions = NULL;
    const rotary *r = wrong_count("rope_angles", count, 3) ? NULL : rotary_of(args[0]);
    if (r == NULL || integer_of("length", args[2], &length) != 0 || view_open(&v, "positions", args[1]) != 0)
        return view_close(&v), NULL;
    int leading = r->options.sections[0] + r->options.sections[1] + r->options.sections[2] > 0, ndim = v.ndim - leading;
    for (int i = 0; i < ndim; i++) tokens *= shape[i] = v.shape[i + leading];
    positions = ndim == 1 || ndim == 2 ? positions_of(args[1], r, ndim == 2 ? shape[0] : 1, shape[ndim - 1])
                                       : positions_of(args[1], r, 1, tokens);
    shape[ndim < 0 ? 0 : ndim] = tp_rope_pairs(r->rotary);
    int failed = positions == NULL;
    for (int i = 0; i < 2 && !failed; i++)
        failed = view_allocate(&made[i], "angles", &v, dtype_of_code(TP_F32), ndim + 1, shape, &objects[i]) != 0;
    if (!failed && tokens > 0) {
        tp_status status = tp_rope_angles(r->rotary, 1, tokens, positions, length, (float *)(void *)made[0].data,
                                          (float *)(void *)made[1].data, &error);
        if (status != TP_OK) failed = raise_status(status, &error);
    }
    if (!failed) result = PyTuple_Pack(2, objects[0], objects[1]);
    for (int i = 0; i < 2; i++) view_close(&made[i]), Py_XDECREF(objects[i]);
    view_close(&v);
    free(positions);
    return result;
}
