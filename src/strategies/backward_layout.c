/* SPDX-License-Identifier: Apache-2.0 */
/* The workspace of a backward call. */
#include "base/arena.h"
#include "strategies/backward.h"

#define SLOTS_BYTES (64 << 20) /* of all slots, beyond those that are needed */

/* Rows of floats whose starts do not all fall into the same few sets of a cache. */
static int64_t padded(int64_t d) {
    int64_t ld = tp__round_up(d, 16);
    return ld % 64 == 0 ? ld + 16 : ld;
}

static tp__slot take_slot(const tp__backward *b, const tp__kernel_set *kernels, tp__arena *arena) {
    tp__slot s;
    s.q = tp__take_q(arena, kernels, b->rows, b->ldq);
    s.d_o = tp__take_q(arena, kernels, b->rows, b->ldo);
    s.dq = TP_TAKE(arena, float, tp__times(b->rows, b->ldq));
    s.lse = TP_TAKE(arena, float, b->rows);
    s.delta = TP_TAKE(arena, float, b->rows);
    s.next_block = TP_TAKE(arena, atomic_llong, b->tiles);
    s.not_finite = TP_TAKE(arena, unsigned char, b->tiles);
    return s;
}

static tp__backward_scratch take_scratch(const tp__backward *b, const tp_problem *p, const tp__kernel_set *kernels,
                                         tp__arena *arena) {
    tp__backward_scratch scratch;
    scratch.trace = TP_TAKE(arena, tp__trace, 1);
    scratch.k = tp__take_k(arena, kernels, b->block, p->head_dim_qk);
    scratch.k_rows = tp__take_v(arena, kernels, b->block, b->ldq);
    scratch.v = tp__take_k(arena, kernels, b->block, p->head_dim_v);
    scratch.dk = TP_TAKE(arena, float, b->block *b->ldq);
    scratch.dv = TP_TAKE(arena, float, b->block *b->ldo);
    scratch.p = TP_TAKE(arena, float, TP__BACK_ROWS *b->lds);
    scratch.ds = TP_TAKE(arena, float, TP__BACK_ROWS *b->lds);
    scratch.slope = TP_TAKE(arena, float, TP__BACK_ROWS);
    scratch.d_bias = TP_TAKE(arena, float *, TP__BACK_ROWS);
    scratch.visibility = tp__visibility_take(arena, p, TP__BACK_ROWS, TP__BACK_ROWS, b->block);
    scratch.k_row = TP_TAKE(arena, const char *, b->block);
    scratch.v_row = TP_TAKE(arena, const char *, b->block);
    return scratch;
}

int64_t tp__back_blocks(const tp__backward *b, int64_t kv_len) {
    return tp__max((kv_len + b->block - 1) / b->block, 1);
}

/* Threads at work on tasks in order are within so many kv_head_tasks where all have as many blocks; shorter sequences can
   use more slots, which they get while these are small. Changes no bit. */
static int slots_of(const tp__backward *b, int threads, int64_t kv_head_tasks, int64_t blocks) {
    int64_t bytes = tp__times(tp__times(b->rows, 2 * b->ldq + b->ldo), sizeof(float));
    int64_t min = (threads + blocks - 1) / blocks + 1, fit = SLOTS_BYTES / tp__max(bytes, 1);
    int64_t max = threads > 1 ? threads + 1 : 1;
    return (int)tp__min(tp__min(max, tp__max(min, fit)), tp__max(kv_head_tasks, 1));
}

void tp__back_lay_out(tp__backward *b, const tp_problem *p, const tp__kernel_set *kernels, int threads,
                      tp__arena *arena) {
    int64_t kv_head_tasks = tp__times(p->batch, p->kv_heads), group = p->q_heads / p->kv_heads;
    b->block = tp__back_block(tp__max(p->head_dim_qk, p->head_dim_v));
    b->ldq = padded(p->head_dim_qk);
    b->ldo = padded(p->head_dim_v);
    b->lds = b->block + 16;
    b->rows = tp__times(p->q_len, group);
    b->tiles = b->rows / TP__BACK_ROWS + 1;
    b->slots = slots_of(b, threads, kv_head_tasks, tp__back_blocks(b, p->kv_len));
    int64_t tasks = tp__times(kv_head_tasks, tp__back_blocks(b, p->kv_len));
    b->first_task = TP_TAKE(arena, int64_t, p->batch + 1);
    b->hull = TP_TAKE(arena, tp__interval, tp__times(p->batch, b->tiles));
    b->slot = TP_TAKE(arena, tp__slot, b->slots);
    for (int i = 0; i < b->slots; i++) {
        tp__slot slot = take_slot(b, kernels, arena);
        if (arena->base != NULL) b->slot[i] = slot;
    }
    b->scratch = TP_TAKE(arena, tp__backward_scratch, threads);
    for (int i = 0; i < threads; i++) {
        tp__backward_scratch scratch = take_scratch(b, p, kernels, arena);
        if (arena->base != NULL) b->scratch[i] = scratch;
    }
    if (p->alibi) b->slopes = TP_TAKE(arena, double, tp__times(tasks, group));
    if (p->sinks) b->deltas = TP_TAKE(arena, float, tp__times(tp__times(p->batch, p->q_len), p->q_heads));
    if (p->bias_dtype != 0) b->done = TP_TAKE(arena, atomic_uchar, tasks);
}
