/* SPDX-License-Identifier: Apache-2.0 */
/* window(a, b): q_pos - a <= k_pos <= q_pos + b, self included; -1 leaves a side unbounded */
#include "masks/kind.h"

int tp__mask_window_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                            int64_t key) {
    int64_t q_pos = tp__mask_q_pos(view, row), k_pos = tp__mask_k_pos(view, key);
    (void)head;
    return (node->a < 0 || k_pos >= q_pos - node->a) && (node->b < 0 || k_pos <= q_pos + node->b);
}

tp__interval tp__mask_window_reach(tp__mask_view *view, const tp_mask_node *node, int64_t row) {
    int64_t q_pos = tp__mask_q_pos(view, row);
    return (tp__interval){node->a < 0 ? INT64_MIN : q_pos - node->a,
                          node->b < 0 ? INT64_MAX : q_pos + node->b + 1};
}

void tp__mask_window_ends(const tp_mask_node *node, int64_t q_pos, tp__ends *ends) {
    (void)q_pos;
    if (node->a >= 0) tp__ends_moving(ends, -node->a);
    if (node->b >= 0) tp__ends_moving(ends, node->b + 1);
}
