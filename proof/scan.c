/* SPDX-License-Identifier: Apache-2.0 */
#include "scan.h"

#include <string.h>

typedef struct scanner {
    const char *at, *end;
    int line;
} scanner;

/* Past a string whose opening quote is at hand; its bytes without quotes are *start and the result.
 */
static size_t skip_string(scanner *s, const char **start) {
    *start = ++s->at;
    while (s->at < s->end && *s->at != '"') {
        if (*s->at == '\n') s->line++;
        s->at += *s->at == '\\' && s->at + 1 < s->end ? 2 : 1;
    }
    size_t size = (size_t)(s->at - *start);
    if (s->at < s->end) s->at++;
    return size;
}

static int next_is_colon(const scanner *s) {
    const char *at = s->at;
    while (at < s->end && strchr(" \t\r\n", *at) && *at) at++;
    return at < s->end && *at == ':';
}

/* Follows the path: wanted keys at depth 1, 2, ... each inside the value of the one before. */
int tp__scan_line(const char *text, size_t size, const char *path) {
    scanner s = {text, text + size, 1};
    int depth = 0, found = 0;
    while (s.at < s.end) {
        const char *start, *dot = strchr(path, '.');
        size_t wanted = dot ? (size_t)(dot - path) : strlen(path);
        char c = *s.at;
        if (c == '"') {
            int line = s.line;
            size_t length = skip_string(&s, &start);
            if (depth != found + 1 || length != wanted || memcmp(start, path, wanted) != 0 ||
                !next_is_colon(&s))
                continue;
            if (!dot) return line;
            path = dot + 1;
            found++;
            continue;
        }
        if (c == '\n') s.line++;
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') {
            if (--depth <= found && found > 0)
                return 0; /* the value of the last key found has ended */
        }
        s.at++;
    }
    return 0;
}
