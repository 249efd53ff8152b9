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

/* With the address sanitizer what is taken ends at a fence: one array that runs into the next is seen, as one that runs out of
   the workspace would be. tp__arena_open takes the fences down before the memory goes back to its owner. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define TP__FENCE 64
static inline void tp__fence(char *at, size_t inside, size_t all) {
    ASAN_UNPOISON_MEMORY_REGION(at, inside);
    ASAN_POISON_MEMORY_REGION(at + inside, all - inside);
}
static inline void tp__arena_open(void *base, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(base, bytes); }
#else
#define TP__FENCE 0
static inline void tp__fence(char *at, size_t inside, size_t all) { (void)at, (void)inside, (void)all; }
static inline void tp__arena_open(void *base, size_t bytes) { (void)base, (void)bytes; }
#endif

typedef struct tp__arena {
    char *base;  /* NULL: only counting */
    size_t used; /* SIZE_MAX: more than can be addressed */
    int fenced;  /* a workspace: its arrays end at fences, where there are any */
} tp__arena;

static inline void *tp__take(tp__arena *arena, int64_t count, size_t element) {
    size_t bytes, end, fence = arena->fenced ? TP__FENCE : 0;
    char *at = arena->base != NULL ? arena->base + arena->used : NULL;
    if (count < 0 || __builtin_mul_overflow((size_t)count, element, &bytes) ||
        __builtin_add_overflow(bytes, fence + TP__ALIGN - 1, &bytes) ||
        __builtin_add_overflow(arena->used, bytes / TP__ALIGN * TP__ALIGN, &end) ||
        end > PTRDIFF_MAX)
        end = SIZE_MAX;
    if (at != NULL && fence > 0) tp__fence(at, (size_t)count * element, end - arena->used);
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
