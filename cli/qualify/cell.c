/* SPDX-License-Identifier: Apache-2.0 */
/* One cell: what would run, does it run right, and what did it cost. */
#include "qualify/qualify.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 48, MIN_ROWS = 12, FEW_QUERIES = 8, SLOW_FILL = 1 << 22 };
/* Elements of K and V that the reference may look at, so that no cell takes long. */
static const double reference_elements = 2e7, reference_elements_quick = 6e6;

int subject_fail(struct subject *s, tp_cell_status status, const char *format, ...) {
    va_list arguments;
    s->cell->status = status;
    va_start(arguments, format);
    vsnprintf(s->cell->reason, sizeof s->cell->reason, format, arguments);
    va_end(arguments);
    return 1;
}

int qualifier_open(struct qualifier *q, const struct options *options, const char *disable) {
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    *q = (struct qualifier){.seed = CELL_SEED, .quick = options->quick};
    q->choice = (tp_choice)TP_CHOICE_INIT;
    q->choice.policy = options_policy(options);
    wanted.threads = (int32_t)options->threads;
    wanted.policy = q->choice.policy;
    wanted.disable = disable && *disable ? disable : NULL;
    return tp_context_create(&wanted, &q->context, &error) == TP_OK ? 0 : complain_status(&error);
}

void qualifier_close(struct qualifier *q) {
    workspace_free(&q->workspace);
    tp_context_destroy(q->context);
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

static int choose(struct qualifier *q, struct subject *s) {
    tp_error error = TP_ERROR_INIT;
    tp_decision *decision = NULL;
    if (tp_problem_parse(s->cell->problem, &s->problem, &s->lengths, &error) != TP_OK)
        return subject_fail(s, TP_CELL_UNSUPPORTED, "%s", error.text);
    tp_status status = tp_explain(q->context, &s->problem, &q->choice, &decision, &error);
    if (status == TP_OK) {
        const tp_candidate *chosen = tp_decision_candidate(decision, decision->chosen);
        s->cell->status = decision->fallback ? TP_CELL_QUALIFIED_FALLBACK : TP_CELL_QUALIFIED;
        s->cell->scratch = decision->workspace_bytes;
        snprintf(s->cell->kernel, sizeof s->cell->kernel, "%s", chosen->kernel);
        if (decision->fallback) put_reasons(decision, s->cell->reason, sizeof s->cell->reason);
        tp_decision_destroy(decision);
        status = tp_plan_create(q->context, &s->problem, &q->choice, &s->plan, &error);
        return status == TP_OK ? 0 : subject_fail(s, TP_CELL_UNSUPPORTED, "%s", error.text);
    }
    char reasons[900] = "";
    if (decision) put_reasons(decision, reasons, sizeof reasons);
    tp_decision_destroy(decision);
    return subject_fail(s, TP_CELL_UNSUPPORTED, "%s", reasons[0] ? reasons : error.text);
}

/* Keys that no row sees hold NaN: one that is looked at all the same spoils its row. */
static void poison_hidden(struct subject *s) {
    const tp_problem *p = &s->tensors.problem;
    if (s->tensors.q_lens[0] > FEW_QUERIES || s->tensors.sequences > 1) return;
    for (int64_t key = 0; key < s->tensors.kv_lens[0]; key++) {
        int seen = 0;
        for (int64_t row = 0; row < s->tensors.q_lens[0] && !seen; row++)
            seen = tp_mask_visible(p, &s->tensors.call, 0, 0, row, key) != 0;
        if (seen) continue;
        s->hidden++;
        for (int64_t head = 0; head < p->kv_heads; head++)
            for (int id = TENSOR_K; id <= TENSOR_V; id++)
                memset(tensors_at(&s->tensors, (enum tensor_id)id, 0, key, head, 0), 0xFF,
                       (size_t)tensors_dim(&s->tensors, (enum tensor_id)id) *
                           tp_dtype_bytes(tensors_dtype(&s->tensors, (enum tensor_id)id)));
    }
}

int64_t qualify_rows(const tp_problem *p, int quick) {
    double keys = (double)p->kv_len * (double)(p->head_dim_qk + p->head_dim_v);
    double rows = (quick ? reference_elements_quick : reference_elements) / (keys + 1);
    return (int64_t)fmin(fmax(rows, MIN_ROWS), MAX_ROWS);
}

static int make(struct qualifier *q, struct subject *s) {
    const tp_problem *p = &s->problem;
    tp_error error = TP_ERROR_INIT;
    double keys = (double)p->kv_len * (double)(p->head_dim_qk + p->head_dim_v);
    double elements = keys * (double)(p->batch * p->kv_heads);
    struct tensors_style style = {.lse = 1, .gain = s->cell->gain, .repeat = elements > SLOW_FILL};
    if (tensors_create(&s->tensors, p, &s->lengths, &style))
        return subject_fail(s, TP_CELL_NUMERIC_FAIL, "not run: no memory for its tensors");
    tensors_fill(&s->tensors, q->seed);
    poison_hidden(s);
    int64_t limit = qualify_rows(p, q->quick);
    if (oracle_create_on(&s->oracle, &s->tensors, limit, q->seed, tp_context_threads(q->context), &error) != TP_OK)
        return subject_fail(s, TP_CELL_NUMERIC_FAIL, "no reference: %s", error.text);
    return 0;
}

int subject_run(struct qualifier *q, struct subject *s, int threads, tp_receipt *receipt) {
    struct attempt attempt = {.context = q->context,
                              .choice = &q->choice,
                              .workspace = &q->workspace,
                              .entry = ENTRY_POOL,
                              .threads = threads,
                              .poison = 0xFF};
    tp_error error = TP_ERROR_INIT;
    tensors_poison_outputs(&s->tensors, 0xFF);
    if (attempt_run_plan(&attempt, s->plan, &s->tensors, receipt, &error) == TP_OK) return 0;
    return subject_fail(s, TP_CELL_NUMERIC_FAIL, "the run broke: %s", error.text);
}

static void hash_outputs(const struct tensors *tensors, char text[65]) {
    tp_digest digest;
    tp_digest_begin(&digest);
    for (int id = TENSOR_O; id <= TENSOR_LSE; id++)
        for (int64_t seq = 0; seq < tensors->sequences; seq++)
            for (int64_t row = 0; row < tensors_len(tensors, (enum tensor_id)id, seq); row++)
                for (int64_t head = 0; head < tensors->problem.q_heads; head++)
                    tp_digest_add(&digest, tensors_at(tensors, (enum tensor_id)id, seq, row, head, 0),
                                  (size_t)tensors_dim(tensors, (enum tensor_id)id) *
                                      tp_dtype_bytes(tensors_dtype(tensors, (enum tensor_id)id)));
    tp_digest_end(&digest, text);
}

/* All that a run leaves, what it must not touch among it, is the same on all threads. */
static int run_again(struct qualifier *q, struct subject *s, int threads) {
    char *before[2] = {NULL, NULL};
    tp_receipt receipt;
    int failed = 0;
    for (int i = 0; i < 2 && !failed; i++) {
        size_t bytes = s->tensors.buffer[TENSOR_O + i].bytes;
        if ((before[i] = malloc(bytes)))
            memcpy(before[i], s->tensors.buffer[TENSOR_O + i].memory, bytes);
        else
            failed = subject_fail(s, TP_CELL_NUMERIC_FAIL, "not run: no memory to keep its outputs");
    }
    if (!failed) failed = subject_run(q, s, threads, &receipt);
    for (int i = 0; i < 2 && !failed; i++)
        if (memcmp(before[i], s->tensors.buffer[TENSOR_O + i].memory, s->tensors.buffer[TENSOR_O + i].bytes))
            failed = subject_fail(s, TP_CELL_NUMERIC_FAIL, "1 and %d threads give other bits", threads);
    for (int i = 0; i < 2; i++) free(before[i]);
    return failed;
}

/* On one task, whose schedule does not depend on the host, and on all threads, with the same bits. */
static int run_canaries(struct qualifier *q, struct subject *s) {
    tp_cell *cell = s->cell;
    tp_receipt receipt;
    struct measured_error measured;
    char reason[512] = "";
    int threads = tp_context_threads(q->context);
    if (subject_run(q, s, 1, &receipt)) return 1;
    if (receipt.kernel) snprintf(cell->kernel, sizeof cell->kernel, "%s", receipt.kernel);
    snprintf(cell->numerics_id, sizeof cell->numerics_id, "%.*s", (int)sizeof cell->numerics_id - 1, receipt.numerics_id);
    cell->panels_full = receipt.panels_full;
    cell->panels_partial = receipt.panels_partial;
    cell->panels_skipped = receipt.panels_skipped;
    cell->bytes = receipt.bytes_model;
    if (tensors_badly_written(&s->tensors, reason, sizeof reason))
        return subject_fail(s, TP_CELL_NUMERIC_FAIL, "%s", reason);
    int wrong = oracle_compare(&s->oracle, &s->tensors, &measured, reason, sizeof reason);
    double allowed = 2 * measured.naive_max + measured.floor;
    cell->error = isfinite(measured.max) ? measured.max : 0; /* a journal's numbers are finite; the reason has this one */
    cell->allowed = isfinite(allowed) ? allowed : 0;
    if (wrong) return subject_fail(s, TP_CELL_NUMERIC_FAIL, "%s", reason);
    hash_outputs(&s->tensors, cell->output);
    return threads == 1 ? 0 : run_again(q, s, threads);
}

void qualify_cell(struct qualifier *q, tp_cell *cell) {
    struct subject s = {.cell = cell};
    if (cell->status == TP_CELL_UNSUPPORTED) return; /* the core does not even read it */
    s.lengths.struct_size = sizeof s.lengths;
    int packed = cell->phase & (TP_QUALIFY_VARLEN | TP_QUALIFY_MIXED);
    int failed = choose(q, &s) || make(q, &s) || run_canaries(q, &s);
    if (!failed && packed) failed = qualify_alone(q, &s);
    if (!failed && q->time_ns > 0 && (cell->timed || !q->quick)) qualify_time(q, &s);
    if (!failed) qualify_trust(&s); /* last: it writes wrong outputs */
    oracle_destroy(&s.oracle);
    tensors_destroy(&s.tensors);
    if (s.plan) tp_plan_destroy(s.plan);
}
