/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input at every entry point of the API: a status, a text that names the value, and nothing written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/structs.h"
#include "support/call.h"

typedef struct fixture {
    call *c;
    tp_context *context;
    tp_plan *plan;
    tp_exec exec;
    tp_receipt receipt, before;
} fixture;

/* Everything that a good run needs; outputs and receipt hold a pattern. */
static void set_up(fixture *r) {
    r->c = call_new("b2 h4/2 q9 k12 d8 f32 causal", NULL);
    r->context = call_context_new(1);
    assert_int_equal(tp_plan_create(r->context, &r->c->problem, NULL, &r->plan, NULL), TP_OK);
    r->exec = (tp_exec)TP_EXEC_INIT;
    r->exec.workspace_size = tp_plan_workspace(r->plan, 1);
    r->exec.workspace = aligned_alloc(64, r->exec.workspace_size + 64);
    for (int i = CALL_O; i <= CALL_LSE; i++)
        memset(r->c->held.buffer[i].memory, 0x5a, r->c->held.buffer[i].bytes);
    memset(&r->receipt, 0x5a, sizeof r->receipt);
    r->receipt.struct_size = sizeof r->receipt;
    r->before = r->receipt;
}

static void tear_down(fixture *r) {
    free(r->exec.workspace);
    tp_plan_destroy(r->plan);
    tp_context_destroy(r->context);
    call_free(r->c);
}

static void expect_untouched(const fixture *r, const char *what) {
    for (int i = CALL_O; i <= CALL_LSE; i++)
        for (size_t b = 0; b < r->c->held.buffer[i].bytes; b++)
            if (((char *)r->c->held.buffer[i].memory)[b] != 0x5a) fail_msg("%s: wrote to an output", what);
    if (memcmp(&r->receipt, &r->before, sizeof r->receipt) != 0)
        fail_msg("%s: wrote to the receipt", what);
}

static void expect_text(const tp_error *error, tp_status got, tp_status expected, const char *names,
                        const char *what) {
    if (got != expected)
        fail_msg("%s: %s instead of %s", what, tp_status_name(got), tp_status_name(expected));
    assert_int_equal(error->status, expected);
    if (strstr(error->text, names) == NULL)
        fail_msg("%s: '%s' does not name '%s'", what, error->text, names);
}

/* A run with this exec must fail so, with and without a tp_error. */
static void expect_run(fixture *r, const tp_exec *exec, const tp_tensors *tensors, tp_status expected,
                       const char *names) {
    tp_error error = TP_ERROR_INIT;
    tp_status got = tp_plan_run(r->plan, tensors, exec, &r->receipt, &error);
    expect_text(&error, got, expected, names, names);
    assert_int_equal(tp_plan_run(r->plan, tensors, exec, &r->receipt, NULL), expected);
    expect_untouched(r, names);
}

static void bad_workspaces(void **state) {
    (void)state;
    fixture r;
    set_up(&r);
    const tp_tensors *t = &r.c->tensors;
    char size[32];
    snprintf(size, sizeof size, "%zu", r.exec.workspace_size);
    for (int n = 0; n < 3; n++) {
        static const size_t missing[] = {1, 64, SIZE_MAX};
        tp_exec exec = r.exec;
        exec.workspace_size = missing[n] == SIZE_MAX ? 0 : exec.workspace_size - missing[n];
        expect_run(&r, &exec, t, TP_WORKSPACE, size); /* names what it needs */
    }
    tp_exec exec = r.exec;
    exec.workspace = NULL;
    expect_run(&r, &exec, t, TP_WORKSPACE, size);
    for (size_t off = 1; off < 64; off *= 2) {
        exec = r.exec;
        exec.workspace = (char *)r.exec.workspace + off;
        expect_run(&r, &exec, t, TP_WORKSPACE, "64");
    }
    exec = r.exec;
    exec.threads = 2; /* needs more than one task's */
    expect_run(&r, &exec, t, TP_WORKSPACE, "2 tasks");
    assert_int_equal(tp_plan_run(r.plan, t, &r.exec, NULL, NULL),
                     TP_OK); /* and the good one runs */
    tear_down(&r);
}

static void bad_execs(void **state) {
    (void)state;
    fixture r;
    set_up(&r);
    const tp_tensors *t = &r.c->tensors;
    tp_exec exec = r.exec;
    exec.struct_size = sizeof exec - 1;
    expect_run(&r, &exec, t, TP_INVALID, "struct_size");
    exec = r.exec;
    exec.struct_size = 0;
    expect_run(&r, &exec, t, TP_INVALID, "tp_exec");
    static const int threads[] = {-1, 1025, INT32_MIN, INT32_MAX};
    for (int n = 0; n < COUNT(threads); n++) {
        char number[16];
        snprintf(number, sizeof number, "%d", threads[n]);
        exec = r.exec;
        exec.threads = threads[n];
        expect_run(&r, &exec, t, TP_INVALID, number);
    }
    exec = r.exec;
    exec.queue = &r;
    expect_run(&r, &exec, t, TP_INVALID, "queue");
    exec = r.exec;
    exec.reserved = 7;
    expect_run(&r, &exec, t, TP_INVALID, "reserved is 7");
    for (unsigned flag = 2; flag != 0; flag <<= 1) {
        exec = r.exec;
        exec.flags = flag | TP_EXEC_CHECK_DEEP;
        expect_run(&r, &exec, t, TP_INVALID, "flags");
    }
    expect_run(&r, NULL, t, TP_INVALID, "tp_exec is NULL");
    expect_run(&r, &r.exec, NULL, TP_INVALID, "tp_tensors is NULL");
    tp_error error = TP_ERROR_INIT;
    expect_text(&error, tp_plan_run(NULL, t, &r.exec, &r.receipt, &error), TP_INVALID, "plan",
                "no plan");
    expect_untouched(&r, "no plan");
    tear_down(&r);
}

/* A few of the rules of tensors; test_tensors.c holds them all. Here: through both entry points. */
static void bad_tensors(void **state) {
    (void)state;
    static const struct {
        const char *names;
        tp_status status;
    } cases[] = {
        {"struct_size", TP_INVALID}, {"device", TP_UNSUPPORTED}, {"index_type", TP_INVALID},
        {"index_device", TP_UNSUPPORTED}, {"batch", TP_INVALID},      {"q_len", TP_INVALID},
        {"kv_len", TP_INVALID},      {"q.data", TP_INVALID},     {"k.data", TP_INVALID},
        {"v.data", TP_INVALID},      {"o.data", TP_INVALID},     {"o.stride", TP_INVALID},
        {"overlap", TP_INVALID},     {"k.stride", TP_INVALID},   {"cu_seqlens_q", TP_INVALID},
        {"kv_lens[1]", TP_INVALID},  {"lse.stride", TP_INVALID}, {"aligned", TP_INVALID},
    };
    static const int32_t lens[] = {3, 13};
    for (int n = 0; n < COUNT(cases); n++) {
        fixture r;
        tp_error error = TP_ERROR_INIT;
        set_up(&r);
        tp_tensors t = r.c->tensors;
        switch (n) {
        case 0: t.struct_size = 8; break;
        case 1: t.device = 1; break;
        case 2: t.index_type = 2; break;
        case 3: t.index_device = 1; break;
        case 4: t.batch = 3; break;
        case 5: t.q_len = 10; break;
        case 6: t.kv_len = -1; break;
        case 7: t.q.data = NULL; break;
        case 8: t.k.data = NULL; break;
        case 9: t.v.data = NULL; break;
        case 10: t.o.data = NULL; break;
        case 11: t.o.stride[1] = 0; break;
        case 12: t.o.data = t.q.data; break;
        case 13: t.k.stride[2] = -1; break;
        case 14: t.cu_seqlens_q = lens; break;
        case 15: t.kv_lens = lens; break;
        case 16: t.lse.stride[2] = 0; break;
        default: t.v.data = (char *)t.v.data + 1; break;
        }
        expect_run(&r, &r.exec, &t, cases[n].status, cases[n].names);
        tp_status got = tp_attention(r.context, &r.c->problem, NULL, &t, &r.receipt, &error);
        expect_text(&error, got, cases[n].status, cases[n].names, "tp_attention");
        expect_untouched(&r, cases[n].names);
        got = tp_check_deep(&r.c->problem, &t, &error);
        expect_text(&error, got, cases[n].status, cases[n].names, "tp_check_deep");
        tear_down(&r);
    }
}

static void bad_options(void **state) {
    (void)state;
    static const tp_machine small = {.struct_size = 4};
    static const struct {
        tp_context_options options;
        const char *names;
    } cases[] = {
        {{.struct_size = offsetof(tp_context_options, counted) - 1}, "struct_size"},
        {{.struct_size = sizeof(tp_context_options), .threads = -1}, "-1"},
        {{.struct_size = sizeof(tp_context_options), .threads = 1025}, "1025"},
        {{.struct_size = sizeof(tp_context_options), .policy = 4}, "policy is 4"},
        {{.struct_size = sizeof(tp_context_options), .policy = -1}, "policy is -1"},
        {{.struct_size = sizeof(tp_context_options), .cached_plans = -5}, "-5"},
        {{.struct_size = sizeof(tp_context_options), .cached_plans = 1 << 30}, "1073741824"},
        {{.struct_size = sizeof(tp_context_options), .disable = "no such"}, "no such"},
        {{.struct_size = sizeof(tp_context_options), .machine = &small}, "tp_machine"},
        {{.struct_size = sizeof(tp_context_options), .recorded = -2}, "recorded is -2"},
        {{.struct_size = sizeof(tp_context_options), .recorded = 65537}, "recorded is 65537"},
        {{.struct_size = sizeof(tp_context_options), .reserved = 1}, "reserved is 1"},
        {{.struct_size = sizeof(tp_context_options), .reserved2 = 1}, "reserved2 1"},
        {{.struct_size = sizeof(tp_context_options), .counted = 1}, "counted is 1: it must be 0"},
        {{.struct_size = sizeof(tp_context_options), .counted = -2}, "counted is -2: it must be 0"},
    };
    for (int n = 0; n < COUNT(cases); n++) {
        tp_error error = TP_ERROR_INIT;
        tp_context *context = (tp_context *)(uintptr_t)8;
        tp_status got = tp_context_create(&cases[n].options, &context, &error);
        expect_text(&error, got, TP_INVALID, cases[n].names, cases[n].names);
        assert_null(context);
        assert_int_equal(tp_context_create(&cases[n].options, &context, NULL), TP_INVALID);
    }
}

static void bad_choices_and_problems(void **state) {
    (void)state;
    fixture r;
    set_up(&r);
    static const struct {
        tp_choice choice;
        const char *names;
    } choices[] = {
        {{.struct_size = sizeof(tp_choice) - 1}, "struct_size"},
        {{.struct_size = sizeof(tp_choice), .policy = 4}, "policy is 4"},
        {{.struct_size = sizeof(tp_choice), .policy = -1}, "policy is -1"},
        {{.struct_size = sizeof(tp_choice), .disable = "nobody"}, "nobody"},
        {{.struct_size = sizeof(tp_choice), .kernel = "nobody"}, "nobody"},
    };
    for (int n = 0; n < COUNT(choices); n++) {
        tp_error error = TP_ERROR_INIT;
        tp_plan *plan = (tp_plan *)(uintptr_t)8;
        tp_decision *decision = (tp_decision *)(uintptr_t)8;
        const tp_choice *choice = &choices[n].choice;
        tp_status got = tp_plan_create(r.context, &r.c->problem, choice, &plan, &error);
        expect_text(&error, got, TP_INVALID, choices[n].names, "tp_plan_create");
        assert_null(plan);
        got = tp_explain(r.context, &r.c->problem, choice, &decision, &error);
        expect_text(&error, got, TP_INVALID, choices[n].names, "tp_explain");
        assert_null(decision);
        for (int again = 0; again < 2; again++) { /* also with the problem in the cache */
            got = tp_attention(r.context, &r.c->problem, choice, &r.c->tensors, &r.receipt, &error);
            expect_text(&error, got, TP_INVALID, choices[n].names, "tp_attention");
            expect_untouched(&r, choices[n].names);
            assert_int_equal(
                tp_attention(r.context, &r.c->problem, NULL, &r.c->tensors, NULL, NULL), TP_OK);
            for (int i = CALL_O; i <= CALL_LSE; i++)
                memset(r.c->held.buffer[i].memory, 0x5a, r.c->held.buffer[i].bytes);
        }
    }
    for (int n = 0; n < 5; n++) { /* the rules themselves: test_problem.c */
        static const char *const names[] = {"struct_size", "head_dim_qk is 0", "nan",
                                            "q_dtype is 9", "op is 2"};
        tp_error error = TP_ERROR_INIT;
        tp_plan *plan;
        tp_decision *decision;
        tp_problem p = r.c->problem;
        if (n == 0) p.struct_size = offsetof(tp_problem, p_dtype) - 1; /* less than the first version had */
        if (n == 1) p.head_dim_qk = 0;
        if (n == 2) p.scale_set = 1, p.scale = __builtin_nanf("");
        if (n == 3) p.q_dtype = 9;
        if (n == 4) p.op = 2;
        expect_text(&error, tp_plan_create(r.context, &p, NULL, &plan, &error), TP_INVALID,
                    names[n], "plan");
        expect_text(&error, tp_explain(r.context, &p, NULL, &decision, &error), TP_INVALID,
                    names[n], "explain");
        assert_null(decision);
        tp_status got = tp_attention(r.context, &p, NULL, &r.c->tensors, &r.receipt, &error);
        expect_text(&error, got, TP_INVALID, names[n], "tp_attention");
        expect_untouched(&r, names[n]);
    }
    tear_down(&r);
}

static void bad_receipts_and_errors(void **state) {
    (void)state;
    fixture r;
    set_up(&r);
    tp_error error = TP_ERROR_INIT;
    r.receipt.struct_size = r.before.struct_size = TP__FIRST_tp_receipt - 1;
    expect_run(&r, &r.exec, &r.c->tensors, TP_INVALID, "tp_receipt.struct_size");
    tp_status got = tp_attention(r.context, &r.c->problem, NULL, &r.c->tensors, &r.receipt, &error);
    expect_text(&error, got, TP_INVALID, "tp_receipt", "tp_attention");
    expect_untouched(&r, "a receipt that is too small");
    /* an error that is too small is left alone; the status comes all the same */
    tp_error small, before;
    memset(&small, 0x5a, sizeof small);
    small.struct_size = TP__FIRST_tp_error - 1;
    before = small;
    assert_int_equal(tp_plan_run(r.plan, NULL, &r.exec, NULL, &small), TP_INVALID);
    assert_memory_equal(&small, &before, sizeof small);
    tear_down(&r);
}

static int keep(void *cookie, const char *bytes, size_t size) {
    (void)cookie, (void)bytes, (void)size;
    return 0;
}

static void null_pointers(void **state) {
    (void)state;
    tp_problem_init(NULL);
    tp_problem_dtype(NULL, TP_F32);
    tp_receipt_init(NULL);
    tp_tensors_init(NULL, NULL, NULL, NULL, NULL, NULL);
    tp_tensors no_problem;
    tp_tensors_init(&no_problem, NULL, NULL, NULL, NULL, NULL);
    assert_int_equal(no_problem.struct_size, sizeof no_problem);
    fixture r;
    set_up(&r);
    const tp_problem *p = &r.c->problem;
    const tp_tensors *t = &r.c->tensors;
    tp_error e = TP_ERROR_INIT;
    tp_context *context;
    tp_plan *plan;
    tp_decision *decision;
    tp_machine machine = {.struct_size = sizeof machine};
    tp_problem problem;
    tp_receipt empty;
    tp_row row = {0, 0, 0};
    char text[256];
    double o[8];
    float f[4] = {0}, lse[4] = {0};
    const float *parts[] = {f}, *lse_parts[] = {lse};
    tp_receipt_init(&empty);
    expect_text(&e, tp_context_create(NULL, NULL, &e), TP_INVALID, "context", "create");
    expect_text(&e, tp_attention(NULL, p, NULL, t, NULL, &e), TP_INVALID, "context", "attention");
    expect_text(&e, tp_attention(r.context, NULL, NULL, t, NULL, &e), TP_INVALID, "problem",
                "attention");
    expect_text(&e, tp_attention(r.context, p, NULL, NULL, NULL, &e), TP_INVALID, "tensors",
                "attention");
    expect_text(&e, tp_plan_create(NULL, p, NULL, &plan, &e), TP_INVALID, "context", "plan");
    expect_text(&e, tp_plan_create(r.context, NULL, NULL, &plan, &e), TP_INVALID, "problem",
                "plan");
    expect_text(&e, tp_plan_create(r.context, p, NULL, NULL, &e), TP_INVALID, "plan", "plan");
    expect_text(&e, tp_explain(NULL, p, NULL, &decision, &e), TP_INVALID, "context", "explain");
    expect_text(&e, tp_explain(r.context, NULL, NULL, &decision, &e), TP_INVALID, "problem",
                "explain");
    expect_text(&e, tp_explain(r.context, p, NULL, NULL, &e), TP_INVALID, "decision", "explain");
    expect_text(&e, tp_check_deep(NULL, t, &e), TP_INVALID, "problem", "check_deep");
    expect_text(&e, tp_check_deep(p, NULL, &e), TP_INVALID, "tensors", "check_deep");
    expect_text(&e, tp_problem_check(NULL, &e), TP_INVALID, "problem", "check");
    expect_text(&e, tp_problem_parse(NULL, &problem, NULL, &e), TP_INVALID, "text", "parse");
    expect_text(&e, tp_problem_parse("q1 k1 d1", NULL, NULL, &e), TP_INVALID, "problem", "parse");
    expect_text(&e, tp_machine_parse(NULL, &machine, &e), TP_INVALID, "text", "machine");
    expect_text(&e, tp_machine_parse("x", NULL, &e), TP_INVALID, "machine", "machine");
    expect_text(&e, tp_machine_detect(NULL, &e), TP_INVALID, "machine", "machine");
    expect_text(&e, tp_reference(NULL, t, 0, TP_ARITHMETIC_F32, 1, &row, o, NULL, NULL, NULL, &e), TP_INVALID,
                "problem", "ref");
    expect_text(&e, tp_reference(p, NULL, 0, TP_ARITHMETIC_F32, 1, &row, o, NULL, NULL, NULL, &e), TP_INVALID,
                "tensors", "ref");
    expect_text(&e, tp_reference(p, t, 0, TP_ARITHMETIC_F32, 1, NULL, o, NULL, NULL, NULL, &e), TP_INVALID, "rows",
                "ref");
    assert_int_equal(tp_reference(p, t, 0, TP_ARITHMETIC_F32, 1, &row, NULL, NULL, NULL, NULL, &e), TP_OK);
    expect_text(&e, tp_merge(1, 1, 4, NULL, lse_parts, f, lse, &e), TP_INVALID, "o_parts", "merge");
    expect_text(&e, tp_merge(1, 1, 4, parts, NULL, f, lse, &e), TP_INVALID, "lse_parts", "merge");
    expect_text(&e, tp_merge(1, 1, 4, parts, lse_parts, NULL, lse, &e), TP_INVALID, "o is NULL",
                "merge");
    expect_text(&e, tp_merge(1, 1, 4, parts, lse_parts, f, NULL, &e), TP_INVALID, "lse is NULL",
                "merge");
    assert_int_equal(tp_problem_causal(NULL), TP_INVALID);
    assert_int_equal(tp_problem_window(NULL, 0, 0), TP_INVALID);
    assert_int_equal(tp_problem_print(NULL, NULL, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_problem_print(p, NULL, NULL, sizeof text), TP_INVALID);
    assert_int_equal(tp_machine_print(NULL, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_machine_print(&machine, NULL, sizeof text), TP_INVALID);
    assert_int_equal(tp_decision_write(NULL, TP_TEXT, keep, NULL), TP_INVALID);
    assert_int_equal(tp_decision_write(tp_plan_decision(r.plan), TP_TEXT, NULL, NULL), TP_INVALID);
    assert_int_equal(tp_receipt_write(NULL, TP_TEXT, keep, NULL), TP_INVALID);
    assert_int_equal(tp_receipt_write(&empty, TP_TEXT, keep, NULL),
                     TP_INVALID); /* no run filled it */
    assert_int_equal(tp_receipt_write(&r.receipt, TP_TEXT, NULL, NULL), TP_INVALID);
    assert_int_equal(tp_context_counters(NULL, &(tp_counters){.struct_size = sizeof(tp_counters)}),
                     TP_INVALID);
    assert_int_equal(tp_context_counters(r.context, NULL), TP_INVALID);
    assert_int_equal(tp_mask_allowed(NULL, 1, 1, 0, 0), -1);
    assert_int_equal(tp_context_threads(NULL), 0);
    assert_null(tp_context_machine(NULL));
    assert_null(tp_plan_decision(NULL));
    assert_null(tp_decision_candidate(NULL, 0));
    assert_null(tp_decision_candidate(tp_plan_decision(r.plan), -1));
    assert_null(tp_decision_candidate(tp_plan_decision(r.plan), tp_plan_decision(r.plan)->candidate_count));
    assert_null(tp_candidate_reason(NULL, 0));
    assert_null(tp_candidate_reason(tp_decision_candidate(tp_plan_decision(r.plan), 1), -1));
    assert_null(tp_candidate_reason(tp_decision_candidate(tp_plan_decision(r.plan), 1), 99));
    assert_int_equal(tp_plan_workspace(NULL, 1), 0);
    tp_context_destroy(NULL);
    tp_plan_destroy(NULL);
    tp_decision_destroy(NULL);
    tp_receipt_init(NULL);
    expect_untouched(&r, "null pointers");
    /* what may be NULL */
    if (call_pool_usable()) { /* the default has a pool */
        assert_int_equal(tp_context_create(NULL, &context, NULL), TP_OK);
        tp_context_destroy(context);
    }
    assert_int_equal(tp_attention(r.context, p, NULL, t, NULL, NULL), TP_OK);
    tear_down(&r);
}

static void structs_that_are_too_small(void **state) {
    (void)state;
    fixture r;
    set_up(&r);
    tp_counters counters;
    assert_int_equal(tp_context_counters_sized(r.context, &counters, TP__FIRST_tp_counters - 1), TP_INVALID);
    tp_machine machine = *tp_context_machine(r.context);
    char text[256];
    machine.struct_size = TP__FIRST_tp_machine - 1;
    assert_int_equal(tp_machine_print(&machine, text, sizeof text), TP_INVALID);
    tp_problem p = r.c->problem;
    p.struct_size = 4;
    assert_int_equal(tp_problem_check(&p, NULL), TP_INVALID);
    assert_int_equal(tp_problem_causal(&p), TP_INVALID);
    assert_int_equal(tp_problem_print(&p, NULL, text, sizeof text), TP_INVALID);
    tear_down(&r);
}

/* A newer caller's structs are longer: what lies beyond must be 0, and is 0 in what is filled. */
static void structs_that_are_larger(void **state) {
    (void)state;
    fixture r;
    set_up(&r);
    struct {
        tp_problem it;
        char beyond[64];
    } problem = {.it = r.c->problem};
    struct {
        tp_tensors it;
        char beyond[64];
    } tensors = {.it = r.c->tensors};
    struct {
        tp_exec it;
        char beyond[64];
    } exec = {.it = r.exec};
    struct {
        tp_receipt it;
        char beyond[64];
    } receipt;
    struct {
        tp_choice it;
        char beyond[64];
    } choice = {.it = TP_CHOICE_INIT};
    memset(&receipt, 0x77, sizeof receipt);
    problem.it.struct_size = sizeof problem;
    tensors.it.struct_size = sizeof tensors;
    exec.it.struct_size = sizeof exec;
    receipt.it.struct_size = sizeof receipt;
    choice.it.struct_size = sizeof choice;
    tp_error error = TP_ERROR_INIT;
    tp_plan *plan;
    if (tp_plan_create(r.context, &problem.it, &choice.it, &plan, &error))
        fail_msg("%s", error.text);
    if (tp_plan_run(plan, &tensors.it, &exec.it, &receipt.it, &error)) fail_msg("%s", error.text);
    call_check(r.c, "larger structs");
    for (int i = 0; i < 64; i++) assert_int_equal(receipt.beyond[i], 0);
    memset(receipt.beyond, 0x77, sizeof receipt.beyond);
    if (tp_attention(r.context, &problem.it, &choice.it, &tensors.it, &receipt.it, &error))
        fail_msg("%s", error.text);
    call_check(r.c, "larger structs");
    for (int i = 0; i < 64; i++) assert_int_equal(receipt.beyond[i], 0);
    tp_plan_destroy(plan);
    tear_down(&r);
}

static void tables_end(void **state) {
    (void)state;
    assert_null(tp_kernel_at(-1));
    assert_null(tp_kernel_at(1000));
    assert_null(tp_mask_at(-1));
    assert_null(tp_mask_at(1000));
    assert_null(tp_kernel_function(-1));
    assert_null(tp_kernel_function(100000));
    assert_string_equal(tp_status_name((tp_status)99), "TP_?");
    assert_string_equal(tp_status_name((tp_status)-1), "TP_?");
    assert_string_equal(tp_status_name(TP_FORKED), "TP_FORKED");
    assert_string_equal(tp_status_name(TP_NOT_LOCKED), "TP_NOT_LOCKED");
    assert_string_equal(tp_reason_name((tp_reason_code)0), "reason?");
    assert_string_equal(tp_reason_name((tp_reason_code)99), "reason?");
    assert_string_equal(tp_dtype_name((tp_dtype)0), "dtype?");
    assert_string_equal(tp_mask_at(0)->name, "causal");
    assert_string_equal(tp_mask_at(1)->name, "window");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_workspaces),
        cmocka_unit_test(bad_execs),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(bad_choices_and_problems),
        cmocka_unit_test(bad_receipts_and_errors),
        cmocka_unit_test(null_pointers),
        cmocka_unit_test(structs_that_are_too_small),
        cmocka_unit_test(structs_that_are_larger),
        cmocka_unit_test(tables_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
