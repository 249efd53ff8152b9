/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows against many keys: the decode loop, its splitting over threads, and the hand-over to prefill. */
#include <stdio.h>
#include <string.h>

#include "support/call.h"
#include "support/parallel.h"

/* Both loops, forced by hand and chosen, against the reference. */
static void check_text(const char *text, const call_shape *shape) {
    static const char *const strategies[] = {NULL, "prefill", "decode"};
    call *c = call_new(text, shape);
    call_keep(c);
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int s = 0; s < COUNT(strategies); s++) {
            char what[256];
            if (call_quick() && s != k % COUNT(strategies)) continue;
            snprintf(what, sizeof what, "%s on %s by %s", text, call_kernel(k),
                     strategies[s] != NULL ? strategies[s] : "rows");
            call_run(c, &(call_how){.kernel = call_kernel(k), .strategy = strategies[s]}, NULL);
            call_check(c, what);
        }
    call_free(c);
}

static void rows_and_groups(void **state) {
    (void)state;
    static const int groups[] = {1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 32, 33};
    for (int g = 0; g < COUNT(groups); g++)
        for (int rows = 1; rows <= 17; rows += rows < 5 ? 1 : 6) {
            char text[128];
            snprintf(text, sizeof text, "h%d/2 q%d k%d d%d f32 causal", 2 * groups[g], rows,
                     40 + 13 * g, 8 + 8 * (g % 4));
            check_text(text, NULL);
        }
}

/* Around tiles of dots, blocks and chunks. */
static void key_counts(void **state) {
    (void)state;
    static const int keys[] = {1,   2,   3,   4,    5,    15,   16,   17,   31,   32,   33,  63,
                               64,  65,  127, 128,  129,  255,  257,  1023, 1024, 1025, 2047,
                               2049, 4095, 4096, 4097, 4161};
    for (int n = 0; n < COUNT(keys); n++) {
        char text[128];
        if (call_quick() && n % 3 != 0) continue;
        snprintf(text, sizeof text, "h6/2 q%d k%d d%d bf16 causal", 1 + n % 3, keys[n], n % 2 ? 20 : 12);
        check_text(text, NULL);
    }
}

/* Around sixteen chains, vectors and panels. */
static void head_dims(void **state) {
    (void)state;
    static const int dims[] = {1, 3, 4, 7, 8, 15, 16, 17, 24, 31, 32, 33, 40, 64, 65, 72, 80, 100, 128,
                               129, 192, 256, 257, 576};
    static const char *const dtypes[] = {"f32", "bf16", "f16", "f32:bf16:f16->f32"};
    for (int n = 0; n < COUNT(dims); n++) {
        char text[128];
        snprintf(text, sizeof text, "h5/1 q2 k70 d%d/%d %s causal", dims[n], dims[(n * 7 + 3) % COUNT(dims)],
                 dtypes[n % COUNT(dtypes)]);
        check_text(text, NULL);
    }
}

static void layouts(void **state) {
    (void)state;
    for (int layout = 0; layout < CALL_LAYOUTS; layout++) {
        call_shape shape = {.layout = (call_layout)layout};
        check_text("b2 h6/3 q3 k90 d24 f32 causal", &shape);
        check_text("h4/2 seqs=2x1/70,1x40/60,1x3/200 d20 bf16 packed causal", layout == CALL_QKV ? NULL : &shape);
    }
}

/* A window: the pages, blocks and chunks that no row sees are not touched; the bytes say so. */
static void windows(void **state) {
    (void)state;
    check_text("h4/2 q1 k5000 d16 f32 causal window=99,0", NULL);
    check_text("h4/2 q3 k3000 d16 f16 window=1030,-1", NULL);
    call *c = call_new("h4/2 q1 k5000 d16 f32 window=99,0", NULL);
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    call_run(c, &(call_how){0}, &receipt);
    assert_int_equal(receipt.bytes_compulsory, 4 * (16 + 16 + 1) * 4 + 100 * 2 * 32 * 4);
    assert_int_equal(receipt.bytes_model, receipt.bytes_compulsory);
    call_free(c);
}

/* Each key's bytes once for the whole group, by either loop. */
static void keys_are_read_once(void **state) {
    (void)state;
    for (int k = 0; call_kernel_info(k) != NULL && call_kernel_info(k)->mr > 0; k++) {
        call *c = call_new("h16/2 q1 k3000 d32 bf16", NULL);
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){.kernel = call_kernel(k)}, &receipt);
        assert_int_equal(receipt.bytes_model, receipt.bytes_compulsory);
        assert_int_equal(receipt.bytes_model, 16 * (64 + 64 + 4) + 2 * 3000 * 128);
        call_free(c);
    }
}

/* Split-KV: a sequence's chunks on several threads, in whatever order the tasks run. */
static void same_bits_however_split(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h4/1 q1 k9000 d16 f32",
        "h4/1 q2 k5000 d20 bf16 causal window=3000,-1",
        "h8/8 q1 k4097 d8 f32",
        "h32/2 q4 k9000 d8 f32 causal",
        "h64/1 q2 k8200 d8 f16 causal",
        "h4/2 seqs=1x1/9000,3x1/50,1x40/6000,1x2/1024 d8 f32 packed-q paged=16 causal",
        "h16/1 q1 k5000 d40/32 bf16 latent paged=64",
        "h4/1 q1 k9000 d16 f32 invariant",
        "h3/1 seqs=1x20/9000,1x1/9000 d8 f32 padded causal invariant",
    };
    for (int n = 0; n < COUNT(texts); n++) {
        call *one = call_new(texts[n], NULL), *many = call_new(texts[n], NULL);
        call_keep(one);
        for (int k = 0; call_kernel_info(k) != NULL && call_kernel_info(k)->mr > 0; k++) {
            call_run(one, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check(one, texts[n]);
            for (int threads = 2; threads <= 7; threads++) {
                static const tp_parallel_for entries[] = {parallel_threads, parallel_reverse,
                                                        parallel_shuffled};
                for (int d = 0; d < COUNT(entries); d++) {
                    parallel p = {.seed = (uint64_t)(threads + n), .threads = 2 + threads % 3};
                    if (call_quick() && (threads + d) % 3 != 0) continue;
                    call_run(many,
                             &(call_how){.kernel = call_kernel(k), .threads = threads,
                                         .parallel_for = entries[d], .user = &p},
                             NULL);
                    call_same(one, many, texts[n]);
                }
            }
        }
        call_free(one);
        call_free(many);
    }
}

/* Where the first and the last row see nothing, all of a call seems to cost nothing: parts of it do not. */
static void rows_that_see_nothing_at_both_ends(void **state) {
    (void)state;
    static const struct {
        const char *text, *strategy;
    } cases[] = {{"h2/2 q600 k400 d8 f32 mask=window:0:0,prefix:100,and", "decode"}, {"h2/2 q3 k4 d8 f32 sparse=4", NULL}};
    for (int n = 0; n < COUNT(cases); n++)
        for (int k = 0; call_kernel_info(k) != NULL && call_kernel_info(k)->mr > 0; k++) {
            call *one = call_new(cases[n].text, NULL), *many = call_new(cases[n].text, NULL);
            call *const both[] = {one, many};
            for (int i = 0; n == 1 && i < 2; i++) { /* lists {}, {0}, {} */
                int32_t *indices = both[i]->held.indices[INDEX_SPARSE];
                int64_t stride = both[i]->tensors.sparse_stride;
                indices[0] = indices[2 * stride] = indices[stride + 1] = -1;
                indices[stride] = 0;
            }
            call_run(one, &(call_how){.kernel = call_kernel(k), .strategy = cases[n].strategy}, NULL);
            call_check_bounds(one, cases[n].text);
            for (int threads = 2; threads <= 5; threads++) {
                parallel p = {.threads = 2};
                call_run(many,
                         &(call_how){.kernel = call_kernel(k), .strategy = cases[n].strategy, .threads = threads,
                                     .parallel_for = parallel_threads, .user = &p},
                         NULL);
                call_same(one, many, cases[n].text);
            }
            call_free(one);
            call_free(many);
        }
}

/* A long sequence alone keeps several tasks busy: its chunks are merged more than once. */
static void a_long_sequence_is_split(void **state) {
    (void)state;
    call *c = call_new("h4/1 q1 k9000 d16 f32", NULL);
    parallel p = {.seed = 1};
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    call_run(c, &(call_how){.threads = 2, .parallel_for = parallel_reverse, .user = &p}, &receipt);
    assert_int_equal(receipt.tasks, 2);
    assert_int_equal(call_count_of(&receipt, "tp_load_q_"), 9); /* one a chunk of 1024 */
    call_free(c);
}

static void the_loop_follows_the_sequences_own_rows(void **state) {
    (void)state;
    call *mixed = call_new("h4/2 seqs=1x1/300,1x16/300,1x17/300,1x1/40 d16 f32 packed causal", NULL);
    call_run(mixed, &(call_how){0}, NULL);
    for (int64_t s = 0; s < 4; s++) {
        static const int64_t requests[] = {0, 1, 2, 3};
        char text[96];
        snprintf(text, sizeof text, "h4/2 q%d k%d d16 f32 causal", (int)mixed->q_lens[s],
                 (int)mixed->kv_lens[s]);
        call *alone = call_new(text, &(call_shape){.request = &requests[s]});
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(alone, &(call_how){0}, &receipt);
        call_same_seq(alone, 0, mixed, s, text);
        assert_int_equal(call_count_of(&receipt, "tp_qk_") > 0, mixed->q_lens[s] * 2 <= tp_decode_rows(TP_F32));
        call_free(alone);
    }
    call_free(mixed);
}

/* invariant: decode, any chunked prefill and a whole prefill agree bit for bit. */
static void invariant_mode(void **state) {
    (void)state;
    call *whole = call_new("h6/2 q48 k48 d24 bf16 causal invariant", NULL);
    call_run(whole, &(call_how){0}, NULL);
    for (int64_t rows = 1; rows <= 48; rows++) {
        char text[96];
        snprintf(text, sizeof text, "h6/2 q%d k48 d24 bf16 causal invariant", (int)rows);
        call *last = call_new(text, NULL);
        for (int64_t r = 0; r < rows; r++) /* the last rows of the whole */
            for (int64_t h = 0; h < 6; h++)
                memcpy(call_at(last, CALL_Q, 0, r, h), call_at(whole, CALL_Q, 0, 48 - rows + r, h), 48);
        call_run(last, &(call_how){0}, NULL);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t h = 0; h < 6; h++)
                call_same_row(last, 0, r, h, whole, 0, 48 - rows + r, h, text);
        call_free(last);
    }
    call_free(whole);
}

static void bad_choices(void **state) {
    (void)state;
    call *c = call_new("q1 k9 d8 f32 invariant", NULL);
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(call_try(c, &(call_how){.strategy = "decode"}, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "invariant"));
    assert_int_equal(call_try(c, &(call_how){.strategy = "fast"}, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "'fast'"));
    assert_int_equal(call_try(c, &(call_how){.strategy = "prefill"}, NULL, &error), TP_OK);
    call_free(c);
}

/* A decode loop: lengths grow, the decision is made once. */
static void a_growing_loop_plans_once(void **state) {
    (void)state;
    tp_context *context = call_context_new(1);
    tp_counters counters = {.struct_size = sizeof counters};
    call *c = call_new("h4/2 q1 k600 d16 f32 paged=16", NULL);
    for (int64_t kv = 1; kv <= 600; kv++) {
        tp_error error = TP_ERROR_INIT;
        ((int32_t *)c->held.indices[INDEX_KV_LENS])[0] = (int32_t)kv;
        if (tp_attention(context, &c->problem, NULL, &c->tensors, NULL, &error)) fail_msg("%s", error.text);
    }
    tp_context_counters(context, &counters);
    assert_int_equal(counters.plans, 1);
    assert_int_equal(counters.calls, 600);
    call_free(c);
    tp_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_groups),
        cmocka_unit_test(key_counts),
        cmocka_unit_test(head_dims),
        cmocka_unit_test(layouts),
        cmocka_unit_test(windows),
        cmocka_unit_test(keys_are_read_once),
        cmocka_unit_test(same_bits_however_split),
        cmocka_unit_test(rows_that_see_nothing_at_both_ends),
        cmocka_unit_test(a_long_sequence_is_split),
        cmocka_unit_test(the_loop_follows_the_sequences_own_rows),
        cmocka_unit_test(invariant_mode),
        cmocka_unit_test(bad_choices),
        cmocka_unit_test(a_growing_loop_plans_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
