/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel set on pairs of bf16. It has what touches packed blocks; q's rows are floats, as those of the set that lends the
   rest. */
#include "kernels/set_fields.h"

const tp__kernel_set SET = {
    SET_FIELDS,
    .form = {VEC_NR, VEC_LANES, {sizeof(float), 1, 1}, {sizeof(uint16_t), 2, VEC_TOGETHER}, {sizeof(uint16_t), 2, VEC_TOGETHER}},
    SET_FUNCTION(pack_k, bf16, pack_k[TP_BF16]),
    SET_FUNCTION(pack_v, bf16, pack_v[TP_BF16]),
    SET_FUNCTION(attend, f32, attend),
#if VEC_TOGETHER == 2
    SET_FUNCTION(backward, f32, backward),
#endif
    SET_FUNCTION(peak, f32, peak),
};
