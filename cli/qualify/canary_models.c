/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The deployed configs against the lock: which of its revisions they are, or, of one that it does not have, what differs from the
 * last that it has, and how the cells of the new one do.
 */
#include "qualify/canary.h"

#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "harness/stats.h"
#include "tool/device.h"

int canary_is_mine(const struct canary *c, const tp_lock_revision *r) {
    return !strcmp(r->engine, "tileproof") && !*r->mode && !strcmp(r->device, device_name()) && !strcmp(r->isa, c->now.isa);
}

static int has_cache(const struct canary *c, const tp_lock_revision *r) {
    return !strcmp(c->now.cache, "any") || !strcmp(c->now.cache, r->cache);
}

/* The model's revision with this config, the last of its name, or -1 for none. */
static void find_revisions(const struct canary *c, struct deployed *d) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    d->revision = d->last = -1;
    for (int64_t i = 0; tp_lock_revision_at(c->lock, i, &one) == TP_OK; i++) {
        if (!canary_is_mine(c, &one)) continue;
        if (has_cache(c, &one) && !strcmp(one.config_hash, d->model->config_hash)) d->revision = i;
        if (!strcmp(one.model, d->model->label)) d->last = i;
    }
}

static void find_state(const struct canary *c, struct deployed *d) {
    char why[1024];
    tp_lock_revision known = TP_LOCK_REVISION_INIT;
    find_revisions(c, d);
    d->state = d->last < 0 ? TP_LOCK_UNKNOWN_MODEL : TP_LOCK_OTHER_CONFIG;
    if (d->revision < 0) return;
    tp_lock_revision_at(c->lock, d->revision, &known);
    int fresh = tp_lock_revision_fresh(c->lock, d->revision, &c->now, why, sizeof why) == TP_OK;
    d->state = !fresh ? TP_LOCK_STALE : cell_rank(known.status) > 1 ? TP_LOCK_REFUSED : TP_LOCK_MATCHES;
}

int canary_models_read(struct canary *c, const struct options *options) {
    if (!options->model) return EXIT_FINE;
    int count = options->file_count; /* the lock's word is --model's */
    c->deployed = calloc((size_t)count, sizeof *c->deployed);
    if (!c->deployed) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    for (int i = 0; i < count; i++) {
        int code = model_read(options, i ? options->files[i] : options->model, &c->deployed[i].model);
        if (code) return code;
        c->deployed_count++;
    }
    return EXIT_FINE;
}

void canary_models_find(struct canary *c) {
    for (int i = 0; i < c->deployed_count; i++) {
        find_state(c, &c->deployed[i]);
        c->unknown += c->deployed[i].revision < 0;
    }
}

int canary_models_fresh(const struct canary *c, char *text, size_t size) {
    text[0] = 0;
    for (int i = 0; i < c->deployed_count; i++) {
        int64_t revision = c->deployed[i].revision;
        if (revision >= 0 && tp_lock_revision_fresh(c->lock, revision, &c->now, text, size) != TP_OK) return 0;
    }
    return 1;
}

int canary_cell_at(const struct canary *c, int64_t index, tp_cell *cell) {
    tp_cell own = TP_CELL_INIT;
    if (tp_lock_cell_of(c->lock, &c->now, index, cell) != TP_OK) return 0;
    if (!c->deployed_count) return 1;
    for (int i = 0; i < c->deployed_count; i++)
        for (int64_t k = 0;
             c->deployed[i].revision >= 0 && tp_lock_revision_cell(c->lock, c->deployed[i].revision, k, &own, NULL) == TP_OK; k++)
            if (!strcmp(own.problem, cell->problem)) {
                *cell = own;
                return 1;
            }
    return -1;
}

void canary_models_free(struct canary *c) {
    for (int i = 0; i < c->deployed_count; i++) {
        tp_model_destroy(c->deployed[i].model);
        tp_lock_destroy(c->deployed[i].seen);
    }
    free(c->deployed);
}

/* ---- a revision that the lock does not have ---- */

static int run_cells(struct canary *c, tp_qualification *q) {
    tp_error error = TP_ERROR_INIT;
    int64_t count = 0;
    while (tp_qualification_cell(q, count)) count++;
    progress_begin("canary, the deployed revision", (double)count, "cells");
    for (int64_t i = 0; i < count; i++) {
        if (stop_asked() || canary_is_over(c)) continue;
        progress_at((double)i, "%s", tp_qualification_cell(q, i)->problem);
        if (tp_qualify_run_cell(q, i, c->context, &c->options, &error) != TP_OK) return complain_status(&error);
    }
    progress_end();
    return EXIT_FINE;
}

static void note_use(struct canary *c, const tp_model *model, const tp_qualification *q, const tp_qualify_use *use) {
    const tp_cell *cell = tp_qualification_cell(q, use->cell);
    const tp_layer_group *group = model->groups[use->group];
    char layers[8 * TP_MODEL_MAX_LAYERS];
    if (cell->status == TP_CELL_QUALIFIED || cell->status == TP_CELL_NOT_RUN) return;
    tp_layer_group_layers(group, layers, sizeof layers);
    const char *row[] = {"revision",    tp_cell_status_name((tp_cell_status)cell->status),
                         model->label,  tp_part_name((tp_part)group->part),
                         layers,        tp_qualify_phase_name(use->phase),
                         cell->problem, cell->reason};
    canary_row(c, row);
}

/* What was seen, as a lock of its own: to be compared in words. */
static void keep_seen(struct deployed *d, tp_qualification *q, const tp_identity *now) {
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    update.date = "here", update.reason = "compared";
    if (tp_lock_create(&d->seen, NULL) == TP_OK && tp_qualify_update(q, d->seen, now, &update, NULL) == TP_OK) return;
    tp_lock_destroy(d->seen);
    d->seen = NULL;
}

static int try_revision(struct canary *c, struct deployed *d, const struct options *options) {
    tp_qualify_options wishes = TP_QUALIFY_OPTIONS_INIT;
    tp_qualify_use use = TP_QUALIFY_USE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_qualification *q;
    const tp_cell *cell;
    wishes.quick = options->quick;
    wishes.cache = options->kv_cache;
    if (tp_qualify_create(&d->model, 1, &wishes, &q, &error) != TP_OK) return complain_status(&error);
    int code = run_cells(c, q);
    for (int64_t i = 0; !code && (cell = tp_qualification_cell(q, i)); i++) {
        c->cells++;
        c->left += cell->status == TP_CELL_NOT_RUN;
        c->ran += cell->status != TP_CELL_NOT_RUN;
        canary_count(c, cell->status);
        c->code = worse_exit(c->code, cell_exit_code(cell->status));
    }
    for (int64_t i = 0; !code && tp_qualification_use(q, i, &use) == TP_OK; i++) note_use(c, d->model, q, &use);
    if (!code) keep_seen(d, q, &c->now);
    c->code = worse_exit(c->code, EXIT_LOCK); /* however well it does, the lock does not have it */
    tp_qualification_destroy(q);
    return code;
}

int canary_models_run(struct canary *c, const struct options *options) {
    int code = EXIT_FINE;
    for (int i = 0; i < c->deployed_count && !code; i++)
        if (c->deployed[i].revision < 0) code = try_revision(c, &c->deployed[i], options);
    return code;
}

/* ---- in words ---- */

static void say_known(const struct canary *c, const struct deployed *d) {
    tp_lock_revision known = TP_LOCK_REVISION_INIT;
    char why[1024];
    tp_lock_revision_at(c->lock, d->revision, &known);
    printf("deployed %s %.12s: a revision of the lock, qualified %s", d->model->name, d->model->config_hash, known.date);
    if (strcmp(known.cache, "plain")) printf(" with cache %s", known.cache);
    if (tp_lock_revision_fresh(c->lock, d->revision, &c->now, why, sizeof why) != TP_OK)
        printf(", STALE here: %s", why);
    else if (cell_rank(known.status) > 1)
        printf(", %s", tp_cell_status_name((tp_cell_status)known.status));
    printf("\n");
}

static void say_unknown(const struct canary *c, const struct deployed *d) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    printf("deployed %s %.12s: no revision of the lock, which ", d->model->name, d->model->config_hash);
    printf(d->last < 0 ? "does not know %s" : "has of %s", d->model->label);
    for (int64_t i = 0; tp_lock_revision_at(c->lock, i, &one) == TP_OK; i++)
        if (canary_is_mine(c, &one) && !strcmp(one.model, d->model->label))
            printf(" %.12s (%s%s%s)", one.config_hash, one.date, strcmp(one.cache, "plain") ? ", cache " : "",
                   strcmp(one.cache, "plain") ? one.cache : "");
    printf("\n");
    if (d->seen && d->last >= 0) tp_lock_diff(c->lock, d->last, d->seen, 0, TP_TEXT, write_to_file, stdout);
}

void canary_models_say(const struct canary *c) {
    for (int i = 0; i < c->deployed_count; i++) (c->deployed[i].revision < 0 ? say_unknown : say_known)(c, &c->deployed[i]);
}
