/* SPDX-License-Identifier: Apache-2.0 */
/* One sequence as masks see it: its positions and its data. */
#include "masks/kind.h"

int64_t tp__mask_first_position(const tp_problem *problem, int64_t q_len, int64_t kv_len) {
    return problem->align == TP_TOP_LEFT ? 0 : kv_len - q_len;
}

tp__mask_view tp__mask_view_plain(const tp_problem *problem, int64_t q_len, int64_t kv_len) {
    return (tp__mask_view){.problem = problem,
                           .q_len = q_len,
                           .kv_len = kv_len,
                           .first = tp__mask_first_position(problem, q_len, kv_len)};
}

void tp__mask_look(tp__mask_view *view) {
    tp__ids_look(view, &view->documents);
    tp__ids_look(view, &view->spans);
    view->sorted = 1;
    for (int64_t key = 1; view->k_pos != NULL && key < view->kv_len; key++)
        if (tp__mask_k_pos(view, key) < tp__mask_k_pos(view, key - 1)) {
            view->sorted = 0;
            return;
        }
}

/* The first key whose position is not below; positions never fall. */
static int64_t first_at(const tp__mask_view *view, int64_t position) {
    int64_t low = 0, high = view->kv_len;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (tp__mask_k_pos(view, middle) < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t tp__mask_key_at(const tp__mask_view *view, int64_t position) {
    int64_t key = position;
    if (view->k_pos != NULL && view->sorted) key = first_at(view, position);
    if (view->k_pos != NULL && !view->sorted)
        for (key = 0; key < view->kv_len && tp__mask_k_pos(view, key) != position;) key++;
    return key >= 0 && key < view->kv_len && tp__mask_k_pos(view, key) == position ? key : -1;
}

int tp__mask_keys_at(const tp__mask_view *view, tp__interval positions, tp__interval *keys) {
    *keys = (tp__interval){0, view->kv_len};
    if (view->k_pos != NULL && !view->sorted) return 0;
    if (view->k_pos != NULL) positions = (tp__interval){first_at(view, positions.lo), first_at(view, positions.hi)};
    if (positions.lo > keys->lo) keys->lo = positions.lo;
    if (positions.hi < keys->hi) keys->hi = positions.hi;
    return 1;
}

void tp__mask_words_at(const tp__mask_view *view, tp__interval positions, int64_t key, int64_t count,
                       uint64_t *words) {
    for (int64_t i = 0; i < count; i++) {
        int64_t k_pos = tp__mask_k_pos(view, key + i);
        words[i / 64] |= (uint64_t)(k_pos >= positions.lo && k_pos < positions.hi) << (i % 64);
    }
}

void tp__words_fill(uint64_t *words, int64_t lo, int64_t hi, int64_t key, int64_t count) {
    lo = lo > key ? lo - key : 0;
    hi = hi < key + count ? hi - key : count;
    while (lo < hi) {
        int64_t end = (lo / 64 + 1) * 64, n = (end < hi ? end : hi) - lo;
        words[lo / 64] |= (n == 64 ? ~(uint64_t)0 : (((uint64_t)1 << n) - 1)) << (lo % 64);
        lo += n;
    }
}
