/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock is its JSON tree, checked whole when it is read:
 *
 *     schema, checksum
 *     revisions  [{revision {model, config, date}, engine {name, mode, device, isa, cache},
 *                  versions {name: value}, hosts [{name: value}], groups [{part, layers, cells [...]}]}]
 *     history    [{date, engine, device, isa, build, revisions, dropped, cells, reason}]
 *
 * Each file has one part of it:
 *
 *     lock.c         reading it, asking it
 *     lock_check.c   the rules of a file; lock_old.c: of tileproof.lock/1, and how that becomes this one
 *     lock_made_by.c an identity as maps of a revision, and what differs between the two
 *     lock_update.c  what is put, and how it becomes revisions
 *     lock_keep.c    which revisions stay: a new one's place, drop, merge
 *     lock_write.c   its text
 */
#ifndef TP_PROOF_LOCK_H
#define TP_PROOF_LOCK_H

#include "record.h"
#include "sized.h"

/* A cell and where it stands; all borrowed from the tree. */
typedef struct tp__lock_place {
    json_t *group, *cell;
    int64_t revision;
    int listed; /* LISTED_*: no later revision of its engine has its problem */
} tp__lock_place;

enum { LISTED_OF_CACHE = 1, LISTED_OF_ANY = 2 }; /* none with its cache; none with whatever cache */

struct tp_lock {
    json_t *root;
    json_t *revisions, *history; /* borrowed from root */
    tp__lock_place *places;      /* every cell, in the order of the file */
    int64_t place_count;
    /* what was put since the last finish */
    json_t *put_models; /* [{model, config, groups [{part, layers, cells [{phase, problem}]}]}] */
    json_t *put_cells;  /* {ISA: {problem: cell}} */
};

extern const tp__field tp__revision_fields[], tp__engine_fields[], tp__history_fields[];

/* This is the lock's tree from now on; the reference is taken over. TP_NO_MEMORY: it is not, and the lock is as it was. */
tp_status tp__lock_take(tp_lock *lock, json_t *root, tp_error *error);
tp_status tp__lock_copy(const tp_lock *lock, tp_lock **copy, tp_error *error);
void tp__lock_exchange(tp_lock *a, tp_lock *b);
/* SHA-256 of everything but the checksum itself. 0, or nonzero when memory ran out. */
int tp__lock_checksum(const json_t *root, char text[65]);
/* The tree is a lock of this schema, be it that it was one of an older: then *root is another tree. */
tp_status tp__lock_check(const tp__file *file, json_t **root);
tp_status tp__lock_check_old(const tp__file *file, json_t *root);
json_t *tp__lock_from_old(json_t *root); /* NULL: out of memory */

/* What lock_check.c and lock_old.c share. The object has these keys, "a b c", and no other. */
tp_status tp__lock_keys(const tp__file *file, tp__path *path, json_t *object, const char *names);
typedef tp_status tp__lock_entry_check(const tp__file *file, tp__path *path, json_t *value);
tp_status tp__lock_each(const tp__file *file, tp__path *path, json_t *object, const char *key, tp__lock_entry_check *check);
tp_status tp__lock_text(const tp__file *file, tp__path *path, json_t *object, const char *key, size_t max);
tp_status tp__lock_check_cell(const tp__file *file, tp__path *path, json_t *record);
tp_status tp__lock_check_history(const tp__file *file, tp__path *path, json_t *record);
tp_status tp__lock_check_sum(const tp__file *file, json_t *root);

const char *tp__json_text(const json_t *object, const char *key); /* "" when there is none */
int tp__is_lock_text(const char *text, size_t max);               /* 1..max bytes of UTF-8 */
/* Parts of an entry of `revisions`. */
tp_lock_revision tp__lock_head(const json_t *entry);                            /* without status and count of cells */
int tp__lock_same_engine(const tp_lock_revision *a, const tp_lock_revision *b); /* name, mode, device, ISA, cache */
int tp__lock_same_cache(const char *a, const char *b); /* one may be "any": it is what is asked for, never what a lock has */

/* Of an identity, with defaults in place of "": the engine it is; its maps, for a new entry. NULL: out of memory. */
tp_lock_revision tp__identity_engine(const tp_identity *identity);
json_t *tp__identity_versions(const tp_identity *identity);
json_t *tp__identity_host(const tp_identity *identity);
/* Can a revision be made of it? */
tp_status tp__identity_check(const tp_identity *identity, tp_error *error);
/* The ISA under which the lock has cells for hosts of this key: it, or what remains without names that came later, down to
   avx2 and avx512, which all libraries know. Nonzero: there is none. */
int tp__lock_isa(const tp_lock *lock, const tp_lock_revision *now, char isa[64]);

/* lock_keep.c. The list with the entry in its place, and no more than `keep` of its model and engine; the names of those that
   went are added to *dropped. NULL: out of memory. */
json_t *tp__lock_placed(json_t *revisions, json_t *entry, int keep, tp__page *dropped);
/* Adds "NAME CONFIG", and ", " before it where it is not the first. */
void tp__lock_name(tp__page *page, const json_t *entry);
/* Texts of a history may be too long for it: what they begin with stays. */
void tp__lock_shorten(tp__page *page, size_t max);
/* The entry of that model, config and engine; its index, or the size of the list. */
size_t tp__lock_find(json_t *revisions, const tp_lock_revision *head);
/* Takes both over; TP_NO_MEMORY: the lock is as it was. */
tp_status tp__lock_commit(tp_lock *lock, json_t *revisions, const tp_lock_history *past, tp_error *error);
tp_status tp__lock_finish(tp_lock *lock, const tp_identity *identity, const tp_lock_update *update, tp_error *error);
tp_status tp__lock_when_check(const char *date, const char *reason, tp_error *error);

#endif
