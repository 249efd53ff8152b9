/* SPDX-License-Identifier: Apache-2.0 */
#include "watched.h"

#include "places.h"

#include <string.h>

int watched_context(struct watched *watched, const struct options *options, tp_context **context) {
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    int code = EXIT_FINE;
    *watched = (struct watched){0};
    if (options->trace_file && options->metrics_file && strcmp(options->metrics_file, "-") &&
        place_same(options->trace_file, options->metrics_file)) {
        complain("--trace and --metrics are one file, %s: give one of them another name", options->trace_file);
        return EXIT_USAGE;
    }
    if (options->trace_file) code = whole_open(&watched->trace, options->trace_file);
    if (!code && options->metrics_file) code = whole_open(&watched->metrics, options->metrics_file);
    if (watched->trace.file) {
        wanted.trace = write_to_file;
        wanted.trace_cookie = watched->trace.file;
    }
    if (!code) code = options_context_like(options, &wanted, context);
    if (code) {
        whole_close(&watched->trace, 0);
        whole_close(&watched->metrics, 0);
    }
    return code;
}

int watched_end(struct watched *watched, const tp_context *context, int code) {
    int keep = code != EXIT_USAGE;
    if (watched->metrics.file && keep && tp_metrics_write(context, write_to_file, watched->metrics.file) != TP_OK)
        keep = 0;
    int trace = whole_close(&watched->trace, keep), metrics = whole_close(&watched->metrics, keep);
    return code ? code : trace ? trace : metrics;
}
