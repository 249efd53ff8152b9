/* SPDX-License-Identifier: Apache-2.0 */
/* How often each word, pair of words and loop was drawn. The parser's own list of words says what there is to draw. */
#include "check/random.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 96, LOOPS = 4 };

struct cover {
    long count[MAX_WORDS], pair[MAX_WORDS][MAX_WORDS];
    long loop[LOOPS];
    long trials;
};
static const char *const loops[LOOPS] = {"prefill", "decode", "backward", "split"};

/* All words of trials: the table's, then those with an @. */
static const char *word_at(int index) {
    int words = 0;
    while (draw_word(words)) words++;
    return index < words ? draw_word(index) : trait_word(index - words);
}

/* "window=3,0" is window=, "q5" is q, "@gain-4" @gain-N; -1: no word of the table. */
static int find(const char *word, size_t length) {
    for (int i = 0; word_at(i); i++) {
        const char *name = word_at(i);
        size_t size = strlen(name);
        if (name[size - 1] == 'N' && length > size && !strncmp(word, name, size - 1)) return i;
        if (length < size || strncmp(word, name, size)) continue;
        if (length == size || name[size - 1] == '=') return i;
        if (size == 1 && isdigit((unsigned char)word[1])) return i;
        if (word[size] == '=') return i; /* numbers that may be left out */
    }
    return -1;
}

/* Which loops the sequences of a trial go by, where a fused kernel serves it. */
static void add_loops(struct cover *cover, const struct trial *trial) {
    const tp_problem *p = &trial->problem;
    int64_t entries = trial->lengths.count ? trial->lengths.count : 1, group = p->q_heads / p->kv_heads;
    int found[LOOPS] = {0, 0, p->op == TP_BACKWARD, 0};
    for (int64_t i = 0; p->op == TP_FORWARD && p->batch > 0 && i < entries; i++) {
        int64_t rows = trial->lengths.count ? trial->lengths.seq[i].q_len : p->q_len;
        int64_t keys = trial->lengths.count ? trial->lengths.seq[i].kv_len : p->kv_len;
        int64_t merged = (p->sparse_len ? 1 : rows) * group;
        int decode = !p->invariant && merged <= tp_decode_rows((tp_dtype)p->k_dtype);
        if (p->sparse_len) keys = p->sparse_len;
        if (rows) found[decode] = 1;
        if (rows && merged <= 96 && keys > (decode ? TP_DECODE_CHUNK_KEYS : TP_CHUNK_KEYS)) found[3] = 1;
    }
    for (int i = 0; i < LOOPS; i++) cover->loop[i] += found[i];
}

struct cover *cover_new(void) { return calloc(1, sizeof(struct cover)); }
void cover_free(struct cover *cover) { free(cover); }

void cover_add(struct cover *cover, const struct trial *trial) {
    char has[MAX_WORDS] = {0};
    const char *at = trial->text;
    for (size_t length; at += strspn(at, " "), (length = strcspn(at, " ")); at += length) {
        int word = find(at, length);
        if (word >= 0) has[word] = 1;
        for (size_t i = 0, part; word < 0 && i < length; i += part + 1) { /* dtypes: "bf16:i8:i8->f32" */
            part = strcspn(at + i, ":-> ");
            int found = find(at + i, part);
            if (found >= 0) has[found] = 1;
        }
    }
    for (int i = 0; i < MAX_WORDS; i++) {
        if (!has[i]) continue;
        cover->count[i]++;
        for (int k = 0; k < i; k++) cover->pair[k][i] += has[k];
    }
    cover->trials++;
    add_loops(cover, trial);
}

/* Words that the parser lists and the table of draws has not. */
static int print_unknown(void) {
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    int unknown = 0;
    tp_problem_parse("?", &problem, NULL, &error);
    const char *at = strstr(error.text, "words are");
    if (!at) {
        printf("UNKNOWN  the parser lists no words: '%s'\n", error.text);
        return 1;
    }
    at += strlen("words are");
    for (size_t length; at += strspn(at, " "), (length = strcspn(at, " ,")); at += length) { /* a comma ends them */
        if (find(at, length) >= 0) continue;
        printf("UNKNOWN  the parser has the word '%.*s', which is never drawn: add it to the table of cli/check/random_draw.c\n",
               (int)length, at);
        unknown++;
    }
    for (int i = 1; i < 64; i++) { /* dtypes of k that it takes */
        const char *name = tp_dtype_name((tp_dtype)i);
        char text[64];
        snprintf(text, sizeof text, "q1 d32 f32:%s:f32->f32", name);
        if (tp_problem_parse(text, &problem, NULL, &error) != TP_OK || find(name, strlen(name)) >= 0) continue;
        printf("UNKNOWN  the parser has the dtype '%s', which is never drawn: add it to cli/check/random_shapes.c\n", name);
        unknown++;
    }
    return unknown;
}

static void print_counts(const struct cover *cover) {
    size_t column = 0;
    for (int i = 0; word_at(i); i++) {
        char cell[48];
        int size = snprintf(cell, sizeof cell, " %s %ld ", word_at(i), cover->count[i]);
        if (column + (size_t)size > 112 || !column)
            column = (size_t)printf("%s%-7s", column ? "\n" : "", column ? "" : "words") - (column ? 1 : 0);
        column += (size_t)printf("%s", cell);
    }
    printf("\n");
}

static void print_pairs(const struct cover *cover, int verbose) {
    long drawn = 0, all = 0;
    int words = 0;
    while (word_at(words)) words++;
    for (int i = 0; i < words; i++)
        for (int k = 0; k < i; k++, all++) {
            drawn += cover->pair[k][i] > 0;
            if (verbose && !cover->pair[k][i]) printf("never   %s with %s\n", word_at(k), word_at(i));
            if (verbose && cover->pair[k][i]) printf("pair    %s %s %ld\n", word_at(k), word_at(i), cover->pair[k][i]);
        }
    printf("pairs   %ld of %ld pairs of words were drawn together (-v lists them; some exclude each other)\n", drawn, all);
}

int cover_never(const struct cover *cover) {
    int never = 0;
    for (int i = 0; word_at(i); i++) never += cover->count[i] == 0;
    return never;
}

int cover_print(const struct cover *cover, const struct check_kernels *kernels, int verbose) {
    int math = 0;
    print_counts(cover);
    print_pairs(cover, verbose);
    for (int i = 0; i < kernels->count; i++) math |= !strcmp(kernels->selected[i]->strategy, "math");
    printf("loops  ");
    for (int i = 0; i < LOOPS; i++) printf(" %s %ld ", loops[i], cover->loop[i]);
    printf(" math %ld\n", math ? cover->trials - cover->loop[2] : 0);
    printf("never drawn:");
    for (int i = 0; word_at(i); i++)
        if (!cover->count[i]) printf(" %s", word_at(i));
    printf("%s\n", cover_never(cover) ? "" : " none");
    return print_unknown();
}
