/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ends: locks, cells, identities, preflight. memory.h says what is asked. */
#include "memory.h"

static tp_model *use_model; /* these two are outside of what is counted */
static tp_cell cell_list[16];
static char problems[16][64];
/* Where a list of jansson's is full, so that one more makes it grow. */
enum { LISTED = 16 };
static tp_identity identity;

/* A model, its cells and one that the model does not use. */
static void put_all(tp_lock *lock) {
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_lock_put_model(lock, "model.json", use_model->config_hash, &error), TP_OK);
    for (int i = 0; i < LISTED; i++) {
        if (i < LISTED - 1)
            assert_int_equal(tp_lock_put_use(lock, "model.json", use_model->groups[0], &cell_list[i], &error), TP_OK);
        assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell_list[i], &error), TP_OK);
    }
}

enum { PUT, FINISHED, PUT_AGAIN };
static tp_lock *full_lock(int how) {
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock;
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    put_all(lock);
    if (how != PUT) assert_int_equal(tp_lock_finish(lock, &identity, "2026-11-16", "first", &error), TP_OK);
    if (how == PUT_AGAIN) put_all(lock);
    return lock;
}

static void *open_lock(const void *about) {
    (void)about;
    return full_lock(FINISHED);
}

static void *open_unfinished(const void *about) {
    (void)about;
    return full_lock(PUT);
}

static void *open_put_again(const void *about) {
    (void)about;
    return full_lock(PUT_AGAIN);
}

static void close_lock(void *subject) { tp_lock_destroy(subject); }

/* As it is, and as it will be: what was put is counted by its next finish. */
static void show_lock(void *subject, const void *about, tp_status status) {
    tp_error error = TP_ERROR_INIT;
    (void)about, (void)status;
    assert_int_equal(tp_lock_write(subject, memory_collect, NULL), TP_OK);
    assert_int_equal(tp_lock_finish(subject, &identity, "2026-11-18", "to see the counts", &error), TP_OK);
    assert_int_equal(tp_lock_write(subject, memory_collect, NULL), TP_OK);
}

static tp_status call_write_lock(void *subject, const void *about, tp_error *error) {
    (void)about, (void)error;
    return tp_lock_write(subject, memory_collect, NULL);
}

static tp_status call_put_model(void *subject, const void *about, tp_error *error) {
    return tp_lock_put_model(subject, about, "0123456789abcdef0123456789abcdef", error);
}

static tp_status call_put_cell(void *subject, const void *about, tp_error *error) {
    tp_cell cell = cell_list[1];
    cell.bytes = 77;
    if (!strcmp(about, "new")) cell.problem = "b1 h1/1 q7 k7 d8 f32 causal";
    return tp_lock_put_cell(subject, !strcmp(about, "isa") ? "neon" : identity.isa, &cell, error);
}

static tp_status call_put_use(void *subject, const void *about, tp_error *error) {
    tp_layer_group group = *use_model->groups[0];
    tp_cell cell = cell_list[1];
    if (!strcmp(about, "group")) group.part = TP_PART_VISION;
    if (!strcmp(about, "phase")) cell.phase = TP_QUALIFY_MULTIMODAL;
    return tp_lock_put_use(subject, "model.json", &group, &cell, error);
}

static tp_status call_finish(void *subject, const void *about, tp_error *error) {
    const char *what = about;
    tp_identity now = identity;
    if (!strcmp(what, "isa")) now.isa = "neon";
    if (!strcmp(what, "library")) now.versions = "torch=2.9\ncuda=13.0", now.host = "gpu=none";
    if (!strcmp(what, "host")) now.cpu = "other";
    return tp_lock_finish(subject, &now, "2026-11-17", "a second time, with a reason of some length", error);
}

static void *open_pointer(const void *about) {
    static tp_lock *lock;
    (void)about;
    lock = NULL;
    return &lock;
}

static tp_status call_create(void *subject, const void *about, tp_error *error) {
    (void)about;
    return tp_lock_create(subject, error);
}

static tp_status call_parse_lock(void *subject, const void *about, tp_error *error) {
    return tp_lock_parse(about, strlen(about), "t.lock", subject, error);
}

static void show_pointer(void *subject, const void *about, tp_status status) {
    tp_lock *lock = *(tp_lock **)subject;
    (void)about;
    assert_true((status == TP_OK) == (lock != NULL));
    if (lock) assert_int_equal(tp_lock_write(lock, memory_collect, NULL), TP_OK);
}

static void close_pointer(void *subject) { tp_lock_destroy(*(tp_lock **)subject); }

static tp_status call_asked(void *subject, const void *about, tp_error *error) {
    tp_lock_use use = TP_LOCK_USE_INIT;
    tp_cell cell = TP_CELL_INIT;
    char why[256];
    (void)about, (void)error;
    assert_int_equal(tp_lock_cell_at(subject, identity.isa, 0, &cell), TP_OK);
    assert_int_equal(tp_lock_use_at(subject, 0, &use), TP_OK);
    assert_int_equal(tp_lock_cell_find(subject, identity.isa, use.problem, &cell), TP_OK);
    return tp_lock_fresh(subject, &identity, why, sizeof why);
}

static tp_lock *merged;

static tp_status call_merge(void *subject, const void *about, tp_error *error) {
    (void)about;
    return tp_lock_merge(subject, merged, "2026-11-17", "of two hosts", error);
}

static tp_status call_drop(void *subject, const void *about, tp_error *error) {
    (void)about;
    return tp_lock_drop(subject, 0, "2026-11-17", "not served any more", error);
}

static tp_status call_diff(void *subject, const void *about, tp_error *error) {
    (void)error;
    return tp_lock_diff(subject, 0, merged, 0, about ? TP_JSON : TP_TEXT, memory_collect, NULL);
}

static const struct walk lock_differs = {"tp_lock_diff", open_lock, call_diff, NULL, close_lock, 1};
static const struct walk lock_merge = {"tp_lock_merge", open_lock, call_merge, show_lock, close_lock, 0};
static const struct walk lock_drop = {"tp_lock_drop", open_lock, call_drop, show_lock, close_lock, 0};
static const struct walk lock_create = {"tp_lock_create", open_pointer, call_create, show_pointer, close_pointer, 0};
static const struct walk lock_parse = {"tp_lock_parse", open_pointer, call_parse_lock, show_pointer, close_pointer, 0};
static const struct walk lock_write = {"tp_lock_write", open_lock, call_write_lock, NULL, close_lock, 1};
static const struct walk lock_asked = {"tp_lock_cell_at and others", open_lock, call_asked, show_lock, close_lock, 0};
static const struct walk put_model = {"tp_lock_put_model", open_lock, call_put_model, show_lock, close_lock, 0};
static const struct walk put_use = {"tp_lock_put_use", open_unfinished, call_put_use, show_lock, close_lock, 0};
static const struct walk put_cell = {"tp_lock_put_cell", open_unfinished, call_put_cell, show_lock, close_lock, 0};
static const struct walk put_cell_first = {"tp_lock_put_cell, first", open_lock, call_put_cell, show_lock, close_lock, 0};
static const struct walk finish_first = {"tp_lock_finish, first", open_unfinished, call_finish, show_lock, close_lock, 0};
static const struct walk finish_again = {"tp_lock_finish, again", open_put_again, call_finish, show_lock, close_lock, 0};

static void locks(void **state) {
    static char whole[MEMORY_OUT];
    static const char *const finishes[] = {"", "library", "host"};
    (void)state;
    exhaust(&lock_create, NULL, TP_OK);
    tp_lock *lock = full_lock(FINISHED);
    memory_used = 0;
    assert_int_equal(tp_lock_write(lock, memory_collect, NULL), TP_OK);
    tp_lock_destroy(lock);
    memcpy(whole, memory_out, memory_used + 1);
    assert_true(exhaust(&lock_parse, whole, TP_OK) > 100);
    strstr(whole, "QUALIFIED")[0] = 'K';
    exhaust(&lock_parse, whole, TP_INVALID);
    assert_true(exhaust(&lock_write, NULL, TP_OK) > 20);
    exhaust(&lock_asked, NULL, TP_OK);
    exhaust(&put_model, "model.json", TP_OK);
    exhaust(&put_model, "another.json", TP_OK);
    exhaust(&put_model, "", TP_INVALID);
    exhaust(&put_use, "", TP_OK);
    exhaust(&put_use, "phase", TP_OK);
    exhaust(&put_use, "group", TP_OK);
    exhaust(&put_cell, "changed", TP_OK);
    exhaust(&put_cell, "new", TP_OK);
    exhaust(&put_cell, "isa", TP_OK);
    exhaust(&put_cell_first, "new", TP_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(exhaust(&finish_first, finishes[i], TP_OK) > 20);
        assert_true(exhaust(&finish_again, finishes[i], TP_OK) > 20);
    }
    exhaust(&finish_first, "isa", TP_INVALID); /* a use without a cell there */
    merged = full_lock(FINISHED);
    assert_int_equal(tp_lock_put_model(merged, "another.json", "0123", NULL), TP_OK);
    assert_int_equal(tp_lock_finish(merged, &identity, "2026-11-16", "first", NULL), TP_OK);
    assert_true(exhaust(&lock_merge, NULL, TP_OK) > 20);
    tp_lock_destroy(merged);
    tp_cell before = cell_list[0];
    cell_list[0].bytes = 5, cell_list[0].kernel = "another";
    merged = full_lock(FINISHED);
    cell_list[0] = before;
    assert_true(exhaust(&lock_differs, NULL, TP_OK) > 5);
    assert_true(exhaust(&lock_differs, "json", TP_OK) > 5);
    tp_lock_destroy(merged);
    assert_true(exhaust(&lock_drop, NULL, TP_OK) > 10);
    struct text old = support_old_lock();
    assert_true(exhaust(&lock_parse, old.bytes, TP_OK) > 100);
    free(old.bytes);
}

/* ---- cells and preflight ---- */

static tp_status call_cell_write(void *subject, const void *about, tp_error *error) {
    (void)subject, (void)error;
    return tp_cell_write(about, 1, memory_collect, NULL);
}

static tp_status call_cell_parse(void *subject, const void *about, tp_error *error) {
    (void)subject;
    tp_cell *cell;
    tp_status status = tp_cell_parse(about, strlen(about), "t.journal", 7, &cell, error);
    assert_true((status == TP_OK) == (cell != NULL));
    tp_cell_destroy(cell);
    return status;
}

static void *open_context(const void *about) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    (void)about;
    options.policy = TP_LOCKED;
    options.threads = 1;
    assert_int_equal(tp_context_create(&options, &context, &error), TP_OK);
    return context;
}

static void close_context(void *subject) { tp_context_destroy(subject); }

static int to_text(void *cookie, const char *bytes, size_t size) {
    struct text *text = cookie;
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = 0;
    return 0;
}

/* Permits stay as they were; that it failed is told, without memory. */
static tp_status call_preflight(void *subject, const void *about, tp_error *error) {
    static char bytes[MEMORY_OUT];
    struct text metrics = {bytes, 0};
    tp_status status = tp_preflight(subject, about, use_model, "torch=2.4,engine=1", error);
    assert_int_equal(tp_metrics_write(subject, to_text, &metrics), TP_OK);
    assert_true((status == TP_NO_MEMORY) == (strstr(bytes, "state=\"failed\"} 1") != NULL));
    return status;
}

/* What the context would serve, and what it says of its lock. */
static void show_context(void *subject, const void *about, tp_status status) {
    tp_problem problem;
    tp_decision *decision;
    char text[64];
    (void)about;
    assert_int_equal(tp_problem_parse("b1 h4/2 q300 k300 d64 f32 causal", &problem, NULL, NULL), TP_OK);
    tp_status served = tp_explain(subject, &problem, NULL, &decision, NULL);
    if (status == TP_OK) assert_int_equal(served, TP_OK);
    snprintf(text, sizeof text, "%s\n", tp_status_name(served));
    tp_decision_destroy(decision);
    memory_collect(NULL, text, strlen(text));
    if (status == TP_NO_MEMORY) return;
    size_t from = memory_used;
    assert_int_equal(tp_metrics_write(subject, memory_collect, NULL), TP_OK);
    char *lock = strstr(memory_out + from, "\ntileproof_lock_");
    assert_non_null(lock);
    size_t kept = from;
    for (char *line = memory_out + from; line && *line;) { /* the lines on the lock alone: others count what was refused */
        char *end = strchr(line, '\n');
        size_t size = end ? (size_t)(end + 1 - line) : strlen(line);
        if (!strncmp(line, "tileproof_lock_", 15)) {
            memmove(memory_out + kept, line, size);
            kept += size;
        }
        line = end ? end + 1 : NULL;
    }
    memory_used = kept;
    memory_out[memory_used] = 0;
}

static tp_status call_identity(void *subject, const void *about, tp_error *error) {
    tp_identity *now;
    (void)subject;
    tp_status status = tp_identity_detect(about, &now, error);
    assert_true((status == TP_OK) == (now != NULL));
    tp_identity_destroy(now);
    return status;
}

static const struct walk cell_write = {"tp_cell_write", NULL, call_cell_write, NULL, NULL, 1};
static const struct walk cell_parse = {"tp_cell_parse", NULL, call_cell_parse, NULL, NULL, 0};
static const struct walk preflight = {"tp_preflight", open_context, call_preflight, show_context, close_context, 0};
static const struct walk identity_of = {"tp_identity_detect", NULL, call_identity, NULL, NULL, 0};

static void cells_and_preflight(void **state) {
    static char line[8192];
    (void)state;
    assert_true(exhaust(&cell_write, &cell_list[1], TP_OK) > 20);
    memory_used = 0;
    assert_int_equal(tp_cell_write(&cell_list[1], 1, memory_collect, NULL), TP_OK);
    memcpy(line, memory_out, memory_used + 1);
    assert_true(exhaust(&cell_parse, line, TP_OK) > 20);
    exhaust(&cell_parse, "{\"problem\":7}", TP_INVALID);
    exhaust(&identity_of, "b=2,a=1", TP_OK);
    tp_lock *lock = full_lock(FINISHED);
    assert_true(exhaust(&preflight, lock, TP_OK) > 5);
    tp_lock_destroy(lock);
}

static int prepare(void **state) {
    tp_error error = TP_ERROR_INIT;
    (void)state;
    memory_begin();
    identity = support_identity();
    use_model = support_model(support_config);
    tp_context *context = support_context(TP_REFUSE, NULL);
    for (int i = 0; i < LISTED; i++) {
        tp_problem problem;
        tp_decision *decision;
        /* One takes more scratch than all others, so that it shows when its plan is left out. */
        snprintf(problems[i], sizeof problems[i], "b1 h4/2 q%d k%d d64 f32 causal", i == 7 ? 2000 : 90, i == 7 ? 2000 : 100 + i);
        assert_int_equal(tp_problem_parse(problems[i], &problem, NULL, &error), TP_OK);
        assert_int_equal(tp_explain(context, &problem, NULL, &decision, &error), TP_OK);
        cell_list[i] = (tp_cell)TP_CELL_INIT;
        cell_list[i].kernel = tp_decision_candidate(decision, decision->chosen)->kernel;
        tp_decision_destroy(decision);
        cell_list[i].problem = problems[i];
        cell_list[i].purpose = "main";
        cell_list[i].phase = TP_QUALIFY_PREFILL;
        cell_list[i].status = TP_CELL_QUALIFIED;
        cell_list[i].error = 1.25e-7 / 3;
        cell_list[i].bytes = 1000 + i;
    }
    tp_context_destroy(context);
    return 0;
}

static int end(void **state) {
    (void)state;
    tp_model_destroy(use_model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locks),
        cmocka_unit_test(cells_and_preflight),
    };
    return cmocka_run_group_tests(tests, prepare, end);
}
