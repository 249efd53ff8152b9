/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to codes and back: the error of every element, what is not finite, layouts, and what is refused. */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "quant/quant.h"
#include "tileproof.h"

enum { DIM = 96 };

static const struct {
    tp_dtype dtype;
    tp_scales kind;
} formats[] = {
    {TP_I8, TP_SCALES_TOKEN}, {TP_I8, TP_SCALES_Q8_0},    {TP_I4, TP_SCALES_GROUP},
    {TP_E4M3, TP_SCALES_TOKEN}, {TP_E4M3, TP_SCALES_TENSOR},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

typedef struct stored {
    tp_dtype dtype;
    tp_scales kind;
    uint8_t codes[DIM * 2];
    float scale[DIM];
    double loss;
} stored;

static double at(const stored *s, int64_t x) { return tp__stored(s->dtype, s->kind, s->codes, s->scale, x); }

/* The scale of an element, read from what was written. */
static double scale_of(const stored *s, int64_t x) {
    uint16_t half;
    if (s->kind == TP_SCALES_TOKEN || s->kind == TP_SCALES_TENSOR) return (double)s->scale[0];
    if (s->kind == TP_SCALES_GROUP)
        memcpy(&half, (const char *)s->scale + x / 32 * 2, 2);
    else
        memcpy(&half, s->codes + x / 32 * 34, 2);
    return (double)tp_to_float(TP_F16, &half);
}

static stored quantise(int format, int64_t dim, const float *row, float tensor_scale) {
    stored s = {.dtype = formats[format].dtype, .kind = formats[format].kind};
    s.scale[0] = tensor_scale;
    tp__quantise_row(s.dtype, s.kind, dim, row, tensor_scale, s.codes, s.scale, &s.loss);
    return s;
}

static uint64_t seed = 88172645463325252u;
static double uniform(void) { /* in -1..1 */
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (double)(int64_t)seed / 0x1p63;
}

static double greatest(const float *row, int64_t dim) {
    double max = 0;
    for (int64_t x = 0; x < dim; x++) max = fmax(max, fabs((double)row[x]));
    return max;
}

/* The bound of docs/quantised.md, with room for the rounding of one division in double. */
static double bound(const stored *s, int64_t x, double value) {
    double scale = scale_of(s, x);
    double whole = scale / 2, part = fmax(fabs(value) / 16, scale / 1024);
    return (s->dtype == TP_E4M3 ? part : whole) * (1 + 0x1p-40);
}

/* Of every size of float, from subnormal to where f16 scales end, with outliers and zeros among them. */
static void elements_keep_their_bounds(void **state) {
    (void)state;
    for (int format = 0; format < FORMATS; format++) {
        int f16 = formats[format].kind == TP_SCALES_GROUP || formats[format].kind == TP_SCALES_Q8_0;
        for (int power = -149; power <= 127; power++) {
            float row[DIM];
            double unit = ldexp(1, power), loss = 0;
            if (f16 && 2 * unit / (formats[format].dtype == TP_I4 ? 7 : 127) > 65504) continue;
            for (int x = 0; x < DIM; x++) row[x] = (float)(unit * uniform() * (x % 7 == 3 ? 1e-3 : x % 11 == 5 ? 0 : 1));
            double max = greatest(row, DIM);
            float scale = formats[format].kind == TP_SCALES_TENSOR ? (float)fmax(max / 448, FLT_TRUE_MIN) : 1;
            if (formats[format].kind == TP_SCALES_TENSOR && max / (double)scale > 448) scale = nextafterf(scale, INFINITY);
            stored s = quantise(format, DIM, row, scale);
            for (int x = 0; x < DIM; x++) {
                double off = fabs((double)row[x] - at(&s, x));
                if (!(off <= bound(&s, x, (double)row[x])))
                    fail_msg("%s %s: %a became %a with a scale of %a", tp_dtype_name(s.dtype), tp_scales_name(s.kind),
                             (double)row[x], at(&s, x), scale_of(&s, x));
                loss = fmax(loss, off);
            }
            assert_true(s.loss == (max > 0 ? loss / max : 0));
            assert_true(s.loss <= (formats[format].dtype == TP_I8 ? 0.005 : 0.08) || f16 || power < -135);
        }
    }
}

/* A scale is near what uses all codes: a bound on its own multiples says nothing of a scale that is too large. */
static void scales_use_the_range(void **state) {
    (void)state;
    for (int format = 0; format < FORMATS; format++) {
        double limit = formats[format].dtype == TP_I8 ? 127 : formats[format].dtype == TP_I4 ? 7 : 448;
        if (formats[format].kind == TP_SCALES_TENSOR) continue;
        for (int i = 0; i < 200; i++) {
            float row[DIM];
            for (int x = 0; x < DIM; x++) row[x] = (float)(uniform() * 3);
            stored s = quantise(format, DIM, row, 1);
            int64_t group = formats[format].kind == TP_SCALES_TOKEN ? DIM : 32;
            for (int64_t from = 0; from < DIM; from += group)
                assert_true(fabs(scale_of(&s, from) * limit / greatest(row + from, group) - 1) < 0x1p-10);
        }
    }
}

static void zeros_are_zeros(void **state) {
    (void)state;
    for (int format = 0; format < FORMATS; format++) {
        float row[DIM] = {0};
        row[3] = -0.0f;
        stored s = quantise(format, DIM, row, 0.25f);
        for (int x = 0; x < DIM; x++) assert_true(at(&s, x) == 0);
        assert_true(s.loss == 0);
        assert_true(scale_of(&s, 40) == (formats[format].kind == TP_SCALES_TENSOR ? 0.25 : 0));
    }
}

/* What is not finite makes NaN of all that shares its scale, or of itself alone where there is a code for it. */
static void not_finite_stays_visible(void **state) {
    (void)state;
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int format = 0; format < FORMATS; format++)
        for (int i = 0; i < 3; i++) {
            float row[DIM];
            for (int x = 0; x < DIM; x++) row[x] = (float)uniform();
            row[37] = bad[i];
            stored s = quantise(format, DIM, row, 0.01f);
            for (int x = 0; x < DIM; x++) {
                int shares = s.dtype == TP_E4M3 ? x == 37 : s.kind == TP_SCALES_TOKEN ? 1 : x / 32 == 1;
                assert_int_equal(isnan(at(&s, x)) != 0, shares);
                if (!shares) assert_true(fabs((double)row[x] - at(&s, x)) <= bound(&s, x, (double)row[x]));
            }
            assert_true(s.loss == INFINITY);
        }
}

/* Beyond what a scale can say, values become the greatest there is. */
static void values_beyond_the_scales(void **state) {
    (void)state;
    float row[DIM];
    for (int x = 0; x < DIM; x++) row[x] = x % 2 ? 1e12f : -1e12f;
    for (int format = 0; format < FORMATS; format++) {
        stored s = quantise(format, DIM, row, 1);
        double max = s.dtype == TP_I8 ? 127.0 * 65504 : s.dtype == TP_I4 ? 7.0 * 65504 : 448;
        if (s.kind == TP_SCALES_TOKEN) continue;
        for (int x = 0; x < DIM; x++) assert_true(at(&s, x) == (x % 2 ? max : -max));
        assert_true(s.loss > 0.999 && s.loss < 1);
    }
}

static double e4m3(int code) {
    int exponent = code >> 3 & 15;
    double fraction = code & 7, size = exponent ? ldexp(1 + fraction / 8, exponent - 7) : ldexp(fraction / 8, -6);
    return (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -size : size;
}

static void every_e4m3_comes_back(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        uint8_t byte = (uint8_t)code;
        float one = 1;
        double value = tp__stored(TP_E4M3, TP_SCALES_TENSOR, &byte, &one, 0);
        if (isnan(e4m3(code)))
            assert_true(isnan(value));
        else
            assert_true(value == e4m3(code) && !signbit(value) == !signbit(e4m3(code)));
        float back = (float)value;
        stored s = quantise(4, 1, &back, 1);
        assert_int_equal(s.codes[0] & 0x7f, code & 0x7f);
        if (!isnan(value)) assert_int_equal(s.codes[0], code);
    }
    for (int code = 0; code < 0x7e; code++) { /* and borders between two: to even */
        double low = e4m3(code), high = e4m3(code + 1), half = (low + high) / 2;
        float row[3] = {nextafterf((float)half, 0), (float)half, nextafterf((float)half, INFINITY)};
        stored s = quantise(4, 3, row, 1);
        assert_int_equal(s.codes[0], code);
        assert_int_equal(s.codes[1], code % 2 ? code + 1 : code);
        assert_int_equal(s.codes[2], code + 1);
    }
    float beyond[2] = {1000, -449};
    stored s = quantise(4, 2, beyond, 1);
    assert_int_equal(s.codes[0], 0x7e);
    assert_int_equal(s.codes[1], 0xfe);
}

/* Bytes as docs/quantised.md has them. */
static void layouts(void **state) {
    (void)state;
    float row[64] = {0};
    row[0] = 7, row[1] = -7, row[2] = 3.4f, row[3] = -2.6f, row[32] = -14, row[63] = 6;
    stored s = quantise(2, 64, row, 1);
    const uint16_t one = 0x3c00, two = 0x4000;
    assert_int_equal(s.codes[0], 0x97); /* 7 low, -7 high */
    assert_int_equal(s.codes[1], 0xd3); /* 3, -3 */
    assert_int_equal(s.codes[16], 0x09);
    assert_int_equal(s.codes[31], 0x30);
    assert_memory_equal(s.scale, (&(const uint16_t[]){one, two}), 4);
    row[0] = 127, row[1] = -127, row[32] = 254, row[63] = -2;
    s = quantise(1, 64, row, 1);
    assert_memory_equal(s.codes, &one, 2);
    assert_int_equal(s.codes[2], 127);
    assert_int_equal(s.codes[3], 0x81);
    assert_memory_equal(s.codes + 34, &two, 2);
    assert_int_equal(s.codes[36], 127);
    assert_int_equal(s.codes[67], 0xff);
    uint8_t lowest = 0x88;
    assert_true(tp__stored(TP_I4, TP_SCALES_GROUP, &lowest, &one, 0) == -8);
    assert_true(tp__stored(TP_I4, TP_SCALES_GROUP, &lowest, &one, 1) == -8);
}

enum { ROWS = 5 };

/* Rows with room between them, of every dtype of values: what lies between stays as it was. */
static void rows_of_a_caller(void **state) {
    (void)state;
    for (int format = 0; format < FORMATS; format++)
        for (tp_dtype dtype = TP_F32; dtype <= TP_BF16; dtype = (tp_dtype)(dtype + 1)) {
            tp_dtype to = formats[format].dtype;
            tp_scales kind = formats[format].kind;
            enum { ROOM = 4096 };
            uint8_t values[ROOM], again[ROOM], codes[ROOM], scales[ROOM];
            memset(codes, 0xa5, ROOM), memset(scales, 0xa5, ROOM), memset(again, 0xa5, ROOM);
            float one = 0.02f;
            size_t unit = tp_dtype_bytes(dtype);
            tp_quantised q = {sizeof q, to, kind, dtype, ROWS, 64, values, 70, codes, 120, scales, 3};
            if (kind == TP_SCALES_TENSOR) q.scales = &one;
            for (int i = 0; i < ROWS * 70; i++) tp_from_float(dtype, (float)uniform(), values + (size_t)i * unit);
            double loss = -1, worst = 0;
            tp_error error = TP_ERROR_INIT;
            int mode = fegetround();
            fesetround(FE_UPWARD); /* a caller's rounding changes nothing */
            assert_int_equal(tp_quantise(&q, &loss, &error), TP_OK);
            fesetround(mode);
            int64_t bytes = tp_codes_bytes(to, kind, 64), beside = tp_scales_bytes(kind, 64);
            int64_t step = to == TP_I4 ? 60 : 120, scale_step = kind == TP_SCALES_TOKEN ? 12 : 6;
            for (int r = 0; r < ROWS; r++) {
                float row[64];
                for (int x = 0; x < 64; x++) row[x] = tp_to_float(dtype, values + (size_t)(r * 70 + x) * unit);
                stored s = quantise(format, 64, row, one);
                worst = fmax(worst, s.loss);
                assert_memory_equal(s.codes, codes + r * step, (size_t)bytes);
                for (int64_t i = bytes; i < step; i++) assert_int_equal(codes[r * step + i], 0xa5);
                if (beside > 0) {
                    assert_memory_equal(s.scale, scales + r * scale_step, (size_t)beside);
                    for (int64_t i = beside; i < scale_step; i++) assert_int_equal(scales[r * scale_step + i], 0xa5);
                }
            }
            assert_true(loss == worst && loss > 0);
            q.values = again;
            assert_int_equal(tp_dequantise(&q, &error), TP_OK);
            for (int r = 0; r < ROWS; r++)
                for (int x = 0; x < 70; x++) {
                    char expected[4] = {(char)0xa5, (char)0xa5, (char)0xa5, (char)0xa5};
                    if (x < 64) {
                        const void *scale = kind == TP_SCALES_TENSOR ? (const void *)&one : scales + r * scale_step;
                        tp_from_float(dtype, (float)tp__stored(to, kind, codes + r * step, scale, x), expected);
                    }
                    if (r + 1 < ROWS || x < 64) assert_memory_equal(again + (size_t)(r * 70 + x) * unit, expected, unit);
                }
        }
}

static void refused(const tp_quantised *q, const char *text) {
    tp_error error = TP_ERROR_INIT;
    double loss = 5;
    assert_int_equal(tp_quantise(q, &loss, &error), TP_INVALID);
    if (strstr(error.text, text) == NULL) fail_msg("\"%s\" is not in \"%s\"", text, error.text);
    assert_int_equal(tp_dequantise(q, &error), TP_INVALID);
    assert_true(loss == 5);
}

static void bad_rows_are_refused(void **state) {
    (void)state;
    static float values[256];
    static uint8_t codes[256];
    static float scales[8];
    tp_quantised good = {sizeof good, TP_I8, TP_SCALES_TOKEN, TP_F32, 2, 64, values, 64, codes, 64, scales, 1}, q = good;
    assert_int_equal(tp_quantise(&good, NULL, NULL), TP_OK);
#define BAD(text, ...) (q = good, __VA_ARGS__, refused(&q, text))
    BAD("dtype is bf16 (3): codes are i8, i4 or e4m3", q.dtype = TP_BF16);
    BAD("kind is group (3) with i8: its scales are token or q8_0", q.kind = TP_SCALES_GROUP);
    BAD("kind is scales? (9) with i4: its scales are group", (q.dtype = TP_I4, q.kind = 9));
    BAD("values_dtype is i8 (6): values are f32, f16 or bf16", q.values_dtype = TP_I8);
    BAD("rows is -1: it must be at least 0", q.rows = -1);
    BAD("dim is 0: it must be in 1..2^20", q.dim = 0);
    BAD("dim is 1048577: it must be in 1..2^20", q.dim = (1 << 20) + 1);
    BAD("dim is 48 with q8_0: it must be a multiple of 32", (q.kind = TP_SCALES_Q8_0, q.dim = 48));
    BAD("dim is 63 and codes_stride 64 with i4: both must be even", (q.dtype = TP_I4, q.kind = TP_SCALES_GROUP, q.dim = 63));
    BAD("dim is 60 and codes_stride 61 with i4: both must be even",
        (q.dtype = TP_I4, q.kind = TP_SCALES_GROUP, q.dim = 60, q.codes_stride = 61));
    BAD("values is NULL: rows lie there", q.values = NULL);
    BAD("codes is NULL: rows lie there", q.codes = NULL);
    BAD("scales is NULL: rows lie there", q.scales = NULL);
    BAD("it must be aligned to its elements of 4 bytes", q.scales = (char *)scales + 2);
    BAD("it must be aligned to its elements of 4 bytes", q.values = (char *)values + 1);
    BAD("values_stride is 63 with rows of 64: rows must lie apart", q.values_stride = 63);
    BAD("codes_stride is 63 with rows of 64: rows must lie apart", q.codes_stride = 63);
    BAD("codes_stride is 67 with rows of 68: rows must lie apart", (q.kind = TP_SCALES_Q8_0, q.codes_stride = 67));
    BAD("scales_stride is 0 with rows of 1: rows must lie apart", q.scales_stride = 0);
    BAD("offsets must fit in int64", q.codes_stride = INT64_MAX / 2);
    scales[0] = 0;
    BAD("the tensor's scale is 0: it must be positive and finite", (q.dtype = TP_E4M3, q.kind = TP_SCALES_TENSOR));
    scales[0] = NAN;
    BAD("the tensor's scale is nan: it must be positive and finite", (q.dtype = TP_E4M3, q.kind = TP_SCALES_TENSOR));
    BAD("tp_quantised.struct_size is 8: it must be in ", q.struct_size = 8);
    q = good;
    q.rows = 0, q.values = q.codes = q.scales = NULL;
    double loss = 5;
    assert_int_equal(tp_quantise(&q, &loss, NULL), TP_OK);
    assert_true(loss == 0);
    assert_int_equal(tp_quantise(NULL, NULL, NULL), TP_INVALID);
    assert_int_equal(tp_codes_bytes(TP_I8, TP_SCALES_GROUP, 64), 0);
    assert_int_equal(tp_codes_bytes(TP_I4, TP_SCALES_GROUP, 80), 40);
    assert_int_equal(tp_codes_bytes(TP_I8, TP_SCALES_Q8_0, 128), 136);
    assert_int_equal(tp_codes_bytes(TP_E4M3, TP_SCALES_TENSOR, -3), 0);
    assert_int_equal(tp_scales_bytes(TP_SCALES_GROUP, 80), 6);
    assert_int_equal(tp_scales_bytes(TP_SCALES_TOKEN, 80), 4);
    assert_int_equal(tp_scales_bytes(TP_SCALES_TENSOR, 80), 0);
    assert_int_equal(tp_scales_bytes(TP_SCALES_TOKEN, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_keep_their_bounds), cmocka_unit_test(scales_use_the_range),
        cmocka_unit_test(zeros_are_zeros),            cmocka_unit_test(not_finite_stays_visible),
        cmocka_unit_test(values_beyond_the_scales),   cmocka_unit_test(every_e4m3_comes_back),
        cmocka_unit_test(layouts),                    cmocka_unit_test(rows_of_a_caller),
        cmocka_unit_test(bad_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
