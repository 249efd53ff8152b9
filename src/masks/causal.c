/* SPDX-License-Identifier: Apache-2.0 */
/* causal: k_pos <= q_pos */
#include "masks/kind.h"

int tp__mask_causal_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                            int64_t key) {
    (void)node, (void)head;
    return tp__mask_k_pos(view, key) <= tp__mask_q_pos(view, row);
}

tp__interval tp__mask_causal_reach(tp__mask_view *view, const tp_mask_node *node, int64_t row) {
    (void)node;
    return (tp__interval){INT64_MIN, tp__mask_q_pos(view, row) + 1};
}

void tp__mask_causal_ends(const tp_mask_node *node, int64_t q_pos, tp__ends *ends) {
    (void)node, (void)q_pos;
    tp__ends_moving(ends, 1);
}
