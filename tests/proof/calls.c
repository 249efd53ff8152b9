/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the system, which writes down what it is calls_asked for ---- */

char calls_asked[256];
static char kind;       /* of the call that fails, */
static int left;        /* this many of its kind from now */

static int refuses(char letter) {
    size_t used = strlen(calls_asked);
    if (used + 1 < sizeof calls_asked) calls_asked[used] = letter, calls_asked[used + 1] = 0;
    if (letter != kind || --left) return 0;
    errno = EIO;
    return 1;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    struct stat what;
    assert_int_equal(fstat(fd, &what), 0);
    return refuses(S_ISDIR(what.st_mode) ? 'd' : 'f') ? -1 : __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) { return refuses('r') ? -1 : __real_rename(from, to); }

FILE *__real_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode) { return refuses('o') ? NULL : __real_fdopen(fd, mode); }

/* A folder that may be written and not read, or whatever errno is said. */
int calls_folder_errno;
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (calls_folder_errno && flags & O_DIRECTORY) {
        errno = calls_folder_errno;
        return -1;
    }
    return __real_open(path, flags, mode);
}

/* Another run, which calls_ends between this one's open and its lock, as often as is said: its journal goes. */
int calls_ends;
int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation) {
    if (calls_ends > 0 && calls_ends--) {
        unlink("j");
        if (calls_ends % 2) close(open("j", O_CREAT | O_RDWR, 0666)); /* and the next has begun */
    }
    return __real_flock(fd, operation);
}

void calls_arm(char what, int nth) { calls_asked[0] = 0, kind = what, left = nth; }

/* ---- a folder of its own ---- */

static char folder[] = "/tmp/tileproof-files-XXXXXX";

int folder_enter(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    return 0;
}

int folder_entries(void) {
    int count = 0;
    DIR *directory = opendir(".");
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

void folder_clear(void) {
    DIR *directory = opendir(".");
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] != '.') assert_int_equal(unlink(entry->d_name), 0);
    closedir(directory);
}

int folder_leave(void **state) {
    (void)state;
    folder_clear();
    assert_int_equal(chdir("/"), 0);
    return rmdir(folder);
}

void file_put(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

int file_holds(const char *path, const char *text) {
    char bytes[256];
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    size_t size = fread(bytes, 1, sizeof bytes - 1, file);
    bytes[size] = 0;
    fclose(file);
    return !strcmp(bytes, text);
}

/* What stderr was told. */
char said[1024];
static FILE *caught;
static int stderr_before;
void listen_in(void) {
    assert_non_null(caught = tmpfile());
    assert_true((stderr_before = dup(STDERR_FILENO)) >= 0);
    dup2(fileno(caught), STDERR_FILENO);
}
void listen_out(void) {
    dup2(stderr_before, STDERR_FILENO);
    close(stderr_before);
    rewind(caught);
    said[fread(said, 1, sizeof said - 1, caught)] = 0;
    fclose(caught);
}

