/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters and index arrays on their way into the workspace, where kernels read them. Those of the host are copied at once, so
 * that the caller may change them; those of the device are copied there.
 */
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

static int64_t at(const tp_tensors *t, const void *array, int64_t i) {
    return t->index_type == TP_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Of sequence s, by arrays of the host. */
static void lengths_at(const tp_problem *p, const tp_tensors *t, int64_t s, int64_t *q_len, int64_t *kv_len) {
    *q_len = p->q_layout == TP_PACKED ? at(t, t->cu_seqlens_q, s + 1) - at(t, t->cu_seqlens_q, s) : t->q_len;
    *kv_len = p->kv_layout == TP_PACKED ? at(t, t->cu_seqlens_kv, s + 1) - at(t, t->cu_seqlens_kv, s) : t->kv_len;
    if (t->q_lens != NULL) *q_len = at(t, t->q_lens, s);
    if (t->kv_lens != NULL) *kv_len = at(t, t->kv_lens, s);
}

tp__ocl_lengths tp__ocl_lengths_of(const tp_problem *p, const tp_tensors *t) {
    tp__ocl_lengths all = {p->q_layout == TP_PACKED ? p->q_len : t->q_len, p->kv_layout == TP_PACKED ? p->kv_len : t->kv_len, 1};
    if (t->index_device != TP_CPU) return all;
    int64_t q, kv;
    all = (tp__ocl_lengths){0, 0, INT64_MAX};
    for (int64_t s = 0; s < t->batch; s++) {
        lengths_at(p, t, s, &q, &kv);
        all.q_max = larger(all.q_max, q);
        all.kv_max = larger(all.kv_max, kv);
        if (q > 0) all.q_min = smaller(all.q_min, q);
    }
    return all;
}

static int64_t pieces(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

/* Work-groups that have something to do. */
int64_t tp__ocl_tiles_planned(const tp_opencl *cl, const tp_problem *p, const tp_tensors *t) {
    const tp__ocl_tiles tiles = tp__ocl_tiles_of(cl, p);
    const tp_gradients *g = t->gradients;
    int64_t group = p->q_heads / p->kv_heads, sum = 0, q, kv;
    if (t->index_device != TP_CPU) return -1;
    for (int64_t s = 0; s < t->batch; s++) {
        lengths_at(p, t, s, &q, &kv);
        int64_t rows = q * group;
        if (p->op == TP_BACKWARD)
            sum += pieces(q, TP__LANES) * p->q_heads + (pieces(kv, tiles.back) + pieces(rows, tiles.back)) * p->kv_heads;
        else if (rows <= tiles.few)
            sum += (pieces(rows, TP__SPLIT_TILE) * pieces(kv, TP__SPLIT_KEYS) + pieces(rows, TP__SPLIT_TILE)) * p->kv_heads;
        else
            sum += pieces(rows, tiles.rows) * p->kv_heads;
    }
    int heads = p->op == TP_BACKWARD && ((p->sinks && g->d_sinks != NULL) || (p->alibi && g->d_alibi_slopes != NULL));
    return sum + (heads ? p->q_heads : 0);
}

/* One array: entries from row to row in memory, and of each row how many are taken. */
typedef struct array {
    const void *from;
    int64_t rows, stride, take;
    number *to; /* where in the workspace, in ints */
} array;

static tp_status copy_on_device(tp__ocl_job *job, cl_command_queue queue, const array *a, int64_t unit, size_t to,
                                const tp__ocl_place *workspace, tp_error *error) {
    tp_opencl *cl = job->cl;
    int64_t rows = a->stride == a->take ? 1 : a->rows, take = a->stride == a->take ? a->rows * a->take : a->take;
    for (int64_t r = 0; r < rows; r++) {
        tp__ocl_place place;
        const char *from = (const char *)a->from + r * a->stride * unit;
        if (tp__ocl_memory_find(cl, from, &place) < (size_t)(take * unit))
            return tp__ocl_fail(error, TP_INVALID, "an index array at %p is no %lld entries of the device's memory",
                                (const void *)from, (long long)take);
        cl_event event = NULL;
        TP__CL_TRY(error, "clEnqueueCopyBuffer",
                   cl->cl.clEnqueueCopyBuffer(queue, place.handle, workspace->handle, place.offset,
                                              workspace->offset + to + (size_t)(r * take * unit), (size_t)(take * unit),
                                              job->last != NULL, job->last != NULL ? &job->last : NULL, &event));
        tp__ocl_job_chain(job, event);
    }
    return TP_OK;
}

tp_status tp__ocl_arrays_queue(tp__ocl_job *job, cl_command_queue queue, const tp__ocl_place *workspace, tp_error *error) {
    tp_opencl *cl = job->cl;
    const tp_problem *p = job->submission.problem;
    const tp_tensors *t = job->submission.tensors;
    call *c = &job->call;
    int64_t unit = t->index_type == TP_I64 ? 8 : 4, slots = 0;
    if (p->page_size > 0) slots = smaller(t->page_slots, pieces(p->kv_len, p->page_size));
    c->page_slots = slots;
    const array arrays[] = {
        {p->q_layout == TP_PACKED ? t->cu_seqlens_q : NULL, 1, t->batch + 1, t->batch + 1, &c->cu_q},
        {p->kv_layout == TP_PACKED ? t->cu_seqlens_kv : NULL, 1, t->batch + 1, t->batch + 1, &c->cu_kv},
        {t->q_lens, 1, t->batch, t->batch, &c->q_lens},
        {t->kv_lens, 1, t->batch, t->batch, &c->kv_lens},
        {p->page_size > 0 ? t->k_pages : NULL, t->batch, t->page_slots, slots, &c->k_pages},
        {p->page_size > 0 ? t->v_pages : NULL, t->batch, t->page_slots, slots, &c->v_pages},
    };
    enum { ARRAYS = sizeof arrays / sizeof *arrays };
    int64_t start[ARRAYS], bytes = 4 * COUNTERS;
    for (int i = 0; i < ARRAYS; i++) {
        start[i] = bytes;
        *arrays[i].to = arrays[i].from != NULL ? bytes / 4 : -1;
        if (arrays[i].from != NULL) bytes += (arrays[i].rows * arrays[i].take * unit + 7) / 8 * 8;
    }
    if (c->v_pages < 0) c->v_pages = c->k_pages;
    int on_host = t->index_device == TP_CPU;
    int64_t staged = on_host ? bytes : 4 * COUNTERS;
    job->staged = calloc(1, (size_t)staged);
    if (job->staged == NULL)
        return tp__ocl_fail(error, TP_NO_MEMORY, "no host memory for index arrays of %lld bytes", (long long)staged);
    for (int i = 0; on_host && i < ARRAYS; i++)
        for (int64_t r = 0; arrays[i].from != NULL && r < arrays[i].rows; r++)
            memcpy((char *)job->staged + start[i] + r * arrays[i].take * unit,
                   (const char *)arrays[i].from + r * arrays[i].stride * unit, (size_t)(arrays[i].take * unit));
    cl_event event = NULL;
    TP__CL_TRY(error, "clEnqueueWriteBuffer",
               cl->cl.clEnqueueWriteBuffer(queue, workspace->handle, CL_FALSE, workspace->offset, (size_t)staged, job->staged, 0,
                                           NULL, &event));
    tp__ocl_job_chain(job, event);
    for (int i = 0; !on_host && i < ARRAYS; i++)
        if (arrays[i].from != NULL && arrays[i].rows * arrays[i].take > 0)
            TP__TRY(copy_on_device(job, queue, &arrays[i], unit, (size_t)start[i], workspace, error));
    return TP_OK;
}
