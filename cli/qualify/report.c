/* SPDX-License-Identifier: Apache-2.0 */
/* A short table of models; md: a matrix of their groups by phases. Both: what is not qualified. csv, json, jsonl: a row
   for each cell. */
#include "harness/places.h"
#include "qualify/qualify.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/table.h"
#include "tool/device.h"
#include "tool/files.h"

enum { MAX_TROUBLE = 5 };

static const struct column columns[] = {
    {"model", NULL, 1, 0},          {"config", NULL, 1, 0},   {"part", NULL, 1, 0},
    {"layers", NULL, 1, 0},         {"phase", NULL, 1, 0},    {"purpose", NULL, 1, 0},
    {"problem", NULL, 1, 0},        {"status", NULL, 1, 0},   {"kernel", NULL, 1, 0},
    {"reason", NULL, 1, 0},         {"error", NULL, 1, 0},    {"allowed", NULL, 1, 0},
    {"time_ns", NULL, 1, 0},        {"gain_over_math", NULL, 1, 0}, {"bytes", NULL, 1, 0},
    {"scratch", NULL, 1, 0},        {"panels_full", NULL, 1, 0}, {"panels_partial", NULL, 1, 0},
    {"panels_skipped", NULL, 1, 0},  {"numerics_id", NULL, 1, 0}, {"output", NULL, 1, 0},
    {"dtype_assumed", NULL, 1, 0},  {"isa", NULL, 1, 0},      {"build", NULL, 1, 0},
    {"engine", NULL, 1, 0},         {"mode", NULL, 1, 0},     {"device", NULL, 1, 0},
    {"versions", NULL, 1, 0},       {"rule", NULL, 1, 0},     {"observed", NULL, 1, 0},
    {"engine_reasons", NULL, 1, 0}, {"doubt", NULL, 1, 0},    {"contained", NULL, 1, 0},
    {"deterministic", NULL, 1, 0},  {"empty_rows", NULL, 1, 0}, {"temporary", NULL, 1, 0},
    {"cache", NULL, 1, 0},          {"loss", NULL, 1, 0},
    {"version", NULL, 1, 0},        {"host", NULL, 1, 0},     {"os", NULL, 1, 0},
    {"seed", NULL, 1, 0},           {"date", NULL, 1, 0},
};

static void add_text(struct table *table, const char *text) { table_text(table, text[0] ? text : NULL); }

static void add_engine(struct table *table, const struct greeting *engine, const tp_cell *cell) {
    table_text(table, engine ? engine->name : "tileproof");
    add_text(table, engine ? engine->mode : "");
    table_text(table, engine ? engine->device : device_name());
    add_text(table, engine ? engine->versions : "");
    add_text(table, cell->rule);
    add_text(table, cell->observed);
    add_text(table, cell->engine_reasons);
    add_text(table, cell->doubt);
    add_text(table, tp_kept_name((tp_kept)cell->contained));
    add_text(table, tp_kept_name((tp_kept)cell->deterministic));
    add_text(table, tp_kept_name((tp_kept)cell->empty_rows));
    table_integer(table, cell->temporary ? cell->temporary : cell->scratch);
}

static void add_row(struct table *table, const struct qualification *all, tp_qualify_use use,
                    const tp_identity *identity, const char *date) {
    const tp_model *model = all->models[use.model];
    const tp_layer_group *group = model->groups[use.group];
    const tp_cell *cell = tp_qualification_cell(all->q, use.cell);
    char layers[8 * TP_MODEL_MAX_LAYERS];
    tp_layer_group_layers(group, layers, sizeof layers);
    table_text(table, model->label);
    table_text(table, model->config_hash);
    table_text(table, tp_part_name((tp_part)group->part));
    table_text(table, layers);
    table_text(table, tp_qualify_phase_name(cell->phase));
    table_text(table, cell->purpose);
    table_text(table, cell->problem);
    table_text(table, tp_cell_status_name((tp_cell_status)cell->status));
    table_text(table, cell->kernel[0] ? cell->kernel : NULL);
    table_text(table, cell->reason[0] ? cell->reason : NULL);
    table_number(table, cell->output[0] ? cell->error : NAN);
    table_number(table, cell->output[0] ? cell->allowed : NAN);
    table_number(table, cell->time_ns > 0 ? cell->time_ns : NAN);
    table_number(table, cell->gain_over_math > 0 ? cell->gain_over_math : NAN);
    table_integer(table, cell->bytes);
    table_integer(table, cell->scratch);
    table_integer(table, cell->panels_full);
    table_integer(table, cell->panels_partial);
    table_integer(table, cell->panels_skipped);
    table_text(table, cell->numerics_id);
    table_text(table, cell->output[0] ? cell->output : NULL);
    table_flag(table, !group->dtype);
    table_text(table, identity->isa);
    table_text(table, identity->build);
    add_engine(table, all->engine ? &all->engine->greeting : NULL, cell);
    table_text(table, all->cache);
    table_number(table, cell->loss > 0 ? cell->loss : NAN);
    table_text(table, identity->version);
    table_text(table, identity->cpu);
    table_text(table, identity->os);
    table_integer(table, TP_QUALIFY_SEED);
    table_text(table, date);
}

static int print_rows(const struct qualification *all, enum table_format format,
                      const tp_identity *identity, FILE *out) {
    struct table table;
    char date[32];
    bench_date(date);
    table_open(&table, columns, sizeof columns / sizeof *columns);
    for (int64_t i = 0; i < all->use_count; i++) add_row(&table, all, qualification_use(all, i), identity, date);
    int code = table_print(&table, format, out);
    if (format == FORMAT_JSON) fputc('\n', out);
    table_close(&table);
    return code;
}

struct summary_cell {
    int status, count;
    char kernels[64];
    double gain;
};

static void sum_up(struct summary_cell *sum, const tp_cell *cell) {
    if (!sum->count++ || cell_rank(cell->status) > cell_rank(sum->status)) sum->status = cell->status;
    add_name(sum->kernels, sizeof sum->kernels, cell->kernel);
    if (cell->timed && cell->gain_over_math > 0) sum->gain = cell->gain_over_math;
}

static void print_matrix_row(const struct qualification *all, int model, int group) {
    const tp_layer_group *g = all->models[model]->groups[group];
    char layers[8 * TP_MODEL_MAX_LAYERS];
    tp_layer_group_layers(g, layers, sizeof layers);
    printf("| %s | %s %s |", all->models[model]->label, tp_part_name((tp_part)g->part), layers);
    if (g->out_of_scope) {
        printf(" out of scope: %s | | | | |\n", g->out_of_scope);
        return;
    }
    for (uint32_t phase = 1; phase & TP_QUALIFY_ALL; phase <<= 1) {
        struct summary_cell sum = {0};
        for (int64_t i = 0; i < all->use_count; i++) {
            tp_qualify_use use = qualification_use(all, i);
            if (use.model == model && use.group == group && use.phase == phase)
                sum_up(&sum, tp_qualification_cell(all->q, use.cell));
        }
        if (!sum.count) {
            printf(" |");
            continue;
        }
        printf(" %s %s %d", sum.kernels[0] ? sum.kernels : "none",
               tp_cell_status_name((tp_cell_status)sum.status), sum.count);
        if (sum.gain > 0) printf(" x%.1f", sum.gain);
        printf(" |");
    }
    printf("\n");
}

/* At most so many of them. */
static void print_trouble(const struct qualification *all, int max) {
    int first = 1, left = 0;
    for (int64_t i = 0; i < all->use_count; i++) {
        tp_qualify_use use = qualification_use(all, i);
        const tp_cell *cell = tp_qualification_cell(all->q, use.cell);
        const tp_layer_group *group = all->models[use.model]->groups[use.group];
        char layers[8 * TP_MODEL_MAX_LAYERS];
        if (cell->status == TP_CELL_QUALIFIED) continue;
        if (max-- <= 0) {
            left++;
            continue;
        }
        tp_layer_group_layers(group, layers, sizeof layers);
        printf("%s- %s, %s layers %s, %s (%s): %s: %s: %s\n", first ? "\n" : "",
               all->models[use.model]->label, tp_part_name((tp_part)group->part), layers,
               tp_qualify_phase_name(cell->phase), cell->purpose,
               tp_cell_status_name((tp_cell_status)cell->status), cell->problem, cell->reason);
        first = 0;
    }
    if (left) printf("- %d more like these: -v or -o md\n", left);
}

static int assumed_dtypes(const struct qualification *all) {
    int count = 0;
    for (int i = 0; i < all->model_count; i++) {
        int assumed = 0;
        for (int j = 0; j < all->models[i]->group_count; j++)
            assumed |= !all->models[i]->groups[j]->dtype && !all->models[i]->groups[j]->out_of_scope;
        count += assumed;
    }
    return count;
}

static void print_matrix(const struct qualification *all) {
    printf("| model | layers |");
    for (uint32_t phase = 1; phase & TP_QUALIFY_ALL; phase <<= 1) printf(" %s |", tp_qualify_phase_name(phase));
    printf("\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < all->model_count; i++)
        for (int j = 0; j < all->models[i]->group_count; j++) print_matrix_row(all, i, j);
}

/* What quantising lost, apart from errors: those are of attention on what is stored. */
static void print_loss(const struct qualification *all, const char *between) {
    double loss = 0;
    if (!strcmp(all->cache, "plain")) return;
    for (int64_t i = 0; i < all->cell_count; i++) loss = fmax(loss, tp_qualification_cell(all->q, i)->loss);
    printf("cache %s: quantising lost up to %.3g %% of the greatest value of a row%serrors are apart from it\n", all->cache,
           100 * loss, between);
}

static int print_text(const struct qualification *all, int whole, const tp_identity *identity) {
    int counts[8] = {0}, assumed = assumed_dtypes(all);
    const char *between = whole ? "; " : ";\n"; /* short lines for a terminal */
    if (all->engine)
        qualify_engine_table(all, whole);
    else if (whole)
        print_matrix(all);
    else
        qualify_letters(all);
    if (whole || !all->engine) print_trouble(all, whole ? INT_MAX : MAX_TROUBLE); /* lines of an engine have their reasons */
    for (int64_t i = 0; i < all->cell_count; i++) counts[tp_qualification_cell(all->q, i)->status]++;
    printf("\n%lld cell%s of %d model%s, %lld different problem%s%s", (long long)all->use_count, all->use_count == 1 ? "" : "s",
           all->model_count, all->model_count == 1 ? "" : "s", (long long)all->cell_count, all->cell_count == 1 ? "" : "s",
           all->cell_count ? ":" : "");
    for (int i = 0; i < 8; i++)
        if (counts[i]) printf(" %d %s", counts[i], tp_cell_status_name((tp_cell_status)i));
    printf(", in %.0f s", all->seconds);
    if (all->resumed) printf(" (%lld from the journal)", (long long)all->resumed);
    printf(".\n");
    print_loss(all, between);
    if (whole && !all->engine) printf("A cell: kernel, worst status, how many lengths, how many times as fast as math.\n");
    if (assumed)
        printf("%d model%s no dtype: the one of --dtype was assumed for %s.\n", assumed, assumed == 1 ? " names" : "s name",
               assumed == 1 ? "it" : "them");
    printf("tileproof %s, build %.16s, %s%s%s%s%s; %s\n", identity->version, identity->build, identity->isa, between,
           identity->cpu, between, identity->os, identity->libc);
    if (device_backend() && device_say_evidence(NULL)) return EXIT_FAILED;
    return EXIT_FINE;
}

int qualify_report(const struct qualification *all, const struct options *options,
                   const tp_identity *identity) {
    enum table_format format;
    table_format_parse(options->format, &format);
    return format == FORMAT_MD ? print_text(all, options->format || options->verbose, identity)
                               : print_rows(all, format, identity, stdout);
}

int qualify_save(const struct qualification *all, const char *path, const tp_identity *identity) {
    struct atomic_file file;
    int code = file_open(&file, path);
    if (code) return code;
    code = print_rows(all, FORMAT_JSON, identity, file.stream);
    int closed = file_close(&file, !code);
    return code ? code : closed;
}
