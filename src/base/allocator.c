/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MADV_HUGEPAGE */
#endif
#include "base/allocator.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"

static void *allocate_here(void *user, size_t bytes, size_t alignment) {
    void *memory = NULL;
    (void)user;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void release_here(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    free(memory);
}

void tp__ask_huge_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t huge = 2 << 20, from = (uintptr_t)memory;
    const uintptr_t first = (from + huge - 1) / huge * huge, last = (from + bytes) / huge * huge;
    if (first < last) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

const tp_allocator tp__default_allocator = {sizeof(tp_allocator), 0, allocate_here, release_here, NULL};

tp_status tp__allocator_check(const tp_allocator *a, tp_error *error) {
    TP_REQUIRE(a->allocate != NULL && a->release != NULL, error, TP_INVALID,
               "allocator.%s is NULL: it needs both of its functions", a->allocate == NULL ? "allocate" : "release");
    TP_REQUIRE(a->reserved == 0, error, TP_INVALID, "allocator.reserved is %d: it must be 0", a->reserved);
    return TP_OK;
}
