/* SPDX-License-Identifier: Apache-2.0 */
/* Locks as files; cells that were run, compared with a lock or written into it. */
#include "qualify/qualify.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "tool/files.h"

int lock_read_file(const char *path, tp_lock **lock) {
    tp_error error = TP_ERROR_INIT;
    size_t size;
    char *text = file_text(path, TP_LOCK_MAX_BYTES, &size);
    if (!text) return EXIT_USAGE;
    tp_status status = tp_lock_parse(text, size, path, lock, &error);
    free(text);
    return status == TP_OK ? EXIT_FINE : complain_status(&error);
}

static int lock_write_file(const char *path, const tp_lock *lock) {
    struct atomic_file file;
    int code = file_open(&file, path);
    if (code) return code;
    int written = tp_lock_write(lock, write_to_file, file.stream) == TP_OK;
    if (!written) complain("%s could not be written", path);
    code = file_close(&file, written);
    return written ? code : EXIT_FAILED;
}

int qualify_open_lock(const struct options *options, tp_lock **lock) {
    tp_error error = TP_ERROR_INIT;
    *lock = NULL;
    if (!options->lock) return EXIT_FINE;
    if (options->update) { /* what cannot be written is said before the run, not after it */
        struct atomic_file file;
        int code = file_open(&file, options->lock);
        if (code) return code;
        file_close(&file, 0);
    }
    if (!options->update || !access(options->lock, F_OK)) return lock_read_file(options->lock, lock);
    return tp_lock_create(lock, &error) == TP_OK ? EXIT_FINE : complain_status(&error);
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
    return code;
}

int qualify_update(const struct qualification *all, const struct options *options, tp_lock *lock,
                   const tp_identity *now) {
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_error error = TP_ERROR_INIT;
    char date[32];
    bench_date(date);
    date[10] = 0;
    update.date = date;
    update.reason = options->reason;
    if (tp_qualify_update(all->q, lock, now, &update, &error) != TP_OK) return complain_status(&error);
    return lock_write_file(options->lock, lock);
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
