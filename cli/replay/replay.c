/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/replay.h"
#include "terminal/terminal.h"
#include "tool/files.h"
#include "tool/watched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Options that go together, or not. */
static int check_options(const struct options *options, double *fail_above) {
    char *end = NULL;
    const char *factor = options->fail_above;
    *fail_above = factor ? strtod(factor, &end) : 0;
    if (factor && (end == factor || *end || !(*fail_above > 0) || !isfinite(*fail_above))) {
        complain("--fail-above is '%s': it must be a number above 0, such as 1.5", factor);
        return EXIT_USAGE;
    }
    const char *problem = factor && !options->against ? "--fail-above needs --against REPORT: it is a factor of its p99"
                          : !options->observed        ? NULL
                          : options->modelled         ? "--observed and --modelled: times are a log's, or modelled"
                          : options->trace_file || options->metrics_file
                              ? "--observed runs nothing: there is nothing to write by --trace or --metrics"
                          : options->kv_cache ? "--observed runs nothing: the log does not say what its --kv-cache was"
                              : NULL;
    if (problem) complain("%s", problem);
    return problem ? EXIT_USAGE : EXIT_FINE;
}

/* Without times there is nothing to say of a log. */
static int check_observed(const struct requests *requests, const char *name) {
    for (size_t i = 0; i < requests->count; i++)
        if (!isnan(requests->request[i].ttft_ms)) return EXIT_FINE;
    complain("%s: no line has the field 'ttft_ms', the time to the first token, which --observed reads", name);
    return EXIT_USAGE;
}

/* Tails of the requests that were run, on standard output alone: no file holds a part. */
static int report_stopped(struct replay *replay) {
    struct options printed = *replay->options;
    json_decref(replay->before);
    replay->before = NULL;
    printed.format = printed.against = printed.fail_above = NULL;
    replay->options = &printed;
    int code = replay->requests_run ? replay_report(replay) : EXIT_FINE;
    return code ? code : stop_say("", "%lld of the requests were run; no report was written", (long long)replay->requests_run);
}

static int run_all(const struct options *options, const struct requests *requests, const char *name) {
    struct watched watched;
    struct replay *replay = calloc(1, sizeof *replay);
    if (!replay) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    replay->options = options;
    replay->requests = requests;
    int code = check_options(options, &replay->fail_above);
    if (!code) code = options_cache(options, replay->cache);
    if (!code && options->observed) code = check_observed(requests, name);
    if (!code) code = report_read(options, &replay->before);
    if (!code && !options->observed) code = watched_context(&watched, options, &replay->context);
    if (!code) {
        code = replay_load(replay, name);
        if (!code) code = replay_run(replay);
        if (!code) code = stop_asked() ? report_stopped(replay) : replay_report(replay);
        if (replay->context) code = watched_end(&watched, replay->context, code);
        replay_unload(replay);
        if (replay->context) tp_context_destroy(replay->context);
    }
    json_decref(replay->before);
    free(replay);
    return code;
}

int command_replay(const struct options *options) {
    struct requests requests;
    char reason[LINES_REASON];
    size_t size;
    if (options->generate) return requests_generate(options);
    if (options->file_count != 1) {
        complain("replay takes one file of requests: tileproof replay requests.jsonl");
        return EXIT_USAGE;
    }
    char *text = file_text(options->files[0], LINES_MAX_BYTES, &size);
    if (!text) return EXIT_USAGE;
    int code = EXIT_USAGE;
    if (requests_read(&requests, text, size, options->files[0], reason))
        complain("%s", reason);
    else {
        code = run_all(options, &requests, options->files[0]);
        requests_free(&requests);
    }
    free(text);
    return code;
}
