/* SPDX-License-Identifier: Apache-2.0 */
/*
 * callback: the caller's function says so. A run asks it once for each row and key, before any tile, and
 * keeps the answers as bits: from then on only these count, so that a function that changes its mind can do no
 * harm. A view without answers asks.
 */
#include "masks/kind.h"

int tp__mask_callback_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                              int64_t key) {
    (void)node, (void)head;
    if (view->called != NULL) return tp__word_bit(view->called + row * view->called_words, key);
    return view->tensors->callback(view->tensors->callback_user, view->seq, row, key) != 0;
}

int tp__mask_callback_interval(tp__mask_view *view, const tp_mask_node *node, int64_t row,
                               tp__interval *keys) {
    (void)node, (void)row;
    *keys = (tp__interval){0, view->kv_len};
    return 0;
}

void tp__mask_callback_words(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                             int64_t key, int64_t count, uint64_t *to) {
    if (view->called == NULL) {
        for (int64_t i = 0; i < count; i++)
            to[i / 64] |= (uint64_t)tp__mask_callback_allowed(view, node, head, row, key + i) << (i % 64);
        return;
    }
    /* a block that does not start a word does not reach the next one either */
    const uint64_t *from = view->called + row * view->called_words + key / 64;
    for (int64_t i = 0; i < (count + 63) / 64; i++) to[i] = from[i] >> (key % 64);
    if (count % 64 != 0) to[count / 64] &= ~(uint64_t)0 >> (64 - count % 64);
}
