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
                   const struct column *columns, int column_count, void (*print)(const struct isolated *isolated, int before));
/* The first columns of every table, and the cells of a row in them. `ran` is the problem in its text form, which the
   row names unless it leaves out sequences: then it names the words. Returns what it names. */
#define ISOLATED_FIRST                                                                                                           \
    {"kind", NULL, 1, 0}, {"problem", "problem", 1, 0}, {"phase", NULL, 1, 0}, {"q_len", NULL, 1, 0}, {"kv_len", NULL, 1, 0}, {  \
        "head_dim", NULL, 1, 0                                                                                                   \
    }
const char *isolated_begin(struct isolated *isolated, const char *kind, const char *words, const char *ran);
/* The last columns and cells, for rows that are kept: which host, which day, which version. */
#define ISOLATED_LAST                                                                                                            \
    {"host", NULL, 1, 0}, {"date", NULL, 1, 0}, {"version", NULL, 1, 0}, {"build", NULL, 1, 0}, {                                \
        "seed", NULL, 1, 0                                                                                                       \
    }
void isolated_origin(struct isolated *isolated);

#endif
