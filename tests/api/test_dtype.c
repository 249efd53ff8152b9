/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions against an oracle in double: every 16-bit pattern, every border between two. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "support/guard.h"
#include "tileproof.h"

typedef struct format {
    tp_dtype dtype;
    int fraction_bits, min_exponent; /* of a normal number */
    unsigned infinity;                 /* pattern; one more than that of the largest finite one */
} format;

static const format formats[] = {{TP_F16, 10, -14, 0x7c00}, {TP_BF16, 7, -126, 0x7f80}};

static unsigned store(tp_dtype dtype, float value) {
    uint16_t bits = 0xdead;
    tp_from_float(dtype, value, &bits);
    return bits;
}

static float load(tp_dtype dtype, unsigned pattern) {
    uint16_t bits = (uint16_t)pattern;
    return tp_to_float(dtype, &bits);
}

/* The value of a pattern that is not negative; the infinity's is the next power of two. */
static double value_of(const format *f, unsigned pattern) {
    int exponent = (int)(pattern >> f->fraction_bits);
    double fraction = pattern & ((1u << f->fraction_bits) - 1), one = 1u << f->fraction_bits;
    if (exponent == 0) return ldexp(fraction / one, f->min_exponent);
    return ldexp(1 + fraction / one, f->min_exponent + exponent - 1);
}

/* Round to nearest even by the double's own rounding of value / quantum. */
static double nearest(const format *f, double value) {
    int exponent;
    frexp(value, &exponent);
    exponent = exponent - 1 < f->min_exponent ? f->min_exponent : exponent - 1;
    double quantum = ldexp(1, exponent - f->fraction_bits);
    double rounded = nearbyint(value / quantum) * quantum;
    return fabs(rounded) >= value_of(f, f->infinity) ? copysign(INFINITY, value) : rounded;
}

static void assert_bits(float a, float b) {
    assert_int_equal(tp__bits(a), tp__bits(b));
}

static void every_pattern_comes_back(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const format *f = &formats[i];
        for (unsigned pattern = 0; pattern < 0x10000; pattern++) {
            unsigned positive = pattern & 0x7fff;
            float value = load(f->dtype, pattern);
            if (positive > f->infinity) {
                assert_true(isnan(value));
                unsigned back = store(f->dtype, value);
                assert_true((back & 0x7fff) > f->infinity);
                assert_int_equal(back & 0x8000, pattern & 0x8000);
                continue;
            }
            double expected = positive == f->infinity ? INFINITY : value_of(f, positive);
            assert_bits(value, (float)(pattern & 0x8000 ? -expected : expected));
            assert_int_equal(store(f->dtype, value), pattern);
        }
    }
}

/* Between every two neighbours: just below, at and just above the middle, both signs. */
static void every_border_rounds_to_even(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const format *f = &formats[i];
        for (unsigned low = 0; low < f->infinity; low++) {
            double middle = (value_of(f, low) + value_of(f, low + 1)) / 2;
            float at = (float)middle;
            assert_true(at == middle);
            unsigned even = low % 2 == 0 ? low : low + 1;
            assert_int_equal(store(f->dtype, at), even);
            assert_int_equal(store(f->dtype, nextafterf(at, 0)), low);
            assert_int_equal(store(f->dtype, nextafterf(at, INFINITY)), low + 1);
            assert_int_equal(store(f->dtype, -at), even | 0x8000);
            assert_int_equal(store(f->dtype, -nextafterf(at, 0)), low | 0x8000);
            assert_int_equal(store(f->dtype, -nextafterf(at, INFINITY)), (low + 1) | 0x8000);
        }
    }
}

/* Floats spread over all exponents and fractions, the ends of each exponent among them. */
static void any_float_rounds_as_the_oracle_says(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const format *f = &formats[i];
        uint32_t seed = 12345;
        for (unsigned step = 0; step < 1u << 21; step++) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t bits = step % 8 == 0   ? seed & 0xff800000u
                            : step % 8 == 1 ? seed | 0x007fffffu
                                            : seed;
            if ((bits & 0x7f800000u) == 0x7f800000u) continue;
            float value = tp__float(bits);
            float expected = (float)nearest(f, value);
            assert_bits(load(f->dtype, store(f->dtype, value)), expected);
        }
    }
}

static void overflow_is_infinite_and_nan_stays_nan(void **state) {
    (void)state;
    assert_int_equal(store(TP_F16, 65504.0f), 0x7bff);
    assert_int_equal(store(TP_F16, 65519.996f), 0x7bff);
    assert_int_equal(store(TP_F16, 65520.0f), 0x7c00);
    assert_int_equal(store(TP_F16, -3e38f), 0xfc00);
    assert_int_equal(store(TP_BF16, 0x1.fep127f), 0x7f7f);
    assert_int_equal(store(TP_BF16, 0x1.fefffep127f), 0x7f7f);
    assert_int_equal(store(TP_BF16, 0x1.ffp127f), 0x7f80);
    assert_int_equal(store(TP_BF16, -0x1.fffffep127f), 0xff80);
    assert_int_equal(store(TP_F16, 0x1p-25f), 0); /* half the least subnormal: to even */
    assert_int_equal(store(TP_F16, 0x1.000002p-25f), 1);
    assert_int_equal(store(TP_F16, -0x1p-149f), 0x8000);
    assert_int_equal(store(TP_F16, INFINITY), 0x7c00);
    assert_int_equal(store(TP_BF16, -INFINITY), 0xff80);
    const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0xff800001,
                             0xffffffff, 0x7f80ffff, 0x7fbfffff};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        float nan = tp__float(nans[i]);
        assert_true(isnan(load(TP_F16, store(TP_F16, nan))));
        assert_true(isnan(load(TP_BF16, store(TP_BF16, nan))));
    }
}

static void f32_passes_unchanged_and_others_write_nothing(void **state) {
    (void)state;
    float values[] = {0, -0.0f, 1.5f, 0x1p-149f, INFINITY}, out;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        tp_from_float(TP_F32, values[i], &out);
        assert_bits(out, values[i]);
        assert_bits(tp_to_float(TP_F32, &values[i]), values[i]);
    }
    unsigned char byte = 0x5a;
    tp_from_float(TP_I8, 1.0f, &byte);
    assert_int_equal(byte, 0x5a);
    /* the other way, nothing is read: not a byte there may be */
    guard capacity = guard_new(1);
    for (int dtype = -1; dtype <= 9; dtype++)
        if (dtype != TP_F32 && dtype != TP_F16 && dtype != TP_BF16)
            assert_true(isnan(tp_to_float((tp_dtype)dtype, (char *)guard_end(&capacity, 1) + 1)));
    guard_free(&capacity);
}

static void names_and_sizes(void **state) {
    (void)state;
    const struct {
        tp_dtype dtype;
        const char *name;
        size_t bytes;
    } all[] = {{TP_F32, "f32", 4},   {TP_F16, "f16", 2},         {TP_BF16, "bf16", 2},
               {TP_E4M3, "e4m3", 1}, {TP_E5M2, "e5m2", 1},       {TP_I8, "i8", 1},
               {TP_I4, "i4", 0},     {(tp_dtype)0, "dtype?", 0}, {(tp_dtype)8, "dtype?", 0}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_string_equal(tp_dtype_name(all[i].dtype), all[i].name);
        assert_int_equal(tp_dtype_bytes(all[i].dtype), all[i].bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_comes_back),
        cmocka_unit_test(every_border_rounds_to_even),
        cmocka_unit_test(any_float_rounds_as_the_oracle_says),
        cmocka_unit_test(overflow_is_infinite_and_nan_stays_nan),
        cmocka_unit_test(f32_passes_unchanged_and_others_write_nothing),
        cmocka_unit_test(names_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
