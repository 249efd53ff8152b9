/* SPDX-License-Identifier: Apache-2.0 */
/* The set of leaves of one ISA, wired from the table. */
#include "kernels/leaf.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)
/* clang-format off */
#define BY_DTYPE(op) {[TP_F32] = TP_LEAF_NAME(op##_f32), [TP_F16] = TP_LEAF_NAME(op##_f16), \
                      [TP_BF16] = TP_LEAF_NAME(op##_bf16)}
/* clang-format on */

_Static_assert(TP__CAT(TP__MR_, TP_ISA) == VEC_MR && TP__CAT(TP__NR_, TP_ISA) == VEC_NR,
               "isas.inc and the vec header must name the same register tile");

#define SET TP__CAT(tp__kernels_, TP_ISA)
const tp__kernels SET = {
    .isa = STRING(TP_ISA),
    .needs = TP__CAT(TP__NEEDS_, TP_ISA),
    .mr = VEC_MR,
    .nr = VEC_NR,
    .lanes = VEC_LANES,
    .tile_rows = VEC_MR * VEC_STRIPS,
    .leaf_name =
        {
#define TP_LEAF(op, dtype) "tp_" #op "_" #dtype "_" STRING(TP_ISA),
#include "kernels/leaves.inc"
#undef TP_LEAF
        },
    .load_q = BY_DTYPE(load_q),
    .pack_k = BY_DTYPE(pack_k),
    .pack_v = BY_DTYPE(pack_v),
    .dots = BY_DTYPE(dots),
    .mix = BY_DTYPE(mix),
    .store_o = BY_DTYPE(store_o),
    .delta = BY_DTYPE(delta),
    .store_d = BY_DTYPE(store_d),
    .attend = TP_LEAF_NAME(attend_f32),
    .backward = TP_LEAF_NAME(backward_f32),
    .fold = TP_LEAF_NAME(fold_f32),
    .math = TP_LEAF_NAME(math_f32),
    .peak = TP_LEAF_NAME(peak_f32),
    .read = TP_LEAF_NAME(read_f32),
    .exp2 = TP_LEAF_NAME(exp2_f32),
    .tanh = TP_LEAF_NAME(tanh_f32),
};
