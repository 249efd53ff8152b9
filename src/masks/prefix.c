/* SPDX-License-Identifier: Apache-2.0 */
/* prefix(a): k_pos < a, or with a = -1 k_pos < prefix_lens[sequence] */
#include "masks/kind.h"

static int64_t length(const tp__mask_view *view, const tp_mask_node *node) {
    return node->a >= 0 ? node->a : tp__mask_index(view, view->tensors->prefix_lens, view->seq);
}

int tp__mask_prefix_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                            int64_t key) {
    (void)head, (void)row;
    return tp__mask_k_pos(view, key) < length(view, node);
}

tp__interval tp__mask_prefix_reach(tp__mask_view *view, const tp_mask_node *node, int64_t row) {
    (void)row;
    return (tp__interval){INT64_MIN, length(view, node)};
}

void tp__mask_prefix_ends(const tp_mask_node *node, int64_t q_pos, tp__ends *ends) {
    (void)q_pos;
    tp__ends_fixed(ends, node->a);
}
