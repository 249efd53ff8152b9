/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of a trial on one kernel: against the reference, then the same bits in other cuts and without some of them. */
#include "check/random.h"

#include <inttypes.h>
#include <math.h>

static int same_value(float a, float b) { return a == b || (isnan(a) && isnan(b)); }

/* Some of the gradients are not wanted: which, by the seed, but never all. */
static void want_some(const struct subject *s, struct gradients *g) {
    uint64_t bits = random_bits(s->trial->seed, 650, 0), keep = bits >> 32 & 1;
    tp_tensor *tensors[] = {&g->call.d_q, &g->call.d_k, &g->call.d_v};
    float **others[] = {&g->call.d_bias, &g->call.d_alibi_slopes, &g->call.d_sinks};
    for (int i = 0; i < 3; i++) {
        if ((bits >> i & 1) && (uint64_t)i != keep) tensors[i]->data = NULL;
        if (bits >> (8 + i) & 1) *others[i] = NULL;
    }
}

/* Of two sets of gradients that belong to the same call; the second may be a part of the first. */
static int same_gradients(struct subject *s, const char *what, const struct gradients *a, const struct gradients *b) {
    static const char *const names[] = {"d_q", "d_k", "d_v"};
    const void *wanted[] = {b->call.d_q.data, b->call.d_k.data, b->call.d_v.data};
    for (int id = TENSOR_Q; id <= TENSOR_V; id++)
        for (int64_t seq = 0; wanted[id] && seq < a->held.sequences; seq++)
            for (int64_t t = 0; t < tensors_len(&a->held, id, seq); t++)
                for (int64_t h = 0; h < tensors_heads(&a->held, id); h++)
                    for (int64_t x = 0; x < tensors_dim(&a->held, id); x++) {
                        float one = tensors_get(&a->held, id, seq, t, h, x), other = tensors_get(&b->held, id, seq, t, h, x);
                        if (!same_value(one, other))
                            return check_fail(s->env, "%s: %s of seq %" PRId64 " head %" PRId64 " %s %" PRId64 " column %"
                                              PRId64 ": expected equal bits, got %.9g and %.9g", what, names[id], seq, h,
                                              id == TENSOR_Q ? "row" : "key", t, x, (double)one, (double)other);
                    }
    const tp_problem *p = &s->tensors.problem;
    const int64_t *stride = s->tensors.call.bias_stride;
    for (int64_t i = 0; b->call.d_alibi_slopes && i < b->slope_count; i++)
        if (!same_value(a->d_slopes[i], b->d_slopes[i]))
            return check_fail(s->env, "%s: d_alibi_slopes: expected equal bits, got %.9g and %.9g", what,
                              (double)a->d_slopes[i], (double)b->d_slopes[i]);
    for (int64_t i = 0; b->call.d_sinks && i < p->q_heads; i++)
        if (!same_value(a->d_sinks[i], b->d_sinks[i]))
            return check_fail(s->env, "%s: d_sinks: expected equal bits, got %.9g and %.9g", what, (double)a->d_sinks[i],
                              (double)b->d_sinks[i]);
    for (int64_t seq = 0; b->call.d_bias && seq < s->tensors.sequences; seq++)
        for (int64_t i = 0; i < p->q_heads * s->tensors.q_lens[seq] * s->tensors.kv_lens[seq]; i++) {
            int64_t keys = s->tensors.kv_lens[seq], rows = s->tensors.q_lens[seq];
            int64_t at = seq * stride[0] + i / keys / rows * stride[1] + i / keys % rows * stride[2] + i % keys;
            if (!same_value(a->d_bias[at], b->d_bias[at]))
                return check_fail(s->env, "%s: d_bias: expected equal bits, got %.9g and %.9g", what, (double)a->d_bias[at],
                                  (double)b->d_bias[at]);
        }
    return 0;
}

int try_gradients(struct subject *s) {
    static const struct {
        enum entry entry;
        int threads, poison, some;
    } ways[] = {{ENTRY_SERIAL, 2, 0x00, 0}, {ENTRY_CALLER, 3, 0x7F, 0}, {ENTRY_SERIAL, 5, 0xFF, 0}, {ENTRY_SERIAL, 2, 0x7F, 1}};
    struct check_env *env = s->env;
    struct gradients other = {0};
    subject_step(s, "backward");
    if (check_gradients(env, &s->tensors, &s->gradients, ENTRY_SERIAL, try_threads(s), 0xFF)) return 1;
    if (gradients_compare(&s->gradients_oracle, &s->tensors, &s->gradients, env->reason, sizeof env->reason)) return 1;
    if (gradients_create(&other, &s->tensors, &s->trial->lengths, s->trial->seed)) {
        gradients_destroy(&other);
        return check_fail(env, "no memory for its gradients");
    }
    trial_spoil_gradients(s->trial, &s->tensors, &s->visibility, &other);
    int failed = 0;
    for (int i = 0; !failed && i < 4; i++) {
        char what[64];
        snprintf(what, sizeof what, "backward in %d tasks%s%s", ways[i].threads,
                 ways[i].entry == ENTRY_CALLER ? " on threads" : "", ways[i].some ? ", some gradients" : "");
        if (ways[i].some) want_some(s, &other);
        subject_step(s, what);
        failed = check_gradients(env, &s->tensors, &other, ways[i].entry, ways[i].threads, ways[i].poison) ||
                 same_gradients(s, what, &s->gradients, &other);
    }
    gradients_destroy(&other);
    s->tensors.call.gradients = &s->gradients.call;
    return failed;
}
