/* SPDX-License-Identifier: Apache-2.0 */
/* A lock as text that gives small diffs: what holds no other list or object stands on one line. */
#include <stdlib.h>
#include <string.h>

#include "lock.h"

typedef struct writer {
    tp_write write;
    void *cookie;
    tp_status status;
} writer;

static void put(writer *w, const char *text) {
    if (w->status == TP_OK && w->write(w->cookie, text, strlen(text))) w->status = TP_INVALID;
}

static void put_line(writer *w, int depth) {
    put(w, "\n");
    for (int i = 0; i < depth; i++) put(w, " ");
}

static void put_flat(writer *w, json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    if (!text) w->status = TP_NO_MEMORY;
    if (text) put(w, text);
    free(text);
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

static void put_value(writer *w, json_t *value, int depth) {
    const char *key, *joint = "";
    json_t *entry;
    size_t i;
    if (is_flat(value)) {
        put_flat(w, value);
    } else if (json_is_array(value)) {
        put(w, "[");
        json_array_foreach(value, i, entry) {
            put(w, joint);
            put_line(w, depth + 1);
            put_value(w, entry, depth + 1);
            joint = ",";
        }
        put_line(w, depth);
        put(w, "]");
    } else {
        put(w, "{");
        json_object_foreach(value, key, entry) {
            json_t *name = json_string(key);
            put(w, joint);
            put_line(w, depth + 1);
            put_flat(w, name);
            put(w, ": ");
            put_value(w, entry, depth + 1);
            json_decref(name);
            joint = ",";
        }
        put_line(w, depth);
        put(w, "}");
    }
}

tp_status tp_lock_write(const tp_lock *lock, tp_write write, void *cookie) {
    writer w = {write, cookie, TP_OK};
    char sum[65];
    if (!lock || !write) return TP_INVALID;
    if (tp__lock_checksum(lock->root, sum) ||
        json_object_set_new(lock->root, "checksum", json_string(sum)))
        return TP_NO_MEMORY;
    put_value(&w, lock->root, 0);
    put(&w, "\n");
    return w.status;
}
