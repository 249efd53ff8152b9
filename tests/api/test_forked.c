/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child: every function that takes a context or a plan gives an answer there, whatever the parent's threads
   were doing at that instant, and none waits for a lock that nobody will open. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/call.h"
#include "support/parallel.h"

/* What a child is given. */
typedef struct given {
    tp_context *context;
    tp_plan *plan;
    call *c;
    tp_exec exec;
    tp_permit permit;
    int *reached; /* shared with the parent: which function the child called last */
} given;

static int swallow(void *cookie, const char *bytes, size_t size) {
    (void)cookie, (void)bytes, (void)size;
    return 0;
}

static void ignore(void *user, const tp_event *event) { (void)user, (void)event; }

/* Each gives 1 when the answer is right. header.sh holds these names against the header. */
#define ASK(name) static int ask_##name(given *g)
#define FORKED(expression) return (expression) == TP_FORKED
ASK(tp_attention) { FORKED(tp_attention(g->context, &g->c->problem, NULL, &g->c->tensors, NULL, NULL)); }
ASK(tp_backward) { FORKED(tp_backward(g->context, &g->c->problem, NULL, &g->c->tensors, NULL, NULL)); }
ASK(tp_plan_run) { FORKED(tp_plan_run(g->plan, &g->c->tensors, &g->exec, NULL, NULL)); }
ASK(tp_plan_create) {
    tp_plan *plan;
    FORKED(tp_plan_create(g->context, &g->c->problem, NULL, &plan, NULL));
}
ASK(tp_explain) {
    tp_decision *decision;
    FORKED(tp_explain(g->context, &g->c->problem, NULL, &decision, NULL));
}
ASK(tp_context_permit) { FORKED(tp_context_permit(g->context, &g->permit, 1, NULL)); }
ASK(tp_context_counters) {
    tp_counters counters = {.struct_size = sizeof counters};
    FORKED(tp_context_counters(g->context, &counters));
}
ASK(tp_context_count_next) {
    tp_count count = {.struct_size = sizeof count};
    int64_t at = 0;
    return tp_context_count_next(g->context, &at, &count) == 0;
}
ASK(tp_context_lock_state) {
    tp_lock_state state = {.struct_size = sizeof state};
    FORKED(tp_context_lock_state(g->context, &state, NULL));
}
ASK(tp_metrics_write) { FORKED(tp_metrics_write(g->context, swallow, NULL)); }
ASK(tp_recorder_write) { FORKED(tp_recorder_write(g->context, swallow, NULL)); }
ASK(tp_measure_fma) {
    double rate;
    FORKED(tp_measure_fma(g->context, "generic", 1, &rate, NULL));
}
ASK(tp_measure_read) {
    double rate;
    FORKED(tp_measure_read(g->context, "generic", 1, g, 1 << 20, 1, &rate, NULL));
}
ASK(tp_context_threads) { return tp_context_threads(g->context) > 0; }
ASK(tp_context_machine) { return tp_context_machine(g->context) != NULL; }
ASK(tp_plan_decision) { return tp_plan_decision(g->plan) != NULL; }
ASK(tp_plan_workspace) { return tp_plan_workspace(g->plan, 2) > 0; }
ASK(tp_plan_device) { return tp_plan_device(g->plan) == TP_CPU; }
ASK(tp_plan_submit) { FORKED(tp_plan_submit(g->plan, &g->c->tensors, &g->exec, NULL, NULL, NULL)); }
ASK(tp_memory_allocate) {
    void *memory;
    FORKED(tp_memory_allocate(g->context, TP_CPU, 64, &memory, NULL));
}
ASK(tp_memory_free) { FORKED(tp_memory_free(g->context, TP_CPU, g->exec.workspace, 64, NULL)); }
ASK(tp_memory_copy) { FORKED(tp_memory_copy(g->context, TP_CPU, g->exec.workspace, TP_CPU, g, 64, NULL)); }
ASK(tp_plan_destroy) { return tp_plan_destroy(g->plan), 1; }
ASK(tp_context_destroy) { return tp_context_destroy(g->context), 1; }

static const struct {
    const char *name;
    int (*ask)(given *);
    int frees; /* takes locks of the C library, which only its own fork keeps in order */
} asks[] = {
#define ROW(name, frees) {#name, ask_##name, frees}
    ROW(tp_attention, 0),         ROW(tp_backward, 0),           ROW(tp_plan_run, 0),
    ROW(tp_plan_create, 0),       ROW(tp_explain, 0),            ROW(tp_context_permit, 0),
    ROW(tp_context_counters, 0),  ROW(tp_context_count_next, 0), ROW(tp_context_lock_state, 0),
    ROW(tp_metrics_write, 0),     ROW(tp_recorder_write, 0),     ROW(tp_measure_fma, 0),
    ROW(tp_measure_read, 0),      ROW(tp_context_threads, 0),    ROW(tp_context_machine, 0),
    ROW(tp_plan_decision, 0),     ROW(tp_plan_workspace, 0),     ROW(tp_plan_device, 0),
    ROW(tp_plan_submit, 0),       ROW(tp_memory_allocate, 0),    ROW(tp_memory_free, 0),
    ROW(tp_memory_copy, 0),       ROW(tp_plan_destroy, 1),
    ROW(tp_context_destroy, 1),
};

enum { HANGS = 99 };

static void give_up(int signal) {
    (void)signal;
    _exit(HANGS);
}

/* The child's exit code: 0 when all answers were right. Takes no memory. */
static int ask_all(given *g, int may_free) {
    signal(SIGALRM, give_up); /* as the first process of a namespace it would not die of it */
    for (int i = 0; i < COUNT(asks); i++) {
        if (asks[i].frees && !may_free) continue;
        *g->reached = i;
        alarm(30); /* a hang is a failure */
        if (!asks[i].ask(g)) return 1;
    }
    return 0;
}

static void fill(given *g, int *reached) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_decision *decision;
    options.threads = call_pool_usable() ? 2 : 1;
    options.policy = TP_LOCKED; /* a decision then asks the permits */
    options.recorded = 8;
    options.event = ignore;
    options.trace = options.dump = swallow;
    *g = (given){.c = call_new("h2 q40 k40 d8 f32 causal", NULL), .exec = TP_EXEC_INIT, .reached = reached};
    assert_int_equal(tp_context_create(&options, &g->context, NULL), TP_OK);
    assert_int_equal(tp_explain(g->context, &g->c->problem, NULL, &decision, NULL), TP_NOT_LOCKED);
    g->permit = (tp_permit){strdup(decision->problem_class), call_kernel(0)};
    tp_decision_destroy(decision);
    assert_int_equal(tp_context_permit(g->context, &g->permit, 1, NULL), TP_OK);
    assert_int_equal(tp_plan_create(g->context, &g->c->problem, NULL, &g->plan, NULL), TP_OK);
    g->exec.workspace_size = tp_plan_workspace(g->plan, 2);
    g->exec.workspace = aligned_alloc(64, g->exec.workspace_size);
}

static void empty(given *g) {
    tp_plan_destroy(g->plan);
    tp_context_destroy(g->context);
    free(g->exec.workspace);
    free((char *)g->permit.problem_class);
    call_free(g->c);
}

/* What the parent's threads do meanwhile, each something that takes another lock. */
typedef struct hammer {
    given *g;
    call *own[5];
    atomic_int stop;
} hammer;

static void *strike(void *user, int index) {
    hammer *h = user;
    given *g = h->g;
    call *own = h->own[index];
    for (int64_t i = 0; !atomic_load(&h->stop); i++) {
        tp_decision *decision = NULL;
        switch (index) {
        case 0:
        case 1: /* plans anew, runs, is refused */
            own->problem.q_len = own->problem.kv_len = own->tensors.q_len = own->tensors.kv_len = 40 + 8 * (i % 5);
            tp_attention(g->context, &own->problem, NULL, &own->tensors, NULL, NULL);
            break;
        case 2: tp_explain(g->context, &own->problem, NULL, &decision, NULL); break;
        case 3: tp_context_permit(g->context, i % 2 ? NULL : &g->permit, i % 2 ? 0 : 1, NULL); break;
        default: tp_recorder_write(g->context, swallow, NULL); break;
        }
        tp_decision_destroy(decision);
    }
    return NULL;
}

static void strike_until_told(void *user, int index) { strike(user, index); }

static void *strike_all(void *user) {
    parallel_each(5, strike_until_told, user);
    return NULL;
}

static pid_t by_fork(void) { return fork(); }
static pid_t by_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); }

/* Waits for a child and says where it stood. */
static void judge(pid_t pid, const given *g, const char *what) {
    int result = -1;
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &result, 0), pid);
    if (WIFEXITED(result) && WEXITSTATUS(result) == 0) return;
    print_message("%s, %s: %s\n", what, asks[*g->reached].name,
                  WIFSIGNALED(result)            ? strsignal(WTERMSIG(result))
                  : WEXITSTATUS(result) == HANGS ? "it hangs"
                                                 : "a wrong answer");
    fail();
}

static int *shared_int(void) {
    int *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    return at;
}

static void at_any_instant_every_function_answers(void **state) {
    (void)state;
    given g;
    int *reached = shared_int(), rounds = call_quick() ? 60 : 300;
    fill(&g, reached);
    hammer h = {.g = &g};
    pthread_t all;
    for (int i = 0; i < COUNT(h.own); i++) h.own[i] = call_new("h2 q80 k80 d8 f32 causal", NULL);
    assert_int_equal(pthread_create(&all, NULL, strike_all, &h), 0);
    fflush(NULL);
    for (int i = 0; i < rounds; i++) {
        int cloned = i % 3 == 2;
        pid_t pid = cloned ? by_clone() : by_fork();
        if (pid == 0) _exit(ask_all(&g, !cloned));
        judge(pid, &g, cloned ? "by clone" : "by fork");
    }
    atomic_store(&h.stop, 1);
    pthread_join(all, NULL);
    for (int i = 0; i < COUNT(h.own); i++) call_free(h.own[i]);
    empty(&g);
    munmap(reached, sizeof *reached);
}

/* The linker leads this program's calls of free here (--wrap): right behind each of them, in the middle of whatever the
   library is doing, a child is made. */
void __real_free(void *memory);
void __wrap_free(void *memory);
static given *fork_behind_free;
static int forks;

void __wrap_free(void *memory) {
    __real_free(memory);
    given *g = fork_behind_free;
    if (g == NULL) return;
    fork_behind_free = NULL; /* what follows frees, too */
    pid_t pid = fork();
    if (pid == 0) _exit(ask_all(g, 1));
    judge(pid, g, "behind a free");
    forks++;
    fork_behind_free = g;
}

static void in_the_middle_of_a_change_every_function_answers(void **state) {
    (void)state;
    given g;
    int *reached = shared_int();
    fill(&g, reached);
    fflush(NULL);
    for (int i = 0; i < 6; i++) {
        int before = forks;
        char text[64];
        snprintf(text, sizeof text, "h2 q%d k%d d8 f32 causal", 40 << i, 40 << i); /* the workspace grows */
        call *c = call_new(text, NULL);
        fork_behind_free = &g;
        tp_status permitted = tp_context_permit(g.context, &g.permit, 1, NULL);
        tp_status ran = tp_attention(g.context, &c->problem, NULL, &c->tensors, NULL, NULL);
        tp_status taken_back = tp_context_permit(g.context, NULL, 0, NULL);
        fork_behind_free = NULL;
        assert_int_equal(permitted, TP_OK);
        assert_int_equal(ran, TP_OK);
        assert_int_equal(taken_back, TP_OK);
        assert_true(forks > before);
        call_free(c);
    }
    empty(&g);
    munmap(reached, sizeof *reached);
}

/* A child that forks once more. */
static void a_childs_child_gets_the_same_answers(void **state) {
    (void)state;
    given g;
    int *reached = shared_int();
    fill(&g, reached);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        pid_t inner = fork();
        int result = -1;
        if (inner == 0) _exit(ask_all(&g, 1));
        if (waitpid(inner, &result, 0) != inner || result != 0) _exit(1);
        _exit(ask_all(&g, 1));
    }
    judge(pid, &g, "a child's child");
    empty(&g);
    munmap(reached, sizeof *reached);
}

/* The first process of a pid namespace has number 1, and so has its child in one of its own. */
static int first_process(int *reached, pid_t (*way)(void)) {
    given g;
    int result = -1;
    if (getpid() != 1) return 2;
    fill(&g, reached);
    if (unshare(CLONE_NEWPID)) return 3;
    pid_t pid = way();
    if (pid == 0) _exit(syscall(SYS_getpid) == 1 ? ask_all(&g, way == by_fork) : 4);
    if (waitpid(pid, &result, 0) != pid) return 5;
    return WIFEXITED(result) ? WEXITSTATUS(result) : 6;
}

/* Old kernels do not, nor do emulators that ignore advice: there the process id is all there is. */
static int pages_are_cleared(void) {
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int result = -1;
    assert_true(page != MAP_FAILED);
    madvise(page, 4096, MADV_WIPEONFORK);
    *page = 1;
    pid_t pid = fork();
    if (pid == 0) _exit(*(volatile unsigned char *)page);
    assert_int_equal(waitpid(pid, &result, 0), pid);
    munmap(page, 4096);
    return result == 0;
}

static void process_one_notices_that_its_child_is_another(void **state) {
    (void)state;
    if (!pages_are_cleared()) {
        print_message("not run here: process 1 and its child, on a system that clears no page in a child\n");
        return;
    }
    int *reached = shared_int();
    for (int way = 0; way < 2; way++) {
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) { /* its own child is the first process of a namespace */
            int result = -1;
            if (unshare(CLONE_NEWPID)) _exit(77);
            pid_t first = fork();
            if (first == 0) _exit(first_process(reached, way == 0 ? by_fork : by_clone));
            if (waitpid(first, &result, 0) != first || !WIFEXITED(result)) _exit(1);
            _exit(WEXITSTATUS(result));
        }
        int result = -1;
        assert_int_equal(waitpid(pid, &result, 0), pid);
        assert_true(WIFEXITED(result));
        if (WEXITSTATUS(result) == 77) {
            print_message("not run here: pid namespaces, which this user may not make\n");
            break;
        }
        if (WEXITSTATUS(result) != 0)
            print_message("code %d at %s\n", WEXITSTATUS(result), asks[*reached].name);
        assert_int_equal(WEXITSTATUS(result), 0);
    }
    munmap(reached, sizeof *reached);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_any_instant_every_function_answers),
        cmocka_unit_test(in_the_middle_of_a_change_every_function_answers),
        cmocka_unit_test(a_childs_child_gets_the_same_answers),
        cmocka_unit_test(process_one_notices_that_its_child_is_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
