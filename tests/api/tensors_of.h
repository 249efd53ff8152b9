/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors by their addresses alone: checks read no element of q, k, v, o or lse. */
#ifndef TP_TESTS_API_TENSORS_OF_H
#define TP_TESTS_API_TENSORS_OF_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "problem/sequence.h"
#include "tileproof.h"

/* Checks read no element of q, k, v, o or lse, so that addresses are enough. */
static inline void *address(uintptr_t value) {
    return (void *)value;
}

enum { BATCH = 3, ROWS = 5, KEYS = 7, Q_HEADS = 4, KV_HEADS = 2, DIM = 16, DIM_V = 8 };

static inline tp_problem plain(void) {
    tp_problem p;
    tp_problem_init(&p);
    p.batch = BATCH;
    p.q_len = ROWS;
    p.kv_len = KEYS;
    p.q_heads = Q_HEADS;
    p.kv_heads = KV_HEADS;
    p.head_dim_qk = DIM;
    p.head_dim_v = DIM_V;
    return p;
}

static inline tp_tensors tensors_of(const tp_problem *p) {
    tp_tensors t;
    tp_tensors_init(&t, p, address(0x100000), address(0x200000), address(0x300000),
                    address(0x400000));
    return t;
}

static inline void accepted(const tp_problem *p, const tp_tensors *t) {
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_check(p, NULL), TP_OK);
    if (tp__tensors_check(p, t, &error) != TP_OK) fail_msg("refused: %s", error.text);
    if (tp_check_deep(p, t, &error) != TP_OK) fail_msg("refused by the deep check: %s", error.text);
}

static inline void refused_as(const tp_problem *p, const tp_tensors *t, tp_status status, const char *one,
                       const char *two, const char *three) {
    tp_error error = TP_ERROR_INIT;
    const char *parts[] = {one, two, three};
    assert_int_equal(tp_problem_check(p, NULL), TP_OK);
    assert_int_equal(tp__tensors_check(p, t, &error), status);
    for (int i = 0; i < 3; i++)
        if (strstr(error.text, parts[i]) == NULL) fail_msg("no '%s' in: %s", parts[i], error.text);
    assert_int_equal(tp_check_deep(p, t, NULL), status);
}

static inline void refused(const tp_problem *p, const tp_tensors *t, const char *one, const char *two,
                    const char *three) {
    refused_as(p, t, TP_INVALID, one, two, three);
}

#endif
