/* SPDX-License-Identifier: Apache-2.0 */
/* The table of plots: what each one draws, and of which rows. */
#include "plot/plot.h"

#include <string.h>

static const char lines[] = "using 1:2 with linespoints", dots[] = "using 1:2 with points",
                  intervals[] = "using 1:2:3:4 with xerrorbars";

static const struct plot plots[] = {
    {"roofline", "Roofline: useful flops against the bytes of the receipt's model",
     "useful flops per modelled byte", "GFLOP/s", KIND_RATE, series_add_roofline, 10, 10, 0, 0, 1,
     "with both limits", NULL, dots},
    {"rate-length", "Rate over sequence length", "keys", "GFLOP/s, useful flops over the best time",
     KIND_RATE, series_add_rate_length, 2, 0, 1, 0, 2, "of two or more lengths", NULL, lines},
    {"rate-head-dim", "Rate over head dim", "head dim", "GFLOP/s, useful flops over the best time",
     KIND_RATE, series_add_rate_head_dim, 0, 0, 0, 0, 2, "of two or more head dims", NULL, lines},
    {"bytes-length", "Main-memory traffic of one call: simulated, no prefetcher, cold cache",
     "keys", "MB read and written", KIND_BYTES, series_add_bytes, 2, 10, 1, 0, 2,
     "of two or more lengths", NULL, lines},
    {"memory-length", "Peak temporary memory of one call, measured in its own process", "keys",
     "MiB", KIND_MEMORY, series_add_memory, 2, 10, 1, 0, 2, "of two or more lengths", NULL, lines},
    {"peers", "Time of other libraries over ours, with intervals: right of 1 we are faster",
     "peer's time / our time", "", KIND_PEER, series_add_peer, 2, 0, 0, 1, 1, "",
     "set arrow 1 from first 1, graph 0 to first 1, graph 1 nohead lw 2 lc rgb '#555555'\n"
     "set xtics (0.06, 0.12, 0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 16, "
     "32, 64)",
     intervals},
    {"latency", "Time by bucket: p50 with a line to p99, p90 and p99 marked", "ms", "", KIND_LATENCY, series_add_latency, 10, 0,
     0, 1, 1, "", NULL, intervals},
};

const struct plot *plot_at(int index) { return index < (int)(sizeof plots / sizeof *plots) ? &plots[index] : NULL; }

int plot_collect(const struct plot *plot, const struct plot_rows *rows, struct series_list *list, int *any) {
    int broken = 0;
    *any = 0;
    for (size_t i = 0; !broken && i < rows->count; i++)
        if (rows->row[i].kind == plot->kind) {
            broken = plot->add(list, &rows->row[i]);
            *any = 1;
        }
    series_settle(list, plot->min);
    return broken;
}

/* Which host and day: those of the rows drawn, when they agree. Quotes and backslashes would end
   the script's text and are left out. */
void plot_origin(const struct plot_rows *rows, enum plot_kind kind, char *text, size_t size) {
    const char *host = NULL, *date = NULL;
    int hosts = 0, dates = 0;
    char both[256];
    for (size_t i = 0; i < rows->count; i++) {
        const struct plot_row *row = &rows->row[i];
        if (row->kind != kind) continue;
        if (row->host[0] && (!host || strcmp(host, row->host))) host = row->host, hosts++;
        if (row->date[0] && (!date || strcmp(date, row->date))) date = row->date, dates++;
    }
    snprintf(both, sizeof both, "%s, %s",
             hosts == 1 ? host
             : hosts    ? "several hosts"
                        : "host not named",
             dates == 1 ? date
             : dates    ? "several days"
                        : "no date");
    size_t used = 0;
    for (const char *c = both; *c && used + 1 < size; c++)
        if (*c != '"' && *c != '\\' && *c != '`' && (unsigned char)*c >= ' ') text[used++] = *c;
    text[used] = 0;
}
