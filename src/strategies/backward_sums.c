/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of what rows and sequences share: bias, ALiBi slopes, sinks. Each sum has one order. */
#include <math.h>
#include <sched.h>
#include <string.h>

#include "strategies/backward.h"

/* Whether no two index tuples of these dims meet: taken by size, each stride steps over what the smaller cover. */
static int are_disjoint(const int64_t *stride, const int64_t *extent, int dims) {
    int64_t covered = 1;
    unsigned taken = 0;
    for (int n = 0; n < dims; n++) {
        int min = -1;
        for (int i = 0; i < dims; i++)
            if (!(taken >> i & 1) && extent[i] > 1 && (min < 0 || stride[i] < stride[min])) min = i;
        if (min < 0) return 1;
        if (stride[min] < covered) return 0;
        covered += tp__times(stride[min], extent[min] - 1);
        taken |= 1u << min;
    }
    return 1;
}

tp__bias_order tp__bias_order_of(const tp_problem *p, const tp_tensors *t) {
    if (t->gradients->d_bias == NULL) return TP__BIAS_DISJOINT;
    const int64_t *stride = t->gradients->d_bias_stride;
    const int64_t extent[4] = {t->batch, p->q_heads, tp__rows_max(p, t), tp__keys_max(p, t)};
    if (are_disjoint(stride, extent, 4)) return TP__BIAS_DISJOINT;
    /* sequences or heads share all elements or none, and what rows and keys touch never meets */
    int64_t used[4] = {stride[0] ? extent[0] : 1, stride[1] ? extent[1] : 1, extent[2], extent[3]};
    return are_disjoint(stride, used, 4) ? TP__BIAS_HEADS : TP__BIAS_TASKS;
}

void tp__back_clear_bias(const tp__backward *b) {
    const tp_problem *p = b->job->problem;
    const tp_tensors *t = b->job->tensors;
    float *d_bias = b->gradients->d_bias;
    const int64_t *stride = b->gradients->d_bias_stride;
    for (int64_t s = 0; d_bias != NULL && s < t->batch; s++) {
        tp__sequence seq = tp__sequence_at(p, t, s);
        for (int64_t h = 0; h < p->q_heads; h++)
            for (int64_t r = 0; r < seq.q_len; r++) {
                float *row = d_bias + s * stride[0] + h * stride[1] + r * stride[2];
                for (int64_t j = 0; j < seq.kv_len; j++) row[j * stride[3]] = 0.0f;
            }
    }
}

static void await_done(const tp__backward *b, int64_t ticket) {
    while (!atomic_load_explicit(&b->done[ticket], memory_order_acquire)) sched_yield();
}

void tp__back_await_bias(const tp__backward *b, const tp__back_task *task) {
    const tp_problem *p = b->job->problem;
    if (b->bias_order == TP__BIAS_DISJOINT) return;
    if (b->bias_order == TP__BIAS_TASKS) {
        if (task->ticket > 0) await_done(b, task->ticket - 1);
        return;
    }
    if (task->head > 0) {
        await_done(b, task->ticket - task->blocks);
        return;
    }
    for (int64_t s = task->seq; s-- > 0;) { /* the last sequence before that has such a block */
        int64_t blocks = (b->first_task[s + 1] - b->first_task[s]) / p->kv_heads;
        if (blocks <= task->block) continue;
        await_done(b, b->first_task[s + 1] - blocks + task->block);
        return;
    }
}

/* Of each sequence's slopes, or of those that all share. */
static void sum_slopes(const tp__backward *b) {
    const tp_problem *p = b->job->problem;
    const tp_tensors *t = b->job->tensors;
    int64_t group = p->q_heads / p->kv_heads, stride = b->gradients->d_alibi_stride;
    float *to = b->gradients->d_alibi_slopes;
    for (int64_t h = 0; h < p->q_heads; h++) {
        double sum = 0;
        if (stride == 0) to[h] = 0.0f;
        for (int64_t s = 0; s < t->batch; s++) {
            int64_t blocks = (b->first_task[s + 1] - b->first_task[s]) / p->kv_heads;
            if (stride != 0) sum = 0;
            for (int64_t i = 0; i < blocks; i++)
                sum += b->slopes[(b->first_task[s] + h / group * blocks + i) * group + h % group];
            to[s * stride + h] = (float)sum;
        }
    }
}

static void sum_sinks(const tp__backward *b) {
    const tp_problem *p = b->job->problem;
    const tp_tensors *t = b->job->tensors;
    for (int64_t h = 0; h < p->q_heads; h++) {
        double sum = 0, sink = t->sinks[h];
        for (int64_t s = 0; s < t->batch && sink != -INFINITY; s++) {
            tp__sequence seq = tp__sequence_at(p, t, s);
            for (int64_t r = 0; r < seq.q_len; r++) {
                const float *lse = (const float *)t->lse.data + seq.lse + r * t->lse.stride[1] +
                                   h * t->lse.stride[2];
                sum -= exp(sink - (double)*lse) * (double)b->deltas[(s * p->q_len + r) * p->q_heads + h];
            }
        }
        b->gradients->d_sinks[h] = (float)sum;
    }
}

void tp__back_sums(const tp__backward *b) {
    if (b->slopes != NULL && b->gradients->d_alibi_slopes != NULL) sum_slopes(b);
    if (b->deltas != NULL && b->gradients->d_sinks != NULL) sum_sinks(b);
}
