/* SPDX-License-Identifier: Apache-2.0 */
/* New rows of a cache's layer, and a batch of its sequences as k and v of a call: pools, tables and lengths where they lie. */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "rotary.h"

#define BATCH "tileproof.cache.batch"

/* ---- append ---- */

enum {
    APPEND_CACHE,
    APPEND_LAYER,
    APPEND_SEQUENCES,
    APPEND_TOKENS,
    APPEND_K,
    APPEND_V,
    APPEND_Q,
    APPEND_ROTARY,
    APPEND_POSITIONS,
    APPEND_ANGLES,
    APPEND_LENGTH,
    APPEND_Q_NORM,
    APPEND_K_NORM,
    APPEND_EPS,
    APPEND_ONE_PLUS,
    APPEND_COUNT
};

typedef struct append {
    view in[3]; /* k, v, q */
    int64_t *sequences, *tokens, *positions;
    float *angles[2], *q_norm, *k_norm;
    tp_cache_rows rows;
} append;

/* Rows of k, v or q: (rows, heads, head dim) of one dtype; q is written, so it cannot be copied. */
static int open_rows(append *a, int which, PyObject *object, int64_t rows) {
    static const char *const names[] = {"k", "v", "q"};
    view *v = &a->in[which];
    char text[160];
    if (Py_IsNone(object)) return 0;
    if (view_open(v, names[which], object) != 0) return -1;
    if (v->dtype->code > TP_BF16 || (which > 0 && a->in[0].object != NULL && v->dtype != a->in[0].dtype)) {
        PyErr_Format(PyExc_TypeError, "%s is %s: it must be float32, float16 or bfloat16%s", v->name, v->dtype->name,
                     which > 0 ? ", as k is" : "");
        return -1;
    }
    if (v->ndim != 3 || v->shape[0] != rows) {
        PyErr_Format(PyExc_ValueError, "%s has shape %s: it must be (%lld, heads, head dim), the rows of all sequences", v->name,
                     view_shape_text(v, text), (long long)rows);
        return -1;
    }
    view_plan_copy(v, 1);
    if (which != 2 || (v->why == NULL && !v->readonly)) return 0;
    PyErr_Format(PyExc_ValueError, "q is rotated in place: %s", v->why != NULL ? v->why : "it is read-only and must be writable");
    return -1;
}

/* How many elements a row of k, v and q has, in the layer. */
static int check_heads(const append *a, const tp_problem *layer) {
    const int64_t heads[] = {layer->kv_heads, layer->kv_heads, 0},
                  dims[] = {layer->head_dim_qk, layer->head_dim_v, layer->head_dim_qk};
    char text[160];
    for (int i = 0; i < 3; i++) {
        const view *v = &a->in[i];
        if (v->object == NULL || ((heads[i] == 0 || v->shape[1] == heads[i]) && v->shape[2] == dims[i])) continue;
        PyErr_Format(PyExc_ValueError, "%s has shape %s: the layer has %lld KV heads, and rows of %lld elements for it", v->name,
                     view_shape_text(v, text), (long long)layer->kv_heads, (long long)dims[i]);
        return -1;
    }
    return 0;
}

static int read_rotation(append *a, PyObject *const *args, int64_t rows, int64_t dim) {
    tp_cache_rows *to = &a->rows;
    const rotary *r = Py_IsNone(args[APPEND_ROTARY]) ? NULL : rotary_of(args[APPEND_ROTARY]);
    int positions = !Py_IsNone(args[APPEND_POSITIONS]), angles = !Py_IsNone(args[APPEND_ANGLES]);
    if (PyErr_Occurred()) return -1;
    if (r == NULL && (positions || angles)) {
        PyErr_Format(PyExc_ValueError, "%s is given without rotary: there is nothing to rotate by it",
                     positions ? "positions" : "angles");
        return -1;
    }
    if (positions && angles) {
        PyErr_SetString(PyExc_ValueError, "positions and angles are both given: angles stand for positions; leave out one");
        return -1;
    }
    to->rotary = r != NULL ? r->rotary : NULL;
    if (positions && (to->positions = a->positions = positions_of(args[APPEND_POSITIONS], r, 1, rows)) == NULL) return -1;
    if (angles && angles_of(args[APPEND_ANGLES], r, 1, rows, a->angles) != 0) return -1;
    to->cosines = a->angles[0], to->sines = a->angles[1];
    if (norm_of("q_norm", args[APPEND_Q_NORM], dim, &a->q_norm) != 0 ||
        norm_of("k_norm", args[APPEND_K_NORM], dim, &a->k_norm) != 0)
        return -1;
    to->q_norm = a->q_norm, to->k_norm = a->k_norm;
    to->norm_eps = (float)PyFloat_AsDouble(args[APPEND_EPS]);
    to->norm_one_plus = PyObject_IsTrue(args[APPEND_ONE_PLUS]);
    return PyErr_Occurred() ? -1 : integer_of("length", args[APPEND_LENGTH], &to->length);
}

static void place_rows(const view *v, tp_tensor *t) {
    if (v->object != NULL) *t = (tp_tensor){v->data, {0, view_elements(v, 0), view_elements(v, 1)}};
}

static int run(append *a, PyObject *const *args) {
    static const tp_cache_rows init = TP_CACHE_ROWS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    int64_t layer, rows = 0, counts = 0;
    tp_cache *cache = cache_of(args[APPEND_CACHE]);
    if (cache == NULL || integer_of("layer", args[APPEND_LAYER], &layer) != 0) return -1;
    a->rows = init;
    if (sequences_of("a sequence", args[APPEND_SEQUENCES], -1, &a->sequences, &a->rows.count) != 0 ||
        sequences_of("tokens", args[APPEND_TOKENS], a->rows.count, &a->tokens, &counts) != 0)
        return -1;
    for (int64_t i = 0; i < counts; i++)
        if (a->tokens[i] < 0 || __builtin_add_overflow(rows, a->tokens[i], &rows)) {
            PyErr_Format(PyExc_ValueError, "tokens is %lld: it must be at least 0, and their sum must fit",
                         (long long)a->tokens[i]);
            return -1;
        }
    tp_problem_init(&problem);
    tp_status status = tp_cache_problem(cache, layer, &problem, &error);
    if (status != TP_OK) return raise_status(status, &error);
    for (int i = 0; i < 3; i++)
        if (open_rows(a, i, args[APPEND_K + i], rows) != 0) return -1;
    if (check_heads(a, &problem) != 0 || read_rotation(a, args, rows, problem.head_dim_qk) != 0) return -1;
    a->rows.sequences = a->sequences, a->rows.tokens = a->tokens;
    a->rows.dtype = a->in[0].object != NULL ? a->in[0].dtype->code : TP_F32;
    a->rows.q_heads = a->in[2].object != NULL ? a->in[2].shape[1] : 0;
    Py_BEGIN_ALLOW_THREADS for (int i = 0; i < 2 && status == TP_OK; i++) status = view_make_copy(&a->in[i], &error);
    place_rows(&a->in[0], &a->rows.k);
    place_rows(&a->in[1], &a->rows.v);
    place_rows(&a->in[2], &a->rows.q);
    if (status == TP_OK) status = tp_cache_append(cache, layer, &a->rows, &error);
    Py_END_ALLOW_THREADS return status == TP_OK ? 0 : raise_status(status, &error);
}

/* By position: what APPEND_ names. */
PyObject *core_cache_append(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    append a = {0};
    if (wrong_count("cache_append", count, APPEND_COUNT)) return NULL;
    int failed = run(&a, args);
    for (int i = 0; i < 3; i++) view_close(&a.in[i]);
    void *const own[] = {a.sequences, a.tokens, a.positions, a.angles[0], a.angles[1], a.q_norm, a.k_norm};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) free(own[i]);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* ---- attention ---- */

typedef struct batch {
    PyObject *capsule; /* owned: the cache */
    int64_t layer, count, *sequences;
} batch;

static void batch_gone(PyObject *capsule) {
    batch *b = PyCapsule_GetPointer(capsule, BATCH);
    Py_XDECREF(b->capsule);
    free(b->sequences);
    free(b);
}

/* Cache, layer, sequences: what stands for k in a call. */
PyObject *core_cache_batch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    batch *b = wrong_count("cache_batch", count, 3) || cache_of(args[0]) == NULL ? NULL : calloc(1, sizeof *b);
    if (b == NULL) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    b->capsule = Py_NewRef(args[0]);
    PyObject *capsule = NULL;
    if (integer_of("layer", args[1], &b->layer) == 0 && sequences_of("a sequence", args[2], -1, &b->sequences, &b->count) == 0)
        capsule = PyCapsule_New(b, BATCH, batch_gone);
    if (capsule != NULL) return capsule;
    Py_DECREF(b->capsule);
    free(b->sequences);
    free(b);
    return NULL;
}

int is_batch(PyObject *object) {
    return PyCapsule_IsValid(object, BATCH);
}

int batch_problem(call *c, PyObject *object) {
    const batch *b = PyCapsule_GetPointer(object, BATCH);
    tp_error error = TP_ERROR_INIT;
    tp_problem *p = &c->problem;
    tp_status status = tp_cache_problem(cache_of(b->capsule), b->layer, p, &error);
    if (status != TP_OK) return raise_status(status, &error);
    p->batch = b->count;
    if (p->head_dim_qk == c->dim[IN_Q]) return 0;
    PyErr_Format(PyExc_ValueError, "q has head dim %lld and layer %lld of the cache %lld: they must be equal",
                 (long long)c->dim[IN_Q], (long long)b->layer, (long long)p->head_dim_qk);
    return -1;
}

/* Slots that follow one another are read where they lie; of others the rows of the table are copied. */
static tp_status gather(call *c, const tp_cache *cache, const batch *b, tp_error *error) {
    tp_tensors *t = &c->tensors;
    const int64_t slots = t->page_slots;
    c->gathered = malloc((size_t)(b->count * (slots + 1) + 1) * sizeof *c->gathered);
    if (c->gathered == NULL) return error->status = TP_NO_MEMORY;
    tp_status status = tp_cache_gather(cache, b->count, b->sequences, c->gathered, c->gathered + b->count * slots, error);
    t->batch = b->count;
    t->k_pages = c->gathered;
    t->kv_lens = c->gathered + b->count * slots;
    return status;
}

int batch_tensors(call *c, PyObject *object) {
    const batch *b = PyCapsule_GetPointer(object, BATCH);
    const tp_cache *cache = cache_of(b->capsule);
    tp_error error = TP_ERROR_INIT;
    tp_status status = TP_OK;
    int64_t first = b->count > 0 ? tp_cache_slot(cache, b->sequences[0]) : 0;
    int run_of_slots = 1;
    if (b->count != c->tensors.batch) {
        PyErr_Format(PyExc_ValueError, "q has %lld sequences and %lld are named of the cache: they must be as many",
                     (long long)c->tensors.batch, (long long)b->count);
        return -1;
    }
    for (int64_t i = 0; i < b->count && status == TP_OK; i++) {
        int64_t slot = tp_cache_slot(cache, b->sequences[i]);
        run_of_slots = run_of_slots && slot == first + i;
        if (slot >= 0) status = tp_cache_tensors(cache, b->layer, slot, 1, &c->tensors, &error);
        if (slot < 0) {
            PyErr_Format(PyExc_ValueError, "sequence %lld is not open: it was closed, or never opened here",
                         (long long)b->sequences[i]);
            return -1;
        }
    }
    if (status == TP_OK && run_of_slots) status = tp_cache_tensors(cache, b->layer, first, b->count, &c->tensors, &error);
    if (status == TP_OK && !run_of_slots) status = gather(c, cache, b, &error);
    return status == TP_OK ? 0 : raise_status(status, &error);
}
