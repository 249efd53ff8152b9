/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths, heads, head dims and dtypes of a drawn problem: borders often, and never more work than the draft allows. */
#include "check/random.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where tiles, blocks and chunks of some loop end. */
static const int borders[] = {0,  1,  2,   6,   8,   12,  16,  24,  32,  48,  64,   96,   128, 192,
                              256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 4608, 8192};

int64_t draw_number(struct draft *d, int64_t max) {
    if (max <= 0) return 0;
    int64_t kind = dice_roll(&d->dice, 10), value = dice_roll(&d->dice, max + 1);
    if (kind < 3) value = dice_roll(&d->dice, min(max, 8) + 1);
    if (kind >= 3 && kind < 7) {
        int64_t fit = 0;
        while (fit < COUNT(borders) && borders[fit] <= max) fit++;
        value = borders[dice_roll(&d->dice, fit)] + dice_roll(&d->dice, 3) - 1;
    }
    if (kind == 7) value = max;
    return value < 0 ? 0 : min(value, max);
}

void draw_heads(struct draft *d) {
    static const int ratios[] = {1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 33, 71};
    d->kv_heads = dice_chance(&d->dice, 950) ? 1 + dice_roll(&d->dice, 3) : 1 + dice_roll(&d->dice, 17);
    d->heads = d->kv_heads * ratios[dice_roll(&d->dice, dice_chance(&d->dice, 900) ? 10 : COUNT(ratios))];
    if (d->hostile) d->heads = d->kv_heads = 1 + dice_roll(&d->dice, 2); /* a head for itself: others would hide it in sums */
    draft_say(d, " h%lld/%lld", (long long)d->heads, (long long)d->kv_heads);
}

static int64_t one_dim(struct draft *d) {
    static const int usual[] = {1,  3,  8,  15, 16,  17,  24,  31,  32,  33,  40,  48, 63,
                                64, 65, 80, 96, 128, 129, 192, 256, 257, 512, 576, 577};
    int64_t kind = dice_roll(&d->dice, 100);
    if (kind < 60) return usual[dice_roll(&d->dice, 15)];
    if (kind < 72) return usual[dice_roll(&d->dice, COUNT(usual))];
    return 1 + dice_roll(&d->dice, kind < 97 ? 70 : 300);
}

void draw_dims(struct draft *d) {
    d->dim = d->dim_v = one_dim(d);
    if (dice_chance(&d->dice, 400)) d->dim_v = one_dim(d);
    if (d->latent) d->dim_v = min(d->dim, d->dim_v);
    if (d->dim == d->dim_v)
        draft_say(d, " d%lld", (long long)d->dim);
    else
        draft_say(d, " d%lld/%lld", (long long)d->dim, (long long)d->dim_v);
}

/* Of k or v: often a float, i4 where the head dim is even. */
static const char *stored_dtype(struct draft *d, int64_t dim) {
    static const char *const dtypes[] = {"f32", "bf16", "f16", "i8", "e4m3", "i4"};
    return dtypes[dice_roll(&d->dice, d->kind == DRAW_BACKWARD ? 3 : dim % 2 ? 5 : 6)];
}

void draw_dtypes(struct draft *d) {
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    const char *one = dtypes[dice_roll(&d->dice, 3)], *out = dtypes[dice_roll(&d->dice, 3)];
    d->k_dtype = d->v_dtype = one;
    int64_t form = dice_roll(&d->dice, d->latent && d->kind == DRAW_BACKWARD ? 6 : 10);
    if (form < 4)
        draft_say(d, " %s", one);
    else if (form < 6)
        draft_say(d, " %s->%s", one, out);
    else {
        d->k_dtype = stored_dtype(d, d->latent ? d->dim | d->dim_v : d->dim);
        d->v_dtype = d->latent ? d->k_dtype : stored_dtype(d, d->dim_v);
        draft_say(d, " %s:%s:%s->%s", one, d->k_dtype, d->v_dtype, out);
    }
}

/* Keys first, since they have the borders worth meeting, then rows that are still allowed. */
static void draw_pair(struct draft *d, int64_t cost, int64_t *rows, int64_t *keys) {
    int64_t of_pair = d->heads * (d->dim + d->dim_v), pairs = cost / of_pair + 1;
    *keys = draw_number(d, min(pairs, 8300));
    if (dice_chance(&d->dice, 600)) *keys = min(*keys, draw_number(d, 300));
    if (dice_chance(&d->dice, 40)) *keys = 0;
    int64_t max = *keys ? min(pairs / *keys, 2200) : 40;
    if (d->keys_for_rows) max = min(max, *keys);
    *rows = draw_number(d, max);
    if (dice_chance(&d->dice, 200)) *rows = min(max, 1);
    if (dice_chance(&d->dice, 300)) *rows = min(max, 25 + dice_roll(&d->dice, 120));
    if (dice_chance(&d->dice, 150)) *rows = min(max, *keys);
    if (d->hostile) { /* few rows: with more keys some are nobody's nearest, with fewer some rows are far from all */
        *keys = 1 + dice_roll(&d->dice, dice_chance(&d->dice, 350) ? 2 : 24);
        *rows = 1 + dice_roll(&d->dice, d->keys_for_rows ? min(*keys, 4) : 4);
    }
    if (*keys > d->keys) d->keys = *keys;
    d->rows += *rows;
}

void draw_lengths(struct draft *d) {
    int64_t rows, keys, batch = dice_chance(&d->dice, 600) ? 1 : dice_roll(&d->dice, 5);
    d->keys = d->rows = 0;
    draw_pair(d, d->cost / (batch ? batch : 1), &rows, &keys);
    draft_say(d, " b%lld q%lld k%lld", (long long)batch, (long long)rows, (long long)keys);
}

void draw_sequences(struct draft *d) {
    int64_t entries = 1 + dice_roll(&d->dice, 4), rows, keys;
    d->keys = d->rows = 0;
    for (int64_t i = 0; i < entries; i++) {
        int64_t repeat = dice_chance(&d->dice, 800) ? 1 : 1 + dice_roll(&d->dice, 3);
        draw_pair(d, d->cost / entries / repeat, &rows, &keys);
        draft_say(d, "%s%lldx%lld/%lld", i ? "," : " seqs=", (long long)repeat, (long long)rows, (long long)keys);
    }
    /* a word of how they lie must follow */
    static const char *const ways[] = {" packed", " padded", " packed-q padded", " packed-kv padded", " packed-q"};
    int64_t way = dice_roll(&d->dice, d->kind == DRAW_BACKWARD ? 4 : 5);
    draft_say(d, "%s", ways[way]);
    if (way == 4) draft_say(d, " paged=%lld", (long long)draw_number(d, d->keys + 60) + 1);
    d->taken |= DRAFT_PACKS | (way == 1 || way == 2 ? 0 : DRAFT_KEPT);
}
