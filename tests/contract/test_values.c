/* SPDX-License-Identifier: Apache-2.0 */
/* Values with a known answer, extreme scales, and knobs that must change what they claim to. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/call.h"

static const char *const dtypes[] = {"f32", "f16", "bf16"};

static void fill(call *c, call_tensor which, float value) {
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t t = 0; t < call_tokens(c, which, s); t++)
            for (int64_t h = 0; h < call_heads(c, which); h++)
                for (int64_t x = 0; x < call_dim(c, which); x++)
                    call_set(c, which, s, t, h, x, value);
}

/* The answer is 1 because the weights add up to 1: within 4 ulp for a few keys, and for many within
   the bound, which grows with the sums. */
static void values_of_one_give_one(void **state) {
    (void)state;
    static const char *const shapes[] = {"h4/2 q70 k48 d40", "h4/2 q7 k30 d300/17",
                                         "h2 q3 k4100 d5", "q20 k600 d300/17"};
    for (int n = 0; n < COUNT(shapes); n++)
        for (int t = 0; t < COUNT(dtypes); t++) {
            char text[128];
            snprintf(text, sizeof text, "%s %s->f32 window=-1,5", shapes[n], dtypes[t]);
            call *c = call_new(text, &(call_shape){.q_size = 3});
            fill(c, CALL_V, 1);
            for (int i = 0; call_kernel(i) != NULL; i++) {
                call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
                call_check_bounds(c, text);
                for (int64_t r = 0; r < c->q_lens[0] && c->kv_lens[0] < 50; r++)
                    for (int64_t h = 0; h < c->problem.q_heads; h++)
                        for (int64_t x = 0; x < c->problem.head_dim_v; x++) {
                            float o = call_get(c, CALL_O, 0, r, h, x);
                            int nothing = call_get(c, CALL_LSE, 0, r, h, 0) == -INFINITY;
                            if (!(fabsf(o - 1) <= 4 * FLT_EPSILON) && !nothing)
                                fail_msg("%s: %s: row %d is 1 + %g", text, call_kernel(i), (int)r,
                                         o - 1.0);
                        }
            }
            call_free(c);
        }
}

/* Many keys of equal weight: each sum is long, and no kernel may lose more than the bound allows. In the last case all
   weights but one are a little below 1, so that a chain beyond 2^16 loses as much at every step. */
static void long_rows_stay_under_the_bound(void **state) {
    (void)state;
    static const char *const texts[] = {"q1 k100000 d3/5 f32 scale=0", "q2 k70000 d3/5 f32 sinks dropout=0.25",
                                        "q1 k100000 d3/5 f32 scale=1"};
    for (int n = 0; n < COUNT(texts); n++)
        for (int bad = 0; bad < 2; bad++) { /* the careful way, too, which values that are not finite ask for */
            call *c = call_new(texts[n], NULL);
            fill(c, CALL_V, 1);
            if (n == 2) fill(c, CALL_K, 0), fill(c, CALL_Q, 1), call_set(c, CALL_K, 0, 0, 0, 0, 0.003f);
            if (bad) call_set(c, CALL_V, 0, 77, 0, 0, NAN);
            for (int i = 0; call_kernel(i) != NULL; i++) {
                call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
                call_check_bounds(c, call_kernel(i));
            }
            call_free(c);
        }
}

/* One key has all the weight, whatever its score. */
static void one_key_gives_its_value(void **state) {
    (void)state;
    static const float logits[] = {1e5f, -1e5f, 0, 60, -60};
    for (int t = 0; t < COUNT(dtypes); t++)
        for (int n = 0; n < COUNT(logits); n++) {
            char text[128];
            snprintf(text, sizeof text, "h4/2 q5 k1 d7 %s scale=1", dtypes[t]);
            call *c = call_new(text, NULL);
            fill(c, CALL_Q, 0);
            for (int64_t r = 0; r < 5; r++)
                for (int64_t h = 0; h < 4; h++) call_set(c, CALL_Q, 0, r, h, 0, logits[n] / 256);
            fill(c, CALL_K, 256);
            for (int i = 0; call_kernel(i) != NULL; i++) {
                call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
                call_check(c, text);
                for (int64_t r = 0; r < 5; r++)
                    for (int64_t h = 0; h < 4; h++)
                        for (int64_t x = 0; x < 7; x++)
                            if (call_get(c, CALL_O, 0, r, h, x) !=
                                call_get(c, CALL_V, 0, 0, h / 2, x))
                                fail_msg("%s: logit %g does not give V", text, logits[n]);
            }
            call_free(c);
        }
}

/* The key with the logit 1e5 above all others has all the weight, in every block and chunk. */
static void the_greatest_key_gives_its_value(void **state) {
    (void)state;
    static const int64_t keys[] = {0, 7, 8, 15, 16, 511, 512, 4095, 4096, 4199};
    for (int n = 0; n < COUNT(keys); n++) {
        call *c = call_new("q2 k4200 d3 f32 scale=1", NULL);
        call_set(c, CALL_Q, 0, 0, 0, 0, 1000);
        call_set(c, CALL_Q, 0, 1, 0, 0, 1000);
        for (int64_t j = 0; j < 4200; j++) call_set(c, CALL_K, 0, j, 0, 0, j == keys[n] ? 100 : 0);
        for (int i = 0; call_kernel(i) != NULL; i++) {
            call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
            call_check(c, "greatest key");
            for (int64_t x = 0; x < 3; x++)
                assert_true(call_get(c, CALL_O, 0, 1, 0, x) ==
                            call_get(c, CALL_V, 0, keys[n], 0, x));
        }
        call_free(c);
    }
}

/* Scores that rise or fall all along the keys: the maximum moves in every block, or never. */
static void rising_and_falling_scores(void **state) {
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        call *c = call_new("h2/1 q5 k4300 d3/20 f32 scale=1", NULL);
        for (int64_t j = 0; j < 4300; j++)
            call_set(c, CALL_K, 0, j, 0, 0, 0.05f * (float)(j * sign));
        for (int64_t r = 0; r < 5; r++)
            for (int64_t h = 0; h < 2; h++) call_set(c, CALL_Q, 0, r, h, 0, 1);
        for (int i = 0; call_kernel(i) != NULL; i++) {
            call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
            call_check_bounds(c, sign > 0 ? "rising scores" : "falling scores");
        }
        call_free(c);
    }
}

/* The kernels' 2^x by itself. With the scale ln 2 a score is in units of log2; of two keys with
   scores 0 and -t the second gets 2^-t / (1 + 2^-t). */
static void powers_of_two_are_accurate(void **state) {
    (void)state;
    enum { ROWS = 4000 };
    char text[128];
    snprintf(text, sizeof text, "q%d k2 d1 f32 scale=0.69314718", ROWS);
    call *c = call_new(text, NULL);
    for (int j = 0; j < 2; j++) {
        call_set(c, CALL_K, 0, j, 0, 0, (float)-j);
        call_set(c, CALL_V, 0, j, 0, 0, (float)j);
    }
    for (int64_t r = 0; r < ROWS; r++)
        call_set(c, CALL_Q, 0, r, 0, 0, r < ROWS / 2 ? (float)r / 600 : (float)r * 99 / ROWS);
    for (int i = 0; call_kernel(i) != NULL; i++) {
        call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
        for (int64_t r = 0; r < ROWS; r++) {
            double t = call_get(c, CALL_Q, 0, r, 0, 0), p = exp2(-t);
            double error = fabs(call_get(c, CALL_O, 0, r, 0, 0) * (1 + p) / p - 1);
            if (!(error <= 2e-7 + 2 * FLT_EPSILON)) /* its own, and four roundings */
                fail_msg("%s: 2^-%.9g is off by a factor 1 + %g", call_kernel(i), t, error);
        }
    }
    call_free(c);
}

/* Products of 16-bit elements are exact, and so are sums of few small ones: with one key the lse is the score, rounded
   once, whatever the scale. */
static void scores_of_16_bits_are_exact(void **state) {
    (void)state;
    static const char *const texts[] = {"h2/1 q300 k1 d24 bf16", "h2/1 q300 k1 d100 f16", "h2/1 q5 k1 d48 bf16",
                                        "h2/1 q300 k1 d33 f32 scale=-0.3"};
    for (int t = 0; t < COUNT(texts); t++) {
        call *c = call_new(texts[t], NULL);
        int64_t d = c->problem.head_dim_qk;
        float scale = c->problem.scale_set ? c->problem.scale : (float)(1 / sqrt((double)d));
        for (int64_t x = 0; x < d; x++) call_set(c, CALL_K, 0, 0, 0, x, (float)(x * 29 % 51 - 25) / 4);
        for (int64_t r = 0; r < c->problem.q_len; r++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t x = 0; x < d; x++)
                    call_set(c, CALL_Q, 0, r, h, x, (float)((x * 37 + r * 11 + h) % 101 - 50) / 8);
        for (int i = 0; call_kernel(i) != NULL; i++) {
            call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
            for (int64_t r = 0; r < c->problem.q_len; r++)
                for (int64_t h = 0; h < 2; h++) {
                    double dot = 0;
                    for (int64_t x = 0; x < d; x++)
                        dot += (double)call_get(c, CALL_Q, 0, r, h, x) * (double)call_get(c, CALL_K, 0, 0, 0, x);
                    float want = (float)((double)scale * dot), got = call_get(c, CALL_LSE, 0, r, h, 0);
                    if (got != want)
                        fail_msg("%s, %s: the lse of row %lld is %.9g, not %.9g", texts[t], call_kernel(i),
                                 (long long)r, (double)got, (double)want);
                }
        }
        call_free(c);
    }
}

static void extreme_scales(void **state) {
    (void)state;
    static const char *const scales[] = {"0",     "-0.5",  "1e-45", "1e-38", "1e30",
                                         "-1e30", "1e-20", "300",   "-300",  "1"};
    for (int n = 0; n < COUNT(scales); n++)
        for (int t = 0; t < COUNT(dtypes); t++) {
            char text[128];
            snprintf(text, sizeof text, "h2 q9 k33 d12 %s causal scale=%s", dtypes[t], scales[n]);
            call_check_all(text, NULL);
        }
    /* the largest scale there may be, on data small enough for its scores */
    call_check_all("h2 q9 k33 d12 f32 scale=2.3e38",
                   &(call_shape){.q_size = 1e-20f, .k_size = 1e-19f});
}

/* A scale of 0 makes every weight the same. */
static void a_scale_of_zero_gives_the_mean(void **state) {
    (void)state;
    call *c = call_new("q1 k64 d4 f32 scale=0", NULL);
    for (int i = 0; call_kernel(i) != NULL; i++) {
        call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
        for (int64_t x = 0; x < 4; x++) {
            double sum = 0;
            for (int64_t j = 0; j < 64; j++) sum += call_get(c, CALL_V, 0, j, 0, x);
            assert_true(fabs(call_get(c, CALL_O, 0, 0, 0, x) - sum / 64) < 1e-6);
        }
        assert_true(fabs(call_get(c, CALL_LSE, 0, 0, 0, 0) - log(64)) < 1e-6);
    }
    call_free(c);
}

static int same_row(const call *a, const call *b, int64_t row) {
    return memcmp(call_at(a, CALL_O, 0, row, 0), call_at(b, CALL_O, 0, row, 0),
                  8 * sizeof(float)) == 0;
}

/* Runs both texts on the same data and says which rows differ. */
static void expect_changes(const char *one, const char *other, int64_t first, int64_t last) {
    call *a = call_new(one, NULL), *b = call_new(other, NULL);
    for (int i = 0; call_kernel(i) != NULL; i++) {
        call_run(a, &(call_how){.kernel = call_kernel(i)}, NULL);
        call_run(b, &(call_how){.kernel = call_kernel(i)}, NULL);
        for (int64_t r = 0; r < a->q_lens[0]; r++) {
            int differs = r >= first && r <= last;
            if (same_row(a, b, r) == differs)
                fail_msg("%s: '%s' and '%s' %s row %d", call_kernel(i), one, other,
                         differs ? "agree on" : "differ in", (int)r);
        }
    }
    call_free(a);
    call_free(b);
}

static void knobs_change_what_they_claim(void **state) {
    (void)state;
    expect_changes("q20 k20 d8 f32 scale=0.5", "q20 k20 d8 f32 scale=0.51", 0, 19);
    expect_changes("q20 k20 d8 f32", "q20 k20 d8 f32 scale=0.5", 0, 19);
    expect_changes("q20 k20 d8 f32", "q20 k20 d8 f32", 1, 0);
    /* one more key on the left is seen by the rows that have one */
    expect_changes("q20 k20 d8 f32 window=4,0", "q20 k20 d8 f32 window=5,0", 5, 19);
    expect_changes("q20 k20 d8 f32 window=0,4", "q20 k20 d8 f32 window=0,5", 0, 14);
    expect_changes("q20 k20 d8 f32 window=7,0", "q20 k20 d8 f32 window=8,0", 8, 19);
    expect_changes("q20 k20 d8 f32 window=19,0", "q20 k20 d8 f32 window=20,0", 1, 0);
    expect_changes("q20 k20 d8 f32 window=3,-1", "q20 k20 d8 f32 window=3,3", 0, 15);
    expect_changes("q20 k20 d8 f32", "q20 k20 d8 f32 causal", 0, 18);
    expect_changes("q20 k25 d8 f32 causal", "q20 k25 d8 f32 causal top-left", 0, 19);
    expect_changes("q20 k20 d8 f32 causal", "q20 k20 d8 f32 causal top-left", 1, 0);
}

static void the_kernel_names_the_numerics(void **state) {
    (void)state;
    char ids[32][sizeof((tp_receipt *)0)->numerics_id];
    int count = 0;
    call *c = call_new("q20 k20 d8 f32", NULL);
    for (; call_kernel(count) != NULL; count++) {
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){.kernel = call_kernel(count)}, &receipt);
        assert_string_equal(receipt.kernel, call_kernel(count));
        assert_true(strlen(receipt.numerics_id) > 0);
        assert_true(count < COUNT(ids));
        memcpy(ids[count], receipt.numerics_id, sizeof ids[count]);
        for (int i = 0; i < count; i++) assert_string_not_equal(ids[i], ids[count]);
    }
    assert_true(count >= 2);
    call_free(c);
}

/* The block of the online softmax is part of the numerics, and so of their name. */
static void the_block_names_the_numerics(void **state) {
    (void)state;
    char before[sizeof((tp_receipt *)0)->numerics_id] = "";
    static const char *const texts[] = {"q9 k9 d64 f32", "q9 k9 d65 f32", "q9 k9 d129 f32",
                                        "q9 k9 d8/257 f32"};
    for (int n = 0; n < COUNT(texts); n++) {
        call *c = call_new(texts[n], NULL);
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){.kernel = call_kernel(0)}, &receipt);
        assert_string_not_equal(before, receipt.numerics_id);
        memcpy(before, receipt.numerics_id, sizeof before);
        call_free(c);
    }
}

/* Frozen: a block border is where the maximum is carried over, so another size gives other bits. */
static void blocks_are_as_written_down(void **state) {
    (void)state;
    static const struct {
        int64_t head_dim;
        int keys;
    } table[] = {{1, 512},   {64, 512},  {65, 256}, {128, 256},
                 {129, 128}, {256, 128}, {257, 64}, {TP_MAX_HEAD_DIM, 64}};
    assert_int_equal(TP_CHUNK_KEYS, 4096);
    for (int n = 0; n < COUNT(table); n++) {
        assert_int_equal(tp_block_keys(table[n].head_dim), table[n].keys);
        assert_int_equal(TP_CHUNK_KEYS % table[n].keys, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_one_give_one),
        cmocka_unit_test(long_rows_stay_under_the_bound),
        cmocka_unit_test(one_key_gives_its_value),
        cmocka_unit_test(the_greatest_key_gives_its_value),
        cmocka_unit_test(rising_and_falling_scores),
        cmocka_unit_test(powers_of_two_are_accurate),
        cmocka_unit_test(scores_of_16_bits_are_exact),
        cmocka_unit_test(extreme_scales),
        cmocka_unit_test(a_scale_of_zero_gives_the_mean),
        cmocka_unit_test(knobs_change_what_they_claim),
        cmocka_unit_test(the_kernel_names_the_numerics),
        cmocka_unit_test(the_block_names_the_numerics),
        cmocka_unit_test(blocks_are_as_written_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
