/* SPDX-License-Identifier: Apache-2.0 */
#include "check/random.h"
#include "terminal/terminal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tool/device.h"

enum { MAX_SHRUNK = 12, MAX_REASONS = 24 };

struct walk {
    struct isolated isolated;
    const struct options *options;
    long passed, failed, beyond;
    struct cover *cover;
    int64_t rows, unbounded;      /* of all calls */
    long none_left, sums_left;    /* calls */
    char shrunk[MAX_SHRUNK][24]; /* their reasons */
    int shrunk_count;
    double end; /* of the budget; 0: none */
    struct {
        char reason[48];
        long count;
    } refused[MAX_REASONS]; /* the last one: all others */
};

static void print_finding(const struct walk *walk, const struct trial *trial, const struct finding *finding) {
    const char *kernel = walk->isolated.kernels->selected[finding->kernel]->name;
    printf("  problem  %s\n  %s\n", trial->text, finding->reason);
    const char *device = walk->options->device;
    printf("  repro    tileproof check%s%s --kernel '^%s$' --seed %" PRIu64 " \"%s\"\n", device ? " --device " : "",
           device ? device : "", kernel, trial->seed, trial->text);
}

/* A worker's contexts have served the trials before it. */
static int passes_alone(const struct walk *walk, const struct trial *trial, const struct finding *finding) {
    struct finding alone;
    isolated_one(&walk->isolated, trial, finding->kernel, &alone);
    if (alone.verdict == TRIAL_FAILED) return 0;
    printf("  alone it passes: tileproof check --random %" PRId64 " --seed %" PRIu64 " --threads 1", finding->number + 1,
           walk->isolated.seed);
    if (walk->options->device) printf(" --device %s", walk->options->device);
    if (walk->options->kernel) printf(" --kernel '%s'", walk->options->kernel);
    printf("\n");
    return 1;
}

static void print_small(const struct walk *walk, struct trial *trial, struct finding *finding) {
    char before[TRIAL_TEXT];
    snprintf(before, sizeof before, "%s", trial->text);
    shrink(&walk->isolated, trial, finding);
    if (!strcmp(before, trial->text)) return;
    printf("  made small:\n");
    print_finding(walk, trial, finding);
}

/* One failure of a kind is enough to be made small. */
static int is_new(struct walk *walk, const struct finding *finding) {
    char reason[24];
    snprintf(reason, sizeof reason, "%.*s", (int)sizeof reason - 1, finding->reason);
    reason[strcspn(reason, "0123456789")] = 0;
    for (int i = 0; i < walk->shrunk_count; i++)
        if (!strcmp(walk->shrunk[i], reason)) return 0;
    if (walk->shrunk_count == MAX_SHRUNK) return 0;
    memcpy(walk->shrunk[walk->shrunk_count++], reason, sizeof reason);
    return 1;
}

/* Numbers aside: "head_dim 300, need <= 256" and "head_dim 512, need <= 256" are one reason. */
static void count_refused(struct walk *walk, const char *reason) {
    char words[sizeof walk->refused[0].reason];
    int i = 0;
    snprintf(words, sizeof words, "%.*s", (int)strcspn(reason, "0123456789"), reason);
    for (size_t end = strlen(words); end && strchr(" =,", words[end - 1]); end--) words[end - 1] = 0;
    while (i < MAX_REASONS - 1 && walk->refused[i].count && strcmp(walk->refused[i].reason, words)) i++;
    snprintf(walk->refused[i].reason, sizeof walk->refused[i].reason, "%s", i < MAX_REASONS - 1 ? words : "others");
    walk->refused[i].count++;
}

static void print_refused(const struct walk *walk) {
    for (int i = 0; i < MAX_REASONS && walk->refused[i].count; i++)
        printf("%s%s %ld", i ? "; " : "refused: ", walk->refused[i].reason, walk->refused[i].count);
    if (walk->refused[0].count) printf("\n");
}

static void found(void *user, const struct finding *got) {
    struct walk *walk = user;
    struct finding finding = *got;
    struct trial trial;
    const char *kernel = walk->isolated.kernels->selected[finding.kernel]->name;
    walk->passed += finding.verdict == TRIAL_PASSED;
    walk->failed += finding.verdict == TRIAL_FAILED;
    walk->beyond += finding.verdict == TRIAL_BEYOND;
    if (finding.verdict == TRIAL_BEYOND && finding.reason[0]) count_refused(walk, finding.reason);
    if (finding.verdict != TRIAL_BEYOND) {
        walk->rows += finding.rows;
        walk->unbounded += finding.unbounded;
        walk->none_left += finding.rows > 0 && finding.unbounded == finding.rows;
        walk->sums_left += finding.sums_left;
    }
    if (finding.verdict != TRIAL_FAILED && !walk->options->verbose) return;
    progress_clear();
    trial_draw(&trial, walk->isolated.seed, finding.number);
    if (finding.verdict != TRIAL_FAILED) {
        printf("%s  #%" PRId64 "  %s  kernel %s\n", finding.verdict == TRIAL_PASSED ? "passed" : "beyond", finding.number,
               trial.text, kernel);
        return;
    }
    printf("FAILED  random #%" PRId64 " of seed %" PRIu64 "  kernel %s\n", finding.number, walk->isolated.seed, kernel);
    print_finding(walk, &trial, &finding);
    if (!finding.late && is_new(walk, &finding) && !passes_alone(walk, &trial, &finding)) print_small(walk, &trial, &finding);
    fflush(stdout);
}

static int walking(void *user, int64_t begun) {
    struct walk *walk = user;
    if (walk->end > 0 && walk->isolated.count == INT64_MAX) progress_left(walk->end - now_seconds());
    if (begun >= 0) progress_at((double)begun, "%ld passed, %ld failed", walk->passed, walk->failed);
    return stop_asked();
}

static void print_absent(const struct check_kernels *kernels) {
    for (int k = 0; k < kernels->absent_count; k++) {
        char needs[64];
        tp_isa_print(kernels->absent[k]->needs, needs, sizeof needs);
        printf("not run here: %s (%s%s)\n", kernels->absent[k]->name, *device_absent() ? "" : "needs ",
               *device_absent() ? device_absent() : needs);
    }
}

int command_check_random(const struct options *options, const struct check_kernels *kernels, int threads) {
    struct walk walk = {.options = options,
                        .isolated = {.kernels = kernels,
                                  .seed = (uint64_t)options->seed,
                                  .count = options->random > 0 ? options->random : INT64_MAX,
                                  .threads = 2,
                                  .workers = threads,
                                  .found = found,
                                  .walking = walking}};
    double begin = now_seconds();
    int code = parse_seconds("--budget", options->budget, &walk.isolated.seconds);
    if (code) return code;
    walk.isolated.user = &walk;
    walk.cover = cover_new();
    if (!walk.cover) {
        complain("no memory for counts");
        return EXIT_FAILED;
    }
    printf("random problems of seed %" PRIu64 " on", walk.isolated.seed);
    for (int i = 0; i < kernels->count; i++) printf(" %s", kernels->selected[i]->name);
    printf("\n");
    if (walk.isolated.seconds > 0) walk.end = begin + walk.isolated.seconds;
    progress_begin("check --random", options->random > 0 ? (double)options->random : 0, "problems");
    progress_at(0, "none");
    stop_watch();
    code = kernels->count ? isolated_walk(&walk.isolated) : EXIT_FINE;
    progress_end();
    for (int64_t i = 0; i < walk.isolated.done; i++) {
        struct trial trial;
        trial_draw(&trial, walk.isolated.seed, i);
        cover_add(walk.cover, &trial);
    }
    int unknown = cover_print(walk.cover, kernels, options->verbose);
    print_absent(kernels);
    printf("rows %" PRId64 ", without a bound %" PRId64 "; calls with none left %ld, without their bias, slopes and sinks %ld\n",
           walk.rows, walk.unbounded, walk.none_left, walk.sums_left);
    print_refused(&walk);
    printf("%" PRId64 " problems: %ld passed, %ld failed", walk.isolated.done, walk.passed, walk.failed);
    if (walk.beyond) printf(", %ld beyond a kernel's head dim, op or dtypes", walk.beyond);
    printf(" (seed %" PRIu64 ", %.1f s)\n", walk.isolated.seed, now_seconds() - begin);
    cover_free(walk.cover);
    if (stop_asked()) stop_say("", "%ld passed and %ld failed of the problems that were begun", walk.passed, walk.failed);
    return code || walk.failed || unknown ? EXIT_FAILED : stop_asked() ? EXIT_AMBIGUOUS : EXIT_FINE;
}

int command_check_problem(const struct options *options, const struct check_kernels *kernels, int threads) {
    struct walk walk = {.options = options,
                        .isolated = {.kernels = kernels, .seed = (uint64_t)options->seed, .threads = 2, .workers = threads}};
    struct trial trial, small;
    char reason[512];
    int tried = 0;
    if (trial_read(&trial, options->problem, (uint64_t)options->seed, reason, sizeof reason) ||
        traits_clash(&trial, reason, sizeof reason)) {
        complain("%s", reason);
        return EXIT_USAGE;
    }
    progress_begin("check", kernels->count, "kernels");
    stop_watch();
    for (; tried < kernels->count && !stop_asked(); tried++) {
        struct finding finding;
        progress_at(tried, "%s", kernels->selected[tried]->name);
        isolated_one(&walk.isolated, &trial, tried, &finding);
        progress_clear();
        finding.kernel = tried;
        walk.failed += finding.verdict == TRIAL_FAILED;
        printf("%s  kernel %s\n",
               finding.verdict == TRIAL_FAILED   ? "FAILED"
               : finding.verdict == TRIAL_PASSED ? "passed"
                                                 : "beyond",
               kernels->selected[tried]->name);
        if (finding.verdict != TRIAL_FAILED) continue;
        print_finding(&walk, &trial, &finding);
        small = trial;
        if (walk.failed == 1) print_small(&walk, &small, &finding);
    }
    progress_end();
    print_absent(kernels);
    int stopped = tried < kernels->count;
    if (stopped) stop_say("", "%d of %d kernels were tried, and %ld failed", tried, kernels->count, walk.failed);
    return walk.failed ? EXIT_FAILED : stopped ? EXIT_AMBIGUOUS : EXIT_FINE;
}
