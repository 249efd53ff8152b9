/* SPDX-License-Identifier: Apache-2.0 */
/* One call: what the kernels are told of it, their launches, and reading back what they counted. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

void tp__ocl_job_chain(tp__ocl_job *job, cl_event event) {
    if (job->last != NULL) job->cl->cl.clReleaseEvent(job->last);
    job->last = event;
}

void tp__ocl_job_free(tp__ocl_job *job) {
    const tp__ocl_driver *d = &job->cl->cl;
    if (job->last != NULL) d->clReleaseEvent(job->last);
    for (int i = 0; i < job->launches; i++) d->clReleaseEvent(job->events[i]);
    free(job->staged);
    free(job);
}

void tp__ocl_release_event(void *user, void *event) {
    ((tp_opencl *)user)->cl.clReleaseEvent(event);
}

/* ---- the call's numbers */

static number bits_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* As src/strategies/common.c splits the scale: a power of two that goes into q, and what is left. */
static void put_scale(call *c, const tp_problem *p) {
    float scale = p->scale_set ? p->scale : (float)(1.0 / sqrt((double)p->head_dim_qk));
    int exponent = 0;
    float gain = scale == 0 ? 1.0f : 2 * frexpf(fabsf(scale), &exponent);
    c->natural = p->softcap > 0 || p->alibi;
    c->scale = bits_of(scale);
    c->factor = bits_of(scale == 0 ? 0.0f : copysignf(ldexpf(1.0f, exponent - 1), scale));
    c->gain = bits_of(gain);
    c->unit = bits_of((float)((c->natural ? 1.0f : gain) * 1.4426950408889634074));
    c->cap = bits_of(p->softcap);
}

static void put_numbers(tp__ocl_job *job) {
    const tp_problem *p = job->submission.problem;
    const tp_tensors *t = job->submission.tensors;
    const tp__ocl_tiles tiles = tp__ocl_tiles_of(job->cl, p);
    const tp__ocl_workspace space = tp__ocl_workspace_of(job->cl, p);
    const char *unserved;
    call *c = &job->call;
    c->batch = t->batch;
    c->q_heads = p->q_heads;
    c->kv_heads = p->kv_heads;
    c->head_dim_qk = p->head_dim_qk;
    c->head_dim_v = p->head_dim_v;
    c->q_len = t->q_len;
    c->kv_len = t->kv_len;
    c->q_max = p->q_len;
    c->kv_max = p->kv_len;
    c->q_tokens = t->q_tokens;
    c->kv_tokens = t->kv_tokens;
    c->q_packed = p->q_layout == TP_PACKED;
    c->kv_packed = p->kv_layout == TP_PACKED;
    c->page_size = p->kv_layout == TP_PAGED ? p->page_size : 0;
    c->pages = t->pages;
    /* a table holds no more keys than its pages have, whatever a length on the device says */
    if (c->page_size > 0 && t->page_slots < c->kv_len / c->page_size + 1 && c->kv_len > t->page_slots * c->page_size)
        c->kv_len = t->page_slots * c->page_size;
    c->wide = t->index_type == TP_I64;
    c->slopes_stride = t->alibi_stride;
    c->top_left = p->align == TP_TOP_LEFT;
    c->few = tiles.few;
    c->splits = tiles.splits;
    c->split_keys = TP__SPLIT_KEYS;
    c->mark = job->submission.kernel + 1;
    c->states = space.states / 4;
    c->deltas = space.deltas / 4;
    c->row_slopes = p->op == TP_BACKWARD && p->alibi ? space.row_slopes / 4 : -1;
    tp__ocl_mask_of(p, c, &unserved);
    put_scale(c, p);
}

/* ---- buffers */

typedef enum slot { Q, K, V, O, LSE, SLOPES, SINKS, D_O, D_LSE, D_Q, D_K, D_V, D_SLOPES, D_SINKS, SLOTS } slot;

static size_t bytes_of(int32_t dtype) {
    return dtype == TP_F32 ? 4 : 2;
}

/* Elements from the first to behind the last of a tensor that is laid out like q, or like k; 0: it has none. */
static int64_t reach(const tp_problem *p, const tp_tensors *t, int of_q, const int64_t *stride, int64_t dim) {
    int packed = (of_q ? p->q_layout : p->kv_layout) == TP_PACKED, paged = !of_q && p->kv_layout == TP_PAGED;
    int64_t outer = packed ? 1 : paged ? t->pages : t->batch, heads = of_q ? p->q_heads : p->kv_heads;
    int64_t tokens = packed ? (of_q ? t->q_tokens : t->kv_tokens) : paged ? p->page_size : of_q ? t->q_len : t->kv_len;
    if (outer <= 0 || tokens <= 0) return 0;
    return (outer - 1) * stride[0] * !packed + (tokens - 1) * stride[1] + (heads - 1) * stride[2] + dim;
}

/* Finds the buffer of each tensor; what a kernel gets for one that is not given is the workspace, which it does not touch. */
static tp_status put_buffers(tp__ocl_job *job, const tp__ocl_place *workspace, cl_mem handles[SLOTS], tp_error *error) {
    static const tp_gradients none = TP_GRADIENTS_INIT;
    const tp_problem *p = job->submission.problem;
    const tp_tensors *t = job->submission.tensors;
    const tp_gradients *g = p->op == TP_BACKWARD ? t->gradients : &none;
    call *c = &job->call;
    const struct {
        const char *name;
        const void *data;
        size_t unit;
        number *at, *stride;
        const int64_t *given;
        int64_t elements; /* that its buffer must have */
    } rows[SLOTS] = {
        [Q] = {"q", t->q.data, bytes_of(p->q_dtype), &c->q, c->q_stride, t->q.stride,
               reach(p, t, 1, t->q.stride, p->head_dim_qk)},
        [K] = {"k", t->k.data, bytes_of(p->k_dtype), &c->k, c->k_stride, t->k.stride,
               reach(p, t, 0, t->k.stride, p->head_dim_qk)},
        [V] = {"v", t->v.data, bytes_of(p->v_dtype), &c->v, c->v_stride, t->v.stride, reach(p, t, 0, t->v.stride, p->head_dim_v)},
        [O] = {"o", t->o.data, bytes_of(p->o_dtype), &c->o, c->o_stride, t->o.stride, reach(p, t, 1, t->o.stride, p->head_dim_v)},
        [LSE] = {"lse", t->lse.data, 4, &c->lse, c->lse_stride, t->lse.stride, reach(p, t, 1, t->lse.stride, 1)},
        [SLOPES] = {"alibi_slopes", p->alibi ? t->alibi_slopes : NULL, 4, &c->slopes, NULL, NULL,
                    (t->batch > 0 ? (t->batch - 1) * t->alibi_stride : 0) + p->q_heads},
        [SINKS] = {"sinks", p->sinks ? t->sinks : NULL, 4, &c->sinks, NULL, NULL, p->q_heads},
        [D_O] = {"d_o", g->d_o.data, bytes_of(p->o_dtype), &c->d_o, c->d_o_stride, g->d_o.stride,
                 reach(p, t, 1, g->d_o.stride, p->head_dim_v)},
        [D_LSE] = {"d_lse", g->d_lse.data, 4, &c->d_lse, c->d_lse_stride, g->d_lse.stride, reach(p, t, 1, g->d_lse.stride, 1)},
        [D_Q] = {"d_q", g->d_q.data, bytes_of(p->q_dtype), &c->d_q, c->d_q_stride, g->d_q.stride,
                 reach(p, t, 1, g->d_q.stride, p->head_dim_qk)},
        [D_K] = {"d_k", g->d_k.data, bytes_of(p->k_dtype), &c->d_k, c->d_k_stride, g->d_k.stride,
                 reach(p, t, 0, g->d_k.stride, p->head_dim_qk)},
        [D_V] = {"d_v", g->d_v.data, bytes_of(p->v_dtype), &c->d_v, c->d_v_stride, g->d_v.stride,
                 reach(p, t, 0, g->d_v.stride, p->head_dim_v)},
        [D_SLOPES] = {"d_alibi_slopes", p->alibi ? g->d_alibi_slopes : NULL, 4, &c->d_slopes, NULL, NULL,
                      (t->batch > 0 ? (t->batch - 1) * g->d_alibi_stride : 0) + p->q_heads},
        [D_SINKS] = {"d_sinks", p->sinks ? g->d_sinks : NULL, 4, &c->d_sinks, NULL, NULL, p->q_heads},
    };
    c->d_slopes_stride = g->d_alibi_stride;
    for (int i = 0; i < SLOTS; i++) {
        tp__ocl_place place = {workspace->handle, 0};
        *rows[i].at = -1;
        if (rows[i].data != NULL && rows[i].elements > 0) {
            size_t needed = (size_t)rows[i].elements * rows[i].unit, left = tp__ocl_memory_find(job->cl, rows[i].data, &place);
            if (left < needed)
                return tp__ocl_fail(error, TP_INVALID,
                                    "%s is %p, %zu bytes: its buffer has %zu there (tp_memory_allocate, tp_opencl_import)",
                                    rows[i].name, rows[i].data, needed, left);
            *rows[i].at = (number)(place.offset / rows[i].unit);
        }
        handles[i] = place.handle;
        for (int x = 0; rows[i].stride != NULL && x < 3; x++) rows[i].stride[x] = rows[i].given[x];
    }
    c->workspace = (number)(workspace->offset / 4);
    return TP_OK;
}

/* ---- launches */

/* Where launches of a job go, and the buffers that they may take. */
typedef struct target {
    tp__ocl_job *job;
    cl_command_queue queue;
    cl_mem workspace, handles[SLOTS];
} target;

/* arguments: slots, SLOTS for the workspace, -1 at the end. */
static tp_status launch(const target *to, const char *name, const int *arguments, const int64_t groups[3], int split,
                        tp_error *error) {
    tp__ocl_job *job = to->job;
    tp_opencl *cl = job->cl;
    if (groups[0] <= 0 || groups[1] <= 0 || groups[2] <= 0) return TP_OK;
    cl_program program = NULL;
    TP__TRY(tp__ocl_program_of(cl, job->submission.problem, split, &program, error));
    cl_int code = CL_SUCCESS;
    cl_kernel kernel = cl->cl.clCreateKernel(program, name, &code);
    TP__CL_TRY(error, "clCreateKernel", code);
    code = cl->cl.clSetKernelArg(kernel, 0, sizeof job->call, &job->call);
    for (cl_uint i = 0; arguments[i] >= 0 && code == CL_SUCCESS; i++)
        code = cl->cl.clSetKernelArg(kernel, i + 1, sizeof(cl_mem),
                                     arguments[i] == SLOTS ? &to->workspace : &to->handles[arguments[i]]);
    tp_status status = tp__ocl_status(error, "clSetKernelArg", code);
    if (status == TP_OK) {
        const size_t local[3] = {TP__LANES, 1, 1};
        const size_t global[3] = {(size_t)groups[0] * TP__LANES, (size_t)groups[1], (size_t)groups[2]};
        cl_event event = NULL;
        code = cl->cl.clEnqueueNDRangeKernel(to->queue, kernel, 3, NULL, global, local, job->last != NULL,
                                             job->last != NULL ? &job->last : NULL, &event);
        status = tp__ocl_status(error, "clEnqueueNDRangeKernel", code);
        if (status == TP_OK) {
            tp__ocl_job_chain(job, event);
            status = tp__ocl_status(error, "clRetainEvent", cl->cl.clRetainEvent(event));
        }
        if (status == TP_OK) {
            job->events[job->launches] = event;
            job->launch[job->launches++] = (tp_launch){name, 1};
        }
    }
    cl->cl.clReleaseKernel(kernel);
    return status;
}

static int64_t pieces(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

static tp_status launch_backward(const target *to, tp_error *error) {
    static const int delta[] = {O, D_O, D_LSE, SLOTS, -1}, keys[] = {Q, K, V, D_O, LSE, SLOPES, D_K, D_V, SLOTS, -1},
                     rows[] = {Q, K, V, D_O, LSE, SLOPES, D_Q, SLOTS, -1}, heads[] = {LSE, SINKS, D_SINKS, D_SLOPES, SLOTS, -1};
    const tp_problem *p = to->job->submission.problem;
    const tp_tensors *t = to->job->submission.tensors;
    const call *c = &to->job->call;
    const tp__ocl_lengths lengths = tp__ocl_lengths_of(p, t);
    int64_t tile = tp__ocl_tiles_of(to->job->cl, p).back, group = p->q_heads / p->kv_heads;
    const int64_t of_delta[3] = {pieces(lengths.q_max, TP__LANES), p->q_heads, t->batch};
    const int64_t of_keys[3] = {pieces(lengths.kv_max, tile), p->kv_heads, t->batch};
    const int64_t of_rows[3] = {pieces(lengths.q_max * group, tile), p->kv_heads, t->batch};
    const int64_t of_heads[3] = {c->d_sinks >= 0 || c->d_slopes >= 0 ? p->q_heads : 0, 1, 1};
    TP__TRY(launch(to, "back_delta", delta, of_delta, 0, error));
    TP__TRY(launch(to, "back_keys", keys, of_keys, 0, error));
    TP__TRY(launch(to, "back_rows", rows, of_rows, 0, error));
    return launch(to, "back_heads", heads, of_heads, 0, error);
}

/* Sequences of many rows and those of few have kernels of their own: each is launched where there may be any. */
static tp_status launch_forward(const target *to, tp_error *error) {
    static const int attend[] = {Q, K, V, O, LSE, SLOPES, SINKS, SLOTS, -1}, merge[] = {O, LSE, SINKS, SLOTS, -1};
    const tp_problem *p = to->job->submission.problem;
    const tp_tensors *t = to->job->submission.tensors;
    const tp__ocl_tiles tiles = tp__ocl_tiles_of(to->job->cl, p);
    const tp__ocl_lengths lengths = tp__ocl_lengths_of(p, t);
    int64_t group = p->q_heads / p->kv_heads, splits = pieces(lengths.kv_max, TP__SPLIT_KEYS);
    int many = lengths.q_max * group > tiles.few, few = lengths.q_min <= tiles.few / group;
    const int64_t of_many[3] = {many ? pieces(lengths.q_max * group, tiles.rows) : 0, p->kv_heads, t->batch};
    const int64_t of_few[3] = {few ? pieces(tiles.few, TP__SPLIT_TILE) : 0, p->kv_heads * splits, t->batch};
    const int64_t of_merge[3] = {of_few[0], p->kv_heads, t->batch};
    to->job->call.splits = splits > 0 ? splits : 1;
    TP__TRY(launch(to, "attend", attend, of_many, 0, error));
    TP__TRY(launch(to, "attend_split", attend, of_few, 1, error));
    return launch(to, "attend_merge", merge, of_merge, 1, error);
}

static tp_status check_queue(tp_opencl *cl, cl_command_queue queue, int *timed, tp_error *error) {
    cl_context context = NULL;
    cl_device_id device = NULL;
    cl_command_queue_properties properties = 0;
    TP__CL_TRY(error, "clGetCommandQueueInfo",
               cl->cl.clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL));
    TP__CL_TRY(error, "clGetCommandQueueInfo",
               cl->cl.clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL));
    TP__CL_TRY(error, "clGetCommandQueueInfo",
               cl->cl.clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL));
    if (context != cl->context || device != cl->device)
        return tp__ocl_fail(error, TP_INVALID,
                            "queue is of another %s than the backend's: make one with clCreateCommandQueue there",
                            context != cl->context ? "context" : "device");
    *timed = (properties & CL_QUEUE_PROFILING_ENABLE) != 0;
    return TP_OK;
}

/* Everything up to the command that reads the counters back, whose event is job->last. */
static tp_status enqueue(tp__ocl_job *job, cl_command_queue queue, tp_error *error) {
    tp_opencl *cl = job->cl;
    const tp_submission *s = &job->submission;
    target to = {.job = job, .queue = queue};
    tp__ocl_place workspace;
    size_t needed = (size_t)tp__ocl_workspace_of(cl, s->problem).bytes, left = tp__ocl_memory_find(cl, s->workspace, &workspace);
    if (left < needed)
        return tp__ocl_fail(error, TP_WORKSPACE, "workspace is %p: its buffer has %zu bytes there, %zu are needed", s->workspace,
                            left, needed);
    put_numbers(job);
    TP__TRY(put_buffers(job, &workspace, to.handles, error));
    job->planned = tp__ocl_tiles_planned(cl, s->problem, s->tensors);
    TP__TRY(tp__ocl_arrays_queue(job, queue, &workspace, error));
    to.workspace = workspace.handle;
    TP__TRY(s->problem->op == TP_BACKWARD ? launch_backward(&to, error) : launch_forward(&to, error));
    cl_event event = NULL;
    TP__CL_TRY(error, "clEnqueueReadBuffer",
               cl->cl.clEnqueueReadBuffer(queue, workspace.handle, CL_FALSE, workspace.offset, sizeof job->counters,
                                          job->counters, 1, &job->last, &event));
    tp__ocl_job_chain(job, event);
    TP__CL_TRY(error, "clFlush", cl->cl.clFlush(queue));
    return TP_OK;
}

tp_status tp__ocl_submit(void *user, const tp_submission *submission, void **event, tp_error *error) {
    tp_opencl *cl = user;
    cl_command_queue queue = submission->queue != NULL ? submission->queue : cl->queue;
    int timed = 1;
    if (submission->queue != NULL) TP__TRY(check_queue(cl, queue, &timed, error));
    tp__ocl_job *job = calloc(1, sizeof *job);
    if (job == NULL) return tp__ocl_fail(error, TP_NO_MEMORY, "no host memory for a call");
    job->cl = cl;
    job->submission = *submission;
    job->timed = timed;
    tp_status status = enqueue(job, queue, error);
    cl_event last = job->last;
    if (status == TP_OK) status = tp__ocl_status(error, "clRetainEvent", cl->cl.clRetainEvent(last));
    if (status == TP_OK) {
        /* the job may be done and gone before clSetEventCallback returns */
        status = tp__ocl_status(error, "clSetEventCallback",
                                cl->cl.clSetEventCallback(last, CL_COMPLETE, tp__ocl_complete_event, job));
        if (status == TP_OK) {
            *event = last;
            return TP_OK;
        }
        cl->cl.clReleaseEvent(last);
    }
    /* nothing may be at work on the call's memory when this returns */
    if (job->last != NULL && cl->cl.clWaitForEvents(1, &job->last) != CL_SUCCESS) cl->cl.clFinish(queue);
    tp__ocl_job_free(job);
    return status;
}
