/* SPDX-License-Identifier: Apache-2.0 */
/* --bytes: what goes between the last cache and memory, simulated, beside what must and what we
 * say. */
#include "bench/isolated.h"
#include "bench/simulate.h"

#include <math.h>
#include <string.h>

static const struct column columns[] = {
    ISOLATED_FIRST,
    {"kernel", "simulated kernel", 1, 0},
    {"host_kernel", "without valgrind", 1, 0},
    {"compulsory_read", "must read MB", 1e-6, 3},
    {"compulsory_written", "must write", 1e-6, 3},
    {"model_read", "model reads", 1e-6, 3},
    {"model_written", "model writes", 1e-6, 3},
    {"bound_read", NULL, 1, 0},
    {"bound_written", NULL, 1, 0},
    {"sim_read", "simulated read", 1e-6, 3},
    {"sim_allocate", NULL, 1, 0},
    {"sim_written", "simulated written", 1e-6, 3},
    {"sim_leftover", NULL, 1, 0},
    {"sim_bytes", NULL, 1, 0},
    {"over_compulsory", "sum / must", 1, 2},
    {"over_first", "sum / first kernel's", 1, 2},
    {"model_holds", "model holds", 1, 0},
    {"workspace_bytes", NULL, 1, 0},
    {"flops", NULL, 1, 0},
    {"cache_d1", NULL, 1, 0},
    {"cache_ll", NULL, 1, 0},
    {"repro", NULL, 1, 0},
    ISOLATED_LAST,
};
enum { COLUMN_COUNT = sizeof columns / sizeof *columns };

static const double tolerance = 0.02;
enum { SMALL_CHANGE = 32 << 10 }; /* stack, constants, code of the loader */

struct bytes {
    struct caches caches;
    char first_words[BENCH_WORDS];
    double first_sum; /* of the first kernel on these words */
    int broken;       /* rows whose model does not hold */
};

/* What the model allows a cold cache to move: every line that is written is fetched first, and the
   workspace is not there yet. No cache moves less than what is compulsory. */
static int64_t bound_read(const struct simulation *run) {
    return run->bytes_model + run->workspace_bytes;
}

static int64_t bound_written(const struct simulation *run) {
    return run->bytes_model_written + run->workspace_bytes;
}

/* The claim is about fused kernels in a cache of at least two workspaces: in less, what a task
   keeps in its workspace goes to memory and back. NULL: no claim. */
static const char *model_holds(const struct bytes *bytes, const struct simulation *run) {
    if (run->scores_written || bytes->caches.ll.bytes < 2 * run->workspace_bytes) return NULL;
    int64_t read = run->bytes_compulsory - run->output_bytes;
    return (double)run->read >= (1 - tolerance) * (double)(read + run->output_bytes) &&
                   (double)run->read <= (1 + tolerance) * (double)bound_read(run) + SMALL_CHANGE &&
                   (double)run->written >= (1 - tolerance) * (double)run->output_bytes &&
                   (double)run->written <=
                       (1 + tolerance) * (double)bound_written(run) + SMALL_CHANGE
               ? "yes"
               : "no";
}

/* What this host would take without valgrind around it. */
static const char *host_kernel(const struct isolated *isolated, const char *words, const char *kernel,
                               char name[64]) {
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    tp_choice choice = TP_CHOICE_INIT;
    tp_decision *decision;
    choice.policy = TP_PERMIT;
    choice.kernel = kernel;
    if (bench_words_check(words, &problem, &error) != TP_OK ||
        tp_explain(isolated->context, &problem, &choice, &decision, &error) != TP_OK)
        return NULL;
    snprintf(name, 64, "%s", tp_decision_candidate(decision, decision->chosen)->kernel);
    tp_decision_destroy(decision);
    return name;
}

static void add_row(struct isolated *isolated, const char *words, const char *host,
                    const struct simulation *run) {
    struct bytes *bytes = isolated->user;
    struct table *table = &isolated->table;
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    char repro[2 * BENCH_WORDS];
    double sum = (double)(run->read + run->written);
    const char *holds = model_holds(bytes, run);
    bytes->broken += holds && !strcmp(holds, "no");
    if (strcmp(bytes->first_words, words)) {
        snprintf(bytes->first_words, sizeof bytes->first_words, "%s", words);
        bytes->first_sum = sum;
    }
    bench_words_check(words, &problem, &error); /* it was checked before */
    snprintf(repro, sizeof repro, "tileproof bench --bytes --cache %lld -k %s --seed %lld '%s'",
             (long long)bytes->caches.ll.bytes, run->kernel, (long long)isolated->options->seed,
             isolated_begin(isolated, "bytes", words, run->problem));
    table_text(table, run->kernel);
    table_text(table, host);
    table_integer(table, run->bytes_compulsory - run->output_bytes);
    table_integer(table, run->output_bytes);
    table_integer(table, run->bytes_model - run->bytes_model_written);
    table_integer(table, run->bytes_model_written);
    table_integer(table, bound_read(run));
    table_integer(table, bound_written(run));
    table_integer(table, run->read);
    table_integer(table, run->allocate);
    table_integer(table, run->written);
    table_integer(table, run->leftover);
    table_integer(table, run->read + run->written);
    table_number(table, sum / (double)run->bytes_compulsory);
    table_number(table, sum / bytes->first_sum);
    table_text(table, holds);
    table_integer(table, run->workspace_bytes);
    table_integer(table, (int64_t)useful_flops(&problem, run->pairs_visible));
    table_integer(table, bytes->caches.d1.bytes);
    table_integer(table, bytes->caches.ll.bytes);
    table_text(table, repro);
    isolated_origin(isolated);
}

static int run_row(struct isolated *isolated, const char *words, const char *kernel, char *reason,
                   size_t size) {
    const struct bytes *bytes = isolated->user;
    struct simulation run;
    char name[64];
    int code = simulate_run(words, kernel, isolated->options->seed, &bytes->caches, &run);
    if (code)
        snprintf(reason, size, "%s", run.reason);
    else
        add_row(isolated, words, host_kernel(isolated, words, kernel, name), &run);
    return code;
}

static void print_around(const struct isolated *isolated, int before) {
    const struct bytes *bytes = isolated->user;
    const tp_machine *machine = tp_context_machine(isolated->context);
    char d1[32], ll[32];
    if (before) {
        printf("host: %s, %s; tileproof %s; %s\n\n", machine->name, machine->arch, tp_version(),
               isolated->date);
        printf("simulated, no prefetcher: callgrind, D1 %s %lld-way, last cache %s %lld-way, lines "
               "of %d bytes\n",
               readable_bytes((double)bytes->caches.d1.bytes, d1), (long long)bytes->caches.d1.ways,
               readable_bytes((double)bytes->caches.ll.bytes, ll), (long long)bytes->caches.ll.ways,
               CACHE_LINE);
        if (bytes->caches.note[0]) printf("rounded: %s\n", bytes->caches.note);
        printf("simulated kernel: what ran in valgrind, which hides what it does not know (3.19: "
               "AVX-512)\n");
        printf("cold cache, one call, one thread; tensors were filled before and do not count\n\n");
        return;
    }
    printf(
        "\nMB are 10^6 bytes. must: each element once. model: the receipt's bytes_model: K and V "
        "every time a block is packed;\nfor math its copies, scores and probabilities written "
        "and read once. simulated read: lines that came from memory,\nthose fetched for a store "
        "among them; written: dirty lines that went there, at the latest after the call. sum: "
        "both.\nThe workspace starts cold, so a fused kernel may move up to the model and its "
        "workspace; model holds: it does,\nwithin %.0f %% and %d KiB, in a cache of at least two "
        "workspaces. Other rows (-) make no such claim.\n",
        100 * tolerance, SMALL_CHANGE >> 10);
}

int bench_bytes(const struct options *options, enum table_format format) {
    static const struct options defaults = {.kernel = "best,math",
                                            .shapes = "q512-2k*2,8q1s4k",
                                            .heads = "1/1",
                                            .head_dims = "128",
                                            .causals = "1"};
    struct bytes bytes = {.first_sum = NAN};
    struct isolated isolated = {.format = format, .row = run_row, .user = &bytes};
    int code = bench_context(1, &isolated.context);
    if (code) return code;
    code = simulate_caches(tp_context_machine(isolated.context), options->cache_bytes, &bytes.caches);
    if (!code) code = bench_isolated(&isolated, options, &defaults, columns, COLUMN_COUNT, print_around);
    if (!code && bytes.broken) {
        complain("%d row%s moved more or less than the model allows", bytes.broken,
                 bytes.broken > 1 ? "s" : "");
        code = EXIT_FAILED;
    }
    tp_context_destroy(isolated.context);
    return code;
}
