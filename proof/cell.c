/* SPDX-License-Identifier: Apache-2.0 */
/* A cell as a record: of a lock, of a journal. */
#include <stddef.h>
#include <string.h>

#include "record.h"

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

#define AT(name, type) {#name, type, 0, 0, offsetof(tp_cell, name), sizeof(((tp_cell *)0)->name)}
#define MAYBE(name, type) {#name, type, 1, 0, offsetof(tp_cell, name), sizeof(((tp_cell *)0)->name)}
#define SEEN(name, type) {#name, type, 1, 1, offsetof(tp_cell, name), sizeof(((tp_cell *)0)->name)}
/* The word that locks have, of a field with another name. */
#define WRITTEN(word, name) {word, TP__INT64, 1, 0, offsetof(tp_cell, name), sizeof(((tp_cell *)0)->name)}
const tp__field tp__cell_fields[] = {
    AT(problem, TP__TEXT),
    AT(phase, TP__PHASE),
    AT(purpose, TP__TEXT),
    MAYBE(shows, TP__TEXT),
    AT(gain, TP__REAL),
    MAYBE(timed, TP__INT32),
    AT(status, TP__STATUS),
    MAYBE(kernel, TP__TEXT),
    MAYBE(numerics_id, TP__TEXT),
    MAYBE(output, TP__TEXT),
    MAYBE(error, TP__REAL),
    MAYBE(allowed, TP__REAL),
    WRITTEN("tiles_full", panels_full),
    WRITTEN("tiles_partial", panels_partial),
    WRITTEN("tiles_skipped", panels_skipped),
    MAYBE(bytes, TP__INT64),
    MAYBE(scratch, TP__INT64),
    MAYBE(reason, TP__TEXT),
    SEEN(time_ns, TP__REAL),
    SEEN(gain_over_math, TP__REAL),
    {NULL, TP__TEXT, 0, 0, 0, 0},
};

tp_status tp_cell_write(const tp_cell *cell, int measured, tp_write write, void *cookie) {
    if (!cell || cell->struct_size < sizeof *cell || !write) return TP_INVALID;
    tp_status status;
    json_t *record = tp__record_make(tp__cell_fields, cell, measured, &status);
    if (!record) return status;
    tp__page page = {0};
    tp__page_json(&page, record, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(record);
    return tp__page_give(&page, write, cookie);
}

tp_status tp_cell_parse(const char *text, size_t size, const char *name, int line, tp_cell *cell,
                        tp_error *error) {
    tp__file file = {text, name ? name : "cell", size, line > 0 ? line - 1 : 0, error};
    tp__path path = {.depth = 0};
    if (!text || !cell) return tp__proof_fail(error, TP_INVALID, "text and cell must be given");
    memset(cell, 0, sizeof *cell);
    cell->struct_size = sizeof *cell;
    json_t *record;
    TP_TRY(tp__file_load(&file, 1u << 16, &record));
    tp_status status = tp__record_read(&file, &path, record, tp__cell_fields, cell);
    json_decref(record);
    return status;
}
