/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotations from Python; cache.h has caches.
 *
 *     rotary.c        tileproof.Rotary: a capsule, made by options (rope.inc), by a model, or for angles of the caller's own
 *     rotary_apply.c  rows rotated; flash.c: new rows written into caches of the caller's own
 */
#ifndef TILEPROOF_PYTHON_ROTARY_H
#define TILEPROOF_PYTHON_ROTARY_H

#include <tileproof_rope.h>

#include "core.h"

typedef struct rotary {
    tp_rotary *rotary;
    tp_rope_options options; /* pointers of it are this struct's own copies */
    float *own[4];           /* factors and tables */
} rotary;
const rotary *rotary_of(PyObject *capsule); /* NULL: an exception is set */

/* A copy of a tensor of float32, float16 or bfloat16 as float32, its elements one behind the other; shape of v stays.
   NULL: an exception is set. */
float *floats_of(view *v, const char *name, PyObject *object);
/* Positions of batch * tokens, [3] times with sections; one list may stand for all of a batch. NULL: an exception is set. */
int64_t *positions_of(PyObject *object, const rotary *r, int64_t batch, int64_t tokens);
/* head_dim weights of an RMS norm; None: *weights stays NULL. */
int norm_of(const char *name, PyObject *object, int64_t dim, float **weights);
/* (cosines, sines), each for every token, [batch][tokens][pairs]; one list may stand for all of a batch. */
int angles_of(PyObject *pair, const rotary *r, int64_t batch, int64_t tokens, float *made[2]);

#endif
