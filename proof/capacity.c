/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points: rules of the options, sums over layer groups, and the most that fits a limit. */
#include "capacity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

static const int64_t max_tokens = (int64_t)1 << 40; /* of a sequence, and sequences: as the core's */

static int64_t model_limit(const tp_model *model) {
    int64_t max = max_tokens;
    for (int i = 0; i < model->group_count; i++) {
        const tp_layer_group *group = model->groups[i];
        int64_t own = group->part == TP_PART_CROSS ? group->q_max : group->kv_max;
        if (tp__group_caches(group) && own && own < max) max = own;
    }
    return max;
}

static tp_status check_range(const char *name, int64_t value, int64_t low, int64_t high, tp_error *error) {
    if (value >= low && value <= high) return TP_OK;
    return tp__proof_fail(error, TP_INVALID, "%s is %lld: it must be in %lld..%lld", name, (long long)value, (long long)low,
                          (long long)high);
}

static tp_status check_model(const tp_model *model, tp_error *error) {
    int caches = 0;
    for (int i = 0; i < model->group_count; i++) {
        const tp_layer_group *group = model->groups[i];
        caches += tp__group_caches(group);
        if (group->part == TP_PART_CROSS && !group->kv_max)
            return tp__proof_fail(error, TP_INVALID, "%s: how many keys its cross layers have is not said (max_positions)",
                                  model->label);
    }
    if (caches) return TP_OK;
    return tp__proof_fail(error, TP_UNSUPPORTED, "%s: no layer of it generates, so none keeps keys and values", model->label);
}

static tp_status check_options(const tp_model *model, const tp_capacity_options *options, tp_error *error) {
    int64_t max = model_limit(model);
    TP_TRY(check_range("cache_dtype", options->cache_dtype, 0, TP_I4, error));
    TP_TRY(check_range("page_size", options->page_size, 0, 4096, error));
    TP_TRY(check_range("threads", options->threads, 0, 1024, error));
    TP_TRY(check_range("reserved", options->reserved, 0, 0, error));
    TP_TRY(check_range("device", options->device, 0, 255, error));
    TP_TRY(check_range("reserved_too", options->reserved_too, 0, 0, error));
    TP_TRY(check_range("limit", options->limit, 0, INT64_MAX, error));
    TP_TRY(check_range("concurrency", options->concurrency, 1, max_tokens, error));
    if (max < max_tokens && options->context > max)
        return tp__proof_fail(error, TP_INVALID, "context is %lld: %s takes at most %lld tokens", (long long)options->context,
                              model->label, (long long)max);
    if (!isfinite(options->gflops) || options->gflops < 0 || !isfinite(options->read_gbps) || options->read_gbps < 0)
        return tp__proof_fail(error, TP_INVALID, "gflops is %g and read_gbps %g: they must be finite and not negative",
                              options->gflops, options->read_gbps);
    return check_range("context", options->context, 1, max_tokens, error);
}

/* Of the first group that keeps keys: all that transformers knows are of one dtype. */
static int32_t usual_dtype(const tp_model *model) {
    for (int i = 0; i < model->group_count; i++)
        if (tp__group_caches(model->groups[i]) && model->groups[i]->dtype) return model->groups[i]->dtype;
    return TP_BF16;
}

static int sum_cache(tp_capacity_cache *all, const tp_capacity_cache *one) {
    int first = !all->layers;
    if (!one->layers) return 0;
    all->dtype = one->dtype;
    all->page_bytes = first || all->page_bytes == one->page_bytes ? one->page_bytes : 0;
    all->layers += one->layers;
    all->token_bytes += one->token_bytes;
    all->pages += one->pages;
    if (one->tokens > all->tokens) all->tokens = one->tokens;
    int beyond = __builtin_add_overflow(all->sequence_bytes, one->sequence_bytes, &all->sequence_bytes);
    beyond |= __builtin_add_overflow(all->bytes, one->bytes, &all->bytes);
    return beyond;
}

static void sum_work(tp_capacity_work *all, const tp_capacity_work *one, const tp_capacity_options *options) {
    int first = !all->workspace_bytes;
    all->kernel = first || !strcmp(all->kernel, one->kernel) ? one->kernel : "mixed";
    all->exact = (first || all->exact) && one->exact;
    all->flops += one->flops;
    all->bytes += one->bytes;
    all->seconds += one->seconds;
    all->reads_bound = all->seconds > 0 && all->bytes / options->read_gbps > all->flops / options->gflops;
    if (one->workspace_bytes > all->workspace_bytes) all->workspace_bytes = one->workspace_bytes;
    if (one->workspace_thread_bytes > all->workspace_thread_bytes) all->workspace_thread_bytes = one->workspace_thread_bytes;
}

static tp_status too_much(const tp__load *load, tp_error *error) {
    return tp__proof_fail(error, TP_INVALID, "%lld sequences of %lld tokens: their bytes must be below 2^63",
                          (long long)load->concurrency, (long long)load->context);
}

/* Every group at the lengths that were asked about. */
static tp_status count_groups(tp_capacity *c, tp_error *error) {
    const tp__load load = {c->options.context, c->options.concurrency};
    for (int i = 0; i < c->model->group_count; i++) {
        const tp_layer_group *group = c->model->groups[i];
        for (int evicts = 0; evicts < 2; evicts++) {
            tp_capacity_cache *cache = &c->groups[i].cache[evicts];
            if (tp__cache_count(c, group, &load, evicts, cache) || sum_cache(&c->all.cache[evicts], cache))
                return too_much(&load, error);
        }
        for (int decode = 0; decode < 2 && tp__group_caches(group); decode++) {
            tp_capacity_work *work = &c->groups[i].work[decode];
            int64_t workspace;
            TP_TRY(tp__work_plan(c, group, &load, decode, &workspace, work, error));
            sum_work(&c->all.work[decode], work, &c->options);
        }
    }
    return TP_OK;
}

/* Cache and workspace together. Where the cache alone is beyond the limit that is all; INT64_MAX: no such call can be made. */
static tp_status total_bytes(const tp_capacity *c, const tp__load *load, int evicts, int64_t *total, tp_error *error) {
    tp_capacity_cache all = TP_CAPACITY_CACHE_INIT, one;
    tp_error why = TP_ERROR_INIT;
    int64_t workspace = 0, need;
    *total = INT64_MAX;
    for (int i = 0; i < c->model->group_count; i++)
        if (tp__cache_count(c, c->model->groups[i], load, evicts, &one) || sum_cache(&all, &one)) return TP_OK;
    if (all.bytes > c->options.limit) {
        *total = all.bytes;
        return TP_OK;
    }
    for (int i = 0; i < 2 * c->model->group_count; i++) {
        const tp_layer_group *group = c->model->groups[i / 2];
        if (!tp__group_caches(group)) continue;
        tp_status status = tp__work_plan(c, group, load, i % 2, &need, NULL, &why);
        if (status == TP_NO_MEMORY || status == TP_FORKED) return tp__proof_fail(error, status, "%s", why.text);
        if (status != TP_OK) return TP_OK; /* these lengths are beyond what the core or its kernels take */
        if (need > workspace) workspace = need;
    }
    if (__builtin_add_overflow(all.bytes, workspace, total)) *total = INT64_MAX;
    return TP_OK;
}

/* The largest value of *field, up to max, with which the limit holds; 0: none. */
static tp_status search(const tp_capacity *c, tp__load *load, int64_t *field, int64_t max, int evicts, int64_t *found,
                        tp_error *error) {
    int64_t low = 0, high = max, total;
    while (low < high) {
        *field = low + (high - low + 1) / 2;
        TP_TRY(total_bytes(c, load, evicts, &total, error));
        if (total <= c->options.limit)
            low = *field;
        else
            high = *field - 1;
    }
    *found = low;
    return TP_OK;
}

static tp_status find_fits(tp_capacity *c, tp_error *error) {
    const tp_capacity_options *options = &c->options;
    tp__load min = {1, 1};
    int64_t total;
    if (!options->limit) return TP_OK;
    TP_TRY(total_bytes(c, &min, 1, &total, error));
    if (total > options->limit)
        return tp__proof_fail(
            error, TP_INVALID,
            "limit is %lld bytes: it must be at least %lld, for one token of one sequence and the workspace of %d "
            "threads",
            (long long)options->limit, (long long)total, (int)options->threads);
    for (int evicts = 0; evicts < 2; evicts++) {
        tp_capacity_cache *cache = &c->all.cache[evicts];
        tp__load load = {options->context, options->concurrency};
        TP_TRY(search(c, &load, &load.context, model_limit(c->model), evicts, &cache->context_max, error));
        load.context = options->context;
        TP_TRY(search(c, &load, &load.concurrency, max_tokens, evicts, &cache->concurrency_max, error));
    }
    return TP_OK;
}

static tp_status build(tp_capacity *c, tp_error *error) {
    TP_TRY(check_model(c->model, error));
    TP_TRY(check_options(c->model, &c->options, error));
    if (!c->options.threads) c->options.threads = tp_context_threads(c->context);
    if (!c->options.cache_dtype) c->options.cache_dtype = usual_dtype(c->model);
    if (c->options.cache_dtype > TP_BF16)
        return tp__proof_fail(error, TP_UNSUPPORTED,
                              "cache_dtype is %s: it must be f32, f16 or bf16; codes and their scales are a format of the cache",
                              tp_dtype_name((tp_dtype)c->options.cache_dtype));
    TP_TRY(tp__format_for(c->model, c->options.cache, &c->format, error));
    TP_TRY(count_groups(c, error));
    return find_fits(c, error);
}

tp_status tp_capacity_create(const tp_model *model, tp_context *context, const tp_capacity_options *options,
                             tp_capacity **capacity, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_capacity_options known;
    if (!capacity || !model || !context)
        return tp__proof_fail(error, TP_INVALID, "%s is NULL: it must be given",
                              !capacity ? "capacity"
                              : !model  ? "model"
                                        : "context");
    *capacity = NULL;
    TP_TRY(tp__take(&tp__capacity_options_shape, options, &known, error));
    tp_capacity *c = calloc(1, sizeof *c);
    if (c) c->groups = calloc((size_t)model->group_count + 1, sizeof *c->groups);
    if (!c || !c->groups) {
        free(c);
        return tp__proof_fail(error, TP_NO_MEMORY, "out of memory");
    }
    c->model = model;
    c->context = context;
    c->options = known;
    for (int i = 0; i <= model->group_count; i++) {
        tp__capacity_group *group = i < model->group_count ? &c->groups[i] : &c->all;
        for (int kind = 0; kind < 2; kind++) {
            group->cache[kind] = (tp_capacity_cache)TP_CAPACITY_CACHE_INIT;
            group->work[kind] = (tp_capacity_work)TP_CAPACITY_WORK_INIT;
        }
    }
    tp_status status = build(c, error);
    if (status == TP_OK)
        *capacity = c;
    else
        tp_capacity_destroy(c);
    return status;
}

void tp_capacity_destroy(tp_capacity *capacity) {
    if (!capacity) return;
    for (int i = 0; i < capacity->model->group_count; i++)
        for (int kind = 0; kind < 2; kind++)
            if (*capacity->groups[i].work[kind].problem) free((char *)(uintptr_t)capacity->groups[i].work[kind].problem);
    free(capacity->groups);
    free(capacity);
}

static const tp__capacity_group *group_at(const tp_capacity *capacity, int group, int kind) {
    if (!capacity || group < -1 || group >= capacity->model->group_count || (kind != 0 && kind != 1)) return NULL;
    return group < 0 ? &capacity->all : &capacity->groups[group];
}

tp_status tp_capacity_cache_at(const tp_capacity *capacity, int group, int evicts, tp_capacity_cache *cache) {
    const tp__capacity_group *at = group_at(capacity, group, evicts);
    return at ? tp__give(&tp__capacity_cache_shape, &at->cache[evicts], cache) : TP_INVALID;
}

tp_status tp_capacity_work_at(const tp_capacity *capacity, int group, int decode, tp_capacity_work *work) {
    const tp__capacity_group *at = group_at(capacity, group, decode);
    return at ? tp__give(&tp__capacity_work_shape, &at->work[decode], work) : TP_INVALID;
}
