/* SPDX-License-Identifier: Apache-2.0 */
/* tp_context_options.parallel_for: a context without a pool, on threads that its caller has. */
#include <stdio.h>
#include <string.h>

#include "support/back.h"
#include "support/call.h"
#include "support/parallel.h"

static const char *const texts[] = {"b2 h6/3 q300 k300 d40 bf16 causal",
                                    "h10/2 seqs=1x200/260,1x1/4200,1x0/9,3x30/30 d20/12 f32 packed causal"};

static int threads_of_the_process(void) {
    char line[128];
    int count = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Threads: %d", &count) == 1) break;
    if (file != NULL) fclose(file);
    return count;
}

/* A context on the caller's threads: every call is, no pool is made, and what a call itself names comes first. */
static void same_bits_on_a_context_of_the_callers_threads(void **state) {
    (void)state;
    parallel p = {.threads = 2}, other = {0};
    tp_error error = TP_ERROR_INIT;
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    double gflops;
    options.threads = 3;
    options.parallel_for = parallel_threads;
    options.parallel_user = &p;
    int before = threads_of_the_process();
    assert_int_equal(tp_context_create(&options, &context, &error), TP_OK);
    assert_int_equal(threads_of_the_process(), before);
    assert_int_equal(tp_context_threads(context), 3);
    for (int n = 0; n < COUNT(texts); n++) {
        call *one = call_new(texts[n], NULL), *c = call_new(texts[n], NULL);
        tp_choice choice = TP_CHOICE_INIT;
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        choice.policy = TP_PERMIT;
        call_run(one, &(call_how){.kernel = call_kernel(0)}, NULL);
        choice.kernel = call_kernel(0);
        p.calls = 0;
        memset(c->held.buffer[CALL_O].memory, 0xff, c->held.buffer[CALL_O].bytes);
        if (tp_attention(context, &c->problem, &choice, &c->tensors, &receipt, &error)) fail_msg("%s", error.text);
        call_same(one, c, "tp_attention");
        assert_int_equal(receipt.tasks, 3);
        assert_true(p.calls > 0);
        p.calls = 0;
        call_run(
            c,
            &(call_how){
                .kernel = call_kernel(0), .context = context, .threads = 2, .parallel_for = parallel_reverse, .user = &other},
            NULL);
        call_same(one, c, "the call's own");
        assert_int_equal(p.calls, 0);
        call_free(one);
        call_free(c);
    }
    assert_true(other.calls > 0);
    assert_int_equal(tp_measure_fma(context, "generic", 3, &gflops, &error), TP_OK);
    assert_int_equal(p.calls, 1);
    tp_context_destroy(context);
}


static void backward_as_well(void **state) {
    (void)state;
    parallel p = {.threads = 2};
    back *one = back_new("b1 h4/2 q300 k300 d16 f32 causal", 0), *b = back_new("b1 h4/2 q300 k300 d16 f32 causal", 0);
    tp_error error = TP_ERROR_INIT;
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    options.threads = 2;
    options.parallel_for = parallel_threads;
    options.parallel_user = &p;
    assert_int_equal(tp_context_create(&options, &context, &error), TP_OK);
    back_run(one, &(call_how){0}, NULL);
    back_run(b, &(call_how){.context = context, .threads = 2}, NULL);
    assert_true(p.calls > 0);
    back_same(one, b, "threads of the caller");
    back_free(one);
    back_free(b);
    tp_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_on_a_context_of_the_callers_threads),
        cmocka_unit_test(backward_as_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
