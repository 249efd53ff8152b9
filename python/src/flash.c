/* SPDX-License-Identifier: Apache-2.0 */
/* What flash_attn's front needs: rows rotated by the caller's tables of cosines and sines, and new rows of k or v written into
   the caller's own cache, rotated and quantised on the way. Arithmetic is tp_rope_apply's and tp_quantise's: float32, rounded
   once. tp_cache_append does the same to caches of its own; here memory, lengths, pages and scales are the caller's. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "rotary.h"

/* A rotation whose angles are looked up in tables. */
typedef struct turn {
    tp_rotary *rotary; /* NULL: rows are copied as they are */
    view table[2];     /* (positions, pairs) of cosines and of sines, any dtype and strides */
    float *angles[2];  /* [tokens][pairs], of the tokens of a call */
    int64_t pairs;
} turn;

static int turn_open(turn *t, PyObject *cosines, PyObject *sines, PyObject *interleaved, int64_t head_dim) {
    static const char *const names[] = {"cos", "sin"};
    tp_error error = TP_ERROR_INIT;
    tp_rope_options options = TP_ROPE_OPTIONS_INIT;
    PyObject *const given[] = {cosines, sines};
    char text[160];
    if (Py_IsNone(cosines)) return 0;
    for (int i = 0; i < 2; i++) {
        view *v = &t->table[i];
        if (view_open(v, names[i], given[i]) != 0) return -1;
        if (v->dtype->code > TP_BF16 || v->ndim != 2 || v->shape[1] != t->table[0].shape[1] ||
            v->shape[0] != t->table[0].shape[0]) {
            PyErr_Format(PyExc_ValueError,
                         "%s is %s of shape %s: it must be floats, (positions, rotary dim / 2), of cos and sin alike", names[i],
                         v->dtype->name, view_shape_text(v, text));
            return -1;
        }
    }
    t->pairs = t->table[0].shape[1];
    if (t->pairs == 0) return 0;
    options.head_dim = head_dim;
    options.dims = 2 * t->pairs;
    options.style = PyObject_IsTrue(interleaved) ? TP_ROPE_INTERLEAVED : TP_ROPE_NEOX;
    tp_status status = tp_rope_create(&options, &t->rotary, &error);
    return status == TP_OK ? 0 : raise_status(status, &error);
}

static int turn_room(turn *t, int64_t tokens) {
    for (int i = 0; i < 2 && t->rotary != NULL; i++) {
        t->angles[i] = malloc((size_t)(tokens * t->pairs) * sizeof(float) + 1);
        if (t->angles[i] == NULL) return PyErr_NoMemory(), -1;
    }
    return 0;
}

static int has_angles(const turn *t, int64_t position) {
    if (t->rotary == NULL || (position >= 0 && position < t->table[0].shape[0])) return 0;
    PyErr_Format(PyExc_RuntimeError, "a token is at position %lld: cos has %lld positions, so it must be below that",
                 (long long)position, (long long)t->table[0].shape[0]);
    return -1;
}

static void look_up(turn *t, int64_t token, int64_t position) {
    for (int i = 0; i < 2 && t->rotary != NULL; i++) {
        const view *v = &t->table[i];
        float *to = t->angles[i] + token * t->pairs;
        for (int64_t p = 0; p < t->pairs; p++)
            to[p] = tp_to_float((tp_dtype)v->dtype->code, v->data + position * v->stride[0] + p * v->stride[1]);
    }
}

static void turn_close(turn *t) {
    for (int i = 0; i < 2; i++) {
        view_close(&t->table[i]);
        free(t->angles[i]);
    }
    tp_rope_destroy(t->rotary);
}

static int open_rows(view *v, const char *name, PyObject *object, int or_codes) {
    char text[160];
    if (view_open(v, name, object) != 0) return -1;
    if (v->ndim == 4 && (v->dtype->code <= TP_BF16 || (or_codes && is_codes(v->dtype)))) return 0;
    PyErr_Format(PyExc_ValueError, "%s is %s of shape %s: it must be floats, (batch, tokens, heads, head dim)", name,
                 v->dtype->name, view_shape_text(v, text));
    return -1;
}

static int empty(const view *v) {
    return v->shape[0] == 0 || v->shape[1] == 0 || v->shape[2] == 0 || v->shape[3] == 0;
}

/* (batch, columns) of whole numbers. */
static int open_integers(view *v, const char *name, PyObject *object, int64_t batch, int64_t columns) {
    char text[160];
    if (view_open(v, name, object) != 0 || view_check_integers(v) != 0) return -1;
    if (v->ndim == 2 && v->shape[0] == batch && (columns < 0 || v->shape[1] == columns)) return 0;
    PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be (%lld, tokens)", name, view_shape_text(v, text),
                 (long long)batch);
    return -1;
}

static int64_t integer_at(const view *v, int64_t row, int64_t column) {
    return view_integer(v, v->data + row * v->stride[0] + column * v->stride[1]);
}

/* ---- rows to a new tensor ---- */

static int rotate(turn *t, view *x, view *out, view *at, PyObject *const *args, PyObject **object) {
    tp_error error = TP_ERROR_INIT;
    tp_rope_rows rows = TP_ROPE_ROWS_INIT;
    if (open_rows(x, "x", args[0], 0) != 0 || turn_open(t, args[1], args[2], args[4], x->shape[3]) != 0) return -1;
    if (open_integers(at, "positions", args[3], x->shape[0], x->shape[1]) != 0) return -1;
    view_plan_copy(x, 1);
    if (view_allocate(out, "out", x, x->dtype, 4, x->shape, object) != 0 || turn_room(t, x->shape[0] * x->shape[1]) != 0)
        return -1;
    if (empty(x)) return 0;
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t i = 0; i < x->shape[1]; i++) {
            if (has_angles(t, integer_at(at, b, i)) != 0) return -1;
            look_up(t, b * x->shape[1] + i, integer_at(at, b, i));
        }
    tp_status status;
    Py_BEGIN_ALLOW_THREADS status = view_make_copy(x, &error);
    rows.dtype = x->dtype->code;
    rows.batch = x->shape[0], rows.tokens = x->shape[1], rows.heads = x->shape[2];
    call_place(LAYOUT_BSHD, x, &rows.in);
    call_place(LAYOUT_BSHD, out, &rows.out);
    rows.cosines = t->angles[0], rows.sines = t->angles[1];
    if (status == TP_OK) status = tp_rope_apply(t->rotary, &rows, &error);
    Py_END_ALLOW_THREADS return status == TP_OK ? 0 : raise_status(status, &error);
}

/* x (batch, tokens, heads, head dim), cos, sin, positions (batch, tokens), interleaved. */
PyObject *core_flash_rotate(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    turn t = {0};
    view x = {0}, out = {0}, at = {0};
    PyObject *object = NULL;
    if (wrong_count("flash_rotate", count, 5)) return NULL;
    if (rotate(&t, &x, &out, &at, args, &object) != 0) Py_CLEAR(object);
    view_close(&x);
    view_close(&out);
    view_close(&at);
    turn_close(&t);
    return object;
}

/* ---- new rows into a cache ---- */

typedef struct append {
    view cache, rows, used, table, scales;
    int paged;
    int kind;      /* tp_scales of codes; TP_SCALES_NONE: the cache holds floats */
    float one;     /* of TP_SCALES_TENSOR, where scales, (batch, heads), are not given */
    float *floats; /* new rows of a sequence, before they are codes */
    double loss;   /* the greatest of any row so far, without rows in which a value was not finite, as tp_cache has it */
    turn turn;
} append;

static int64_t page_of(const append *a, int64_t sequence, int64_t token) {
    return a->paged ? integer_at(&a->table, sequence, token / a->cache.shape[1]) : sequence;
}

/* Every place first, so that a call that is refused has written nothing. */
static int check_places(const append *a) {
    int64_t size = a->cache.shape[1], columns = a->paged ? a->table.shape[1] : 1;
    for (int64_t s = 0; s < a->rows.shape[0]; s++) {
        int64_t first = view_integer(&a->used, a->used.data + s * a->used.stride[0]), new = a->rows.shape[1];
        if (first < 0 || first + new > size * columns) {
            PyErr_Format(PyExc_RuntimeError,
                         "cache_seqlens is %lld: with %lld new tokens it must be in 0..%lld, the room there is", (long long)first,
                         (long long)new, (long long)(size * columns - new));
            return -1;
        }
        if (new > 0 && has_angles(&a->turn, first + new - 1) != 0) return -1;
        for (int64_t i = 0; new > 0 && i < first + new; i += size) {
            int64_t page = page_of(a, s, i);
            if (page >= 0 && page < a->cache.shape[0]) continue;
            PyErr_Format(PyExc_RuntimeError, "the page of %s is %lld: it must be in 0..%lld, pages of the cache",
                         i + size > first ? "a new token" : "a token before the new ones", (long long)page,
                         (long long)a->cache.shape[0] - 1);
            return -1;
        }
    }
    return 0;
}

/* A number or (batch, heads): what codes are multiplied by. (pages, tokens, heads): new scales are written there. */
static int open_scales(append *a, PyObject *object) {
    view *v = &a->scales;
    const view *c = &a->cache, *r = &a->rows;
    char text[160];
    int has_codes = is_codes(c->dtype);
    if (has_codes == Py_IsNone(object)) {
        PyErr_Format(PyExc_ValueError, "the cache is %s and its scales are %s: codes have some, and only they", c->dtype->name,
                     has_codes ? "None" : "given");
        return -1;
    }
    if (!has_codes) return 0;
    a->kind = TP_SCALES_TENSOR;
    if (PyFloat_Check(object)) return a->one = (float)PyFloat_AsDouble(object), 0;
    if (view_open(v, "the cache's scales", object) != 0) return -1;
    if (v->ndim == 3) a->kind = TP_SCALES_TOKEN, view_plan_copy(v, 0);
    int fits = v->dtype->code == TP_F32 && (v->ndim == 2 || v->ndim == 3);
    for (int i = 0; i < v->ndim && fits; i++) fits = v->shape[i] == (v->ndim == 3 ? c->shape[i] : r->shape[2 * i]);
    if (fits && v->why == NULL && (v->ndim == 2 || !v->readonly)) return 0;
    PyErr_Format(PyExc_ValueError,
                 "the cache's scales are %s of shape %s: they must be float32, by sequence and head, or by page, token "
                 "and head, written in place%s%s",
                 v->dtype->name, view_shape_text(v, text), v->why != NULL ? "; " : "", v->why != NULL ? v->why : "");
    return -1;
}

static int open_append(append *a, PyObject *const *args) {
    view *c = &a->cache, *r = &a->rows, *u = &a->used;
    char has[160], need[160];
    if (open_rows(c, "the cache", args[0], 1) != 0 || open_rows(r, "new rows", args[1], 0) != 0) return -1;
    if (open_scales(a, args[7]) != 0) return -1;
    if ((c->dtype != r->dtype && a->kind == TP_SCALES_NONE) || c->shape[2] != r->shape[2] || c->shape[3] != r->shape[3]) {
        PyErr_Format(PyExc_ValueError,
                     "new rows are %s of shape %s and the cache %s of shape %s: dtypes, heads and head dims must be equal",
                     r->dtype->name, view_shape_text(r, has), c->dtype->name, view_shape_text(c, need));
        return -1;
    }
    view_plan_copy(c, 1);
    if (c->why != NULL || c->readonly) {
        PyErr_Format(PyExc_ValueError, "the cache is written in place: %s", c->why != NULL ? c->why : "it must be writable");
        return -1;
    }
    view_plan_copy(r, 1);
    if (view_open(u, "cache_seqlens", args[2]) != 0 || view_check_integers(u) != 0) return -1;
    if (u->ndim != 1 || u->shape[0] != r->shape[0]) {
        PyErr_Format(PyExc_ValueError, "cache_seqlens has shape %s: it must be (%lld,)", view_shape_text(u, has),
                     (long long)r->shape[0]);
        return -1;
    }
    a->paged = !Py_IsNone(args[3]);
    if (a->paged && open_integers(&a->table, "the table", args[3], r->shape[0], -1) != 0) return -1;
    if (turn_open(&a->turn, args[4], args[5], args[6], r->shape[3]) != 0) return -1;
    if (empty(r)) return 0;
    if (check_places(a) != 0 || turn_room(&a->turn, r->shape[1]) != 0) return -1;
    if (a->kind == TP_SCALES_NONE) return 0;
    a->floats = malloc((size_t)(r->shape[1] * r->shape[2] * r->shape[3]) * sizeof *a->floats);
    return a->floats != NULL ? 0 : (PyErr_NoMemory(), -1);
}

static void put_angles(const append *a, int64_t first, tp_rope_rows *rows) {
    rows->cosines = a->turn.angles[0] + first * a->turn.pairs, rows->sines = a->turn.angles[1] + first * a->turn.pairs;
}

/* Rows to codes; what they lost is noted. One that is not finite hides the others' loss, which are then asked one by one. */
static tp_status write_head(append *a, const tp_quantised *rows, tp_error *error) {
    double loss = 0;
    tp_status status = tp_quantise(rows, &loss, error);
    if (status == TP_OK && loss <= DBL_MAX) a->loss = loss > a->loss ? loss : a->loss;
    if (status != TP_OK || loss <= DBL_MAX || rows->rows == 1) return status;
    tp_quantised one = *rows;
    one.rows = 1;
    for (int64_t i = 0; i < rows->rows && status == TP_OK; i++) {
        status = write_head(a, &one, error);
        one.values = (float *)one.values + one.values_stride;
        one.codes = (char *)one.codes + one.codes_stride; /* i8 and e4m3 are bytes */
        one.scales = (float *)one.scales + one.scales_stride;
    }
    return status;
}

/* The same, of a cache of codes: in float32, rotated, then one head after another quantised, as tp_cache_append does. */
static tp_status write_codes(append *a, int64_t s, int64_t first, int64_t token, int64_t count, char *to, tp_error *error) {
    const view *c = &a->cache, *r = &a->rows, *scales = &a->scales;
    const int64_t heads = r->shape[2], dim = r->shape[3];
    for (int64_t i = 0; i < count * heads; i++) {
        const char *from = r->data + s * r->stride[0] + (first + i / heads) * r->stride[1] + i % heads * r->stride[2];
        for (int64_t x = 0; x < dim; x++)
            a->floats[i * dim + x] = tp_to_float((tp_dtype)r->dtype->code, from + x * r->dtype->size);
    }
    tp_status status = TP_OK;
    if (a->turn.rotary != NULL) {
        tp_rope_rows rows = TP_ROPE_ROWS_INIT;
        rows.dtype = TP_F32;
        rows.tokens = count, rows.heads = heads;
        rows.in = rows.out = (tp_tensor){a->floats, {0, heads * dim, dim}};
        put_angles(a, first, &rows);
        status = tp_rope_apply(a->turn.rotary, &rows, error);
    }
    for (int64_t h = 0; h < heads && status == TP_OK; h++) {
        tp_quantised rows = TP_QUANTISED_INIT;
        float scale = a->one;
        rows.dtype = c->dtype->code == DTYPE_I8 ? TP_I8 : TP_E4M3;
        rows.kind = a->kind;
        rows.rows = count, rows.dim = dim;
        rows.values = a->floats + h * dim, rows.values_stride = heads * dim;
        rows.codes = to + h * c->stride[2], rows.codes_stride = c->stride[1];
        rows.scales = &scale;
        if (a->kind == TP_SCALES_TOKEN) {
            rows.scales = scales->data + page_of(a, s, token) * scales->stride[0] + token % c->shape[1] * scales->stride[1] +
                          h * scales->stride[2];
            rows.scales_stride = scales->stride[1] / (int64_t)sizeof(float);
        } else if (scales->object != NULL)
            memcpy(&scale, scales->data + s * scales->stride[0] + h * scales->stride[1], sizeof scale);
        status = write_head(a, &rows, error);
    }
    return status;
}

/* `count` rows of a sequence, which lie one behind the other in the cache. */
static tp_status write_run(append *a, int64_t s, int64_t first, int64_t token, int64_t count, tp_error *error) {
    const view *c = &a->cache, *r = &a->rows;
    char *to = c->data + page_of(a, s, token) * c->stride[0] + token % c->shape[1] * c->stride[1];
    char *from = r->data + s * r->stride[0] + first * r->stride[1];
    if (a->kind != TP_SCALES_NONE) return write_codes(a, s, first, token, count, to, error);
    if (a->turn.rotary == NULL) {
        for (int64_t i = 0; i < count; i++)
            for (int64_t h = 0; h < r->shape[2]; h++)
                memcpy(to + i * c->stride[1] + h * c->stride[2], from + i * r->stride[1] + h * r->stride[2],
                       (size_t)(r->shape[3] * r->dtype->size));
        return TP_OK;
    }
    tp_rope_rows rows = TP_ROPE_ROWS_INIT;
    rows.dtype = r->dtype->code;
    rows.tokens = count, rows.heads = r->shape[2];
    rows.in = (tp_tensor){from, {0, view_elements(r, 1), view_elements(r, 2)}};
    rows.out = (tp_tensor){to, {0, view_elements(c, 1), view_elements(c, 2)}};
    put_angles(a, first, &rows);
    return tp_rope_apply(a->turn.rotary, &rows, error);
}

static tp_status write_rows(append *a, tp_error *error) {
    int64_t size = a->cache.shape[1], new = a->rows.shape[1];
    tp_status status = view_make_copy(&a->rows, error);
    for (int64_t s = 0; s < a->rows.shape[0] && status == TP_OK; s++) {
        int64_t used = view_integer(&a->used, a->used.data + s * a->used.stride[0]);
        for (int64_t i = 0; i < new; i++) look_up(&a->turn, i, used + i);
        for (int64_t i = 0, count; i < new &&status == TP_OK; i += count) {
            count = size - (used + i) % size < new - i ? size - (used + i) % size : new - i;
            status = write_run(a, s, i, used + i, count, error);
        }
    }
    return status;
}

/* A cache (pages, tokens, heads, head dim), new rows (batch, tokens, heads, head dim), how many tokens each sequence has, the
   pages of each or None, cos and sin or None, interleaved; the scales of a cache of codes, or None. Returns the greatest loss of
   any row that became codes, 0 of a cache of floats. */
PyObject *core_flash_append(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    append a = {0};
    tp_error error = TP_ERROR_INIT;
    if (wrong_count("flash_append", count, 8)) return NULL;
    int failed = open_append(&a, args);
    if (!failed && !empty(&a.rows)) {
        tp_status status;
        Py_BEGIN_ALLOW_THREADS status = write_rows(&a, &error);
        Py_END_ALLOW_THREADS if (status != TP_OK) failed = raise_status(status, &error);
    }
    view_close(&a.cache);
    view_close(&a.rows);
    view_close(&a.used);
    view_close(&a.table);
    view_close(&a.scales);
    free(a.floats);
    turn_close(&a.turn);
    return failed ? NULL : PyFloat_FromDouble(a.loss);
}
