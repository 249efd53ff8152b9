/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill: KV-outer over row ranges. For each range of merged rows of one KV head
 *
 *     load its Q rows once
 *     for each chunk of 4096 keys its rows see            keys are cut at absolute indices,
 *         start from the empty state                      never by rows, threads or lengths
 *         for each block of the chunk its rows see
 *             convert and pack K and V just in time
 *             for each tile of rows: attend
 *         fold the chunk's state into the rows' state
 *     store O = o/l and lse
 *
 * so that a row's bits depend on its own q, its keys and nothing else.
 */
#include "strategies/strategy.h"

#include <math.h>
#include <string.h>

#include "strategies/prepare.h"
#include "strategies/schedule.h"
#include "strategies/sight.h"

#define RANGE_ROWS 2048
#define RANGE_FLOATS (RANGE_ROWS * 128) /* of one row buffer: wide heads take fewer rows */

typedef struct state {
    float *m, *l, *o; /* [rows], [rows], [rows][ldo] */
} state;

/* One task's part of the workspace. */
typedef struct room {
    tp__trace *trace;
    float *q, *k, *v, *s;
    state whole, chunk;
    tp__sight sight;
} room;

typedef struct work {
    const tp__job *job;
    tp__schedule schedule;
    int64_t range_rows, ldq, ldo;
    int block, tile_rows;
    room *slots;
} work;

static state take_state(tp__arena *arena, int64_t rows, int64_t ldo) {
    state s;
    s.m = TP_TAKE(arena, float, rows);
    s.l = TP_TAKE(arena, float, rows);
    s.o = TP_TAKE(arena, float, rows * ldo);
    return s;
}

/* Everything that depends only on problem, kernels and threads; pointers when arena has a base. */
static work lay_out(const tp_problem *problem, const tp__kernels *kernels, int threads,
                    tp__arena *arena) {
    work w = {0};
    int64_t group = problem->q_heads / problem->kv_heads;
    w.ldq = tp__round_up(problem->head_dim_qk, kernels->lanes);
    w.ldo = tp__round_up(problem->head_dim_v, kernels->lanes);
    w.block = tp_block_keys(tp__max(problem->head_dim_qk, problem->head_dim_v));
    w.tile_rows = kernels->tile_rows;
    int64_t rows = tp__min(RANGE_ROWS, RANGE_FLOATS / tp__max(w.ldq, w.ldo));
    rows = tp__round_up(rows, kernels->mr);
    /* a problem that is smaller than a range needs no more room than its rows */
    w.range_rows = tp__max(tp__min(rows, tp__times(problem->q_len, group)), 1);
    w.schedule.task =
        TP_TAKE(arena, tp__task, tp__schedule_bound(problem, w.range_rows, threads));
    w.slots = TP_TAKE(arena, room, threads);
    for (int i = 0; i < threads; i++) {
        room one;
        one.trace = TP_TAKE(arena, tp__trace, 1);
        one.q = TP_TAKE(arena, float, w.range_rows *w.ldq);
        one.k = TP_TAKE(arena, float, w.block *problem->head_dim_qk);
        one.v = TP_TAKE(arena, float, w.block *w.ldo);
        one.s = TP_TAKE(arena, float, (int64_t)w.tile_rows *w.block);
        one.whole = take_state(arena, w.range_rows, w.ldo);
        /* with one chunk its state is the whole */
        one.chunk = problem->kv_len > TP_CHUNK_KEYS ? take_state(arena, w.range_rows, w.ldo)
                                                    : one.whole;
        one.sight = tp__sight_take(arena, problem, w.range_rows, w.tile_rows, w.block);
        if (arena->base != NULL) w.slots[i] = one;
    }
    return w;
}

static size_t workspace(const tp_problem *problem, const tp__kernels *kernels, int threads) {
    tp__arena arena = {NULL, 0};
    lay_out(problem, kernels, threads, &arena);
    return arena.used;
}

static void clear(const state *s, int64_t rows, int64_t ldo) {
    for (int64_t r = 0; r < rows; r++) s->m[r] = -INFINITY;
    memset(s->l, 0, (size_t)rows * sizeof(float));
    memset(s->o, 0, (size_t)(rows * ldo) * sizeof(float));
}

static void attend_block(const work *w, room *slot, const tp__task *task, const state *to,
                         const tp__sequence *seq, int64_t key) {
    const tp_problem *problem = w->job->problem;
    const tp_tensors *tensors = w->job->tensors;
    const tp__kernels *kernels = w->job->kernels;
    int64_t first, last;
    tp__glimpse glimpse = tp__sight_block(&slot->sight, key, &first, &last, slot->trace);
    if (glimpse == TP__SEES_NONE) return; /* neither read nor packed */
    int64_t k_offset = seq->k + task->head * tensors->k.stride[2] + key * tensors->k.stride[1];
    int64_t v_offset = seq->v + task->head * tensors->v.stride[2] + key * tensors->v.stride[1];
    const char *k = tp__element(&tensors->k, k_offset, problem->k_dtype);
    const char *v = tp__element(&tensors->v, v_offset, problem->v_dtype);
    kernels->pack_k[problem->k_dtype](slot->trace, slot->k, k, tensors->k.stride[1], first, last,
                                      w->block, problem->head_dim_qk);
    tp__tile tile = {
        .ldq = w->ldq,
        .k = slot->k,
        .v = slot->v,
        .s = slot->s,
        .lds = w->block,
        .ldo = w->ldo,
        .d = problem->head_dim_qk,
        .dv = problem->head_dim_v,
        .block = w->block,
        .v_not_finite =
            kernels->pack_v[problem->v_dtype](slot->trace, slot->v, v, tensors->v.stride[1], first,
                                              last, w->block, problem->head_dim_v),
    };
    slot->trace->bytes += (last - first) * tp__key_bytes(problem);
    for (int64_t row = 0; row < task->count; row += w->tile_rows) {
        tile.rows = tp__min(w->tile_rows, task->count - row);
        if (!tp__sight_tile(&slot->sight, &tile, row, key, last, glimpse, slot->trace)) continue;
        tile.q = slot->q + row * w->ldq;
        tile.o = to->o + row * w->ldo;
        tile.m = to->m + row;
        tile.l = to->l + row;
        kernels->attend(slot->trace, &tile);
    }
}

static void run_range(const work *w, room *slot, const tp__task *task) {
    const tp_problem *problem = w->job->problem;
    const tp_tensors *tensors = w->job->tensors;
    const tp__kernels *kernels = w->job->kernels;
    tp__sequence seq = tp__sequence_at(problem, tensors, task->seq);
    int64_t group = problem->q_heads / problem->kv_heads, head = task->head * group;
    tp__rows rows = {task->first, task->count, group, tensors->q.stride[1], tensors->q.stride[2]};

    kernels->load_q[problem->q_dtype](
        slot->trace, slot->q, w->ldq,
        tp__element(&tensors->q, seq.q + head * tensors->q.stride[2], problem->q_dtype),
        &rows, problem->head_dim_qk, tp__scale_log2(problem));
    slot->trace->bytes += task->count * tp__row_bytes(problem, tensors);
    slot->trace->tiles_skipped += (task->count + kernels->mr - 1) / kernels->mr *
                                  ((seq.kv_len + kernels->nr - 1) / kernels->nr);

    tp__sight_range(&slot->sight, w->job, &seq, task->head, task->first, task->count, slot->trace);
    tp__interval any = slot->sight.any;
    clear(&slot->whole, task->count, w->ldo);
    int chunks = 0;
    for (int64_t chunk = any.lo / TP_CHUNK_KEYS * TP_CHUNK_KEYS; chunk < any.hi;
         chunk += TP_CHUNK_KEYS) {
        const state *to = chunks == 0 ? &slot->whole : &slot->chunk;
        if (chunks++ > 0) clear(to, task->count, w->ldo);
        int64_t end = tp__min(chunk + TP_CHUNK_KEYS, any.hi);
        int64_t key = tp__max(chunk, any.lo / w->block * w->block);
        for (; key < end; key += w->block) attend_block(w, slot, task, to, &seq, key);
        if (to == &slot->chunk)
            kernels->fold(slot->trace, task->count, w->ldo, slot->whole.m, slot->whole.l,
                          slot->whole.o, to->m, to->l, to->o);
    }

    tp__fold_sinks(w->job, &rows, task->head, w->ldo, slot->whole.m, slot->whole.l, slot->whole.o);
    rows.stride_token = tensors->o.stride[1];
    rows.stride_head = tensors->o.stride[2];
    kernels->store_o[problem->o_dtype](
        slot->trace,
        tp__element(&tensors->o, seq.o + head * tensors->o.stride[2], problem->o_dtype),
        &rows, problem->head_dim_v, slot->whole.o, w->ldo, slot->whole.m, slot->whole.l);
    tp__store_lse(tensors, seq.lse + head * tensors->lse.stride[2], &rows, slot->whole.m,
                  slot->whole.l);
}

static void run_task(void *context, size_t index) {
    work *w = context;
    room *slot = &w->slots[index];
    const tp__task *task;
    memset(slot->trace, 0, sizeof *slot->trace);
    while ((task = tp__schedule_next(&w->schedule)) != NULL) run_range(w, slot, task);
}

static void run(const tp__job *job) {
    tp__arena arena = {job->workspace, 0};
    work w = lay_out(job->problem, job->kernels, job->threads, &arena);
    w.job = job;
    tp__schedule_build(&w.schedule, job->problem, job->tensors, w.range_rows, job->threads);
    tp__parallel_run(&job->parallel, (size_t)job->threads, run_task, &w);
    for (int i = 0; i < job->threads; i++) tp__trace_add(job->trace, w.slots[i].trace);
    /* counted as all tiles there are; what was computed was not skipped */
    job->trace->tiles_skipped -= job->trace->tiles_full + job->trace->tiles_partial;
}

const tp__strategy tp__strategy_prefill = {"prefill", TP_MAX_HEAD_DIM, 1, workspace, run};
