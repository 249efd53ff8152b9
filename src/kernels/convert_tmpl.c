/* SPDX-License-Identifier: Apache-2.0 */
/* Between tensors of any dtype and the packed float32 forms: load_q, pack_k, pack_v, store_o. */
#include "kernels/leaf.h"

#include <math.h>

#define AHEAD_ROWS 32 /* q and o rows to prefetch ahead of */

/* About AHEAD_ROWS rows on. */
static inline int64_t ahead(const tp__rows *rows) {
    return (AHEAD_ROWS / rows->group + 1) * rows->stride_token;
}

/* Whether any lane is not 0. A sum of x*0 stays 0 while every x is finite. */
VEC_INLINE int not_zero(vec_f seen) {
    for (int i = 0; i < VEC_LANES; i++)
        if (!(seen[i] == 0.0f)) return 1;
    return 0;
}

#define BODY "kernels/convert_body.inc"
#include "kernels/each_dtype.inc"
