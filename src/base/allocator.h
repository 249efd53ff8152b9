/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory: the caller's functions, or the C library's. */
#ifndef TP_BASE_ALLOCATOR_H
#define TP_BASE_ALLOCATOR_H

#include "tileproof.h"

extern const tp_allocator tp__default_allocator; /* posix_memalign and free */
/* Asks the system for huge pages where whole ones lie within; it may have none. */
void tp__ask_huge_pages(void *memory, size_t bytes);
tp_status tp__allocator_check(const tp_allocator *allocator, tp_error *error);

#endif
