/* SPDX-License-Identifier: Apache-2.0 */
/* documents: row and key have the same id, which is not negative */
#include "masks/kind.h"

static tp_status check(const tp_mask_node *node, tp_error *error) {
    return tp__mask_takes_none(node, "documents", error);
}

static int allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                   int64_t key) {
    (void)node, (void)head;
    return tp__ids_allowed(view, &view->documents, row, key);
}

static int interval(tp__mask_view *view, const tp_mask_node *node, int64_t row, tp__interval *keys) {
    (void)node;
    return tp__ids_interval(view, &view->documents, row, keys);
}

static void words(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row, int64_t key,
                  int64_t count, uint64_t *to) {
    (void)node, (void)head;
    tp__ids_words(view, &view->documents, row, key, count, to);
}

const tp__mask_kind tp__mask_documents = {.kind = TP_MASK_DOCUMENTS, .name = "documents",
                                          .data = tp__mask_always_data, .check = check,
                                          .allowed = allowed, .interval = interval, .words = words};
