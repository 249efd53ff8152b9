/* SPDX-License-Identifier: Apache-2.0 */
/* What `tileproof check` runs calls with: a workspace that is watched on both sides. A stand-in for tp_plan_run writes. */
#include "support/call.h"

#include "harness/attempt.h"

enum { BYTES = 1000 };
static ptrdiff_t written; /* where, from the start of the workspace */

size_t __wrap_tp_plan_workspace(const tp_plan *plan, int threads);
tp_status __wrap_tp_plan_run(const tp_plan *plan, const tp_tensors *tensors, const tp_exec *exec, tp_receipt *receipt,
                             tp_error *error);

size_t __wrap_tp_plan_workspace(const tp_plan *plan, int threads) {
    (void)plan;
    (void)threads;
    return BYTES;
}

tp_status __wrap_tp_plan_run(const tp_plan *plan, const tp_tensors *tensors, const tp_exec *exec, tp_receipt *receipt,
                             tp_error *error) {
    (void)plan;
    (void)tensors;
    (void)receipt;
    (void)error;
    assert_int_equal(exec->workspace_size, BYTES);
    assert_int_equal((uintptr_t)exec->workspace % 64, 0);
    ((volatile unsigned char *)exec->workspace)[written] = 1;
    return TP_OK;
}

static void write_at(enum guarded_side guarded, ptrdiff_t where, tp_status expected) {
    struct workspace workspace = {.guarded = guarded};
    struct attempt attempt = {.workspace = &workspace, .threads = 1, .poison = 0xFF};
    struct tensors tensors = {0};
    tp_receipt receipt;
    tp_error error = TP_ERROR_INIT;
    written = where;
    assert_int_equal(attempt_run_plan(&attempt, NULL, &tensors, &receipt, &error), expected);
    workspace_free(&workspace);
}

static void writes_on_either_side_are_found(void **state) {
    static const enum guarded_side sides[] = {GUARDED_NOT, GUARDED_END};
    (void)state;
    for (int i = 0; i < 2; i++) {
        write_at(sides[i], 0, TP_OK);
        write_at(sides[i], BYTES - 1, TP_OK);
        write_at(sides[i], -1, TP_WORKSPACE);
        write_at(sides[i], -256, TP_WORKSPACE);
        write_at(sides[i], BYTES, TP_WORKSPACE);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(writes_on_either_side_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
