/* SPDX-License-Identifier: Apache-2.0 */
#include "capacity/capacity.h"

#include <jansson.h>

#include "tool/device.h"
#include "tool/made.h"

#define CACHE(field) (json_int_t) cache->field
static json_t *cache_json(const tp_capacity_cache *cache) {
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "layers", CACHE(layers), "tokens", CACHE(tokens), "token_bytes",
                     CACHE(token_bytes), "sequence_bytes", CACHE(sequence_bytes), "bytes", CACHE(bytes), "pages", CACHE(pages),
                     "page_bytes", CACHE(page_bytes));
}

/* Of all groups: with what is needed, and what fits. */
static json_t *all_json(const struct capacity_report *report, int evicts) {
    tp_capacity_cache all = capacity_cache(report, -1, evicts), *cache = &all;
    int64_t total = capacity_total(report, evicts);
    json_t *object = cache_json(cache);
    if (object && (json_object_set_new(object, "total_bytes", json_integer(total)) ||
                   json_object_set_new(object, "fits", json_boolean(total <= report->asked.limit)) ||
                   json_object_set_new(object, "context_max", json_integer(CACHE(context_max))) ||
                   json_object_set_new(object, "concurrency_max", json_integer(CACHE(concurrency_max))))) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *work_json(const struct capacity_report *report, int group, int decode) {
    tp_capacity_work work = capacity_work(report, group, decode);
    double tokens = (double)(decode ? report->asked.concurrency : report->asked.context);
    if (!work.workspace_bytes) return json_null();
    json_t *object =
        json_pack("{s:s,s:s,s:I,s:I,s:f,s:f,s:f,s:b}", "kernel", work.kernel, "problem", work.problem, "workspace_bytes",
                  (json_int_t)work.workspace_bytes, "workspace_thread_bytes", (json_int_t)work.workspace_thread_bytes, "flops",
                  work.flops, "bytes", work.bytes, "intensity", work.flops / work.bytes, "exact", work.exact);
    if (object && work.seconds > 0 &&
        json_object_update_new(object, json_pack("{s:f,s:f,s:s}", "seconds_min", work.seconds, "tokens_per_second_max",
                                                 tokens / work.seconds, "bound", work.reads_bound ? "reads" : "multiply-adds"))) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *group_json(const struct capacity_report *report, int index) {
    const tp_layer_group *group = report->model->groups[index];
    tp_capacity_cache kept = capacity_cache(report, index, 0), evicted = capacity_cache(report, index, 1);
    char layers[8 * TP_MODEL_MAX_LAYERS] = "";
    tp_layer_group_layers(group, layers, sizeof layers);
    return json_pack("{s:s,s:s,s:I,s:s?,s:o,s:o,s:o,s:o}", "part", tp_part_name((tp_part)group->part), "layers", layers,
                     "kv_shared", (json_int_t)group->kv_shared, "out_of_scope", group->out_of_scope, "kept", cache_json(&kept),
                     "evicted", cache_json(&evicted), "prefill", work_json(report, index, 0), "decode",
                     work_json(report, index, 1));
}

static json_t *limits_json(const struct capacity_report *report) {
    if (!(report->asked.gflops > 0)) return json_null();
    return json_pack("{s:f,s:f,s:s}", "gflops", report->asked.gflops, "read_gbps", report->asked.read_gbps, "isa", report->isa);
}

static json_t *device_json(const struct capacity_report *report) {
    struct device_bytes has = device_bytes();
    if (report->asked.device == TP_CPU) return json_null();
    return json_pack("{s:s,s:I,s:I,s:I}", "name", device_name(), "memory_bytes", (json_int_t)has.memory, "buffer_bytes",
                     (json_int_t)has.buffer, "local_bytes", (json_int_t)has.local);
}

/* A value that could not be made is NULL, and packing or adding that fails. */
static json_t *report_json(const struct capacity_report *report) {
    const tp_capacity_options *asked = &report->asked;
    json_t *groups = json_array();
    for (int i = 0; i < report->model->group_count; i++)
        if (json_array_append_new(groups, group_json(report, i))) {
            json_decref(groups);
            return NULL;
        }
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:i,s:I,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "format",
                     "tileproof.capacity/1", "model", report->model->label, "config_hash", report->model->config_hash, "cache",
                     report->cache, "cache_dtype", tp_dtype_name((tp_dtype)capacity_cache(report, -1, 0).dtype), "context",
                     (json_int_t)asked->context, "concurrency", (json_int_t)asked->concurrency, "page_size",
                     (json_int_t)asked->page_size, "threads", (int)asked->threads, "limit_bytes", (json_int_t)asked->limit,
                     "limit_given", report->own_limit, "limits", limits_json(report), "kept", all_json(report, 0), "evicted",
                     all_json(report, 1), "prefill", work_json(report, -1, 0), "decode", work_json(report, -1, 1), "device",
                     device_json(report), "groups", groups);
}

int capacity_json(const struct capacity_report *report) {
    json_t *object = report_json(report);
    if (!object || json_object_update_new(object, made_here())) {
        json_decref(object);
        complain("out of memory");
        return EXIT_FAILED;
    }
    json_dumpf(object, stdout, JSON_INDENT(1)); /* main looks whether it was written */
    putchar('\n');
    json_decref(object);
    return EXIT_FINE;
}
