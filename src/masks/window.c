/* SPDX-License-Identifier: Apache-2.0 */
/* window(a, b): q_pos - a <= k_pos <= q_pos + b, self included; -1 leaves a side unbounded */
#include "masks/kind.h"

static tp_status check(const tp_mask_node *node, tp_error *error) {
    TP_REQUIRE(node->a >= -1 && node->a <= TP__MASK_VALUE_MAX, error, TP_INVALID,
               "window left is %lld: it must be -1 (unbounded) or in 0..2^40", (long long)node->a);
    TP_REQUIRE(node->b >= -1 && node->b <= TP__MASK_VALUE_MAX, error, TP_INVALID,
               "window right is %lld: it must be -1 (unbounded) or in 0..2^40", (long long)node->b);
    return TP_OK;
}

static int allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                   int64_t key) {
    int64_t q_pos = tp__mask_q_pos(view, row), k_pos = tp__mask_k_pos(view, key);
    (void)head;
    return (node->a < 0 || k_pos >= q_pos - node->a) && (node->b < 0 || k_pos <= q_pos + node->b);
}

static tp__interval reach(tp__mask_view *view, const tp_mask_node *node, int64_t row) {
    int64_t q_pos = tp__mask_q_pos(view, row);
    return (tp__interval){node->a < 0 ? INT64_MIN : q_pos - node->a,
                          node->b < 0 ? INT64_MAX : q_pos + node->b + 1};
}

const tp__mask_kind tp__mask_window = {
    .kind = TP_MASK_WINDOW, .name = "window", .check = check, .allowed = allowed, .reach = reach};
