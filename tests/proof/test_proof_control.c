/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's floating-point environment changes nothing that the proof library reads, prints or computes: models, problems,
   capacity, cells, locks, qualification. Locks are keyed by what is printed. */
#define _GNU_SOURCE /* feenableexcept */
#include <dirent.h>

#include "../support/environment.h"
#include "capacity.h"

enum { FILES_MAX = 100 };
static struct file {
    char name[256];
    struct text text;
} files[FILES_MAX];
static int file_count;
static struct text old_lock;

static void read_files(void) {
    DIR *folder = opendir(TILEPROOF_MODELS);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[1024], bytes[4096];
        if (!strstr(entry->d_name, ".json")) continue;
        assert_true(file_count < FILES_MAX);
        struct file *file = &files[file_count++];
        snprintf(path, sizeof path, "%s/%s", TILEPROOF_MODELS, entry->d_name);
        snprintf(file->name, sizeof file->name, "%s", entry->d_name);
        FILE *stream = fopen(path, "r");
        assert_non_null(stream);
        for (size_t n; (n = fread(bytes, 1, sizeof bytes, stream)) > 0;) text_collect(&file->text, bytes, n);
        fclose(stream);
    }
    closedir(folder);
    assert_true(file_count >= 30);
}

/* ---- what is noted of each call ---- */

static void note(struct text *to, const char *text) {
    text_collect(to, text, strlen(text));
    text_collect(to, "\n", 1);
}

static void note_status(struct text *to, tp_status status, const tp_error *error) {
    note(to, tp_status_name(status));
    if (status != TP_OK) note(to, error->text);
}

/* By their bits, in hex: the test prints no number. */
static void note_bytes(struct text *to, const void *bytes, size_t size) {
    static const char digit[] = "0123456789abcdef";
    const unsigned char *from = bytes;
    char hex[1024];
    for (size_t i = 0, n = 0; i < size; i += n) {
        for (n = 0; n < sizeof hex / 2 && i + n < size; n++) {
            hex[2 * n] = digit[from[i + n] >> 4];
            hex[2 * n + 1] = digit[from[i + n] & 15];
        }
        text_collect(to, hex, 2 * n);
    }
    text_collect(to, "\n", 1);
}
#define NOTE(to, value) note_bytes(to, &(value), sizeof(value))

static void note_problems(struct text *to, const tp_layer_group *group) {
    char text[512];
    if (group->out_of_scope) return;
    NOTE(to, group->scale);
    NOTE(to, group->softcap);
    NOTE(to, group->query_scale_beta);
    NOTE(to, group->rope_theta);
    NOTE(to, group->rope_factor);
    for (int decode = 0; decode < 2; decode++) {
        int64_t q_len, kv_len;
        tp_layer_group_lengths(group, decode, &q_len, &kv_len);
        if (!q_len) continue;
        assert_int_equal(tp_layer_group_problem(group, 1, q_len, kv_len, text, sizeof text), TP_OK);
        note(to, text);
        assert_int_equal(tp_layer_group_problem_in(group, "i8", 1, q_len, kv_len, text, sizeof text), TP_OK);
        note(to, text);
    }
}

static void note_rotations(struct text *to, const tp_model *model) {
    tp_rope_options o = TP_ROPE_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    for (int layer = 0;; layer++) {
        tp_status status = tp_rope_from_model(model, layer, &o, &error);
        if (status == TP_INVALID) return;
        if (status != TP_OK) continue;
        note_bytes(to, o.short_factors, o.short_factors ? (size_t)o.factor_count * sizeof(float) : 0);
        note_bytes(to, o.long_factors, o.long_factors ? (size_t)o.factor_count * sizeof(float) : 0);
        o.short_factors = o.long_factors = NULL;
        NOTE(to, o);
    }
}

static void note_capacity(struct text *to, const tp_model *model) {
    static tp_cache_layer rows[TP_MODEL_MAX_LAYERS];
    tp_cache_options pool = TP_CACHE_OPTIONS_INIT;
    tp_capacity_options options = load(1000, 3);
    tp_capacity *capacity;
    tp_error error = TP_ERROR_INIT;
    options.gflops = 123.4567, options.read_gbps = 9.87654321, options.page_size = 16, options.limit = (int64_t)1 << 36;
    tp_status status = tp_cache_from_model(model, TP_PART_TEXT, TP_F16, rows, TP_MODEL_MAX_LAYERS, &pool, &error);
    note_status(to, status, &error);
    if (status == TP_OK) note_bytes(to, rows, (size_t)pool.layer_count * sizeof *rows);
    status = tp_capacity_create(model, planner, &options, &capacity, &error);
    note_status(to, status, &error);
    for (int group = -1; status == TP_OK && group < model->group_count; group++)
        for (int decode = 0; decode < 2; decode++) {
            tp_capacity_work work = work_of(capacity, group, decode);
            tp_capacity_cache cache = cache_of(capacity, group, decode);
            NOTE(to, cache);
            NOTE(to, work.flops);
            NOTE(to, work.bytes);
            NOTE(to, work.seconds);
            note(to, work.problem);
        }
    if (status == TP_OK) tp_capacity_destroy(capacity);
}

static void ask_models(struct text *to) {
    for (int i = 0; i < file_count; i++) {
        tp_model *model;
        tp_error error = TP_ERROR_INIT;
        note(to, files[i].name);
        tp_status status = tp_model_parse(files[i].text.bytes, files[i].text.size, files[i].name, &model, &error);
        note_status(to, status, &error);
        assert_int_equal(status, TP_OK);
        for (int k = 0; k < model->group_count; k++) note_problems(to, model->groups[k]);
        note_rotations(to, model);
        note_capacity(to, model);
        for (int format = TP_TEXT; format <= TP_JSON; format++)
            assert_int_equal(tp_model_write(model, (tp_format)format, text_collect, to), TP_OK);
        tp_model_destroy(model);
    }
    static const char bad[] = "{\"model_type\": \"gemma2\", \"query_pre_attn_scalar\": -1.23456789e-300}";
    tp_model *model;
    tp_error error = TP_ERROR_INIT;
    note_status(to, tp_model_parse(bad, strlen(bad), "bad", &model, &error), &error);
}

static tp_lock *empty(void) {
    tp_lock *lock;
    assert_int_equal(tp_lock_create(&lock, NULL), TP_OK);
    return lock;
}

static void note_lock(struct text *to, const tp_lock *lock) {
    assert_int_equal(tp_lock_write(lock, text_collect, to), TP_OK);
}

static void other_bits(tp_cell *cell) {
    cell->error = 0x1.23456789abcdep-21, cell->loss = 0x1.fedcba98765p-9, cell->numerics_id = "another";
}

static void nan_gain(tp_cell *cell) {
    static const uint64_t bits = UINT64_C(0x7ff4000000000000); /* which signals */
    memcpy(&cell->gain, &bits, sizeof bits);
}

/* Each of these fails by a rule, of a number that is none. */
static void ask_cells(struct text *to, const tp_cell *good) {
    tp_cell cell = *good, *read;
    tp_error error = TP_ERROR_INIT;
    struct text text = {NULL, 0};
    char said[1024];
    cell.struct_size = sizeof cell;
    other_bits(&cell);
    cell.time_ns = 0x1.23456789abcdep20;
    note(to, tp_cell_status_name(tp_cell_compare(good, &cell, said, sizeof said)));
    note(to, said);
    assert_int_equal(tp_cell_write(&cell, 1, text_collect, &text), TP_OK);
    note(to, text.bytes);
    assert_int_equal(tp_cell_parse(text.bytes, text.size, "cells", 1, &read, NULL), TP_OK);
    NOTE(to, read->error);
    NOTE(to, read->time_ns);
    tp_cell_destroy(read);
    free(text.bytes);
    nan_gain(&cell);
    assert_int_equal(tp_cell_write(&cell, 1, text_collect, to), TP_INVALID);
    tp_lock *lock = empty();
    note_status(to, tp_lock_put_cell(lock, "avx2", &cell, &error), &error);
    tp_lock_destroy(lock);
}

/* Two locks with one cell that differs, and what is said of both. */
static void ask_locks(struct text *to) {
    tp_identity identity = support_identity(), other = identity;
    tp_model *model = support_model(support_config);
    tp_qualification *q = support_qualification(model);
    tp_lock *a = empty(), *b = empty(), *old = support_parse(&old_lock);
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_cell cell = TP_CELL_INIT;
    char said[1024];
    update.date = "2026-11-18", update.reason = "first";
    other.cpu = "another";
    assert_int_equal(tp_qualify_update(q, a, &identity, &update, NULL), TP_OK);
    support_put_changed(b, model, &identity, 0, other_bits);
    note_lock(to, a);
    note_lock(to, b);
    for (int format = TP_TEXT; format <= TP_JSON; format++)
        assert_int_equal(tp_lock_diff(a, 0, b, 0, (tp_format)format, text_collect, to), TP_OK);
    note_status(to, tp_qualify_compare(q, b, &identity, &error), &error);
    note(to, tp_qualification_cell(q, 0)->reason);
    note(to, tp_status_name(tp_lock_fresh(a, &other, said, sizeof said)));
    note(to, said);
    note_status(to, tp_lock_merge(a, b, "2026-11-19", "both", &error), &error);
    note_status(to, tp_lock_merge(a, old, "2026-11-19", "both", &error), &error);
    note_lock(to, a);
    note_lock(to, old);
    for (int64_t i = 0; tp_lock_revision_cell(old, 0, i, &cell, NULL) == TP_OK; i++) {
        NOTE(to, cell.error);
        NOTE(to, cell.gain);
        assert_int_equal(tp_cell_write(&cell, 0, text_collect, to), TP_OK);
    }
    note_status(to, tp_lock_drop(old, 0, "2026-11-19", "one less", &error), &error);
    note_lock(to, old);
    tp_context *context = one_thread();
    note_status(to, tp_preflight(context, b, model, "torch=2.4,engine=1", &error), &error);
    tp_context_destroy(context);
    ask_cells(to, tp_qualification_cell(q, 1));
    tp_lock_destroy(a);
    tp_lock_destroy(b);
    tp_lock_destroy(old);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

/* The lock's text with a number as a whole one that no double is, and the checksum that its refusal names. */
static void make_whole(struct text *lock) {
    tp_lock *none;
    tp_error error = TP_ERROR_INIT;
    char sum[65] = "";
    text_replace(lock, "\"gain\":1.0", "\"gain\":9007199254740993");
    assert_int_equal(tp_lock_parse(lock->bytes, lock->size, "t.lock", &none, &error), TP_INVALID);
    const char *gives = strstr(error.text, "the content gives ");
    assert_non_null(gives);
    memcpy(sum, gives + strlen("the content gives "), 64);
    memcpy(strstr(lock->bytes, "\"checksum\": \"") + strlen("\"checksum\": \""), sum, 64);
}

static void ask_whole_numbers(struct text *to) {
    static const char line[] = "{\"problem\": \"h4 q1 k1 d8\", \"phase\": \"decode\", \"purpose\": \"tile\", "
                               "\"gain\": 9007199254740993, \"status\": \"QUALIFIED\", \"error\": 123456789012345678}";
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity);
    tp_cell *cell, found = TP_CELL_INIT;
    assert_int_equal(tp_cell_parse(line, strlen(line), "cells", 1, &cell, NULL), TP_OK);
    NOTE(to, cell->gain);
    NOTE(to, cell->error);
    tp_cell_destroy(cell);
    make_whole(&text);
    tp_lock *lock = support_parse(&text);
    for (int64_t i = 0; tp_lock_cell_at(lock, identity.isa, i, &found) == TP_OK; i++) NOTE(to, found.gain);
    note_lock(to, lock);
    tp_lock_destroy(lock);
    free(text.bytes);
    tp_model_destroy(model);
}

/* Cells that really run, by this library. */
static void ask_runs(struct text *to) {
    tp_model *model = support_model(support_config);
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_qualification *q;
    tp_error error = TP_ERROR_INIT;
    tp_cell wrong = TP_CELL_INIT;
    options.quick = 1, options.max_cells = 1;
    assert_int_equal(tp_qualify_create(&model, 1, &options, &q, NULL), TP_OK);
    wrong.problem = tp_qualification_cell(q, 0)->problem, wrong.phase = tp_qualification_cell(q, 0)->phase;
    wrong.status = TP_CELL_QUALIFIED;
    nan_gain(&wrong);
    note_status(to, tp_qualify_restore(q, &wrong, &error), &error);
    note_status(to, tp_qualify_run_cell(q, 0, planner, NULL, &error), &error);
    note_status(to, tp_qualify_run(q, planner, NULL, &error), &error);
    const tp_cell *cell;
    for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++) {
        assert_int_equal(tp_cell_write(cell, 0, text_collect, to), TP_OK);
        NOTE(to, cell->error);
        NOTE(to, cell->allowed);
    }
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

static struct text ask_all(void) {
    struct text text = {NULL, 0};
    ask_models(&text);
    ask_locks(&text);
    ask_whole_numbers(&text);
    ask_runs(&text);
    return text;
}

static void every_entry_point_gives_the_same(void **state) {
    (void)state;
    struct text plain = ask_all();
    for (int n = 0; n < ENVIRONMENTS; n++) {
        fenv_t before = environment_enter(&environments[n]);
        struct text got = ask_all();
        if (!environment_leave(&environments[n], before)) fail_msg("%s: it was not given back", environments[n].name);
        size_t same = 0;
        while (same < got.size && same < plain.size && got.bytes[same] == plain.bytes[same]) same++;
        if (same < got.size || same < plain.size) {
            size_t from = same > 200 ? same - 200 : 0;
            fail_msg("%s: byte %zu of %zu differs:\n%.*s\n--- not\n%.*s", environments[n].name, same, plain.size,
                     (int)(same - from + 40), got.bytes + from, (int)(same - from + 40), plain.bytes + from);
        }
        free(got.bytes);
    }
    free(plain.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_entry_point_gives_the_same)};
    planner = one_thread();
    old_lock = support_old_lock();
    read_files();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < file_count; i++) free(files[i].text.bytes);
    free(old_lock.bytes);
    tp_context_destroy(planner);
    return failed;
}
