/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof lock: what a lock holds, and small changes of it.
 *
 *     lock.c     the command: list, show, drop, merge
 *     select.c   which revisions are meant: NAME, NAME@CONFIG, @CONFIG, and /ENGINE behind any of them; --kv-cache
 *     diff.c     two revisions, of one lock or of two, in words
 */
#ifndef TILEPROOF_CLI_LOCK_LOCK_H
#define TILEPROOF_CLI_LOCK_LOCK_H

#include "cli.h"

/* Which revisions are meant: those of a word, and with one cache. NULL and "" mean every one. */
struct wanted {
    const char *word, *cache;
};
int revision_means(const tp_lock_revision *revision, struct wanted wanted);
/* The index'th revision that is meant; -1: there is none. */
int64_t revision_find(const tp_lock *lock, struct wanted wanted, int64_t index);
int revision_same_engine(const tp_lock_revision *a, const tp_lock_revision *b);
/* The revision of this one's model and engine that came after it; -1: none. */
int64_t revision_next(const tp_lock *lock, int64_t self);
/* None: names those that there are. Returns EXIT_USAGE. */
int complain_revision(const char *path, const tp_lock *lock, struct wanted wanted);

int lock_diff(const struct options *options, const char *cache);

#endif
