/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

typedef struct reader {
    const char *at, *end, *line_start;
    int line, depth, max;
    char *token; /* a token without escapes, with its 0 */
    size_t size;
    tp__json_error *error;
} reader;

static json_t *read_value(reader *r);

static json_t *wrong(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static json_t *wrong(reader *r, const char *format, ...) {
    va_list arguments;
    *r->error = (tp__json_error){TP_INVALID, r->line, (int)(r->at - r->line_start) + 1, 0, ""};
    va_start(arguments, format);
    vsnprintf(r->error->text, sizeof r->error->text, format, arguments);
    va_end(arguments);
    return NULL;
}

static json_t *beyond(reader *r, json_t *value) {
    r->error->beyond = 1;
    return value;
}

static json_t *no_memory(reader *r) {
    *r->error = (tp__json_error){TP_NO_MEMORY, r->line, 1, 0, "out of memory"};
    return NULL;
}

/* The byte at hand; 0 at the end, where a byte of 0 is refused like any other that begins nothing. */
static char peek(const reader *r) { return r->at < r->end ? *r->at : 0; }

static char skip_blanks(reader *r) {
    for (; r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n'); r->at++)
        if (*r->at == '\n') {
            r->line++;
            r->line_start = r->at + 1;
        }
    return peek(r);
}

static int ensure(reader *r, size_t size) {
    if (size <= r->size) return 1;
    char *token = realloc(r->token, size);
    if (!token) return 0;
    r->token = token;
    r->size = size;
    return 1;
}

/* Four hex digits; -1 when they are not. */
static long hex4(const char *at, const char *end) {
    long value = 0;
    if (end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static char *put_code(char *to, long code) {
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *to++ = (char)((0xFF00 >> (more + 1) & 0xFF) | code >> 6 * more);
    while (more-- > 0) *to++ = (char)(0x80 | (code >> 6 * more & 0x3F));
    return to;
}

/* An escape behind its backslash; NULL when there is none such. */
static char *read_escape(reader *r, char *to) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char c = peek(r);
    const char *found = c ? strchr(letters, c) : NULL;
    if (found) {
        r->at++;
        *to = meanings[found - letters];
        return to + 1;
    }
    if (c != 'u') return wrong(r, "no such escape"), NULL;
    long code = hex4(r->at + 1, r->end), low = -1;
    if (code < 0) return wrong(r, "an escape \\u needs four hex digits"), NULL;
    if (!code) return beyond(r, wrong(r, "a text must not hold \\u0000")), NULL;
    if (code >= 0xD800 && code < 0xDC00 && r->end - r->at > 6 && r->at[5] == '\\' && r->at[6] == 'u')
        low = hex4(r->at + 7, r->end);
    int pair = low >= 0xDC00 && low < 0xE000;
    if (code >= 0xD800 && code < 0xE000 && !pair) return beyond(r, wrong(r, "half of a surrogate pair")), NULL;
    if (pair) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    r->at += pair ? 11 : 5;
    return put_code(to, code);
}

/* A string into token; its length, or SIZE_MAX. */
static size_t read_text(reader *r) {
    const char *start = ++r->at, *close = start;
    while (close < r->end && *close != '"') close += *close == '\\' && close + 1 < r->end ? 2 : 1;
    if (!ensure(r, (size_t)(close - start) + 1)) return no_memory(r), SIZE_MAX;
    char *to = r->token;
    while (r->at < r->end && *r->at != '"') {
        if ((unsigned char)*r->at < 0x20) return wrong(r, "a control character in a string"), SIZE_MAX;
        if (*r->at != '\\') {
            *to++ = *r->at++;
            continue;
        }
        r->at++;
        if (!(to = read_escape(r, to))) return SIZE_MAX;
    }
    if (r->at >= r->end) return wrong(r, "a string does not end"), SIZE_MAX;
    size_t length = (size_t)(to - r->token);
    *to = 0;
    if (!tp__is_utf8(r->token, length)) return wrong(r, "a string that is not UTF-8"), SIZE_MAX;
    r->at++;
    return length;
}

static json_t *read_string(reader *r) {
    size_t length = read_text(r);
    if (length == SIZE_MAX) return NULL;
    json_t *value = json_stringn_nocheck(r->token, length);
    return value ? value : no_memory(r);
}

static size_t digits(reader *r) {
    const char *start = r->at;
    while (peek(r) >= '0' && peek(r) <= '9') r->at++;
    return (size_t)(r->at - start);
}

/* It is shown where it begins. */
static json_t *number_wrong(reader *r, const char *start, const char *text) {
    r->at = start;
    return wrong(r, "%s", text);
}

/* The C library reads numbers with the point of the locale. */
static json_t *make_number(reader *r, const char *start, size_t point, int real) {
    const char *dot = localeconv()->decimal_point;
    size_t length = (size_t)(r->at - start), extra = strlen(dot);
    if (!ensure(r, length + extra + 1)) return no_memory(r);
    memcpy(r->token, start, length);
    r->token[length] = 0;
    if (point) {
        memcpy(r->token + point, dot, extra);
        memcpy(r->token + point + extra, start + point + 1, length - point - 1);
        r->token[length + extra - 1] = 0;
    }
    errno = 0;
    json_int_t whole = real ? 0 : strtoll(r->token, NULL, 10);
    double number = real ? strtod(r->token, NULL) : 0;
    if (!real && errno == ERANGE) return beyond(r, number_wrong(r, start, "a whole number must fit 64 bits"));
    if (!isfinite(number)) return beyond(r, number_wrong(r, start, "a number must be below 1.8e308"));
    json_t *value = real ? json_real(number) : json_integer(whole);
    return value ? value : no_memory(r);
}

static json_t *read_number(reader *r) {
    const char *start = r->at;
    size_t point = 0;
    int real = 0;
    if (peek(r) == '-') r->at++;
    int zero = peek(r) == '0';
    size_t count = digits(r);
    if (!count || (zero && count > 1)) return number_wrong(r, start, "no number");
    if (peek(r) == '.') {
        point = (size_t)(r->at++ - start);
        if (!digits(r)) return number_wrong(r, start, "no digits behind the point");
        real = 1;
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        if (peek(r) == '+' || peek(r) == '-') r->at++;
        if (!digits(r)) return number_wrong(r, start, "no digits in the exponent");
        real = 1;
    }
    return make_number(r, start, point, real);
}

static json_t *read_word(reader *r) {
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(r->end - r->at) < length || memcmp(r->at, words[i], length)) continue;
        r->at += length;
        return i == 0 ? json_true() : i == 1 ? json_false() : json_null();
    }
    return r->at < r->end ? wrong(r, "no value begins here") : wrong(r, "the text ends too early");
}

static json_t *read_list(reader *r, json_t *list) {
    r->at++;
    if (skip_blanks(r) != ']')
        for (;; r->at++) {
            json_t *value = read_value(r);
            if (!value) return NULL;
            if (json_array_append_new(list, value)) return no_memory(r);
            char c = skip_blanks(r);
            if (c == ']') break;
            if (c != ',') return wrong(r, "',' or ']' must stand here");
        }
    r->at++;
    return list;
}

static json_t *read_members(reader *r, json_t *object) {
    r->at++;
    if (skip_blanks(r) != '}')
        for (;; r->at++) {
            if (skip_blanks(r) != '"')
                return wrong(r, json_object_size(object) ? "a key must stand here" : "a key must stand here, or '}'");
            const char *start = r->at;
            if (read_text(r) == SIZE_MAX) return NULL;
            char *key = strdup(r->token); /* reading the value writes over the token */
            if (!key) return no_memory(r);
            json_t *value = NULL;
            if (json_object_get(object, key))
                r->at = start, beyond(r, wrong(r, "a key must stand once: \"%.40s\" is a duplicate key", key));
            else if (skip_blanks(r) != ':')
                wrong(r, "':' must stand here");
            else
                r->at++, value = read_value(r);
            int set = value && !json_object_set_new_nocheck(object, key, value);
            free(key);
            if (!set) return value ? no_memory(r) : NULL;
            char c = skip_blanks(r);
            if (c == '}') break;
            if (c != ',') return wrong(r, "',' or '}' must stand here");
        }
    r->at++;
    return object;
}

static json_t *read_value(reader *r) {
    char c = skip_blanks(r);
    if (c == '"') return read_string(r);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    if (c != '{' && c != '[') return read_word(r);
    if (r->depth == r->max) return beyond(r, wrong(r, "nested deeper than %d levels", r->max));
    json_t *made = c == '{' ? json_object() : json_array();
    if (!made) return no_memory(r);
    r->depth++;
    json_t *value = c == '{' ? read_members(r, made) : read_list(r, made);
    r->depth--;
    if (!value) json_decref(made);
    return value;
}

json_t *tp__json_read(const char *text, size_t size, int max, tp__json_error *error) {
    reader r = {.at = text, .end = text + size, .line_start = text, .line = 1, .max = max, .error = error};
    json_t *value = read_value(&r);
    if (value && (skip_blanks(&r), r.at < r.end)) {
        json_decref(value);
        value = wrong(&r, "something stands behind the end");
    }
    if (value && !json_is_object(value)) {
        json_decref(value);
        r.line = 1;
        r.at = r.line_start = text;
        value = beyond(&r, wrong(&r, "it must be an object"));
    }
    free(r.token);
    return value;
}

json_t *tp__json_load(const char *text, size_t size, const char *name, int before, tp_error *error,
                      tp_status *status) {
    tp__json_error reason;
    json_t *root = tp__json_read(text, size, TP_MODEL_MAX_DEPTH, &reason);
    *status = root ? TP_OK : reason.status;
    if (root) return root;
    if (reason.status == TP_NO_MEMORY)
        tp__proof_fail(error, TP_NO_MEMORY, "%s: out of memory", name);
    else if (reason.beyond)
        tp__proof_fail(error, TP_INVALID, "%s:%d: column %d is beyond what is read here: %s", name,
                       before + reason.line, reason.column, reason.text);
    else
        tp__proof_fail(error, TP_INVALID, "%s:%d: not JSON at column %d: %s", name, before + reason.line,
                       reason.column, reason.text);
    return NULL;
}
