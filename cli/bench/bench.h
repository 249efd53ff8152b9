/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof bench: rates beside the limits of this host.
 *
 *     bench.c       the command: the product of the lists, one group after another
 *     report.c      what a row says, in four formats
 *     against.c     --against: two of a kind, interleaved until a verdict is sure
 *     lists.c       a,b,c and first-last*2, and their product as problem texts
 *     problem.c     a workload of a problem text, of a shape, or of generated lengths
 *     common.c      options in words, a context, one more run against the reference
 *     table.c       md, csv, json, jsonl
 *     goals.c       --goals: measuring and reporting
 *     judge.c       --goals: the figure of a goal, and whether it is met
 *     goals_file.c  --goals: the data file
 *     handover.c    --goals: where the decode loop hands over to prefill's
 *     calls.c       --goals: what lies around the kernel (plan, overhead, receipt)
 *     cliffs.c      --cliffs
 *     isolated.c    rows in a process of their own, which are not timed:
 *     bytes.c       --bytes, with simulate.c and simulated_run.c
 *     memory.c      --memory, with measure.c
 *
 * What is compared is interleaved (harness/slots.h): every case of a group gets a burst of runs, then the
 * next, forth and back. Each group has a control: its first case once more.
 */
#ifndef TILEPROOF_CLI_BENCH_BENCH_H
#define TILEPROOF_CLI_BENCH_BENCH_H

#include "bench/table.h"
#include "cli.h"
#include "terminal/terminal.h"
#include "harness/oracle.h"
#include "harness/share.h"
#include "harness/slots.h"

enum { DEFAULT_ATTEMPTS = 5, BENCH_WORDS = WORKLOAD_WORDS };

/* lists.c */
struct list {
    char **items;
    int count;
};
/* Appends the items of a comma list; each may hold one range first-last, first-last+step or
   first-last*factor, whose numbers may end in k or m. 0, or nonzero with the reason. */
int list_expand(struct list *list, const char *text, char *reason, size_t size);
void list_free(struct list *list);
/* Every problem text the options ask for. Exit code, reason printed. */
int list_problems(const struct options *options, struct list *problems);

/* problem.c. Words are a problem text, or a shape with words, or a generator with words:
       @lognormal[=TOKENS]   packed sequences, 32,768 tokens in all, lengths log-normal with median
                             400 and sigma 1 (of the log), clipped to 64..4096, seed 1; the last
                             one takes what is left
   @heads among the words: [batch][head][token][dim], in pages HND, where it is [batch][token][head][dim] otherwise. @alone with
   cascade=N: sequences share pages so, but each reads all its keys by itself */
/* The rule the words break; nothing is allocated. */
tp_status bench_words_check(const char *words, tp_problem *problem, tp_error *error);
tp_status bench_problem_open(struct workload *workload, const char *words, uint64_t seed, tp_error *error);

/* common.c. One more run, compared with the reference over sampled rows. Exit code, reason printed. */
int bench_case_verify(const struct timed_case *one, const struct oracle *oracle, double *max_error);
/* "best" and NULL give NULL, names that exist themselves. Exit code, reason printed. */
int bench_kernel(const char *name, const char **kernel);
int bench_context(int threads, tp_context **context);
int bench_limits(struct limits *limits, tp_context *context, int64_t mib);
int bench_regex(const char *text, void *regex); /* a regex_t; exit code, reason printed */
void bench_print_host(const struct limits *limits, FILE *out); /* md */

/* report.c */
struct bench_row {
    char problem[BENCH_WORDS], repro[BENCH_WORDS + 128], phase[16];
    const char *kernel, *asked, *strategy, *isa;
    int threads, fallback;
    struct summary times;
    struct series series;   /* its calls are gone */
    struct interval share;  /* of the limit that bounds it, beside probes in turns */
    enum share_limit share_of;
    double steal, fma_here; /* while its group ran */
    size_t n;
    double flops, kv_bytes, max_error; /* NAN: not verified */
    int64_t pairs_visible, pairs_computed, bytes_compulsory, bytes_model, workspace_bytes;
    int64_t tasks;
};
/* Takes what the series holds. */
void bench_row_fill(struct bench_row *row, const struct timed_case *one, struct series *series,
                    const struct options *options, double max_error);
/* The kernel's name as a user asks for it. */
const char *bench_asked(const struct timed_case *one);
/* The text form of what ran; the words as given when that form cannot be replayed. */
const char *bench_label(const struct timed_case *one);
/* control: the A/A of the whole run. */
int bench_report(const struct bench_row *rows, size_t count, const struct limits *limits,
                 struct interval control, enum table_format format, const struct options *options);
void bench_date(char text[32]); /* now, UTC */
/* The last columns of a line: host, machine, kind, date, build. */
void bench_add_host(struct table *table, const struct limits *limits, const char *kind);

/* against.c */
struct against {
    struct table table;
    struct trust trust;
    const char *kernel;      /* of the other side; NULL: the best */
    char words[BENCH_WORDS]; /* problem of the other side, unless it goes by kernel */
    int by_kernel;
    double budget_ns; /* a row */
    int64_t seed;
    int verdicts[4]; /* how many of each */
};
/* budget_ns 0: the default. Exit codes, reasons printed. */
int against_open(struct against *against, const struct options *options, double budget_ns);
int against_case(struct against *against, const struct timed_case *row, struct limits *limits);
int against_report(struct against *against, enum table_format format);
int verdicts_exit(const int verdicts[]); /* SLOW counts most, then AMBIGUOUS */

/* goals_file.c */
enum goal_metric {
    GOAL_PCT_FMA,
    GOAL_PCT_READ,
    GOAL_PCT_ROOFLINE,
    GOAL_RATE_VS,
    GOAL_RATE_VS_LINE,
    GOAL_SPEED_VS,
    GOAL_SUM_OF_PARTS,
    GOAL_SPEEDUP_THREADS,
    GOAL_SPEEDUP_READ,
    GOAL_HANDOVER,
    GOAL_WORKSPACE_MIB,
    GOAL_PLAN_US,
    GOAL_OVERHEAD_US,
    GOAL_RECEIPT_PCT,
    GOAL_COUNTING_US
};
enum { GOAL_CASES = 3, HANDOVER_ROWS = 27 };

/* What bench_calls times, in ns. */
enum call_kind {
    CALL_PLAIN,   /* cached tp_attention with few keys, */
    CALL_TASKS,   /* its tasks alone, */
    CALL_RECEIPT, /* and with a receipt; */
    CALL_COUNTED, /* with tags, */
    CALL_UNCOUNTED, /* and on a context that does not count calls */
    CALL_FULL,    /* with all keys */
    CALL_PLAN,    /* tp_plan_create: the best of an attempt */
    CALL_COUNT
};

struct goal_case {
    char words[BENCH_WORDS];
    char kernel[32];      /* "": as the options say, or the best */
    const char *strategy; /* NULL: by rows */
    int threads;
    struct samples times;
    double flops, bytes, kv_bytes;
    const char *ran, *isa;
};

struct goal {
    char name[64], metric_text[BENCH_WORDS];
    enum goal_metric metric;
    double floor, aim; /* aim NAN: none */
    int lower;         /* the figure must stay below */
    int line;          /* of the file */
    int case_count;
    struct goal_case cases[GOAL_CASES]; /* the first is the one that is judged */
    double line_low, line_high;         /* head dims of cases 1 and 2, for rate_vs_line */
    struct samples calls[CALL_COUNT];   /* of bench_calls */
    double workspace_mib;
    struct share share; /* of the limit that the metric names */
    double handover_ns[3][HANDOVER_ROWS]; /* by rows, prefill, decode: the best; 0: none */
    int selected, rounds;
    char note[256]; /* why it did not run here */
    int failed;     /* it broke */
};

struct goals {
    struct goal *goal;
    size_t count;
};

extern const char bench_goals_text[]; /* bench/goals.txt, embedded by the build */
/* Exit code; errors name file, line and rule. file NULL: the embedded text. */
int goals_read(struct goals *goals, const char *file);
void goals_free(struct goals *goals);

/* calls.c: one attempt on one thread; adds to times[CALL_COUNT]. */
tp_status bench_calls(const char *words, const char *kernel, uint64_t seed, struct samples *times,
                      tp_error *error);

/* handover.c: one attempt on 1 to 64 rows; adds to goal->handover_ns. */
tp_status bench_handover(struct goal *goal, const char *kernel, uint64_t seed,
                         struct limits *limits, tp_error *error);
/* The worst of time over that of more rows, and over that of the other loop; says which in text. */
double handover_worst(const struct goal *goal, char *text, size_t size);

/* judge.c */
enum verdict { MET, NOT_MET, NOT_RUN };
struct judged {
    double figure, floor;
    double low, high; /* of a share: its interval; NAN: none */
    double of_best;   /* of a share: the best call over the highest limit seen, in % */
    enum verdict floor_met, aim_met;
    char detail[512];
};
void goal_judge(struct goal *goal, const struct limits *limits, struct judged *judged);
/* So little below its floor that noise may be the reason. */
int goal_is_near(const struct goal *goal, const struct judged *judged);

int bench_goals(const struct options *options, enum table_format format);
int bench_cliffs(const struct options *options, enum table_format format);
int bench_bytes(const struct options *options, enum table_format format);
int bench_memory(const struct options *options, enum table_format format);

#endif
