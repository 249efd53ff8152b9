/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof replay: requests, one JSON object a line, through the attention of their models.
 *
 *     {"time":0.31,"model":"llama-3.2-1b","prompt":512,"cached":128,"output":64}
 *
 * A request is one prefill step of prompt - cached rows on prompt keys, and `output` decode steps of which some
 * are run. A step's cost is that of all layers of the model: each layer group is run, and counts as often as it
 * has layers. With --observed nothing is run: a log of any engine has times and kernels in its lines.
 *
 *     read.c      the lines           models.c    their models         generate.c  a trace to begin with
 *     run.c       steps that are run  observed.c  steps of a log
 *     rows.c      steps by bucket     report.c    what is printed      against.c   an earlier report
 */
#ifndef TILEPROOF_CLI_REPLAY_REPLAY_H
#define TILEPROOF_CLI_REPLAY_REPLAY_H

#include "cli.h"
#include "tool/lines.h"
#include "harness/tensors.h"

enum { REPLAY_MODELS = 64, REPLAY_KERNELS = 64, REPLAY_TOKENS = 1 << 20, REPLAY_REQUESTS = 1000000 };
enum { REPLAY_SEED = 1 }; /* of what tensors hold */

struct request {
    double time; /* seconds since the trace began */
    int64_t prompt, cached, output;
    int model; /* index of the name */
    int line;
    /* observed; NAN, -1: not in the line */
    double ttft_ms, queue_ms; /* to the first token, and how much of it before the engine began */
    double tpot_ms;           /* from each token to the next */
    int kernel;               /* index of the name */
};

struct requests {
    struct request *request;
    size_t count, capacity;
    char model[REPLAY_MODELS][64], kernel[REPLAY_KERNELS][64];
    int models, kernels;
};

/* read.c. Nonzero: reason says why; what was read is freed. Needs nothing else of the tool. */
int requests_read(struct requests *requests, const char *text, size_t size, const char *name,
                  char reason[LINES_REASON]);
void requests_free(struct requests *requests);

/* generate.c: writes a trace; exit code. */
int requests_generate(const struct options *options);

enum phase { PREFILL, DECODE, PHASES };
extern const char *const phase_names[PHASES];

/* One step of one request. */
struct step {
    int model, request;
    enum phase phase;
    int fallback;
    const char *bucket, *kernel; /* of its groups: "mixed" when they differ */
    int64_t q_len, kv_len;
    double ns;       /* measured, modelled or observed */
    double queue_ns; /* observed, before it */
};

struct steps {
    struct step *step;
    size_t count, capacity;
};

enum { REPLAY_GROUPS = 16 };

struct replay_model {
    tp_model *model;                            /* NULL: a log names one that has no config here */
    const tp_layer_group *group[REPLAY_GROUPS]; /* those that are run */
    int groups, left_out;
    double layers; /* in the groups that are run */
};

struct replay {
    const struct options *options;
    const struct requests *requests;
    struct replay_model models[REPLAY_MODELS];
    tp_context *context; /* NULL: nothing is run */
    char cache[64];      /* the name of its format */
    json_t *before;      /* the report of --against; NULL: none */
    double fail_above;   /* of its p99; 0: nothing fails */
    struct steps steps;
    double *request_ns; /* attention of a whole request; NAN: not run */
    int64_t requests_run;
};

/* models.c: reads every model, holds the requests against them, and asks whether all will be served. With --observed
   only models that have a config here are read. Exit code, reasons printed. */
int replay_load(struct replay *replay, const char *name);
void replay_unload(struct replay *replay);

/* run.c: every step of the requests that are sampled; with --observed, of those that have times. Exit code. */
int replay_run(struct replay *replay);
int add_step(struct replay *replay, const struct step *step);
/* The bucket of a call as the library counts it, by its text form. */
const char *bucket_of(const char *problem);
const char *joined(const char *before, const char *now); /* "mixed" when they differ; before NULL: the first */
/* One step with this choice (NULL: the context's) on any context; the step's figures are filled in. */
int replay_step(const struct replay *replay, tp_context *context, const tp_choice *choice, struct step *step,
                const char *request);

/* observed.c: the steps of one request. Exit code. */
int observe_request(struct replay *replay, size_t index);

/* report.c */
int replay_report(const struct replay *replay);

struct row {
    int model;
    enum phase phase;
    const char *bucket, *kernel;
    int fallback;
    size_t n;
    double p50, p90, p99, mean;
    int64_t q_low, q_high, k_low, k_high;
};

struct rows {
    struct row *row;
    size_t count;
    /* by phase: of all steps, and the row that holds most of the steps at or above it; -1: no step */
    double p99[PHASES];
    int owner[PHASES];
    size_t above[PHASES], owned[PHASES];
    double fleet_mean; /* of a request */
    double ttft_p99;    /* observed: of prefill steps with their queue, and the queue's share of those at or above it */
    double queue_share;
};
/* rows.c: 0, or nonzero when memory ran out. */
int rows_make(struct rows *rows, const struct replay *replay);
void rows_free(struct rows *rows);

/* against.c: an earlier report, read and checked before anything is run (exit code, reason printed; the report is the
   caller's in any case), and what changed since: the number of rows that --fail-above does not take, each named. */
int report_read(const struct options *options, json_t **report);
int report_compare(const struct replay *replay, const struct rows *rows);

#endif
