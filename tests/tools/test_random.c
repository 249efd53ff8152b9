/* SPDX-License-Identifier: Apache-2.0 */
/* What draws problems for `tileproof check --random`: every word of the text form comes up, a draw can be repeated from
   its number and from its text, and failures are made small. The runs themselves are tests/tools/random.sh. */
#include "support/call.h"

#include <string.h>

#include "check/random.h"

enum { DRAWS = 4000 };

/* In place of running a trial: it fails when it has all of these words. */
static const char *needed[4];
static int runs;

void __wrap_isolated_one(const struct isolated *isolated, const struct trial *trial, int kernel, struct finding *finding);
void __wrap_isolated_one(const struct isolated *isolated, const struct trial *trial, int kernel, struct finding *finding) {
    (void)isolated;
    *finding = (struct finding){.kernel = kernel, .verdict = TRIAL_FAILED, .reason = "wrong"};
    runs++;
    for (int i = 0; i < 4 && needed[i]; i++)
        if (!strstr(trial->text, needed[i])) finding->verdict = TRIAL_PASSED;
    if (trial->problem.kv_len < 5) finding->verdict = TRIAL_PASSED;
}

static struct cover *draw_many(uint64_t seed) {
    struct cover *cover = cover_new();
    assert_non_null(cover);
    for (int64_t i = 0; i < DRAWS; i++) {
        struct trial trial;
        trial_draw(&trial, seed, i);
        cover_add(cover, &trial);
    }
    return cover;
}

/* A word that the parser gets and the table of draws does not is found here. */
static void every_word_is_drawn(void **state) {
    static const struct check_kernels none = {0};
    (void)state;
    struct cover *cover = draw_many(1);
    assert_int_equal(cover_never(cover), 0);
    assert_int_equal(cover_print(cover, &none, 0), 0);
    cover_free(cover);
}

static int in_tree(const tp_problem *problem, int32_t kind) {
    for (int i = 0; i < problem->mask_nodes; i++)
        if (problem->mask[i].kind == kind) return 1;
    return 0;
}

/* By the library's own table of kinds. */
static void every_mask_kind_is_drawn(void **state) {
    (void)state;
    const tp_mask_info *info;
    for (int kind = 0; (info = tp_mask_at(kind)); kind++) {
        int alone = 0, joined = 0;
        for (int64_t i = 0; i < DRAWS && !(alone && joined); i++) {
            struct trial trial;
            trial_draw(&trial, 2, i);
            if (!in_tree(&trial.problem, info->kind)) continue;
            alone |= trial.problem.mask_nodes == 1;
            joined |= in_tree(&trial.problem, TP_MASK_OR) || in_tree(&trial.problem, TP_MASK_AND);
        }
        if (!alone || !joined) fail_msg("mask %s: alone %d, in a tree %d", info->name, alone, joined);
    }
}

static void a_draw_comes_again(void **state) {
    (void)state;
    for (int64_t i = 0; i < 300; i++) {
        struct trial once, again, read;
        char reason[256];
        trial_draw(&once, 7, i);
        trial_draw(&again, 7, i);
        assert_string_equal(once.text, again.text);
        assert_int_equal(once.seed, again.seed);
        assert_int_equal(trial_read(&read, once.text, once.seed, reason, sizeof reason), 0);
        assert_memory_equal(&read.problem, &once.problem, sizeof read.problem);
        assert_memory_equal(&read.style, &once.style, sizeof read.style);
        assert_true(read.values == once.values && read.nan == once.nan && read.hidden == once.hidden);
    }
}

static void other_seeds_draw_others(void **state) {
    (void)state;
    int same = 0;
    for (int64_t i = 0; i < 100; i++) {
        struct trial a, b;
        trial_draw(&a, 1, i);
        trial_draw(&b, 2, i);
        same += !strcmp(a.text, b.text);
    }
    assert_int_equal(same, 0);
}

/* A word that has no effect would be counted as if it had been tried. */
static void no_word_is_without_effect(void **state) {
    struct trial trial;
    char reason[256];
    (void)state;
    for (int64_t i = 0; i < DRAWS; i++) {
        trial_draw(&trial, 1, i);
        if (traits_clash(&trial, reason, sizeof reason)) fail_msg("#%d %s: %s", (int)i, trial.text, reason);
    }
    assert_int_equal(trial_read(&trial, "q4 d8 @broadcast @hidden", 1, reason, sizeof reason), 0);
    assert_int_not_equal(traits_clash(&trial, reason, sizeof reason), 0);
    assert_non_null(strstr(reason, "'@hidden'"));
}

static void shrink_to(const char *text, const char *expected) {
    struct trial trial;
    struct finding finding = {.verdict = TRIAL_FAILED, .reason = "wrong"};
    const struct isolated isolated = {0};
    char reason[256];
    assert_int_equal(trial_read(&trial, text, 3, reason, sizeof reason), 0);
    runs = 0;
    shrink(&isolated, &trial, &finding);
    assert_string_equal(trial.text, expected);
    assert_true(runs < 400);
}

static void failures_become_small(void **state) {
    (void)state;
    memcpy(needed, ((const char *[4]){"sinks", "@nan"}), sizeof needed);
    shrink_to("h12/3 d65/63 f32->f16 b2 q16 k300 causal window=20,3 spans-and padded sinks @i64 @nan @gain-4",
              "d1/1 q5 sinks @nan");
    memcpy(needed, ((const char *[4]){"bits"}), sizeof needed);
    shrink_to("h2/1 d3 bf16:f32:f16->f32 seqs=3x9/400,1x1/7,2x5/5 packed mask=causal,window:3:4,or,bits,and scale=0.5",
              "d1 seqs=1x0/5 packed mask=bits");
    memcpy(needed, ((const char *[4]){"first", "documents"}), sizeof needed);
    shrink_to("d3 q9 k40 mask=documents,window:3:4,or,bits,first:3,or,and", "d1 q5 mask=documents,first:0,and");
}

static void bad_texts(void **state) {
    struct trial trial;
    char reason[512], longer[600];
    (void)state;
    assert_int_not_equal(trial_read(&trial, "q5 d8 @nosuch", 1, reason, sizeof reason), 0);
    assert_non_null(strstr(reason, "'@nosuch' is unknown"));
    assert_non_null(strstr(reason, "@hidden"));
    assert_int_not_equal(trial_read(&trial, "q5 d0 @nan", 1, reason, sizeof reason), 0);
    assert_non_null(strstr(reason, "d0"));
    memset(longer, 'q', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_not_equal(trial_read(&trial, longer, 1, reason, sizeof reason), 0);
    assert_non_null(strstr(reason, "599 characters"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_word_is_drawn),  cmocka_unit_test(every_mask_kind_is_drawn),
        cmocka_unit_test(a_draw_comes_again),   cmocka_unit_test(other_seeds_draw_others),
        cmocka_unit_test(no_word_is_without_effect),
        cmocka_unit_test(failures_become_small), cmocka_unit_test(bad_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
