/* SPDX-License-Identifier: Apache-2.0 */
/* The selection contract: every candidate gets all its reasons, the first without any is taken. */
#include "plan/plan.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/error.h"
#include "strategies/prepare.h"

static void add_reason(tp_candidate *candidate, tp_reason_code code, int64_t have, int64_t need,
                       const char *format, ...) __attribute__((format(printf, 5, 6)));

static void add_reason(tp_candidate *candidate, tp_reason_code code, int64_t have, int64_t need,
                       const char *format, ...) {
    if (candidate->reason_count == TP_MAX_REASONS) return;
    tp_reason *reason = &candidate->reason[candidate->reason_count++];
    va_list arguments;
    reason->code = code;
    reason->have = have;
    reason->need = need;
    va_start(arguments, format);
    vsnprintf(reason->text, sizeof reason->text, format, arguments);
    va_end(arguments);
}

static int disabled(const tp__rules *rules, const char *name) {
    return tp__names_have(rules->disable[0], name) || tp__names_have(rules->disable[1], name);
}

static int on_host(const tp__rules *rules, const tp__kernel_set *kernels) {
    return (kernels->needs & ~rules->machine->isa) == 0;
}

static const char *isa_names(uint32_t isa) {
    static const char *const names[] = {"none", "avx2", "avx512", "avx2,avx512"};
    return names[isa & 3u];
}

/* Sets are best first: the first that nobody disabled, or the last, which every host has. */
static const tp__kernel_set *best_set(const tp__rules *rules) {
    for (int i = 0; i < TP__SETS; i++)
        if (on_host(rules, tp__kernel_sets[i]) && !disabled(rules, tp__kernel_sets[i]->isa))
            return tp__kernel_sets[i];
    return tp__kernel_sets[TP__SETS - 1];
}

/* What is disabled by hand still counts as something the host could do. */
static tp_tier tier_of(const tp__option *option, const tp__rules *rules) {
    if (!option->strategy->fused) return TP_TIER_MATH;
    for (int i = 0; tp__kernel_sets[i] != option->kernels; i++)
        if (on_host(rules, tp__kernel_sets[i])) return TP_TIER_LOWER;
    return TP_TIER_BEST;
}

static void collect_reasons(const tp_problem *problem, const tp__option *option,
                            const tp__rules *rules, tp_candidate *candidate) {
    const tp__kernel_set *kernels = option->kernels != NULL ? option->kernels : best_set(rules);
    const tp__strategy *strategy = tp__option_strategy(option, problem);
    int64_t dim = tp__max(problem->head_dim_qk, problem->head_dim_v);
    int max = strategy->max_head_dim;
    if (!on_host(rules, kernels))
        add_reason(candidate, TP_WHY_ISA, rules->machine->isa, kernels->needs,
                   "isa %s, need %s", isa_names(rules->machine->isa), isa_names(kernels->needs));
    if (disabled(rules, option->name))
        add_reason(candidate, TP_WHY_DISABLED, 0, 0, "disabled by hand, need enabled");
    if (option->strategy->fused && (tp__names_head_dim(rules->disable[0], dim) ||
                                    tp__names_head_dim(rules->disable[1], dim)))
        add_reason(candidate, TP_WHY_DISABLED, dim, 0, "head_dim %lld is disabled by hand, need enabled",
                   (long long)dim);
    if (rules->kernel != NULL && !tp__names_have(rules->kernel, option->name))
        add_reason(candidate, TP_WHY_NOT_ASKED, 0, 0, "kernel asked for is %.40s, need %s",
                   rules->kernel, option->name);
    if (max != 0 && dim > max)
        add_reason(candidate, TP_WHY_HEAD_DIM, dim, max, "head_dim %lld, need <= %d",
                   (long long)dim, max);
    if (problem->op == TP_BACKWARD && !strategy->fused)
        add_reason(candidate, TP_WHY_OP, problem->op, TP_FORWARD, "op backward, need forward");
    else if (tp__workspace(strategy, problem, kernels, rules->path, 1) == SIZE_MAX)
        add_reason(candidate, TP_WHY_MEMORY, INT64_MAX, PTRDIFF_MAX,
                   "temporary memory beyond what can be addressed, need < 2^63 bytes");
}

/* The first single change, apart from another machine, that would unlock something better. */
static void write_hint(tp_decision *decision) {
    int end = decision->chosen >= 0 ? decision->chosen : decision->candidate_count;
    decision->hint[0] = '\0';
    for (int i = 0; i < end && decision->hint[0] == '\0'; i++) {
        const tp_candidate *c = &decision->candidate[i];
        if (c->reason_count != 1) continue;
        const tp_reason *why = &c->reason[0];
        char *hint = decision->hint;
        size_t size = sizeof decision->hint;
        switch (why->code) {
        case TP_WHY_DISABLED: snprintf(hint, size, "enable %s and it serves this", c->kernel); break;
        case TP_WHY_NOT_ASKED:
            snprintf(hint, size, "ask for no kernel by name and %s serves this", c->kernel);
            break;
        case TP_WHY_HEAD_DIM:
            snprintf(hint, size, "with head_dim <= %lld (now %lld) %s serves this",
                     (long long)why->need, (long long)why->have, c->kernel);
            break;
        case TP_WHY_NOT_LOCKED:
            snprintf(hint, size, "qualify this class with %s, update the lock, and it serves this", c->kernel);
            break;
        case TP_WHY_POLICY:
            snprintf(hint, size, "policy permit lets %s serve this, slower than the first tier",
                     c->kernel);
            break;
        default: break;
        }
    }
}

/* The loop that a sequence of the problem's bounds takes. */
static const char *path_name(const tp_problem *problem, tp__path path) {
    if (problem->op == TP_BACKWARD) return "backward";
    return tp__decodes(problem, tp__path_of(problem, path), problem->q_len) ? "decode" : "prefill";
}

/* A candidate that would serve: may it? Otherwise it gets the policy's reason, and its status comes back. */
static tp_status ask_policy(const tp__rules *rules, const char *problem_class, tp_candidate *candidate) {
    int named = 1;
    if (rules->policy == TP_LOCKED) {
        int64_t have = tp__permits_find(rules->permits, problem_class, candidate->kernel, &named);
        if (!named)
            add_reason(candidate, TP_WHY_NOT_LOCKED, have, 1,
                       "policy locked, need a permit for %s (%lld of its class name others)",
                       candidate->kernel, (long long)have);
        return named ? TP_OK : TP_NOT_LOCKED;
    }
    if (rules->policy != TP_REFUSE || candidate->tier == TP_TIER_BEST) return TP_OK;
    add_reason(candidate, TP_WHY_POLICY, candidate->tier, TP_TIER_BEST,
               "a fallback (tier %d) and policy refuse, need policy permit", candidate->tier + 1);
    return TP_FALLBACK_REFUSED;
}

tp_status tp__choose(const tp_problem *problem, const tp__rules *rules, tp_decision *decision,
                     const tp__kernel_set **kernels) {
    tp_status refused = TP_UNSUPPORTED;
    decision->candidate_count = TP__OPTIONS;
    decision->chosen = -1;
    for (int i = 0; i < TP__OPTIONS; i++) {
        const tp__option *option = &tp__options[i];
        tp_candidate *candidate = &decision->candidate[i];
        candidate->kernel = option->name;
        candidate->strategy = option->strategy->fused ? path_name(problem, rules->path)
                                                      : option->strategy->name;
        candidate->tier = tier_of(option, rules);
        collect_reasons(problem, option, rules, candidate);
        if (candidate->reason_count > 0) continue;
        tp_status asked;
        if (decision->chosen >= 0) {
            add_reason(candidate, TP_WHY_NOT_BEST, i, decision->chosen,
                       "rank %d, need the first that serves: %s", i + 1,
                       decision->candidate[decision->chosen].kernel);
        } else if ((asked = ask_policy(rules, decision->problem_class, candidate)) != TP_OK) {
            refused = asked;
        } else {
            decision->chosen = i;
            candidate->chosen = 1;
            *kernels = option->kernels != NULL ? option->kernels : best_set(rules);
        }
    }
    write_hint(decision);
    decision->fallback =
        decision->chosen >= 0 && decision->candidate[decision->chosen].tier != TP_TIER_BEST;
    decision->status = decision->chosen >= 0 ? TP_OK : refused;
    return (tp_status)decision->status;
}

tp__reasons tp__reasons_of(const tp_decision *decision) {
    tp__reasons why = {{{0}}};
    for (int i = 0; i < decision->candidate_count; i++)
        for (int r = 0; r < decision->candidate[i].reason_count; r++)
            why.code[i][r] = (uint8_t)decision->candidate[i].reason[r].code;
    return why;
}

const char *tp_reason_name(tp_reason_code code) {
    static const char *const names[] = {
        [TP_WHY_ISA] = "isa",           [TP_WHY_DISABLED] = "disabled",
        [TP_WHY_HEAD_DIM] = "head_dim", [TP_WHY_POLICY] = "policy",
        [TP_WHY_NOT_ASKED] = "not_asked", [TP_WHY_NOT_BEST] = "not_best",
        [TP_WHY_MEMORY] = "memory",     [TP_WHY_OP] = "op",
        [TP_WHY_NOT_LOCKED] = "not_locked",
    };
    unsigned n = (unsigned)code;
    return n < sizeof names / sizeof names[0] && names[n] != NULL ? names[n] : "reason?";
}
