/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/prepare.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/arena.h"
#include "base/constants.h"
#include "masks/mask.h"

/* Of whole blocks, so that a block's words can be read and marked whole. */
static int64_t words_of(int64_t keys) { return tp__round_up(keys, TP__MASK_KEYS) / 64; }

static void lay_out(tp__prepared *p, const tp_problem *problem, tp__arena *arena) {
    /* backward's blocks do not divide these, so its last one may reach beyond */
    int64_t beyond = problem->op == TP_BACKWARD ? TP__MASK_KEYS : 0;
    *p = (tp__prepared){.words = words_of(problem->kv_len + beyond), .rows = problem->q_len, .heads = 1};
    if (tp__mask_is_plain(problem)) return;
    if (tp__mask_by_head(problem, NULL)) p->heads = problem->kv_heads;
    p->seen = TP_TAKE(arena, uint64_t, tp__times(tp__times(problem->batch, p->heads), p->words));
    if (tp__mask_has(problem, TP_MASK_CALLBACK))
        p->called = TP_TAKE(arena, uint64_t,
                            tp__times(tp__times(problem->batch, problem->q_len), p->words));
}

size_t tp__prepare_bytes(const tp_problem *problem) {
    tp__arena arena = {NULL, 0, 1};
    tp__prepared p;
    lay_out(&p, problem, &arena);
    return arena.used;
}

size_t tp__workspace(const tp__strategy *strategy, const tp_problem *problem, const tp__kernel_set *kernels,
                     int path, int threads) {
    size_t sum;
    return __builtin_add_overflow(tp__prepare_bytes(problem),
                                  strategy->workspace(problem, kernels, path, threads), &sum)
               ? SIZE_MAX
               : sum;
}

typedef struct asking {
    const tp__job *job;
    atomic_llong ticket;
} asking;

static void ask_row(const tp__job *job, const tp__sequence *seq, int64_t row) {
    const tp_tensors *t = job->tensors;
    uint64_t *to = job->prepared.called +
                   (seq->index * job->prepared.rows + row) * job->prepared.words;
    for (int64_t key = 0; key < seq->kv_len; key += 64) {
        uint64_t word = 0;
        for (int64_t i = 0; i < 64 && key + i < seq->kv_len; i++)
            word |= (uint64_t)(t->callback(t->callback_user, seq->index, row, key + i) != 0) << i;
        to[key / 64] = word;
    }
}

static void ask(void *context, size_t index) {
    asking *a = context;
    int64_t rows = a->job->problem->q_len, count = a->job->tensors->batch * rows, ticket;
    (void)index;
    while ((ticket = atomic_fetch_add_explicit(&a->ticket, 1, memory_order_relaxed)) < count) {
        tp__sequence seq = tp__sequence_at(a->job->problem, a->job->tensors, ticket / rows);
        if (ticket % rows < seq.q_len) ask_row(a->job, &seq, ticket % rows);
    }
}

void tp__prepare(tp__job *job) {
    tp__arena arena = {job->workspace, 0, 1};
    lay_out(&job->prepared, job->problem, &arena);
    job->workspace += arena.used;
    if (job->prepared.seen != NULL)
        memset(job->prepared.seen, 0,
               (size_t)(job->tensors->batch * job->prepared.heads * job->prepared.words) *
                   sizeof(uint64_t));
    if (job->prepared.called == NULL) return;
    asking a = {.job = job};
    atomic_init(&a.ticket, 0);
    tp__parallel_run(&job->parallel, (size_t)job->threads, ask, &a);
}

tp_status tp__prepared_check(const tp__job *job, tp_error *error) {
    const tp__prepared *p = &job->prepared;
    if (p->called == NULL) return TP_OK;
    return tp__called_pages_check(job->problem, job->tensors, &(tp__answers){p->called, p->rows, p->words}, error);
}

tp__mask_view tp__prepared_view(const tp__job *job, const tp__sequence *seq) {
    tp__mask_view view = tp__sequence_view(job->problem, seq);
    view.called_words = job->prepared.words;
    if (job->prepared.called != NULL)
        view.called = job->prepared.called + seq->index * job->prepared.rows * job->prepared.words;
    return view;
}

uint64_t *tp__prepared_seen(const tp__job *job, int64_t seq, int64_t kv_head) {
    const tp__prepared *p = &job->prepared;
    if (p->seen == NULL) return NULL;
    return p->seen + (seq * p->heads + (p->heads > 1 ? kv_head : 0)) * p->words;
}

int64_t tp__prepared_keys(const tp__job *job) {
    const tp__prepared *p = &job->prepared;
    int64_t keys = 0;
    for (int64_t i = 0; i < job->tensors->batch * p->heads * p->words; i++)
        keys += __builtin_popcountll(p->seen[i]);
    return keys * (job->problem->kv_heads / p->heads);
}

float tp__slope_of(const tp_tensors *tensors, int64_t seq, int64_t head) {
    return tensors->alibi_slopes[seq * tensors->alibi_stride + head];
}

const void *tp__bias_at(const tp_problem *problem, const tp_tensors *tensors, int64_t seq, int64_t head,
                        int64_t row, int64_t key) {
    const int64_t *stride = tensors->bias_stride;
    int64_t at = seq * stride[0] + head * stride[1] + row * stride[2] + key * stride[3];
    return (const char *)tensors->bias + at * (int64_t)tp_dtype_bytes((tp_dtype)problem->bias_dtype);
}

float tp__sink_of(const tp_problem *problem, const tp_tensors *tensors, int64_t head) {
    return problem->sinks ? tensors->sinks[head] : -INFINITY;
}
