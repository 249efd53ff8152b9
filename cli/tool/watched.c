/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/watched.h"

#include "harness/places.h"

int watched_context(struct watched *watched, const struct options *options, tp_context **context) {
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    int code = EXIT_FINE;
    *watched = (struct watched){0};
    struct placed trace = {"--trace", options->trace_file}, metrics = {"--metrics", options->metrics_file};
    code = place_clash(&trace, &metrics);
    if (code) return code;
    if (options->trace_file) code = atomic_file_open(&watched->trace, options->trace_file);
    if (!code && options->metrics_file) code = atomic_file_open(&watched->metrics, options->metrics_file);
    if (watched->trace.file) {
        wanted.trace = write_to_file;
        wanted.trace_cookie = watched->trace.file;
    }
    if (!code) code = options_context_like(options, &wanted, context);
    if (code) {
        atomic_file_close(&watched->trace, 0);
        atomic_file_close(&watched->metrics, 0);
    }
    return code;
}

int watched_end(struct watched *watched, const tp_context *context, int code) {
    int keep = code != EXIT_USAGE;
    if (watched->metrics.file && keep && tp_metrics_write(context, write_to_file, watched->metrics.file) != TP_OK)
        keep = 0;
    int trace = atomic_file_close(&watched->trace, keep), metrics = atomic_file_close(&watched->metrics, keep);
    return code ? code : trace ? trace : metrics;
}
