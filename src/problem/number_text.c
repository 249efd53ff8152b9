/* SPDX-License-Identifier: Apache-2.0 */
#include "problem/number_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/control.h"

int tp__read_integer(const char **at, const char *end, int64_t *value) {
    const char *c = *at;
    int negative = c < end && *c == '-';
    int64_t sum = 0;
    c += negative;
    const char *digits = c;
    for (; c < end && *c >= '0' && *c <= '9'; c++)
        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_sub_overflow(sum, *c - '0', &sum))
            return 0; /* summed below zero, where int64 reaches one further */
    if (c == digits || (!negative && sum == INT64_MIN)) return 0;
    *value = negative ? sum : -sum;
    *at = c;
    return 1;
}

/* What this thread's locale writes between "0" and "5". */
static void locale_point(char point[8]) {
    char half[16];
    snprintf(half, sizeof half, "%.1f", 0.5);
    size_t size = strlen(half);
    size = size > 2 && size - 2 < 8 ? size - 2 : 0;
    memcpy(point, half + 1, size);
    point[size] = 0;
}

static const char *skip_digits(const char *c, const char *end) {
    while (c < end && *c >= '0' && *c <= '9') c++;
    return c;
}

/* The end of the number's text, or NULL; *point is its '.', or NULL. */
static const char *float_end(const char *c, const char *end, const char **point) {
    *point = NULL;
    if (c < end && *c == '-') c++;
    const char *whole = c;
    c = skip_digits(c, end);
    if (c == whole) return NULL;
    if (c < end && *c == '.') {
        *point = c;
        c = skip_digits(c + 1, end);
        if (c == *point + 1) return NULL;
    }
    if (c < end && *c == 'e') {
        c++;
        if (c < end && (*c == '-' || *c == '+')) c++;
        const char *exponent = c;
        c = skip_digits(c, end);
        if (c == exponent) return NULL;
    }
    return c;
}

int tp__read_float(const char **at, const char *end, float *value) {
    const char *point, *stop = float_end(*at, end, &point);
    char text[80], local[8];
    if (stop == NULL || stop - *at > 64) return 0;
    if (point != NULL) {
        locale_point(local);
        snprintf(text, sizeof text, "%.*s%s%.*s", (int)(point - *at), *at, local,
                 (int)(stop - point - 1), point + 1);
    } else {
        snprintf(text, sizeof text, "%.*s", (int)(stop - *at), *at);
    }
    fenv_t saved = tp__fenv_take();
    *value = strtof(text, NULL);
    tp__fenv_restore(saved);
    *at = stop;
    return 1;
}

void tp__write_float(float value, char text[TP__FLOAT_TEXT]) {
    char local[8];
    fenv_t saved = tp__fenv_take();
    snprintf(text, TP__FLOAT_TEXT, "%.9g", (double)value);
    tp__fenv_restore(saved);
    locale_point(local);
    char *found = local[0] ? strstr(text, local) : NULL;
    if (found == NULL) return;
    *found = '.';
    memmove(found + 1, found + strlen(local), strlen(found + strlen(local)) + 1);
}
