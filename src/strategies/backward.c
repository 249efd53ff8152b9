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

#include "strategies/prepare.h"

#define LOG2_E 1.4426950408889634
#define LN_2 0x1.62e42fefa39efp-1
#define LOOK_TILES 64 /* that one thread looks at, at a time */

/* Rows of floats whose starts do not all fall into the same few sets of a cache. */
static int64_t padded(int64_t d) {
    int64_t ld = tp__round_up(d, 16);
    return ld % 64 == 0 ? ld + 16 : ld;
}

static tp__slot take_slot(const tp__backward *b, tp__arena *arena) {
    tp__slot s;
    s.q = TP_TAKE(arena, float, tp__times(b->rows, b->ldq));
    s.d_o = TP_TAKE(arena, float, tp__times(b->rows, b->ldo));
    s.dq = TP_TAKE(arena, float, tp__times(b->rows, b->ldq));
    s.lse = TP_TAKE(arena, float, b->rows);
    s.delta = TP_TAKE(arena, float, b->rows);
    s.turn = TP_TAKE(arena, atomic_llong, b->tiles);
    s.not_finite = TP_TAKE(arena, unsigned char, b->tiles);
    return s;
}

static tp__back_room take_room(const tp__backward *b, const tp_problem *p, tp__arena *arena) {
    tp__back_room room;
    room.trace = TP_TAKE(arena, tp__trace, 1);
    room.k = TP_TAKE(arena, float, b->block *p->head_dim_qk);
    room.k_rows = TP_TAKE(arena, float, b->block *b->ldq);
    room.v = TP_TAKE(arena, float, b->block *p->head_dim_v);
    room.dk = TP_TAKE(arena, float, b->block *b->ldq);
    room.dv = TP_TAKE(arena, float, b->block *b->ldo);
    room.p = TP_TAKE(arena, float, TP__BACK_ROWS *b->lds);
    room.ds = TP_TAKE(arena, float, TP__BACK_ROWS *b->lds);
    room.slope = TP_TAKE(arena, float, TP__BACK_ROWS);
    room.d_bias = TP_TAKE(arena, float *, TP__BACK_ROWS);
    room.sight = tp__sight_take(arena, p, TP__BACK_ROWS, TP__BACK_ROWS, b->block);
    room.k_row = TP_TAKE(arena, const char *, b->block);
    room.v_row = TP_TAKE(arena, const char *, b->block);
    return room;
}

static int64_t blocks_of(const tp__backward *b, int64_t kv_len) {
    return tp__max((kv_len + b->block - 1) / b->block, 1);
}

static void lay_out(tp__backward *b, const tp_problem *p, int threads, tp__arena *arena) {
    int64_t units = tp__times(p->batch, p->kv_heads), group = p->q_heads / p->kv_heads;
    b->block = tp__back_block(tp__max(p->head_dim_qk, p->head_dim_v));
    b->ldq = padded(p->head_dim_qk);
    b->ldo = padded(p->head_dim_v);
    b->lds = b->block + 16;
    b->rows = tp__times(p->q_len, group);
    b->tiles = b->rows / TP__BACK_ROWS + 1;
    b->slots = (int)tp__min(threads > 1 ? threads + 1 : 1, tp__max(units, 1));
    int64_t tasks = tp__times(units, blocks_of(b, p->kv_len));
    b->first_task = TP_TAKE(arena, int64_t, p->batch + 1);
    b->hull = TP_TAKE(arena, tp__interval, tp__times(p->batch, b->tiles));
    b->slot = TP_TAKE(arena, tp__slot, b->slots);
    for (int i = 0; i < b->slots; i++) {
        tp__slot slot = take_slot(b, arena);
        if (arena->base != NULL) b->slot[i] = slot;
    }
    b->room = TP_TAKE(arena, tp__back_room, threads);
    for (int i = 0; i < threads; i++) {
        tp__back_room room = take_room(b, p, arena);
        if (arena->base != NULL) b->room[i] = room;
    }
    if (p->alibi) b->slopes = TP_TAKE(arena, double, tp__times(tasks, group));
    if (p->sinks) b->deltas = TP_TAKE(arena, float, tp__times(tp__times(p->batch, p->q_len), p->q_heads));
    if (p->bias_dtype != 0) b->done = TP_TAKE(arena, atomic_uchar, tasks);
}

static size_t workspace(const tp_problem *problem, const tp__kernels *kernels, int path, int threads) {
    tp__arena arena = {NULL, 0};
    tp__backward b = {0};
    (void)kernels, (void)path;
    lay_out(&b, problem, threads, &arena);
    return arena.used;
}

static int64_t most(const tp_problem *problem, const tp_tensors *tensors) {
    int64_t block = tp__back_block(tp__max(problem->head_dim_qk, problem->head_dim_v));
    int64_t keys = problem->kv_layout == TP_PACKED ? tensors->kv_tokens
                                                   : tp__times(tensors->batch, tensors->kv_len);
    return tp__times(tp__max(keys / block, tensors->batch), problem->kv_heads);
}

/* ---- before any task: what tiles see ---- */

static void look_at_tiles(const tp__backward *b, tp__back_room *room, int64_t seq, int64_t tile) {
    const tp_problem *p = b->job->problem;
    tp__keys keys = tp__keys_of(p, b->job->tensors, seq, 0);
    int64_t rows = keys.seq.q_len * (p->q_heads / p->kv_heads), end = tile + LOOK_TILES;
    if (tile * TP__BACK_ROWS >= rows) return;
    tp__sight_open(&room->sight, b->job, &keys, 0, p->kv_heads, b->block);
    for (; tile < end && tile * TP__BACK_ROWS < rows; tile++) {
        int64_t first = tile * TP__BACK_ROWS, count = tp__min(TP__BACK_ROWS, rows - first);
        int64_t strips = (count + b->job->kernels->mr - 1) / b->job->kernels->mr;
        room->trace->pairs_visible += tp__sight_rows(&room->sight, &keys, first, count) * p->kv_heads;
        room->trace->tiles_skipped += strips * p->kv_heads *
                                      ((keys.count + b->job->kernels->nr - 1) / b->job->kernels->nr);
        b->hull[seq * b->tiles + tile] = room->sight.any;
    }
}

static void look(void *context, size_t index) {
    tp__backward *b = context;
    int64_t pieces = (b->tiles + LOOK_TILES - 1) / LOOK_TILES, ticket;
    int64_t count = b->job->tensors->batch * pieces;
    memset(b->room[index].trace, 0, sizeof *b->room[index].trace);
    while ((ticket = atomic_fetch_add_explicit(&b->look_ticket, 1, memory_order_relaxed)) < count)
        look_at_tiles(b, &b->room[index], ticket / pieces, ticket % pieces * LOOK_TILES);
}

/* ---- one tile's rows ---- */

static tp__rows rows_of(const tp__back_task *task, int64_t tile, const tp_problem *p, const tp_tensor *tensor) {
    int64_t first = tile * TP__BACK_ROWS;
    return (tp__rows){first, tp__min(TP__BACK_ROWS, task->rows - first), p->q_heads / p->kv_heads,
                      tensor->stride[1], tensor->stride[2]};
}

/* Where the unit's rows begin in a tensor laid out like q. */
static char *unit_start(const tp__backward *b, const tp__back_task *task, const tp_tensor *tensor, int32_t dtype) {
    const tp_problem *p = b->job->problem;
    int64_t head = task->head * (p->q_heads / p->kv_heads);
    return tp__element(tensor,
                       tp__sequence_start(p, b->job->tensors, tensor, 1, task->seq) + head * tensor->stride[2],
                       dtype);
}

/* delta -= d_lse, and lse in units of log2: 0 for rows without any key, whose scores are all -inf. */
static void take_lse(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile) {
    const tp_problem *p = b->job->problem;
    const tp_tensor *lse = &b->job->tensors->lse, *d_lse = &b->gradients->d_lse;
    tp__rows rows = rows_of(task, tile, p, lse);
    tp__walk walk = tp__walk_start(&rows);
    const float *from = (const float *)unit_start(b, task, lse, TP_F32);
    for (int64_t i = rows.first; i < rows.first + rows.count; i++) {
        float value = from[tp__walk_next(&walk)];
        slot->lse[i] = value == -INFINITY ? 0.0f : (float)((double)value * LOG2_E);
    }
    if (d_lse->data == NULL) return;
    rows = rows_of(task, tile, p, d_lse);
    walk = tp__walk_start(&rows);
    from = (const float *)unit_start(b, task, d_lse, TP_F32);
    for (int64_t i = rows.first; i < rows.first + rows.count; i++) slot->delta[i] -= from[tp__walk_next(&walk)];
}

static void keep_deltas(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile) {
    int64_t group = b->job->problem->q_heads / b->job->problem->kv_heads;
    int64_t end = tp__min((tile + 1) * TP__BACK_ROWS, task->rows);
    for (int64_t r = tile * TP__BACK_ROWS; r < end; r++)
        b->deltas[(task->seq * b->job->problem->q_len + r / group) * b->job->problem->q_heads +
                  task->head * group + r % group] = slot->delta[r];
}

static void open_tile(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile,
                      tp__trace *trace) {
    const tp_problem *p = b->job->problem;
    const tp_tensors *t = b->job->tensors;
    const tp_tensor *d_o = &b->gradients->d_o;
    const tp__kernels *kernels = b->job->kernels;
    int64_t first = tile * TP__BACK_ROWS;
    tp__rows rows = rows_of(task, tile, p, &t->q);
    kernels->load_q[p->q_dtype](trace, slot->q + first * b->ldq, b->ldq, unit_start(b, task, &t->q, p->q_dtype),
                                &rows, p->head_dim_qk, tp__scale_log2(p));
    rows = rows_of(task, tile, p, d_o);
    kernels->load_q[p->o_dtype](trace, slot->d_o + first * b->ldo, b->ldo, unit_start(b, task, d_o, p->o_dtype),
                                &rows, p->head_dim_v, 1.0f);
    tp__delta delta = {.o = unit_start(b, task, &t->o, p->o_dtype), .rows = rows_of(task, tile, p, &t->o),
                       .q = slot->q + first * b->ldq, .d_o = slot->d_o + first * b->ldo, .ldq = b->ldq,
                       .ldo = b->ldo, .d = p->head_dim_qk, .dv = p->head_dim_v, .delta = slot->delta + first};
    slot->not_finite[tile] = (unsigned char)kernels->delta[p->o_dtype](trace, &delta);
    take_lse(b, task, slot, tile);
    if (b->deltas != NULL) keep_deltas(b, task, slot, tile);
    memset(slot->dq + first * b->ldq, 0, (size_t)(rows.count * b->ldq) * sizeof(float));
    int64_t scratch = rows.count * (2 * b->ldq + b->ldo) * (int64_t)sizeof(float);
    trace->bytes_scratch += scratch;
    trace->bytes += rows.count * tp__row_bytes(p, t) + 2 * scratch;
}

static void close_tile(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile,
                       tp__trace *trace) {
    const tp_problem *p = b->job->problem;
    const tp_tensor *d_q = &b->gradients->d_q;
    if (d_q->data == NULL) return;
    tp__rows rows = rows_of(task, tile, p, d_q);
    b->job->kernels->store_d[p->q_dtype](trace, unit_start(b, task, d_q, p->q_dtype), &rows, p->head_dim_qk,
                                         slot->dq + rows.first * b->ldq, b->ldq, tp__scale(p));
}

/* ---- one block of keys ---- */

static void await(atomic_llong *value, int64_t wanted) {
    while (atomic_load_explicit(value, memory_order_acquire) != wanted) sched_yield();
}

/* The unit's first task takes the slot over, says which block may begin with each tile, and serves tiles that see
   no key. */
static void open_unit(const tp__backward *b, const tp__back_task *task, tp__slot *slot, tp__trace *trace) {
    if (task->block > 0) {
        await(&slot->unit, task->unit);
        return;
    }
    if (task->unit >= b->slots) {
        await(&slot->unit, task->unit - b->slots);
        await(&slot->left, 0);
    }
    const tp__interval *hull = b->hull + task->seq * b->tiles;
    for (int64_t tile = 0; tile < task->tiles; tile++) {
        atomic_store_explicit(&slot->turn[tile], hull[tile].lo / b->block, memory_order_relaxed);
        if (hull[tile].lo < hull[tile].hi) continue;
        open_tile(b, task, slot, tile, trace);
        close_tile(b, task, slot, tile, trace);
    }
    atomic_store_explicit(&slot->left, task->blocks, memory_order_relaxed);
    atomic_store_explicit(&slot->unit, task->unit, memory_order_release);
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

/* Returns whether a k is not finite. */
static int pack_block(const tp__backward *b, const tp__back_task *task, tp__back_room *room, int64_t first,
                      int64_t last) {
    const tp_problem *p = b->job->problem;
    const tp_tensors *t = b->job->tensors;
    const tp__kernels *kernels = b->job->kernels;
    int64_t key = task->block * b->block;
    tp__ahead none = {0};
    tp__keys_rows(&task->keys, key + first, last - first, key + last, room->k_row + first, room->v_row + first);
    tp__keys_in in = {(const char *const *)room->k_row,
                      task->head * t->k.stride[2] * (int64_t)tp_dtype_bytes(p->k_dtype), first, last, &none};
    kernels->pack_k[p->k_dtype](room->trace, room->k, &in, b->block, p->head_dim_qk);
    int not_finite = kernels->pack_v[p->k_dtype](room->trace, room->k_rows, &in, b->block, p->head_dim_qk);
    in.row = (const char *const *)room->v_row;
    in.offset = task->head * t->v.stride[2] * (int64_t)tp_dtype_bytes(p->v_dtype);
    kernels->pack_k[p->v_dtype](room->trace, room->v, &in, b->block, p->head_dim_v);
    return not_finite;
}

static void store_keys(const tp__backward *b, const tp__back_task *task, tp__back_room *room) {
    const tp_problem *p = b->job->problem;
    const struct {
        const tp_tensor *to;
        int32_t dtype;
        int64_t dim, ld;
        const float *from;
        float factor;
    } both[2] = {
        {&b->gradients->d_k, p->k_dtype, p->head_dim_qk, b->ldq, room->dk, (float)LN_2},
        {&b->gradients->d_v, p->v_dtype, p->head_dim_v, b->ldo, room->dv, 1.0f / (1.0f - p->dropout)},
    };
    int64_t key = task->block * b->block, count = tp__min(b->block, task->keys.count - key);
    for (int i = 0; i < 2 && count > 0; i++) {
        const tp_tensor *to = both[i].to;
        if (to->data == NULL) continue;
        tp__rows rows = {key, count, 1, to->stride[1], 0};
        int64_t start = tp__sequence_start(p, b->job->tensors, to, 0, task->seq) + task->head * to->stride[2];
        b->job->kernels->store_d[both[i].dtype](room->trace, tp__element(to, start, both[i].dtype), &rows,
                                                both[i].dim, both[i].from, both[i].ld, both[i].factor);
    }
}

/* Where the rows' gradients of the bias go. */
static void point_at_bias(const tp__backward *b, const tp__back_task *task, tp__back_room *room, int64_t tile,
                          tp__back *back) {
    const int64_t *stride = b->gradients->d_bias_stride;
    int64_t group = b->job->problem->q_heads / b->job->problem->kv_heads;
    if (b->gradients->d_bias == NULL) return;
    for (int64_t i = 0; i < back->tile.rows; i++) {
        int64_t row = tile * TP__BACK_ROWS + i, head = task->head * group + row % group;
        room->d_bias[i] = b->gradients->d_bias + task->seq * stride[0] + head * stride[1] +
                          row / group * stride[2] + task->block * b->block * stride[3];
    }
    back->d_bias = room->d_bias;
    back->d_bias_stride = stride[3];
}

static void run_tile(const tp__backward *b, const tp__back_task *task, tp__back_room *room, const tp__slot *slot,
                     int64_t tile, int k_not_finite) {
    const tp_problem *p = b->job->problem;
    int64_t row = tile * TP__BACK_ROWS, key = task->block * b->block, first, last;
    int64_t group = p->q_heads / p->kv_heads;
    tp__back back = {
        .tile = {.q = slot->q + row * b->ldq, .ldq = b->ldq, .k = room->k, .s = room->p, .lds = b->lds,
                 .rows = tp__min(TP__BACK_ROWS, task->rows - row), .d = p->head_dim_qk, .dv = p->head_dim_v,
                 .block = b->block},
        .d_o = slot->d_o + row * b->ldo, .ldo = b->ldo, .v = room->v, .k_rows = room->k_rows, .ds = room->ds,
        .lse = slot->lse + row, .delta = slot->delta + row,
        .dq = b->gradients->d_q.data != NULL ? slot->dq + row * b->ldq : NULL,
        .dk = b->gradients->d_k.data != NULL ? room->dk : NULL,
        .dv = b->gradients->d_v.data != NULL ? room->dv : NULL,
        .not_finite = k_not_finite | slot->not_finite[tile],
        .stay = 1.0f / (1.0f - p->dropout),
    };
    tp__sight_rows(&room->sight, &task->keys, row, back.tile.rows);
    tp__glimpse glimpse = tp__sight_block(&room->sight, key, &first, &last, room->trace);
    if (glimpse == TP__SEES_NONE ||
        !tp__sight_tile(&room->sight, &back.tile, 0, key, last, glimpse, room->trace))
        return;
    if (p->bias_dtype != 0) point_at_bias(b, task, room, tile, &back);
    if (p->alibi && b->gradients->d_alibi_slopes != NULL) back.slope = room->slope;
    b->job->kernels->backward(room->trace, &back);
    for (int64_t i = 0; back.slope != NULL && i < back.tile.rows; i++)
        b->slopes[task->ticket * group + (row + i) % group] -= (double)back.slope[i];
}

static void run_block(const tp__backward *b, const tp__back_task *task, tp__back_room *room, tp__slot *slot) {
    const tp_problem *p = b->job->problem;
    const tp__interval *hull = b->hull + task->seq * b->tiles;
    int64_t first, last, key = task->block * b->block;
    memset(room->dk, 0, (size_t)(b->block * b->ldq) * sizeof(float));
    memset(room->dv, 0, (size_t)(b->block * b->ldo) * sizeof(float));
    if (!keys_seen(b, task, &first, &last)) return;
    int not_finite = pack_block(b, task, room, first, last);
    room->trace->bytes += (last - first) * tp__key_bytes(p);
    tp__sight_open(&room->sight, b->job, &task->keys, task->head, 1, b->block);
    for (int64_t tile = task->tiles; tile-- > 0;) {
        if (hull[tile].lo >= key + b->block || hull[tile].hi <= key) continue;
        await(&slot->turn[tile], task->block);
        if (hull[tile].lo >= key) open_tile(b, task, slot, tile, room->trace);
        run_tile(b, task, room, slot, tile, not_finite);
        if (hull[tile].hi <= key + b->block) close_tile(b, task, slot, tile, room->trace);
        atomic_store_explicit(&slot->turn[tile], task->block + 1, memory_order_release);
    }
}

tp__back_task tp__back_task_at(const tp__backward *b, int64_t ticket) {
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
    task.blocks = blocks_of(b, task.keys.count);
    task.head = (ticket - b->first_task[lo]) / task.blocks;
    task.block = (ticket - b->first_task[lo]) % task.blocks;
    task.unit = lo * p->kv_heads + task.head;
    task.rows = task.keys.seq.q_len * (p->q_heads / p->kv_heads);
    task.tiles = (task.rows + TP__BACK_ROWS - 1) / TP__BACK_ROWS;
    return task;
}

static void run_task(tp__backward *b, tp__back_room *room, int64_t ticket) {
    int64_t group = b->job->problem->q_heads / b->job->problem->kv_heads;
    tp__back_task task = tp__back_task_at(b, ticket);
    tp__slot *slot = &b->slot[task.unit % b->slots];
    if (b->slopes != NULL) memset(b->slopes + ticket * group, 0, (size_t)group * sizeof(double));
    open_unit(b, &task, slot, room->trace);
    if (b->done != NULL) tp__back_await_bias(b, &task);
    run_block(b, &task, room, slot);
    store_keys(b, &task, room);
    atomic_fetch_sub_explicit(&slot->left, 1, memory_order_release);
    if (b->done != NULL) atomic_store_explicit(&b->done[ticket], 1, memory_order_release);
}

static void run_tasks(void *context, size_t index) {
    tp__backward *b = context;
    int64_t count = b->first_task[b->job->tensors->batch], ticket;
    while ((ticket = atomic_fetch_add_explicit(&b->ticket, 1, memory_order_relaxed)) < count)
        run_task(b, &b->room[index], ticket);
}

static void run(const tp__job *job) {
    tp__arena arena = {job->workspace, 0};
    tp__backward b = {.job = job, .gradients = job->tensors->gradients};
    int64_t batch = job->tensors->batch;
    lay_out(&b, job->problem, job->threads, &arena);
    atomic_init(&b.ticket, 0);
    atomic_init(&b.look_ticket, 0);
    b.first_task[0] = 0;
    for (int64_t s = 0; s < batch; s++)
        b.first_task[s + 1] = b.first_task[s] +
                              job->problem->kv_heads *
                                  blocks_of(&b, tp__sequence_at(job->problem, job->tensors, s).kv_len);
    for (int i = 0; i < b.slots; i++) {
        atomic_init(&b.slot[i].unit, -1);
        atomic_init(&b.slot[i].left, 0);
        for (int64_t tile = 0; tile < b.tiles; tile++) atomic_init(&b.slot[i].turn[tile], 0);
    }
    for (int64_t i = 0; b.done != NULL && i < b.first_task[batch]; i++) atomic_init(&b.done[i], 0);
    if (b.done != NULL) tp__back_clear_bias(&b);
    b.bias_order = b.done != NULL ? tp__bias_order_of(job->problem, job->tensors) : TP__BIAS_APART;
    tp__parallel_run(&job->parallel, (size_t)job->threads, look, &b);
    tp__parallel_run(&job->parallel, (size_t)job->threads, run_tasks, &b);
    tp__back_sums(&b);
    for (int i = 0; i < job->threads; i++) tp__trace_add(job->trace, b.room[i].trace);
    job->trace->tiles_skipped -= job->trace->tiles_full + job->trace->tiles_partial;
}

const tp__strategy tp__strategy_backward = {"backward", TP_MAX_HEAD_DIM, 1, workspace, run, most};
