/* SPDX-License-Identifier: Apache-2.0 */
/* Journals, with calls of the system that fail: what was written counts, what is another's is not touched, and a journal may
   be cut anywhere or go while it is opened. */
#include "calls.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "qualify/qualify.h"

enum { CELLS = 3 };
static tp_cell cells[CELLS]; /* copies: their texts are the qualification's */
static tp_model *model;
static tp_identity *now;
static struct options usual; /* what all runs below have */

static void fresh(struct qualification *all) {
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    options.phases = TP_QUALIFY_PREFILL;
    *all = (struct qualification){.models = &model, .model_count = 1};
    assert_int_equal(tp_qualify_create(&model, 1, &options, &all->q, &error), TP_OK);
    for (int i = 0; i < CELLS; i++) {
        assert_non_null(tp_qualification_cell(all->q, i));
        cells[i] = *tp_qualification_cell(all->q, i);
        cells[i].struct_size = sizeof cells[i];
    }
}

static int begin(struct journal *one, const struct options *options, struct qualification *all) {
    fresh(all);
    int code = journal_open(one, options, all);
    return code ? code : journal_begin(one, options, now, all);
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
    tp_qualification_destroy(all.q);
    return code;
}

static void lines_are_on_the_disk(void **state) {
    int64_t resumed;
    (void)state;
    calls_arm(0, 0);
    assert_int_equal(journal("j", 0, 3, 0, &resumed), EXIT_FINE);
    assert_string_equal(calls_asked, "ofdfff"); /* its first lines and its name, then each cell */
    assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE);
    assert_true(resumed == 3 && folder_entries() == 1);
    assert_int_equal(journal("j", 1, 0, 1, &resumed), EXIT_FINE);
    assert_true(resumed == 3 && folder_entries() == 0);
    assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE); /* none there: begins anew, and holds no cell */
    assert_true(resumed == 0 && folder_entries() == 0);
}

static void a_failed_journal(void **state) {
    int64_t resumed;
    (void)state;
    for (int nth = 1; nth <= 4; nth++) {
        calls_arm('f', nth);
        assert_int_not_equal(journal("j", 0, 3, 1, &resumed), EXIT_FINE);
        calls_arm(0, 0);
        assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE); /* what was written counts */
        assert_int_equal(resumed, nth - 1);
        folder_clear();
    }
}

/* The lock of a file that has lost its name is worth nothing: the one that is there is opened. */
static void a_journal_that_goes(void **state) {
    int64_t resumed;
    (void)state;
    for (int times = 1; times < 6; times++) {
        assert_int_equal(journal("j", 0, 1, 0, &resumed), EXIT_FINE);
        calls_ends = times;
        assert_int_equal(journal("j", 0, 2, 0, &resumed), EXIT_FINE);
        assert_int_equal(calls_ends, 0);
        assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE);
        assert_int_equal(resumed, 2);
        folder_clear();
    }
    calls_ends = 1000;
    assert_int_equal(journal("j", 0, 1, 0, &resumed), EXIT_USAGE);
    assert_true(calls_ends > 0);
    calls_ends = 0;
    folder_clear();
}

static int add_cell(double error) {
    struct journal one;
    struct options options = {.journal = "j"};
    struct qualification all;
    int code = begin(&one, &options, &all);
    cells[0].error = error;
    assert_int_equal(code, EXIT_FINE);
    listen_in();
    code = journal_add(&one, &cells[0]);
    listen_out();
    journal_close(&one, 1);
    tp_qualification_destroy(all.q);
    return code;
}

static void cells_that_cannot_be_written(void **state) {
    (void)state;
    assert_int_equal(add_cell(NAN), EXIT_FAILED);
    assert_non_null(strstr(said, "j could not be written: a number is not finite, or a text is not UTF-8 (cell "));
    calls_arm('f', 2);
    assert_int_equal(add_cell(0), EXIT_FAILED);
    assert_non_null(strstr(said, "j could not be written: Input/output error"));
    calls_arm(0, 0);
    assert_int_equal(folder_entries(), 0);
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
    file_put("letter", "a letter");
    assert_int_equal(symlink("j", "soft"), 0);
    assert_int_equal(symlink("none", "dangling"), 0);
    static const char *const names[] = {"letter", "soft", "dangling", ".", "/dev/null"};
    for (int i = 0; i < 10; i++) assert_int_equal(journal(names[i / 2], i % 2, 0, 1, &resumed), EXIT_USAGE);
    assert_true(file_holds("letter", "a letter") && folder_entries() == 4);
    folder_clear();
}

/* A folder that may be written and not read is no failure. */
static void a_folder_that_is_not_read(void **state) {
    int64_t resumed;
    (void)state;
    calls_folder_errno = EACCES;
    assert_int_equal(journal("j", 0, 1, 0, &resumed), EXIT_FINE);
    calls_folder_errno = 0;
    assert_int_equal(folder_entries(), 1);
    folder_clear();
}

static void cut_anywhere(void **state) {
    static char text[8192], part[8192];
    int64_t resumed;
    (void)state;
    calls_arm(0, 0);
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
        file_put("j", part);
        assert_int_equal(journal("j", 1, 0, 0, &resumed), EXIT_FINE);
        assert_int_equal(resumed, lines > 2 ? lines - 2 : 0);
    }
    folder_clear();
}

static int prepare(void **state) {
    tp_error error = TP_ERROR_INIT;
    model = support_model("{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0\", \"problem\": \"h1/1 d8 f32\"}]}");
    assert_int_equal(tp_identity_detect(NULL, &now, &error), TP_OK);
    return folder_enter(state);
}

static int end(void **state) {
    tp_identity_destroy(now);
    tp_model_destroy(model);
    return folder_leave(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_on_the_disk),
        cmocka_unit_test(a_failed_journal),
        cmocka_unit_test(a_journal_that_goes),
        cmocka_unit_test(cells_that_cannot_be_written),
        cmocka_unit_test(others_are_refused),
        cmocka_unit_test(a_folder_that_is_not_read),
        cmocka_unit_test(cut_anywhere),
    };
    return cmocka_run_group_tests(tests, prepare, end);
}
