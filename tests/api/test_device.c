/* SPDX-License-Identifier: Apache-2.0 */
/* A device behind the same plans: what is chosen and refused, results, receipts, memory, faults, and backends that break a rule. */
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
        if (b->capacity[i].memory != NULL) memset(b->capacity[i].memory, 0xff, b->capacity[i].bytes);
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
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* ---- lengths that the host cannot read */

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

/* ---- memory */

typedef struct meter {
    size_t held;
    int taken, given, fails, crooked;
    char *last;
} meter;

static void *metered(void *user, size_t bytes, size_t alignment) {
    meter *m = user;
    assert_int_equal(alignment, 64);
    assert_int_equal(bytes % 64, 0);
    if (m->fails > 0 && m->fails-- > 0) return NULL;
    m->taken++;
    m->held += bytes;
    m->last = aligned_alloc(64, bytes + 64);
    return m->last + (m->crooked ? 8 : 0);
}

static void unmetered(void *user, void *memory, size_t bytes) {
    meter *m = user;
    m->given++;
    m->held -= bytes;
    free((char *)memory - (m->crooked ? 8 : 0));
}

static void the_context_takes_its_workspace_from_the_allocator(void **state) {
    (void)state;
    meter m = {0};
    tp_allocator allocator = TP_ALLOCATOR_INIT;
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    tp_error error = fresh_error();
    allocator.allocate = metered;
    allocator.user = &m;
    options.threads = 1;
    options.allocator = &allocator;
    assert_int_equal(tp_context_create(&options, &context, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "allocator.release is NULL"));
    allocator.release = unmetered;
    assert_int_equal(tp_context_create(&options, &context, &error), TP_OK);
    memset(&allocator, 0xa5, sizeof allocator); /* copied */
    for (int i = 0; i < 3; i++) {
        char text[64];
        snprintf(text, sizeof text, "h2 q%d k%d d%d f32 causal", 40 << i, 40 << i, 16 << i);
        call *c = call_new(text, NULL), *same = call_new(text, NULL);
        for (int t = CALL_O; t <= CALL_LSE; t++) memset(c->capacity[t].memory, 0xff, c->capacity[t].bytes);
        m.fails = i == 1; /* a quarter more than before is not to be had: exactly as much is */
        if (tp_attention(context, &c->problem, NULL, &c->tensors, NULL, &error)) fail_msg("%s", error.text);
        call_run(same, &(call_how){0}, NULL);
        call_same(same, c, text);
        assert_int_equal(m.taken - m.given, 1);
        call_free(c);
        call_free(same);
    }
    call *large = call_new("h2 q400 k400 d256 f32", NULL);
    m.fails = 2;
    assert_int_equal(tp_attention(context, &large->problem, NULL, &large->tensors, NULL, &error), TP_NO_MEMORY);
    assert_non_null(strstr(error.text, "no memory of device 0 (cpu) for"));
    assert_int_equal(m.held, 0);
    m.crooked = 1;
    assert_int_equal(tp_attention(context, &large->problem, NULL, &large->tensors, NULL, &error), TP_NO_MEMORY);
    assert_non_null(strstr(error.text, "it must be 64-byte aligned"));
    m.crooked = 0;
    assert_int_equal(tp_attention(context, &large->problem, NULL, &large->tensors, NULL, &error), TP_OK);
    call_free(large);
    void *memory;
    assert_int_equal(tp_memory_allocate(context, TP_CPU, 100, &memory, NULL), TP_OK);
    assert_int_equal(tp_memory_free(context, TP_CPU, memory, 100, NULL), TP_OK);
    tp_context_destroy(context);
    assert_int_equal(m.held, 0);
    assert_int_equal(m.taken, m.given);
}

static void memory_goes_there_and_back(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    tp_error error = fresh_error();
    char in[300], out[300] = {0};
    void *one, *other, *host;
    for (int i = 0; i < COUNT(in); i++) in[i] = (char)(i * 7);
    assert_int_equal(tp_memory_allocate(context, DEVICE_NUMBER, sizeof in, &one, NULL), TP_OK);
    assert_int_equal(tp_memory_allocate(context, DEVICE_NUMBER, 0, &other, NULL), TP_OK);
    assert_int_equal(tp_memory_free(context, DEVICE_NUMBER, other, 0, NULL), TP_OK);
    assert_int_equal(tp_memory_allocate(context, DEVICE_NUMBER, sizeof in, &other, NULL), TP_OK);
    assert_int_equal(tp_memory_allocate(context, TP_CPU, sizeof in, &host, NULL), TP_OK);
    assert_int_equal((uintptr_t)host % 64, 0);
    assert_int_equal(tp_memory_copy(context, DEVICE_NUMBER, one, TP_CPU, in, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_copy(context, DEVICE_NUMBER, other, DEVICE_NUMBER, one, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_copy(context, TP_CPU, host, DEVICE_NUMBER, other, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_copy(context, TP_CPU, out, TP_CPU, host, sizeof in, NULL), TP_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(tp_memory_copy(context, TP_CPU, NULL, TP_CPU, NULL, 0, NULL), TP_OK);
    assert_int_equal(tp_memory_copy(context, TP_CPU, NULL, TP_CPU, in, 1, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "to is NULL"));
    assert_int_equal(tp_memory_copy(context, 3, out, TP_CPU, in, 1, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "to_device is 3: it must be TP_CPU (0) or the number of the backend test"));
    void *none = in;
    assert_int_equal(tp_memory_allocate(call_context(), 1, 1, &none, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "because the context has no backend"));
    assert_null(none);
    assert_int_equal(tp_memory_allocate(context, TP_CPU, SIZE_MAX, &none, &error), TP_NO_MEMORY);
    assert_int_equal(tp_memory_allocate(context, TP_CPU, 1, NULL, &error), TP_INVALID);
    assert_int_equal(tp_memory_allocate(NULL, TP_CPU, 1, &none, &error), TP_INVALID);
    assert_int_equal(tp_memory_free(context, TP_CPU, NULL, 0, NULL), TP_OK);
    assert_int_equal(tp_memory_free(NULL, TP_CPU, NULL, 0, NULL), TP_INVALID);
    assert_int_equal(tp_memory_free(context, 9, host, sizeof in, NULL), TP_INVALID);
    device_fail(d, DEVICE_COPY, 1);
    assert_int_equal(tp_memory_copy(context, DEVICE_NUMBER, one, TP_CPU, in, 1, &error), TP_DEVICE_FAILED);
    assert_string_equal(error.text, "test: copy: the bus is gone");
    device_fail(d, DEVICE_ALLOCATE, 1);
    assert_int_equal(tp_memory_allocate(context, DEVICE_NUMBER, 1, &none, &error), TP_NO_MEMORY);
    assert_string_equal(error.text, "test: allocate: out of memory");
    assert_int_equal(tp_memory_free(context, TP_CPU, host, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_free(context, DEVICE_NUMBER, one, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_free(context, DEVICE_NUMBER, other, sizeof in, NULL), TP_OK);
    tp_context_destroy(context);
    device_free(d);
}

/* ---- faults */

/* tp_attention takes memory, prepares, submits and waits: each step fails once, then the same call goes well. */
static void each_step_may_fail_and_nothing_is_lost(void **state) {
    (void)state;
    static const struct {
        device_fault fault;
        int n;
        tp_status status;
        const char *text;
    } cases[] = {
        {DEVICE_PREPARE, 1, TP_DEVICE_FAILED, "test: prepare: line 3: error: undeclared identifier 'tile'"},
        {DEVICE_ALLOCATE, 1, TP_OK, ""}, /* a quarter more is not to be had: exactly as much is */
        {DEVICE_SUBMIT, 1, TP_DEVICE_FAILED, "test: submit: the queue does not take it"},
        {DEVICE_LATE, 1, TP_DEVICE_FAILED, "test: done: the device was lost"},
        {DEVICE_STRANGE, 1, TP_DEVICE_FAILED, "test: done: it failed, without saying why"},
        {DEVICE_IDLE, 1, TP_DEVICE_FAILED, "the device counted 0 tiles, and 4 were planned"},
        {DEVICE_MARK, 1, TP_DEVICE_FAILED, "left its mark on the device"},
    };
    device *d = device_new();
    for (int i = 0; i < COUNT(cases); i++) {
        tp_context *context = device_context(d, NULL);
        device_call *c = device_call_new(context, TEXT, 0);
        tp_choice choice = device_choice();
        tp_error error = fresh_error();
        device_fail(d, cases[i].fault, cases[i].n);
        assert_int_equal(tp_attention(context, &c->c->problem, &choice, &c->tensors, NULL, &error), cases[i].status);
        if (strstr(error.text, cases[i].text) == NULL) fail_msg("%s", error.text);
        device_call_poison(c);
        assert_int_equal(tp_attention(context, &c->c->problem, &choice, &c->tensors, NULL, &error), TP_OK);
        device_call_check(c, TEXT);
        /* a plan of its own */
        device_fail(d, cases[i].fault, cases[i].n);
        tp_plan *plan;
        tp_status made = tp_plan_create(context, &c->c->problem, &choice, &plan, &error);
        assert_int_equal(made, cases[i].fault == DEVICE_PREPARE ? TP_DEVICE_FAILED : TP_OK);
        if (made != TP_OK) assert_null(plan);
        tp_plan_destroy(plan);
        device_fail(d, cases[i].fault, 0);
        device_call_free(c);
        tp_context_destroy(context);
    }
    device_free(d);
}

/* The library counts what the device says of itself; whether numbers are right, the oracle says. */
static void one_wrong_bit_is_seen_by_the_oracle(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0);
    device_fail(d, DEVICE_OUTPUT, 1);
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, NULL), TP_OK);
    tp_row row = {0, 0, 0};
    double o[32], lse, bound, largest = 0;
    assert_int_equal(tp_reference(&c->c->problem, &c->c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, o, &lse, &bound, NULL,
                                  NULL), TP_OK);
    for (int x = 0; x < 32; x++) {
        double off = call_get(c->c, CALL_O, 0, 0, 0, x) - o[x];
        if (!(off <= bound && -off <= bound)) largest = off;
    }
    assert_true(largest != 0);
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* ---- what is given wrong */

static void tensors_of_another_place_are_refused(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0);
    tp_error error = fresh_error();
    tp_choice choice = device_choice();
    tp_exec exec = c->exec;
    /* nothing is begun by any of these */
    assert_int_equal(tp_plan_run(c->plan, &c->c->tensors, &exec, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "device is 0, and device 7 is to compute"));
    tp_tensors t = c->tensors;
    t.index_device = 9;
    assert_int_equal(tp_plan_run(c->plan, &t, &exec, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "index_device is 9: it must be TP_CPU (0) or the tensors' device"));
    assert_int_equal(tp_attention(context, &c->c->problem, NULL, &c->tensors, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "device is 7, and device 0 is to compute (TP_CPU)"));
    exec.workspace_size--;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_WORKSPACE);
    assert_non_null(strstr(error.text, "needs 64 on device 7, test"));
    exec = c->exec;
    exec.workspace = (char *)exec.workspace + 8;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_WORKSPACE);
    exec.workspace = NULL;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_WORKSPACE);
    exec = c->exec;
    exec.flags = 8;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_INVALID);
    assert_int_equal(device_begun(d), 0);
    exec = c->exec;
    exec.queue = &exec; /* a device has queues */
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_OK);
    static const struct {
        int device, reserved;
        const char *strategy, *text;
    } bad[] = {
        {3, 0, NULL, "choice.device is 3: it must be TP_CPU (0) or the number of the backend test"},
        {-1, 0, NULL, "choice.device is -1"},
        {DEVICE_NUMBER, 0, "decode", "strategy is 'decode' on device 7"},
        {DEVICE_NUMBER, 5, NULL, "choice.reserved is 5"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        tp_plan *plan;
        choice.device = bad[i].device;
        choice.reserved = bad[i].reserved;
        choice.strategy = bad[i].strategy;
        assert_int_equal(tp_plan_create(context, &c->c->problem, &choice, &plan, &error), TP_INVALID);
        if (strstr(error.text, bad[i].text) == NULL) fail_msg("%s", error.text);
    }
    choice = device_choice();
    assert_int_equal(tp_attention(call_context(), &c->c->problem, &choice, &c->tensors, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "because the context has no backend"));
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

static const tp_kernel_info *no_kernel(void *user, int index) {
    (void)user, (void)index;
    return NULL;
}
static tp_kernel_info named[9];
static int named_count;
static const tp_kernel_info *named_at(void *user, int index) {
    (void)user;
    return index < named_count ? &named[index] : NULL;
}

static void backends_that_break_a_rule(void **state) {
    (void)state;
    device *d = device_new();
    const tp_backend good = *device_backend(d);
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_backend b;
    options.threads = 1;
    options.backend = &b;
#define BAD(change, words)                                                                  \
    do {                                                                                    \
        tp_context *context = (tp_context *)&b;                                             \
        tp_error error = fresh_error();                                                     \
        b = good;                                                                           \
        change;                                                                             \
        assert_int_equal(tp_context_create(&options, &context, &error), TP_INVALID);        \
        assert_null(context);                                                               \
        if (strstr(error.text, words) == NULL) fail_msg("%s: %s", #change, error.text);     \
    } while (0)
    BAD(b.struct_size = 16, "tp_backend.struct_size is 16");
    BAD(b.device = 0, "backend.device is 0");
    BAD(b.device = 256, "backend.device is 256");
    BAD(b.name = NULL, "backend.name is '(NULL)'");
    BAD(b.name = "cpu", "backend.name is 'cpu'");
    BAD(b.name = "a b", "backend.name is 'a b'");
    BAD(b.name = "", "backend.name is ''");
    BAD(b.name = "a2345678901234567890123456789012", "must be 1..31");
    BAD(b.flags = 2, "backend.flags is 0x2");
    BAD(b.kernel_at = NULL, "backend.kernel_at is NULL");
    BAD(b.serves = NULL, "backend.serves is NULL");
    BAD(b.figures = NULL, "backend.figures is NULL");
    BAD(b.prepare = NULL, "backend.prepare is NULL");
    BAD(b.release_prepared = NULL, "backend.release_prepared is NULL");
    BAD(b.allocate = NULL, "backend.allocate is NULL");
    BAD(b.release = NULL, "backend.release is NULL");
    BAD(b.copy = NULL, "backend.copy is NULL");
    BAD(b.submit = NULL, "backend.submit is NULL");
    BAD(b.kernel_at = no_kernel, "backend test has no kernel");
    for (int i = 0; i < COUNT(named); i++) {
        static char names[9][8];
        snprintf(names[i], sizeof names[i], "k%d", i);
        named[i] = (tp_kernel_info){.struct_size = sizeof named[i], .name = names[i], .strategy = "fused"};
    }
    named_count = 9;
    BAD(b.kernel_at = named_at, "backend test has more than 8 kernels");
    named_count = 2;
    named[1].name = "k0";
    BAD(b.kernel_at = named_at, "kernel 1 of backend test is 'k0': another kernel has that name");
    named[1].name = "math";
    BAD(b.kernel_at = named_at, "kernel 1 of backend test is 'math': another kernel has that name");
    named[1].name = "a,b";
    BAD(b.kernel_at = named_at, "kernel 1 of backend test is 'a,b'");
    named[1].name = "fine";
    named[1].strategy = NULL;
    BAD(b.kernel_at = named_at, "it must have a strategy");
    named[1].struct_size = 4;
    BAD(b.kernel_at = named_at, "tp_kernel_info.struct_size is 4");
    options.disable = "test-fast,nobody";
    BAD(b = good, "disable names 'nobody'");
#undef BAD
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_gives_the_cpus_bits),
        cmocka_unit_test(gradients_are_the_cpus),
        cmocka_unit_test(every_candidate_says_why_not),
        cmocka_unit_test(a_device_that_is_not_there_says_so),
        cmocka_unit_test(a_lock_may_name_a_devices_kernel),
        cmocka_unit_test(receipts_and_telemetry_name_the_device),
        cmocka_unit_test(of_lengths_on_the_device_bounds_are_told),
        cmocka_unit_test(no_array_on_the_device_is_read),
        cmocka_unit_test(the_context_takes_its_workspace_from_the_allocator),
        cmocka_unit_test(memory_goes_there_and_back),
        cmocka_unit_test(each_step_may_fail_and_nothing_is_lost),
        cmocka_unit_test(one_wrong_bit_is_seen_by_the_oracle),
        cmocka_unit_test(tensors_of_another_place_are_refused),
        cmocka_unit_test(backends_that_break_a_rule),
        cmocka_unit_test(fields_that_a_backend_does_not_know_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
