/* SPDX-License-Identifier: Apache-2.0 */
/* A small problem that keeps every rule, and texts there and back. */
#ifndef TP_TESTS_API_PROBLEM_TEXTS_H
#define TP_TESTS_API_PROBLEM_TEXTS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tileproof.h"

static inline tp_problem plain(void) {
    tp_problem p;
    tp_problem_init(&p);
    p.q_len = p.kv_len = 8;
    p.head_dim_qk = p.head_dim_v = 64;
    return p;
}

/* print(parse(text)) */
static inline void canonical(const char *text, const char *expected) {
    tp_error error = TP_ERROR_INIT;
    tp_problem p;
    char printed[512];
    if (tp_problem_parse(text, &p, NULL, &error) != TP_OK) fail_msg("%s: %s", text, error.text);
    assert_int_equal(tp_problem_print(&p, NULL, printed, sizeof printed), TP_OK);
    assert_string_equal(printed, expected);
}

#endif
