/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule of options, rows and positions: what breaks it is refused by name, and nothing is written. */
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "rope/definition.h"

static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1};

/* A good start of each kind; a case changes one thing. */
static tp_rope_options good(int32_t kind) {
    tp_rope_options o = TP_ROPE_OPTIONS_INIT;
    o.kind = kind, o.head_dim = 16;
    if (kind != TP_ROPE_DEFAULT && kind != TP_ROPE_NONE) o.factor = 4;
    if (kind == TP_ROPE_DYNAMIC || kind == TP_ROPE_YARN || kind == TP_ROPE_LLAMA3 || kind == TP_ROPE_LONGROPE)
        o.original_length = 64;
    if (kind == TP_ROPE_LLAMA3) o.low_freq_factor = 1, o.high_freq_factor = 4;
    if (kind == TP_ROPE_LONGROPE) o.short_factors = o.long_factors = ones, o.factor_count = 8;
    return o;
}

static void refused(const tp_rope_options *o, tp_status status, const char *text) {
    tp_error error = TP_ERROR_INIT;
    tp_rotary *rotary = (tp_rotary *)&error; /* stays what it was */
    tp_status got = tp_rope_create(o, &rotary, &error);
    if (got != status || strstr(error.text, text) == NULL) fail_msg("status %d, \"%s\" instead of \"%s\"", got, error.text, text);
    assert_ptr_equal(rotary, &error);
    assert_int_equal(tp_rope_create(o, &rotary, NULL), status);
}

#define BAD(kind, change, text)                                                                                                  \
    do {                                                                                                                         \
        tp_rope_options o = good(kind);                                                                                          \
        change;                                                                                                                  \
        refused(&o, TP_INVALID, text);                                                                                           \
    } while (0)

static void options_that_break_a_rule(void **state) {
    (void)state;
    for (int32_t kind = 0; kind < 9; kind++) {
        tp_rope_options o = good(kind);
        tp_rotary *rotary = NULL;
        if (kind == TP_ROPE_2D) continue;
        assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
        tp_rope_destroy(rotary);
    }
    BAD(1, o.kind = 9, "kind is 9: it must be a tp_rope, in 0..8");
    BAD(1, o.kind = -1, "kind is -1: ");
    BAD(1, o.style = 2, "style is 2: it must be 0 (neox) or 1 (interleaved)");
    BAD(1, o.angle = 2, "angle is 2: ");
    BAD(1, o.reserved = 1, "reserved is 1: ");
    BAD(1, o.head_dim = 0, "head_dim is 0: it must be in 1..4096");
    BAD(1, o.head_dim = 4097, "head_dim is 4097: ");
    BAD(1, o.first = 16, "first is 16 and head_dim 16: ");
    BAD(1, o.first = -1, "first is -1 and");
    BAD(1, o.dims = 7, "dims is 7: rotated dims are pairs");
    BAD(1, o.first = 3, "dims is 13: rotated dims are pairs");
    BAD(1, o.dims = -2, "dims is -2: rotated dims are pairs");
    BAD(1, o.dims = 18, "dims is 18, from dim 0 on, and head_dim 16: rotated dims must lie inside a row");
    BAD(1, (o.dims = 14, o.first = 4), "dims is 14, from dim 4 on, and head_dim 16");
    BAD(0, o.dims = 4, "dims is 4 and the kind none");
    BAD(TP_ROPE_PROPORTIONAL, o.first = 2, "proportional pairs a whole row");
    BAD(TP_ROPE_PROPORTIONAL, (o.head_dim = 15, o.dims = 4), "proportional pairs a whole row");
    BAD(TP_ROPE_PROPORTIONAL, o.sections[0] = 8, "sections are given and the kind is proportional");
    BAD(TP_ROPE_DYNAMIC, o.dims = 2, "dims is 2: dynamic takes the power dims / (dims - 2)");
    BAD(1, o.theta = 0, "theta is 0: it must be in 1e-3..1e12, or tables must be given");
    BAD(1, o.theta = NAN, "theta is ");
    BAD(1, o.theta = INFINITY, "theta is inf");
    BAD(TP_ROPE_YARN, o.theta = 1, "theta is 1: yarn needs one above 1");
    BAD(1, o.factor = 2, "factor is 2 and the kind default, which has none: it must be 0");
    static const double factors[] = {0, -1, NAN, INFINITY, -INFINITY, 1e-7, 1e10};
    for (int i = 0; i < (int)(sizeof factors / sizeof *factors); i++) {
        static const int32_t kinds[] = {TP_ROPE_LINEAR, TP_ROPE_DYNAMIC, TP_ROPE_YARN, TP_ROPE_LLAMA3};
        for (int k = 0; k < 4; k++) BAD(kinds[k], o.factor = factors[i], "needs one in 1e-6..1e9");
        if (i > 0) BAD(TP_ROPE_LONGROPE, o.factor = factors[i], "factor is ");
        if (i > 0) BAD(1, o.attention_factor = factors[i], "attention_factor is ");
        if (i > 0) BAD(TP_ROPE_YARN, o.beta_fast = factors[i], "beta_fast is ");
        if (i > 0) BAD(TP_ROPE_YARN, o.beta_slow = factors[i], "beta_slow is ");
        if (i > 0) BAD(TP_ROPE_YARN, o.mscale = factors[i], "mscale is ");
        if (i > 0) BAD(TP_ROPE_YARN, o.mscale_all_dim = factors[i], "mscale_all_dim is ");
        BAD(TP_ROPE_LLAMA3, o.low_freq_factor = factors[i], "llama3 needs low < high");
        BAD(TP_ROPE_LLAMA3, o.high_freq_factor = factors[i], "llama3 needs low < high");
        float list[8] = {1, 1, 1, 1, 1, 1, 1, (float)factors[i]};
        BAD(TP_ROPE_LONGROPE, o.short_factors = list, "short_factors[7] is ");
        BAD(TP_ROPE_LONGROPE, o.long_factors = list, "long_factors[7] is ");
    }
    BAD(TP_ROPE_LLAMA3, o.high_freq_factor = 1, "low_freq_factor is 1 and high_freq_factor 1: ");
    BAD(TP_ROPE_YARN, o.yarn_untruncated = 2, "yarn_untruncated is 2: ");
    for (int32_t kind = TP_ROPE_DYNAMIC; kind <= TP_ROPE_LLAMA3; kind++) {
        BAD(kind, o.original_length = 1, "original_length is 1: ");
        BAD(kind, o.original_length = ((int64_t)1 << 40) + 1, "in 2..2^40");
    }
    BAD(TP_ROPE_LONGROPE, o.factor_count = 7, "factor_count is 7: it must be half the rotated dims, 8");
    BAD(TP_ROPE_LONGROPE, (o.short_factors = o.long_factors = NULL, o.factor_count = 0),
        "short_factors and long_factors are not given: longrope needs half the rotated dims of each, 8, which a config has as "
        "short_factor and long_factor");
    BAD(TP_ROPE_LONGROPE, o.short_factors = o.long_factors = NULL, "short_factors are NULL: longrope needs dims / 2 of them, 8");
    BAD(TP_ROPE_LONGROPE, o.factor_count = 0, "factor_count is 0: it must be half the rotated dims, 8");
    BAD(TP_ROPE_LONGROPE, o.long_factors = NULL, "long_factors are NULL: longrope needs");
    BAD(TP_ROPE_LINEAR, o.short_factors = ones, "short_factors are given and the kind is linear: only longrope has them");
    tp_rope_options flat = good(TP_ROPE_2D);
    refused(&flat, TP_UNSUPPORTED, "the kind is 2d");
    refused(NULL, TP_INVALID, "tp_rope_options is NULL");
    flat = good(1);
    assert_int_equal(tp_rope_create(&flat, NULL, NULL), TP_INVALID);
}

static void tables_and_sections_that_break_a_rule(void **state) {
    (void)state;
#define TABLES o.theta = 0, o.cos_table = o.sin_table = ones, o.table_positions = 4, o.table_width = 8
    BAD(1, (TABLES, o.theta = 1e4), "theta is 10000 and tables are given: one of them must go");
    BAD(1, (TABLES, o.sin_table = NULL), "sin_table is NULL beside the other table");
    BAD(1, (TABLES, o.cos_table = NULL), "cos_table is NULL beside the other table");
    BAD(1, (TABLES, o.table_width = 16), "table_width is 16: it must be half the rotated dims, 8");
    BAD(1, (TABLES, o.table_positions = 0), "table_positions is 0: it must be in 1..2^40");
    BAD(TP_ROPE_LINEAR, (TABLES), "tables are given and the kind is linear");
    BAD(1, o.table_width = 8, "table_positions is 0 and table_width 8, without tables: both must be 0");
    BAD(1, o.table_positions = 8, "table_positions is 8 and table_width 0, without tables");
    BAD(1, (o.sections[0] = 2, o.sections[1] = 3, o.sections[2] = 4),
        "sections 2, 3, 4 add up to 9: they must add up to half the rotated dims, 8");
    BAD(1, (o.sections[0] = 2, o.sections[1] = 3, o.sections[2] = 2), "sections 2, 3, 2 add up to 7: ");
    BAD(1, (o.sections[0] = 9, o.sections[1] = -1), "sections[1] is -1: it must not be negative");
    BAD(1, (o.sections[0] = INT32_MAX, o.sections[1] = INT32_MAX), "add up to 4294967294");
    BAD(1, o.sections_interleave = 1, "sections_interleave is 1: it must be 0, or 1 where there are sections");
    BAD(1, (o.sections[0] = 8, o.sections_interleave = 2), "sections_interleave is 2: ");
#define IN_TURNS(t, h, w) o.sections[0] = t, o.sections[1] = h, o.sections[2] = w, o.sections_interleave = 1
    BAD(1, (IN_TURNS(1, 4, 3)),
        "sections 1, 4, 3 take turns (sections_interleave): of 8 pairs height has at most 3, every third from pair 1 on, and "
        "cannot have 4; sections one behind the other");
    BAD(1, (IN_TURNS(2, 3, 3)), "of 8 pairs width has at most 2, every third from pair 2 on, and cannot have 3");
    BAD(1, (IN_TURNS(0, 0, 8)), "cannot have 8");
}

/* In turns: what is taken gives each axis as many pairs as its section says, by the definition, and what is refused would not. */
static void sections_are_obeyed(void **state) {
    (void)state;
    int taken = 0, refused = 0;
    for (int32_t pairs = 1; pairs <= 12; pairs++)
        for (int32_t height = 0; height <= pairs; height++)
            for (int32_t width = 0; height + width <= pairs; width++) {
                tp_rope_options o = good(TP_ROPE_DEFAULT);
                tp_rotary *rotary = NULL;
                int32_t has[3] = {0};
                o.head_dim = 2 * pairs;
                IN_TURNS(pairs - height - width, height, width);
                for (int32_t i = 0; i < pairs; i++) has[axis_of_pair(&o, i)]++;
                tp_status status = tp_rope_create(&o, &rotary, NULL);
                assert_int_equal(status, memcmp(has, o.sections, sizeof has) == 0 ? TP_OK : TP_INVALID);
                taken += status == TP_OK, refused += status != TP_OK;
                tp_rope_destroy(rotary);
            }
    assert_true(taken > 100 && refused > 100);
    tp_rope_options o = good(TP_ROPE_DEFAULT); /* of Qwen3-VL and Qwen3.5: as many as there can be */
    tp_rotary *rotary = NULL;
    o.head_dim = 128;
    IN_TURNS(24, 20, 20);
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
    tp_rope_destroy(rotary);
    o.head_dim = 256, o.dims = 64;
    IN_TURNS(11, 11, 10);
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
    tp_rope_destroy(rotary);
}

typedef struct call {
    tp_rope_rows rows;
    int64_t positions[3 * 6];
    float in[96 + 4], out[96 + 4], weight[16], cosines[48], sines[48];
} call;

/* Two sequences of three tokens, one head. */
static call good_call(void) {
    call c = {.rows = TP_ROPE_ROWS_INIT};
    c.rows.dtype = TP_F32, c.rows.batch = 2, c.rows.tokens = 3, c.rows.heads = 1;
    c.rows.in.stride[0] = c.rows.out.stride[0] = 48, c.rows.in.stride[1] = c.rows.out.stride[1] = 16;
    for (int i = 0; i < 100; i++) c.in[i] = (float)i, c.out[i] = -(float)i;
    for (int i = 0; i < 18; i++) c.positions[i] = i % 6;
    return c;
}

static void rows_refused(const tp_rotary *rotary, call *c, const char *text) {
    tp_error error = TP_ERROR_INIT;
    call before = *c;
    tp_status status = tp_rope_apply(rotary, &c->rows, &error);
    if (status != TP_INVALID || strstr(error.text, text) == NULL)
        fail_msg("status %d, \"%s\" instead of \"%s\"", status, error.text, text);
    assert_memory_equal(c, &before, sizeof before);
}

#define BAD_ROWS(change, text)                                                                                                   \
    do {                                                                                                                         \
        call c = good_call();                                                                                                    \
        c.rows.in.data = c.in, c.rows.out.data = c.out, c.rows.positions = c.positions;                                          \
        change;                                                                                                                  \
        rows_refused(rotary, &c, text);                                                                                          \
    } while (0)

static void rows_that_break_a_rule(void **state) {
    (void)state;
    tp_rope_options o = good(TP_ROPE_DEFAULT);
    tp_rotary *rotary = NULL;
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
    BAD_ROWS(c.rows.dtype = TP_I8, "dtype is 6: it must be f32 (1), f16 (2) or bf16 (3)");
    BAD_ROWS(c.rows.dtype = 0, "dtype is 0: ");
    BAD_ROWS(c.rows.batch = 0, "batch is 0: it must be in 1..2^40");
    BAD_ROWS(c.rows.tokens = -1, "tokens is -1: ");
    BAD_ROWS(c.rows.heads = 0, "heads is 0: ");
    BAD_ROWS((c.rows.batch = (int64_t)1 << 40, c.rows.tokens = (int64_t)1 << 40), "must fit the address space");
    BAD_ROWS(c.rows.in.data = NULL, "in.data is NULL");
    BAD_ROWS(c.rows.out.data = NULL, "out.data is NULL");
    BAD_ROWS(c.rows.in.stride[1] = -16, "in.stride[1] is -16: it must not be negative");
    BAD_ROWS(c.rows.out.stride[0] = -1, "out.stride[0] is -1: ");
    BAD_ROWS(c.rows.in.data = (char *)c.in + 2, "it must be aligned to its element");
    BAD_ROWS(c.rows.in.stride[0] = INT64_MAX / 2, "its last byte must be within");
    BAD_ROWS(c.rows.out.stride[1] = 8, "output rows must not overlap");
    BAD_ROWS(c.rows.out.data = c.in + 4, "out (384 bytes from ");
    BAD_ROWS((c.rows.out = c.rows.in, c.rows.out.stride[0] = 52), "may overlap in");
    BAD_ROWS((c.rows.norm_weight = c.out + 3, c.rows.norm_eps = 0), "may overlap norm_weight");
    BAD_ROWS(c.rows.positions = (int64_t *)(void *)(c.out + 8), "may overlap positions");
    BAD_ROWS(c.rows.positions = (int64_t *)(void *)((char *)c.positions + 4), "positions is 0x");
    BAD_ROWS(c.rows.positions = NULL, "positions is NULL: there must be one for each token");
    BAD_ROWS(c.rows.cosines = c.cosines, "sines is NULL beside the other");
    BAD_ROWS(c.rows.sines = c.sines, "cosines is NULL beside the other");
    BAD_ROWS((c.rows.cosines = c.cosines, c.rows.sines = c.sines), "positions are given beside cosines and sines");
    BAD_ROWS((c.rows.positions = NULL, c.rows.sines = c.sines, c.rows.cosines = c.out + 90), "may overlap cosines");
    BAD_ROWS((c.rows.positions = NULL, c.rows.cosines = c.cosines, c.rows.sines = c.out + 90), "may overlap sines");
    BAD_ROWS((c.rows.positions = NULL, c.rows.cosines = (float *)(void *)((char *)c.cosines + 1), c.rows.sines = c.sines),
             "cosines is 0x");
    BAD_ROWS(c.rows.norm_weight = (float *)(void *)((char *)c.weight + 2), "norm_weight is 0x");
    BAD_ROWS((c.rows.norm_weight = c.weight, c.rows.norm_eps = -1), "norm_eps is -1: it must be finite and not negative");
    BAD_ROWS((c.rows.norm_weight = c.weight, c.rows.norm_eps = NAN), "norm_eps is ");
    BAD_ROWS((c.rows.norm_weight = c.weight, c.rows.norm_one_plus = 2), "norm_one_plus is 2: ");
    BAD_ROWS(c.positions[5] = -1, "a position is -1: it must not be negative");
    BAD_ROWS(c.positions[5] = (int64_t)1 << 40,
             "a position is 1099511627776: it must be below 1099511627776, the longest sequence");
    BAD_ROWS(c.rows.length = 5, "length is 5 and a position 5: the current length must be above every position");
    BAD_ROWS(c.rows.length = -1, "length is -1 and");
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_rope_apply(rotary, NULL, &error), TP_INVALID);
    call c = good_call();
    assert_int_equal(tp_rope_apply(NULL, &c.rows, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "rotary is NULL"));
    tp_rope_destroy(rotary);
    tp_rope_destroy(NULL);
    assert_int_equal(tp_rope_pairs(NULL), 0);
}

static void positions_of_tables_and_sections(void **state) {
    (void)state;
    float table[8 * 6];
    for (int i = 0; i < 48; i++) table[i] = 0.5f;
    tp_rope_options o = good(TP_ROPE_DEFAULT);
    tp_rotary *rotary = NULL;
    o.theta = 0, o.cos_table = o.sin_table = table, o.table_positions = 6, o.table_width = 8;
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
    BAD_ROWS(c.positions[4] = 6, "a position is 6: it must be below 6, table_positions");
    tp_rope_destroy(rotary);
    o = good(TP_ROPE_DEFAULT);
    o.sections[0] = 2, o.sections[1] = 3, o.sections[2] = 3;
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
    BAD_ROWS(c.positions[11] = -7, "a position of height is -7: it must not be negative");
    BAD_ROWS(c.positions[17] = -7, "a position of width is -7: it must not be negative");
    tp_rope_destroy(rotary);
}

static void angles_that_break_a_rule(void **state) {
    (void)state;
    tp_rope_options o = good(TP_ROPE_DEFAULT);
    tp_rotary *rotary = NULL;
    tp_error error = TP_ERROR_INIT;
    call c = good_call(), before = c;
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
#define BAD_ANGLES(batch, tokens, positions, length, cosines, sines, said)                                                       \
    do {                                                                                                                         \
        assert_int_equal(tp_rope_angles(rotary, batch, tokens, positions, length, cosines, sines, &error), TP_INVALID);          \
        if (strstr(error.text, said) == NULL) fail_msg("\"%s\" instead of \"%s\"", error.text, said);                            \
        assert_memory_equal(&c, &before, sizeof c);                                                                              \
    } while (0)
    BAD_ANGLES(0, 3, c.positions, 0, c.cosines, c.sines, "batch is 0");
    BAD_ANGLES(2, 0, c.positions, 0, c.cosines, c.sines, "tokens is 0");
    BAD_ANGLES(2, 3, NULL, 0, c.cosines, c.sines, "positions is NULL");
    BAD_ANGLES(2, 3, c.positions, 3, c.cosines, c.sines, "length is 3 and a position 5");
    BAD_ANGLES(2, 3, c.positions, 0, NULL, c.sines, "cosines is NULL");
    BAD_ANGLES(2, 3, c.positions, 0, c.cosines, NULL, "sines is NULL");
    BAD_ANGLES(2, 3, c.positions, 0, c.cosines, c.cosines + 1, "may overlap sines");
    BAD_ANGLES(2, 3, c.positions, 0, (float *)(void *)c.positions, c.sines, "may overlap positions");
    BAD_ANGLES(2, 3, c.positions, 0, c.cosines, (float *)(void *)c.positions, "may overlap positions");
    BAD_ANGLES(2, 3, c.positions, 0, (float *)(void *)((char *)c.cosines + 1), c.sines, "cosines is 0x");
    BAD_ANGLES(2, 3, c.positions, 0, c.cosines, (float *)(void *)((char *)c.sines + 2), "sines is 0x");
    assert_int_equal(tp_rope_angles(NULL, 2, 3, c.positions, 0, c.cosines, c.sines, &error), TP_INVALID);
    assert_int_equal(tp_rope_angles(rotary, 2, 3, c.positions, 0, c.cosines, c.sines, &error), TP_OK);
    tp_rope_destroy(rotary);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_break_a_rule), cmocka_unit_test(tables_and_sections_that_break_a_rule),
        cmocka_unit_test(rows_that_break_a_rule),    cmocka_unit_test(positions_of_tables_and_sections),
        cmocka_unit_test(angles_that_break_a_rule),  cmocka_unit_test(sections_are_obeyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
