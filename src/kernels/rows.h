/* SPDX-License-Identifier: Apache-2.0 */
/* What kernel functions that walk over the rows of tensors share. */
#ifndef TP_KERNELS_ROWS_H
#define TP_KERNELS_ROWS_H

#include "kernels/kernel.h"
#include "kernels/vec/vec.h"

#define AHEAD_ROWS 32 /* rows to prefetch ahead of */

/* Elements to about AHEAD_ROWS rows on. It may lie anywhere, and wrap: with one token its stride is never taken and
   may be anything. */
static inline uintptr_t ahead(const tp__rows *rows) {
    return (uintptr_t)(AHEAD_ROWS / rows->group + 1) * (uintptr_t)rows->stride_token;
}

/* The lines of a row that comes later: rows lie a stride apart, which hardware prefetchers miss. Into L2:
   with strides of 4 KiB and more, rows in L1 would drive each other out. */
VEC_INLINE void prefetch_row(const void *row, uintptr_t bytes_on, int64_t bytes) {
    uintptr_t at = (uintptr_t)row + bytes_on;
    for (int64_t x = 0; x < bytes; x += TP__LINE) __builtin_prefetch((const void *)(at + (uintptr_t)x), 0, 2);
}

/* Whether any lane is not 0. A sum of x*0 stays 0 while every x is finite. */
VEC_INLINE int not_zero(vec_f seen) {
    for (int i = 0; i < VEC_LANES; i++)
        if (!(seen[i] == 0.0f)) return 1;
    return 0;
}

#endif
