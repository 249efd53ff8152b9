/* SPDX-License-Identifier: Apache-2.0 */
/* The selection contract: every candidate gets all its reasons, the first without any is taken. */
#include "plan/plan.h"

#include "base/arena.h"
#include "base/error.h"

int tp__disabled(const tp__rules *rules, const char *name) {
    return tp__names_have(rules->disable[0], name) || tp__names_have(rules->disable[1], name);
}

static void add_forbidden(const tp__option *option, const tp_problem *problem, const tp__rules *rules,
                          const tp__why *why) {
    int64_t dim = tp__max(problem->head_dim_qk, problem->head_dim_v);
    if (tp__disabled(rules, option->name))
        tp__refuse(why, TP_WHY_DISABLED, 0, 0, "disabled by hand, need enabled");
    if (option->executor->fused && (tp__names_head_dim(rules->disable[0], dim) ||
                                    tp__names_head_dim(rules->disable[1], dim)))
        tp__refuse(why, TP_WHY_DISABLED, dim, 0, "head_dim %lld is disabled by hand, need enabled", (long long)dim);
    if (rules->kernel != NULL && !tp__names_have(rules->kernel, option->name))
        tp__refuse(why, TP_WHY_NOT_ASKED, 0, 0, "kernel asked for is %.40s, need %s", rules->kernel, option->name);
}

/* Lower: a better fused candidate of this host, on the same device, could serve the problem as well as this one. Asked before
   anything that people forbid is among the reasons: what is disabled by hand still counts as something the host could do. */
static tp_tier tier_of(const tp__rules *rules, const tp_decision *decision, int index) {
    if (!rules->options[index].executor->fused) return TP_TIER_MATH;
    uint32_t lacks = tp__decision_codes(decision, index);
    for (int i = 0; i < index; i++) {
        uint32_t other = tp__decision_codes(decision, i) & TP__UNABLE;
        if (rules->options[i].device != rules->options[index].device) continue;
        if (rules->options[i].executor->fused && !(other & 1u << TP_WHY_ISA) && (other & ~lacks) == 0)
            return TP_TIER_LOWER;
    }
    return TP_TIER_BEST;
}

/* The first single change, apart from another machine, that would unlock something better. */
static void write_hint(tp_decision *decision) {
    int end = decision->chosen >= 0 ? decision->chosen : decision->candidate_count;
    for (int i = 0; i < end && decision->hint[0] == '\0'; i++) {
        const tp_candidate *c = tp_decision_candidate(decision, i);
        if (c->reason_count != 1) continue;
        const tp_reason *why = tp_candidate_reason(c, 0);
        switch (why->code) {
        case TP_WHY_DISABLED:
            decision->hint = tp__decision_text(decision, "enable %s and it serves this", c->kernel);
            break;
        case TP_WHY_NOT_ASKED:
            decision->hint = tp__decision_text(decision, "ask for no kernel by name and %s serves this", c->kernel);
            break;
        case TP_WHY_HEAD_DIM:
            decision->hint = tp__decision_text(decision, "with head_dim <= %lld (now %lld) %s serves this",
                                               (long long)why->need, (long long)why->have, c->kernel);
            break;
        case TP_WHY_NOT_LOCKED:
            decision->hint = tp__decision_text(
                decision, "qualify this class with %s, update the lock, and it serves this", c->kernel);
            break;
        case TP_WHY_POLICY:
            decision->hint = tp__decision_text(
                decision, "policy permit lets %s serve this, slower than the first tier", c->kernel);
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

/* What it computes of this problem: the decode loop of sets that may round weights to bf16 leaves them as they are. One that the
   problem does not permit keeps the arithmetic for which it is refused. */
static int32_t arithmetic_of(const tp__option *option, const tp_problem *problem, tp__path path) {
    int rounds = problem->op == TP_BACKWARD || tp__prefills(problem, tp__path_of(problem, path));
    if (option->device != NULL || option->arithmetic != TP_ARITHMETIC_P_BF16 || problem->p_dtype != TP_BF16 || rounds)
        return option->arithmetic;
    return TP_ARITHMETIC_F32;
}

/* A candidate that would serve: may it? Otherwise it gets the policy's reason, and its status comes back. */
static tp_status ask_policy(const tp__rules *rules, const char *problem_class, const tp_candidate *candidate,
                            const tp__why *why) {
    int named = 1;
    if (rules->policy == TP_LOCKED) {
        int64_t have = tp__permits_find(rules->permits, problem_class, candidate->kernel, &named);
        if (!named)
            tp__refuse(why, TP_WHY_NOT_LOCKED, have, 1, "policy locked, need a permit for %s (%lld of its class name others)",
                       candidate->kernel, (long long)have);
        return named ? TP_OK : TP_NOT_LOCKED;
    }
    if (rules->policy != TP_REFUSE || candidate->tier == TP_TIER_BEST) return TP_OK;
    tp__refuse(why, TP_WHY_POLICY, candidate->tier, TP_TIER_BEST,
               "a fallback (tier %d) and policy refuse, need policy permit", candidate->tier + 1);
    return TP_FALLBACK_REFUSED;
}

tp_status tp__choose(const tp_problem *problem, const tp__rules *rules, tp_decision *decision) {
    tp_status refused = TP_UNSUPPORTED;
    for (int i = 0; i < rules->option_count; i++) {
        const tp__option *option = &rules->options[i];
        tp_candidate *candidate = tp__decision_at(decision, i);
        tp__why why = {decision, i};
        candidate->kernel = option->name;
        candidate->strategy = option->device != NULL     ? option->device->kernel[option->device_kernel].strategy
                              : option->executor->fused ? path_name(problem, rules->path)
                                                        : option->executor->name;
        candidate->arithmetic = arithmetic_of(option, problem, rules->path);
        candidate->device = tp__device_name(option->device);
        int own = tp__device_number(option->device);
        if (own == rules->device)
            option->executor->serves(option, problem, rules, &why);
        else
            tp__refuse(&why, TP_WHY_DEVICE, rules->device, own, "device %d is asked for, need %d, %s", rules->device, own,
                       candidate->device);
        candidate->tier = tier_of(rules, decision, i);
        add_forbidden(option, problem, rules, &why);
        if (candidate->reason_count > 0) continue;
        tp_status asked;
        if (decision->chosen >= 0) {
            tp__refuse(&why, TP_WHY_NOT_BEST, i, decision->chosen, "rank %d, need the first that serves: %s", i + 1,
                       rules->options[decision->chosen].name);
        } else if ((asked = ask_policy(rules, decision->problem_class, candidate, &why)) != TP_OK) {
            refused = asked;
        } else {
            decision->chosen = i;
            decision->fallback = candidate->tier != TP_TIER_BEST;
            decision->arithmetic = candidate->arithmetic;
            candidate->chosen = 1;
        }
    }
    write_hint(decision);
    decision->status = decision->chosen >= 0 ? TP_OK : refused;
    return (tp_status)decision->status;
}

const char *tp_reason_name(tp_reason_code code) {
    static const char *const names[] = {
        [TP_WHY_ISA] = "isa",           [TP_WHY_DISABLED] = "disabled",
        [TP_WHY_HEAD_DIM] = "head_dim", [TP_WHY_POLICY] = "policy",
        [TP_WHY_NOT_ASKED] = "not_asked", [TP_WHY_NOT_BEST] = "not_best",
        [TP_WHY_MEMORY] = "memory",     [TP_WHY_OP] = "op",
        [TP_WHY_NOT_LOCKED] = "not_locked", [TP_WHY_DTYPE] = "dtype",
        [TP_WHY_DEVICE] = "device",     [TP_WHY_ABSENT] = "absent",
        [TP_WHY_FEATURE] = "feature",
    };
    unsigned n = (unsigned)code;
    return n < sizeof names / sizeof names[0] && names[n] != NULL ? names[n] : "reason?";
}
