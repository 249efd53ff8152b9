/* SPDX-License-Identifier: Apache-2.0 */
/* One cell: what would run, does it run right, and what did it cost. */
#include "qualify.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "digest.h"

enum { FEW_QUERIES = 8, SLOW_FILL = 1 << 22 };

int tp__trial_fail(tp__trial *trial, tp_cell_status status, const char *format, ...) {
    va_list arguments;
    trial->cell.status = status;
    trial->cell.reason = trial->reason;
    va_start(arguments, format);
    vsnprintf(trial->reason, sizeof trial->reason, format, arguments);
    va_end(arguments);
    return 1;
}

int tp__trial_break(tp__trial *trial, tp_status status, const char *format, ...) {
    va_list arguments;
    trial->broken = status;
    trial->error.status = status;
    va_start(arguments, format);
    vsnprintf(trial->error.text, sizeof trial->error.text, format, arguments);
    va_end(arguments);
    return 1;
}

int tp__is_verdict(tp_status status) {
    return status != TP_NO_MEMORY && status != TP_FORKED && status != TP_BUSY && status != TP_MACHINE;
}

/* "avx512: head_dim 640, need <= 576; math: a fallback ..." */
static void put_reasons(const tp_decision *decision, char *text, size_t size) {
    text[0] = 0;
    const tp_candidate *candidate;
    const tp_reason *why;
    for (int i = 0; (candidate = tp_decision_candidate(decision, i)); i++)
        for (int j = 0; (why = tp_candidate_reason(candidate, j)); j++) {
            size_t used = strlen(text);
            snprintf(text + used, size - used, "%s%s%s%s", j ? ", " : used ? "; " : "",
                     j ? "" : candidate->kernel, j ? "" : ": ", why->text);
        }
}

static int choose(tp__trial *t) {
    tp_error error = TP_ERROR_INIT;
    tp_decision *decision = NULL;
    tp_status status = tp_explain(t->context, &t->problem, &t->choice, &decision, &error);
    if (!tp__is_verdict(status)) return tp__trial_break(t, status, "%s", error.text);
    t->reason[0] = 0;
    if (decision && (status != TP_OK || decision->fallback)) put_reasons(decision, t->reason, sizeof t->reason);
    t->cell.reason = t->reason;
    if (status == TP_OK) {
        t->cell.status = decision->fallback ? TP_CELL_QUALIFIED_FALLBACK : TP_CELL_QUALIFIED;
        t->cell.scratch = decision->workspace_bytes;
        t->cell.kernel = tp_decision_candidate(decision, decision->chosen)->kernel;
        status = tp_plan_create(t->context, &t->problem, &t->choice, &t->plan, &error);
        if (status != TP_OK) t->reason[0] = 0;
    }
    tp_decision_destroy(decision);
    if (!tp__is_verdict(status)) return tp__trial_break(t, status, "%s", error.text);
    if (status == TP_OK) return 0;
    t->cell.status = TP_CELL_UNSUPPORTED;
    return t->reason[0] ? 1 : tp__trial_fail(t, TP_CELL_UNSUPPORTED, "%s", error.text);
}

/* Keys that no row sees hold NaN: one that is looked at all the same spoils its row. */
static void poison_hidden(tp__trial *t) {
    const tp_problem *p = &t->tensors.problem;
    if (t->tensors.q_lens[0] > FEW_QUERIES || t->tensors.sequences > 1) return;
    for (int64_t key = 0; key < t->tensors.kv_lens[0]; key++) {
        int seen = 0;
        for (int64_t row = 0; row < t->tensors.q_lens[0] && !seen; row++)
            seen = tp_mask_visible(p, &t->tensors.call, 0, 0, row, key) != 0;
        if (seen) continue;
        for (int64_t head = 0; head < p->kv_heads; head++)
            for (int id = TENSOR_K; id <= TENSOR_V; id++) tensors_poison_row(&t->tensors, (enum tensor_id)id, 0, key, head);
    }
}

int tp__trial_make(tp__trial *t) {
    const tp_problem *p = &t->problem;
    double keys = (double)p->kv_len * (double)(p->head_dim_qk + p->head_dim_v);
    double elements = keys * (double)(p->batch * p->kv_heads);
    struct tensors_style style = {.lse = !t->engine, .gain = t->cell.gain, .repeat = elements > SLOW_FILL};
    if (tensors_create(&t->tensors, p, &t->lengths, &style) || tensors_fill(&t->tensors, TP_QUALIFY_SEED))
        return tp__trial_break(t, TP_NO_MEMORY, "no memory for the tensors of a cell: %s", t->cell.problem);
    t->cell.loss = fmax(t->tensors.loss[0], t->tensors.loss[1]);
    if (t->plan) t->tensors.arithmetic = (tp_arithmetic)tp_plan_decision(t->plan)->arithmetic;
    if (!t->engine) poison_hidden(t); /* an engine may do as it likes with them */
    tp_error error = TP_ERROR_INIT;
    tp_status status = oracle_create_on(&t->oracle, &t->tensors, sample_limit(p, t->quick), TP_QUALIFY_SEED,
                                        tp_context_threads(t->context), &error);
    if (!tp__is_verdict(status)) return tp__trial_break(t, status, "%s", error.text);
    t->oracle.foreign = t->engine != NULL;
    return status == TP_OK ? 0 : tp__trial_fail(t, TP_CELL_NUMERIC_FAIL, "no reference: %s", error.text);
}

int tp__trial_run(tp__trial *t, int threads, tp_receipt *receipt) {
    struct attempt attempt = {.context = t->context,
                              .choice = &t->choice,
                              .workspace = &t->workspace,
                              .entry = ENTRY_POOL,
                              .threads = threads,
                              .poison = 0xFF};
    tp_error error = TP_ERROR_INIT;
    tensors_poison_outputs(&t->tensors, 0xFF);
    tp_status status = attempt_run_plan(&attempt, t->plan, &t->tensors, receipt, &error);
    if (!tp__is_verdict(status)) return tp__trial_break(t, status, "%s", error.text);
    return status == TP_OK ? 0 : tp__trial_fail(t, TP_CELL_NUMERIC_FAIL, "the run broke: %s", error.text);
}

static void hash_outputs(const struct tensors *tensors, char text[65]) {
    tp__digest digest;
    tp__digest_begin(&digest);
    for (int id = TENSOR_O; id <= (tensors->style.lse ? TENSOR_LSE : TENSOR_O); id++)
        for (int64_t seq = 0; seq < tensors->sequences; seq++)
            for (int64_t row = 0; row < tensors_len(tensors, (enum tensor_id)id, seq); row++)
                for (int64_t head = 0; head < tensors->problem.q_heads; head++)
                    tp__digest_add(&digest, tensors_at(tensors, (enum tensor_id)id, seq, row, head, 0),
                                  (size_t)tensors_dim(tensors, (enum tensor_id)id) *
                                      tp_dtype_bytes(tensors_dtype(tensors, (enum tensor_id)id)));
    tp__digest_end(&digest, text);
}

/* All that a run leaves, what it must not touch among it, is the same on all threads. */
static int run_again(tp__trial *t, int threads) {
    char *before[2] = {NULL, NULL};
    tp_receipt receipt;
    int failed = 0;
    for (int i = 0; i < 2 && !failed; i++) {
        size_t bytes = t->tensors.buffer[TENSOR_O + i].bytes;
        if ((before[i] = malloc(bytes)))
            memcpy(before[i], t->tensors.buffer[TENSOR_O + i].memory, bytes);
        else
            failed = tp__trial_break(t, TP_NO_MEMORY, "no memory for the outputs of a cell: %s", t->cell.problem);
    }
    if (!failed) failed = tp__trial_run(t, threads, &receipt);
    for (int i = 0; i < 2 && !failed; i++)
        if (memcmp(before[i], t->tensors.buffer[TENSOR_O + i].memory, t->tensors.buffer[TENSOR_O + i].bytes))
            failed = tp__trial_fail(t, TP_CELL_NUMERIC_FAIL, "1 and %d threads give other bits", threads);
    for (int i = 0; i < 2; i++) free(before[i]);
    return failed;
}

int tp__trial_compare(tp__trial *t) {
    tp_cell *cell = &t->cell;
    struct measured_error measured;
    char reason[512] = "";
    if (tensors_badly_written(&t->tensors, reason, sizeof reason))
        return tp__trial_fail(t, TP_CELL_NUMERIC_FAIL, "%s", reason);
    int wrong = oracle_compare(&t->oracle, &t->tensors, t->arithmetic, &measured, reason, sizeof reason);
    double allowed = 2 * measured.naive_max + measured.floor;
    cell->error = isfinite(measured.max) ? measured.max : 0; /* a journal's numbers are finite; the reason has this one */
    cell->allowed = isfinite(allowed) ? allowed : 0;
    if (wrong) return tp__trial_fail(t, TP_CELL_NUMERIC_FAIL, "%s", reason);
    hash_outputs(&t->tensors, t->output);
    cell->output = t->output;
    return 0;
}

/* On one task, whose schedule does not depend on the host, and on all threads, with the same bits. */
static int run_and_compare(tp__trial *t) {
    tp_cell *cell = &t->cell;
    tp_receipt receipt;
    int threads = tp_context_threads(t->context);
    if (tp__trial_run(t, 1, &receipt)) return 1;
    if (receipt.kernel) cell->kernel = receipt.kernel;
    t->arithmetic = receipt.arithmetic;
    snprintf(t->numerics_id, sizeof t->numerics_id, "%s", receipt.numerics_id);
    cell->numerics_id = t->numerics_id;
    cell->panels_full = receipt.panels_full;
    cell->panels_partial = receipt.panels_partial;
    cell->panels_skipped = receipt.panels_skipped;
    cell->bytes = receipt.bytes_model;
    if (tp__trial_compare(t)) return 1;
    return threads == 1 ? 0 : run_again(t, threads);
}

/* The cell on this library's own kernels. */
static int try_own(tp__trial *t) {
    int packed = t->cell.phase & (TP_QUALIFY_VARLEN | TP_QUALIFY_MIXED);
    if (choose(t) || tp__trial_make(t) || run_and_compare(t) || (packed && tp__trial_isolated(t))) return 1;
    if (t->time_ns > 0 && t->choice.device == TP_CPU) tp__trial_time(t);
    return 0;
}

static tp_status try_cell(tp__trial *t, tp__slot *slot, tp_error *error) {
    tp_error why = TP_ERROR_INIT;
    int failed = tp_problem_parse(t->cell.problem, &t->problem, &t->lengths, &why) != TP_OK;
    if (failed)
        tp__trial_fail(t, TP_CELL_UNSUPPORTED, "%s", why.text);
    else
        failed = t->engine ? tp__trial_engine(t) : try_own(t);
    if (!failed) tp__trial_trust(t); /* last: it writes wrong outputs */
    oracle_destroy(&t->oracle);
    tensors_destroy(&t->tensors);
    workspace_free(&t->workspace);
    if (t->plan) tp_plan_destroy(t->plan);
    if (t->broken != TP_OK) return tp__proof_fail(error, t->broken, "%s", t->error.text);
    return tp__slot_set(slot, &t->cell, error);
}

static tp_status run_slot(tp_qualification *q, tp__slot *slot, tp_context *context, const tp_qualify_run_options *options,
                          tp_error *error) {
    if (slot->seen->status != TP_CELL_NOT_RUN) return TP_OK;
    tp__trial *trial = calloc(1, sizeof *trial);
    if (!trial) return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a cell");
    trial->context = context;
    trial->choice = (tp_choice)TP_CHOICE_INIT;
    trial->choice.policy = options->policy;
    trial->choice.device = options->device;
    trial->quick = q->quick;
    trial->engine = options->engine;
    trial->time_ns = slot->seen->timed || !q->quick ? options->time_ns : 0;
    trial->cell = *slot->seen;
    trial->lengths.struct_size = sizeof trial->lengths;
    trial->error = (tp_error)TP_ERROR_INIT;
    tp_status status = try_cell(trial, slot, error);
    free(trial);
    return status;
}

static tp_status take_engine(const tp_engine *given, tp_engine *engine, tp_error *error) {
    TP_TRY(tp__take(&tp__engine_shape, given, engine, error));
    if (!engine->run) return tp__proof_fail(error, TP_INVALID, "engine.run is NULL: it must be given");
    if (engine->require & ~TP_REQUIRE_ALL)
        return tp__proof_fail(error, TP_INVALID, "engine.require is %u: it must be bits of %u", engine->require, TP_REQUIRE_ALL);
    return TP_OK;
}

/* The engine is copied, too, to where the options then point. */
static tp_status take_options(const tp_qualification *q, const tp_context *context, const tp_qualify_run_options *given,
                              tp_qualify_run_options *options, tp_engine *engine, tp_error *error) {
    static const tp_qualify_run_options none = TP_QUALIFY_RUN_OPTIONS_INIT;
    if (!q || !context) return tp__proof_fail(error, TP_INVALID, "q and context must be given");
    TP_TRY(tp__take(&tp__run_shape, given ? given : &none, options, error));
    if (options->policy != TP_REFUSE && options->policy != TP_PERMIT)
        return tp__proof_fail(error, TP_INVALID, "policy is %d: it must be TP_REFUSE or TP_PERMIT", options->policy);
    if (options->device < 0 || options->device > 255 || options->reserved != 0)
        return tp__proof_fail(error, TP_INVALID, "device is %d and reserved %d: device must be in 0..255, and reserved 0",
                              options->device, options->reserved);
    if (!(options->time_ns >= 0 && options->time_ns <= 1e12))
        return tp__proof_fail(error, TP_INVALID, "time_ns is %g: it must be in 0..1e12", options->time_ns);
    if (!options->engine) return TP_OK;
    TP_TRY(take_engine(options->engine, engine, error));
    options->engine = engine;
    return TP_OK;
}

tp_status tp_qualify_run_cell(tp_qualification *q, int64_t cell, tp_context *context, const tp_qualify_run_options *given,
                              tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_qualify_run_options options;
    tp_engine engine;
    TP_TRY(take_options(q, context, given, &options, &engine, error));
    if (cell < 0 || cell >= q->slot_count)
        return tp__proof_fail(error, TP_INVALID, "cell is %lld: it must be below %lld, the number of cells", (long long)cell,
                              (long long)q->slot_count);
    return run_slot(q, &q->slots[cell], context, &options, error);
}

tp_status tp_qualify_run(tp_qualification *q, tp_context *context, const tp_qualify_run_options *given, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_qualify_run_options options;
    tp_engine engine;
    TP_TRY(take_options(q, context, given, &options, &engine, error));
    for (int64_t i = 0; i < q->slot_count; i++) {
        if (q->slots[i].seen->status != TP_CELL_NOT_RUN) continue;
        if (options.progress && options.progress(options.user, q, i, 0)) break;
        TP_TRY(run_slot(q, &q->slots[i], context, &options, error));
        if (options.progress && options.progress(options.user, q, i, 1)) break;
    }
    return TP_OK;
}
