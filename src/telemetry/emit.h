/* SPDX-License-Identifier: Apache-2.0 */
/* Writing text and JSON in pieces. The core has no JSON library; it only ever writes flat objects. */
#ifndef TP_TELEMETRY_EMIT_H
#define TP_TELEMETRY_EMIT_H

#include "tileproof.h"

typedef struct tp__emit {
    tp_write write;
    void *cookie;
    int failed; /* the callback asked to stop */
    int comma;  /* JSON: something stands before in this object or array */
} tp__emit;

void tp__emit_text(tp__emit *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prometheus: the lines above a family's samples; a label, behind a comma where e->comma is set. */
void tp__emit_head(tp__emit *e, const char *name, const char *type, const char *help);
void tp__emit_label(tp__emit *e, const char *name, const char *value);

/* JSON. A key of NULL is an element of an array. */
void tp__json_open(tp__emit *e, const char *key, char bracket);
void tp__json_close(tp__emit *e, char bracket);
void tp__json_int(tp__emit *e, const char *key, int64_t value);
void tp__json_number(tp__emit *e, const char *key, double value);
void tp__json_string(tp__emit *e, const char *key, const char *value);
void tp__json_bool(tp__emit *e, const char *key, int value);

#endif
