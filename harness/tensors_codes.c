/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a quantised k and v: made by tp_quantise, read again here by the formats' definition. */
#include "harness/tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 32, BLOCK = 34 }; /* elements of a group; bytes of one with its scale in front */

tp_scales tensors_scales(const struct tensors *tensors, enum tensor_id id) {
    return id == TENSOR_K   ? (tp_scales)tensors->problem.k_scales
           : id == TENSOR_V ? (tp_scales)tensors->problem.v_scales
                            : TP_SCALES_NONE;
}

int64_t stored_row_bytes(tp_dtype dtype, tp_scales kind, int64_t dim) {
    return kind ? tp_codes_bytes(dtype, kind, dim) : dim * (int64_t)tp_dtype_bytes(dtype);
}

size_t tensors_row_bytes(const struct tensors *tensors, enum tensor_id id) {
    return (size_t)stored_row_bytes(tensors_dtype(tensors, id), tensors_scales(tensors, id), tensors_dim(tensors, id));
}

size_t tensors_scales_bytes(const struct tensors *tensors, enum tensor_id id) {
    return (size_t)tp_scales_bytes(tensors_scales(tensors, id), tensors_dim(tensors, id));
}

void *tensors_scales_at(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head) {
    const tp_tensor *scales = id == TENSOR_V ? &tensors->call.v_scales : &tensors->call.k_scales;
    tp_scales kind = tensors_scales(tensors, id);
    if (kind == TP_SCALES_NONE || kind == TP_SCALES_Q8_0) return NULL;
    if (kind == TP_SCALES_TENSOR) return scales->data;
    return (char *)scales->data + tensors_place(tensors, id, scales, seq, token, head) * (kind == TP_SCALES_GROUP ? 2 : 4);
}

/* One row as the library takes it. */
static tp_quantised quantised(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head,
                              const float *values) {
    tp_quantised row = TP_QUANTISED_INIT;
    row.dtype = tensors_dtype(tensors, id);
    row.kind = tensors_scales(tensors, id);
    row.rows = 1;
    row.dim = tensors_dim(tensors, id);
    row.values = (void *)(uintptr_t)values;
    row.codes = tensors_at(tensors, id, seq, token, head, 0);
    row.scales = tensors_scales_at(tensors, id, seq, token, head);
    return row;
}

static double put_row(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head, const float *values) {
    tp_quantised row = quantised(tensors, id, seq, token, head, values);
    double loss = NAN;
    tp_quantise(&row, &loss, NULL); /* floats, of which it takes every value, need no memory */
    return loss;
}

int tensors_fill_codes(struct tensors *tensors, enum tensor_id id, uint64_t seed, float gain) {
    int64_t dim = tensors_dim(tensors, id);
    double *loss = &tensors->loss[id == TENSOR_V];
    uint64_t index = 0;
    float *values = malloc((size_t)dim * sizeof *values);
    if (!values) return 1;
    *loss = 0;
    for (int64_t seq = 0; seq < tensors->sequences; seq++)
        for (int64_t token = 0; token < tensors_len(tensors, id, seq); token++)
            for (int64_t head = 0; head < tensors_heads(tensors, id); head++) {
                for (int64_t x = 0; x < dim; x++, index++) values[x] = tensors_random(seed, id, index, gain);
                if (!tensors_fill_shared(tensors, id, seq, token, head))
                    *loss = fmax(*loss, put_row(tensors, id, seq, token, head, values));
            }
    free(values);
    return 0;
}

void tensors_set_row(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head, const float *values) {
    tp_dtype dtype = tensors_dtype(tensors, id);
    char *row = tensors_at(tensors, id, seq, token, head, 0);
    if (tensors_scales(tensors, id))
        put_row(tensors, id, seq, token, head, values);
    else
        for (int64_t x = 0; x < tensors_dim(tensors, id); x++)
            tp_from_float(dtype, values[x], row + (size_t)x * tp_dtype_bytes(dtype));
}

void tensors_set(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head, int64_t x, float value) {
    if (!tensors_scales(tensors, id)) {
        tp_from_float(tensors_dtype(tensors, id), value, tensors_at(tensors, id, seq, token, head, x));
        return;
    }
    float *values = tensors_take_row(tensors, id, seq, token, head);
    values[x] = value;
    put_row(tensors, id, seq, token, head, values);
    free(values);
}

float *tensors_take_row(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head) {
    int64_t dim = tensors_dim(tensors, id);
    float *values = malloc((size_t)dim * sizeof *values);
    if (!values) abort();
    for (int64_t x = 0; x < dim; x++) values[x] = tensors_get(tensors, id, seq, token, head, x);
    return values;
}

static double from_e4m3(int code) {
    int exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7F) == 0x7F) return NAN;
    double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -size : size;
}

double tensors_value(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head, int64_t x) {
    tp_dtype dtype = tensors_dtype(tensors, id);
    tp_scales kind = tensors_scales(tensors, id);
    const unsigned char *row = tensors_at(tensors, id, seq, token, head, 0);
    if (!kind) return tp_to_float(dtype, row + (size_t)x * tp_dtype_bytes(dtype));
    const char *scales = tensors_scales_at(tensors, id, seq, token, head);
    if (kind == TP_SCALES_Q8_0) scales = (const char *)row + x / GROUP * BLOCK, row += x / GROUP * BLOCK + 2 - x / GROUP * GROUP;
    uint16_t half;
    float scale;
    if (kind == TP_SCALES_GROUP || kind == TP_SCALES_Q8_0) {
        memcpy(&half, kind == TP_SCALES_GROUP ? scales + x / GROUP * 2 : scales, sizeof half);
        scale = tp_to_float(TP_F16, &half);
    } else {
        memcpy(&scale, scales, sizeof scale);
    }
    int nibble = row[dtype == TP_I4 ? x / 2 : x] >> (dtype == TP_I4 && x % 2 ? 4 : 0);
    double code = dtype == TP_E4M3 ? from_e4m3(nibble) : dtype == TP_I8 ? (signed char)nibble : ((nibble & 15) ^ 8) - 8;
    return isfinite(scale) ? code * (double)scale : NAN;
}

void tensors_copy_row(struct tensors *to, int64_t to_seq, int64_t to_token, const struct tensors *from, int64_t from_seq,
                      int64_t from_token, enum tensor_id id, int64_t head) {
    size_t scales = tensors_scales_bytes(from, id);
    memmove(tensors_at(to, id, to_seq, to_token, head, 0), tensors_at(from, id, from_seq, from_token, head, 0),
            tensors_row_bytes(from, id)); /* it may be the same row: of a shared page */
    if (scales)
        memmove(tensors_scales_at(to, id, to_seq, to_token, head), tensors_scales_at(from, id, from_seq, from_token, head),
                scales);
}

void tensors_poison_row(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head) {
    size_t scales = tensors_scales_bytes(tensors, id);
    memset(tensors_at(tensors, id, seq, token, head, 0), 0xFF, tensors_row_bytes(tensors, id));
    if (scales) memset(tensors_scales_at(tensors, id, seq, token, head), 0xFF, scales);
}
