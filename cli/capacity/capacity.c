/* SPDX-License-Identifier: Apache-2.0 */
/* The command, and what all its forms of output ask. */
#include "capacity/capacity.h"

#include <string.h>

#include "tool/device.h"

tp_capacity_cache capacity_cache(const struct capacity_report *report, int group, int evicts) {
    tp_capacity_cache cache = TP_CAPACITY_CACHE_INIT;
    tp_capacity_cache_at(report->capacity, group, evicts, &cache);
    return cache;
}

tp_capacity_work capacity_work(const struct capacity_report *report, int group, int decode) {
    tp_capacity_work work = TP_CAPACITY_WORK_INIT;
    tp_capacity_work_at(report->capacity, group, decode, &work);
    return work;
}

int64_t capacity_total(const struct capacity_report *report, int evicts) {
    int64_t prefill = capacity_work(report, -1, 0).workspace_bytes, decode = capacity_work(report, -1, 1).workspace_bytes;
    return capacity_cache(report, -1, evicts).bytes + (prefill > decode ? prefill : decode);
}

int capacity_evicts(const struct capacity_report *report) {
    return capacity_cache(report, -1, 1).bytes < capacity_cache(report, -1, 0).bytes;
}

static int read_options(const struct options *options, char cache[64], tp_capacity_options *asked) {
    const char *format = options->format;
    int64_t page = 0;
    *asked = (tp_capacity_options)TP_CAPACITY_OPTIONS_INIT;
    if (options->file_count != 1) {
        complain("capacity takes one model: tileproof capacity config.json --context 128k --concurrency 8");
        return EXIT_USAGE;
    }
    if (!options->context || !options->concurrency) {
        complain("%s is missing or 0: it must be at least 1, as in --context 128k --concurrency 8",
                 options->context ? "--concurrency" : "--context");
        return EXIT_USAGE;
    }
    if (format && strcmp(format, "text") && strcmp(format, "json") && strcmp(format, "md")) {
        complain("--output is '%s': it must be text, json or md", format);
        return EXIT_USAGE;
    }
    int code = options_dtype(options, &asked->cache_dtype);
    if (!code) code = options_page(options, &page);
    if (!code) code = options_cache(options, cache);
    asked->cache = options->kv_cache;
    asked->context = options->context;
    asked->concurrency = options->concurrency;
    asked->page_size = page;
    asked->limit = options->limit;
    return code;
}

static int write_report(const struct capacity_report *report, const char *format) {
    int code = EXIT_FINE;
    if (format && !strcmp(format, "json"))
        code = capacity_json(report);
    else
        capacity_text(report, format && !strcmp(format, "md"));
    /* --limit is a question; this host's memory only a figure beside the others */
    if (!code && report->own_limit && capacity_total(report, 0) > report->asked.limit) code = EXIT_FAILED;
    return code;
}

int command_capacity(const struct options *options) {
    struct capacity_report report = {.own_limit = options->limit > 0};
    tp_error error = TP_ERROR_INIT;
    tp_model *model = NULL;
    tp_context *context = NULL;
    tp_capacity *capacity = NULL;
    int code = read_options(options, report.cache, &report.asked);
    if (!code) code = model_read(options, options->files[0], &model);
    if (!code) code = options_context(options, &context);
    if (!code) report.asked.threads = tp_context_threads(context);
    if (!code && *device_absent()) {
        complain("--device %s: not here: %s", options->device, device_absent());
        code = EXIT_REFUSED;
    }
    report.asked.device = device_number();
    if (!code && !report.asked.limit) report.asked.limit = options->device ? device_bytes().memory : host_memory();
    if (!code && !options->device) code = host_limits(options, context, &report);
    if (!code && tp_capacity_create(model, context, &report.asked, &capacity, &error) != TP_OK) code = complain_status(&error);
    if (!code) {
        report.model = model;
        report.capacity = capacity;
        code = write_report(&report, options->format);
    }
    tp_capacity_destroy(capacity);
    if (context) tp_context_destroy(context);
    tp_model_destroy(model);
    return code;
}
