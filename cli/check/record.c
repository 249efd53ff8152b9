/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --record: the cases that a device's kernel passed, as a revision of a lock. Its mode is "check", so that neither qualify nor
 * canary takes it for cells of a model; its config names the kind of device, and "quick" or "part" where not every case was run.
 * A cell is a problem: the cases that share it are one. tool/evidence.c makes labels of it.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "check/check.h"
#include "qualify/qualify.h"
#include "tool/device.h"
#include "tool/evidence.h"
#include "tool/files.h"
#include "tool/guard.h"

int check_record_asked(const struct options *options) {
    const char *problem = !options->record   ? NULL
                          : !options->device ? "needs --device: it records that a device was checked"
                          : options->list    ? "is of cases that are run: not with --list"
                          : *device_absent() ? device_absent()
                                             : NULL;
    if (!problem) return EXIT_FINE;
    complain("--record %s: %s", options->record, problem);
    return options->device && *device_absent() ? EXIT_REFUSED : EXIT_USAGE;
}

/* A problem's worst case: one that fails, then one that passed, then those that are refused. */
static int worse(const struct outcome_of *a, const struct outcome_of *b) {
    static const int rank[] = {[NOT_SELECTED] = 0, [BEYOND_LIMIT] = 1, [PASSED] = 2, [FAILED] = 3};
    return rank[a->outcome] > rank[b->outcome];
}

static int by_problem(const void *a, const void *b) {
    const struct check_case *left = *(const struct check_case *const *)a, *right = *(const struct check_case *const *)b;
    int order = strcmp(left->text, right->text);
    return order ? order : left < right ? -1 : 1;
}

static tp_status put_cell(tp_lock *lock, const char *isa, const struct check_case *test, const struct outcome_of *outcome,
                          tp_error *error) {
    static const int32_t statuses[] = {[BEYOND_LIMIT] = TP_CELL_UNSUPPORTED, [PASSED] = TP_CELL_QUALIFIED};
    static const int32_t layer = 0;
    tp_layer_group group = {.struct_size = sizeof group, .part = TP_PART_TEXT, .layer_count = 1, .layers = &layer};
    tp_cell cell = TP_CELL_INIT;
    cell.status = statuses[outcome->outcome];
    cell.phase = test->problem.q_len == 1 ? TP_QUALIFY_DECODE : TP_QUALIFY_PREFILL;
    cell.problem = test->text;
    cell.purpose = "check";
    cell.kernel = outcome->outcome == PASSED ? "opencl" : "";
    cell.reason = outcome->reason ? outcome->reason : "";
    tp_status status = tp_lock_put_use(lock, CHECKED_MODEL, &group, &cell, error);
    return status == TP_OK ? tp_lock_put_cell(lock, isa, &cell, error) : status;
}

static tp_status put_cells(tp_lock *lock, const char *isa, const struct check_list *list, const struct outcome_of *outcomes,
                           tp_error *error) {
    const struct check_case **sorted = malloc((list->count + 1) * sizeof *sorted);
    tp_status status = sorted ? TP_OK : TP_NO_MEMORY;
    if (!sorted) *error = (tp_error){sizeof *error, TP_NO_MEMORY, "no memory for the record"};
    for (size_t i = 0; sorted && i < list->count; i++) sorted[i] = &list->cases[i];
    if (sorted) qsort(sorted, list->count, sizeof *sorted, by_problem);
    for (size_t i = 0, next; status == TP_OK && i < list->count; i = next) {
        const struct outcome_of *worst = &outcomes[sorted[i] - list->cases];
        for (next = i + 1; next < list->count && !strcmp(sorted[next]->text, sorted[i]->text); next++)
            if (worse(&outcomes[sorted[next] - list->cases], worst)) worst = &outcomes[sorted[next] - list->cases];
        if (worst->outcome != NOT_SELECTED) status = put_cell(lock, isa, sorted[i], worst, error);
    }
    free(sorted);
    return status;
}

static tp_status put_revision(tp_lock *lock, const struct options *options, const struct check_list *list,
                              const struct outcome_of *outcomes, tp_error *error) {
    tp_identity *here = NULL, now;
    char config[64], date[32], reason[80];
    bench_date(date);
    date[10] = 0;
    int part = options->case_name || options->mask;
    snprintf(config, sizeof config, "%s%s", device_kind(), part ? "-part" : options->quick ? "-quick" : "");
    snprintf(reason, sizeof reason, "tileproof check --device%s --record", part ? " --case" : options->quick ? " --quick" : "");
    tp_status status = tp_identity_detect(NULL, &here, error);
    if (status != TP_OK) return status;
    device_identity(here, &now);
    now.mode = CHECKED_MODE;
    status = tp_lock_put_model(lock, CHECKED_MODEL, config, error);
    if (status == TP_OK) status = put_cells(lock, now.isa, list, outcomes, error);
    if (status == TP_OK) status = tp_lock_finish(lock, &now, date, reason, error);
    tp_identity_destroy(here);
    return status;
}

static int update(const struct options *options, const struct check_list *list, const struct outcome_of *outcomes) {
    tp_lock *lock = NULL;
    tp_error error = TP_ERROR_INIT;
    int code = lock_read_or_create(options->record, &lock);
    if (!code && put_revision(lock, options, list, outcomes, &error) != TP_OK) code = complain_status(&error);
    if (!code) code = lock_write_file(options->record, lock);
    if (!code) lock_say_change(options->record, lock, lock_changes(lock) - 1);
    tp_lock_destroy(lock);
    return code;
}

int check_record(const struct options *options, const struct check_list *list, const struct outcome_of *outcomes) {
    struct guard guard = {0};
    long passed = 0, failed = 0;
    for (size_t i = 0; i < list->count; i++) {
        passed += outcomes[i].outcome == PASSED;
        failed += outcomes[i].outcome == FAILED;
    }
    if (failed || !passed) {
        complain("--record %s: nothing is recorded, %ld cases passed and %ld failed", options->record, passed, failed);
        return EXIT_FAILED;
    }
    int code = guard_take(&guard, options->record, 60);
    if (!code) code = update(options, list, outcomes);
    guard_release(&guard);
    return code;
}
