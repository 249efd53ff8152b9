/* SPDX-License-Identifier: Apache-2.0 */
/* tp_attention's cache of decisions, and what a context counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"

static tp_context *context_of(int cached_plans) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    options.threads = 1;
    options.cached_plans = cached_plans;
    assert_int_equal(tp_context_create(&options, &context, NULL), TP_OK);
    return context;
}

static tp_counters count(const tp_context *context) {
    tp_counters counters = {.struct_size = sizeof counters};
    assert_int_equal(tp_context_counters(context, &counters), TP_OK);
    return counters;
}

/* Whether this call was planned anew; its output is poisoned before. */
static int planned(tp_context *context, call *c, const tp_choice *choice) {
    tp_receipt receipt;
    tp_error error = TP_ERROR_INIT;
    tp_receipt_init(&receipt);
    for (int i = CALL_O; i <= CALL_LSE; i++) memset(c->held.buffer[i].memory, 0xff, c->held.buffer[i].bytes);
    if (tp_attention(context, &c->problem, choice, &c->tensors, &receipt, &error))
        fail_msg("%s", error.text);
    assert_null(receipt.decision);
    return receipt.planned;
}

static void a_decode_loop_plans_once(void **state) {
    (void)state;
    tp_context *context = context_of(0);
    enum { STEPS = 300 };
    int64_t kv[] = {1, 2, 3, 16, 17, 255, 256, 257, 4095, 4096, 4097, 5000};
    for (int n = 0; n < STEPS; n++) {
        char text[128];
        int64_t keys = n < COUNT(kv) ? kv[n] : n;
        snprintf(text, sizeof text, "h4/2 q1 k%d d8 bf16 causal", (int)keys);
        call *c = call_new(text, NULL), *fresh = call_new(text, NULL);
        assert_int_equal(planned(context, c, NULL), n == 0);
        call_run(fresh, &(call_how){0}, NULL);
        call_same(fresh, c, text);
        call_free(c);
        call_free(fresh);
    }
    tp_counters counters = count(context);
    assert_int_equal(counters.plans, 1);
    assert_int_equal(counters.calls, STEPS);
    assert_int_equal(counters.cache_hits, STEPS - 1);
    assert_int_equal(counters.refusals, 0);
    assert_int_equal(counters.fallbacks, 0);
    tp_context_destroy(context);
}

/* Everything that the answer depends on is part of the key. */
static void different_problems_do_not_collide(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h4/2 q9 k12 d8 f32",
        "h4/2 q9 k12 d8 f32 scale=0.5",
        "h4/2 q9 k12 d8 f32 scale=-0.5",
        "h4/2 q9 k12 d8 f32 scale=0",
        "h4/2 q9 k12 d8 f32 causal",
        "h4/2 q9 k12 d8 f32 causal top-left",
        "h4/2 q9 k12 d8 f32 window=3,-1",
        "h4/2 q9 k12 d8 f32 window=-1,3",
        "h4/2 q9 k12 d8 f32 window=3,0",
        "h4/2 q9 k12 d8 f32 causal window=3,-1",
        "h4/1 q9 k12 d8 f32",
        "h4/4 q9 k12 d8 f32",
        "h8/2 q9 k12 d8 f32",
        "h4/2 q9 k12 d9/8 f32",
        "h4/2 q9 k12 d8/9 f32",
        "h4/2 q9 k12 d8 bf16",
        "h4/2 q9 k12 d8 f16",
        "h4/2 q9 k12 d8 f32->f16",
        "h4/2 q9 k12 d8 bf16:f32:f32->f32",
        "h4/2 q9 k12 d8 f32:bf16:f32->f32",
        "h4/2 q9 k12 d8 f32:f32:bf16->f32",
        "h4/2 seqs=1x9/12,1x3/5 d8 f32 packed",
        "h4/2 seqs=1x9/12,1x3/12 d8 f32 packed-q",
        "h4/2 seqs=1x9/12,1x9/5 d8 f32 packed-kv",
        "h4/2 seqs=1x9/12,1x3/5 d8 f32 padded",
        "b2 h4/2 q9 k12 d8 f32",
        "h4/2 q90 k12 d8 f32",
    };
    tp_context *context = context_of(0);
    for (int round = 0; round < 2; round++)
        for (int n = 0; n < COUNT(texts); n++) {
            call *c = call_new(texts[n], NULL), *fresh = call_new(texts[n], NULL);
            int anew = planned(context, c, NULL);
            if (round == 1) assert_int_equal(anew, 0);
            call_run(fresh, &(call_how){0}, NULL);
            call_same(fresh, c, texts[n]);
            call_check(c, texts[n]);
            call_free(c);
            call_free(fresh);
        }
    tp_context_destroy(context);
}

static void different_choices_do_not_collide(void **state) {
    (void)state;
    tp_context *context = context_of(0);
    call *c = call_new("h4/2 q9 k12 d8 f32", NULL);
    tp_choice choice = {sizeof choice, TP_PERMIT, NULL, NULL, NULL, TP_CPU, 0};
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    for (int round = 0; round < 2; round++)
        for (int k = 0; call_kernel(k) != NULL; k++) {
            choice.kernel = call_kernel(k);
            assert_int_equal(
                tp_attention(context, &c->problem, &choice, &c->tensors, &receipt, NULL), TP_OK);
            assert_string_equal(receipt.kernel, call_kernel(k));
        }
    choice.kernel = NULL;
    choice.disable = call_kernel(0);
    assert_int_equal(tp_attention(context, &c->problem, &choice, &c->tensors, &receipt, NULL),
                     TP_OK);
    assert_string_not_equal(receipt.kernel, call_kernel(0));
    assert_int_equal(receipt.fallback, 1);
    choice.policy = TP_REFUSE;
    assert_int_equal(tp_attention(context, &c->problem, &choice, &c->tensors, &receipt, NULL),
                     TP_FALLBACK_REFUSED);
    /* a name that is none stays refused after the same problem was cached without it */
    tp_choice none = TP_CHOICE_INIT;
    assert_int_equal(tp_attention(context, &c->problem, &none, &c->tensors, NULL, NULL), TP_OK);
    none.kernel = "";
    assert_int_equal(tp_attention(context, &c->problem, &none, &c->tensors, NULL, NULL),
                     TP_INVALID);
    none.kernel = NULL;
    none.disable = ",";
    assert_int_equal(tp_attention(context, &c->problem, &none, &c->tensors, NULL, NULL),
                     TP_INVALID);
    call_free(c);
    tp_context_destroy(context);
}

/* The plan that was used least recently goes, and no other. */
static void the_cache_is_bounded(void **state) {
    (void)state;
    tp_context *context = context_of(2);
    call *a = call_new("q9 k12 d8 f32", NULL), *b = call_new("q9 k12 d9 f32", NULL),
         *c = call_new("q9 k12 d10 f32", NULL);
    const struct {
        call *call;
        int planned;
    } steps[] = {{a, 1}, {b, 1}, {a, 0}, {c, 1}, {a, 0}, {c, 0},
                 {b, 1}, {c, 0}, {a, 1}, {b, 1}, {a, 0}};
    int plans = 0;
    for (int n = 0; n < COUNT(steps); n++) {
        if (planned(context, steps[n].call, NULL) != steps[n].planned)
            fail_msg("step %d must %sbe planned", n, steps[n].planned ? "" : "not ");
        call_check(steps[n].call, "a bounded cache");
        plans += steps[n].planned;
    }
    assert_int_equal(count(context).plans, plans);
    assert_int_equal(count(context).cache_hits, COUNT(steps) - plans);
    for (int d = 1; d <= 40; d++) { /* many more than it holds */
        char text[64];
        snprintf(text, sizeof text, "q3 k5 d%d f32", d);
        call *one = call_new(text, NULL);
        assert_int_equal(planned(context, one, NULL), 1);
        call_check(one, text);
        call_free(one);
    }
    call_free(a);
    call_free(b);
    call_free(c);
    tp_context_destroy(context);
}

/* A cached plan's bounds are wider than the problem's: what the caller named still holds. */
static void bounds_are_the_callers(void **state) {
    (void)state;
    tp_context *context = context_of(0);
    call *c = call_new("b2 q20 k30 d8 f32", NULL);
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(planned(context, c, NULL), 1);
    c->problem.q_len = 19;
    assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, NULL, &error),
                     TP_INVALID);
    assert_non_null(strstr(error.text, "20"));
    c->problem.q_len = 20;
    c->problem.kv_len = 29;
    assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, NULL, &error),
                     TP_INVALID);
    c->problem.kv_len = 30;
    c->problem.batch = 1;
    assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, NULL, &error),
                     TP_INVALID);
    call_free(c);
    tp_context_destroy(context);
}

/* The decision is kept for lengths of a kind; the scratch is that of the call. */
static void the_workspace_is_the_calls_own(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b600 q1 k1 d1 f32 chunk=4",
        "b3 h2 q9 k70 d8 f32 documents",
        "b3 h2 q9 k700 d8 f32 documents",
        "h4/2 q1 k5000 d8 f32",
        "h4/2 q1 k5 d8 f32",
        "b5 h2 q33 k40 d8 f32 bits",
        "h2 q600 k600 d8 f32 causal",
        "h2 q3 k9 d8 f32 sparse=3000",
    };
    tp_context *context = context_of(0);
    for (int round = 0; round < 2; round++)
        for (int n = 0; n < COUNT(texts); n++) {
            call *c = call_new(texts[n], NULL), *fresh = call_new(texts[n], NULL);
            tp_receipt receipt, own;
            tp_receipt_init(&receipt);
            tp_receipt_init(&own);
            assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, &receipt, NULL), TP_OK);
            call_run(fresh, &(call_how){0}, &own);
            if (receipt.workspace_bytes != own.workspace_bytes)
                fail_msg("%s: %lld bytes, and %lld by a plan", texts[n], (long long)receipt.workspace_bytes,
                         (long long)own.workspace_bytes);
            call_same(fresh, c, texts[n]);
            call_free(c);
            call_free(fresh);
        }
    assert_int_equal(count(context).cache_hits, COUNT(texts) + 2); /* one with 700 keys, one with 5 */
    tp_context_destroy(context);
}

static int find_held(void *cookie, const char *bytes, size_t size) {
    char *text = cookie;
    size_t used = strlen(text);
    assert_true(used + size < 1 << 16);
    memcpy(text + used, bytes, size);
    text[used + size] = '\0';
    return 0;
}

static long long held_by(const tp_context *context) {
    static char text[1 << 16];
    static const char name[] = "\ntileproof_workspace_bytes ";
    text[0] = '\0';
    assert_int_equal(tp_metrics_write(context, find_held, text), TP_OK);
    assert_non_null(strstr(text, name));
    return atoll(strstr(text, name) + sizeof name - 1);
}

/* A sequence that grows by a token at a time does not get a new workspace each time; nor is it given back. */
static void the_workspace_grows_by_a_quarter(void **state) {
    (void)state;
    tp_context *context = context_of(0);
    tp_choice math = {sizeof math, TP_PERMIT, NULL, "math", NULL, TP_CPU, 0};
    long long last = 0;
    for (int keys = 64; keys <= 64 * 60; keys += 64) {
        char text[64];
        snprintf(text, sizeof text, "q40 k%d d8 f32", keys);
        call *c = call_new(text, NULL);
        planned(context, c, &math);
        long long held = held_by(context);
        if (held != last && held < last + last / 4) fail_msg("%s: %lld bytes after %lld", text, held, last);
        last = held;
        call_free(c);
    }
    call *c = call_new("q4 k64 d8 f32", NULL);
    planned(context, c, &math);
    assert_int_equal(held_by(context), last);
    call_free(c);
    tp_context_destroy(context);
}

static void counters_tell_what_happened(void **state) {
    (void)state;
    tp_context *context = context_of(0);
    call *c = call_new("h2 q9 k12 d8 f32", NULL), *wide = call_new("q9 k12 d600 f32", NULL);
    tp_choice permit = {sizeof permit, TP_PERMIT, NULL, NULL, NULL, TP_CPU, 0};
    tp_plan *plan;
    tp_decision *decision;
    tp_counters at_first = count(context);
    assert_int_equal(at_first.calls + at_first.plans + at_first.cache_hits + at_first.fallbacks +
                         at_first.refusals,
                     0);
    planned(context, c, NULL);
    planned(context, c, NULL);
    assert_int_equal(count(context).calls, 2);
    assert_int_equal(count(context).plans, 1);
    assert_int_equal(count(context).cache_hits, 1);
    assert_int_equal(tp_attention(context, &wide->problem, NULL, &wide->tensors, NULL, NULL),
                     TP_FALLBACK_REFUSED);
    assert_int_equal(count(context).refusals, 1);
    assert_int_equal(tp_plan_create(context, &wide->problem, NULL, &plan, NULL),
                     TP_FALLBACK_REFUSED);
    assert_null(plan);
    assert_int_equal(count(context).refusals, 2);
    assert_int_equal(count(context).fallbacks, 0);
    int64_t calls = count(context).calls;
    planned(context, wide, &permit);
    assert_int_equal(count(context).fallbacks, 1);
    assert_int_equal(count(context).calls, calls + 1);
    assert_int_equal(count(context).refusals, 2);
    assert_int_equal(tp_plan_create(context, &c->problem, NULL, &plan, NULL), TP_OK);
    assert_int_equal(count(context).plans, 3);
    tp_plan_destroy(plan);
    assert_int_equal(tp_explain(context, &c->problem, NULL, &decision, NULL), TP_OK);
    tp_decision_destroy(decision);
    call_free(c);
    call_free(wide);
    tp_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_decode_loop_plans_once),
        cmocka_unit_test(different_problems_do_not_collide),
        cmocka_unit_test(different_choices_do_not_collide),
        cmocka_unit_test(the_cache_is_bounded),
        cmocka_unit_test(bounds_are_the_callers),
        cmocka_unit_test(the_workspace_is_the_calls_own),
        cmocka_unit_test(the_workspace_grows_by_a_quarter),
        cmocka_unit_test(counters_tell_what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
