/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_API_MEMORY_H
#define TP_API_MEMORY_H

#include "api/context.h"
#include "base/allocator.h"

/* Of the device or, where that is NULL, by the allocator. 64-byte aligned, in multiples of that. */
tp_status tp__memory_take(const tp_allocator *allocator, tp__device *device, size_t bytes, void **memory, tp_error *error);
void tp__memory_give(const tp_allocator *allocator, tp__device *device, void *memory, size_t bytes);

#endif
