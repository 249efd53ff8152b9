/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode: few rows, which meet each key once, so that reading the keys is all the cost. For each block of
 * the chunk, and then each KV head of the task, so that tokens are read from end to end:
 *
 *     scores of all the group's rows, straight from the keys
 *     softmax
 *     the weighted sum, straight from the values
 *
 * and for every line that is read, one of the next block is asked for, unless keys are found to lie in a cache
 * (tp__pace). Where a head's keys lie together a task has one head (schedule.c), or, in pages, each head asks for its
 * own keys.
 *
 * Where all rows see the whole block, as nearly always, several heads go together: the scores of each, one softmax for
 * all, the sum of each. A softmax of few rows is mostly its fixed cost. Where rows see different keys of the block, V is
 * packed as in prefill, so that what a row does not see cannot reach it; the bits are the same.
 */
#include <string.h>

#include "base/clock.h"
#include "strategies/fused.h"

/* Keys that nobody asked for lie in a cache if they are worked on at least this fast, by few rows and by more:
   docs/performance.md. */
#define CACHED_BYTES_A_NS(rows) ((rows) > 4 ? 15 : 25)
/* As many between two looks at the clock, which takes 25 ns. */
#define TIMED_BYTES (128 * 1024)

/* At head number `part` of the task: what to ask for in each token of the next block. That is, at the first head, all lines
   from the task's first head to its last, or, where heads lie apart, at each head its own. */
static void aim(tp__ahead *ahead, const tp__work *work, int64_t part, const char *const *row, int64_t count, int of_v) {
    const tp_problem *p = work->fused->job->problem;
    const tp_tensors *t = work->fused->job->tensors;
    int64_t step = tp__head_step(p, t, of_v);
    int64_t bytes = of_v ? tp__units_bytes(p->v_dtype, tp__row_units(p->v_scales, p->head_dim_v))
                         : tp__units_bytes(p->k_dtype, tp__row_units(p->k_scales, p->head_dim_qk));
    int apart = tp__heads_lie_apart(of_v ? &t->v : &t->k);
    if (part > 0 && !apart) return;
    int64_t span = apart ? bytes : (work->task->heads - 1) * step + bytes;
    *ahead = (tp__ahead){row, row + count, NULL, (work->task->head + part) * step, (span + TP__LINE - 1) / TP__LINE, 0};
}

/* Whether every row of the tile sees every key of the block that is there. A bias may hide any. */
static int all_see(const tp__row_tile *tile, const tp__keys_in *keys) {
    if (tile->bits != NULL || (tile->modify != NULL && tile->modify->bias != NULL)) return 0;
    for (int64_t i = 0; i < tile->rows; i++)
        if (tile->lo[i] != keys->first || tile->hi[i] != keys->last) return 0;
    return 1;
}

/* The tile's panels are those of each head's strips, though the softmax has seen fewer strips, of several heads. */
static void attend_tile(const tp__work *work, const tp__row_tile *tile, int64_t heads) {
    const tp__kernel_set *kernels = work->fused->job->kernels;
    tp__trace *trace = work->scratch->trace;
    int64_t mr = kernels->mr, strips = (tile->rows + mr - 1) / mr, of_heads = heads * ((tile->rows / heads + mr - 1) / mr);
    int64_t full = trace->panels_full, partial = trace->panels_partial;
    kernels->attend(trace, tile);
    trace->panels_full = full + (trace->panels_full - full) / strips * of_heads;
    trace->panels_partial = partial + (trace->panels_partial - partial) / strips * of_heads;
}

/* Heads part..part+heads-1, all of whose rows see every key of the block. */
static void attend_heads(const tp__work *work, int64_t part, int64_t heads, tp__keys_in *k_in, tp__keys_in *v_in,
                         int64_t next, const tp__state *state) {
    const tp__fused *f = work->fused;
    const tp_problem *problem = f->job->problem;
    tp__scratch *scratch = work->scratch;
    int k_as = tp__stored_as(problem->k_dtype, problem->k_scales), v_as = tp__stored_as(problem->v_dtype, problem->v_scales);
    int64_t rows = work->task->count;
    float c[TP__TILE_ROWS];
    tp__row_tile tile = tp__work_tile(work, part, 0, heads * rows, state);
    tp__visibility_whole(&scratch->visibility, &tile, k_in->first, k_in->last);
    tile.block = tile.lds = f->decode_block;
    tile.v = NULL;
    tile.c = c;
    for (int64_t i = 0; i < heads; i++) {
        aim(k_in->ahead, work, part + i, k_in->row + k_in->last, next, 0);
        tp__keys_head(&work->keys, 0, work->task->head + part + i, k_in);
        f->job->kernels->qk[k_as](scratch->trace, tp__q_at(f->job->kernels, tile.q, i * rows, f->ldq), f->ldq, rows, k_in,
                                  problem->head_dim_qk, tile.s + i * rows * tile.lds, tile.lds);
    }
    attend_tile(work, &tile, heads);
    for (int64_t i = 0; i < heads; i++) {
        aim(v_in->ahead, work, part + i, v_in->row + v_in->last, next, 1);
        tp__keys_head(&work->keys, 1, work->task->head + part + i, v_in);
        f->job->kernels->pv[v_as](scratch->trace, tile.s + i * rows * tile.lds, tile.lds, rows, v_in, problem->head_dim_v,
                                  c + i * rows, tile.o + i * rows * f->ldo, f->ldo);
    }
}

static void attend_head(const tp__work *work, int64_t part, int64_t key, tp__keys_in *k_in,
                        tp__keys_in *v_in, tp__block_class block_class, const tp__state *state) {
    const tp__fused *f = work->fused;
    const tp_problem *problem = f->job->problem;
    const tp__kernel_set *kernels = f->job->kernels;
    const tp__task *task = work->task;
    tp__scratch *scratch = work->scratch;
    int k_as = tp__stored_as(problem->k_dtype, problem->k_scales), v_as = tp__stored_as(problem->v_dtype, problem->v_scales);
    tp__keys_head(&work->keys, 0, task->head + part, k_in);
    tp__keys_head(&work->keys, 1, task->head + part, v_in);
    int packed = 0, v_found = 0;
    float v_scale[TP__FEW_KEYS];
    v_in->row_scales = tp__scales_by_row(problem->v_scales) ? v_scale : NULL;
    for (int64_t row = 0; row < task->count; row += f->tile_rows) {
        int64_t rows = tp__min(f->tile_rows, task->count - row);
        tp__row_tile tile = tp__work_tile(work, part, row, rows, state);
        if (!tp__visibility_tile(&scratch->visibility, &tile, part, row, key, v_in->last, block_class, scratch->trace))
            continue;
        tile.block = tile.lds = f->decode_block;
        kernels->qk[k_as](scratch->trace, tile.q, tile.ldq, rows, k_in, problem->head_dim_qk,
                                        tile.s, tile.lds);
        if (all_see(&tile, v_in)) {
            float c[TP__TILE_ROWS];
            tile.v = NULL;
            tile.c = c;
            kernels->attend(scratch->trace, &tile);
            kernels->pv[v_as](scratch->trace, tile.s, tile.lds, rows, v_in, problem->head_dim_v,
                                           c, tile.o, tile.ldo);
            continue;
        }
        if (!packed && v_in->row_scales != NULL) memset(v_scale, 0, sizeof v_scale);
        if (!packed++)
            v_found = kernels->pack_v[v_as](scratch->trace, scratch->v, v_in, f->decode_block,
                                                             problem->head_dim_v);
        tile.v_found = v_found;
        tile.v_scale = v_in->row_scales;
        kernels->attend(scratch->trace, &tile);
    }
}

/* Ends the watch at the first stretch that is slower than a cache: from there on lines are asked for. */
static void look_at_the_clock(tp__pace *pace, int64_t rows, int64_t bytes) {
    pace->bytes += bytes;
    if (!pace->asks && pace->bytes < TIMED_BYTES) return;
    pace->watches = pace->bytes > CACHED_BYTES_A_NS(rows) * (tp__now_ns() - pace->since);
    pace->asks = !pace->watches;
    pace->bytes = 0;
}

static void attend_block(const tp__work *work, int64_t key, const tp__state *state) {
    const tp__fused *f = work->fused;
    const tp_problem *problem = f->job->problem;
    tp__scratch *scratch = work->scratch;
    int64_t block = f->decode_block, first, last;
    tp__block_class block_class = tp__visibility_block(&scratch->visibility, key, &first, &last, scratch->trace);
    if (block_class == TP__BLOCK_HIDDEN) return;
    int64_t follow = last == block ? tp__max(tp__min(scratch->visibility.any.hi - key - block, block), 0) : 0;
    tp__pace *pace = &scratch->pace;
    int64_t next = pace->asks ? follow : 0;
    int watches = pace->watches && follow > 0;
    if (watches && pace->bytes == 0) pace->since = tp__now_ns();
    tp__work_keys(work, key, first, last, next);
    const char *const *k_row = scratch->k_row, *const *v_row = scratch->v_row;
    tp__ahead k_ahead, v_ahead;
    tp__keys_in k_in = {k_row, 0, first, last, &k_ahead, 0, 0, NULL}, v_in = {v_row, 0, first, last, &v_ahead, 0, 0, NULL};
    int64_t heads = f->tile_rows / work->task->count; /* that go together */
    int together = heads > 0 && block_class == TP__BLOCK_FULL && !tp__modifies_scores(problem) && problem->dropout <= 0;
    for (int64_t part = 0; together && part < work->task->heads; part += heads)
        attend_heads(work, part, tp__min(heads, work->task->heads - part), &k_in, &v_in, next, state);
    for (int64_t part = 0; !together && part < work->task->heads; part++) {
        aim(&k_ahead, work, part, k_row + last, next, 0);
        aim(&v_ahead, work, part, v_row + last, next, 1);
        attend_head(work, part, key, &k_in, &v_in, block_class, state);
    }
    int64_t bytes = (last - first) * work->task->heads * tp__key_bytes(problem);
    scratch->trace->bytes += bytes;
    if (watches) look_at_the_clock(pace, work->task->count, bytes);
}

void tp__decode_chunk(const tp__work *work, int64_t from, int64_t to, const tp__state *state) {
    int64_t block = work->fused->decode_block;
    for (int64_t key = from / block * block; key < to; key += block) attend_block(work, key, state);
}
