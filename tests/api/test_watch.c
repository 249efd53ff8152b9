/* SPDX-License-Identifier: Apache-2.0 */
/* What a context says of its calls: counts by label, Prometheus text, trace, flight recorder, tags. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/sink.h"

#define BEST (call_kernel(0))

/* The sum over cells with these labels; NULL: any. */
static tp_count sum(const tp_context *context, int kind, const char *kernel, const char *phase,
                    const char *bucket, const char *dtype, const char *model) {
    tp_count one = {.struct_size = sizeof one}, all = {0};
    for (int64_t at = 0; tp_context_count_next(context, &at, &one);) {
        if (one.kind != kind || (kernel && strcmp(kernel, one.kernel)) || (phase && strcmp(phase, one.phase)) ||
            (bucket && strcmp(bucket, one.bucket)) || (dtype && strcmp(dtype, one.dtype)) ||
            (model && strcmp(model, one.model)))
            continue;
        all.count += one.count;
        all.time_ns += one.time_ns;
        all.bytes_model += one.bytes_model;
        if (one.workspace_max > all.workspace_max) all.workspace_max = one.workspace_max;
    }
    return all;
}

static void calls_are_counted_by_label(void **state) {
    (void)state;
    tp_context *context = call_context_with((tp_context_options){.policy = TP_REFUSE});
    static const struct {
        const char *text, *phase, *bucket, *dtype;
    } cases[] = {
        {"h4/2 q40 k60 d32 bf16 causal", "prefill", "many-rows", "bf16"},
        {"h4/2 q1 k60 d32 bf16 causal", "decode", "few-rows", "bf16"},
        {"h4/2 q2 k2 d32 f32", "prefill", "few-rows", "f32"},
        {"h40/1 q1 k60 d32 f16", "decode", "many-rows", "f16"},
        {"h4/2 seqs=1x40/60,3x1/70 d32 bf16 packed causal", "mixed", "mixed", "bf16"},
        {"h4/2 seqs=1x4/60,3x1/70 d32 f16:bf16:bf16->f16 packed causal", "decode", "few-rows", "bf16"},
        {"h4/2 seqs=1x40/40,1x50/90 d32 f16 padded causal", "prefill", "many-rows", "f16"},
    };
    for (int n = 0; n < COUNT(cases); n++) {
        call *c = call_new(cases[n].text, NULL);
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        tp_count before = sum(context, TP_COUNT_CALLS, BEST, cases[n].phase, cases[n].bucket, cases[n].dtype, "");
        assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, &receipt, NULL), TP_OK);
        assert_int_equal(call_attend(context, c), TP_OK); /* without a receipt as well */
        tp_count after = sum(context, TP_COUNT_CALLS, BEST, cases[n].phase, cases[n].bucket, cases[n].dtype, "");
        if (after.count != before.count + 2)
            fail_msg("%s: not counted as %s %s %s", cases[n].text, cases[n].phase, cases[n].bucket,
                     cases[n].dtype);
        assert_int_equal(after.bytes_model, before.bytes_model + 2 * receipt.bytes_model);
        assert_true(after.workspace_max >= receipt.workspace_bytes);
        assert_true(after.time_ns > before.time_ns);
        call_free(c);
    }
    assert_int_equal(sum(context, TP_COUNT_CALLS, NULL, NULL, NULL, NULL, NULL).count, 2 * COUNT(cases));
    /* the most workspace of any call, not of the last */
    static const char *const sizes[] = {"h4/2 q20 k20 d32 f32", "h4/2 q600 k600 d32 f32", "h4/2 q20 k20 d32 f32"};
    int64_t max[3];
    for (int n = 0; n < 3; n++) {
        call *c = call_new(sizes[n], NULL);
        assert_int_equal(call_attend(context, c), TP_OK);
        max[n] = sum(context, TP_COUNT_CALLS, BEST, "prefill", "many-rows", "f32", "").workspace_max;
        call_free(c);
    }
    assert_true(max[1] > max[0]);
    assert_int_equal(max[2], max[1]);
    /* a run that failed is no call */
    call *broken = call_new(sizes[0], NULL);
    broken->tensors.q.data = NULL;
    assert_int_equal(call_attend(context, broken), TP_INVALID);
    call_free(broken);
    assert_int_equal(sum(context, TP_COUNT_CALLS, NULL, NULL, NULL, NULL, NULL).count, 2 * COUNT(cases) + 3);
    assert_int_equal(sum(context, TP_COUNT_FALLBACKS, NULL, NULL, NULL, NULL, NULL).count, 0);
    assert_int_equal(sum(context, TP_COUNT_REFUSALS, NULL, NULL, NULL, NULL, NULL).count, 0);
    tp_count one;
    int64_t at = 0;
    assert_int_equal(tp_context_count_next_sized(context, &at, &one, sizeof one - 1), 0);
    assert_int_equal(tp_context_count_next(NULL, &at, &one), 0);
    at = -1;
    assert_int_equal(tp_context_count_next(context, &at, &one), 0);
    tp_context_destroy(context);
}

static void fallbacks_and_refusals_are_counted_with_reasons(void **state) {
    (void)state;
    call *wide = call_new("q40 k60 d600 f32", NULL);
    tp_context *refuse = call_context_with((tp_context_options){.policy = TP_REFUSE});
    tp_context *permit = call_context_with((tp_context_options){.policy = TP_PERMIT});
    tp_tags tags = TP_TAGS_INIT;
    tp_count one = {.struct_size = sizeof one};
    int64_t at = 0;
    tags.model = "m";
    wide->tensors.tags = &tags;
    for (int n = 0; n < 3; n++) {
        assert_int_equal(call_attend(refuse, wide), TP_FALLBACK_REFUSED);
        assert_int_equal(call_attend(permit, wide), TP_OK);
    }
    assert_int_equal(tp_context_count_next(refuse, &at, &one), 1);
    assert_int_equal(one.kind, TP_COUNT_REFUSALS);
    assert_int_equal(one.count, 3);
    assert_string_equal(one.kernel, "none");
    assert_string_equal(one.reason, "head_dim");
    assert_string_equal(one.model, "m");
    assert_int_equal(tp_context_count_next(refuse, &at, &one), 0);
    assert_int_equal(sum(permit, TP_COUNT_CALLS, "math", "prefill", "many-rows", "f32", "m").count, 3);
    assert_int_equal(sum(permit, TP_COUNT_FALLBACKS, "math", "prefill", "many-rows", "f32", "m").count, 3);
    tp_context_destroy(refuse);
    tp_context_destroy(permit);
    call_free(wide);
}

/* 32 models by name, the rest as "other"; 1,024 sets of labels, the rest as "other"; the sums are right. */
static void counts_are_bounded(void **state) {
    (void)state;
    tp_context *context = call_context_with((tp_context_options){.policy = TP_PERMIT});
    call *c[] = {call_new("h2 q20 k20 d8 f32", NULL), call_new("h2 q1 k20 d8 f16", NULL),
                 call_new("h40/1 q1 k20 d8 bf16", NULL)};
    tp_tags tags = TP_TAGS_INIT;
    char name[16];
    tags.model = name;
    for (int n = 0; n < 40; n++) {
        snprintf(name, sizeof name, "model-%d", n);
        for (int i = 0; i < COUNT(c); i++) {
            c[i]->tensors.tags = &tags;
            assert_int_equal(call_attend(context, c[i]), TP_OK);
        }
    }
    assert_int_equal(sum(context, TP_COUNT_CALLS, NULL, NULL, NULL, NULL, "model-31").count, COUNT(c));
    assert_int_equal(sum(context, TP_COUNT_CALLS, NULL, NULL, NULL, NULL, "model-32").count, 0);
    assert_int_equal(sum(context, TP_COUNT_CALLS, NULL, NULL, NULL, NULL, "other").count, 8 * COUNT(c));
    /* every kernel, with its fallbacks, for every model: more than there are cells */
    int64_t runs = 0;
    tp_choice choice = {sizeof choice, TP_PERMIT, NULL, NULL, NULL, TP_CPU, 0};
    static const char *const shapes[] = {"q20 k20", "q1 k20", "q3 k3", "q1 k20 invariant"};
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    for (int s = 0; s < COUNT(shapes); s++)
        for (int t = 0; t < COUNT(dtypes); t++) {
            char text[96];
            snprintf(text, sizeof text, "h2 %s d8 %s", shapes[s], dtypes[t]);
            call *one = call_new(text, NULL);
            one->tensors.tags = &tags;
            for (int k = 0; call_kernel(k) != NULL; k++)
                for (int n = 0; n < 32; n++, runs++) {
                    choice.kernel = call_kernel(k);
                    snprintf(name, sizeof name, "model-%d", n);
                    assert_int_equal(
                        tp_attention(context, &one->problem, &choice, &one->tensors, NULL, NULL), TP_OK);
                }
            call_free(one);
        }
    int64_t cells = 0, at = 0;
    for (tp_count one = {.struct_size = sizeof one}; tp_context_count_next(context, &at, &one);) cells++;
    assert_true(cells <= 1024 + 3);
    assert_int_equal(sum(context, TP_COUNT_CALLS, NULL, NULL, NULL, NULL, NULL).count, runs + 40 * COUNT(c));
    if (call_kernel(3) != NULL) /* three fused kernels and math: beyond the table */
        assert_true(sum(context, TP_COUNT_CALLS, "other", "other", "other", "other", "other").count > 0);
    tp_counters counters = {.struct_size = sizeof counters};
    tp_context_counters(context, &counters);
    assert_int_equal(sum(context, TP_COUNT_FALLBACKS, NULL, NULL, NULL, NULL, NULL).count, counters.fallbacks);
    for (int i = 0; i < COUNT(c); i++) call_free(c[i]);
    tp_context_destroy(context);
}

static void a_trace_has_one_line_a_call(void **state) {
    (void)state;
    sink *s = sink_new();
    tp_context *context =
        call_context_with((tp_context_options){.policy = TP_REFUSE, .trace = collect, .trace_cookie = s});
    call *c = call_new("h4/2 q40 k60 d32 bf16 causal", NULL), *wide = call_new("q1 k60 d600 f32", NULL);
    tp_lock_state lock = {sizeof lock, TP_LOCK_MATCHES, 0, 0, NULL};
    tp_tags tags = {sizeof tags, 7, "org/m", "req \"1\""};
    char kernel[64];
    assert_int_equal(call_attend(context, c), TP_OK);
    assert_int_equal(lines_of(s->text), 1);
    assert_int_equal(s->pieces, 1);
    snprintf(kernel, sizeof kernel, "\"kernel\":\"%s\"", BEST);
    assert_non_null(strstr(s->text, kernel));
    assert_non_null(strstr(s->text, "\"problem\":\"prefill b1 h4/2 q40 k60 d32 bf16 causal\""));
    assert_non_null(strstr(s->text, "\"class\":\"prefill many-rows h4/2 d32 bf16 causal\""));
    assert_non_null(strstr(s->text, "\"lock\":\"absent\""));
    assert_non_null(strstr(s->text, "\"planned\":true"));
    assert_null(strstr(s->text, "\"model\""));
    assert_null(strstr(s->text, "not_best"));
    s->used = 0;
    tp_context_lock_state(context, &lock, NULL);
    c->tensors.tags = &tags;
    assert_int_equal(call_attend(context, c), TP_OK);
    assert_non_null(strstr(s->text, "\"lock\":\"matches\""));
    assert_non_null(strstr(s->text, "\"planned\":false"));
    assert_non_null(strstr(s->text, "\"model\":\"org/m\",\"layer\":7,\"request\":\"req \\\"1\\\"\""));
    /* a refused call has its line too, with all reasons */
    s->used = 0;
    assert_int_equal(call_attend(context, wide), TP_FALLBACK_REFUSED);
    assert_int_equal(lines_of(s->text), 1);
    assert_non_null(strstr(s->text, "\"status\":\"TP_FALLBACK_REFUSED\",\"kernel\":\"none\""));
    assert_non_null(strstr(s->text, "\"code\":\"head_dim\",\"have\":600,\"need\":576"));
    assert_non_null(strstr(s->text, "{\"kernel\":\"math\",\"code\":\"policy\""));
    /* and a call that was wrong */
    s->used = 0;
    tp_tensors broken = c->tensors;
    broken.q.data = NULL;
    assert_int_equal(tp_attention(context, &c->problem, NULL, &broken, NULL, NULL), TP_INVALID);
    assert_non_null(strstr(s->text, "\"status\":\"TP_INVALID\""));
    assert_int_equal(sum(context, TP_COUNT_CALLS, NULL, NULL, NULL, NULL, NULL).count, 2);
    /* a sink that has enough gets no more, and calls go on */
    s->stop_at = s->pieces + 1;
    for (int n = 0; n < 3; n++) assert_int_equal(call_attend(context, c), TP_OK);
    assert_int_equal(s->pieces, s->stop_at);
    free(s);
    tp_context_destroy(context);
    call_free(c);
    call_free(wide);
}

static void the_recorder_keeps_the_last_decisions(void **state) {
    (void)state;
    sink *dumped = sink_new(), *s = sink_new();
    tp_context *context = call_context_with((tp_context_options){
        .policy = TP_REFUSE, .recorded = 4, .dump = collect, .dump_cookie = dumped});
    call *wide = call_new("q1 k60 d600 f32", NULL);
    char text[64], part[64];
    tp_tags tags = TP_TAGS_INIT;
    for (int n = 0; n < 9; n++) {
        snprintf(text, sizeof text, "h4/2 q%d k60 d32 bf16 causal", 40 + n);
        snprintf(part, sizeof part, "r%d", n);
        call *c = call_new(text, NULL);
        tags.request = part;
        c->tensors.tags = &tags;
        assert_int_equal(call_attend(context, c), TP_OK);
        call_free(c);
    }
    assert_int_equal(tp_recorder_write(context, collect, s), TP_OK);
    assert_int_equal(lines_of(s->text), 4);
    assert_null(strstr(s->text, "\"r4\""));
    for (int n = 5; n < 8; n++) { /* oldest first */
        char one[8], next[8];
        snprintf(one, sizeof one, "\"r%d\"", n);
        snprintf(next, sizeof next, "\"r%d\"", n + 1);
        assert_non_null(strstr(s->text, one));
        assert_true(strstr(s->text, one) < strstr(s->text, next));
    }
    assert_non_null(strstr(s->text, "q48 k60"));
    assert_int_equal(dumped->used, 0);
    /* an error dumps what there is, and the next one only what is new */
    assert_int_equal(call_attend(context, wide), TP_FALLBACK_REFUSED);
    assert_int_equal(lines_of(dumped->text), 4);
    assert_non_null(strstr(dumped->text, "\"r8\""));
    assert_non_null(strstr(dumped->text, "\"code\":\"head_dim\""));
    dumped->used = 0;
    assert_int_equal(call_attend(context, wide), TP_FALLBACK_REFUSED);
    assert_int_equal(lines_of(dumped->text), 1);
    s->used = 0; /* on request everything that is kept comes again */
    assert_int_equal(tp_recorder_write(context, collect, s), TP_OK);
    assert_int_equal(lines_of(s->text), 4);
    sink *stopped = sink_new();
    stopped->stop_at = 2;
    assert_int_equal(tp_recorder_write(context, collect, stopped), TP_INVALID);
    assert_int_equal(stopped->pieces, 2);
    assert_int_equal(tp_recorder_write(NULL, collect, s), TP_INVALID);
    assert_int_equal(tp_recorder_write(context, NULL, s), TP_INVALID);
    tp_context_destroy(context);
    /* what went well is not dumped, whoever else watches */
    context = call_context_with((tp_context_options){
        .trace = collect, .trace_cookie = s, .dump = collect, .dump_cookie = dumped});
    call *fine = call_new("h4/2 q40 k60 d32 bf16 causal", NULL);
    dumped->used = 0;
    assert_int_equal(call_attend(context, fine), TP_OK);
    assert_int_equal(dumped->used, 0);
    assert_int_equal(call_attend(context, wide), TP_FALLBACK_REFUSED);
    assert_int_equal(lines_of(dumped->text), 2);
    call_free(fine);
    tp_context_destroy(context);
    context = call_context_with((tp_context_options){.recorded = -1});
    s->used = 0;
    s->text[0] = '\0';
    assert_int_equal(call_attend(context, wide), TP_FALLBACK_REFUSED);
    assert_int_equal(tp_recorder_write(context, collect, s), TP_OK);
    assert_int_equal(s->used, 0);
    tp_context_destroy(context);
    free(stopped);
    free(s);
    free(dumped);
    call_free(wide);
}

static void bad_tags_are_refused(void **state) {
    (void)state;
    call *c = call_new("h2 q9 k9 d8 f32", NULL);
    static const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123";
    static const struct {
        tp_tags tags;
        const char *names;
    } cases[] = {
        {{sizeof(tp_tags) - 1, -1, NULL, NULL}, "tp_tags.struct_size"},
        {{sizeof(tp_tags), -2, NULL, NULL}, "tags.layer is -2"},
        {{sizeof(tp_tags), -1, "", NULL}, "tags.model"},
        {{sizeof(tp_tags), -1, long_name, NULL}, "tags.model"},
        {{sizeof(tp_tags), -1, NULL, long_name}, "tags.request"},
        {{sizeof(tp_tags), -1, "a\nb", NULL}, "printable"},
        {{sizeof(tp_tags), -1, NULL, "\xff"}, "printable"},
    };
    for (int n = 0; n < COUNT(cases); n++) {
        tp_error error = TP_ERROR_INIT;
        c->tensors.tags = &cases[n].tags;
        assert_int_equal(tp_attention(call_context(), &c->problem, NULL, &c->tensors, NULL, &error), TP_INVALID);
        if (strstr(error.text, cases[n].names) == NULL) fail_msg("'%s' lacks %s", error.text, cases[n].names);
    }
    tp_tags good = {sizeof good, 0, long_name + 1, long_name + 1};
    c->tensors.tags = &good;
    assert_int_equal(call_attend(call_context(), c), TP_OK);
    call_free(c);
}

enum { THREADS = 4, RUNS = 200 };
static atomic_int traced;

static int count_line(void *cookie, const char *bytes, size_t size) {
    (void)cookie;
    if (size > 0 && bytes[size - 1] == '\n') atomic_fetch_add(&traced, 1);
    return 0;
}

typedef struct runner {
    const tp_plan *plan;
    call *c;
    char name[16];
} runner;

static void *run_many(void *argument) {
    runner *r = argument;
    tp_exec exec = TP_EXEC_INIT;
    tp_tags tags = TP_TAGS_INIT;
    tags.model = r->name;
    r->c->tensors.tags = &tags;
    exec.workspace_size = tp_plan_workspace(r->plan, 1);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    exec.threads = 1;
    for (int n = 0; n < RUNS; n++)
        if (tp_plan_run(r->plan, &r->c->tensors, &exec, NULL, NULL) != TP_OK) return r;
    free(exec.workspace);
    return NULL;
}

static void many_threads_are_counted_right(void **state) {
    (void)state;
    tp_context *context = call_context_with((tp_context_options){.trace = count_line, .recorded = 8});
    pthread_t thread[THREADS];
    runner runners[THREADS];
    tp_plan *plan;
    sink *s = sink_new();
    for (int i = 0; i < THREADS; i++) {
        runners[i].c = call_new("h4/2 q20 k20 d8 f32", NULL);
        snprintf(runners[i].name, sizeof runners[i].name, "m%d", i % 2);
    }
    assert_int_equal(tp_plan_create(context, &runners[0].c->problem, NULL, &plan, NULL), TP_OK);
    for (int i = 0; i < THREADS; i++) {
        runners[i].plan = plan;
        pthread_create(&thread[i], NULL, run_many, &runners[i]);
    }
    for (int n = 0; n < 20; n++) { /* reading meanwhile */
        s->used = 0;
        assert_int_equal(tp_metrics_write(context, collect, s), TP_OK);
        s->used = 0;
        assert_int_equal(tp_recorder_write(context, collect, s), TP_OK);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
        call_free(runners[i].c);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(sum(context, TP_COUNT_CALLS, NULL, NULL, NULL, NULL, runners[i].name).count,
                         THREADS / 2 * RUNS);
    assert_int_equal(atomic_load(&traced), THREADS * RUNS);
    free(s);
    tp_plan_destroy(plan);
    tp_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_counted_by_label),
        cmocka_unit_test(fallbacks_and_refusals_are_counted_with_reasons),
        cmocka_unit_test(counts_are_bounded),
        cmocka_unit_test(a_trace_has_one_line_a_call),
        cmocka_unit_test(the_recorder_keeps_the_last_decisions),
        cmocka_unit_test(bad_tags_are_refused),
        cmocka_unit_test(many_threads_are_counted_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
