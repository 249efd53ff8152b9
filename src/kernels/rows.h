/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves that walk over the rows of tensors share. */
#ifndef TP_KERNELS_ROWS_H
#define TP_KERNELS_ROWS_H

#include "kernels/kernel.h"
#include "kernels/vec/vec.h"

#define AHEAD_ROWS 32 /* rows to prefetch ahead of */

/* About AHEAD_ROWS rows on. */
static inline int64_t ahead(const tp__rows *rows) {
    return (AHEAD_ROWS / rows->group + 1) * rows->stride_token;
}

/* The lines of a row that comes later: rows lie a stride apart, which hardware prefetchers miss. Into L2:
   with strides of 4 KiB and more, rows in L1 would drive each other out. */
VEC_INLINE void prefetch_bytes(const void *p, int64_t bytes) {
    for (int64_t x = 0; x < bytes; x += TP__LINE) __builtin_prefetch((const char *)p + x, 0, 2);
}

/* Whether any lane is not 0. A sum of x*0 stays 0 while every x is finite. */
VEC_INLINE int not_zero(vec_f seen) {
    for (int i = 0; i < VEC_LANES; i++)
        if (!(seen[i] == 0.0f)) return 1;
    return 0;
}

#endif
