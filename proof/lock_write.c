/* SPDX-License-Identifier: Apache-2.0 */
/* A lock as text that gives small diffs: what holds no other list or object stands on one line. */
#include "lock.h"
#include "control.h"

static void put_line(tp__page *page, int depth) {
    tp__page_put(page, "\n");
    for (int i = 0; i < depth; i++) tp__page_put(page, " ");
}

static void put_flat(tp__page *page, json_t *value) {
    tp__page_json(page, value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
}

static int is_flat(json_t *value) {
    const char *key;
    json_t *entry;
    size_t i;
    if (json_is_object(value)) json_object_foreach(value, key, entry) {
            if (json_is_object(entry) || json_is_array(entry)) return 0;
        }
    if (json_is_array(value)) json_array_foreach(value, i, entry) {
            if (json_is_object(entry) || json_is_array(entry)) return 0;
        }
    return 1;
}

static void put_value(tp__page *w, json_t *value, int depth) {
    const char *key, *joint = "";
    json_t *entry;
    size_t i;
    if (is_flat(value)) {
        put_flat(w, value);
    } else if (json_is_array(value)) {
        tp__page_put(w, "[");
        json_array_foreach(value, i, entry) {
            tp__page_put(w, joint);
            put_line(w, depth + 1);
            put_value(w, entry, depth + 1);
            joint = ",";
        }
        put_line(w, depth);
        tp__page_put(w, "]");
    } else {
        tp__page_put(w, "{");
        json_object_foreach(value, key, entry) {
            json_t *name = json_string(key);
            tp__page_put(w, joint);
            put_line(w, depth + 1);
            put_flat(w, name);
            tp__page_put(w, ": ");
            put_value(w, entry, depth + 1);
            json_decref(name);
            joint = ",";
        }
        put_line(w, depth);
        tp__page_put(w, "}");
    }
}

tp_status tp_lock_write(const tp_lock *lock, tp_write write, void *cookie) {
    TP__IN_DEFAULT_FENV;
    tp__page page = {0};
    char sum[65];
    if (!lock || !write) return TP_INVALID;
    json_t *root = tp__lock_checksum(lock->root, sum) ? NULL : tp__json_with(lock->root, "checksum", json_string(sum));
    if (!root) return TP_NO_MEMORY;
    put_value(&page, root, 0);
    tp__page_put(&page, "\n");
    json_decref(root);
    return tp__page_give(&page, write, cookie);
}
