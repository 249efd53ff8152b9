/* SPDX-License-Identifier: Apache-2.0 */
/* The words of two problem texts, compared by what they say: "head_dim 128 -> 160". By text, because a problem that is refused
   may be one that the core does not read. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "lock_diff.h"

enum { MAX_WORDS = 64, MAX_TEXT = 512 };

typedef struct word {
    char name[64], value[128];
} word;

static int is_dtype(const char *text) {
    size_t length = strcspn(text, ":-");
    for (int i = TP_F32; i <= TP_I4; i++) {
        const char *name = tp_dtype_name((tp_dtype)i);
        if (strlen(name) == length && !memcmp(name, text, length)) return 1;
    }
    return 0;
}

/* 0: a length or the kind of call, which every cell has of its own. */
static int read_word(const char *text, word *to) {
    static const char *const plain[] = {"prefill", "decode"};
    size_t equals = strcspn(text, "=");
    const char *name = text, *value = "yes";
    char begin[64];
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(text, plain[i])) return 0;
    int numbered = isdigit((unsigned char)text[1]);
    if ((numbered && strchr("bqk", text[0])) || !strncmp(text, "seqs=", 5)) return 0;
    if (numbered && text[0] == 'h')
        name = "heads", value = text + 1;
    else if (numbered && text[0] == 'd')
        name = "head_dim", value = text + 1;
    else if (is_dtype(text))
        name = "dtype", value = text;
    else if (text[equals] && equals < sizeof begin) {
        memcpy(begin, text, equals);
        begin[equals] = 0;
        name = begin, value = text + equals + 1;
    }
    snprintf(to->name, sizeof to->name, "%.63s", name);
    snprintf(to->value, sizeof to->value, "%.127s", value);
    return 1;
}

static int read_words(const char *text, word *words) {
    char copy[MAX_TEXT], *state;
    int count = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = strtok_r(copy, " ", &state); at && count < MAX_WORDS; at = strtok_r(NULL, " ", &state))
        count += read_word(at, &words[count]);
    return count;
}

static const word *find(const word *words, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(words[i].name, name)) return &words[i];
    return NULL;
}

void tp__change_words(tp__changes *c, const char *from, const char *to) {
    word a[MAX_WORDS], b[MAX_WORDS];
    int a_count = read_words(from, a), b_count = read_words(to, b);
    for (int i = 0; i < a_count; i++) {
        const word *now = find(b, b_count, a[i].name);
        tp__change(c, a[i].name, a[i].value, now ? now->value : "none");
    }
    for (int i = 0; i < b_count; i++)
        if (!find(a, a_count, b[i].name)) tp__change(c, b[i].name, "none", b[i].value);
}
