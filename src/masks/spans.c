/* SPDX-License-Identifier: Apache-2.0 */
/* spans: row and key lie in the same span, by ids, or by a list of [start, end) of positions */
#include "masks/kind.h"

/* The span of the list that holds the position; empty: none does. They ascend and are apart. */
static tp__interval listed(const tp__mask_view *view, int64_t position) {
    const tp_tensors *t = view->tensors;
    int64_t low = tp__mask_index(view, t->span_offsets, view->seq);
    int64_t high = tp__mask_index(view, t->span_offsets, view->seq + 1), end = high;
    while (low < high) { /* the first span that ends behind the position */
        int64_t middle = low + (high - low) / 2;
        if (tp__mask_index(view, t->spans, 2 * middle + 1) <= position)
            low = middle + 1;
        else
            high = middle;
    }
    tp__interval none = {0, 0};
    if (low == end) return none;
    tp__interval span = {tp__mask_index(view, t->spans, 2 * low),
                         tp__mask_index(view, t->spans, 2 * low + 1)};
    return span.lo <= position ? span : none;
}

int tp__mask_spans_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                           int64_t key) {
    (void)node, (void)head;
    if (view->spans.k != NULL) return tp__ids_allowed(view, &view->spans, row, key);
    tp__interval span = listed(view, tp__mask_q_pos(view, row));
    int64_t k_pos = tp__mask_k_pos(view, key);
    return k_pos >= span.lo && k_pos < span.hi;
}

int tp__mask_spans_interval(tp__mask_view *view, const tp_mask_node *node, int64_t row,
                            tp__interval *keys) {
    (void)node;
    if (view->spans.k != NULL) return tp__ids_interval(view, &view->spans, row, keys);
    return tp__mask_keys_at(view, listed(view, tp__mask_q_pos(view, row)), keys);
}

void tp__mask_spans_words(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                          int64_t key, int64_t count, uint64_t *to) {
    (void)node, (void)head;
    if (view->spans.k != NULL)
        tp__ids_words(view, &view->spans, row, key, count, to);
    else
        tp__mask_words_at(view, listed(view, tp__mask_q_pos(view, row)), key, count, to);
}
