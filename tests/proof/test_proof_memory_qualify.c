/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ends: qualification and capacity. memory.h says what is asked. */
#include "memory.h"

/* Few keys, so that the cells are quick. */
static const char config[] = "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-1\", \"max_positions\": 64, "
                             "\"problem\": \"h2/1 d16 f32 causal\"}]}";
static tp_model *model; /* these are outside of what is counted */
static tp_context *context; /* of one thread: pools are slow where others are at work */
static tp_identity identity;
static tp_qualification *ran;
static tp_lock *lock, *other_lock;
static const char *cache; /* of cells that are made to run; NULL: plain */

/* All that there is to see of a qualification. */
static void show(const tp_qualification *q) {
    tp_qualify_use use = TP_QUALIFY_USE_INIT;
    const tp_cell *cell;
    const char *note;
    char text[64];
    for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++) {
        assert_int_equal(tp_cell_write(cell, 1, memory_collect, NULL), TP_OK);
        memory_collect(NULL, "\n", 1);
    }
    for (int64_t i = 0; tp_qualification_use(q, i, &use) == TP_OK; i++) {
        int size = snprintf(text, sizeof text, "%d %d %u %d\n", (int)use.model, (int)use.group, use.phase, (int)use.cell);
        memory_collect(NULL, text, (size_t)size);
    }
    for (int i = 0; (note = tp_qualification_note(q, i)); i++) memory_collect(NULL, note, strlen(note));
}

/* ---- making ---- */

static void *open_nothing(const void *about) {
    static tp_qualification *q;
    (void)about;
    q = NULL;
    return &q;
}

static tp_status call_create(void *subject, const void *about, tp_error *error) {
    return tp_qualify_create(&model, 1, about, subject, error);
}

static tp_status call_again(void *subject, const void *about, tp_error *error) {
    return tp_qualify_create_again(lock, identity.isa, about, subject, error);
}

static void show_made(void *subject, const void *about, tp_status status) {
    tp_qualification *q = *(tp_qualification **)subject;
    (void)about;
    assert_true((status == TP_OK) == (q != NULL));
    if (q) show(q);
}

static void close_made(void *subject) { tp_qualification_destroy(*(tp_qualification **)subject); }

static const struct walk create = {"tp_qualify_create", open_nothing, call_create, show_made, close_made, 0};
static const struct walk create_again = {"tp_qualify_create_again", open_nothing, call_again, show_made, close_made, 0};

static void making(void **state) {
    (void)state;
    tp_qualify_options quantised = TP_QUALIFY_OPTIONS_INIT;
    quantised.cache = "e4m3/token:i4";
    assert_true(exhaust(&create, NULL, TP_OK) > 10);
    assert_true(exhaust(&create, &quantised, TP_OK) > 10);
    assert_true(exhaust(&create_again, NULL, TP_OK) > 5);
}

/* ---- running ---- */

static tp_context *make_context(int threads) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *made;
    options.threads = threads;
    if (tp_context_create(&options, &made, &error) != TP_OK) fail_msg("%s", error.text);
    return made;
}

static void *open_fresh(const void *about) {
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_qualification *q;
    options.quick = 1;
    options.phases = *(const uint32_t *)about;
    options.cache = cache;
    if (tp_qualify_create(&model, 1, &options, &q, &error) != TP_OK) fail_msg("%s", error.text);
    return q;
}

static void show_fresh(void *subject, const void *about, tp_status status) {
    (void)about, (void)status;
    show(subject);
}

static void close_q(void *subject) { tp_qualification_destroy(subject); }

static tp_status call_run_cell(void *subject, const void *about, tp_error *error) {
    (void)about;
    return tp_qualify_run_cell(subject, 0, context, NULL, error);
}

/* It gives the same output for every call, which is right for none: what it needs memory for comes first. */
static tp_status serve(void *user, const tp_engine_call *call, tp_engine_answer *answer) {
    (void)user;
    memset(call->o, 0, (size_t)(call->q_tokens * call->problem->q_heads * call->problem->head_dim_v) * 4);
    answer->kernel = "zeros";
    return TP_OK;
}

static tp_status call_run_engine(void *subject, const void *about, tp_error *error) {
    tp_qualify_run_options options = TP_QUALIFY_RUN_OPTIONS_INIT;
    tp_engine engine = TP_ENGINE_INIT;
    (void)about;
    engine.run = serve;
    options.engine = &engine;
    return tp_qualify_run_cell(subject, 0, context, &options, error);
}

static tp_status call_restore(void *subject, const void *about, tp_error *error) {
    const tp_cell *mine = tp_qualification_cell(subject, 0), *cell;
    (void)about;
    for (int64_t i = 0; (cell = tp_qualification_cell(ran, i)); i++)
        if (!strcmp(cell->problem, mine->problem)) return tp_qualify_restore(subject, cell, error);
    return TP_INVALID;
}

static const struct walk run_cell = {"tp_qualify_run_cell", open_fresh, call_run_cell, show_fresh, close_q, 0};
static const struct walk run_engine = {"tp_qualify_run_cell, engine", open_fresh, call_run_engine, show_fresh, close_q, 0};
static const struct walk restore = {"tp_qualify_restore", open_fresh, call_restore, show_fresh, close_q, 0};

/* A cell of each phase: the packed ones have more to keep. */
static void running(void **state) {
    static const uint32_t phases[] = {TP_QUALIFY_PREFILL, TP_QUALIFY_DECODE, TP_QUALIFY_VARLEN, TP_QUALIFY_MIXED};
    (void)state;
    for (int i = 0; i < 4; i++) assert_true(exhaust(&run_cell, &phases[i], TP_OK) > 10);
    cache = "i8"; /* scales of neighbours are kept, too */
    assert_true(exhaust(&run_cell, &phases[3], TP_OK) > 10);
    cache = NULL;
    for (int i = 0; i < 4; i += 2) assert_true(exhaust(&run_engine, &phases[i], TP_OK) > 10);
    tp_context *before = context;
    context = make_context(2); /* outputs are kept and compared */
    exhaust(&run_cell, &phases[1], TP_OK);
    tp_context_destroy(context);
    context = before;
    exhaust(&restore, &phases[0], TP_OK);
}

static int on_progress(void *user, const tp_qualification *q, int64_t cell, int done) {
    (void)q, (void)cell;
    *(int *)user += done;
    return 0;
}

/* Cells that ran before memory ended keep their results, and a second call runs the others. */
static void goes_on(void **state) {
    uint32_t all = 0;
    tp_error error = TP_ERROR_INIT;
    tp_qualify_run_options options = TP_QUALIFY_RUN_OPTIONS_INIT;
    int done = 0, cells = 0;
    (void)state;
    options.progress = on_progress;
    options.user = &done;
    tp_qualification *q = open_fresh(&all);
    for (long n = 1; tp_qualification_status(q) != TP_CELL_QUALIFIED; n += 40) {
        memory_fail(n);
        tp_status status = tp_qualify_run(q, context, &options, &error);
        memory_fail(0);
        assert_true(status == TP_OK || status == TP_NO_MEMORY);
    }
    while (tp_qualification_cell(q, cells)) cells++;
    assert_int_equal(done, cells); /* each ran once */
    tp_qualification_destroy(q);
}

/* ---- locks ---- */

static void *open_ran(const void *about) {
    tp_qualification *q = open_fresh(about);
    tp_error error = TP_ERROR_INIT;
    const tp_cell *cell;
    for (int64_t i = 0; (cell = tp_qualification_cell(ran, i)); i++)
        assert_int_equal(tp_qualify_restore(q, cell, &error), TP_OK);
    return q;
}

static const tp_lock *compared; /* with which */
static tp_status call_compare(void *subject, const void *about, tp_error *error) {
    (void)about;
    return tp_qualify_compare(subject, compared, &identity, error);
}

/* Notes of a comparison are there, which the next one replaces. */
static void *open_compared(const void *about) {
    tp_qualification *q = open_ran(about);
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_qualify_compare(q, other_lock, &identity, &error), TP_NOT_LOCKED);
    return q;
}

static void *open_lock(const void *about) {
    struct text text = support_write(other_lock);
    tp_lock *copy = support_parse(&text);
    (void)about;
    free(text.bytes);
    return copy;
}

static tp_status call_update(void *subject, const void *about, tp_error *error) {
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    update.date = "2026-11-17";
    update.reason = about;
    return tp_qualify_update(ran, subject, &identity, &update, error);
}

static void show_lock(void *subject, const void *about, tp_status status) {
    tp_error error = TP_ERROR_INIT;
    (void)about, (void)status;
    assert_int_equal(tp_lock_write(subject, memory_collect, NULL), TP_OK);
    assert_int_equal(tp_lock_finish(subject, &identity, "2026-11-18", "to see the counts", &error), TP_OK);
    assert_int_equal(tp_lock_write(subject, memory_collect, NULL), TP_OK);
}

static void close_lock(void *subject) { tp_lock_destroy(subject); }

static const struct walk compare = {"tp_qualify_compare", open_ran, call_compare, show_fresh, close_q, 0};
static const struct walk compare_again = {"tp_qualify_compare, again", open_compared, call_compare, show_fresh, close_q, 0};
static const struct walk update = {"tp_qualify_update", open_lock, call_update, show_lock, close_lock, 0};

static void locks(void **state) {
    static const uint32_t all = 0;
    (void)state;
    compared = lock;
    assert_true(exhaust(&compare, &all, TP_OK) >= 3);
    compared = other_lock; /* other cells, another config: notes and reasons */
    assert_true(exhaust(&compare, &all, TP_NOT_LOCKED) > 8);
    assert_true(exhaust(&compare_again, &all, TP_NOT_LOCKED) > 8);
    assert_true(exhaust(&update, "a second model", TP_OK) > 100);
    exhaust(&update, "", TP_INVALID);
}

/* ---- capacity ---- */

static tp_status call_capacity(void *subject, const void *about, tp_error *error) {
    return tp_capacity_create(model, context, about, subject, error);
}

static void show_capacity(void *subject, const void *about, tp_status status) {
    tp_capacity *capacity = *(tp_capacity **)subject;
    tp_capacity_cache kept = TP_CAPACITY_CACHE_INIT;
    tp_capacity_work work = TP_CAPACITY_WORK_INIT;
    (void)about;
    assert_true((status == TP_OK) == (capacity != NULL));
    for (int i = 0; capacity && i < 4; i++) {
        assert_int_equal(tp_capacity_cache_at(capacity, i / 2 - 1, i % 2, &kept), TP_OK);
        assert_int_equal(tp_capacity_work_at(capacity, i / 2 - 1, i % 2, &work), TP_OK);
        memory_collect(NULL, (const char *)&kept, sizeof kept);
        memory_collect(NULL, work.problem, strlen(work.problem));
    }
}

static void close_capacity(void *subject) { tp_capacity_destroy(*(tp_capacity **)subject); }

static const struct walk make_capacity = {"tp_capacity_create", open_nothing, call_capacity, show_capacity, close_capacity, 0};

static void capacities(void **state) {
    tp_capacity_options options = TP_CAPACITY_OPTIONS_INIT;
    (void)state;
    options.context = 64, options.concurrency = 2, options.limit = 1 << 20;
    assert_true(exhaust(&make_capacity, &options, TP_OK) > 50);
    options.cache = "i4";
    assert_true(exhaust(&make_capacity, &options, TP_OK) > 50);
    options.context = 65;
    exhaust(&make_capacity, &options, TP_INVALID);
}

static int prepare(void **state) {
    uint32_t all = 0;
    tp_error error = TP_ERROR_INIT;
    (void)state;
    memory_begin();
    identity = support_identity();
    model = support_model(config);
    context = make_context(1);
    ran = open_fresh(&all);
    assert_int_equal(tp_qualify_run(ran, context, NULL, &error), TP_OK);
    assert_int_equal(tp_qualification_status(ran), TP_CELL_QUALIFIED);
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    assert_int_equal(call_update(lock, "first", &error), TP_OK);
    tp_model *other = support_model(support_config);
    struct text text = support_lock(other, &identity);
    other_lock = support_parse(&text);
    tp_model_destroy(other);
    free(text.bytes);
    return 0;
}

static int end(void **state) {
    (void)state;
    tp_lock_destroy(lock);
    tp_lock_destroy(other_lock);
    tp_qualification_destroy(ran);
    tp_context_destroy(context);
    tp_model_destroy(model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(making),
        cmocka_unit_test(running),
        cmocka_unit_test(goes_on),
        cmocka_unit_test(locks),
        cmocka_unit_test(capacities),
    };
    return cmocka_run_group_tests(tests, prepare, end);
}
