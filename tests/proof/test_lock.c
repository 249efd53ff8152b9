/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: there and back, what makes one stale, what an edit does, updates, and the preflight. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tileproof_proof.h"

static const char config[] =
    "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"problem\": \"h4/2 d64 f32 causal\"}]}";

struct text {
    char *bytes;
    size_t size;
};

static int collect(void *cookie, const char *bytes, size_t size) {
    struct text *text = cookie;
    text->bytes = realloc(text->bytes, text->size + size + 1);
    assert_non_null(text->bytes);
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = 0;
    return 0;
}

static tp_model *read_config(const char *text) {
    tp_model *model;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_model_parse(text, strlen(text), "a/model.json", &model, &error), TP_OK);
    return model;
}

static tp_identity here(void) {
    tp_identity identity;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_identity_detect("torch=2.4,engine=1", &identity, &error), TP_OK);
    return identity;
}

/* The cells of the model, as if they had run on the best kernel. */
static void put_all(tp_lock *lock, const tp_model *model, const tp_identity *identity,
                    const char *reason) {
    static tp_cell cells[TP_MAX_GROUP_CELLS];
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    int count;
    assert_int_equal(tp_context_create(NULL, &context, &error), TP_OK);
    assert_int_equal(tp_lock_put_model(lock, "model.json", model->config_hash, &error), TP_OK);
    for (int g = 0; g < model->group_count; g++) {
        assert_int_equal(tp_layer_group_cells(model->groups[g], TP_QUALIFY_ALL, 1, TP_BF16, 16, cells,
                                              TP_MAX_GROUP_CELLS, &count, &error),
                         TP_OK);
        assert_true(count >= 6);
        for (int i = 0; i < count; i++) {
            tp_problem problem;
            tp_lengths lengths;
            tp_decision *decision;
            assert_int_equal(tp_problem_parse(cells[i].problem, &problem, &lengths, &error), TP_OK);
            assert_int_equal(tp_explain(context, &problem, NULL, &decision, &error), TP_OK);
            strcpy(cells[i].kernel, tp_decision_candidate(decision, decision->chosen)->kernel);
            strcpy(cells[i].numerics_id, decision->numerics_id);
            tp_decision_destroy(decision);
            cells[i].status = TP_CELL_QUALIFIED;
            cells[i].error = 1.25e-7 / 3;
            cells[i].bytes = 1000 + i;
            assert_int_equal(tp_lock_put_use(lock, "model.json", model->groups[g], &cells[i], &error),
                             TP_OK);
            assert_int_equal(tp_lock_put_cell(lock, identity->isa, &cells[i], &error), TP_OK);
        }
    }
    assert_int_equal(tp_lock_finish(lock, identity, "2026-11-16", reason, &error), TP_OK);
    tp_context_destroy(context);
}

static struct text write_lock(const tp_lock *lock) {
    struct text text = {NULL, 0};
    assert_int_equal(tp_lock_write(lock, collect, &text), TP_OK);
    return text;
}

static struct text made(const tp_model *model, const tp_identity *identity) {
    tp_lock *lock;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    put_all(lock, model, identity, "first");
    struct text text = write_lock(lock);
    tp_lock_destroy(lock);
    return text;
}

static tp_lock *parse(const struct text *text) {
    tp_lock *lock;
    tp_error error = TP_ERROR_INIT;
    if (tp_lock_parse(text->bytes, text->size, "t.lock", &lock, &error) != TP_OK) print_error("%s\n", error.text);
    assert_non_null(lock);
    return lock;
}

static void refused(const struct text *text, const char *expected) {
    tp_lock *lock;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_lock_parse(text->bytes, text->size, "t.lock", &lock, &error), TP_INVALID);
    assert_null(lock);
    if (!strstr(error.text, expected)) print_error("expected '%s' in '%s'\n", expected, error.text);
    assert_non_null(strstr(error.text, expected));
}

static void round_trip(void **state) {
    (void)state;
    tp_model *model = read_config(config);
    tp_identity identity = here();
    struct text text = made(model, &identity), again;
    char why[1024];
    tp_lock *lock = parse(&text);
    again = write_lock(lock);
    assert_string_equal(text.bytes, again.bytes);
    assert_int_equal(tp_lock_fresh(lock, &identity, why, sizeof why), TP_OK);
    tp_lock_use use;
    tp_cell cell;
    int64_t uses = 0;
    for (; tp_lock_use_at(lock, uses, &use) == TP_OK; uses++) {
        assert_string_equal(use.model, "model.json");
        assert_string_equal(use.layers, "0-3");
        assert_int_equal(tp_lock_cell_find(lock, identity.isa, use.problem, &cell), TP_OK);
        assert_string_equal(cell.problem, use.problem);
        assert_int_equal(cell.phase, use.phase);
    }
    assert_true(uses >= 6);
    assert_int_equal(tp_lock_cell_at(lock, "avx512", 0, &cell), TP_INVALID); /* the key of no host */
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
    free(again.bytes);
}

/* The same cells again change nothing but the history: a diff of one line, and the checksum's. */
static void small_diff(void **state) {
    (void)state;
    tp_model *model = read_config(config);
    tp_identity identity = here();
    struct text text = made(model, &identity), again;
    tp_lock *lock = parse(&text);
    put_all(lock, model, &identity, "the same again");
    again = write_lock(lock);
    assert_non_null(strstr(again.bytes, "0 new, 0 changed"));
    assert_non_null(strstr(again.bytes, "the same again"));
    int differ = 0;
    char *a = text.bytes, *b = again.bytes;
    for (; *a && *b; a += strcspn(a, "\n") + 1, b += strcspn(b, "\n") + 1) {
        size_t n = strcspn(a, "\n");
        if (n != strcspn(b, "\n") || memcmp(a, b, n)) differ++;
        if (!a[n] || !b[strcspn(b, "\n")]) break;
    }
    assert_true(differ <= 4); /* checksum, history, and what it moves down */
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
    free(again.bytes);
}

#define FIELD(name) {#name, offsetof(tp_identity, name)}
static const struct {
    const char *name;
    size_t offset;
} texts[] = {FIELD(version), FIELD(build), FIELD(compiler), FIELD(cpu),
             FIELD(os),      FIELD(libc),  FIELD(declared)};

static void stale_fields(void **state) {
    (void)state;
    tp_model *model = read_config(config);
    tp_identity identity = here();
    struct text text = made(model, &identity);
    tp_lock *lock = parse(&text);
    char why[1024];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tp_identity other = identity;
        strcpy((char *)&other + texts[i].offset, "something else");
        assert_int_equal(tp_lock_fresh(lock, &other, why, sizeof why), TP_UNSUPPORTED);
        assert_non_null(strstr(why, texts[i].name));
        assert_non_null(strstr(why, "here something else"));
    }
    tp_identity other = identity;
    other.parser++;
    assert_int_equal(tp_lock_fresh(lock, &other, why, sizeof why), TP_UNSUPPORTED);
    assert_non_null(strstr(why, "parser: lock has 1, here 2"));
    other = identity;
    strcpy(other.isa, "neon");
    assert_int_equal(tp_lock_fresh(lock, &other, why, sizeof why), TP_UNSUPPORTED);
    assert_non_null(strstr(why, "ISA"));
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

/* A second host with the same cells joins; one whose cells differ takes its place. */
static void hosts_share(void **state) {
    (void)state;
    tp_model *model = read_config(config);
    tp_identity one = here(), two = one;
    struct text text = made(model, &one);
    tp_lock *lock = parse(&text);
    char why[1024];
    tp_error error = TP_ERROR_INIT;
    tp_cell cell;
    strcpy(two.cpu, "another CPU");
    assert_int_equal(tp_lock_fresh(lock, &two, why, sizeof why), TP_UNSUPPORTED);
    put_all(lock, model, &two, "a second host");
    assert_int_equal(tp_lock_fresh(lock, &one, why, sizeof why), TP_OK);
    assert_int_equal(tp_lock_fresh(lock, &two, why, sizeof why), TP_OK);
    assert_int_equal(tp_lock_cell_at(lock, one.isa, 0, &cell), TP_OK);
    cell.bytes++;
    assert_int_equal(tp_lock_put_cell(lock, one.isa, &cell, &error), TP_OK);
    assert_int_equal(tp_lock_finish(lock, &two, "2026-11-17", "other bytes", &error), TP_OK);
    assert_int_equal(tp_lock_fresh(lock, &one, why, sizeof why), TP_UNSUPPORTED);
    assert_int_equal(tp_lock_fresh(lock, &two, why, sizeof why), TP_OK);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

static void replace(struct text *text, const char *from, const char *to) {
    char *at = strstr(text->bytes, from);
    assert_non_null(at);
    size_t a = strlen(from), b = strlen(to), tail = strlen(at + a);
    char *bytes = malloc(text->size + b + 1);
    assert_non_null(bytes);
    memcpy(bytes, text->bytes, (size_t)(at - text->bytes));
    memcpy(bytes + (at - text->bytes), to, b);
    memcpy(bytes + (at - text->bytes) + b, at + a, tail + 1);
    text->size = text->size - a + b;
    free(text->bytes);
    text->bytes = bytes;
}

static void edited(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *expected;
    } edits[] = {
        {"\"bytes\":1001", "\"bytes\":1002", "checksum is"},
        {"\"bytes\":1001", "\"bytes\":\"many\"", ".cells.#1.bytes is \"many\": it must be a whole number"},
        {"\"bytes\":1001", "\"bytes\":-1", "it must be a whole number of at least 0"},
        {"\"bytes\":1001", "\"butes\":1001", ".cells.#1.butes is not known here"},
        {"\"status\":\"QUALIFIED\"", "\"status\":\"FINE\"", "status is \"FINE\": it must be a status"},
        {"\"phase\":\"decode\"", "\"phase\":\"dream\"", "it must be prefill, decode"},
        {"tileproof.lock/1", "tileproof.lock/9", "t.lock:2: schema is \"tileproof.lock/9\""},
        {"\"history\"", "\"story\"", "history is missing"},
        {"\"gain\":1.0", "\"gain\":1e999", "a number must be below"},
        {"\"reason\":\"first\"", "\"reason\":\"second\"", "checksum is"},
        {"\"models\": [", "\"models\": [{},", "models.#0.name is missing"},
        {"\"hosts\": [", "\"hosts\": [7,", "hosts.#0 must be an object"},
    };
    tp_model *model = read_config(config);
    tp_identity identity = here();
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct text text = made(model, &identity);
        replace(&text, edits[i].from, edits[i].to);
        refused(&text, edits[i].expected);
        free(text.bytes);
    }
    tp_model_destroy(model);
}

/* Line numbers are those of the file. */
static void names_the_line(void **state) {
    (void)state;
    tp_model *model = read_config(config);
    tp_identity identity = here();
    struct text text = made(model, &identity);
    replace(&text, "\"bytes\":1003", "\"bytes\":true");
    int line = 1;
    for (const char *at = text.bytes; at < strstr(text.bytes, "\"bytes\":true"); at++) line += *at == '\n';
    char expected[32];
    snprintf(expected, sizeof expected, "t.lock:%d: isas.", line);
    refused(&text, expected);
    free(text.bytes);
    tp_model_destroy(model);
}

static void truncated(void **state) {
    (void)state;
    tp_model *model = read_config(config);
    tp_identity identity = here();
    struct text text = made(model, &identity);
    for (size_t size = 0; size < text.size - 2; size += 1 + text.size / 200) {
        struct text part = {text.bytes, size};
        refused(&part, "t.lock:");
    }
    tp_model_destroy(model);
    free(text.bytes);
}

static void update_needs_a_reason(void **state) {
    (void)state;
    tp_identity identity = here();
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock;
    char many[402];
    memset(many, 'x', 401);
    many[401] = 0;
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    const char *bad[] = {NULL, "", "   \n", many};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tp_lock_finish(lock, &identity, "2026-11-16", bad[i], &error), TP_INVALID);
        assert_non_null(strstr(error.text, "reason has"));
    }
    tp_lock_destroy(lock);
}

/* A lock is JSON: texts of other bytes are refused as such, and change nothing. */
static void texts_are_utf8(void **state) {
    (void)state;
    tp_model *model = read_config(config), *other;
    tp_identity identity = here(), strange = identity;
    struct text before = made(model, &identity), after;
    tp_lock *lock = parse(&before);
    tp_error error = TP_ERROR_INIT;
    tp_cell cell;
    assert_int_equal(tp_lock_reason_check("caf\xc3\xa9", &error), TP_OK);
    assert_int_equal(tp_lock_reason_check("caf\xe9", &error), TP_INVALID);
    assert_non_null(strstr(error.text, "not UTF-8"));
    assert_int_equal(tp_lock_finish(lock, &identity, "2026-11-16", "caf\xe9", &error), TP_INVALID);
    strcpy(strange.cpu, "\xff");
    assert_int_equal(tp_lock_finish(lock, &strange, "2026-11-16", "why", &error), TP_INVALID);
    assert_int_equal(tp_lock_put_model(lock, "\xe9.json", "00", &error), TP_INVALID);
    assert_int_equal(tp_lock_cell_at(lock, identity.isa, 0, &cell), TP_OK);
    strcpy(cell.reason, "\x80");
    assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "not UTF-8"));
    assert_int_equal(tp_cell_write(&cell, 1, collect, &before), TP_INVALID);
    assert_int_equal(tp_model_parse(config, strlen(config), "\xe9.json", &other, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "name of a config is not UTF-8"));
    after = write_lock(lock);
    assert_string_equal(before.bytes, after.bytes);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(before.bytes);
    free(after.bytes);
}

/* Nor has JSON numbers that are not finite; what is not written may be anything. */
static void numbers_are_finite(void **state) {
    (void)state;
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    tp_model *model = read_config(config);
    tp_identity identity = here();
    struct text before = made(model, &identity), line = {0};
    tp_lock *lock = parse(&before);
    tp_error error = TP_ERROR_INIT;
    tp_cell good, cell;
    assert_int_equal(tp_lock_cell_at(lock, identity.isa, 0, &good), TP_OK);
    for (int i = 0; i < 6; i++) {
        cell = good;
        *(i % 2 ? &cell.allowed : &cell.error) = odd[i / 2];
        assert_int_equal(tp_cell_write(&cell, 1, collect, &line), TP_INVALID);
        assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_INVALID);
        assert_non_null(strstr(error.text, i % 2 ? "allowed is" : "error is"));
        assert_non_null(strstr(error.text, "a number is not finite"));
        cell = good;
        cell.time_ns = odd[i / 2];
        assert_int_equal(tp_cell_write(&cell, 1, collect, &line), TP_INVALID);
        assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_OK);
    }
    assert_null(line.bytes);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(before.bytes);
}

static void declared_versions(void **state) {
    (void)state;
    tp_identity a, b;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_identity_detect("x=1,a=2", &a, &error), TP_OK);
    assert_int_equal(tp_identity_detect("a=2,x=1", &b, &error), TP_OK);
    assert_string_equal(a.declared, b.declared);
    static const char *const bad[] = {"x", "x=", "=1", "x=1 y=2", "x=\"1\""};
    for (int i = 0; i < 5; i++) assert_int_equal(tp_identity_detect(bad[i], &a, &error), TP_INVALID);
    assert_int_equal(strlen(b.build), 64);
    assert_true(strlen(b.compiler) > 4);
}

static void digests(void **state) {
    (void)state;
    static const struct {
        const char *text, *hash;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    for (int i = 0; i < 3; i++)
        for (size_t piece = 1; piece < 70; piece += 31) {
            tp_digest digest;
            char hash[65];
            tp_digest_begin(&digest);
            for (size_t at = 0; at < strlen(known[i].text); at += piece) {
                size_t left = strlen(known[i].text) - at;
                tp_digest_add(&digest, known[i].text + at, left < piece ? left : piece);
            }
            tp_digest_end(&digest, hash);
            assert_string_equal(hash, known[i].hash);
        }
}

static tp_context *locked_context(void) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    options.policy = TP_LOCKED;
    assert_int_equal(tp_context_create(&options, &context, &error), TP_OK);
    return context;
}

static tp_status asks(tp_context *context, const char *text) {
    tp_problem problem;
    tp_decision *decision;
    assert_int_equal(tp_problem_parse(text, &problem, NULL, NULL), TP_OK);
    tp_status status = tp_explain(context, &problem, NULL, &decision, NULL);
    tp_decision_destroy(decision);
    return status;
}

static void preflight_permits(void **state) {
    (void)state;
    tp_model *model = read_config(config);
    tp_identity identity = here();
    struct text text = made(model, &identity);
    tp_lock *lock = parse(&text);
    tp_context *context = locked_context();
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(asks(context, "b1 h4/2 q300 k300 d64 f32 causal"), TP_NOT_LOCKED);
    assert_int_equal(tp_preflight(context, lock, model, "engine=1,torch=2.4", &error), TP_OK);
    assert_int_equal(asks(context, "b1 h4/2 q300 k300 d64 f32 causal"), TP_OK); /* any length */
    assert_int_equal(asks(context, "b3 h4/2 q1 k900 d64 f32 causal"), TP_OK);
    assert_int_equal(asks(context, "b1 h4/2 q300 k300 d80 f32 causal"), TP_NOT_LOCKED);
    struct text metrics = {NULL, 0};
    assert_int_equal(tp_metrics_write(context, collect, &metrics), TP_OK);
    assert_non_null(strstr(metrics.bytes, "\ntileproof_lock_loaded 1\n"));
    assert_non_null(strstr(metrics.bytes, "\ntileproof_lock_stale 0\n"));
    assert_null(strstr(metrics.bytes, "\ntileproof_lock_scratch_bytes 0\n"));
    free(metrics.bytes);
    tp_context_destroy(context);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

static void preflight_refuses(void **state) {
    (void)state;
    tp_model *model = read_config(config), *other;
    tp_identity identity = here();
    struct text text = made(model, &identity);
    tp_lock *lock = parse(&text);
    tp_context *context = locked_context();
    tp_error error = TP_ERROR_INIT;
    tp_cell cell;
    assert_int_equal(tp_preflight(context, lock, model, "torch=2.5,engine=1", &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "a/model.json: STALE: library declared: lock has engine=1,torch=2.4"));
    struct text metrics = {NULL, 0};
    assert_int_equal(tp_metrics_write(context, collect, &metrics), TP_OK);
    assert_non_null(strstr(metrics.bytes, "\ntileproof_lock_stale 1\n"));
    free(metrics.bytes);
    other = read_config("{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"problem\": \"h4/2 d96 f32 "
                        "causal\"}]}");
    assert_int_equal(tp_preflight(context, lock, other, "torch=2.4,engine=1", &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "the lock has it with another config"));
    assert_int_equal(asks(context, "b1 h4/2 q300 k300 d64 f32 causal"), TP_NOT_LOCKED);
    /* one cell that failed */
    assert_int_equal(tp_lock_cell_at(lock, identity.isa, 2, &cell), TP_OK);
    cell.status = TP_CELL_NUMERIC_FAIL;
    strcpy(cell.reason, "o of seq 0 is wrong");
    assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_OK);
    assert_int_equal(tp_preflight(context, lock, model, "torch=2.4,engine=1", &error), TP_UNSUPPORTED);
    char expected[128];
    snprintf(expected, sizeof expected, "a/model.json: text layers 0-3, %s: NUMERIC_FAIL: o of seq 0 is wrong",
             tp_qualify_phase_name(cell.phase));
    assert_string_equal(error.text, expected);
    tp_model_destroy(other);
    tp_context_destroy(context);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

/* Cells stand where something changes; what a group does not have is no cell. */
static void cells_of_groups(void **state) {
    (void)state;
    static tp_cell cells[TP_MAX_GROUP_CELLS];
    tp_error error = TP_ERROR_INIT;
    tp_model *model = read_config(
        "{\"tileproof_model\": 1, \"groups\": ["
        "{\"layers\": \"0\", \"problem\": \"h4/2 d64 f16 causal window=1023,0 spans\"},"
        "{\"part\": \"vision\", \"layers\": \"0\", \"problem\": \"h16 d72 packed\"},"
        "{\"layers\": \"1\", \"out_of_scope\": \"mamba\"}]}");
    int count, window = 0, spans = 0, phases = 0;
    assert_int_equal(tp_layer_group_cells(model->groups[0], TP_QUALIFY_ALL, 0, TP_F32, 16, cells,
                                          TP_MAX_GROUP_CELLS, &count, &error), TP_OK);
    for (int i = 0; i < count; i++) {
        window += !strcmp(cells[i].shows, "window=1023,0") && strstr(cells[i].problem, "k1040") != NULL;
        spans += strstr(cells[i].problem, " spans") != NULL;
        phases |= (int)cells[i].phase;
        assert_non_null(strstr(cells[i].problem, " f16"));
        assert_int_equal(cells[i].status, TP_CELL_NOT_RUN);
    }
    assert_int_equal(window, 1);
    assert_int_equal(spans, 1);
    assert_int_equal(phases, TP_QUALIFY_ALL);
    phases = 0;
    for (int g = 1; g < model->group_count; g++) {
        assert_int_equal(tp_layer_group_cells(model->groups[g], TP_QUALIFY_ALL, 0, TP_F32, 16, cells,
                                              TP_MAX_GROUP_CELLS, &count, &error), TP_OK);
        if (model->groups[g]->out_of_scope) assert_int_equal(count, 0);
        for (int i = 0; i < count; i++) phases |= (int)cells[i].phase;
    }
    assert_int_equal(phases, TP_QUALIFY_PREFILL | TP_QUALIFY_VARLEN);
    assert_int_equal(tp_layer_group_cells(model->groups[0], 32, 0, TP_F32, 16, cells, TP_MAX_GROUP_CELLS,
                                          &count, &error), TP_INVALID);
    assert_int_equal(tp_layer_group_cells(model->groups[0], 1, 0, TP_F32, 16, cells, 3, &count, &error),
                     TP_INVALID);
    tp_model_destroy(model);
}

/* Tokens of all sequences of a cell: rows, or keys. */
static double tokens(const char *text, int keys) {
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    double sum = 0;
    assert_int_equal(tp_problem_parse(text, &problem, &lengths, NULL), TP_OK);
    if (!lengths.count) return (double)problem.batch * (double)(keys ? problem.kv_len : problem.q_len);
    for (int64_t i = 0; i < lengths.count; i++)
        sum += (double)lengths.seq[i].repeat * (double)(keys ? lengths.seq[i].kv_len : lengths.seq[i].q_len);
    return sum;
}

/* Whatever heads, dims and prefixes a file has: a cell that is to be run takes at most 192 MB at 16 bits, and what does
   not fit is refused by name. */
static void cells_fit(void **state) {
    (void)state;
    static tp_cell cells[TP_MAX_GROUP_CELLS];
    static const int64_t heads[] = {1, 32, 4096, 65536}, dims[] = {64, 576, 4096}, prefixes[] = {0, 100000};
    tp_error error = TP_ERROR_INIT;
    int run = 0, refused = 0;
    for (int i = 0; i < 4 * 4 * 3 * 2; i++) {
        int64_t q = heads[i % 4], kv = heads[i / 4 % 4], dim = dims[i / 16 % 3], prefix = prefixes[i / 48];
        char text[512];
        int count, phases = 0;
        if (kv > q) continue;
        snprintf(text, sizeof text, "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0\", \"problem\": "
                 "\"h%lld/%lld d%lld bf16 causal%s\"}]}", (long long)q, (long long)kv, (long long)dim,
                 prefix ? " prefix=100000" : "");
        tp_model *model = read_config(text);
        assert_int_equal(tp_layer_group_cells(model->groups[0], TP_QUALIFY_ALL, 0, TP_F32, 16, cells, TP_MAX_GROUP_CELLS,
                                              &count, &error), TP_OK);
        for (int c = 0; c < count; c++) {
            tp_problem problem;
            phases |= (int)cells[c].phase;
            if (strstr(cells[c].reason, "not run")) {
                assert_int_equal(cells[c].status, TP_CELL_UNSUPPORTED);
                assert_non_null(strstr(cells[c].reason, "at most 192"));
                refused++;
                continue;
            }
            if (cells[c].status != TP_CELL_NOT_RUN) continue;
            tp_lengths lengths = {.struct_size = sizeof lengths};
            assert_int_equal(tp_problem_parse(cells[c].problem, &problem, &lengths, &error), TP_OK);
            double bytes = 2.0 * (double)(problem.head_dim_qk + problem.head_dim_v) *
                           (tokens(cells[c].problem, 1) * (double)problem.kv_heads +
                            tokens(cells[c].problem, 0) * (double)problem.q_heads);
            if (bytes > 192e6) fail_msg("%s takes %.0f MB", cells[c].problem, bytes * 1e-6);
            run++;
        }
        assert_int_equal(phases, prefix ? TP_QUALIFY_ALL : TP_QUALIFY_ALL & ~TP_QUALIFY_MULTIMODAL);
        tp_model_destroy(model);
    }
    assert_true(run > 100 && refused > 10);
}

static int has_cells(const tp_lock *lock, const char *isa) {
    tp_cell cell;
    return tp_lock_cell_at(lock, isa, 0, &cell) == TP_OK;
}

/* ISA names that a lock's library did not know are left out from the end of the key; those it knew are not. */
static void keys_of_later_libraries(void **state) {
    (void)state;
    static const struct {
        const char *locked, *host;
        int read;
    } cases[] = {
        {"avx2,avx512", "avx2,avx512", 1},
        {"avx2,avx512", "avx2,avx512,avx512_bf16", 1},
        {"avx2,avx512", "avx2,avx512,avx512_bf16,amx", 1},
        {"avx2,avx512,avx512_bf16", "avx2,avx512,avx512_bf16,amx", 1},
        {"avx2", "avx2,avx_vnni", 1},
        {"none", "sve", 1},
        {"none", "none", 1},
        {"avx2", "avx2,avx512", 0},
        {"avx2", "avx2,avx512,avx512_bf16", 0},
        {"none", "avx2", 0},
        {"avx2,avx512,avx512_bf16", "avx2,avx512", 0},
        {"avx2,avx512,avx512_bf16", "avx2,avx512,amx", 0},
        {"avx2,avx512", "avx2,avx512_bf16", 0},
    };
    tp_model *model = read_config(config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_identity then = here(), now = here();
        char why[1024], both[300];
        strcpy(then.isa, cases[i].locked);
        strcpy(now.isa, cases[i].host);
        struct text text = made(model, &then);
        tp_lock *lock = parse(&text);
        if (has_cells(lock, now.isa) != cases[i].read) fail_msg("%s on %s", cases[i].locked, cases[i].host);
        int same = !strcmp(then.isa, now.isa);
        assert_int_equal(tp_lock_fresh(lock, &now, why, sizeof why), same ? TP_OK : TP_UNSUPPORTED);
        snprintf(both, sizeof both, "ISA: lock has %s, here %s", then.isa, now.isa);
        assert_int_equal(strstr(why, both) != NULL, !same);
        assert_null(strstr(why, "library")); /* what is the same is no difference */
        put_all(lock, model, &now, "its own entry");
        struct text after = write_lock(lock);
        tp_lock *again = parse(&after);
        char key[2][80];
        snprintf(key[0], sizeof key[0], "\"%s\": {", then.isa);
        snprintf(key[1], sizeof key[1], "\"%s\": {", now.isa);
        assert_true(strstr(after.bytes, key[0]) && strstr(after.bytes, key[1]));
        assert_int_equal(tp_lock_fresh(again, &now, why, sizeof why), TP_OK);
        assert_int_equal(tp_lock_fresh(again, &then, why, sizeof why), TP_OK);
        tp_lock_destroy(again);
        tp_lock_destroy(lock);
        free(after.bytes);
        free(text.bytes);
    }
    tp_model_destroy(model);
}

/* How a config is written changes nothing, what it says does. */
static void config_hashes(void **state) {
    (void)state;
    tp_model *a = read_config("{\"model_type\":\"gpt2\",\"n_head\":12,\"n_embd\":768,\"n_layer\":2}");
    tp_model *b = read_config("{ \"n_layer\":2, \"n_embd\":768,\n\"n_head\":12, \"model_type\":\"gpt2\" }");
    tp_model *c = read_config("{\"model_type\":\"gpt2\",\"n_head\":12,\"n_embd\":768,\"n_layer\":3}");
    assert_string_equal(a->config_hash, b->config_hash);
    assert_string_not_equal(a->config_hash, c->config_hash);
    tp_model_destroy(a);
    tp_model_destroy(b);
    tp_model_destroy(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),       cmocka_unit_test(small_diff),
        cmocka_unit_test(stale_fields),     cmocka_unit_test(hosts_share),
        cmocka_unit_test(edited),           cmocka_unit_test(names_the_line),
        cmocka_unit_test(truncated),        cmocka_unit_test(update_needs_a_reason),
        cmocka_unit_test(declared_versions), cmocka_unit_test(digests),
        cmocka_unit_test(preflight_permits), cmocka_unit_test(preflight_refuses),
        cmocka_unit_test(cells_of_groups),  cmocka_unit_test(config_hashes),
        cmocka_unit_test(cells_fit),        cmocka_unit_test(texts_are_utf8),
        cmocka_unit_test(numbers_are_finite), cmocka_unit_test(keys_of_later_libraries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
