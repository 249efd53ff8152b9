/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/structs.h"

#define NAME_MAX_ 31

static int is_name(const char *name) {
    size_t n = name != NULL ? strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") : 0;
    return n > 0 && n <= NAME_MAX_ && name[n] == '\0';
}

static tp_status check_table(const tp_backend *b, tp_error *error) {
    TP_REQUIRE(b->device >= 1 && b->device <= 255, error, TP_INVALID,
               "backend.device is %d: it must be in 1..255 (0 is the CPU)", b->device);
    TP_REQUIRE(is_name(b->name) && strcmp(b->name, "cpu") != 0, error, TP_INVALID,
               "backend.name is '%.40s': it must be 1..%d of a-z, 0-9, '.', '_' and '-', and not cpu",
               b->name != NULL ? b->name : "(NULL)", NAME_MAX_);
    TP_REQUIRE((b->flags & ~TP_BACKEND_INDEX_ON_DEVICE) == 0, error, TP_INVALID,
               "backend.flags is %#x: only TP_BACKEND_INDEX_ON_DEVICE (1) exists", b->flags);
    const struct {
        const char *name;
        int there;
    } functions[] = {
        {"kernel_at", b->kernel_at != NULL}, {"serves", b->serves != NULL},   {"figures", b->figures != NULL},
        {"prepare", b->prepare != NULL},     {"release_prepared", b->release_prepared != NULL},
        {"allocate", b->allocate != NULL},   {"release", b->release != NULL}, {"copy", b->copy != NULL},
        {"submit", b->submit != NULL},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        TP_REQUIRE(functions[i].there, error, TP_INVALID, "backend.%s is NULL: only release_event may be",
                   functions[i].name);
    return TP_OK;
}

static tp_status list_kernels(tp__device *d, int (*taken)(const char *name), tp_error *error) {
    for (;; d->kernels++) {
        const tp_kernel_info *info = d->backend.kernel_at(d->backend.user, d->kernels);
        if (info == NULL) break;
        TP_STRUCT_IN(tp_kernel_info, info, error);
        TP_REQUIRE(d->kernels < TP__DEVICE_KERNELS, error, TP_INVALID, "backend %s has more than %d kernels",
                   d->backend.name, TP__DEVICE_KERNELS);
        TP_REQUIRE(
            is_name(info->name) && info->strategy != NULL, error, TP_INVALID,
            "kernel %d of backend %s is '%.40s': it must have a strategy, and a name of 1..%d of a-z, 0-9, '.', '_' and '-'",
            d->kernels, d->backend.name, info->name != NULL ? info->name : "(NULL)", NAME_MAX_);
        int twice = taken(info->name);
        for (int i = 0; i < d->kernels; i++) twice |= strcmp(info->name, d->kernel[i].name) == 0;
        TP_REQUIRE(!twice, error, TP_INVALID, "kernel %d of backend %s is '%s': another kernel has that name", d->kernels,
                   d->backend.name, info->name);
        d->kernel[d->kernels] = *info;
    }
    TP_REQUIRE(d->kernels > 0, error, TP_INVALID, "backend %s has no kernel: kernel_at(0) is NULL", d->backend.name);
    return TP_OK;
}

tp_status tp__device_create(const tp_backend *backend, int (*taken)(const char *name), tp__device **device, tp_error *error) {
    TP_TRY(check_table(backend, error));
    tp__device *made = calloc(1, sizeof *made);
    TP_REQUIRE(made != NULL, error, TP_NO_MEMORY, "no memory for a device of %zu bytes", sizeof *made);
    made->backend = *backend;
    tp_status status = list_kernels(made, taken, error);
    if (status != TP_OK) {
        free(made);
        return status;
    }
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->fewer, NULL);
    *device = made;
    return TP_OK;
}

void tp__device_destroy(tp__device *device, int here) {
    if (device == NULL) return;
    if (here) {
        tp__device_wait(device, &device->open);
        pthread_cond_destroy(&device->fewer);
        pthread_mutex_destroy(&device->lock);
    }
    free(device);
}

const char *tp__device_name(const tp__device *device) { return device != NULL ? device->backend.name : "cpu"; }
int tp__device_number(const tp__device *device) { return device != NULL ? device->backend.device : TP_CPU; }

static int is_set(const void *bytes, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (((const unsigned char *)bytes)[i] != 0) return 1;
    return 0;
}

const char *tp__device_unknown(const tp__device *device, const tp_problem *problem, const tp_tensors *tensors) {
    const tp_backend *b = &device->backend;
    if (is_set(problem, b->problem_size, sizeof *problem)) return "tp_problem";
    if (tensors == NULL) return NULL;
    if (is_set(tensors, b->tensors_size, sizeof *tensors)) return "tp_tensors";
    int backward = problem->op == TP_BACKWARD && tensors->gradients != NULL;
    return backward && is_set(tensors->gradients, b->gradients_size, sizeof *tensors->gradients) ? "tp_gradients" : NULL;
}

tp_status tp__device_status(const tp__device *device, const char *what, int32_t status, const char *text, tp_error *error) {
    switch (status) {
    case TP_OK: return TP_OK;
    case TP_INVALID:
    case TP_UNSUPPORTED:
    case TP_NO_MEMORY:
    case TP_WORKSPACE: break;
    default: status = TP_DEVICE_FAILED;
    }
    return tp__fail(error, (tp_status)status, "%s: %s: %.440s", device->backend.name, what,
                    text != NULL && text[0] != '\0' ? text : "it failed, without saying why");
}

/* Calls with an error of the library's own, whose text comes out with the device's name in front. */
#define ASK(device, what, call, error)                                                         \
    tp_error said = TP_ERROR_INIT;                                                             \
    return tp__device_status((device), (what), (call), said.text, (error))

tp_status tp__device_prepare(tp__device *device, int kernel, const tp_problem *problem, void **prepared, tp_error *error) {
    *prepared = NULL;
    ASK(device, "prepare", device->backend.prepare(device->backend.user, kernel, problem, prepared, &said), error);
}

tp_status tp__device_allocate(tp__device *device, size_t bytes, void **memory, tp_error *error) {
    *memory = NULL;
    ASK(device, "allocate", device->backend.allocate(device->backend.user, bytes, memory, &said), error);
}

tp_status tp__device_copy(tp__device *device, tp_copy kind, void *to, const void *from, size_t bytes, tp_error *error) {
    ASK(device, "copy", device->backend.copy(device->backend.user, kind, to, from, bytes, &said), error);
}

tp_status tp__device_submit(tp__device *device, const tp_submission *submission, void **event, tp_error *error) {
    *event = NULL;
    ASK(device, "submit", device->backend.submit(device->backend.user, submission, event, &said), error);
}

void tp__device_release_event(tp__device *device, void *event) {
    if (event != NULL && device->backend.release_event != NULL) device->backend.release_event(device->backend.user, event);
}

void tp__device_open(tp__device *device, int64_t *plan) {
    pthread_mutex_lock(&device->lock);
    device->open++;
    ++*plan;
    pthread_mutex_unlock(&device->lock);
}

void tp__device_close(tp__device *device, int64_t *plan) {
    pthread_mutex_lock(&device->lock);
    device->open--;
    --*plan;
    pthread_cond_broadcast(&device->fewer);
    pthread_mutex_unlock(&device->lock);
}

void tp__device_wait(tp__device *device, const int64_t *plan) {
    pthread_mutex_lock(&device->lock);
    while (*plan > 0) pthread_cond_wait(&device->fewer, &device->lock);
    pthread_mutex_unlock(&device->lock);
}
