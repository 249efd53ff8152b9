/* SPDX-License-Identifier: Apache-2.0 */
/* Files of one JSON object a line: fields by table, and complaints that name file, line, field and rule. */
#ifndef TILEPROOF_CLI_TOOL_LINES_H
#define TILEPROOF_CLI_TOOL_LINES_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum line_kind {
    LINE_TEXT,  /* const char *, which lives as long as the object: 1..max printable characters */
    LINE_WHOLE, /* int64_t in min..max */
    LINE_REAL,  /* double in min..max */
    LINE_FLAG,  /* int: true or false */
    LINE_ARRAY  /* const json_t * */
};

/* Where a line's value goes. Other keys of the object are left alone. */
struct line_field {
    const char *name;
    enum line_kind kind;
    size_t offset;
    int64_t min, max;
    int optional; /* when it is missing the record keeps what it held */
};

#define LINES_MAX_BYTES (256u << 20)
#define LINES_MAX_LINE  (1u << 20)
#define LINES_REASON    1024

/* What is wrong with a field: "field 'x' is 3: it must be ...". Nonzero: reason holds it. */
int line_wrong(char reason[LINES_REASON], const char *format, ...) __attribute__((format(printf, 2, 3)));
int line_fields(const struct line_field *fields, int count, const json_t *object, void *record,
                char reason[LINES_REASON]);

/* One object: nonzero, with a reason, stops. A function that keeps the object takes a reference. */
typedef int (*line_function)(void *user, json_t *object, int line, char reason[LINES_REASON]);
/* One line, which is an object. Nonzero: reason says why not, without file and line. */
int line_read(const char *line, size_t length, line_function one, void *user, int number, char reason[LINES_REASON]);
int line_blank(const char *line, size_t length);
/* Every line that is not blank. Nonzero: reason holds "NAME:LINE: ...", also when there is none. */
int lines_read(const char *text, size_t size, const char *name, line_function one, void *user,
               char reason[LINES_REASON]);

#endif
