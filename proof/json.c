/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <stdlib.h>
#include <string.h>

/* How many bytes the character takes; 0: it is none. */
static size_t character(const unsigned char *at, size_t left) {
    static const unsigned min[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    if (size < 2) return size;
    if (size > left) return 0;
    unsigned code = *at & (0x7Fu >> size);
    for (size_t i = 1; i < size; i++) {
        if (at[i] >> 6 != 2) return 0;
        code = code << 6 | (at[i] & 0x3F);
    }
    return code < min[size] || code > 0x10FFFF || code >> 11 == 27 ? 0 : size; /* 27: surrogates */
}

int tp__is_utf8(const char *text, size_t size) {
    for (size_t at = 0, step; at < size; at += step)
        if (!(step = character((const unsigned char *)text + at, size - at))) return 0;
    return 1;
}

json_t *tp__json_with(json_t *object, const char *key, json_t *value) {
    json_t *copy = json_object(), *old;
    const char *name;
    int failed = !object || !copy || !value;
    json_object_foreach(object, name, old) {
        if (!failed && strcmp(name, key)) failed = json_object_set_nocheck(copy, name, old);
        if (!failed && !strcmp(name, key)) failed = json_object_set_nocheck(copy, name, value);
    }
    if (!failed && !json_object_get(object, key)) failed = json_object_set_nocheck(copy, key, value);
    json_decref(value);
    if (!failed) return copy;
    json_decref(copy);
    return NULL;
}

json_t *tp__json_copy(const json_t *value) {
    tp__json_error unused;
    tp__page page = {0};
    tp__page_json(&page, value, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_t *copy = page.failed ? NULL : tp__json_read(page.text, page.used, TP_MODEL_MAX_DEPTH, &unused);
    tp__page_close(&page);
    return copy;
}

/* One byte behind the text is always its 0. */
static int append(const char *text, size_t size, void *cookie) {
    tp__page *page = cookie;
    if (page->failed) return -1;
    if (page->used + size + 1 > page->capacity) {
        size_t capacity = 2 * (page->used + size) + 256;
        char *more = realloc(page->text, capacity);
        if (!more) {
            page->failed = 1;
            return -1;
        }
        page->text = more;
        page->capacity = capacity;
    }
    memcpy(page->text + page->used, text, size);
    page->used += size;
    page->text[page->used] = 0;
    return 0;
}

void tp__page_put(tp__page *page, const char *text) { append(text, strlen(text), page); }

void tp__page_json(tp__page *page, const json_t *value, size_t flags) {
    if (!value || json_dump_callback(value, append, page, flags)) page->failed = 1;
}

const char *tp__page_text(const tp__page *page) { return page->failed || !page->text ? "" : page->text; }

void tp__page_close(tp__page *page) {
    free(page->text);
    *page = (tp__page){0};
}

tp_status tp__page_give(tp__page *page, tp_write write, void *cookie) {
    tp_status status = page->failed ? TP_NO_MEMORY : TP_OK;
    if (status == TP_OK && page->used && write(cookie, page->text, page->used)) status = TP_INVALID;
    tp__page_close(page);
    return status;
}
