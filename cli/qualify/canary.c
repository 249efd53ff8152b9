/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything a lock says of this host's ISA, once more: which kernel and at what cost, exactly; right results, by
 * the rule of the reference; and, against another library, the speed. What differs is named with model, layers and
 * phase.
 */
#include "qualify/canary.h"

#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "harness/stats.h"
#include "tool/device.h"

static const struct column columns[] = {
    {"check", "check", 1, 0},   {"status", "status", 1, 0}, {"model", "model", 1, 0},     {"part", "part", 1, 0},
    {"layers", "layers", 1, 0}, {"phase", "phase", 1, 0},   {"problem", "problem", 1, 0}, {"detail", "what", 1, 0},
};

/* no:HEAD_DIM=96 and no:KERNEL become a disable list, slow:KERNEL=1.2 a wait after each call. */
static int parse_drill(const char *text, struct drill *drill) {
    *drill = (struct drill){.slowed = 0};
    if (!text) return EXIT_FINE;
    const char *at = strchr(text, ':');
    if (at && !strncmp(text, "no:HEAD_DIM=", 12) && strlen(at) < 24 && at[10])
        snprintf(drill->disable, sizeof drill->disable, "head_dim=%s", at + 10);
    else if (at && !strncmp(text, "no:", 3) && kernel_named(at + 1))
        snprintf(drill->disable, sizeof drill->disable, "%s", at + 1);
    else if (at && !strncmp(text, "slow:", 5) && strchr(at, '=')) {
        size_t length = strcspn(at + 1, "=");
        char *end;
        if (length < sizeof drill->kernel) memcpy(drill->kernel, at + 1, length);
        drill->slowed = strtod(at + 2 + length, &end);
        if (*end || !(drill->slowed > 1 && drill->slowed <= 100) || !kernel_named(drill->kernel)) drill->slowed = 0;
    }
    if (drill->disable[0] || drill->slowed > 0) return EXIT_FINE;
    complain("--drill is '%s': it must be no:HEAD_DIM=N, no:KERNEL or slow:KERNEL=FACTOR, with a kernel of "
             "`tileproof info` and a factor above 1, at most 100",
             text);
    return EXIT_USAGE;
}

static int parse_budget(const char *text, double *ns) {
    int code = parse_seconds("--budget", text, ns);
    *ns *= 1e9;
    return code;
}

void canary_row(struct canary *c, const char *const row[8]) {
    for (int i = 0; i < 8; i++) table_text(&c->table, row[i]);
    c->notes++;
}

void canary_count(struct canary *c, int status) {
    c->counts[status]++;
}

/* A model has a problem once, in however many revisions, and on however many ISAs. */
static int is_new_use(const struct canary *c, const tp_lock_use *use, int64_t index) {
    tp_lock_use before = TP_LOCK_USE_INIT;
    for (int64_t i = 0; i < index && tp_lock_use_at(c->lock, i, &before) == TP_OK; i++)
        if (!strcmp(before.problem, use->problem) && !strcmp(before.model, use->model) && !strcmp(before.part, use->part) &&
            !strcmp(before.layers, use->layers) && before.phase == use->phase)
            return 0;
    return 1;
}

void canary_note(struct canary *c, const char *check, const char *status, const char *problem, const char *detail) {
    tp_lock_use use = TP_LOCK_USE_INIT;
    if (!problem) {
        const char *row[] = {check, status, "", "", "", "", "", detail};
        canary_row(c, row);
        return;
    }
    for (int64_t i = 0; tp_lock_use_at(c->lock, i, &use) == TP_OK; i++) {
        const char *row[] = {check, status, use.model, use.part, use.layers, tp_qualify_phase_name(use.phase), problem, detail};
        if (!strcmp(use.problem, problem) && is_new_use(c, &use, i)) canary_row(c, row);
    }
}

/* The cell once more, against what the lock has of it. */
static tp_cell_status run_again(struct canary *c, int64_t index, const tp_cell *locked) {
    tp_error error = TP_ERROR_INIT;
    if (tp_qualify_run_cell(c->q, index, c->context, &c->options, &error) != TP_OK) c->broken = complain_status(&error);
    return c->broken ? TP_CELL_QUALIFIED : tp_cell_compare(locked, tp_qualification_cell(c->q, index), c->text, sizeof c->text);
}

/* Would the lock's kernel serve? */
static int is_same_choice(const struct canary *c, const tp_cell *locked) {
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    tp_decision *decision = NULL;
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = c->options.policy;
    choice.device = c->options.device;
    if (tp_problem_parse(locked->problem, &problem, &lengths, NULL) != TP_OK) return 1;
    tp_explain(c->context, &problem, &choice, &decision, NULL);
    int same =
        decision && decision->chosen >= 0 && !strcmp(tp_decision_candidate(decision, decision->chosen)->kernel, locked->kernel);
    tp_decision_destroy(decision);
    return same;
}

/* Planning alone takes microseconds, so the choice is checked for every cell, whatever the budget. */
static void check_choice(struct canary *c, int64_t index, const tp_cell *locked) {
    if (cell_rank(locked->status) > 1) {
        canary_note(c, "lock", tp_cell_status_name((tp_cell_status)locked->status), locked->problem, locked->reason);
        c->code = worse_exit(c->code, cell_exit_code(locked->status));
        canary_count(c, locked->status);
        return;
    }
    if (is_same_choice(c, locked)) return;
    tp_cell_status status = run_again(c, index, locked); /* for its reasons, or for what serves instead */
    if (c->broken) return;
    canary_note(c, "choice", tp_cell_status_name(status), locked->problem, c->text);
    c->code = worse_exit(c->code, cell_exit_code((int)status));
    canary_count(c, (int)status);
    c->refused++;
}

static void check_results(struct canary *c, int64_t index, const tp_cell *locked) {
    tp_cell_status status = run_again(c, index, locked);
    c->ran++;
    canary_count(c, (int)status);
    if (status == TP_CELL_QUALIFIED) return;
    canary_note(c, status == TP_CELL_STALE ? "witness" : "numerics", tp_cell_status_name(status), locked->problem, c->text);
    c->code = worse_exit(c->code, cell_exit_code((int)status));
}

/* What is left for the exact part ends at half the budget where speed is still to come. */
int canary_is_over(const struct canary *c) {
    double share = c->races ? 0.5 : 1;
    return c->budget_ns > 0 && now_ns() - c->begin > share * c->budget_ns;
}

/* Timed cells first: with a short budget every group and phase has then been seen. */
static void check_cells(struct canary *c) {
    tp_cell cell = TP_CELL_INIT;
    int met;
    for (int64_t i = 0; !c->broken && (met = canary_cell_at(c, i, &cell)); i++) {
        if (met < 0) continue;
        c->cells++;
        check_choice(c, i, &cell);
    }
    if (c->refused) return; /* what is refused cannot be run, and the rest says nothing of it */
    progress_begin("canary", (double)c->cells, "cells");
    for (int timed = 1; timed >= 0; timed--)
        for (int64_t i = 0; !c->broken && (met = canary_cell_at(c, i, &cell)); i++) {
            if (met < 0 || cell.timed != timed || cell_rank(cell.status) > 1) continue;
            if (stop_asked() || canary_is_over(c)) {
                c->left++;
                continue;
            }
            progress_at((double)c->ran, "%s  %s", tp_qualify_phase_name(cell.phase), cell.problem);
            check_results(c, i, &cell);
        }
    progress_end();
}

/* "avx2,avx512", "opencl:NAME". */
static const char *canary_where(const struct canary *c) {
    return strcmp(device_name(), "cpu") ? device_name() : c->now.isa;
}

/* Cells of this library that are another device's: nothing was said of them. */
static void say_elsewhere(const struct canary *c, FILE *out) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT, before = TP_LOCK_REVISION_INIT;
    for (int64_t i = 0; tp_lock_revision_at(c->lock, i, &one) == TP_OK; i++) {
        int64_t cells = 0;
        int first = 1;
        if (strcmp(one.engine, "tileproof") || *one.mode || !strcmp(one.device, device_name())) continue;
        for (int64_t k = 0; tp_lock_revision_at(c->lock, k, &before) == TP_OK; k++) {
            int same = !strcmp(before.engine, one.engine) && !*before.mode && !strcmp(before.device, one.device);
            first &= k >= i || !same;
            cells += same ? before.cell_count : 0;
        }
        if (first)
            fprintf(out, "Not run: %lld cells of %s%s\n", (long long)cells, one.device,
                    strcmp(device_name(), "cpu") ? "" : " (tileproof canary --device opencl)");
    }
}

static int report(struct canary *c, const struct options *options, const char *stale) {
    enum table_format format;
    char trusted[128];
    table_format_parse(options->format, &format);
    if (c->left || stop_asked()) c->code = worse_exit(c->code, EXIT_AMBIGUOUS);
    int code = EXIT_FINE;
    if (format != FORMAT_MD || c->notes) code = table_print(&c->table, format, stdout);
    if (format == FORMAT_JSON) printf("\n");
    if (format == FORMAT_MD) {
        if (c->notes) printf("\n");
        printf("%lld cells of %s: %lld run, %lld left out%s; %lld choices differ; %d notes, %.1f s\n",
               (long long)c->cells, canary_where(c), (long long)c->ran, (long long)c->left,
               stop_asked() ? "" : " by the budget", (long long)c->refused, c->notes,
               (now_ns() - c->begin) * 1e-9);
        if (c->raced)
            printf("speed: %d cells raced, %d not for want of time, each bucket of phase, kernel and head dim once\n", c->raced,
                   c->not_raced);
        if (options->drill) printf("A drill: %s (simulated)\n", options->drill);
        if (c->trust.controls) {
            trust_line(&c->trust, trusted, sizeof trusted);
            printf("%s\n", trusted);
        }
        canary_models_say(c);
        say_elsewhere(c, stdout);
        if (stale) printf("The lock is STALE: %s\n", stale);
        printf("%s\n", c->code == EXIT_FINE ? "As the lock says." : "Not as the lock says, or not decided.");
    }
    if (stop_asked()) stop_say("", "%lld of %lld cells were run", (long long)c->ran, (long long)c->cells);
    return code ? code : c->code;
}

static int run(struct canary *c, const struct options *options) {
    char stale[1024];
    tp_qualify_options wishes = TP_QUALIFY_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    int code;
    if (*device_absent()) {
        complain("--device %s: not run here: %s", options->device, device_absent());
        say_elsewhere(c, stderr);
        return EXIT_REFUSED;
    }
    canary_models_find(c);
    int fresh = c->deployed_count ? canary_models_fresh(c, stale, sizeof stale)
                                  : tp_lock_fresh(c->lock, &c->now, stale, sizeof stale) == TP_OK;
    c->stale = !fresh;
    if (fresh && !c->unknown && options->if_changed) {
        tp_cell cell = TP_CELL_INIT;
        printf("nothing changed since the lock was made\n");
        canary_models_say(c);
        for (int64_t i = 0; (code = canary_cell_at(c, i, &cell)); i++) c->cells += code > 0;
        return EXIT_FINE;
    }
    wishes.quick = options->quick;
    c->options = (tp_qualify_run_options)TP_QUALIFY_RUN_OPTIONS_INIT;
    c->options.policy = options_policy(options);
    c->options.device = device_number();
    code = qualify_context(options, c->drill.disable, &c->context);
    if (code) return code;
    if (tp_qualify_create_for(c->lock, &c->now, &wishes, &c->q, &error) != TP_OK) return complain_status(&error);
    stop_watch();
    code = canary_models_run(c, options);
    if (!code) check_cells(c);
    if (code) return code;
    tp_context_destroy(c->context); /* its threads are not there when speed is measured */
    c->context = NULL;
    if (c->broken) return c->broken;
    if (!c->cells) {
        complain("no cell can be run: %s", stale);
        say_elsewhere(c, stderr);
        return EXIT_REFUSED;
    }
    if (!c->refused && c->races) code = canary_speed(c, options);
    if (!fresh) c->code = worse_exit(c->code, EXIT_LOCK);
    return code ? code : report(c, options, fresh ? NULL : stale);
}

/* Which cells, and by whom: this library on the CPU, or on the device of --device. */
static int take_device(struct canary *c, const struct options *options) {
    tp_error error = TP_ERROR_INIT;
    if (options->device && (options->against || c->drill.slowed > 0)) {
        complain("%s is '%s': speed is compared on the CPU alone, not with --device", options->against ? "--against" : "--drill",
                 options->against ? options->against : options->drill);
        return EXIT_USAGE;
    }
    int code = options_cache(options, c->cache);
    if (!code) code = device_open(options);
    if (code) return code;
    if (tp_identity_detect(options->declare, &c->here, &error) != TP_OK) return complain_status(&error);
    device_identity(c->here, &c->now);
    /* a config is deployed with one cache; a lock is held to all that it has */
    c->now.cache = options->kv_cache || options->model ? c->cache : "any";
    return EXIT_FINE;
}

int command_canary(const struct options *options) {
    struct canary c = {.begin = now_ns()};
    enum table_format format;
    int code = EXIT_FINE;
    if (options->file_count != 1 && !(options->model && options->file_count > 1)) {
        complain("%d files given: canary takes one lock%s", options->file_count,
                 options->file_count > 1 ? "; configs stand behind --model" : "");
        return EXIT_USAGE;
    }
    if (options->metrics_file && (code = canary_metrics_check(options))) return code;
    if (table_format_parse(options->format, &format)) {
        complain("--output is '%s': it must be md, csv, json or jsonl", options->format);
        return EXIT_USAGE;
    }
    if (options->runner || (options->engine && strcmp(options->engine, "tileproof"))) return canary_engine(options);
    if ((code = parse_drill(options->drill, &c.drill)) || (code = parse_budget(options->budget, &c.budget_ns))) return code;
    if ((code = take_device(&c, options))) return code;
    c.races = options->against || c.drill.slowed > 0;
    code = canary_models_read(&c, options);
    if (!code) code = lock_read_file(options->files[0], &c.lock);
    if (!code) {
        table_open(&c.table, columns, sizeof columns / sizeof *columns);
        code = run(&c, options);
        table_close(&c.table);
    }
    if (options->metrics_file) {
        int written = canary_metrics_write(&c, options->metrics_file, code);
        if (!code) code = written;
    }
    canary_models_free(&c);
    tp_qualification_destroy(c.q);
    if (c.context) tp_context_destroy(c.context);
    tp_lock_destroy(c.lock);
    tp_identity_destroy(c.here);
    return code;
}
