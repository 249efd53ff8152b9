/* SPDX-License-Identifier: Apache-2.0 */
/* Refusing at load what would otherwise be refused at a request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache_format.h"
#include "control.h"
#include "identity.h"
#include "lock.h"

typedef struct permits {
    tp_permit *list;
    int64_t count, capacity;
} permits;

static void permits_free(permits *p) {
    for (int64_t i = 0; i < p->count; i++) {
        free((char *)(uintptr_t)p->list[i].problem_class);
        free((char *)(uintptr_t)p->list[i].kernel);
    }
    free(p->list);
}

static tp_status permits_add(permits *p, const char *problem_class, const char *kernel, tp_error *error) {
    if (p->count == p->capacity) {
        int64_t capacity = p->capacity ? 2 * p->capacity : 64;
        tp_permit *list = realloc(p->list, (size_t)capacity * sizeof *list);
        if (!list) return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for permits");
        p->list = list;
        p->capacity = capacity;
    }
    tp_permit one = {strdup(problem_class), strdup(kernel)};
    p->list[p->count++] = one;
    return one.problem_class && one.kernel ? TP_OK : tp__proof_fail(error, TP_NO_MEMORY, "out of memory for permits");
}

static tp_status refuse(const tp_model *model, const tp_lock_use *use, tp_error *error, const char *what, const char *why) {
    if (!use) return tp__proof_fail(error, TP_UNSUPPORTED, "%s: %s: %.380s", model->name, what, why);
    return tp__proof_fail(error, TP_UNSUPPORTED, "%s: %s layers %.60s, %s: %s: %.300s", model->name, use->part, use->layers,
                          tp_qualify_phase_name(use->phase), what, why);
}

static int is_qualified(const tp_cell *cell) {
    return tp_cell_status_rank((tp_cell_status)cell->status) <= 1;
}

/* One cell of the model: qualified, and then permitted. */
static tp_status take_cell(const tp_model *model, const tp_cell *cell, const tp_lock_use *use, permits *p, tp_error *error) {
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    char problem_class[512];
    if (!is_qualified(cell))
        return refuse(model, use, error, tp_cell_status_name((tp_cell_status)cell->status),
                      cell->reason[0] ? cell->reason : cell->problem);
    if (tp_problem_parse(cell->problem, &problem, &lengths, error) != TP_OK ||
        tp_problem_class(&problem, problem_class, sizeof problem_class) != TP_OK)
        return refuse(model, use, error, "its problem cannot be read", cell->problem);
    return permits_add(p, problem_class, cell->kernel, error);
}

/* Every group of the model has cells in the revision. */
static tp_status covers(const tp_lock *lock, int64_t revision, const tp_model *model, int group, tp_error *error) {
    char layers[8 * TP_MODEL_MAX_LAYERS];
    const tp_layer_group *g = model->groups[group];
    const char *part = tp_part_name((tp_part)g->part);
    tp_lock_use use = TP_LOCK_USE_INIT;
    if (g->out_of_scope) return TP_OK;
    tp_layer_group_layers(g, layers, sizeof layers);
    for (int64_t i = 0; tp_lock_revision_cell(lock, revision, i, NULL, &use) == TP_OK; i++)
        if (!strcmp(use.part, part) && !strcmp(use.layers, layers)) return TP_OK;
    return tp__proof_fail(error, TP_UNSUPPORTED, "%s: %s layers %.60s: the lock has no cell of this group", model->name, part,
                          layers);
}

static tp_status collect(const tp_lock *lock, int64_t revision, const tp_model *model, permits *p, tp_error *error) {
    tp_cell cell = TP_CELL_INIT;
    tp_lock_use use = TP_LOCK_USE_INIT;
    for (int64_t i = 0; tp_lock_revision_cell(lock, revision, i, &cell, &use) == TP_OK; i++)
        TP_TRY(take_cell(model, &cell, &use, p, error));
    for (int i = 0; i < model->group_count; i++) TP_TRY(covers(lock, revision, model, i, error));
    return TP_OK;
}

/* The lock's own figure is that of one task; this context cuts calls into more. */
static tp_status max_scratch(tp_context *context, const tp_lock *lock, const tp_identity *here, int64_t *max, tp_error *error) {
    tp_cell cell = TP_CELL_INIT;
    *max = 0;
    for (int64_t i = 0; tp_lock_cell_of(lock, here, i, &cell) == TP_OK; i++) {
        tp_problem problem;
        tp_lengths lengths = {.struct_size = sizeof lengths};
        tp_choice choice = TP_CHOICE_INIT;
        tp_plan *plan;
        choice.policy = TP_PERMIT;
        choice.kernel = cell.kernel;
        if (!is_qualified(&cell) || tp_problem_parse(cell.problem, &problem, &lengths, NULL) != TP_OK) continue;
        tp_status status = tp_plan_create(context, &problem, &choice, &plan, error);
        if (status == TP_NO_MEMORY) return status;
        if (status != TP_OK) continue; /* a kernel that is disabled here takes none */
        int64_t bytes = (int64_t)tp_plan_workspace(plan, tp_context_threads(context));
        if (bytes > *max) *max = bytes;
        tp_plan_destroy(plan);
    }
    return TP_OK;
}

/* Which revision of the lock speaks of this model on this host: any with its config will do, be it the last one or not. *state:
   why there is none. */
static tp_status choose(const tp_lock *lock, const tp_model *model, const tp_identity *here, int64_t *chosen, int32_t *state,
                        tp_error *error) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT, engine = tp__identity_engine(here);
    char isa[64], why[1024] = "", other[200] = "";
    int named = 0, found = 0;
    *chosen = -1;
    *state = TP_LOCK_STALE;
    if (tp__lock_isa(lock, &engine, isa)) {
        tp_lock_fresh(lock, here, why, sizeof why);
        return refuse(model, NULL, error, "STALE", why);
    }
    engine.isa = isa;
    for (int64_t i = 0; tp_lock_revision_at(lock, i, &one) == TP_OK; i++) {
        tp_lock_revision asked = engine;
        asked.cache = one.cache;
        if (!tp__lock_same_engine(&one, &asked)) continue;
        named |= !strcmp(one.model, model->label);
        if (strcmp(one.config_hash, model->config_hash)) continue;
        if (strcmp(one.cache, engine.cache)) {
            snprintf(other, sizeof other, "the lock has it with cache %.60s, and not with %.60s", one.cache, engine.cache);
            continue;
        }
        found = 1;
        if (tp_lock_revision_fresh(lock, i, here, why, sizeof why) == TP_OK) *chosen = i;
    }
    if (*chosen >= 0) return TP_OK;
    if (found) return refuse(model, NULL, error, "STALE", why);
    *state = named ? TP_LOCK_OTHER_CONFIG : TP_LOCK_UNKNOWN_MODEL;
    return refuse(model, NULL, error, "not qualified",
                  other[0] ? other
                  : named  ? "the lock has it with another config"
                           : "the lock does not have it");
}

/* Permits, or how it ended in *state. */
static tp_status permit(tp_context *context, const tp_lock *lock, const tp_model *model, const tp_identity *here,
                        tp_lock_state *state, tp_error *error) {
    permits p = {0};
    int64_t revision;
    tp_status status = choose(lock, model, here, &revision, &state->status, error);
    if (status != TP_OK) {
        if (status != TP_UNSUPPORTED) state->status = TP_LOCK_FAILED; /* memory ran out */
        return status;
    }
    status = collect(lock, revision, model, &p, error);
    state->status = status == TP_UNSUPPORTED ? TP_LOCK_REFUSED : TP_LOCK_FAILED;
    if (status == TP_OK) status = max_scratch(context, lock, here, &state->scratch_bytes, error);
    if (status == TP_OK) status = tp_context_permit(context, p.list, p.count, error);
    permits_free(&p);
    if (status == TP_OK) state->status = TP_LOCK_MATCHES;
    return status;
}

static tp_status compare(tp_context *context, const tp_lock *lock, const tp_model *model, const tp_preflight_options *options,
                         tp_lock_state *state, tp_error *error) {
    tp_identity *here;
    tp__format format;
    char isa[64], cache[TP__FORMAT_TEXT];
    state->status = TP_LOCK_UNREADABLE;
    if (!lock || !model)
        return tp__proof_fail(error, TP_INVALID, "%s is NULL: it must be given; NULL stands for one that could not be read",
                              lock ? "model" : "lock");
    state->status = TP_LOCK_FAILED;
    TP_TRY(tp__format_for(model, options->cache, &format, error));
    tp__format_print(&format, cache);
    TP_TRY(tp_identity_detect(options->declared, &here, error));
    /* a context may plan for another machine */
    tp__lock_key(tp_context_machine(context)->isa, isa);
    here->isa = isa;
    here->cache = cache;
    tp_status status = permit(context, lock, model, here, state, error);
    tp_identity_destroy(here);
    return status;
}

tp_status tp_preflight(tp_context *context, const tp_lock *lock, const tp_model *model,
                       const char *declared, tp_error *error) {
    tp_preflight_options options = TP_PREFLIGHT_OPTIONS_INIT;
    options.declared = declared;
    return tp_preflight_with(context, lock, model, &options, error);
}

/* However it ends, metrics and trace say so: a refusal that nobody sees leaves the alert quiet. */
tp_status tp_preflight_with(tp_context *context, const tp_lock *lock, const tp_model *model, const tp_preflight_options *given,
                            tp_error *error) {
    TP__IN_DEFAULT_FENV;
    static const tp_preflight_options none = TP_PREFLIGHT_OPTIONS_INIT;
    tp_lock_state state = {.struct_size = sizeof state};
    tp_preflight_options options;
    if (!context) return tp__proof_fail(error, TP_INVALID, "context is NULL: it must be given");
    TP_TRY(tp__take(&tp__preflight_shape, given ? given : &none, &options, error));
    if (options.reserved) return tp__proof_fail(error, TP_INVALID, "reserved is %u: it must be 0", options.reserved);
    tp_status status = compare(context, lock, model, &options, &state, error);
    if (model) state.model = model->label;
    if (tp_context_lock_state(context, &state, NULL) == TP_INVALID) {
        state.model = "other"; /* a file's name need not be a label */
        tp_context_lock_state(context, &state, NULL);
    }
    return status;
}
