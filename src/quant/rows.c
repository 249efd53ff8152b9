/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions: rows of a caller's, checked, then one after another. */
#include <math.h>
#include <stdlib.h>

#include "base/control.h"
#include "base/dtype.h"
#include "base/structs.h"
#include "quant/quant.h"

enum { DIM_LOG2 = 20 }; /* of the greatest head dim there is */

const char *tp_scales_name(tp_scales kind) {
    static const char *const names[] = {"none", "tensor", "token", "group", "q8_0"};
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "scales?";
}

int64_t tp_codes_bytes(tp_dtype dtype, tp_scales kind, int64_t dim) {
    return tp__scales_fit(dtype, kind) && dim > 0 && dim <= (int64_t)1 << DIM_LOG2
               ? tp__units_bytes(dtype, tp__row_units(kind, dim))
               : 0;
}

int64_t tp_scales_bytes(tp_scales kind, int64_t dim) {
    if (dim <= 0 || dim > (int64_t)1 << DIM_LOG2) return 0;
    return tp__row_scales(kind, dim) * (kind == TP_SCALES_TOKEN ? (int64_t)sizeof(float) : (int64_t)sizeof(uint16_t));
}

/* Rows lie apart from each other; strides of one row are never taken. */
static tp_status check_stride(const tp_quantised *q, const char *name, int64_t stride, int64_t min, tp_error *error) {
    TP_REQUIRE(q->rows < 2 || stride >= min, error, TP_INVALID, "%s is %lld with rows of %lld: rows must lie apart", name,
               (long long)stride, (long long)min);
    TP_REQUIRE(q->rows < 2 || stride <= INT64_MAX / 8 / q->rows, error, TP_INVALID,
               "%s is %lld with %lld rows: offsets must fit in int64", name, (long long)stride, (long long)q->rows);
    return TP_OK;
}

static tp_status check_pointer(const char *name, const void *pointer, size_t unit, tp_error *error) {
    TP_REQUIRE(pointer != NULL, error, TP_INVALID, "%s is NULL: rows lie there", name);
    TP_REQUIRE((uintptr_t)pointer % unit == 0, error, TP_INVALID, "%s is %p: it must be aligned to its elements of %zu bytes",
               name, pointer, unit);
    return TP_OK;
}

static tp_status check(const tp_quantised *q, tp_error *error) {
    TP_REQUIRE(tp__is_code(q->dtype), error, TP_INVALID, "dtype is %s (%d): codes are i8, i4 or e4m3",
               tp_dtype_name((tp_dtype)q->dtype), q->dtype);
    TP_REQUIRE(tp__scales_fit(q->dtype, q->kind), error, TP_INVALID, "kind is %s (%d) with %s: its scales are %s",
               tp_scales_name((tp_scales)q->kind), q->kind, tp_dtype_name((tp_dtype)q->dtype), tp__scales_for(q->dtype));
    TP_REQUIRE(tp__dtype_is_float(q->values_dtype), error, TP_INVALID, "values_dtype is %s (%d): values are f32, f16 or bf16",
               tp_dtype_name((tp_dtype)q->values_dtype), q->values_dtype);
    TP_REQUIRE(q->rows >= 0, error, TP_INVALID, "rows is %lld: it must be at least 0", (long long)q->rows);
    TP_REQUIRE(q->dim >= 1 && q->dim <= (int64_t)1 << DIM_LOG2, error, TP_INVALID, "dim is %lld: it must be in 1..2^%d",
               (long long)q->dim, DIM_LOG2);
    TP_REQUIRE(q->kind != TP_SCALES_Q8_0 || q->dim % TP__GROUP == 0, error, TP_INVALID,
               "dim is %lld with q8_0: it must be a multiple of %d, the elements of a block", (long long)q->dim, TP__GROUP);
    TP_REQUIRE(q->dtype != TP_I4 || (q->dim % 2 == 0 && (q->rows < 2 || q->codes_stride % 2 == 0)), error, TP_INVALID,
               "dim is %lld and codes_stride %lld with i4: both must be even, because two elements share a byte",
               (long long)q->dim, (long long)q->codes_stride);
    if (q->rows == 0) return TP_OK;
    TP_TRY(check_pointer("values", q->values, tp_dtype_bytes((tp_dtype)q->values_dtype), error));
    TP_TRY(check_pointer("codes", q->codes, 1, error));
    TP_TRY(check_stride(q, "values_stride", q->values_stride, q->dim, error));
    TP_TRY(check_stride(q, "codes_stride", q->codes_stride, tp__row_units(q->kind, q->dim), error));
    if (q->kind == TP_SCALES_Q8_0) return TP_OK;
    TP_TRY(check_pointer("scales", q->scales, q->kind == TP_SCALES_GROUP ? sizeof(uint16_t) : sizeof(float), error));
    if (q->kind != TP_SCALES_TENSOR)
        return check_stride(q, "scales_stride", q->scales_stride, tp__row_scales(q->kind, q->dim), error);
    float scale = *(const float *)q->scales;
    TP_REQUIRE(scale > 0 && isfinite(scale), error, TP_INVALID,
               "the tensor's scale is %g: it must be positive and finite; greatest |value| / 448 uses all of e4m3's range",
               (double)scale);
    return TP_OK;
}

static void *codes_at(const tp_quantised *q, int64_t row) {
    return (char *)q->codes + tp__units_bytes(q->dtype, row * q->codes_stride);
}

static void *scales_at(const tp_quantised *q, int64_t row) {
    if (q->kind == TP_SCALES_TOKEN) return (float *)q->scales + row * q->scales_stride;
    return q->kind == TP_SCALES_GROUP ? (void *)((uint16_t *)q->scales + row * q->scales_stride) : q->scales;
}

static const void *values_at(const tp_quantised *q, int64_t row) {
    return (const char *)q->values + row * q->values_stride * (int64_t)tp_dtype_bytes((tp_dtype)q->values_dtype);
}

/* wide: room for a row of floats, where values are of 16 bits. */
static double quantise_all(const tp_quantised *q, float *wide) {
    float scale = q->kind == TP_SCALES_TENSOR ? *(const float *)q->scales : 0;
    double worst = 0, loss;
    for (int64_t row = 0; row < q->rows; row++) {
        const float *values = values_at(q, row);
        if (wide != NULL) {
            for (int64_t x = 0; x < q->dim; x++) wide[x] = tp__load((tp_dtype)q->values_dtype, values_at(q, row), x);
            values = wide;
        }
        tp__quantise_row((tp_dtype)q->dtype, (tp_scales)q->kind, q->dim, values, scale, codes_at(q, row), scales_at(q, row),
                         &loss);
        worst = loss > worst ? loss : worst;
    }
    return worst;
}

tp_status tp_quantise(const tp_quantised *rows, double *loss, tp_error *error) {
    TP__IN_DEFAULT_CONTROL;
    TP_STRUCT_IN(tp_quantised, rows, error);
    TP_TRY(check(rows, error));
    float *wide = NULL;
    if (rows->values_dtype != TP_F32 && rows->rows > 0) {
        wide = malloc((size_t)rows->dim * sizeof *wide);
        TP_REQUIRE(wide != NULL, error, TP_NO_MEMORY, "no memory for a row of %lld floats", (long long)rows->dim);
    }
    double worst = quantise_all(rows, wide);
    free(wide);
    if (loss != NULL) *loss = worst;
    return TP_OK;
}

tp_status tp_dequantise(const tp_quantised *rows, tp_error *error) {
    TP__IN_DEFAULT_CONTROL;
    TP_STRUCT_IN(tp_quantised, rows, error);
    TP_TRY(check(rows, error));
    size_t unit = tp_dtype_bytes((tp_dtype)rows->values_dtype);
    for (int64_t row = 0; row < rows->rows; row++) {
        char *to = (char *)rows->values + row * rows->values_stride * (int64_t)unit;
        for (int64_t x = 0; x < rows->dim; x++) {
            double stored = tp__stored(rows->dtype, rows->kind, codes_at(rows, row), scales_at(rows, row), x);
            tp_from_float((tp_dtype)rows->values_dtype, (float)stored, to + (size_t)x * unit);
        }
    }
    return TP_OK;
}
