/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows, and caches in pages, by sparse indices and in latent form: a grid, and runs that must agree bit for
 * bit. */
#include "check/check.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct tensors_style plain = {.lse = 1};
static const char *const dtypes[] = {"f32", "bf16", "f16"};
static const char *const masks[] = {"", " causal", " causal top-left", " causal window=60,0"};
static const int page_sizes[] = {1, 3, 16, 32, 64, 128, 256};

/* The same numbers in pages of every size, NHD and HND, with one table and with two. */
static int pages(struct check_env *env) {
    struct tensors_style styles[4] = {env->test->style, env->test->style, env->test->style,
                                      env->test->style};
    struct tensors whole, paged = {0};
    int failed = check_make_own(env, &whole) || check_attend(env, &whole);
    styles[1].form = styles[2].form = FORM_HEADS;
    styles[2].two_tables = styles[3].two_tables = !env->test->problem.latent;
    styles[3].index64 = 1;
    for (size_t i = 0; !failed && i < COUNT(page_sizes); i++) {
        tp_problem problem = env->test->problem;
        char what[48];
        problem.kv_layout = TP_PAGED;
        problem.page_size = page_sizes[i];
        snprintf(what, sizeof what, "pages of %d, style %d", page_sizes[i], (int)(i % 4));
        failed = check_make(env, &paged, &problem, &env->test->lengths, &styles[i % 4]) ||
                 check_attend(env, &paged) || check_same_rows(env, what, &whole, &paged);
        tensors_destroy(&paged);
    }
    tensors_destroy(&whole);
    return failed;
}

/* Rows first..last-1 of the whole, with the keys up to the last one's own. */
static int same_chunk(struct check_env *env, const struct tensors *whole, int64_t first,
                      int64_t last) {
    struct tensors chunk;
    tp_problem problem = env->test->problem;
    problem.q_len = last - first;
    problem.kv_len = whole->kv_lens[0] - whole->q_lens[0] + last;
    int failed = check_make(env, &chunk, &problem, NULL, &env->test->style);
    for (int id = TENSOR_K; !failed && id <= TENSOR_V; id++)
        check_copy(&chunk, 0, whole, 0, (enum tensor_id)id, problem.kv_len);
    for (int64_t r = first; !failed && r < last; r++)
        for (int64_t h = 0; h < problem.q_heads; h++)
            for (int64_t x = 0; x < problem.head_dim_qk; x++)
                tensors_set(&chunk, TENSOR_Q, 0, r - first, h, x,
                            tensors_get(whole, TENSOR_Q, 0, r, h, x));
    if (!failed) failed = check_attend(env, &chunk);
    for (int64_t h = 0; !failed && h < problem.q_heads; h++)
        for (int64_t r = first; !failed && r < last; r++)
            failed = check_same_row(env, "whole and in chunks", whole, (tp_row){0, h, r}, &chunk,
                                    (tp_row){0, h, r - first});
    tensors_destroy(&chunk);
    return failed;
}

/* One row at a time, few at a time, many at a time: each the same bits as in one call. */
static int chunked(struct check_env *env) {
    static const int64_t steps[] = {1, 7, 33};
    struct tensors whole;
    int failed = check_make_own(env, &whole) || check_attend(env, &whole);
    int64_t rows = failed ? 0 : whole.q_lens[0];
    for (size_t i = 0; !failed && i < COUNT(steps); i++)
        for (int64_t r = 0; !failed && r < rows; r += steps[i]) {
            if (steps[i] == 1 && r % 13) continue;
            failed = same_chunk(env, &whole, r, r + steps[i] < rows ? r + steps[i] : rows);
        }
    tensors_destroy(&whole);
    return failed;
}

/* Either loop may serve any number of rows; prefill's, asked for, is what `invariant` takes. */
static int forced(struct check_env *env) {
    static const char *const strategies[] = {"prefill", "decode"};
    struct tensors tensors, invariant = {0};
    struct oracle oracle = {0};
    struct measured_error measured;
    tp_error error = TP_ERROR_INIT;
    tp_problem problem = env->test->problem;
    problem.invariant = 1;
    int failed = check_make_own(env, &tensors) ||
                 check_make(env, &invariant, &problem, &env->test->lengths, &env->test->style) ||
                 check_attend(env, &invariant);
    if (!failed && oracle_create(&oracle, &tensors, env->test->rows, env->seed, &error) != TP_OK)
        failed = check_fail(env, "the reference refused: %s", error.text);
    for (int i = 0; !failed && i < 2; i++) {
        env->strategy = strategies[i];
        failed = check_attend(env, &tensors) ||
                 oracle_compare(&oracle, &tensors, env->ran, &measured, env->reason, sizeof env->reason);
        env->strategy = NULL;
        if (!failed && i == 0)
            failed = check_same_rows(env, "prefill and invariant", &tensors, &invariant);
    }
    oracle_destroy(&oracle);
    tensors_destroy(&invariant);
    tensors_destroy(&tensors);
    return failed;
}

/* With `invariant`, shared prefixes give the bits of sequences that share nothing. */
static int cascade(struct check_env *env) {
    struct tensors shared, alone = {0};
    int failed = check_make_own(env, &shared) || check_make_own(env, &alone);
    alone.problem.cascade = 0;
    failed = failed || check_attend(env, &shared) || check_attend(env, &alone) ||
             check_same_rows(env, "with and without cascade", &shared, &alone);
    tensors_destroy(&alone);
    tensors_destroy(&shared);
    return failed;
}

static void add_decode(struct check_list *list) {
    static const int ratios[] = {1, 2, 4, 7, 8, 16}, dims[] = {64, 128, 256, 576};
    for (size_t g = 0; g < COUNT(ratios); g++)
        for (int rows = 1; rows <= 16 && rows * ratios[g] <= TP_DECODE_ROWS + ratios[g]; rows++)
            check_add(list, "decode", "", NULL, plain, "h%d/2 q%d k%d d%d %s%s", 2 * ratios[g],
                      rows, 60 + 11 * rows, 16 + 8 * (rows % 4), dtypes[(size_t)rows % 3],
                      masks[(g + (size_t)rows) % 4]);
    for (int chunk = TP_DECODE_CHUNK_KEYS; chunk <= TP_CHUNK_KEYS; chunk *= 2)
        for (int near = -1; near <= 1; near++)
            for (int rows = 1; rows <= 3; rows += 2)
                check_add(list, "decode", "", NULL, plain, "h4/2 q%d k%d d%d %s%s", rows,
                          chunk + near, chunk > 1024 ? 16 : 40, dtypes[(size_t)(near + 1)],
                          masks[rows == 3]);
    for (size_t d = 0; d < COUNT(dims); d++)
        for (int blocks = 1; blocks <= 2; blocks++)
            for (int near = -1; near <= 1; near++)
                check_add(list, "decode", "", NULL, plain, "h3/1 q%d k%d d%d %s%s", blocks,
                          blocks * tp_decode_block_keys(dims[d], TP_F32) + near, dims[d],
                          dtypes[(d + (size_t)blocks) % 3], masks[near + 1]);
}

static void add_paged(struct check_list *list) {
    static const char *const texts[] = {
        "b2 h4/2 q1 k300 d40 %s paged=%d causal",
        "h4/2 seqs=1x40/140,1x0/9,2x1/300,1x5/5,1x1/0 d24/40 %s packed-q paged=%d causal",
        "h7/1 q2 k300 d33 %s paged=%d causal window=50,0",
        "h2/2 seqs=2x30/90,1x3/200 d16 %s padded paged=%d",
        "h2/1 q20 k300 d64 %s paged=%d top-left causal"};
    size_t at = 0;
    for (size_t p = 0; p < COUNT(page_sizes); p++)
        for (int variant = 0; variant < 4; variant++)
            for (size_t t = 0; t < COUNT(texts); t++, at++) {
                struct tensors_style style = {.lse = 1,
                                              .form = variant & 1 ? FORM_HEADS : FORM_TOKENS,
                                              .two_tables = variant >> 1,
                                              .index64 = at % 2,
                                              .ragged = at % 3 == 0,
                                              .slack = at % 5 == 0 ? 3 : 0};
                if (at % 2 && t > 1) continue; /* half of the rarer ones are enough */
                check_add(list, "paged", "", NULL, style, texts[t], dtypes[at % 3], page_sizes[p]);
            }
}

/* Every mask kind, and what changes scores, with few rows and in pages; a page in a hole has any number. */
static void add_masked(struct check_list *list) {
    static const char *const words[] = {
        "causal chunk=70",  "causal prefix=30", "window=40,0 first=4 causal", "causal documents",
        "causal spans",     "spans-and",        "tree",                       "bits",
        "callback causal",  "positions causal", "mask=bits,causal,or",        "softcap=6 causal",
        "alibi causal",     "bias=bf16 causal", "sinks causal",               "qscale=0.4,16,1 causal",
        "alibi sinks bits", "qscale=0.3,5,0 softcap=4 alibi bias=f32 sinks causal documents"};
    for (size_t i = 0; i < COUNT(words); i++) {
        const struct tensors_style style = {.lse = 1, .two_tables = i % 2, .index64 = i % 3 == 0};
        const char *d = dtypes[i % 3];
        check_add(list, "decode", "", NULL, plain, "b2 h8/8 q1 k1100 d%d %s %s", i % 2 ? 136 : 24, d, words[i]);
        check_add(list, "paged", "", NULL, style, "h4/2 q3 k300 d40 %s paged=%d %s", d,
                  page_sizes[i % COUNT(page_sizes)], words[i]);
        check_add(list, "hostile", "pages", pages, plain,
                  "h4/2 seqs=1x40/300,2x1/1030,1x5/90 d40 %s padded %s", d, words[i]);
        check_add(list, "hostile", "forced", forced, plain, "h4/2 seqs=1x20/90,2x1/1030 d40 %s packed-q paged=16 %s",
                  d, words[i])->loops = 1;
    }
}

static void add_sparse(struct check_list *list) {
    static const char *const texts[] = {
        "h4/2 q20 k300 d40 %s sparse%s=33", "b2 h16/2 q2 k2500 d16 %s sparse%s=1500",
        "h4/2 seqs=1x30/200,3x1/90,1x2/0 d24/16 %s packed-q paged=16 sparse%s=70",
        "h8/1 q3 k400 d72/64 %s paged=64 latent sparse%s=90", "h34/2 q3 k90 d24 %s sparse%s=200",
        /* longer than the keys there are: repeats, over one chunk and over several */
        "h2/1 q3 k4 d8 %s sparse%s=65", "h2/1 q2 k40 d16/8 %s paged=16 sparse%s=1100",
        "h1 q1 k7 d8 %s sparse%s=5000"};
    for (size_t t = 0; t < COUNT(texts); t++)
        for (int sorted = 0; sorted < 2; sorted++)
            for (int variant = 0; variant < 3; variant++) {
                struct tensors_style style = {
                    .lse = 1, .short_sparse = variant != 1, .index64 = variant == 2, .ragged = variant == 2};
                char text[160];
                snprintf(text, sizeof text, "%s%s", texts[t],
                         sorted         ? masks[variant]
                         : variant == 1 ? " invariant"
                                        : "");
                check_add(list, "sparse", "", NULL, style, text, dtypes[variant],
                          sorted ? "-sorted" : "");
            }
}

static void add_latent(struct check_list *list) {
    static const char *const texts[] = {
        "h16/1 q1 k1100 d576/512 bf16 latent causal",
        "h16/1 q1 k260 d576/512 f32 latent causal paged=64",
        "h16/1 seqs=1x1/200,1x20/40,1x2/90 d576/512 bf16 latent causal packed-q paged=16",
        "h128/1 q1 k70 d576/512 bf16->f32 latent",
        "h128/1 q1 k70 d576/512 f32 latent paged=32",
        "h4/2 q30 k90 d40/24 f16 latent causal",
        "h4/1 q1 k90 d40 f32 latent"};
    for (size_t t = 0; t < COUNT(texts); t++)
        for (int ragged = 0; ragged < 2; ragged++) {
            struct tensors_style style = {.lse = 1, .ragged = ragged};
            check_add(list, "latent", "", NULL, style, "%s", texts[t]);
        }
}

/* Few and many rows of all sharers; cuts within a block, at a chunk's end, behind it; what a window does not see. */
static void add_cascade(struct check_list *list) {
    static const char *const texts[] = {
        "b5 h2/1 q1 k330 d40 %s paged=16 causal cascade=300",
        "h4/2 seqs=3x1/700,1x0/600,2x3/640,1x70/660 d40 %s packed-q paged=16 causal cascade=640",
        "b9 h8/2 q2 k1400 d16 %s paged=32 causal softcap=5 sinks qscale=0.4,16,1 cascade=1390",
        "b4 h2/1 q1 k4300 d8 %s paged=64 cascade=4200",
        "h8/1 seqs=4x1/300,2x2/290,3x1/40 d72/64 %s padded paged=7 latent causal window=280,0 cascade=290"};
    for (size_t t = 0; t < COUNT(texts); t++)
        for (int trees = 0; trees < 2; trees++)
            for (int variant = 0; variant < 3; variant++) {
                struct tensors_style style = {.lse = 1, .prefixes = trees, .index64 = variant == 1, .ragged = variant == 2};
                char text[200];
                check_add(list, "cascade", "", NULL, style, texts[t], dtypes[variant]);
                snprintf(text, sizeof text, "%s invariant", texts[t]);
                check_add(list, "hostile", "cascade", cascade, style, text, dtypes[variant]);
            }
}

void check_add_cache(struct check_list *list) {
    static const struct tensors_style short_sparse = {.lse = 1, .short_sparse = 1};
    add_decode(list);
    add_paged(list);
    add_masked(list);
    add_sparse(list);
    add_latent(list);
    add_cascade(list);
    for (int t = 0; t < 3; t++) {
        const char *d = dtypes[t];
        check_add(list, "hostile", "pages", pages, plain,
                  "h4/2 seqs=1x40/300,2x1/1030,1x5/90 d40 %s padded causal", d);
        check_add(list, "hostile", "pages", pages, plain, "h3/1 q2 k700 d33 %s causal window=99,0",
                  d);
        check_add(list, "hostile", "pages", pages, short_sparse, "h4/2 q9 k300 d24 %s sparse=50", d);
        check_add(list, "hostile", "pages", pages, plain, "h6/1 q2 k300 d72/64 %s latent causal",
                  d);
        check_add(list, "hostile", "chunked", chunked, plain,
                  "h2/1 q120 k120 d40 %s causal invariant", d);
        check_add(list, "hostile", "chunked", chunked, plain,
                  "h4/1 q40 k1060 d16 %s causal window=900,0 paged=16 invariant", d);
        check_add(list, "hostile", "chunked", chunked, plain,
                  "h4/2 q60 k700 d16 %s causal window=90,0 first=4 softcap=5 alibi sinks qscale=0.4,16,1 "
                  "paged=16 invariant", d);
        check_add(list, "hostile", "pages", pages, short_sparse,
                  "h4/2 q9 k300 d24 %s sparse-sorted=50 causal softcap=3 sinks qscale=0.4,16,1", d);
        check_add(list, "hostile", "forced", forced, plain, "h4/2 q3 k1100 d40 %s causal", d)->loops = 1;
        check_add(list, "hostile", "forced", forced, plain,
                  "h4/2 seqs=1x40/90,3x1/1030 d40 %s packed-q paged=16 causal", d)
            ->loops = 1;
    }
}
