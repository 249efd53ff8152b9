/* SPDX-License-Identifier: Apache-2.0 */
/* How rows of a quantised cache lie in memory: codes of 8 or 4 bits, and scales beside or between them. */
#ifndef TP_BASE_CODES_H
#define TP_BASE_CODES_H

#include <stdint.h>
#include <string.h>

#include "tileproof.h"

#define TP__GROUP 32      /* elements that share a scale: TP_SCALES_GROUP and TP_SCALES_Q8_0 */
#define TP__Q8_0_BYTES 34 /* of a block: its scale, then its codes */

/* i8, i4 or e4m3: what needs scales. */
static inline int tp__is_code(int32_t dtype) { return dtype == TP_I8 || dtype == TP_I4 || dtype == TP_E4M3; }

/* What strides count along a row: elements, or bytes of q8_0 blocks. */
static inline int64_t tp__row_units(int32_t kind, int64_t dim) {
    return kind == TP_SCALES_Q8_0 ? (dim + TP__GROUP - 1) / TP__GROUP * TP__Q8_0_BYTES : dim;
}
/* Bytes of so many of these units, which for i4 are even or reach to the end of a row. Without a call: every key is looked up. */
static inline int64_t tp__units_bytes(int32_t dtype, int64_t units) {
    switch (dtype) {
    case TP_F32: return units * 4;
    case TP_F16:
    case TP_BF16: return units * 2;
    case TP_I4: return (units + 1) / 2;
    default: return units;
    }
}
/* Scales that a row has beside its codes: one, one for each group, or none of its own. */
static inline int64_t tp__row_scales(int32_t kind, int64_t dim) {
    return kind == TP_SCALES_TOKEN ? 1 : kind == TP_SCALES_GROUP ? (dim + TP__GROUP - 1) / TP__GROUP : 0;
}
/* The type of those scales. */
static inline int32_t tp__scale_dtype(int32_t kind) { return kind == TP_SCALES_GROUP ? TP_F16 : TP_F32; }
/* Bytes of a row: its elements or codes, and the scales that are its own. */
static inline int64_t tp__row_all_bytes(int32_t dtype, int32_t kind, int64_t dim) {
    return tp__units_bytes(dtype, tp__row_units(kind, dim)) +
           tp__row_scales(kind, dim) * (int64_t)tp_dtype_bytes((tp_dtype)tp__scale_dtype(kind));
}

/* Where elements are multiplied: one scale for a whole row, or one for each group within it. */
static inline int tp__scales_by_row(int32_t kind) { return kind == TP_SCALES_TOKEN || kind == TP_SCALES_TENSOR; }

#endif
