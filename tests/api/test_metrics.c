/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text: families and labels, histograms of the time of calls, the state of the lock by model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/sink.h"
#include "telemetry/histogram.h"

#define BEST (call_kernel(0))

static void expect_line(const char *text, const char *line) {
    const char *at = strstr(text, line);
    if (at == NULL || (at != text && at[-1] != '\n')) fail_msg("no line '%s' in:\n%s", line, text);
}

static void metrics_are_prometheus_text(void **state) {
    (void)state;
    tp_context *context = call_context_with((tp_context_options){.policy = TP_SERVE});
    call *c = call_new("h4/2 q40 k60 d32 bf16 causal", NULL), *wide = call_new("q1 k60 d600 f32", NULL);
    tp_tags tags = TP_TAGS_INIT;
    sink *s = sink_new();
    char line[256];
    tags.model = "a \"b\" \\c";
    c->tensors.tags = &tags;
    assert_int_equal(call_attend(context, c), TP_OK);
    assert_int_equal(call_attend(context, c), TP_OK);
    assert_int_equal(call_attend(context, wide), TP_OK);
    assert_int_equal(tp_metrics_write(context, collect, s), TP_OK);
    assert_int_equal(s->text[s->used - 1], '\n');
    snprintf(line, sizeof line,
             "tileproof_calls_total{kernel=\"%s\",device=\"cpu\",phase=\"prefill\",dtype=\"bf16\",bucket=\"many-rows\","
             "model=\"a \\\"b\\\" \\\\c\"} 2\n",
             BEST);
    expect_line(s->text, line);
    expect_line(s->text, "tileproof_fallbacks_total{kernel=\"math\",device=\"cpu\",phase=\"decode\",dtype=\"f32\","
                         "bucket=\"few-rows\",reason=\"head_dim\"} 1\n");
    expect_line(s->text, "tileproof_plans_total 2\n");
    expect_line(s->text, "tileproof_plan_cache_hits_total 1\n");
    assert_int_equal(times_in(s->text, "# HELP "), times_in(s->text, "# TYPE "));
    tp_count fast = {.struct_size = sizeof fast};
    for (int64_t at = 0; tp_context_count_next(context, &at, &fast) && strcmp(fast.dtype, "bf16") != 0;) continue;
    snprintf(line, sizeof line,
             "tileproof_call_seconds_total{kernel=\"%s\",device=\"cpu\",phase=\"prefill\",dtype=\"bf16\",bucket=\"many-rows\","
             "model=\"a \\\"b\\\" \\\\c\"} %.9f\n",
             BEST, (double)fast.time_ns / 1e9);
    expect_line(s->text, line);
    sink *stopped = sink_new();
    stopped->stop_at = 3;
    assert_int_equal(tp_metrics_write(context, collect, stopped), TP_INVALID);
    assert_int_equal(stopped->pieces, 3);
    assert_int_equal(tp_metrics_write(NULL, collect, s), TP_INVALID);
    assert_int_equal(tp_metrics_write(context, NULL, s), TP_INVALID);
    free(stopped);
    free(s);
    tp_context_destroy(context);
    call_free(c);
    call_free(wide);
}

static int64_t figure_of(const char *text, const char *line) {
    const char *at = strstr(text, line);
    if (at == NULL) fail_msg("no line '%s' in:\n%s", line, text);
    return strtoll(at + strlen(line), NULL, 10);
}

/* Times at every bound, one beyond it, and at the ends. */
static void a_time_is_within_the_first_bound_that_is_not_below_it(void **state) {
    (void)state;
    tp__histograms *all = tp__histograms_create();
    tp__histogram h;
    const tp__labels decode = {.model = TP__OTHER, .phase = TP__DECODES, .bucket = TP__FEW_ROWS};
    int64_t at = 0, sum = 0;
    assert_int_equal(tp__histograms_next(all, &at, &h), 0);
    for (int b = 0; b < TP__BOUNDS; b++) {
        int64_t bound = INT64_C(1) << (10 + b);
        tp__histograms_add(all, decode, bound);
        tp__histograms_add(all, decode, bound + 1);
        sum += 2 * bound + 1;
    }
    tp__histograms_add(all, decode, 0);
    tp__histograms_add(all, decode, INT64_C(1) << 60);
    at = 0;
    assert_int_equal(tp__histograms_next(all, &at, &h), 1);
    assert_int_equal(h.labels.model, TP__OTHER);
    assert_int_equal(h.labels.phase, TP__DECODES);
    assert_int_equal(h.labels.bucket, TP__FEW_ROWS);
    for (int b = 0; b < TP__BOUNDS; b++) assert_int_equal(h.within[b], 2 * b + 2); /* with the 0 */
    assert_int_equal(h.count, 2 * TP__BOUNDS + 2);
    assert_int_equal(h.sum_ns, sum + (INT64_C(1) << 60));
    assert_int_equal(tp__histograms_next(all, &at, &h), 0);
    /* and each set of labels has a place of its own */
    for (int model = 0; model <= TP__MODELS; model++)
        for (int phase = 0; phase < TP__PHASES; phase++)
            for (int bucket = 0; bucket < TP__BUCKETS; bucket++)
                tp__histograms_add(all, (tp__labels){.model = (uint8_t)model, .phase = (uint8_t)phase, .bucket = (uint8_t)bucket},
                                   1);
    int found = 0;
    for (at = 0; tp__histograms_next(all, &at, &h);) found += h.count == 1 && h.within[0] == 1 && h.sum_ns == 1;
    assert_int_equal(found, (TP__MODELS + 1) * TP__PHASES * TP__BUCKETS);
    tp__histograms_destroy(all);
}

static void calls_are_in_histograms_by_model(void **state) {
    (void)state;
    tp_context *context = call_context_with((tp_context_options){.policy = TP_SERVE});
    call *c = call_new("h4/2 q40 k60 d32 bf16 causal", NULL), *other = call_new("h4/2 q40 k60 d32 f32", NULL);
    call *one = call_new("h4/2 q1 k60 d32 bf16 causal", NULL), *wide = call_new("q1 k60 d600 f32", NULL);
    tp_tags tags = TP_TAGS_INIT;
    tp_choice refuse = TP_CHOICE_INIT;
    sink *s = sink_new();
    char line[256];
    tags.model = "m";
    c->tensors.tags = other->tensors.tags = &tags;
    for (int n = 0; n < 3; n++) assert_int_equal(call_attend(context, c), TP_OK);
    assert_int_equal(call_attend(context, other), TP_OK); /* dtype and kernel are no labels of a histogram */
    assert_int_equal(call_attend(context, one), TP_OK);
    assert_int_equal(call_attend(context, wide), TP_OK); /* a fallback is one call; what was refused is none */
    refuse.kernel = BEST;
    assert_int_equal(tp_attention(context, &wide->problem, &refuse, &wide->tensors, NULL, NULL), TP_UNSUPPORTED);
    assert_int_equal(tp_metrics_write(context, collect, s), TP_OK);
    expect_line(s->text, "# TYPE tileproof_call_seconds histogram\n");
#define LABELS "phase=\"prefill\",bucket=\"many-rows\",model=\"m\""
    expect_line(s->text, "tileproof_call_seconds_bucket{" LABELS ",le=\"+Inf\"} 4\n");
    expect_line(s->text, "tileproof_call_seconds_count{" LABELS "} 4\n");
    expect_line(s->text, "tileproof_call_seconds_bucket{phase=\"decode\",bucket=\"few-rows\",le=\"+Inf\"} 2\n");
    /* bounds double, counts never fall, and the sum is that of the counter */
    int64_t before = 0, sum_ns = 0;
    for (int b = 0; b < TP__BOUNDS; b++) {
        int64_t ns = INT64_C(1024) << b;
        snprintf(line, sizeof line, "tileproof_call_seconds_bucket{" LABELS ",le=\"%.9f\"} ", (double)ns / 1e9);
        int64_t within = figure_of(s->text, line);
        assert_true(within >= before && within <= 4);
        before = within;
    }
    assert_int_equal(times_in(s->text, "tileproof_call_seconds_bucket{" LABELS), TP__BOUNDS + 1);
    tp_count count = {.struct_size = sizeof count};
    for (int64_t at = 0; tp_context_count_next(context, &at, &count);)
        if (strcmp(count.model, "m") == 0) sum_ns += count.time_ns;
    snprintf(line, sizeof line, "tileproof_call_seconds_sum{" LABELS "} %.9f\n", (double)sum_ns / 1e9);
    expect_line(s->text, line);
#undef LABELS
    tp_context_destroy(context);
    free(s);
    call_free(c);
    call_free(other);
    call_free(one);
    call_free(wide);
}

/* More models than there are names for, and one that is called as the rest is: each series stands once. */
static void further_models_are_together(void **state) {
    (void)state;
    tp_context *context = call_context_with((tp_context_options){.policy = TP_SERVE});
    call *c = call_new("h4/2 q1 k9 d8 f32", NULL);
    tp_tags tags = TP_TAGS_INIT;
    tp_lock_state lock = {sizeof lock, TP_LOCK_MATCHES, 0, 0, "other"};
    sink *s = sink_new();
    c->tensors.tags = &tags;
    for (int n = -1; n < 40; n++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", n);
        tags.model = n < 0 ? "other" : name;
        assert_int_equal(call_attend(context, c), TP_OK);
    }
    assert_int_equal(tp_context_lock_state(context, &lock, NULL), TP_OK);
    assert_int_equal(tp_metrics_write(context, collect, s), TP_OK);
    expect_line(s->text, "tileproof_call_seconds_count{phase=\"decode\",bucket=\"few-rows\",model=\"m31\"} 1\n");
    expect_line(s->text, "tileproof_call_seconds_count{phase=\"decode\",bucket=\"few-rows\",model=\"other\"} 9\n");
    assert_null(strstr(s->text, "model=\"m32\""));
    assert_int_equal(times_in(s->text, "\ntileproof_calls_total{"), 33);
    assert_int_equal(times_in(s->text, "\ntileproof_call_seconds_count{"), 33);
    expect_line(s->text, "tileproof_lock_state{model=\"other\",state=\"matches\"} 1\n");
    tp_context_destroy(context);
    free(s);
    call_free(c);
}

static void what_is_not_counted_costs_and_says_nothing(void **state) {
    (void)state;
    sink *s = sink_new(), *trace = sink_new();
    tp_context *context = call_context_with(
        (tp_context_options){.policy = TP_SERVE, .counted = -1, .trace = collect, .trace_cookie = trace});
    call *c = call_new("h4/2 q40 k60 d32 bf16 causal", NULL), *wide = call_new("q1 k60 d600 f32", NULL);
    tp_tags tags = TP_TAGS_INIT;
    tp_counters counters = {.struct_size = sizeof counters};
    tp_count count = {.struct_size = sizeof count};
    int64_t at = 0;
    tags.model = "m";
    c->tensors.tags = &tags;
    assert_int_equal(call_attend(context, c), TP_OK);
    assert_int_equal(call_attend(context, wide), TP_OK);
    assert_int_equal(tp_metrics_write(context, collect, s), TP_OK);
    expect_line(s->text, "# TYPE tileproof_call_seconds histogram\n");
    assert_int_equal(times_in(s->text, "phase="), 0);
    assert_int_equal(tp_context_count_next(context, &at, &count), 0);
    tp_context_counters(context, &counters);
    assert_int_equal(counters.calls, 2);
    assert_int_equal(counters.fallbacks, 1);
    assert_non_null(strstr(trace->text, "\"model\":\"m\"")); /* whoever listens is told as ever */
    tp_context_destroy(context);
    free(s);
    free(trace);
    call_free(c);
    call_free(wide);
}

/* The lines of metrics that speak of the lock, and the word of the trace for a call of this model. */
static const char *lock_lines(tp_context *context, sink *s) {
    s->used = 0;
    assert_int_equal(tp_metrics_write(context, collect, s), TP_OK);
    return s->text;
}

static void expect_trace(tp_context *context, sink *trace, const char *model, const char *word) {
    call *c = call_new("h4/2 q1 k9 d8 f32", NULL);
    tp_tags tags = TP_TAGS_INIT;
    char part[64];
    tags.model = model;
    c->tensors.tags = &tags;
    trace->used = 0;
    assert_int_equal(call_attend(context, c), TP_OK);
    snprintf(part, sizeof part, "\"lock\":\"%s\"", word);
    if (strstr(trace->text, part) == NULL) fail_msg("no %s in %s", part, trace->text);
    call_free(c);
}

static void every_state_of_the_lock_is_told(void **state) {
    (void)state;
    static const struct {
        tp_lock_status status;
        const char *name;
        int loaded, stale;
    } cases[] = {{TP_LOCK_ABSENT, "absent", 0, 0},
                 {TP_LOCK_MATCHES, "matches", 1, 0},
                 {TP_LOCK_STALE, "stale", 1, 1},
                 {TP_LOCK_OTHER_CONFIG, "other-config", 1, 1},
                 {TP_LOCK_UNKNOWN_MODEL, "unknown-model", 1, 1},
                 {TP_LOCK_REFUSED, "refused", 1, 1},
                 {TP_LOCK_UNREADABLE, "unreadable", 0, 1},
                 {TP_LOCK_FAILED, "failed", 1, 1}};
    sink *s = sink_new(), *trace = sink_new();
    tp_context *context = call_context_with((tp_context_options){.trace = collect, .trace_cookie = trace});
    char line[128];
    assert_non_null(strstr(lock_lines(context, s), "\ntileproof_lock_state{state=\"absent\"} 1\n"));
    for (int n = 0; n < COUNT(cases); n++) {
        tp_lock_state lock = {sizeof lock, cases[n].status, 4096, 1700000000, NULL};
        assert_string_equal(tp_lock_status_name(cases[n].status), cases[n].name);
        assert_int_equal(tp_context_lock_state(context, &lock, NULL), TP_OK);
        lock_lines(context, s);
        snprintf(line, sizeof line, "tileproof_lock_loaded %d\n", cases[n].loaded);
        expect_line(s->text, line);
        snprintf(line, sizeof line, "tileproof_lock_stale %d\n", cases[n].stale);
        expect_line(s->text, line);
        expect_line(s->text, "tileproof_lock_scratch_bytes 4096\n");
        expect_line(s->text, "tileproof_canary_last_success_timestamp_seconds 1700000000\n");
        for (int other = 0; other < COUNT(cases); other++) {
            snprintf(line, sizeof line, "tileproof_lock_state{state=\"%s\"} %d\n", cases[other].name, other == n);
            expect_line(s->text, line);
        }
        assert_int_equal(times_in(s->text, "\ntileproof_lock_state{"), COUNT(cases));
        expect_trace(context, trace, NULL, cases[n].name);
    }
    assert_string_equal(tp_lock_status_name((tp_lock_status)COUNT(cases)), "lock?");
    tp_context_destroy(context);
    free(s);
    free(trace);
}

static void each_model_has_its_own_state(void **state) {
    (void)state;
    sink *s = sink_new(), *trace = sink_new();
    tp_context *context = call_context_with((tp_context_options){.trace = collect, .trace_cookie = trace});
    tp_lock_state a = {sizeof a, TP_LOCK_MATCHES, 4096, 0, "a"}, b = {sizeof b, TP_LOCK_OTHER_CONFIG, 0, 0, "b"};
    tp_lock_state all = {sizeof all, TP_LOCK_UNREADABLE, 0, 1700000000, NULL};
    assert_null(strstr(lock_lines(context, s), "\ntileproof_canary_last")); /* nobody said when */
    assert_int_equal(tp_context_lock_state(context, &all, NULL), TP_OK);
    expect_line(lock_lines(context, s), "tileproof_lock_state{state=\"unreadable\"} 1\n");
    assert_int_equal(tp_context_lock_state(context, &a, NULL), TP_OK);
    assert_null(strstr(lock_lines(context, s), "unreadable\"} 1"));
    expect_line(s->text, "tileproof_lock_stale 0\n");
    assert_int_equal(tp_context_lock_state(context, &b, NULL), TP_OK);
    lock_lines(context, s);
    expect_line(s->text, "tileproof_lock_state{model=\"a\",state=\"matches\"} 1\n");
    expect_line(s->text, "tileproof_lock_state{model=\"b\",state=\"matches\"} 0\n");
    expect_line(s->text, "tileproof_lock_state{model=\"b\",state=\"other-config\"} 1\n");
    expect_line(s->text, "tileproof_lock_loaded 1\n");
    expect_line(s->text, "tileproof_lock_stale 1\n"); /* one is enough */
    expect_line(s->text, "tileproof_lock_scratch_bytes 4096\n"); /* what b does not know stays */
    expect_line(s->text, "tileproof_canary_last_success_timestamp_seconds 1700000000\n");
    assert_int_equal(times_in(s->text, "\ntileproof_lock_state{"), 16);
    expect_trace(context, trace, "a", "matches");
    expect_trace(context, trace, "b", "other-config");
    expect_trace(context, trace, "c", "other-config"); /* nobody spoke of c */
    b.status = TP_LOCK_MATCHES;
    assert_int_equal(tp_context_lock_state(context, &b, NULL), TP_OK);
    expect_line(lock_lines(context, s), "tileproof_lock_stale 0\n");
    all.status = TP_LOCK_STALE;
    assert_int_equal(tp_context_lock_state(context, &all, NULL), TP_OK);
    expect_line(lock_lines(context, s), "tileproof_lock_scratch_bytes 0\n");
    assert_null(strstr(s->text, "tileproof_lock_state{model="));
    expect_trace(context, trace, "a", "stale");
    tp_context_destroy(context);
    free(s);
    free(trace);
}

static void bad_states_are_refused(void **state) {
    (void)state;
    static const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123";
    static const struct {
        tp_lock_state state;
        const char *says;
    } cases[] = {{{sizeof(tp_lock_state), 8, 0, 0, NULL}, "lock status is 8: it must be in 0..7"},
                 {{sizeof(tp_lock_state), -1, 0, 0, NULL}, "lock status is -1"},
                 {{sizeof(tp_lock_state), 1, -1, 0, NULL}, "scratch_bytes is -1"},
                 {{sizeof(tp_lock_state), 1, 0, -1, NULL}, "canary_success -1"},
                 {{sizeof(tp_lock_state), 1, 0, 0, ""}, "model is ''"},
                 {{sizeof(tp_lock_state), 1, 0, 0, "a\nb"}, "model is 'a'"},
                 {{sizeof(tp_lock_state), 1, 0, 0, long_name}, "model is '0123"},
                 {{4, 1, 0, 0, NULL}, "tp_lock_state.struct_size is 4"}};
    tp_context *context = call_context_with((tp_context_options){.threads = 1});
    for (int n = 0; n < COUNT(cases); n++) {
        tp_error error = TP_ERROR_INIT;
        assert_int_equal(tp_context_lock_state(context, &cases[n].state, &error), TP_INVALID);
        if (strstr(error.text, cases[n].says) == NULL) fail_msg("'%s' lacks %s", error.text, cases[n].says);
    }
    assert_int_equal(tp_context_lock_state(NULL, &cases[0].state, NULL), TP_INVALID);
    assert_int_equal(tp_context_lock_state(context, NULL, NULL), TP_INVALID);
    sink *s = sink_new();
    assert_non_null(strstr(lock_lines(context, s), "\ntileproof_lock_state{state=\"absent\"} 1\n"));
    free(s);
    tp_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_are_prometheus_text),
        cmocka_unit_test(a_time_is_within_the_first_bound_that_is_not_below_it),
        cmocka_unit_test(calls_are_in_histograms_by_model),
        cmocka_unit_test(further_models_are_together),
        cmocka_unit_test(what_is_not_counted_costs_and_says_nothing),
        cmocka_unit_test(every_state_of_the_lock_is_told),
        cmocka_unit_test(each_model_has_its_own_state),
        cmocka_unit_test(bad_states_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
