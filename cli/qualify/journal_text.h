/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal's text:
 *
 *     tileproof journal 2
 *     {"build":"...","disable":"avx2",...}      what the cells were made with: all that decides one
 *     {"problem":"...",...}                     a line for each finished cell
 *
 * A last line without its end was cut off by a kill and does not count.
 */
#ifndef TILEPROOF_CLI_QUALIFY_JOURNAL_TEXT_H
#define TILEPROOF_CLI_QUALIFY_JOURNAL_TEXT_H

#include <jansson.h>

#include "tool/lines.h"
#include "tileproof_proof.h"

/* The first bytes of every journal, of this version or another: what has them may be written over. */
#define JOURNAL_MARK  "tileproof journal "
#define JOURNAL_FIRST JOURNAL_MARK "2\n"

/* Has the mark, or is the beginning of it: nobody's but a journal, or empty. */
int journal_is_one(const char *text, size_t size);

/* Hands over every cell. `terms` is an object of texts: what this run would be made with, and the journal must have
   been. *kept is how many bytes of whole lines there are. Nonzero: reason holds "NAME...", with every term that differs. */
int journal_read(const char *text, size_t size, const char *name, const json_t *terms,
                 void (*one)(void *user, const tp_cell *cell), void *user, size_t *kept, char reason[LINES_REASON]);

#endif
