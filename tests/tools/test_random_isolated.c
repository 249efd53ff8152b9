/* SPDX-License-Identifier: Apache-2.0 */
/* The child processes of `tileproof check --random`, with trials that end as the test says and forks that fail. */
#include "support/call.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check/random.h"
#include "harness/limits.h"

/* What a child does. */
static enum { PASSES, DIES, DIES_AFTERWARDS, HANGS, DIES_AT_ITS_END, SECOND_FAILS } manner;
static int forks, forks_left; /* made; that do not fail */
static int tries;             /* in this process */
static char complaint[400];
static int64_t passed, failed;
static struct finding last;
static pid_t *hanging; /* shared: who hangs */

pid_t __real_fork(void);
pid_t __wrap_fork(void);
pid_t __wrap_fork(void) {
    if (forks_left-- > 0) return forks++, __real_fork();
    errno = EAGAIN;
    return -1;
}

int __wrap_subject_create(struct subject *subject, struct check_env *env, const struct trial *trial);
int __wrap_subject_try(struct subject *subject);
void __wrap_subject_destroy(struct subject *subject);
void __wrap_workspace_free(struct workspace *workspace);
void __wrap_complain(const char *format, ...);

int __wrap_subject_create(struct subject *subject, struct check_env *env, const struct trial *trial) {
    *subject = (struct subject){.env = env, .trial = trial};
    return 0;
}
int __wrap_subject_try(struct subject *subject) {
    if (manner == DIES) abort();
    if (manner == HANGS)
        for (*hanging = getpid();;) pause();
    snprintf(subject->env->reason, sizeof subject->env->reason, "wrong");
    return manner == SECOND_FAILS && ++tries == 2;
}
void __wrap_subject_destroy(struct subject *subject) {
    (void)subject;
    if (manner == DIES_AFTERWARDS) abort();
}
void __wrap_workspace_free(struct workspace *workspace) {
    (void)workspace;
    if (manner == DIES_AT_ITS_END) _exit(7);
}
void __wrap_complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(complaint, sizeof complaint, format, arguments);
    va_end(arguments);
}

static const tp_kernel_info kernel = {.name = "one", .strategy = "prefill", .dtypes = ~0u, .ops = ~0u};
static const struct check_kernels kernels = {.selected = {&kernel}, .count = 1};

static void note(void *user, const struct finding *finding) {
    (void)user;
    passed += finding->verdict == TRIAL_PASSED;
    failed += finding->verdict == TRIAL_FAILED;
    if (finding->verdict == TRIAL_FAILED) last = *finding;
}
/* Longer than a trial may take, once. */
static void note_slowly(void *user, const struct finding *finding) {
    if (!passed) sleep(3);
    note(user, finding);
}

static struct isolated begin(int how, int with_forks) {
    manner = how;
    forks = 0;
    forks_left = with_forks;
    passed = failed = 0;
    complaint[0] = 0;
    last = (struct finding){0};
    return (struct isolated){
        .kernels = &kernels, .seed = 1, .count = 3, .threads = 1, .workers = 1, .patience = 1, .found = note};
}

static void try_one(int how, int with_forks, struct finding *finding) {
    struct isolated isolated = begin(how, with_forks);
    struct trial trial;
    trial_draw(&trial, 1, 0);
    isolated_one(&isolated, &trial, 0, finding);
}

static void no_child_is_a_failure(void **state) {
    struct finding finding;
    (void)state;
    try_one(PASSES, 0, &finding);
    assert_int_equal(finding.verdict, TRIAL_FAILED);
    assert_non_null(strstr(finding.reason, "no child process can be made: "));
    struct isolated isolated = begin(PASSES, 0);
    assert_int_equal(isolated_walk(&isolated), EXIT_FAILED);
    assert_non_null(strstr(complaint, "no child process can be made: "));
}

static void what_ends_well_passes(void **state) {
    struct finding finding;
    (void)state;
    try_one(PASSES, 1, &finding);
    assert_int_equal(finding.verdict, TRIAL_PASSED);
    struct isolated isolated = begin(PASSES, 1);
    assert_int_equal(isolated_walk(&isolated), EXIT_FINE);
    assert_true(passed == 3 && failed == 0 && !complaint[0]);
}

static void a_death_after_the_finding_counts(void **state) {
    struct finding finding;
    (void)state;
    try_one(DIES_AFTERWARDS, 1, &finding);
    assert_int_equal(finding.verdict, TRIAL_FAILED);
    assert_int_equal(finding.died, SIGABRT);
    struct isolated isolated = begin(DIES_AFTERWARDS, 100);
    isolated_walk(&isolated);
    assert_int_equal(failed, 3);
}

/* Made smaller, each try would take as long. */
static void a_hang_is_ended_and_left_as_it_is(void **state) {
    struct finding finding;
    struct trial trial;
    (void)state;
    try_one(HANGS, 1, &finding);
    assert_true(finding.verdict == TRIAL_FAILED && finding.late);
    struct isolated isolated = begin(HANGS, 100);
    trial_draw(&trial, 1, 0);
    shrink(&isolated, &trial, &finding);
    assert_int_equal(forks, 0);
    isolated.count = 1;
    isolated_walk(&isolated);
    assert_true(failed == 1 && last.late);
}

/* The pipe holds fewer findings than there are. */
static void a_worker_that_waits_for_its_parent_does_not_hang(void **state) {
    (void)state;
    struct isolated isolated = begin(PASSES, 1);
    isolated.count = 400;
    isolated.found = note_slowly;
    assert_int_equal(isolated_walk(&isolated), EXIT_FINE);
    assert_true(passed == 400 && failed == 0);
}

static void a_worker_that_is_lost_is_named(void **state) {
    (void)state;
    struct isolated isolated = begin(DIES_AT_ITS_END, 1);
    assert_int_equal(isolated_walk(&isolated), EXIT_FAILED);
    assert_string_equal(complaint, "a worker ended with exit code 7 between two problems");
    isolated = begin(DIES, 1); /* and no other can take its place */
    assert_int_equal(isolated_walk(&isolated), EXIT_FAILED);
    assert_int_equal(failed, 1);
    assert_non_null(strstr(complaint, "no child process can be made: "));
}

static void children_end_with_their_parent(void **state) {
    struct finding finding;
    (void)state;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    *hanging = 0;
    pid_t parent = __real_fork();
    if (parent == 0) {
        struct isolated isolated = begin(HANGS, 1);
        struct trial trial;
        isolated.patience = 100;
        trial_draw(&trial, 1, 0);
        isolated_one(&isolated, &trial, 0, &finding);
        _exit(0);
    }
    while (!*(volatile pid_t *)hanging) usleep(1000);
    int status = 0;
    pid_t child = *hanging;
    kill(parent, SIGKILL);
    waitpid(parent, &status, 0);
    assert_int_equal(waitpid(child, &status, 0), child); /* it is ours now, and ends by itself */
    assert_true(WIFSIGNALED(status));
}

static void a_failure_that_needs_the_trials_before_it(void **state) {
    struct options options = {.random = 3, .seed = 1};
    char text[8192] = "";
    (void)state;
    begin(SECOND_FAILS, 100);
    FILE *file = tmpfile();
    int out = dup(1);
    fflush(stdout);
    dup2(fileno(file), 1);
    int code = command_check_random(&options, &kernels, 1);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    rewind(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_int_equal(code, EXIT_FAILED);
    assert_non_null(strstr(text, "  alone it passes: tileproof check --random 2 --seed 1 --threads 1\n"));
    assert_null(strstr(text, "made small"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_child_is_a_failure),
        cmocka_unit_test(what_ends_well_passes),
        cmocka_unit_test(a_death_after_the_finding_counts),
        cmocka_unit_test(a_hang_is_ended_and_left_as_it_is),
        cmocka_unit_test(a_worker_that_waits_for_its_parent_does_not_hang),
        cmocka_unit_test(a_worker_that_is_lost_is_named),
        cmocka_unit_test(children_end_with_their_parent),
        cmocka_unit_test(a_failure_that_needs_the_trials_before_it),
    };
    hanging = mmap(NULL, sizeof *hanging, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return hanging == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
