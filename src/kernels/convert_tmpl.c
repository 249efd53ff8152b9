/* SPDX-License-Identifier: Apache-2.0 */
/* Between tensors of any dtype and the packed float32 forms: load_q, pack_k, pack_v, store_o. */
#include "kernels/leaf.h"

#include <math.h>

#define LINE 64       /* bytes of a cache line */
#define AHEAD_ROWS 32 /* rows to prefetch ahead of */

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

#define DTYPE f32
#define ELEMENT float
#define LOAD(p) vec_load(p)
#define STORE(p, x) vec_store(p, x)
#define TO_FLOAT(x) (x)
#include "kernels/convert_body.inc"

#define DTYPE f16
#define ELEMENT uint16_t
#define LOAD(p) vec_load_f16(p)
#define STORE(p, x) vec_store_f16(p, x)
#define TO_FLOAT(x) tp__from_f16(x)
#include "kernels/convert_body.inc"

#define DTYPE bf16
#define ELEMENT uint16_t
#define LOAD(p) vec_load_bf16(p)
#define STORE(p, x) vec_store_bf16(p, x)
#define TO_FLOAT(x) tp__from_bf16(x)
#include "kernels/convert_body.inc"
