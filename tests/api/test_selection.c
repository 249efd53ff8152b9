/* SPDX-License-Identifier: Apache-2.0 */
/* The selection contract: which candidate is taken on which machine, and why the others are not, in words and numbers. The table
   of kernels gives what is expected. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/explain.h"
#include "plan/plan.h"

static const char *const machines[] = {
    "x86-64 isa=none threads=2 l1d=32768 l2=0 l3=0 name=recorded, bare",
    "x86-64 isa=avx2 threads=8 l1d=32768 l2=262144 l3=0 name=recorded, AVX2",
    "x86-64 isa=avx2,avx512 threads=64 l1d=49152 l2=2097152 l3=0 name=recorded, AVX-512",
};

static tp_context *context_for(const char *machine_text, const char *disable) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_machine machine;
    tp_context *context;
    tp_error error = TP_ERROR_INIT;
    options.threads = 1;
    options.disable = disable;
    if (machine_text != NULL) {
        assert_int_equal(tp_machine_parse(machine_text, &machine, &error), TP_OK);
        options.machine = &machine;
    }
    if (tp_context_create(&options, &context, &error)) fail_msg("%s", error.text);
    return context;
}

static int math_at(void) {
    int i = 0;
    while (fused(i)) i++;
    return i;
}

static const tp_reason *reason(const tp_decision *d, int candidate, int code) {
    const tp_reason *why;
    for (int r = 0; (why = tp_candidate_reason(tp_decision_candidate(d, candidate), r)) != NULL; r++)
        if (why->code == code) return why;
    return NULL;
}

static void expect_reason(const tp_decision *d, int candidate, int code, int64_t have,
                          int64_t need) {
    const tp_reason *why = reason(d, candidate, code);
    if (why == NULL)
        fail_msg("%s lacks the reason %s", tp_decision_candidate(d, candidate)->kernel, tp_reason_name(code));
    assert_int_equal(why->have, have);
    assert_int_equal(why->need, need);
    assert_true(strlen(why->text) > 0);
}

static void recorded_machines(void **state) {
    (void)state;
    for (int m = 0; m < COUNT(machines); m++) {
        tp_context *context = context_for(machines[m], NULL);
        uint32_t isa = tp_context_machine(context)->isa;
        tp_decision *d = explain(context, "h8/2 q64 k64 d64 bf16 causal", NULL, TP_OK, NULL);
        int best = best_on(isa, 0), i = 0;
        assert_int_equal(isa, (uint32_t)(m == 0 ? 0 : m == 1 ? 1 : 3));
        assert_int_equal(d->chosen, best);
        assert_int_equal(d->fallback, 0);
        for (; tp_kernel_at(i) != NULL; i++) {
            const tp_kernel_info *info = tp_kernel_at(i);
            const tp_candidate *c = tp_decision_candidate(d, i);
            assert_string_equal(c->kernel, info->name);
            assert_string_equal(c->strategy, info->mr > 0 ? "prefill" : "math");
            assert_int_equal(c->chosen, i == best);
            assert_int_equal(c->reason_count > 0, i != best);
            if ((info->needs & ~isa) != 0)
                expect_reason(d, i, TP_WHY_ISA, isa, info->needs);
            else if (i != best)
                expect_reason(d, i, TP_WHY_NOT_BEST, i, best);
            assert_int_equal(c->tier, !fused(i)   ? TP_TIER_MATH
                                      : i <= best ? TP_TIER_BEST
                                                  : TP_TIER_LOWER);
        }
        assert_int_equal(d->candidate_count, i);
        assert_string_equal(d->problem, "prefill b1 h8/2 q64 k64 d64 bf16 causal");
        tp_decision_destroy(d);
        tp_context_destroy(context);
    }
}

/* What is disabled by hand still counts as something the host could do. */
static void disabled_kernels(void **state) {
    (void)state;
    for (int m = 0; m < COUNT(machines); m++)
        for (int where = 0; where < 2; where++) { /* by the context, by the choice */
            tp_machine machine;
            assert_int_equal(tp_machine_parse(machines[m], &machine, NULL), TP_OK);
            int best = best_on(machine.isa, 0), next = best_on(machine.isa, 1);
            const char *name = tp_kernel_at(best)->name;
            tp_context *context = context_for(machines[m], where == 0 ? name : NULL);
            tp_choice one = refuse, other = permit;
            tp_error error = TP_ERROR_INIT;
            if (where == 1) one.disable = other.disable = name;
            if (next < 0) next = math_at();

            tp_decision *d = explain(context, "q64 k64 d64 f32", &one, TP_FALLBACK_REFUSED, &error);
            expect_reason(d, best, TP_WHY_DISABLED, 0, 0);
            expect_reason(d, next, TP_WHY_POLICY, tp_decision_candidate(d, next)->tier, TP_TIER_BEST);
            assert_true(tp_decision_candidate(d, next)->tier > TP_TIER_BEST);
            assert_non_null(strstr(d->hint, name));
            assert_non_null(strstr(d->hint, "enable"));
            assert_int_equal(error.status, TP_FALLBACK_REFUSED);
            assert_non_null(strstr(error.text, "q64 k64 d64 f32"));
            assert_non_null(strstr(error.text, "policy TP_PERMIT, in tp_choice or tp_context_options, lets"));
            for (int i = 0; i < d->candidate_count; i++)
                assert_non_null(strstr(error.text, tp_decision_candidate(d, i)->kernel));
            tp_decision_destroy(d);

            d = explain(context, "q64 k64 d64 f32", &other, TP_OK, NULL);
            assert_int_equal(d->chosen, next);
            assert_int_equal(d->fallback, 1);
            tp_decision_destroy(d);
            tp_context_destroy(context);
        }
}

/* The context's list and the choice's add up. */
static void everything_disabled(void **state) {
    (void)state;
    char all[256] = "";
    for (int i = 0; fused(i); i++) {
        strcat(all, i > 0 ? "," : "");
        strcat(all, tp_kernel_at(i)->name);
    }
    tp_context *context = context_for(NULL, all);
    tp_choice choice = permit;
    tp_error error = TP_ERROR_INIT;
    tp_decision *d = explain(context, "q64 k64 d64 f32", &choice, TP_OK, NULL);
    assert_string_equal(tp_decision_candidate(d, d->chosen)->kernel, "math");
    tp_decision_destroy(d);
    choice.disable = "math";
    d = explain(context, "q64 k64 d64 f32", &choice, TP_UNSUPPORTED, &error);
    for (int i = 0; fused(i); i++) assert_non_null(reason(d, i, TP_WHY_DISABLED));
    expect_reason(d, math_at(), TP_WHY_DISABLED, 0, 0);
    assert_int_equal(error.status, TP_UNSUPPORTED);
    assert_int_equal(d->fallback, 0);
    tp_decision_destroy(d);
    tp_context_destroy(context);
}

static void a_kernel_by_name(void **state) {
    (void)state;
    tp_context *context = call_context();
    uint32_t isa = tp_context_machine(context)->isa;
    int best = best_on(isa, 0);
    for (int i = 0; tp_kernel_at(i) != NULL; i++) {
        tp_choice choice = refuse;
        choice.kernel = tp_kernel_at(i)->name;
        int here = (tp_kernel_at(i)->needs & ~isa) == 0;
        tp_decision *d = explain(context, "q64 k64 d64 f32", &choice,
                                 i == best ? TP_OK
                                 : here    ? TP_FALLBACK_REFUSED
                                           : TP_UNSUPPORTED,
                                 NULL);
        for (int j = 0; j < d->candidate_count; j++)
            if (j != i) assert_non_null(reason(d, j, TP_WHY_NOT_ASKED));
        if (here && i != best) {
            expect_reason(d, i, TP_WHY_POLICY, tp_decision_candidate(d, i)->tier, TP_TIER_BEST);
            assert_non_null(strstr(d->hint, tp_kernel_at(best)->name));
        }
        tp_decision_destroy(d);
        choice.policy = TP_PERMIT;
        if (!here) continue;
        d = explain(context, "q64 k64 d64 f32", &choice, TP_OK, NULL);
        assert_int_equal(d->chosen, i);
        assert_int_equal(d->fallback, i != best);
        tp_decision_destroy(d);
    }
}

static void head_dims_beyond_the_fused_kernels(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t have;
    } cases[] = {
        {"q9 k20 d577 f32", 577}, {"q9 k20 d640/3 f32", 640}, {"q9 k20 d3/577 bf16 causal", 577}};
    tp_context *context = call_context();
    for (int n = 0; n < COUNT(cases); n++) {
        tp_error error = TP_ERROR_INIT;
        tp_decision *d = explain(context, cases[n].text, NULL, TP_FALLBACK_REFUSED, &error);
        for (int i = 0; fused(i); i++) {
            if (reason(d, i, TP_WHY_ISA) != NULL) continue;
            expect_reason(d, i, TP_WHY_HEAD_DIM, cases[n].have, TP_MAX_HEAD_DIM);
        }
        expect_reason(d, math_at(), TP_WHY_POLICY, TP_TIER_MATH, TP_TIER_BEST);
        assert_non_null(strstr(d->hint, "576"));
        assert_non_null(strstr(error.text, "576"));
        assert_non_null(strstr(error.text, "TP_PERMIT")); /* and no second advice */
        assert_null(strstr(error.text, "hint"));
        tp_decision_destroy(d);

        tp_choice choice = permit;
        choice.disable = "math";
        d = explain(context, cases[n].text, &choice, TP_UNSUPPORTED, NULL);
        tp_decision_destroy(d);

        call *c = call_new(cases[n].text, NULL); /* permitted, math serves it, and correctly */
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){0}, &receipt);
        call_check(c, cases[n].text);
        assert_string_equal(receipt.kernel, "math");
        assert_int_equal(receipt.fallback, 1);
        call_free(c);
    }
    tp_decision_destroy(explain(context, "q9 k20 d576 f32", NULL, TP_OK, NULL));
}

static void names_that_do_not_exist(void **state) {
    (void)state;
    tp_problem p = problem_of("q9 k9 d8 f32");
    static const char *const wrong[] = {"nonsense", "generic,nonsense", "Generic", "generi",
                                        "generic "};
    for (int n = 0; n < COUNT(wrong); n++) {
        tp_choice choice = permit;
        tp_decision *d;
        tp_plan *plan;
        tp_error error = TP_ERROR_INIT;
        choice.disable = wrong[n];
        assert_int_equal(tp_explain(call_context(), &p, &choice, &d, &error), TP_INVALID);
        assert_null(d);
        assert_non_null(strstr(error.text, n == 1 ? "nonsense" : wrong[n]));
        assert_non_null(strstr(error.text, "math")); /* the known names */
        choice = permit;
        choice.kernel = wrong[n];
        assert_int_equal(tp_plan_create(call_context(), &p, &choice, &plan, &error), TP_INVALID);
        assert_null(plan);
        tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
        tp_context *context;
        options.disable = wrong[n];
        assert_int_equal(tp_context_create(&options, &context, &error), TP_INVALID);
        assert_null(context);
    }
    static const char *const not_one[] = {"", "generic,math"};
    for (int n = 0; n < COUNT(not_one); n++) {
        tp_choice choice = permit;
        tp_plan *plan;
        choice.kernel = not_one[n];
        assert_int_equal(tp_plan_create(call_context(), &p, &choice, &plan, NULL), TP_INVALID);
    }
}

/* A problem for which even math's matrices cannot be addressed. */
static void memory_that_cannot_be_addressed(void **state) {
    (void)state;
    tp_choice choice = permit;
    choice.kernel = "math";
    tp_decision *d =
        explain(call_context(), "q1099511627776 k2097152 d1 f32", &choice, TP_UNSUPPORTED, NULL);
    assert_non_null(reason(d, math_at(), TP_WHY_MEMORY));
    tp_decision_destroy(d);
}

/* A plan for a recorded machine must not raise SIGILL here. */
static void a_plan_for_another_machine(void **state) {
    (void)state;
    call *c = call_new("q9 k9 d8 f32", NULL);
    tp_context *bare = context_for(machines[0], NULL), *rich = context_for(machines[2], NULL);
    tp_machine host = {.struct_size = sizeof host};
    tp_error error = TP_ERROR_INIT;
    int tried = 0;
    assert_int_equal(tp_machine_detect(&host, NULL), TP_OK);
    assert_int_equal(call_try(c, &(call_how){.context = bare}, NULL, &error), TP_OK);
    call_check(c, "a plan for a bare machine");
    for (int i = 0; tp_kernel_at(i) != NULL; i++) {
        if ((tp_kernel_at(i)->needs & ~host.isa) == 0) continue;
        tried++;
        assert_int_equal(call_try(c, &(call_how){.context = rich, .kernel = tp_kernel_at(i)->name},
                                  NULL, &error),
                         TP_MACHINE);
        assert_non_null(strstr(error.text, tp_kernel_at(i)->name));
    }
    if (tried == 0)
        printf("plans for a richer machine: not run here: this host has every ISA of the table\n");
    call_free(c);
    tp_context_destroy(bare);
    tp_context_destroy(rich);
}

/* The same with an ISA that no host has, so that the check is held everywhere. */
static void a_plan_for_a_machine_that_does_not_exist(void **state) {
    (void)state;
    call *c = call_new("q9 k9 d8 f32", NULL);
    tp_exec exec = TP_EXEC_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_plan *plan;
    assert_int_equal(tp_plan_create(call_context(), &c->problem, NULL, &plan, NULL), TP_OK);
    tp__kernel_set unknown = *plan->kernels;
    unknown.needs = 1u << 31;
    plan->kernels = &unknown;
    exec.workspace_size = tp_plan_workspace(plan, 1);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    assert_int_equal(tp_plan_run(plan, &c->tensors, &exec, NULL, &error), TP_MACHINE);
    assert_int_equal(error.status, TP_MACHINE);
    free(exec.workspace);
    tp_plan_destroy(plan);
    call_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_machines),
        cmocka_unit_test(disabled_kernels),
        cmocka_unit_test(everything_disabled),
        cmocka_unit_test(a_kernel_by_name),
        cmocka_unit_test(head_dims_beyond_the_fused_kernels),
        cmocka_unit_test(names_that_do_not_exist),
        cmocka_unit_test(memory_that_cannot_be_addressed),
        cmocka_unit_test(a_plan_for_another_machine),
        cmocka_unit_test(a_plan_for_a_machine_that_does_not_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
