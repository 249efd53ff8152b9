/* SPDX-License-Identifier: Apache-2.0 */
/* A backend of another version than the library's: its tables and outcomes, and what the library gives it. */
#include "growth/growth.h"

#include <stdlib.h>

#include "tileproof_backend.h"

static tp_context *cpu;
static tp_backend *table;
static tp_outcome *outcome;
static tp_kernel_info *kernel;

static const tp_kernel_info *kernel_at(void *user, int index) {
    (void)user;
    return index == 0 ? kernel : NULL;
}

static void serves(void *user, int index, const tp_problem *problem, tp_add_reason add, void *reasons) {
    (void)user, (void)index;
    if (problem->kv_len == 1) add(reasons, TP_WHY_FEATURE, 0, 0, "one key, need more");
}

static void figures(void *user, int index, const tp_problem *problem, tp_backend_figures *f) {
    (void)user, (void)index, (void)problem;
    GIVEN(f, tp_backend_figures);
    f->workspace_bytes = 64;
    strcpy(f->numerics_id, "growth/one");
}

static tp_status prepare(void *user, int index, const tp_problem *problem, void **prepared, tp_error *error) {
    (void)user, (void)index, (void)problem, (void)prepared, (void)error;
    return TP_OK;
}

static void release_prepared(void *user, void *prepared) { (void)user, (void)prepared; }

static tp_status allocate(void *user, size_t bytes, void **memory, tp_error *error) {
    (void)user, (void)error;
    return posix_memalign(memory, 64, bytes) == 0 ? TP_OK : TP_NO_MEMORY;
}

static void release(void *user, void *memory) {
    (void)user;
    free(memory);
}

static tp_status copy(void *user, tp_copy kind, void *to, const void *from, size_t bytes, tp_error *error) {
    (void)user, (void)kind, (void)error;
    memcpy(to, from, bytes);
    return TP_OK;
}

/* The tensors are the library's: longer or shorter than this program's. */
static tp_status submit(void *user, const tp_submission *s, void **event, tp_error *error) {
    (void)user, (void)event;
    GIVEN(s, tp_submission);
    union {
        tp_tensors tensors;
        char bytes[4096];
    } here;
    memcpy(here.bytes, s->tensors, s->tensors->struct_size);
    here.tensors.device = TP_CPU;
    tp_status status = tp_attention(cpu, s->problem, NULL, &here.tensors, NULL, error);
    if (status == TP_OK) s->done(s->completion, outcome);
    return status;
}

static void a_backend_of_another_version(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_context_options *options = PLACE_INIT(tp_context_options, TP_CONTEXT_OPTIONS_INIT);
    options->threads = 1;
    cpu = growth_context(options);
    outcome = PLACE_INIT(tp_outcome, TP_OUTCOME_INIT);
    outcome->tiles_planned = outcome->tiles_counted = 1, outcome->kernel = 0, outcome->device_ns = 99;
    kernel = PLACE(tp_kernel_info);
    memset(kernel, 0, sizeof *kernel);
    kernel->struct_size = sizeof *kernel, kernel->name = "only", kernel->strategy = "fused";
    table = PLACE_INIT(tp_backend, TP_BACKEND_INIT);
    table->device = 1, table->name = "growth", table->kernel_at = kernel_at, table->serves = serves, table->figures = figures;
    table->prepare = prepare, table->release_prepared = release_prepared, table->allocate = allocate;
    table->release = release, table->copy = copy, table->submit = submit;
    tp_context *context;
    options->backend = table;
#define CREATE tp_context_create(options, &context, error)
    REFUSES(table, tp_backend, CREATE);
    REFUSES_SIZE(table, tp_backend, CREATE);
    REFUSES(kernel, tp_kernel_info, CREATE);
    REFUSES_SIZE(kernel, tp_kernel_info, CREATE);
    GOOD(CREATE);
#undef CREATE
    growth_call c;
    growth_call_new(&c);
    tp_choice *choice = PLACE_INIT(tp_choice, TP_CHOICE_INIT);
    tp_receipt *receipt = PLACE(tp_receipt);
    choice->device = c.tensors->device = 1;
    tp_receipt_init(receipt);
    GOOD(tp_attention(context, c.problem, choice, c.tensors, receipt, error));
    assert_string_equal(receipt->device, "growth");
    assert_int_equal(receipt->device_ns, 99);
    c.tensors->device = TP_CPU;
    growth_check(&c);
    /* submitted: the receipt is written when the call is done, as far as it reaches */
    tp_plan *plan;
    tp_ticket *ticket;
    tp_exec *exec = PLACE_INIT(tp_exec, TP_EXEC_INIT);
    GOOD(tp_plan_create(context, c.problem, choice, &plan, error));
    exec->workspace_size = tp_plan_workspace(plan, 1);
    GOOD(tp_memory_allocate(context, 1, exec->workspace_size, &exec->workspace, error));
    c.tensors->device = 1;
    tp_receipt_init(receipt);
    SET_GROWN(receipt, 77);
#define SUBMIT tp_plan_submit(plan, c.tensors, exec, receipt, &ticket, error)
    GOOD(SUBMIT);
    GOOD(tp_ticket_wait(ticket, -1, error));
    tp_ticket_destroy(ticket);
    assert_int_equal(receipt->struct_size, sizeof *receipt);
    assert_int_equal(GROWN(receipt), 0);
    assert_string_equal(receipt->kernel, "only");
    REFUSES(exec, tp_exec, SUBMIT);
    REFUSES(c.tensors, tp_tensors, SUBMIT);
    REFUSES_SIZE(receipt, tp_receipt, SUBMIT);
    /* an outcome that is none, or that says more than the library knows */
    outcome->struct_size = 8;
    assert_int_equal(tp_plan_run(plan, c.tensors, exec, NULL, error), TP_DEVICE_FAILED);
    outcome->struct_size = sizeof *outcome;
    SET_GROWN(outcome, 5);
    assert_int_equal(tp_plan_run(plan, c.tensors, exec, NULL, error), NEWER ? TP_DEVICE_FAILED : TP_OK);
#undef SUBMIT
    GOOD(tp_memory_free(context, 1, exec->workspace, exec->workspace_size, error));
    tp_plan_destroy(plan);
    tp_context_destroy(context);
    tp_context_destroy(cpu);
    growth_free();
}

/* No struct of the header is missing above. */
static void every_struct_is_met(void **state) {
    (void)state;
#ifdef TILEPROOF_BACKEND_GROWN
#define MET(type) \
    if (!growth_knows(#type)) fail_msg("%s", #type " has a struct_size and is in no test of growth");
    TILEPROOF_BACKEND_GROWN(MET)
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_backend_of_another_version), cmocka_unit_test(every_struct_is_met)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
