/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/atomic_file.h"

#include "harness/fail.h"
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
static int open_part(struct atomic_file *file, const struct stat *old) {
    static unsigned number;
    size_t size = strlen(file->target) + 64;
    const char *name = base_name(file->target);
    int folder = (int)(name - file->target);
    file->temporary = malloc(size);
    for (int i = 0; file->temporary && i < MAX_NAMES; i++) {
        struct stat made;
        snprintf(file->temporary, size, "%.*s%.*s%s%ld-%u%s", folder, file->target, MAX_BYTES, name, mark,
                 (long)getpid(), number++, ending);
        int fd = open(file->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return -1;
        int locked = !flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK; /* some file systems have no locks */
        if (locked && !fstat(fd, &made) && made.st_nlink) {
            if (old) (void)!fchmod(fd, old->st_mode & 07777);
            return fd;
        }
        close(fd);
    }
    if (file->temporary) errno = EEXIST;
    return -1;
}

/* Writes the text of errno behind `before`; nothing is left of the file. */
static int fail_behind(struct atomic_file *file, const char *before, tp_error *error) {
    harness_fail(error, TP_INVALID, "%s: %s%s", strcmp(file->path, "-") ? file->path : "standard output", before,
                 errno ? strerror(errno) : "it could not be written");
    if (file->stream && file->stream != stdout) fclose(file->stream);
    if (file->temporary) unlink(file->temporary);
    free(file->temporary);
    free(file->target);
    *file = (struct atomic_file){0};
    return 1;
}

static int fail(struct atomic_file *file, tp_error *error) { return fail_behind(file, "", error); }

/* What is no regular file, and what this process holds already, is written as it is. -1: it is to be replaced; -2, with
   errno: it could not be opened. */
static int open_as_it_is(struct atomic_file *file) {
    struct stat old;
    int fd = place_descriptor(file->target);
    if (fd == STDOUT_FILENO) {
        file->stream = stdout;
        return fd;
    }
    if (fd >= 0)
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    else if (!stat(file->path, &old) && !S_ISREG(old.st_mode))
        fd = open(file->path, O_WRONLY | O_CLOEXEC); /* a folder says so */
    else
        return -1;
    return fd < 0 ? -2 : fd;
}

static int open_new(struct atomic_file *file) {
    struct stat old;
    int there = !stat(file->target, &old);
    remove_stale(file->target);
    int fd = open_part(file, there ? &old : NULL);
    if (fd < 0) {
        free(file->temporary); /* not ours */
        file->temporary = NULL;
    }
    return fd;
}

int atomic_file_open(struct atomic_file *file, const char *path, tp_error *error) {
    *file = (struct atomic_file){.path = path};
    if (!strcmp(path, "-")) {
        file->stream = stdout;
        return 0;
    }
    file->target = place_resolved(path);
    if (!file->target) return fail(file, error);
    int fd = open_as_it_is(file);
    if (fd == -1) fd = open_new(file);
    if (fd >= 0 && !file->stream) file->stream = fdopen(fd, "wb");
    if (file->stream) return 0;
    int reason = errno;
    if (fd >= 0) close(fd);
    errno = reason;
    return fail(file, error);
}

int atomic_file_close(struct atomic_file *file, int keep, tp_error *error) {
    if (!file->stream) return 0;
    errno = 0;
    int bad = keep && (ferror(file->stream) || fflush(file->stream));
    if (file->temporary && !bad && keep) {
        bad = fsync(fileno(file->stream)) && errno != EINVAL; /* EINVAL: there is nothing to sync */
        bad = bad || rename(file->temporary, file->target);
        if (!bad && place_sync_folder(file->target))
            return fail_behind(file, "written, but its folder could not be synced: ", error);
    }
    if (bad) return fail(file, error);
    if (file->temporary && !keep) unlink(file->temporary);
    if (file->stream != stdout && fclose(file->stream) && keep) {
        file->stream = NULL;
        return fail(file, error);
    }
    free(file->temporary);
    free(file->target);
    *file = (struct atomic_file){0};
    return 0;
}
