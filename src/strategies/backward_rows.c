/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of one tile on their way in and out: q, d_o, delta and lse before the first block, dq after the last. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "strategies/backward.h"

static tp__rows rows_of(const tp__back_task *task, int64_t tile, const tp_problem *p, const tp_tensor *tensor) {
    int64_t first = tile * TP__BACK_ROWS;
    return (tp__rows){first, tp__min(TP__BACK_ROWS, task->rows - first), p->q_heads / p->kv_heads,
                      tensor->stride[1], tensor->stride[2]};
}

/* Where the rows of a kv_head_task begin in a tensor laid out like q. */
static char *kv_head_start(const tp__backward *b, const tp__back_task *task, const tp_tensor *tensor, int32_t dtype) {
    const tp_problem *p = b->job->problem;
    int64_t head = task->head * (p->q_heads / p->kv_heads);
    return tp__element(tensor,
                       tp__sequence_start(p, b->job->tensors, tensor, 1, task->seq) + head * tensor->stride[2],
                       dtype);
}

/* The lse, and delta -= d_lse. Of a row without any key neither d_o nor d_lse count. */
static void take_lse(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile) {
    const tp_problem *p = b->job->problem;
    const tp_tensor *lse = &b->job->tensors->lse, *d_lse = &b->gradients->d_lse;
    tp__rows rows = rows_of(task, tile, p, lse);
    tp__walk walk = tp__walk_start(&rows);
    const float *from = (const float *)kv_head_start(b, task, lse, TP_F32);
    for (int64_t i = rows.first; i < rows.first + rows.count; i++) {
        slot->lse[i] = from[tp__walk_next(&walk)];
        if (slot->lse[i] == -INFINITY) slot->delta[i] = 0.0f;
    }
    if (d_lse->data == NULL) return;
    rows = rows_of(task, tile, p, d_lse);
    walk = tp__walk_start(&rows);
    from = (const float *)kv_head_start(b, task, d_lse, TP_F32);
    for (int64_t i = rows.first; i < rows.first + rows.count; i++) {
        float value = from[tp__walk_next(&walk)];
        if (slot->lse[i] != -INFINITY) slot->delta[i] -= value;
    }
}

/* The row's delta, for the sinks. */
static float *delta_at(const tp__backward *b, const tp__back_task *task, int64_t r) {
    const tp_problem *p = b->job->problem;
    int64_t group = p->q_heads / p->kv_heads;
    return b->deltas + (task->seq * p->q_len + r / group) * p->q_heads + task->head * group + r % group;
}

/* A row that sees no key has o = 0 whatever its d_o is, which then does not count: -d_lse is left. */
static void clear_deltas(const tp__backward *b, const tp__back_task *task, int64_t tile) {
    const tp_tensor *d_lse = &b->gradients->d_lse;
    tp__rows rows = rows_of(task, tile, b->job->problem, d_lse);
    tp__walk walk = tp__walk_start(&rows);
    const float *from = d_lse->data != NULL ? (const float *)kv_head_start(b, task, d_lse, TP_F32) : NULL;
    for (int64_t r = rows.first; r < rows.first + rows.count; r++)
        *delta_at(b, task, r) = from != NULL ? -from[tp__walk_next(&walk)] : 0.0f;
}

/* Whether the tile's row sees any key of its block: not one that its bias hides. */
static int sees_any(const tp__row_tile *tile, int64_t row) {
    const tp__modify *mod = tile->modify;
    const uint64_t *bits = tile->bits != NULL ? tile->bits + row * tile->bit_words : NULL;
    for (int64_t j = tile->lo[row]; j < tile->hi[row]; j++) {
        if (bits != NULL && !(bits[j / 64] >> (j % 64) & 1)) continue;
        if (mod == NULL || mod->bias == NULL) return 1;
        if (tp__load(mod->bias_dtype, mod->bias[row], j * mod->bias_stride) != -INFINITY) return 1;
    }
    return 0;
}

void tp__back_keep_deltas(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile,
                          const tp__row_tile *seen) {
    int64_t first = tile * TP__BACK_ROWS;
    for (int64_t i = 0; b->deltas != NULL && i < seen->rows; i++)
        if (sees_any(seen, i)) *delta_at(b, task, first + i) = slot->delta[first + i];
}

void tp__back_open_tile(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile,
                        tp__trace *trace) {
    const tp_problem *p = b->job->problem;
    const tp_tensors *t = b->job->tensors;
    const tp_tensor *d_o = &b->gradients->d_o;
    const tp__kernel_set *kernels = b->job->kernels;
    int64_t first = tile * TP__BACK_ROWS;
    tp__rows rows = rows_of(task, tile, p, &t->q);
    kernels->load_q[p->q_dtype](trace, tp__q_at(kernels, slot->q, first, b->ldq), b->ldq,
                                kv_head_start(b, task, &t->q, p->q_dtype), &rows, p->head_dim_qk, b->job->units.q_factor);
    rows = rows_of(task, tile, p, d_o);
    kernels->load_q[p->o_dtype](trace, tp__q_at(kernels, slot->d_o, first, b->ldo), b->ldo,
                                kv_head_start(b, task, d_o, p->o_dtype), &rows, p->head_dim_v, 1.0f);
    tp__delta delta = {.o = kv_head_start(b, task, &t->o, p->o_dtype),
                       .rows = rows_of(task, tile, p, &t->o),
                       .q = tp__q_at(kernels, slot->q, first, b->ldq),
                       .d_o = tp__q_at(kernels, slot->d_o, first, b->ldo),
                       .ldq = b->ldq,
                       .ldo = b->ldo,
                       .d = p->head_dim_qk,
                       .dv = p->head_dim_v,
                       .delta = slot->delta + first};
    slot->not_finite[tile] = (unsigned char)kernels->delta[p->o_dtype](trace, &delta);
    take_lse(b, task, slot, tile);
    if (b->deltas != NULL) clear_deltas(b, task, tile);
    memset(slot->dq + first * b->ldq, 0, (size_t)(rows.count * b->ldq) * sizeof(float));
    int64_t scratch = rows.count * (2 * b->ldq + b->ldo) * (int64_t)sizeof(float);
    trace->bytes_scratch += scratch;
    trace->bytes += rows.count * tp__row_bytes(p, t) + 2 * scratch;
}

void tp__back_close_tile(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile,
                         tp__trace *trace) {
    const tp_problem *p = b->job->problem;
    const tp_tensor *d_q = &b->gradients->d_q;
    if (d_q->data == NULL) return;
    tp__rows rows = rows_of(task, tile, p, d_q);
    b->job->kernels->store_d[p->q_dtype](trace, kv_head_start(b, task, d_q, p->q_dtype), &rows, p->head_dim_qk,
                                         slot->dq + rows.first * b->ldq, b->ldq, tp__scale(p));
}
