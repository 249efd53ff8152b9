/* SPDX-License-Identifier: Apache-2.0 */
/* tp_plan_run allocates nothing and frees nothing; decisions give back what they took, and say so where there is no
   memory: this program's malloc counts, and fails when asked. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/parallel.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static atomic_int counting, counted;
static atomic_int held;            /* while counting: taken and not given back */
static atomic_int left = INT32_MAX; /* of calls that succeed */

#if !defined(SANITIZED) && defined(__GLIBC__)
#define INTERPOSED 1
#define SEEN       __attribute__((visibility("default"))) /* by the shared libraries too */
static void note(void) {
    if (atomic_load_explicit(&counting, memory_order_relaxed)) atomic_fetch_add(&counted, 1);
}

static void *noted(void *memory) {
    if (atomic_load_explicit(&counting, memory_order_relaxed) && memory != NULL) atomic_fetch_add(&held, 1);
    return memory;
}

static int fails(void) {
    return atomic_load_explicit(&counting, memory_order_relaxed) && atomic_fetch_sub(&left, 1) <= 0;
}

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

SEEN void *malloc(size_t size) {
    note();
    return fails() ? NULL : noted(__libc_malloc(size));
}
SEEN void *calloc(size_t count, size_t size) {
    note();
    return fails() ? NULL : noted(__libc_calloc(count, size));
}
SEEN void *realloc(void *memory, size_t size) {
    note();
    return __libc_realloc(memory, size);
}
SEEN void free(void *memory) {
    note();
    if (atomic_load_explicit(&counting, memory_order_relaxed) && memory != NULL) atomic_fetch_sub(&held, 1);
    __libc_free(memory);
}
SEEN void *aligned_alloc(size_t alignment, size_t size) {
    note();
    return noted(__libc_memalign(alignment, size));
}
SEEN int posix_memalign(void **memory, size_t alignment, size_t size) {
    note();
    *memory = noted(__libc_memalign(alignment, size));
    return *memory == NULL ? ENOMEM : 0;
}
#else
#define INTERPOSED 0
#endif

static const char *const texts[] = {
    "b2 h6/3 q300 k300 d40 bf16 causal scale=0.123",
    "h10/2 seqs=1x200/260,1x1/4200,1x0/9,3x30/30 d20/12 f32 packed causal",
    "h5/5 seqs=1x100/5000,4x64/64 d8 f16 padded window=70,-1",
};

/* Runs thrice, the first included: nothing is made on first use either. */
static void check(tp_context *context, const char *kernel, call *c, int tasks) {
    tp_choice choice = {sizeof choice, TP_PERMIT, NULL, kernel, NULL, TP_CPU, 0};
    tp_exec exec = TP_EXEC_INIT;
    parallel p = {.seed = 1};
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    tp_plan *plan;
    tp_receipt_init(&receipt);
    assert_int_equal(tp_plan_create(context, &c->problem, &choice, &plan, &error), TP_OK);
    exec.threads = tasks;
    exec.parallel_user = &p;
    if (!call_pool_usable()) exec.parallel_for = parallel_reverse;
    exec.workspace_size = tp_plan_workspace(plan, tasks);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    for (int n = 0; n < 3; n++) {
        atomic_store(&counted, 0);
        atomic_store(&counting, 1);
        tp_status status = tp_plan_run(plan, &c->tensors, &exec, &receipt, &error);
        atomic_store(&counting, 0);
        assert_int_equal(status, TP_OK);
        if (atomic_load(&counted) > 0)
            fail_msg("%s, %d tasks, run %d: %d calls of malloc or free", kernel, tasks, n,
                     atomic_load(&counted));
    }
    call_check(c, kernel);
    free(exec.workspace);
    tp_plan_destroy(plan);
}

static void a_run_allocates_nothing(void **state) {
    (void)state;
    if (!INTERPOSED) {
        printf("not run here under sanitizers\n");
        return;
    }
    atomic_store(&counted, 0);
    atomic_store(&counting, 1);
    void *volatile seen = malloc(1); /* that it does count */
    free(seen);
    atomic_store(&counting, 0);
    assert_int_equal(atomic_load(&counted), 2);
    tp_context *pool = call_context_new(call_pool_usable() ? 3 : 1);
    for (int n = 0; n < COUNT(texts); n++) {
        call *c = call_new(texts[n], NULL);
        for (int k = 0; call_kernel(k) != NULL; k++) {
            check(call_context(), call_kernel(k), c, 1);
            check(pool, call_kernel(k), c, 3);
        }
        call_free(c);
    }
    tp_context_destroy(pool);
}

/* Each is made with memory for n calls, n = 0, 1, ... until it is enough: no memory, or the right answer; and all is
   given back. The error text of a refusal is the answer, too. */
static void decisions_without_memory(void **state) {
    (void)state;
    static const struct {
        const char *text;
        tp_status status;
    } cases[] = {{"h4/2 q33 k65 d40 bf16 causal", TP_OK}, {"h4/2 q9 k65 d640 f32", TP_FALLBACK_REFUSED}};
    if (!INTERPOSED) {
        printf("not run here under sanitizers\n");
        return;
    }
    for (int n = 0; n < COUNT(cases); n++)
        for (int plans = 0; plans < 2; plans++) {
            tp_status status = TP_NO_MEMORY;
            tp_problem problem;
            assert_int_equal(tp_problem_parse(cases[n].text, &problem, NULL, NULL), TP_OK);
            for (int calls = 0; status == TP_NO_MEMORY; calls++) {
                tp_error error = TP_ERROR_INIT;
                tp_plan *plan = NULL;
                tp_decision *decision = NULL;
                atomic_store(&held, 0);
                atomic_store(&left, calls);
                atomic_store(&counting, 1);
                status = plans ? tp_plan_create(call_context(), &problem, NULL, &plan, &error)
                               : tp_explain(call_context(), &problem, NULL, &decision, &error);
                int made = plan != NULL || decision != NULL;
                tp_plan_destroy(plan);
                tp_decision_destroy(decision);
                atomic_store(&counting, 0);
                assert_int_equal(atomic_load(&held), 0);
                assert_true(strlen(error.text) > 0 || status == TP_OK);
                if (status == TP_NO_MEMORY) assert_false(made);
                if (status != TP_NO_MEMORY) assert_true(calls > 0); /* some memory is needed */
                assert_true(calls < 100);
            }
            assert_int_equal(status, cases[n].status);
        }
}

static int listen(void *cookie, const char *bytes, size_t size) {
    (void)bytes, (void)size;
    ++*(int *)cookie;
    return 0;
}

/* A cache of one decision meets three problems in turn, one of them refused, one never kept. */
static void a_context_gives_all_back(void **state) {
    (void)state;
    if (!INTERPOSED) {
        printf("not run here under sanitizers\n");
        return;
    }
    call *calls[] = {call_new("h4/2 q33 k65 d40 bf16 causal", NULL), call_new("h2 q3 k20 d8 f32", NULL),
                     call_new("h2 q9 k20 d640 f32", NULL)};
    for (int listens = 0; listens < 2; listens++) {
        tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
        tp_choice permit = TP_CHOICE_INIT;
        tp_context *context;
        int lines = 0;
        options.threads = options.cached_plans = 1;
        options.trace = listens ? listen : NULL;
        options.trace_cookie = &lines;
        permit.policy = TP_PERMIT;
        atomic_store(&held, 0);
        atomic_store(&left, INT32_MAX);
        atomic_store(&counting, 1);
        int wrong = tp_context_create(&options, &context, NULL);
        for (int round = 0; round < 2 && !wrong; round++)
            for (int n = 0; n < COUNT(calls); n++)
                for (int choice = 0; choice < 2; choice++) {
                    tp_status expected = n == 2 && !choice ? TP_FALLBACK_REFUSED : TP_OK;
                    wrong += tp_attention(context, &calls[n]->problem, choice ? &permit : NULL, &calls[n]->tensors, NULL,
                                          NULL) != expected;
                }
        tp_context_destroy(context);
        atomic_store(&counting, 0);
        assert_int_equal(wrong, 0);
        assert_int_equal(atomic_load(&held), 0);
        assert_int_equal(lines, listens ? 12 : 0);
    }
    for (int n = 0; n < COUNT(calls); n++) call_free(calls[n]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_allocates_nothing),
                                       cmocka_unit_test(decisions_without_memory),
                                       cmocka_unit_test(a_context_gives_all_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
