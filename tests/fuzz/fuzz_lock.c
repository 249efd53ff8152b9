/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a lock and as a line of a journal. Either it can be asked and written, and what
 * was written reads back the same, or there is a reason. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tileproof_proof.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
    if (!condition) abort();
}

struct text {
    char *bytes;
    size_t size;
};

static int collect(void *cookie, const char *bytes, size_t size) {
    struct text *text = cookie;
    char *more = realloc(text->bytes, text->size + size + 1);
    if (!more) return 1;
    text->bytes = more;
    memcpy(more + text->size, bytes, size);
    text->size += size;
    return 0;
}

static void check_lock(const tp_lock *lock) {
    struct text once = {NULL, 0}, twice = {NULL, 0};
    tp_error error = TP_ERROR_INIT;
    tp_identity *identity;
    tp_lock_use use = TP_LOCK_USE_INIT;
    tp_cell cell = TP_CELL_INIT;
    tp_lock *again;
    char why[256];
    for (int64_t i = 0; tp_lock_use_at(lock, i, &use) == TP_OK; i++) tp_lock_cell_find(lock, "avx2", use.problem, &cell);
    for (int64_t i = 0; tp_lock_cell_at(lock, "avx2", i, &cell) == TP_OK; i++) require(cell.problem[0] != 0);
    require(tp_identity_detect(NULL, &identity, &error) == TP_OK);
    tp_lock_fresh(lock, identity, why, sizeof why);
    tp_identity_destroy(identity);
    tp_lock_revision revision = TP_LOCK_REVISION_INIT;
    for (int64_t i = 0; tp_lock_revision_at(lock, i, &revision) == TP_OK && i < 8; i++) {
        struct text words = {NULL, 0};
        require(tp_lock_revision_cell(lock, i, revision.cell_count, &cell, NULL) == TP_INVALID);
        require(tp_lock_diff(lock, 0, lock, i, TP_TEXT, collect, &words) == TP_OK);
        require(tp_lock_diff(lock, i, lock, 0, TP_JSON, collect, &words) == TP_OK);
        free(words.bytes);
    }
    require(tp_lock_write(lock, collect, &once) == TP_OK);
    require(tp_lock_parse(once.bytes, once.size, "again", &again, &error) == TP_OK);
    require(tp_lock_write(again, collect, &twice) == TP_OK);
    require(once.size == twice.size && !memcmp(once.bytes, twice.bytes, once.size));
    tp_lock_destroy(again);
    free(once.bytes);
    free(twice.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock;
    tp_cell *cell, *same;
    tp_status status = tp_lock_parse((const char *)data, size, "fuzz", &lock, &error);
    require((status == TP_OK) == (lock != NULL));
    if (lock)
        check_lock(lock);
    else
        require(strlen(error.text) > 0);
    tp_lock_destroy(lock);
    if (tp_cell_parse((const char *)data, size, "fuzz", 3, &cell, &error) == TP_OK) {
        struct text text = {NULL, 0};
        require(tp_cell_write(cell, 1, collect, &text) == TP_OK);
        require(tp_cell_parse(text.bytes, text.size, "again", 1, &same, &error) == TP_OK);
        require(!strcmp(cell->problem, same->problem) && !strcmp(cell->kernel, same->kernel));
        tp_cell_destroy(cell);
        tp_cell_destroy(same);
        free(text.bytes);
    }
    return 0;
}
