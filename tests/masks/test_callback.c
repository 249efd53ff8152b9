/* SPDX-License-Identifier: Apache-2.0 */
/* Masks by callback whose function does what it should not: calls attention, changes its mind, counts. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/call.h"
#include "support/guard.h"
#include "support/parallel.h"

/* Numbers of no page, and far from one. */
static const int64_t nowhere[] = {-1, INT32_MIN, INT32_MAX, 1 << 20, -77};

static uint64_t next(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* One entry in so many of k's table, and of v's, becomes a number of no page; 0: none. The others name their page,
   whatever the mask that the call was made with hides. */
static void spoil(call *c, uint64_t *seed, int one_in) {
    for (int table = 0; table < 2; table++) {
        int32_t *pages = (int32_t *)(table == 0 ? c->tensors.k_pages : c->tensors.v_pages);
        for (int64_t i = 0; pages != NULL && i < c->tensors.batch * c->tensors.page_slots; i++) {
            int spoilt = one_in > 0 && next(seed) % (uint64_t)one_in == 0;
            pages[i] = (int32_t)(spoilt ? nowhere[next(seed) % COUNT(nowhere)] : c->held.pages[table][i]);
        }
    }
}

static int swallow(void *cookie, const char *bytes, size_t size) {
    (void)cookie, (void)bytes, (void)size;
    return 0;
}

/* Unlike call_try without the deep check, which asks more than once. */
static tp_status run(tp_context *context, call *c, const char *kernel, tp_exec exec, tp_error *error) {
    tp_choice choice = TP_CHOICE_INIT;
    tp_plan *plan;
    choice.policy = TP_PERMIT;
    choice.kernel = kernel;
    assert_int_equal(tp_plan_create(context, &c->problem, &choice, &plan, NULL), TP_OK);
    exec.workspace_size = tp_plan_workspace(plan, exec.threads);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    memset(exec.workspace, 0xff, exec.workspace_size);
    tp_status status = tp_plan_run(plan, &c->tensors, &exec, NULL, error);
    free(exec.workspace);
    tp_plan_destroy(plan);
    return status;
}

/* ---- it calls the library */

typedef struct nested {
    tp_context *context, *other;
    tp_plan *plan;
    call *inner;
    tp_exec exec;
    atomic_int asked, wrong;
} nested;

static int call_from_inside(void *user, int64_t seq, int64_t row, int64_t key) {
    nested *n = user;
    const tp_problem *p = &n->inner->problem;
    const tp_tensors *t = &n->inner->tensors;
    tp_counters counters = {.struct_size = sizeof counters};
    tp_decision *decision = NULL;
    tp_plan *plan = NULL;
    double rate;
    int right = 1;
    (void)seq;
    if (atomic_fetch_add(&n->asked, 1) % 37 == 0) {
        right &= tp_attention(n->context, p, NULL, t, NULL, NULL) == TP_BUSY;
        right &= tp_attention(n->other, p, NULL, t, NULL, NULL) == TP_BUSY;
        right &= tp_backward(n->context, p, NULL, t, NULL, NULL) == TP_BUSY;
        right &= tp_plan_run(n->plan, t, &n->exec, NULL, NULL) == TP_BUSY;
        right &= tp_measure_fma(n->context, "generic", 1, &rate, NULL) == TP_BUSY;
        /* what runs nothing may be asked */
        right &= tp_explain(n->context, p, NULL, &decision, NULL) == TP_OK;
        right &= tp_plan_create(n->context, p, NULL, &plan, NULL) == TP_OK;
        right &= tp_context_counters(n->context, &counters) == TP_OK;
        right &= tp_context_permit(n->context, NULL, 0, NULL) == TP_OK;
        right &= tp_metrics_write(n->context, swallow, NULL) == TP_OK;
        right &= tp_recorder_write(n->context, swallow, NULL) == TP_OK;
        tp_decision_destroy(decision);
        tp_plan_destroy(plan);
    }
    atomic_fetch_add(&n->wrong, !right);
    return (row + key) % 3 == 0;
}

static void attention_from_inside_is_busy(void **state) {
    (void)state;
    for (int threads = 1; threads <= (call_pool_usable() ? 2 : 1); threads++)
        for (int spoilt = 0; spoilt < 2; spoilt++)
            for (int way = 0; way < 3; way++) {
                nested n = {.context = call_context_new(threads), .other = call_context_new(1), .exec = TP_EXEC_INIT};
                call *c = call_new("b2 h4/2 q9 k70 d8 f32 paged=4 callback", NULL);
                uint64_t seed = 5;
                n.inner = call_new("h2 q12 k12 d8 f32", NULL);
                assert_int_equal(tp_plan_create(n.context, &n.inner->problem, NULL, &n.plan, NULL), TP_OK);
                n.exec.workspace_size = tp_plan_workspace(n.plan, 1);
                n.exec.workspace = aligned_alloc(64, n.exec.workspace_size);
                spoil(c, &seed, spoilt ? 2 : 0);
                c->tensors.callback = call_from_inside;
                c->tensors.callback_user = &n;
                alarm(60); /* a hang is a failure */
                tp_status status;
                if (way == 0) {
                    status = tp_attention(n.context, &c->problem, NULL, &c->tensors, NULL, NULL);
                } else {
                    tp_exec exec = TP_EXEC_INIT;
                    exec.threads = threads;
                    exec.flags = way == 2 ? TP_EXEC_CHECK_DEEP : 0;
                    status = run(n.context, c, call_kernel(0), exec, NULL);
                }
                alarm(0);
                assert_int_equal(status, spoilt ? TP_INVALID : TP_OK); /* rows see every third key, hence every page */
                assert_true(atomic_load(&n.asked) > 0);
                assert_int_equal(atomic_load(&n.wrong), 0);
                free(n.exec.workspace);
                tp_plan_destroy(n.plan);
                call_free(n.inner);
                call_free(c);
                tp_context_destroy(n.context);
                tp_context_destroy(n.other);
            }
}

/* ---- it changes its mind */

enum { SEQS = 2, ROWS = 40, KEYS = 96, PAGE = 4 };

/* Answers at random, anew each time, and notes the first answer to each question. */
typedef struct liar {
    atomic_ullong seed;
    int one_in; /* how often it says yes */
    atomic_int asked[SEQS][ROWS][KEYS];
    unsigned char first[SEQS][ROWS][KEYS];
} liar;

static int lie(void *user, int64_t seq, int64_t row, int64_t key) {
    liar *l = user;
    uint64_t seed = atomic_fetch_add(&l->seed, 0x9e3779b97f4a7c15u);
    int answer = next(&seed) / 7 % (uint64_t)l->one_in == 0;
    if (atomic_fetch_add(&l->asked[seq][row][key], 1) == 0) l->first[seq][row][key] = (unsigned char)answer;
    return answer;
}

static int first_answer(void *user, int64_t seq, int64_t row, int64_t key) {
    return ((liar *)user)->first[seq][row][key];
}

/* Does a row see a key of no page, by the mask that the tensors have now? */
static int sees_nowhere(const call *c) {
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t row = 0; row < call_tokens(c, CALL_Q, s); row++)
            for (int64_t key = 0; key < call_tokens(c, CALL_K, s); key++) {
                if (!tp_mask_visible(&c->problem, &c->tensors, s, 0, row, key)) continue;
                int64_t at = s * c->tensors.page_slots + key / PAGE;
                for (int table = 0; table < 2; table++) {
                    const int32_t *pages = table == 0 ? c->tensors.k_pages : c->tensors.v_pages;
                    if (pages != NULL && (pages[at] < 0 || pages[at] >= c->tensors.pages)) return 1;
                }
            }
    return 0;
}

/* The pools between pages without access, so that a wrong page number is a crash. */
static void guard_pools(call *c, guard guards[2]) {
    for (int i = 0; i < 2; i++) {
        size_t bytes = c->held.buffer[CALL_K + i].bytes;
        guards[i] = guard_new(bytes);
        void *to = guard_end(&guards[i], bytes);
        memcpy(to, c->held.buffer[CALL_K + i].memory, bytes);
        call_tensor_of(c, CALL_K + i)->data = to;
    }
}

/* Each question once in a run, and its answer is what counts, whatever is said later. */
static void only_the_first_answer_counts(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b2 h4/2 q3 k90 d8 f32 paged=4 callback", "b2 h4/2 q40 k96 d12 bf16 paged=4 callback",
        "b2 h2/1 q17 k50 d8 f32 paged=4 mask=callback,causal,or", "b2 h2/2 q9 k70 d8 f32 paged=4 causal callback",
        "b2 h2/1 q33 k60 d8 f32 callback"};
    liar *l = calloc(1, sizeof *l);
    uint64_t seed = 11;
    int ran = 0, refused = 0, rounds = call_quick() ? 3 : 12;
    for (int t = 0; t < COUNT(texts); t++)
        for (int k = 0; call_kernel(k) != NULL; k++)
            for (int round = 0; round < rounds; round++) {
                call *c = call_new(texts[t], &(call_shape){.two_tables = round % 2});
                parallel p = {.threads = 2};
                guard guards[2];
                tp_error error = TP_ERROR_INIT;
                if (c->problem.kv_layout == TP_PAGED) spoil(c, &seed, 6);
                guard_pools(c, guards);
                memset(l, 0, sizeof *l);
                atomic_init(&l->seed, seed);
                l->one_in = 1 << (next(&seed) % 8);
                c->tensors.callback = lie;
                c->tensors.callback_user = l;
                tp_exec exec = TP_EXEC_INIT;
                exec.threads = 1 + round % 3;
                exec.parallel_for = round % 3 ? parallel_threads : NULL;
                exec.parallel_user = &p;
                tp_status status = run(call_context(), c, call_kernel(k), exec, &error);
                for (int64_t s = 0; s < 2; s++)
                    for (int64_t row = 0; row < call_tokens(c, CALL_Q, s); row++)
                        for (int64_t key = 0; key < call_tokens(c, CALL_K, s); key++)
                            assert_int_equal(atomic_load(&l->asked[s][row][key]), 1);
                c->tensors.callback = first_answer;
                assert_int_equal(status != TP_OK, c->problem.kv_layout == TP_PAGED && sees_nowhere(c));
                if (status == TP_OK) {
                    call_check_bounds(c, texts[t]); /* against the reference, told the same */
                    ran++;
                } else {
                    assert_int_equal(status, TP_INVALID);
                    assert_non_null(strstr(error.text, "a page that is seen"));
                    refused++;
                }
                guard_free(&guards[0]);
                guard_free(&guards[1]);
                call_free(c);
            }
    assert_true(ran > 10 && refused > 10);
    free(l);
}

/* What asks more than once: the definition and the deep check. Whatever they make of it, they touch nothing else. */
static void those_who_ask_again_are_safe(void **state) {
    (void)state;
    liar *l = calloc(1, sizeof *l);
    uint64_t seed = 3;
    int passed = 0;
    for (int round = 0; round < (call_quick() ? 60 : 400); round++) {
        call *c = call_new("b2 h2/1 q20 k96 d8 f32 paged=4 callback", &(call_shape){.two_tables = round % 2});
        guard guards[2];
        double o[8], lse, bound, lse_bound;
        spoil(c, &seed, round % 3 ? 12 : 0);
        guard_pools(c, guards);
        memset(l, 0, sizeof *l);
        atomic_init(&l->seed, seed);
        l->one_in = round % 3 ? 512 << (next(&seed) % 2) : 1 << (next(&seed) % 6); /* seldom: the check sees no page */
        c->tensors.callback = lie;
        c->tensors.callback_user = l;
        passed += tp_check_deep(&c->problem, &c->tensors, NULL) == TP_OK;
        for (int64_t row = 0; row < 20; row++)
            passed += tp_reference(&c->problem, &c->tensors, row % 2 ? TP_NAIVE : TP_DOUBLE, TP_ARITHMETIC_F32, 1,
                                   &(tp_row){1, 0, row}, o, &lse, &bound, &lse_bound, NULL) == TP_OK;
        guard_free(&guards[0]);
        guard_free(&guards[1]);
        call_free(c);
    }
    assert_true(passed > 0);
    free(l);
}

/* Gradients, too: of whatever the first answers were. */
static void backward_is_safe(void **state) {
    (void)state;
    liar *l = calloc(1, sizeof *l);
    enum { HEADS = 2, DIM = 8 };
    for (int round = 0; round < (call_quick() ? 20 : 100); round++) {
        call *c = call_new("b2 h2/1 q40 k96 d8 f32 callback", NULL);
        tp_gradients g = TP_GRADIENTS_INIT;
        float *d_q = calloc(SEQS * ROWS * HEADS * DIM, sizeof *d_q), *d_k = calloc(SEQS * KEYS * DIM, sizeof *d_k),
              *d_v = calloc(SEQS * KEYS * DIM, sizeof *d_v);
        double *by_row = calloc(ROWS * HEADS * DIM, sizeof *by_row), *by_key = calloc(KEYS * DIM, sizeof *by_key);
        memset(l, 0, sizeof *l);
        atomic_init(&l->seed, (unsigned long long)round * 77);
        l->one_in = 1 + round % 5;
        c->tensors.callback = lie;
        c->tensors.callback_user = l;
        assert_int_equal(tp_attention(call_context(), &c->problem, NULL, &c->tensors, NULL, NULL), TP_OK);
        g.d_o = c->tensors.o;
        g.d_q = (tp_tensor){d_q, {ROWS * HEADS * DIM, HEADS * DIM, DIM}};
        g.d_k = (tp_tensor){d_k, {KEYS * DIM, DIM, DIM}};
        g.d_v = (tp_tensor){d_v, {KEYS * DIM, DIM, DIM}};
        c->tensors.gradients = &g;
        assert_int_equal(tp_backward(call_context(), &c->problem, NULL, &c->tensors, NULL, NULL), TP_OK);
        tp_reference_gradients out = {.struct_size = sizeof out, .d_q = by_row, .d_k = by_key, .d_v = by_key};
        assert_int_equal(tp_reference_backward(&c->problem, &c->tensors, TP_DOUBLE, 1, 0, &out, NULL), TP_OK);
        free(d_q), free(d_k), free(d_v), free(by_row), free(by_key);
        call_free(c);
    }
    free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_from_inside_is_busy),
        cmocka_unit_test(only_the_first_answer_counts),
        cmocka_unit_test(those_who_ask_again_are_safe),
        cmocka_unit_test(backward_is_safe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
