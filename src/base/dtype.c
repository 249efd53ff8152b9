/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

#include <math.h>

#include "tileproof.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [TP_F32] = {"f32", 4},   [TP_F16] = {"f16", 2},   [TP_BF16] = {"bf16", 2}, [TP_E4M3] = {"e4m3", 1},
    [TP_E5M2] = {"e5m2", 1}, [TP_I8] = {"i8", 1},     [TP_I4] = {"i4", 0},
};

static int known(tp_dtype dtype) {
    return (int)dtype > 0 && (size_t)dtype < sizeof dtypes / sizeof dtypes[0];
}

const char *tp_dtype_name(tp_dtype dtype) { return known(dtype) ? dtypes[dtype].name : "dtype?"; }

size_t tp_dtype_bytes(tp_dtype dtype) { return known(dtype) ? dtypes[dtype].bytes : 0; }

const char *tp_arithmetic_name(tp_arithmetic arithmetic) {
    switch (arithmetic) {
    case TP_ARITHMETIC_F32: return "f32";
    case TP_ARITHMETIC_OPENCL: return "opencl";
    }
    return "arithmetic?";
}

/* Of a dtype without a conversion nothing is read. */
float tp_to_float(tp_dtype dtype, const void *element) {
    return tp__dtype_is_float((int)dtype) ? tp__load(dtype, element, 0) : NAN;
}

void tp_from_float(tp_dtype dtype, float value, void *element) {
    switch (dtype) {
    case TP_F16: *(uint16_t *)element = tp__to_f16(value); break;
    case TP_BF16: *(uint16_t *)element = tp__to_bf16(value); break;
    case TP_F32: *(float *)element = value; break;
    default: break; /* no conversion exists; nothing is written */
    }
}
