/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of host and device, each step of a call failing, and what is given wrong: tensors, choices, backends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device_call.h"

#define TEXT "h4/2 q40 k60 d32 bf16 causal"

static tp_error fresh_error(void) { return (tp_error)TP_ERROR_INIT; }

/* ---- memory */

typedef struct meter {
    size_t held;
    int taken, given, fails, crooked;
    char *last;
} meter;

static void *metered(void *user, size_t bytes, size_t alignment) {
    meter *m = user;
    assert_int_equal(alignment, 64);
    assert_int_equal(bytes % 64, 0);
    if (m->fails > 0 && m->fails-- > 0) return NULL;
    m->taken++;
    m->held += bytes;
    m->last = aligned_alloc(64, bytes + 64);
    return m->last + (m->crooked ? 8 : 0);
}

static void unmetered(void *user, void *memory, size_t bytes) {
    meter *m = user;
    m->given++;
    m->held -= bytes;
    free((char *)memory - (m->crooked ? 8 : 0));
}

static void the_context_takes_its_workspace_from_the_allocator(void **state) {
    (void)state;
    meter m = {0};
    tp_allocator allocator = TP_ALLOCATOR_INIT;
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    tp_error error = fresh_error();
    allocator.allocate = metered;
    allocator.user = &m;
    options.threads = 1;
    options.allocator = &allocator;
    assert_int_equal(tp_context_create(&options, &context, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "allocator.release is NULL"));
    allocator.release = unmetered;
    assert_int_equal(tp_context_create(&options, &context, &error), TP_OK);
    memset(&allocator, 0xa5, sizeof allocator); /* copied */
    for (int i = 0; i < 3; i++) {
        char text[64];
        snprintf(text, sizeof text, "h2 q%d k%d d%d f32 causal", 40 << i, 40 << i, 16 << i);
        call *c = call_new(text, NULL), *same = call_new(text, NULL);
        for (int t = CALL_O; t <= CALL_LSE; t++) memset(c->held.buffer[t].memory, 0xff, c->held.buffer[t].bytes);
        m.fails = i == 1; /* a quarter more than before is not to be had: exactly as much is */
        if (tp_attention(context, &c->problem, NULL, &c->tensors, NULL, &error)) fail_msg("%s", error.text);
        call_run(same, &(call_how){0}, NULL);
        call_same(same, c, text);
        assert_int_equal(m.taken - m.given, 1);
        call_free(c);
        call_free(same);
    }
    call *large = call_new("h2 q400 k400 d256 f32", NULL);
    m.fails = 2;
    assert_int_equal(tp_attention(context, &large->problem, NULL, &large->tensors, NULL, &error), TP_NO_MEMORY);
    assert_non_null(strstr(error.text, "no memory of device 0 (cpu) for"));
    assert_int_equal(m.held, 0);
    m.crooked = 1;
    assert_int_equal(tp_attention(context, &large->problem, NULL, &large->tensors, NULL, &error), TP_NO_MEMORY);
    assert_non_null(strstr(error.text, "it must be 64-byte aligned"));
    m.crooked = 0;
    assert_int_equal(tp_attention(context, &large->problem, NULL, &large->tensors, NULL, &error), TP_OK);
    call_free(large);
    void *memory;
    assert_int_equal(tp_memory_allocate(context, TP_CPU, 100, &memory, NULL), TP_OK);
    assert_int_equal(tp_memory_free(context, TP_CPU, memory, 100, NULL), TP_OK);
    tp_context_destroy(context);
    assert_int_equal(m.held, 0);
    assert_int_equal(m.taken, m.given);
}

static void memory_goes_there_and_back(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    tp_error error = fresh_error();
    char in[300], out[300] = {0};
    void *one, *other, *host;
    for (int i = 0; i < COUNT(in); i++) in[i] = (char)(i * 7);
    assert_int_equal(tp_memory_allocate(context, DEVICE_NUMBER, sizeof in, &one, NULL), TP_OK);
    assert_int_equal(tp_memory_allocate(context, DEVICE_NUMBER, 0, &other, NULL), TP_OK);
    assert_int_equal(tp_memory_free(context, DEVICE_NUMBER, other, 0, NULL), TP_OK);
    assert_int_equal(tp_memory_allocate(context, DEVICE_NUMBER, sizeof in, &other, NULL), TP_OK);
    assert_int_equal(tp_memory_allocate(context, TP_CPU, sizeof in, &host, NULL), TP_OK);
    assert_int_equal((uintptr_t)host % 64, 0);
    assert_int_equal(tp_memory_copy(context, DEVICE_NUMBER, one, TP_CPU, in, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_copy(context, DEVICE_NUMBER, other, DEVICE_NUMBER, one, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_copy(context, TP_CPU, host, DEVICE_NUMBER, other, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_copy(context, TP_CPU, out, TP_CPU, host, sizeof in, NULL), TP_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(tp_memory_copy(context, TP_CPU, NULL, TP_CPU, NULL, 0, NULL), TP_OK);
    assert_int_equal(tp_memory_copy(context, TP_CPU, NULL, TP_CPU, in, 1, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "to is NULL"));
    assert_int_equal(tp_memory_copy(context, 3, out, TP_CPU, in, 1, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "to_device is 3: it must be TP_CPU (0) or the number of the backend test"));
    void *none = in;
    assert_int_equal(tp_memory_allocate(call_context(), 1, 1, &none, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "because the context has no backend"));
    assert_null(none);
    assert_int_equal(tp_memory_allocate(context, TP_CPU, SIZE_MAX, &none, &error), TP_NO_MEMORY);
    assert_int_equal(tp_memory_allocate(context, TP_CPU, 1, NULL, &error), TP_INVALID);
    assert_int_equal(tp_memory_allocate(NULL, TP_CPU, 1, &none, &error), TP_INVALID);
    assert_int_equal(tp_memory_free(context, TP_CPU, NULL, 0, NULL), TP_OK);
    assert_int_equal(tp_memory_free(NULL, TP_CPU, NULL, 0, NULL), TP_INVALID);
    assert_int_equal(tp_memory_free(context, 9, host, sizeof in, NULL), TP_INVALID);
    device_fail(d, DEVICE_COPY, 1);
    assert_int_equal(tp_memory_copy(context, DEVICE_NUMBER, one, TP_CPU, in, 1, &error), TP_DEVICE_FAILED);
    assert_string_equal(error.text, "test: copy: the bus is gone");
    device_fail(d, DEVICE_ALLOCATE, 1);
    assert_int_equal(tp_memory_allocate(context, DEVICE_NUMBER, 1, &none, &error), TP_NO_MEMORY);
    assert_string_equal(error.text, "test: allocate: out of memory");
    assert_int_equal(tp_memory_free(context, TP_CPU, host, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_free(context, DEVICE_NUMBER, one, sizeof in, NULL), TP_OK);
    assert_int_equal(tp_memory_free(context, DEVICE_NUMBER, other, sizeof in, NULL), TP_OK);
    tp_context_destroy(context);
    device_free(d);
}

/* ---- faults */

/* tp_attention takes memory, prepares, submits and waits: each step fails once, then the same call goes well. */
static void each_step_may_fail_and_nothing_is_lost(void **state) {
    (void)state;
    static const struct {
        device_fault fault;
        int n;
        tp_status status;
        const char *text;
    } cases[] = {
        {DEVICE_PREPARE, 1, TP_DEVICE_FAILED, "test: prepare: line 3: error: undeclared identifier 'tile'"},
        {DEVICE_ALLOCATE, 1, TP_OK, ""}, /* a quarter more is not to be had: exactly as much is */
        {DEVICE_SUBMIT, 1, TP_DEVICE_FAILED, "test: submit: the queue does not take it"},
        {DEVICE_LATE, 1, TP_DEVICE_FAILED, "test: done: the device was lost"},
        {DEVICE_STRANGE, 1, TP_DEVICE_FAILED, "test: done: it failed, without saying why"},
        {DEVICE_IDLE, 1, TP_DEVICE_FAILED, "the device counted 0 tiles, and 4 were planned"},
        {DEVICE_MARK, 1, TP_DEVICE_FAILED, "left its mark on the device"},
    };
    device *d = device_new();
    for (int i = 0; i < COUNT(cases); i++) {
        tp_context *context = device_context(d, NULL);
        device_call *c = device_call_new(context, TEXT, 0);
        tp_choice choice = device_choice();
        tp_error error = fresh_error();
        device_fail(d, cases[i].fault, cases[i].n);
        assert_int_equal(tp_attention(context, &c->c->problem, &choice, &c->tensors, NULL, &error), cases[i].status);
        if (strstr(error.text, cases[i].text) == NULL) fail_msg("%s", error.text);
        device_call_poison(c);
        assert_int_equal(tp_attention(context, &c->c->problem, &choice, &c->tensors, NULL, &error), TP_OK);
        device_call_check(c, TEXT);
        /* a plan of its own */
        device_fail(d, cases[i].fault, cases[i].n);
        tp_plan *plan;
        tp_status made = tp_plan_create(context, &c->c->problem, &choice, &plan, &error);
        assert_int_equal(made, cases[i].fault == DEVICE_PREPARE ? TP_DEVICE_FAILED : TP_OK);
        if (made != TP_OK) assert_null(plan);
        tp_plan_destroy(plan);
        device_fail(d, cases[i].fault, 0);
        device_call_free(c);
        tp_context_destroy(context);
    }
    device_free(d);
}

/* The library counts what the device says of itself; whether numbers are right, the oracle says. */
static void one_wrong_bit_is_seen_by_the_oracle(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0);
    device_fail(d, DEVICE_OUTPUT, 1);
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &c->exec, NULL, NULL), TP_OK);
    tp_row row = {0, 0, 0};
    double o[32], lse, bound, largest = 0;
    assert_int_equal(tp_reference(&c->c->problem, &c->c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, o, &lse, &bound, NULL,
                                  NULL), TP_OK);
    for (int x = 0; x < 32; x++) {
        double off = call_get(c->c, CALL_O, 0, 0, 0, x) - o[x];
        if (!(off <= bound && -off <= bound)) largest = off;
    }
    assert_true(largest != 0);
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

/* ---- what is given wrong */

static void tensors_of_another_place_are_refused(void **state) {
    (void)state;
    device *d = device_new();
    tp_context *context = device_context(d, NULL);
    device_call *c = device_call_new(context, TEXT, 0);
    tp_error error = fresh_error();
    tp_choice choice = device_choice();
    tp_exec exec = c->exec;
    /* nothing is begun by any of these */
    assert_int_equal(tp_plan_run(c->plan, &c->c->tensors, &exec, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "device is 0, and device 7 is to compute"));
    tp_tensors t = c->tensors;
    t.index_device = 9;
    assert_int_equal(tp_plan_run(c->plan, &t, &exec, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "index_device is 9: it must be TP_CPU (0) or the tensors' device"));
    assert_int_equal(tp_attention(context, &c->c->problem, NULL, &c->tensors, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "device is 7, and device 0 is to compute (TP_CPU)"));
    exec.workspace_size--;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_WORKSPACE);
    assert_non_null(strstr(error.text, "needs 64 on device 7, test"));
    exec = c->exec;
    exec.workspace = (char *)exec.workspace + 8;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_WORKSPACE);
    exec.workspace = NULL;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_WORKSPACE);
    exec = c->exec;
    exec.flags = 8;
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_INVALID);
    assert_int_equal(device_begun(d), 0);
    exec = c->exec;
    exec.queue = &exec; /* a device has queues */
    assert_int_equal(tp_plan_run(c->plan, &c->tensors, &exec, NULL, &error), TP_OK);
    static const struct {
        int device, reserved;
        const char *strategy, *text;
    } bad[] = {
        {3, 0, NULL, "choice.device is 3: it must be TP_CPU (0) or the number of the backend test"},
        {-1, 0, NULL, "choice.device is -1"},
        {DEVICE_NUMBER, 0, "decode", "strategy is 'decode' on device 7"},
        {DEVICE_NUMBER, 5, NULL, "choice.reserved is 5"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        tp_plan *plan;
        choice.device = bad[i].device;
        choice.reserved = bad[i].reserved;
        choice.strategy = bad[i].strategy;
        assert_int_equal(tp_plan_create(context, &c->c->problem, &choice, &plan, &error), TP_INVALID);
        if (strstr(error.text, bad[i].text) == NULL) fail_msg("%s", error.text);
    }
    choice = device_choice();
    assert_int_equal(tp_attention(call_context(), &c->c->problem, &choice, &c->tensors, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "because the context has no backend"));
    device_call_free(c);
    tp_context_destroy(context);
    device_free(d);
}

static const tp_kernel_info *no_kernel(void *user, int index) {
    (void)user, (void)index;
    return NULL;
}
static tp_kernel_info named[9];
static int named_count;
static const tp_kernel_info *named_at(void *user, int index) {
    (void)user;
    return index < named_count ? &named[index] : NULL;
}

static void backends_that_break_a_rule(void **state) {
    (void)state;
    device *d = device_new();
    const tp_backend good = *device_backend(d);
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_backend b;
    options.threads = 1;
    options.backend = &b;
#define BAD(change, words)                                                                  \
    do {                                                                                    \
        tp_context *context = (tp_context *)&b;                                             \
        tp_error error = fresh_error();                                                     \
        b = good;                                                                           \
        change;                                                                             \
        assert_int_equal(tp_context_create(&options, &context, &error), TP_INVALID);        \
        assert_null(context);                                                               \
        if (strstr(error.text, words) == NULL) fail_msg("%s: %s", #change, error.text);     \
    } while (0)
    BAD(b.struct_size = 16, "tp_backend.struct_size is 16");
    BAD(b.device = 0, "backend.device is 0");
    BAD(b.device = 256, "backend.device is 256");
    BAD(b.name = NULL, "backend.name is '(NULL)'");
    BAD(b.name = "cpu", "backend.name is 'cpu'");
    BAD(b.name = "a b", "backend.name is 'a b'");
    BAD(b.name = "", "backend.name is ''");
    BAD(b.name = "a2345678901234567890123456789012", "must be 1..31");
    BAD(b.flags = 2, "backend.flags is 0x2");
    BAD(b.kernel_at = NULL, "backend.kernel_at is NULL");
    BAD(b.serves = NULL, "backend.serves is NULL");
    BAD(b.figures = NULL, "backend.figures is NULL");
    BAD(b.prepare = NULL, "backend.prepare is NULL");
    BAD(b.release_prepared = NULL, "backend.release_prepared is NULL");
    BAD(b.allocate = NULL, "backend.allocate is NULL");
    BAD(b.release = NULL, "backend.release is NULL");
    BAD(b.copy = NULL, "backend.copy is NULL");
    BAD(b.submit = NULL, "backend.submit is NULL");
    BAD(b.kernel_at = no_kernel, "backend test has no kernel");
    for (int i = 0; i < COUNT(named); i++) {
        static char names[9][8];
        snprintf(names[i], sizeof names[i], "k%d", i);
        named[i] = (tp_kernel_info){.struct_size = sizeof named[i], .name = names[i], .strategy = "fused"};
    }
    named_count = 9;
    BAD(b.kernel_at = named_at, "backend test has more than 8 kernels");
    named_count = 2;
    named[1].name = "k0";
    BAD(b.kernel_at = named_at, "kernel 1 of backend test is 'k0': another kernel has that name");
    named[1].name = "math";
    BAD(b.kernel_at = named_at, "kernel 1 of backend test is 'math': another kernel has that name");
    named[1].name = "a,b";
    BAD(b.kernel_at = named_at, "kernel 1 of backend test is 'a,b'");
    named[1].name = "fine";
    named[1].strategy = NULL;
    BAD(b.kernel_at = named_at, "it must have a strategy");
    named[1].struct_size = 4;
    BAD(b.kernel_at = named_at, "tp_kernel_info.struct_size is 4");
    options.disable = "test-fast,nobody";
    BAD(b = good, "disable names 'nobody'");
#undef BAD
    device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_context_takes_its_workspace_from_the_allocator),
        cmocka_unit_test(memory_goes_there_and_back),
        cmocka_unit_test(each_step_may_fail_and_nothing_is_lost),
        cmocka_unit_test(one_wrong_bit_is_seen_by_the_oracle),
        cmocka_unit_test(tensors_of_another_place_are_refused),
        cmocka_unit_test(backends_that_break_a_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
