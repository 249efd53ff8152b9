/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of a call. After its arguments come out, lse, d_out, d_lse or None, and six flags: what
 * is wanted. */
#include "core.h"

#include <string.h>

enum { BACK_O = ARG_COUNT, BACK_LSE, BACK_D_O, BACK_D_LSE, BACK_WANTED, BACK_COUNT };
enum { D_Q, D_K, D_V, D_BIAS, D_ALIBI, D_SINKS, GRADIENTS };
static const int inputs[GRADIENTS] = {IN_Q, IN_K, IN_V, IN_BIAS, IN_ALIBI, IN_SINKS};
static const char *const names[GRADIENTS] = {"d_q",    "d_k", "d_v", "d_bias", "d_alibi_slopes",
                                             "d_sinks"};

typedef struct backward {
    call call;
    view o, lse, d_o, d_lse;
    view made[GRADIENTS];
    PyObject *object[GRADIENTS]; /* owned; NULL: not wanted */
    tp_gradients gradients;
} backward;

/* d must be shaped like `like` and of its dtype. */
static int check_like(const view *d, const view *like) {
    char has[160], needs[160];
    int fits = d->ndim == like->ndim && d->dtype == like->dtype;
    for (int i = 0; fits && i < d->ndim; i++) fits = d->shape[i] == like->shape[i];
    if (fits) return 0;
    PyErr_Format(PyExc_ValueError, "%s is %s of shape %s: it must be %s of shape %s", d->name,
                 d->dtype->name, view_shape_text(d, has), like->dtype->name,
                 view_shape_text(like, needs));
    return -1;
}

/* What the forward call gave, as shapes: out like q with v's head dim, lse by head and row. */
static int check_forward(backward *b) {
    call *c = &b->call;
    view out = c->in[IN_Q], lse = {.dtype = dtype_of_code(TP_F32)};
    int thd = c->layout == LAYOUT_THD;
    out.shape[out.ndim - 1] = c->problem.head_dim_v;
    out.dtype = b->o.dtype;
    const int64_t shape[3] = {c->tensors.batch, c->problem.q_heads,
                              thd ? c->tensors.q_tokens : c->tensors.q_len};
    lse.ndim = thd ? 2 : 3;
    memcpy(lse.shape, shape + thd, (size_t)lse.ndim * sizeof shape[0]);
    if (b->o.dtype->code > TP_BF16) {
        PyErr_Format(PyExc_TypeError, "out is %s: it must be float32, float16 or bfloat16",
                     b->o.dtype->name);
        return -1;
    }
    if (check_like(&b->o, &out) != 0 || check_like(&b->d_o, &b->o) != 0 ||
        check_like(&b->lse, &lse) != 0)
        return -1;
    return b->d_lse.object != NULL ? check_like(&b->d_lse, &lse) : 0;
}

static int open_inputs(backward *b, PyObject *const *args) {
    if (call_open(&b->call, args, NULL) != 0) return -1;
    b->call.choice.strategy = NULL; /* it is the forward call's: backward has one */
    if (view_open(&b->o, "out", args[BACK_O]) != 0 ||
        view_open(&b->lse, "lse", args[BACK_LSE]) != 0)
        return -1;
    if (view_open(&b->d_o, "d_out", args[BACK_D_O]) != 0) return -1;
    if (!Py_IsNone(args[BACK_D_LSE]) && view_open(&b->d_lse, "d_lse", args[BACK_D_LSE]) != 0)
        return -1;
    if (check_forward(b) != 0) return -1;
    b->call.problem.o_dtype = b->o.dtype->code;
    view_plan_copy(&b->o, 1);
    view_plan_copy(&b->d_o, 1);
    view_plan_copy(&b->lse, 0);
    view_plan_copy(&b->d_lse, 0);
    return 0;
}

static void clear(view *v) {
    int64_t bytes = v->dtype->size;
    for (int i = 0; i < v->ndim; i++) bytes *= v->shape[i];
    if (bytes > 0) memset(v->data, 0, (size_t)bytes);
}

/* Tokens that no sequence uses are not written by a run: their gradient is 0. */
static int allocate(backward *b, PyObject *wanted) {
    const tp_tensors *t = &b->call.tensors;
    int gaps = t->q_lens != NULL || t->kv_lens != NULL || t->cu_seqlens_q != NULL;
    for (int i = 0; i < GRADIENTS; i++) {
        const view *in = &b->call.in[inputs[i]];
        PyObject *flag = PyTuple_GetItem(wanted, i);
        if (flag == NULL) return -1;
        if (flag != Py_True || in->object == NULL) continue;
        const dtype_row *dtype = i <= D_V ? in->dtype : dtype_of_code(TP_F32);
        const view *q = &b->call.in[IN_Q];
        if (view_allocate(&b->made[i], names[i], q, dtype, in->ndim, in->shape, &b->object[i]) != 0)
            return -1;
        if (gaps || i > D_V) clear(&b->made[i]);
    }
    return 0;
}

static tp_tensor place_lse(const call *c, const view *v) {
    int thd = c->layout == LAYOUT_THD;
    if (v->object == NULL) return (tp_tensor){0};
    return (tp_tensor){
        v->data,
        {thd ? 0 : view_elements(v, 0), view_elements(v, 2 - thd), view_elements(v, 1 - thd)}};
}

static float *floats(const view *v) {
    return (float *)(void *)v->data;
}

static void place(backward *b) {
    call *c = &b->call;
    tp_gradients *g = &b->gradients;
    const view *bias = &b->made[D_BIAS], *alibi = &b->made[D_ALIBI];
    g->struct_size = sizeof *g;
    call_place(c->layout, &b->o, &c->tensors.o);
    call_place(c->layout, &b->d_o, &g->d_o);
    c->tensors.lse = place_lse(c, &b->lse);
    g->d_lse = place_lse(c, &b->d_lse);
    tp_tensor *const to[] = {&g->d_q, &g->d_k, &g->d_v};
    for (int i = D_Q; i <= D_V; i++)
        if (b->object[i] != NULL) call_place(i == D_Q ? c->layout : c->kv_layout, &b->made[i], to[i]);
    g->d_bias = floats(bias);
    for (int i = 0; i < bias->ndim; i++)
        g->d_bias_stride[4 - bias->ndim + i] = view_elements(bias, i);
    g->d_alibi_slopes = floats(alibi);
    g->d_alibi_stride = alibi->ndim == 2 ? c->problem.q_heads : 0;
    g->d_sinks = floats(&b->made[D_SINKS]);
    c->tensors.gradients = g;
}

static tp_status materialise(backward *b, tp_error *error) {
    view *const more[] = {&b->o, &b->lse, &b->d_o, &b->d_lse};
    tp_status status = call_materialise(&b->call, error);
    for (int i = 0; i < 4 && status == TP_OK; i++) status = view_make_copy(more[i], error);
    if (status == TP_OK) place(b);
    return status;
}

/* Six gradients or None, then what a receipt is made of, or None. */
static PyObject *result(backward *b, const tp_receipt *receipt) {
    PyObject *tuple = PyTuple_New(GRADIENTS + 1);
    for (int i = 0; tuple != NULL && i < GRADIENTS; i++)
        PyTuple_SetItem(tuple, i, Py_NewRef(b->object[i] != NULL ? b->object[i] : Py_None));
    PyObject *report = Py_NewRef(Py_None);
    if (tuple != NULL && b->call.return_receipt) {
        PyObject *texts = receipt_raw(receipt),
                 *rewrites = texts ? call_rewrites(&b->call, receipt->rewrites) : NULL;
        Py_DECREF(report);
        report = rewrites != NULL ? PyTuple_Pack(2, texts, rewrites) : NULL;
        Py_XDECREF(texts);
        Py_XDECREF(rewrites);
    }
    if (tuple != NULL && report != NULL) PyTuple_SetItem(tuple, GRADIENTS, Py_NewRef(report));
    if (report == NULL) Py_CLEAR(tuple);
    Py_XDECREF(report);
    return tuple;
}

static PyObject *run(backward *b, PyObject *const *args) {
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    call *c = &b->call;
    if (open_inputs(b, args) != 0 || allocate(b, args[BACK_WANTED]) != 0) return NULL;
    shared_context *shared = context_take(crew_of(&c->problem, c->threads, c->max_threads));
    if (shared == NULL) return NULL;
    tp_receipt_init(&receipt);
    tp_context *context = context_of(shared);
    tp_status status;
    Py_BEGIN_ALLOW_THREADS status = materialise(b, &error);
    if (status == TP_OK)
        status = tp_backward(context, &c->problem, &c->choice, &c->tensors, &receipt, &error);
    Py_END_ALLOW_THREADS context_give(shared);
    if (status == TP_OK) return result(b, &receipt);
    raise_status(status, &error);
    return NULL;
}

PyObject *core_backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    backward b = {0};
    if (wrong_count("backward", count, BACK_COUNT)) return NULL;
    PyObject *tuple = run(&b, args);
    view *const more[] = {&b.o, &b.lse, &b.d_o, &b.d_lse};
    for (int i = 0; i < 4; i++) view_close(more[i]);
    for (int i = 0; i < GRADIENTS; i++) {
        view_close(&b.made[i]);
        Py_XDECREF(b.object[i]);
    }
    call_close(&b.call);
    return tuple;
}
