/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused: the score matrix is never written. For each task
 *
 *     load its Q rows once                                of all sharers, where it is about a shared prefix
 *     for each chunk of keys its rows see                 keys are cut at absolute indices,
 *         start from the empty state                      never by rows, threads or lengths
 *         attend the chunk: prefill's loop or decode's    by the sequence's own number of rows
 *         merge the chunk's state into the rows' state
 *     store O = o/l and lse                               or the state, from which sharers go on
 *
 * so that a row's bits depend on its own q, its keys, its sequence's path and nothing else.
 */
#include "strategies/fused.h"

#include <math.h>
#include <sched.h>
#include <string.h>

#include "strategies/prepare.h"

#define RANGE_ROWS 2048
#define SHARED_KEYS 16 /* fewer of a prefix are not worth a task; with `invariant` it is whole blocks */
#define RANGE_FLOATS (RANGE_ROWS * 128) /* of one row buffer: wide heads take fewer rows */

/* Rows a task of either loop can have, at the problem's bounds. */
static int64_t prefill_rows(const tp__fused *f, int mr) {
    const tp_problem *p = f->cut.problem;
    int64_t rows = tp__min(RANGE_ROWS, RANGE_FLOATS / tp__max(f->ldq, f->ldo));
    rows = tp__round_up(rows, mr);
    /* a problem that is smaller than a range needs no more scratch than its rows */
    return tp__max(tp__min(rows, tp__cascade_rows(p)), 1);
}

static int64_t decode_rows(const tp__fused *f) {
    const tp_problem *p = f->cut.problem;
    int64_t rows = tp__cascade_rows(p);
    if (f->cut.path == TP__BY_ROWS) rows = tp__min(rows, p->cascade > 0 ? TP__CASCADE_FEW : TP_DECODE_ROWS);
    rows = tp__min(tp__times(rows, p->kv_heads), TP__SPLIT_KV_ROWS);
    return tp__max(rows, TP_DECODE_ROWS);
}

static tp__scratch take_scratch(const tp__fused *f, const tp__kernel_set *kernels, tp__arena *arena) {
    const tp_problem *p = f->cut.problem;
    int decodes = tp__decodes(p, f->cut.path, 1), prefills = tp__prefills(p, f->cut.path);
    int64_t rows = 0, block = 0;
    if (prefills) rows = f->cut.range_rows, block = f->block;
    if (decodes) rows = tp__max(rows, decode_rows(f)), block = tp__max(block, f->decode_block);
    /* with one chunk its state is the whole */
    int64_t chunk = tp__min(prefills ? TP_CHUNK_KEYS : INT64_MAX, decodes ? TP_DECODE_CHUNK_KEYS : INT64_MAX);
    tp__scratch scratch;
    scratch.trace = TP_TAKE(arena, tp__trace, 1);
    scratch.q = tp__take_q(arena, kernels, rows, f->ldq);
    scratch.k = tp__take_k(arena, kernels, prefills ? f->block : 0, p->head_dim_qk);
    scratch.v = tp__take_v(arena, kernels, block, f->ldo);
    scratch.s = TP_TAKE(arena, float, (int64_t)f->tile_rows *block);
    scratch.whole = tp__state_take(arena, rows, f->ldo);
    scratch.chunk = tp__row_keys_max(p) > chunk || p->cascade > 0 ? tp__state_take(arena, rows, f->ldo) : scratch.whole;
    scratch.visibility = tp__visibility_take(arena, p, rows, f->tile_rows, (int)block);
    int64_t places = block + tp__max(TP__AHEAD_KEYS, f->decode_block) + f->key_scales;
    scratch.k_row = TP_TAKE(arena, const char *, places);
    scratch.v_row = TP_TAKE(arena, const char *, places);
    return scratch;
}

/* Everything that depends only on problem, kernels, path and threads; pointers when arena has a base. */
static tp__fused lay_out(const tp_problem *problem, const tp__kernel_set *kernels, int path, int threads,
                         tp__arena *arena) {
    tp__fused f = {0};
    int64_t dim = tp__max(problem->head_dim_qk, problem->head_dim_v);
    f.cut = (tp__cut){.problem = problem, .path = tp__path_of(problem, (tp__path)path), .threads = threads};
    f.ldq = tp__ldq(kernels, problem->head_dim_qk);
    f.ldo = tp__round_up(problem->head_dim_v, kernels->row_step);
    f.block = tp_block_keys(dim);
    f.decode_block = tp_decode_block_keys(dim, (tp_dtype)problem->k_dtype);
    f.tile_rows = kernels->tile_rows;
    if (problem->k_scales != 0 || problem->v_scales != 0) /* behind all places that keys can have */
        f.key_scales = tp__max(f.block, f.decode_block) + tp__max(TP__AHEAD_KEYS, f.decode_block);
    f.cut.range_rows = prefill_rows(&f, kernels->mr);
    f.schedule.task = TP_TAKE(arena, tp__task, tp__schedule_bound(&f.cut));
    f.scratch = TP_TAKE(arena, tp__scratch, threads);
    for (int i = 0; i < threads; i++) {
        tp__scratch scratch = take_scratch(&f, kernels, arena);
        if (arena->base != NULL) f.scratch[i] = scratch;
    }
    int splits = tp__split_kv_bound(&f.cut);
    int64_t rows = tp__min(tp__max(decode_rows(&f), f.cut.range_rows), TP__SPLIT_KV_ROWS);
    f.split = TP_TAKE(arena, tp__split_kv, splits);
    for (int i = 0; i < splits; i++) {
        tp__state state = tp__state_take(arena, rows, f.ldo);
        if (arena->base != NULL) f.split[i].state = state;
    }
    f.cascade = tp__cascade_take(arena, problem, f.ldo);
    return f;
}

static size_t workspace(const tp_problem *problem, const tp__kernel_set *kernels, int path, int threads) {
    tp__arena arena = {NULL, 0, 1};
    lay_out(problem, kernels, path, threads, &arena);
    return arena.used;
}

static void clear(const tp__state *s, int64_t rows, int64_t ldo) {
    for (int64_t r = 0; r < rows; r++) s->m[r] = -INFINITY;
    memset(s->l, 0, (size_t)rows * sizeof(float));
    memset(s->o, 0, (size_t)(rows * ldo) * sizeof(float));
}

tp__row_tile tp__work_tile(const tp__work *work, int64_t part, int64_t row, int64_t rows,
                       const tp__state *state) {
    const tp__fused *f = work->fused;
    const tp_problem *problem = f->job->problem;
    int64_t at = part * work->task->count + row;
    return (tp__row_tile){
        .q = tp__q_at(f->job->kernels, work->scratch->q, at, f->ldq),
        .ldq = f->ldq,
        .v = work->scratch->v,
        .s = work->scratch->s,
        .o = state->o + at * f->ldo,
        .ldo = f->ldo,
        .m = state->m + at,
        .l = state->l + at,
        .rows = rows,
        .d = problem->head_dim_qk,
        .dv = problem->head_dim_v,
    };
}

void tp__work_keys(const tp__work *work, int64_t key, int64_t first, int64_t last, int64_t ahead) {
    const tp__visibility *visibility = &work->scratch->visibility;
    const char **k = work->scratch->k_row, **v = work->scratch->v_row;
    if (visibility->form != TP__VISIBILITY_PLAIN && work->keys.problem->kv_layout == TP_PAGED) {
        tp__keys_seen(&work->keys, key, first, last, visibility->here, k, v);
        tp__keys_ahead(&work->keys, key + last, ahead, visibility->any.hi, k + last, v + last);
        return;
    }
    tp__keys_rows(&work->keys, key + first, last - first + ahead, visibility->any.hi, k + first, v + first);
}

static tp__rows rows_of(const tp__work *work, const tp_tensor *tensor) {
    const tp_problem *p = work->fused->job->problem;
    return (tp__rows){work->task->first, work->task->count, p->q_heads / p->kv_heads, tensor->stride[1],
                      tensor->stride[2]};
}

/* Rows of one sequence, which come to stand at row `at` of the task's. */
static void load_slice(const tp__work *work, const tp__sequence *seq, int64_t first, int64_t count, int64_t at) {
    const tp__fused *f = work->fused;
    const tp_problem *p = f->job->problem;
    const tp_tensor *q = &f->job->tensors->q;
    tp__rows rows = rows_of(work, q);
    rows.first = first;
    rows.count = count;
    for (int64_t part = 0; part < work->task->heads; part++) {
        int64_t offset = seq->q + (work->task->head + part) * rows.group * q->stride[2];
        f->job->kernels->load_q[p->q_dtype](
            work->scratch->trace, tp__q_at(f->job->kernels, work->scratch->q, part * work->task->count + at, f->ldq), f->ldq,
            tp__element(q, offset, p->q_dtype), &rows, p->head_dim_qk, f->job->units.q_factor);
    }
}

/* Rows of all sharers, and what they see: all of the segment's keys. */
static int64_t load_sharers(const tp__work *work) {
    const tp__fused *f = work->fused;
    const tp__segment *segment = work->task->segment;
    int64_t first = work->task->first, end = first + work->task->count, base = f->cascade.row[segment->first];
    tp__visibility_shared(&work->scratch->visibility, work->task->count, work->from, work->to);
    for (int64_t i = segment->first; i < segment->first + segment->count; i++) {
        int64_t row = f->cascade.row[i] - base, lo = tp__max(row, first), hi = tp__min(f->cascade.row[i + 1] - base, end);
        if (lo >= hi) continue;
        tp__sequence seq = tp__sequence_at(f->job->problem, f->job->tensors, f->cascade.order[i]);
        load_slice(work, &seq, lo - row, hi - lo, lo - first);
        tp__visibility_scales(&work->scratch->visibility, &seq, lo - row, hi - lo, lo - first);
    }
    return work->task->count * (work->to - work->from);
}

/* Returns the pairs that the rows of one head see. */
static int64_t load_rows(const tp__work *work) {
    const tp__fused *f = work->fused;
    const tp__task *task = work->task;
    int64_t pairs;
    if (task->segment == NULL) {
        load_slice(work, &work->keys.seq, task->first, task->count, 0);
        pairs = tp__visibility_rows(&work->scratch->visibility, &work->keys, task->first, task->count);
        if (work->from > 0) pairs -= tp__visibility_from(&work->scratch->visibility, work->from);
    } else {
        pairs = load_sharers(work);
    }
    if (task->decode)
        tp__ready_q(f->job->kernels, f->job->problem->k_dtype, work->scratch->q, f->ldq, task->heads * task->count,
                    f->job->problem->head_dim_qk);
    return pairs;
}

static void store_rows(const tp__work *work, const tp__state *state) {
    const tp__fused *f = work->fused;
    const tp_problem *p = f->job->problem;
    const tp_tensors *tensors = f->job->tensors;
    tp__rows rows = rows_of(work, &tensors->o);
    float left = f->job->units.left;
    for (int64_t part = 0; part < work->task->heads; part++) {
        int64_t head = (work->task->head + part) * rows.group, at = part * rows.count;
        if (p->sinks)
            f->job->kernels->merge_sinks(work->scratch->trace, &rows, tensors->sinks + head, f->ldo, left,
                                         state->m + at, state->l + at, state->o + at * f->ldo);
        tp__store_lse(tensors, work->keys.seq.lse, head, &rows, state->m + at, state->l + at,
                      p->sinks ? 1.0f : left);
        /* what stayed of dropout is divided by 1 - p; the lse knows nothing of it */
        for (int64_t i = 0; i < rows.count && p->dropout > 0; i++) state->l[at + i] *= 1 - p->dropout;
        f->job->kernels->store_o[p->o_dtype](
            work->scratch->trace,
            tp__element(&tensors->o, work->keys.seq.o + head * tensors->o.stride[2], p->o_dtype), &rows,
            p->head_dim_v, state->o + at * f->ldo, f->ldo, state->m + at, state->l + at);
    }
}

static void merge_state(const tp__work *work, const tp__state *into, const tp__state *from) {
    const tp__fused *f = work->fused;
    f->job->kernels->merge_state(work->scratch->trace, work->task->heads * work->task->count, f->ldo, into->m,
                          into->l, into->o, from->m, from->l, from->o, work->scratch->visibility.units.unit);
}

/* Between a task's own state and the rows of its heads among those of the cascade. */
static void copy_state(const tp__work *work, const tp__state *own, const tp__state *shared, int save) {
    const tp__cascade *c = &work->fused->cascade;
    const tp__task *task = work->task;
    int64_t count = task->count, ldo = work->fused->ldo;
    int64_t place = task->segment != NULL ? task->segment->first : c->place[task->seq];
    for (int64_t part = 0; part < task->heads; part++) {
        int64_t here = part * count, there = (task->head + part) * c->row[c->members] + c->row[place] + task->first;
        const tp__state a = {own->m + here, own->l + here, own->o + here * ldo};
        const tp__state b = {shared->m + there, shared->l + there, shared->o + there * ldo};
        const tp__state *to = save ? &b : &a, *from = save ? &a : &b;
        memcpy(to->m, from->m, (size_t)count * sizeof(float));
        memcpy(to->l, from->l, (size_t)count * sizeof(float));
        memcpy(to->o, from->o, (size_t)(count * ldo) * sizeof(float));
    }
}

/* The state of the rows before the task's keys. */
static void begin(const tp__work *work, const tp__state *state) {
    if (work->from > 0)
        copy_state(work, state, &work->fused->cascade.whole, 0);
    else
        clear(state, work->task->heads * work->task->count, work->fused->ldo);
}

/* A chunk's own. `invariant` asks for the bits of chunks that nobody cut: one that a segment ends in stays open, and whoever
   comes next goes on in it. */
static void begin_chunk(const tp__work *work, int64_t chunk) {
    if (work->fused->job->problem->invariant && chunk < work->from)
        copy_state(work, &work->scratch->chunk, &work->fused->cascade.open, 0);
    else
        clear(&work->scratch->chunk, work->task->heads * work->task->count, work->fused->ldo);
}

static void end_chunk(const tp__work *work, const tp__state *whole, int64_t end) {
    if (work->fused->job->problem->invariant && work->task->segment != NULL && end > work->to)
        copy_state(work, &work->scratch->chunk, &work->fused->cascade.open, 1);
    else
        merge_state(work, whole, &work->scratch->chunk);
}

static void end(const tp__work *work, const tp__state *whole) {
    if (work->task->segment != NULL)
        copy_state(work, whole, &work->fused->cascade.whole, 1);
    else
        store_rows(work, whole);
}

/* What is counted once for all of a range: pairs, tiles that there are, bytes of its rows. */
static void count_range(const tp__work *work, int64_t pairs_of_head) {
    const tp__job *job = work->fused->job;
    const tp__task *task = work->task;
    int64_t strips = (task->count + job->kernels->mr - 1) / job->kernels->mr, nr = job->kernels->nr;
    tp__trace *trace = work->scratch->trace;
    trace->pairs_visible += pairs_of_head * task->heads;
    trace->panels_skipped += task->heads * strips * ((work->to + nr - 1) / nr - work->from / nr);
    if (task->segment == NULL) {
        trace->bytes += task->count * task->heads * tp__row_bytes(job->problem, job->tensors);
        return;
    }
    trace->pairs_shared += pairs_of_head * task->heads;
    if (task->first == 0)
        trace->bytes_shared +=
            (task->segment->count - 1) * (work->to - work->from) * task->heads * tp__key_bytes(job->problem);
}

/* All chunks, one after another, on this thread. */
static void run_whole(const tp__work *work, tp__chunk_fn *attend, int64_t step) {
    const tp__scratch *scratch = work->scratch;
    tp__interval any = scratch->visibility.any;
    begin(work, &scratch->whole);
    int has_own_state = work->task->segment != NULL || work->from > 0; /* the first chunk, too */
    for (int64_t chunk = any.lo / step * step; chunk < any.hi; chunk += step) {
        int64_t from = tp__max(chunk, any.lo), to = tp__min(chunk + step, any.hi);
        if (has_own_state) begin_chunk(work, chunk);
        if (from < to) attend(work, from, to, has_own_state ? &scratch->chunk : &scratch->whole);
        if (has_own_state) end_chunk(work, &scratch->whole, chunk + step);
        has_own_state = 1;
    }
    end(work, &scratch->whole);
}

/* One chunk; its state is merged when those before it have been. */
static void run_split(const tp__work *work, tp__chunk_fn *attend, int64_t step) {
    const tp__scratch *scratch = work->scratch;
    tp__split_kv *split = &work->fused->split[work->task->split];
    int64_t chunk = work->task->chunk, place = chunk - work->from / step;
    int64_t from = tp__max(chunk * step, scratch->visibility.any.lo);
    int64_t to = tp__min((chunk + 1) * step, scratch->visibility.any.hi);
    int some = from < to || chunk * step < work->from; /* or what is open of it */
    if (some) begin_chunk(work, chunk * step);
    if (from < to) attend(work, from, to, &scratch->chunk);
    while (atomic_load_explicit(&split->next_chunk, memory_order_acquire) != place) sched_yield();
    if (place == 0) begin(work, &split->state);
    if (some) end_chunk(work, &split->state, (chunk + 1) * step);
    if ((chunk + 1) * step >= work->to) end(work, &split->state);
    atomic_store_explicit(&split->next_chunk, place + 1, memory_order_release);
}

static void run_task(tp__fused *f, tp__scratch *scratch, const tp__task *task) {
    const tp_problem *problem = f->job->problem;
    int64_t group = problem->q_heads / problem->kv_heads, step = tp__chunk_keys(task->decode);
    tp__chunk_fn *attend = task->decode ? tp__decode_chunk : tp__prefill_chunk;
    const tp__segment *segment = task->segment;
    tp__work work = {.fused = f,
                     .task = task,
                     .scratch = scratch,
                     .keys = tp__keys_of(problem, f->job->tensors, task->seq, segment == NULL ? task->first / group : 0)};
    work.keys.scales = f->key_scales;
    work.from = segment != NULL ? segment->from : f->cascade.levels > 0 ? f->cascade.cut[task->seq] : 0;
    work.to = segment != NULL ? segment->to : work.keys.count;
    tp__visibility_open(&scratch->visibility, f->job, &work.keys, task->head, task->heads,
                   task->decode ? f->decode_block : f->block);
    int64_t pairs = load_rows(&work);
    scratch->pace = (tp__pace){.asks = 1, .watches = 1};
    if (task->chunk <= work.from / step) count_range(&work, pairs);
    if (task->split < 0)
        run_whole(&work, attend, step);
    else
        run_split(&work, attend, step);
}

static void run_tasks(void *context, size_t index) {
    tp__fused *f = context;
    tp__scratch *scratch = &f->scratch[index];
    const tp__task *task;
    memset(scratch->trace, 0, sizeof *scratch->trace);
    while ((task = tp__schedule_next(&f->schedule)) != NULL) {
        /* for states of shared prefixes, on which threads are at work: their tickets came before */
        while (atomic_load_explicit(&f->schedule.done, memory_order_acquire) < task->after) sched_yield();
        run_task(f, scratch, task);
        if (f->cascade.levels > 0) atomic_fetch_add_explicit(&f->schedule.done, 1, memory_order_release);
    }
}

static void run(const tp__job *job) {
    tp__arena arena = {job->workspace, 0, 1};
    tp__fused f = lay_out(job->problem, job->kernels, job->path, job->threads, &arena);
    f.job = job;
    f.cut.cascade = &f.cascade;
    tp__cascade_find(&f.cascade, job->problem, job->tensors, job->problem->invariant ? f.block : SHARED_KEYS);
    tp__schedule_build(&f.schedule, &f.cut, job->tensors);
    for (int i = 0; i < f.schedule.splits; i++) atomic_init(&f.split[i].next_chunk, 0);
    tp__parallel_run(&job->parallel, (size_t)job->threads, run_tasks, &f);
    for (int i = 0; i < job->threads; i++) tp__trace_add(job->trace, f.scratch[i].trace);
    /* counted as all tiles there are; what was computed was not skipped */
    job->trace->panels_skipped -= job->trace->panels_full + job->trace->panels_partial;
}

const tp__strategy tp__strategy_fused = {"fused", TP_MAX_HEAD_DIM, 1, workspace, run, NULL};
