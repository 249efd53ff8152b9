/* SPDX-License-Identifier: Apache-2.0 */
/* Everything a lock says of an engine, once more: its kernels, by observation; right results; its properties. */
#include "qualify/canary.h"

#include <string.h>

#include "bench/bench.h"
#include "harness/stats.h"

static const struct column columns[] = {
    {"model", "model", 1, 0}, {"config", NULL, 1, 0},         {"part", "part", 1, 0}, {"layers", "layers", 1, 0},
    {"phase", "phase", 1, 0}, {"problem", "problem", 1, 0}, {"status", "status", 1, 0}, {"detail", "what", 1, 0},
};

struct again {
    tp_lock *lock;
    struct engine *engine;
    tp_identity now;
    tp_context *context;
    tp_qualify_run_options options;
    struct table table;
    int quick, code;
    int64_t revisions, stale, cells, ran, differ;
    char why[1024];
};

static void note(struct again *a, const tp_lock_use *use, const char *status, const char *what) {
    const char *const texts[] = {use->model,   use->config_hash, use->part, use->layers, tp_qualify_phase_name(use->phase),
                                 use->problem, status,           what};
    for (int i = 0; i < 8; i++) table_text(&a->table, texts[i]);
    a->differ++;
}

/* One cell that the revision has. Exit code where it could not be judged. */
static int check_cell(struct again *a, tp_qualification *q, int64_t revision, int64_t index) {
    tp_cell locked = TP_CELL_INIT;
    tp_lock_use use = TP_LOCK_USE_INIT;
    tp_error error = TP_ERROR_INIT;
    const tp_cell *cell = tp_qualification_cell(q, index);
    if (tp_qualify_run_cell(q, index, a->context, &a->options, &error) != TP_OK) return complain_status(&error);
    a->ran++;
    /* a problem may have several uses, one entry each */
    for (int64_t i = 0; tp_lock_revision_cell(a->lock, revision, i, &locked, &use) == TP_OK; i++) {
        char text[1024];
        if (strcmp(locked.problem, cell->problem)) continue;
        tp_cell_status status = tp_cell_compare(&locked, cell, text, sizeof text);
        if (status == TP_CELL_QUALIFIED) continue;
        note(a, &use, tp_cell_status_name(status), text);
        a->code = worse_exit(a->code, cell_exit_code((int)status));
    }
    return EXIT_FINE;
}

static int check_revision(struct again *a, int64_t revision) {
    tp_qualify_options wishes = TP_QUALIFY_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_qualification *q;
    int code = EXIT_FINE;
    a->revisions++;
    if (tp_lock_revision_fresh(a->lock, revision, &a->now, a->why, sizeof a->why) != TP_OK) a->stale++;
    wishes.quick = a->quick;
    if (tp_qualify_create_revision(a->lock, revision, &wishes, &q, &error) != TP_OK) return complain_status(&error);
    int64_t count = 0;
    while (tp_qualification_cell(q, count)) count++;
    progress_begin("canary", (double)count, "cells");
    for (int64_t i = 0; !code && !stop_asked() && i < count; i++) {
        a->cells++;
        progress_at((double)i, "%s", tp_qualification_cell(q, i)->problem);
        code = check_cell(a, q, revision, i);
    }
    tp_qualification_destroy(q);
    return code;
}

static int check_lock(struct again *a) {
    tp_lock_revision known = TP_LOCK_REVISION_INIT;
    int code = EXIT_FINE;
    for (int64_t i = 0; !code && tp_lock_revision_at(a->lock, i, &known) == TP_OK; i++)
        if (!strcmp(known.engine, a->now.engine) && !strcmp(known.device, a->now.device) &&
            !strcmp(known.mode, a->now.mode) && strcmp(known.config_hash, TP_LOCK_WATCHED))
            code = check_revision(a, i);
    progress_end();
    if (code || a->revisions) return code;
    complain("the lock has no cells of %s on %s%s%s: tileproof qualify --engine ... --lock FILE --update adds them",
             a->now.engine, a->now.device, a->now.mode[0] ? ", " : "", a->now.mode);
    return EXIT_REFUSED;
}

static int report(struct again *a, const struct options *options) {
    enum table_format format;
    table_format_parse(options->format, &format);
    if (stop_asked()) a->code = worse_exit(a->code, EXIT_AMBIGUOUS);
    if (a->stale) a->code = worse_exit(a->code, EXIT_LOCK);
    int code = format != FORMAT_MD || a->differ ? table_print(&a->table, format, stdout) : EXIT_FINE;
    if (format == FORMAT_JSON) printf("\n");
    if (format == FORMAT_MD) {
        printf("%s%s on %s: %lld revisions, %lld cells run, %lld notes\n", a->differ ? "\n" : "", a->now.engine, a->now.device,
               (long long)a->revisions, (long long)a->ran, (long long)a->differ);
        if (a->stale) printf("The lock is STALE: %s\n", a->why);
        printf("%s\n", a->code == EXIT_FINE ? "As the lock says." : "Not as the lock says, or not decided.");
    }
    if (stop_asked()) stop_say("", "%lld cells were run", (long long)a->ran);
    return code ? code : a->code;
}

int canary_engine(const struct options *options) {
    struct again a = {.quick = options->quick, .options = TP_QUALIFY_RUN_OPTIONS_INIT};
    tp_identity *here = NULL;
    tp_error error = TP_ERROR_INIT;
    const struct {
        const char *name, *given;
    } own[] = {{"--against", options->against}, {"--drill", options->drill},          {"--budget", options->budget},
               {"--model", options->model},     {"--metrics", options->metrics_file}, {"--kv-cache", options->kv_cache},
               {"--device", options->device}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (!own[i].given) continue;
        complain("%s is for this library's own cells, and the cells are those of an engine: leave out %s, or the engine",
                 own[i].name, own[i].name);
        return EXIT_USAGE;
    }
    int code = lock_read_file(options->files[0], &a.lock);
    if (!code) code = engine_open(options, &a.engine);
    if (!code && tp_identity_detect(options->declare, &here, &error) != TP_OK) code = complain_status(&error);
    if (!code) engine_identity(a.engine, here, &a.now);
    if (!code && options->if_changed && tp_lock_fresh(a.lock, &a.now, a.why, sizeof a.why) == TP_OK) {
        printf("nothing changed since the lock was made\n");
    } else if (!code) {
        code = qualify_context(options, NULL, &a.context);
        a.options.engine = &a.engine->api;
        table_open(&a.table, columns, sizeof columns / sizeof *columns);
        stop_watch();
        if (!code) code = check_lock(&a);
        if (!code) code = report(&a, options);
        table_close(&a.table);
    }
    if (a.context) tp_context_destroy(a.context);
    engine_close(a.engine);
    tp_lock_destroy(a.lock);
    tp_identity_destroy(here);
    return code;
}
