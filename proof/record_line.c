/* SPDX-License-Identifier: Apache-2.0 */
/* On which line a value of a JSON text stands: jansson does not say. The text has parsed. */
#include <stdlib.h>
#include <string.h>

#include "record.h"

typedef struct walker {
    const char *at, *end;
    int line;
} walker;

static void skip_blanks(walker *w) {
    for (; w->at < w->end && strchr(" \t\r\n:,", *w->at) && *w->at; w->at++) w->line += *w->at == '\n';
}

/* Past a string; its bytes are *start and the result. */
static size_t skip_text(walker *w, const char **start) {
    *start = ++w->at;
    while (w->at < w->end && *w->at != '"') w->at += *w->at == '\\' && w->at + 1 < w->end ? 2 : 1;
    size_t size = (size_t)(w->at - *start);
    if (w->at < w->end) w->at++;
    return size;
}

/* Past a value of any kind. */
static void skip_value(walker *w) {
    int depth = 0;
    do {
        const char *start;
        skip_blanks(w);
        if (w->at >= w->end) return;
        char c = *w->at;
        if (c == '"')
            skip_text(w, &start);
        else if (c == '{' || c == '[')
            depth++, w->at++;
        else if (c == '}' || c == ']')
            depth--, w->at++;
        else
            while (w->at < w->end && !strchr(",]} \t\r\n", *w->at)) w->at++;
    } while (depth > 0);
}

/* Steps into the container at hand, to the value that the part names. 0: it has none. */
static int step_into(walker *w, const char *part) {
    skip_blanks(w);
    if (w->at >= w->end || (*w->at != '{' && *w->at != '[')) return 0;
    int list = *w->at++ == '[';
    unsigned long index = 0, wanted = part[0] == '#' ? strtoul(part + 1, NULL, 10) : 0;
    for (;; index++) {
        const char *start = part;
        size_t length = 0;
        skip_blanks(w);
        if (w->at >= w->end || *w->at == '}' || *w->at == ']') return 0;
        if (!list) {
            if (*w->at != '"') return 0;
            length = skip_text(w, &start);
            skip_blanks(w);
        }
        if (list ? part[0] == '#' && index == wanted
                 : length == strlen(part) && !memcmp(start, part, length))
            return 1;
        skip_value(w);
    }
}

int tp__path_line(const tp__file *file, const tp__path *path) {
    walker w = {file->text, file->text + file->size, 1};
    for (int i = 0; i < path->depth; i++)
        if (!step_into(&w, path->part[i])) return 0;
    skip_blanks(&w);
    return w.line;
}
