/* SPDX-License-Identifier: Apache-2.0 */
/* Between tensors and rows of floats: load_q, store_o, delta, store_d. */
#include <stdlib.h>

#include "kernels/trial.h"

/* Merged rows of a tensor: a range that begins anywhere in a group, with strides that leave gaps. */
struct tensor {
    tp__rows rows;
    char *data;
    int64_t unit;
};

static void rows_make(struct trial *t, struct tensor *tensor, int64_t count, int64_t d, int is_input) {
    int64_t group = pick(t, "group", 1, 5, 1), first = pick(t, "first", 0, 9, 0);
    int by_head = one_in(t, 2);
    tensor->unit = (int64_t)tp_dtype_bytes(t->dtype);
    tensor->rows = (tp__rows){.first = first, .count = count, .group = group};
    tensor->rows.stride_head = by_head ? d + roll_below(t, 4) : (d + roll_below(t, 4)) * ((first + count) / group + 1);
    tensor->rows.stride_token = by_head ? group * tensor->rows.stride_head + roll_below(t, 4) : d + roll_below(t, 3);
    if (!by_head) tensor->rows.stride_head = tensor->rows.stride_token * ((first + count) / group + 1);
    int64_t last = 0;
    tp__rows whole = tensor->rows;
    tp__walk walk = tp__walk_start(&whole);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = tp__walk_next(&walk);
        if (at > last) last = at;
    }
    int64_t size = last + d;
    tensor->data = is_input ? input(t, size, (size_t)tensor->unit) : output(t, size, (size_t)tensor->unit);
    for (int64_t i = 0; is_input && i < size; i++) tp_from_float(t->dtype, any_value(t), tensor->data + i * tensor->unit);
}

static int64_t offset_of(const struct tensor *tensor, int64_t i) {
    int64_t row = tensor->rows.first + i;
    return row / tensor->rows.group * tensor->rows.stride_token + row % tensor->rows.group * tensor->rows.stride_head;
}

static float element(const struct trial *t, const struct tensor *tensor, int64_t i, int64_t x) {
    return tp_to_float(t->dtype, tensor->data + (offset_of(tensor, i) + x) * tensor->unit);
}

void test_load_q(struct trial *t) {
    static const float scales[] = {1, 0.125f, 0x1p-60f, 4};
    struct tensor from;
    int64_t count = pick(t, "rows", 1, 100, 96), d = pick(t, "d", 1, 200, 128), wide = up(d, t->set->row_step);
    int64_t ldq = wide + roll_below(t, 3);
    float scale = scales[roll_below(t, 4)];
    rows_make(t, &from, count, d, 1);
    float *q = output_floats(t, (count - 1) * ldq + wide);
    RUN(t, t->set->load_q[t->dtype](&t->trace, q, ldq, from.data, &from.rows, d, scale));
    for (int64_t i = 0; i < count; i++)
        for (int64_t x = 0; x < (i < count - 1 ? ldq : wide); x++)
            if (x < d)
                expect_same(t, "q", i, x, q[i * ldq + x], element(t, &from, i, x) * scale);
            else if (x < wide)
                expect_same(t, "q behind d", i, x, q[i * ldq + x], 0.0f);
            else if (!is_untouched(q[i * ldq + x]))
                wrong(t, "q[%lld][%lld] was written, behind the row", (long long)i, (long long)x);
}

/* What has been written to a tensor, element by element; nothing between its rows may have been. */
static void expect_rows_only(struct trial *t, const struct tensor *tensor, const char *before, int64_t d) {
    const struct zone *z = NULL;
    for (int i = 0; i < t->zones; i++)
        if (t->zone[i].at == tensor->data) z = &t->zone[i];
    char *mark = calloc(z->bytes + 1, 1);
    for (int64_t i = 0; i < tensor->rows.count; i++)
        memset(mark + offset_of(tensor, i) * tensor->unit, 1, (size_t)(d * tensor->unit));
    for (size_t b = 0; b < z->bytes; b++)
        if (!mark[b] && z->at[b] != before[b]) wrong(t, "byte %zu of the tensor was written, between its rows", b);
    free(mark);
}

static char *copy_of(const struct trial *t, const struct tensor *tensor) {
    for (int i = 0; i < t->zones; i++)
        if (t->zone[i].at == tensor->data) return memcpy(malloc(t->zone[i].bytes + 1), tensor->data, t->zone[i].bytes);
    abort();
}

/* Half a unit in the last place of the dtype, at this value. */
static double half_unit(tp_dtype dtype, double value) {
    double size = fabs(value);
    int exponent;
    frexp(size, &exponent);
    if (dtype == TP_F16) return ldexp(1, (exponent < -13 ? -13 : exponent) - 12);
    if (dtype == TP_BF16) return ldexp(1, (exponent < -125 ? -125 : exponent) - 9);
    return ldexp(1, (exponent < -125 ? -125 : exponent) - 25);
}

void test_store_o(struct trial *t) {
    struct tensor to;
    int64_t count = pick(t, "rows", 1, 60, 96), dv = pick(t, "dv", 1, 200, 128), wide = up(dv, t->set->row_step),
            ldo = wide + roll_below(t, 3);
    rows_make(t, &to, count, dv, 0);
    float *o = input_floats(t, (count - 1) * ldo + wide), *m = input(t, count, 4), *l = input(t, count, 4);
    for (int64_t i = 0; i < count; i++) {
        m[i] = one_in(t, 5) ? -INFINITY : ordinary(t);
        l[i] = m[i] == -INFINITY ? 0 : (float)exp2((double)roll_below(t, 20)) * (1 + fabsf(ordinary(t)));
        if (t->content == WITH_NAN && one_in(t, 9)) l[i] = NAN;
    }
    char *before = copy_of(t, &to);
    RUN(t, t->set->store_o[t->dtype](&t->trace, to.data, &to.rows, dv, o, ldo, m, l));
    for (int64_t i = 0; i < count; i++)
        for (int64_t x = 0; x < dv; x++) {
            float got = element(t, &to, i, x), all = o[i * ldo + x];
            double exact = (double)all / (double)l[i], largest = t->dtype == TP_F16 ? 65519 : 3.39e38;
            if (m[i] == -INFINITY && !isnan(l[i]))
                expect_same(t, "o of a row without keys", i, x, got, 0.0f);
            else if (isinf(exact) || fabs(exact) > largest) {
                if (isfinite(got) && fabs(exact) > 1.001 * largest)
                    wrong(t, "o[%lld][%lld] is %g: it must not be finite", (long long)i, (long long)x, (double)got);
            } else /* one rounding, and at most another of a float */
                expect_near(t, "o", i, x, got, exact, half_unit(t->dtype, exact) * 1.001 + 2 * half_unit(TP_F32, exact));
            if (got == 0 && signbit(got) && all == 0) wrong(t, "o[%lld][%lld] is -0", (long long)i, (long long)x);
        }
    expect_rows_only(t, &to, before, dv);
    free(before);
}

void test_store_d(struct trial *t) {
    struct tensor to;
    int64_t count = pick(t, "rows", 1, 60, 96), d = pick(t, "d", 1, 200, 128), wide = up(d, t->set->row_step),
            ld = wide + roll_below(t, 3);
    float factor = one_in(t, 3) ? 1 : ordinary(t);
    rows_make(t, &to, count, d, 0);
    float *from = input_floats(t, (count - 1) * ld + wide);
    char *before = copy_of(t, &to);
    RUN(t, t->set->store_d[t->dtype](&t->trace, to.data, &to.rows, d, from, ld, factor));
    for (int64_t i = 0; i < count; i++)
        for (int64_t x = 0; x < d; x++)
            expect_same(t, "d", i, x, element(t, &to, i, x), as_held(t->dtype, from[i * ld + x] * factor + 0.0f));
    expect_rows_only(t, &to, before, d);
    free(before);
}

void test_delta(struct trial *t) {
    struct tensor o;
    int64_t count = pick(t, "rows", 1, 60, 96), d = pick(t, "d", 1, 150, 128), dv = pick(t, "dv", 1, 200, 128),
            lanes = t->set->row_step;
    int64_t ldq = up(d, lanes) + roll_below(t, 3), ldo = up(dv, lanes) + roll_below(t, 3);
    rows_make(t, &o, count, dv, 1);
    float *q = input_floats(t, (count - 1) * ldq + up(d, lanes)), *d_o = input_floats(t, (count - 1) * ldo + up(dv, lanes));
    float *delta = output_floats(t, count);
    int finite = 1, got = 0;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t x = 0; x < up(d, lanes); x++) {
            if (x >= d) q[i * ldq + x] = 0;
            finite &= isfinite(q[i * ldq + x]) != 0;
        }
        for (int64_t x = 0; x < up(dv, lanes); x++) {
            if (x >= dv) d_o[i * ldo + x] = 0;
            finite &= isfinite(d_o[i * ldo + x]) != 0;
        }
    }
    const tp__delta work = {
        .o = o.data, .rows = o.rows, .q = q, .d_o = d_o, .ldq = ldq, .ldo = ldo, .d = d, .dv = dv, .delta = delta};
    RUN(t, got = t->set->delta[t->dtype](&t->trace, &work));
    if (!t->bench && (got != 0) == finite)
        wrong(t, "it says %d of a q and a d_o that are %s", got, finite ? "finite" : "not finite");
    for (int64_t i = 0; i < count; i++) {
        double sum = 0, size = 0;
        for (int64_t x = 0; x < dv; x++) {
            double product = (double)element(t, &o, i, x) * (double)d_o[i * ldo + x];
            sum += product;
            size += fabs(product);
        }
        expect_near(t, "delta", i, 0, delta[i], sum, size * sum_error(dv) + (double)dv * 0x1p-149);
    }
}
