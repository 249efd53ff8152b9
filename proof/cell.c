/* SPDX-License-Identifier: Apache-2.0 */
/* A cell as a record: of a lock, of a journal. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "record.h"
#include "sized.h"

static const char *const status_names[] = {
    "NOT_RUN",     "QUALIFIED",  "QUALIFIED_FALLBACK", "NUMERIC_FAIL",
    "UNSUPPORTED", "MISTRUSTED", "STALE",              "NUMERICS_CHANGED"};
enum { STATUS_COUNT = sizeof status_names / sizeof *status_names };

const char *tp_cell_status_name(tp_cell_status status) {
    return (unsigned)status < STATUS_COUNT ? status_names[status] : "STATUS?";
}

int tp_cell_status_parse(const char *name, int32_t *status) {
    for (int i = 0; name && i < STATUS_COUNT; i++)
        if (!strcmp(name, status_names[i])) {
            *status = i;
            return 0;
        }
    return 1;
}

int tp_cell_status_rank(tp_cell_status status) {
    static const int order[] = {TP_CELL_QUALIFIED, TP_CELL_QUALIFIED_FALLBACK, TP_CELL_NUMERICS_CHANGED, TP_CELL_STALE,
                                TP_CELL_NOT_RUN,   TP_CELL_MISTRUSTED,         TP_CELL_UNSUPPORTED,      TP_CELL_NUMERIC_FAIL};
    int rank = 0;
    while (rank + 1 < STATUS_COUNT && order[rank] != (int)status) rank++;
    return rank;
}

static const char *const kept_names[] = {"", "kept", "leaks", "varies"};
const char *tp_kept_name(tp_kept kept) { return (unsigned)kept < 4 ? kept_names[kept] : "kept?"; }

enum { MAX_PROBLEM = 511, MAX_WORD = 63, MAX_NAME = 255, MAX_HASH = 64, MAX_REASON = 1023 };
#define FIELD(name, type, optional, measured, max) {#name, type, optional, measured, offsetof(tp_cell, name), (max) + 1}
#define AT(name, type) FIELD(name, type, 0, 0, 0)
#define MAYBE(name, type) FIELD(name, type, 1, 0, 0)
#define SEEN(name, type) FIELD(name, type, 1, 1, 0)
/* The word that locks have, of a field with another name. */
#define WRITTEN(word, name) {word, TP__INT64, 1, 0, offsetof(tp_cell, name), 0}
const tp__field tp__cell_fields[] = {
    FIELD(problem, TP__TEXT, 0, 0, MAX_PROBLEM),
    AT(phase, TP__PHASE),
    FIELD(purpose, TP__TEXT, 0, 0, MAX_WORD),
    FIELD(shows, TP__TEXT, 1, 0, MAX_WORD),
    AT(gain, TP__REAL),
    MAYBE(timed, TP__INT32),
    AT(status, TP__STATUS),
    FIELD(kernel, TP__TEXT, 1, 0, MAX_NAME),
    FIELD(numerics_id, TP__TEXT, 1, 0, MAX_NAME),
    FIELD(output, TP__TEXT, 1, 0, MAX_HASH),
    MAYBE(error, TP__REAL),
    MAYBE(allowed, TP__REAL),
    WRITTEN("tiles_full", panels_full),
    WRITTEN("tiles_partial", panels_partial),
    WRITTEN("tiles_skipped", panels_skipped),
    MAYBE(bytes, TP__INT64),
    MAYBE(scratch, TP__INT64),
    FIELD(reason, TP__TEXT, 1, 0, MAX_REASON),
    FIELD(rule, TP__TEXT, 1, 0, MAX_NAME),
    FIELD(observed, TP__TEXT, 1, 0, MAX_WORD),
    FIELD(engine_reasons, TP__TEXT, 1, 0, MAX_REASON),
    FIELD(doubt, TP__TEXT, 1, 0, MAX_NAME),
    MAYBE(contained, TP__KEPT),
    MAYBE(deterministic, TP__KEPT),
    MAYBE(empty_rows, TP__KEPT),
    MAYBE(temporary, TP__INT64),
    MAYBE(loss, TP__REAL),
    SEEN(time_ns, TP__REAL),
    SEEN(gain_over_math, TP__REAL),
    {NULL, TP__TEXT, 0, 0, 0, 0},
};

tp_status tp_cell_write(const tp_cell *given, int measured, tp_write write, void *cookie) {
    TP__IN_DEFAULT_FENV;
    tp_cell cell;
    if (!write) return TP_INVALID;
    TP_TRY(tp__take(&tp__cell_shape, given, &cell, NULL));
    TP_TRY(tp__record_check(tp__cell_fields, &cell, measured, NULL));
    json_t *record = tp__record_make(tp__cell_fields, &cell, measured);
    if (!record) return TP_NO_MEMORY;
    tp__page page = {0};
    tp__page_json(&page, record, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(record);
    return tp__page_give(&page, write, cookie);
}

tp_status tp_cell_parse(const char *text, size_t size, const char *name, int line, tp_cell **cell,
                        tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp__file file = {text, name ? name : "cell", size, line > 0 ? line - 1 : 0, error};
    tp__path path = {.depth = 0};
    tp_cell read = TP_CELL_INIT;
    if (cell) *cell = NULL;
    if (!text || !cell) return tp__proof_fail(error, TP_INVALID, "text and cell must be given");
    json_t *record;
    TP_TRY(tp__file_load(&file, 1u << 16, &record));
    tp_status status = tp__record_read(&file, &path, record, tp__cell_fields, &read);
    if (status == TP_OK && !(*cell = tp__pack(&tp__cell_shape, &read)))
        status = tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a cell");
    json_decref(record);
    return status;
}

void tp_cell_destroy(tp_cell *cell) { free(cell); }
