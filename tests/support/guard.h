/* SPDX-License-Identifier: Apache-2.0 */
/* Memory between pages that may not be touched, and memory far apart in a huge address range. */
#ifndef TP_TESTS_SUPPORT_GUARD_H
#define TP_TESTS_SUPPORT_GUARD_H

#include <stddef.h>

typedef struct guard {
    char *map; /* a page without access, the pages, a page without access */
    size_t map_bytes, bytes;
} guard;

guard guard_new(size_t bytes);
void guard_free(guard *g);
/* bytes directly behind the page before, or directly in front of the page behind. */
void *guard_begin(const guard *g);
void *guard_end(const guard *g, size_t bytes);
/* Read only, or read and write. */
void guard_protect(const guard *g, int writable);

/* Address space alone: no page of it may be touched until reserve_open. NULL when there is none. */
char *reserve(size_t bytes);
void reserve_open(char *at, size_t bytes);
void reserve_free(char *base, size_t bytes);

#endif
