/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/atomic_file.h"

#include "cli.h"
#include "harness/places.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mark[] = ".tileproof-", ending[] = ".part";
enum { MAX_NAMES = 1000, MAX_BYTES = 200 }; /* of a file's name, so that there is room for the rest */

/* NAME.tileproof-DIGITS-DIGITS.part */
static int is_part(const char *entry, const char *name) {
    size_t length = strnlen(name, MAX_BYTES);
    if (strncmp(entry, name, length) || strncmp(entry + length, mark, sizeof mark - 1)) return 0;
    const char *at = entry + length + sizeof mark - 1;
    size_t pid = strspn(at, "0123456789"), number = at[pid] == '-' ? strspn(at + pid + 1, "0123456789") : 0;
    return pid && number && !strcmp(at + pid + 1 + number, ending);
}

/* What a kill left behind: nobody holds its lock. One that is just being made is noticed by its maker, who then takes
   another name. */
static void remove_stale(const char *target) {
    char *folder = place_folder(target);
    DIR *directory = folder ? opendir(folder) : NULL;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (!is_part(entry->d_name, base_name(target))) continue;
        int fd = openat(dirfd(directory), entry->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) continue;
        if (!flock(fd, LOCK_EX | LOCK_NB)) unlinkat(dirfd(directory), entry->d_name, 0);
        close(fd);
    }
    if (directory) closedir(directory);
    free(folder);
}

/* A new file that this process has locked, beside the target and with its permissions. -1, with errno. */
static int open_part(struct atomic_file *whole, const struct stat *old) {
    static unsigned number;
    size_t size = strlen(whole->target) + 64;
    const char *name = base_name(whole->target);
    int folder = (int)(name - whole->target);
    whole->temporary = malloc(size);
    for (int i = 0; whole->temporary && i < MAX_NAMES; i++) {
        struct stat made;
        snprintf(whole->temporary, size, "%.*s%.*s%s%ld-%u%s", folder, whole->target, MAX_BYTES, name, mark,
                 (long)getpid(), number++, ending);
        int fd = open(whole->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return -1;
        int locked = !flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK; /* some file systems have no locks */
        if (locked && !fstat(fd, &made) && made.st_nlink) {
            if (old) (void)!fchmod(fd, old->st_mode & 07777);
            return fd;
        }
        close(fd);
    }
    if (whole->temporary) errno = EEXIST;
    return -1;
}

static int fail_behind(struct atomic_file *whole, const char *before) {
    complain("%s: %s%s", strcmp(whole->path, "-") ? whole->path : "standard output", before,
             errno ? strerror(errno) : "it could not be written");
    if (whole->file && whole->file != stdout) fclose(whole->file);
    if (whole->temporary) unlink(whole->temporary);
    free(whole->temporary);
    free(whole->target);
    *whole = (struct atomic_file){0};
    return EXIT_FAILED;
}

static int fail(struct atomic_file *whole) { return fail_behind(whole, ""); }

/* What is no regular file, and what this process holds already, is written as it is. -1: it is to be replaced; -2, with
   errno: it could not be opened. */
static int open_as_it_is(struct atomic_file *whole) {
    struct stat old;
    int fd = place_descriptor(whole->target);
    if (fd == STDOUT_FILENO) {
        whole->file = stdout;
        return fd;
    }
    if (fd >= 0)
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    else if (!stat(whole->path, &old) && !S_ISREG(old.st_mode))
        fd = open(whole->path, O_WRONLY | O_CLOEXEC); /* a folder says so */
    else
        return -1;
    return fd < 0 ? -2 : fd;
}

static int open_new(struct atomic_file *whole) {
    struct stat old;
    int there = !stat(whole->target, &old);
    remove_stale(whole->target);
    int fd = open_part(whole, there ? &old : NULL);
    if (fd < 0) {
        free(whole->temporary); /* not ours */
        whole->temporary = NULL;
    }
    return fd;
}

int atomic_file_open(struct atomic_file *whole, const char *path) {
    *whole = (struct atomic_file){.path = path};
    if (!strcmp(path, "-")) {
        whole->file = stdout;
        return EXIT_FINE;
    }
    whole->target = place_resolved(path);
    if (!whole->target) return fail(whole);
    int fd = open_as_it_is(whole);
    if (fd == -1) fd = open_new(whole);
    if (fd >= 0 && !whole->file) whole->file = fdopen(fd, "wb");
    if (whole->file) return EXIT_FINE;
    int reason = errno;
    if (fd >= 0) close(fd);
    errno = reason;
    return fail(whole);
}

int atomic_file_close(struct atomic_file *whole, int keep) {
    if (!whole->file) return EXIT_FINE;
    errno = 0;
    int bad = keep && (ferror(whole->file) || fflush(whole->file));
    if (whole->temporary && !bad && keep) {
        bad = fsync(fileno(whole->file)) && errno != EINVAL; /* EINVAL: there is nothing to sync */
        bad = bad || rename(whole->temporary, whole->target);
        if (!bad && place_sync_folder(whole->target)) return fail_behind(whole, "written, but its folder could not be synced: ");
    }
    if (bad) return fail(whole);
    if (whole->temporary && !keep) unlink(whole->temporary);
    if (whole->file != stdout && fclose(whole->file) && keep) {
        whole->file = NULL;
        return fail(whole);
    }
    free(whole->temporary);
    free(whole->target);
    *whole = (struct atomic_file){0};
    return EXIT_FINE;
}
