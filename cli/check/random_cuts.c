/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of the same numbers that must have the same bits, however they are cut, laid out, paged or called. */
#include "check/random.h"

#include <string.h>

#include "harness/placed.h"

/* Any number of tasks, in turn or on threads, over any old memory. */
static int tasks(struct subject *s, const struct kept *first) {
    static const struct {
        enum entry entry;
        int threads, poison;
    } ways[] = {{ENTRY_SERIAL, 1, 0x00}, {ENTRY_SERIAL, 2, 0x7F}, {ENTRY_SERIAL, 3, 0xFF}, {ENTRY_CALLER, 2, 0x00},
                {ENTRY_SERIAL, 5, 0x00}, {ENTRY_CALLER, 4, 0xFF}, {ENTRY_POOL, 2, 0x7F}};
    tp_receipt receipt;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char what[64];
        int pooled = ways[i].entry == ENTRY_POOL;
        if (s->env->device != TP_CPU && i > 1) break;     /* a device knows no tasks */
        if (pooled && s->trial->seed % 16) continue; /* dear: see random_isolated.c */
        snprintf(what, sizeof what, "%d tasks%s over old bytes %#x", ways[i].threads,
                 ways[i].entry == ENTRY_SERIAL ? "" : " on threads", (unsigned)ways[i].poison);
        subject_step(s, what);
        tp_context *context = s->env->context;
        if (pooled) s->env->context = s->env->pool;
        int failed = check_attend_by(s->env, &s->tensors, ways[i].entry, ways[i].threads, ways[i].poison, &receipt);
        s->env->context = context;
        if (failed ||
            check_same_rows(s->env, what, &first->tensors, &s->tensors) || (i == 0 && try_receipt(s, &receipt)))
            return 1;
    }
    return 0;
}

/* Tensors of the trial made in another way. */
static int other(struct subject *s, const struct kept *first, const char *what, const tp_problem *problem,
                 const tp_lengths *lengths, const struct tensors_style *style) {
    struct tensors tensors;
    tp_receipt receipt;
    subject_step(s, what);
    int failed = trial_make(s->trial, problem, lengths, style, &tensors)
                     ? check_fail(s->env, "no memory for its tensors")
                     : check_attend_by(s->env, &tensors, ENTRY_SERIAL, 2, 0xFF, &receipt) ||
                           check_same_rows(s->env, what, &first->tensors, &tensors);
    tensors_destroy(&tensors);
    return failed;
}

static int layouts(struct subject *s, const struct kept *first) {
    const struct trial *trial = s->trial;
    struct tensors_style style = trial->style;
    tp_problem problem = trial->problem;
    tp_lengths lengths = trial->lengths;
    uint64_t bits = random_bits(trial->seed, 620, 0);
    style.form = style.form == FORM_HEADS ? FORM_TOKENS : FORM_HEADS;
    style.index64 = !style.index64;
    style.ragged = problem.latent ? style.ragged : !style.ragged; /* latent: where v lies in k hangs on it */
    style.slack = style.slack ? 0 : 2;
    style.lse = 1;
    if (other(s, first, "other strides", &problem, &lengths, &style)) return 1;
    lengths.padded = 1;
    problem.q_layout = problem.q_layout == TP_PACKED ? TP_BATCH : TP_PACKED;
    if (problem.kv_layout != TP_PAGED && bits % 2)
        problem.kv_layout = problem.kv_layout == TP_PACKED ? TP_BATCH : TP_PACKED;
    return other(s, first, "packed, or not", &problem, &lengths, &style);
}

static int pages(struct subject *s, const struct kept *first) {
    static const int sizes[] = {1, 2, 3, 7, 16, 32, 64, 100, 256};
    const struct trial *trial = s->trial;
    struct tensors_style style = trial->style;
    tp_problem problem = trial->problem;
    tp_lengths lengths = trial->lengths;
    uint64_t bits = random_bits(trial->seed, 630, 0);
    char what[48];
    if (problem.cascade > 0) { /* what is shared hangs on the pages, and only `invariant` has the same bits then */
        if (!problem.invariant || trial->values || trial->nan || trial->hidden) return 0;
    } else if (problem.kv_layout == TP_PAGED && bits % 3 == 0) {
        problem.kv_layout = TP_BATCH;
        problem.page_size = 0;
        lengths.padded = 1;
        return other(s, first, "in one stretch", &problem, &lengths, &style);
    }
    problem.kv_layout = TP_PAGED;
    problem.page_size = sizes[bits / 3 % 9];
    style.form = bits >> 16 & 1 ? FORM_HEADS : FORM_TOKENS;
    style.two_tables = (bits >> 17 & 1) && !problem.latent;
    snprintf(what, sizeof what, "in pages of %d", (int)problem.page_size);
    if (problem.q_layout == TP_BATCH && lengths.count) lengths.padded = 1;
    return other(s, first, what, &problem, &lengths, &style);
}

/* Prefill's loop, asked for by name or by `invariant`. */
static int invariant(struct subject *s, const struct kept *first) {
    struct kept by_name = {0};
    tp_problem problem = s->trial->problem;
    tp_receipt receipt;
    (void)first;
    if (!has_loops(s->env) || problem.invariant) return 0;
    subject_step(s, "prefill by name");
    s->env->strategy = "prefill";
    s->tensors.problem.cascade = 0; /* `invariant` gives the bits of sequences that share nothing */
    int failed = check_attend_by(s->env, &s->tensors, ENTRY_SERIAL, 1, 0xFF, &receipt) || try_receipt(s, &receipt);
    s->env->strategy = NULL;
    s->tensors.problem.cascade = problem.cascade;
    if (!failed && kept_create(&by_name, &s->tensors)) failed = check_fail(s->env, "no memory to keep its outputs");
    problem.invariant = 1;
    if (!failed) failed = other(s, &by_name, "invariant", &problem, &s->trial->lengths, &s->trial->style);
    kept_destroy(&by_name);
    return failed;
}

/* Each sequence by itself, on the same pages. */
static int alone(struct subject *s, const struct kept *first) {
    tp_receipt receipt;
    int64_t cascade = s->tensors.problem.cascade;
    if (cascade == 0 || !s->tensors.problem.invariant) return 0;
    subject_step(s, "without cascade");
    s->tensors.problem.cascade = 0;
    int failed = check_attend_by(s->env, &s->tensors, ENTRY_SERIAL, 2, 0xFF, &receipt) ||
                 check_same_rows(s->env, "without cascade", &first->tensors, &s->tensors);
    s->tensors.problem.cascade = cascade;
    return failed;
}

static int one_call(struct subject *s, const struct kept *first) {
    struct check_env *env = s->env;
    struct placed placed = {.call = s->tensors.call};
    tp_choice choice = TP_CHOICE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_status status = TP_OK;
    choice.policy = TP_PERMIT;
    choice.kernel = env->kernel->name;
    choice.device = env->device;
    subject_step(s, "tp_attention");
    tensors_poison_outputs(&s->tensors, 0xFF);
    if (env->device != TP_CPU) status = placed_create(&placed, env->context, env->device, &s->tensors, 0, &error);
    if (status == TP_OK) status = tp_attention(env->context, &s->tensors.problem, &choice, &placed.call, NULL, &error);
    if (status == TP_OK) status = placed_fetch(&placed, &error);
    placed_destroy(&placed);
    if (status != TP_OK) return check_fail(env, "tp_attention: expected TP_OK, got %s: %s", tp_status_name(status), error.text);
    return check_same_rows(env, "tp_attention", &first->tensors, &s->tensors);
}

int try_cuts(struct subject *s, const struct kept *first) {
    int shared = s->trial->style.form == FORM_BROADCAST; /* other layouts would hold other numbers */
    return tasks(s, first) || one_call(s, first) || alone(s, first) || invariant(s, first) ||
           (!shared && (layouts(s, first) || pages(s, first)));
}
