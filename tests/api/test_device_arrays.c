/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on a device whose arrays of lengths, pages, positions and mask data the host cannot read. */
#include <stdio.h>
#include <string.h>

#include "support/device_call.h"

static tp_error fresh_error(void) { return (tp_error)TP_ERROR_INIT; }

static void of_lengths_on_the_device_bounds_are_told(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    const char *text = "seqs=1x5/40,1x1/33 h4/2 d32 bf16 packed causal";
    device_call *c = device_call_new(context, text, 1);
    tp_receipt receipt;
    tp_error error = fresh_error();
    tp_receipt_init(&receipt);
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, &receipt, NULL), TP_OK);
    assert_non_null(strstr(receipt.problem, "b2 h4/2 q5 k40 d32 bf16 packed causal"));
    /* an entry that is wrong is found there */
    int32_t *wrong = (int32_t *)(uintptr_t)c->c->tensors.cu_seqlens_q + 1, right = *wrong;
    *wrong = 1000;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, &error), TP_INVALID);
    if (strstr(error.text, "..1000, a length of") == NULL) fail_msg("%s", error.text);
    /* what can be seen without reading is found here */
    tp_tensors t = c->tensors;
    t.cu_seqlens_kv = NULL;
    assert_int_equal(tp_plan_run(c->plan, &t, &c->exec, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "cu_seqlens_kv is NULL"));
    t = c->tensors;
    t.o = t.q;
    assert_int_equal(tp_plan_run(c->plan, &t, &c->exec, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "overlap"));
    tp_exec deep = c->exec;
    deep.flags = TP_EXEC_CHECK_DEEP;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &deep, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "index_device is 7: the deep check"));
    t = device_tensors(&c->c->tensors, 0, NULL);
    assert_int_equal(tp_plan_run(c->plan, &t, &deep, NULL, &error), TP_INVALID); /* the wrong entry, by the host */
    *wrong = right;
    assert_int_equal(tp_plan_run(c->plan, &t, &deep, NULL, &error), TP_OK);
    assert_int_equal(tp_mask_visible(&c->c->problem, &c->tensors, 0, 0, 0, 0), -1);
    device_call_free(c);
    tp_context_destroy(context);
    /* a backend that does not take them */
    device_backend(d)->flags = 0;
    context = device_context(d, NULL);
    c = device_call_new(context, text, 1);
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "index_device is 7: test reads index arrays on the host only"));
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* Every array that a call may have, wrong in its pointer alone: nothing of it is read. */
static void no_array_on_the_device_is_read(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    static const struct {
        const char *text, *field;
        size_t offset;
    } cases[] = {
        {"b2 h4/2 q3 k70 d32 f32 paged=16", "k_pages", offsetof(tp_tensors, k_pages)},
        {"b2 h4/2 q6 k50 d32 f32 sparse-sorted=20", "sparse_indices", offsetof(tp_tensors, sparse_indices)},
        {"b2 h4/2 q20 k30 d32 f32 causal positions", "q_positions", offsetof(tp_tensors, q_positions)},
        {"b2 h4/2 q20 k30 d32 f32 documents", "k_documents", offsetof(tp_tensors, k_documents)},
        {"b2 h4/2 q20 k30 d32 f32 tree", "parents", offsetof(tp_tensors, parents)},
        {"b2 h4/2 q20 k30 d32 f32 bits", "bits", offsetof(tp_tensors, bits)},
        {"b2 h4/2 q20 k30 d32 f32 alibi", "alibi_slopes", offsetof(tp_tensors, alibi_slopes)},
        {"b2 h4/2 q20 k30 d32 f32 sinks", "sinks", offsetof(tp_tensors, sinks)},
        {"b2 h4/2 q20 k30 d32 f32 bias=f32", "bias", offsetof(tp_tensors, bias)},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        tp_error error = fresh_error();
        device_call *c = device_call_new(context, cases[i].text, 1);
        const void **at = (const void **)((char *)&c->tensors + cases[i].offset);
        const void *right = *at;
        *at = NULL;
        assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, &error), TP_INVALID);
        if (strstr(error.text, cases[i].field) == NULL) fail_msg("%s: %s", cases[i].field, error.text);
        *at = right;
        assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, &error), TP_OK);
        device_call_check(c, cases[i].text);
        device_call_free(c);
    }
    tp_context_destroy(context);
    device_free(d);
}

/* Spans as a list: its offsets say how long it is, but not to the host. */
static void listed_spans_on_the_device_are_not_read(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    const char *text = "b2 h4/2 q20 k30 d32 f32 spans";
    static const int32_t offsets[] = {0, 1, 3}, spans[][2] = {{4, 9}, {0, 3}, {10, 30}};
    tp_error error = fresh_error();
    device_call *c = device_call_new(context, text, 1);
    c->tensors.q_spans = c->tensors.k_spans = NULL;
    c->tensors.span_offsets = device_address(offsets);
    c->tensors.spans = device_address(spans);
    if (tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, &error)) fail_msg("%s", error.text);
    call *cpu = call_new(text, NULL);
    cpu->tensors.q_spans = cpu->tensors.k_spans = NULL;
    cpu->tensors.span_offsets = offsets;
    cpu->tensors.spans = spans;
    call_run(cpu, &(call_how){0}, NULL);
    call_same(cpu, c->c, text);
    call_free(cpu);
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_lengths_on_the_device_bounds_are_told),
        cmocka_unit_test(no_array_on_the_device_is_read),
        cmocka_unit_test(listed_spans_on_the_device_are_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
