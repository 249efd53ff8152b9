/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values wherever they lie: pack_k, pack_v, and for few rows qk and pv, which do not pack. */
#include "base/codes.h"
#include "kernels/trial.h"

static void keys_of_floats(struct trial *t, struct keys *keys, int dtype, int64_t count, int64_t first, int64_t last, int64_t d) {
    keys_make(t, keys, (tp_dtype)dtype, count, first, last, d);
}

static void make(struct trial *t, struct keys *keys, int64_t *block, int64_t max) {
    int64_t d = up(pick(t, "d", 1, 150, 128), t->dtype == TP_I4 ? 2 : (int)t->dtype == TP__Q8_0 ? TP__GROUP : 1);
    *block = up(pick(t, "block", 1, max, max), t->set->nr);
    int64_t first = pick(t, "first", 0, *block - 1, 0), last = pick(t, "last", first + 1, *block, *block);
    (t->dtype > TP_BF16 ? codes_make : keys_of_floats)(t, keys, t->dtype, *block, first, last, d);
}

/* Room for packed elements, and one of them: floats, or pairs of bf16. */
static void *packed_make(struct trial *t, tp__element_form form, int64_t count) {
    return form.bytes == sizeof(float) ? (void *)output_floats(t, count) : output(t, count, (size_t)form.bytes);
}

static float packed_at(tp__element_form form, const void *packed, int64_t at) {
    return form.bytes == sizeof(float) ? ((const float *)packed)[at] : tp__from_bf16(((const uint16_t *)packed)[at]);
}

/* Floats: whether V is not finite, and nothing of K. Pairs: bits of both, 1: small ones, which are not 0; 2: not finite. */
static void expect_found(struct trial *t, const struct keys *keys, int pairs, int of_v, int got) {
    int not_finite = 0, small = 0;
    for (int64_t j = keys->in.first; j < keys->in.last; j++)
        for (int64_t x = 0; x < keys->d; x++) {
            float value = keys->value[j * keys->d + x];
            not_finite |= !isfinite(value);
            small |= value != 0 && fabsf(value) < 0x1p-52f;
        }
    int expected = pairs ? small | not_finite << 1 : of_v && not_finite;
    if (!t->bench && got != expected) wrong(t, "it says %d of what it packed, not %d", got, expected);
}

void test_pack_k(struct trial *t) {
    struct keys keys;
    const tp__element_form form = t->set->form.k;
    int64_t block, nr = t->set->nr, group = form.group;
    int got = 0;
    make(t, &keys, &block, 128);
    int64_t wide = up(keys.d, form.step);
    void *packed = packed_make(t, form, block * wide);
    RUN(t, (keys.ahead.row = keys.row + keys.in.first,
            got = t->set->pack_k[t->dtype](&t->trace, packed, &keys.in, block, keys.d)));
    for (int64_t j = keys.in.first; j < keys.in.last; j++)
        for (int64_t x = 0; x < wide; x++)
            expect_same(t, "packed k", j, x,
                        packed_at(form, packed, j / nr * nr * wide + x / group * group * nr + j % nr * group + x % group),
                        x < keys.d ? keys.value[j * keys.d + x] : 0.0f);
    expect_found(t, &keys, group == 2, 0, got);
}

void test_pack_v(struct trial *t) {
    struct keys keys;
    const tp__element_form form = t->set->form.v;
    int64_t block, nr = t->set->nr, group = form.group;
    int got = 0;
    make(t, &keys, &block, 128);
    int64_t wide = up(keys.d, t->set->row_step);
    void *packed = packed_make(t, form, block * wide);
    int row_scales = (t->dtype == TP_I8 || t->dtype == TP_E4M3) && one_in(t, 2);
    keys.in.row_scales = row_scales ? output_floats(t, block) : NULL;
    RUN(t,
        got = (keys.ahead.row = keys.row + keys.in.first, t->set->pack_v[t->dtype](&t->trace, packed, &keys.in, block, keys.d)));
    for (int64_t j = keys.in.first / form.step * form.step; j < up(keys.in.last, form.step); j++)
        for (int64_t x = 0; x < wide; x++) {
            int64_t panel = x / nr * nr, width = wide - panel < nr ? wide - panel : nr;
            int there = x < keys.d && j >= keys.in.first && j < keys.in.last;
            float by = there && row_scales ? keys.in.row_scales[j] : 1.0f;
            expect_same(t, "packed v", j, x,
                        packed_at(form, packed, panel * block + j / group * group * width + (x - panel) * group + j % group) * by,
                        there ? keys.value[j * keys.d + x] : 0.0f);
        }
    for (int64_t j = keys.in.first; j < keys.in.last && row_scales; j++) {
        float scale = *(const float *)(const void *)(keys.row[j + keys.in.scales] + keys.in.scales_offset);
        expect_same(t, "scale of a row", j, 0, keys.in.row_scales[j], isfinite(scale) ? scale : 1.0f);
    }
    expect_found(t, &keys, group == 2, 1, got);
}

void test_qk(struct trial *t) {
    struct keys keys;
    int64_t block, rows = pick(t, "rows", 1, 34, 8);
    make(t, &keys, &block, 64);
    int64_t d = keys.d, ldq = up(d, 16) + roll_below(t, 3), lds = up(block, 16) + roll_below(t, 3);
    float *q = input(t, (rows - 1) * ldq + up(d, 16), 4), *plain = input(t, rows * d, 4), *s = output_floats(t, rows * lds);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t x = 0; x < up(d, 16); x++) q[i * ldq + x] = x < d ? any_value(t) : 0;
        memcpy(plain + i * d, q + i * ldq, (size_t)d * sizeof(float));
    }
    if (t->dtype == TP_BF16) tp__pair_rows(q, ldq, rows, d);
    /* scales multiply what was lost, of e4m3 in units of 2^-8 */
    const double smallest = t->dtype == TP_E4M3 ? 0x1p-135 : t->dtype > TP_BF16 ? 0x1p-143 : 0x1p-149;
    RUN(t, (keys.ahead.row = keys.row + keys.in.first, t->set->qk[t->dtype](&t->trace, q, ldq, rows, &keys.in, d, s, lds)));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < lds; j++) {
            double sum = 0, size = 0;
            if (j < keys.in.first / 16 * 16 || j >= up(keys.in.last, 16)) {
                if (!is_untouched(s[i * lds + j]))
                    wrong(t, "s[%lld][%lld] was written, beyond the keys", (long long)i, (long long)j);
                continue;
            }
            for (int64_t x = 0; x < d && j >= keys.in.first && j < keys.in.last; x++) {
                double product = (double)plain[i * d + x] * (double)keys.value[j * d + x];
                sum += product;
                size += fabs(product);
            }
            if (j >= keys.in.first && j < keys.in.last)
                expect_near(t, "s", i, j, s[i * lds + j], size < 3e38 ? sum : isnan(sum) ? sum : 0,
                            size < 3e38 ? size * sum_error(d) + (double)d * smallest : INFINITY);
        }
}

void test_pv(struct trial *t) {
    struct keys values;
    int64_t block, rows = pick(t, "rows", 1, 34, 8);
    make(t, &values, &block, 64);
    int64_t d = values.d, wide = up(d, t->set->row_step), ldo = wide + roll_below(t, 3), lds = block + roll_below(t, 3);
    float *p = input_floats(t, rows * lds), *c = input_floats(t, rows), *o = output(t, (rows - 1) * ldo + wide, 4);
    float *before = input_floats(t, (rows - 1) * ldo + wide);
    /* codes multiply what a weight times its scale has lost */
    const double smallest = t->dtype == TP_E4M3 || t->dtype == TP_I8 ? 448 * 0x1p-149 : 0x1p-149;
    memcpy(o, before, (size_t)((rows - 1) * ldo + wide) * sizeof(float));
    for (int64_t i = 0; i < rows * lds && t->dtype == TP_E4M3; i++) /* weights are at most 1: times a scale, then times 2^8 */
        if (fabsf(p[i]) > 1) p[i] = 1 / p[i];
    RUN(t, (values.ahead.row = values.row + values.in.first,
            t->set->pv[t->dtype](&t->trace, p, lds, rows, &values.in, d, c, o, ldo)));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t x = 0; x < (i < rows - 1 ? ldo : wide); x++) {
            double sum = (double)before[i * ldo + x] * (double)c[i], size = fabs(sum);
            if (x >= wide) expect_same(t, "o behind its row", i, x, o[i * ldo + x], before[i * ldo + x]);
            if (x >= d) continue;
            for (int64_t j = values.in.first; j < values.in.last; j++) {
                double product = (double)p[i * lds + j] * (double)values.value[j * d + x];
                sum += product;
                size += fabs(product);
            }
            expect_near(t, "o", i, x, o[i * ldo + x], size < 3e38 ? sum : isnan(sum) ? sum : 0,
                        size < 3e38 ? size * sum_error(block) + (double)block * smallest : INFINITY);
        }
}
