/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of a file: JSON objects whose fields a table names, with type, size and place in a struct. A key that
 * the table does not know, one that is missing and one of another type are refused with file, line and field.
 */
#ifndef TP_PROOF_RECORD_H
#define TP_PROOF_RECORD_H

#include "json.h"

typedef struct tp__file {
    const char *text, *name;
    size_t size;
    int line; /* of the text's first line, minus 1 */
    tp_error *error;
} tp__file;

/* Where in the JSON tree: keys, and "#17" for the 17th entry of a list. */
typedef struct tp__path {
    char part[10][64];
    int depth;
} tp__path;
void tp__path_key(tp__path *path, const char *key);
void tp__path_index(tp__path *path, size_t index);
void tp__path_up(tp__path *path);

/* "NAME:LINE: isas.avx2.cells.#3.kernel " and the text. */
tp_status tp__file_fail(const tp__file *file, const tp__path *path, const char *key,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));
/* The line on which the value at the path begins; 0 when it is not there. */
int tp__path_line(const tp__file *file, const tp__path *path);
/* Parses with limits on size and depth. */
tp_status tp__file_load(const tp__file *file, size_t max, json_t **root);

typedef enum tp__field_type { TP__TEXT, TP__INT32, TP__INT64, TP__REAL, TP__PHASE, TP__STATUS, TP__KEPT } tp__field_type;
typedef struct tp__field {
    const char *name;
    tp__field_type type;
    int optional;        /* may be missing, and is not written when empty or 0 */
    int measured;        /* a lock does not keep it */
    size_t offset, size; /* size: of a text at most, with its end */
} tp__field;

/* Can a record be made of it? TP_INVALID, with the field: its text is too long or not UTF-8, or its number is not finite. */
tp_status tp__record_check(const tp__field *fields, const void *from, int measured, tp_error *error);
/* A record of a struct of which one can be made. NULL: out of memory. */
json_t *tp__record_make(const tp__field *fields, const void *from, int measured);
/* Texts point into the object. What is missing stays as it is. */
tp_status tp__record_read(const tp__file *file, tp__path *path, json_t *object,
                          const tp__field *fields, void *to);

extern const tp__field tp__cell_fields[];

#endif
