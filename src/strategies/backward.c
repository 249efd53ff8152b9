/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backward: gradients by recomputation. A task is one block of keys:
 *
 *     pack K and V once
 *     for each tile of rows that sees any of them, the last one first
 *         wait for the tile's turn                     the block before has added to its dq
 *         first block: load q and d_o, delta = d_o.o - d_lse, dq = 0
 *         p from the rows' lse, dv += p^T d_o, dk += ds^T q, dq += ds k
 *         last block: store dq
 *     store dk and dv
 *
 * Blocks are cut at absolute indices and dq is added to in their order, so the number of threads changes no
 * bit. Neighbouring blocks follow one another one tile apart, from the last tile down: a causal block has fewer
 * tiles than the one before and so is never held up. A task waits only for tasks with lower tickets, which
 * other threads have claimed already.
 */
#include "strategies/backward.h"

#include <math.h>
#include <sched.h>
#include <string.h>

#define LOOK_TILES 64 /* that one thread looks at, at a time */

static size_t workspace(const tp_problem *problem, const tp__kernel_set *kernels, int path, int threads) {
    tp__arena arena = {NULL, 0, 1};
    tp__backward b = {0};
    (void)path;
    tp__back_lay_out(&b, problem, kernels, threads, &arena);
    return arena.used;
}

static int64_t max(const tp_problem *problem, const tp_tensors *tensors) {
    int64_t block = tp__back_block(tp__max(problem->head_dim_qk, problem->head_dim_v));
    int64_t keys = problem->kv_layout == TP_PACKED ? tensors->kv_tokens
                                                   : tp__times(tensors->batch, tensors->kv_len);
    return tp__times(tp__max(keys / block, tensors->batch), problem->kv_heads);
}

/* ---- before any task: what tiles see ---- */

static void look_at_tiles(const tp__backward *b, tp__backward_scratch *scratch, int64_t seq, int64_t tile) {
    const tp_problem *p = b->job->problem;
    tp__keys keys = tp__keys_of(p, b->job->tensors, seq, 0);
    int64_t rows = keys.seq.q_len * (p->q_heads / p->kv_heads), end = tile + LOOK_TILES;
    if (tile * TP__BACK_ROWS >= rows) return;
    tp__visibility_open(&scratch->visibility, b->job, &keys, 0, 1, b->block); /* all heads see the same */
    for (; tile < end && tile * TP__BACK_ROWS < rows; tile++) {
        int64_t first = tile * TP__BACK_ROWS, count = tp__min(TP__BACK_ROWS, rows - first);
        int64_t strips = (count + b->job->kernels->mr - 1) / b->job->kernels->mr;
        scratch->trace->pairs_visible += tp__visibility_rows(&scratch->visibility, &keys, first, count) * p->kv_heads;
        scratch->trace->panels_skipped += strips * p->kv_heads *
                                      ((keys.count + b->job->kernels->nr - 1) / b->job->kernels->nr);
        b->hull[seq * b->tiles + tile] = scratch->visibility.any;
    }
}

static void look(void *context, size_t index) {
    tp__backward *b = context;
    int64_t pieces = (b->tiles + LOOK_TILES - 1) / LOOK_TILES, ticket;
    int64_t count = b->job->tensors->batch * pieces;
    memset(b->scratch[index].trace, 0, sizeof *b->scratch[index].trace);
    while ((ticket = atomic_fetch_add_explicit(&b->look_ticket, 1, memory_order_relaxed)) < count)
        look_at_tiles(b, &b->scratch[index], ticket / pieces, ticket % pieces * LOOK_TILES);
}

/* ---- one block of keys ---- */

static void await(atomic_llong *value, int64_t wanted) {
    while (atomic_load_explicit(value, memory_order_acquire) != wanted) sched_yield();
}

/* The first task of a kv_head_task takes the slot over, says which block may begin with each tile, and serves tiles that see
   no key. */
static void open_kv_head(const tp__backward *b, const tp__back_task *task, tp__slot *slot, tp__trace *trace) {
    if (task->block > 0) {
        await(&slot->kv_head_task, task->kv_head_task);
        return;
    }
    if (task->kv_head_task >= b->slots) {
        await(&slot->kv_head_task, task->kv_head_task - b->slots);
        await(&slot->left, 0);
    }
    const tp__interval *hull = b->hull + task->seq * b->tiles;
    for (int64_t tile = 0; tile < task->tiles; tile++) {
        atomic_store_explicit(&slot->next_block[tile], hull[tile].lo / b->block, memory_order_relaxed);
        if (hull[tile].lo < hull[tile].hi) continue;
        tp__back_open_tile(b, task, slot, tile, trace);
        tp__back_close_tile(b, task, slot, tile, trace);
    }
    atomic_store_explicit(&slot->left, task->blocks, memory_order_relaxed);
    atomic_store_explicit(&slot->kv_head_task, task->kv_head_task, memory_order_release);
}

/* Keys of the block, first..last-1, from the first that any tile sees to the last. Returns whether there are any. */
static int keys_seen(const tp__backward *b, const tp__back_task *task, int64_t *first, int64_t *last) {
    const tp__interval *hull = b->hull + task->seq * b->tiles;
    int64_t key = task->block * b->block, lo = b->block, hi = 0;
    for (int64_t tile = 0; tile < task->tiles; tile++) {
        int64_t from = tp__max(hull[tile].lo - key, 0), to = tp__min(hull[tile].hi - key, b->block);
        if (from >= to) continue;
        lo = tp__min(lo, from);
        hi = tp__max(hi, to);
    }
    *first = lo;
    *last = hi;
    return lo < hi;
}

/* Notes in the scratch what was found in k and v. */
static void pack_block(const tp__backward *b, const tp__back_task *task, tp__backward_scratch *scratch, int64_t first,
                      int64_t last) {
    const tp_problem *p = b->job->problem;
    const tp_tensors *t = b->job->tensors;
    const tp__kernel_set *kernels = b->job->kernels;
    int64_t key = task->block * b->block;
    tp__ahead none = {0};
    tp__keys_rows(&task->keys, key + first, last - first, key + last, scratch->k_row + first, scratch->v_row + first);
    tp__keys_in in = {(const char *const *)scratch->k_row,
                      task->head * t->k.stride[2] * (int64_t)tp_dtype_bytes(p->k_dtype), first, last, &none, 0, 0, NULL};
    scratch->k_found = kernels->pack_k[p->k_dtype](scratch->trace, scratch->k, &in, b->block, p->head_dim_qk);
    scratch->k_found |= kernels->pack_v[p->k_dtype](scratch->trace, scratch->k_rows, &in, b->block, p->head_dim_qk);
    in.row = (const char *const *)scratch->v_row;
    in.offset = task->head * t->v.stride[2] * (int64_t)tp_dtype_bytes(p->v_dtype);
    scratch->v_found = kernels->pack_k[p->v_dtype](scratch->trace, scratch->v, &in, b->block, p->head_dim_v);
}

static void store_keys(const tp__backward *b, const tp__back_task *task, tp__backward_scratch *scratch) {
    const tp_problem *p = b->job->problem;
    const struct {
        const tp_tensor *to;
        int32_t dtype;
        int64_t dim, ld;
        const float *from;
        float factor;
    } both[2] = {
        {&b->gradients->d_k, p->k_dtype, p->head_dim_qk, b->ldq, scratch->dk, b->job->units.gain},
        {&b->gradients->d_v, p->v_dtype, p->head_dim_v, b->ldo, scratch->dv, 1.0f / (1.0f - p->dropout)},
    };
    int64_t key = task->block * b->block, count = tp__min(b->block, task->keys.count - key);
    for (int i = 0; i < 2 && count > 0; i++) {
        const tp_tensor *to = both[i].to;
        if (to->data == NULL) continue;
        tp__rows rows = {key, count, 1, to->stride[1], 0};
        int64_t start = tp__sequence_start(p, b->job->tensors, to, 0, task->seq) + task->head * to->stride[2];
        b->job->kernels->store_d[both[i].dtype](scratch->trace, tp__element(to, start, both[i].dtype), &rows,
                                                both[i].dim, both[i].from, both[i].ld, both[i].factor);
    }
}

/* Where the rows' gradients of the bias go. */
static void point_at_bias(const tp__backward *b, const tp__back_task *task, tp__backward_scratch *scratch, int64_t tile,
                          tp__back *back) {
    const int64_t *stride = b->gradients->d_bias_stride;
    int64_t group = b->job->problem->q_heads / b->job->problem->kv_heads;
    if (b->gradients->d_bias == NULL) return;
    for (int64_t i = 0; i < back->tile.rows; i++) {
        int64_t row = tile * TP__BACK_ROWS + i, head = task->head * group + row % group;
        scratch->d_bias[i] = b->gradients->d_bias + task->seq * stride[0] + head * stride[1] +
                          row / group * stride[2] + task->block * b->block * stride[3];
    }
    back->d_bias = scratch->d_bias;
    back->d_bias_stride = stride[3];
}

static void run_tile(const tp__backward *b, const tp__back_task *task, tp__backward_scratch *scratch, const tp__slot *slot,
                     int64_t tile) {
    const tp_problem *p = b->job->problem;
    int64_t row = tile * TP__BACK_ROWS, key = task->block * b->block, first, last;
    int64_t group = p->q_heads / p->kv_heads;
    tp__back back = {
        .tile = {.q = tp__q_at(b->job->kernels, slot->q, row, b->ldq),
                 .ldq = b->ldq,
                 .k = scratch->k,
                 .s = scratch->p,
                 .lds = b->lds,
                 .rows = tp__min(TP__BACK_ROWS, task->rows - row),
                 .d = p->head_dim_qk,
                 .dv = p->head_dim_v,
                 .block = b->block,
                 .k_found = scratch->k_found,
                 .v_found = scratch->v_found},
        .d_o = tp__q_at(b->job->kernels, slot->d_o, row, b->ldo),
        .ldo = b->ldo,
        .v = scratch->v,
        .k_rows = scratch->k_rows,
        .ds = scratch->ds,
        .left = scratch->visibility.units.left,
        .lse = slot->lse + row,
        .delta = slot->delta + row,
        .dq = b->gradients->d_q.data != NULL ? slot->dq + row * b->ldq : NULL,
        .dk = b->gradients->d_k.data != NULL ? scratch->dk : NULL,
        .dv = b->gradients->d_v.data != NULL ? scratch->dv : NULL,
        .not_finite = slot->not_finite[tile],
        .stay = 1.0f / (1.0f - p->dropout),
    };
    tp__visibility_rows(&scratch->visibility, &task->keys, row, back.tile.rows);
    tp__block_class block_class = tp__visibility_block(&scratch->visibility, key, &first, &last, scratch->trace);
    if (block_class == TP__BLOCK_HIDDEN ||
        !tp__visibility_tile(&scratch->visibility, &back.tile, 0, 0, key, last, block_class, scratch->trace))
        return;
    for (int64_t i = 0; i < back.tile.rows; i++) /* all its scores are -inf: a row that sees nothing */
        if (back.lse[i] == -INFINITY) scratch->visibility.tile_lo[i] = scratch->visibility.tile_hi[i] = 0;
    tp__back_keep_deltas(b, task, slot, tile, &back.tile);
    if (p->bias_dtype != 0) point_at_bias(b, task, scratch, tile, &back);
    if (p->alibi && b->gradients->d_alibi_slopes != NULL) {
        memset(scratch->slope, 0, (size_t)back.tile.rows * sizeof(float));
        back.slope = scratch->slope;
    }
    b->job->kernels->backward(scratch->trace, &back);
    for (int64_t i = 0; back.slope != NULL && i < back.tile.rows; i++)
        b->slopes[task->ticket * group + (row + i) % group] -= (double)back.slope[i];
}

static void run_block(const tp__backward *b, const tp__back_task *task, tp__backward_scratch *scratch, tp__slot *slot) {
    const tp_problem *p = b->job->problem;
    const tp__interval *hull = b->hull + task->seq * b->tiles;
    int64_t first, last, key = task->block * b->block;
    memset(scratch->dk, 0, (size_t)(b->block * b->ldq) * sizeof(float));
    memset(scratch->dv, 0, (size_t)(b->block * b->ldo) * sizeof(float));
    if (!keys_seen(b, task, &first, &last)) return;
    pack_block(b, task, scratch, first, last);
    scratch->trace->bytes += (last - first) * tp__key_bytes(p);
    tp__visibility_open(&scratch->visibility, b->job, &task->keys, task->head, 1, b->block);
    for (int64_t tile = task->tiles; tile-- > 0;) {
        if (hull[tile].lo >= key + b->block || hull[tile].hi <= key) continue;
        await(&slot->next_block[tile], task->block);
        if (hull[tile].lo >= key) tp__back_open_tile(b, task, slot, tile, scratch->trace);
        run_tile(b, task, scratch, slot, tile);
        if (hull[tile].hi <= key + b->block) tp__back_close_tile(b, task, slot, tile, scratch->trace);
        atomic_store_explicit(&slot->next_block[tile], task->block + 1, memory_order_release);
    }
}

static tp__back_task task_at(const tp__backward *b, int64_t ticket) {
    const tp_problem *p = b->job->problem;
    int64_t lo = 0, hi = b->job->tensors->batch; /* the last sequence whose first task is not behind it */
    while (hi - lo > 1) {
        int64_t middle = lo + (hi - lo) / 2;
        if (b->first_task[middle] <= ticket)
            lo = middle;
        else
            hi = middle;
    }
    tp__back_task task = {.ticket = ticket, .seq = lo};
    task.keys = tp__keys_of(p, b->job->tensors, lo, 0);
    task.blocks = tp__back_blocks(b, task.keys.count);
    task.head = (ticket - b->first_task[lo]) / task.blocks;
    task.block = (ticket - b->first_task[lo]) % task.blocks;
    task.kv_head_task = lo * p->kv_heads + task.head;
    task.rows = task.keys.seq.q_len * (p->q_heads / p->kv_heads);
    task.tiles = (task.rows + TP__BACK_ROWS - 1) / TP__BACK_ROWS;
    return task;
}

static void run_task(tp__backward *b, tp__backward_scratch *scratch, int64_t ticket) {
    int64_t group = b->job->problem->q_heads / b->job->problem->kv_heads;
    tp__back_task task = task_at(b, ticket);
    tp__slot *slot = &b->slot[task.kv_head_task % b->slots];
    if (b->slopes != NULL) memset(b->slopes + ticket * group, 0, (size_t)group * sizeof(double));
    open_kv_head(b, &task, slot, scratch->trace);
    if (b->done != NULL) tp__back_await_bias(b, &task);
    run_block(b, &task, scratch, slot);
    store_keys(b, &task, scratch);
    atomic_fetch_sub_explicit(&slot->left, 1, memory_order_release);
    if (b->done != NULL) atomic_store_explicit(&b->done[ticket], 1, memory_order_release);
}

static void run_tasks(void *context, size_t index) {
    tp__backward *b = context;
    int64_t count = b->first_task[b->job->tensors->batch], ticket;
    while ((ticket = atomic_fetch_add_explicit(&b->ticket, 1, memory_order_relaxed)) < count)
        run_task(b, &b->scratch[index], ticket);
}

static void run(const tp__job *job) {
    tp__arena arena = {job->workspace, 0, 1};
    tp__backward b = {.job = job, .gradients = job->tensors->gradients};
    int64_t batch = job->tensors->batch;
    tp__back_lay_out(&b, job->problem, job->kernels, job->threads, &arena);
    atomic_init(&b.ticket, 0);
    atomic_init(&b.look_ticket, 0);
    b.first_task[0] = 0;
    for (int64_t s = 0; s < batch; s++)
        b.first_task[s + 1] = b.first_task[s] +
                              job->problem->kv_heads *
                                  tp__back_blocks(&b, tp__sequence_at(job->problem, job->tensors, s).kv_len);
    for (int i = 0; i < b.slots; i++) {
        atomic_init(&b.slot[i].kv_head_task, -1);
        atomic_init(&b.slot[i].left, 0);
        for (int64_t tile = 0; tile < b.tiles; tile++) atomic_init(&b.slot[i].next_block[tile], 0);
    }
    for (int64_t i = 0; b.done != NULL && i < b.first_task[batch]; i++) atomic_init(&b.done[i], 0);
    if (b.done != NULL) tp__back_clear_bias(&b);
    b.bias_order = b.done != NULL ? tp__bias_order_of(job->problem, job->tensors) : TP__BIAS_DISJOINT;
    tp__parallel_run(&job->parallel, (size_t)job->threads, look, &b);
    tp__parallel_run(&job->parallel, (size_t)job->threads, run_tasks, &b);
    tp__back_sums(&b);
    for (int i = 0; i < job->threads; i++) tp__trace_add(job->trace, b.scratch[i].trace);
    job->trace->panels_skipped -= job->trace->panels_full + job->trace->panels_partial;
}

const tp__strategy tp__strategy_backward = {"backward", TP_MAX_HEAD_DIM, 1, workspace, run, max};
