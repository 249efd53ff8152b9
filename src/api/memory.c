/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: the host's by the context's allocator, a device's by its backend. */
#include "api/memory.h"

#include <string.h>

#include "base/arena.h"
#include "base/error.h"

tp_status tp__memory_take(const tp_allocator *allocator, tp__device *device, size_t bytes, void **memory, tp_error *error) {
    size_t asked = 0;
    *memory = NULL;
    int fits = !__builtin_add_overflow(bytes > 0 ? bytes : 1, (size_t)(TP__ALIGN - 1), &asked);
    asked = asked / TP__ALIGN * TP__ALIGN;
    if (fits && device != NULL)
        TP_TRY(tp__device_allocate(device, asked, memory, error));
    else if (fits)
        *memory = allocator->allocate(allocator->user, asked, TP__ALIGN);
    TP_REQUIRE(*memory != NULL, error, TP_NO_MEMORY, "no memory of device %d (%s) for %zu bytes", tp__device_number(device),
               tp__device_name(device), bytes);
    if ((uintptr_t)*memory % TP__ALIGN == 0) return TP_OK;
    void *crooked = *memory;
    *memory = NULL;
    tp__memory_give(allocator, device, crooked, bytes);
    return tp__fail(error, device != NULL ? TP_DEVICE_FAILED : TP_NO_MEMORY,
                    "memory of device %d (%s) is at %p: it must be %d-byte aligned", tp__device_number(device),
                    tp__device_name(device), crooked, TP__ALIGN);
}

void tp__memory_give(const tp_allocator *allocator, tp__device *device, void *memory, size_t bytes) {
    if (memory == NULL) return;
    if (device != NULL)
        device->backend.release(device->backend.user, memory);
    else
        allocator->release(allocator->user, memory, ((bytes > 0 ? bytes : 1) + TP__ALIGN - 1) / TP__ALIGN * TP__ALIGN);
}

/* NULL in *device: the CPU. */
static tp_status find_device(const tp_context *context, const char *what, int number, tp__device **device, tp_error *error) {
    *device = number == TP_CPU ? NULL : context->device;
    TP_REQUIRE(number == TP_CPU || (context->device != NULL && context->device->backend.device == number), error, TP_INVALID,
               "%s is %d: it must be TP_CPU (0)%s%s", what, number,
               context->device != NULL ? " or the number of the backend " : "",
               context->device != NULL ? context->device->backend.name : ", because the context has no backend");
    return TP_OK;
}

static tp_status check_context(const tp_context *context, tp_error *error) {
    TP_REQUIRE(context != NULL, error, TP_INVALID, "context is NULL");
    return tp__context_here(context, error);
}

tp_status tp_memory_allocate(tp_context *context, int device, size_t bytes, void **memory, tp_error *error) {
    tp__device *on;
    TP_REQUIRE(memory != NULL, error, TP_INVALID, "memory is NULL: it must point to a pointer");
    *memory = NULL;
    TP_TRY(check_context(context, error));
    TP_TRY(find_device(context, "device", device, &on, error));
    return tp__memory_take(&context->allocator, on, bytes, memory, error);
}

tp_status tp_memory_free(tp_context *context, int device, void *memory, size_t bytes, tp_error *error) {
    tp__device *on;
    TP_TRY(check_context(context, error));
    TP_TRY(find_device(context, "device", device, &on, error));
    tp__memory_give(&context->allocator, on, memory, bytes);
    return TP_OK;
}

tp_status tp_memory_copy(tp_context *context, int to_device, void *to, int from_device, const void *from, size_t bytes,
                         tp_error *error) {
    tp__device *into, *out_of;
    TP_TRY(check_context(context, error));
    TP_TRY(find_device(context, "to_device", to_device, &into, error));
    TP_TRY(find_device(context, "from_device", from_device, &out_of, error));
    TP_REQUIRE(bytes == 0 || (to != NULL && from != NULL), error, TP_INVALID, "%s is NULL with %zu bytes to copy",
               to == NULL ? "to" : "from", bytes);
    if (bytes == 0) return TP_OK;
    if (into == NULL && out_of == NULL) {
        memmove(to, from, bytes);
        return TP_OK;
    }
    tp_copy kind = into == NULL ? TP_COPY_TO_HOST : out_of == NULL ? TP_COPY_TO_DEVICE : TP_COPY_ON_DEVICE;
    return tp__device_copy(context->device, kind, to, from, bytes, error);
}
