/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree: rows are drafts of a speculative decoder, their keys the last q_len ones. A row sees every key
 * before the drafts, its own, and its ancestors': parents[i] is an earlier row, or -1.
 */
#include "masks/kind.h"

static int64_t parent(const tp__mask_view *view, int64_t row) {
    return tp__mask_index(view, view->tensors->parents, view->q_token + row);
}

int tp__mask_tree_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                          int64_t key) {
    int64_t draft = key - (view->kv_len - view->q_len);
    (void)node, (void)head;
    while (row > draft && draft >= 0) row = parent(view, row);
    return draft < 0 || row == draft;
}

int tp__mask_tree_interval(tp__mask_view *view, const tp_mask_node *node, int64_t row,
                           tp__interval *keys) {
    (void)node;
    *keys = (tp__interval){0, view->kv_len - view->q_len + row + 1};
    return 0;
}

void tp__mask_tree_words(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                         int64_t key, int64_t count, uint64_t *to) {
    int64_t past = view->kv_len - view->q_len;
    (void)node, (void)head;
    tp__words_fill(to, 0, past, key, count);
    for (; row >= 0 && past + row >= key; row = parent(view, row))
        tp__words_fill(to, past + row, past + row + 1, key, count);
}
