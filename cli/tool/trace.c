/* SPDX-License-Identifier: Apache-2.0 */
/* tileproof trace: a trace of calls as events that chrome://tracing and Perfetto show (convert), or summed up (summary). */
#include "cli.h"
#include "terminal/terminal.h"
#include "tool/files.h"
#include "tool/trace_calls.h"
#include "trace/summary.h"

#include <stdlib.h>
#include <string.h>

static void tell(size_t count) { progress_at((double)count, "read"); }

static int convert(const struct options *options) {
    struct traced_calls calls = {.tell = tell};
    char reason[LINES_REASON];
    size_t size;
    const struct named_file out = {"-o", options->format}, in = {"the trace", options->files[1]};
    int code = file_clash(&out, &in);
    if (code) return code;
    char *text = file_text(options->files[1], LINES_MAX_BYTES, &size);
    if (!text) return EXIT_USAGE;
    code = EXIT_USAGE;
    progress_begin("trace convert", 0, "calls");
    int wrong = traced_read(&calls, text, size, options->files[1], reason);
    progress_end();
    if (wrong)
        complain("%s", reason);
    else {
        code = file_write_json(options->format ? options->format : "-", traced_events(&calls), JSON_COMPACT);
        traced_free(&calls);
    }
    free(text);
    return code;
}

int command_trace(const struct options *options) {
    const char *word = options->file_count == 2 ? options->files[0] : "";
    if (!strcmp(word, "convert")) return convert(options);
    if (!strcmp(word, "summary")) return trace_summary(options->files[1], options->format);
    complain("trace takes the word convert or summary and one file: tileproof trace summary calls.jsonl");
    return EXIT_USAGE;
}
