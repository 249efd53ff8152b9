/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that run in a process of their own, one after another: --bytes and --memory. */
#ifndef TILEPROOF_CLI_BENCH_ISOLATED_H
#define TILEPROOF_CLI_BENCH_ISOLATED_H

#include "bench/bench.h"

struct isolated {
    const struct options *options; /* with the defaults of this kind of row put in */
    tp_context *context;
    struct table table;
    enum table_format format;
    char date[32];
    size_t rows, missing; /* printed; not run here */
    /* Adds a row to the table. Exit code with the reason: EXIT_REFUSED when it does not run here,
       and then the others go on. */
    int (*row)(struct isolated *isolated, const char *words, const char *kernel, char *reason,
               size_t size);
    void *user;
};

/* Every problem on every kernel; defaults.kernel and, where no problem is given, defaults.shapes
   and so on hold where the options say nothing. `print` writes what goes before and after the table
   in md. Exit code, reason printed. */
int bench_isolated(struct isolated *isolated, const struct options *options, const struct options *defaults,
                const struct column *columns, int column_count,
                void (*print)(const struct isolated *isolated, int before));
/* The first cells of every row: kind, problem, phase, q_len, kv_len, head_dim. `ran` is the problem in its text form, which the
   row names unless it leaves out sequences: then it names the words. Returns what it names. */
const char *isolated_begin(struct isolated *isolated, const char *kind, const char *words, const char *ran);
/* The last cells of every row that is kept for later: which host, which day, which version. */
void isolated_origin(struct isolated *isolated);

#endif
