/* SPDX-License-Identifier: Apache-2.0 */
/* One trial on one kernel: against the reference by the rule of check, receipts against brute force, then the cuts. */
#include "check/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 96, FEW_ROWS = 32 };

void subject_step(struct subject *s, const char *name) {
    if (s->step) s->step(s->step_user, name);
}

int try_threads(const struct subject *s) { return 1 + (int)(random_bits(s->trial->seed, 600, 0) % 4); }

/* Nothing is promised of rows where a float may overflow; their bounds are infinite. */
static int promised(const struct oracle *oracle, int64_t i) {
    for (int a = 0; a < ORACLE_ARITHMETICS; a++)
        if (oracle->bound[a] && (!isfinite(oracle->bound[a][i]) || !isfinite(oracle->lse_bound[a][i]))) return 0;
    return 1;
}

static void keep_promised(struct subject *s) {
    struct oracle *oracle = &s->oracle;
    int64_t kept = 0;
    for (int64_t i = 0; i < oracle->count; i++) {
        if (!promised(oracle, i)) continue;
        oracle->rows[kept] = oracle->rows[i];
        memmove(oracle->o + kept * oracle->dim, oracle->o + i * oracle->dim, (size_t)oracle->dim * sizeof *oracle->o);
        memmove(oracle->naive_o + kept * oracle->dim, oracle->naive_o + i * oracle->dim,
                (size_t)oracle->dim * sizeof *oracle->naive_o);
        oracle->lse[kept] = oracle->lse[i];
        oracle->naive_lse[kept] = oracle->naive_lse[i];
        for (int a = 0; a < ORACLE_ARITHMETICS; a++) {
            if (!oracle->bound[a]) continue;
            oracle->bound[a][kept] = oracle->bound[a][i];
            oracle->lse_bound[a][kept] = oracle->lse_bound[a][i];
        }
        kept++;
    }
    s->rows = oracle->count;
    s->unbounded = oracle->count - kept;
    oracle->count = kept;
}

/* With ordinary values no float comes near its end, and every row has a bound. */
static int trial_is_ordinary(const struct trial *trial) {
    const tp_problem *p = &trial->problem;
    return trial->values == VALUES_NORMAL && !trial->style.extreme && !trial->nan && trial->style.gain < 100 &&
           !(p->scale_set && fabsf(p->scale) > 100) && fabsf(p->qscale_beta) < 100;
}

static int all_promised(struct subject *s) {
    for (int64_t i = 0; trial_is_ordinary(s->trial) && i < s->oracle.count; i++)
        if (!promised(&s->oracle, i))
            return check_fail(s->env, "bound of seq %" PRId64 " head %" PRId64 " row %" PRId64 ": expected a finite one, "
                              "the reference says %g and %g of lse", s->oracle.rows[i].seq, s->oracle.rows[i].head,
                              s->oracle.rows[i].row, s->oracle.bound[0][i], s->oracle.lse_bound[0][i]);
    return 0;
}

/* The library's own answer for some pairs. */
static int agrees(struct subject *s) {
    const struct tensors *t = &s->tensors;
    uint64_t draw = 0;
    for (int64_t seq = 0; seq < t->sequences; seq++)
        for (int i = 0; i < 20 && t->q_lens[seq] * t->kv_lens[seq] > 0; i++, draw++) {
            uint64_t bits = random_bits(s->trial->seed, 610, draw);
            int64_t key = (int64_t)(bits >> 40) % t->kv_lens[seq];
            tp_row at = {seq, (int64_t)(bits & 0xFF) % t->problem.q_heads, (int64_t)(bits >> 8 & 0xFFFFFF) % t->q_lens[seq]};
            int expected = check_visible(t, at, key), got = tp_mask_visible(&t->problem, &t->call, seq, at.head, at.row, key);
            if (got != expected)
                return check_fail(s->env, "tp_mask_visible of seq %" PRId64 " head %" PRId64 " row %" PRId64 " key %" PRId64
                                  ": expected %d, got %d", seq, at.head, at.row, key, expected, got);
        }
    return 0;
}

/* Where the bounds alone judge gradients: probabilities come from an lse stored as a float, whose ulp may be large; the
   derivative of a softcap that cuts nearly everything is 1 - t^2, from a tanh that naive has of libm; subnormal numbers
   have no relative precision, in whatever order they are summed; and where values differ by powers of two, or dropout leaves
   one pair of thousands, or rows are few, the rounding of one element of an o stored in 16 bits decides the whole error of
   delta, naive's as well: a matter of luck. */
static int bounds_alone(const struct subject *s) {
    const tp_problem *p = &s->trial->problem;
    int64_t rows = 0;
    for (int64_t seq = 0; seq < s->tensors.sequences; seq++) rows += s->tensors.q_lens[seq] * p->q_heads;
    int lucky = s->trial->values == VALUES_WIDE || p->dropout > 0.99f || rows <= FEW_ROWS;
    return s->gradients_oracle.max_lse > 1e5 || (p->softcap > 0 && p->softcap < 1) ||
           (p->scale_set && fabsf(p->scale) < 0x1p-100f) || s->trial->values == VALUES_TINY ||
           (lucky && p->o_dtype != TP_F32);
}

int subject_create(struct subject *s, struct check_env *env, const struct trial *trial) {
    tp_error error = TP_ERROR_INIT;
    tp_status status;
    s->trial = trial;
    s->env = env;
    subject_step(s, "making its tensors");
    if (trial_make(trial, &trial->problem, &trial->lengths, &trial->style, &s->tensors) ||
        visibility_create(&s->visibility, &s->tensors))
        return check_fail(env, "no memory for its tensors");
    s->tensors.arithmetic = env->arithmetic;
    subject_step(s, "the reference");
    if (agrees(s)) return 1;
    if (trial->problem.op == TP_BACKWARD) {
        if (gradients_create(&s->gradients, &s->tensors, &trial->lengths, trial->seed))
            return check_fail(env, "no memory for its gradients");
        trial_spoil_gradients(trial, &s->tensors, &s->visibility, &s->gradients);
        status = gradients_oracle_create(&s->gradients_oracle, &s->tensors, &s->gradients, &error);
    } else {
        status = oracle_create(&s->oracle, &s->tensors, ROWS, trial->seed, &error);
    }
    if (status != TP_OK) return check_fail(env, "the reference refused: %s", error.text);
    if (all_promised(s)) return 1;
    if (trial->problem.op == TP_BACKWARD) {
        s->gradients_oracle.may_overflow = !trial_is_ordinary(trial);
        int64_t unbounded = gradients_unbounded(&s->gradients_oracle, &s->tensors, &s->rows);
        if (s->gradients_oracle.may_overflow) s->unbounded = unbounded;
        s->sums_left = s->unbounded && (trial->problem.bias_dtype || trial->problem.alibi || trial->problem.sinks);
        s->gradients_oracle.allowance = TRIAL_ALLOWANCE;
        s->gradients_oracle.bounds_alone = bounds_alone(s);
        return 0;
    }
    keep_promised(s);
    s->oracle.allowance = TRIAL_ALLOWANCE;
    return 0;
}

void subject_destroy(struct subject *s) {
    oracle_destroy(&s->oracle);
    gradients_oracle_destroy(&s->gradients_oracle);
    gradients_destroy(&s->gradients);
    visibility_destroy(&s->visibility);
    tensors_destroy(&s->tensors);
}

int kept_create(struct kept *kept, const struct tensors *t) {
    tp_tensor *views[] = {&kept->tensors.call.o, &kept->tensors.call.lse};
    *kept = (struct kept){.tensors = *t};
    for (int i = 0; i < 2; i++) {
        const char *from = t->buffer[TENSOR_O + i].memory;
        size_t bytes = t->buffer[TENSOR_O + i].bytes;
        if (!from) continue;
        if (!(kept->memory[i] = malloc(bytes + 1))) return 1;
        memcpy(kept->memory[i], from, bytes);
        views[i]->data = (char *)kept->memory[i] + ((char *)views[i]->data - from);
    }
    return 0;
}

void kept_destroy(struct kept *kept) {
    for (int i = 0; i < 2; i++) free(kept->memory[i]);
    *kept = (struct kept){0};
}

struct tiles {
    int64_t visible, full, partial, skipped;
};

/* Strips of mr merged rows against panels of nr keys. */
static void count_tiles(const struct subject *s, int64_t seq, int64_t kv_head, int64_t mr, int64_t nr, struct tiles *tiles) {
    const struct tensors *t = &s->tensors;
    int64_t group = t->problem.q_heads / t->problem.kv_heads, rows = t->q_lens[seq] * group, keys = t->kv_lens[seq];
    for (int64_t strip = 0; strip < rows; strip += mr)
        for (int64_t panel = 0; panel < keys; panel += nr) {
            int64_t all = rows - strip < mr ? rows - strip : mr, found = 0, times = 0;
            for (int64_t r = strip; r < strip + all; r++)
                for (int64_t j = panel; j < panel + nr && j < keys; j++) {
                    int64_t n = visibility_of(&s->visibility, t, (tp_row){seq, kv_head * group + r % group, r / group}, j);
                    times += n;
                    found += n > 0;
                }
            tiles->visible += times;
            tiles->full += found == all * nr;
            tiles->partial += found > 0 && found < all * nr;
            tiles->skipped += found == 0;
        }
}

static int count_is(struct check_env *env, const char *name, int64_t expected, int64_t got) {
    if (expected == got) return 0;
    return check_fail(env, "%s: expected %" PRId64 " by brute force, the receipt says %" PRId64, name, expected, got);
}

/* Rows of one range of prefill's loop, whose strips begin anew in the next; wide heads have fewer. */
static int in_one_range(const tp_problem *p, int64_t rows) {
    int64_t dim = p->head_dim_qk > p->head_dim_v ? p->head_dim_qk : p->head_dim_v, padded = (dim + 63) / 64 * 64;
    return rows <= 2048 && rows * padded <= 2048 * 128;
}

/* Tiles are those of prefill's loop in one task and range, by itself or by name. */
int try_receipt(struct subject *s, const tp_receipt *receipt) {
    const struct tensors *t = &s->tensors;
    const tp_kernel_info *kernel = s->env->kernel;
    int64_t group = t->problem.q_heads / t->problem.kv_heads;
    int strips = kernel->mr > 0 && !t->problem.sparse_len && t->problem.op == TP_FORWARD && receipt->tasks == 1;
    struct tiles tiles = {0};
    for (int64_t seq = 0; seq < t->sequences; seq++) {
        int64_t rows = t->q_lens[seq] * group;
        strips &= in_one_range(&t->problem, rows) && (t->problem.invariant || s->env->strategy || rows > TP_DECODE_ROWS);
        for (int64_t h = 0; h < t->problem.kv_heads; h++)
            count_tiles(s, seq, h, kernel->mr ? kernel->mr : 1 << 20, kernel->nr ? kernel->nr : 1 << 20, &tiles);
    }
    if (count_is(s->env, "pairs_visible", tiles.visible, receipt->pairs_visible)) return 1;
    if (receipt->pairs_shared < 0 || receipt->pairs_shared > (t->problem.cascade ? tiles.visible : 0))
        return check_fail(s->env, "pairs_shared is %" PRId64 " of %" PRId64 ", cascade %" PRId64, receipt->pairs_shared,
                          tiles.visible, t->problem.cascade);
    if (receipt->pairs_shared > 0) strips = 0; /* of rows of several sequences */
    if (receipt->pairs_computed < tiles.visible)
        return check_fail(s->env, "pairs_computed: expected at least %" PRId64 ", the receipt says %" PRId64, tiles.visible,
                          receipt->pairs_computed);
    return strips && (count_is(s->env, "panels_full", tiles.full, receipt->panels_full) ||
                      count_is(s->env, "panels_partial", tiles.partial, receipt->panels_partial) ||
                      count_is(s->env, "panels_skipped", tiles.skipped, receipt->panels_skipped) ||
                      count_is(s->env, "panels_conservative", t->problem.bias_dtype ? tiles.full + tiles.partial : 0,
                               receipt->panels_conservative));
}

/* A run by the loop that is asked for, NULL: by rows. */
static int by_reference(struct subject *s, const char *strategy) {
    struct measured_error measured;
    struct check_env *env = s->env;
    tp_receipt receipt;
    env->strategy = strategy;
    int failed = check_attend_by(env, &s->tensors, ENTRY_SERIAL, strategy ? 2 : try_threads(s), 0xFF, &receipt);
    env->strategy = NULL;
    if (failed) return 1;
    if (receipt.scores_written && strcmp(env->kernel->strategy, "math"))
        return check_fail(env, "expected no scores written, the receipt says %" PRId64, receipt.scores_written);
    if (s->trial->style.form != FORM_BROADCAST && tensors_badly_written(&s->tensors, env->reason, sizeof env->reason)) return 1;
    if (!strategy && try_receipt(s, &receipt)) return 1;
    return oracle_compare(&s->oracle, &s->tensors, receipt.arithmetic, &measured, env->reason, sizeof env->reason);
}

int has_loops(const struct check_env *env) { return env->device == TP_CPU && strcmp(env->kernel->strategy, "math"); }

static int forward(struct subject *s) {
    struct kept first = {0};
    subject_step(s, "forward");
    if (by_reference(s, NULL)) return 1;
    int failed = kept_create(&first, &s->tensors) ? check_fail(s->env, "no memory to keep its outputs")
                                                  : try_cuts(s, &first) || try_views(s, &first);
    kept_destroy(&first);
    for (int i = 0; !failed && i < 2 && has_loops(s->env) && !s->trial->problem.invariant; i++) {
        const char *strategy = i ? "decode" : "prefill";
        subject_step(s, strategy);
        failed = by_reference(s, strategy);
        if (failed) {
            char reason[sizeof s->env->reason];
            snprintf(reason, sizeof reason, "%s", s->env->reason);
            check_fail(s->env, "by the loop %s: %.500s", strategy, reason);
        }
    }
    return failed;
}

int subject_try(struct subject *s) { return s->trial->problem.op == TP_BACKWARD ? try_gradients(s) : forward(s); }
