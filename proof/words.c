/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum form { MARK, FLAG, WHOLE, REAL } form;

static const struct word {
    const char *name;
    form form;
    size_t offset;          /* of the field; MARK has none */
    uint32_t all_of, or_of; /* the term that belongs to it, if any */
} table[] = {
    {"chunk=", WHOLE, offsetof(tp_layer_group, chunk), TP_TERM_CHUNK, 0},
    {"prefix=", WHOLE, offsetof(tp_layer_group, prefix), 0, TP_TERM_PREFIX},
    {"spans", MARK, 0, 0, TP_TERM_SPAN},
    {"first=", WHOLE, offsetof(tp_layer_group, first), 0, TP_TERM_FIRST},
    {"softcap=", REAL, offsetof(tp_layer_group, softcap), 0, 0},
    {"sinks", FLAG, offsetof(tp_layer_group, sinks), 0, 0},
    {"alibi", FLAG, offsetof(tp_layer_group, alibi), 0, 0},
};
enum { WORD_COUNT = sizeof table / sizeof *table };

static int is_set(const struct word *word, const tp_layer_group *group, uint32_t without) {
    const char *field = (const char *)group + word->offset;
    if (word->all_of) return (group->all_of & word->all_of) != 0;
    if (word->or_of) return (group->or_of & ~without & word->or_of) != 0;
    return word->form == REAL ? *(const double *)field != 0 : *(const int32_t *)field != 0;
}

void tp__print_real(double value, char text[32]) {
    snprintf(text, 32, "%.9g", value);
    const char *point = localeconv()->decimal_point;
    char *at = strcmp(point, ".") ? strstr(text, point) : NULL;
    if (!at) return;
    *at = '.';
    memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
}

void tp__words_print(const tp_layer_group *group, uint32_t without, char *text, size_t size) {
    size_t used = strlen(text);
    for (int i = 0; i < WORD_COUNT; i++) {
        const char *field = (const char *)group + table[i].offset;
        char value[32] = "";
        if (!is_set(&table[i], group, without)) continue;
        if (table[i].form == WHOLE)
            snprintf(value, sizeof value, "%lld", (long long)*(const int64_t *)field);
        if (table[i].form == REAL) tp__print_real(*(const double *)field, value);
        if (used >= size) return;
        used += (size_t)snprintf(text + used, size - used, " %s%s", table[i].name, value);
    }
}

/* Digits, a point and an exponent only, so that no locale and no "inf" comes in. */
static int read_real(const char *text, double *value) {
    double number = 0, place = 1;
    int digits = 0;
    for (; *text >= '0' && *text <= '9'; text++, digits++) number = number * 10 + (*text - '0');
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9'; text++, digits++)
            number += (*text - '0') * (place /= 10);
    *value = number;
    return !*text && digits > 0 && digits < 16 && number > 0;
}

static int read_value(const struct word *word, const char *text, tp_layer_group *group) {
    void *field = (char *)group + word->offset;
    char *end;
    errno = 0;
    switch (word->form) {
    case MARK: return !*text;
    case FLAG: *(int32_t *)field = 1; return !*text;
    case REAL: return read_real(text, field);
    case WHOLE: break;
    }
    long long number = *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;
    if (number < 1 || errno || *end || number > (1LL << 40)) return 0;
    *(int64_t *)field = number;
    return 1;
}

int tp__words_read(const char *word, tp_layer_group *group) {
    for (int i = 0; i < WORD_COUNT; i++) {
        size_t size = strlen(table[i].name);
        int valued = table[i].form == WHOLE || table[i].form == REAL;
        if (strncmp(word, table[i].name, size) || (!valued && word[size])) continue;
        int twice = is_set(&table[i], group, 0);
        group->all_of |= table[i].all_of;
        group->or_of |= table[i].or_of;
        return !twice && read_value(&table[i], word + size, group) ? 1 : -1;
    }
    return 0;
}
