/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetics: a row for each number of tp_arithmetic. */
#include "reference/rounding.h"

static const tp__rounding roundings[] = {
    /* elements of 16 bits are floats, and products of two are exact or rounded once */
    [TP_ARITHMETIC_F32] = {.sum = UNIT, .lowest = 99, .kept = 58, .tiny = TINY},
    /* OpenCL's log is within 3 ulp, so 6u; lse is then one fma or a rounded product and a sum */
    [TP_ARITHMETIC_OPENCL] = {.sum = UNIT, .lowest = 99, .tiny = TINY, .log = 6 * UNIT, .block = 32, .split = 512},
    /* products of pairs are exact, and tiles sum 32 by themselves; back, what is subnormal may count as 0, an element or a sum */
    [TP_ARITHMETIC_P_BF16] = {.sum = UNIT, .weight = 0x1p-8, .lowest = 58, .tiny = 0x1p-125, .flushes = 0x1p-124, .step = 32},
};

const tp__rounding *tp__rounding_of(int32_t arithmetic) {
    unsigned n = (unsigned)arithmetic;
    return n < sizeof roundings / sizeof roundings[0] ? &roundings[n] : NULL;
}
