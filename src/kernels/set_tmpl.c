/* SPDX-License-Identifier: Apache-2.0 */
/* The set of leaves of one ISA, wired from the table. */
#include "kernels/function.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)
/* clang-format off */
#define BY_DTYPE(op) {[TP_F32] = TP_FUNCTION_NAME(op##_f32), [TP_F16] = TP_FUNCTION_NAME(op##_f16), \
                      [TP_BF16] = TP_FUNCTION_NAME(op##_bf16)}
/* clang-format on */

_Static_assert(TP__CAT(TP__MR_, TP_ISA) == VEC_MR && TP__CAT(TP__NR_, TP_ISA) == VEC_NR,
               "isas.inc and the vec header must name the same register tile");

#define SET TP__CAT(tp__kernel_set_, TP_ISA)
const tp__kernel_set SET = {
    .isa = STRING(TP_ISA),
    .needs = TP__CAT(TP__NEEDS_, TP_ISA),
    .dtypes = TP__CAT(TP__DTYPES_, TP_ISA),
    .arithmetic = TP__CAT(TP__ARITHMETIC_, TP_ISA),
    .mr = VEC_MR,
    .nr = VEC_NR,
    .lanes = VEC_LANES,
    .tile_rows = VEC_MR * VEC_STRIPS,
    .function_name =
        {
#define TP_FUNCTION(op, dtype) "tp_" #op "_" #dtype "_" STRING(TP_ISA),
#include "kernels/functions.inc"
#undef TP_FUNCTION
        },
    .load_q = BY_DTYPE(load_q),
    .pack_k = BY_DTYPE(pack_k),
    .pack_v = BY_DTYPE(pack_v),
    .qk = BY_DTYPE(qk),
    .pv = BY_DTYPE(pv),
    .store_o = BY_DTYPE(store_o),
    .delta = BY_DTYPE(delta),
    .store_d = BY_DTYPE(store_d),
    .attend = TP_FUNCTION_NAME(attend_f32),
    .backward = TP_FUNCTION_NAME(backward_f32),
    .merge_state = TP_FUNCTION_NAME(merge_state_f32),
    .math = TP_FUNCTION_NAME(math_f32),
    .peak = TP_FUNCTION_NAME(peak_f32),
    .read = TP_FUNCTION_NAME(read_f32),
    .exp2 = TP_FUNCTION_NAME(exp2_f32),
    .tanh = TP_FUNCTION_NAME(tanh_f32),
};
