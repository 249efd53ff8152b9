/* SPDX-License-Identifier: Apache-2.0 */
#include "telemetry/emit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void put(tp__emit *e, const char *bytes, size_t size) {
    if (!e->failed && size > 0) e->failed = e->write(e->cookie, bytes, size) != 0;
}

void tp__emit_text(tp__emit *e, const char *format, ...) {
    char line[768];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (n > 0) put(e, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

void tp__emit_head(tp__emit *e, const char *name, const char *type, const char *help) {
    tp__emit_text(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Inside quotes: \ " and newline have an escape; other bytes stand for themselves. */
void tp__emit_label(tp__emit *e, const char *name, const char *value) {
    tp__emit_text(e, "%s%s=\"", e->comma ? "," : "", name);
    e->comma = 1;
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            tp__emit_text(e, "\\n");
        else
            tp__emit_text(e, *value == '\\' || *value == '"' ? "\\%c" : "%c", *value);
    }
    tp__emit_text(e, "\"");
}

static void put_string(tp__emit *e, const char *text) {
    put(e, "\"", 1);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            tp__emit_text(e, "\\%c", c);
        else if (c < 0x20)
            tp__emit_text(e, "\\u%04x", c);
        else
            put(e, text, 1);
    }
    put(e, "\"", 1);
}

static void begin(tp__emit *e, const char *key) {
    if (e->comma) put(e, ",", 1);
    e->comma = 1;
    if (key == NULL) return;
    put_string(e, key);
    put(e, ":", 1);
}

void tp__json_open(tp__emit *e, const char *key, char bracket) {
    begin(e, key);
    put(e, &bracket, 1);
    e->comma = 0;
}

void tp__json_close(tp__emit *e, char bracket) {
    put(e, &bracket, 1);
    e->comma = 1;
}

void tp__json_int(tp__emit *e, const char *key, int64_t value) {
    begin(e, key);
    tp__emit_text(e, "%lld", (long long)value);
}

void tp__json_number(tp__emit *e, const char *key, double value) {
    begin(e, key);
    tp__emit_text(e, "%.17g", value);
}

void tp__json_string(tp__emit *e, const char *key, const char *value) {
    begin(e, key);
    put_string(e, value);
}

void tp__json_bool(tp__emit *e, const char *key, int value) {
    begin(e, key);
    tp__emit_text(e, value ? "true" : "false");
}
