/* SPDX-License-Identifier: Apache-2.0 */
/* A device behind the same plans: results, what is chosen and refused, what is said of its calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/back.h"
#include "support/device_call.h"

#define TEXT "h4/2 q40 k60 d32 bf16 causal"

static tp_error fresh_error(void) { return (tp_error)TP_ERROR_INIT; }

/* ---- results */

static const char *const texts[] = {
    TEXT,
    "h4/2 q1 k300 d64 f16 causal window=100,0",
    "seqs=1x5/40,1x1/33,1x0/7,1x16/16 h4/2 d32 bf16 packed causal",
    "seqs=1x5/40,1x1/33,1x0/7 h4/2 d32 f32 padded",
    "seqs=1x5/40,1x1/33,1x3/70 h4/2 d32 bf16 paged=16 padded causal",
    "b2 h4/1 q3 k70 d40/32 bf16 paged=16 latent",
    "b2 h4/2 q6 k50 d32 f32 sparse-sorted=20 causal",
    "b2 h4/2 q20 k30 d32 f32 causal documents positions",
    "b2 h4/2 q20 k30 d32 f32 spans tree",
    "b2 h4/2 q20 k30 d32 f32 prefix causal bits alibi sinks bias=f32 softcap=20",
};

static void the_device_gives_the_cpus_bits(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    for (int i = 0; i < COUNT(texts); i++)
        for (int index_on_device = 0; index_on_device < 2; index_on_device++) {
            device_call *c = device_call_new(context, texts[i], index_on_device);
            tp_error error = fresh_error();
            tp_receipt receipt;
            tp_receipt_init(&receipt);
            if (tp_plan_run(c->plan, &c->tensors, &c->exec, &receipt, &error)) fail_msg("%s: %s", texts[i], error.text);
            device_call_check(c, texts[i]);
            assert_string_equal(receipt.kernel, "test-fast");
            /* and by the context's own workspace on the device */
            tp_choice choice = device_choice();
            device_call_poison(c);
            if (tp_attention(context, &c->c->problem, &choice, &c->tensors, &receipt, &error))
                fail_msg("%s: %s", texts[i], error.text);
            assert_int_equal(receipt.planned, 1);
            device_call_check(c, texts[i]);
            device_call_free(c);
        }
    tp_context_destroy(context);
    device_free(d);
}

static void gradients_are_the_cpus(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    back *b = back_new("h4/2 q20 k30 d24 f32 causal sinks alibi bias=f32", BACK_D_LSE);
    back *same = back_new("h4/2 q20 k30 d24 f32 causal sinks alibi bias=f32", BACK_D_LSE);
    tp_error error = fresh_error();
    tp_choice choice = device_choice();
    back_run(same, &(call_how){0}, NULL);
    back_run(b, &(call_how){0}, NULL);
    for (int i = BACK_DQ; i <= BACK_DV; i++)
        if (b->rows.buffer[i].memory != NULL) memset(b->rows.buffer[i].memory, 0xff, b->rows.buffer[i].bytes);
    tp_tensors on_host = b->c->tensors;
    tp_gradients gradients;
    on_host.gradients = &b->gradients;
    tp_tensors t = device_tensors(&on_host, 1, &gradients);
    if (tp_backward(context, &b->c->problem, &choice, &t, NULL, &error)) fail_msg("%s", error.text);
    back_same(same, b, "on the device");
    back_free(b);
    back_free(same);
    tp_context_destroy(context);
    device_free(d);
}

/* ---- decisions */

static const tp_reason *reason_of(const tp_decision *decision, const char *kernel, tp_reason_code code) {
    const tp_candidate *c;
    for (int i = 0; (c = tp_decision_candidate(decision, i)) != NULL; i++) {
        const tp_reason *why;
        for (int r = 0; strcmp(c->kernel, kernel) == 0 && (why = tp_candidate_reason(c, r)) != NULL; r++)
            if (why->code == (int)code) return why;
    }
    return NULL;
}

static tp_decision *explain(tp_context *context, const char *text, const tp_choice *choice, tp_status expected) {
    tp_decision *decision = NULL;
    tp_problem problem;
    tp_error error = fresh_error();
    assert_int_equal(tp_problem_parse(text, &problem, NULL, NULL), TP_OK);
    tp_status status = tp_explain(context, &problem, choice, &decision, &error);
    if (status != expected) fail_msg("%s: %s: %s", text, tp_status_name(status), error.text);
    assert_non_null(decision);
    return decision;
}

static const tp_candidate *chosen(const tp_decision *decision) { return tp_decision_candidate(decision, decision->chosen); }

static void every_candidate_says_why_not(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    tp_choice choice = device_choice();
    choice.policy = TP_REFUSE;
    /* the CPU is asked for, by default: the device's are on another one, and everything else is as without a backend */
    tp_decision *decision = explain(context, TEXT, NULL, TP_OK), *alone = explain(call_context(), TEXT, NULL, TP_OK);
    assert_string_equal(decision->device, "cpu");
    assert_string_equal(chosen(decision)->kernel, chosen(alone)->kernel);
    assert_string_equal(decision->numerics_id, alone->numerics_id);
    assert_int_equal(decision->candidate_count, alone->candidate_count + 3);
    const tp_reason *why = reason_of(decision, "test-fast", TP_WHY_DEVICE);
    assert_non_null(why);
    assert_int_equal(why->have, TP_CPU);
    assert_int_equal(why->need, DEVICE_NUMBER);
    assert_string_equal(why->text, "device 0 is asked for, need 7, test");
    /* of its device it is of the first tier: the CPU's kernels make it no lower one */
    for (int i = 0; i < decision->candidate_count; i++)
        if (strcmp(tp_decision_candidate(decision, i)->kernel, "test-fast") == 0)
            assert_int_equal(tp_decision_candidate(decision, i)->tier, TP_TIER_BEST);
    tp_decision_destroy(decision);
    tp_decision_destroy(alone);
    /* the device is asked for */
    decision = explain(context, TEXT, &choice, TP_OK);
    assert_string_equal(decision->device, "test");
    assert_string_equal(chosen(decision)->kernel, "test-fast");
    assert_string_equal(chosen(decision)->device, "test");
    assert_int_equal(chosen(decision)->tier, TP_TIER_BEST);
    assert_int_equal(decision->fallback, 0);
    assert_string_equal(decision->numerics_id, "test/test-fast-1");
    assert_int_equal(decision->workspace_bytes, 64);
    assert_int_equal(decision->chunks, 1);
    why = reason_of(decision, "math", TP_WHY_DEVICE);
    assert_non_null(why);
    assert_int_equal(why->have, DEVICE_NUMBER);
    assert_int_equal(why->need, TP_CPU);
    assert_non_null(reason_of(decision, "test-slow", TP_WHY_NOT_BEST));
    tp_decision_destroy(decision);
    /* a kernel that cannot serve is no better tier than the one that can */
    decision = explain(context, "h4/2 q40 k60 d128 bf16 causal", &choice, TP_OK);
    assert_string_equal(chosen(decision)->kernel, "test-slow");
    assert_int_equal(decision->fallback, 0);
    why = reason_of(decision, "test-fast", TP_WHY_MEMORY);
    assert_non_null(why);
    assert_int_equal(why->have, 16384);
    assert_string_equal(why->text, "needs 28672 bytes of local memory, device gives 16384");
    tp_decision_destroy(decision);
    /* nothing serves: never the CPU instead */
    decision = explain(context, TEXT " dropout=0.1", &choice, TP_UNSUPPORTED);
    assert_non_null(reason_of(decision, "test-fast", TP_WHY_FEATURE));
    assert_non_null(reason_of(decision, call_kernel(0), TP_WHY_DEVICE));
    tp_decision_destroy(decision);
    /* by hand */
    choice.disable = "test-fast";
    decision = explain(context, TEXT, &choice, TP_FALLBACK_REFUSED);
    assert_non_null(reason_of(decision, "test-fast", TP_WHY_DISABLED));
    assert_non_null(reason_of(decision, "test-slow", TP_WHY_POLICY));
    tp_decision_destroy(decision);
    choice.policy = TP_PERMIT;
    choice.kernel = "test-math";
    decision = explain(context, TEXT, &choice, TP_OK);
    assert_int_equal(chosen(decision)->tier, TP_TIER_MATH);
    assert_int_equal(decision->fallback, 1);
    tp_decision_destroy(decision);
    tp_context_destroy(context);
    device_free(d);
}

static void a_device_that_is_not_there_says_so(void **state) {
    (void)state;
    device *d = device_new();
    device_unplug(d);
    tp_context *context = device_context(d, NULL);
    tp_choice choice = device_choice();
    tp_decision *decision = explain(context, TEXT, &choice, TP_UNSUPPORTED);
    const tp_reason *why = reason_of(decision, "test-fast", TP_WHY_ABSENT);
    assert_non_null(why);
    assert_string_equal(why->text, "libtest.so.1 not found");
    tp_decision_destroy(decision);
    tp_problem problem;
    tp_plan *plan;
    tp_error error = fresh_error();
    assert_int_equal(tp_problem_parse(TEXT, &problem, NULL, NULL), TP_OK);
    assert_int_equal(tp_plan_create(context, &problem, &choice, &plan, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "libtest.so.1 not found"));
    tp_context_destroy(context);
    device_free(d);
}

static void a_lock_may_name_a_devices_kernel(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    tp_choice choice = device_choice();
    tp_error error = fresh_error();
    choice.policy = TP_LOCKED;
    tp_decision *decision = explain(context, TEXT, &choice, TP_NOT_LOCKED);
    char of_class[512];
    snprintf(of_class, sizeof of_class, "%s", decision->problem_class);
    tp_decision_destroy(decision);
    tp_permit permit = {of_class, "test-slow"};
    assert_int_equal(tp_context_permit(context, &permit, 1, &error), TP_OK);
    decision = explain(context, TEXT, &choice, TP_OK);
    assert_string_equal(chosen(decision)->kernel, "test-slow");
    tp_decision_destroy(decision);
    choice.device = TP_CPU; /* a permit for the device's kernel is none for the CPU's */
    tp_decision_destroy(explain(context, TEXT, &choice, TP_NOT_LOCKED));
    assert_int_equal(tp_context_permit(call_context(), &permit, 1, &error), TP_INVALID); /* it has no such kernel */
    tp_context_destroy(context);
    device_free(d);
}

/* One problem, one context, one policy: a plan for the CPU is none for the device. */
static void cached_plans_are_of_one_device(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0);
    tp_receipt receipt;
    tp_error error = fresh_error();
    tp_receipt_init(&receipt);
    for (int i = 0; i < 4; i++) {
        tp_choice choice = device_choice();
        choice.device = i % 2 ? DEVICE_NUMBER : TP_CPU;
        if (tp_attention(context, &c->c->problem, &choice, i % 2 ? &c->tensors : &c->c->tensors, &receipt, &error))
            fail_msg("%s", error.text);
        assert_string_equal(receipt.kernel, i % 2 ? "test-fast" : call_kernel(0));
    }
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* Something is asked for by a field that the backend was not compiled with. */
static void fields_that_a_backend_does_not_know_are_refused(void **state) {
    (void)state;
    device *d = device_new();
    tp_error error = fresh_error();
    tp_choice choice = device_choice();
    device_backend(d)->problem_size = offsetof(tp_problem, softcap);
    device_backend(d)->tensors_size = offsetof(tp_tensors, sinks);
    tp_context *context = device_context(d, NULL);
    tp_decision_destroy(explain(context, TEXT, &choice, TP_OK));
    tp_decision *decision = explain(context, TEXT " softcap=20", &choice, TP_UNSUPPORTED);
    const tp_reason *why = reason_of(decision, "test-slow", TP_WHY_FEATURE);
    assert_non_null(why);
    assert_string_equal(why->text, "tp_problem has a field set that is newer than the backend");
    tp_decision_destroy(decision);
    device_call *c = device_call_new(context, TEXT, 0);
    c->tensors.dropout_seed = 0;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, &error), TP_OK);
    c->tensors.dropout_seed = 1;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "tp_tensors has a field set that is newer than the backend test"));
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* ---- what is said of a call */

typedef struct sink {
    char text[1 << 16];
    size_t used;
} sink;

static int collect(void *cookie, const char *bytes, size_t size) {
    sink *s = cookie;
    if (s->used + size >= sizeof s->text) return 1;
    memcpy(s->text + s->used, bytes, size);
    s->text[s->used += size] = '\0';
    return 0;
}

static void has(const sink *s, const char *part) {
    if (strstr(s->text, part) == NULL) fail_msg("'%s' lacks '%s'", s->text, part);
}

typedef struct seen {
    int events;
    char model[64], device[32];
} seen;

static void see(void *user, const tp_event *event) {
    seen *s = user;
    s->events++;
    snprintf(s->model, sizeof s->model, "%s", event->tags != NULL ? event->tags->model : "");
    snprintf(s->device, sizeof s->device, "%s", event->decision->device);
}

static void receipts_and_telemetry_name_the_device(void **state) {
    (void)state;
    sink trace = {.used = 0}, out = {.used = 0};
    seen events = {0};
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    options.trace = collect;
    options.trace_cookie = &trace;
    options.event = see;
    options.event_user = &events;
    device *d = device_new();
    tp_context *context = device_context(d, &options);
    device_call *c = device_call_new(context, TEXT, 0);
    tp_receipt receipt;
    const char *name;
    int64_t calls;
    tp_receipt_init(&receipt);
    char model[] = "small";
    tp_tags tags = {sizeof tags, 3, model, NULL};
    c->tensors.tags = &tags;
    device_hold(d);
    tp_ticket *ticket;
    assert_int_equal(tp_plan_submit(c->plan, &c->tensors, &c->exec, &receipt, &ticket, NULL), TP_OK);
    memset(model, 'x', 5); /* the caller's, from here on */
    device_resume(d);
    assert_int_equal(tp_ticket_wait(ticket, -1, NULL), TP_OK);
    tp_ticket_destroy(ticket);
    assert_string_equal(receipt.device, "test");
    assert_string_equal(receipt.numerics_id, "test/test-fast-1");
    assert_non_null(strstr(receipt.problem, TEXT));
    assert_int_equal(receipt.launches, 3);
    assert_int_equal(receipt.tiles, 4);
    assert_int_equal(receipt.device_ns, 1234);
    assert_int_equal(receipt.workspace_bytes, 64);
    assert_int_equal(receipt.function_count, 2);
    assert_int_equal(tp_receipt_function(&receipt, 0, &name, &calls), 1);
    assert_string_equal(name, "test_attend");
    assert_int_equal(calls, 2);
    /* the same call on the CPU counts the same pairs and needs the same bytes */
    tp_receipt cpu;
    tp_receipt_init(&cpu);
    call_run(c->c, &(call_how){0}, &cpu);
    assert_string_equal(cpu.device, "cpu");
    assert_int_equal(receipt.pairs_visible, cpu.pairs_visible);
    assert_int_equal(receipt.bytes_compulsory, cpu.bytes_compulsory);
    assert_int_equal(tp_receipt_write(&receipt, TP_JSON, collect, &out), TP_OK);
    has(&out, "\"kernel\":\"test-fast\",\"device\":\"test\"");
    has(&out, "\"functions\":{\"test_attend\":2,\"test_merge\":1}");
    has(&out, "\"launches\":3,\"tiles\":4,\"device_ns\":1234");
    out.used = 0;
    assert_int_equal(tp_receipt_write(&receipt, TP_TEXT, collect, &out), TP_OK);
    has(&out, "device           test\n");
    has(&out, "function         test_merge x 1\n");
    out.used = 0;
    assert_int_equal(tp_decision_write(tp_plan_decision(c->plan), TP_TEXT, collect, &out), TP_OK);
    has(&out, "device     test\n");
    has(&trace, "\"kernel\":\"test-fast\",\"device\":\"test\"");
    has(&trace, "\"model\":\"small\",\"layer\":3");
    assert_int_equal(events.events, 0);
    /* on the CPU of the same context */
    assert_int_equal(tp_attention(context, &c->c->problem, NULL, &c->c->tensors, NULL, NULL), TP_OK);
    tp_count count;
    int devices = 0, cpus = 0;
    for (int64_t at = 0; tp_context_count_next(context, &at, &count);) {
        devices += strcmp(count.device, "test") == 0 && strcmp(count.kernel, "test-fast") == 0 && count.count == 1;
        cpus += strcmp(count.device, "cpu") == 0 && strcmp(count.kernel, call_kernel(0)) == 0 && count.count == 1;
    }
    assert_int_equal(devices, 1);
    assert_int_equal(cpus, 1);
    out.used = 0;
    assert_int_equal(tp_metrics_write(context, collect, &out), TP_OK);
    has(&out, "tileproof_calls_total{kernel=\"test-fast\",device=\"test\",phase=\"prefill\"");
    has(&out, "device=\"cpu\"");
    /* a fallback there is an event, and a failure a record */
    tp_choice choice = device_choice();
    choice.policy = TP_SERVE;
    choice.kernel = "test-slow";
    memcpy(model, "small", 5);
    assert_int_equal(tp_attention(context, &c->c->problem, &choice, &c->tensors, NULL, NULL), TP_OK);
    assert_int_equal(events.events, 1);
    assert_string_equal(events.model, "small");
    assert_string_equal(events.device, "test");
    device_fail(d, DEVICE_LATE, 1);
    assert_int_equal(tp_attention(context, &c->c->problem, &choice, &c->tensors, NULL, NULL), TP_DEVICE_FAILED);
    out.used = 0;
    assert_int_equal(tp_recorder_write(context, collect, &out), TP_OK);
    has(&out, "\"status\":\"TP_DEVICE_FAILED\",\"kernel\":\"none\",\"device\":\"test\"");
    has(&out, "{\"kernel\":\"test-fast\",\"code\":\"not_asked\"}");
    /* of a refusal the reason that counts is the device's own, not that others are on another one */
    c->c->problem.dropout = 0.1f;
    assert_int_equal(tp_attention(context, &c->c->problem, &choice, &c->tensors, NULL, NULL), TP_UNSUPPORTED);
    out.used = 0;
    assert_int_equal(tp_metrics_write(context, collect, &out), TP_OK);
    has(&out, "reason=\"feature\"");
    if (strstr(out.text, "reason=\"device\"") != NULL) fail_msg("%s", out.text);
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* Keys that no row sees need not be read. */
static void bytes_are_those_of_keys_that_are_seen(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    static const char *const some[] = {"h4/2 q1 k300 d64 f16 causal window=100,0", "h4/2 q20 k300 d32 f32 top-left causal"};
    for (int i = 0; i < COUNT(some); i++) {
        device_call *c = device_call_new(context, some[i], 0);
        tp_receipt receipt, cpu;
        tp_receipt_init(&receipt);
        tp_receipt_init(&cpu);
        assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, &receipt, NULL), TP_OK);
        call_run(c->c, &(call_how){0}, &cpu);
        assert_int_equal(receipt.bytes_compulsory, cpu.bytes_compulsory);
        device_call_free(c);
    }
    tp_context_destroy(context);
    device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_plans_are_of_one_device),
        cmocka_unit_test(bytes_are_those_of_keys_that_are_seen),
        cmocka_unit_test(the_device_gives_the_cpus_bits),
        cmocka_unit_test(gradients_are_the_cpus),
        cmocka_unit_test(every_candidate_says_why_not),
        cmocka_unit_test(a_device_that_is_not_there_says_so),
        cmocka_unit_test(a_lock_may_name_a_devices_kernel),
        cmocka_unit_test(fields_that_a_backend_does_not_know_are_refused),
        cmocka_unit_test(receipts_and_telemetry_name_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
