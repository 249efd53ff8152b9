/* SPDX-License-Identifier: Apache-2.0 */
/* chunk(a): floor(k_pos / a) == floor(q_pos / a) */
#include "masks/kind.h"

static tp_status check(const tp_mask_node *node, tp_error *error) {
    return tp__mask_takes_one(node, "chunk", 1, error);
}

/* Towards minus infinity, also below 0. */
static int64_t floor_of(int64_t position, int64_t step) {
    return position / step - (position % step < 0);
}

static int allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                   int64_t key) {
    (void)head;
    return floor_of(tp__mask_k_pos(view, key), node->a) ==
           floor_of(tp__mask_q_pos(view, row), node->a);
}

static tp__interval reach(tp__mask_view *view, const tp_mask_node *node, int64_t row) {
    int64_t start = floor_of(tp__mask_q_pos(view, row), node->a) * node->a;
    return (tp__interval){start, start + node->a};
}

const tp__mask_kind tp__mask_chunk = {
    .kind = TP_MASK_CHUNK, .name = "chunk", .check = check, .allowed = allowed, .reach = reach};
