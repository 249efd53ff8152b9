/* SPDX-License-Identifier: Apache-2.0 */
/* Cells that were run against a lock, or into it. */
#include "harness/places.h"
#include "qualify/qualify.h"

#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "tool/files.h"

/* A config that changed, even where no cell did: the lock speaks of another revision. */
static int compare_config(const tp_model *model, const tp_lock *lock) {
    tp_lock_use use;
    for (int64_t i = 0; tp_lock_use_at(lock, i, &use) == TP_OK; i++) {
        if (strcmp(use.model, base_name(model->name))) continue;
        if (!strcmp(use.config_hash, model->config_hash)) return EXIT_FINE;
        complain("the lock is STALE: config of %s: lock has %s, here %s", model->name, use.config_hash,
                 model->config_hash);
        return EXIT_LOCK;
    }
    complain("the lock is STALE: it has no model %s", base_name(model->name));
    return EXIT_LOCK;
}

int qualify_compare(struct qualification *all, const tp_lock *lock, const tp_identity *now) {
    char text[1024];
    int code = EXIT_FINE;
    if (tp_lock_fresh(lock, now, text, sizeof text) != TP_OK) {
        complain("the lock is STALE: %s", text);
        code = EXIT_LOCK;
    }
    for (int i = 0; i < all->model_count; i++)
        code = worse_exit(code, compare_config(all->models[i], lock));
    for (size_t i = 0; i < all->cell_count; i++) {
        tp_cell locked, *cell = &all->cells[i];
        tp_cell_status status = TP_CELL_STALE;
        if (tp_lock_cell_find(lock, now->isa, cell->problem, &locked) != TP_OK)
            snprintf(text, sizeof text, "the lock has no such cell");
        else
            status = lock_compare(&locked, cell, text, sizeof text);
        if (status == TP_CELL_QUALIFIED) continue;
        code = worse_exit(code, cell_exit_code((int)status));
        cell->status = (int32_t)status;
        snprintf(cell->reason, sizeof cell->reason, "%s", text);
    }
    return code;
}

int qualify_update(const struct qualification *all, const struct options *options, tp_lock *lock,
                       const tp_identity *now) {
    tp_error error = TP_ERROR_INIT;
    char date[32];
    tp_status status = TP_OK;
    bench_date(date);
    date[10] = 0;
    for (int i = 0; i < all->model_count && status == TP_OK; i++)
        status = tp_lock_put_model(lock, base_name(all->models[i]->name), all->models[i]->config_hash,
                                   &error);
    for (size_t i = 0; i < all->use_count && status == TP_OK; i++) {
        const struct use *use = &all->uses[i];
        const tp_model *model = all->models[use->model];
        status = tp_lock_put_use(lock, base_name(model->name), model->groups[use->group],
                                 &all->cells[use->cell], &error);
    }
    for (size_t i = 0; i < all->cell_count && status == TP_OK; i++)
        status = tp_lock_put_cell(lock, now->isa, &all->cells[i], &error);
    if (status == TP_OK) status = tp_lock_finish(lock, now, date, options->reason, &error);
    return status == TP_OK ? lock_write_file(options->lock, lock) : complain_status(&error);
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
