/* SPDX-License-Identifier: Apache-2.0 */
/* Qualification from C: cells that really run, stop and go on, are compared with a lock and written into it. */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

/* Few keys, so that the cells are quick. */
static const char small[] = "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-1\", \"max_positions\": 64, "
                            "\"problem\": \"h2/1 d16 f32 causal\"}]}";
static const char other[] = "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-1\", \"max_positions\": 64, "
                            "\"problem\": \"h2/1 d24 f32 causal\"}]}";

static tp_qualification *create(tp_model *model) {
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_qualification *q;
    tp_error error = TP_ERROR_INIT;
    options.quick = 1;
    if (tp_qualify_create(&model, 1, &options, &q, &error) != TP_OK) fail_msg("%s", error.text);
    return q;
}

static void run(tp_qualification *q, const tp_qualify_run_options *options, const char *disable) {
    tp_context *context = support_context(TP_LOCKED, disable); /* the context's own policy does not count */
    tp_error error = TP_ERROR_INIT;
    if (tp_qualify_run(q, context, options, &error) != TP_OK) fail_msg("%s", error.text);
    tp_context_destroy(context);
}

static int64_t count(const tp_qualification *q, tp_cell_status status) {
    int64_t found = 0;
    const tp_cell *cell;
    for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++) found += cell->status == (int32_t)status;
    return found;
}

static tp_status put(const tp_qualification *q, tp_lock *lock, const tp_identity *identity, tp_error *error) {
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    update.date = "2026-11-16";
    update.reason = "test";
    return tp_qualify_update(q, lock, identity, &update, error);
}

static tp_lock *lock_of(const tp_qualification *q) {
    tp_identity here = support_identity();
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock;
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    if (put(q, lock, &here, &error) != TP_OK) fail_msg("%s", error.text);
    return lock;
}

static void cells_run(void **state) {
    (void)state;
    tp_model *model = support_model(small);
    tp_qualification *q = create(model);
    tp_qualify_run_options options = TP_QUALIFY_RUN_OPTIONS_INIT;
    const tp_cell *cell, *first = tp_qualification_cell(q, 0);
    assert_int_equal(tp_qualification_status(q), TP_CELL_NOT_RUN);
    options.time_ns = 1e6;
    run(q, &options, NULL);
    assert_int_equal(tp_qualification_status(q), TP_CELL_QUALIFIED);
    assert_ptr_equal(tp_qualification_cell(q, 0), first);
    int timed = 0;
    for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++) {
        assert_int_equal(cell->status, TP_CELL_QUALIFIED);
        assert_int_equal(strlen(cell->output), 64);
        assert_true(cell->kernel[0] && cell->numerics_id[0] && !cell->reason[0]);
        assert_true(cell->error >= 0 && cell->error <= cell->allowed && cell->allowed > 0 && cell->bytes > 0);
        assert_int_equal(cell->time_ns > 0, cell->timed);
        timed += cell->timed;
    }
    assert_true(timed >= 3);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

struct steps {
    int64_t begun, ended, limit;
};

static int on_step(void *user, const tp_qualification *q, int64_t cell, int done) {
    struct steps *steps = user;
    assert_int_equal(tp_qualification_cell(q, cell)->status, done ? TP_CELL_QUALIFIED : TP_CELL_NOT_RUN);
    *(done ? &steps->ended : &steps->begun) += 1;
    return steps->begun + steps->ended == steps->limit;
}

/* A stop before a cell or behind it; what has a result is not run again. */
/* A caller's threads that do not do what they are given. */
static void idle(void *user, size_t tasks, tp_task task, void *context) {
    (void)user, (void)tasks, (void)task, (void)context;
}

static void threads_that_change_the_bits(void **state) {
    (void)state;
    tp_model *model = support_model("{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0\", \"max_positions\": 512, "
                                    "\"problem\": \"h8/8 d16 f32 causal\"}]}");
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_context_options threads = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    tp_qualification *q;
    tp_error error = TP_ERROR_INIT;
    options.quick = 1;
    options.phases = TP_QUALIFY_PREFILL;
    threads.threads = 2;
    threads.parallel_for = idle;
    assert_int_equal(tp_qualify_create(&model, 1, &options, &q, &error), TP_OK);
    assert_int_equal(tp_context_create(&threads, &context, &error), TP_OK);
    if (tp_qualify_run(q, context, NULL, &error) != TP_OK) fail_msg("%s", error.text);
    assert_int_equal(tp_qualification_status(q), TP_CELL_NUMERIC_FAIL);
    assert_string_equal(tp_qualification_cell(q, 0)->reason, "1 and 2 threads give other bits");
    tp_context_destroy(context);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

static void stopped_and_resumed(void **state) {
    (void)state;
    tp_model *model = support_model(small);
    tp_qualification *q = create(model), *again = create(model), *third = create(model);
    tp_qualify_run_options options = TP_QUALIFY_RUN_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    const tp_cell *cell;
    int64_t all = count(q, TP_CELL_NOT_RUN);
    struct steps steps = {0, 0, 5};
    tp_identity here = support_identity();
    tp_lock *lock;
    options.progress = on_step;
    options.user = &steps;
    run(q, &options, NULL); /* stops before the third */
    assert_true(steps.begun == 3 && steps.ended == 2);
    assert_int_equal(count(q, TP_CELL_QUALIFIED), 2);
    assert_int_equal(tp_qualification_status(q), TP_CELL_NOT_RUN);
    steps = (struct steps){0, 0, 2};
    run(q, &options, NULL); /* behind the next */
    assert_int_equal(count(q, TP_CELL_QUALIFIED), 3);
    /* what has not run is not compared and not written */
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    struct text before = support_write(lock), after;
    assert_int_equal(put(q, lock, &here, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "a cell has no result"));
    assert_int_equal(tp_qualify_compare(q, lock, &here, &error), TP_INVALID);
    assert_null(tp_qualification_note(q, 0));
    after = support_write(lock);
    assert_string_equal(before.bytes, after.bytes);
    /* a journal's cells */
    for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++) {
        tp_status expected = cell->status == TP_CELL_NOT_RUN ? TP_INVALID : TP_OK;
        assert_int_equal(tp_qualify_restore(again, cell, &error), expected);
        if (expected == TP_OK) assert_int_equal(tp_qualify_restore(again, cell, &error), TP_UNSUPPORTED);
    }
    tp_cell strange = *tp_qualification_cell(q, 0);
    strange.struct_size = sizeof strange;
    strange.gain = 3;
    assert_int_equal(tp_qualify_restore(third, &strange, &error), TP_UNSUPPORTED);
    strange.problem = NULL; /* a text that is not there is "" */
    assert_int_equal(tp_qualify_restore(third, &strange, &error), TP_UNSUPPORTED);
    steps = (struct steps){0, 0, -1};
    run(again, &options, NULL);
    assert_true(steps.begun == all - 3 && steps.ended == all - 3);
    assert_int_equal(tp_qualification_status(again), TP_CELL_QUALIFIED);
    tp_lock_destroy(lock);
    free(before.bytes);
    free(after.bytes);
    tp_qualification_destroy(q);
    tp_qualification_destroy(again);
    tp_qualification_destroy(third);
    tp_model_destroy(model);
}

static void refused_and_permitted(void **state) {
    (void)state;
    tp_model *model = support_model(small);
    tp_qualification *refused = create(model), *permitted = create(model);
    tp_qualify_run_options options = TP_QUALIFY_RUN_OPTIONS_INIT;
    const tp_cell *cell;
    run(refused, NULL, "head_dim=16");
    assert_int_equal(tp_qualification_status(refused), TP_CELL_UNSUPPORTED);
    options.policy = TP_PERMIT;
    run(permitted, &options, "head_dim=16");
    assert_int_equal(tp_qualification_status(permitted), TP_CELL_QUALIFIED_FALLBACK);
    for (int64_t i = 0; (cell = tp_qualification_cell(refused, i)); i++) {
        assert_true(!cell->output[0] && strstr(cell->reason, "head_dim 16 is disabled") &&
                    strstr(cell->reason, "need policy permit"));
        assert_string_equal(tp_qualification_cell(permitted, i)->kernel, "math");
    }
    /* against a lock of the best kernel: refused is refused, and so is a fallback that the lock does not know */
    tp_qualification *best = create(model);
    tp_identity here = support_identity();
    tp_error error = TP_ERROR_INIT;
    run(best, NULL, NULL);
    tp_lock *lock = lock_of(best);
    assert_int_equal(tp_qualify_compare(refused, lock, &here, &error), TP_NOT_LOCKED);
    assert_int_equal(tp_qualification_status(refused), TP_CELL_UNSUPPORTED);
    assert_int_equal(tp_qualify_compare(permitted, lock, &here, &error), TP_NOT_LOCKED);
    assert_int_equal(tp_qualification_status(permitted), TP_CELL_UNSUPPORTED);
    assert_non_null(strstr(error.text, "here math QUALIFIED_FALLBACK"));
    tp_lock_destroy(lock);
    /* what was seen is still what is written */
    lock = lock_of(permitted);
    assert_int_equal(tp_qualify_compare(permitted, lock, &here, &error), TP_OK);
    assert_int_equal(tp_qualification_status(permitted), TP_CELL_QUALIFIED_FALLBACK);
    tp_lock_destroy(lock);
    tp_qualification_destroy(refused);
    tp_qualification_destroy(permitted);
    tp_qualification_destroy(best);
    tp_model_destroy(model);
}

/* One field of one cell of a lock is another: which status, and what does the text say? */
static void compared_with_a_lock(void **state) {
    (void)state;
    tp_model *model = support_model(small);
    tp_qualification *q = create(model);
    tp_identity here = support_identity(), there = here;
    tp_error error = TP_ERROR_INIT;
    run(q, NULL, NULL);
    tp_lock *lock = lock_of(q);
    assert_int_equal(tp_qualify_compare(q, lock, &here, &error), TP_OK);
    assert_null(tp_qualification_note(q, 0));
    for (int what = 0; what < 7; what++) {
        static const char *const says[] = {"scratch: lock has",
                                           "panels full: lock has",
                                           "panels partial: lock has",
                                           "panels skipped: lock has",
                                           "bytes: lock has",
                                           "other bits",
                                           "here "};
        tp_cell cell = *tp_qualification_cell(q, 1);
        cell.struct_size = sizeof cell;
        cell.scratch += what == 0, cell.panels_full += what == 1, cell.panels_partial += what == 2;
        cell.panels_skipped += what == 3, cell.bytes += what == 4;
        if (what == 5) cell.output = "00";
        if (what == 6) cell.kernel = "another";
        support_put_with(lock, q, model, &here, 1, &cell);
        assert_int_equal(tp_qualify_compare(q, lock, &here, &error), TP_NOT_LOCKED);
        tp_cell_status expected = what == 5 ? TP_CELL_NUMERICS_CHANGED : TP_CELL_STALE;
        const tp_cell *differs = tp_qualification_cell(q, 1);
        assert_int_equal(differs->status, expected);
        assert_int_equal(count(q, expected), 1);
        assert_non_null(strstr(differs->reason, says[what]));
        assert_non_null(strstr(error.text, differs->problem));
        tp_lock_destroy(lock);
        lock = lock_of(q); /* what was seen, and not what the comparison said of it */
        assert_int_equal(tp_qualify_compare(q, lock, &here, &error), TP_OK);
        assert_int_equal(tp_qualification_status(q), TP_CELL_QUALIFIED);
        assert_string_equal(tp_qualification_cell(q, 1)->reason, "");
    }
    there.cpu = "another CPU";
    assert_int_equal(tp_qualify_compare(q, lock, &there, &error), TP_NOT_LOCKED);
    assert_non_null(strstr(tp_qualification_note(q, 0), "host cpu: lock has "));
    assert_null(tp_qualification_note(q, 1));
    assert_int_equal(tp_qualification_status(q), TP_CELL_QUALIFIED); /* every cell does what the lock says */
    tp_model *changed = support_model(other);
    tp_qualification *second = create(changed);
    run(second, NULL, NULL);
    assert_int_equal(tp_qualify_compare(second, lock, &here, &error), TP_NOT_LOCKED);
    assert_non_null(strstr(tp_qualification_note(second, 0), "config of a/model.json: lock has "));
    assert_int_equal(tp_qualification_status(second), TP_CELL_STALE);
    assert_string_equal(tp_qualification_cell(second, 0)->reason, "the lock has no such cell");
    tp_lock_destroy(lock);
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    assert_int_equal(tp_qualify_compare(second, lock, &here, &error), TP_NOT_LOCKED);
    assert_non_null(strstr(tp_qualification_note(second, 1), "config of a/model.json: lock has none, here "));
    tp_lock_destroy(lock);
    tp_qualification_destroy(q);
    tp_qualification_destroy(second);
    tp_model_destroy(model);
    tp_model_destroy(changed);
}

/* All of an update or nothing: the lock is as it was when any part is refused. */
static void updates_are_whole(void **state) {
    (void)state;
    tp_model *models[2] = {support_model(small), support_model(other)};
    tp_model *none = support_model("{\"model_type\":\"rwkv\",\"num_hidden_layers\":24}");
    tp_qualification *q = create(models[0]), *two, *empty = create(none);
    tp_identity here = support_identity(), bad = here;
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    run(q, NULL, NULL);
    tp_lock *lock = lock_of(q);
    struct text before = support_write(lock), after;
    options.quick = 1;
    assert_int_equal(tp_qualify_create(models, 2, &options, &two, &error), TP_OK);
    run(two, NULL, NULL);
    assert_int_equal(put(two, lock, &here, &error), TP_INVALID);
    assert_string_equal(error.text,
                        "a/model.json and a/model.json: a lock knows both as model.json: update it with one at a time");
    assert_int_equal(put(empty, lock, &here, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "nothing was checked"));
    assert_int_equal(tp_qualification_status(empty), TP_CELL_NOT_RUN);
    bad.cpu = "\xff";
    assert_int_equal(put(q, lock, &bad, &error), TP_INVALID);
    update.date = "2026-11-17";
    assert_int_equal(tp_qualify_update(q, lock, &here, &update, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "reason has 0 bytes"));
    update.reason = "why", update.date = NULL;
    assert_int_equal(tp_qualify_update(q, lock, &here, &update, &error), TP_INVALID);
    after = support_write(lock);
    assert_string_equal(before.bytes, after.bytes);
    tp_lock_destroy(lock);
    free(before.bytes);
    free(after.bytes);
    tp_qualification_destroy(q);
    tp_qualification_destroy(two);
    tp_qualification_destroy(empty);
    tp_model_destroy(models[0]);
    tp_model_destroy(models[1]);
    tp_model_destroy(none);
}

/* A lock's cells once more, in its order; what it has as refused stays so. */
static void again_from_a_lock(void **state) {
    (void)state;
    tp_model *model = support_model(small);
    tp_qualification *q = create(model), *again;
    tp_identity here = support_identity();
    tp_error error = TP_ERROR_INIT;
    char text[1024];
    run(q, NULL, NULL);
    tp_lock *lock = lock_of(q);
    tp_cell cell = *tp_qualification_cell(q, 2);
    cell.struct_size = sizeof cell;
    cell.status = TP_CELL_UNSUPPORTED;
    cell.reason = "by hand";
    support_put_with(lock, q, model, &here, 2, &cell);
    assert_int_equal(tp_qualify_create_again(lock, "no such ISA", NULL, &again, &error), TP_OK);
    assert_null(tp_qualification_cell(again, 0));
    tp_qualification_destroy(again);
    assert_int_equal(tp_qualify_create_again(lock, here.isa, NULL, &again, &error), TP_OK);
    tp_context *context = support_context(TP_REFUSE, NULL);
    for (int64_t i = 0; tp_lock_cell_at(lock, here.isa, i, &cell) == TP_OK; i++) {
        const tp_cell *mine = tp_qualification_cell(again, i);
        assert_string_equal(mine->problem, cell.problem);
        assert_int_equal(mine->status, i == 2 ? TP_CELL_UNSUPPORTED : TP_CELL_NOT_RUN);
        assert_string_equal(mine->output, i == 2 ? cell.output : "");
        assert_int_equal(tp_qualify_run_cell(again, i, context, NULL, &error), TP_OK);
        assert_int_equal(tp_cell_compare(&cell, mine, text, sizeof text), TP_CELL_QUALIFIED);
    }
    assert_int_equal(tp_qualify_run_cell(again, 999, context, NULL, &error), TP_INVALID);
    assert_int_equal(tp_qualify_compare(again, lock, &here, &error), TP_OK);
    tp_context_destroy(context);
    tp_lock_destroy(lock);
    tp_qualification_destroy(q);
    tp_qualification_destroy(again);
    tp_model_destroy(model);
}

static void bad_arguments(void **state) {
    (void)state;
    tp_model *model = support_model(small), *missing = NULL;
    tp_qualification *q = create(model), *none = q;
    tp_context *context = support_context(TP_REFUSE, NULL);
    tp_error error = TP_ERROR_INIT;
    static const tp_qualify_options wrong[] = {{sizeof *wrong, 32, 0, 0, 0, 0, NULL},
                                               {sizeof *wrong, 0, 0, TP_E4M3, 0, 0, NULL},
                                               {sizeof *wrong, 0, 0, 0, 4097, 0, NULL},
                                               {sizeof *wrong, 0, 0, 0, -1, 0, NULL},
                                               {sizeof *wrong, 0, 0, 0, 0, -1, NULL},
                                               {offsetof(tp_qualify_options, max_cells) - 1, 0, 0, 0, 0, 0, NULL},
                                               {sizeof *wrong, 0, 0, 0, 0, 0, "fp8"}};
    static const char *const says[] = {"phases is 32",    "dtype is 4",     "page_size is 4097", "page_size is -1",
                                       "max_cells is -1", "struct_size is", "cache is 'fp8'"};
    for (int i = 0; i < 7; i++) {
        none = q;
        assert_int_equal(tp_qualify_create(&model, 1, &wrong[i], &none, &error), TP_INVALID);
        assert_null(none);
        assert_non_null(strstr(error.text, says[i]));
    }
    assert_int_equal(tp_qualify_create(&missing, 1, NULL, &none, &error), TP_INVALID);
    assert_int_equal(tp_qualify_create(NULL, 1, NULL, &none, &error), TP_INVALID);
    assert_int_equal(tp_qualify_create(&model, -1, NULL, &none, &error), TP_INVALID);
    assert_int_equal(tp_qualify_create(&model, 1, NULL, NULL, &error), TP_INVALID);
    assert_int_equal(tp_qualify_create_again(NULL, "avx2", NULL, &none, &error), TP_INVALID);
    tp_qualify_run_options options = TP_QUALIFY_RUN_OPTIONS_INIT;
    options.policy = TP_LOCKED;
    assert_int_equal(tp_qualify_run(q, context, &options, &error), TP_INVALID);
    assert_string_equal(error.text, "policy is 3: it must be TP_REFUSE or TP_PERMIT");
    options.policy = TP_REFUSE, options.time_ns = NAN;
    assert_int_equal(tp_qualify_run(q, context, &options, &error), TP_INVALID);
    assert_int_equal(tp_qualify_run(q, NULL, NULL, &error), TP_INVALID);
    assert_int_equal(tp_qualify_run(NULL, context, NULL, &error), TP_INVALID);
    assert_int_equal(count(q, TP_CELL_NOT_RUN) > 0, 1);
    assert_null(tp_qualification_cell(q, -1));
    assert_null(tp_qualification_cell(NULL, 0));
    tp_qualification_destroy(NULL);
    tp_context_destroy(context);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

/* In a forked child no cell is judged: it is not the cell's fault. */
static void in_a_forked_child(void **state) {
    (void)state;
    tp_model *model = support_model(small);
    tp_qualification *q = create(model);
    tp_context *context = support_context(TP_REFUSE, NULL);
    int how;
    pid_t child = fork();
    if (!child) {
        tp_status status = tp_qualify_run(q, context, NULL, NULL);
        _exit(status == TP_FORKED && tp_qualification_cell(q, 0)->status == TP_CELL_NOT_RUN ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && !WEXITSTATUS(how));
    tp_context_destroy(context);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_run),
        cmocka_unit_test(threads_that_change_the_bits),
        cmocka_unit_test(stopped_and_resumed),
        cmocka_unit_test(refused_and_permitted),
        cmocka_unit_test(compared_with_a_lock),
        cmocka_unit_test(updates_are_whole),
        cmocka_unit_test(again_from_a_lock),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(in_a_forked_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
