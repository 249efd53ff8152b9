/* SPDX-License-Identifier: Apache-2.0 */
/* Which revisions a lock keeps: the place of a new one, those that go for it, one that is dropped, those of another lock. */
#include <string.h>

#include "lock.h"
#include "control.h"

void tp__lock_name(tp__page *page, const json_t *entry) {
    tp_lock_revision head = tp__lock_head(entry);
    char config[13] = "";
    strncat(config, head.config_hash, 12);
    if (page->used) tp__page_put(page, ", ");
    tp__page_put(page, head.model);
    tp__page_put(page, " ");
    tp__page_put(page, config);
    if (strcmp(head.cache, "plain")) {
        tp__page_put(page, " cache ");
        tp__page_put(page, head.cache);
    }
}

static int is_same_model(const tp_lock_revision *a, const tp_lock_revision *b) {
    return !strcmp(a->model, b->model) && tp__lock_same_engine(a, b);
}

size_t tp__lock_find(json_t *revisions, const tp_lock_revision *head) {
    json_t *entry;
    size_t i;
    json_array_foreach(revisions, i, entry) {
        tp_lock_revision one = tp__lock_head(entry);
        if (is_same_model(&one, head) && !strcmp(one.config_hash, head->config_hash)) break;
    }
    return i;
}

/* Behind the last one of its model and engine, or at the end. A revision that is written again is the last one again. */
static size_t place_of(json_t *revisions, const tp_lock_revision *head) {
    size_t at = json_array_size(revisions);
    while (at > 0) {
        tp_lock_revision one = tp__lock_head(json_array_get(revisions, at - 1));
        if (is_same_model(&one, head)) return at;
        at--;
    }
    return json_array_size(revisions);
}

static int count_of(json_t *revisions, const tp_lock_revision *head) {
    json_t *entry;
    size_t i;
    int count = 0;
    json_array_foreach(revisions, i, entry) {
        tp_lock_revision one = tp__lock_head(entry);
        count += is_same_model(&one, head);
    }
    return count;
}

json_t *tp__lock_placed(json_t *revisions, json_t *entry, int keep, tp__page *dropped) {
    tp_lock_revision head = tp__lock_head(entry);
    size_t old = tp__lock_find(revisions, &head), place = place_of(revisions, &head), i;
    int known = old < json_array_size(revisions), more = count_of(revisions, &head) - known + 1 - keep;
    json_t *list = json_array(), *one;
    int failed = !list;
    json_array_foreach(revisions, i, one) {
        tp_lock_revision other = tp__lock_head(one);
        if (i == place) failed = failed || json_array_append(list, entry);
        if (i == old) continue;
        if (more > 0 && is_same_model(&other, &head)) {
            tp__lock_name(dropped, one);
            more--;
        } else {
            failed = failed || json_array_append(list, one);
        }
    }
    if (place == json_array_size(revisions)) failed = failed || json_array_append(list, entry);
    if (!failed && !dropped->failed) return list;
    json_decref(list);
    return NULL;
}

static json_t *with_history(json_t *history, const tp_lock_history *past) {
    json_t *record = tp__record_make(tp__history_fields, past, 0), *list = json_array(), *one;
    size_t i;
    int failed = !record || !list;
    json_array_foreach(history, i, one) failed = failed || json_array_append(list, one);
    failed = failed || json_array_append(list, record);
    json_decref(record);
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

static tp_status no_memory(tp_error *error) {
    return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a lock");
}

void tp__lock_shorten(tp__page *page, size_t max) {
    if (page->failed || page->used <= max) return;
    size_t end = max - 4;
    while (end && (page->text[end] & 0xC0) == 0x80) end--;
    strcpy(page->text + end, " ...");
    page->used = end + 4;
}

tp_status tp__lock_commit(tp_lock *lock, json_t *revisions, const tp_lock_history *past, tp_error *error) {
    json_t *history = with_history(lock->history, past);
    json_t *half = tp__json_with(lock->root, "revisions", revisions), *root = tp__json_with(half, "history", history);
    json_decref(half);
    return root ? tp__lock_take(lock, root, error) : no_memory(error);
}

tp_status tp_lock_drop(tp_lock *lock, int64_t revision, const char *date, const char *reason, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp__page dropped = {0};
    json_t *list, *entry;
    size_t i;
    if (!lock || revision < 0 || revision >= (int64_t)json_array_size(lock->revisions))
        return tp__proof_fail(error, TP_INVALID, "revision is %lld: the lock has %zu", (long long)revision,
                              lock ? json_array_size(lock->revisions) : (size_t)0);
    TP_TRY(tp__lock_when_check(date, reason, error));
    list = json_array();
    int failed = !list;
    json_array_foreach(lock->revisions, i, entry) {
        if (i == (size_t)revision)
            tp__lock_name(&dropped, entry);
        else
            failed = failed || json_array_append(list, entry);
    }
    tp__lock_shorten(&dropped, 1023);
    tp_lock_revision head = tp__lock_head(json_array_get(lock->revisions, (size_t)revision));
    tp_lock_history past = {sizeof past, 0,     date, head.engine, head.device, head.isa, "", "", tp__page_text(&dropped),
                            "dropped",   reason};
    if (failed || dropped.failed) {
        json_decref(list);
        tp__page_close(&dropped);
        return no_memory(error);
    }
    tp_status status = tp__lock_commit(lock, list, &past, error);
    tp__page_close(&dropped);
    return status;
}

/* ---- merge ---- */

static int has(json_t *list, const json_t *wanted) {
    json_t *one;
    size_t i;
    json_array_foreach(list, i, one) if (json_equal(one, wanted)) return 1;
    return 0;
}

/* All of the first, and of the second what the first has not. */
static json_t *joined(json_t *a, json_t *b) {
    json_t *list = json_array(), *one;
    size_t i;
    int failed = !list;
    json_array_foreach(a, i, one) failed = failed || json_array_append(list, one);
    json_array_foreach(b, i, one) if (!has(a, one)) failed = failed || json_array_append(list, one);
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

/* The list with one entry more, or with its hosts among those of the entry that it equals. Takes the list over. */
static tp_status join_entry(json_t **list, json_t *entry, tp__page *names, tp_error *error) {
    tp_lock_revision head = tp__lock_head(entry);
    size_t at = tp__lock_find(*list, &head);
    json_t *mine = json_array_get(*list, at), *next;
    tp__page unused = {0};
    if (!mine) {
        next = tp__lock_placed(*list, entry, INT32_MAX, &unused);
        if (next) tp__lock_name(names, entry);
    } else if (!json_equal(json_object_get(mine, "versions"), json_object_get(entry, "versions")) ||
               !json_equal(json_object_get(mine, "groups"), json_object_get(entry, "groups"))) {
        return tp__proof_fail(
            error, TP_INVALID, "%.100s %.12s on %.60s %.60s %.60s: both locks have it, with other %s: drop it from one of them",
            head.model, head.config_hash, head.engine, head.device, head.isa,
            json_equal(json_object_get(mine, "versions"), json_object_get(entry, "versions")) ? "cells" : "versions");
    } else {
        json_t *both = tp__json_with(mine, "hosts", joined(json_object_get(mine, "hosts"), json_object_get(entry, "hosts")));
        next = json_copy(*list);
        if (next && (json_array_size(next) != json_array_size(*list) || !both || json_array_set(next, at, both))) {
            json_decref(next);
            next = NULL;
        }
        json_decref(both);
    }
    if (!next) return no_memory(error);
    json_decref(*list);
    *list = next;
    return TP_OK;
}

tp_status tp_lock_merge(tp_lock *lock, const tp_lock *other, const char *date, const char *reason, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp__page names = {0};
    json_t *entry;
    size_t i;
    tp_status status = TP_OK;
    if (!lock || !other) return tp__proof_fail(error, TP_INVALID, "two locks must be given");
    TP_TRY(tp__lock_when_check(date, reason, error));
    json_t *list = json_incref(lock->revisions);
    json_array_foreach(other->revisions, i, entry) if (status == TP_OK) status = join_entry(&list, entry, &names, error);
    if (status == TP_OK && names.failed) status = no_memory(error);
    tp__lock_shorten(&names, 511);
    tp_lock_history past = {sizeof past, 0, date, "", "", "", "", tp__page_text(&names), "", "merged", reason};
    json_t *half = status == TP_OK ? tp__json_with(lock->root, "history", joined(lock->history, other->history)) : NULL;
    json_t *history = half ? with_history(json_object_get(half, "history"), &past) : NULL;
    json_t *middle = tp__json_with(half, "revisions", json_incref(list)), *root = tp__json_with(middle, "history", history);
    json_decref(half);
    json_decref(middle);
    json_decref(list);
    tp__page_close(&names);
    if (status != TP_OK) {
        json_decref(root);
        return status;
    }
    return root ? tp__lock_take(lock, root, error) : no_memory(error);
}
