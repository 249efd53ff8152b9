/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/watched.h"

#include "tool/files.h"

int watched_context(struct watched *watched, const struct options *options, tp_context **context) {
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    int code = EXIT_FINE;
    *watched = (struct watched){0};
    struct named_file trace = {"--trace", options->trace_file}, metrics = {"--metrics", options->metrics_file};
    code = file_clash(&trace, &metrics);
    if (code) return code;
    if (options->trace_file) code = file_open(&watched->trace, options->trace_file);
    if (!code && options->metrics_file) code = file_open(&watched->metrics, options->metrics_file);
    if (watched->trace.stream) {
        wanted.trace = write_to_file;
        wanted.trace_cookie = watched->trace.stream;
    }
    if (!code) code = options_context_like(options, &wanted, context);
    if (code) {
        file_close(&watched->trace, 0);
        file_close(&watched->metrics, 0);
    }
    return code;
}

int watched_end(struct watched *watched, const tp_context *context, int code) {
    int keep = code != EXIT_USAGE;
    if (watched->metrics.stream && keep && tp_metrics_write(context, write_to_file, watched->metrics.stream) != TP_OK)
        keep = 0;
    int trace = file_close(&watched->trace, keep), metrics = file_close(&watched->metrics, keep);
    return code ? code : trace ? trace : metrics;
}
