/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/replay.h"
#include "tool/files.h"
#include "tool/watched.h"

#include <stdlib.h>
#include <string.h>

static int run_all(const struct options *options, const struct requests *requests, const char *name) {
    struct watched watched;
    struct replay *replay = calloc(1, sizeof *replay);
    if (!replay) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    replay->options = options;
    replay->requests = requests;
    int code = report_read(options, &replay->before);
    if (!code) code = watched_context(&watched, options, &replay->context);
    if (!code) {
        code = replay_load(replay, name);
        if (!code) code = replay_run(replay);
        if (!code) code = replay_report(replay);
        code = watched_end(&watched, replay->context, code);
        replay_unload(replay);
        tp_context_destroy(replay->context);
        json_decref(replay->before);
    }
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
