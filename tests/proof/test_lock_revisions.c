/* SPDX-License-Identifier: Apache-2.0 */
/* Revisions of a lock: which are kept, dropped and merged; devices; locks of the schema before. */
#include "support.h"

/* The same model with another head dim, so with another config hash. */
static tp_model *revision(int head_dim) {
    char text[128];
    snprintf(text, sizeof text,
             "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"problem\": \"h4/2 d%d f32 causal\"}]}", head_dim);
    return support_model(text);
}

static void put(tp_lock *lock, int head_dim, const tp_identity *identity) {
    tp_model *model = revision(head_dim);
    support_put(lock, model, identity, "a revision");
    tp_model_destroy(model);
}

/* Whose revisions, in order: the head dims of their first cells. */
static void holds(const tp_lock *lock, const char *expected) {
    char seen[128] = "";
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    tp_cell cell = TP_CELL_INIT;
    for (int64_t i = 0; tp_lock_revision_at(lock, i, &one) == TP_OK; i++) {
        assert_int_equal(tp_lock_revision_cell(lock, i, 0, &cell, NULL), TP_OK);
        assert_int_equal(tp_lock_revision_cell(lock, i, one.cell_count, &cell, NULL), TP_INVALID);
        assert_int_equal(one.status, TP_CELL_QUALIFIED);
        size_t used = strlen(seen);
        const char *dim = strstr(cell.problem, " d");
        snprintf(seen + used, sizeof seen - used, "%s%.*s", used ? " " : "", (int)strcspn(dim + 2, " "), dim + 2);
    }
    assert_string_equal(seen, expected);
}

static tp_lock_history last(const tp_lock *lock) {
    tp_lock_history past = TP_LOCK_HISTORY_INIT;
    int64_t i = 0;
    while (tp_lock_history_at(lock, i, &past) == TP_OK) i++;
    return past;
}

static tp_lock *empty(void) {
    tp_lock *lock;
    assert_int_equal(tp_lock_create(&lock, NULL), TP_OK);
    return lock;
}

/* The last three; one that is qualified again is the last one again; what goes is named. */
static void last_revisions_stay(void **state) {
    (void)state;
    tp_identity identity = support_identity();
    tp_lock *lock = empty();
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    put(lock, 16, &identity);
    put(lock, 24, &identity);
    holds(lock, "16 24");
    assert_string_equal(last(lock).dropped, "");
    assert_int_equal(strncmp(last(lock).revisions, "model.json ", 11), 0);
    put(lock, 16, &identity);
    holds(lock, "24 16");
    assert_non_null(strstr(last(lock).cells, "0 new, 0 changed, "));
    put(lock, 32, &identity);
    assert_int_equal(tp_lock_revision_at(lock, 0, &one), TP_OK);
    char gone[80];
    snprintf(gone, sizeof gone, "model.json %.12s", one.config_hash);
    put(lock, 40, &identity);
    holds(lock, "16 32 40");
    assert_string_equal(last(lock).dropped, gone);
    struct text text = support_write(lock);
    tp_lock *again = support_parse(&text);
    holds(again, "16 32 40");
    /* another ISA has its own */
    tp_identity other = identity;
    other.isa = "neon";
    put(lock, 48, &other);
    put(lock, 16, &other);
    holds(lock, "16 32 40 48 16");
    free(text.bytes);
    tp_lock_destroy(again);
    tp_lock_destroy(lock);
}

static void keep_is_asked_for(void **state) {
    (void)state;
    tp_identity identity = support_identity();
    tp_lock *lock = empty();
    tp_error error = TP_ERROR_INIT;
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    update.date = "2026-11-17", update.reason = "one alone";
    put(lock, 16, &identity);
    put(lock, 24, &identity);
    tp_model *model = revision(32);
    tp_qualification *q = support_qualification(model);
    update.keep = -1;
    assert_int_equal(tp_qualify_update(q, lock, &identity, &update, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "keep is -1"));
    update.keep = 1;
    assert_int_equal(tp_qualify_update(q, lock, &identity, &update, &error), TP_OK);
    holds(lock, "32");
    assert_non_null(strstr(last(lock).dropped, ", model.json "));
    tp_qualification_destroy(q);
    tp_model_destroy(model);
    tp_lock_destroy(lock);
}

/* Any revision of the lock may be served: back to the first, and two side by side. One that is not there may not. */
static void preflight_of_any(void **state) {
    (void)state;
    tp_identity identity = support_identity();
    tp_lock *lock = empty();
    tp_error error = TP_ERROR_INIT;
    int dims[] = {16, 24, 16, 32};
    put(lock, 16, &identity);
    put(lock, 24, &identity);
    for (int i = 0; i < 4; i++) {
        tp_context *context = support_context(TP_LOCKED, NULL);
        tp_model *model = revision(dims[i]);
        tp_status expected = dims[i] == 32 ? TP_UNSUPPORTED : TP_OK;
        assert_int_equal(tp_preflight(context, lock, model, "torch=2.4,engine=1", &error), expected);
        if (expected != TP_OK) assert_non_null(strstr(error.text, "the lock has it with another config"));
        tp_model_destroy(model);
        tp_context_destroy(context);
    }
    tp_lock_destroy(lock);
}

/* A library that qualified one revision says nothing of another that it did not run. */
static void stale_by_revision(void **state) {
    (void)state;
    tp_identity then = support_identity(), now = then;
    tp_lock *lock = empty();
    char why[1024];
    now.build = "another build";
    put(lock, 16, &then);
    put(lock, 24, &now);
    assert_int_equal(tp_lock_revision_fresh(lock, 0, &then, why, sizeof why), TP_OK);
    assert_int_equal(tp_lock_revision_fresh(lock, 0, &now, why, sizeof why), TP_UNSUPPORTED);
    assert_non_null(strstr(why, "library build: lock has "));
    assert_int_equal(tp_lock_revision_fresh(lock, 1, &now, why, sizeof why), TP_OK);
    assert_int_equal(tp_lock_revision_fresh(lock, 2, &now, why, sizeof why), TP_INVALID);
    assert_int_equal(tp_lock_fresh(lock, &now, why, sizeof why), TP_UNSUPPORTED);
    tp_model *first = revision(16);
    char name[64];
    snprintf(name, sizeof name, "model.json %.12s: library build: lock has ", first->config_hash);
    assert_int_equal(strncmp(why, name, strlen(name)), 0);
    tp_model_destroy(first);
    put(lock, 16, &now);
    assert_int_equal(tp_lock_fresh(lock, &now, why, sizeof why), TP_OK);
    tp_lock_destroy(lock);
}

static void dropped(void **state) {
    (void)state;
    tp_identity identity = support_identity();
    tp_lock *lock = empty();
    tp_error error = TP_ERROR_INIT;
    put(lock, 16, &identity);
    put(lock, 24, &identity);
    assert_int_equal(tp_lock_drop(lock, 2, "2026-11-17", "why", &error), TP_INVALID);
    assert_int_equal(tp_lock_drop(lock, 0, "2026-11-17", " ", &error), TP_INVALID);
    assert_int_equal(tp_lock_drop(lock, 0, "", "why", &error), TP_INVALID);
    holds(lock, "16 24");
    assert_int_equal(tp_lock_drop(lock, 0, "2026-11-17", "withdrawn", &error), TP_OK);
    holds(lock, "24");
    assert_string_equal(last(lock).reason, "withdrawn");
    assert_int_equal(strncmp(last(lock).dropped, "model.json ", 11), 0);
    tp_lock_destroy(lock);
}

static void merged(void **state) {
    (void)state;
    tp_identity one = support_identity(), two = one, other = one;
    tp_lock *a = empty(), *b = empty(), *clash = empty();
    tp_error error = TP_ERROR_INIT;
    char why[1024];
    two.cpu = "another CPU";
    other.build = "another build";
    put(a, 16, &one);
    put(b, 16, &two);
    put(b, 24, &two);
    put(clash, 16, &other);
    struct text before = support_write(a), after;
    assert_int_equal(tp_lock_merge(a, clash, "2026-11-17", "both", &error), TP_INVALID);
    assert_non_null(strstr(error.text, "model.json "));
    assert_non_null(strstr(error.text, "both locks have it, with other versions"));
    after = support_write(a);
    assert_string_equal(before.bytes, after.bytes);
    free(before.bytes);
    free(after.bytes);
    assert_int_equal(tp_lock_merge(a, b, "2026-11-17", "both hosts", &error), TP_OK);
    holds(a, "16 24");
    assert_int_equal(tp_lock_revision_fresh(a, 0, &one, why, sizeof why), TP_OK);
    assert_int_equal(tp_lock_revision_fresh(a, 0, &two, why, sizeof why), TP_OK);
    assert_int_equal(tp_lock_revision_fresh(a, 1, &one, why, sizeof why), TP_UNSUPPORTED);
    before = support_write(a);
    tp_lock *again = support_parse(&before);
    tp_lock_destroy(again);
    free(before.bytes);
    tp_lock_destroy(a);
    tp_lock_destroy(b);
    tp_lock_destroy(clash);
}

static void more_bytes(tp_cell *cell) {
    cell->bytes += 77;
}

/* A problem of two models is listed once, as the last of them has it. */
static void problems_are_listed_once(void **state) {
    (void)state;
    tp_identity identity = support_identity();
    tp_model_options options = TP_MODEL_OPTIONS_INIT;
    tp_model *first = support_model(support_config), *second;
    tp_lock *lock = empty();
    tp_cell before = TP_CELL_INIT, after = TP_CELL_INIT, cell = TP_CELL_INIT;
    int64_t count = 0, again = 0;
    options.label = "another";
    assert_int_equal(tp_model_parse_with(support_config, strlen(support_config), "b", &options, &second, NULL), TP_OK);
    support_put(lock, first, &identity, "one");
    while (tp_lock_cell_at(lock, identity.isa, count, &cell) == TP_OK) count++;
    support_put_changed(lock, second, &identity, 0, more_bytes);
    while (tp_lock_cell_at(lock, identity.isa, again, &cell) == TP_OK) again++;
    assert_int_equal(again, count);
    assert_int_equal(tp_lock_revision_cell(lock, 0, 0, &before, NULL), TP_OK);
    assert_int_equal(tp_lock_cell_find(lock, identity.isa, before.problem, &after), TP_OK);
    assert_int_equal(after.bytes, before.bytes + 77);
    assert_int_equal(tp_lock_cell_for(lock, &identity, before.problem, &after), TP_OK);
    assert_int_equal(after.bytes, before.bytes + 77);
    tp_model_destroy(first);
    tp_model_destroy(second);
    tp_lock_destroy(lock);
}

/* A device is as another engine: its cells stand beside the CPU's. */
static void devices(void **state) {
    (void)state;
    tp_identity cpu = support_identity(), device = cpu;
    tp_lock *lock = empty();
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    tp_cell cell = TP_CELL_INIT;
    char why[1024];
    device.device = "opencl:pocl";
    device.host = "driver=5.0\nlocal_memory=2097152";
    put(lock, 16, &device);
    assert_int_equal(tp_lock_cell_at(lock, cpu.isa, 0, &cell), TP_INVALID);
    assert_int_equal(tp_lock_fresh(lock, &cpu, why, sizeof why), TP_UNSUPPORTED);
    put(lock, 16, &cpu);
    holds(lock, "16 16");
    assert_int_equal(tp_lock_revision_at(lock, 0, &one), TP_OK);
    assert_string_equal(one.device, "opencl:pocl");
    assert_int_equal(tp_lock_fresh(lock, &device, why, sizeof why), TP_OK);
    device.host = "driver=5.1\nlocal_memory=2097152";
    assert_int_equal(tp_lock_fresh(lock, &device, why, sizeof why), TP_UNSUPPORTED);
    assert_string_equal(why, "host driver: lock has 5.0, here 5.1");
    assert_int_equal(tp_lock_fresh(lock, &cpu, why, sizeof why), TP_OK);
    /* the CPU's cells are listed, also where the device came last */
    tp_model *model = revision(16);
    tp_lock_destroy(lock);
    lock = empty();
    put(lock, 16, &cpu);
    support_put_changed(lock, model, &device, 0, more_bytes);
    assert_int_equal(tp_lock_cell_at(lock, cpu.isa, 0, &cell), TP_OK);
    assert_int_equal(cell.bytes, 1000);
    tp_model_destroy(model);
    tp_lock_destroy(lock);
}

/* ---- files ---- */

static void old_locks_are_read(void **state) {
    (void)state;
    struct text text = support_old_lock(), after;
    tp_lock *lock = support_parse(&text);
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    tp_lock_history past = TP_LOCK_HISTORY_INIT;
    tp_lock_use use = TP_LOCK_USE_INIT;
    tp_cell cell = TP_CELL_INIT;
    static const struct {
        const char *model, *isa, *date;
        int64_t cells;
        int status;
    } expected[] = {{"a.json", "avx2", "2026-11-16", 2, TP_CELL_UNSUPPORTED},
                    {"b.json", "avx2", "2026-11-16", 2, TP_CELL_QUALIFIED},
                    {"a.json", "none", "2026-11-17", 2, TP_CELL_NOT_RUN},
                    {"b.json", "none", "2026-11-17", 2, TP_CELL_NOT_RUN}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tp_lock_revision_at(lock, i, &one), TP_OK);
        assert_string_equal(one.model, expected[i].model);
        assert_string_equal(one.isa, expected[i].isa);
        assert_string_equal(one.date, expected[i].date);
        assert_string_equal(one.engine, "tileproof");
        assert_string_equal(one.device, "cpu");
        assert_string_equal(one.cache, "plain");
        assert_int_equal(one.cell_count, expected[i].cells);
        assert_int_equal(one.status, expected[i].status);
    }
    assert_int_equal(tp_lock_revision_at(lock, 4, &one), TP_INVALID); /* an ISA without cells has none */
    assert_int_equal(tp_lock_revision_cell(lock, 2, 1, &cell, &use), TP_OK);
    assert_int_equal(cell.status, TP_CELL_NOT_RUN);
    assert_string_equal(cell.reason, "no cell on this ISA");
    assert_int_equal(use.phase, TP_QUALIFY_DECODE);
    assert_int_equal(tp_lock_cell_find(lock, "none", "prefill b1 h4/2 q253 k253 d64 f32 causal", &cell), TP_OK);
    assert_string_equal(cell.kernel, "generic");
    assert_true(cell.panels_full == 12 && cell.bytes == 1000);
    assert_int_equal(tp_lock_history_at(lock, 0, &past), TP_OK);
    assert_string_equal(past.reason, "first \xc3\xa4");
    assert_string_equal(past.revisions, "");
    tp_identity identity = {.struct_size = sizeof identity, .parser = 1, .version = "0.1.0", .compiler = "GNU 12", .isa = "none"};
    identity.build = "efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef";
    identity.cpu = "a CPU", identity.os = "Linux 1", identity.libc = "glibc 2";
    char why[1024];
    assert_int_equal(tp_lock_fresh(lock, &identity, why, sizeof why), TP_OK);
    identity.isa = "avx2";
    assert_int_equal(tp_lock_fresh(lock, &identity, why, sizeof why), TP_UNSUPPORTED);
    assert_string_equal(why, "library declared: lock has engine=1, here none");
    after = support_write(lock);
    assert_non_null(strstr(after.bytes, "\"schema\": \"tileproof.lock/2\""));
    tp_lock *again = support_parse(&after);
    struct text once_more = support_write(again);
    assert_string_equal(after.bytes, once_more.bytes);
    free(text.bytes);
    free(after.bytes);
    free(once_more.bytes);
    tp_lock_destroy(again);
    tp_lock_destroy(lock);
    text = support_old_lock();
    text_replace(&text, "\"bytes\": 1000", "\"bytes\": 1001");
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_lock_parse(text.bytes, text.size, "old.lock", &lock, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "old.lock:3: checksum is"));
    free(text.bytes);
}

static void newer_locks_are_refused(void **state) {
    (void)state;
    static const char newer[] = "{\n \"schema\": \"tileproof.lock/3\"}";
    tp_lock *lock;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_lock_parse(newer, strlen(newer), "new.lock", &lock, &error), TP_INVALID);
    char expected[200];
    snprintf(
        expected, sizeof expected,
        "new.lock:2: schema is \"tileproof.lock/3\": tileproof %s reads up to \"tileproof.lock/2\"; a newer one wrote this file",
        tp_version());
    assert_string_equal(error.text, expected);
}

/* A file that has one revision twice does not say which of them holds. */
static void clashes_are_refused(void **state) {
    (void)state;
    tp_identity identity = support_identity();
    tp_lock *lock = empty(), *again;
    tp_error error = TP_ERROR_INIT;
    tp_model *a = revision(16), *b = revision(24);
    put(lock, 16, &identity);
    put(lock, 24, &identity);
    struct text text = support_write(lock);
    text_replace(&text, b->config_hash, a->config_hash);
    assert_int_equal(tp_lock_parse(text.bytes, text.size, "t.lock", &again, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "revisions.#1 is model.json "));
    assert_non_null(strstr(error.text, "once more: entry #0 has it for the same engine and device"));
    tp_model_destroy(a);
    tp_model_destroy(b);
    free(text.bytes);
    tp_lock_destroy(lock);
}

static void labels(void **state) {
    (void)state;
    tp_model *model;
    tp_error error = TP_ERROR_INIT;
    tp_model_options options = TP_MODEL_OPTIONS_INIT;
    static const char *const bad[] = {"", "a@b", "a/b", " a", "a ", "\xff"};
    options.label = "llama 8b";
    assert_int_equal(tp_model_parse_with(support_config, strlen(support_config), "x/config.json", &options, &model, &error),
                     TP_OK);
    assert_string_equal(model->label, "llama 8b");
    assert_string_equal(model->name, "x/config.json");
    tp_model_destroy(model);
    for (int i = 0; i < 6; i++) {
        options.label = bad[i];
        assert_int_equal(tp_model_parse_with(support_config, strlen(support_config), "x", &options, &model, &error), TP_INVALID);
        assert_non_null(strstr(error.text, "label is "));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_revisions_stay),
        cmocka_unit_test(keep_is_asked_for),
        cmocka_unit_test(preflight_of_any),
        cmocka_unit_test(stale_by_revision),
        cmocka_unit_test(dropped),
        cmocka_unit_test(merged),
        cmocka_unit_test(problems_are_listed_once),
        cmocka_unit_test(devices),
        cmocka_unit_test(old_locks_are_read),
        cmocka_unit_test(newer_locks_are_refused),
        cmocka_unit_test(clashes_are_refused),
        cmocka_unit_test(labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
