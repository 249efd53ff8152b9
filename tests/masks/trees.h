/* SPDX-License-Identifier: Apache-2.0 */
/* Mask kinds alone and joined, as words of a problem, with data by a seed. */
#ifndef TP_TESTS_MASKS_TREES_H
#define TP_TESTS_MASKS_TREES_H

#include <stdio.h>
#include <string.h>

#include "harness/mask_words.h"
#include "support/call.h"

/* Every word of the library's table of kinds, and two that move positions; which kind is it? */
static inline int kind_at(int index, char text[40]) {
    static const char *const more[] = {"positions", "top-left"};
    struct mask_word word;
    int words = 0;
    while (mask_word_at(words, &word)) words++;
    if (index >= words + COUNT(more)) return 0;
    if (index >= words) {
        snprintf(text, 40, "%s", more[index - words]);
        return index;
    }
    mask_word_at(index, &word);
    snprintf(text, 40, "%s", word.text);
    return -word.info->kind;
}

static inline void each_tree(void (*check)(const char *words, uint64_t seed)) {
    static const char *const trees[] = {"mask=causal,first:9,or", "mask=bits,causal,or,window:30:4,and",
                                        "mask=window:5:5,first:3,or,documents,spans,or,and",
                                        "mask=first:2,chunk:16,or,window:0:0,or,prefix:60,and",
                                        "causal window=4,0 spans documents", "window=4,0 first=2 causal"};
    char words[128], one[40], other[40];
    int kind, second;
    for (int i = 0; (kind = kind_at(i, one)) != 0; i++)
        for (int k = i; (second = kind_at(k, other)) != 0; k++) {
            if (k > i && kind == second) continue; /* two words for one kind */
            snprintf(words, sizeof words, "%s %s", one, k > i ? other : "");
            check(words, (uint64_t)(i + k));
        }
    for (int i = 0; i < COUNT(trees); i++)
        for (uint64_t seed = 0; seed < 3; seed++) check(trees[i], seed);
}

#endif
