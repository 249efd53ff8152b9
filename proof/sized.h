/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that cross the API. A program may have been compiled with an older or a newer header than this library, so its
 * structs may be smaller or larger: they are copied in and out by the smaller size. 0.2.0 is the oldest header: the last
 * field that a struct had then gives the smallest size. Texts are pointers, and NULL becomes "".
 */
#ifndef TP_PROOF_SIZED_H
#define TP_PROOF_SIZED_H

#include <stddef.h>

#include "fail.h"

/* A struct of the API: its size here and in 0.2.0, and where its texts are. */
typedef struct tp__shape {
    const char *name;
    size_t size, min;
    const size_t *texts;
    int text_count;
} tp__shape;
extern const tp__shape tp__cell_shape, tp__identity_shape, tp__group_shape, tp__lock_use_shape, tp__use_shape, tp__options_shape,
    tp__run_shape, tp__update_shape, tp__model_options_shape, tp__lock_revision_shape, tp__lock_history_shape,
    tp__capacity_options_shape, tp__capacity_cache_shape, tp__capacity_work_shape, tp__cache_options_shape, tp__engine_shape,
    tp__answer_shape, tp__rope_shape, tp__preflight_shape;

/* From the caller's struct to one of this library: what the caller's lacks is 0. TP_INVALID: NULL, smaller than 0.2.0's, or a
   field that this library does not know is not 0. */
tp_status tp__take(const tp__shape *shape, const void *from, void *to, tp_error *error);
/* To the caller's struct, whose struct_size stays. What this library does not know of it becomes 0. TP_INVALID as above. */
tp_status tp__give(const tp__shape *shape, const void *from, void *to);
/* A copy with its texts behind it, in one block for free(). NULL: out of memory. */
void *tp__pack(const tp__shape *shape, const void *from);

#endif
