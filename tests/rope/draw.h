/* SPDX-License-Identifier: Apache-2.0 */
/* Random rotations: options that keep the rules, rows of a call and its memory. */
#ifndef TP_TESTS_ROPE_DRAW_H
#define TP_TESTS_ROPE_DRAW_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tileproof_rope.h"

typedef struct drawn {
    uint64_t state;
    tp_rope_options options;
    tp_rope_rows rows;
    int64_t pairs, axes, current; /* current length, as the definition has it */
    int64_t bytes;                /* of in, and of out where it is apart */
    void *in, *out;
    float short_factors[2048], long_factors[2048], weight[4096];
    float *tables[2], *angles[2];
    int64_t *positions;
} drawn;

static inline uint64_t draw(drawn *d, uint64_t below) {
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (d->state >> 33) % below;
}
static inline double draw_real(drawn *d, double low, double high) {
    return low + (high - low) * ((double)draw(d, 1u << 20) / (1u << 20));
}
static inline double draw_log(drawn *d, double low, double high) {
    return exp(draw_real(d, log(low), log(high)));
}

static inline void draw_sections(drawn *d) {
    tp_rope_options *o = &d->options;
    o->sections_interleave = (int32_t)draw(d, 2);
    if (o->sections_interleave) { /* at most as many as there are turns */
        o->sections[1] = (int32_t)draw(d, (uint64_t)(d->pairs + 1) / 3 + 1);
        o->sections[2] = (int32_t)draw(d, (uint64_t)d->pairs / 3 + 1);
        o->sections[0] = (int32_t)d->pairs - o->sections[1] - o->sections[2];
        return;
    }
    for (int32_t i = 0; i < 3; i++) {
        int32_t left = (int32_t)d->pairs - o->sections[0] - o->sections[1];
        o->sections[i] = i == 2 ? left : (int32_t)draw(d, (uint64_t)left + 1);
    }
}

static inline void draw_kind(drawn *d) {
    tp_rope_options *o = &d->options;
    static const int32_t lengthy = 1 << TP_ROPE_DYNAMIC | 1 << TP_ROPE_YARN | 1 << TP_ROPE_LLAMA3 | 1 << TP_ROPE_LONGROPE;
    int takes = o->kind == TP_ROPE_LINEAR || o->kind == TP_ROPE_PROPORTIONAL || lengthy >> o->kind & 1;
    int optional = o->kind == TP_ROPE_PROPORTIONAL || o->kind == TP_ROPE_LONGROPE;
    o->theta = draw_log(d, 100, 1e7);
    if (takes && !(optional && draw(d, 2))) o->factor = draw_log(d, draw(d, 4) ? 1 : 0.3, 40);
    if (lengthy >> o->kind & 1) o->original_length = 2 + (int64_t)draw(d, draw(d, 2) ? 60 : 5000);
    if (draw(d, 3) == 0) o->attention_factor = draw_real(d, 0.3, 2);
    if (o->kind == TP_ROPE_LLAMA3)
        o->low_freq_factor = draw_real(d, 0.2, 2), o->high_freq_factor = o->low_freq_factor + draw_real(d, 0.1, 5);
    if (o->kind == TP_ROPE_YARN) {
        if (draw(d, 2)) o->beta_fast = draw_real(d, 8, 64), o->beta_slow = draw_real(d, 0.5, 4);
        if (draw(d, 2)) o->mscale = draw_real(d, 0.2, 2);
        if (draw(d, 2)) o->mscale_all_dim = draw_real(d, 0.2, 2);
        o->yarn_untruncated = (int32_t)draw(d, 2);
    }
    if (o->kind == TP_ROPE_LONGROPE) {
        o->factor_count = o->dims / 2, o->short_factors = d->short_factors, o->long_factors = d->long_factors;
        for (int64_t i = 0; i < o->dims / 2; i++)
            d->short_factors[i] = (float)draw_real(d, 1, 3), d->long_factors[i] = (float)draw_real(d, 1, 60);
    }
}

static inline void draw_tables(drawn *d) {
    tp_rope_options *o = &d->options;
    o->theta = 0, o->table_positions = 1 + (int64_t)draw(d, 40), o->table_width = d->pairs;
    for (int i = 0; i < 2; i++) {
        size_t count = (size_t)(o->table_positions * d->pairs);
        d->tables[i] = malloc(count * sizeof(float));
        for (size_t x = 0; x < count; x++) d->tables[i][x] = (float)draw_real(d, -1, 1);
    }
    o->cos_table = d->tables[0], o->sin_table = d->tables[1];
    if (draw(d, 2)) o->attention_factor = draw_real(d, 0.3, 2);
}

static inline void draw_options(drawn *d) {
    static const int32_t kinds[] = {TP_ROPE_NONE, TP_ROPE_DEFAULT,  TP_ROPE_DEFAULT, TP_ROPE_LINEAR,      TP_ROPE_DYNAMIC,
                                    TP_ROPE_YARN, TP_ROPE_LONGROPE, TP_ROPE_LLAMA3,  TP_ROPE_PROPORTIONAL};
    tp_rope_options *o = &d->options;
    *o = (tp_rope_options)TP_ROPE_OPTIONS_INIT;
    o->kind = kinds[draw(d, sizeof kinds / sizeof *kinds)], o->style = (int32_t)draw(d, 2);
    o->head_dim = 2 * (2 + (int64_t)draw(d, draw(d, 8) ? 40 : 400));
    if (o->kind == TP_ROPE_NONE) {
        o->dims = 0;
    } else {
        if (o->kind != TP_ROPE_PROPORTIONAL && draw(d, 4) == 0) o->first = (int64_t)draw(d, (uint64_t)o->head_dim - 3);
        int64_t max = (o->head_dim - o->first) / 2;
        o->dims =
            draw(d, 2) && (o->head_dim - o->first) % 2 == 0 && max > 1 ? 2 * max : 2 * (2 + (int64_t)draw(d, (uint64_t)max));
        if (o->dims > 2 * max) o->dims = 2 * max;
    }
    d->pairs = o->kind == TP_ROPE_PROPORTIONAL ? o->head_dim / 2 : o->dims / 2;
    if (o->kind == TP_ROPE_DYNAMIC && o->dims < 4) o->kind = TP_ROPE_DEFAULT;
    if (o->kind == TP_ROPE_DEFAULT && draw(d, 3) == 0)
        draw_tables(d);
    else if (o->kind != TP_ROPE_NONE)
        draw_kind(d);
    if (d->pairs > 0 && o->kind != TP_ROPE_PROPORTIONAL && draw(d, 3) == 0) draw_sections(d);
    d->axes = o->sections[0] + o->sections[1] + o->sections[2] != 0 ? 3 : 1;
}

static inline void draw_positions(drawn *d) {
    tp_rope_rows *r = &d->rows;
    int64_t all = r->batch * r->tokens, greatest = 0, end = (int64_t)1 << (1 + draw(d, 21));
    if (d->tables[0] != NULL) end = d->options.table_positions;
    d->positions = malloc((size_t)(d->axes * all) * sizeof *d->positions);
    for (int64_t i = 0; i < d->axes * all; i++) {
        /* one sequence after the other, here and there the same position again */
        d->positions[i] = draw(d, 3) && i % all >= r->tokens ? d->positions[i - r->tokens] : (int64_t)draw(d, (uint64_t)end);
        if (d->positions[i] > greatest) greatest = d->positions[i];
    }
    r->positions = d->positions;
    if (draw(d, 3) == 0) r->length = greatest + 1 + (int64_t)draw(d, 6000);
    int64_t border = d->options.original_length + (int64_t)draw(d, 2); /* where frequencies change */
    if (border > greatest && draw(d, 3) == 0) r->length = border;
    d->current = r->length ? r->length : greatest + 1;
}

/* Strides in any order of the three, with holes; the bytes that they reach. */
static inline int64_t draw_strides(drawn *d, tp_tensor *tensor) {
    const tp_rope_rows *r = &d->rows;
    const int64_t extent[3] = {r->batch, r->tokens, r->heads};
    int64_t covered = d->options.head_dim + (int64_t)draw(d, 3);
    int order = (int)draw(d, 3), step = draw(d, 2) ? 1 : 2;
    for (int i = 0; i < 3; i++) {
        int at = (order + i * step) % 3;
        tensor->stride[at] = covered;
        covered = covered * extent[at] + (int64_t)draw(d, 3);
    }
    return covered * (int64_t)tp_dtype_bytes((tp_dtype)r->dtype);
}

static inline void draw_rows(drawn *d) {
    tp_rope_rows *r = &d->rows;
    *r = (tp_rope_rows)TP_ROPE_ROWS_INIT;
    r->dtype = TP_F32 + (int32_t)draw(d, 3);
    r->batch = 1 + (int64_t)draw(d, 3), r->tokens = 1 + (int64_t)draw(d, 5), r->heads = 1 + (int64_t)draw(d, 4);
    d->bytes = draw_strides(d, &r->in);
    if (draw(d, 2)) {
        r->out = r->in;
        d->in = malloc((size_t)d->bytes);
        d->out = d->in;
    } else {
        int64_t out = draw_strides(d, &r->out);
        d->bytes = out > d->bytes ? out : d->bytes;
        d->in = malloc((size_t)d->bytes), d->out = malloc((size_t)d->bytes);
    }
    r->in.data = d->in, r->out.data = d->out;
    draw_positions(d);
    if (draw(d, 3) == 0) {
        r->norm_weight = d->weight, r->norm_eps = draw(d, 3) ? 1e-6f : 0, r->norm_one_plus = (int32_t)draw(d, 2);
        for (int64_t x = 0; x < d->options.head_dim; x++) d->weight[x] = (float)draw_real(d, -2, 2);
    }
}

static inline drawn *draw_new(uint64_t seed) {
    drawn *d = calloc(1, sizeof *d);
    d->state = seed * 2654435761u + 1;
    draw(d, 2);
    draw_options(d);
    draw_rows(d);
    return d;
}

static inline void draw_free(drawn *d) {
    if (d->out != d->in) free(d->out);
    free(d->in);
    for (int i = 0; i < 2; i++) free(d->tables[i]), free(d->angles[i]);
    free(d->positions);
    free(d);
}

#endif
