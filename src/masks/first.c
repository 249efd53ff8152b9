/* SPDX-License-Identifier: Apache-2.0 */
/* first(a): key < a, by index: the keys that a streaming cache never evicts */
#include "masks/kind.h"

static tp_status check(const tp_mask_node *node, tp_error *error) {
    return tp__mask_takes_one(node, "first", 0, error);
}

static int allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                   int64_t key) {
    (void)view, (void)head, (void)row;
    return key < node->a;
}

static int interval(tp__mask_view *view, const tp_mask_node *node, int64_t row, tp__interval *keys) {
    (void)row;
    *keys = (tp__interval){0, node->a < view->kv_len ? node->a : view->kv_len};
    return 1;
}

const tp__mask_kind tp__mask_first = {
    .kind = TP_MASK_FIRST, .name = "first", .check = check, .allowed = allowed, .interval = interval};
