/* SPDX-License-Identifier: Apache-2.0 */
/* Locks: there and back, what makes one stale, what an edit does, updates. */
#include <math.h>

#include "support.h"

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
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity), again;
    char why[1024];
    tp_lock *lock = support_parse(&text);
    again = support_write(lock);
    assert_string_equal(text.bytes, again.bytes);
    assert_int_equal(tp_lock_fresh(lock, &identity, why, sizeof why), TP_OK);
    tp_lock_use use = TP_LOCK_USE_INIT;
    tp_cell cell = TP_CELL_INIT;
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
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity), again;
    tp_lock *lock = support_parse(&text);
    support_put(lock, model, &identity, "the same again");
    again = support_write(lock);
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
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity);
    tp_lock *lock = support_parse(&text);
    char why[1024];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tp_identity other = identity;
        *(const char **)(void *)((char *)&other + texts[i].offset) = "something else";
        assert_int_equal(tp_lock_fresh(lock, &other, why, sizeof why), TP_UNSUPPORTED);
        assert_non_null(strstr(why, texts[i].name));
        assert_non_null(strstr(why, "here something else"));
    }
    tp_identity other = identity;
    other.parser++;
    assert_int_equal(tp_lock_fresh(lock, &other, why, sizeof why), TP_UNSUPPORTED);
    assert_non_null(strstr(why, "parser: lock has 1, here 2"));
    other = identity;
    other.isa = "neon";
    assert_int_equal(tp_lock_fresh(lock, &other, why, sizeof why), TP_UNSUPPORTED);
    assert_non_null(strstr(why, "ISA"));
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

static void more_bytes(tp_cell *cell) { cell->bytes++; }

/* A second host with the same cells joins; one whose cells differ takes its place. */
static void hosts_share(void **state) {
    (void)state;
    tp_model *model = support_model(support_config);
    tp_identity one = support_identity(), two = one;
    struct text text = support_lock(model, &one);
    tp_lock *lock = support_parse(&text);
    char why[1024];
    two.cpu = "another CPU";
    assert_int_equal(tp_lock_fresh(lock, &two, why, sizeof why), TP_UNSUPPORTED);
    support_put(lock, model, &two, "a second host");
    assert_int_equal(tp_lock_fresh(lock, &one, why, sizeof why), TP_OK);
    assert_int_equal(tp_lock_fresh(lock, &two, why, sizeof why), TP_OK);
    support_put_changed(lock, model, &two, 0, more_bytes);
    assert_int_equal(tp_lock_fresh(lock, &one, why, sizeof why), TP_UNSUPPORTED);
    assert_int_equal(tp_lock_fresh(lock, &two, why, sizeof why), TP_OK);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
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
        {"tileproof.lock/2", "tileproof.lock/9", "t.lock:2: schema is \"tileproof.lock/9\": tileproof " },
        {"tileproof.lock/2", "tileproof.log/9", "t.lock:2: schema is \"tileproof.log/9\": it must be \"tileproof.lock/2\""},
        {"\"history\"", "\"story\"", "history is missing"},
        {"\"gain\":1.0", "\"gain\":1e999", "a number must be below"},
        {"\"reason\":\"first\"", "\"reason\":\"second\"", "checksum is"},
        {"\"revisions\": [", "\"revisions\": [{},", "revisions.#0.revision is missing"},
        {"\"hosts\": [", "\"hosts\": [7,", "hosts.#0 must be an object"},
    };
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct text text = support_lock(model, &identity);
        text_replace(&text, edits[i].from, edits[i].to);
        refused(&text, edits[i].expected);
        free(text.bytes);
    }
    tp_model_destroy(model);
}

/* Line numbers are those of the file. */
static void names_the_line(void **state) {
    (void)state;
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity);
    text_replace(&text, "\"bytes\":1003", "\"bytes\":true");
    int line = 1;
    for (const char *at = text.bytes; at < strstr(text.bytes, "\"bytes\":true"); at++) line += *at == '\n';
    char expected[32];
    snprintf(expected, sizeof expected, "t.lock:%d: revisions.", line);
    refused(&text, expected);
    free(text.bytes);
    tp_model_destroy(model);
}

static void truncated(void **state) {
    (void)state;
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity);
    for (size_t size = 0; size < text.size - 2; size += 1 + text.size / 200) {
        struct text part = {text.bytes, size};
        refused(&part, "t.lock:");
    }
    tp_model_destroy(model);
    free(text.bytes);
}

static void update_needs_a_reason(void **state) {
    (void)state;
    tp_identity identity = support_identity();
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
    tp_model *model = support_model(support_config), *other;
    tp_identity identity = support_identity(), strange = identity;
    struct text before = support_lock(model, &identity), after;
    tp_lock *lock = support_parse(&before);
    tp_error error = TP_ERROR_INIT;
    tp_cell cell = TP_CELL_INIT;
    assert_int_equal(tp_lock_reason_check("caf\xc3\xa9", &error), TP_OK);
    assert_int_equal(tp_lock_reason_check("caf\xe9", &error), TP_INVALID);
    assert_non_null(strstr(error.text, "not UTF-8"));
    assert_int_equal(tp_lock_finish(lock, &identity, "2026-11-16", "caf\xe9", &error), TP_INVALID);
    strange.cpu = "\xff";
    assert_int_equal(tp_lock_finish(lock, &strange, "2026-11-16", "why", &error), TP_INVALID);
    assert_int_equal(tp_lock_put_model(lock, "\xe9.json", "00", &error), TP_INVALID);
    assert_int_equal(tp_lock_cell_at(lock, identity.isa, 0, &cell), TP_OK);
    cell.reason = "\x80";
    assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "not UTF-8"));
    assert_int_equal(tp_cell_write(&cell, 1, text_collect, &before), TP_INVALID);
    assert_int_equal(tp_model_parse(support_config, strlen(support_config), "\xe9.json", &other, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "name of a config is not UTF-8"));
    after = support_write(lock);
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
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text before = support_lock(model, &identity), line = {0};
    tp_lock *lock = support_parse(&before);
    tp_error error = TP_ERROR_INIT;
    tp_cell good = TP_CELL_INIT, cell;
    for (int i = 0; i < 6; i++) {
        /* texts are the lock's, until it is changed */
        assert_int_equal(tp_lock_cell_at(lock, identity.isa, 0, &good), TP_OK);
        cell = good;
        *(i % 2 ? &cell.allowed : &cell.error) = odd[i / 2];
        assert_int_equal(tp_cell_write(&cell, 1, text_collect, &line), TP_INVALID);
        assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_INVALID);
        assert_non_null(strstr(error.text, i % 2 ? "allowed is" : "error is"));
        assert_non_null(strstr(error.text, "a number is not finite"));
        cell = good;
        cell.time_ns = odd[i / 2];
        assert_int_equal(tp_cell_write(&cell, 1, text_collect, &line), TP_INVALID);
        assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_OK);
    }
    assert_null(line.bytes);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(before.bytes);
}

static void declared_versions(void **state) {
    (void)state;
    tp_identity *a, *b;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_identity_detect("x=1,a=2", &a, &error), TP_OK);
    assert_int_equal(tp_identity_detect("a=2,x=1", &b, &error), TP_OK);
    assert_string_equal(a->declared, b->declared);
    assert_int_equal(strlen(b->build), 64);
    assert_true(strlen(b->compiler) > 4);
    tp_identity_destroy(a);
    tp_identity_destroy(b);
    static const char *const bad[] = {"x", "x=", "=1", "x=1 y=2", "x=\"1\""};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(tp_identity_detect(bad[i], &a, &error), TP_INVALID);
        assert_null(a);
    }
}

static const char long_kernel[] = "flash_fwd_splitkv_kernel_hdim128_bf16_sm90_causal_paged_v3";
static void long_named(tp_cell *cell) { cell->kernel = long_kernel; }

/* Names of other engines' kernels are long, and a text may be NULL. */
static void long_names(void **state) {
    (void)state;
    char longest[257];
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity), line = {NULL, 0};
    tp_lock *lock = support_parse(&text);
    tp_error error = TP_ERROR_INIT;
    tp_cell cell = TP_CELL_INIT, *again;
    assert_int_equal(tp_lock_cell_at(lock, identity.isa, 0, &cell), TP_OK);
    cell.kernel = long_kernel;
    assert_int_equal(tp_cell_write(&cell, 1, text_collect, &line), TP_OK);
    assert_int_equal(tp_cell_parse(line.bytes, line.size, "line", 1, &again, &error), TP_OK);
    assert_string_equal(again->kernel, long_kernel);
    tp_cell_destroy(again);
    support_put_changed(lock, model, &identity, 0, long_named);
    assert_int_equal(tp_lock_cell_at(lock, identity.isa, 0, &cell), TP_OK);
    assert_string_equal(cell.kernel, long_kernel);
    memset(longest, 'k', 256);
    longest[256] = 0;
    cell.kernel = longest;
    assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_INVALID);
    assert_string_equal(error.text, "kernel has 256 bytes: at most 255");
    assert_int_equal(tp_cell_write(&cell, 1, text_collect, &line), TP_INVALID);
    cell.kernel = longest + 1;
    assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_OK);
    cell.problem = NULL; /* as "" */
    assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell, &error), TP_INVALID);
    assert_string_equal(error.text, "a cell of a lock needs an ISA and a problem");
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
    free(line.bytes);
}

static int has_cells(const tp_lock *lock, const char *isa) {
    tp_cell cell = TP_CELL_INIT;
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
    tp_model *model = support_model(support_config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_identity then = support_identity(), now = then;
        char why[1024], both[300], key[2][80];
        then.isa = cases[i].locked;
        now.isa = cases[i].host;
        struct text text = support_lock(model, &then);
        tp_lock *lock = support_parse(&text);
        if (has_cells(lock, now.isa) != cases[i].read) fail_msg("%s on %s", cases[i].locked, cases[i].host);
        int same = !strcmp(then.isa, now.isa);
        assert_int_equal(tp_lock_fresh(lock, &now, why, sizeof why), same ? TP_OK : TP_UNSUPPORTED);
        snprintf(both, sizeof both, "ISA: lock has %s, here %s", then.isa, now.isa);
        assert_int_equal(strstr(why, both) != NULL, !same);
        assert_null(strstr(why, "library")); /* what is the same is no difference */
        support_put(lock, model, &now, "its own entry");
        struct text after = support_write(lock);
        tp_lock *again = support_parse(&after);
        snprintf(key[0], sizeof key[0], "\"isa\":\"%s\"", then.isa);
        snprintf(key[1], sizeof key[1], "\"isa\":\"%s\"", now.isa);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(small_diff),
        cmocka_unit_test(stale_fields),
        cmocka_unit_test(hosts_share),
        cmocka_unit_test(edited),
        cmocka_unit_test(names_the_line),
        cmocka_unit_test(truncated),
        cmocka_unit_test(update_needs_a_reason),
        cmocka_unit_test(texts_are_utf8),
        cmocka_unit_test(numbers_are_finite),
        cmocka_unit_test(declared_versions),
        cmocka_unit_test(long_names),
        cmocka_unit_test(keys_of_later_libraries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
