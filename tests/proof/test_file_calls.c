/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the tool writes, with calls of the system that fail: each one of a kind in turn. Whatever fails, the file
 * that was there is as it was or whole and new, and no part is left. And what is promised to be on the disk is synced,
 * in the right order.
 */
#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "cli.h"
#include "harness/places.h"
#include "tool/files.h"

static int write_new(const char *path) {
    struct atomic_file file;
    int code = file_open(&file, path);
    if (code) return code;
    fputs("new", file.stream);
    return file_close(&file, 1);
}

static void synced_then_renamed(void **state) {
    (void)state;
    calls_arm(0, 0);
    assert_int_equal(write_new("a"), EXIT_FINE);
    assert_string_equal(calls_asked, "ofrd");
    assert_true(file_holds("a", "new") && folder_entries() == 1);
    folder_clear();
}

static void any_call_may_fail(void **state) {
    static const char kinds[] = "ofrd";
    (void)state;
    for (int i = 0; i < 4; i++) {
        file_put("a", "old");
        calls_arm(kinds[i], 1);
        assert_int_equal(write_new("a"), EXIT_FAILED);
        /* only the folder's sync comes after the new name */
        assert_true(file_holds("a", kinds[i] == 'd' ? "new" : "old"));
        assert_int_equal(folder_entries(), 1);
        calls_arm(0, 0);
        assert_int_equal(write_new("a"), EXIT_FINE);
        assert_true(file_holds("a", "new"));
    }
    folder_clear();
}

static void a_folder_that_is_not_synced(void **state) {
    (void)state;
    calls_folder_errno = EACCES; /* it has its new name, and nobody may ask for more */
    assert_int_equal(write_new("a"), EXIT_FINE);
    calls_folder_errno = EIO;
    listen_in();
    int code = write_new("b");
    calls_folder_errno = 0;
    calls_arm('d', 1);
    int second = write_new("a");
    calls_arm(0, 0);
    listen_out();
    assert_true(code == EXIT_FAILED && second == EXIT_FAILED);
    assert_true(file_holds("a", "new") && file_holds("b", "new") && folder_entries() == 2);
    assert_string_equal(said, "tileproof: b: written, but its folder could not be synced: Input/output error\n"
                              "tileproof: a: written, but its folder could not be synced: Input/output error\n");
    folder_clear();
}

/* A descriptor that is open is written from where it stands, whatever its file is. */
static void descriptors(void **state) {
    char name[64];
    int ends_of_pipe[2];
    char bytes[8] = "";
    (void)state;
    file_put("a", "old");
    int fd = open("a", O_WRONLY | O_APPEND);
    assert_true(fd >= 0 && !pipe(ends_of_pipe));
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    assert_int_equal(place_descriptor(name), fd);
    assert_int_equal(write_new(name), EXIT_FINE);
    snprintf(name, sizeof name, "/proc/%ld/fd/%d", (long)getpid(), fd);
    assert_int_equal(symlink(name, "soft"), 0);
    assert_int_equal(write_new("soft"), EXIT_FINE);
    assert_int_equal(write(fd, "!", 1), 1);
    assert_true(file_holds("a", "oldnewnew!") && folder_entries() == 2);
    snprintf(name, sizeof name, "/proc/self/fd/%d", ends_of_pipe[1]);
    assert_int_equal(write_new(name), EXIT_FINE);
    assert_int_equal(read(ends_of_pipe[0], bytes, sizeof bytes), 3);
    assert_string_equal(bytes, "new");
    close(fd), close(ends_of_pipe[0]), close(ends_of_pipe[1]);
    assert_int_equal(write_new(name), EXIT_FAILED);
    assert_true(place_descriptor("/dev/fd/") < 0 && place_descriptor("/dev/fd/x") < 0 && place_descriptor("1") < 0 &&
                place_descriptor("/proc/1/fd/0") < 0 && place_descriptor("/dev/null") < 0);
    folder_clear();
}

static void given_up(void **state) {
    struct atomic_file file;
    (void)state;
    file_put("a", "old");
    assert_int_equal(file_open(&file, "a"), EXIT_FINE);
    assert_int_equal(folder_entries(), 2);
    assert_int_equal(file_close(&file, 0), EXIT_FINE);
    assert_true(file_holds("a", "old") && folder_entries() == 1);
    assert_int_equal(file_close(&file, 0), EXIT_FINE);
    folder_clear();
}

/* Parts of this very process, left by one that had its number; and two files of one name at a time. */
static void names_that_are_taken(void **state) {
    struct atomic_file one, two;
    char name[64];
    (void)state;
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "a.tileproof-%ld-%d.part", (long)getpid(), i);
        file_put(name, "left by a kill");
    }
    assert_int_equal(file_open(&one, "a"), EXIT_FINE);
    assert_int_equal(folder_entries(), 1);
    assert_int_equal(file_open(&two, "a"), EXIT_FINE);
    assert_int_equal(folder_entries(), 2);
    fputs("one", one.stream);
    fputs("two", two.stream);
    assert_int_equal(file_close(&one, 1), EXIT_FINE);
    assert_true(file_holds("a", "one"));
    assert_int_equal(file_close(&two, 1), EXIT_FINE);
    assert_true(file_holds("a", "two") && folder_entries() == 1);
    folder_clear();
}

/* Parts that somebody else still writes: a process of the same number behind another wall. */
static void parts_of_others(void **state) {
    int held[64];
    char name[64];
    (void)state;
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof name, "a.tileproof-%ld-%d.part", (long)getpid(), i);
        file_put(name, "at work");
        held[i] = open(name, O_RDWR);
        assert_true(held[i] >= 0 && !flock(held[i], LOCK_EX | LOCK_NB));
    }
    assert_int_equal(write_new("a"), EXIT_FINE);
    assert_true(file_holds("a", "new") && folder_entries() == 65 && file_holds(name, "at work"));
    for (int i = 0; i < 64; i++) close(held[i]);
    assert_int_equal(write_new("a"), EXIT_FINE);
    assert_int_equal(folder_entries(), 1);
    folder_clear();
}

static void links_stay(void **state) {
    struct stat what;
    (void)state;
    file_put("a", "old");
    assert_int_equal(chmod("a", 0640), 0);
    assert_int_equal(symlink("a", "soft"), 0);
    assert_int_equal(symlink("b", "dangling"), 0);
    assert_true(!write_new("soft") && !write_new("dangling"));
    assert_true(file_holds("a", "new") && file_holds("b", "new") && folder_entries() == 4);
    assert_true(!lstat("soft", &what) && S_ISLNK(what.st_mode));
    assert_true(!lstat("a", &what) && S_ISREG(what.st_mode) && (what.st_mode & 0777) == 0640);
    folder_clear();
}

static void places(void **state) {
    (void)state;
    file_put("a", "x");
    assert_int_equal(link("a", "hard"), 0);
    assert_int_equal(symlink("a", "soft"), 0);
    assert_int_equal(symlink("none", "dangling"), 0);
    assert_true(place_same("a", "./a") && place_same("a", "hard") && place_same("soft", "hard"));
    assert_true(place_same("none", "./none") && place_same("none", "dangling") && place_same("no/../none", "none") == 0);
    assert_false(place_same("a", "none") || place_same("none", "nine") || place_same("/none/a", "/none/a"));
    assert_false(place_same("/dev/null", "/dev/null"));
    folder_clear();
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
        cmocka_unit_test(names_in_a_list),
        cmocka_unit_test(json_is_utf8),
    };
    return cmocka_run_group_tests(tests, folder_enter, folder_leave);
}
