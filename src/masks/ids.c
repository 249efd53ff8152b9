/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row sees the keys of its own id. Ids usually come as runs of keys that ascend, with negative ones
 * between them: then a row sees one interval, found by walking on from the last row's. Otherwise ids are
 * compared key by key.
 */
#include "masks/kind.h"

static int64_t id_of_key(const tp__mask_view *view, const tp__mask_ids *ids, int64_t key) {
    return tp__mask_index(view, ids->k, view->kv_token + key);
}

static int64_t find_id(const tp__mask_view *view, const tp__mask_ids *ids, int64_t row) {
    if (ids->q != NULL) return tp__mask_index(view, ids->q, view->q_token + row);
    int64_t key = tp__mask_key_at(view, tp__mask_q_pos(view, row));
    return key >= 0 ? id_of_key(view, ids, key) : -1;
}

/* Kept, for a row is asked for once for each key, and finding it may take a walk over all of them. */
static int64_t id_of_row(const tp__mask_view *view, tp__mask_ids *ids, int64_t row) {
    if (ids->asked != row + 1) {
        ids->row_id = find_id(view, ids, row);
        ids->asked = row + 1;
    }
    return ids->row_id;
}

int tp__ids_allowed(tp__mask_view *view, tp__mask_ids *ids, int64_t row, int64_t key) {
    int64_t id = id_of_row(view, ids, row);
    return id >= 0 && id == id_of_key(view, ids, key);
}

void tp__ids_look(tp__mask_view *view, tp__mask_ids *ids) {
    int64_t last = -1, before = -1; /* the greatest id so far, the key before's */
    ids->runs = 0;
    ids->id = -1;
    ids->at = (tp__interval){0, 0};
    if (ids->k == NULL) return;
    for (int64_t key = 0; key < view->kv_len; key++) {
        int64_t id = id_of_key(view, ids, key);
        if (id >= 0 && id != before && id <= last) return;
        if (id > last) last = id;
        before = id;
    }
    ids->runs = 1;
}

static void find_run(tp__mask_view *view, tp__mask_ids *ids, int64_t id) {
    int64_t key = id > ids->id ? ids->at.hi : 0;
    while (key < view->kv_len && (id_of_key(view, ids, key) < 0 || id_of_key(view, ids, key) < id))
        key++;
    ids->id = id;
    ids->at.lo = key;
    while (key < view->kv_len && id_of_key(view, ids, key) == id) key++;
    ids->at.hi = key;
}

int tp__ids_interval(tp__mask_view *view, tp__mask_ids *ids, int64_t row, tp__interval *keys) {
    *keys = (tp__interval){0, view->kv_len};
    if (!ids->runs) return 0;
    int64_t id = id_of_row(view, ids, row);
    if (id >= 0 && id != ids->id) find_run(view, ids, id);
    *keys = id >= 0 ? ids->at : (tp__interval){0, 0};
    return 1;
}

void tp__ids_words(tp__mask_view *view, tp__mask_ids *ids, int64_t row, int64_t key, int64_t count,
                   uint64_t *words) {
    int64_t id = id_of_row(view, ids, row);
    if (id < 0) return;
    for (int64_t i = 0; i < count; i++)
        words[i / 64] |= (uint64_t)(id_of_key(view, ids, key + i) == id) << (i % 64);
}
