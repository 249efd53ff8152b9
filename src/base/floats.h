/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of f32, f16 or bf16 to floats and back, to nearest even. */
#ifndef TP_BASE_FLOATS_H
#define TP_BASE_FLOATS_H

#include <string.h>

#include "base/dtype.h"

static inline void tp__to_floats(int32_t dtype, const void *from, int64_t count, float *to) {
    const uint16_t *half = from;
    if (dtype == TP_F32)
        memcpy(to, from, (size_t)count * sizeof *to);
    else if (dtype == TP_F16)
        for (int64_t i = 0; i < count; i++) to[i] = tp__from_f16(half[i]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = tp__from_bf16(half[i]);
}

static inline void tp__from_floats(int32_t dtype, const float *from, int64_t count, void *to) {
    uint16_t *half = to;
    if (dtype == TP_F32)
        memcpy(to, from, (size_t)count * sizeof *from);
    else if (dtype == TP_F16)
        for (int64_t i = 0; i < count; i++) half[i] = tp__to_f16(from[i]);
    else
        for (int64_t i = 0; i < count; i++) half[i] = tp__to_bf16(from[i]);
}

#endif
