/* SPDX-License-Identifier: Apache-2.0 */
/* The words of the library's table of mask kinds, one by one. */
#ifndef TILEPROOF_HARNESS_MASK_WORDS_H
#define TILEPROOF_HARNESS_MASK_WORDS_H

#include "tileproof.h"

struct mask_word {
    const tp_mask_info *info;
    char name[24]; /* "window" */
    char text[40]; /* with the numbers of its example: "window=19,5" */
    int again;     /* the word before has the same name, with or without numbers */
};

/* The word of this index; 0 behind the last. */
int mask_word_at(int index, struct mask_word *word);
/* The kind of a mask node, or NULL. */
const tp_mask_info *mask_kind(int32_t kind);
/* Has the tree of the problem a leaf of this kind? */
int mask_has(const tp_problem *problem, int32_t kind);
/* Of a kind with one of these traits (tp_mask_trait)? */
int mask_has_trait(const tp_problem *problem, uint32_t traits);

#endif
