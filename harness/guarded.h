/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory between two pages without access: whoever reads or writes beyond it dies there and then. For one thread: a
 * table of all pieces is kept.
 */
#ifndef TILEPROOF_HARNESS_GUARDED_H
#define TILEPROOF_HARNESS_GUARDED_H

#include <stddef.h>

enum guarded_side {
    GUARDED_NOT,  /* plain memory, for callers that serve both */
    GUARDED_END,  /* ends where the page behind begins */
    GUARDED_FRONT /* begins where the page before ends */
};

/* Bytes of any number, 0 too; every byte holds `fill`, or -1: is not touched. Aligned to unit, which divides bytes. NULL: no
   memory. */
void *guarded_take(enum guarded_side side, size_t bytes, size_t unit, int fill);
void guarded_free(enum guarded_side side, void *memory);

#endif
