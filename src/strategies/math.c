/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math: the honest baseline. One task is one query head of one sequence; its whole score matrix and its
 * whole probability matrix go to memory. Any head dim.
 */
#include "strategies/strategy.h"

#include <stdatomic.h>
#include <string.h>

#include "base/arena.h"
#include "strategies/sight.h"

#define MATRIX_STEP 64 /* floats: rows of the matrices start on cache lines; a multiple of every NR */

typedef struct room {
    tp__trace *trace;
    float *q, *k, *v, *s, *p, *o, *m, *l, *one;
    tp__sight sight;
    const char **k_row, **v_row;
} room;

typedef struct work {
    const tp__job *job;
    atomic_llong ticket;
    int64_t ldq, ldo, lds;
    room *slots;
} work;

static void lay_out(work *w, const tp_problem *problem, const tp__kernels *kernels, int threads,
                    tp__arena *arena) {
    int64_t rows = problem->q_len;
    w->ldq = tp__round_up(problem->head_dim_qk, kernels->lanes);
    w->ldo = tp__round_up(problem->head_dim_v, kernels->lanes);
    w->lds = tp__round_up(problem->kv_len, MATRIX_STEP);
    w->slots = TP_TAKE(arena, room, threads);
    for (int i = 0; i < threads; i++) {
        room one;
        one.trace = TP_TAKE(arena, tp__trace, 1);
        one.q = TP_TAKE(arena, float, tp__times(rows, w->ldq));
        one.k = TP_TAKE(arena, float, tp__times(w->lds, problem->head_dim_qk));
        one.v = TP_TAKE(arena, float, tp__times(w->lds, w->ldo));
        one.s = TP_TAKE(arena, float, tp__times(rows, w->lds));
        one.p = TP_TAKE(arena, float, tp__times(rows, w->lds));
        one.o = TP_TAKE(arena, float, tp__times(rows, w->ldo));
        one.m = TP_TAKE(arena, float, rows);
        one.l = TP_TAKE(arena, float, rows);
        one.one = TP_TAKE(arena, float, rows);
        one.sight = tp__sight_take(arena, rows, 0);
        one.k_row = TP_TAKE(arena, const char *, w->lds);
        one.v_row = TP_TAKE(arena, const char *, w->lds);
        if (arena->base != NULL) w->slots[i] = one;
    }
}

static size_t workspace(const tp_problem *problem, const tp__kernels *kernels, int path, int threads) {
    (void)path;
    tp__arena arena = {NULL, 0};
    work w;
    lay_out(&w, problem, kernels, threads, &arena);
    return arena.used;
}

/* Rows first..first+count-1 of one query head: all of them, or one token with its list of keys. */
static void run_rows(const work *w, room *slot, int64_t index, int64_t head, int64_t first, int64_t count) {
    const tp_problem *problem = w->job->problem;
    const tp_tensors *tensors = w->job->tensors;
    const tp__kernels *kernels = w->job->kernels;
    int64_t group = problem->q_heads / problem->kv_heads, kv_head = head / group;
    tp__keys keys = tp__keys_of(problem, tensors, index, first);
    tp__rows rows = {first, count, 1, tensors->q.stride[1], tensors->q.stride[2]};
    slot->trace->pairs_visible += tp__sight_tokens(&slot->sight, problem, &keys, first, count);
    tp__interval any = slot->sight.any;
    tp__math head_math = {
        .q = slot->q, .ldq = w->ldq, .k = slot->k, .v = slot->v, .s = slot->s, .p = slot->p,
        .lds = w->lds, .o = slot->o, .ldo = w->ldo, .m = slot->m, .l = slot->l, .lo = slot->sight.lo,
        .hi = slot->sight.hi, .rows = count, .d = problem->head_dim_qk, .dv = problem->head_dim_v,
        .keys = any.lo < any.hi ? keys.count : 0, .block = w->lds,
    };
    kernels->load_q[problem->q_dtype](
        slot->trace, slot->q, w->ldq,
        tp__element(&tensors->q, keys.seq.q + head * tensors->q.stride[2], problem->q_dtype), &rows,
        problem->head_dim_qk, tp__scale_log2(problem));
    if (any.lo < any.hi) {
        tp__ahead none = {0};
        tp__keys_rows(&keys, any.lo, keys.count - any.lo, any.hi, slot->k_row + any.lo,
                      slot->v_row + any.lo);
        for (int64_t key = 0; key < any.lo; key++) { /* computed and masked like the others */
            slot->k_row[key] = slot->k_row[any.lo];
            slot->v_row[key] = slot->v_row[any.lo];
        }
        tp__keys_in in = {(const char *const *)slot->k_row,
                          kv_head * tensors->k.stride[2] * (int64_t)tp_dtype_bytes(problem->k_dtype),
                          0, keys.count, &none};
        kernels->pack_k[problem->k_dtype](slot->trace, slot->k, &in, w->lds, problem->head_dim_qk);
        in.row = (const char *const *)slot->v_row;
        in.offset = kv_head * tensors->v.stride[2] * (int64_t)tp_dtype_bytes(problem->v_dtype);
        head_math.v_not_finite =
            kernels->pack_v[problem->v_dtype](slot->trace, slot->v, &in, w->lds, problem->head_dim_v);
    }
    kernels->math(slot->trace, &head_math);
    /* the probabilities are already divided by l; a NaN in it still marks the row */
    for (int64_t r = 0; r < count; r++) slot->one[r] = slot->l[r] == slot->l[r] ? 1.0f : slot->l[r];
    /* the f32 copies of q, k, v and o, the scores and the probabilities: each written and read */
    int64_t scratch = (int64_t)sizeof(float) * (count * (w->ldq + w->ldo) +
                                                keys.count * (problem->head_dim_qk + w->ldo) +
                                                2 * count * keys.count);
    slot->trace->bytes_scratch += scratch;
    slot->trace->bytes += count * tp__row_bytes(problem, tensors) +
                          (any.hi - any.lo) * tp__key_bytes(problem) + 2 * scratch;
    rows.stride_token = tensors->o.stride[1];
    rows.stride_head = tensors->o.stride[2];
    kernels->store_o[problem->o_dtype](
        slot->trace,
        tp__element(&tensors->o, keys.seq.o + head * tensors->o.stride[2], problem->o_dtype), &rows,
        problem->head_dim_v, slot->o, w->ldo, slot->m, slot->one);
    tp__store_lse(tensors, keys.seq.lse + head * tensors->lse.stride[2], &rows, slot->m, slot->l);
}

static void run_head(const work *w, room *slot, int64_t index, int64_t head) {
    const tp_problem *problem = w->job->problem;
    int64_t rows = tp__sequence_at(problem, w->job->tensors, index).q_len;
    int64_t step = problem->list_len > 0 ? 1 : rows;
    for (int64_t first = 0; first < rows; first += step) run_rows(w, slot, index, head, first, step);
}

static void run_task(void *context, size_t index) {
    work *w = context;
    room *slot = &w->slots[index];
    int64_t heads = w->job->problem->q_heads, count = w->job->tensors->batch * heads, ticket;
    memset(slot->trace, 0, sizeof *slot->trace);
    while ((ticket = atomic_fetch_add_explicit(&w->ticket, 1, memory_order_relaxed)) < count)
        run_head(w, slot, ticket / heads, ticket % heads);
}

static void run(const tp__job *job) {
    tp__arena arena = {job->workspace, 0};
    work w = {.job = job};
    atomic_init(&w.ticket, 0);
    lay_out(&w, job->problem, job->kernels, job->threads, &arena);
    tp__parallel_run(&job->parallel, (size_t)job->threads, run_task, &w);
    for (int i = 0; i < job->threads; i++) tp__trace_add(job->trace, w.slots[i].trace);
}

const tp__strategy tp__strategy_math = {"math", 0, 0, workspace, run};
