/* SPDX-License-Identifier: Apache-2.0 */
/* The command: every file is read first, then the cells run, then the lock is compared or written. */
#include "harness/places.h"
#include "qualify/qualify.h"

#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "tool/device.h"
#include "harness/stats.h"

static const double cell_time_ns = 40e6, cell_time_quick_ns = 10e6;

static int parse_phases(const char *text, uint32_t *phases) {
    *phases = text ? 0 : TP_QUALIFY_ALL;
    while (text && *text) {
        size_t length = strcspn(text, ",");
        uint32_t found = 0;
        for (uint32_t bit = 1; bit & TP_QUALIFY_ALL; bit <<= 1) {
            const char *name = tp_qualify_phase_name(bit);
            if (strlen(name) == length && !memcmp(name, text, length)) found = bit;
        }
        if (!found) {
            complain("--phases has '%.*s': it must be prefill, decode, varlen, mixed or multimodal",
                     (int)length, text);
            return EXIT_USAGE;
        }
        *phases |= found;
        text += length + (text[length] == ',');
    }
    if (*phases) return EXIT_FINE;
    complain("--phases is empty: it must name at least one phase");
    return EXIT_USAGE;
}

static int parse_wishes(const struct options *options, char cache[64], tp_qualify_options *wishes) {
    enum table_format format;
    *wishes = (tp_qualify_options)TP_QUALIFY_OPTIONS_INIT;
    wishes->quick = options->quick;
    wishes->max_cells = options->cells;
    int code = parse_phases(options->phases, &wishes->phases);
    if (code) return code;
    code = options_dtype(options, &wishes->dtype);
    if (!code) code = options_page(options, &wishes->page_size);
    if (!code) code = options_cache(options, cache);
    if (code) return code;
    wishes->cache = options->kv_cache;
    if (table_format_parse(options->format, &format)) {
        complain("--output is '%s': it must be md, csv, json or jsonl", options->format);
        return EXIT_USAGE;
    }
    const char *problem = !options->file_count ? "no file given: for example tileproof qualify config.json"
                          : options->update && !options->lock ? "--update needs --lock FILE"
                          : options->update && !options->reason
                              ? "--update needs --reason TEXT: the lock keeps why it changed"
                          : options->reason && !options->update ? "--reason is for --update"
                          : options->accept_unsupported && !options->update ? "--accept-unsupported is for --update"
                          : options->name && options->file_count > 1 ? "--name is for one model: several would be one"
                          : options->kv_cache && (options->engine || options->runner)
                              ? "--kv-cache is for kernels of this library: an engine is given plain keys and values"
                          : options->resume && !options->journal && !(options->lock && options->update)
                              ? "--resume needs --journal FILE, or --lock with --update"
                              : NULL;
    tp_error error = TP_ERROR_INIT;
    if (problem) complain("%s", problem);
    if (problem) return EXIT_USAGE;
    if (options->update && tp_lock_reason_check(options->reason, &error) != TP_OK) return complain_status(&error);
    return EXIT_FINE;
}

tp_qualify_use qualification_use(const struct qualification *all, int64_t index) {
    tp_qualify_use use = TP_QUALIFY_USE_INIT;
    tp_qualification_use(all->q, index, &use);
    return use;
}

static int read_models(struct qualification *all, const struct options *options) {
    int code = EXIT_FINE;
    all->models = calloc((size_t)options->file_count, sizeof *all->models);
    if (!all->models) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    /* all complaints are printed; the first decides the exit code */
    for (int i = 0; i < options->file_count; i++, all->model_count++) {
        int one = model_read(options, options->files[i], &all->models[i]);
        if (!code) code = one;
    }
    for (int i = 0; !code && options->lock && i < all->model_count; i++)
        for (int j = 0; !code && j < i; j++)
            if (!strcmp(all->models[i]->label, all->models[j]->label)) {
                complain("%s and %s: a lock knows both as %s: update it with one at a time, or with another --name",
                         all->models[j]->name, all->models[i]->name, all->models[i]->label);
                code = EXIT_USAGE;
            }
    return code;
}

static int collect(struct qualification *all, const tp_qualify_options *wishes) {
    tp_error error = TP_ERROR_INIT;
    tp_qualify_use use = TP_QUALIFY_USE_INIT;
    if (tp_qualify_create(all->models, all->model_count, wishes, &all->q, &error) != TP_OK) return complain_status(&error);
    while (tp_qualification_cell(all->q, all->cell_count)) all->cell_count++;
    while (tp_qualification_use(all->q, all->use_count, &use) == TP_OK) all->use_count++;
    return EXIT_FINE;
}

int qualify_context(const struct options *options, const char *disable, tp_context **context) {
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    wanted.threads = (int32_t)options->threads;
    wanted.policy = options_policy(options);
    wanted.disable = disable && *disable ? disable : NULL;
    int code = device_open(options);
    if (code) return code;
    wanted.backend = device_backend();
    return tp_context_create(&wanted, context, &error) == TP_OK ? EXIT_FINE : complain_status(&error);
}

struct run {
    struct qualification *all;
    const struct options *options;
    struct journal *journal;
    double begin, left;
    int code;
};

static int on_progress(void *user, const tp_qualification *q, int64_t index, int done) {
    struct run *run = user;
    const tp_cell *cell = tp_qualification_cell(q, index);
    if (done) {
        run->left = qualify_left(run->all, cell, run->options->quick, (now_ns() - run->begin) * 1e-9);
        run->code = journal_add(run->journal, cell);
    } else if (!stop_asked()) {
        progress_left(run->left);
        progress_at((double)index, "%s  %s", tp_qualify_phase_name(cell->phase), cell->problem);
    }
    return run->code || stop_asked();
}

static int run_cells(struct qualification *all, const struct options *options, struct journal *journal) {
    struct run run = {all, options, journal, now_ns(), 0, EXIT_FINE};
    tp_qualify_run_options wanted = TP_QUALIFY_RUN_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    int code = qualify_context(options, options->disable, &context);
    if (code) return code;
    wanted.policy = options_policy(options);
    wanted.device = device_number();
    wanted.time_ns = options->quick ? cell_time_quick_ns : cell_time_ns;
    wanted.progress = on_progress;
    wanted.user = &run;
    wanted.engine = all->engine ? &all->engine->api : NULL;
    qualify_announce(all, options, tp_context_threads(context));
    run.left = all->seconds_left;
    progress_begin("qualify", (double)all->cell_count, "cells");
    stop_watch();
    if (tp_qualify_run(all->q, context, &wanted, &error) != TP_OK) run.code = complain_status(&error);
    progress_end();
    tp_context_destroy(context);
    for (int64_t i = 0; i < all->cell_count; i++) all->done += tp_qualification_cell(all->q, i)->status != TP_CELL_NOT_RUN;
    all->seconds = (now_ns() - run.begin) * 1e-9;
    return run.code;
}

/* here: this process; now: with the engine that ran. */
static int finish(struct qualification *all, const struct options *options, tp_lock *lock, const tp_identity *here,
                  const tp_identity *now) {
    int code = all->use_count ? EXIT_FINE : EXIT_REFUSED;
    if (code)
        complain("nothing was checked: no layer has a cell%s%s", options->phases ? " of --phases " : "",
                 options->phases ? options->phases : "");
    else if (lock && options->update)
        code = qualify_update(all, options, now);
    else if (lock)
        code = qualify_compare(all, lock, now);
    all->kept = lock && options->update && code;
    int printed = qualify_report(all, options, here);
    if (!printed && options->save) printed = qualify_save(all, options->save, here);
    for (int64_t i = 0; i < all->cell_count; i++)
        code = worse_exit(code, cell_exit_code(tp_qualification_cell(all->q, i)->status));
    if (printed) code = printed;
    if (!options->format || !strcmp(options->format, "md")) qualify_verdict(all, options, code);
    return code;
}

int command_qualify(const struct options *options) {
    struct qualification all = {0};
    tp_qualify_options wishes;
    struct journal journal = {.file = NULL};
    tp_identity *here = NULL, own, now = {.struct_size = 0}; /* own: this library on the device; now: or the engine */
    tp_lock *lock = NULL;
    tp_error error = TP_ERROR_INIT;
    int code = parse_wishes(options, all.cache, &wishes);
    if (!code && options->device && (options->engine || options->runner)) {
        complain("--device is for kernels of this library: an engine has its own, as in --engine torch:cuda");
        code = EXIT_USAGE;
    }
    if (!code) code = device_open(options);
    if (!code) code = read_models(&all, options);
    if (!code) code = engine_open(options, &all.engine);
    if (!code && tp_identity_detect(options->declare, &here, &error) != TP_OK) code = complain_status(&error);
    if (!code) engine_identity(all.engine, here, &now);
    if (!code) device_identity(here, &own);
    if (!code && !all.engine) now = own;
    if (!code) code = collect(&all, &wishes);
    if (!code) code = journal_open(&journal, options, &all);
    if (!code) code = qualify_open_lock(options, &lock);
    if (!code) code = journal_begin(&journal, options, &own, &all);
    if (!code) code = run_cells(&all, options, &journal);
    int whole = !code && all.done == all.cell_count;
    if (!code && !whole) {
        code = stop_say(journal.file ? "--resume" : NULL, "%lld of %lld cells are done%s", (long long)all.done,
                        (long long)all.cell_count, journal.file ? " and kept in the journal" : "; --journal keeps them");
    } else if (!code) {
        code = finish(&all, options, lock, here, &now);
    }
    journal_close(&journal, whole && !all.kept);
    engine_close(all.engine);
    tp_lock_destroy(lock);
    tp_identity_destroy(here);
    tp_qualification_destroy(all.q);
    for (int i = 0; i < all.model_count; i++) tp_model_destroy(all.models[i]);
    free(all.models);
    return code;
}
