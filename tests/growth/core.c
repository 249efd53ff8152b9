/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of tileproof.h that takes or gives a struct, by a program of another version than the library's. */
#include "growth/growth.h"

#include <stdlib.h>

static int discard(void *cookie, const char *bytes, size_t size) {
    (void)bytes;
    *(size_t *)cookie += size;
    return 0;
}

static void *allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    return aligned_alloc(alignment, bytes);
}

static void release(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    free(memory);
}

static void a_receipt_is_filled(const tp_receipt *receipt) {
    const char *name;
    int64_t calls, sum = 0;
    assert_int_equal(receipt->struct_size, sizeof *receipt);
    assert_int_equal(GROWN(receipt), 0);
    assert_int_equal(receipt->pairs_visible, SEQS * HEADS * (5 + 6 + 7 + 8 + 9));
    assert_non_null(strstr(receipt->problem, "b2 h4/2 q5 k9 d8 f32 causal"));
    for (int i = 0; tp_receipt_function(receipt, i, &name, &calls); i++) sum += strncmp(name, "tp_", 3) == 0 ? calls : 0;
    assert_true(receipt->function_count > 0 && sum >= receipt->function_count);
}

static void one_call(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_context_options *options = PLACE_INIT(tp_context_options, TP_CONTEXT_OPTIONS_INIT);
    options->threads = 1;
    tp_context *none;
    REFUSES(options, tp_context_options, tp_context_create(options, &none, error));
    REFUSES_SIZE(options, tp_context_options, tp_context_create(options, &none, error));
    tp_allocator *allocator = PLACE_INIT(tp_allocator, TP_ALLOCATOR_INIT);
    allocator->allocate = allocate;
    allocator->release = release;
    options->allocator = allocator;
    REFUSES(allocator, tp_allocator, tp_context_create(options, &none, error));
    REFUSES_SIZE(allocator, tp_allocator, tp_context_create(options, &none, error));
    tp_context *context = growth_context(options);
    growth_call c;
    growth_call_new(&c);
    tp_choice *choice = PLACE_INIT(tp_choice, TP_CHOICE_INIT);
    tp_tags *tags = PLACE_INIT(tp_tags, TP_TAGS_INIT);
    tp_receipt *receipt = PLACE(tp_receipt);
    tp_receipt_init(receipt);
    assert_int_equal(receipt->struct_size, sizeof *receipt);
    assert_int_equal(GROWN(receipt), 0);
    tags->layer = 3, tags->model = "small";
    c.tensors->tags = tags;
    SET_GROWN(receipt, 77); /* as another library may have left it */
    GOOD(tp_attention(context, c.problem, choice, c.tensors, receipt, error));
    a_receipt_is_filled(receipt);
    growth_check(&c);
#define CALL tp_attention(context, c.problem, choice, c.tensors, receipt, error)
    REFUSES(c.problem, tp_problem, CALL);
    REFUSES(c.tensors, tp_tensors, CALL);
    REFUSES(choice, tp_choice, CALL);
    REFUSES(tags, tp_tags, CALL);
    REFUSES_SIZE(c.problem, tp_problem, CALL);
    REFUSES_SIZE(c.tensors, tp_tensors, CALL);
    REFUSES_SIZE(choice, tp_choice, CALL);
    REFUSES_SIZE(tags, tp_tags, CALL);
    REFUSES_SIZE(receipt, tp_receipt, CALL);
    GOOD(CALL);
#undef CALL
    growth_check(&c);
    size_t written = 0;
    assert_int_equal(tp_receipt_write(receipt, TP_TEXT, discard, &written), TP_OK);
    assert_int_equal(tp_receipt_write(receipt, TP_JSON, discard, &written), TP_OK);
    assert_true(written > 400);
    tp_context_destroy(context);
    growth_free();
}

static void plan_and_run(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_context_options *options = PLACE_INIT(tp_context_options, TP_CONTEXT_OPTIONS_INIT);
    options->threads = 1;
    tp_context *context = growth_context(options);
    growth_call c;
    growth_call_new(&c);
    tp_choice *choice = PLACE_INIT(tp_choice, TP_CHOICE_INIT);
    tp_exec *exec = PLACE_INIT(tp_exec, TP_EXEC_INIT);
    tp_receipt *receipt = PLACE(tp_receipt);
    tp_receipt_init(receipt);
    tp_plan *plan;
    REFUSES(c.problem, tp_problem, tp_plan_create(context, c.problem, choice, &plan, error));
    REFUSES(choice, tp_choice, tp_plan_create(context, c.problem, choice, &plan, error));
    GOOD(tp_plan_create(context, c.problem, choice, &plan, error));
    GIVEN(tp_plan_decision(plan), tp_decision);
    exec->workspace_size = tp_plan_workspace(plan, 1);
    assert_int_equal(posix_memalign(&exec->workspace, 64, exec->workspace_size), 0);
    exec->flags = TP_EXEC_CHECK_DEEP;
    SET_GROWN(receipt, 77);
    GOOD(tp_plan_run(plan, c.tensors, exec, receipt, error));
    a_receipt_is_filled(receipt);
    growth_check(&c);
    REFUSES(c.tensors, tp_tensors, tp_plan_run(plan, c.tensors, exec, receipt, error));
    REFUSES(exec, tp_exec, tp_plan_run(plan, c.tensors, exec, receipt, error));
    REFUSES_SIZE(exec, tp_exec, tp_plan_run(plan, c.tensors, exec, receipt, error));
    REFUSES(c.problem, tp_problem, tp_check_deep(c.problem, c.tensors, error));
    REFUSES(c.tensors, tp_tensors, tp_check_deep(c.problem, c.tensors, error));
    tp_decision *decision;
    REFUSES(c.problem, tp_problem, tp_explain(context, c.problem, choice, &decision, error));
    REFUSES(choice, tp_choice, tp_explain(context, c.problem, choice, &decision, error));
    GOOD(tp_explain(context, c.problem, choice, &decision, error));
    GIVEN(decision, tp_decision);
    assert_int_equal(decision->status, TP_OK);
    assert_int_equal(decision->pairs, SEQS * HEADS * (5 + 6 + 7 + 8 + 9));
    const tp_candidate *candidate;
    const tp_reason *reason;
    int candidates = 0, reasons = 0;
    for (; (candidate = tp_decision_candidate(decision, candidates)) != NULL; candidates++) {
        const tp_kernel_info *kernel = tp_kernel_at(candidates);
        GIVEN(candidate, tp_candidate);
        GIVEN(kernel, tp_kernel_info);
        assert_string_equal(candidate->kernel, kernel->name);
        for (int i = 0; (reason = tp_candidate_reason(candidate, i)) != NULL; i++, reasons++) {
            GIVEN(reason, tp_reason);
            assert_true(strlen(reason->text) > 4);
        }
    }
    assert_int_equal(candidates, decision->candidate_count);
    assert_true(reasons >= candidates - 1);
    size_t written = 0;
    assert_int_equal(tp_decision_write(decision, TP_TEXT, discard, &written), TP_OK);
    assert_true(written > 100);
    tp_decision_destroy(decision);
    tp_plan_destroy(plan);
    free(exec->workspace);
    tp_context_destroy(context);
    growth_free();
}

static void texts_and_masks(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_problem *problem = PLACE(tp_problem);
    tp_lengths *lengths = PLACE(tp_lengths);
    char text[512];
    GOOD(tp_problem_parse("h2 seqs=3x1/7,1x4/9 d8 f32 packed causal", problem, lengths, error));
    assert_int_equal(problem->struct_size, sizeof *problem);
    assert_int_equal(lengths->struct_size, sizeof *lengths);
    assert_int_equal(GROWN(problem) + GROWN(lengths), 0);
    assert_int_equal(lengths->count, 2);
    assert_int_equal(lengths->seq[1].kv_len, 9);
    assert_int_equal(problem->batch, 4);
    GOOD(tp_problem_parse("h2 q3 k8 d8 f32", problem, NULL, error));
    assert_int_equal(tp_problem_parse_sized("q3 d8", problem, 8, NULL, 0, error), TP_INVALID);
    assert_non_null(strstr(error->text, "tp_problem.struct_size is 8: it must be in "));
    assert_int_equal(tp_problem_parse_sized("q3 d8", problem, sizeof *problem, lengths, 8, error), TP_INVALID);
    assert_non_null(strstr(error->text, "tp_lengths.struct_size is 8: it must be in "));
    assert_int_equal(tp_problem_window(problem, 2, 0), TP_OK);
    assert_int_equal(tp_problem_mask(problem, TP_MASK_OR, TP_MASK_PREFIX, 1, 0), TP_OK);
    assert_int_equal(tp_problem_print(problem, NULL, text, sizeof text), TP_OK);
    assert_string_equal(text, "decode b1 h2/2 q3 k8 d8 f32 window=2,0 prefix=1");
    assert_int_equal(tp_problem_class(problem, text, sizeof text), TP_OK);
    assert_non_null(strstr(text, "decode few-rows h2/2 d8 f32 window=2,0 prefix=1"));
    assert_int_equal(tp_mask_allowed(problem, 3, 8, 2, 0), 1);
    assert_int_equal(tp_mask_allowed(problem, 3, 8, 2, 4), 0);
    GIVEN(tp_mask_at(1), tp_mask_info);
    assert_string_equal(tp_mask_at(1)->name, "window");
    REFUSES(problem, tp_problem, tp_problem_check(problem, error));
    REFUSES_SIZE(problem, tp_problem, tp_problem_check(problem, error));
    if (NEWER) {
        SET_GROWN(problem, 1);
        assert_int_equal(tp_problem_causal(problem), TP_INVALID);
        assert_int_equal(tp_problem_print(problem, NULL, text, sizeof text), TP_INVALID);
        assert_int_equal(tp_problem_class(problem, text, sizeof text), TP_INVALID);
        assert_int_equal(tp_mask_allowed(problem, 3, 8, 2, 0), -1);
    }
    problem->struct_size = 8; /* too short to be touched */
    assert_int_equal(tp_problem_causal(problem), TP_INVALID);
    growth_call c;
    growth_call_new(&c);
    assert_int_equal(tp_problem_print(c.problem, c.tensors, text, sizeof text), TP_OK);
    assert_int_equal(tp_mask_visible(c.problem, c.tensors, 1, 3, 4, 8), 1);
    assert_int_equal(tp_mask_visible(c.problem, c.tensors, 1, 3, 0, 8), 0);
    SET_GROWN(c.tensors, 1);
    assert_int_equal(tp_mask_visible(c.problem, c.tensors, 1, 3, 4, 8), NEWER ? -1 : 1);
    assert_int_equal(tp_problem_print(c.problem, c.tensors, text, sizeof text), NEWER ? TP_INVALID : TP_OK);
    growth_free();
}

/* Sizes that no version had are noted and nothing else is written, so that every function refuses the struct. */
static void sizes_that_are_none(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    char *small = growth_place(16, "no struct");
    tp_problem_init_sized((tp_problem *)small, 16);
    assert_int_equal(tp_problem_check((const tp_problem *)small, error), TP_INVALID);
    assert_non_null(strstr(error->text, "tp_problem.struct_size is 16: it must be in "));
    tp_tensors_init_sized((tp_tensors *)small, 12, NULL, NULL, NULL, NULL, NULL);
    tp_receipt_init_sized((tp_receipt *)small, 12);
    assert_int_equal(*(uint32_t *)small, 12);
    tp_receipt_init_sized((tp_receipt *)small, 3);
    tp_problem_init_sized((tp_problem *)small, (size_t)1 << 40);
    assert_int_equal(*(uint32_t *)small, UINT32_MAX);
    assert_int_equal(tp_problem_check((const tp_problem *)small, error), TP_INVALID);
    for (int i = 4; i < 16; i++) assert_int_equal((unsigned char)small[i], 0xa5);
    tp_error *short_error = (tp_error *)small; /* not written at all */
    memcpy(small, &(uint32_t){16}, 4);
    assert_int_equal(tp_problem_check(NULL, short_error), TP_INVALID);
    for (int i = 4; i < 16; i++) assert_int_equal((unsigned char)small[i], 0xa5);
    growth_free();
}

static void machines(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_machine *host = PLACE(tp_machine), *again = PLACE(tp_machine);
    char text[256];
    GOOD(tp_machine_detect(host, error));
    assert_int_equal(host->struct_size, sizeof *host);
    assert_int_equal(GROWN(host), 0);
    assert_int_equal(tp_machine_print(host, text, sizeof text), TP_OK);
    GOOD(tp_machine_parse(text, again, error));
    assert_memory_equal(host, again, sizeof *host);
    assert_int_equal(tp_machine_detect_sized(host, 8, error), TP_INVALID);
    assert_int_equal(tp_machine_parse_sized(text, host, 8, error), TP_INVALID);
    assert_non_null(strstr(error->text, "tp_machine.struct_size is 8: it must be in "));
    tp_context_options *options = PLACE_INIT(tp_context_options, TP_CONTEXT_OPTIONS_INIT);
    options->threads = 1, options->machine = host;
    tp_context *context = growth_context(options);
    GIVEN(tp_context_machine(context), tp_machine);
    assert_string_equal(tp_context_machine(context)->name, host->name);
    tp_context_destroy(context);
    REFUSES(host, tp_machine, tp_context_create(options, &context, error));
    REFUSES_SIZE(host, tp_machine, tp_context_create(options, &context, error));
    growth_free();
}

/* What a fallback is told by. */
static void see_event(void *user, const tp_event *event) {
    GIVEN(event, tp_event);
    GIVEN(event->decision, tp_decision);
    GIVEN(event->receipt, tp_receipt);
    GIVEN(event->tags, tp_tags);
    assert_int_equal(event->kind, TP_EVENT_FALLBACK);
    assert_int_equal(event->tags->layer, 3);
    ++*(int *)user;
}

static void watching(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_context_options *options = PLACE_INIT(tp_context_options, TP_CONTEXT_OPTIONS_INIT);
    int events = 0;
    size_t traced = 0, written = 0;
    options->threads = 1, options->policy = TP_SERVE;
    options->event = see_event, options->event_user = &events;
    options->trace = discard, options->trace_cookie = &traced;
    tp_context *context = growth_context(options);
    growth_call c;
    growth_call_new(&c);
    tp_choice *choice = PLACE_INIT(tp_choice, TP_CHOICE_INIT);
    tp_tags *tags = PLACE_INIT(tp_tags, TP_TAGS_INIT);
    choice->policy = TP_SERVE, choice->kernel = "math";
    tags->layer = 3;
    c.tensors->tags = tags;
    GOOD(tp_attention(context, c.problem, choice, c.tensors, NULL, error));
    growth_check(&c);
    assert_int_equal(events, 1);
    assert_true(traced > 100);
    tp_counters *counters = PLACE(tp_counters);
    assert_int_equal(tp_context_counters(context, counters), TP_OK);
    assert_int_equal(counters->struct_size, sizeof *counters);
    assert_int_equal(GROWN(counters), 0);
    assert_int_equal(counters->calls, 1);
    assert_int_equal(tp_context_counters_sized(context, counters, 8), TP_INVALID);
    tp_count *count = PLACE(tp_count);
    int kinds = 0;
    for (int64_t at = 0; tp_context_count_next(context, &at, count); memset(count, 0xa5, sizeof *count)) {
        kinds |= 1 << count->kind;
        assert_int_equal(count->struct_size, sizeof *count);
        assert_int_equal(GROWN(count), 0);
        assert_int_equal(count->count, 1);
    }
    assert_int_equal(kinds, 1 << TP_COUNT_CALLS | 1 << TP_COUNT_FALLBACKS);
    assert_int_equal(tp_context_count_next_sized(context, &(int64_t){0}, count, 8), 0);
    tp_lock_state *lock = PLACE(tp_lock_state);
    memset(lock, 0, sizeof *lock);
    lock->struct_size = sizeof *lock, lock->status = TP_LOCK_MATCHES, lock->model = "small";
    GOOD(tp_context_lock_state(context, lock, error));
    REFUSES(lock, tp_lock_state, tp_context_lock_state(context, lock, error));
    REFUSES_SIZE(lock, tp_lock_state, tp_context_lock_state(context, lock, error));
    assert_int_equal(tp_metrics_write(context, discard, &written), TP_OK);
    assert_int_equal(tp_recorder_write(context, discard, &written), TP_OK);
    assert_true(written > 500);
    tp_context_destroy(context);
    growth_free();
}

static void gradients(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_context_options *options = PLACE_INIT(tp_context_options, TP_CONTEXT_OPTIONS_INIT);
    options->threads = 1;
    tp_context *context = growth_context(options);
    growth_call c;
    growth_call_new(&c);
    GOOD(tp_attention(context, c.problem, NULL, c.tensors, NULL, error));
    static float d_q[SEQS * ROWS * HEADS * DIM];
    tp_gradients *g = PLACE_INIT(tp_gradients, TP_GRADIENTS_INIT);
    g->d_o = c.tensors->q; /* any numbers */
    g->d_q = c.tensors->q, g->d_q.data = d_q;
    c.tensors->gradients = g;
    tp_receipt *receipt = PLACE(tp_receipt);
    tp_receipt_init(receipt);
    GOOD(tp_backward(context, c.problem, NULL, c.tensors, receipt, error));
    a_receipt_is_filled(receipt);
    REFUSES(g, tp_gradients, tp_backward(context, c.problem, NULL, c.tensors, receipt, error));
    REFUSES_SIZE(g, tp_gradients, tp_backward(context, c.problem, NULL, c.tensors, receipt, error));
    REFUSES(c.problem, tp_problem, tp_backward(context, c.problem, NULL, c.tensors, receipt, error));
    double expected[ROWS * (HEADS / KV_HEADS) * DIM], bound[ROWS * (HEADS / KV_HEADS)];
    tp_reference_gradients *out = PLACE(tp_reference_gradients);
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out, out->d_q = expected, out->d_q_bound = bound;
#define REFERENCE tp_reference_backward(c.problem, c.tensors, TP_DOUBLE, 1, 1, out, error)
    GOOD(REFERENCE);
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < HEADS / KV_HEADS; h++)
            for (int x = 0; x < DIM; x++) {
                double got = d_q[((ROWS + r) * HEADS + HEADS / KV_HEADS + h) * DIM + x];
                double off = got - expected[(r * (HEADS / KV_HEADS) + h) * DIM + x];
                assert_true((off < 0 ? -off : off) <= bound[r * (HEADS / KV_HEADS) + h]);
            }
    REFUSES(out, tp_reference_gradients, REFERENCE);
    REFUSES_SIZE(out, tp_reference_gradients, REFERENCE);
    REFUSES(g, tp_gradients, REFERENCE);
    REFUSES(c.tensors, tp_tensors, REFERENCE);
    REFUSES(c.problem, tp_problem, REFERENCE);
    REFUSES(c.problem, tp_problem,
            tp_reference(c.problem, c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 0, NULL, NULL, NULL, NULL, NULL, error));
    REFUSES(c.tensors, tp_tensors,
            tp_reference(c.problem, c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 0, NULL, NULL, NULL, NULL, NULL, error));
    tp_context_destroy(context);
    growth_free();
}

static void quantised_rows(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_quantised *q = PLACE_INIT(tp_quantised, TP_QUANTISED_INIT);
    float values[8] = {1, -2, 3, 127, 4, 5, 6, -127}, scale[2];
    int8_t codes[8];
    double loss = 1;
    q->dtype = TP_I8, q->kind = TP_SCALES_TOKEN, q->rows = 2, q->dim = 4, q->values = values, q->values_stride = 4;
    q->codes = codes, q->codes_stride = 4, q->scales = scale, q->scales_stride = 1;
    GOOD(tp_quantise(q, &loss, error));
    assert_true(codes[1] == -2 && codes[7] == -127 && scale[1] == 1 && loss == 0);
    memset(values, 0, sizeof values);
    GOOD(tp_dequantise(q, error));
    assert_true(values[3] == 127 && values[6] == 6);
    REFUSES(q, tp_quantised, tp_quantise(q, &loss, error));
    REFUSES(q, tp_quantised, tp_dequantise(q, error));
    REFUSES_SIZE(q, tp_quantised, tp_quantise(q, &loss, error));
    growth_free();
}

/* No struct of the header is missing above. */
static void every_struct_is_met(void **state) {
    (void)state;
#ifdef TILEPROOF_GROWN
#define MET(type) \
    if (!growth_knows(#type)) fail_msg("%s", #type " has a struct_size and is in no test of growth");
    TILEPROOF_GROWN(MET)
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_call), cmocka_unit_test(plan_and_run),        cmocka_unit_test(texts_and_masks),
        cmocka_unit_test(machines), cmocka_unit_test(sizes_that_are_none), cmocka_unit_test(watching),
        cmocka_unit_test(gradients), cmocka_unit_test(quantised_rows),     cmocka_unit_test(every_struct_is_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
