/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math: the honest baseline. One task is one query head of one sequence; its whole score matrix and its
 * whole probability matrix go to memory. Any head dim.
 */
#include "strategies/strategy.h"

#include <stdatomic.h>
#include <string.h>

#include "base/arena.h"
#include "masks/mask.h"
#include "problem/sequence.h"
#include "strategies/prepare.h"

#define MATRIX_STEP 64 /* floats: rows of the matrices start on cache lines; a multiple of every NR */

typedef struct room {
    tp__trace *trace;
    float *q, *k, *v, *s, *p, *o, *m, *l, *one;
    int64_t *lo, *hi;
    uint64_t *bits;      /* [rows][lds/64], where masks are not plain */
    float *scale, *slope, *q_at, *k_at; /* where scores change */
    const void **bias;
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
        one.lo = TP_TAKE(arena, int64_t, rows);
        one.hi = TP_TAKE(arena, int64_t, rows);
        one.bits = NULL;
        if (!tp__mask_is_plain(problem)) one.bits = TP_TAKE(arena, uint64_t, tp__times(rows, w->lds / 64));
        one.scale = one.slope = one.q_at = one.k_at = NULL;
        one.bias = NULL;
        if (problem->qscale_length > 0) one.scale = TP_TAKE(arena, float, rows);
        if (problem->alibi) {
            one.slope = TP_TAKE(arena, float, rows);
            one.q_at = TP_TAKE(arena, float, rows);
            one.k_at = TP_TAKE(arena, float, w->lds);
        }
        if (problem->bias_dtype != 0) one.bias = TP_TAKE(arena, const void *, rows);
        if (arena->base != NULL) w->slots[i] = one;
    }
}

static size_t workspace(const tp_problem *problem, const tp__kernels *kernels, int threads) {
    tp__arena arena = {NULL, 0};
    work w;
    lay_out(&w, problem, kernels, threads, &arena);
    return arena.used;
}

/* One interval, and where the mask is not plain the bits of the whole row. */
static void look_at_row(const work *w, const room *slot, tp__mask_view *view, int64_t head, int64_t r) {
    const tp_problem *problem = w->job->problem;
    tp__interval seen = {0, view->kv_len};
    if (slot->bits == NULL) {
        seen = tp__mask_interval(problem, view->first + r, view->kv_len);
        slot->trace->pairs_visible += seen.hi - seen.lo;
    }
    slot->lo[r] = seen.lo;
    slot->hi[r] = seen.hi;
    if (slot->bits == NULL) return;
    uint64_t *bits = slot->bits + r * (w->lds / 64), *seen_keys = tp__prepared_seen(w->job, view->seq);
    memset(bits, 0, (size_t)(w->lds / 64) * sizeof *bits);
    for (int64_t key = 0; key < view->kv_len; key += TP__MASK_KEYS)
        tp__mask_words(view, head, r, key, tp__min(TP__MASK_KEYS, view->kv_len - key), bits + key / 64);
    for (int64_t i = 0; i < (view->kv_len + 63) / 64; i++) {
        slot->trace->pairs_visible += __builtin_popcountll(bits[i]);
        atomic_fetch_or_explicit((_Atomic uint64_t *)&seen_keys[i], bits[i], memory_order_relaxed);
    }
    if (tp__mask_has(problem, TP_MASK_BITS)) slot->trace->bytes += (view->kv_len + 7) / 8;
}

static tp__modify look_at_scores(const work *w, const room *slot, tp__mask_view *view, int64_t head) {
    const tp_problem *problem = w->job->problem;
    const tp_tensors *tensors = w->job->tensors;
    for (int64_t r = 0; r < view->q_len; r++) {
        if (slot->scale != NULL)
            slot->scale[r] = (float)tp__row_scale(problem, tp__mask_q_pos(view, r));
        if (slot->slope != NULL) {
            slot->slope[r] = tp__slope_log2(tensors, view->seq, head);
            slot->q_at[r] = (float)(tp__mask_q_pos(view, r) - tp__mask_k_pos(view, 0));
        }
        if (slot->bias != NULL) {
            slot->bias[r] = tp__bias_at(problem, tensors, view->seq, head, r, 0);
            slot->trace->bytes += view->kv_len * (int64_t)tp_dtype_bytes((tp_dtype)problem->bias_dtype);
        }
    }
    for (int64_t j = 0; slot->k_at != NULL && j < w->lds; j++)
        slot->k_at[j] = j < view->kv_len
                            ? (float)(tp__mask_k_pos(view, j) - tp__mask_k_pos(view, 0))
                            : 0.0f;
    return (tp__modify){.scale = slot->scale, .cap = problem->softcap, .slope = slot->slope,
                        .q_at = slot->q_at, .k_at = slot->k_at, .bias = slot->bias,
                        .bias_stride = problem->bias_dtype ? tensors->bias_stride[3] : 0,
                        .bias_dtype = problem->bias_dtype};
}

static void run_head(const work *w, const room *slot, int64_t index, int64_t head) {
    const tp_problem *problem = w->job->problem;
    const tp_tensors *tensors = w->job->tensors;
    const tp__kernels *kernels = w->job->kernels;
    tp__sequence seq = tp__sequence_at(problem, tensors, index);
    if (seq.q_len == 0) return;
    int64_t kv_head = head / (problem->q_heads / problem->kv_heads);
    tp__rows rows = {0, seq.q_len, 1, tensors->q.stride[1], tensors->q.stride[2]};
    tp__mask_view view = tp__prepared_view(w->job, &seq);
    tp__mask_look(&view);
    for (int64_t r = 0; r < seq.q_len; r++) look_at_row(w, slot, &view, head, r);
    tp__modify modify = look_at_scores(w, slot, &view, head);
    tp__math head_math = {
        .q = slot->q, .ldq = w->ldq, .k = slot->k, .v = slot->v, .s = slot->s, .p = slot->p,
        .lds = w->lds, .o = slot->o, .ldo = w->ldo, .m = slot->m, .l = slot->l, .lo = slot->lo,
        .hi = slot->hi, .rows = seq.q_len, .d = problem->head_dim_qk, .dv = problem->head_dim_v,
        .keys = seq.kv_len, .block = w->lds, .bits = slot->bits, .bit_words = w->lds / 64,
        .modify = tp__modifies_scores(problem) ? &modify : NULL,
        .sink = tp__sink_log2(problem, tensors, head),
    };
    kernels->load_q[problem->q_dtype](
        slot->trace, slot->q, w->ldq,
        tp__element(&tensors->q, seq.q + head * tensors->q.stride[2], problem->q_dtype), &rows,
        problem->head_dim_qk, tp__scale_log2(problem));
    if (seq.kv_len > 0) {
        kernels->pack_k[problem->k_dtype](
            slot->trace, slot->k,
            tp__element(&tensors->k, seq.k + kv_head * tensors->k.stride[2], problem->k_dtype),
            tensors->k.stride[1], 0, seq.kv_len, w->lds, problem->head_dim_qk);
        head_math.v_not_finite = kernels->pack_v[problem->v_dtype](
            slot->trace, slot->v,
            tp__element(&tensors->v, seq.v + kv_head * tensors->v.stride[2], problem->v_dtype),
            tensors->v.stride[1], 0, seq.kv_len, w->lds, problem->head_dim_v);
    }
    kernels->math(slot->trace, &head_math);
    /* the probabilities are already divided by l; a NaN in it still marks the row */
    for (int64_t r = 0; r < seq.q_len; r++) slot->one[r] = slot->l[r] == slot->l[r] ? 1.0f : slot->l[r];
    /* q, k, v, o, lse once; the scores written and read, the probabilities written and read */
    slot->trace->bytes += seq.q_len * tp__row_bytes(problem, tensors) +
                          seq.kv_len * tp__key_bytes(problem) +
                          4 * seq.q_len * seq.kv_len * (int64_t)sizeof(float);
    rows.stride_token = tensors->o.stride[1];
    rows.stride_head = tensors->o.stride[2];
    kernels->store_o[problem->o_dtype](
        slot->trace,
        tp__element(&tensors->o, seq.o + head * tensors->o.stride[2], problem->o_dtype),
        &rows, problem->head_dim_v, slot->o, w->ldo, slot->m, slot->one);
    tp__store_lse(tensors, seq.lse + head * tensors->lse.stride[2], &rows, slot->m, slot->l);
}

static void run_task(void *context, size_t index) {
    work *w = context;
    const room *slot = &w->slots[index];
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
