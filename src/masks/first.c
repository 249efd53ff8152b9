/* SPDX-License-Identifier: Apache-2.0 */
/* first(a): key < a, by index: the keys that a streaming cache never evicts */
#include "masks/kind.h"

int tp__mask_first_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                           int64_t key) {
    (void)view, (void)head, (void)row;
    return key < node->a;
}

int tp__mask_first_interval(tp__mask_view *view, const tp_mask_node *node, int64_t row,
                            tp__interval *keys) {
    (void)row;
    *keys = (tp__interval){0, node->a < view->kv_len ? node->a : view->kv_len};
    return 1;
}

void tp__mask_first_ends(const tp_mask_node *node, int64_t q_pos, tp__ends *ends) {
    (void)q_pos;
    tp__ends_fixed(ends, node->a);
}
