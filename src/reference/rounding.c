/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetics: a row for each number of tp_arithmetic. */
#include "reference/rounding.h"

static const tp__rounding roundings[] = {
    /* OpenCL's log is within 3 ulp, so 6u; lse is then one fma or a rounded product and a sum */
    [TP_ARITHMETIC_OPENCL] = {.sum = UNIT, .log = 6 * UNIT, .block = 32, .split = 512},
    [TP_ARITHMETIC_F32] = {.sum = UNIT}, /* elements of 16 bits are floats, and products of two are exact or rounded once */
};

const tp__rounding *tp__rounding_of(int32_t arithmetic) {
    unsigned n = (unsigned)arithmetic;
    return n < sizeof roundings / sizeof roundings[0] ? &roundings[n] : NULL;
}
