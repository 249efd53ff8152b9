/* SPDX-License-Identifier: Apache-2.0 */
/* tp_plan_run allocates nothing and frees nothing: this program's malloc counts. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

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

#if !defined(SANITIZED) && defined(__GLIBC__)
#define INTERPOSED 1
#define SEEN       __attribute__((visibility("default"))) /* by the shared libraries too */
static void note(void) {
    if (atomic_load_explicit(&counting, memory_order_relaxed)) atomic_fetch_add(&counted, 1);
}

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

SEEN void *malloc(size_t size) {
    note();
    return __libc_malloc(size);
}
SEEN void *calloc(size_t count, size_t size) {
    note();
    return __libc_calloc(count, size);
}
SEEN void *realloc(void *memory, size_t size) {
    note();
    return __libc_realloc(memory, size);
}
SEEN void free(void *memory) {
    note();
    __libc_free(memory);
}
SEEN void *aligned_alloc(size_t alignment, size_t size) {
    note();
    return __libc_memalign(alignment, size);
}
SEEN int posix_memalign(void **memory, size_t alignment, size_t size) {
    note();
    *memory = __libc_memalign(alignment, size);
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
    tp_choice choice = {sizeof choice, TP_PERMIT, NULL, kernel, NULL};
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
