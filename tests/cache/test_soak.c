/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small server: requests come and go, tokens are appended to pages through hand-made tables, each step is
 * one mixed call of prefill chunks, drafts and single tokens. Rows are compared with the reference, pages
 * that nobody owns hold NaN, and a step is now and then repeated on more tasks or as single calls for the
 * same bits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/parallel.h"

enum {
    SEQUENCES = 6,
    PAGES = 160,
    PAGE = 8, /* tokens */
    SLOTS = 40,
    HEADS = 6,
    KV_HEADS = 2,
    DIM = 20,
    ROWS_MAX = SEQUENCES * 48,
    STEPS = 3000
};

typedef struct request {
    int64_t length; /* tokens in the cache; 0: free */
    int64_t new_rows;
} request;

typedef struct server {
    uint64_t random;
    request requests[SEQUENCES];
    int owned[PAGES];
    int32_t k_pages[SEQUENCES][SLOTS], v_pages[SEQUENCES][SLOTS];
    float k[PAGES][PAGE][KV_HEADS][DIM], v[PAGES][KV_HEADS][PAGE][DIM]; /* NHD and HND */
    float q[ROWS_MAX][HEADS][DIM], o[ROWS_MAX][HEADS][DIM], again[ROWS_MAX][HEADS][DIM];
    float lse[ROWS_MAX][HEADS];
    int32_t cu[SEQUENCES + 1], lens[SEQUENCES];
} server;

static uint64_t next(server *s, uint64_t below) {
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (s->random >> 33) % below;
}

static float value(server *s) { return (float)next(s, 4096) * 0x1p-10f - 2.0f; }

static int take_page(server *s) {
    for (;;) {
        int page = (int)next(s, PAGES);
        if (!s->owned[page]) return s->owned[page] = 1, page;
    }
}

static void poison_page(server *s, int page) {
    s->owned[page] = 0;
    memset(s->k[page], 0xff, sizeof s->k[page]);
    memset(s->v[page], 0xff, sizeof s->v[page]);
}

/* K and V have pages of their own, as many as the pool has room for: 80 each. */
static void append(server *s, int r) {
    request *one = &s->requests[r];
    int64_t slot = one->length / PAGE, token = one->length % PAGE;
    if (token == 0) {
        s->k_pages[r][slot] = take_page(s);
        s->v_pages[r][slot] = take_page(s);
    }
    for (int h = 0; h < KV_HEADS; h++)
        for (int x = 0; x < DIM; x++) {
            s->k[s->k_pages[r][slot]][token][h][x] = value(s);
            s->v[s->v_pages[r][slot]][h][token][x] = value(s);
        }
    one->length++;
}

static void finish(server *s, int r) {
    for (int64_t slot = 0; slot * PAGE < s->requests[r].length; slot++) {
        poison_page(s, s->k_pages[r][slot]);
        poison_page(s, s->v_pages[r][slot]);
        s->k_pages[r][slot] = s->v_pages[r][slot] = -1;
    }
    s->requests[r] = (request){0, 0};
}

static int64_t free_pages(const server *s) {
    int64_t n = 0;
    for (int i = 0; i < PAGES; i++) n += !s->owned[i];
    return n;
}

/* Chooses each request's part in the step and appends its tokens; returns the rows of all. */
static int64_t advance(server *s) {
    int64_t rows = 0;
    for (int r = 0; r < SEQUENCES; r++) {
        request *one = &s->requests[r];
        int64_t want = one->length == 0 ? 1 + (int64_t)next(s, 47) : next(s, 5) == 0 ? 1 + (int64_t)next(s, 8) : 1;
        if (next(s, 8) == 0) want = 0;
        if (one->length + want > SLOTS * PAGE || free_pages(s) < 2 * (want / PAGE + 2) || next(s, 60) == 0) {
            finish(s, r);
            want = 0;
        }
        for (int64_t i = 0; i < want; i++) append(s, r);
        one->new_rows = want;
        s->cu[r] = (int32_t)rows;
        s->lens[r] = (int32_t)one->length;
        rows += want;
    }
    s->cu[SEQUENCES] = (int32_t)rows;
    for (int64_t i = 0; i < rows; i++)
        for (int h = 0; h < HEADS; h++)
            for (int x = 0; x < DIM; x++) s->q[i][h][x] = value(s);
    return rows;
}

static tp_tensors tensors_of(server *s, const tp_problem *problem, int64_t rows, void *o) {
    tp_tensors t;
    tp_tensors_init(&t, problem, s->q, s->k, s->v, o);
    t.q_tokens = rows;
    t.cu_seqlens_q = s->cu;
    t.kv_lens = s->lens;
    t.k_pages = s->k_pages;
    t.v_pages = s->v_pages;
    t.page_slots = SLOTS;
    t.pages = PAGES;
    t.k.stride[0] = PAGE * KV_HEADS * DIM;
    t.v = (tp_tensor){s->v, {KV_HEADS * PAGE * DIM, DIM, PAGE * DIM}};
    t.lse = (tp_tensor){s->lse, {0, HEADS, 1}};
    return t;
}

static void check_rows(server *s, const tp_problem *problem, const tp_tensors *t, int64_t rows) {
    tp_row row[4];
    double o[4][DIM], lse[4], bound[4], lse_bound[4];
    tp_error error = TP_ERROR_INIT;
    for (int i = 0; i < 4; i++) {
        int64_t at = (int64_t)next(s, (uint64_t)rows), seq = 0;
        while (s->cu[seq + 1] <= at) seq++;
        row[i] = (tp_row){seq, (int64_t)next(s, HEADS), at - s->cu[seq]};
    }
    if (tp_reference(problem, t, TP_DOUBLE, TP_ARITHMETIC_F32, 4, row, o[0], lse, bound, lse_bound, &error))
        fail_msg("%s", error.text);
    for (int i = 0; i < 4; i++) {
        int64_t at = s->cu[row[i].seq] + row[i].row;
        for (int x = 0; x < DIM; x++)
            if (!(fabs(s->o[at][row[i].head][x] - o[i][x]) <= bound[i]))
                fail_msg("row %d of sequence %d: %g, not %g", (int)row[i].row, (int)row[i].seq,
                         (double)s->o[at][row[i].head][x], o[i][x]);
        assert_true(fabs(s->lse[at][row[i].head] - lse[i]) <= lse_bound[i]);
    }
}

/* The same call by a plan, on three tasks that the caller's own threads run. */
static void run_on_threads(tp_context *context, const tp_problem *problem, const tp_tensors *t) {
    tp_error error = TP_ERROR_INIT;
    tp_exec exec = TP_EXEC_INIT;
    tp_plan *plan;
    parallel p = {.threads = 2};
    if (tp_plan_create(context, problem, NULL, &plan, &error)) fail_msg("%s", error.text);
    exec.threads = 3;
    exec.parallel_for = parallel_threads;
    exec.parallel_user = &p;
    exec.flags = TP_EXEC_CHECK_DEEP;
    exec.workspace_size = tp_plan_workspace(plan, 3);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    memset(exec.workspace, 0xff, exec.workspace_size);
    if (tp_plan_run(plan, t, &exec, NULL, &error)) fail_msg("%s", error.text);
    free(exec.workspace);
    tp_plan_destroy(plan);
}

/* Thousands of steps, in the sanitizer builds too: their rows are few. */
static void serve(void **state) {
    server *s = calloc(1, sizeof *s);
    tp_context *context = call_context_new(1);
    tp_error error = TP_ERROR_INIT;
    tp_counters counters = {.struct_size = sizeof counters};
    tp_problem problems[3];
    int64_t all_rows = 0, steps = 0;
    (void)state;
    assert_non_null(s);
    s->random = 1;
    for (int i = 0; i < PAGES; i++) poison_page(s, i);
    memset(s->k_pages, 0xff, sizeof s->k_pages);
    memset(s->v_pages, 0xff, sizeof s->v_pages);
    static const char *const texts[] = {
        "b6 h6/2 q48 k320 d20 f32 packed-q paged=8 causal",
        "b6 h6/2 q48 k320 d20 f32 packed-q paged=8 causal window=50,0",
        "b6 h6/2 q48 k320 d20 f32 packed-q paged=8 causal invariant",
    };
    for (int i = 0; i < COUNT(texts); i++)
        if (tp_problem_parse(texts[i], &problems[i], NULL, &error)) fail_msg("%s", error.text);
    for (int step = 0; step < STEPS; step++) {
        const tp_problem *problem = &problems[next(s, COUNT(texts))];
        int64_t rows = advance(s);
        if (rows == 0) continue;
        tp_tensors t = tensors_of(s, problem, rows, s->o);
        if (tp_attention(context, problem, NULL, &t, NULL, &error)) fail_msg("%s", error.text);
        check_rows(s, problem, &t, rows);
        all_rows += rows;
        steps++;
        if (step % 16 != 0) continue;
        t = tensors_of(s, problem, rows, s->again);
        run_on_threads(context, problem, &t);
        assert_memory_equal(s->o, s->again, (size_t)rows * sizeof s->o[0]);
    }
    tp_context_counters(context, &counters);
    assert_true(counters.calls >= steps);
    assert_true(counters.cache_hits >= steps - COUNT(texts));
    assert_true(all_rows > STEPS);
    tp_context_destroy(context);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(serve)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
