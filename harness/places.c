/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/places.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINKS = 40, LINK_BYTES = 4096 }; /* as Linux has them */

const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *place_folder(const char *path) {
    const char *end = strrchr(path, '/');
    if (!end) return strdup(".");
    return strndup(path, end == path ? 1 : (size_t)(end - path));
}

int place_descriptor(const char *path) {
    const char *name = base_name(path);
    char mine[64], *folder = NULL, *real = NULL;
    if (!*name || strlen(name) > 9 || name[strspn(name, "0123456789")]) return -1;
    snprintf(mine, sizeof mine, "/proc/%ld/fd", (long)getpid());
    if ((folder = place_folder(path))) real = realpath(folder, NULL);
    int number = real && !strcmp(real, mine) ? atoi(name) : -1;
    free(folder);
    free(real);
    return number;
}

char *place_resolved(const char *path) {
    char link[LINK_BYTES], *now = strdup(path);
    for (int i = 0; now; i++) {
        if (place_descriptor(now) >= 0) return now;
        ssize_t size = readlink(now, link, sizeof link - 1);
        if (size < 0) return now; /* no link, or nothing at all: whoever opens it will say */
        link[size] = 0;
        const char *name = strrchr(now, '/');
        size_t folder = link[0] == '/' || !name ? 0 : (size_t)(name + 1 - now);
        char *next = i < MAX_LINKS ? malloc(folder + (size_t)size + 1) : NULL;
        if (i >= MAX_LINKS) errno = ELOOP;
        if (next) memcpy(next, now, folder), memcpy(next + folder, link, (size_t)size + 1);
        free(now);
        now = next;
    }
    return now;
}

/* The folder of a name, and what it is called there. */
static int find(const char *path, struct stat *folder, char **resolved) {
    char *where = NULL;
    *resolved = place_resolved(path);
    if (*resolved) where = place_folder(*resolved);
    int found = where && !stat(where, folder);
    free(where);
    return found;
}

int place_same(const char *one, const char *other) {
    struct stat a, b;
    char *names[2] = {NULL, NULL};
    int here = !stat(one, &a), there = !stat(other, &b);
    if (here && S_ISCHR(a.st_mode)) return 0; /* /dev/null may be written twice */
    if (here || there) return here && there && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    int same = find(one, &a, &names[0]) && find(other, &b, &names[1]) && a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
               !strcmp(base_name(names[0]), base_name(names[1]));
    free(names[0]);
    free(names[1]);
    return same;
}

int place_sync_folder(const char *path) {
    char *folder = place_folder(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    /* one that may be written but not read is synced some day; so is one of a system without such a sync */
    int failed = fd < 0 ? errno != EACCES : (fsync(fd) && errno != EINVAL && errno != EROFS);
    int reason = errno;
    if (fd >= 0) close(fd);
    free(folder);
    errno = reason;
    return failed;
}
