/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/isolated.h"

#include <regex.h>
#include <string.h>

/* What the options leave open is as the defaults say. */
static struct options with_defaults(const struct options *options, const struct options *defaults) {
    struct options both = *options;
    if (!both.kernel) both.kernel = defaults->kernel;
    if (both.problem[0]) return both;
    if (!both.shapes) both.shapes = defaults->shapes;
    if (!both.heads) both.heads = defaults->heads;
    if (!both.head_dims) both.head_dims = defaults->head_dims;
    if (!both.causals) both.causals = defaults->causals;
    return both;
}

static int run_one(struct isolated *isolated, const char *words, const char *kernel) {
    char reason[640] = "";
    progress_next(0, "%s on %s", words, kernel ? kernel : "best");
    int code = isolated->row(isolated, words, kernel, reason, sizeof reason);
    progress_next(1, "%s on %s", words, kernel ? kernel : "best");
    if (code && stop_asked()) return EXIT_FINE; /* its process was ended */
    if (!code) isolated->rows++;
    if (code == EXIT_REFUSED) {
        complain("%s on %s: not run here: %s", words, kernel ? kernel : "best", reason);
        isolated->missing++;
        return EXIT_FINE;
    }
    if (code) complain("%s on %s: %s", words, kernel ? kernel : "best", reason);
    return code;
}

static int run_product(struct isolated *isolated, const struct list *problems, const struct list *kernels,
                       const regex_t *match) {
    int code = EXIT_FINE;
    progress_begin("bench", (double)problems->count * kernels->count, "rows");
    stop_watch();
    for (int p = 0; !code && p < problems->count; p++)
        for (int k = 0; !code && !stop_asked() && k < kernels->count; k++) {
            const char *kernel;
            char text[BENCH_WORDS + 96];
            snprintf(text, sizeof text, "%s kernel=%s threads=1", problems->items[p],
                     kernels->items[k]);
            if (regexec(match, text, 0, NULL, 0)) continue;
            code = bench_kernel(kernels->items[k], &kernel);
            if (!code) code = run_one(isolated, problems->items[p], kernel);
        }
    progress_end();
    if (!code && !isolated->rows && !stop_asked()) {
        complain("nothing was measured: no row matches, or none runs here");
        code = EXIT_REFUSED;
    }
    return code;
}

static int check_lists(const struct list *problems, const struct list *kernels) {
    const char *kernel;
    int code = EXIT_FINE;
    for (int k = 0; !code && k < kernels->count; k++)
        code = bench_kernel(kernels->items[k], &kernel);
    for (int i = 0; !code && i < problems->count; i++) {
        tp_problem problem;
        tp_error error = TP_ERROR_INIT;
        if (bench_words_check(problems->items[i], &problem, &error) != TP_OK)
            code = complain_status(&error);
    }
    return code;
}

static int print_table(struct isolated *isolated, void (*print)(const struct isolated *isolated, int before)) {
    if (isolated->format == FORMAT_MD) print(isolated, 1);
    int code = table_print(&isolated->table, isolated->format, stdout);
    if (isolated->format == FORMAT_JSON) fputc('\n', stdout);
    if (isolated->format == FORMAT_MD) print(isolated, 0);
    return code;
}

int bench_isolated(struct isolated *isolated, const struct options *options, const struct options *defaults,
                const struct column *columns, int column_count,
                void (*print)(const struct isolated *isolated, int before)) {
    struct options both = with_defaults(options, defaults);
    struct list problems = {0}, kernels = {0};
    char reason[BENCH_WORDS];
    regex_t match;
    isolated->options = &both;
    bench_date(isolated->date);
    table_open(&isolated->table, columns, column_count);
    int code = list_expand(&kernels, both.kernel, reason, sizeof reason) ? EXIT_USAGE : EXIT_FINE;
    if (code) complain("--kernel is '%s': %s", both.kernel, reason);
    if (!code) code = list_problems(&both, &problems);
    if (!code) code = check_lists(&problems, &kernels);
    if (!code) code = bench_regex(both.match, &match);
    if (!code) {
        code = run_product(isolated, &problems, &kernels, &match);
        regfree(&match);
    }
    if (!code && isolated->rows) code = print_table(isolated, print);
    if (!code && stop_asked())
        code = stop_say("", "%zu of %d rows are measured%s", isolated->rows, problems.count * kernels.count,
                        isolated->rows ? "; those above are whole" : "");
    table_close(&isolated->table);
    list_free(&problems);
    list_free(&kernels);
    return code;
}

void isolated_origin(struct isolated *isolated) {
    table_text(&isolated->table, tp_context_machine(isolated->context)->name);
    table_text(&isolated->table, isolated->date);
    table_text(&isolated->table, tp_version());
    table_text(&isolated->table, tp_build_hash());
    table_integer(&isolated->table, isolated->options->seed);
}

const char *isolated_begin(struct isolated *isolated, const char *kind, const char *words, const char *ran) {
    struct table *table = &isolated->table;
    const char *label = strstr(ran, "seqs=#") ? words : ran;
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    char phase[16];
    bench_words_check(words, &problem, &error); /* it was checked before */
    snprintf(phase, sizeof phase, "%.*s", (int)strcspn(ran, " "), ran);
    table_text(table, kind);
    table_text(table, label);
    table_text(table, phase);
    table_integer(table, problem.q_len);
    table_integer(table, problem.kv_len);
    table_integer(table, problem.head_dim_qk);
    return label;
}
