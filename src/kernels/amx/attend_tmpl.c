/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend on tiles of bf16: as bf16/attend_tmpl.c, with two strips of rows at a time, whose scores and values are products of
 * whole tiles. What neither strip sees of a panel of keys, or of a step of values, is left out; what one of them sees is computed
 * for both, and masked, or met by weights of 0.
 */
#include <string.h>

#include "kernels/amx/products.h"
#include "kernels/bf16/found.h"
#include "kernels/function.h"
#include "kernels/strip_softmax.h"

enum { ROWS = VEC_MR * VEC_STRIPS, STEPS = TP__BLOCK_WORDS * 64 / VEC_TOGETHER };

_Static_assert(VEC_STRIPS == 2 && (int)ROWS <= (int)TP__TILE_ROWS, "a product of tiles has two strips");

/* The strips of a tile, how many there are, and what they see together. */
typedef struct both {
    const tp__row_tile *t;
    strip strips[2];
    strip_bits bits[2];
    int n, first, second; /* rows of either */
    int32_t lo, hi;
} both;

static int sees_any(const both *b, int64_t from, int64_t to) {
    if (from >= b->hi || to <= b->lo) return 0;
    if (b->t->bits == NULL) return 1;
    for (int i = 0; i < b->n; i++)
        if (b->bits[i].any[from / 64] >> (from % 64) & (((uint64_t)1 << (to - from)) - 1)) return 1;
    return 0;
}

/* Panels that either strip sees, by the instruction, or where `small` by vec_fma. */
static void both_scores(tp__trace *trace, const both *b, const uint16_t *q, int64_t ld, int small) {
    const tp__row_tile *t = b->t;
    const int64_t pairs = tp__round_up(t->d, VEC_TOGETHER) / 2;
    const strip *last = &b->strips[b->n - 1];
    tile_rows_of rows = {{(const char *)(q + b->strips[0].first * ld), (const char *)(q + last->first * ld)}, ld * 2};
    for (int64_t key = b->lo / VEC_NR * VEC_NR; key < b->hi; key += VEC_NR) {
        if (!sees_any(b, key, key + VEC_NR)) continue;
        const char *panel = (const char *)t->k + key * pairs * 4;
        float *to[2] = {t->s + b->strips[0].first * t->lds + key, t->s + last->first * t->lds + key};
        const tile_columns_of columns = {panel, VEC_NR * 4, VEC_NR * 4 * VEC_TOGETHER / 2};
        if (small)
            for (int i = 0; i < b->n; i++)
                for (int64_t r = b->strips[i].first; r < b->strips[i].first + b->strips[i].mr; r++) {
                    vec_f sum[VEC_NRV];
                    chain_sums(VEC_NRV, (const float *)t->q + r * t->ldq, panel, VEC_NR, (t->d + 1) / 2, sum);
                    for (int j = 0; j < VEC_NRV; j++) vec_store(t->s + r * t->lds + key + j * VEC_LANES, sum[j]);
                }
        else if (b->n > 1)
            tile_sums(2, VEC_NRV, b->first, b->second, &rows, &columns, pairs / VEC_LANES, NULL, to, t->lds);
        else
            tile_sums(1, VEC_NRV, b->first, b->second, &rows, &columns, pairs / VEC_LANES, NULL, to, t->lds);
    }
    strip_products(trace, t, b->strips, b->bits, b->n, &(const tp__product){.d = t->d, .out = t->s});
    for (int i = 0; i < b->n; i++) /* whole panels, of both strips where one sees them */
        for (int64_t key = b->lo / VEC_NR * VEC_NR; key < b->hi; key += VEC_NR)
            if (sees_any(b, key, key + VEC_NR)) trace->pairs_computed += b->strips[i].mr * VEC_NR;
}

/* o = o*c + sum */
VEC_INLINE void add_sum(float *o, float c, vec_f sum) { vec_store(o, vec_fma(vec_load(o), vec_set1(c), sum)); }

/* One row's sum over the keys that it sees alone: 0 x NaN must never be computed. The same chains, so the same bits. */
static void careful_row(const tp__row_tile *t, int64_t r, float c) {
    uint64_t seen[TP__BLOCK_WORDS];
    const float *p = t->s + r * t->lds;
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES, lo = t->lo[r], hi = t->hi[r];
    seen_of(t, r, seen);
    for (int64_t x = 0; x < wide; x += VEC_LANES) {
        int64_t panel = x / VEC_NR * VEC_NR, width = wide - panel < VEC_NR ? wide - panel : VEC_NR;
        vec_f sum = {0};
        for (int64_t step = lo / VEC_TOGETHER * VEC_TOGETHER; step < hi; step += VEC_TOGETHER) {
            vec_f part[2] = {{0}};
            for (int64_t key = step; key < step + VEC_TOGETHER; key++) {
                if (key < lo || key >= hi || !(seen[key / 64] >> (key % 64) & 1)) continue;
                vec_i pair = load_pairs(t->v, panel * t->block / 2 + key / 2 * width + x - panel);
                part[key % 2] = vec_fma(vec_set1(p[key]), key % 2 ? vec_odd_bf16(pair) : vec_even_bf16(pair), part[key % 2]);
            }
            sum += part[0] + part[1];
        }
        add_sum(t->o + r * t->ldo + x, c, sum);
    }
}

/* The strips' columns of one panel of values, which is nrv vectors wide. */
VEC_INLINE void panel_values(const int strips, const int nrv, const both *b, int64_t panel, int64_t from, int64_t steps,
                             const uint8_t *wanted, const float *c) {
    const tp__row_tile *t = b->t;
    float sums[ROWS][VEC_NR] __attribute__((aligned(64)));
    float *const to[2] = {sums[0], sums[VEC_MR]};
    const char *p = (const char *)t->s + from * 2;
    const tile_rows_of rows = {{p + b->strips[0].first * t->lds * 4, p + b->strips[strips - 1].first * t->lds * 4}, t->lds * 4};
    const int64_t stride = nrv * VEC_LANES * 4;
    const char *v = (const char *)t->v + panel * t->block * 2 + from / 2 * stride;
    const tile_columns_of columns = {v, stride, stride * VEC_TOGETHER / 2};
    tile_sums(strips, nrv, b->first, b->second, &rows, &columns, steps, wanted, to, VEC_NR);
    for (int i = 0; i < strips; i++)
        for (int r = 0; r < b->strips[i].mr; r++)
            for (int j = 0; j < nrv; j++) {
                int64_t row = b->strips[i].first + r;
                add_sum(t->o + row * t->ldo + panel + j * VEC_LANES, c[row], vec_load(sums[i * VEC_MR + r] + j * VEC_LANES));
            }
}

/* By the instruction, all weights being pairs of bf16. */
static void both_values(const both *b, const float *c) {
    const tp__row_tile *t = b->t;
    const int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES, from = b->lo / VEC_TOGETHER * VEC_TOGETHER;
    const int64_t steps = (b->hi - from + VEC_TOGETHER - 1) / VEC_TOGETHER;
    uint8_t some[STEPS], *wanted = t->bits != NULL ? some : NULL;
    for (int64_t x = 0; x < steps && wanted != NULL; x++)
        some[x] = (uint8_t)sees_any(b, from + x * VEC_TOGETHER, from + (x + 1) * VEC_TOGETHER);
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int narrow = wide - panel < VEC_NR;
        if (b->n > 1 && !narrow)
            panel_values(2, VEC_NRV, b, panel, from, steps, wanted, c);
        else if (b->n > 1)
            panel_values(2, 1, b, panel, from, steps, wanted, c);
        else if (!narrow)
            panel_values(1, VEC_NRV, b, panel, from, steps, wanted, c);
        else
            panel_values(1, 1, b, panel, from, steps, wanted, c);
    }
}

/* By vec_fma, of one strip, all weights being floats that are bf16 elements. */
static void chain_values(const tp__row_tile *t, const strip *s, const strip_bits *bits, const float *c) {
    const int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES, from = s->lo / VEC_TOGETHER * VEC_TOGETHER;
    const int64_t pairs = (s->hi - from + 1) / 2;
    const int careful = (t->v_found & FOUND_NOT_FINITE) && reaches_beyond(t, s, bits, VEC_TOGETHER);
    for (int64_t r = s->first; r < s->first + s->mr; r++) {
        const float *p = t->s + r * t->lds + from;
        if (careful) {
            careful_row(t, r, c[r]);
            continue;
        }
        for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
            const int nrv = wide - panel < VEC_NR ? 1 : VEC_NRV;
            const char *v = (const char *)t->v + panel * t->block * 2 + from / 2 * nrv * VEC_LANES * 4;
            vec_f sum[VEC_NRV];
            if (nrv > 1)
                chain_sums(VEC_NRV, p, v, VEC_NR, pairs, sum);
            else
                chain_sums(1, p, v, VEC_LANES, pairs, sum);
            for (int j = 0; j < nrv; j++) add_sum(t->o + r * t->ldo + panel + j * VEC_LANES, c[r], sum[j]);
        }
    }
}

void TP_FUNCTION_NAME(attend_f32)(tp__trace *trace, const tp__row_tile *t) {
    both b = {.t = t, .lo = INT32_MAX};
    float own[TP__TILE_ROWS], *c = t->v != NULL ? own : t->c;
    uint16_t q[ROWS * TP_MAX_HEAD_DIM] __attribute__((aligned(64)));
    int64_t ld = tp__round_up(t->d, VEC_TOGETHER);
    trace->calls[TP_FUNCTION_ID(attend_f32)]++;
    b.n = cut_strips(t, b.strips);
    for (int i = 0; i < b.n && t->bits != NULL; i++) join_bits(t, &b.strips[i], &b.bits[i]);
    if (t->k == NULL) {
        attend_ordered(trace, t, b.strips, b.bits, b.n, c);
        return;
    }
    if (b.n == 0) return;
    b.first = b.strips[0].mr;
    b.second = b.strips[b.n - 1].mr;
    for (int i = 0; i < b.n; i++) {
        if (b.strips[i].lo < b.lo) b.lo = b.strips[i].lo;
        if (b.strips[i].hi > b.hi) b.hi = b.strips[i].hi;
    }
    int small = t->k_found | rows_to_pairs(t->q, t->ldq, t->rows, t->d, q, ld);
    tiles_shape(b.first, b.second);
    both_scores(trace, &b, q, ld, small);
    for (int i = 0; i < b.n; i++) {
        strip *s = &b.strips[i];
        if (t->v_found) {
            strip_softmax(t, s, c + s->first, WEIGHTS_ROUNDED);
            chain_values(t, s, t->bits != NULL ? &b.bits[i] : NULL, c);
            continue;
        }
        s->lo = b.lo; /* weights of 0 where the other strip alone sees a key */
        s->hi = b.hi;
        strip_softmax(t, s, c + s->first, WEIGHTS_BF16);
    }
    if (!t->v_found) both_values(&b, c);
    TILES_DONE();
}
