/* SPDX-License-Identifier: Apache-2.0 */
/* A backend as the library sees it: its table, checked once; every call of it, with statuses and texts put right. */
#ifndef TP_DEVICE_DEVICE_H
#define TP_DEVICE_DEVICE_H

#include <pthread.h>

#include "tileproof_backend.h"

#define TP__DEVICE_KERNELS 8

typedef struct tp__device {
    tp_backend backend; /* a copy */
    int kernels;
    tp_kernel_info kernel[TP__DEVICE_KERNELS];
    /* calls that were submitted and are not done */
    pthread_mutex_t lock;
    pthread_cond_t fewer;
    int64_t open;
} tp__device;

/* A copy of the caller's table, or TP_INVALID with the rule that it breaks. taken: a name that no kernel may have. */
tp_status tp__device_create(const tp_backend *backend, int (*taken)(const char *name), tp__device **device, tp_error *error);
/* Waits until no call is open. here 0: in a forked child, where nobody would ever complete one. */
void tp__device_destroy(tp__device *device, int here);

/* "cpu" for NULL. */
const char *tp__device_name(const tp__device *device);
int tp__device_number(const tp__device *device);

/* Something is set in the problem, or in the tensors, that the backend cannot know: NULL, or the struct's name. */
const char *tp__device_unknown(const tp__device *device, const tp_problem *problem, const tp_tensors *tensors);

tp_status tp__device_prepare(tp__device *device, int kernel, const tp_problem *problem, void **prepared, tp_error *error);
tp_status tp__device_allocate(tp__device *device, size_t bytes, void **memory, tp_error *error);
tp_status tp__device_copy(tp__device *device, tp_copy kind, void *to, const void *from, size_t bytes, tp_error *error);
tp_status tp__device_submit(tp__device *device, const tp_submission *submission, void **event, tp_error *error);

/* NULL: there is none. */
void tp__device_release_event(tp__device *device, void *event);

/* A status that a backend may give, with a text; whatever it is, it becomes one. what: which function said so. */
tp_status tp__device_status(const tp__device *device, const char *what, int32_t status, const char *text, tp_error *error);

/* Open calls, of the device and of one plan: *plan counts with it. */
void tp__device_open(tp__device *device, int64_t *plan);
void tp__device_close(tp__device *device, int64_t *plan);
/* Until *plan, which tp__device_open counts, is 0. */
void tp__device_wait(tp__device *device, const int64_t *plan);

#endif
