/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that ends at any allocation. Every call of tileproof_proof.h that can allocate is made again and again, with
 * the first, the second, ... allocation failing, alone or with all that follow, until none is left to fail. Each
 * time: the status is TP_NO_MEMORY with a text, or the result is the very one of a call with memory; what was given is
 * as it was, nothing was written, nothing is lost. Allocations are those of the two libraries and of jansson (the
 * linker's --wrap, and json_set_alloc_funcs with blocks that free() would not take).
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tileproof_proof.h"

/* ---- the allocator ---- */

struct block {
    uint64_t owner; /* who may free it */
    uint64_t lead;  /* bytes before the caller's, this among them */
};
enum { LIBRARY = 0x11B4A4, JANSSON = 0x1A550 };
static long live, left; /* blocks in use; allocations until one fails, 0: none does */
static int onwards, failed;

void *__real_malloc(size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *memory);

static int refuses(void) {
    if (left > 0 && --left == 0) {
        failed = 1;
        left = onwards;
        return 1;
    }
    return 0;
}

static void *take(size_t size, uint64_t owner) {
    if (refuses()) return NULL;
    struct block *block = __real_malloc(sizeof *block + size);
    assert_non_null(block);
    *block = (struct block){owner, sizeof *block};
    live++;
    return block + 1;
}

static void give(void *memory, uint64_t owner) {
    if (!memory) return;
    struct block *block = (struct block *)memory - 1;
    assert_true(block->owner == owner);
    block->owner = 0;
    live--;
    __real_free((char *)memory - block->lead);
}

void *__wrap_malloc(size_t size) { return take(size, LIBRARY); }
void __wrap_free(void *memory) { give(memory, LIBRARY); }

void *__wrap_calloc(size_t count, size_t size) {
    void *memory = take(count * size, LIBRARY);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size) {
    if (refuses()) return NULL;
    struct block *old = memory ? (struct block *)memory - 1 : NULL;
    if (old) assert_true(old->owner == LIBRARY);
    struct block *block = __real_realloc(old, sizeof *block + size);
    assert_non_null(block);
    *block = (struct block){LIBRARY, sizeof *block};
    live += !old;
    return block + 1;
}

int __real_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    char *base;
    if (refuses()) return 12; /* ENOMEM */
    assert_int_equal(__real_posix_memalign((void **)&base, alignment, alignment + size), 0);
    ((struct block *)(void *)(base + alignment))[-1] = (struct block){LIBRARY, alignment};
    live++;
    *memory = base + alignment;
    return 0;
}

char *__wrap_strdup(const char *text) {
    char *copy = take(strlen(text) + 1, LIBRARY);
    return copy ? strcpy(copy, text) : NULL;
}

static void *jansson_malloc(size_t size) { return take(size, JANSSON); }
static void jansson_free(void *memory) { give(memory, JANSSON); }

/* ---- what is asked of a call ---- */

static char out[1 << 20]; /* what a call wrote */
static size_t used;
static int writes;

static int collect(void *cookie, const char *bytes, size_t size) {
    (void)cookie;
    assert_true(used + size < sizeof out);
    memcpy(out + used, bytes, size);
    used += size;
    out[used] = 0;
    writes++;
    return 0;
}

struct walk {
    const char *name;
    void *(*open)(const void *about); /* what the call is made on; NULL: nothing */
    tp_status (*call)(void *subject, const void *about, tp_error *error);
    /* What there is to see afterwards, written to collect; `status` is the call's. */
    void (*show)(void *subject, const void *about, tp_status status);
    void (*close)(void *subject);
    int no_text; /* it takes no tp_error */
};

static tp_status once(const struct walk *walk, const void *about, long n, int all, tp_error *error, char *seen) {
    long before = live;
    used = 0, writes = 0, out[0] = 0;
    void *subject = walk->open ? walk->open(about) : NULL;
    *error = (tp_error)TP_ERROR_INIT;
    failed = 0, onwards = all, left = n;
    tp_status status = walk->call(subject, about, error);
    left = 0;
    if (status == TP_NO_MEMORY) assert_int_equal(writes, 0);
    if (walk->show) walk->show(subject, about, status);
    if (walk->close) walk->close(subject);
    if (live != before) fail_msg("%s: %ld blocks lost at allocation %ld", walk->name, live - before, n);
    memcpy(seen, out, used + 1);
    return status;
}

/* How many allocations the call makes. */
static long exhaust(const struct walk *walk, const void *about, tp_status expected) {
    static char good[sizeof out], seen[sizeof out], unchanged[sizeof out];
    tp_error error;
    long n = 1;
    tp_status status = once(walk, about, 0, 0, &error, good);
    if (status != expected) fail_msg("%s: %s", walk->name, error.text);
    unchanged[0] = 0;
    if (walk->show) { /* as if the call had not been made */
        void *subject = walk->open ? walk->open(about) : NULL;
        used = 0, out[0] = 0;
        walk->show(subject, about, TP_NO_MEMORY);
        memcpy(unchanged, out, used + 1);
        if (walk->close) walk->close(subject);
    }
    for (int all = 0; all < 2; all++)
        for (n = 1;; n++) {
            status = once(walk, about, n, all, &error, seen);
            if (!failed) break;
            if (status != TP_NO_MEMORY && status != expected)
                fail_msg("%s: allocation %ld fails, and the status is %s: %s", walk->name, n, tp_status_name(status),
                         error.text);
            if (status == TP_NO_MEMORY && !walk->no_text)
                assert_true(error.status == TP_NO_MEMORY && strstr(error.text, "memory"));
            if (strcmp(seen, status == TP_NO_MEMORY ? unchanged : good))
                fail_msg("%s: allocation %ld fails with %s, and there is another result:\n%s\ninstead of\n%s", walk->name,
                         n, tp_status_name(status), seen, status == TP_NO_MEMORY ? unchanged : good);
        }
    assert_true(status == expected && !strcmp(seen, good));
    return n - 1;
}

/* ---- models ---- */

struct config {
    char *text;
    size_t size;
    const char *name;
};

static tp_status call_parse(void *subject, const void *about, tp_error *error) {
    const struct config *config = about;
    return tp_model_parse(config->text, config->size, config->name, subject, error);
}

static void *open_nothing(const void *about) {
    static tp_model *model;
    (void)about;
    model = NULL;
    return &model;
}

static void show_model(void *subject, const void *about, tp_status status) {
    tp_model *model = *(tp_model **)subject;
    (void)about;
    assert_true((status == TP_OK) == (model != NULL));
    if (!model) return;
    assert_int_equal(tp_model_write(model, TP_JSON, collect, NULL), TP_OK);
    collect(NULL, model->config_hash, 64);
}

static void close_model(void *subject) { tp_model_destroy(*(tp_model **)subject); }

static tp_model *parsed(const struct config *config) {
    tp_model *model;
    tp_error error = TP_ERROR_INIT;
    if (tp_model_parse(config->text, config->size, config->name, &model, &error) != TP_OK) fail_msg("%s", error.text);
    return model;
}

static void *open_model(const void *about) { return parsed(about); }
static void close_parsed(void *subject) { tp_model_destroy(subject); }

static tp_status call_write_json(void *subject, const void *about, tp_error *error) {
    (void)about, (void)error;
    return tp_model_write(subject, TP_JSON, collect, NULL);
}

static tp_status call_write_text(void *subject, const void *about, tp_error *error) {
    (void)about, (void)error;
    return tp_model_write(subject, TP_TEXT, collect, NULL);
}

static tp_status call_cells(void *subject, const void *about, tp_error *error) {
    static tp_cell cells[TP_MAX_GROUP_CELLS];
    const tp_model *model = subject;
    int count;
    (void)about;
    for (int g = 0; g < model->group_count; g++) {
        char layers[8 * TP_MODEL_MAX_LAYERS], formula[96];
        tp_status status = tp_layer_group_cells(model->groups[g], TP_QUALIFY_ALL, 0, TP_BF16, 16, cells,
                                                TP_MAX_GROUP_CELLS, &count, error);
        if (status != TP_OK) return status;
        assert_int_equal(tp_layer_group_layers(model->groups[g], layers, sizeof layers), TP_OK);
        assert_int_equal(tp_layer_group_formula(model->groups[g], formula, sizeof formula), TP_OK);
    }
    return TP_OK;
}

static const struct walk parse = {"tp_model_parse", open_nothing, call_parse, show_model, close_model, 0};
static const struct walk write_json = {"tp_model_write JSON", open_model, call_write_json, NULL, close_parsed, 1};
static const struct walk write_text = {"tp_model_write text", open_model, call_write_text, NULL, close_parsed, 1};
static const struct walk cells_of = {"tp_layer_group_cells", open_model, call_cells, NULL, close_parsed, 0};

static struct config read_config(const char *folder, const char *name) {
    char path[512];
    struct config config = {.name = "models/a.json"};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    config.text = malloc(1 << 20);
    config.size = fread(config.text, 1, 1 << 20, file);
    assert_true(config.size > 0 && config.size < 1 << 20);
    fclose(file);
    return config;
}

static void every_shipped_model(void **state) {
    int count = 0;
    DIR *folder = opendir(TILEPROOF_MODELS);
    (void)state;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strstr(entry->d_name, ".json") || (getenv("TILEPROOF_TEST_QUICK") && count++ % 8)) continue;
        struct config config = read_config(TILEPROOF_MODELS, entry->d_name);
        assert_true(exhaust(&parse, &config, TP_OK) > 20);
        assert_true(exhaust(&write_json, &config, TP_OK) > 20);
        assert_true(exhaust(&write_text, &config, TP_OK) > 1);
        exhaust(&cells_of, &config, TP_OK);
        free(config.text);
    }
    closedir(folder);
}

/* Long tokens, every escape, keys that are ignored, layers without attention; and what is refused with memory. */
static void made_models(void **state) {
    static const struct {
        const char *text;
        tp_status status;
    } texts[] = {
        {"{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3,7,9-1023/2\", \"problem\": \"h4/2 d64 f32 causal "
         "window=1023,0 softcap=50 spans\"}, {\"layers\": \"4\", \"out_of_scope\": \"mamba\"}]}", TP_OK},
        {"{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_attention_heads\":32,\"num_hidden_layers\":3,"
         "\"_name_or_path\":\"a name of more than sixty-four bytes, with \\u00e9\\ud83d\\ude00\\n\\t\\\\ in it, so that its "
         "buffer has to grow\",\"rms_norm_eps\":0.000009999999747378751635551452636718750,\"_tileproof_ignore\":"
         "[\"a_key_that_nobody_knows_at_all\"],\"a_key_that_nobody_knows_at_all\":[1,[2,{\"x\":null}],true,false]}", TP_OK},
        {"{\"model_type\":\"rwkv\",\"num_hidden_layers\":24}", TP_OK},
        {"{\"model_type\":\"llama\",\"hidden_size\":\"many, and more than can be shown in an error text of this size\"}", TP_INVALID},
        {"{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_attention_heads\":32,\"num_hidden_layers\":3,\"strange\":"
         "[1,2,3]}", TP_UNSUPPORTED},
        {"{\"model_type\":\"a model type that nobody has ever heard of\"}", TP_UNSUPPORTED},
        {"{\"a\":\"a string that does not end, however long it is read", TP_INVALID},
        {"{\"a\":1,\"a\":2}", TP_INVALID},
        {"[1,2,[3]]", TP_INVALID},
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct config config = {(char *)(uintptr_t)texts[i].text, strlen(texts[i].text), "made"};
        exhaust(&parse, &config, texts[i].status);
        if (texts[i].status != TP_OK) continue;
        exhaust(&write_json, &config, TP_OK);
        exhaust(&write_text, &config, TP_OK);
    }
}

/* ---- locks ---- */

static char model_text[] =
    "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"problem\": \"h4/2 d64 f32 causal\"}]}";
static const struct config model_config = {model_text, sizeof model_text - 1, "a/model.json"};
static tp_cell cell_list[TP_MAX_GROUP_CELLS];
static int cell_count;
enum { LISTED = 16 }; /* where a list of jansson's is full, so that one more makes it grow */
static tp_identity identity;

static tp_identity other_identity(const char *isa, const char *cpu) {
    tp_identity other = identity;
    if (isa) strcpy(other.isa, isa);
    if (cpu) strcpy(other.cpu, cpu);
    return other;
}

/* A lock with a model, its cells and one that no model uses any more. */
static tp_lock *full_lock(int finished) {
    tp_model *model = parsed(&model_config);
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock;
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    assert_int_equal(tp_lock_put_model(lock, "model.json", model->config_hash, &error), TP_OK);
    for (int i = 0; i < cell_count; i++) {
        if (i < cell_count - 1)
            assert_int_equal(tp_lock_put_use(lock, "model.json", model->groups[0], &cell_list[i], &error), TP_OK);
        assert_int_equal(tp_lock_put_cell(lock, identity.isa, &cell_list[i], &error), TP_OK);
    }
    if (finished) assert_int_equal(tp_lock_finish(lock, &identity, "2026-11-16", "first", &error), TP_OK);
    tp_model_destroy(model);
    return lock;
}

static void *open_lock(const void *about) {
    (void)about;
    return full_lock(1);
}

static void *open_unfinished(const void *about) {
    (void)about;
    return full_lock(0);
}

static void close_lock(void *subject) { tp_lock_destroy(subject); }

/* As it is, and as it will be: what was put is counted by its next finish. */
static void show_lock(void *subject, const void *about, tp_status status) {
    tp_error error = TP_ERROR_INIT;
    (void)about, (void)status;
    assert_int_equal(tp_lock_write(subject, collect, NULL), TP_OK);
    assert_int_equal(tp_lock_finish(subject, &identity, "2026-11-18", "to see the counts", &error), TP_OK);
    assert_int_equal(tp_lock_write(subject, collect, NULL), TP_OK);
}

static tp_status call_write_lock(void *subject, const void *about, tp_error *error) {
    (void)about, (void)error;
    return tp_lock_write(subject, collect, NULL);
}

static tp_status call_put_model(void *subject, const void *about, tp_error *error) {
    return tp_lock_put_model(subject, about, "0123456789abcdef0123456789abcdef", error);
}

static tp_status call_put_cell(void *subject, const void *about, tp_error *error) {
    tp_cell cell = cell_list[1];
    cell.bytes = 77;
    if (!strcmp(about, "new")) strcpy(cell.problem, "b1 h1/1 q7 k7 d8 f32 causal");
    return tp_lock_put_cell(subject, !strcmp(about, "isa") ? "neon" : identity.isa, &cell, error);
}

static tp_model *use_model; /* outside of what is counted */
static tp_status call_put_use(void *subject, const void *about, tp_error *error) {
    tp_layer_group group = *use_model->groups[0];
    tp_cell cell = cell_list[1];
    if (!strcmp(about, "group")) group.part = TP_PART_VISION;
    if (!strcmp(about, "phase")) cell.phase = TP_QUALIFY_MULTIMODAL;
    return tp_lock_put_use(subject, "model.json", &group, &cell, error);
}

static tp_status call_finish(void *subject, const void *about, tp_error *error) {
    const char *what = about;
    tp_identity now = other_identity(!strcmp(what, "isa") ? "neon" : NULL, !strcmp(what, "host") ? "other" : NULL);
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
    if (lock) assert_int_equal(tp_lock_write(lock, collect, NULL), TP_OK);
}

static void close_pointer(void *subject) { tp_lock_destroy(*(tp_lock **)subject); }

static tp_status call_asked(void *subject, const void *about, tp_error *error) {
    tp_lock_use use;
    tp_cell cell;
    char why[256];
    (void)about, (void)error;
    assert_int_equal(tp_lock_cell_at(subject, identity.isa, 0, &cell), TP_OK);
    assert_int_equal(tp_lock_use_at(subject, 0, &use), TP_OK);
    assert_int_equal(tp_lock_cell_find(subject, identity.isa, use.problem, &cell), TP_OK);
    return tp_lock_fresh(subject, &identity, why, sizeof why);
}

static const struct walk lock_create = {"tp_lock_create", open_pointer, call_create, show_pointer, close_pointer, 0};
static const struct walk lock_parse = {"tp_lock_parse", open_pointer, call_parse_lock, show_pointer, close_pointer, 0};
static const struct walk lock_write = {"tp_lock_write", open_lock, call_write_lock, NULL, close_lock, 1};
static const struct walk lock_asked = {"tp_lock_cell_at and others", open_lock, call_asked, show_lock, close_lock, 0};
static const struct walk put_model = {"tp_lock_put_model", open_lock, call_put_model, show_lock, close_lock, 0};
static const struct walk put_use = {"tp_lock_put_use", open_lock, call_put_use, show_lock, close_lock, 0};
static const struct walk put_cell = {"tp_lock_put_cell", open_lock, call_put_cell, show_lock, close_lock, 0};
static const struct walk put_cell_first = {"tp_lock_put_cell, first", open_unfinished, call_put_cell, show_lock, close_lock, 0};
static const struct walk finish_first = {"tp_lock_finish, first", open_unfinished, call_finish, show_lock, close_lock, 0};
static const struct walk finish_again = {"tp_lock_finish, again", open_lock, call_finish, show_lock, close_lock, 0};

static void locks(void **state) {
    static char whole[sizeof out];
    static const char *const finishes[] = {"", "isa", "host"};
    (void)state;
    exhaust(&lock_create, NULL, TP_OK);
    tp_lock *lock = full_lock(1);
    used = 0;
    assert_int_equal(tp_lock_write(lock, collect, NULL), TP_OK);
    tp_lock_destroy(lock);
    memcpy(whole, out, used + 1);
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
}

/* ---- cells and preflight ---- */

static tp_status call_cell_write(void *subject, const void *about, tp_error *error) {
    (void)subject, (void)error;
    return tp_cell_write(about, 1, collect, NULL);
}

static tp_status call_cell_parse(void *subject, const void *about, tp_error *error) {
    (void)subject;
    tp_cell cell;
    return tp_cell_parse(about, strlen(about), "t.journal", 7, &cell, error);
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

static tp_status call_preflight(void *subject, const void *about, tp_error *error) {
    return tp_preflight(subject, about, use_model, "engine=1", error);
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
    collect(NULL, text, strlen(text));
    size_t from = used;
    assert_int_equal(tp_metrics_write(subject, collect, NULL), TP_OK);
    char *lock = strstr(out + from, "\ntileproof_lock_");
    assert_non_null(lock);
    size_t kept = from;
    for (char *line = out + from; line && *line;) { /* the lines on the lock alone: others count what was refused */
        char *end = strchr(line, '\n');
        size_t size = end ? (size_t)(end + 1 - line) : strlen(line);
        if (!strncmp(line, "tileproof_lock_", 15)) {
            memmove(out + kept, line, size);
            kept += size;
        }
        line = end ? end + 1 : NULL;
    }
    used = kept;
    out[used] = 0;
}

static tp_status call_identity(void *subject, const void *about, tp_error *error) {
    tp_identity now;
    (void)subject;
    return tp_identity_detect(about, &now, error);
}

static const struct walk cell_write = {"tp_cell_write", NULL, call_cell_write, NULL, NULL, 1};
static const struct walk cell_parse = {"tp_cell_parse", NULL, call_cell_parse, NULL, NULL, 0};
static const struct walk preflight = {"tp_preflight", open_context, call_preflight, show_context, close_context, 0};
static const struct walk identity_of = {"tp_identity_detect", NULL, call_identity, NULL, NULL, 0};

static void cells_and_preflight(void **state) {
    static char line[8192];
    (void)state;
    assert_true(exhaust(&cell_write, &cell_list[1], TP_OK) > 20);
    used = 0;
    assert_int_equal(tp_cell_write(&cell_list[1], 1, collect, NULL), TP_OK);
    memcpy(line, out, used + 1);
    assert_true(exhaust(&cell_parse, line, TP_OK) > 20);
    exhaust(&cell_parse, "{\"problem\":7}", TP_INVALID);
    exhaust(&identity_of, "b=2,a=1", TP_OK);
    tp_lock *lock = full_lock(1);
    assert_true(exhaust(&preflight, lock, TP_OK) > 5);
    tp_lock_destroy(lock);
}

static int prepare(void **state) {
    tp_error error = TP_ERROR_INIT;
    (void)state;
    json_set_alloc_funcs(jansson_malloc, jansson_free);
    assert_int_equal(tp_identity_detect("engine=1", &identity, &error), TP_OK);
    use_model = parsed(&model_config);
    assert_int_equal(tp_layer_group_cells(use_model->groups[0], TP_QUALIFY_ALL, 1, TP_BF16, 16, cell_list,
                                          TP_MAX_GROUP_CELLS, &cell_count, &error), TP_OK);
    tp_context *context;
    assert_int_equal(tp_context_create(NULL, &context, &error), TP_OK);
    for (int i = 0; i < LISTED; i++) {
        tp_problem problem;
        tp_lengths lengths = {.struct_size = sizeof lengths};
        tp_decision *decision;
        if (i >= cell_count) {
            cell_list[i] = cell_list[0];
            snprintf(cell_list[i].problem, sizeof cell_list[i].problem, "b1 h4/2 q9 k%d d64 f32 causal", 100 + i);
        }
        assert_int_equal(tp_problem_parse(cell_list[i].problem, &problem, &lengths, &error), TP_OK);
        assert_int_equal(tp_explain(context, &problem, NULL, &decision, &error), TP_OK);
        strcpy(cell_list[i].kernel, tp_decision_candidate(decision, decision->chosen)->kernel);
        tp_decision_destroy(decision);
        cell_list[i].status = TP_CELL_QUALIFIED;
        cell_list[i].error = 1.25e-7 / 3;
        cell_list[i].bytes = 1000 + i;
    }
    tp_context_destroy(context);
    cell_count = LISTED;
    return 0;
}

static int end(void **state) {
    (void)state;
    tp_model_destroy(use_model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shipped_model),
        cmocka_unit_test(made_models),
        cmocka_unit_test(locks),
        cmocka_unit_test(cells_and_preflight),
    };
    return cmocka_run_group_tests(tests, prepare, end);
}
