/* SPDX-License-Identifier: Apache-2.0 */
/* prefix(a): k_pos < a, or with a = -1 k_pos < prefix_lens[sequence] */
#include "masks/kind.h"

static tp_status check(const tp_mask_node *node, tp_error *error) {
    return tp__mask_takes_one(node, "prefix", -1, error);
}

static int data(const tp_mask_node *node) { return node->a < 0; }

static int64_t length(const tp__mask_view *view, const tp_mask_node *node) {
    return node->a >= 0 ? node->a : tp__mask_index(view, view->tensors->prefix_lens, view->seq);
}

static int allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                   int64_t key) {
    (void)head, (void)row;
    return tp__mask_k_pos(view, key) < length(view, node);
}

static tp__interval reach(tp__mask_view *view, const tp_mask_node *node, int64_t row) {
    (void)row;
    return (tp__interval){INT64_MIN, length(view, node)};
}

const tp__mask_kind tp__mask_prefix = {.kind = TP_MASK_PREFIX, .name = "prefix", .data = data,
                                       .check = check, .allowed = allowed, .reach = reach};
