/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetics: a row for each number of tp_arithmetic. */
#include "reference/rounding.h"

static const tp__rounding roundings[] = {
    [TP_ARITHMETIC_F32] = {.sum = UNIT}, /* elements of 16 bits are floats, and products of two are exact or rounded once */
};

const tp__rounding *tp__rounding_of(int32_t arithmetic) {
    unsigned n = (unsigned)arithmetic;
    return n < sizeof roundings / sizeof roundings[0] ? &roundings[n] : NULL;
}
