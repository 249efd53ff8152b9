/* SPDX-License-Identifier: Apache-2.0 */
#include "check/random.h"
#include "terminal/terminal.h"
#include "tool/device.h"

#include <pthread.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

struct walk {
    const struct check_list *list;
    const struct check_kernels *kernels;
    struct outcome_of *outcomes; /* [case][kernel] */
    char *done;
    tp_context *context;
    uint64_t seed;
    int verbose;
    pthread_mutex_t lock;
    size_t next, printed, finished;
};

/* Prints what is finished, in the order of the list. Called with the lock held. */
static void print_finished(struct walk *walk) {
    int kernels = walk->kernels->count;
    for (; walk->printed < walk->list->count && walk->done[walk->printed]; walk->printed++)
        for (int k = 0; k < kernels; k++) {
            const struct check_case *test = &walk->list->cases[walk->printed];
            const struct outcome_of *outcome =
                &walk->outcomes[walk->printed * (size_t)kernels + (size_t)k];
            if (outcome->outcome == FAILED || walk->verbose) progress_clear();
            if (outcome->outcome == FAILED)
                check_print_failure(test, walk->kernels->selected[k], outcome->reason, walk->seed);
            else if (walk->verbose)
                printf("%s  %s  kernel %s\n", outcome->outcome == PASSED ? "passed" : "beyond",
                       test->name, walk->kernels->selected[k]->name);
        }
    fflush(stdout);
}

static void *work(void *argument) {
    struct walk *walk = argument;
    struct check_env env = {.context = walk->context, .seed = walk->seed, .device = device_number()};
    env.arithmetic = (tp_arithmetic)walk->kernels->selected[0]->arithmetic;
    for (;;) {
        pthread_mutex_lock(&walk->lock);
        size_t at = walk->next++;
        pthread_mutex_unlock(&walk->lock);
        if (at >= walk->list->count || stop_asked()) break;
        env.test = &walk->list->cases[at];
        check_run_case(&env, walk->kernels, &walk->outcomes[at * (size_t)walk->kernels->count]);
        pthread_mutex_lock(&walk->lock);
        walk->done[at] = 1;
        print_finished(walk);
        progress_at((double)++walk->finished, "%s", walk->list->cases[at].name);
        pthread_mutex_unlock(&walk->lock);
    }
    workspace_free(&env.workspace);
    return NULL;
}

/* Cases are independent, so each thread takes the next one. */
static void walk_all(struct walk *walk, int threads) {
    pthread_t thread[64];
    int started = 0;
    if (threads > 64) threads = 64;
    for (int i = 1; i < threads; i++)
        if (!pthread_create(&thread[started], NULL, work, walk)) started++;
    work(walk);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

static int compile(const char *option, const char *pattern, regex_t *regex) {
    int code = regcomp(regex, pattern ? pattern : "", REG_EXTENDED | REG_NOSUB);
    if (!code) return 0;
    char reason[128];
    regerror(code, regex, reason, sizeof reason);
    complain("%s is '%s': it must be a POSIX extended regular expression (%s)", option, pattern,
             reason);
    return EXIT_USAGE;
}

static int matches(const regex_t *regex, const char *text) {
    return !regexec(regex, text, 0, NULL, 0);
}

static int select_kernels(const char *pattern, uint32_t isa, struct check_kernels *kernels) {
    regex_t regex;
    if (compile("--kernel", pattern, &regex)) return EXIT_USAGE;
    const tp_kernel_info *kernel;
    for (int i = 0; (kernel = device_kernel_at(i)); i++) {
        if (!matches(&regex, kernel->name)) continue;
        if (!*device_absent() && (kernel->needs & isa) == kernel->needs && kernels->count < MAX_KERNELS)
            kernels->selected[kernels->count++] = kernel;
        else if (kernels->absent_count < MAX_KERNELS)
            kernels->absent[kernels->absent_count++] = kernel;
    }
    regfree(&regex);
    if (kernels->count + kernels->absent_count) return 0;
    fprintf(stderr, "tileproof: --kernel is '%s': it matches none of", pattern);
    for (int i = 0; (kernel = device_kernel_at(i)); i++) fprintf(stderr, " %s", kernel->name);
    fputc('\n', stderr);
    return EXIT_USAGE;
}

/* Keeps what the options name; --quick keeps every hostile case and a tenth of the grid. */
static int select_cases(const struct options *options, struct check_list *list) {
    regex_t name, mask;
    if (compile("--case", options->case_name, &name)) return EXIT_USAGE;
    if (compile("--mask", options->mask, &mask)) {
        regfree(&name);
        return EXIT_USAGE;
    }
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct check_case *test = &list->cases[i];
        if (!matches(&name, test->name) || !matches(&mask, test->mask)) continue;
        if (options->quick && test->slow) continue;
        if (options->quick && !test->function && random_bits(7, 7, i) % 10) continue;
        list->cases[kept++] = *test;
    }
    list->count = kept;
    regfree(&name);
    regfree(&mask);
    if (kept) return 0;
    complain("no case matches --case '%s' and --mask '%s'",
             options->case_name ? options->case_name : "", options->mask ? options->mask : "");
    return EXIT_USAGE;
}

static int run_list(const struct options *options, tp_context *context,
                    const struct check_list *list, const struct check_kernels *kernels) {
    size_t results = list->count * (size_t)kernels->count;
    struct walk walk = {.list = list,
                        .kernels = kernels,
                        .context = context,
                        .seed = (uint64_t)options->seed,
                        .verbose = options->verbose,
                        .lock = PTHREAD_MUTEX_INITIALIZER};
    walk.outcomes = calloc(results + 1, sizeof *walk.outcomes);
    walk.done = calloc(list->count, 1);
    if (!walk.outcomes || !walk.done) {
        complain("no memory for %zu results", results);
        free(walk.outcomes);
        free(walk.done);
        return EXIT_FAILED;
    }
    double begin = now_seconds();
    progress_begin("check", (double)list->count, "cases");
    progress_at(0, "%s", list->cases[0].name);
    stop_watch();
    if (kernels->count) walk_all(&walk, tp_context_threads(context));
    progress_end();
    double seconds = now_seconds() - begin;
    long failed = check_print_table(list, kernels, walk.outcomes, walk.seed, seconds);
    int stopped = stop_asked() && walk.finished < list->count;
    if (stopped) stop_say("", "%zu of %zu cases were run, and %ld failed", walk.finished, list->count, failed);
    int code = failed ? EXIT_FAILED : stopped ? EXIT_AMBIGUOUS : EXIT_FINE;
    if (options->record && !stopped) code = check_record(options, list, walk.outcomes);
    if (options->device && code == EXIT_FINE) code = device_say_evidence(options->record);
    for (size_t i = 0; i < results; i++) free(walk.outcomes[i].reason);
    free(walk.outcomes);
    free(walk.done);
    return code;
}

/* --random, --budget and a problem run trials in child processes: no context is made in this one. */
static int run_trials(const struct options *options) {
    struct check_kernels kernels = {0};
    tp_machine machine = {.struct_size = sizeof machine};
    tp_error error = TP_ERROR_INIT;
    if (options->case_name || options->mask || options->list || options->quick || options->record) {
        complain("--case, --mask, --list and --quick choose among the cases, --record keeps them: not with --random, --budget or "
                 "a problem");
        return EXIT_USAGE;
    }
    if (options->problem[0] && (options->random > 0 || options->budget)) {
        complain("--random and --budget draw problems: '%s' is one too many", options->problem);
        return EXIT_USAGE;
    }
    if (tp_machine_detect(&machine, &error) != TP_OK) return complain_status(&error);
    int code = device_open_in_children(options);
    if (!code) code = select_kernels(options->kernel, machine.isa, &kernels);
    if (code) return code;
    int threads = options->threads ? (int)options->threads : machine.threads;
    return options->problem[0] ? command_check_problem(options, &kernels, threads)
                               : command_check_random(options, &kernels, threads);
}

int command_check(const struct options *options) {
    struct check_list list = {0};
    struct check_kernels kernels = {0};
    tp_context *context;
    if (options->random > 0 || options->budget || options->problem[0]) return run_trials(options);
    int code = options_context(options, &context);
    if (code) return code;
    if ((code = check_record_asked(options))) {
        tp_context_destroy(context);
        return code;
    }
    check_add_grid(&list, (uint64_t)options->seed);
    check_add_definition(&list);
    check_add_values(&list);
    check_add_large(&list);
    check_add_poison(&list);
    check_add_identity(&list);
    check_add_promise(&list);
    check_add_cache(&list);
    check_add_masks(&list);
    check_add_backward(&list);
    check_add_again(&list);
    if (list.broken) code = EXIT_FAILED;
    if (!code) code = select_kernels(options->kernel, tp_context_machine(context)->isa, &kernels);
    if (!code) code = select_cases(options, &list);
    if (!code && options->list) {
        for (size_t i = 0; i < list.count; i++)
            printf("%s  mask %s\n", list.cases[i].name, list.cases[i].mask);
        printf("%zu cases, %d kernels run here, %d do not\n", list.count, kernels.count,
               kernels.absent_count);
    } else if (!code) {
        code = run_list(options, context, &list, &kernels);
    }
    free(list.cases);
    tp_context_destroy(context);
    return code;
}
