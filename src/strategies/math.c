/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math: the honest baseline. One task is one query head of one sequence; its whole score matrix and its
 * whole matrix of weights go to memory. Any head dim.
 */
#include "strategies/strategy.h"

#include <stdatomic.h>
#include <string.h>

#include "base/arena.h"
#include "base/constants.h"
#include "strategies/prepare.h"
#include "strategies/visibility.h"

#define MATRIX_STEP 64 /* floats: rows of the matrices start on cache lines; a multiple of every NR */

typedef struct scratch {
    tp__trace *trace;
    void *q, *k, *v; /* in the set's form */
    float *s, *p, *o, *m, *l;
    int64_t *lo, *hi;
    uint64_t *bits;      /* [rows][lds/64], where masks are not plain */
    uint64_t *seen;      /* [lds/64] of any row */
    float *scale, *slope, *q_at, *k_at; /* where scores change */
    const void **bias;
    tp__dropout_row *drop;
    const char **k_row, **v_row;
} scratch;

typedef struct work {
    const tp__job *job;
    atomic_llong ticket;
    int64_t ldq, ldo, lds;
    scratch *slots;
} work;

static void lay_out(work *w, const tp_problem *problem, const tp__kernel_set *kernels, int threads,
                    tp__arena *arena) {
    int64_t rows = problem->q_len;
    w->ldq = tp__ldq(kernels, problem->head_dim_qk);
    w->ldo = tp__round_up(problem->head_dim_v, kernels->row_step);
    w->lds = tp__round_up(tp__row_keys_max(problem), MATRIX_STEP);
    w->slots = TP_TAKE(arena, scratch, threads);
    for (int i = 0; i < threads; i++) {
        scratch one;
        one.trace = TP_TAKE(arena, tp__trace, 1);
        one.q = tp__take_q(arena, kernels, rows, w->ldq);
        one.k = tp__take_k(arena, kernels, w->lds, problem->head_dim_qk);
        one.v = tp__take_v(arena, kernels, w->lds, w->ldo);
        one.s = TP_TAKE(arena, float, tp__times(rows, w->lds));
        one.p = TP_TAKE(arena, float, tp__times(rows, w->lds));
        one.o = TP_TAKE(arena, float, tp__times(rows, w->ldo));
        one.m = TP_TAKE(arena, float, rows);
        one.l = TP_TAKE(arena, float, rows);
        one.lo = TP_TAKE(arena, int64_t, rows);
        one.hi = TP_TAKE(arena, int64_t, rows);
        one.bits = one.seen = NULL;
        if (!tp__mask_is_plain(problem)) {
            one.bits = TP_TAKE(arena, uint64_t, tp__times(rows, w->lds / 64));
            one.seen = TP_TAKE(arena, uint64_t, w->lds / 64);
        }
        one.scale = one.slope = one.q_at = one.k_at = NULL;
        one.bias = NULL;
        if (problem->qscale_length > 0) one.scale = TP_TAKE(arena, float, rows);
        if (problem->alibi) {
            one.slope = TP_TAKE(arena, float, rows);
            one.q_at = TP_TAKE(arena, float, rows);
            one.k_at = TP_TAKE(arena, float, w->lds);
        }
        if (problem->bias_dtype != 0) one.bias = TP_TAKE(arena, const void *, rows);
        one.drop = problem->dropout > 0 ? TP_TAKE(arena, tp__dropout_row, rows) : NULL;
        int scales = problem->k_scales != 0 || problem->v_scales != 0; /* behind keys */
        int64_t places = tp__times(w->lds, scales ? 2 : 1);
        one.k_row = TP_TAKE(arena, const char *, places);
        one.v_row = TP_TAKE(arena, const char *, places);
        if (arena->base != NULL) w->slots[i] = one;
    }
}

static size_t workspace(const tp_problem *problem, const tp__kernel_set *kernels, int path, int threads) {
    (void)path;
    tp__arena arena = {NULL, 0, 1};
    work w;
    lay_out(&w, problem, kernels, threads, &arena);
    return arena.used;
}

/* The rows at work: first..first+count-1 of one query head: all of them, or one token with its sparse indices. */
typedef struct rows_at {
    int64_t head, first, count;
    tp__keys keys;
    tp__mask_view view;
} rows_at;

/* The bits of the whole row; returns from its first to its last. */
static tp__interval look_at_bits(const work *w, const scratch *slot, rows_at *at, int64_t r) {
    tp__mask_view *view = &at->view;
    int64_t words = (view->kv_len + 63) / 64;
    uint64_t *bits = slot->bits + r * (w->lds / 64);
    memset(bits, 0, (size_t)(w->lds / 64) * sizeof *bits);
    for (int64_t key = 0; key < view->kv_len; key += TP__MASK_KEYS)
        tp__mask_words(view, at->head, at->first + r, key, tp__min(TP__MASK_KEYS, view->kv_len - key),
                       bits + key / 64);
    for (int64_t i = 0; i < words; i++) {
        slot->trace->pairs_visible += __builtin_popcountll(bits[i]);
        slot->seen[i] |= bits[i];
    }
    if (tp__mask_has(view->problem, TP_MASK_BITS)) tp__trace_masks(slot->trace, (view->kv_len + 7) / 8);
    int64_t lo = tp__first_bit(bits, words);
    return lo < 0 ? (tp__interval){0, 0} : (tp__interval){lo, tp__last_bit(bits, words) + 1};
}

/* What each row sees; returns the keys from the first to the last that any of them does. */
static tp__interval look(const work *w, const scratch *slot, rows_at *at) {
    tp__interval any = {INT64_MAX, 0};
    if (slot->bits != NULL) memset(slot->seen, 0, (size_t)(w->lds / 64) * sizeof *slot->seen);
    for (int64_t r = 0; r < at->count; r++) {
        tp__interval seen;
        if (slot->bits != NULL) {
            seen = look_at_bits(w, slot, at, r);
        } else {
            seen = tp__visibility_plain(&at->keys, at->view.first + at->first + r);
            slot->trace->pairs_visible += seen.hi - seen.lo;
        }
        slot->lo[r] = seen.lo;
        slot->hi[r] = seen.hi;
        if (seen.lo == seen.hi) continue;
        any.lo = tp__min(any.lo, seen.lo);
        any.hi = tp__max(any.hi, seen.hi);
    }
    int64_t group = at->view.problem->q_heads / at->view.problem->kv_heads;
    uint64_t *noted = tp__prepared_seen(w->job, at->keys.index, at->head / group);
    for (int64_t i = 0; slot->bits != NULL && i < (at->view.kv_len + 63) / 64; i++)
        atomic_fetch_or_explicit((_Atomic uint64_t *)&noted[i], slot->seen[i], memory_order_relaxed);
    return any.lo < any.hi ? any : (tp__interval){0, 0};
}

static tp__modify look_at_scores(const work *w, const scratch *slot, const rows_at *at) {
    const tp_problem *problem = w->job->problem;
    const tp_tensors *tensors = w->job->tensors;
    const tp__mask_view *view = &at->view;
    /* distances are taken from the first key, of a sequence that has one */
    int64_t origin = view->kv_len > 0 ? tp__mask_k_pos(view, 0) : 0;
    for (int64_t r = 0; r < at->count; r++) {
        int64_t position = tp__mask_q_pos(view, at->first + r);
        if (slot->scale != NULL) slot->scale[r] = (float)tp__row_scale(problem, position);
        if (slot->slope != NULL) {
            slot->slope[r] = tp__slope_of(tensors, view->seq, at->head);
            slot->q_at[r] = (float)(position - origin);
        }
        if (slot->bias != NULL) {
            slot->bias[r] = tp__bias_at(problem, tensors, view->seq, at->head, at->first + r, 0);
            tp__trace_masks(slot->trace, (slot->hi[r] - slot->lo[r]) *
                                             (int64_t)tp_dtype_bytes((tp_dtype)problem->bias_dtype));
        }
    }
    for (int64_t j = 0; slot->k_at != NULL && j < w->lds; j++)
        slot->k_at[j] = j < view->kv_len ? (float)(tp__mask_k_pos(view, j) - origin) : 0.0f;
    return (tp__modify){.gain = w->job->units.gain, .scale = slot->scale, .cap = problem->softcap, .slope = slot->slope,
                        .q_at = slot->q_at, .k_at = slot->k_at, .bias = slot->bias,
                        .bias_stride = problem->bias_dtype ? tensors->bias_stride[3] : 0,
                        .bias_dtype = problem->bias_dtype};
}

/* Packs all keys; those before and behind what is seen, and in pages that nobody sees, are computed and
   masked like the others, from a place that may be read. Returns whether a value is not finite. */
static int pack(const work *w, const scratch *slot, const rows_at *at, tp__interval any) {
    const tp_problem *problem = w->job->problem;
    const tp__kernel_set *kernels = w->job->kernels;
    int64_t kv_head = at->head / (problem->q_heads / problem->kv_heads), count = at->keys.count;
    tp__ahead none = {0};
    if (slot->bits != NULL && problem->kv_layout == TP_PAGED)
        tp__keys_seen(&at->keys, 0, any.lo, any.hi, slot->seen, slot->k_row, slot->v_row);
    else
        tp__keys_rows(&at->keys, any.lo, any.hi - any.lo, any.hi, slot->k_row + any.lo,
                      slot->v_row + any.lo);
    tp__keys_repeat(&at->keys, slot->k_row, slot->v_row, 0, any.lo, any.lo);
    tp__keys_repeat(&at->keys, slot->k_row, slot->v_row, any.hi, count, any.lo);
    tp__keys_in in = {(const char *const *)slot->k_row, 0, 0, count, &none, 0, 0, NULL};
    tp__keys_head(&at->keys, 0, kv_head, &in);
    kernels->pack_k[tp__stored_as(problem->k_dtype, problem->k_scales)](slot->trace, slot->k, &in, w->lds, problem->head_dim_qk);
    in.row = (const char *const *)slot->v_row;
    tp__keys_head(&at->keys, 1, kv_head, &in);
    return kernels->pack_v[tp__stored_as(problem->v_dtype, problem->v_scales)](slot->trace, slot->v, &in, w->lds,
                                                                                 problem->head_dim_v);
}

static void run_rows(const work *w, const scratch *slot, int64_t index, int64_t head, int64_t first,
                     int64_t count) {
    const tp_problem *problem = w->job->problem;
    const tp_tensors *tensors = w->job->tensors;
    const tp__kernel_set *kernels = w->job->kernels;
    rows_at at = {head, first, count, tp__keys_of(problem, tensors, index, first), {0}};
    if (problem->k_scales != 0 || problem->v_scales != 0) at.keys.scales = w->lds;
    const tp__sequence *seq = &at.keys.seq;
    tp__rows rows = {first, count, 1, tensors->q.stride[1], tensors->q.stride[2]};
    at.view = tp__prepared_view(w->job, seq);
    tp__mask_look(&at.view);
    tp__interval any = look(w, slot, &at);
    tp__modify modify = look_at_scores(w, slot, &at);
    tp__units units = w->job->units;
    int natural = tp__modifies_scores(problem) || problem->sinks; /* a sink is one more score */
    tp__drop drop = {.row = slot->drop, .offset = tensors->dropout_offset,
                     .threshold = tp__dropout_threshold(problem->dropout)};
    for (int64_t r = 0; r < count && slot->drop != NULL; r++)
        slot->drop[r] = tp__dropout_row_of(tensors->dropout_seed, index, head, first + r);
    tp__math head_math = {
        .q = slot->q, .ldq = w->ldq, .k = slot->k, .v = slot->v, .s = slot->s, .p = slot->p,
        .lds = w->lds, .o = slot->o, .ldo = w->ldo, .m = slot->m, .l = slot->l, .lo = slot->lo,
        .hi = slot->hi, .rows = count, .d = problem->head_dim_qk, .dv = problem->head_dim_v,
        .keys = any.lo < any.hi ? at.keys.count : 0, .block = w->lds,
        .piece = tp_block_keys(tp__max(problem->head_dim_qk, problem->head_dim_v)), .bits = slot->bits,
        .bit_words = w->lds / 64, .modify = natural ? &modify : NULL, .unit = natural ? (float)TP__LOG2_E : units.unit,
        .drop = slot->drop != NULL ? &drop : NULL,
        .sink = tp__sink_of(problem, tensors, head),
    };
    kernels->load_q[problem->q_dtype](
        slot->trace, slot->q, w->ldq,
        tp__element(&tensors->q, seq->q + head * tensors->q.stride[2], problem->q_dtype), &rows,
        problem->head_dim_qk, units.q_factor);
    if (any.lo < any.hi) head_math.v_not_finite = pack(w, slot, &at, any);
    kernels->math(slot->trace, &head_math);
    /* the f32 copies of q, k, v and o, the scores and the weights: each written and read */
    int64_t grown = (int64_t)sizeof(float) * (count * (w->ldq + w->ldo) +
                                                at.keys.count * (problem->head_dim_qk + w->ldo) +
                                                2 * count * at.keys.count);
    slot->trace->bytes_scratch += grown;
    slot->trace->bytes += count * tp__row_bytes(problem, tensors) +
                          (any.hi - any.lo) * tp__key_bytes(problem) + 2 * grown;
    rows.stride_token = tensors->o.stride[1];
    rows.stride_head = tensors->o.stride[2];
    tp__store_lse(tensors, seq->lse, head, &rows, slot->m, slot->l, natural ? 1.0f : units.left);
    /* what stayed of dropout is divided by 1 - p; the lse knows nothing of it */
    for (int64_t r = 0; r < count && problem->dropout > 0; r++) slot->l[r] *= 1 - problem->dropout;
    kernels->store_o[problem->o_dtype](
        slot->trace, tp__element(&tensors->o, seq->o + head * tensors->o.stride[2], problem->o_dtype),
        &rows, problem->head_dim_v, slot->o, w->ldo, slot->m, slot->l);
}

static void run_head(const work *w, const scratch *slot, int64_t index, int64_t head) {
    const tp_problem *problem = w->job->problem;
    int64_t rows = tp__sequence_at(problem, w->job->tensors, index).q_len;
    int64_t step = problem->sparse_len > 0 ? 1 : rows;
    for (int64_t first = 0; first < rows; first += step) run_rows(w, slot, index, head, first, step);
}

static void run_task(void *context, size_t index) {
    work *w = context;
    const scratch *slot = &w->slots[index];
    int64_t heads = w->job->problem->q_heads, count = w->job->tensors->batch * heads, ticket;
    memset(slot->trace, 0, sizeof *slot->trace);
    while ((ticket = atomic_fetch_add_explicit(&w->ticket, 1, memory_order_relaxed)) < count)
        run_head(w, slot, ticket / heads, ticket % heads);
}

static void run(const tp__job *job) {
    tp__arena arena = {job->workspace, 0, 1};
    work w = {.job = job};
    atomic_init(&w.ticket, 0);
    lay_out(&w, job->problem, job->kernels, job->threads, &arena);
    tp__parallel_run(&job->parallel, (size_t)job->threads, run_task, &w);
    for (int i = 0; i < job->threads; i++) tp__trace_add(job->trace, w.slots[i].trace);
}

const tp__strategy tp__strategy_math = {"math", 0, 0, workspace, run, NULL};
