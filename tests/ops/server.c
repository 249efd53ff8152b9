/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server of two models, in each state of an incident: what the library says of itself then is what the alerts of ops/ get.
 * Of 250 calls one is of the model `small`; its new revision has a head dim that no fused kernel serves.
 *
 *     ops_server write DIR    the metrics of each state, as DIR/STATE.prom; DIR/caches.prom of a context with two KV caches, and
 *                             DIR/joined.prom, which is wrong: a text of each
 *     ops_server serve        metrics by HTTP on 127.0.0.1, whose port it prints; each request of them is preceded by some calls.
 *                             A line on standard input, old or new, says which revision of `small` is served; its end ends all
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tileproof_cache.h"
#include "tileproof_proof.h"

#define VERSIONS "server=1.0"
enum { SMALL_CALLS = 8, BIG_CALLS = 249 * SMALL_CALLS };

static void check(tp_status status, const tp_error *error) {
    if (status == TP_OK) return;
    fprintf(stderr, "ops_server: %s: %s\n", tp_status_name(status), error->text);
    exit(1);
}

/* ---- models and locks ---- */

#define CONFIG(dim)                                                                              \
    "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"max_positions\": 256, \"problem\": " \
    "\"h4/2 " dim " f32 causal\"}]}"

enum { BIG, OLD, NEW, UNKNOWN, MODELS };
static const struct {
    const char *config, *name;
} configs[MODELS] = {{CONFIG("d32"), "big/big.json"},
                     {CONFIG("d64"), "small/small.json"},
                     {CONFIG("d640"), "small/small.json"},
                     {CONFIG("d48"), "unknown/unknown.json"}};
static tp_model *model[MODELS];
static tp_lock *good, *failed; /* failed: a cell of small has not passed */

/* What was seen once more, but for one cell. */
static tp_qualification *with_a_fault(const tp_qualification *seen, tp_model *of, const tp_qualify_options *options) {
    tp_error error = TP_ERROR_INIT;
    tp_qualification *q;
    const tp_cell *one;
    check(tp_qualify_create(&of, 1, options, &q, &error), &error);
    for (int64_t i = 0; (one = tp_qualification_cell(seen, i)); i++) {
        tp_cell cell = *one;
        cell.struct_size = sizeof cell;
        if (i == 0) cell.status = TP_CELL_NUMERIC_FAIL, cell.reason = "made up";
        check(tp_qualify_restore(q, &cell, &error), &error);
    }
    return q;
}

static tp_lock *qualify(tp_context *context, int fails) {
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_qualify_run_options run = TP_QUALIFY_RUN_OPTIONS_INIT;
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_identity *here;
    tp_lock *lock;
    options.quick = 1;
    update.date = "2026-11-17";
    update.reason = "first";
    check(tp_identity_detect(VERSIONS, &here, &error), &error);
    check(tp_lock_create(&lock, &error), &error);
    for (int i = BIG; i <= OLD; i++) { /* one after the other: each is asked for by itself */
        tp_qualification *q;
        check(tp_qualify_create(&model[i], 1, &options, &q, &error), &error);
        check(tp_qualify_run(q, context, &run, &error), &error);
        if (fails && i == OLD) {
            tp_qualification *faulty = with_a_fault(q, model[i], &options);
            tp_qualification_destroy(q);
            q = faulty;
        }
        check(tp_qualify_update(q, lock, here, &update, &error), &error);
        tp_qualification_destroy(q);
    }
    tp_identity_destroy(here);
    return lock;
}

static tp_context *new_context(int policy) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    options.policy = policy;
    options.threads = 1;
    check(tp_context_create(&options, &context, &error), &error);
    return context;
}

static void set_up(void) {
    tp_error error = TP_ERROR_INIT;
    for (int i = 0; i < MODELS; i++)
        check(tp_model_parse(configs[i].config, strlen(configs[i].config), configs[i].name, &model[i], &error), &error);
    tp_context *context = new_context(TP_REFUSE);
    good = qualify(context, 0);
    failed = qualify(context, 1);
    tp_context_destroy(context);
}

/* ---- calls ---- */

/* So many calls of a problem, on tensors of small numbers. */
static void attend(tp_context *context, const char *text, const char *name, int times) {
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_tensors tensors;
    tp_tags tags = TP_TAGS_INIT;
    check(tp_problem_parse(text, &problem, NULL, &error), &error);
    size_t q = (size_t)(problem.q_len * problem.q_heads * problem.head_dim_qk);
    size_t k = (size_t)(problem.kv_len * problem.kv_heads * problem.head_dim_qk);
    float *memory = calloc(2 * q + 2 * k, sizeof *memory);
    if (!memory) exit(1);
    for (size_t i = 0; i < q + 2 * k; i++) memory[i] = (float)(i % 7) / 7;
    tp_tensors_init(&tensors, &problem, memory, memory + q, memory + q + k, memory + q + 2 * k);
    tags.model = name;
    tensors.tags = &tags;
    while (times-- > 0) {
        tp_status status = tp_attention(context, &problem, NULL, &tensors, NULL, &error);
        if (status != TP_NOT_LOCKED) check(status, &error); /* what the lock does not have is refused: part of the story */
    }
    free(memory);
}

static const char old_call[] = "h4/2 q64 k64 d64 f32 causal", new_call[] = "h4/2 q256 k256 d640 f32 causal";
static const char big_call[] = "h4/2 q1 k64 d32 f32 causal", wide_call[] = "h4/2 q512 k512 d512 f32 causal";

static void traffic(tp_context *context, const char *small_call, int parts) {
    attend(context, big_call, "big", BIG_CALLS / parts);
    attend(context, small_call, "small", SMALL_CALLS / parts);
}

/* ---- states ---- */

struct state {
    const char *name;
    int policy;
    tp_lock *const *lock; /* what preflight of small gets */
    tp_model *const *model;
    const char *declared;
    const char *small_call; /* NULL: preflight refused, and the server took no request */
    const char *more_call;
    int64_t canary;
};
static tp_lock *const no_lock = NULL;
static tp_model *const no_model = NULL;
static const struct state states[] = {
    {"before", TP_LOCKED, &good, &model[OLD], VERSIONS, old_call, NULL, 0},
    /* the new revision, served all the same, and refused */
    {"new-served", TP_SERVE, &good, &model[NEW], VERSIONS, new_call, NULL, 0},
    {"new-refused", TP_LOCKED, &good, &model[NEW], VERSIONS, new_call, NULL, 0},
    /* each end of preflight */
    {"stale", TP_LOCKED, &good, &model[OLD], "server=2.0", NULL, NULL, 0},
    {"other-config", TP_LOCKED, &good, &model[NEW], VERSIONS, NULL, NULL, 0},
    {"unknown-model", TP_LOCKED, &good, &model[UNKNOWN], VERSIONS, NULL, NULL, 0},
    {"refused", TP_LOCKED, &failed, &model[OLD], VERSIONS, NULL, NULL, 0},
    {"unreadable", TP_LOCKED, &no_lock, &model[OLD], VERSIONS, NULL, NULL, 0},
    {"unreadable-config", TP_LOCKED, &good, &no_model, VERSIONS, NULL, NULL, 0},
    {"failed", TP_LOCKED, &good, &model[OLD], "no version", NULL, NULL, 0},
    /* a shape that takes more workspace than any cell, of a model that nobody asked about */
    {"scratch", TP_SERVE, &good, &model[OLD], VERSIONS, old_call, wide_call, 0},
    /* a canary passed an hour after time began */
    {"canary", TP_LOCKED, &good, &model[OLD], VERSIONS, old_call, NULL, 3600},
};

static void preflight(tp_context *context, const struct state *s) {
    tp_error error = TP_ERROR_INIT;
    check(tp_preflight(context, good, model[BIG], VERSIONS, &error), &error);
    tp_preflight(context, *s->lock, *s->model, s->declared, &error);
    if (s->canary == 0) return;
    tp_lock_state known = {.struct_size = sizeof known, .status = TP_LOCK_MATCHES, .canary_success = s->canary};
    known.model = model[OLD]->label;
    check(tp_context_lock_state(context, &known, &error), &error);
}

static int to_file(void *cookie, const char *bytes, size_t size) { return fwrite(bytes, 1, size, cookie) != size; }

static void write_state(const struct state *s, const char *folder) {
    char path[4096];
    tp_context *context = new_context(s->policy);
    preflight(context, s);
    if (s->small_call) traffic(context, s->small_call, 1);
    if (s->more_call) attend(context, s->more_call, "wide", SMALL_CALLS);
    snprintf(path, sizeof path, "%s/%s.prom", folder, s->name);
    FILE *file = fopen(path, "w");
    if (!file || tp_metrics_write(context, to_file, file) != TP_OK || fclose(file)) {
        perror(path);
        exit(1);
    }
    tp_context_destroy(context);
}

/* ---- KV caches ---- */

/* One token of numbers is in it, of which one is not a number. */
static tp_cache *new_cache(const char *name) {
    tp_cache_layer layer = {1, 32, 32, TP_I8, TP_I8, 0, 0, TP_SCALES_TOKEN, TP_SCALES_TOKEN, 0, 0};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_cache_rows rows = TP_CACHE_ROWS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_cache *cache;
    float k[32] = {1, 2, 3}, v[32] = {0, __builtin_nanf("")};
    int64_t sequence, one = 1;
    options.layers = &layer, options.layer_count = 1, options.bytes = 1 << 16, options.sequences = 2;
    options.sequence_tokens = 64, options.name = name;
    check(tp_cache_create(&options, &cache, &error), &error);
    check(tp_cache_open(cache, &sequence, &error), &error);
    check(tp_cache_extend(cache, 1, &sequence, &one, &error), &error);
    rows.dtype = TP_F32, rows.count = 1, rows.sequences = &sequence, rows.tokens = &one, rows.k.data = k, rows.v.data = v;
    check(tp_cache_append(cache, 0, &rows, &error), &error);
    return cache;
}

static void write_caches(const char *folder) {
    tp_cache *caches[2] = {new_cache("self \"a\""), new_cache("cross")};
    tp_context *context = new_context(TP_SERVE);
    tp_error error = TP_ERROR_INIT;
    for (int joined = 0; joined < 2; joined++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.prom", folder, joined ? "joined" : "caches");
        FILE *file = fopen(path, "w");
        if (!file || tp_metrics_write(context, to_file, file) != TP_OK) exit(1);
        if (!joined) check(tp_cache_metrics_write_all((const tp_cache *const *)caches, 2, to_file, file, &error), &error);
        for (int i = 0; joined && i < 2; i++) check(tp_cache_metrics_write(caches[i], to_file, file), &error);
        if (fclose(file)) exit(1);
    }
    tp_context_destroy(context);
    for (int i = 0; i < 2; i++) tp_cache_destroy(caches[i]);
}

/* ---- HTTP ---- */

static void answer(tp_context *context, int connection) {
    char request[4096];
    ssize_t got = read(connection, request, sizeof request - 1);
    FILE *stream = got > 0 ? fdopen(connection, "w") : NULL;
    if (!stream) {
        close(connection);
        return;
    }
    fputs("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n", stream);
    tp_metrics_write(context, to_file, stream);
    fclose(stream);
}

static int listen_here(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&address, &size)) {
        perror("ops_server: 127.0.0.1");
        exit(1);
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void serve(void) {
    tp_context *context = new_context(TP_SERVE);
    const struct state *now = &states[0];
    int listener = listen_here();
    preflight(context, now);
    for (;;) {
        char line[64];
        struct pollfd ready[2] = {{.fd = 0, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
        if (poll(ready, 2, -1) < 0) exit(1);
        if (ready[0].revents) {
            ssize_t got = read(0, line, sizeof line - 1);
            if (got <= 0) break;
            now = &states[!strncmp(line, "new", 3)];
            preflight(context, now);
        }
        if (ready[1].revents) {
            int connection = accept(listener, NULL, NULL);
            traffic(context, now->small_call, 4);
            if (connection >= 0) answer(context, connection);
        }
    }
    tp_context_destroy(context);
    close(listener);
}

int main(int count, char **arguments) {
    int writes = count == 3 && !strcmp(arguments[1], "write");
    if (!writes && (count != 2 || strcmp(arguments[1], "serve"))) {
        fprintf(stderr, "usage: ops_server write DIR | serve\n");
        return 2;
    }
    set_up();
    for (size_t i = 0; writes && i < sizeof states / sizeof *states; i++) write_state(&states[i], arguments[2]);
    if (writes) write_caches(arguments[2]);
    if (!writes) serve();
    for (int i = 0; i < MODELS; i++) tp_model_destroy(model[i]);
    tp_lock_destroy(good);
    tp_lock_destroy(failed);
    return 0;
}
