/* SPDX-License-Identifier: Apache-2.0 */
/* tp_reference and tp_merge. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

/* ---- the oracle ---- */

enum { REFERENCE_ROWS = ARG_COUNT, REFERENCE_PRECISION, REFERENCE_ARITHMETIC, REFERENCE_COUNT };

static int64_t rows_used(const call *c, int64_t seq) {
    const int64_t *lens = c->lengths[LENS_Q], *starts = c->lengths[CU_Q];
    return lens != NULL ? lens[seq] : starts != NULL ? starts[seq + 1] - starts[seq] : c->tensors.q_len;
}

/* Every row of every sequence. */
static PyObject *all_rows(const call *c) {
    int64_t count = 0, heads = c->problem.q_heads, at = 0;
    for (int64_t s = 0; s < c->tensors.batch; s++) count += heads * rows_used(c, s);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * (int64_t)sizeof(tp_row)));
    tp_row *rows = bytes != NULL ? (tp_row *)(void *)PyBytes_AsString(bytes) : NULL;
    for (int64_t s = 0; rows != NULL && s < c->tensors.batch; s++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t r = 0; r < rows_used(c, s); r++) rows[at++] = (tp_row){s, h, r};
    return bytes;
}

static int arithmetic_of(PyObject *word) {
    const char *text = PyUnicode_Check(word) ? PyUnicode_AsUTF8AndSize(word, NULL) : NULL;
    for (int i = TP_ARITHMETIC_F32; text != NULL && i <= TP_ARITHMETIC_P_BF16; i++)
        if (strcmp(text, tp_arithmetic_name((tp_arithmetic)i)) == 0) return i;
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "arithmetic is %R: it must be \"f32\", \"opencl\" or \"p=bf16\", as a receipt has it", word);
    return -1;
}

/* The arguments of a call; triples of 64-bit numbers as bytes, or None for all rows; whether it is the naive one; a word.
   Returns rows, o, lse, bound and lse_bound as bytes. */
PyObject *core_reference(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    call c = {0};
    tp_error error = TP_ERROR_INIT;
    PyObject *made[4] = {NULL}, *rows = NULL, *result = NULL;
    double *to[4];
    if (wrong_count("reference", count, REFERENCE_COUNT)) return NULL;
    int arithmetic = arithmetic_of(args[REFERENCE_ARITHMETIC]);
    tp_precision precision = args[REFERENCE_PRECISION] == Py_True ? TP_NAIVE : TP_DOUBLE;
    if (arithmetic < 0 || call_open(&c, args, NULL) != 0) goto done;
    rows = Py_IsNone(args[REFERENCE_ROWS]) ? all_rows(&c) : Py_NewRef(args[REFERENCE_ROWS]);
    if (rows == NULL) goto done;
    int64_t n = PyBytes_Size(rows) / (int64_t)sizeof(tp_row);
    for (int i = 0; i < 4; i++) {
        int64_t each = (i == 0 ? c.problem.head_dim_v : 1) * (int64_t)sizeof(double);
        made[i] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * each));
        if (made[i] == NULL) goto done;
        to[i] = (double *)(void *)PyBytes_AsString(made[i]);
    }
    const tp_row *at = (const tp_row *)(void *)PyBytes_AsString(rows);
    tp_status status;
    int bounds = precision == TP_DOUBLE;
    for (int i = 2; i < 4 && !bounds; i++) memset(to[i], 0, (size_t)n * sizeof(double));
    Py_BEGIN_ALLOW_THREADS status = call_materialise(&c, &error);
    if (status == TP_OK)
        status = tp_reference(&c.problem, &c.tensors, precision, (tp_arithmetic)arithmetic, n, at, to[0], to[1],
                              bounds ? to[2] : NULL, bounds ? to[3] : NULL, &error);
    Py_END_ALLOW_THREADS if (status != TP_OK) raise_status(status, &error);
    else result = PyTuple_Pack(5, rows, made[0], made[1], made[2], made[3]);
done:
    for (int i = 0; i < 4; i++) Py_XDECREF(made[i]);
    Py_XDECREF(rows);
    call_close(&c);
    return result;
}

/* ---- merge ---- */

typedef struct states {
    view *o, *lse;
    const float **o_parts, **lse_parts;
    float **packed; /* owned: lse by row, in the order of o's rows */
    int64_t count, rows, dim;
    view out, out_lse;
    PyObject *out_object, *lse_object;
} states;

/* Which dim of o is {batch, row, head}, for o (batch, rows, heads, head dim) and lse (batch, heads, rows); -1: none. */
static void sizes(const view *o, layout lay, int64_t size[3]) {
    static const int at[3][3] = {{0, 1, 2}, {0, 2, 1}, {-1, 0, 1}};
    for (int i = 0; i < 3; i++) size[i] = at[lay][i] < 0 ? 1 : o->shape[at[lay][i]];
}

/* lse, (batch, heads, rows), to or from rows in the order of o's. */
static void turn(const view *lse, const int64_t size[3], layout lay, float *rows, int back) {
    int last = lse->ndim - 1;
    for (int64_t b = 0, i = 0; b < size[0]; b++)
        for (int64_t n = 0; n < size[1] * size[2]; n++, i++) {
            int64_t row = lay == LAYOUT_BHSD ? n % size[1] : n / size[2], head = lay == LAYOUT_BHSD ? n / size[1] : n % size[2];
            char *at = lse->data + (last == 2 ? b * lse->stride[0] : 0) + head * lse->stride[last - 1] + row * lse->stride[last];
            memcpy(back ? (void *)at : &rows[i], back ? (const void *)&rows[i] : at, sizeof(float));
        }
}

static int check_state(const view *v, int ndim, const int64_t *shape, const char *rule) {
    char has[160];
    int fits = v->ndim == ndim && v->dtype->code == TP_F32;
    for (int i = 0; fits && i < ndim; i++) fits = v->shape[i] == shape[i];
    if (fits) return 0;
    PyErr_Format(PyExc_ValueError, "%s of a state is %s of shape %s: it must be float32, %s", v->name, v->dtype->name,
                 view_shape_text(v, has), rule);
    return -1;
}

static int open_states(states *s, PyObject *tuple, layout lay, int64_t size[3]) {
    for (int64_t i = 0; i < s->count; i++) {
        PyObject *pair = PyTuple_GetItem(tuple, i);
        view *o = &s->o[i], *lse = &s->lse[i];
        if (pair == NULL || view_open(o, "out", PyTuple_GetItem(pair, 0)) != 0 ||
            view_open(lse, "lse", PyTuple_GetItem(pair, 1)) != 0)
            return -1;
        int ndim = lay == LAYOUT_THD ? 3 : 4;
        if (i == 0 && check_state(o, ndim, o->shape, "as attention() gives it in this layout") != 0) return -1;
        if (check_state(o, ndim, s->o[0].shape, "shaped like the first one's") != 0) return -1;
        sizes(&s->o[0], lay, size);
        const int64_t of_lse[3] = {size[0], size[2], size[1]};
        if (check_state(lse, ndim - 1, of_lse + (ndim == 3), "(batch, heads, rows), or (heads, tokens) for \"thd\"") != 0)
            return -1;
        view_plan_copy(o, 1);
        int64_t packed = (int64_t)sizeof(float);
        for (int d = ndim - 1; d >= 0; packed *= o->shape[d--])
            if (o->shape[d] > 1 && o->stride[d] != packed) o->why = "it is not contiguous";
    }
    s->rows = size[0] * size[1] * size[2];
    s->dim = s->o[0].shape[s->o[0].ndim - 1];
    return 0;
}

static tp_status merge_states(states *s, const int64_t size[3], layout lay, tp_error *error) {
    tp_status status = TP_OK;
    for (int64_t i = 0; i < s->count && status == TP_OK; i++) {
        status = view_make_copy(&s->o[i], error);
        s->packed[i] = malloc((size_t)s->rows * sizeof(float) + 1);
        if (s->packed[i] == NULL) return error->status = TP_NO_MEMORY;
        turn(&s->lse[i], size, lay, s->packed[i], 0);
        s->o_parts[i] = (const float *)(void *)s->o[i].data;
        s->lse_parts[i] = s->packed[i];
    }
    if (status == TP_OK)
        status = tp_merge(s->count, s->rows, s->dim, s->o_parts, s->lse_parts, (float *)(void *)s->out.data, s->packed[0], error);
    if (status == TP_OK) turn(&s->out_lse, size, lay, s->packed[0], 1);
    return status;
}

/* A tuple of at least one (o, lse), and the layout's number. Returns (o, lse). */
PyObject *core_merge(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (wrong_count("merge", count, 2)) return NULL;
    states s = {.count = PyTuple_Size(args[0])};
    size_t n = (size_t)s.count;
    tp_error error = TP_ERROR_INIT;
    int64_t size[3] = {0};
    PyObject *result = NULL;
    layout lay = (layout)PyLong_AsLong(args[1]);
    s.o = calloc(n, sizeof *s.o), s.lse = calloc(n, sizeof *s.lse), s.packed = calloc(n, sizeof *s.packed);
    s.o_parts = calloc(n, sizeof *s.o_parts), s.lse_parts = calloc(n, sizeof *s.lse_parts);
    int room = s.o != NULL && s.lse != NULL && s.packed != NULL && s.o_parts != NULL && s.lse_parts != NULL;
    if (!room) PyErr_NoMemory();
    if (room && open_states(&s, args[0], lay, size) == 0 &&
        view_allocate(&s.out, "out", &s.o[0], s.o[0].dtype, s.o[0].ndim, s.o[0].shape, &s.out_object) == 0 &&
        view_allocate(&s.out_lse, "lse", &s.o[0], s.o[0].dtype, s.lse[0].ndim, s.lse[0].shape, &s.lse_object) == 0) {
        tp_status status;
        Py_BEGIN_ALLOW_THREADS status = merge_states(&s, size, lay, &error);
        Py_END_ALLOW_THREADS if (status != TP_OK) raise_status(status, &error);
        else result = PyTuple_Pack(2, s.out_object, s.lse_object);
    }
    for (int64_t i = 0; room && i < s.count; i++) {
        view_close(&s.o[i]);
        view_close(&s.lse[i]);
        free(s.packed[i]);
    }
    view_close(&s.out);
    view_close(&s.out_lse);
    Py_XDECREF(s.out_object);
    Py_XDECREF(s.lse_object);
    free(s.o), free(s.lse), free(s.packed), free(s.o_parts), free(s.lse_parts);
    return result;
}
