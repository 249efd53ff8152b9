/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the system that fail when a test says so, a folder of the test's own, and what stderr was told. */
#ifndef TEST_PROOF_CALLS_H
#define TEST_PROOF_CALLS_H

#include "support.h"

extern char calls_asked[256];  /* a letter for each call: f fsync of a file, d of a folder, r rename, o fdopen */
extern int calls_folder_errno; /* what opening a folder gives; 0: it is opened */
/* Another run, which ends between this one's open and its lock, as often as is said: its journal "j" goes. */
extern int calls_ends;
/* The nth call of this kind from now on fails. */
void calls_arm(char kind, int nth);

int folder_enter(void **state);
int folder_leave(void **state);
int folder_entries(void);
void folder_clear(void);
void file_put(const char *path, const char *text);
int file_holds(const char *path, const char *text);

extern char said[1024];
void listen_in(void);
void listen_out(void);

#endif
