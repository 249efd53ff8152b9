/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that knows what it will run before it takes a request.
 *
 *     serve deploy CONFIG LOCK    on each kind of host, once for a release: qualifies the model and updates the lock
 *     serve run CONFIG LOCK       at each start: preflight, then requests under policy locked
 *
 * deploy runs every layer group of config.json in every phase and compares it with the double reference. Only if all of it is
 * right on the best kernels is the lock written, whole or not at all. It stops at SIGINT or SIGTERM, and the lock stays as it
 * was. run refuses to start if the lock is for another host, library or engine version, or if the config is not the one that was
 * qualified. Afterwards the context serves what the lock permits and nothing else: a shape that nobody qualified gives
 * TP_NOT_LOCKED, not a slow answer. Exit codes: 0 fine, 1 refused, 2 usage or files.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tileproof_proof.h"

#define VERSIONS "server=1.0" /* what else a result depends on: the lock is stale when it changes */
enum { FINE, REFUSED, USAGE, PROMPT = 100 };

static volatile sig_atomic_t stopped;
static void on_signal(int number) { stopped = number; }

/* ---- files ---- */

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *text = file ? malloc(TP_LOCK_MAX_BYTES) : NULL;
    *size = text ? fread(text, 1, TP_LOCK_MAX_BYTES, file) : 0;
    if (file) fclose(file);
    if (!text) perror(path);
    return text;
}

static int to_file(void *cookie, const char *bytes, size_t size) { return fwrite(bytes, 1, size, cookie) != size; }

/* Under another name first, on the disk, then renamed: readers see the old lock or the new one. */
static int write_lock(const char *path, const tp_lock *lock) {
    char part[4096];
    snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
    FILE *file = fopen(part, "wb");
    int bad = !file || tp_lock_write(lock, to_file, file) != TP_OK || fflush(file) || fsync(fileno(file));
    if (file && fclose(file)) bad = 1;
    if (!bad && !rename(part, path)) return FINE;
    perror(part);
    unlink(part);
    return USAGE;
}

static int complain(const char *what, const tp_error *error) {
    fprintf(stderr, "serve: %s: %s: %s\n", what, tp_status_name((tp_status)error->status), error->text);
    return REFUSED;
}

/* ---- deploy ---- */

static int on_progress(void *user, const tp_qualification *q, int64_t index, int done) {
    const tp_cell *cell = tp_qualification_cell(q, index);
    (void)user;
    if (done) printf("%s %s %s\n", tp_cell_status_name((tp_cell_status)cell->status), cell->kernel, cell->problem);
    return stopped != 0;
}

static int qualify(tp_qualification *q, tp_context *context, tp_error *error) {
    tp_qualify_run_options options = TP_QUALIFY_RUN_OPTIONS_INIT;
    const tp_cell *cell;
    options.progress = on_progress;
    if (tp_qualify_run(q, context, &options, error) != TP_OK) return complain("the run broke", error);
    if (tp_cell_status_rank(tp_qualification_status(q)) <= 1) return FINE;
    for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++)
        if (tp_cell_status_rank((tp_cell_status)cell->status) > 1)
            fprintf(stderr, "serve: %s: %s: %s\n", tp_cell_status_name((tp_cell_status)cell->status), cell->problem,
                    stopped ? "stopped" : cell->reason);
    return REFUSED;
}

static int deploy(tp_context *context, tp_model *model, tp_lock *lock, const char *path) {
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_qualification *q = NULL;
    tp_identity *here = NULL;
    tp_error error = TP_ERROR_INIT;
    time_t now = time(NULL);
    char date[16];
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    options.quick = 1; /* 0 takes minutes for a large model, and runs long contexts too */
    update.date = date;
    update.reason = "deployed";
    int code = FINE;
    if (tp_identity_detect(VERSIONS, &here, &error) != TP_OK || tp_qualify_create(&model, 1, &options, &q, &error) != TP_OK)
        code = complain("deploy", &error);
    if (!code) code = qualify(q, context, &error);
    if (!code && tp_qualify_update(q, lock, here, &update, &error) != TP_OK) code = complain("update", &error);
    if (!code) code = write_lock(path, lock);
    tp_qualification_destroy(q);
    tp_identity_destroy(here);
    return code;
}

/* ---- run ---- */

/* One call of a request: contiguous tensors of the problem, full of small numbers. A real server has its own. */
static int attend(tp_context *context, const char *text, const char *request) {
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_tensors tensors;
    tp_tags tags = TP_TAGS_INIT;
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    if (tp_problem_parse(text, &problem, NULL, &error) != TP_OK) return complain(text, &error);
    size_t unit = tp_dtype_bytes((tp_dtype)problem.q_dtype);
    size_t rows = (size_t)(problem.batch * problem.q_len * problem.q_heads);
    size_t keys = (size_t)(problem.batch * problem.kv_len * problem.kv_heads);
    size_t q = rows * (size_t)problem.head_dim_qk * unit, o = rows * (size_t)problem.head_dim_v * unit;
    size_t k = keys * (size_t)problem.head_dim_qk * unit, v = keys * (size_t)problem.head_dim_v * unit;
    char *memory = malloc(q + k + v + o);
    if (!memory) return REFUSED;
    memset(memory, 0x3c, q + k + v);
    tp_tensors_init(&tensors, &problem, memory, memory + q, memory + q + k, memory + q + k + v);
    tags.request = request;
    tensors.tags = &tags;
    int code = tp_attention(context, &problem, NULL, &tensors, &receipt, &error) == TP_OK ? FINE : complain(text, &error);
    if (!code) printf("%s %s %s\n", request, receipt.kernel, receipt.problem);
    free(memory);
    return code;
}

/* A prompt, then one token, for each layer group: one layer stands for all of them. */
static int serve(tp_context *context, const tp_model *model, const char *request) {
    char text[512];
    int code = FINE;
    for (int i = 0; i < model->group_count && !code; i++)
        for (int step = 0; step < 2 && !code; step++)
            if (tp_layer_group_problem(model->groups[i], 1, step ? 1 : PROMPT, PROMPT + step, text, sizeof text) == TP_OK)
                code = attend(context, text, request);
    return code;
}

int main(int count, char **arguments) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context = NULL;
    tp_model *model = NULL;
    tp_lock *lock = NULL;
    size_t size;
    int deploys = count == 4 && !strcmp(arguments[1], "deploy");
    if (count != 4 || (!deploys && strcmp(arguments[1], "run"))) {
        fprintf(stderr, "usage: serve deploy|run CONFIG LOCK\n");
        return USAGE;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* a log is read while it is written */
    options.policy = TP_LOCKED;
    char *text = read_file(arguments[2], &size);
    int code = !text ? USAGE : FINE;
    if (!code && tp_model_parse(text, size, arguments[2], &model, &error) != TP_OK) code = complain("config", &error);
    free(text);
    if (!code && tp_context_create(&options, &context, &error) != TP_OK) code = complain("context", &error);
    if (!code && deploys && access(arguments[3], F_OK)) {
        if (tp_lock_create(&lock, &error) != TP_OK) code = complain("lock", &error);
    } else if (!code) {
        text = read_file(arguments[3], &size);
        if (!text) code = USAGE;
        else if (tp_lock_parse(text, size, arguments[3], &lock, &error) != TP_OK) code = complain("lock", &error);
        free(text);
    }
    if (!code && deploys) code = deploy(context, model, lock, arguments[3]);
    if (!code && !deploys && tp_preflight(context, lock, model, VERSIONS, &error) != TP_OK) code = complain("preflight", &error);
    if (!code && !deploys) code = serve(context, model, "request-1");
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    if (context) tp_context_destroy(context);
    return code;
}
