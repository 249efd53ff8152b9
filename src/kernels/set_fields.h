/* SPDX-License-Identifier: Apache-2.0 */
/* What the set of every ISA says of itself, from isas.inc and the vec header. */
#ifndef TP_KERNELS_SET_FIELDS_H
#define TP_KERNELS_SET_FIELDS_H

#include "kernels/function.h"
#include "kernels/set.h"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

_Static_assert(TP__CAT(TP__MR_, TP_ISA) == VEC_MR && TP__CAT(TP__NR_, TP_ISA) == VEC_NR,
               "isas.inc and the vec header must name the same register tile");

#define SET TP__CAT(tp__kernel_set_, TP_ISA)
#define SET_FIELDS                                                                                                               \
    .isa = STRING(TP_ISA), .needs = TP__CAT(TP__NEEDS_, TP_ISA), .dtypes = TP__CAT(TP__DTYPES_, TP_ISA),                         \
    .arithmetic = TP__CAT(TP__ARITHMETIC_, TP_ISA), .mr = VEC_MR, .nr = VEC_NR, .row_step = VEC_LANES,                           \
    .tile_rows = VEC_MR * VEC_STRIPS
/* A function of the set under its name in receipts. */
#define SET_FUNCTION(op, dtype, place)                                                                                           \
    .function_name[TP__FUNCTION_##op##_##dtype] = "tp_" #op "_" #dtype "_" STRING(TP_ISA), .place = TP_FUNCTION_NAME(op##_##dtype)

#endif
