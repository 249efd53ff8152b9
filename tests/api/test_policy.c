/* SPDX-License-Identifier: Apache-2.0 */
/* Policies serve and locked: classes, permits, and what the event function hears, request by request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"

#define BEST (call_kernel(0))

/* What the event function saw last, and how often. */
typedef struct heard {
    int events, kind, status, had_receipt, again;
    char problem_class[512], kernel[32], first_reason[32], model[64], request[64];
    int64_t calls_seen; /* counted before the event came */
    tp_context *context;
    call *inner;          /* to be run from inside */
    tp_status inner_status, inner_explain, inner_plan;
} heard;

static void listen(void *user, const tp_event *event) {
    heard *h = user;
    const tp_decision *d = event->decision;
    h->events++;
    h->kind = event->kind;
    h->status = event->status;
    h->had_receipt = event->receipt != NULL;
    strcpy(h->problem_class, d->problem_class);
    strcpy(h->kernel, event->receipt != NULL ? event->receipt->kernel : "none");
    strcpy(h->first_reason, "");
    for (int i = 0; i < d->candidate_count && h->first_reason[0] == '\0'; i++) {
        const tp_reason *why = tp_candidate_reason(tp_decision_candidate(d, i), 0);
        if (why != NULL && why->code != TP_WHY_ISA && why->code != TP_WHY_DTYPE)
            strcpy(h->first_reason, tp_reason_name((tp_reason_code)why->code));
    }
    if (event->receipt != NULL) assert_ptr_equal(event->receipt->decision, d);
    strcpy(h->model, event->tags != NULL && event->tags->model != NULL ? event->tags->model : "");
    strcpy(h->request, event->tags != NULL && event->tags->request != NULL ? event->tags->request : "");
    if (h->inner == NULL) return;
    tp_error error = TP_ERROR_INIT;
    tp_decision *decision;
    tp_plan *plan;
    h->inner_status = tp_attention(h->context, &h->inner->problem, NULL, &h->inner->tensors, NULL, &error);
    h->inner_explain = tp_explain(h->context, &h->inner->problem, NULL, &decision, &error);
    tp_decision_destroy(decision);
    int before = h->events;
    h->inner_plan = tp_plan_create(h->context, &h->inner->problem, NULL, &plan, &error);
    tp_plan_destroy(plan);
    h->again += h->events - before;
}

static tp_context *context_of(int policy, const char *disable, heard *h) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    tp_error error = TP_ERROR_INIT;
    options.threads = 1;
    options.policy = policy;
    options.disable = disable;
    options.event = h != NULL ? listen : NULL;
    options.event_user = h;
    if (tp_context_create(&options, &context, &error)) fail_msg("%s", error.text);
    if (h != NULL) h->context = context;
    return context;
}

static tp_status attend(tp_context *context, call *c) {
    return tp_attention(context, &c->problem, NULL, &c->tensors, NULL, NULL);
}

static void expect_class(const char *text, const char *expected) {
    tp_problem p;
    tp_error error = TP_ERROR_INIT;
    char got[512], small[8];
    if (tp_problem_parse(text, &p, NULL, &error)) fail_msg("%s: %s", text, error.text);
    assert_int_equal(tp_problem_class(&p, got, sizeof got), TP_OK);
    assert_string_equal(got, expected);
    assert_int_equal(tp_problem_class(&p, small, sizeof small), TP_INVALID);
    assert_int_equal(tp_problem_class(&p, got, strlen(expected)), TP_INVALID);
    assert_int_equal(tp_problem_class(&p, got, strlen(expected) + 1), TP_OK);
}

static void a_class_is_the_text_without_lengths(void **state) {
    (void)state;
    expect_class("b2 h32/8 q512 k4096 d128 bf16 causal window=4095,0",
                 "prefill many-rows h32/8 d128 bf16 causal window=4095,0");
    expect_class("b7 h32/8 q512 k600 d128 bf16 causal window=4095,0",
                 "prefill many-rows h32/8 d128 bf16 causal window=4095,0");
    expect_class("q1 k4096 h8/2 d64 f16 causal paged=16", "decode few-rows h8/2 d64 f16 paged=16 causal");
    expect_class("q2 k2 h4/4 d64 f32 causal", "prefill few-rows h4/4 d64 f32 causal");
    expect_class("q16 k64 h16/1 d576/512 bf16 latent", "decode many-rows h16/1 d576/512 bf16 latent");
    expect_class("q1 k4096 h8/2 d64 bf16 invariant", "decode many-rows h8/2 d64 bf16 invariant");
    expect_class("q300 k300 h4/4 d64 bf16->f32 packed scale=0.5 softcap=50 sinks",
                 "prefill many-rows h4/4 d64 bf16->f32 packed scale=0.5 softcap=50 sinks");
    tp_problem bad;
    char text[512];
    tp_problem_init(&bad); /* dims of 0 */
    assert_int_equal(tp_problem_class(&bad, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_problem_class(NULL, text, sizeof text), TP_INVALID);
    assert_int_equal(tp_problem_class(&bad, NULL, 0), TP_INVALID);
}

/* The bucket changes exactly where explain says that the loop does. */
static void buckets_follow_the_loop(void **state) {
    (void)state;
    static const tp_dtype dtypes[] = {TP_F32, TP_F16, TP_BF16};
    for (int t = 0; t < COUNT(dtypes); t++)
        for (int64_t group = 1; group <= 12; group++)
            for (int64_t q = 1; q <= 40; q++) {
                tp_problem p;
                tp_decision *d;
                char text[512];
                tp_problem_init(&p);
                tp_problem_dtype(&p, dtypes[t]);
                p.q_heads = group;
                p.head_dim_qk = p.head_dim_v = 64;
                p.q_len = q;
                p.kv_len = 500;
                assert_int_equal(tp_problem_class(&p, text, sizeof text), TP_OK);
                assert_int_equal(tp_explain(call_context(), &p, NULL, &d, NULL), TP_OK);
                assert_int_equal(strstr(text, " few-rows ") != NULL, d->decode);
                assert_int_equal(strstr(text, " few-rows ") != NULL, q * group <= tp_decode_rows(dtypes[t]));
                assert_string_equal(text, d->problem_class);
                tp_decision_destroy(d);
            }
}

static void serve_tells_of_each_request(void **state) {
    (void)state;
    heard h = {0};
    /* a lower tier, whose plan is cached, where the host has two; otherwise math */
    const char *lower = call_kernel(1) != NULL && call_kernel_info(1)->mr > 0 ? call_kernel(1) : "math";
    tp_context *serve = context_of(TP_SERVE, BEST, &h);
    call *c = call_new("h4/2 q40 k60 d32 bf16 causal", NULL);
    tp_tags tags = TP_TAGS_INIT;
    tags.model = "some/model";
    tags.request = "r-17";
    c->tensors.tags = &tags;
    tp_counters counters = {.struct_size = sizeof counters};
    for (int n = 1; n <= 3; n++) {
        assert_int_equal(attend(serve, c), TP_OK);
        assert_int_equal(h.events, n);
        assert_int_equal(h.kind, TP_EVENT_FALLBACK);
        assert_int_equal(h.status, TP_OK);
        assert_int_equal(h.had_receipt, 1);
        assert_string_equal(h.kernel, lower);
        assert_string_equal(h.first_reason, "disabled");
        assert_string_equal(h.problem_class, "prefill many-rows h4/2 d32 bf16 causal");
        assert_string_equal(h.model, "some/model");
        assert_string_equal(h.request, "r-17");
    }
    tp_context_counters(serve, &counters);
    assert_int_equal(counters.fallbacks, 3);
    if (strcmp(lower, "math") != 0) assert_int_equal(counters.cache_hits, 2);
    call_check(c, "served");
    /* by plan and run: once a run, not at creation */
    tp_plan *plan;
    tp_exec exec = TP_EXEC_INIT;
    assert_int_equal(tp_plan_create(serve, &c->problem, NULL, &plan, NULL), TP_OK);
    assert_int_equal(h.events, 3);
    exec.workspace_size = tp_plan_workspace(plan, 1);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    for (int n = 4; n <= 5; n++) {
        assert_int_equal(tp_plan_run(plan, &c->tensors, &exec, NULL, NULL), TP_OK);
        assert_int_equal(h.events, n);
    }
    free(exec.workspace);
    tp_plan_destroy(plan);
    /* a run that fails is none */
    tp_tensors broken = c->tensors;
    broken.q.data = NULL;
    assert_int_equal(tp_attention(serve, &c->problem, NULL, &broken, NULL, NULL), TP_INVALID);
    assert_int_equal(h.events, 5);
    /* the first tier, and a fallback that is only permitted, are no events */
    tp_choice permit = {sizeof permit, TP_PERMIT, NULL, NULL, NULL, TP_CPU, 0};
    assert_int_equal(tp_attention(serve, &c->problem, &permit, &c->tensors, NULL, NULL), TP_OK);
    heard none = {0};
    tp_context *best = context_of(TP_SERVE, NULL, &none);
    assert_int_equal(attend(best, c), TP_OK);
    assert_int_equal(h.events, 5);
    assert_int_equal(none.events, 0);
    tp_context_destroy(best);
    tp_context_destroy(serve);
    call_free(c);
}

static void refusals_are_events_under_every_policy(void **state) {
    (void)state;
    call *wide = call_new("q9 k12 d600 f32", NULL);
    tp_decision *decision;
    tp_plan *plan;
    heard h = {0};
    tp_context *refuse = context_of(TP_REFUSE, NULL, &h);
    for (int n = 1; n <= 2; n++) {
        assert_int_equal(attend(refuse, wide), TP_FALLBACK_REFUSED);
        assert_int_equal(h.events, n);
    }
    assert_int_equal(h.kind, TP_EVENT_REFUSED);
    assert_int_equal(h.status, TP_FALLBACK_REFUSED);
    assert_int_equal(h.had_receipt, 0);
    assert_string_equal(h.first_reason, "head_dim");
    assert_int_equal(tp_plan_create(refuse, &wide->problem, NULL, &plan, NULL), TP_FALLBACK_REFUSED);
    assert_int_equal(h.events, 3);
    assert_int_equal(tp_explain(refuse, &wide->problem, NULL, &decision, NULL), TP_FALLBACK_REFUSED);
    assert_int_equal(h.events, 3);
    tp_decision_destroy(decision);
    /* what is wrong rather than refused is no event */
    wide->tensors.q.data = NULL;
    assert_int_equal(tp_attention(refuse, &wide->problem, NULL, &wide->tensors, NULL, NULL), TP_FALLBACK_REFUSED);
    assert_int_equal(h.events, 4);
    tp_context_destroy(refuse);
    heard s = {0};
    tp_context *serve = context_of(TP_SERVE, "math", &s);
    assert_int_equal(attend(serve, wide), TP_UNSUPPORTED);
    assert_int_equal(s.events, 1);
    assert_int_equal(s.status, TP_UNSUPPORTED);
    tp_context_destroy(serve);
    call_free(wide);
}

static void permit(tp_context *context, const char *problem_class, const char *kernel) {
    tp_permit one = {problem_class, kernel};
    tp_error error = TP_ERROR_INIT;
    if (tp_context_permit(context, &one, 1, &error)) fail_msg("%s", error.text);
}

static void locked_serves_what_is_permitted(void **state) {
    (void)state;
    heard h = {0};
    tp_context *context = context_of(TP_LOCKED, NULL, &h);
    call *c = call_new("h4/2 q40 k60 d32 bf16 causal", NULL);
    call *few = call_new("h4/2 q3 k60 d32 bf16 causal", NULL);
    call *same = call_new("b3 h4/2 q50 k900 d32 bf16 causal", NULL);
    tp_error error = TP_ERROR_INIT;
    tp_decision *d;
    assert_int_equal(attend(context, c), TP_NOT_LOCKED);
    assert_int_equal(h.events, 1);
    assert_int_equal(h.kind, TP_EVENT_NOT_LOCKED);
    assert_string_equal(h.first_reason, "not_locked");
    assert_int_equal(tp_explain(context, &c->problem, NULL, &d, &error), TP_NOT_LOCKED);
    assert_non_null(strstr(error.text, "not permitted by policy locked"));
    assert_non_null(strstr(d->hint, "update the lock"));
    int best = 0;
    while (strcmp(tp_decision_candidate(d, best)->kernel, BEST) != 0) best++;
    assert_int_equal(tp_candidate_reason(tp_decision_candidate(d, best), 0)->code, TP_WHY_NOT_LOCKED);
    assert_int_equal(tp_candidate_reason(tp_decision_candidate(d, best), 0)->have, 0);
    assert_int_equal(tp_candidate_reason(tp_decision_candidate(d, best), 0)->need, 1);
    permit(context, d->problem_class, BEST);
    tp_decision_destroy(d);
    assert_int_equal(attend(context, c), TP_OK);
    assert_int_equal(attend(context, c), TP_OK);
    assert_int_equal(attend(context, same), TP_OK); /* other lengths and batch: the same class */
    /* the cache rounds lengths up, the permit does not: the other side of the border is refused */
    assert_int_equal(attend(context, few), TP_NOT_LOCKED);
    assert_int_equal(h.events, 2);
    permit(context, "decode few-rows h4/2 d32 bf16 causal", BEST);
    assert_int_equal(attend(context, few), TP_OK);
    assert_int_equal(attend(context, c), TP_OK);
    /* permits taken back: what was cached is refused again */
    assert_int_equal(tp_context_permit(context, NULL, 0, NULL), TP_OK);
    assert_int_equal(attend(context, c), TP_NOT_LOCKED);
    assert_int_equal(attend(context, few), TP_NOT_LOCKED);
    assert_int_equal(h.events, 4);
    tp_context_destroy(context);
    call_free(c);
    call_free(few);
    call_free(same);
}

/* Calls that the cache would round to the same lengths, on both sides of a border of classes; and classes that
   differ in their last word only. */
static void locked_knows_its_borders(void **state) {
    (void)state;
    static const struct {
        const char *permitted, *served, *refused;
    } cases[] = {
        {"decode few-rows h4/2 d32 bf16 causal", "h4/2 q12 k60 d32 bf16 causal", "h4/2 q13 k60 d32 bf16 causal"},
        {"decode many-rows h4/2 d32 bf16 causal", "h4/2 q13 k60 d32 bf16 causal", "h4/2 q12 k60 d32 bf16 causal"},
        {"decode many-rows h4/2 d32 bf16", "h4/2 q16 k60 d32 bf16", "h4/2 q16 k16 d32 bf16"},
        {"prefill many-rows h4/2 d32 bf16", "h4/2 q16 k16 d32 bf16", "h4/2 q16 k60 d32 bf16"},
        {"prefill many-rows h4/2 d64 bf16", "h4/2 q20 k20 d64 bf16", "h4/2 q20 k20 d32 bf16"},
        {"prefill many-rows h4/2 d32 bf16 causal", "h4/2 q20 k20 d32 bf16 causal", "h4/2 q20 k20 d32 bf16"},
        {"prefill many-rows h4/2 d32 bf16", "h4/2 q20 k20 d32 bf16", "h4/2 q20 k20 d32 bf16 causal"},
        {"prefill many-rows h4/2 d32 bf16 scale=0.5", "h4/2 q20 k20 d32 bf16 scale=0.5", "h4/2 q20 k20 d32 bf16 scale=0.25"},
    };
    for (int n = 0; n < COUNT(cases); n++) {
        tp_context *context = context_of(TP_LOCKED, NULL, NULL);
        call *served = call_new(cases[n].served, NULL), *refused = call_new(cases[n].refused, NULL);
        permit(context, cases[n].permitted, BEST);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(attend(context, served), TP_OK);
            assert_int_equal(attend(context, refused), TP_NOT_LOCKED);
        }
        call_free(served);
        call_free(refused);
        tp_context_destroy(context);
    }
}

/* A permit for another kernel than the best: that one serves, as the fallback it is. */
static void locked_may_name_a_fallback(void **state) {
    (void)state;
    heard h = {0};
    tp_context *context = context_of(TP_LOCKED, NULL, &h);
    call *c = call_new("h4/2 q40 k60 d32 bf16 causal", NULL), *wide = call_new("q40 k60 d600 f32", NULL);
    tp_receipt receipt;
    tp_decision *d;
    tp_receipt_init(&receipt);
    permit(context, "prefill many-rows h4/2 d32 bf16 causal", "math");
    permit(context, "prefill many-rows h1/1 d600 f32", "math");
    assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, &receipt, NULL), TP_OK);
    assert_string_equal(receipt.kernel, "math");
    assert_int_equal(receipt.fallback, 1);
    assert_int_equal(h.kind, TP_EVENT_FALLBACK);
    assert_string_equal(h.first_reason, "not_locked");
    assert_int_equal(tp_explain(context, &c->problem, NULL, &d, NULL), TP_OK);
    int best = 0;
    while (strcmp(tp_decision_candidate(d, best)->kernel, BEST) != 0) best++;
    assert_int_equal(tp_candidate_reason(tp_decision_candidate(d, best), 0)->have, 1); /* of its class, but not this kernel */
    tp_decision_destroy(d);
    assert_int_equal(attend(context, wide), TP_OK);
    assert_string_equal(h.first_reason, "head_dim");
    /* nothing would serve: that is said, not the lock */
    tp_choice no_math = {sizeof no_math, TP_LOCKED, "math", NULL, NULL, TP_CPU, 0};
    assert_int_equal(tp_attention(context, &wide->problem, &no_math, &wide->tensors, NULL, NULL), TP_UNSUPPORTED);
    tp_context_destroy(context);
    call_free(c);
    call_free(wide);
}

static void bad_permits(void **state) {
    (void)state;
    tp_context *context = context_of(TP_LOCKED, NULL, NULL);
    static const struct {
        tp_permit permit;
        const char *names;
    } cases[] = {
        {{NULL, "math"}, "problem_class is NULL"},
        {{"decode few-rows h1/1 d64 f32", NULL}, "kernel is NULL"},
        {{"decode few-rows h1/1 d64 f32", "nobody"}, "nobody"},
        {{"decode few-rows h1/1 d64 f32", ""}, "one name"},
        {{"decode few-rows h1/1 d64 f32", "math,generic"}, "one name"},
        {{"decode b1 h1/1 q1 k9 d64 f32", "math"}, "a phase and a bucket"},
        {{"few-rows decode", "math"}, "a phase and a bucket"},
        {{"decode", "math"}, "a phase and a bucket"},
        {{"", "math"}, "a phase and a bucket"},
    };
    tp_error error = TP_ERROR_INIT;
    for (int n = 0; n < COUNT(cases); n++) {
        tp_permit two[2] = {{"prefill many-rows h4/2 d32 bf16 causal", "math"}, cases[n].permit};
        assert_int_equal(tp_context_permit(context, two, 2, &error), TP_INVALID);
        if (strstr(error.text, cases[n].names) == NULL) fail_msg("'%s' lacks %s", error.text, cases[n].names);
        assert_non_null(strstr(error.text, n == 2 ? "names" : "permit 1"));
    }
    assert_int_equal(tp_context_permit(NULL, NULL, 0, &error), TP_INVALID);
    assert_int_equal(tp_context_permit(context, NULL, 1, &error), TP_INVALID);
    assert_int_equal(tp_context_permit(context, &cases[0].permit, -1, &error), TP_INVALID);
    assert_int_equal(tp_context_permit(context, &cases[0].permit, 65537, &error), TP_INVALID);
    /* none of those with a good first permit left it behind */
    call *c = call_new("h4/2 q40 k60 d32 bf16 causal", NULL);
    assert_int_equal(attend(context, c), TP_NOT_LOCKED);
    /* the same permit again and again takes no room */
    for (int n = 0; n < 300; n++) {
        tp_permit many[256];
        for (int i = 0; i < 256; i++) many[i] = (tp_permit){"prefill many-rows h4/2 d32 bf16 causal", "math"};
        assert_int_equal(tp_context_permit(context, many, 256, &error), TP_OK);
    }
    assert_int_equal(attend(context, c), TP_OK);
    call_free(c);
    tp_context_destroy(context);
}

/* From inside the event function: attention is TP_BUSY, questions are answered, and nothing is an event. */
static void an_event_function_cannot_hang_or_loop(void **state) {
    (void)state;
    call *wide = call_new("q9 k12 d600 f32", NULL);
    heard h = {.inner = wide};
    tp_context *context = context_of(TP_REFUSE, NULL, &h);
    assert_int_equal(attend(context, wide), TP_FALLBACK_REFUSED);
    assert_int_equal(h.events, 1);
    assert_int_equal(h.inner_status, TP_BUSY);
    assert_int_equal(h.inner_explain, TP_FALLBACK_REFUSED);
    assert_int_equal(h.inner_plan, TP_FALLBACK_REFUSED);
    assert_int_equal(h.again, 0);
    /* and afterwards everything is as before */
    assert_int_equal(attend(context, wide), TP_FALLBACK_REFUSED);
    assert_int_equal(h.events, 2);
    tp_context_destroy(context);
    call_free(wide);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_class_is_the_text_without_lengths),
        cmocka_unit_test(buckets_follow_the_loop),
        cmocka_unit_test(serve_tells_of_each_request),
        cmocka_unit_test(refusals_are_events_under_every_policy),
        cmocka_unit_test(locked_serves_what_is_permitted),
        cmocka_unit_test(locked_knows_its_borders),
        cmocka_unit_test(locked_may_name_a_fallback),
        cmocka_unit_test(bad_permits),
        cmocka_unit_test(an_event_function_cannot_hang_or_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
