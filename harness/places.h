/* SPDX-License-Identifier: Apache-2.0 */
/* Where files are: links, folders, and whether two names are one file. */
#ifndef TILEPROOF_HARNESS_PLACES_H
#define TILEPROOF_HARNESS_PLACES_H

const char *base_name(const char *path); /* what stands behind the last slash */
/* The path behind all symbolic links of the last part, which need not exist; the caller frees it. NULL, with errno. A
   name of a descriptor of this process is not followed further: its link is no path. */
char *place_resolved(const char *path);
int place_descriptor(const char *path); /* 1 of /dev/fd/1 or /proc/self/fd/1; -1: it is no such name */
char *place_folder(const char *path); /* "." where there is none; the caller frees it. NULL, with errno */
/* Two names of one file: by device and inode, or, of files that are not there yet, by folder and name. */
int place_same(const char *one, const char *other);
/* The folder's entries are on the disk. 0, or nonzero with errno; folders that cannot be synced count as done. */
int place_sync_folder(const char *path);

#endif
