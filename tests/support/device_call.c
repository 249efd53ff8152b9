/* SPDX-License-Identifier: Apache-2.0 */
#include "support/device_call.h"

#include <stdlib.h>
#include <string.h>

tp_context *device_context(device *d, const tp_context_options *options) {
    tp_context_options with = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    if (options != NULL) with = *options;
    with.threads = 1;
    with.backend = device_backend(d);
    if (tp_context_create(&with, &context, &error)) fail_msg("%s", error.text);
    return context;
}

tp_choice device_choice(void) {
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = TP_PERMIT;
    choice.device = DEVICE_NUMBER;
    return choice;
}

void device_call_poison(device_call *c) {
    for (int i = CALL_O; i <= CALL_LSE; i++) memset(c->c->held.buffer[i].memory, 0xff, c->c->held.buffer[i].bytes);
}

device_call *device_call_new(tp_context *context, const char *text, int index_on_device) {
    device_call *c = calloc(1, sizeof *c);
    tp_error error = TP_ERROR_INIT;
    tp_choice choice = device_choice();
    c->c = call_new(text, NULL);
    c->context = context;
    c->tensors = device_tensors(&c->c->tensors, index_on_device, NULL);
    c->exec = (tp_exec)TP_EXEC_INIT;
    device_call_poison(c);
    if (tp_plan_create(context, &c->c->problem, &choice, &c->plan, &error)) fail_msg("%s: %s", text, error.text);
    c->exec.workspace_size = tp_plan_workspace(c->plan, 1);
    if (tp_memory_allocate(context, DEVICE_NUMBER, c->exec.workspace_size, &c->exec.workspace, &error))
        fail_msg("%s: %s", text, error.text);
    return c;
}

void device_call_free(device_call *c) {
    assert_int_equal(tp_memory_free(c->context, DEVICE_NUMBER, c->exec.workspace, c->exec.workspace_size, NULL), TP_OK);
    tp_plan_destroy(c->plan);
    call_free(c->c);
    free(c);
}

void device_call_check(const device_call *c, const char *text) {
    call *cpu = call_new(text, NULL);
    call_run(cpu, &(call_how){0}, NULL);
    call_same(cpu, c->c, text);
    call_free(cpu);
}
