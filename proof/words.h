/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a group beside what the core's text form has had from the start: one table prints
 * and reads them. */
#ifndef TP_PROOF_WORDS_H
#define TP_PROOF_WORDS_H

#include "tileproof_proof.h"

/* Appends " softcap=50 sinks" and so on. without: terms of or_of that do not matter for this call.
 */
void tp__words_print(const tp_layer_group *group, uint32_t without, char *text, size_t size);
/* 1: the word was one of these and is stored; 0: it is another; -1: one of these with a bad value.
 */
int tp__words_read(const char *word, tp_layer_group *group);
/* Nine digits, with a point in every locale. */
void tp__print_real(double value, char text[32]);

#endif
