/* SPDX-License-Identifier: Apache-2.0 */
/* One tile of the online softmax: attend; and the textbook way: math. */
#include "kernels/tile.h"

/* o of one row against what it must be. A row that a NaN score reached is NaN throughout, unless dropout took the pair: its l is
   NaN all the same. */
static void check_o(struct trial *t, const struct tile *tile, const struct tile_row *expected, int64_t i, const float *o) {
    for (int64_t x = 0; x < tile->dv; x++)
        if (expected->spoilt || isnan(expected->o[x])) {
            if (isfinite(o[x]) && !(expected->spoilt && tile->drops))
                wrong(t, "o[%lld][%lld] is %g: what it sees is not finite", (long long)i, (long long)x, (double)o[x]);
        } else
            expect_near(t, "o", i, x, o[x], expected->o[x], expected->o_error[x]);
}

static void check_state(struct trial *t, const struct tile_row *expected, int64_t i, float m, float l) {
    if (expected->spoilt) {
        if (!isnan(l)) wrong(t, "l[%lld] is %g: a score is not finite", (long long)i, (double)l);
        return;
    }
    if (fabs((double)m - expected->m) > expected->m_error)
        wrong(t, "m[%lld] is %.9g: it must be %.9g within %.3g", (long long)i, (double)m, expected->m, expected->m_error);
    expect_near(t, "l", i, 0, l, expected->l, expected->l_error);
}

/* Ways in which attend is called: packed; scores that qk has left; values that pv comes for. */
enum way { PACKED, SCORES_ARE_THERE, VALUES_COME_LATER, WAYS };

void test_attend(struct trial *t) {
    struct tile tile;
    struct tile_row expected;
    enum way way = t->bench ? PACKED : (enum way)roll_below(t, WAYS);
    tile_make(t, &tile, t->set->tile_rows, 512, 1);
    int64_t wide = up(tile.dv, t->set->row_step), ldo = wide + t->set->row_step * roll_below(t, 2), lds = up(tile.block, 16);
    if (t->set->arithmetic == TP_ARITHMETIC_F32 && !t->bench && one_in(t, 3)) {
        tile.v_scale = input(t, tile.block, 4);
        for (int64_t j = 0; j < tile.block; j++) tile.v_scale[j] = j < tile.keys ? ordinary(t) : 0;
    }
    tp__row_tile a = tile_of(&tile);
    float *m1 = input(t, tile.rows, 4), *l1 = input(t, tile.rows, 4), *o1 = input(t, tile.rows * ldo, 4);
    float *m = output(t, tile.rows, 4), *l = output(t, tile.rows, 4), *o = output(t, tile.rows * ldo, 4);
    float *s = output_floats(t, tile.rows * lds), *c = output_floats(t, tile.rows);
    for (int64_t i = 0; i < tile.rows; i++) {
        int fresh = one_in(t, 3);
        m[i] = m1[i] = fresh ? -INFINITY : ordinary(t) * 3;
        l[i] = l1[i] = fresh ? 0 : 1 + fabsf(ordinary(t));
        for (int64_t x = 0; x < ldo; x++) o[i * ldo + x] = o1[i * ldo + x] = fresh || x >= tile.dv ? 0 : ordinary(t);
    }
    size_t used = strlen(t->shape);
    snprintf(t->shape + used, sizeof t->shape - used, " way %d", (int)way);
    a.s = s, a.lds = lds, a.o = o, a.ldo = ldo, a.m = m, a.l = l, a.c = c;
    if (way == SCORES_ARE_THERE || way == VALUES_COME_LATER) {
        a.k = NULL;
        for (int64_t i = 0; i < tile.rows; i++)
            for (int64_t j = 0; j < lds; j++) {
                double score = 0;
                for (int64_t x = 0; x < tile.d && j < tile.keys; x++)
                    score += (double)tile.q[i * tile.ldq + x] * (double)tile.k[j * tile.d + x];
                s[i * lds + j] = j < tile.keys ? (float)score : NAN;
            }
    }
    if (way == VALUES_COME_LATER) a.v = NULL;
    RUN(t, t->set->attend(&t->trace, &a));
    for (int64_t i = 0; i < tile.rows && !t->bench; i++) {
        tile_attend(&tile, i, m[i], m1[i], l1[i], o1 + i * ldo, &expected);
        if (tile.lo[i] >= tile.hi[i]) {
            expect_same(t, "m of a row that sees nothing", i, 0, m[i], m1[i]);
            expect_same(t, "l of a row that sees nothing", i, 0, l[i], l1[i]);
        } else
            check_state(t, &expected, i, m[i], l[i]);
        for (int64_t x = wide; x < ldo; x++) expect_same(t, "o behind its row", i, x, o[i * ldo + x], o1[i * ldo + x]);
        if (way != VALUES_COME_LATER) {
            check_o(t, &tile, &expected, i, o + i * ldo);
            continue;
        }
        for (int64_t x = 0; x < tile.dv; x++) expect_same(t, "o before pv", i, x, o[i * ldo + x], o1[i * ldo + x]);
        if (tile.lo[i] >= tile.hi[i] || expected.spoilt) continue;
        double down = m1[i] == -INFINITY ? -INFINITY : (double)m1[i] - (double)m[i];
        expect_near(t, "c", i, 0, c[i], exp2(down * (double)tile.unit),
                    exp2(down * (double)tile.unit) * (5e-7 + 1e-6 * fabs(down == -INFINITY ? 0 : down)) + tile.min_weight);
        for (int64_t j = tile.lo[i]; j < tile.hi[i]; j++)
            if (!tile_sees(&tile, i, j) || !tile_stays(&tile, i, j))
                expect_same(t, "p of a key that it does not see", i, j, s[i * lds + j], 0.0f);
    }
}

void test_math(struct trial *t) {
    struct tile tile;
    struct tile_row expected;
    int64_t far = !t->bench && one_in(t, 12); /* across chunks */
    tile_make(t, &tile, far ? 2 : 40, far ? 5000 : 512, 1);
    int64_t wide = up(tile.dv, t->set->row_step), lds = up(tile.block, 16);
    int64_t *lo = input(t, tile.rows, sizeof *lo), *hi = input(t, tile.rows, sizeof *hi);
    float *m = output_floats(t, tile.rows), *l = output_floats(t, tile.rows), *o = output_floats(t, tile.rows * wide);
    float *s = output_floats(t, tile.rows * lds), *p = output_floats(t, tile.rows * lds);
    float sink = one_in(t, 2) || tile.drops ? -INFINITY : ordinary(t);
    for (int64_t i = 0; i < tile.rows; i++) lo[i] = tile.lo[i], hi[i] = tile.hi[i];
    tp__row_tile a = tile_of(&tile);
    const tp__math work = {.q = a.q,
                           .ldq = a.ldq,
                           .k = a.k,
                           .v = a.v,
                           .s = s,
                           .p = p,
                           .lds = lds,
                           .o = o,
                           .ldo = wide,
                           .m = m,
                           .l = l,
                           .lo = lo,
                           .hi = hi,
                           .rows = tile.rows,
                           .d = tile.d,
                           .dv = tile.dv,
                           .keys = tile.keys,
                           .block = tile.block,
                           .piece = 64 << roll_below(t, 3),
                           .v_not_finite = tile.v_found,
                           .bits = a.bits,
                           .bit_words = a.bit_words,
                           .modify = a.modify,
                           .unit = tile.unit,
                           .drop = a.drop,
                           .sink = sink};
    RUN(t, t->set->math(&t->trace, &work));
    for (int64_t i = 0; i < tile.rows && !t->bench; i++) {
        /* a sink is a state with that score, a sum of 1 and no values */
        tile_attend(&tile, i, m[i], sink, sink == -INFINITY ? 0 : 1, NULL, &expected);
        if (expected.sees == 0 && sink == -INFINITY) {
            expect_same(t, "m of a row that sees nothing", i, 0, m[i], -INFINITY);
            expect_same(t, "l of a row that sees nothing", i, 0, l[i], 0.0f);
        } else
            check_state(t, &expected, i, m[i], l[i]);
        check_o(t, &tile, &expected, i, o + i * wide);
    }
}
