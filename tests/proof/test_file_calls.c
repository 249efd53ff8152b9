/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the tool writes, with calls of the system that fail: each one of a kind in turn. Whatever fails, the file
 * that was there is as it was or whole and new, and no part is left. And what is promised to be on the disk is synced,
 * in the right order.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "harness/places.h"
#include "qualify/qualify.h"
#include "tool/files.h"

/* ---- the system, which writes down what it is asked for ---- */

static char asked[256]; /* a letter a call: f fsync of a file, d of a folder, r rename */
static char kind;       /* of the call that fails, */
static int left;        /* this many of its kind from now */

static int refuses(char letter) {
    size_t used = strlen(asked);
    if (used + 1 < sizeof asked) asked[used] = letter, asked[used + 1] = 0;
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
static int folder_errno;
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (folder_errno && flags & O_DIRECTORY) {
        errno = folder_errno;
        return -1;
    }
    return __real_open(path, flags, mode);
}

/* Another run, which ends between this one's open and its lock, as often as is said: its journal goes. */
static int ends;
int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation) {
    if (ends > 0 && ends--) {
        unlink("j");
        if (ends % 2) close(open("j", O_CREAT | O_RDWR, 0666)); /* and the next has begun */
    }
    return __real_flock(fd, operation);
}

static void arm(char what, int nth) { asked[0] = 0, kind = what, left = nth; }

/* ---- a folder of its own ---- */

static char folder[] = "/tmp/tileproof-files-XXXXXX";

static int enter(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    return 0;
}

static int entries(void) {
    int count = 0;
    DIR *directory = opendir(".");
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void clear(void) {
    DIR *directory = opendir(".");
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] != '.') assert_int_equal(unlink(entry->d_name), 0);
    closedir(directory);
}

static int leave(void **state) {
    (void)state;
    clear();
    assert_int_equal(chdir("/"), 0);
    return rmdir(folder);
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int holds(const char *path, const char *text) {
    char bytes[256];
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    size_t size = fread(bytes, 1, sizeof bytes - 1, file);
    bytes[size] = 0;
    fclose(file);
    return !strcmp(bytes, text);
}

/* ---- whole files ---- */

static int write_new(const char *path) {
    struct atomic_file file;
    int code = file_open(&file, path);
    if (code) return code;
    fputs("new", file.stream);
    return file_close(&file, 1);
}

static void synced_then_renamed(void **state) {
    (void)state;
    arm(0, 0);
    assert_int_equal(write_new("a"), EXIT_FINE);
    assert_string_equal(asked, "ofrd");
    assert_true(holds("a", "new") && entries() == 1);
    clear();
}

static void any_call_may_fail(void **state) {
    static const char kinds[] = "ofrd";
    (void)state;
    for (int i = 0; i < 4; i++) {
        put("a", "old");
        arm(kinds[i], 1);
        assert_int_equal(write_new("a"), EXIT_FAILED);
        /* only the folder's sync comes after the new name */
        assert_true(holds("a", kinds[i] == 'd' ? "new" : "old"));
        assert_int_equal(entries(), 1);
        arm(0, 0);
        assert_int_equal(write_new("a"), EXIT_FINE);
        assert_true(holds("a", "new"));
    }
    clear();
}

static int journal(const char *path, int resume, int add, int finished, int64_t *resumed);

/* What stderr was told. */
static char said[1024];
static FILE *caught;
static int stderr_before;
static void listen_in(void) {
    assert_non_null(caught = tmpfile());
    assert_true((stderr_before = dup(STDERR_FILENO)) >= 0);
    dup2(fileno(caught), STDERR_FILENO);
}
static void listen_out(void) {
    dup2(stderr_before, STDERR_FILENO);
    close(stderr_before);
    rewind(caught);
    said[fread(said, 1, sizeof said - 1, caught)] = 0;
    fclose(caught);
}

static void a_folder_that_is_not_synced(void **state) {
    (void)state;
    int64_t resumed;
    folder_errno = EACCES; /* it has its new name, and nobody may ask for more */
    assert_int_equal(write_new("a"), EXIT_FINE);
    assert_int_equal(journal("j", 0, 1, 0, &resumed), EXIT_FINE);
    folder_errno = EIO;
    listen_in();
    int code = write_new("b");
    folder_errno = 0;
    arm('d', 1);
    int second = write_new("a");
    arm(0, 0);
    listen_out();
    assert_true(code == EXIT_FAILED && second == EXIT_FAILED);
    assert_true(holds("a", "new") && holds("b", "new") && entries() == 3);
    assert_string_equal(said, "tileproof: b: written, but its folder could not be synced: Input/output error\n"
                              "tileproof: a: written, but its folder could not be synced: Input/output error\n");
    clear();
}

/* A descriptor that is open is written from where it stands, whatever its file is. */
static void descriptors(void **state) {
    char name[64];
    int ends_of_pipe[2];
    char bytes[8] = "";
    (void)state;
    put("a", "old");
    int fd = open("a", O_WRONLY | O_APPEND);
    assert_true(fd >= 0 && !pipe(ends_of_pipe));
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    assert_int_equal(place_descriptor(name), fd);
    assert_int_equal(write_new(name), EXIT_FINE);
    snprintf(name, sizeof name, "/proc/%ld/fd/%d", (long)getpid(), fd);
    assert_int_equal(symlink(name, "soft"), 0);
    assert_int_equal(write_new("soft"), EXIT_FINE);
    assert_int_equal(write(fd, "!", 1), 1);
    assert_true(holds("a", "oldnewnew!") && entries() == 2);
    snprintf(name, sizeof name, "/proc/self/fd/%d", ends_of_pipe[1]);
    assert_int_equal(write_new(name), EXIT_FINE);
    assert_int_equal(read(ends_of_pipe[0], bytes, sizeof bytes), 3);
    assert_string_equal(bytes, "new");
    close(fd), close(ends_of_pipe[0]), close(ends_of_pipe[1]);
    assert_int_equal(write_new(name), EXIT_FAILED);
    assert_true(place_descriptor("/dev/fd/") < 0 && place_descriptor("/dev/fd/x") < 0 && place_descriptor("1") < 0 &&
                place_descriptor("/proc/1/fd/0") < 0 && place_descriptor("/dev/null") < 0);
    clear();
}

static void given_up(void **state) {
    struct atomic_file file;
    (void)state;
    put("a", "old");
    assert_int_equal(file_open(&file, "a"), EXIT_FINE);
    assert_int_equal(entries(), 2);
    assert_int_equal(file_close(&file, 0), EXIT_FINE);
    assert_true(holds("a", "old") && entries() == 1);
    assert_int_equal(file_close(&file, 0), EXIT_FINE);
    clear();
}

/* Parts of this very process, left by one that had its number; and two files of one name at a time. */
static void names_that_are_taken(void **state) {
    struct atomic_file one, two;
    char name[64];
    (void)state;
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "a.tileproof-%ld-%d.part", (long)getpid(), i);
        put(name, "left by a kill");
    }
    assert_int_equal(file_open(&one, "a"), EXIT_FINE);
    assert_int_equal(entries(), 1);
    assert_int_equal(file_open(&two, "a"), EXIT_FINE);
    assert_int_equal(entries(), 2);
    fputs("one", one.stream);
    fputs("two", two.stream);
    assert_int_equal(file_close(&one, 1), EXIT_FINE);
    assert_true(holds("a", "one"));
    assert_int_equal(file_close(&two, 1), EXIT_FINE);
    assert_true(holds("a", "two") && entries() == 1);
    clear();
}

/* Parts that somebody else still writes: a process of the same number behind another wall. */
static void parts_of_others(void **state) {
    int held[64];
    char name[64];
    (void)state;
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof name, "a.tileproof-%ld-%d.part", (long)getpid(), i);
        put(name, "at work");
        held[i] = open(name, O_RDWR);
        assert_true(held[i] >= 0 && !flock(held[i], LOCK_EX | LOCK_NB));
    }
    assert_int_equal(write_new("a"), EXIT_FINE);
    assert_true(holds("a", "new") && entries() == 65 && holds(name, "at work"));
    for (int i = 0; i < 64; i++) close(held[i]);
    assert_int_equal(write_new("a"), EXIT_FINE);
    assert_int_equal(entries(), 1);
    clear();
}

static void links_stay(void **state) {
    struct stat what;
    (void)state;
    put("a", "old");
    assert_int_equal(chmod("a", 0640), 0);
    assert_int_equal(symlink("a", "soft"), 0);
    assert_int_equal(symlink("b", "dangling"), 0);
    assert_true(!write_new("soft") && !write_new("dangling"));
    assert_true(holds("a", "new") && holds("b", "new") && entries() == 4);
    assert_true(!lstat("soft", &what) && S_ISLNK(what.st_mode));
    assert_true(!lstat("a", &what) && S_ISREG(what.st_mode) && (what.st_mode & 0777) == 0640);
    clear();
}

static void places(void **state) {
    (void)state;
    put("a", "x");
    assert_int_equal(link("a", "hard"), 0);
    assert_int_equal(symlink("a", "soft"), 0);
    assert_int_equal(symlink("none", "dangling"), 0);
    assert_true(place_same("a", "./a") && place_same("a", "hard") && place_same("soft", "hard"));
    assert_true(place_same("none", "./none") && place_same("none", "dangling") && place_same("no/../none", "none") == 0);
    assert_false(place_same("a", "none") || place_same("none", "nine") || place_same("/none/a", "/none/a"));
    assert_false(place_same("/dev/null", "/dev/null"));
    clear();
}

/* ---- journals ---- */

static tp_cell cells[3];
static tp_model model = {.name = "m.json", .config_hash = "00"};
static tp_model *models[] = {&model};

static void fresh(struct qualification *all) {
    static const char *const problems[] = {"b1 h1/1 q1 k1 d8 f32", "b1 h1/1 q2 k2 d8 f32", "b1 h1/1 q3 k3 d8 f32"};
    memset(cells, 0, sizeof cells);
    for (int i = 0; i < 3; i++) {
        cells[i] = (tp_cell){.struct_size = sizeof cells[i], .phase = TP_QUALIFY_PREFILL, .gain = 1};
        strcpy(cells[i].problem, problems[i]);
    }
    *all = (struct qualification){.models = models, .model_count = 1, .cells = cells, .cell_count = 3};
}

static struct options usual; /* what all runs below have */

static int begin(struct journal *one, const struct options *options, struct qualification *all) {
    tp_identity now;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_identity_detect(NULL, &now, &error), TP_OK);
    fresh(all);
    int code = journal_open(one, options, all);
    return code ? code : journal_begin(one, options, &now, all);
}

static int journal(const char *path, int resume, int add, int finished, int64_t *resumed) {
    struct options options = usual;
    options.journal = path, options.resume = resume;
    struct qualification all;
    struct journal one;
    int code = begin(&one, &options, &all);
    for (int i = 0; !code && i < add; i++) {
        cells[i].status = TP_CELL_QUALIFIED;
        code = journal_add(&one, &cells[i]);
    }
    journal_close(&one, finished && !code);
    *resumed = all.resumed;
    return code;
}

static void lines_are_on_the_disk(void **state) {
    int64_t resumed;
    (void)state;
    arm(0, 0);
    assert_int_equal(journal("j", 0, 3, 0, &resumed), EXIT_FINE);
    assert_string_equal(asked, "ofdfff"); /* its first lines and its name, then each cell */
    assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE);
    assert_true(resumed == 3 && entries() == 1);
    assert_int_equal(journal("j", 1, 0, 1, &resumed), EXIT_FINE);
    assert_true(resumed == 3 && entries() == 0);
    assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE); /* none there: begins anew, and holds no cell */
    assert_true(resumed == 0 && entries() == 0);
}

static void a_failed_journal(void **state) {
    int64_t resumed;
    (void)state;
    for (int nth = 1; nth <= 4; nth++) {
        arm('f', nth);
        assert_int_not_equal(journal("j", 0, 3, 1, &resumed), EXIT_FINE);
        arm(0, 0);
        assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE); /* what was written counts */
        assert_int_equal(resumed, nth - 1);
        clear();
    }
}

/* The lock of a file that has lost its name is worth nothing: the one that is there is opened. */
static void a_journal_that_goes(void **state) {
    int64_t resumed;
    (void)state;
    for (int times = 1; times < 6; times++) {
        assert_int_equal(journal("j", 0, 1, 0, &resumed), EXIT_FINE);
        ends = times;
        assert_int_equal(journal("j", 0, 2, 0, &resumed), EXIT_FINE);
        assert_int_equal(ends, 0);
        assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE);
        assert_int_equal(resumed, 2);
        clear();
    }
    ends = 1000;
    assert_int_equal(journal("j", 0, 1, 0, &resumed), EXIT_USAGE);
    assert_true(ends > 0);
    ends = 0;
    clear();
}

static int add_cell(const tp_cell *cell) {
    struct journal one;
    struct options options = {.journal = "j"};
    struct qualification all;
    int code = begin(&one, &options, &all);
    assert_int_equal(code, EXIT_FINE);
    listen_in();
    code = journal_add(&one, cell);
    listen_out();
    journal_close(&one, 1);
    return code;
}

static void cells_that_cannot_be_written(void **state) {
    struct qualification all;
    tp_cell cell;
    (void)state;
    fresh(&all);
    cell = cells[0];
    cell.error = NAN;
    assert_int_equal(add_cell(&cell), EXIT_FAILED);
    assert_non_null(strstr(said, "j could not be written: a number is not finite, or a text is not UTF-8 (cell b1 h1/1 q1"));
    cell.error = 0;
    arm('f', 2);
    assert_int_equal(add_cell(&cell), EXIT_FAILED);
    assert_non_null(strstr(said, "j could not be written: Input/output error"));
    arm(0, 0);
    assert_int_equal(entries(), 0);
}

/* Cells of a run with other options, and files that are no journal. */
static void others_are_refused(void **state) {
    int64_t resumed;
    (void)state;
    strcpy(usual.disable, "avx2");
    usual.fallback = "permit";
    assert_int_equal(journal("j", 0, 3, 0, &resumed), EXIT_FINE);
    memset(&usual, 0, sizeof usual);
    assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_USAGE);
    assert_int_equal(resumed, 0);
    strcpy(usual.disable, "avx2");
    usual.fallback = "permit";
    assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE); /* and nothing of it was lost by that */
    assert_int_equal(resumed, 3);
    memset(&usual, 0, sizeof usual);
    put("letter", "a letter");
    assert_int_equal(symlink("j", "soft"), 0);
    assert_int_equal(symlink("none", "dangling"), 0);
    static const char *const names[] = {"letter", "soft", "dangling", ".", "/dev/null"};
    for (int i = 0; i < 10; i++) assert_int_equal(journal(names[i / 2], i % 2, 0, 1, &resumed), EXIT_USAGE);
    assert_true(holds("letter", "a letter") && entries() == 4);
    clear();
}

/* Whatever bytes a text has, what is printed is JSON in UTF-8. */
static void json_is_utf8(void **state) {
    uint64_t seed = 1;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        char text[16], printed[128] = "";
        size_t size = 0;
        for (; size < 15 && (seed = seed * 6364136223846793005u + 1442695040888963407u) >> 61; size++) {
            static const unsigned char marks[] = {0x1F, '"', '\\', 'a', 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2,
                                                  0xDF, 0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF};
            text[size] = (char)marks[(seed >> 33) % sizeof marks];
        }
        text[size] = 0;
        FILE *file = fmemopen(printed, sizeof printed, "w");
        assert_non_null(file);
        print_json_text(file, text);
        fclose(file);
        json_t *read = json_loads(printed, JSON_DECODE_ANY, NULL), *same = json_string(text);
        if (!read) fail_msg("%s is no JSON", printed);
        if (same) assert_true(json_equal(read, same)); /* what is UTF-8 comes back as it was */
        json_decref(read);
        json_decref(same);
    }
}

/* Names in a list: whole ones, each once, and no part of one. */
static void names_in_a_list(void **state) {
    static const char *const names[] = {"avx512_emulated", "avx512", "", "avx2", "avx512", "avx512_emulated", "2", "avx2"};
    (void)state;
    for (size_t size = 1; size < 64; size++) {
        char list[64] = "", copy[64], *rest, *part;
        for (int i = 0; i < 8; i++) add_name(list, size, names[i]);
        assert_true(strlen(list) < size);
        if (size > 29) assert_string_equal(list, "avx512_emulated+avx512+avx2+2");
        int more = 0;
        strcpy(copy, list);
        for (rest = copy; (part = strsep(&rest, "+")) && *part;) {
            int found = !strcmp(part, "..");
            more += found;
            for (int i = 0; i < 8; i++) found |= !strcmp(part, names[i]);
            if (!found) fail_msg("%s has a part of a name", list);
        }
        if (size > 2) assert_int_equal(more, size <= 29);
    }
    char three[18] = "";
    for (int i = 0; i < 4; i++) add_name(three, sizeof three, i == 0 ? "avx2" : i == 1 ? "generic" : i == 2 ? "math" : "avx2");
    assert_string_equal(three, "avx2+generic+math");
}

static void cut_anywhere(void **state) {
    static char text[8192], part[8192];
    int64_t resumed;
    (void)state;
    arm(0, 0);
    assert_int_equal(journal("j", 0, 3, 0, &resumed), EXIT_FINE);
    FILE *file = fopen("j", "rb");
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof text - 1, file), lines;
    fclose(file);
    for (size_t cut = 0; cut <= size; cut += memchr(text + cut, '\n', 3) || cut < 30 ? 1 : 29) {
        lines = 0;
        memcpy(part, text, cut);
        part[cut] = 0;
        for (size_t i = 0; i < cut; i++) lines += part[i] == '\n';
        put("j", part);
        assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE);
        assert_int_equal(resumed, lines > 2 ? lines - 2 : 0);
    }
    clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synced_then_renamed),
        cmocka_unit_test(any_call_may_fail),
        cmocka_unit_test(a_folder_that_is_not_synced),
        cmocka_unit_test(descriptors),
        cmocka_unit_test(given_up),
        cmocka_unit_test(names_that_are_taken),
        cmocka_unit_test(parts_of_others),
        cmocka_unit_test(links_stay),
        cmocka_unit_test(places),
        cmocka_unit_test(lines_are_on_the_disk),
        cmocka_unit_test(a_failed_journal),
        cmocka_unit_test(a_journal_that_goes),
        cmocka_unit_test(cells_that_cannot_be_written),
        cmocka_unit_test(others_are_refused),
        cmocka_unit_test(names_in_a_list),
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(json_is_utf8),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
