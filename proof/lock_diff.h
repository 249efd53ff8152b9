/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between two revisions, as a list of changes in words:
 *
 *     {where: "text layers 0-31", phase: "decode", what: "kernel", from: "avx2", to: "refused: ..."}
 *
 * lock_diff.c walks groups, phases and cells; lock_words.c compares the words of two problems.
 */
#ifndef TP_PROOF_LOCK_DIFF_H
#define TP_PROOF_LOCK_DIFF_H

#include "lock.h"

typedef struct tp__changes {
    json_t *list;
    int failed; /* out of memory */
    char where[96];
    const char *phase; /* of the next change; "": of the group, or of the whole */
} tp__changes;

/* Adds a change where the two differ. One that is there already, of the same place and phase, is not told twice. */
void tp__change(tp__changes *c, const char *what, const char *from, const char *to);
/* Heads, dims, dtypes, masks and other words; not lengths. */
void tp__change_words(tp__changes *c, const char *from, const char *to);

#endif
