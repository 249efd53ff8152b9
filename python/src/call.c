/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a call as tp_problem and tp_tensors. */
#include "core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Which dim is {batch, token, head}; -1: none. The head dim is the last one. */
static const int places[3][3] = {{0, 1, 2}, {0, 2, 1}, {-1, 0, 1}};
static const char *const shapes[2][3] = {{"this layout is (batch, tokens, heads, head dim)",
                                          "this layout is (batch, heads, tokens, head dim)",
                                          "this layout is (tokens, heads, head dim)"},
                                         {"with page_table it must be (pages, tokens of a page, heads, head dim)",
                                          "with page_table this layout is (pages, heads, tokens of a page, head dim)"}};

static int64_t size_of(layout lay, const view *v, int what) {
    int dim = places[lay][what];
    return dim >= 0 ? v->shape[dim] : 1;
}

void call_place(layout lay, const view *v, tp_tensor *t) {
    t->data = v->data;
    for (int i = 0; i < 3; i++) {
        int dim = places[lay][i];
        t->stride[i] = dim >= 0 ? view_elements(v, dim) : 0;
    }
}

static int open_tensor(call *c, int which, const char *name, PyObject *object, const dtype_row *dtype) {
    view *v = &c->in[which];
    char text[160];
    int shape = dtype != NULL && PyTuple_Check(object);
    if ((shape ? view_shape(v, name, object, dtype) : view_open(v, name, object)) != 0) return -1;
    if (v->dtype->code > TP_BF16 && (which == IN_Q || !is_codes(v->dtype))) {
        PyErr_Format(PyExc_TypeError, "%s is %s: it must be float32, float16 or bfloat16%s", name, v->dtype->name,
                     which == IN_Q ? "" : ", or codes with scales (tileproof.quantise)");
        return -1;
    }
    if (which == IN_K && c->layout == LAYOUT_THD && (c->kv_paged || v->ndim == 4)) c->kv_layout = LAYOUT_BSHD;
    layout lay = which == IN_Q ? c->layout : c->kv_layout;
    if (v->ndim != (lay == LAYOUT_THD ? 3 : 4)) {
        PyErr_Format(PyExc_ValueError, "%s has shape %s: %s", name, view_shape_text(v, text),
                     shapes[which != IN_Q && c->kv_paged][lay]);
        return -1;
    }
    view_plan_copy(v, 1);
    c->dim[which] = v->shape[v->ndim - 1];
    return 0;
}

static int same(const char *a, int64_t x, const char *word, const char *b, int64_t y) {
    if (x == y) return 0;
    PyErr_Format(PyExc_ValueError, "%s has %lld %s and %s %lld: they must be equal", a, (long long)x, word, b, (long long)y);
    return -1;
}

/* v is a part of k's rows: a view of the same memory, which k keeps alive. */
static int open_latent(call *c, PyObject *codes) {
    const view *k = &c->in[IN_K];
    view *v = &c->in[IN_V];
    int last = k->ndim - 1;
    int64_t start = c->latent, stop = c->problem.head_dim_v;
    PyObject *scales = Py_IsNone(codes) ? Py_None : PyTuple_GetItem(codes, 3);
    if (scales == NULL) return -1;
    if (!Py_IsNone(scales)) {
        PyErr_SetString(PyExc_ValueError, "v_scales is given with latent: v's scales are k's, so it must be None");
        return -1;
    }
    if (start < 0 || stop <= start || stop > c->dim[IN_K]) {
        PyErr_Format(PyExc_ValueError, "latent is (%lld, %lld): it must be a part of k's head dim of %lld, start below stop",
                     (long long)start, (long long)stop, (long long)c->dim[IN_K]);
        return -1;
    }
    v->name = "v";
    v->dtype = k->dtype;
    v->ndim = k->ndim;
    memcpy(v->shape, k->shape, sizeof v->shape);
    v->shape[last] = c->dim[IN_V] = stop - start;
    return codes_latent(c);
}

static int check_shapes(const call *c) {
    const view *k = &c->in[IN_K], *v = &c->in[IN_V];
    const char *const words[] = {c->kv_paged ? "pages" : "sequences", "tokens", "heads"};
    for (int i = 0; i < 3; i++)
        if (same("v", size_of(c->kv_layout, v, i), words[i], "k", size_of(c->kv_layout, k, i)) != 0) return -1;
    int64_t dim = c->dim[IN_Q], of_k = c->dim[IN_K];
    if (of_k == dim) return 0;
    PyErr_Format(PyExc_ValueError, "k has head dim %lld and q %lld: they must be equal", (long long)of_k, (long long)dim);
    return -1;
}

/* The sequences are q's, or as many as cu_seqlens_q has; a cache that is no pool of pages has as many. */
static int check_sequences(const call *c) {
    const char *whose = c->layout == LAYOUT_THD ? "cu_seqlens_q" : "q";
    if (c->kv_paged || c->kv_layout == LAYOUT_THD) return 0;
    return same("k", c->in[IN_K].shape[0], "sequences", whose, c->tensors.batch);
}

static void fill(call *c) {
    const view *q = &c->in[IN_Q], *k = &c->in[IN_K], *v = &c->in[IN_V];
    const code_format *const *format = c->format;
    tp_problem *p = &c->problem;
    tp_tensors *t = &c->tensors;
    p->q_dtype = p->o_dtype = q->dtype->code;
    p->k_dtype = format[0] != NULL ? format[0]->dtype : k->dtype->code;
    p->v_dtype = p->latent ? p->k_dtype : format[1] != NULL ? format[1]->dtype : v->dtype->code;
    p->k_scales = c->kind[0];
    p->v_scales = p->latent ? c->kind[0] : c->kind[1];
    p->q_layout = c->layout == LAYOUT_THD ? TP_PACKED : TP_BATCH;
    p->kv_layout = c->kv_paged ? TP_PAGED : c->kv_layout == LAYOUT_THD ? TP_PACKED : TP_BATCH;
    p->q_heads = size_of(c->layout, q, 2);
    p->kv_heads = size_of(c->kv_layout, k, 2);
    p->head_dim_qk = c->dim[IN_Q];
    p->head_dim_v = c->dim[IN_V];
    p->batch = t->batch = size_of(c->layout, q, 0);
    p->q_len = t->q_len = t->q_tokens = size_of(c->layout, q, 1);
    p->kv_len = t->kv_len = t->kv_tokens = size_of(c->kv_layout, k, 1);
    if (!c->kv_paged) return;
    p->page_size = p->kv_len;
    t->pages = size_of(c->kv_layout, k, 0);
}

/* Of what only its shape is given of. NULL: tensors are given, or an exception is set. */
static const dtype_row *shape_dtype(PyObject *const *args, int which, const dtype_row *dtype) {
    PyObject *codes = args[ARG_codes], *word = which == IN_Q || Py_IsNone(codes) ? NULL : PyTuple_GetItem(codes, which - IN_K);
    const code_format *format = NULL;
    if (dtype == NULL || word == NULL || Py_IsNone(word)) return dtype;
    if (format_of_word("kv_format", word, "", which - IN_K, &format) != 0) return NULL;
    return format != NULL ? dtype_of_code(format->holds[1]) : dtype;
}

static int refuse(PyObject *object, const char *name) {
    if (object == NULL || Py_IsNone(object)) return 0;
    PyErr_Format(PyExc_ValueError, "%s is given with a cache: it has its own, so it must be None", name);
    return -1;
}

/* k, v, pages and lengths are the cache's. */
static int open_cached(call *c, PyObject *const *args) {
    if (refuse(args[ARG_v], "v") != 0 || refuse(args[ARG_kv_lens], "kv_lens") != 0 || refuse(args[ARG_latent], "latent") != 0 ||
        refuse(args[ARG_codes], "k_scales, v_scales, kv_format or kv_loss") != 0 ||
        refuse(arrays_page_table(args), "page_table") != 0)
        return -1;
    if (open_tensor(c, IN_Q, "q", args[ARG_q], NULL) != 0) return -1;
    c->kv_layout = LAYOUT_BSHD;
    c->cached = 1;
    const view *q = &c->in[IN_Q];
    tp_problem *p = &c->problem;
    p->q_dtype = p->o_dtype = q->dtype->code;
    p->q_layout = c->layout == LAYOUT_THD ? TP_PACKED : TP_BATCH;
    p->q_heads = size_of(c->layout, q, 2);
    c->tensors.batch = size_of(c->layout, q, 0);
    p->q_len = c->tensors.q_len = c->tensors.q_tokens = size_of(c->layout, q, 1);
    if (batch_problem(c, args[ARG_k]) != 0 || lengths_read(c, args) != 0 || batch_tensors(c, args[ARG_k]) != 0) return -1;
    return arrays_open(c, args, 0) != 0 ? -1 : scores_open(c, args);
}

int call_open(call *c, PyObject *const *args, const dtype_row *const *dtypes) {
    static const tp_choice choice = TP_CHOICE_INIT;
    static const char *const names[] = {"q", "k", "v"};
    tp_problem_init(&c->problem);
    c->tensors.struct_size = sizeof c->tensors;
    c->choice = choice;
    if (options_read(c, args) != 0) return -1;
    c->kv_layout = c->layout;
    c->kv_paged = arrays_page_table(args) != NULL;
    if (is_batch(args[ARG_k])) return open_cached(c, args);
    for (int i = IN_Q; i <= IN_V; i++) {
        int part = i == IN_V && c->problem.latent;
        const dtype_row *of_shape = part ? NULL : shape_dtype(args, i, dtypes != NULL ? dtypes[i] : NULL);
        if (of_shape == NULL && PyErr_Occurred()) return -1;
        if ((part ? open_latent(c, args[ARG_codes]) : open_tensor(c, i, names[i], args[ARG_q + i], of_shape)) != 0) return -1;
        if (i != IN_Q && !part && codes_open(c, i == IN_V, args[ARG_codes]) != 0) return -1;
    }
    if (check_shapes(c) != 0 || codes_loss(c, args[ARG_codes]) != 0) return -1;
    fill(c);
    if (dtypes != NULL) c->problem.o_dtype = dtypes[3]->code;
    if (lengths_read(c, args) != 0 || check_sequences(c) != 0) return -1;
    if (arrays_open(c, args, dtypes != NULL) != 0) return -1;
    return scores_open(c, args);
}

static int check_out(const call *c, int64_t *shape) {
    const view *o = &c->out;
    char text[160];
    const char *rule = NULL;
    int last = o->ndim - 1;
    if (o->dtype->code > TP_BF16) {
        PyErr_Format(PyExc_TypeError, "out is %s: it must be float32, float16 or bfloat16", o->dtype->name);
        return -1;
    }
    int fits = o->ndim == c->in[IN_Q].ndim;
    for (int i = 0; fits && i <= last; i++) fits = o->shape[i] == shape[i];
    if (!fits) rule = "it must be that of q with the head dim of v";
    if (fits && o->shape[last] > 1 && o->stride[last] != o->dtype->size) rule = "its last dimension must be contiguous";
    for (int i = 0; fits && i < last; i++) {
        if (o->shape[i] > 1 && o->stride[i] % o->dtype->size != 0) rule = "its elements must be aligned";
        if (o->shape[i] > 1 && o->stride[i] < 0) rule = "its strides must not be negative";
    }
    if (rule == NULL && (uintptr_t)o->data % (uintptr_t)o->dtype->size != 0) rule = "its elements must be aligned";
    if (rule == NULL && o->readonly) rule = "it is read-only and must be writable";
    if (rule == NULL) return 0;
    PyErr_Format(PyExc_ValueError, "out has shape %s: %s", view_shape_text(o, text), rule);
    return -1;
}

/* Rows that no sequence uses are not written by a run: in a new tensor they are 0, and -inf as
 * their lse. */
static void clear(const call *c, int new_out) {
    const tp_tensors *t = &c->tensors;
    if (t->q_lens == NULL && t->cu_seqlens_q == NULL) return;
    int64_t rows = (c->layout == LAYOUT_THD ? t->q_tokens : t->batch * t->q_len) * c->problem.q_heads;
    if (new_out && rows > 0) memset(c->out.data, 0, (size_t)(rows * c->problem.head_dim_v * c->out.dtype->size));
    for (int64_t i = 0; c->return_lse && i < rows; i++) ((float *)(void *)c->lse.data)[i] = -INFINITY;
}

int call_outputs(call *c, PyObject *out) {
    const view *q = &c->in[IN_Q];
    int64_t shape[VIEW_DIMS], lse[3] = {c->tensors.batch, c->problem.q_heads, c->tensors.q_len};
    for (int i = 0; i < q->ndim; i++) shape[i] = q->shape[i];
    shape[q->ndim - 1] = c->problem.head_dim_v;
    if (Py_IsNone(out)) {
        if (view_allocate(&c->out, "out", q, dtype_of_code(c->problem.o_dtype), q->ndim, shape, &c->out_object) != 0) return -1;
    } else {
        c->out_object = Py_NewRef(out);
        if (view_open(&c->out, "out", out) != 0 || check_out(c, shape) != 0) return -1;
        c->problem.o_dtype = c->out.dtype->code;
    }
    call_place(c->layout, &c->out, &c->tensors.o);
    if (c->return_lse) {
        int thd = c->layout == LAYOUT_THD;
        lse[2] = thd ? c->tensors.q_tokens : lse[2];
        if (view_allocate(&c->lse, "lse", q, dtype_of_code(TP_F32), thd ? 2 : 3, lse + thd, &c->lse_object) != 0) return -1;
        c->tensors.lse = (tp_tensor){c->lse.data, {lse[1] * lse[2], 1, lse[2]}};
    }
    clear(c, Py_IsNone(out));
    return 0;
}

tp_status call_materialise(call *c, tp_error *error) {
    tp_tensors *t = &c->tensors;
    const view *bias = &c->in[IN_BIAS], *alibi = &c->in[IN_ALIBI];
    for (int i = 0; i < IN_COUNT; i++) {
        tp_status status = i == IN_MASK ? scores_pack(c, error) : view_make_copy(&c->in[i], error);
        if (status != TP_OK) return status;
    }
    call_place(c->layout, &c->in[IN_Q], &t->q);
    if (!c->cached) {
        call_place(c->kv_layout, &c->in[IN_K], &t->k);
        call_place(c->kv_layout, &c->in[IN_V], &t->v);
    }
    if (c->problem.latent && !c->cached) {
        t->v = t->k;
        t->v.data = (char *)t->k.data + c->latent * c->in[IN_K].dtype->size;
    }
    if (!c->cached) codes_place(c);
    t->bias = bias->data;
    for (int i = 0; i < bias->ndim; i++) t->bias_stride[4 - bias->ndim + i] = view_elements(bias, i);
    t->alibi_slopes = (const float *)(const void *)alibi->data;
    t->alibi_stride = alibi->ndim == 2 ? view_elements(alibi, 0) : 0;
    t->sinks = (const float *)(const void *)c->in[IN_SINKS].data;
    return arrays_copy(c, error);
}

void call_close(call *c) {
    for (int i = 0; i < IN_COUNT; i++) view_close(&c->in[i]);
    view_close(&c->out);
    view_close(&c->lse);
    Py_XDECREF(c->out_object);
    Py_XDECREF(c->lse_object);
    for (int i = 0; i < 4; i++) free(c->lengths[i]);
    arrays_close(c);
    free(c->gathered);
    free(c->bits);
}
