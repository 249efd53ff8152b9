/* SPDX-License-Identifier: Apache-2.0 */
/* causal: k_pos <= q_pos */
#include "masks/kind.h"

static int allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                   int64_t key) {
    (void)node, (void)head;
    return tp__mask_k_pos(view, key) <= tp__mask_q_pos(view, row);
}

static tp__interval reach(tp__mask_view *view, const tp_mask_node *node, int64_t row) {
    (void)node;
    return (tp__interval){INT64_MIN, tp__mask_q_pos(view, row) + 1};
}

static tp_status check(const tp_mask_node *node, tp_error *error) {
    return tp__mask_takes_none(node, "causal", error);
}

const tp__mask_kind tp__mask_causal = {
    .kind = TP_MASK_CAUSAL, .name = "causal", .check = check, .allowed = allowed, .reach = reach};
