/* SPDX-License-Identifier: Apache-2.0 */
/* chunk(a): floor(k_pos / a) == floor(q_pos / a) */
#include "masks/kind.h"

/* Towards minus infinity, also below 0. */
static int64_t floor_of(int64_t position, int64_t step) {
    return position / step - (position % step < 0);
}

int tp__mask_chunk_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                           int64_t key) {
    (void)head;
    return floor_of(tp__mask_k_pos(view, key), node->a) ==
           floor_of(tp__mask_q_pos(view, row), node->a);
}

static tp__interval chunk_of(const tp_mask_node *node, int64_t q_pos) {
    int64_t start = floor_of(q_pos, node->a) * node->a;
    return (tp__interval){start, start + node->a};
}

tp__interval tp__mask_chunk_reach(tp__mask_view *view, const tp_mask_node *node, int64_t row) {
    return chunk_of(node, tp__mask_q_pos(view, row));
}

void tp__mask_chunk_ends(const tp_mask_node *node, int64_t q_pos, tp__ends *ends) {
    tp__interval chunk = chunk_of(node, q_pos);
    tp__ends_fixed(ends, chunk.lo);
    tp__ends_fixed(ends, chunk.hi);
    tp__ends_until(ends, chunk.hi);
}
