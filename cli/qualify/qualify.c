/* SPDX-License-Identifier: Apache-2.0 */
/* The command: every file is read first, each problem runs once however many models ask for it. */
#include "harness/places.h"
#include "qualify/qualify.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

static const double cell_time_ns = 40e6, cell_time_quick_ns = 10e6;

static volatile sig_atomic_t stopped;
static void on_stop(int number) { stopped = number; }
int stop_asked(void) { return stopped; }

void stop_watch(void) {
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

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

struct wishes {
    uint32_t phases;
    tp_dtype dtype;
    int64_t page_size;
};

static int parse_wishes(const struct options *options, struct wishes *wishes) {
    enum table_format format;
    *wishes = (struct wishes){0, TP_BF16, 16};
    int code = parse_phases(options->phases, &wishes->phases);
    if (code) return code;
    for (int i = TP_F32; options->dtypes && i <= TP_BF16 + 1; i++) {
        if (i > TP_BF16) {
            complain("--dtype is '%s': it must be f32, f16 or bf16", options->dtypes);
            return EXIT_USAGE;
        }
        wishes->dtype = (tp_dtype)i;
        if (!strcmp(options->dtypes, tp_dtype_name((tp_dtype)i))) break;
    }
    if (options->pages) {
        char *end;
        wishes->page_size = strtoll(options->pages, &end, 10);
        if (*end || wishes->page_size < 1 || wishes->page_size > 4096) {
            complain("--paged is '%s': it must be in 1..4096", options->pages);
            return EXIT_USAGE;
        }
    }
    if (table_format_parse(options->format, &format)) {
        complain("--output is '%s': it must be md, csv, json or jsonl", options->format);
        return EXIT_USAGE;
    }
    const char *problem = !options->file_count ? "no file given: for example tileproof qualify config.json"
                          : options->update && !options->lock ? "--update needs --lock FILE"
                          : options->update && !options->reason
                              ? "--update needs --reason TEXT: the lock keeps why it changed"
                          : options->reason && !options->update ? "--reason is for --update"
                          : options->resume && !options->journal && !(options->lock && options->update)
                              ? "--resume needs --journal FILE, or --lock with --update"
                              : NULL;
    tp_error error = TP_ERROR_INIT;
    if (problem) complain("%s", problem);
    if (problem) return EXIT_USAGE;
    if (options->update && tp_lock_reason_check(options->reason, &error) != TP_OK) return complain_status(&error);
    return EXIT_FINE;
}

static int no_memory(void) {
    complain("out of memory");
    return EXIT_FAILED;
}

static int grow(void *array, size_t *capacity, size_t count, size_t unit) {
    void **memory = array;
    if (count < *capacity) return 0;
    size_t more = *capacity ? 2 * *capacity : 256;
    void *moved = realloc(*memory, more * unit);
    if (!moved) return 1;
    *memory = moved;
    *capacity = more;
    return 0;
}

static int add_use(struct qualification *all, int model, int group, const tp_cell *cell) {
    size_t at = 0;
    while (at < all->cell_count && strcmp(all->cells[at].problem, cell->problem)) at++;
    if (grow(&all->uses, &all->use_capacity, all->use_count, sizeof *all->uses) ||
        grow(&all->cells, &all->cell_capacity, all->cell_count, sizeof *all->cells))
        return no_memory();
    if (at == all->cell_count) all->cells[all->cell_count++] = *cell;
    all->uses[all->use_count++] = (struct use){model, group, (int)at};
    return EXIT_FINE;
}

static int collect(struct qualification *all, const struct options *options,
                   const struct wishes *wishes) {
    tp_error error = TP_ERROR_INIT;
    tp_cell *cells = calloc(TP_MAX_GROUP_CELLS, sizeof *cells);
    int code = EXIT_FINE, count;
    all->models = calloc((size_t)options->file_count, sizeof *all->models);
    if (!all->models || !cells) code = no_memory();
    /* all complaints are printed; the first decides the exit code */
    for (int i = 0; all->models && i < options->file_count; i++, all->model_count++) {
        int one = model_read(options, options->files[i], &all->models[i]);
        if (!code) code = one;
    }
    for (int i = 0; !code && options->lock && i < all->model_count; i++)
        for (int j = 0; !code && j < i; j++)
            if (!strcmp(base_name(all->models[i]->name), base_name(all->models[j]->name))) {
                complain("%s and %s: a lock knows models by the names of their files", all->models[j]->name,
                         all->models[i]->name);
                code = EXIT_USAGE;
            }
    for (int i = 0; !code && i < all->model_count; i++)
        for (int j = 0; !code && j < all->models[i]->group_count; j++) {
            if (tp_layer_group_cells(all->models[i]->groups[j], wishes->phases, options->quick,
                                     wishes->dtype, wishes->page_size, cells, TP_MAX_GROUP_CELLS,
                                     &count, &error) != TP_OK)
                code = complain_status(&error);
            for (int k = 0; !code && k < count; k++) code = add_use(all, i, j, &cells[k]);
        }
    free(cells);
    return code;
}

static int run_cells(struct qualification *all, const struct options *options,
                     struct journal *journal) {
    struct qualifier q;
    double begin = now_ns();
    int code = qualifier_open(&q, options, options->disable);
    if (code) return code;
    q.time_ns = options->quick ? cell_time_quick_ns : cell_time_ns;
    qualify_announce(all, options, tp_context_threads(q.context));
    double left = all->seconds_left;
    stop_watch();
    for (size_t i = 0; i < all->cell_count && !code && !stop_asked(); i++) {
        tp_cell *cell = &all->cells[i];
        if (cell->status == TP_CELL_NOT_RUN) {
            qualify_progress(i, all->cell_count, left, cell);
            qualify_cell(&q, cell);
            left = qualify_left(all, cell, options->quick, (now_ns() - begin) * 1e-9);
            code = journal_add(journal, cell);
        }
        all->done++;
    }
    bench_progress(NULL);
    qualifier_close(&q);
    all->seconds = (now_ns() - begin) * 1e-9;
    return code;
}

static int finish(struct qualification *all, const struct options *options, tp_lock *lock,
                  const tp_identity *now) {
    int code = all->use_count ? EXIT_FINE : EXIT_REFUSED;
    if (code)
        complain("nothing was checked: no layer has a cell%s%s", options->phases ? " of --phases " : "",
                 options->phases ? options->phases : "");
    else if (lock && options->update)
        code = qualify_update(all, options, lock, now);
    else if (lock)
        code = qualify_compare(all, lock, now);
    all->kept = lock && options->update && code;
    int printed = qualify_report(all, options, now);
    if (!printed && options->save) printed = qualify_save(all, options->save, now);
    for (size_t i = 0; i < all->cell_count; i++)
        code = worse_exit(code, cell_exit_code(all->cells[i].status));
    if (printed) code = printed;
    if (!options->format || !strcmp(options->format, "md")) qualify_verdict(all, options, code);
    return code;
}

int command_qualify(const struct options *options) {
    struct qualification all = {0};
    struct wishes wishes;
    struct journal journal = {.file = NULL};
    tp_identity now;
    tp_lock *lock = NULL;
    tp_error error = TP_ERROR_INIT;
    int code = parse_wishes(options, &wishes);
    if (!code && tp_identity_detect(options->declare, &now, &error) != TP_OK)
        code = complain_status(&error);
    if (!code) code = collect(&all, options, &wishes);
    if (!code) code = journal_open(&journal, options, &all);
    if (!code) code = qualify_open_lock(options, &lock);
    if (!code) code = journal_begin(&journal, options, &now, &all);
    if (!code) code = run_cells(&all, options, &journal);
    int whole = !code && all.done == all.cell_count;
    if (!code && !whole) {
        complain("stopped after %zu of %zu cells%s", all.done, all.cell_count,
                 journal.file ? ": --resume goes on" : "");
        code = EXIT_AMBIGUOUS;
    } else if (!code) {
        code = finish(&all, options, lock, &now);
    }
    journal_close(&journal, whole && !all.kept);
    tp_lock_destroy(lock);
    for (int i = 0; i < all.model_count; i++) tp_model_destroy(all.models[i]);
    free(all.models);
    free(all.uses);
    free(all.cells);
    return code;
}
