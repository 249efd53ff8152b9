/* SPDX-License-Identifier: Apache-2.0 */
/* The cells of models, or of a lock, and who uses them. */
#include "qualify.h"

#include <stdlib.h>
#include <string.h>

#include "control.h"

static tp_status no_memory(tp_error *error) {
    return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a qualification");
}

static int grow(void *list, int64_t *capacity, int64_t count, size_t unit) {
    void **memory = list;
    if (count < *capacity) return 0;
    int64_t more = *capacity ? 2 * *capacity : 64;
    void *moved = realloc(*memory, (size_t)more * unit);
    if (!moved) return 1;
    *memory = moved;
    *capacity = more;
    return 0;
}

void tp__slot_reset(tp__slot *slot) {
    slot->cell = *slot->seen;
    free(slot->note);
    slot->note = NULL;
}

tp_status tp__slot_set(tp__slot *slot, const tp_cell *seen, tp_error *error) {
    tp_cell *packed = tp__pack(&tp__cell_shape, seen);
    if (!packed) return no_memory(error);
    free(slot->seen);
    slot->seen = packed;
    tp__slot_reset(slot);
    return TP_OK;
}

void tp__notes_free(char **notes) {
    for (char **note = notes; note && *note; note++) free(*note);
    free(notes);
}

void tp_qualification_destroy(tp_qualification *q) {
    if (!q) return;
    for (int64_t i = 0; i < q->slot_count; i++) {
        free(q->slots[i].seen);
        free(q->slots[i].note);
    }
    tp__notes_free(q->notes);
    free(q->slots);
    free(q->uses);
    free((void *)(uintptr_t)q->models);
    free(q);
}

static tp_status add_slot(tp_qualification *q, const tp_cell *cell, tp_error *error) {
    if (grow(&q->slots, &q->slot_capacity, q->slot_count, sizeof *q->slots)) return no_memory(error);
    q->slots[q->slot_count] = (tp__slot){.seen = NULL};
    TP_TRY(tp__slot_set(&q->slots[q->slot_count], cell, error));
    q->slot_count++;
    return TP_OK;
}

static int64_t find(const tp_qualification *q, const char *problem) {
    int64_t i = 0;
    while (i < q->slot_count && strcmp(q->slots[i].seen->problem, problem)) i++;
    return i;
}

struct group {
    tp_qualification *q;
    int model, group;
};

/* A problem that another group asked for has its cell already; a call that serves two purposes of one group is one use. */
static tp_status add_use(void *user, const tp_cell *cell, tp_error *error) {
    const struct group *group = user;
    tp_qualification *q = group->q;
    int64_t at = find(q, cell->problem);
    for (int64_t i = 0; i < q->use_count; i++) {
        const tp_qualify_use *use = &q->uses[i];
        if (use->model == group->model && use->group == group->group && use->cell == at && use->phase == cell->phase)
            return TP_OK;
    }
    if (grow(&q->uses, &q->use_capacity, q->use_count, sizeof *q->uses)) return no_memory(error);
    if (at == q->slot_count) TP_TRY(add_slot(q, cell, error));
    q->uses[q->use_count++] = (tp_qualify_use){.struct_size = sizeof *q->uses,
                                               .model = group->model,
                                               .group = group->group,
                                               .phase = cell->phase,
                                               .cell = at};
    return TP_OK;
}

/* With defaults in place of 0. */
static tp_status take_options(const tp_qualify_options *given, tp_qualify_options *options, tp_error *error) {
    static const tp_qualify_options none = TP_QUALIFY_OPTIONS_INIT;
    tp__format format;
    TP_TRY(tp__take(&tp__options_shape, given ? given : &none, options, error));
    if (options->phases & ~TP_QUALIFY_ALL)
        return tp__proof_fail(error, TP_INVALID, "phases is %u: it must be bits of %u, or 0 for all", options->phases,
                              TP_QUALIFY_ALL);
    if (options->dtype && options->dtype != TP_F32 && options->dtype != TP_F16 && options->dtype != TP_BF16)
        return tp__proof_fail(error, TP_INVALID, "dtype is %d: it must be f32, f16 or bf16, or 0 for bf16", options->dtype);
    if (options->page_size < 0 || options->page_size > 4096)
        return tp__proof_fail(error, TP_INVALID, "page_size is %lld: it must be in 1..4096, or 0 for 16",
                              (long long)options->page_size);
    if (options->max_cells < 0)
        return tp__proof_fail(error, TP_INVALID, "max_cells is %lld: it must be 1 or more, or 0 for no limit",
                              (long long)options->max_cells);
    TP_TRY(tp__format_read(options->cache, &format, error));
    if (!options->phases) options->phases = TP_QUALIFY_ALL;
    if (!options->dtype) options->dtype = TP_BF16;
    if (!options->page_size) options->page_size = 16;
    return TP_OK;
}

static tp_status begin(const tp_qualify_options *given, tp_qualify_options *options, tp_qualification **q, tp_error *error) {
    if (!q) return tp__proof_fail(error, TP_INVALID, "q is NULL: it must be given");
    *q = NULL;
    TP_TRY(take_options(given, options, error));
    *q = calloc(1, sizeof **q);
    if (!*q) return no_memory(error);
    (*q)->quick = options->quick;
    return tp_cache_format_name(options->cache, (*q)->cache, sizeof (*q)->cache, error); /* it was read above */
}

static tp_status finish(tp_status status, tp_qualification **q) {
    if (status == TP_OK) return TP_OK;
    tp_qualification_destroy(*q);
    *q = NULL;
    return status;
}

static tp_status add_models(tp_qualification *q, tp_model *const *models, int count, const tp_qualify_options *options,
                            tp_error *error) {
    tp_model **list = calloc((size_t)count + 1, sizeof *list);
    if (!list) return no_memory(error);
    q->models = list;
    q->model_count = count;
    for (int i = 0; i < count; i++) {
        tp__format format;
        list[i] = models[i];
        if (!models[i]) return tp__proof_fail(error, TP_INVALID, "model %d of %d is NULL: it must be given", i, count);
        TP_TRY(tp__format_for(models[i], options->cache, &format, error));
        for (int j = 0; j < models[i]->group_count; j++) {
            struct group group = {q, i, j};
            TP_TRY(tp__group_cells(models[i]->groups[j], options, add_use, &group, error));
        }
    }
    return TP_OK;
}

tp_status tp_qualify_create(tp_model *const *models, int model_count, const tp_qualify_options *given,
                            tp_qualification **q, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_qualify_options options;
    if (q) *q = NULL;
    if (model_count < 0 || (model_count && !models))
        return tp__proof_fail(error, TP_INVALID, "model_count is %d%s: models must be a list of so many", model_count,
                              models ? "" : " and models NULL");
    TP_TRY(begin(given, &options, q, error));
    return finish(add_models(*q, models, model_count, &options, error), q);
}

static tp_status add_locked(tp_qualification *q, const tp_cell *locked, tp_error *error) {
    tp_cell asked = TP_CELL_INIT;
    if (tp_cell_status_rank((tp_cell_status)locked->status) > 1) return add_slot(q, locked, error);
    /* what is asked, without what was seen */
    asked.phase = locked->phase, asked.timed = locked->timed, asked.gain = locked->gain;
    asked.problem = locked->problem, asked.purpose = locked->purpose, asked.shows = locked->shows;
    return add_slot(q, &asked, error);
}

static tp_status add_listed(tp_qualification *q, const tp_lock *lock, const tp_identity *now, tp_error *error) {
    tp_cell locked = TP_CELL_INIT;
    for (int64_t i = 0; tp_lock_cell_of(lock, now, i, &locked) == TP_OK; i++) TP_TRY(add_locked(q, &locked, error));
    return TP_OK;
}

static tp_status add_revision(tp_qualification *q, const tp_lock *lock, int64_t revision, tp_error *error) {
    tp_cell locked = TP_CELL_INIT;
    for (int64_t i = 0; tp_lock_revision_cell(lock, revision, i, &locked, NULL) == TP_OK; i++)
        if (find(q, locked.problem) == q->slot_count) TP_TRY(add_locked(q, &locked, error));
    return TP_OK;
}

tp_status tp_qualify_create_again(const tp_lock *lock, const char *isa, const tp_qualify_options *given,
                                  tp_qualification **q, tp_error *error) {
    tp_identity cpu = {.struct_size = sizeof cpu, .isa = isa, .cache = "any"};
    if (q) *q = NULL;
    if (!lock || !isa) return tp__proof_fail(error, TP_INVALID, "lock and isa must be given");
    return tp_qualify_create_for(lock, &cpu, given, q, error);
}

tp_status tp_qualify_create_for(const tp_lock *lock, const tp_identity *now, const tp_qualify_options *given,
                                tp_qualification **q, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_qualify_options options;
    if (q) *q = NULL;
    if (!lock || !now) return tp__proof_fail(error, TP_INVALID, "lock and identity must be given");
    TP_TRY(begin(given, &options, q, error));
    return finish(add_listed(*q, lock, now, error), q);
}

tp_status tp_qualify_create_revision(const tp_lock *lock, int64_t revision, const tp_qualify_options *given,
                                     tp_qualification **q, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_qualify_options options;
    tp_lock_revision known = TP_LOCK_REVISION_INIT;
    if (q) *q = NULL;
    if (tp_lock_revision_at(lock, revision, &known) != TP_OK)
        return tp__proof_fail(error, TP_INVALID, "the lock has no revision %lld", (long long)revision);
    TP_TRY(begin(given, &options, q, error));
    return finish(add_revision(*q, lock, revision, error), q);
}

const tp_cell *tp_qualification_cell(const tp_qualification *q, int64_t index) {
    return q && index >= 0 && index < q->slot_count ? &q->slots[index].cell : NULL;
}

tp_cell_status tp_qualification_status(const tp_qualification *q) {
    tp_cell_status worst = q && q->slot_count ? TP_CELL_QUALIFIED : TP_CELL_NOT_RUN;
    for (int64_t i = 0; q && i < q->slot_count; i++) {
        tp_cell_status status = (tp_cell_status)q->slots[i].cell.status;
        if (tp_cell_status_rank(status) > tp_cell_status_rank(worst)) worst = status;
    }
    return worst;
}

tp_status tp_qualification_use(const tp_qualification *q, int64_t index, tp_qualify_use *use) {
    return q && index >= 0 && index < q->use_count ? tp__give(&tp__use_shape, &q->uses[index], use) : TP_INVALID;
}

tp_status tp_qualify_restore(tp_qualification *q, const tp_cell *given, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_cell cell;
    if (!q) return tp__proof_fail(error, TP_INVALID, "q is NULL: it must be given");
    TP_TRY(tp__take(&tp__cell_shape, given, &cell, error));
    if ((unsigned)cell.status > TP_CELL_NUMERICS_CHANGED || cell.status == TP_CELL_NOT_RUN)
        return tp__proof_fail(error, TP_INVALID, "status is %d (%s): it must be that of a cell that ran", cell.status,
                              tp_cell_status_name((tp_cell_status)cell.status));
    int64_t at = find(q, cell.problem);
    const tp_cell *mine = at < q->slot_count ? q->slots[at].seen : NULL;
    if (!mine || mine->status != TP_CELL_NOT_RUN || mine->phase != cell.phase || mine->gain != cell.gain)
        return tp__proof_fail(error, TP_UNSUPPORTED, "no cell waits for a result of '%.300s', %s", cell.problem,
                              tp_qualify_phase_name(cell.phase));
    return tp__slot_set(&q->slots[at], &cell, error);
}
