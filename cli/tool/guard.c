/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "harness/places.h"
#include "harness/stats.h"

static const char ending[] = ".tileproof-guard";
static const long wait_ns = 50 * 1000 * 1000;
enum { MAX_BYTES = 200 }; /* of a file's name, so that there is room for the rest; long names that begin alike share a guard */

/* The name still leads to this file: whoever had it before may have removed it between open and lock. */
static int is_there(int fd, const char *path) {
    struct stat mine, there;
    return !fstat(fd, &mine) && !lstat(path, &there) && mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

/* 0: taken; 1: another process has it; -1, with errno. */
static int try_once(struct guard *guard) {
    guard->fd = open(guard->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (guard->fd < 0) return -1;
    if (!flock(guard->fd, LOCK_EX | LOCK_NB) && is_there(guard->fd, guard->path)) return 0;
    int other = errno == EWOULDBLOCK || !is_there(guard->fd, guard->path), reason = errno;
    close(guard->fd);
    errno = reason;
    return other ? 1 : -1;
}

static int failed(struct guard *guard, const char *why) {
    complain("%s: %s", guard->path, why);
    free(guard->path);
    guard->path = NULL;
    return EXIT_FAILED;
}

int guard_take(struct guard *guard, const char *path, double seconds) {
    struct stat there;
    double begin = now_ns();
    int told = 0, taken;
    if (!stat(path, &there) && !S_ISREG(there.st_mode)) return EXIT_FINE; /* a pipe or a device is written as it is */
    char *place = place_resolved(path); /* two names of one file have one guard */
    size_t size = place ? strlen(place) + sizeof ending : 0;
    guard->path = place ? malloc(size) : NULL;
    if (guard->path)
        snprintf(guard->path, size, "%.*s%.*s%s", (int)(base_name(place) - place), place, MAX_BYTES, base_name(place), ending);
    free(place);
    if (!guard->path) {
        complain("%s: %s", path, strerror(errno));
        return EXIT_FAILED;
    }
    while ((taken = try_once(guard)) == 1) {
        struct timespec pause = {0, wait_ns};
        if ((now_ns() - begin) * 1e-9 > seconds) {
            complain("%s is being changed by another process, which did not end within %.0f s: nothing was written", path,
                     seconds);
            free(guard->path);
            guard->path = NULL;
            return EXIT_FAILED;
        }
        if (!told++) complain("%s is being changed by another process: waiting for it", path);
        nanosleep(&pause, NULL);
    }
    return taken ? failed(guard, strerror(errno)) : EXIT_FINE;
}

void guard_release(struct guard *guard) {
    if (!guard->path) return;
    unlink(guard->path); /* before it is unlocked: who waits sees that it went, and makes a new one */
    close(guard->fd);
    free(guard->path);
    *guard = (struct guard){0};
}
