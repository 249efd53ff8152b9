/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/tile.h"

#include <stdlib.h>

/* Intervals of every kind: all keys, a few, none, one; with holes where there are bits. */
static void make_visibility(struct trial *t, struct tile *tile, int empty) {
    int uniform = one_in(t, 3), holes = !t->bench && one_in(t, 3);
    int64_t words = up(tile->block, 64) / 64;
    int64_t end = t->bench || !one_in(t, 3) ? tile->keys : 1 + roll_below(t, tile->keys); /* keys behind that no row sees */
    tile->lo = input(t, tile->rows, sizeof *tile->lo);
    tile->hi = input(t, tile->rows, sizeof *tile->hi);
    tile->bits = holes ? input(t, tile->rows * words, sizeof *tile->bits) : NULL;
    tile->bit_words = words;
    for (int64_t i = 0; i < tile->rows; i++) {
        int64_t lo = uniform || t->bench || one_in(t, 3) ? 0 : roll_below(t, end);
        int64_t hi = uniform || t->bench || one_in(t, 3) ? end : lo + 1 + roll_below(t, end - lo);
        if (empty && one_in(t, 6)) lo = hi = 0;
        tile->lo[i] = (int32_t)lo;
        tile->hi[i] = (int32_t)hi;
        if (!holes) continue;
        uint64_t *row = tile->bits + i * words;
        memset(row, 0, (size_t)words * sizeof *row);
        for (int64_t j = lo; j < hi; j++) /* the ends are seen: it is the hull */
            if (j == lo || j == hi - 1 || roll(t) >> 62) row[j / 64] |= (uint64_t)1 << (j % 64);
    }
}

static void make_bias(struct trial *t, struct tile *tile) {
    static const tp_dtype dtypes[] = {TP_F32, TP_F16, TP_BF16};
    const void **bias = input(t, tile->rows, sizeof *bias);
    tp_dtype dtype = dtypes[roll_below(t, 3)];
    int64_t unit = (int64_t)tp_dtype_bytes(dtype), stride = one_in(t, 2) ? 1 : roll_below(t, 3), max = 0, size;
    for (int64_t i = 0; i < tile->rows; i++)
        if (tile->hi[i] > max) max = tile->hi[i];
    size = stride * (max > 0 ? max - 1 : 0) + 1;
    char *values = input(t, tile->rows * size, (size_t)unit);
    for (int64_t i = 0; i < tile->rows * size; i++)
        tp_from_float(dtype, one_in(t, 9) ? -INFINITY : ordinary(t), values + i * unit);
    for (int64_t i = 0; i < tile->rows; i++) bias[i] = values + i * size * unit;
    tile->modify.bias = (const void *const *)bias;
    tile->modify.bias_stride = stride;
    tile->modify.bias_dtype = dtype;
}

static void make_modify(struct trial *t, struct tile *tile) {
    tile->modify = (tp__modify){.gain = one_in(t, 2) ? 1 : 0.3f};
    if (one_in(t, 2)) {
        float *scale = input(t, tile->rows, 4);
        for (int64_t i = 0; i < tile->rows; i++) scale[i] = 1 + fabsf(ordinary(t));
        tile->modify.scale = scale;
    }
    if (one_in(t, 2)) tile->modify.cap = 0.5f + fabsf(ordinary(t)) * 10;
    if (one_in(t, 2)) {
        float *slope = input(t, tile->rows, 4), *q_at = input(t, tile->rows, 4), *k_at = input(t, up(tile->block, 16), 4);
        for (int64_t i = 0; i < tile->rows; i++) slope[i] = fabsf(ordinary(t)) * 0.2f, q_at[i] = (float)roll_below(t, 50);
        for (int64_t j = 0; j < up(tile->block, 16); j++) k_at[j] = (float)j;
        tile->modify.slope = slope;
        tile->modify.q_at = q_at;
        tile->modify.k_at = k_at;
    }
    if (one_in(t, 2)) make_bias(t, tile);
}

tp_dtype tile_dtype(const struct trial *t) { return t->set->dtypes >> TP_F32 & 1 ? TP_F32 : TP_BF16; }

/* A key that nobody sees may hold anything; one that somebody sees is NaN now and then, too. */
static void make_values(struct trial *t, struct tile *tile) {
    for (int64_t i = 0; i < tile->rows; i++)
        for (int64_t x = 0; x < tile->ldq; x++)
            tile->q[i * tile->ldq + x] = x < tile->d ? as_held(tile_dtype(t), ordinary(t)) : 0;
    int spoil = t->content == WITH_NAN && !t->bench;
    for (int64_t j = 0; j < tile->keys; j++) {
        float size = t->content == WITH_SUBNORMALS && one_in(t, 3) ? 0x1p-140f
                     : t->content == WITH_LARGE && one_in(t, 3)    ? 0x1p100f
                                                                   : 1;
        int seen = 0;
        for (int64_t i = 0; i < tile->rows && !seen; i++) seen = tile_sees(tile, i, j);
        for (int64_t x = 0; x < tile->d; x++)
            tile->k[j * tile->d + x] = !seen && spoil ? NAN : ordinary(t) * (size < 1 ? size : 1);
        for (int64_t x = 0; x < tile->dv; x++) tile->v[j * tile->dv + x] = !seen && spoil ? INFINITY : ordinary(t) * size;
        if (spoil && one_in(t, 40)) tile->v[j * tile->dv + roll_below(t, tile->dv)] = one_in(t, 2) ? NAN : INFINITY;
        if (spoil && one_in(t, 80)) tile->k[j * tile->d + roll_below(t, tile->d)] = NAN;
        for (int64_t x = 0; x < tile->d; x++) tile->k[j * tile->d + x] = as_held(tile_dtype(t), tile->k[j * tile->d + x]);
        for (int64_t x = 0; x < tile->dv; x++) tile->v[j * tile->dv + x] = as_held(tile_dtype(t), tile->v[j * tile->dv + x]);
    }
}

void tile_make(struct trial *t, struct tile *tile, int64_t max_rows, int64_t max_keys, int empty) {
    *tile = (struct tile){.unit = (float)(LOG2_E / 8)};
    tile->rows = pick(t, "rows", 1, max_rows, max_rows);
    tile->d = pick(t, "d", 1, 150, 128);
    tile->dv = pick(t, "dv", 1, 150, 128);
    tile->keys = pick(t, "keys", 1, max_keys, max_keys);
    while (!t->bench && tile->rows * tile->keys * (tile->d + tile->dv) > 300000)
        tile->rows = (tile->rows + 1) / 2, tile->keys = (tile->keys + 1) / 2;
    tile->block = up(tile->keys, t->set->nr);
    if (tile->block < 16) tile->block = 16;
    tile->ldq = up(tile->d, 16);
    make_visibility(t, tile, empty);
    tile->modifies = !t->bench && one_in(t, 2);
    if (tile->modifies) make_modify(t, tile), tile->unit = (float)LOG2_E;
    tile->drops = !t->bench && one_in(t, 3);
    if (tile->drops) {
        tp__dropout_row *row = input(t, tile->rows, sizeof *row);
        for (int64_t i = 0; i < tile->rows; i++) row[i] = tp__dropout_row_of(roll(t), 3, 1, i);
        tile->drop = (tp__drop){row, roll(t), tp__dropout_threshold(0.3f), 4 * roll_below(t, 1000)};
    }
    tile->q = input(t, tile->rows * tile->ldq, 4);
    tile->k = input(t, tile->keys * tile->d, 4);
    tile->v = input(t, tile->keys * tile->dv, 4);
    make_values(t, tile);
    tile->min_weight = t->set->arithmetic == TP_ARITHMETIC_P_BF16 ? 0x1p-58 : 0x1p-99;
    tile->p_error = t->set->arithmetic == TP_ARITHMETIC_P_BF16 ? 0x1p-8 : 0;
    tile->k_found = tile_pack(t, tile, tile->k, tile->d, 0, &tile->packed_k);
    tile->v_found = tile_pack(t, tile, tile->v, tile->dv, 1, &tile->packed_v);
    size_t used = strlen(t->shape);
    snprintf(t->shape + used, sizeof t->shape - used, " (%lld x %lld)%s%s%s", (long long)tile->rows, (long long)tile->keys,
             tile->bits ? " bits" : "", tile->modifies ? " modified" : "", tile->drops ? " dropout" : "");
}

int tile_pack(struct trial *t, struct tile *tile, const float *from, int64_t d, int as_values, void **packed) {
    tp_dtype dtype = tile_dtype(t);
    size_t unit = tp_dtype_bytes(dtype);
    tp__element_form form = as_values ? t->set->form.v : t->set->form.k;
    int64_t count = tile->block * (as_values ? up(d, t->set->row_step) : up(d, form.step));
    const char **row = malloc((size_t)tile->keys * sizeof *row);
    char *held = malloc((size_t)(tile->keys * d) * unit + 1);
    void *to = input(t, count, (size_t)form.bytes);
    memset(to, 0xff, (size_t)(count * form.bytes)); /* NaN, of keys that nobody sees */
    for (int64_t i = 0; i < tile->keys * d; i++) tp_from_float(dtype, from[i], held + (size_t)i * unit);
    for (int64_t j = 0; j < tile->keys; j++) row[j] = held + (size_t)(j * d) * unit;
    tp__trace trace = {0};
    tp__ahead ahead = {.row = row, .end = row};
    const tp__keys_in in = {row, 0, 0, tile->keys, &ahead, 0, 0, NULL};
    int found = (as_values ? t->set->pack_v : t->set->pack_k)[dtype](&trace, to, &in, tile->block, d);
    free(row);
    free(held);
    *packed = to;
    return found;
}

tp__row_tile tile_of(const struct tile *tile) {
    return (tp__row_tile){.unit = tile->unit, .q = tile->q, .ldq = tile->ldq, .k = tile->packed_k, .v = tile->packed_v,
                          .lo = tile->lo, .hi = tile->hi, .rows = tile->rows, .d = tile->d, .dv = tile->dv, .block = tile->block,
                          .k_found = tile->k_found, .v_found = tile->v_found, .bits = tile->bits, .bit_words = tile->bit_words,
                          .modify = tile->modifies ? &tile->modify : NULL, .drop = tile->drops ? &tile->drop : NULL,
                          .v_scale = tile->v_scale};
}

static double bias_of(const struct tile *tile, int64_t row, int64_t key) {
    if (!tile->modifies || tile->modify.bias == NULL) return 0;
    tp_dtype dtype = (tp_dtype)tile->modify.bias_dtype;
    return (double)tp_to_float(dtype, (const char *)tile->modify.bias[row] +
                                          key * tile->modify.bias_stride * (int64_t)tp_dtype_bytes(dtype));
}

int tile_sees(const struct tile *tile, int64_t row, int64_t key) {
    if (key < tile->lo[row] || key >= tile->hi[row]) return 0;
    if (tile->bits && !(tile->bits[row * tile->bit_words + key / 64] >> (key % 64) & 1)) return 0;
    return bias_of(tile, row, key) != -INFINITY;
}

int tile_stays(const struct tile *tile, int64_t row, int64_t key) {
    return !tile->drops ||
           tp__dropout_word(&tile->drop.row[row], tile->drop.offset, tile->drop.key + key) >= tile->drop.threshold;
}

double tile_distance(const struct tile *tile, int64_t row, int64_t key) {
    return fabs((double)tile->modify.q_at[row] - (double)tile->modify.k_at[key]);
}

double tile_score(const struct tile *tile, int64_t row, int64_t key, double *error, double *bend) {
    double s = 0, size = 0;
    for (int64_t x = 0; x < tile->d; x++) {
        double product = (double)tile->q[row * tile->ldq + x] * (double)tile->k[key * tile->d + x];
        s += product;
        size += fabs(product);
    }
    *error = size * sum_error(tile->d) + 0x1p-140;
    if (bend) *bend = 1;
    if (!tile->modifies) return s;
    double factor = (double)tile->modify.gain * (tile->modify.scale ? (double)tile->modify.scale[row] : 1);
    s *= factor;
    *error = *error * factor + fabs(s) * 0x1p-22;
    if (tile->modify.cap > 0) {
        double slope = tanh(s / (double)tile->modify.cap);
        s = (double)tile->modify.cap * slope;
        if (bend) *bend = 1 - slope * slope;
        *error += fabs(s) * 6e-7;
    }
    if (tile->modify.slope) s -= (double)tile->modify.slope[row] * tile_distance(tile, row, key);
    s += bias_of(tile, row, key);
    *error += (fabs(s) + 40) * 0x1p-22;
    return s;
}

void tile_attend(const struct tile *tile, int64_t row, float m, float m_before, float l_before, const float *o_before,
                 struct tile_row *out) {
    double unit = (double)tile->unit, safe = m == -INFINITY ? 0 : (double)m;
    double keep = m_before == -INFINITY ? 0 : exp2(((double)m_before - safe) * unit),
           off = 5e-7 + fabs((double)m_before - safe) * unit * 0x1p-22;
    if (m_before == -INFINITY) off = 0;
    memset(out, 0, sizeof *out);
    out->m = (double)m_before;
    out->l = (double)l_before * keep;
    out->l_error = out->l * off;
    for (int64_t x = 0; x < tile->dv; x++) {
        out->o[x] = o_before ? (double)o_before[x] * keep : 0;
        out->o_error[x] = fabs(out->o[x]) * off + (o_before ? fabs((double)o_before[x]) * tile->min_weight : 0);
    }
    for (int64_t j = tile->lo[row]; j < tile->hi[row]; j++) {
        double error, s;
        if (!tile_sees(tile, row, j)) continue;
        s = tile_score(tile, row, j, &error, NULL);
        out->sees++;
        if (isnan(s) || s == INFINITY) out->spoilt = 1;
        if (s > out->m) out->m = s;
        if (error > out->m_error) out->m_error = error;
        double p = exp2((s - safe) * unit), relative = expm1(error * unit * 0.7) + 5e-7 + fabs(s - safe) * unit * 0x1p-22;
        double wide = (double)tile->keys * 0x1p-23 + relative;
        out->l += p;
        out->l_error += p * wide + tile->min_weight;
        for (int64_t x = 0; x < tile->dv; x++) {
            double v = (double)tile->v[j * tile->dv + x] * (tile->v_scale ? (double)tile->v_scale[j] : 1);
            if (!tile_stays(tile, row, j)) {
                if (!isfinite(v)) out->o[x] = NAN; /* 0 times that */
                continue;
            }
            out->o[x] += p * v;
            out->o_error[x] += fabs(v) * (p * (wide + tile->p_error) + tile->min_weight) + 0x1p-148;
            if (!isfinite(v)) out->o[x] = NAN;
        }
    }
}
