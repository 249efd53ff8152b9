/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: any bytes as a journal, and as a lock, for the two stand side by side. Either the whole lines are
 * read, and reading them again gives the same, or there is a reason that names the file; and what is a lock, or a
 * config, is never taken for a journal, which would be written over.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "qualify/journal_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
    if (!condition) abort();
}

static void count(void *user, const tp_cell *cell) {
    require(cell->struct_size == sizeof *cell && cell->problem[0] != 0);
    require(tp_qualify_phase_name(cell->phase)[0] != 0 && cell->gain >= 0);
    ++*(int *)user;
}

static int read_once(const char *text, size_t size, int *cells, size_t *kept) {
    char reason[LINES_REASON] = "";
    json_t *terms = json_pack("{s:s,s:s}", "build", "b1", "--disable", "");
    *cells = 0;
    int wrong = journal_read(text, size, "fuzz", terms, count, cells, kept, reason);
    json_decref(terms);
    require(wrong == !!wrong && (wrong ? !strncmp(reason, "fuzz", 4) && strlen(reason) > 6 : !reason[0]));
    return wrong;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    int cells, again;
    size_t kept, all;
    if (!read_once(text, size, &cells, &kept)) {
        require(journal_is_one(text, size) && kept <= size && (!kept || text[kept - 1] == '\n'));
        require(!read_once(text, kept, &again, &all) && again == cells && all == kept);
        require(!memchr(text + kept, '\n', size - kept) || !kept);
    }
    tp_lock *lock;
    tp_model *model;
    if (tp_lock_parse(text, size, "fuzz", &lock, NULL) == TP_OK) require(!journal_is_one(text, size));
    if (tp_model_parse(text, size, "fuzz", &model, NULL) == TP_OK) require(!journal_is_one(text, size));
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    return 0;
}
