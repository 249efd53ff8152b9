/* SPDX-License-Identifier: Apache-2.0 */
/* documents: row and key have the same id, which is not negative */
#include "masks/kind.h"

int tp__mask_documents_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                               int64_t key) {
    (void)node, (void)head;
    return tp__ids_allowed(view, &view->documents, row, key);
}

int tp__mask_documents_interval(tp__mask_view *view, const tp_mask_node *node, int64_t row,
                                tp__interval *keys) {
    (void)node;
    return tp__ids_interval(view, &view->documents, row, keys);
}

void tp__mask_documents_words(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                              int64_t key, int64_t count, uint64_t *to) {
    (void)node, (void)head;
    tp__ids_words(view, &view->documents, row, key, count, to);
}
