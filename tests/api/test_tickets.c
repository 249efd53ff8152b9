/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that nobody waits for: submitted, asked for, waited for, told of; and destroyed in any order that is allowed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/device_call.h"
#include "support/parallel.h"

#define TEXT "seqs=1x5/40,1x1/33,1x16/16 h4/2 d32 bf16 packed causal"

/* What a tp_done function was told. */
typedef struct heard {
    atomic_int times;
    tp_status status;
    char text[512];
    pthread_t thread;
    tp_ticket **destroy; /* NULL: nothing is to be destroyed there */
    device_call *again;  /* NULL: nothing is to be tried there */
    tp_ticket *open;     /* one that is not done */
    tp_status run, submit, wait, ask;
} heard;

static void hear(void *user, tp_status status, const char *text) {
    heard *h = user;
    h->status = status;
    snprintf(h->text, sizeof h->text, "%s", text);
    h->thread = pthread_self();
    if (h->again != NULL) {
        tp_exec exec = h->again->exec;
        exec.done = NULL;
        h->run = tp_plan_run(h->again->plan, &h->again->tensors, &exec, NULL, NULL);
        h->submit = tp_plan_submit(h->again->plan, &h->again->tensors, &exec, NULL, NULL, NULL);
        h->wait = tp_ticket_wait(h->open, -1, NULL);
        h->ask = tp_ticket_wait(h->open, 0, NULL);
    }
    if (h->destroy != NULL) tp_ticket_destroy(*h->destroy);
    atomic_fetch_add(&h->times, 1);
}

static tp_receipt empty_receipt(void) {
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    return receipt;
}

static tp_ticket *submit(device_call *c, tp_receipt *receipt) {
    tp_error error = TP_ERROR_INIT;
    tp_ticket *ticket;
    if (tp_plan_submit(c->plan, &c->tensors, &c->exec, receipt, &ticket, &error)) fail_msg("%s", error.text);
    assert_non_null(ticket);
    return ticket;
}

static void a_call_is_pending_until_the_device_has_done_it(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0);
    tp_receipt receipt = empty_receipt();
    tp_error error = TP_ERROR_INIT;
    heard h = {0};
    c->exec.done = hear;
    c->exec.done_user = &h;
    device_hold(d);
    tp_ticket *ticket = submit(c, &receipt);
    assert_non_null(tp_ticket_event(ticket));
    assert_int_equal(tp_ticket_wait(ticket, 0, &error), TP_PENDING);
    assert_non_null(strstr(error.text, "not done after 0 ns"));
    assert_int_equal(tp_ticket_wait(ticket, 1000000, NULL), TP_PENDING);
    assert_null(receipt.kernel);
    assert_int_equal(atomic_load(&h.times), 0);
    /* structs and index arrays of the host are the caller's again */
    memset((void *)(uintptr_t)c->tensors.cu_seqlens_q, 0x7f, 4 * sizeof(int32_t));
    memset(&c->tensors, 0x7f, sizeof c->tensors);
    memset(&c->exec.queue, 0x7f, sizeof c->exec.queue);
    device_resume(d);
    assert_int_equal(tp_ticket_wait(ticket, -1, &error), TP_OK);
    assert_int_equal(tp_ticket_wait(ticket, 0, NULL), TP_OK); /* as often as one likes */
    assert_int_equal(receipt.status, TP_OK);
    assert_string_equal(receipt.kernel, "test-fast");
    assert_string_equal(receipt.device, "test");
    assert_true(receipt.time_ns >= 1000000);
    tp_ticket_destroy(ticket); /* its tp_done has returned then */
    assert_int_equal(atomic_load(&h.times), 1);
    assert_int_equal(h.status, TP_OK);
    assert_string_equal(h.text, "");
    assert_false(pthread_equal(h.thread, pthread_self()));
    assert_int_equal(device_events(d), 0);
    device_call_check(c, TEXT);
    c->exec.queue = NULL;
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

static void the_cpu_is_done_at_once(void **state) {
    (void)state;
    tp_context *context = call_context();
    call *c = call_new(TEXT, NULL), *same = call_new(TEXT, NULL);
    tp_exec exec = TP_EXEC_INIT;
    tp_plan *plan;
    tp_ticket *ticket;
    tp_error error = TP_ERROR_INIT;
    heard h = {0};
    tp_receipt receipt = empty_receipt();
    assert_int_equal(tp_plan_create(context, &c->problem, NULL, &plan, NULL), TP_OK);
    assert_int_equal(tp_plan_device(plan), TP_CPU);
    exec.workspace_size = tp_plan_workspace(plan, 1);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    exec.done = hear;
    exec.done_user = &h;
    h.destroy = &ticket; /* it is set before its tp_done is called */
    memset(c->held.buffer[CALL_O].memory, 0xff, c->held.buffer[CALL_O].bytes);
    memset(c->held.buffer[CALL_LSE].memory, 0xff, c->held.buffer[CALL_LSE].bytes);
    assert_int_equal(tp_plan_submit(plan, &c->tensors, &exec, &receipt, &ticket, NULL), TP_OK);
    assert_int_equal(atomic_load(&h.times), 1);
    assert_true(pthread_equal(h.thread, pthread_self()));
    assert_string_equal(receipt.device, "cpu");
    call_run(same, &(call_how){0}, NULL);
    call_same(same, c, "submitted on the CPU");
    h.destroy = NULL;
    assert_int_equal(tp_plan_submit(plan, &c->tensors, &exec, NULL, &ticket, NULL), TP_OK);
    assert_int_equal(tp_ticket_wait(ticket, 0, NULL), TP_OK);
    assert_null(tp_ticket_event(ticket));
    tp_ticket_destroy(ticket);
    assert_int_equal(tp_plan_submit(plan, &c->tensors, &exec, NULL, NULL, NULL), TP_OK);
    assert_int_equal(atomic_load(&h.times), 3);
    /* what fails at once makes no ticket and calls nobody */
    exec.workspace_size = 1;
    assert_int_equal(tp_plan_submit(plan, &c->tensors, &exec, NULL, &ticket, &error), TP_WORKSPACE);
    assert_null(ticket);
    exec.queue = &h;
    assert_int_equal(tp_plan_submit(plan, &c->tensors, &exec, NULL, &ticket, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "exec.queue"));
    assert_int_equal(atomic_load(&h.times), 3);
    exec.queue = NULL;
    assert_int_equal(tp_plan_run(plan, &c->tensors, &exec, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "exec.done"));
    assert_int_equal(tp_plan_submit(NULL, &c->tensors, &exec, NULL, &ticket, NULL), TP_INVALID);
    assert_int_equal(tp_ticket_wait(NULL, 0, NULL), TP_INVALID);
    assert_null(tp_ticket_event(NULL));
    tp_ticket_destroy(NULL);
    free(exec.workspace);
    tp_plan_destroy(plan);
    call_free(same);
    call_free(c);
}

enum { CALLS = 24 };

static void many_calls_are_on_their_way_at_once(void **state) {
    (void)state;
    static const char *const texts[] = {TEXT, "h4/2 q40 k60 d32 bf16 causal", "b3 h2 q1 k200 d16 f32 padded"};
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c[CALLS];
    tp_ticket *ticket[CALLS];
    tp_receipt receipt[CALLS];
    device_hold(d);
    for (int i = 0; i < CALLS; i++) {
        c[i] = device_call_new(context, texts[i % COUNT(texts)], i % 2);
        receipt[i] = empty_receipt();
        ticket[i] = submit(c[i], &receipt[i]);
    }
    for (int i = 0; i < CALLS; i++) assert_int_equal(tp_ticket_wait(ticket[i], 0, NULL), TP_PENDING);
    device_resume(d);
    for (int i = CALLS; i-- > 0;) { /* the last first */
        assert_int_equal(tp_ticket_wait(ticket[i], -1, NULL), TP_OK);
        device_call_check(c[i], texts[i % COUNT(texts)]);
        assert_string_equal(receipt[i].kernel, "test-fast");
        tp_ticket_destroy(ticket[i]);
        device_call_free(c[i]);
    }
    tp_counters counters = {.struct_size = sizeof counters};
    assert_int_equal(tp_context_counters(context, &counters), TP_OK);
    assert_int_equal(counters.calls, CALLS);
    tp_context_destroy(context);
    device_free(d);
}

typedef struct crowd {
    tp_ticket *ticket;
    device_call *c;
    atomic_int right;
} crowd;

static void wait_for_one(void *user, int index) {
    crowd *w = user;
    if (index == 0) return;
    atomic_fetch_add(&w->right, tp_ticket_wait(w->ticket, index % 2 ? -1 : 20000000000, NULL) == TP_OK);
}

static void call_often(void *user, int index) {
    crowd *w = user;
    (void)index;
    device_call *c = device_call_new(w->c->context, TEXT, index % 2);
    for (int i = 0; i < 8; i++) {
        tp_receipt receipt = empty_receipt();
        tp_ticket *ticket = submit(c, &receipt);
        atomic_fetch_add(&w->right, tp_ticket_wait(ticket, -1, NULL) == TP_OK && receipt.kernel != NULL);
        tp_ticket_destroy(ticket);
        atomic_fetch_add(&w->right, tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, NULL) == TP_OK);
    }
    device_call_check(c, TEXT);
    device_call_free(c);
}

static void any_number_of_threads_submit_and_wait(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    crowd w = {.c = device_call_new(context, TEXT, 1)};
    device_hold(d);
    w.ticket = submit(w.c, NULL);
    device_resume(d);
    parallel_each(6, wait_for_one, &w);
    assert_int_equal(atomic_load(&w.right), 5);
    tp_ticket_destroy(w.ticket);
    parallel_each(4, call_often, &w);
    assert_int_equal(atomic_load(&w.right), 5 + 4 * 8 * 2);
    device_call_free(w.c);
    tp_context_destroy(context);
    device_free(d);
}

static void inside_tp_done_nothing_waits(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0), *other = device_call_new(context, TEXT, 0);
    heard h = {.again = other};
    c->exec.done = hear;
    c->exec.done_user = &h;
    device_hold(d);
    tp_ticket *ticket = submit(c, NULL);
    h.open = submit(other, NULL); /* behind it on the only thread of the device */
    device_resume(d);
    tp_ticket_destroy(ticket);
    assert_int_equal(atomic_load(&h.times), 1);
    assert_int_equal(h.run, TP_BUSY);
    assert_int_equal(h.submit, TP_BUSY);
    assert_int_equal(h.wait, TP_BUSY);
    assert_int_equal(h.ask, TP_PENDING);
    assert_int_equal(tp_ticket_wait(h.open, -1, NULL), TP_OK);
    tp_ticket_destroy(h.open);
    device_call_free(other);
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* By its tp_done, without a ticket, before submit returns. */
static void a_ticket_may_go_at_any_time(void **state) {
    (void)state;
    for (int at_once = 0; at_once < 2; at_once++) {
        device *d = device_new();
        if (at_once) device_at_once(d);
        tp_context *context = device_context(d, NULL);
        device_call *c = device_call_new(context, TEXT, 0);
        tp_ticket *ticket[16];
        heard h[16] = {{0}};
        c->exec.done = hear;
        for (int i = 0; i < 16; i++) {
            int wanted = i % 2;
            c->exec.done_user = &h[i];
            if (wanted) h[i].destroy = &ticket[i];
            assert_int_equal(tp_plan_submit(c->plan, &c->tensors, &c->exec, NULL, wanted ? &ticket[i] : NULL, NULL), TP_OK);
        }
        tp_plan_destroy(c->plan); /* waits */
        for (int i = 0; i < 16; i++) assert_int_equal(atomic_load(&h[i].times), 1);
        c->plan = NULL;
        device_call_check(c, TEXT);
        device_call_free(c);
        assert_int_equal(device_events(d), 0);
        tp_context_destroy(context);
        device_free(d);
    }
}

typedef struct late {
    device *d;
    atomic_int begun;
} late;

static void *resume_later(void *user) {
    late *l = user;
    usleep(20000);
    assert_int_equal(device_begun(l->d), 0);
    device_resume(l->d);
    return NULL;
}

static void destroying_waits_for_what_is_open(void **state) {
    (void)state;
    for (int what = 0; what < 3; what++) {
        late l = {.d = device_new()};
        tp_context *context = device_context(l.d, NULL);
        device_call *c = device_call_new(context, TEXT, 0);
        pthread_t thread;
        heard h = {0};
        tp_ticket *ticket = NULL;
        c->exec.done = hear;
        c->exec.done_user = &h;
        device_hold(l.d);
        assert_int_equal(tp_plan_submit(c->plan, &c->tensors, &c->exec, NULL, what == 0 ? &ticket : NULL, NULL), TP_OK);
        assert_int_equal(pthread_create(&thread, NULL, resume_later, &l), 0);
        if (what == 0) tp_ticket_destroy(ticket);
        if (what == 1) {
            tp_plan_destroy(c->plan);
            c->plan = NULL;
        }
        if (what == 2) { /* the plan's own call is over by then; the context's wait is for all of them */
            tp_plan *another;
            tp_choice choice = device_choice();
            assert_int_equal(tp_plan_create(context, &c->c->problem, &choice, &another, NULL), TP_OK);
            tp_plan_destroy(another); /* of no open call: at once */
            assert_int_equal(atomic_load(&h.times), 0);
            tp_plan_destroy(c->plan);
            c->plan = NULL;
        }
        assert_int_equal(atomic_load(&h.times), 1);
        pthread_join(thread, NULL);
        device_call_free(c);
        tp_context_destroy(context);
        device_free(l.d);
    }
}

/* The parent's call is on its way; a child has its memory, and neither its device nor its threads. */
static void a_forked_child_waits_for_nothing(void **state) {
    (void)state;
    if (!call_pool_usable()) {
        print_message("not run here: fork, under the thread sanitizer\n");
        return;
    }
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0);
    device_hold(d);
    tp_ticket *ticket = submit(c, NULL);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        void *memory = NULL;
        alarm(30); /* a hang is a failure */
        int wrong = tp_ticket_wait(ticket, -1, NULL) != TP_FORKED;
        wrong |= (tp_ticket_event(ticket) != NULL) << 1;
        wrong |= (tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, NULL) != TP_FORKED) << 2;
        wrong |= (tp_plan_submit(c->plan, &c->tensors, &c->exec, NULL, NULL, NULL) != TP_FORKED) << 3;
        wrong |= (tp_memory_allocate(context, DEVICE_NUMBER, 64, &memory, NULL) != TP_FORKED) << 4;
        tp_ticket_destroy(ticket);
        tp_plan_destroy(c->plan);
        tp_context_destroy(context);
        _exit(wrong);
    }
    int result = -1;
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_int_equal(result, 0);
    device_resume(d);
    assert_int_equal(tp_ticket_wait(ticket, -1, NULL), TP_OK);
    tp_ticket_destroy(ticket);
    device_call_check(c, TEXT);
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* What fails after submit has returned is heard of by everybody who can hear of it. */
static void a_late_failure_arrives_everywhere(void **state) {
    (void)state;
    static const struct {
        device_fault fault;
        const char *text;
    } cases[] = {
        {DEVICE_LATE, "test: done: the device was lost"},
        {DEVICE_STRANGE, "test: done: it failed, without saying why"},
        {DEVICE_IDLE, "counted 0 tiles, and 12 were planned"},
        {DEVICE_MARK, "kernel test-slow left its mark on the device, and the plan's is test-fast"},
    };
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0);
    for (int i = 0; i < COUNT(cases); i++) {
        tp_receipt receipt = empty_receipt();
        tp_error error = TP_ERROR_INIT;
        heard h = {0};
        c->exec.done = hear;
        c->exec.done_user = &h;
        device_fail(d, cases[i].fault, 1);
        tp_ticket *ticket = submit(c, &receipt);
        assert_int_equal(tp_ticket_wait(ticket, -1, &error), TP_DEVICE_FAILED);
        assert_int_equal(error.status, TP_DEVICE_FAILED);
        if (strstr(error.text, cases[i].text) == NULL) fail_msg("%s", error.text);
        assert_int_equal(receipt.status, TP_DEVICE_FAILED);
        tp_ticket_destroy(ticket);
        assert_int_equal(h.status, TP_DEVICE_FAILED);
        assert_string_equal(h.text, error.text);
        /* and by those who wait from the start */
        c->exec.done = NULL;
        device_fail(d, cases[i].fault, 1);
        receipt = empty_receipt();
        memset(&error, 0, sizeof error);
        error.struct_size = sizeof error;
        assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, &receipt, &error), TP_DEVICE_FAILED);
        if (strstr(error.text, cases[i].text) == NULL) fail_msg("%s", error.text);
        assert_null(receipt.kernel);
    }
    tp_counters counters = {.struct_size = sizeof counters};
    assert_int_equal(tp_context_counters(context, &counters), TP_OK);
    assert_int_equal(counters.calls, 0); /* none was completed */
    device_call_poison(c);
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, NULL), TP_OK); /* it goes on */
    device_call_check(c, TEXT);
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_is_pending_until_the_device_has_done_it),
        cmocka_unit_test(the_cpu_is_done_at_once),
        cmocka_unit_test(many_calls_are_on_their_way_at_once),
        cmocka_unit_test(any_number_of_threads_submit_and_wait),
        cmocka_unit_test(inside_tp_done_nothing_waits),
        cmocka_unit_test(a_ticket_may_go_at_any_time),
        cmocka_unit_test(destroying_waits_for_what_is_open),
        cmocka_unit_test(a_forked_child_waits_for_nothing),
        cmocka_unit_test(a_late_failure_arrives_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
