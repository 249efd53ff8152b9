/* SPDX-License-Identifier: Apache-2.0 */
/* Same bits however the work is cut and run; many callers at once; fork, nesting, control word. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif
#ifdef TILEPROOF_PTHREADPOOL
#include <pthreadpool.h>
#endif

#include "strategies/parallel.h"
#include "support/call.h"
#include "support/parallel.h"

static const char *const texts[] = {
    "b2 h6/3 q300 k300 d40 bf16 causal",
    "h10/2 seqs=1x200/260,1x1/4200,1x0/9,3x30/30 d20/12 f32 packed causal",
    "h5/5 seqs=1x100/5000,4x64/64 d8 f16 padded window=70,-1",
};

static const int tasks[] = {1, 2, 3, 5};

static const struct {
    const char *name;
    tp_parallel_for run;
} entries[] = {
    {"threads", parallel_threads}, {"reverse", parallel_reverse}, {"shuffled", parallel_shuffled}};

static int not_usable(const char *what) {
    if (call_pool_usable()) return 0;
    printf("%s: not run here under the thread sanitizer\n", what);
    return 1;
}

static void same_bits_through_the_callers_parallel_for(void **state) {
    (void)state;
    for (int n = 0; n < COUNT(texts); n++) {
        call *one = call_new(texts[n], NULL), *c = call_new(texts[n], NULL);
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call_run(one, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check(one, texts[n]);
            for (int t = 0; t < COUNT(tasks); t++)
                for (int d = 0; d < COUNT(entries); d++) {
                    parallel p = {.threads = 3, .seed = (uint64_t)(t + 7 * d)};
                    tp_receipt receipt;
                    char what[128];
                    tp_receipt_init(&receipt);
                    call_run(c,
                             &(call_how){.kernel = call_kernel(k),
                                         .threads = tasks[t],
                                         .parallel_for = entries[d].run,
                                         .user = &p},
                             &receipt);
                    snprintf(what, sizeof what, "%s, %d tasks, %s", call_kernel(k), tasks[t],
                             entries[d].name);
                    call_same(one, c, what);
                    assert_int_equal(receipt.tasks, tasks[t]);
                    assert_int_equal(p.calls, tasks[t] > 1);
                    assert_int_equal(p.tasks, tasks[t] > 1 ? tasks[t] : 0);
                }
        }
        call_free(one);
        call_free(c);
    }
}

/* One row of one head is one task, however many are asked for. */
static void no_task_without_rows(void **state) {
    (void)state;
    call *c = call_new("q1 k900 d8 f32", NULL);
    for (int k = 0; call_kernel(k) != NULL; k++) {
        parallel p = {.threads = 2};
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(c,
                 &(call_how){.kernel = call_kernel(k),
                             .threads = 5,
                             .parallel_for = parallel_threads,
                             .user = &p},
                 &receipt);
        assert_int_equal(receipt.tasks, 1);
        assert_int_equal(p.calls, 0);
    }
    call_free(c);
}

static void same_bits_on_the_contexts_pool(void **state) {
    (void)state;
    if (not_usable("the context's pool")) return;
    for (int threads = 1; threads <= 5; threads++) {
        tp_context *context = call_context_new(threads);
        for (int n = 0; n < COUNT(texts); n++) {
            call *one = call_new(texts[n], NULL), *c = call_new(texts[n], NULL);
            for (int k = 0; call_kernel(k) != NULL; k++) {
                call_run(one, &(call_how){.kernel = call_kernel(k)}, NULL);
                for (int t = 0; t < COUNT(tasks); t++) { /* more tasks than threads and fewer */
                    call_run(c,
                             &(call_how){
                                 .kernel = call_kernel(k), .threads = tasks[t], .context = context},
                             NULL);
                    call_same(one, c, "pool");
                }
                tp_choice choice = TP_CHOICE_INIT;
                tp_error error = TP_ERROR_INIT;
                tp_receipt receipt;
                tp_receipt_init(&receipt);
                choice.policy = TP_PERMIT;
                choice.kernel = call_kernel(k);
                memset(c->held.buffer[CALL_O].memory, 0xff, c->held.buffer[CALL_O].bytes);
                if (tp_attention(context, &c->problem, &choice, &c->tensors, &receipt, &error))
                    fail_msg("%s", error.text);
                call_same(one, c, "tp_attention");
                assert_int_equal(receipt.tasks, tp_context_threads(context));
            }
            call_free(one);
            call_free(c);
        }
        tp_context_destroy(context);
    }
}

#ifdef TILEPROOF_PTHREADPOOL
/* Each of two tasks waits until the other has begun, which only two threads can do. */
static void meet(void *user, size_t index) {
    atomic_int *begun = user;
    atomic_fetch_add(&begun[index], 1);
    while (atomic_load(&begun[1 - index]) == 0) usleep(100);
}

static void a_pool_runs_tasks_at_once(void **state) {
    (void)state;
    if (not_usable("a pool of two threads")) return;
    atomic_int begun[2];
    int failed = 1;
    struct pthreadpool *pool = tp__pool_create(2, &failed);
    tp__parallel parallel_on_pool = {pool, NULL, NULL};
    atomic_init(&begun[0], 0);
    atomic_init(&begun[1], 0);
    assert_int_equal(failed, 0);
    assert_int_equal(tp__pool_threads(pool), 2);
    alarm(20); /* one thread alone would wait for ever */
    tp__parallel_run(&parallel_on_pool, 2, meet, begun);
    alarm(0);
    assert_int_equal(atomic_load(&begun[0]) + atomic_load(&begun[1]), 2);
    tp__pool_destroy(pool);
}

static void same_bits_on_the_callers_pool(void **state) {
    (void)state;
    if (not_usable("the caller's pool")) return;
    struct pthreadpool *pool = pthreadpool_create(3);
    for (int n = 0; n < COUNT(texts); n++) {
        call *one = call_new(texts[n], NULL), *c = call_new(texts[n], NULL);
        tp_plan *plan;
        tp_exec exec = TP_EXEC_INIT;
        tp_receipt receipt;
        tp_error error = TP_ERROR_INIT;
        tp_receipt_init(&receipt);
        call_run(one, &(call_how){0}, NULL);
        assert_int_equal(tp_plan_create(call_context(), &c->problem, NULL, &plan, &error), TP_OK);
        exec.pool = pool;
        exec.workspace_size = tp_plan_workspace(plan, 3);
        exec.workspace = aligned_alloc(64, exec.workspace_size);
        if (tp_plan_run(plan, &c->tensors, &exec, &receipt, &error)) fail_msg("%s", error.text);
        assert_int_equal(receipt.tasks, 3); /* as many as that pool has */
        call_same(one, c, "the caller's pool");
        free(exec.workspace);
        tp_plan_destroy(plan);
        call_free(one);
        call_free(c);
    }
    pthreadpool_destroy(pool);
}
#endif

/* Several application threads: asserts would longjmp on the wrong stack, so they leave a status. */
enum { CALLERS = 4, ROUNDS = 12 };

typedef struct callers {
    const tp_plan *plan;
    tp_context *context;
    call *c[CALLERS], *expected[CALLERS];
    tp_status status[CALLERS];
    int wrong[CALLERS]; /* runs whose bits were not the expected ones */
} callers;

static void note_bits(callers *all, int index) {
    const call *c = all->c[index], *expected = all->expected[index];
    all->wrong[index] +=
        memcmp(c->held.buffer[CALL_O].memory, expected->held.buffer[CALL_O].memory, c->held.buffer[CALL_O].bytes) != 0;
    memset(c->held.buffer[CALL_O].memory, 0xff, c->held.buffer[CALL_O].bytes);
}

static void make_callers(callers *all, int index, const char *text) {
    all->c[index] = call_new(text, NULL);
    memset(all->c[index]->held.buffer[CALL_O].memory, 0xff, all->c[index]->held.buffer[CALL_O].bytes);
    all->expected[index] = call_new(text, NULL);
    call_run(all->expected[index], &(call_how){0}, NULL);
    call_check(all->expected[index], text);
}

static void check_callers(const callers *all) {
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(all->status[i], TP_OK);
        assert_int_equal(all->wrong[i], 0);
        call_free(all->c[i]);
        call_free(all->expected[i]);
    }
}

static void run_plan(void *user, int index) {
    callers *all = user;
    parallel p = {.threads = 2};
    tp_exec exec = TP_EXEC_INIT;
    exec.threads = 1 + index % 3;
    exec.parallel_for = parallel_threads;
    exec.parallel_user = &p;
    exec.workspace_size = tp_plan_workspace(all->plan, exec.threads);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    for (int i = 0; i < ROUNDS && all->status[index] == TP_OK; i++) {
        all->status[index] = tp_plan_run(all->plan, &all->c[index]->tensors, &exec, NULL, NULL);
        note_bits(all, index);
    }
    free(exec.workspace);
}

static void call_attention(void *user, int index) {
    callers *all = user;
    for (int i = 0; i < ROUNDS && all->status[index] == TP_OK; i++) {
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        all->status[index] = tp_attention(all->context, &all->c[index]->problem, NULL,
                                          &all->c[index]->tensors, &receipt, NULL);
        note_bits(all, index);
    }
}

static void explain(void *user, int index) {
    callers *all = user;
    for (int i = 0; i < ROUNDS && all->status[index] == TP_OK; i++) {
        tp_decision *decision;
        tp_plan *plan;
        all->status[index] =
            tp_explain(all->context, &all->c[index]->problem, NULL, &decision, NULL);
        tp_decision_destroy(decision);
        if (all->status[index]) return;
        all->status[index] =
            tp_plan_create(all->context, &all->c[index]->problem, NULL, &plan, NULL);
        tp_plan_destroy(plan);
    }
}

static void mixed(void *user, int index) {
    if (index % 2 == 0)
        call_attention(user, index);
    else
        explain(user, index);
}

static void many_threads_run_one_plan(void **state) {
    (void)state;
    static const char *const text = "h6/2 seqs=1x90/4200,2x60/60 d12 bf16 packed causal";
    callers all = {.plan = NULL};
    tp_plan *plan;
    for (int i = 0; i < CALLERS; i++) make_callers(&all, i, text);
    assert_int_equal(tp_plan_create(call_context(), &all.c[0]->problem, NULL, &plan, NULL), TP_OK);
    all.plan = plan;
    parallel_each(CALLERS, run_plan, &all);
    check_callers(&all);
    tp_plan_destroy(plan);
}

/* Each caller has a problem of its own, so that the cache and the workspace are fought for. */
static void many_threads_call_one_context(void **state) {
    (void)state;
    for (int threads = 1; threads <= (call_pool_usable() ? 2 : 1); threads++) {
        callers all = {.context = call_context_new(threads)};
        tp_counters counters = {.struct_size = sizeof counters};
        for (int i = 0; i < CALLERS; i++) {
            char text[128];
            snprintf(text, sizeof text, "h6/2 q%d k%d d%d f32 causal", 60 + 30 * i, 70 + 40 * i,
                     12 + i);
            make_callers(&all, i, text);
        }
        parallel_each(CALLERS, mixed, &all);
        assert_int_equal(tp_context_counters(all.context, &counters), TP_OK);
        assert_int_equal(counters.calls, CALLERS / 2 * ROUNDS);
        parallel_each(CALLERS, call_attention, &all);
        check_callers(&all);
        tp_context_destroy(all.context);
    }
}

#if defined(__SSE__)
/* Subnormal inputs and probabilities, so that flushing would show. */
static call *delicate_call(void) {
    call *c = call_new("b2 h2 q40 k300 d8 f32 scale=1", &(call_shape){.v_size = 1e-37f});
    for (int64_t j = 0; j < 300; j++) {
        call_set(c, CALL_V, 0, j, 0, 1, 3e-42f * (float)j);
        call_set(c, CALL_K, 1, j, 0, 0, 1e-40f * (float)j);
        call_set(c, CALL_K, 1, j, 1, 0, (float)j);
    }
    for (int64_t r = 0; r < 40; r++) call_set(c, CALL_Q, 1, r, 0, 0, 3e37f);
    for (int64_t r = 0; r < 40; r++) call_set(c, CALL_Q, 1, r, 1, 0, -0.3f);
    return c;
}

static void the_callers_control_word_changes_nothing(void **state) {
    (void)state;
    static const struct {
        const char *name;
        unsigned bits;
    } words[] = {
        {"flush to zero", 0x8000 | 0x0040}, {"round up", 0x4000}, {"round to zero", 0x6000}};
    call *one = delicate_call(), *c = delicate_call();
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call_run(one, &(call_how){.kernel = call_kernel(k)}, NULL);
        for (int w = 0; w < COUNT(words); w++)
            for (int tasks_now = 1; tasks_now <= 3; tasks_now++) {
                parallel p = {.threads = 2};
                tp_error error = TP_ERROR_INIT;
                unsigned before = _mm_getcsr(), during = (before & ~0x603fu) | words[w].bits;
                _mm_setcsr(during);
                tp_status status = call_try(c,
                                            &(call_how){.kernel = call_kernel(k),
                                                        .threads = tasks_now,
                                                        .parallel_for = parallel_threads,
                                                        .user = &p},
                                            NULL, &error);
                unsigned after = _mm_getcsr();
                _mm_setcsr(before);
                assert_int_equal(status, TP_OK);
                assert_int_equal(after & ~0x3fu, during & ~0x3fu); /* flags may be raised */
                call_same(one, c, words[w].name);
            }
        if (!call_pool_usable()) continue;
        unsigned before = _mm_getcsr();
        _mm_setcsr(before | 0x8040);
        tp_context *context = call_context_new(2); /* its threads inherit the caller's word */
        tp_status status = call_try(
            c, &(call_how){.kernel = call_kernel(k), .threads = 2, .context = context}, NULL, NULL);
        _mm_setcsr(before);
        assert_int_equal(status, TP_OK);
        call_same(one, c, "flush to zero on the pool");
        tp_context_destroy(context);
    }
    call_free(one);
    call_free(c);
}
#endif

/* In the child: what its exit code says went wrong, 0 for nothing. */
static int child(tp_context *context, const tp_plan *plan, call *c, const tp_exec *exec) {
    tp_error error = TP_ERROR_INIT;
    alarm(20); /* a hang is a failure */
    memset(c->held.buffer[CALL_O].memory, 0x5a, c->held.buffer[CALL_O].bytes);
    if (tp_attention(context, &c->problem, NULL, &c->tensors, NULL, &error) != TP_FORKED) return 1;
    if (strstr(error.text, "process") == NULL || error.status != TP_FORKED) return 2;
    if (tp_plan_run(plan, &c->tensors, exec, NULL, &error) != TP_FORKED) return 3;
    for (size_t i = 0; i < c->held.buffer[CALL_O].bytes; i++)
        if (((char *)c->held.buffer[CALL_O].memory)[i] != 0x5a) return 4;
    tp_context_destroy(context);
    return 0;
}

static void a_forked_child_gets_a_status(void **state) {
    (void)state;
    tp_context *context = call_context_new(call_pool_usable() ? 3 : 1);
    call *c = call_new("b2 h6/3 q300 k300 d40 bf16 causal", NULL);
    tp_plan *plan;
    tp_exec exec = TP_EXEC_INIT;
    int result = -1;
    assert_int_equal(tp_plan_create(context, &c->problem, NULL, &plan, NULL), TP_OK);
    exec.workspace_size = tp_plan_workspace(plan, 3);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    assert_int_equal(tp_plan_run(plan, &c->tensors, &exec, NULL, NULL), TP_OK);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(child(context, plan, c, &exec));
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    assert_int_equal(tp_plan_run(plan, &c->tensors, &exec, NULL, NULL),
                     TP_OK); /* the parent still can */
    free(exec.workspace);
    tp_plan_destroy(plan);
    tp_context_destroy(context);
    call_free(c);
}

/* A child may make its own context. */
static void a_forked_child_makes_its_own_context(void **state) {
    (void)state;
    call *c = call_new("h2 q30 k30 d8 f32", NULL);
    int result = -1;
    call_context();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        tp_context *context;
        tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
        options.threads = call_pool_usable() ? 2 : 1;
        alarm(20);
        if (tp_context_create(&options, &context, NULL)) _exit(1);
        if (tp_attention(context, &c->problem, NULL, &c->tensors, NULL, NULL)) _exit(2);
        tp_context_destroy(context);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    call_free(c);
}

typedef struct nested {
    tp_context *context;
    const tp_plan *plan;
    call *c;
    tp_exec exec;
    tp_error error;
    tp_status attention[4], run[4];
} nested;

static void nested_task(void *user, size_t index) {
    nested *n = user;
    tp_error error = TP_ERROR_INIT;
    n->attention[index] =
        tp_attention(n->context, &n->c->problem, NULL, &n->c->tensors, NULL, &error);
    if (index == 0) n->error = error;
    n->run[index] = tp_plan_run(n->plan, &n->c->tensors, &n->exec, NULL, NULL);
}

static void inside_a_task_it_is_busy(void **state) {
    (void)state;
    tp_context *context = call_context_new(1);
    call *c = call_new("h2 q30 k30 d8 f32", NULL);
    parallel p = {.threads = 2};
    tp_plan *plan;
    tp__parallel serial = {NULL, NULL, NULL}, threads = {NULL, parallel_threads, &p};
    assert_int_equal(tp_plan_create(context, &c->problem, NULL, &plan, NULL), TP_OK);
    for (int way = 0; way < 2; way++) {
        nested n = {.context = context, .plan = plan, .c = c, .exec = TP_EXEC_INIT};
        n.exec.workspace_size = tp_plan_workspace(plan, 1);
        n.exec.workspace = aligned_alloc(64, n.exec.workspace_size);
        alarm(20);
        tp__parallel_run(way == 0 ? &serial : &threads, COUNT(n.run), nested_task, &n);
        alarm(0);
        for (int i = 0; i < COUNT(n.run); i++) {
            assert_int_equal(n.attention[i], TP_BUSY);
            assert_int_equal(n.run[i], TP_BUSY);
        }
        assert_int_equal(n.error.status, TP_BUSY);
        assert_non_null(strstr(n.error.text, "task"));
        free(n.exec.workspace);
        /* and afterwards it is not */
        assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, NULL, NULL), TP_OK);
    }
    tp_plan_destroy(plan);
    tp_context_destroy(context);
    call_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_through_the_callers_parallel_for),
        cmocka_unit_test(no_task_without_rows),
        cmocka_unit_test(same_bits_on_the_contexts_pool),
#ifdef TILEPROOF_PTHREADPOOL
        cmocka_unit_test(a_pool_runs_tasks_at_once),
        cmocka_unit_test(same_bits_on_the_callers_pool),
#endif
        cmocka_unit_test(many_threads_run_one_plan),
        cmocka_unit_test(many_threads_call_one_context),
#if defined(__SSE__)
        cmocka_unit_test(the_callers_control_word_changes_nothing),
#endif
        cmocka_unit_test(a_forked_child_gets_a_status),
        cmocka_unit_test(a_forked_child_makes_its_own_context),
        cmocka_unit_test(inside_a_task_it_is_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
