/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that no row sees are not even read: each token of K and V has a page of its own, and the pages of
   tokens outside every window have no access. math alone reads all keys, as a textbook does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/call.h"

static float *pages_for(int64_t tokens, int64_t page_floats) {
    size_t bytes = (size_t)(tokens * page_floats) * sizeof(float);
    float *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* Rows at the end of kv_len keys, a window of left keys and themselves. */
static void check(int64_t kv_len, int64_t q_len, int64_t left) {
    enum { D = 20 };
    int64_t page = sysconf(_SC_PAGESIZE) / (int64_t)sizeof(float);
    int64_t first = kv_len - q_len - left; /* the leftmost key any row sees */
    float *k = pages_for(kv_len, page), *v = pages_for(kv_len, page), q[8 * D], o[8 * D];
    assert_true(q_len <= 8 && first > 0);
    for (int i = 0; i < 8 * D; i++) q[i] = (float)(i % 7) * 0.1f;
    for (int64_t t = first; t < kv_len; t++)
        for (int x = 0; x < D; x++) {
            k[t * page + x] = (float)((t + x) % 5) * 0.2f;
            v[t * page + x] = 1.0f;
        }
    size_t hidden = (size_t)(first * page) * sizeof(float);
    assert_int_equal(mprotect(k, hidden, PROT_NONE), 0);
    assert_int_equal(mprotect(v, hidden, PROT_NONE), 0);

    tp_problem p;
    tp_tensors t;
    tp_problem_init(&p);
    p.q_len = q_len;
    p.kv_len = kv_len;
    p.head_dim_qk = p.head_dim_v = D;
    assert_int_equal(tp_problem_causal(&p), TP_OK);
    assert_int_equal(tp_problem_window(&p, left, 0), TP_OK);
    tp_tensors_init(&t, &p, q, k, v, o);
    t.k.stride[1] = t.v.stride[1] = page;
    for (int i = 0; call_kernel(i) != NULL; i++) {
        tp_choice choice = TP_CHOICE_INIT;
        tp_error error = TP_ERROR_INIT;
        choice.policy = TP_PERMIT;
        choice.kernel = call_kernel(i);
        if (strcmp(choice.kernel, "math") == 0) continue;
        memset(o, 0xff, sizeof o);
        if (tp_attention(call_context(), &p, &choice, &t, NULL, &error)) fail_msg("%s", error.text);
        for (int64_t x = 0; x < q_len * D; x++) assert_true(o[x] > 0.999f && o[x] < 1.001f);
    }
    munmap(k, (size_t)(kv_len * page) * sizeof(float));
    munmap(v, (size_t)(kv_len * page) * sizeof(float));
}

static void keys_outside_every_window(void **state) {
    (void)state;
    for (int64_t kv_len = 30; kv_len < 80; kv_len++) check(kv_len, 1, 9);
    for (int64_t q_len = 1; q_len <= 8; q_len++)
        for (int64_t left = 0; left < 40; left += 3) check(601, q_len, left);
    check(5000, 3, 700);  /* across a chunk border */
    check(5000, 3, 1000);
}

/* Holes in the middle: what stands between the first keys and the window, or belongs to other documents, is
   neither packed nor read. Block-wise: within a block that some row sees, holes may be read. */
static void check_holes(const char *words, int64_t kv_len, int64_t hole_lo, int64_t hole_hi) {
    enum { D = 20 };
    int64_t page = sysconf(_SC_PAGESIZE) / (int64_t)sizeof(float);
    float *k = pages_for(kv_len, page), *v = pages_for(kv_len, page), q[4 * D], o[4 * D];
    int64_t *documents = malloc((size_t)kv_len * sizeof *documents), rows[4] = {1, 1, 3, 3};
    assert_non_null(documents);
    for (int i = 0; i < 4 * D; i++) q[i] = (float)(i % 7) * 0.1f;
    for (int64_t t = 0; t < kv_len; t++) {
        documents[t] = t < hole_lo ? 1 : t < hole_hi ? 2 : 3;
        for (int x = 0; x < D; x++) k[t * page + x] = 0.2f, v[t * page + x] = 1.0f;
    }
    size_t from = (size_t)(hole_lo * page), bytes = (size_t)((hole_hi - hole_lo) * page) * sizeof(float);
    assert_int_equal(mprotect(k + from, bytes, PROT_NONE), 0);
    assert_int_equal(mprotect(v + from, bytes, PROT_NONE), 0);
    tp_problem p;
    tp_tensors t;
    char text[128];
    snprintf(text, sizeof text, "q4 k%d d%d f32 %s", (int)kv_len, D, words);
    assert_int_equal(tp_problem_parse(text, &p, NULL, NULL), TP_OK);
    tp_tensors_init(&t, &p, q, k, v, o);
    t.k.stride[1] = t.v.stride[1] = page;
    t.index_type = TP_I64;
    t.q_documents = rows;
    t.k_documents = documents;
    for (int i = 0; call_kernel(i) != NULL; i++) {
        tp_choice choice = TP_CHOICE_INIT;
        tp_error error = TP_ERROR_INIT;
        choice.policy = TP_PERMIT;
        choice.kernel = call_kernel(i);
        if (strcmp(choice.kernel, "math") == 0) continue;
        memset(o, 0xff, sizeof o);
        if (tp_attention(call_context(), &p, &choice, &t, NULL, &error)) fail_msg("%s", error.text);
        for (int64_t x = 0; x < 4 * D; x++) assert_true(o[x] > 0.999f && o[x] < 1.001f);
    }
    munmap(k, (size_t)(kv_len * page) * sizeof(float));
    munmap(v, (size_t)(kv_len * page) * sizeof(float));
    free(documents);
}

static void blocks_that_no_row_sees(void **state) {
    (void)state;
    int64_t block = tp_block_keys(20);
    check_holes("window=99,0 first=4 causal", 6 * block, block, 5 * block);
    check_holes("window=99,0 first=4 causal", 12 * block, block, 11 * block); /* across a chunk */
    check_holes("documents", 6 * block, 2 * block, 4 * block);
    check_holes("documents", 6 * block, block, 2 * block);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_outside_every_window),
                                       cmocka_unit_test(blocks_that_no_row_sees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
