/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary positions inside the library. An entry point checks first (tp__rope_check_position), in the caller's floating-point
 * environment or not; what computes here wants the default one (base/control.h).
 */
#ifndef TP_ROPE_ROPE_H
#define TP_ROPE_ROPE_H

#include "base/error.h"
#include "tileproof_rope.h"

enum { TP__ROPE_DIM_MAX = 4096, TP__ROPE_PAIRS_MAX = TP__ROPE_DIM_MAX / 2 };

struct tp_rotary {
    tp_rope_options options; /* dims is set; pointers to factors are NULL: they are in the frequencies */
    int64_t pairs;
    double attention;
    double *frequency;      /* of each pair; dynamic: up to original_length */
    double *long_frequency; /* longrope: above original_length; otherwise NULL */
    unsigned char *axis;    /* of each pair: 0 time, 1 height, 2 width */
};

/* Is this a position of the rotary's? Three numbers, of time, height and width; without sections the first counts alone. Without
   an error the message is left out. */
tp_status tp__rope_check_position(const tp_rotary *rotary, const int64_t position[3], tp_error *error);

/* Cosines and sines of one token, `pairs` each. length: the current one, at least 1, which dynamic and longrope go by. */
void tp__rope_angles(const tp_rotary *rotary, int64_t length, const int64_t position[3], float *cosines, float *sines);

/* Rotates rows of head_dim elements in place: row h at rows + h * head_dim. */
void tp__rope_turn(const tp_rotary *rotary, const float *cosines, const float *sines, int64_t heads, float *rows);

/* RMS norm of rows in place; weight NULL: nothing happens. */
void tp__rope_norm(const float *weight, float eps, int one_plus, int64_t heads, int64_t dim, float *rows);

/* All of it for one token: norm, then rotation, of its `heads` rows in place. Where q and k, or several layers, share a token,
   tp__rope_angles once and tp__rope_turn for each cost less. */
void tp__rope_token(const tp_rotary *rotary, const float *norm_weight, float norm_eps, int norm_one_plus, int64_t length,
                    const int64_t position[3], int64_t heads, float *rows);

/* frequencies.c: frequencies of every pair for a current length, rounded as the options say. */
void tp__rope_frequencies(const tp_rope_options *options, int64_t pairs, int64_t length, double *frequency);
double tp__rope_attention(const tp_rope_options *options);

/* check.c: the rules of options; dims of a copy are set where they were 0. */
tp_status tp__rope_check(tp_rope_options *options, tp_error *error);

#endif
