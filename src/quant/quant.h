/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a quantised cache: what is stored is code * scale, in exact arithmetic. docs/quantised.md has the formats. */
#ifndef TP_QUANT_QUANT_H
#define TP_QUANT_QUANT_H

#include "tileproof.h"

#define TP__GROUP 32      /* elements that share a scale: TP_SCALES_GROUP and TP_SCALES_Q8_0 */
#define TP__Q8_0_BYTES 34 /* of a block: its scale, then its codes */

/* i8, i4 or e4m3: what needs scales. */
static inline int tp__is_code(int32_t dtype) { return dtype == TP_I8 || dtype == TP_I4 || dtype == TP_E4M3; }

/* Does this kind of scales go with codes of this dtype? */
int tp__scales_fit(int32_t dtype, int32_t kind);
/* The kinds that do, for errors: "token or q8_0". */
const char *tp__scales_for(int32_t dtype);
/* The first of them: what a text that names none means; TP_SCALES_NONE for a dtype that is not quantised. */
tp_scales tp__scales_default(int32_t dtype);

/* What strides count along a row: elements, or bytes of q8_0 blocks. */
static inline int64_t tp__row_units(int32_t kind, int64_t dim) {
    return kind == TP_SCALES_Q8_0 ? (dim + TP__GROUP - 1) / TP__GROUP * TP__Q8_0_BYTES : dim;
}
/* Bytes of so many of these units, which for i4 are even or reach to the end of a row. */
static inline int64_t tp__units_bytes(int32_t dtype, int64_t units) {
    return dtype == TP_I4 ? (units + 1) / 2 : units * (int64_t)tp_dtype_bytes((tp_dtype)dtype);
}
/* Scales that a row has beside its codes: one, one for each group, or none of its own. */
static inline int64_t tp__row_scales(int32_t kind, int64_t dim) {
    return kind == TP_SCALES_TOKEN ? 1 : kind == TP_SCALES_GROUP ? (dim + TP__GROUP - 1) / TP__GROUP : 0;
}

/* dim floats to codes and, unless `kind` is TP_SCALES_TENSOR, whose scale is given, their scales. *loss becomes the
   greatest |value - stored|, relative to the row's greatest |value|: 0 for a row of zeros, infinity where a value is
   not finite. In the default floating-point environment. */
void tp__quantise_row(tp_dtype dtype, tp_scales kind, int64_t dim, const float *row, float tensor_scale, void *codes,
                      void *scales, double *loss);

/* Element x of a row, exactly. scales: the row's; of TP_SCALES_TENSOR the one there is. */
double tp__stored(int32_t dtype, int32_t kind, const void *codes, const void *scales, int64_t x);

#endif
