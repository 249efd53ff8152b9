/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's side: valgrind around this same program, and what callgrind wrote. */
#include "terminal/terminal.h"
#include "bench/simulate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOT_FOUND = 127, PATH = 256 };
static const char guessed_d1[] = "D1 is unknown and taken as 32 KiB",
                  guessed_ll[] = "the last cache is unknown and taken as 1 MiB";

static int fail(struct simulation *simulation, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int fail(struct simulation *simulation, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(simulation->reason, sizeof simulation->reason, format, arguments);
    va_end(arguments);
    return code;
}

static void note(struct caches *caches, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void note(struct caches *caches, const char *format, ...) {
    size_t used = strlen(caches->note);
    va_list arguments;
    if (used) used += (size_t)snprintf(caches->note + used, sizeof caches->note - used, "; ");
    va_start(arguments, format);
    vsnprintf(caches->note + used, sizeof caches->note - used, format, arguments);
    va_end(arguments);
}

/* valgrind wants sets that are a power of two. The number of ways is ours to choose; where none
   from `ways` to twice as many fits, the size goes down to a power of two. */
static struct cache legal_cache(struct caches *caches, const char *name, int64_t bytes,
                                int64_t ways) {
    int64_t lines = bytes / CACHE_LINE, down = 1;
    for (int64_t w = ways; w <= 2 * ways; w++)
        if (bytes % (CACHE_LINE * w) == 0 && !(lines / w & (lines / w - 1)))
            return (struct cache){bytes, w};
    while (2 * down <= lines) down *= 2;
    char from[32], to[32];
    note(caches, "%s of %s is simulated as %s: sets must be a power of two", name,
         readable_bytes((double)bytes, from), readable_bytes((double)(down * CACHE_LINE), to));
    return (struct cache){down * CACHE_LINE, ways};
}

int simulate_caches(const tp_machine *machine, int64_t ll_asked, struct caches *caches) {
    int64_t d1 = machine->l1d_bytes;
    int64_t ll = machine->l3_bytes ? machine->l3_bytes : machine->l2_bytes;
    *caches = (struct caches){0};
    if (!d1) note(caches, "%s", guessed_d1), d1 = 32 << 10;
    if (!ll && !ll_asked) note(caches, "%s", guessed_ll), ll = 1 << 20;
    caches->d1 = legal_cache(caches, "D1", d1, 8);
    if (ll_asked && (ll_asked < caches->d1.bytes || ll_asked > 1 << 30)) {
        complain("--cache is %lld: it must be in %lld..%d, from this host's D1 to 1 GiB",
                 (long long)ll_asked, (long long)caches->d1.bytes, 1 << 30);
        return EXIT_USAGE;
    }
    caches->ll = legal_cache(caches, "the last cache", ll_asked ? ll_asked : ll, 16);
    return EXIT_FINE;
}

/* Runs in the child process and does not return. */
static void start_valgrind(const char *folder, const char *words, const char *kernel, int64_t seed,
                           const struct caches *caches) {
    char self[PATH_MAX] = "", out[PATH], receipt[PATH], errors[PATH], d1[80], ll[80], number[2][32];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    snprintf(out, sizeof out, "--callgrind-out-file=%s/traffic", folder);
    snprintf(receipt, sizeof receipt, "%s/receipt", folder);
    snprintf(errors, sizeof errors, "%s/errors", folder);
    snprintf(d1, sizeof d1, "--D1=%lld,%lld,%d", (long long)caches->d1.bytes,
             (long long)caches->d1.ways, CACHE_LINE);
    snprintf(ll, sizeof ll, "--LL=%lld,%lld,%d", (long long)caches->ll.bytes,
             (long long)caches->ll.ways, CACHE_LINE);
    snprintf(number[0], sizeof number[0], "%lld", (long long)seed);
    snprintf(number[1], sizeof number[1], "%lld", (long long)caches->ll.bytes);
    char *command[] = {"valgrind",
                       "-q",
                       "--tool=callgrind",
                       "--cache-sim=yes",
                       "--simulate-wb=yes",
                       "--instr-atstart=no",
                       d1,
                       ll,
                       out,
                       self,
                       "simulated-run",
                       "--seed",
                       number[0],
                       "--cache",
                       number[1],
                       "--kernel",
                       (char *)(kernel ? kernel : "best"),
                       "--",
                       (char *)words,
                       NULL};
    int to = open(receipt, O_WRONLY | O_CREAT, 0600), err = open(errors, O_WRONLY | O_CREAT, 0600);
    if (length > 0 && to >= 0 && err >= 0 && dup2(to, 1) >= 0 && dup2(err, 2) >= 0)
        execvp(command[0], command);
    _exit(errno == ENOENT ? NOT_FOUND : NOT_FOUND - 1);
}

/* The tool's own complaint, or the last thing valgrind said. */
static int child_broke(const char *folder, int status, struct simulation *simulation) {
    static const char prefix[] = "tileproof: ";
    char path[PATH], line[400], said[400] = "nothing was said";
    snprintf(path, sizeof path, "%s/errors", folder);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        int ours = !strncmp(line, prefix, sizeof prefix - 1);
        if (*line) snprintf(said, sizeof said, "%s", ours ? line + sizeof prefix - 1 : line);
        if (ours) break;
    }
    if (file) fclose(file);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_REFUSED)
        return fail(simulation, EXIT_REFUSED, "%s", said);
    return fail(simulation, EXIT_FAILED, "under valgrind: %s", said);
}

static int read_receipt(const char *folder, struct simulation *simulation) {
    char path[PATH];
    const char *problem = NULL, *kernel = NULL;
    json_error_t error;
    json_int_t compulsory, model, model_written, scores, workspace, pairs, output;
    snprintf(path, sizeof path, "%s/receipt", folder);
    json_t *all = json_load_file(path, 0, &error);
    int wrong =
        !all || json_unpack_ex(all, &error, 0, "{s:I, s:{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}}",
                               "output_bytes", &output, "receipt", "problem", &problem, "kernel",
                               &kernel, "bytes_compulsory", &compulsory, "bytes_model", &model,
                               "bytes_model_written", &model_written, "scores_written", &scores,
                               "workspace_bytes", &workspace, "pairs_visible", &pairs);
    if (!wrong) {
        snprintf(simulation->problem, sizeof simulation->problem, "%s", problem);
        snprintf(simulation->kernel, sizeof simulation->kernel, "%s", kernel);
        simulation->bytes_compulsory = compulsory;
        simulation->bytes_model = model;
        simulation->bytes_model_written = model_written;
        simulation->scores_written = scores;
        simulation->workspace_bytes = workspace;
        simulation->pairs_visible = pairs;
        simulation->output_bytes = output;
    }
    json_decref(all);
    return wrong ? fail(simulation, EXIT_FAILED, "the child's receipt: %s", error.text) : EXIT_FINE;
}

/* One dump of callgrind: a line with the names of its counters, and one with their sums, of which
   zeros at the end are left out. */
static int read_counters(const char *folder, int part, struct simulation *simulation,
                         int64_t counters[4]) {
    static const char *const names[] = {"DLmr", "DLmw", "DLdmr", "DLdmw"};
    char path[PATH], line[1024], events[1024] = "", totals[1024] = "", *name_at, *number_at;
    snprintf(path, sizeof path, "%s/traffic.%d", folder, part);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "events: %1023[^\n]", events);
        sscanf(line, "totals: %1023[^\n]", totals);
    }
    if (file) fclose(file);
    int found = 0;
    char *number = strtok_r(totals, " ", &number_at);
    memset(counters, 0, 4 * sizeof *counters);
    for (char *name = strtok_r(events, " ", &name_at); name; name = strtok_r(NULL, " ", &name_at)) {
        for (int i = 0; i < 4; i++) {
            if (strcmp(name, names[i])) continue;
            counters[i] = number ? strtoll(number, NULL, 10) : 0;
            found++;
        }
        if (number) number = strtok_r(NULL, " ", &number_at);
    }
    return found == 4 ? EXIT_FINE
                      : fail(simulation, EXIT_FAILED, "callgrind wrote no cache counters");
}

static int read_traffic(const char *folder, const struct caches *caches,
                        struct simulation *simulation) {
    int64_t call[4], sweep[4], lines = caches->ll.bytes / CACHE_LINE;
    int code = read_counters(folder, 1, simulation, call);
    if (!code) code = read_counters(folder, 2, simulation, sweep);
    if (code) return code;
    if (sweep[0] < lines)
        return fail(
            simulation, EXIT_FAILED,
            "the sweep after the call read %lld of the cache's %lld lines: what was left in the "
            "cache is not all counted",
            (long long)sweep[0], (long long)lines);
    simulation->read = (call[0] + call[1]) * CACHE_LINE;
    simulation->allocate = call[1] * CACHE_LINE;
    simulation->leftover = (sweep[2] + sweep[3]) * CACHE_LINE;
    simulation->written = (call[2] + call[3]) * CACHE_LINE + simulation->leftover;
    return EXIT_FINE;
}

static void remove_folder(const char *folder) {
    char path[PATH + NAME_MAX + 2];
    DIR *open = opendir(folder);
    for (struct dirent *one; open && (one = readdir(open));) {
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        unlink(path); /* "." and ".." are no files and stay */
    }
    if (open) closedir(open);
    rmdir(folder);
}

int simulate_run(const char *words, const char *kernel, int64_t seed, const struct caches *caches,
                 struct simulation *simulation) {
    const char *temporary = getenv("TMPDIR");
    char folder[PATH - 64];
    int status = 0, code;
    *simulation = (struct simulation){0};
    snprintf(folder, sizeof folder, "%.150s/tileproof-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(folder)) return fail(simulation, EXIT_FAILED, "%s: %s", folder, strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) start_valgrind(folder, words, kernel, seed, caches);
    if (child < 0 || stop_wait(child, &status) != child)
        code = fail(simulation, EXIT_FAILED, "fork: %s", strerror(errno));
    else if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_FOUND)
        code = fail(simulation, EXIT_REFUSED, "valgrind was not found");
    else if (status)
        code = child_broke(folder, status, simulation);
    else if (!(code = read_receipt(folder, simulation)))
        code = read_traffic(folder, caches, simulation);
    remove_folder(folder);
    return code;
}
