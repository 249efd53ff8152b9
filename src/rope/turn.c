/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One token: its angles, the norm of its rows and their rotation.
 *
 *     (a, b) becomes (a cos - b sin, b cos + a sin)        two products and a sum in float32, as transformers has them
 *
 * An angle is position * frequency. Its cosine and sine are taken in double, multiplied by the attention factor and rounded to
 * float32 once; for TP_ROPE_FLOAT32 the angle, the cosine and the product are rounded one after the other.
 */
#include "rope/rope.h"

#include <math.h>

tp_status tp__rope_check_position(const tp_rotary *rotary, const int64_t position[3], tp_error *error) {
    static const char *const names[3] = {"position", "position of height", "position of width"};
    const tp_rope_options *o = &rotary->options;
    int axes = o->sections[0] + o->sections[1] + o->sections[2] == 0 ? 1 : 3;
    int64_t end = o->cos_table != NULL ? o->table_positions : (int64_t)1 << 40;
    for (int i = 0; i < axes; i++) {
        TP_REQUIRE(position[i] >= 0, error, TP_INVALID, "a %s is %lld: it must not be negative", names[i],
                   (long long)position[i]);
        TP_REQUIRE(position[i] < end, error, TP_INVALID, "a %s is %lld: it must be below %lld, %s", names[i],
                   (long long)position[i], (long long)end, o->cos_table != NULL ? "table_positions" : "the longest sequence");
    }
    return TP_OK;
}

static void look_up(const tp_rotary *rotary, const int64_t position[3], float *cosines, float *sines) {
    const tp_rope_options *o = &rotary->options;
    float attention = (float)rotary->attention;
    for (int64_t i = 0; i < rotary->pairs; i++) {
        int64_t at = position[rotary->axis[i]] * o->table_width + i;
        cosines[i] = o->cos_table[at] * attention;
        sines[i] = o->sin_table[at] * attention;
    }
}

void tp__rope_angles(const tp_rotary *rotary, int64_t length, const int64_t position[3], float *cosines, float *sines) {
    const tp_rope_options *o = &rotary->options;
    const double *frequency = rotary->frequency;
    double grown[TP__ROPE_PAIRS_MAX];
    if (o->cos_table != NULL) {
        look_up(rotary, position, cosines, sines);
        return;
    }
    if (o->kind == TP_ROPE_LONGROPE && length > o->original_length) frequency = rotary->long_frequency;
    if (o->kind == TP_ROPE_DYNAMIC && length > o->original_length) {
        tp__rope_frequencies(o, rotary->pairs, length, grown);
        frequency = grown;
    }
    for (int64_t i = 0; i < rotary->pairs; i++) {
        double place = (double)position[rotary->axis[i]], angle = place * frequency[i];
        if (o->angle == TP_ROPE_FLOAT32) angle = (float)((double)(float)place * frequency[i]);
        double cosine = cos(angle), sine = sin(angle);
        if (o->angle == TP_ROPE_FLOAT32) {
            cosines[i] = (float)cosine * (float)rotary->attention;
            sines[i] = (float)sine * (float)rotary->attention;
        } else {
            cosines[i] = (float)(cosine * rotary->attention);
            sines[i] = (float)(sine * rotary->attention);
        }
    }
}

void tp__rope_turn(const tp_rotary *rotary, const float *restrict cosines, const float *restrict sines, int64_t heads,
                   float *restrict rows) {
    const tp_rope_options *o = &rotary->options;
    int64_t pairs = rotary->pairs;
    for (int64_t h = 0; h < heads; h++) {
        float *low = rows + h * o->head_dim + o->first, *high = low + pairs;
        if (o->style == TP_ROPE_INTERLEAVED) {
            for (int64_t i = 0; i < pairs; i++) {
                float a = low[2 * i], b = low[2 * i + 1];
                low[2 * i] = a * cosines[i] - b * sines[i];
                low[2 * i + 1] = b * cosines[i] + a * sines[i];
            }
            continue;
        }
        for (int64_t i = 0; i < pairs; i++) {
            float a = low[i], b = high[i];
            low[i] = a * cosines[i] - b * sines[i];
            high[i] = b * cosines[i] + a * sines[i];
        }
    }
}

/* The mean of squares is summed in double: no row of floats makes it overflow. */
void tp__rope_norm(const float *weight, float eps, int one_plus, int64_t heads, int64_t dim, float *rows) {
    if (weight == NULL) return;
    for (int64_t h = 0; h < heads; h++) {
        float *row = rows + h * dim;
        double squares = 0;
        for (int64_t x = 0; x < dim; x++) squares += (double)row[x] * (double)row[x];
        double scale = 1 / sqrt(squares / (double)dim + (double)eps);
        for (int64_t x = 0; x < dim; x++) {
            float normed = (float)((double)row[x] * scale);
            row[x] = normed * (one_plus ? 1 + weight[x] : weight[x]);
        }
    }
}

void tp__rope_token(const tp_rotary *rotary, const float *norm_weight, float norm_eps, int norm_one_plus, int64_t length,
                    const int64_t position[3], int64_t heads, float *rows) {
    float cosines[TP__ROPE_PAIRS_MAX], sines[TP__ROPE_PAIRS_MAX];
    tp__rope_norm(norm_weight, norm_eps, norm_one_plus, heads, rotary->options.head_dim, rows);
    tp__rope_angles(rotary, length, position, cosines, sines);
    tp__rope_turn(rotary, cosines, sines, heads, rows);
}
