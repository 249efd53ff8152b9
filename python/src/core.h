/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extension tileproof._core. Python hands over every argument by position (arguments.inc), so
 * that nothing is parsed by name; the entry point in Python, tileproof/__init__.py, has names, types and
 * docstrings.
 *
 *     view.c      a tensor of Python's, as pointer, shape, strides and dtype, without a copy
 *     view_copy.c the copy where there must be one
 *     options.c   scalars and words
 *     lengths.c   q_lens, kv_lens, cu_seqlens
 *     arrays.c    page tables, sparse indices, positions and what masks read (arrays.inc)
 *     codes.c     quantised k and v: formats (formats.inc) and scales; quantise.c: rows to codes and back
 *     scores.c    mask, bias, slopes, sinks
 *     mask.c      masks in the text form
 *     call.c      all of it as tp_problem and tp_tensors
 *     run.c       attention; backward.c: its gradients; plan.c: plan and explain
 *     sdpa.c      scaled_dot_product_attention of PyTorch's tensors, where nothing is special about the call
 *     oracle.c    the double reference with its bounds, and merge
 *     context.c   a context for each crew of threads, made anew after fork
 *     openmp.c    PyTorch's threads
 *     proof.h     tileproof.proof; rotary.h, cache.h: Rotary, Cache
 *     allocate.c  new tensors
 *     reports.c   receipts, exceptions
 *     telemetry.c metrics, flight recorder, trace, events
 */
#ifndef TILEPROOF_PYTHON_CORE_H
#define TILEPROOF_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <tileproof.h>

#include "dlpack.h"

#define VIEW_DIMS 8

/* Those of tp_dtype, and what else is told apart; 0: something else. */
enum { DTYPE_BOOL = 100, DTYPE_I32, DTYPE_I64, DTYPE_I8, DTYPE_U8, DTYPE_E4M3, DTYPE_OTHER };

typedef struct dtype_row {
    int code, size;
    const char *name;
    uint8_t dl_code, dl_bits;
    const char *formats; /* of the buffer protocol */
} dtype_row;
const dtype_row *dtype_of_code(int code);
const dtype_row *dtype_of_format(const char *format, Py_ssize_t size);
const dtype_row *dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes);
const dtype_row *dtype_of_name(const char *name);

/* A tensor of Python's while a call lasts. Strides count bytes. */
typedef struct view {
    const char *name; /* of the argument */
    PyObject *object; /* borrowed; NULL: not given */
    char *data;       /* NULL when only a shape is given */
    int ndim, readonly, shape_only;
    const dtype_row *dtype;
    int64_t shape[VIEW_DIMS], stride[VIEW_DIMS];
    const dl_exchange *exchange; /* the object's type has one */
    /* what keeps the memory alive */
    Py_buffer buffer;
    int has_buffer;
    PyObject *capsule;
    dl_managed *managed;
    dl_managed_versioned *versioned;
    void *copy;      /* of a layout that kernels cannot read; made without the GIL */
    const char *why; /* it is copied; NULL: it is not */
} view;

int view_open(view *v, const char *name, PyObject *object);
int view_shape(view *v, const char *name, PyObject *shape, const dtype_row *dtype); /* a tuple */
void view_close(view *v);
/* Must it be copied? unit: its last dim must be contiguous. */
void view_plan_copy(view *v, int unit);
tp_status view_make_copy(view *v, tp_error *error); /* needs no GIL */
int64_t view_elements(const view *v, int dim);      /* stride in elements; 0 for a dim of one */
int view_check_integers(const view *v);              /* int32 or int64, or -1 with an exception */
int64_t view_integer(const view *v, const char *at); /* of these */
/* "(2, 8, 64)" */
const char *view_shape_text(const view *v, char text[160]);
const dl_exchange *exchange_of(PyObject *object); /* of its type; NULL: none */
/* A new, contiguous tensor by these functions, and where its elements lie. */
int allocate_by(const dl_exchange *exchange, const dtype_row *dtype, int ndim, const int64_t *shape, PyObject **object,
                void **data);
/* A new tensor of the kind of `like`: *object is new, v is opened on it. */
int view_allocate(view *v, const char *name, const view *like, const dtype_row *dtype, int ndim,
                  const int64_t *shape, PyObject **object);

enum {
#define ARGUMENT(name) ARG_##name,
#include "arguments.inc"
#undef ARGUMENT
    ARG_COUNT
};

enum {
#define ARGUMENT(name) SDPA_##name,
#include "sdpa.inc"
#undef ARGUMENT
    SDPA_COUNT
};

/* Inputs of a call whose memory is looked at. */
enum { IN_Q, IN_K, IN_V, IN_MASK, IN_BIAS, IN_ALIBI, IN_SINKS, IN_K_SCALES, IN_V_SCALES, IN_COUNT };

enum { CU_Q, CU_K, LENS_Q, LENS_KV };

typedef enum layout { LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD } layout;

typedef struct arrays arrays;

/* What a quantised k or v is (formats.inc). */
typedef struct code_format {
    int dtype, kind; /* tp_dtype, tp_scales */
    int holds[2];    /* what its codes come as */
    char word[16];   /* "i8/token" */
} code_format;
void formats_init(void); /* their words */

typedef struct call {
    tp_problem problem;
    tp_tensors tensors;
    tp_choice choice;
    layout layout, kv_layout; /* of q; of k and v, whose pages count as sequences */
    int kv_paged, cached;     /* cached: k and v are a tileproof.Cache's */
    int sorted;               /* the sparse indices are */
    const code_format *format[2]; /* of k and v; NULL: floats */
    int kind[2];              /* tp_scales of these */
    float scale[2];           /* of TP_SCALES_TENSOR */
    double kv_loss;           /* of the argument; tensors point to it where it is given */
    int64_t dim[3];           /* head dims of q, k and v, in elements */
    int64_t latent;           /* v begins at this element of k's rows; -1: v is a tensor */
    int threads, max_threads, return_lse, return_receipt; /* of threads 0: not given */
    tp_tags tags;             /* texts are those of the arguments */
    view in[IN_COUNT];
    view out, lse;
    PyObject *out_object, *lse_object; /* owned */
    int64_t *lengths[4];               /* CU_Q, CU_K, LENS_Q, LENS_KV */
    arrays *arrays;                    /* NULL: none is given */
    int64_t *gathered; /* tables and lengths of a cache's sequences */
    char *bits;
    int64_t bits_shape[4]; /* of the mask without shared dims, keys counted whole */
} call;

/* dtypes, of q, k, v and o, are for shapes without tensors; NULL otherwise. On failure an exception is set; close all
 * the same. */
int call_open(call *c, PyObject *const *args, const dtype_row *const *dtypes);
int call_outputs(call *c, PyObject *out);
tp_status call_materialise(call *c, tp_error *error); /* copies and bits; needs no GIL */
void call_close(call *c);
PyObject *call_result(call *c, const tp_receipt *receipt);
PyObject *call_rewrites(const call *c, uint32_t rewrites);
/* Pointer and strides of {batch, token, head}. */
void call_place(layout layout, const view *v, tp_tensor *t);

int options_read(call *c, PyObject *const *args);
int lengths_read(call *c, PyObject *const *args);
PyObject *arrays_page_table(PyObject *const *args); /* NULL: none */
int arrays_open(call *c, PyObject *const *args, int shapes); /* shapes: tuples may stand for tensors */
tp_status arrays_copy(call *c, tp_error *error);             /* needs no GIL */
void arrays_close(call *c);
/* A batch of a tileproof.Cache's sequences stands for k, and v is None. */
int is_batch(PyObject *object);
int batch_problem(call *c, PyObject *object); /* after q */
int batch_tensors(call *c, PyObject *object); /* after lengths */
int codes_open(call *c, int of_v, PyObject *tuple); /* after k or v itself */
void codes_place(call *c);                          /* after call_place of k and v */
int codes_latent(const call *c);                    /* -1: v may not begin there */
int codes_loss(call *c, PyObject *tuple);           /* kv_loss, which floats may have, too */
int is_codes(const dtype_row *dtype);
/* Words of a cache's format, of k or of v; NULL: plain. `before`: what else the argument may be. */
int format_of_word(const char *name, PyObject *word, const char *before, int of_v, const code_format **format);
/* Of k and v alike; NULL: an exception is set, here and below. */
const code_format *format_of_rows(const char *name, PyObject *word);
const code_format *format_find(const view *codes, const char *name, PyObject *word, int of_v); /* None: as their dtype says */
int64_t format_dim(const code_format *format, const view *codes); /* elements of a row; -1: an exception is set */
int scales_shape(const code_format *format, const view *codes, int64_t dim, int64_t shape[VIEW_DIMS]); /* how many dims */
/* Scales beside codes, or one number; *kind: tp_scales that they are, which the format says, or, if no word did (said 0) and
   codes are e4m3, what is given. */
int scales_open(view *v, const char *name, PyObject *object, const view *codes, const code_format *format, int said,
                int64_t dim, float *scale, int *kind);
int scores_open(call *c, PyObject *const *args);
int mask_parse(PyObject *text, tp_problem *problem, tp_error *error); /* -1: an exception is set */
tp_status scores_pack(call *c, tp_error *error);

/* Who does the work: so many threads (0: what the host allows), PyTorch's or a pool of our own. */
typedef struct crew {
    int threads, openmp;
} crew;
/* Of exactly so many threads as were asked for; otherwise PyTorch's where it is in the process, the host's number or fewer, and 1
 * for a call too small to share. */
crew crew_of(const tp_problem *problem, int threads, int max);
crew crew_of_any_size(int threads, int max); /* of a plan, which serves problems of several sizes */
int is_small(const tp_problem *problem);     /* too small to share */

/* One context for each crew; made anew after fork. */
typedef struct shared_context shared_context;
shared_context *context_take(crew who);
void preflight_again(tp_context *context); /* what tileproof.proof let in, for a new context */
tp_context *context_of(shared_context *s);
int context_is_here(const shared_context *s); /* 0: this process was forked since */
void context_give(shared_context *s);
shared_context *context_next(shared_context *s); /* of this process; NULL: the first, or none */

void openmp_init(void);
int openmp_usable(void); /* PyTorch is in this process, which was not forked since, and its OpenMP library is one we know */
void openmp_for(void *user, size_t count, tp_task task, void *context);

int integer_of(const char *name, PyObject *value, int64_t *out); /* -1, with an exception that names it */
int raise_status(tp_status status, const tp_error *error); /* -1, with the exception set */
extern PyObject *error_type, *refused_type, *unsupported_type, *not_locked_type, *cache_full_type;
extern const char *const remedy; /* how the text of a refused fallback ends */
int errors_init(PyObject *module);

/* What the library writes by a tp_write function, as a text; a new one is all 0. */
typedef struct buffer {
    char *text;
    size_t size, capacity;
} buffer;
int buffer_append(void *cookie, const char *bytes, size_t size); /* a tp_write; the cookie is a buffer */
PyObject *buffer_text(buffer *b, tp_status status);              /* empties it */
int telemetry_wanted(void); /* somebody listens to trace or events */
void telemetry_options(tp_context_options *options);
void telemetry_gone(const tp_context *context); /* before it is destroyed: its counts are kept */

/* Text of a receipt or decision: (text, json). */
PyObject *receipt_texts(const tp_receipt *receipt);
/* Bytes of which receipt_texts are made when somebody reads it (core_receipt_texts), or these where it refers to a plan. */
PyObject *receipt_raw(const tp_receipt *receipt);
PyObject *decision_texts(const tp_decision *decision);

/* The functions of the module. */
#define FUNCTION(name) PyObject *core_##name(PyObject *self, PyObject *const *args, Py_ssize_t count);
#include "functions.inc"
#undef FUNCTION
int wrong_count(const char *function, Py_ssize_t count, Py_ssize_t need);

#endif
