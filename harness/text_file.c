/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/text_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "harness/fail.h"

char *text_rest(FILE *file, const char *name, size_t max, size_t *size, tp_error *error) {
    size_t capacity = 1 << 16;
    char *text = malloc(capacity + 1);
    *size = 0;
    while (text && !feof(file) && !ferror(file) && *size <= max) {
        if (*size == capacity) {
            char *more = realloc(text, (capacity *= 2) + 1);
            if (!more) free(text);
            text = more;
            if (!text) break;
        }
        *size += fread(text + *size, 1, capacity - *size, file);
    }
    if (text && !ferror(file) && *size <= max) {
        text[*size] = 0;
        return text;
    }
    if (text && !ferror(file))
        harness_fail(error, TP_INVALID, "%s: it must have at most %zu bytes", name, max);
    else
        harness_fail(error, text ? TP_INVALID : TP_NO_MEMORY, "%s: %s", name, text ? strerror(errno) : "out of memory");
    free(text);
    return NULL;
}

char *text_read(const char *path, size_t max, size_t *size, tp_error *error) {
    int standard = !strcmp(path, "-");
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (!file) {
        harness_fail(error, TP_INVALID, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = text_rest(file, path, max, size, error);
    if (!standard) fclose(file);
    return text;
}

char *text_line(char **at, const char *end, size_t *length) {
    char *line = *at;
    if (line >= end) return NULL;
    char *stop = memchr(line, '\n', (size_t)(end - line));
    *length = (size_t)((stop ? stop : end) - line);
    line[*length] = 0;
    *at = line + *length + 1;
    return line;
}
