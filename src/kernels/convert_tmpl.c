/* SPDX-License-Identifier: Apache-2.0 */
/* Between tensors of any dtype and the packed float32 forms: load_q, pack_k, pack_v, store_o. */
#include "kernels/leaf.h"

#include <math.h>

static inline int64_t offset(const tp__rows *rows, int64_t i) {
    int64_t r = rows->first + i;
    return r / rows->group * rows->stride_token + r % rows->group * rows->stride_head;
}

/* Whether any lane is not 0. A sum of x*0 stays 0 while every x is finite. */
VEC_INLINE int not_zero(vec_f seen) {
    for (int i = 0; i < VEC_LANES; i++)
        if (!(seen[i] == 0.0f)) return 1;
    return 0;
}

/* pack_k works in steps of VEC_LANES keys; the rest of the first and last panel becomes zero here. */
static void zero_ends(float *packed, int64_t first, int64_t last, int64_t d) {
    int64_t done = first / VEC_LANES * VEC_LANES;
    int64_t after = (last + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    int64_t end = (last + VEC_NR - 1) / VEC_NR * VEC_NR;
    for (int64_t key = first / VEC_NR * VEC_NR; key < end; key += VEC_LANES) {
        if (key >= done && key < after) continue;
        float *to = packed + key / VEC_NR * VEC_NR * d + key % VEC_NR;
        for (int64_t x = 0; x < d; x++) vec_store(to + x * VEC_NR, (vec_f){0});
    }
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
