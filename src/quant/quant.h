/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a quantised cache: what is stored is code * scale, in exact arithmetic. docs/quantised.md has the formats. */
#ifndef TP_QUANT_QUANT_H
#define TP_QUANT_QUANT_H

#include "base/codes.h"

/* Does this kind of scales go with codes of this dtype? */
int tp__scales_fit(int32_t dtype, int32_t kind);
/* The kinds that do, for errors: "token or q8_0". */
const char *tp__scales_for(int32_t dtype);
/* The first of them: what a text that names none means; TP_SCALES_NONE for a dtype that is not quantised. */
tp_scales tp__scales_default(int32_t dtype);

/* dim floats to codes and, unless `kind` is TP_SCALES_TENSOR, whose scale is given, their scales. *loss becomes the
   greatest |value - stored|, relative to the row's greatest |value|: 0 for a row of zeros, infinity where a value is
   not finite. In the default floating-point environment. */
void tp__quantise_row(tp_dtype dtype, tp_scales kind, int64_t dim, const float *row, float tensor_scale, void *codes,
                      void *scales, double *loss);

/* Element x of a row, exactly. scales: the row's; of TP_SCALES_TENSOR the one there is. */
double tp__stored(int32_t dtype, int32_t kind, const void *codes, const void *scales, int64_t x);

#endif
