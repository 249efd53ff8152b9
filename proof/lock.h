/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock is its JSON tree, checked whole when it is read:
 *
 *     schema, checksum
 *     models   [{name, config, groups [{part, layers, phases {prefill [problem ...] ...}}]}]
 *     isas     {ISA {library {...}, hosts [{cpu, os, libc}], cells [...]}}
 *     history  [{date, isa, build, cells, reason}]
 */
#ifndef TP_PROOF_LOCK_H
#define TP_PROOF_LOCK_H

#include "record.h"
#include "sized.h"

struct tp_lock {
    json_t *root;
    json_t *models, *isas, *history; /* borrowed from root */
    int64_t added, changed, same;    /* cells put since the last finish */
};

/* Parts of a tp_identity: what all hosts of an ISA share, and a host's own. */
extern const tp__field tp__library_fields[], tp__host_fields[];

typedef struct tp__history {
    const char *date, *isa, *build, *cells, *reason;
} tp__history;
extern const tp__field tp__history_fields[];

void tp__lock_take(tp_lock *lock, json_t *root); /* this is the lock's tree from now on */
tp_status tp__lock_copy(const tp_lock *lock, tp_lock **copy, tp_error *error);
void tp__lock_exchange(tp_lock *a, tp_lock *b);
/* SHA-256 of everything but the checksum itself. 0, or nonzero when memory ran out. */
int tp__lock_checksum(const json_t *root, char text[65]);
json_t *tp__lock_cells(const tp_lock *lock, const char *isa); /* borrowed; NULL: no such ISA, by just this key */
/* What a lock has for hosts of this key: its entry, or the one of a library that did not know the last names of the key,
   down to avx2 and avx512, which all do. *name: the entry's own key. NULL: none. */
json_t *tp__lock_entry(const tp_lock *lock, const char *isa, const char **name);
/* The cell's index in the list, or its size. */
size_t tp__lock_index(const json_t *cells, const char *problem);
tp_status tp__lock_check(const tp__file *file, json_t *root);
const char *tp__json_text(const json_t *object, const char *key); /* "" when there is none */

#endif
