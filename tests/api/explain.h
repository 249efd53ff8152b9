/* SPDX-License-Identifier: Apache-2.0 */
/* A decision by tp_explain, and the same one by a plan: what tests of choices and of reports share. */
#ifndef TP_TESTS_API_EXPLAIN_H
#define TP_TESTS_API_EXPLAIN_H

#include <string.h>

#include "support/call.h"

static const tp_choice refuse = TP_CHOICE_INIT;
static const tp_choice permit = {sizeof(tp_choice), TP_PERMIT, NULL, NULL, NULL, TP_CPU, 0};

static inline tp_problem problem_of(const char *text) {
    tp_problem p;
    tp_error error = TP_ERROR_INIT;
    if (tp_problem_parse(text, &p, NULL, &error)) fail_msg("%s", error.text);
    return p;
}

static inline int append(void *cookie, const char *bytes, size_t size) {
    char *text = cookie;
    size_t used = strlen(text);
    assert_true(used + size < 16384);
    memcpy(text + used, bytes, size);
    text[used + size] = '\0';
    return 0;
}

static inline void expect_same(const tp_decision *a, const tp_decision *b) {
    static char text[2][16384];
    text[0][0] = text[1][0] = '\0';
    assert_int_equal(tp_decision_write(a, TP_JSON, append, text[0]), TP_OK);
    assert_int_equal(tp_decision_write(b, TP_JSON, append, text[1]), TP_OK);
    assert_string_equal(text[0], text[1]);
}

static inline tp_decision *explain(tp_context *context, const char *text, const tp_choice *choice,
                            tp_status expected, tp_error *error) {
    tp_problem p = problem_of(text);
    tp_decision *decision;
    tp_error mine = TP_ERROR_INIT;
    if (error == NULL) error = &mine;
    assert_int_equal(tp_explain(context, &p, choice, &decision, error), expected);
    assert_non_null(decision);
    assert_int_equal(decision->status, expected);
    assert_int_equal(decision->chosen >= 0, expected == TP_OK);
    tp_plan *plan; /* which decides by the same code */
    assert_int_equal(tp_plan_create(context, &p, choice, &plan, NULL), expected);
    if (expected == TP_OK) expect_same(tp_plan_decision(plan), decision);
    tp_plan_destroy(plan);
    return decision;
}

static inline int fused(int index) {
    return tp_kernel_at(index)->max_head_dim > 0;
}

/* The first fused kernel that an ISA serves, after `skip` others. */
static inline int best_on(uint32_t isa, int skip) {
    for (int i = 0; tp_kernel_at(i) != NULL; i++)
        if (fused(i) && (tp_kernel_at(i)->needs & ~isa) == 0 && skip-- == 0) return i;
    return -1;
}

#endif
