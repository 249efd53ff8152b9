/* SPDX-License-Identifier: Apache-2.0 */
/* What decisions and receipts say: figures, receipts of every kernel, and both as text and JSON to a writer that may stop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/explain.h"

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

/* Heads that share one softmax count the panels of each. */
static void panels_of_decoded_heads(void **state) {
    (void)state;
    for (int k = 0; call_kernel(k) != NULL; k++) {
        const tp_kernel_info *info = call_kernel_info(k);
        tp_receipt receipt;
        if (info->max_head_dim == 0) continue;
        call *c = call_new("h12/6 q1 k300 d128 f32", NULL);
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){.kernel = info->name}, &receipt);
        assert_true(receipt.panels_full > 0);
        assert_int_equal((receipt.panels_full + receipt.panels_partial) % 6, 0);
        assert_int_equal(receipt.panels_skipped, 0);
        call_free(c);
    }
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
        cmocka_unit_test(receipts_of_every_kernel),
        cmocka_unit_test(panels_of_decoded_heads),
        cmocka_unit_test(figures_of_a_decision),
        cmocka_unit_test(writing_a_decision),
        cmocka_unit_test(writing_a_receipt),
        cmocka_unit_test(a_receipt_tells_the_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
