/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/files.h"
#include "qualify/qualify.h"

#include <stdlib.h>
#include <string.h>

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

static void note(char *text, size_t size, const char *what, int64_t locked, int64_t now) {
    size_t used = strlen(text);
    if (locked == now) return;
    snprintf(text + used, size - used, "%s%s: lock has %lld, here %lld", used ? "; " : "", what,
             (long long)locked, (long long)now);
}

tp_cell_status lock_compare(const tp_cell *locked, const tp_cell *now, char *text, size_t size) {
    text[0] = 0;
    if (now->status != TP_CELL_QUALIFIED && now->status != TP_CELL_QUALIFIED_FALLBACK) {
        if (now->status == locked->status) return TP_CELL_QUALIFIED; /* as bad as the lock says */
        snprintf(text, size, "%s", now->reason);
        return (tp_cell_status)now->status;
    }
    if (strcmp(locked->kernel, now->kernel) || locked->status != now->status) {
        snprintf(text, size, "lock has %s %s, here %s %s", locked->kernel,
                 tp_cell_status_name((tp_cell_status)locked->status), now->kernel,
                 tp_cell_status_name((tp_cell_status)now->status));
        /* a fallback that the lock does not know is as good as unqualified */
        return now->status == TP_CELL_QUALIFIED_FALLBACK ? TP_CELL_UNSUPPORTED : TP_CELL_STALE;
    }
    note(text, size, "panels full", locked->panels_full, now->panels_full);
    note(text, size, "panels partial", locked->panels_partial, now->panels_partial);
    note(text, size, "panels skipped", locked->panels_skipped, now->panels_skipped);
    note(text, size, "bytes", locked->bytes, now->bytes);
    note(text, size, "scratch", locked->scratch, now->scratch);
    if (text[0]) return TP_CELL_STALE;
    if (strcmp(locked->output, now->output) || strcmp(locked->numerics_id, now->numerics_id)) {
        snprintf(text, size, "other bits, within the rule: error %.3g, lock has %.3g; numerics %s, lock has %s",
                 now->error, locked->error, now->numerics_id, locked->numerics_id);
        return TP_CELL_NUMERICS_CHANGED;
    }
    return TP_CELL_QUALIFIED;
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
