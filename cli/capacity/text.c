/* SPDX-License-Identifier: Apache-2.0 */
/* Three tables, within 80 columns, or as Markdown: what is kept, what fits, and one step at best. */
#include "capacity/capacity.h"

#include <stdarg.h>
#include <string.h>

#include "tool/device.h"

enum { COLUMNS = 7, CELL = 64 };

/* Widths of a table's columns; the first is aligned to the left. */
struct layout {
    int md, count, width[COLUMNS];
};

/* One text for each column. */
static void print_row(const struct layout *layout, ...) {
    va_list cells;
    va_start(cells, layout);
    for (int i = 0; i < layout->count; i++) {
        const char *cell = va_arg(cells, const char *);
        if (layout->md)
            printf("| %s ", cell);
        else
            printf("%*s", i ? layout->width[i] : -layout->width[i], cell);
    }
    printf(layout->md ? "|\n" : "\n");
    va_end(cells);
}

static void end_head(const struct layout *layout) {
    for (int i = 0; layout->md && i < layout->count; i++) printf(i ? "---:|" : "|---|");
    if (layout->md) printf("\n");
}

struct cells {
    char text[COLUMNS][CELL];
};

static const char *bytes(double value, char *text) {
    return readable_bytes(value, text);
}
static const char *count(int64_t value, char *text) {
    return grouped(value, text);
}
/* "8 sequences", "1 sequence" */
static const char *counted(int64_t value, const char *what, char text[CELL]) {
    char number[32];
    snprintf(text, CELL, "%s %s%s", grouped(value, number), what, value == 1 ? "" : "s");
    return text;
}

/* "text 8x128", "text 1x576 latent", "text 16x128, window 1,024", "cross 20x64, keys 1,500": what a token's bytes are made of,
   and what bounds the tokens. */
static void name_group(const tp_layer_group *group, char text[CELL]) {
    const char *part = tp_part_name((tp_part)group->part);
    char number[32];
    int used;
    if (group->decode_dim_qk)
        used =
            snprintf(text, CELL, "%s %lldx%lld latent", part, (long long)group->decode_kv_heads, (long long)group->decode_dim_qk);
    else if (group->head_dim_qk == group->head_dim_v)
        used = snprintf(text, CELL, "%s %lldx%lld", part, (long long)group->kv_heads, (long long)group->head_dim_qk);
    else
        used = snprintf(text, CELL, "%s %lldx%lld/%lld", part, (long long)group->kv_heads, (long long)group->head_dim_qk,
                        (long long)group->head_dim_v);
    if (group->part == TP_PART_CROSS)
        snprintf(text + used, CELL - (size_t)used, ", keys %s", count(group->kv_max, number));
    else if (group->all_of & TP_TERM_WINDOW)
        snprintf(text + used, CELL - (size_t)used, ", window %s", count(group->window_left + 1, number));
    else if (group->all_of & TP_TERM_CHUNK)
        snprintf(text + used, CELL - (size_t)used, ", chunk %s", count(group->chunk, number));
}

static void print_cache_row(const struct layout *layout, const char *name, const tp_capacity_cache *cache, int evicted) {
    struct cells c;
    print_row(layout, name, evicted ? "" : count(cache->layers, c.text[0]), bytes((double)cache->token_bytes, c.text[1]),
              bytes((double)cache->sequence_bytes, c.text[2]), bytes((double)cache->bytes, c.text[3]));
}

static void print_kept(const struct capacity_report *report, int group, const char *name, const struct layout *layout) {
    tp_capacity_cache kept = capacity_cache(report, group, 0), evicted = capacity_cache(report, group, 1);
    if (!kept.layers) return;
    print_cache_row(layout, name, &kept, 0);
    if (evicted.bytes < kept.bytes) print_cache_row(layout, layout->md ? "where evicted" : "  where evicted", &evicted, 1);
}

static void print_cache(const struct capacity_report *report, int md) {
    const struct layout layout = {md, 5, {32, 8, 11, 13, 15}};
    char name[CELL], number[32];
    int groups = 0;
    print_row(&layout, "KV cache", "layers", "a token", "a sequence", counted(report->asked.concurrency, "sequence", name));
    end_head(&layout);
    for (int i = 0; i < report->model->group_count; i++) {
        name_group(report->model->groups[i], name);
        groups += capacity_cache(report, i, 0).layers > 0;
        print_kept(report, i, name, &layout);
    }
    if (groups > 1) print_kept(report, -1, "all layers", &layout);
    for (int evicts = 0; report->asked.page_size && evicts <= capacity_evicts(report); evicts++) {
        tp_capacity_cache cache = capacity_cache(report, -1, evicts);
        char size[32], pages[32];
        printf("%spages of %s tokens%s: %s", evicts || md ? "\n" : "", count(report->asked.page_size, number),
               evicts ? ", where evicted" : "", count(cache.pages, pages));
        if (cache.page_bytes) printf(" of %s, in %s layers", bytes((double)cache.page_bytes, size), count(cache.layers, number));
    }
    if (report->asked.page_size) printf("\n");
}

static void print_fits(const struct capacity_report *report, int md) {
    int columns = 2 + capacity_evicts(report);
    const struct layout layout = {md, columns, {40, 18, 18}};
    struct cells c[2];
    char head[CELL], context[2 * CELL], sequences[2 * CELL], number[CELL];
    const char *fits[2];
    for (int evicts = 0; evicts < 2; evicts++) {
        tp_capacity_cache cache = capacity_cache(report, -1, evicts);
        bytes((double)capacity_total(report, evicts), c[evicts].text[0]);
        count(cache.context_max, c[evicts].text[1]);
        count(cache.concurrency_max, c[evicts].text[2]);
        fits[evicts] = capacity_total(report, evicts) <= report->asked.limit ? "yes" : "NO";
    }
    snprintf(head, sizeof head, "in %s%s", bytes((double)report->asked.limit, number),
             report->own_limit                ? ""
             : report->asked.device != TP_CPU ? ", this device's memory"
                                              : ", this host's memory");
    snprintf(context, sizeof context, "longest context, %s", counted(report->asked.concurrency, "sequence", number));
    snprintf(sequences, sizeof sequences, "most sequences of %s", counted(report->asked.context, "token", number));
    printf("\n");
    print_row(&layout, head, "all kept", "evicted");
    end_head(&layout);
    print_row(&layout, "cache and workspace", c[0].text[0], c[1].text[0]);
    print_row(&layout, "fits", fits[0], fits[1]);
    print_row(&layout, context, c[0].text[1], c[1].text[1]);
    print_row(&layout, sequences, c[0].text[2], c[1].text[2]);
}

/* Kernels that need more local memory are refused. */
static void print_device(const struct capacity_report *report) {
    char memory[CELL], buffer[CELL], local[CELL];
    struct device_bytes has = device_bytes();
    if (report->asked.device == TP_CPU) return;
    printf("\n%s, says its driver:\n  memory %s, a buffer at most %s, local memory %s\n", device_name(),
           bytes((double)has.memory, memory), bytes((double)has.buffer, buffer), bytes((double)has.local, local));
}

static const char *readable_seconds(double seconds, char *text) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{3600, "h"}, {60, "min"}, {1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
    int i = 0;
    while (i < 4 && seconds < units[i].unit) i++;
    snprintf(text, CELL, "%.4g %s", seconds / units[i].unit, units[i].name);
    return text;
}

/* 4.21, 52,430 */
static const char *readable_number(double value, char *text) {
    if (value >= 1000 && value < 1e15) return grouped((int64_t)(value + 0.5), text);
    snprintf(text, CELL, "%.4g", value);
    return text;
}

static void print_steps(const struct capacity_report *report, int md) {
    int known = report->asked.gflops > 0;
    const struct layout layout = {md, known ? 7 : 5, {21, 8, 11, 10, 10, 10, 10}};
    char decode_name[2 * CELL], text[CELL];
    snprintf(decode_name, sizeof decode_name, "decode, %s", counted(report->asked.concurrency, "row", text));
    printf("\n");
    print_row(&layout, "one step, all layers", "kernel", "workspace", "a thread", "flop/byte", "at best", "tokens/s");
    end_head(&layout);
    for (int decode = 0; decode < 2; decode++) {
        tp_capacity_work work = capacity_work(report, -1, decode);
        double tokens = (double)(decode ? report->asked.concurrency : report->asked.context);
        struct cells c;
        print_row(&layout, decode ? decode_name : "prefill, 1 prompt", work.kernel,
                  bytes((double)work.workspace_bytes, c.text[0]), bytes((double)work.workspace_thread_bytes, c.text[1]),
                  readable_number(work.flops / work.bytes, c.text[2]), known ? readable_seconds(work.seconds, c.text[3]) : "",
                  known ? readable_number(tokens / work.seconds, c.text[4]) : "");
    }
    if (known)
        printf("%sat best: %.4g Gflop/s (%s), reads of %.4g GB/s, measured with %s;\n"
               "prefill is bound by %s, decode by %s\n",
               md ? "\n" : "", report->asked.gflops, report->isa, report->asked.read_gbps,
               counted(report->asked.threads, "thread", text),
               capacity_work(report, -1, 0).reads_bound ? "reads" : "multiply-adds",
               capacity_work(report, -1, 1).reads_bound ? "reads" : "multiply-adds");
}

static void print_notes(const struct capacity_report *report) {
    int64_t shared = 0, sparse = 0;
    char number[CELL];
    printf("\nattention alone; not counted: weights, activations, page tables\n");
    for (int i = 0; i < report->model->group_count; i++) {
        const tp_layer_group *group = report->model->groups[i];
        shared += group->kv_shared;
        sparse += group->sparse > 0;
        if (group->out_of_scope)
            printf("not counted: what %s of another kind keep: %s\n", counted(group->layer_count, "layer", number),
                   group->out_of_scope);
    }
    if (shared) printf("%s read keys of an earlier one and keep none of their own\n", counted(shared, "layer", number));
    if (sparse) printf("not counted: the keys by which sparse layers choose\n");
    if (capacity_evicts(report)) printf("evicted: keys that no later row sees are dropped; a prompt's rows come on top\n");
}

void capacity_text(const struct capacity_report *report, int md) {
    char tokens[CELL], sequences[CELL], threads[CELL];
    printf("%s: %s of %s, cache %s, %s\n\n", report->model->label, counted(report->asked.concurrency, "sequence", sequences),
           counted(report->asked.context, "token", tokens),
           strcmp(report->cache, "plain") ? report->cache : tp_dtype_name((tp_dtype)capacity_cache(report, -1, 0).dtype),
           counted(report->asked.threads, "thread", threads));
    print_cache(report, md);
    print_fits(report, md);
    print_device(report);
    print_steps(report, md);
    print_notes(report);
}
