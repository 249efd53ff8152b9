/* SPDX-License-Identifier: Apache-2.0 */
/* A small call by its own tensors, for tests of the reference. */
#ifndef TP_TESTS_NUMERICS_SMALL_CALL_H
#define TP_TESTS_NUMERICS_SMALL_CALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tileproof.h"

enum { CAPACITY = 8192 };

/* A small f32 call with room for everything the tests change. */
typedef struct call {
    tp_problem problem;
    tp_tensors tensors;
    float q[CAPACITY], k[CAPACITY], v[CAPACITY];
} call;

static uint32_t seed;

static inline float uniform(void) { /* -1..1 */
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-31f;
}

static inline void setup(call *c, int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t q_len,
                  int64_t kv_len, int64_t d, int64_t dv) {
    tp_problem_init(&c->problem);
    c->problem.batch = batch;
    c->problem.q_heads = q_heads;
    c->problem.kv_heads = kv_heads;
    c->problem.q_len = q_len;
    c->problem.kv_len = kv_len;
    c->problem.head_dim_qk = d;
    c->problem.head_dim_v = dv;
    tp_tensors_init(&c->tensors, &c->problem, c->q, c->k, c->v, NULL);
    seed = 4;
    for (int i = 0; i < CAPACITY; i++) {
        c->q[i] = 2 * uniform();
        c->k[i] = 2 * uniform();
        c->v[i] = uniform();
    }
}

/* One row; fails the test unless TP_OK. */
static inline double row_of(const call *c, tp_precision precision, tp_row row, double *o) {
    double lse = 0;
    tp_error error = TP_ERROR_INIT;
    if (tp_reference(&c->problem, &c->tensors, precision, TP_ARITHMETIC_F32, 1, &row, o, &lse, NULL, NULL, &error))
        fail_msg("%s", error.text);
    return lse;
}

#endif
