/* SPDX-License-Identifier: Apache-2.0 */
/* Locks as files; cells that were run, compared with a lock or written into it. */
#include "qualify/qualify.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "tool/files.h"
#include "tool/guard.h"

int lock_read_file(const char *path, tp_lock **lock) {
    tp_error error = TP_ERROR_INIT;
    size_t size;
    char *text = file_text(path, TP_LOCK_MAX_BYTES, &size);
    if (!text) return EXIT_USAGE;
    tp_status status = tp_lock_parse(text, size, path, lock, &error);
    free(text);
    return status == TP_OK ? EXIT_FINE : complain_status(&error);
}

int lock_write_file(const char *path, const tp_lock *lock) {
    struct atomic_file file;
    int code = file_open(&file, path);
    if (code) return code;
    int written = tp_lock_write(lock, write_to_file, file.stream) == TP_OK;
    if (!written) complain("%s could not be written", path);
    code = file_close(&file, written);
    return written ? code : EXIT_FAILED;
}

int lock_wait_seconds(const struct options *options, double *seconds) {
    int code = parse_seconds("--wait", options->wait, seconds);
    if (!options->wait) *seconds = 60;
    return code;
}

enum { NAMED = 4 }; /* more than so many would hide the rest */

int64_t lock_changes(const tp_lock *lock) {
    tp_lock_history past = TP_LOCK_HISTORY_INIT;
    int64_t count = 0;
    while (tp_lock_history_at(lock, count, &past) == TP_OK) count++;
    return count;
}

void lock_say_change(const char *path, const tp_lock *lock, int64_t index) {
    tp_lock_history past = TP_LOCK_HISTORY_INIT;
    int revisions = 1;
    if (tp_lock_history_at(lock, index, &past) != TP_OK) return;
    for (const char *c = past.revisions; *c; c++) revisions += *c == ',';
    fprintf(stderr, "%s: %s", path, past.cells);
    if (revisions > NAMED)
        fprintf(stderr, " of %d revisions (tileproof lock list names them)", revisions);
    else
        fprintf(stderr, "%s%s", *past.revisions ? " of " : "", past.revisions);
    fprintf(stderr, "%s%s\n", *past.dropped ? "; dropped " : "", past.dropped);
}

int lock_read_or_create(const char *path, tp_lock **lock) {
    tp_error error = TP_ERROR_INIT;
    if (!access(path, F_OK)) return lock_read_file(path, lock);
    return tp_lock_create(lock, &error) == TP_OK ? EXIT_FINE : complain_status(&error);
}

int qualify_open_lock(const struct options *options, tp_lock **lock) {
    *lock = NULL;
    if (!options->lock) return EXIT_FINE;
    if (options->update) { /* what cannot be written is said before the run, not after it */
        struct atomic_file file;
        int code = file_open(&file, options->lock);
        if (code) return code;
        file_close(&file, 0);
    }
    return options->update ? lock_read_or_create(options->lock, lock) : lock_read_file(options->lock, lock);
}

/* A model whose config the lock does not know, beside the last revision that it has of it, in words. */
static void say_differences(const struct qualification *all, const tp_lock *lock, const tp_identity *now) {
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_lock_revision mine = TP_LOCK_REVISION_INIT, other = TP_LOCK_REVISION_INIT;
    tp_lock *made = NULL;
    update.date = "here", update.reason = "compared";
    if (tp_lock_create(&made, NULL) != TP_OK || tp_qualify_update(all->q, made, now, &update, NULL) != TP_OK) {
        tp_lock_destroy(made);
        return;
    }
    for (int64_t i = 0; tp_lock_revision_at(made, i, &mine) == TP_OK; i++) {
        int64_t last = -1;
        int known = 0;
        for (int64_t k = 0; tp_lock_revision_at(lock, k, &other) == TP_OK; k++) {
            if (strcmp(other.model, mine.model) || strcmp(other.engine, mine.engine)) continue;
            known |= !strcmp(other.config_hash, mine.config_hash) && !strcmp(other.cache, mine.cache);
            last = k;
        }
        if (last >= 0 && !known) tp_lock_diff(lock, last, made, i, TP_TEXT, write_to_file, stderr);
    }
    tp_lock_destroy(made);
}

int qualify_compare(struct qualification *all, const tp_lock *lock, const tp_identity *now) {
    tp_error error = TP_ERROR_INIT;
    const char *note;
    int code = EXIT_FINE;
    tp_status status = tp_qualify_compare(all->q, lock, now, &error);
    if (status != TP_OK && status != TP_NOT_LOCKED) return complain_status(&error);
    for (int i = 0; (note = tp_qualification_note(all->q, i)); i++) {
        complain("the lock is STALE: %s", note);
        code = EXIT_LOCK;
    }
    if (code) say_differences(all, lock, now);
    return code;
}

static int update_lock(const struct qualification *all, const struct options *options, const tp_identity *now) {
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock = NULL;
    char date[32];
    int code = lock_read_or_create(options->lock, &lock);
    bench_date(date);
    date[10] = 0;
    update.date = date;
    update.reason = options->reason;
    update.keep = (int32_t)options->keep;
    update.served_only = !options->accept_unsupported;
    if (!code && tp_qualify_update(all->q, lock, now, &update, &error) != TP_OK) code = complain_status(&error);
    if (!code) code = lock_write_file(options->lock, lock);
    if (!code) lock_say_change(options->lock, lock, lock_changes(lock) - 1);
    tp_lock_destroy(lock);
    return code;
}

int qualify_update(const struct qualification *all, const struct options *options, const tp_identity *now) {
    struct guard guard = {0};
    double seconds;
    int code = lock_wait_seconds(options, &seconds);
    if (!code) code = guard_take(&guard, options->lock, seconds);
    if (!code) code = update_lock(all, options, now);
    guard_release(&guard);
    return code;
}

int cell_exit_code(int status) {
    static const int codes[] = {
        [TP_CELL_NOT_RUN] = EXIT_AMBIGUOUS,     [TP_CELL_QUALIFIED] = EXIT_FINE,
        [TP_CELL_QUALIFIED_FALLBACK] = EXIT_FINE, [TP_CELL_NUMERIC_FAIL] = EXIT_FAILED,
        [TP_CELL_UNSUPPORTED] = EXIT_REFUSED,   [TP_CELL_MISTRUSTED] = EXIT_AMBIGUOUS,
        [TP_CELL_STALE] = EXIT_LOCK,            [TP_CELL_NUMERICS_CHANGED] = EXIT_LOCK};
    return codes[status];
}

/* What is wrong counts most, then what is refused, what differs, what is not known. */
int worse_exit(int a, int b) {
    static const int order[] = {EXIT_USAGE, EXIT_FAILED, EXIT_REFUSED, EXIT_LOCK, EXIT_AMBIGUOUS};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (a == order[i] || b == order[i]) return order[i];
    return EXIT_FINE;
}
