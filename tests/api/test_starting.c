/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that cannot be started: a context says so, and never waits for them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/call.h"

/* The fault injector: this program's pthread_create comes before the C library's, for the library under test and for
   libpthreadpool alike. It refuses the call of a number, or any call while so many threads exist. */
static struct {
    atomic_int calls, exist;
    int refused_call; /* from 1; 0: none */
    int max;         /* -1: no limit */
} threads = {.max = -1};

/* No memory is asked for: a thread that does gets an arena of its own, which takes address space. */
static struct start {
    void *(*body)(void *);
    void *user;
} starts[1 << 12];

static void *counted(void *one) {
    const struct start *s = one;
    void *result = s->body(s->user);
    atomic_fetch_sub(&threads.exist, 1);
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *user) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static atomic_int place;
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    int number = atomic_fetch_add(&threads.calls, 1) + 1, exist = atomic_fetch_add(&threads.exist, 1);
    struct start *s = &starts[atomic_fetch_add(&place, 1) % COUNT(starts)];
    *s = (struct start){body, user};
    int refused = number == threads.refused_call || (threads.max >= 0 && exist >= threads.max);
    int reason = refused ? EAGAIN : real(thread, attributes, counted, s);
    if (reason != 0) atomic_fetch_sub(&threads.exist, 1);
    return reason;
}

static tp_status create(int count, tp_context **context, tp_error *error) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    options.threads = count;
    return tp_context_create(&options, context, error);
}

/* Says what was asked, what there is and what to do. */
static int is_told(const tp_error *error, int asked, int can) {
    char words[64];
    snprintf(words, sizeof words, "threads is %d: %d can be had", asked, can);
    return error->status == TP_NO_MEMORY && strstr(error->text, words) != NULL &&
           strstr(error->text, "tp_context_options.threads") != NULL && strstr(error->text, "ulimit -u") != NULL;
}

#ifdef TILEPROOF_PTHREADPOOL
static void use(tp_context *context) {
    call *c = call_new("b2 h4/2 q90 k90 d16 f32 causal", NULL);
    assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, NULL, NULL), TP_OK);
    call_free(c);
}

static void every_first_failure_is_told(void **state) {
    (void)state;
    enum { ASKED = 9 };
    for (int n = 1; n < ASKED; n++) {
        tp_context *context = (tp_context *)&threads;
        tp_error error = TP_ERROR_INIT;
        atomic_store(&threads.calls, 0);
        threads.refused_call = n;
        alarm(60); /* a hang is a failure */
        assert_int_equal(create(ASKED, &context, &error), TP_NO_MEMORY);
        alarm(0);
        threads.refused_call = 0;
        assert_null(context);
        assert_true(is_told(&error, ASKED, n));
        assert_int_equal(atomic_load(&threads.exist), 0); /* those that were started have ended */
    }
}

static void every_limit_is_told_or_kept(void **state) {
    (void)state;
    for (int max = 0; max <= 9; max++)
        for (int asked = 1; asked <= 8; asked++) {
            tp_context *context;
            tp_error error = TP_ERROR_INIT;
            threads.max = max;
            alarm(60);
            tp_status status = create(asked, &context, &error);
            if (asked - 1 <= max) {
                assert_int_equal(status, TP_OK);
                assert_int_equal(tp_context_threads(context), asked);
                use(context);
            } else {
                assert_int_equal(status, TP_NO_MEMORY);
                assert_true(is_told(&error, asked, max + 1));
            }
            tp_context_destroy(context);
            alarm(0);
            threads.max = -1;
            assert_int_equal(atomic_load(&threads.exist), 0);
        }
}

/* What a child says: 0 refused in words, 1 a context of that many was made and runs, others are wrong. */
static int ask_in_child(int resource, rlim_t limit, int asked) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit now = {limit, limit};
        tp_context *context;
        tp_error error = TP_ERROR_INIT;
        call *c = call_new("b2 h4/2 q90 k90 d16 f32 causal", NULL);
        alarm(60);
        if (setrlimit(resource, &now)) _exit(10);
        /* a user of its own, because processes are counted by user, and root's are not limited */
        if (resource == RLIMIT_NPROC && geteuid() == 0 && setresuid(54321, 54321, 54321)) _exit(11);
        tp_status status = create(asked, &context, &error);
        if (status != TP_OK) _exit(error.status == TP_NO_MEMORY && strstr(error.text, "can be had") ? 0 : 12);
        if (tp_context_threads(context) != asked) _exit(13);
        if (tp_attention(context, &c->problem, NULL, &c->tensors, NULL, NULL)) _exit(14);
        tp_context_destroy(context);
        _exit(1);
    }
    int result = -1;
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

static void limits_of_the_system_are_told(void **state) {
    (void)state;
    if (geteuid() == 0) {
        /* at the very limit too, again and again: threads that have just ended must not count */
        for (int limit = 2; limit <= 8; limit += 2)
            for (int asked = limit - 1; asked <= limit + 1; asked++)
                assert_int_equal(ask_in_child(RLIMIT_NPROC, (rlim_t)limit, asked), asked <= limit);
    } else {
        print_message("not run here: limits of processes at each number, which need root\n");
        assert_int_equal(ask_in_child(RLIMIT_NPROC, 1, 16), 0);
    }
#ifdef __SANITIZE_ADDRESS__
    print_message("not run here: a limit of address space, of which the address sanitizer reserves terabytes\n");
#else
    struct rlimit stack;
    assert_int_equal(getrlimit(RLIMIT_STACK, &stack), 0);
    int seen[2] = {0, 0};
    for (rlim_t megabytes = 64; megabytes <= 448; megabytes += 48) {
        int said = ask_in_child(RLIMIT_AS, megabytes << 20, 24);
        assert_true(said == 0 || said == 1);
        seen[said]++;
    }
    assert_true(seen[0] > 0); /* and where stacks are 8 MB, as is usual, both are met */
    if (stack.rlim_cur == 8 << 20) assert_true(seen[1] > 0);
#endif
}
#else
static void without_a_pool_there_is_one_thread(void **state) {
    (void)state;
    tp_context *context;
    threads.max = 0;
    assert_int_equal(create(9, &context, NULL), TP_OK);
    assert_int_equal(tp_context_threads(context), 1);
    tp_context_destroy(context);
    threads.max = -1;
    (void)is_told;
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#ifdef TILEPROOF_PTHREADPOOL
        cmocka_unit_test(every_first_failure_is_told),
        cmocka_unit_test(every_limit_is_told_or_kept),
        cmocka_unit_test(limits_of_the_system_are_told),
#else
        cmocka_unit_test(without_a_pool_there_is_one_thread),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
