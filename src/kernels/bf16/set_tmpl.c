/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel set on pairs of bf16. It has what touches packed blocks; q's rows are floats, as those of the set that lends the
   rest. */
#include "kernels/function.h"
#include "kernels/set.h"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

_Static_assert(TP__CAT(TP__MR_, TP_ISA) == VEC_MR && TP__CAT(TP__NR_, TP_ISA) == VEC_NR,
               "isas.inc and the vec header must name the same register tile");

#define OWN(op, dtype, place)                                                                                                    \
    .function_name[TP__FUNCTION_##op##_##dtype] = "tp_" #op "_" #dtype "_" STRING(TP_ISA), .place = TP_FUNCTION_NAME(op##_##dtype)

#define SET TP__CAT(tp__kernel_set_, TP_ISA)
const tp__kernel_set SET = {
    .isa = STRING(TP_ISA),
    .needs = TP__CAT(TP__NEEDS_, TP_ISA),
    .dtypes = TP__CAT(TP__DTYPES_, TP_ISA),
    .arithmetic = TP__CAT(TP__ARITHMETIC_, TP_ISA),
    .mr = VEC_MR,
    .nr = VEC_NR,
    .row_step = VEC_LANES,
    .tile_rows = VEC_MR * VEC_STRIPS,
    .form = {VEC_NR, VEC_LANES, {sizeof(float), 1}, {sizeof(uint16_t), 2}, {sizeof(uint16_t), 2}},
    OWN(pack_k, bf16, pack_k[TP_BF16]),
    OWN(pack_v, bf16, pack_v[TP_BF16]),
    OWN(attend, f32, attend),
    OWN(backward, f32, backward),
    OWN(peak, f32, peak),
};
