/* SPDX-License-Identifier: Apache-2.0 */
/* Append with norm and rotation: the keys that are kept, and q, are those of tp_rope_apply, bit for bit; its refusals. */
#include <fenv.h>
#include <math.h>
#include <string.h>

#include "support/call.h"
#include "tileproof_cache.h"

enum { TOKENS = 40, KV_HEADS = 2, Q_HEADS = 6, DIM = 16, ROWS = 2 * TOKENS };

static uint64_t seed = 1;
static uint64_t next(uint64_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

/* Every kind that asks something of the seam: lengths, tables, sections, partial dims, a part that is not at the beginning. */
static float short_factors[8], long_factors[8], cos_table[400 * 8], sin_table[400 * 8];
static tp_rope_options options_of(int kind) {
    tp_rope_options o = TP_ROPE_OPTIONS_INIT;
    o.head_dim = DIM;
    o.style = kind % 2;
    switch (kind) {
    case 1: o.dims = 8; break;
    case 2: o.first = 4, o.dims = 12, o.kind = TP_ROPE_LINEAR, o.factor = 4; break;
    case 3: o.kind = TP_ROPE_DYNAMIC, o.factor = 2, o.original_length = 20; break;
    case 4: o.kind = TP_ROPE_LONGROPE, o.original_length = 20, o.factor = 8; break;
    case 5: o.sections[0] = 2, o.sections[1] = o.sections[2] = 3; break;
    case 6: o.theta = 0, o.table_positions = 400, o.table_width = 8, o.cos_table = cos_table, o.sin_table = sin_table; break;
    case 7: o.kind = TP_ROPE_YARN, o.factor = 4, o.original_length = 64; break;
    default: break;
    }
    if (kind == 4) o.short_factors = short_factors, o.long_factors = long_factors, o.factor_count = 8;
    return o;
}

static tp_rotary *rotary_of(int kind) {
    tp_error error = TP_ERROR_INIT;
    tp_rope_options options = options_of(kind);
    tp_rotary *rotary;
    if (tp_rope_create(&options, &rotary, &error) != TP_OK) fail_msg("%s", error.text);
    return rotary;
}

static tp_cache *cache_of(int32_t dtype, int layout) {
    tp_cache_layer layer = {KV_HEADS, DIM, DIM, dtype, dtype, 0, 0, 0, 0, 0, 0};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_cache *cache;
    options.layers = &layer, options.layer_count = 2, options.same = 1, options.layout = layout, options.page_size = 7;
    options.bytes = 1 << 20, options.sequences = 2, options.sequence_tokens = 3 * TOKENS;
    assert_int_equal(tp_cache_create(&options, &cache, NULL), TP_OK);
    return cache;
}

/* What is kept of one token, against floats that are rounded once. */
static void token_is(const tp_tensor *pool, int64_t page, int64_t token, int32_t kept, float expected[KV_HEADS][DIM], int kind) {
    const size_t size = tp_dtype_bytes((tp_dtype)kept);
    for (int64_t h = 0; h < KV_HEADS; h++)
        for (int64_t x = 0; x < DIM; x++) {
            int64_t at = page * pool->stride[0] + token * pool->stride[1] + h * pool->stride[2] + x;
            char one[4];
            tp_from_float((tp_dtype)kept, expected[h][x], one);
            if (memcmp((const char *)pool->data + (size_t)at * size, one, size) != 0)
                fail_msg("kind %d, head %d, element %d: not %g", kind, (int)h, (int)x, (double)expected[h][x]);
        }
}

/* Two sequences in steps of a few tokens each, which are rotated once by the cache and once by tp_rope_apply. */
static void as_tp_rope_apply(void **state) {
    (void)state;
    static const int32_t dtypes[] = {TP_F32, TP_F16, TP_BF16};
    float norms[2][DIM];
    for (int i = 0; i < 8; i++) short_factors[i] = 1 + (float)i, long_factors[i] = 2 + (float)i * 3;
    for (int i = 0; i < 3200; i++) cos_table[i] = cosf((float)i), sin_table[i] = sinf((float)i);
    for (int i = 0; i < 2 * DIM; i++) norms[i / DIM][i % DIM] = 0.5f + (float)i * 0.0625f;
    for (int trial = 0; trial < 8 * 3 * 4; trial++) {
        const int kind = trial % 8, normed = trial / 24 % 2, by_angles = trial / 48 % 2 && kind != 3 && kind != 4;
        const int32_t given = dtypes[trial / 8 % 3], kept = dtypes[trial % 3];
        const size_t element = tp_dtype_bytes((tp_dtype)given);
        tp_error error = TP_ERROR_INIT;
        tp_rotary *rotary = rotary_of(kind);
        tp_cache *cache = cache_of(kept, trial % 2);
        int64_t sequences[2], lengths[2] = {0, 0};
        static float expected[2][3 * TOKENS][KV_HEADS][DIM], plain[2][3 * TOKENS][KV_HEADS][DIM]; /* k, v */
        for (int i = 0; i < 2; i++) assert_int_equal(tp_cache_open(cache, &sequences[i], NULL), TP_OK);
        for (int step = 0; step < 6; step++) {
            int64_t tokens[2] = {(int64_t)next(12), (int64_t)next(3)}, all = tokens[0] + tokens[1], positions[3][ROWS],
                    flat[3 * ROWS];
            static char q[ROWS * Q_HEADS * DIM * 4], k[ROWS * KV_HEADS * DIM * 4], v[ROWS * KV_HEADS * DIM * 4], turned[sizeof q];
            static float cosines[ROWS * 8], sines[ROWS * 8], row[ROWS * KV_HEADS * DIM];
            if (all == 0) continue;
            for (int64_t i = 0; i < all * Q_HEADS * DIM; i++)
                tp_from_float((tp_dtype)given, sinf((float)next(99999)), q + (size_t)i * element);
            for (int64_t i = 0; i < all * KV_HEADS * DIM; i++) {
                tp_from_float((tp_dtype)given, sinf((float)next(99999)), k + (size_t)i * element);
                tp_from_float((tp_dtype)given, sinf((float)next(99999)), v + (size_t)i * element);
            }
            for (int64_t i = 0; i < all; i++) { /* with a jump, as behind an image; height and width may go back */
                int64_t of = i < tokens[0] ? lengths[0] + i : lengths[1] + i - tokens[0];
                positions[0][i] = 2 * of + 3, positions[1][i] = (int64_t)next(50), positions[2][i] = (int64_t)next(50);
            }
            for (int a = 0; a < 3; a++) memcpy(flat + a * all, positions[a], (size_t)all * sizeof *flat);
            memcpy(turned, q, sizeof q);
            tp_cache_rows rows = TP_CACHE_ROWS_INIT;
            rows.dtype = given, rows.count = 2, rows.sequences = sequences, rows.tokens = tokens;
            rows.k = (tp_tensor){k, {0, KV_HEADS * DIM, DIM}}, rows.v = (tp_tensor){v, {0, KV_HEADS * DIM, DIM}};
            rows.q = (tp_tensor){q, {0, Q_HEADS * DIM, DIM}}, rows.q_heads = Q_HEADS;
            rows.rotary = rotary;
            if (by_angles) {
                assert_int_equal(tp_rope_angles(rotary, 1, all, flat, 0, cosines, sines, &error), TP_OK);
                rows.cosines = cosines, rows.sines = sines;
            } else {
                rows.positions = flat;
            }
            if (normed) rows.q_norm = norms[0], rows.k_norm = norms[1], rows.norm_eps = 1e-5f, rows.norm_one_plus = trial / 8 % 2;
            assert_int_equal(tp_cache_extend(cache, 2, sequences, tokens, &error), TP_OK);
            for (int layer = 0; layer < 2; layer++) {
                fesetround(trial % 2 ? FE_UPWARD : FE_TONEAREST); /* the caller's rounding mode changes nothing, and stays */
                tp_status status = tp_cache_append(cache, layer, &rows, &error);
                assert_int_equal(fegetround(), trial % 2 ? FE_UPWARD : FE_TONEAREST);
                fesetround(FE_TONEAREST);
                if (status != TP_OK) fail_msg("%s", error.text);
                rows.q.data = NULL, rows.q_norm = NULL; /* once is enough */
            }
            for (int64_t i = 0, at = 0; i < 2; at += tokens[i++]) {
                if (tokens[i] == 0) continue;
                int64_t mine[3 * ROWS];
                for (int a = 0; a < 3; a++) memcpy(mine + a * tokens[i], positions[a] + at, (size_t)tokens[i] * sizeof *mine);
                tp_rope_rows apply = TP_ROPE_ROWS_INIT;
                apply.tokens = tokens[i], apply.positions = mine;
                apply.norm_eps = rows.norm_eps, apply.norm_one_plus = rows.norm_one_plus;
                apply.dtype = given, apply.heads = Q_HEADS, apply.norm_weight = normed ? norms[0] : NULL;
                apply.in = apply.out = (tp_tensor){turned + (size_t)(at * Q_HEADS * DIM) * element, {0, Q_HEADS * DIM, DIM}};
                if (tp_rope_apply(rotary, &apply, &error) != TP_OK) fail_msg("%s", error.text);
                for (int64_t x = 0; x < tokens[i] * KV_HEADS * DIM; x++)
                    row[x] = tp_to_float((tp_dtype)given, k + (size_t)(at * KV_HEADS * DIM + x) * element);
                apply.dtype = TP_F32, apply.heads = KV_HEADS, apply.norm_weight = normed ? norms[1] : NULL;
                apply.in = apply.out = (tp_tensor){row, {0, KV_HEADS * DIM, DIM}};
                if (tp_rope_apply(rotary, &apply, &error) != TP_OK) fail_msg("%s", error.text);
                memcpy(expected[i][lengths[i]], row, (size_t)(tokens[i] * KV_HEADS * DIM) * sizeof *row);
                for (int64_t x = 0; x < tokens[i] * KV_HEADS * DIM; x++)
                    (&plain[i][lengths[i]][0][0])[x] =
                        tp_to_float((tp_dtype)given, v + (size_t)(at * KV_HEADS * DIM + x) * element);
            }
            assert_memory_equal(q, turned, (size_t)(all * Q_HEADS * DIM) * element);
            for (int i = 0; i < 2; i++) lengths[i] += tokens[i];
        }
        tp_problem problem;
        tp_tensors t;
        tp_problem_init(&problem);
        for (int layer = 0; layer < 2; layer++) {
            tp_tensors_init(&t, &problem, NULL, NULL, NULL, NULL);
            assert_int_equal(tp_cache_tensors(cache, layer, 0, 2, &t, &error), TP_OK);
            for (int64_t i = 0; i < 2; i++)
                for (int64_t n = 0; n < lengths[i]; n++) {
                    int64_t page = ((const int32_t *)t.k_pages)[i * t.page_slots + n / 7];
                    token_is(&t.k, page, n % 7, kept, expected[i][n], kind);
                    token_is(&t.v, page, n % 7, kept, plain[i][n], kind);
                }
        }
        tp_cache_destroy(cache);
        tp_rope_destroy(rotary);
    }
}

/* Without positions a token is at its index, also behind a truncation. */
static void positions_of_their_own(void **state) {
    (void)state;
    tp_rotary *rotary = rotary_of(0);
    tp_cache *caches[2] = {cache_of(TP_F32, 0), cache_of(TP_F32, 0)};
    float k[TOKENS * KV_HEADS * DIM], q[TOKENS * DIM], turned[2][TOKENS * DIM];
    int64_t sequence[2], positions[TOKENS];
    for (int i = 0; i < COUNT(k); i++) k[i] = sinf((float)i);
    for (int i = 0; i < TOKENS; i++) positions[i] = i;
    for (int c = 0; c < 2; c++) {
        int64_t tokens = 10;
        tp_cache_rows rows = TP_CACHE_ROWS_INIT;
        assert_int_equal(tp_cache_open(caches[c], &sequence[c], NULL), TP_OK);
        rows.dtype = TP_F32, rows.count = 1, rows.sequences = &sequence[c], rows.tokens = &tokens, rows.rotary = rotary;
        rows.k = rows.v = (tp_tensor){k, {0, KV_HEADS * DIM, DIM}};
        rows.q = (tp_tensor){q, {0, DIM, DIM}}, rows.q_heads = 1;
        for (int step = 0; step < 3; step++) { /* tokens 0..9, then 6..15 twice, of which the first time is taken back */
            int64_t length = tp_cache_length(caches[c], sequence[c]);
            if (length > 6) assert_int_equal(tp_cache_truncate(caches[c], sequence[c], length = 6, NULL), TP_OK);
            for (int i = 0; i < COUNT(q); i++) q[i] = cosf((float)i);
            if (c) rows.positions = positions + length;
            assert_int_equal(tp_cache_extend(caches[c], 1, &sequence[c], &tokens, NULL), TP_OK);
            assert_int_equal(tp_cache_append(caches[c], 1, &rows, NULL), TP_OK);
        }
        memcpy(turned[c], q, sizeof q);
    }
    assert_memory_equal(turned[0], turned[1], sizeof q);
    for (int i = 0; i < 10 * DIM; i++)
        if (turned[0][i] != cosf((float)i))
            break;
        else
            assert_true(i < 10 * DIM - 1); /* rotated at all */
    tp_cache_destroy(caches[0]);
    tp_cache_destroy(caches[1]);
    tp_rope_destroy(rotary);
}

static void refusals(void **state) {
    (void)state;
    tp_rotary *rotary = rotary_of(0), *sections = rotary_of(5);
    tp_rope_options other = options_of(0);
    other.head_dim = 8;
    tp_rotary *narrow;
    assert_int_equal(tp_rope_create(&other, &narrow, NULL), TP_OK);
    tp_cache *cache = cache_of(TP_F32, 0);
    static float qkv[ROWS * 10 * DIM], weights[DIM + 1], before[ROWS * 10 * DIM];
    for (int i = 0; i < COUNT(qkv); i++) qkv[i] = before[i] = sinf((float)i);
    int64_t sequence, tokens = 4, one = 1, positions[3 * TOKENS] = {5, 5, 7, 9, 0};
    assert_int_equal(tp_cache_open(cache, &sequence, NULL), TP_OK);
    assert_int_equal(tp_cache_extend(cache, 1, &sequence, &tokens, NULL), TP_OK);
    tp_cache_rows rows = TP_CACHE_ROWS_INIT, sound;
    rows.dtype = TP_F32, rows.count = 1, rows.sequences = &sequence, rows.tokens = &tokens, rows.rotary = rotary;
    rows.positions = positions;
    rows.q = (tp_tensor){qkv, {0, 10 * DIM, DIM}}, rows.q_heads = 6; /* slices of one tensor */
    rows.k = (tp_tensor){qkv + 6 * DIM, {0, 10 * DIM, DIM}}, rows.v = (tp_tensor){qkv + 8 * DIM, {0, 10 * DIM, DIM}};
    sound = rows;
#define REFUSED(assignment, says)                                                                                                \
    do {                                                                                                                         \
        tp_error error = TP_ERROR_INIT;                                                                                          \
        assignment;                                                                                                              \
        assert_int_equal(tp_cache_append(cache, 0, &rows, &error), TP_INVALID);                                                  \
        if (strstr(error.text, says) == NULL) fail_msg("%s, not %s", error.text, says);                                          \
        assert_memory_equal(qkv, before, sizeof qkv);                                                                            \
        rows = sound;                                                                                                            \
    } while (0)
    REFUSED(positions[2] = 4, "is at position 4, behind one at 5: positions must not run backwards");
    positions[2] = 7;
    REFUSED(positions[3] = -1, "position");
    positions[3] = 9;
    REFUSED(rows.length = 9, "rows.length is 9 and a position 9: the current length must be above every position, or 0");
    REFUSED(rows.length = -1, "rows.length is -1");
    REFUSED(rows.rotary = narrow, "rows.rotary is for a head_dim of 8: layer 0 has a head_dim_qk of 16");
    REFUSED(rows.rotary = NULL, "rows.positions are given without a rotary");
    REFUSED((rows.positions = NULL, rows.rotary = NULL, rows.sines = weights), "rows.sines are given without a rotary");
    REFUSED((rows.positions = NULL, rows.cosines = weights), "rows.sines is NULL beside the other");
    REFUSED((rows.cosines = weights, rows.sines = weights), "rows.positions are given beside cosines and sines");
    REFUSED(rows.positions = (int64_t *)(void *)((char *)positions + 4), "it must be aligned to its elements of 8 bytes");
    REFUSED(rows.k_norm = (float *)(void *)((char *)weights + 2), "rows.k_norm is ");
    REFUSED((rows.k_norm = weights, rows.norm_eps = -1), "rows.norm_eps is -1: it must be finite and not negative");
    REFUSED((rows.q_norm = weights, rows.norm_eps = NAN), "rows.norm_eps is ");
    REFUSED((rows.q_norm = weights, rows.norm_one_plus = 2), "rows.norm_one_plus is 2");
    REFUSED((rows.q_norm = weights, rows.q.data = NULL), "rows.q.data is NULL beside q_norm");
    REFUSED(rows.q_heads = 0, "rows.q_heads is 0: it must be in 1..65536");
    REFUSED(rows.q_heads = 7, "rows.k");
    REFUSED(rows.q_heads = 10, "rows.");
    REFUSED(rows.q.stride[1] = DIM, "rows.q");
    REFUSED(rows.q.data = (char *)qkv + 1, "rows.q.data is ");
    positions[5] = 40, positions[8] = 100;
    assert_int_equal(tp_cache_length(cache, sequence), 4);
    rows.rotary = sections; /* height and width may run backwards */
    assert_int_equal(tp_cache_append(cache, 0, &rows, NULL), TP_OK);
    memcpy(before, qkv, sizeof qkv);
    /* behind what the layer has; a fork knows it, and a truncation takes it back: test_kv_positions.c has the rest */
    int64_t forked;
    rows = sound;
    assert_int_equal(tp_cache_append(cache, 1, &rows, NULL), TP_OK);
    memcpy(before, qkv, sizeof qkv);
    assert_int_equal(tp_cache_fork(cache, sequence, &forked, NULL), TP_OK);
    assert_int_equal(tp_cache_extend(cache, 1, &sequence, &one, NULL), TP_OK);
    assert_int_equal(tp_cache_extend(cache, 1, &forked, &one, NULL), TP_OK);
    sound.tokens = &one, rows = sound;
    positions[0] = 8;
    REFUSED((void)0, "token 4 of sequence");
    REFUSED(rows.sequences = &forked, "is at position 8, behind one at 9");
    assert_int_equal(tp_cache_truncate(cache, forked, 2, NULL), TP_OK);
    assert_int_equal(tp_cache_extend(cache, 1, &forked, &one, NULL), TP_OK);
    rows.sequences = &forked;
    assert_int_equal(tp_cache_append(cache, 0, &rows, NULL), TP_OK);
    for (int64_t i = 0; i < 2; i++) { /* past where it was, at lower positions */
        assert_int_equal(tp_cache_extend(cache, 1, &forked, &one, NULL), TP_OK);
        assert_int_equal(tp_cache_append(cache, 0, &rows, NULL), TP_OK);
    }
    tp_cache_destroy(cache);
    tp_rope_destroy(rotary);
    tp_rope_destroy(sections);
    tp_rope_destroy(narrow);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_tp_rope_apply), cmocka_unit_test(positions_of_their_own),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
