/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Laying out a workspace: the same walk with base NULL gives the size, with a base the pointers.
 * Sizes saturate, so that an impossible request is seen as one instead of wrapping around.
 */
#ifndef TP_BASE_ARENA_H
#define TP_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define TP__ALIGN 64

typedef struct tp__arena {
    char *base;  /* NULL: only counting */
    size_t used; /* SIZE_MAX: more than can be addressed */
} tp__arena;

static inline void *tp__take(tp__arena *arena, int64_t count, size_t element) {
    size_t bytes, end;
    char *at = arena->base != NULL ? arena->base + arena->used : NULL;
    if (count < 0 || __builtin_mul_overflow((size_t)count, element, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)(TP__ALIGN - 1), &bytes) ||
        __builtin_add_overflow(arena->used, bytes / TP__ALIGN * TP__ALIGN, &end) ||
        end > PTRDIFF_MAX)
        end = SIZE_MAX;
    arena->used = end;
    return at;
}

#define TP_TAKE(arena, type, count) ((type *)tp__take((arena), (count), sizeof(type)))

/* a*b, or INT64_MAX when that does not fit: tp__take then saturates. a, b >= 0. */
static inline int64_t tp__times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static inline int64_t tp__round_up(int64_t x, int64_t step) {
    return (x + step - 1) / step * step;
}

static inline int64_t tp__min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tp__max(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
