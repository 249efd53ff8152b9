/* SPDX-License-Identifier: Apache-2.0 */
#include "qualify/journal_text.h"

#include <stdio.h>
#include <string.h>

int journal_is_one(const char *text, size_t size) {
    size_t max = sizeof JOURNAL_MARK - 1;
    return !memcmp(text, JOURNAL_MARK, size < max ? size : max);
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void add_difference(char *list, size_t size, const char *key, const json_t *theirs, const json_t *ours) {
    size_t used = strlen(list);
    const char *a = text_of(theirs, key), *b = text_of(ours, key);
    if (!strcmp(a, b)) return;
    snprintf(list + used, size - used, "%s%s: journal has %.100s, here %.100s", used ? "; " : "", key, *a ? a : "none",
             *b ? b : "none");
}

/* The second line: what the cells were made with. */
static int check_terms(const char *line, size_t length, const char *name, const json_t *terms, char reason[LINES_REASON]) {
    json_error_t broken;
    char list[640] = "";
    const char *key;
    json_t *unused, *theirs = json_loadb(line, length, JSON_REJECT_DUPLICATES, &broken);
    if (!json_is_object(theirs)) {
        json_decref(theirs);
        return line_wrong(reason, "%.200s:2: it must be an object of JSON: what the cells were made with", name);
    }
    json_object_foreach((json_t *)(uintptr_t)terms, key, unused) add_difference(list, sizeof list, key, theirs, terms);
    json_object_foreach(theirs, key, unused)
        if (!json_object_get(terms, key)) add_difference(list, sizeof list, key, theirs, terms);
    json_decref(theirs);
    return list[0] && line_wrong(reason, "%.200s: its cells were made otherwise: %s. Run as then to resume, or without "
                                         "--resume to begin anew", name, list);
}

int journal_read(const char *text, size_t size, const char *name, const json_t *terms,
                 void (*one)(void *user, const tp_cell *cell), void *user, size_t *kept, char reason[LINES_REASON]) {
    size_t first = sizeof JOURNAL_FIRST - 1, at = 0;
    *kept = 0;
    if (!journal_is_one(text, size))
        return line_wrong(reason, "%.200s:1: no journal: it must begin with '%s'", name, JOURNAL_MARK);
    if (!memchr(text, '\n', size)) return 0; /* killed before anything was written */
    if (size < first || memcmp(text, JOURNAL_FIRST, first))
        return line_wrong(reason, "%.200s:1: the journal of another version of this tool: run without --resume to begin anew",
                          name);
    for (int line = 1; at < size; line++) {
        const char *end = memchr(text + at, '\n', size - at);
        tp_error error = TP_ERROR_INIT;
        tp_cell *cell;
        if (!end) break;
        size_t length = (size_t)(end - text) - at;
        if (line == 2 && check_terms(text + at, length, name, terms, reason)) return 1;
        if (line > 2) {
            if (tp_cell_parse(text + at, length, name, line, &cell, &error) != TP_OK)
                return line_wrong(reason, "%s", error.text);
            one(user, cell);
            tp_cell_destroy(cell);
        }
        at += length + 1;
        if (line > 1) *kept = at; /* a first line alone says nothing */
    }
    return 0;
}
