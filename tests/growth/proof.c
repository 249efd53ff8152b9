/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of tileproof_proof.h that takes or gives a struct, by a program of another version than the library's. */
#include "tileproof_proof.h"

#include "growth/growth.h"

#include <stdlib.h>

static const char config[] = "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-1\", \"max_positions\": 64, "
                             "\"problem\": \"h2/1 d16 f32 causal\"}]}";

static int append(void *cookie, const char *bytes, size_t size) {
    char *text = cookie;
    assert_true(strlen(text) + size < 1 << 16);
    strncat(text, bytes, size);
    return 0;
}

static tp_model *parse(void) {
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_model *model;
    GOOD(tp_model_parse(config, strlen(config), "m.json", &model, error));
    return model;
}

/* A copy of a struct of the library's: so much of it as the program knows. */
#define COPY(type, given) growth_copy(PLACE(type), sizeof(type), (given))
static void *growth_copy(void *place, size_t size, const void *given) {
    uint32_t whole, mine = (uint32_t)size;
    memcpy(&whole, given, sizeof whole);
    memset(place, 0, size);
    memcpy(place, given, size < whole ? size : whole);
    memcpy(place, &mine, sizeof mine);
    return place;
}

static void models(void **state) {
    (void)state;
    tp_model *model = parse();
    char text[1 << 16] = "", layers[64], expected[64];
    GIVEN(model, tp_model);
    GIVEN(model->groups[0], tp_layer_group);
    assert_int_equal(tp_model_write(model, TP_JSON, append, text), TP_OK);
    assert_true(strlen(text) > 200);
    tp_rope_options *rope = PLACE_INIT(tp_rope_options, TP_ROPE_OPTIONS_INIT);
    SET_GROWN(rope, 77);
    assert_int_equal(tp_rope_from_model(model, 1, rope, NULL), TP_OK);
    assert_int_equal(rope->struct_size, sizeof *rope);
    assert_int_equal(GROWN(rope), 0);
    assert_true(rope->head_dim == 16 && rope->kind == TP_ROPE_NONE && rope->theta == 0);
    rope->struct_size = 8;
    assert_int_equal(tp_rope_from_model(model, 1, rope, NULL), TP_INVALID);
    tp_layer_group *group = COPY(tp_layer_group, model->groups[0]);
    int64_t rows, keys;
    tp_layer_group_lengths(group, 1, &rows, &keys);
    assert_true(rows == 1 && keys == 64);
    assert_int_equal(tp_layer_group_formula(group, layers, sizeof layers), TP_OK);
    assert_string_equal(layers, "causal");
    assert_int_equal(tp_layer_group_problem(group, 1, 7, 7, expected, sizeof expected), TP_OK);
    assert_string_equal(expected, "prefill b1 h2/1 q7 k7 d16 f32 causal");
    assert_int_equal(tp_layer_group_layers(group, layers, sizeof layers), TP_OK);
    assert_string_equal(layers, "0-1");
    SET_GROWN(group, 1);
    assert_int_equal(tp_layer_group_layers(group, layers, sizeof layers), NEWER ? TP_INVALID : TP_OK);
    group->struct_size = 8;
    assert_int_equal(tp_layer_group_layers(group, layers, sizeof layers), TP_INVALID);
    tp_layer_group_lengths(group, 1, &rows, &keys);
    assert_int_equal(keys, 0);
    tp_model_destroy(model);
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_model_options *options = PLACE_INIT(tp_model_options, TP_MODEL_OPTIONS_INIT);
    options->assume = "llama";
#define PARSE tp_model_parse_with(config, strlen(config), "m.json", options, &model, error)
    REFUSES(options, tp_model_options, PARSE);
    REFUSES_SIZE(options, tp_model_options, PARSE);
    GOOD(PARSE);
    tp_model_destroy(model);
    growth_free();
}

/* A struct of the core's header, filled by the proof library. */
static void caches(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_model *model = parse();
    tp_cache_options *options = PLACE_INIT(tp_cache_options, TP_CACHE_OPTIONS_INIT);
    tp_cache_layer layers[2];
#define FROM_MODEL tp_cache_from_model(model, TP_PART_TEXT, TP_F16, layers, 2, options, error)
    REFUSES(options, tp_cache_options, FROM_MODEL);
    REFUSES_SIZE(options, tp_cache_options, FROM_MODEL);
    GOOD(FROM_MODEL);
    assert_true(options->layer_count == 2 && options->sequence_tokens == 64 && layers[1].kv_heads == 1);
    tp_model_destroy(model);
    growth_free();
}

static int on_progress(void *user, const tp_qualification *q, int64_t cell, int done) {
    assert_non_null(tp_qualification_cell(q, cell));
    *(int *)user += done;
    return 0;
}

static tp_status on_engine(void *user, const tp_engine_call *call, tp_engine_answer *answer) {
    GIVEN(call, tp_engine_call);
    GIVEN(answer, tp_engine_answer);
    assert_true(call->q_tokens > 0 && call->problem->struct_size > 0 && call->time_ns == 0);
    answer->reasons = user;
    return TP_UNSUPPORTED;
}

/* Cells that an engine of the program's runs, or refuses. */
static void engines(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_model *model = parse();
    tp_qualification *q;
    tp_qualify_run_options *run = PLACE_INIT(tp_qualify_run_options, TP_QUALIFY_RUN_OPTIONS_INIT);
    tp_engine *engine = PLACE_INIT(tp_engine, TP_ENGINE_INIT);
    tp_context *context = growth_context(NULL);
    char why[] = "it has no kernel";
    GOOD(tp_qualify_create(&model, 1, NULL, &q, error));
    engine->run = on_engine, engine->user = why;
    run->engine = engine;
#define RUN_ENGINE tp_qualify_run_cell(q, 0, context, run, error)
    REFUSES(engine, tp_engine, RUN_ENGINE);
    REFUSES_SIZE(engine, tp_engine, RUN_ENGINE);
    GOOD(RUN_ENGINE);
    assert_int_equal(tp_qualification_cell(q, 0)->status, TP_CELL_UNSUPPORTED);
    assert_string_equal(tp_qualification_cell(q, 0)->reason, why);
    tp_qualification_destroy(q);
    tp_context_destroy(context);
    tp_model_destroy(model);
    growth_free();
}

/* From a model to a lock, and back to what it says. */
static void qualification(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_model *model = parse();
    tp_qualification *q, *again;
    tp_qualify_options *options = PLACE_INIT(tp_qualify_options, TP_QUALIFY_OPTIONS_INIT);
    tp_qualify_run_options *run = PLACE_INIT(tp_qualify_run_options, TP_QUALIFY_RUN_OPTIONS_INIT);
    tp_lock_update *update = PLACE_INIT(tp_lock_update, TP_LOCK_UPDATE_INIT);
    tp_context *context = growth_context(NULL);
    tp_identity *detected;
    tp_lock *lock;
    int done = 0;
    options->quick = 1, options->phases = TP_QUALIFY_PREFILL;
#define CREATE tp_qualify_create(&model, 1, options, &q, error)
    REFUSES(options, tp_qualify_options, CREATE);
    REFUSES_SIZE(options, tp_qualify_options, CREATE);
    GOOD(CREATE);
    run->progress = on_progress, run->user = &done;
#define RUN tp_qualify_run(q, context, run, error)
    REFUSES(run, tp_qualify_run_options, RUN);
    REFUSES_SIZE(run, tp_qualify_run_options, RUN);
    GOOD(RUN);
    assert_true(done > 0);
    assert_int_equal(tp_qualification_status(q), TP_CELL_QUALIFIED);
    GIVEN(tp_qualification_cell(q, 0), tp_cell);
    tp_qualify_use *use = PLACE_INIT(tp_qualify_use, TP_QUALIFY_USE_INIT);
    SET_GROWN(use, 77); /* as another library may have left it */
    assert_int_equal(tp_qualification_use(q, 0, use), TP_OK);
    assert_true(use->struct_size == sizeof *use && use->phase == TP_QUALIFY_PREFILL && GROWN(use) == 0);
    use->struct_size = 8;
    assert_int_equal(tp_qualification_use(q, 0, use), TP_INVALID);

    GOOD(tp_identity_detect("engine=1", &detected, error));
    GIVEN(detected, tp_identity);
    tp_identity *identity = COPY(tp_identity, detected);
    update->date = "2026-11-16", update->reason = "first";
    GOOD(tp_lock_create(&lock, error));
#define UPDATE tp_qualify_update(q, lock, identity, update, error)
    REFUSES(update, tp_lock_update, UPDATE);
    REFUSES_SIZE(update, tp_lock_update, UPDATE);
    REFUSES(identity, tp_identity, UPDATE);
    REFUSES_SIZE(identity, tp_identity, UPDATE);
    GOOD(UPDATE);
#define COMPARE tp_qualify_compare(q, lock, identity, error)
    REFUSES(identity, tp_identity, COMPARE);
    GOOD(COMPARE);
    tp_preflight_options *preflight = PLACE_INIT(tp_preflight_options, TP_PREFLIGHT_OPTIONS_INIT);
    preflight->declared = "engine=1";
#define PREFLIGHT tp_preflight_with(context, lock, model, preflight, error)
    REFUSES(preflight, tp_preflight_options, PREFLIGHT);
    REFUSES_SIZE(preflight, tp_preflight_options, PREFLIGHT);
    GOOD(PREFLIGHT);
    GOOD(tp_lock_finish(lock, identity, "2026-11-17", "again", error));
    REFUSES(identity, tp_identity, tp_lock_finish(lock, identity, "2026-11-17", "again", error));
    char why[256];
    assert_int_equal(tp_lock_fresh(lock, identity, why, sizeof why), TP_OK);
    GOOD(tp_qualify_create_again(lock, identity->isa, options, &again, error));
    REFUSES_SIZE(run, tp_qualify_run_options, tp_qualify_run_cell(again, 0, context, run, error));
    GOOD(tp_qualify_run_cell(again, 0, context, run, error));
    assert_string_equal(tp_qualification_cell(again, 0)->output, tp_qualification_cell(q, 0)->output);
    tp_identity_destroy(detected);
    tp_qualification_destroy(again);
    tp_qualification_destroy(q);
    tp_context_destroy(context);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    growth_free();
}

static void cells_and_locks(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_model *model = parse();
    tp_cell *cell = PLACE_INIT(tp_cell, TP_CELL_INIT), *read, *found = PLACE_INIT(tp_cell, TP_CELL_INIT);
    tp_lock_use *use = PLACE_INIT(tp_lock_use, TP_LOCK_USE_INIT);
    tp_lock *lock;
    char text[1 << 16] = "", why[256];
    cell->problem = "prefill b1 h2/1 q7 k7 d16 f32 causal", cell->purpose = NULL, cell->phase = TP_QUALIFY_PREFILL;
    cell->status = TP_CELL_QUALIFIED, cell->kernel = "avx2";
    assert_int_equal(tp_cell_write(cell, 1, append, text), TP_OK);
    GOOD(tp_cell_parse(text, strlen(text), "line", 1, &read, error));
    GIVEN(read, tp_cell);
    assert_string_equal(read->kernel, "avx2");
    assert_string_equal(read->purpose, "");
    tp_cell_destroy(read);
    cell->purpose = "main";
    GOOD(tp_lock_create(&lock, error));
    GOOD(tp_lock_put_model(lock, "m.json", model->config_hash, error));
    tp_layer_group *group = COPY(tp_layer_group, model->groups[0]);
#define PUT_USE tp_lock_put_use(lock, "m.json", group, cell, error)
#define PUT_CELL tp_lock_put_cell(lock, "avx2", cell, error)
    REFUSES(cell, tp_cell, PUT_USE);
    REFUSES_SIZE(cell, tp_cell, PUT_USE);
    GOOD(PUT_USE);
    REFUSES(cell, tp_cell, PUT_CELL);
    REFUSES_SIZE(cell, tp_cell, PUT_CELL);
    GOOD(PUT_CELL);
    tp_identity *detected;
    GOOD(tp_identity_detect(NULL, &detected, error));
    tp_identity *identity = COPY(tp_identity, detected);
    identity->isa = "avx2";
    GOOD(tp_lock_finish(lock, identity, "2026-11-16", "first", error));
    SET_GROWN(found, 77);
    SET_GROWN(use, 77);
    assert_int_equal(tp_lock_cell_at(lock, "avx2", 0, found), TP_OK);
    assert_true(found->struct_size == sizeof *found && GROWN(found) == 0);
    assert_int_equal(tp_cell_compare(cell, found, why, sizeof why), TP_CELL_QUALIFIED);
    assert_int_equal(tp_lock_use_at(lock, 0, use), TP_OK);
    assert_true(use->struct_size == sizeof *use && GROWN(use) == 0);
    assert_string_equal(use->model, "m.json");
    tp_lock_revision *revision = PLACE_INIT(tp_lock_revision, TP_LOCK_REVISION_INIT);
    tp_lock_history *history = PLACE_INIT(tp_lock_history, TP_LOCK_HISTORY_INIT);
    SET_GROWN(revision, 77);
    SET_GROWN(history, 77);
    assert_int_equal(tp_lock_revision_at(lock, 0, revision), TP_OK);
    assert_true(revision->struct_size == sizeof *revision && GROWN(revision) == 0 && revision->cell_count == 1);
    assert_int_equal(tp_lock_history_at(lock, 0, history), TP_OK);
    assert_true(history->struct_size == sizeof *history && GROWN(history) == 0);
    assert_string_equal(history->reason, "first");
    assert_int_equal(tp_lock_revision_cell(lock, 0, 0, found, use), TP_OK);
    assert_int_equal(tp_lock_cell_for(lock, identity, use->problem, found), TP_OK);
    assert_int_equal(tp_lock_cell_of(lock, identity, 0, found), TP_OK);
    tp_identity_destroy(detected);
    revision->struct_size = history->struct_size = 8;
    assert_int_equal(tp_lock_revision_at(lock, 0, revision), TP_INVALID);
    assert_int_equal(tp_lock_history_at(lock, 0, history), TP_INVALID);
    assert_int_equal(tp_lock_cell_find(lock, "avx2", use->problem, found), TP_OK);
    found->struct_size = use->struct_size = 8;
    assert_int_equal(tp_lock_cell_at(lock, "avx2", 0, found), TP_INVALID);
    assert_int_equal(tp_lock_use_at(lock, 0, use), TP_INVALID);
    assert_int_equal(tp_cell_compare(cell, found, why, sizeof why), TP_CELL_STALE);
    tp_qualification *q;
    tp_qualify_options *options = PLACE_INIT(tp_qualify_options, TP_QUALIFY_OPTIONS_INIT);
    GOOD(tp_qualify_create(&model, 1, options, &q, error));
    REFUSES(cell, tp_cell, tp_qualify_restore(q, cell, error));
    REFUSES_SIZE(cell, tp_cell, tp_qualify_restore(q, cell, error));
    GOOD(tp_qualify_restore(q, cell, error));
    tp_qualification_destroy(q);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    growth_free();
}

static void capacity(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_capacity_options *options = PLACE_INIT(tp_capacity_options, TP_CAPACITY_OPTIONS_INIT);
    tp_capacity_cache *cache = PLACE_INIT(tp_capacity_cache, TP_CAPACITY_CACHE_INIT);
    tp_capacity_work *work = PLACE_INIT(tp_capacity_work, TP_CAPACITY_WORK_INIT);
    tp_context *context = growth_context(NULL);
    tp_model *model = parse();
    tp_capacity *made;
    options->context = 64, options->concurrency = 2;
#define CAPACITY tp_capacity_create(model, context, options, &made, error)
    REFUSES(options, tp_capacity_options, CAPACITY);
    REFUSES_SIZE(options, tp_capacity_options, CAPACITY);
    GOOD(CAPACITY);
    SET_GROWN(cache, 77);
    SET_GROWN(work, 77);
    assert_int_equal(tp_capacity_cache_at(made, 0, 0, cache), TP_OK);
    assert_true(cache->struct_size == sizeof *cache && GROWN(cache) == 0 && cache->bytes == 2 * 64 * 2 * 32 * 4);
    assert_int_equal(tp_capacity_work_at(made, -1, 1, work), TP_OK);
    assert_true(work->struct_size == sizeof *work && GROWN(work) == 0 && work->workspace_bytes > 0);
    cache->struct_size = work->struct_size = 8;
    assert_int_equal(tp_capacity_cache_at(made, 0, 0, cache), TP_INVALID);
    assert_int_equal(tp_capacity_work_at(made, 0, 0, work), TP_INVALID);
    tp_capacity_destroy(made);
    tp_model_destroy(model);
    tp_context_destroy(context);
    growth_free();
}

/* No struct of the header is missing above. */
static void every_struct_is_met(void **state) {
    (void)state;
#ifdef TILEPROOF_PROOF_GROWN
#define MET(type) \
    if (!growth_knows(#type)) fail_msg("%s", #type " has a struct_size and is in no test of growth");
    TILEPROOF_PROOF_GROWN(MET)
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models), cmocka_unit_test(caches),
        cmocka_unit_test(engines), cmocka_unit_test(qualification),
        cmocka_unit_test(cells_and_locks),
        cmocka_unit_test(capacity),
        cmocka_unit_test(every_struct_is_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
