/* SPDX-License-Identifier: Apache-2.0 */
/* A call (call.h) on the device that is none (device.h): context, plan, workspace, tensors. */
#ifndef TP_TESTS_SUPPORT_DEVICE_CALL_H
#define TP_TESTS_SUPPORT_DEVICE_CALL_H

#include "support/call.h"
#include "support/device.h"

/* A context of one thread with the device as its backend; options NULL: the defaults. */
tp_context *device_context(device *d, const tp_context_options *options);
/* Permits everything on the device. */
tp_choice device_choice(void);

typedef struct device_call {
    call *c;
    tp_context *context;
    tp_tensors tensors; /* of c, on the device */
    tp_plan *plan;
    tp_exec exec; /* with a workspace of the device */
} device_call;

/* o and lse are poison. */
device_call *device_call_new(tp_context *context, const char *text, int index_on_device);
void device_call_free(device_call *c);
/* o and lse are those of the same call on the CPU, bit for bit. */
void device_call_check(const device_call *c, const char *text);
/* As they were before a run. */
void device_call_poison(device_call *c);

#endif
