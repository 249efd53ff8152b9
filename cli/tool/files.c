/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/files.h"

#include <string.h>

#include "cli.h"
#include "harness/places.h"
#include "harness/text_file.h"

char *file_text(const char *path, size_t max, size_t *size) {
    tp_error error = TP_ERROR_INIT;
    char *text = text_read(path, max, size, &error);
    if (!text) complain("%s", error.text);
    return text;
}

static int file_failed(const tp_error *error) {
    complain("%s", error->text);
    return EXIT_FAILED;
}

int file_open(struct atomic_file *file, const char *path) {
    tp_error error = TP_ERROR_INIT;
    return atomic_file_open(file, path, &error) ? file_failed(&error) : EXIT_FINE;
}

int file_close(struct atomic_file *file, int keep) {
    tp_error error = TP_ERROR_INIT;
    return atomic_file_close(file, keep, &error) ? file_failed(&error) : EXIT_FINE;
}

int file_write_json(const char *path, json_t *value, size_t flags) {
    struct atomic_file out;
    if (!value) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    int code = file_open(&out, path);
    if (!code) {
        int bad = json_dumpf(value, out.stream, flags) || fputc('\n', out.stream) == EOF;
        code = file_close(&out, !bad);
        if (bad && !code) complain("%s: it could not be written", path);
        if (bad) code = EXIT_FAILED;
    }
    json_decref(value);
    return code;
}

static int is_file(const struct named_file *file) { return file->path && strcmp(file->path, "-"); }

int file_clash(const struct named_file *written, const struct named_file *other) {
    if (!is_file(written) || !is_file(other) || !place_same(written->path, other->path)) return EXIT_FINE;
    if (other->what[0] == '-')
        complain("%s and %s are one file, %s: give one of them another name", written->what, other->what, written->path);
    else
        complain("%s %s is %s %s: it would be written over; give it another name", written->what, written->path,
                 other->what, other->path);
    return EXIT_USAGE;
}
