/* SPDX-License-Identifier: Apache-2.0 */
/* Masks in the text form: words that compose by one formula, or a tree in postfix order. */
#ifndef TP_PROBLEM_MASK_TEXT_H
#define TP_PROBLEM_MASK_TEXT_H

#include "masks/mask.h"
#include "problem/text_words.h"

/* Fills in the tree of these words; 0 when it is too large. */
int tp__mask_compose(tp_problem *problem, const tp__mask_list *list);
/* Prints the tree, each word behind a blank; returns the characters written. */
size_t tp__mask_print(const tp_problem *problem, char *text, size_t size);
/* The name of each word, NULL where there is none, and how many numbers it takes; 0 ends the list. */
int tp__mask_word_at(int index, const char **name, int *values);
/* Is the text a mask's word, with or without values? */
int tp__mask_word_starts(const char *word, const char *end);

tp_status tp__take_mask(tp__words *w);
tp_status tp__take_mask_tree(tp__words *w);

#endif
