/* SPDX-License-Identifier: Apache-2.0 */
/* What a candidate on the CPU can serve. Only what it is able to do counts here; what people forbid is choose.c's. */
#include "plan/plan.h"

#include <stdio.h>

#include "base/arena.h"
#include "strategies/prepare.h"

static int on_host(const tp__rules *rules, const tp__kernel_set *kernels) {
    return (kernels->needs & ~rules->machine->isa) == 0;
}

/* Sets are best first: the first that has math and nobody disabled, or the last, which every host has. */
static const tp__kernel_set *math_set(const tp__rules *rules) {
    for (int i = 0; i < TP__SETS; i++) {
        const tp__kernel_set *kernels = &rules->sets[i];
        if (on_host(rules, kernels) && kernels->math != NULL && !tp__disabled(rules, kernels->isa)) return kernels;
    }
    return &rules->sets[TP__SETS - 1];
}

const tp__kernel_set *tp__option_kernels(const tp__option *option, const tp__rules *rules) {
    for (int i = 0; i < TP__SETS; i++)
        if (tp__kernel_sets[i] == option->kernels) return &rules->sets[i];
    return math_set(rules);
}

/* Whether the set has the op's own function, which no other lends. */
static int has_op(const tp__option *option, const tp__kernel_set *kernels, int32_t op) {
    if (!option->executor->fused) return kernels->math != NULL;
    return op == TP_BACKWARD ? kernels->backward != NULL : kernels->attend != NULL;
}

/* "f32,bf16" */
static void dtype_names(uint32_t dtypes, char text[64]) {
    size_t used = 0;
    text[0] = '\0';
    for (int dtype = TP_F32; dtype <= TP_I4; dtype++)
        if (dtypes >> dtype & 1)
            used += (size_t)snprintf(text + used, 64 - used, "%s%s", used > 0 ? "," : "", tp_dtype_name((tp_dtype)dtype));
}

static void check_isa(const tp__kernel_set *kernels, const tp__rules *rules, const tp__why *why) {
    char have[64], need[64];
    if (on_host(rules, kernels)) return;
    tp_isa_print(rules->machine->isa, have, sizeof have);
    tp_isa_print(kernels->needs, need, sizeof need);
    tp__refuse(why, TP_WHY_ISA, rules->machine->isa, kernels->needs, "isa %s, need %s", have, need);
}

static void check_dtypes(const tp__kernel_set *kernels, const tp_problem *problem, const tp__why *why) {
    const struct {
        const char *name;
        int32_t dtype;
    } all[] = {{"q", problem->q_dtype}, {"k", problem->k_dtype}, {"v", problem->v_dtype}, {"o", problem->o_dtype}};
    char names[64];
    for (int i = 0; i < (problem->op == TP_BACKWARD ? 4 : 3); i++) { /* back, d_o is an input */
        if (kernels->dtypes >> all[i].dtype & 1) continue;
        dtype_names(kernels->dtypes, names);
        tp__refuse(why, TP_WHY_DTYPE, all[i].dtype, kernels->dtypes, "%s is %s, need %s", all[i].name,
                   tp_dtype_name((tp_dtype)all[i].dtype), names);
        return;
    }
}

/* A kernel may round what the problem permits, and nothing else. */
static void check_arithmetic(const tp__option *option, const tp_problem *problem, const tp__why *why) {
    if (option->arithmetic == TP_ARITHMETIC_P_BF16 && problem->p_dtype != TP_BF16)
        tp__refuse(why, TP_WHY_DTYPE, TP_F32, TP_BF16, "p is f32, need p=bf16");
}

void tp__cpu_serves(const tp__option *option, const tp_problem *problem, const tp__rules *rules, const tp__why *why) {
    const tp__kernel_set *kernels = tp__option_kernels(option, rules);
    const tp__strategy *strategy = option->executor->strategy[problem->op];
    int64_t dim = tp__max(problem->head_dim_qk, problem->head_dim_v), max = strategy != NULL ? strategy->max_head_dim : 0;
    check_isa(kernels, rules, why);
    check_dtypes(kernels, problem, why);
    check_arithmetic(option, problem, why);
    if (max != 0 && dim > max)
        tp__refuse(why, TP_WHY_HEAD_DIM, dim, max, "head_dim %lld, need <= %lld", (long long)dim, (long long)max);
    if (strategy == NULL || !has_op(option, kernels, problem->op))
        tp__refuse(why, TP_WHY_OP, problem->op, !problem->op, "op %s, need %s",
                   problem->op == TP_BACKWARD ? "backward" : "forward", problem->op == TP_BACKWARD ? "forward" : "backward");
    else if (tp__workspace(strategy, problem, kernels, rules->path, 1) == SIZE_MAX)
        tp__refuse(why, TP_WHY_MEMORY, INT64_MAX, PTRDIFF_MAX,
                   "temporary memory beyond what can be addressed, need < 2^63 bytes");
}
