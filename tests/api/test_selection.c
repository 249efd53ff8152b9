/* SPDX-License-Identifier: Apache-2.0 */
/* The selection contract: which candidate is taken on which machine, why the others are not, in
   words and numbers; and what a run says of it. The table of kernels gives what is expected. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "support/call.h"

static const char *const machines[] = {
    "x86-64 isa=none threads=2 l1d=32768 l2=0 l3=0 name=recorded, bare",
    "x86-64 isa=avx2 threads=8 l1d=32768 l2=262144 l3=0 name=recorded, AVX2",
    "x86-64 isa=avx2,avx512 threads=64 l1d=49152 l2=2097152 l3=0 name=recorded, AVX-512",
};

static const tp_choice refuse = TP_CHOICE_INIT;
static const tp_choice permit = {sizeof(tp_choice), TP_PERMIT, NULL, NULL, NULL, TP_CPU, 0};

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

static tp_problem problem_of(const char *text) {
    tp_problem p;
    tp_error error = TP_ERROR_INIT;
    if (tp_problem_parse(text, &p, NULL, &error)) fail_msg("%s", error.text);
    return p;
}

static int append(void *cookie, const char *bytes, size_t size) {
    char *text = cookie;
    size_t used = strlen(text);
    assert_true(used + size < 16384);
    memcpy(text + used, bytes, size);
    text[used + size] = '\0';
    return 0;
}

static void expect_same(const tp_decision *a, const tp_decision *b) {
    static char text[2][16384];
    text[0][0] = text[1][0] = '\0';
    assert_int_equal(tp_decision_write(a, TP_JSON, append, text[0]), TP_OK);
    assert_int_equal(tp_decision_write(b, TP_JSON, append, text[1]), TP_OK);
    assert_string_equal(text[0], text[1]);
}

static tp_decision *explain(tp_context *context, const char *text, const tp_choice *choice,
                            tp_status expected, tp_error *error) {
    tp_problem p = problem_of(text);
    tp_decision *decision;
    tp_error mine = TP_ERROR_INIT;
    if (error == NULL) error = &mine;
    assert_int_equal(tp_explain(context, &p, choice, &decision, error), expected);
    assert_non_null(decision);
    assert_int_equal(decision->status, expected);
    assert_int_equal(decision->chosen >= 0, expected == TP_OK);
    tp_plan *plan; /* which decides by the same code */
    assert_int_equal(tp_plan_create(context, &p, choice, &plan, NULL), expected);
    if (expected == TP_OK) expect_same(tp_plan_decision(plan), decision);
    tp_plan_destroy(plan);
    return decision;
}

static int fused(int index) {
    return tp_kernel_at(index)->max_head_dim > 0;
}

/* Serves any dtype, and rounds nothing that a problem must permit. */
static int plain(int index) {
    return fused(index) && tp_kernel_at(index)->arithmetic == TP_ARITHMETIC_F32;
}

/* The first such kernel that an ISA serves, after `skip` others. */
static int best_on(uint32_t isa, int skip) {
    for (int i = 0; tp_kernel_at(i) != NULL; i++)
        if (plain(i) && (tp_kernel_at(i)->needs & ~isa) == 0 && skip-- == 0) return i;
    return -1;
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
            else if (fused(i) && !plain(i))
                expect_reason(d, i, TP_WHY_DTYPE, TP_F32, TP_BF16);
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
        int here = (tp_kernel_at(i)->needs & ~isa) == 0 && (plain(i) || !fused(i));
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

/* Fused kernels write no score; math writes them all, and says so. */
static void receipts_of_every_kernel(void **state) {
    (void)state;
    static const char *const text = "b2 h6/3 q20 k30 d16 bf16 causal";
    call *c = call_new(text, NULL);
    for (int k = 0; call_kernel(k) != NULL; k++) {
        const tp_kernel_info *info = call_kernel_info(k);
        tp_receipt receipt;
        int attends = 0;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){.kernel = info->name}, &receipt);
        assert_string_equal(receipt.kernel, info->name);
        int best = best_on(tp_context_machine(call_context())->isa, 0);
        assert_int_equal(receipt.fallback, info != tp_kernel_at(best));
        assert_int_equal(receipt.scores_written, info->max_head_dim > 0 ? 0 : 2 * 6 * 20 * 30);
        assert_int_equal(receipt.pairs_visible, 12 * (20 * 11 + 20 * 19 / 2));
        assert_int_equal(receipt.lossy, 0);
        assert_int_equal(receipt.tasks, 1);
        assert_string_equal(receipt.problem, "prefill b2 h6/3 q20 k30 d16 bf16 causal");
        assert_true(receipt.time_ns >= 0);
        const char *name;
        int64_t calls;
        for (int i = 0; tp_receipt_function(&receipt, i, &name, &calls); i++) { /* they exist, and ran on this kernel */
            int known = 0;
            for (int j = 0; tp_kernel_function(j) != NULL; j++) known |= tp_kernel_function(j) == name;
            assert_true(known && calls > 0);
            attends += strstr(name, "attend_") != NULL;
            if (info->max_head_dim > 0) assert_non_null(strstr(name, info->name));
        }
        assert_true(tp_receipt_function(&receipt, receipt.function_count - 1, NULL, NULL));
        assert_false(tp_receipt_function(&receipt, receipt.function_count, &name, &calls));
        assert_false(tp_receipt_function(&receipt, -1, &name, &calls));
        assert_false(tp_receipt_function(NULL, 0, &name, &calls));
        assert_int_equal(attends, info->max_head_dim > 0);
    }
    call_free(c);
}

static void figures_of_a_decision(void **state) {
    (void)state;
    tp_decision *d =
        explain(call_context(), "h32/8 q8192 k8192 d128/64 bf16 causal", NULL, TP_OK, NULL);
    int64_t pairs = (int64_t)8192 * 8193 / 2 * 32;
    assert_int_equal(d->pairs, pairs);
    assert_true(d->flops == 2.0 * (double)pairs * 192);
    assert_true(d->flops_usual == 0.5 * 2.0 * 8192 * 8192 * 192 * 32);
    assert_int_equal(d->scores_per_head, 67108864);
    assert_int_equal(d->bytes_compulsory, 8192ll * 2 * (32 * (128 + 64) + 8 * (128 + 64)));
    tp_problem p = problem_of("h32/8 q8192 k8192 d128/64 bf16 causal");
    tp_plan *plan;
    assert_int_equal(tp_plan_create(call_context(), &p, NULL, &plan, NULL), TP_OK);
    assert_int_equal(d->workspace_bytes, tp_plan_workspace(plan, 1));
    assert_true(tp_plan_workspace(plan, 2) > tp_plan_workspace(plan, 1));
    tp_plan_destroy(plan);
    tp_decision_destroy(d);
    d = explain(call_context(), "q8 k8 d8/3 f32", NULL, TP_OK, NULL);
    assert_int_equal(d->rewrites, TP_REWRITE_PADDED_V);
    tp_decision_destroy(d);
    d = explain(call_context(), "q8 k8 d3/64 f32", NULL, TP_OK, NULL);
    assert_int_equal(d->rewrites, 0);
    tp_decision_destroy(d);
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

typedef struct sink {
    char text[16384];
    size_t used, limit;
    int calls_after_stop, stopped;
} sink;

static int write_to_sink(void *cookie, const char *bytes, size_t size) {
    sink *s = cookie;
    if (s->stopped) s->calls_after_stop++;
    if (s->used + size > s->limit) return s->stopped = 1;
    memcpy(s->text + s->used, bytes, size);
    s->used += size;
    s->text[s->used] = '\0';
    return 0;
}

static void expect_complete(const tp_decision *d, const char *text) {
    assert_non_null(strstr(text, d->problem));
    assert_non_null(strstr(text, d->hint));
    for (int i = 0; i < d->candidate_count; i++) {
        const tp_candidate *c = tp_decision_candidate(d, i);
        const tp_reason *why;
        int count = 0;
        assert_non_null(strstr(text, c->kernel));
        for (; (why = tp_candidate_reason(c, count)) != NULL; count++) {
            assert_non_null(strstr(text, why->text));
            assert_non_null(strstr(text, tp_reason_name(why->code)));
        }
        assert_int_equal(count, c->reason_count);
    }
}

static void writing_a_decision(void **state) {
    (void)state;
    static sink s;
    tp_decision *decisions[] = {
        explain(call_context(), "q64 k64 d640 f32", NULL, TP_FALLBACK_REFUSED, NULL),
        explain(call_context(), "q64 k64 d64/3 f32", NULL, TP_OK, NULL),
        explain(call_context(), "q64 k64 d640 f32", &permit, TP_OK, NULL),
    };
    for (int n = 0; n < COUNT(decisions); n++)
        for (int format = TP_TEXT; format <= TP_JSON; format++) {
            s = (sink){.limit = sizeof s.text - 1};
            assert_int_equal(tp_decision_write(decisions[n], format, write_to_sink, &s), TP_OK);
            expect_complete(decisions[n], s.text);
            size_t whole = s.used;
            for (size_t limit = 0; limit < whole; limit += 1 + whole / 40) {
                s = (sink){.limit = limit};
                assert_int_equal(tp_decision_write(decisions[n], format, write_to_sink, &s),
                                 TP_INVALID);
                assert_int_equal(s.calls_after_stop, 0);
            }
        }
    assert_int_equal(tp_decision_write(decisions[0], 2, write_to_sink, &s), TP_INVALID);
    for (int n = 0; n < COUNT(decisions); n++) tp_decision_destroy(decisions[n]);
}

static void writing_a_receipt(void **state) {
    (void)state;
    static sink s;
    call *c = call_new("h2 q20 k30 d16 bf16 causal", NULL);
    for (int k = 0; call_kernel(k) != NULL; k++) {
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){.kernel = call_kernel(k)}, &receipt);
        for (int format = TP_TEXT; format <= TP_JSON; format++) {
            s = (sink){.limit = sizeof s.text - 1};
            assert_int_equal(tp_receipt_write(&receipt, format, write_to_sink, &s), TP_OK);
            size_t whole = s.used;
            assert_non_null(strstr(s.text, receipt.problem));
            assert_non_null(strstr(s.text, call_kernel(k)));
            assert_non_null(strstr(s.text, receipt.numerics_id));
            const char *name;
            for (int i = 0; tp_receipt_function(&receipt, i, &name, NULL); i++) assert_non_null(strstr(s.text, name));
            for (size_t limit = 0; limit < whole; limit += 1 + whole / 40) {
                s = (sink){.limit = limit};
                assert_int_equal(tp_receipt_write(&receipt, format, write_to_sink, &s), TP_INVALID);
                assert_int_equal(s.calls_after_stop, 0);
            }
        }
    }
    call_free(c);
}

/* With the plan alive a receipt also tells what was refused. */
static void a_receipt_tells_the_refusals(void **state) {
    (void)state;
    static sink s = {.limit = sizeof s.text - 1};
    call *c = call_new("h2 q20 k30 d16 bf16 causal", NULL);
    tp_plan *plan;
    tp_exec exec = TP_EXEC_INIT;
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    assert_int_equal(tp_plan_create(call_context(), &c->problem, NULL, &plan, NULL), TP_OK);
    exec.workspace_size = tp_plan_workspace(plan, 1);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    assert_int_equal(tp_plan_run(plan, &c->tensors, &exec, &receipt, NULL), TP_OK);
    assert_ptr_equal(receipt.decision, tp_plan_decision(plan));
    assert_string_equal(receipt.numerics_id, receipt.decision->numerics_id);
    assert_int_equal(tp_receipt_write(&receipt, TP_TEXT, write_to_sink, &s), TP_OK);
    assert_non_null(strstr(s.text, "math"));
    assert_non_null(strstr(s.text, "not_best"));
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
        cmocka_unit_test(receipts_of_every_kernel),
        cmocka_unit_test(figures_of_a_decision),
        cmocka_unit_test(memory_that_cannot_be_addressed),
        cmocka_unit_test(a_plan_for_another_machine),
        cmocka_unit_test(a_plan_for_a_machine_that_does_not_exist),
        cmocka_unit_test(writing_a_decision),
        cmocka_unit_test(writing_a_receipt),
        cmocka_unit_test(a_receipt_tells_the_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
