/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files: read into memory, or written so that they are there whole or not at all. */
#include "files.h"
#include "whole.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The whole file, or NULL with the reason printed. One byte more than allowed is read, for the
 * parser to refuse. */
static char *read_stream(FILE *file, const char *name, size_t most, size_t *size) {
    size_t room = 1 << 16;
    char *text = malloc(room + 1);
    *size = 0;
    while (text && !feof(file) && !ferror(file) && *size <= most) {
        if (*size == room) {
            char *more = realloc(text, (room *= 2) + 1);
            if (!more) free(text);
            text = more;
            if (!text) break;
        }
        *size += fread(text + *size, 1, room - *size, file);
    }
    if (text && !ferror(file)) {
        text[*size] = 0;
        return text;
    }
    complain("%s: %s", name, text ? strerror(errno) : "out of memory");
    free(text);
    return NULL;
}

char *file_read(const char *path, size_t most, size_t *size) {
    int standard = !strcmp(path, "-");
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (!file) {
        complain("%s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = read_stream(file, path, most, size);
    if (!standard) fclose(file);
    return text;
}

int model_read(const char *path, tp_model **model) {
    tp_error error = TP_ERROR_INIT;
    size_t size;
    char *text = file_read(path, TP_MODEL_MAX_BYTES, &size);
    if (!text) return EXIT_USAGE;
    tp_status status =
        tp_model_parse(text, size, strcmp(path, "-") ? path : "standard input", model, &error);
    free(text);
    return status == TP_OK ? 0 : complain_status(&error);
}

const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int file_replace(const char *path, int (*fill)(FILE *file, const void *cookie), const void *cookie) {
    struct whole whole;
    if (whole_open(&whole, path)) return EXIT_FAILED;
    errno = 0;
    int failed = fill(whole.file, cookie) || fflush(whole.file) || fsync(fileno(whole.file));
    if (failed) complain("%s could not be written: %s", path, errno ? strerror(errno) : "it is incomplete");
    return whole_close(&whole, !failed) || failed ? EXIT_FAILED : EXIT_FINE;
}
