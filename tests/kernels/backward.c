/* SPDX-License-Identifier: Apache-2.0 */
/* One tile of the gradients: backward. */
#include <stdlib.h>

#include "kernels/tile.h"

/* Sums in double, and what the kernel's may be off by. */
struct sums {
    double *value, *error;
};

static struct sums sums_new(int64_t count) {
    return (struct sums){calloc((size_t)count + 1, sizeof(double)), calloc((size_t)count + 1, sizeof(double))};
}

static void sums_free(struct sums *s) {
    free(s->value);
    free(s->error);
}

static void add(struct sums *s, int64_t at, double factor, double factor_error, double value, int64_t terms) {
    s->value[at] += factor * value;
    s->error[at] += fabs(value) * (factor_error + fabs(factor) * (double)terms * 0x1p-23) + 0x1p-140;
}

struct gradients {
    struct tile tile;
    float *d_o, *lse, *delta;
    float left, stay;
    int64_t ldo;
    struct sums dq, dk, dv, slope, bias;
};

/* From the scores, so that probabilities are such; a row without keys has none. */
static void make_lse(struct trial *t, struct gradients *g) {
    const struct tile *tile = &g->tile;
    for (int64_t i = 0; i < tile->rows; i++) {
        double sum = 0, max = -INFINITY, error;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = tile->lo[i]; j < tile->hi[i]; j++) {
                if (!tile_sees(tile, i, j)) continue;
                double s = tile_score(tile, i, j, &error, NULL) * (double)g->left;
                if (pass == 0 && s > max) max = s;
                if (pass == 1) sum += exp(s - max);
            }
        g->lse[i] = sum > 0 && isfinite(sum) ? (float)(max + log(sum)) : 0;
        g->delta[i] = ordinary(t);
    }
}

static void one_pair(struct gradients *g, int64_t i, int64_t j) {
    const struct tile *tile = &g->tile;
    double error, bend, dp = 0, dp_size = 0, s = tile_score(tile, i, j, &error, &bend) * (double)g->left;
    error *= (double)g->left;
    double p = exp(s - (double)g->lse[i]),
           p_error = p * (expm1(error) + 6e-7 + (fabs(s) + fabs((double)g->lse[i])) * 0x1p-22) + tile->min_weight;
    for (int64_t x = 0; x < tile->dv; x++) {
        double product = (double)g->d_o[i * g->ldo + x] * (double)tile->v[j * tile->dv + x];
        dp += product;
        dp_size += fabs(product);
    }
    double dp_error = dp_size * sum_error(tile->dv);
    int stays = tile_stays(tile, i, j);
    if (tile->drops) dp *= stays ? (double)g->stay : 0, dp_error = stays ? dp_error * (double)g->stay + fabs(dp) * 0x1p-23 : 0;
    double delta = (double)g->delta[i], ds = p * (dp - delta),
           ds_error = p_error * (fabs(dp) + fabs(delta)) + p * (dp_error + (fabs(dp) + fabs(delta)) * 0x1p-22);
    for (int64_t x = 0; x < tile->dv && stays; x++)
        add(&g->dv, j * tile->dv + x, p, p_error + p * tile->p_error, (double)g->d_o[i * g->ldo + x], tile->rows + 8);
    if (tile->modifies && tile->modify.slope) add(&g->slope, i, ds, ds_error, tile_distance(tile, i, j), tile->keys + 8);
    add(&g->bias, i * tile->keys + j, ds, ds_error, 1, 4);
    if (tile->modifies) {
        double scale = tile->modify.scale ? (double)tile->modify.scale[i] : 1;
        ds_error = ds_error * bend * scale + fabs(ds) * scale * (tile->modify.cap > 0 ? 3e-6 : 3e-7);
        ds *= bend * scale;
    }
    for (int64_t x = 0; x < tile->d; x++) {
        add(&g->dk, j * tile->d + x, ds, ds_error + fabs(ds) * tile->p_error, (double)tile->q[i * tile->ldq + x], tile->rows + 8);
        add(&g->dq, i * tile->d + x, ds, ds_error + fabs(ds) * tile->p_error, (double)tile->k[j * tile->d + x], tile->keys + 8);
    }
}

/* Outputs hold numbers already, to which the sums are added. */
static float *started(struct trial *t, int64_t rows, int64_t ld, int64_t d, const struct sums *sums) {
    float *floats = output(t, rows * ld, 4);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t x = 0; x < ld; x++) {
            floats[i * ld + x] = x < d ? ordinary(t) : 0;
            if (x < d) sums->value[i * d + x] = (double)floats[i * ld + x], sums->error[i * d + x] = 2e-6;
        }
    return floats;
}

static void check(struct trial *t, const char *what, int64_t rows, int64_t ld, int64_t d, const float *got,
                  const struct sums *sums) {
    for (int64_t i = 0; i < rows && got; i++)
        for (int64_t x = 0; x < d; x++)
            expect_near(t, what, i, x, got[i * ld + x], sums->value[i * d + x], sums->error[i * d + x]);
}

/* Keys and values that are seen are finite here: test_backward_nan.c has what NaN reaches. Those that are not seen may be
   anything. */
static void only_hidden_nan(struct tile *tile) {
    for (int64_t j = 0; j < tile->keys; j++) {
        int seen = 0;
        for (int64_t i = 0; i < tile->rows; i++) seen |= tile_sees(tile, i, j);
        for (int64_t x = 0; x < tile->d && seen; x++)
            if (!isfinite(tile->k[j * tile->d + x])) tile->k[j * tile->d + x] = 0.5f;
        for (int64_t x = 0; x < tile->dv && seen; x++)
            if (!(fabsf(tile->v[j * tile->dv + x]) < 1e6f)) tile->v[j * tile->dv + x] = -0.25f;
    }
}

void test_backward(struct trial *t) {
    struct gradients g = {.left = 1, .stay = 1 / 0.7f};
    struct tile *tile = &g.tile;
    tile_make(t, tile, TP__BACK_ROWS, 192, 1);
    only_hidden_nan(tile);
    if (!tile->modifies) g.left = 0.125f;
    int64_t rows = tile->rows, keys = tile->keys, ldo = up(tile->dv, 16), lds = up(tile->block, 16);
    g.ldo = ldo;
    g.d_o = input(t, rows * ldo, 4), g.lse = input(t, rows, 4), g.delta = input(t, rows, 4);
    for (int64_t i = 0; i < rows * ldo; i++) g.d_o[i] = i % ldo < tile->dv ? as_held(tile_dtype(t), ordinary(t)) : 0;
    make_lse(t, &g);
    g.dq = sums_new(rows * tile->d), g.dk = sums_new(tile->block * tile->d), g.dv = sums_new(tile->block * tile->dv);
    g.slope = sums_new(rows), g.bias = sums_new(rows * keys);
    tp__back b = {
        .tile = tile_of(tile), .d_o = g.d_o, .ldo = ldo, .left = g.left, .lse = g.lse, .delta = g.delta, .stay = g.stay};
    void *packed;
    b.tile.k_found = tile_pack(t, tile, tile->k, tile->d, 0, &packed), b.tile.k = packed;
    b.tile.v_found = tile_pack(t, tile, tile->v, tile->dv, 0, &packed), b.v = packed;
    b.tile.k_found |= tile_pack(t, tile, tile->k, tile->d, 1, &packed), b.k_rows = packed;
    b.tile.s = output_floats(t, rows * lds), b.tile.lds = lds, b.ds = output_floats(t, rows * lds);
    for (int64_t i = 0; i < rows * lds; i++) b.tile.s[i] = b.ds[i] = NAN; /* as a tile before may have left them */
    if (t->bench || !one_in(t, 8)) b.dq = started(t, rows, tile->ldq, tile->d, &g.dq);
    if (t->bench || !one_in(t, 8)) b.dk = started(t, tile->block, tile->ldq, tile->d, &g.dk);
    if (t->bench || !one_in(t, 8)) b.dv = started(t, tile->block, ldo, tile->dv, &g.dv);
    float *slope = NULL, **d_bias = NULL, *bias = NULL;
    if (tile->modifies && tile->modify.slope) {
        b.slope = slope = output(t, rows, 4);
        memset(slope, 0, (size_t)rows * sizeof *slope);
    }
    if (tile->modifies && tile->modify.bias) {
        d_bias = input(t, rows, sizeof *d_bias);
        bias = started(t, rows, keys, keys, &g.bias);
        for (int64_t i = 0; i < rows; i++) d_bias[i] = bias + i * keys;
        b.d_bias = d_bias, b.d_bias_stride = 1;
    }
    RUN(t, t->set->backward(&t->trace, &b));
    for (int64_t i = 0; i < rows && !t->bench; i++)
        for (int64_t j = tile->lo[i]; j < tile->hi[i]; j++)
            if (tile_sees(tile, i, j)) one_pair(&g, i, j);
    check(t, "dq", rows, tile->ldq, tile->d, b.dq, &g.dq);
    check(t, "dk", tile->block, tile->ldq, tile->d, b.dk, &g.dk);
    check(t, "dv", tile->block, ldo, tile->dv, b.dv, &g.dv);
    check(t, "slope", rows, 1, 1, slope, &g.slope);
    check(t, "d_bias", rows, keys, keys, bias, &g.bias);
    sums_free(&g.dq), sums_free(&g.dk), sums_free(&g.dv), sums_free(&g.slope), sums_free(&g.bias);
}
