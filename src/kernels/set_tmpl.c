/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel set of one ISA, wired from the table: it has every function. */
#include "kernels/set_fields.h"

const tp__kernel_set SET = {
    SET_FIELDS,
    .form = {VEC_NR, VEC_LANES, {sizeof(float), 1, 1}, {sizeof(float), 1, 1}, {sizeof(float), 1, 1}},
#define TP_FUNCTION(op, dtype, slot, forms) SET_FUNCTION(op, dtype, slot),
#include "kernels/functions.inc"
#undef TP_FUNCTION
};
