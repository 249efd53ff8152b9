/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is read or written beyond a tensor, an index array or the workspace: each lies directly
   behind or in front of a page without access, and the pages of inputs are read-only. */
#include <stdio.h>
#include <string.h>

#include "support/call.h"
#include "support/guard.h"

enum { CAPACITY = 1 << 20 };

static guard around[CALL_TENSORS], workspace, indices[4];

static int make_guards(void **state) {
    (void)state;
    for (int i = 0; i < CALL_TENSORS; i++) around[i] = guard_new(CAPACITY);
    for (int i = 0; i < COUNT(indices); i++) indices[i] = guard_new(4096);
    workspace = guard_new(16 << 20);
    return 0;
}

static int drop_guards(void **state) {
    (void)state;
    for (int i = 0; i < CALL_TENSORS; i++) guard_free(&around[i]);
    for (int i = 0; i < COUNT(indices); i++) guard_free(&indices[i]);
    guard_free(&workspace);
    return 0;
}

/* The tensors of a second view of the call, each against one of its pages. */
static call move(const call *c, int at_end) {
    call moved = *c;
    for (int which = 0; which < CALL_TENSORS; which++) {
        size_t bytes = c->held.buffer[which].bytes;
        assert_true(bytes <= CAPACITY);
        char *to = at_end ? guard_end(&around[which], bytes) : guard_begin(&around[which]);
        guard_protect(&around[which], 1);
        memcpy(to, c->held.buffer[which].memory, bytes);
        if (which < CALL_O) guard_protect(&around[which], 0);
        if (which >= CALL_O) memset(to, 0xff, bytes);
        call_tensor_of(&moved, which)->data = to;
        moved.held.buffer[which].memory = to;
    }
    return moved;
}

/* Every byte of the workspace is NaN at first and none lies beyond it. */
static void run(call *moved, const char *kernel, int tasks) {
    tp_choice choice = TP_CHOICE_INIT;
    tp_exec exec = TP_EXEC_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_plan *plan;
    choice.policy = TP_PERMIT;
    choice.kernel = kernel;
    assert_int_equal(tp_plan_create(call_context(), &moved->problem, &choice, &plan, &error),
                     TP_OK);
    exec.threads = tasks;
    exec.workspace_size = tp_plan_workspace(plan, tasks);
    assert_true(exec.workspace_size <= workspace.bytes);
    assert_int_equal(exec.workspace_size % 64, 0);
    exec.workspace = guard_end(&workspace, exec.workspace_size);
    memset(exec.workspace, 0xff, exec.workspace_size);
    if (tp_plan_run(plan, &moved->tensors, &exec, NULL, &error)) fail_msg("%s", error.text);
    tp_plan_destroy(plan);
}

static void check(const char *text, const call_shape *shape, int tasks) {
    call *c = call_new(text, shape);
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
        call_check(c, text);
        for (int at_end = 0; at_end <= 1; at_end++) {
            call moved = move(c, at_end);
            run(&moved, call_kernel(k), tasks);
            call_same(c, &moved, text);
        }
    }
    call_free(c);
}

static void every_head_dim(void **state) {
    (void)state;
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    for (int d = 1; d <= TP_MAX_HEAD_DIM; d++)
        for (int t = 0; t < COUNT(dtypes); t++) {
            char text[128];
            if (call_quick() && d > 40 && (d + t) % 16 > 2) continue;
            snprintf(text, sizeof text, "h2/1 q%d k%d d%d %s", 1 + d % 3, 1 + d % 9, d, dtypes[t]);
            check(text, NULL, 1);
            snprintf(text, sizeof text, "h2/1 q2 k%d d%d/%d %s", 1 + d % 5, d,
                     TP_MAX_HEAD_DIM + 1 - d, dtypes[t]);
            check(text, NULL, 1);
        }
}

static void lengths_around_tiles(void **state) {
    (void)state;
    static const char *const dtypes[] = {"f32", "f16->f32", "f32->bf16"};
    for (int k = 1; k <= 140; k++) {
        char text[128];
        if (call_quick() && k % 6 != 0) continue;
        snprintf(text, sizeof text, "h3/1 q%d k%d d%d/%d %s %s", 1 + k % 7, k, 250 + k % 11,
                 1 + k % 19, dtypes[k % 3], k % 2 ? "causal" : "window=9,2");
        check(text, NULL, 1);
    }
    check("b2 h2 q3 k4097 d5 f32 causal", NULL, 1);
    check("b2 h2 q3 k4097 d5 f32 window=3,0", NULL, 3);
}

static void other_layouts_and_tasks(void **state) {
    (void)state;
    static const call_layout layouts[] = {CALL_BHSD, CALL_GAPS};
    for (int l = 0; l < COUNT(layouts); l++) {
        call_shape shape = {.layout = layouts[l]};
        if (layouts[l] == CALL_BHSD) check("b2 h6/3 q90 k30 d20/12 bf16 causal", &shape, 5);
        call *c = call_new("b2 h6/3 q90 k30 d20/12 bf16 causal", &shape);
        call_run(c, &(call_how){.threads = 3}, NULL); /* exact workspace, NaN-filled */
        call_check(c, "gaps");
        call_free(c);
    }
}

/* cu_seqlens and used lengths hold exactly what they must. */
static void index_arrays(void **state) {
    (void)state;
    static const char *const forms[] = {"packed", "padded"};
    for (int f = 0; f < COUNT(forms); f++)
        for (int type = TP_I32; type <= TP_I64; type++)
            for (int at_end = 0; at_end <= 1; at_end++) {
                char text[128];
                snprintf(text, sizeof text, "h2/1 seqs=1x3/9,1x0/4,2x5/5 d9 f32 %s causal",
                         forms[f]);
                call *c = call_new(text, &(call_shape){.index_type = type});
                size_t bytes = (size_t)(f == 0 ? 5 : 4) * (type == TP_I64 ? 8 : 4);
                const void **fields[] = {&c->tensors.cu_seqlens_q, &c->tensors.q_lens,
                                         &c->tensors.cu_seqlens_kv, &c->tensors.kv_lens};
                for (int i = 0; i < 4; i++) {
                    if (*fields[i] == NULL) continue;
                    guard_protect(&indices[i], 1);
                    void *to = at_end ? guard_end(&indices[i], bytes) : guard_begin(&indices[i]);
                    memcpy(to, *fields[i], bytes);
                    guard_protect(&indices[i], 0);
                    *fields[i] = to;
                }
                for (int k = 0; call_kernel(k) != NULL; k++) {
                    call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
                    call_check(c, text);
                }
                call_free(c);
            }
}

/* Positions of a sequence without keys: there are none to look at. */
static void positions_without_keys(void **state) {
    (void)state;
    static const char *const words[] = {"alibi", "causal", "documents", "bias=f32", "alibi documents causal"};
    for (int w = 0; w < COUNT(words); w++) {
        char text[128];
        snprintf(text, sizeof text, "h2/1 seqs=1x2/9,2x3/0 d9 f32 packed positions %s", words[w]);
        call *c = call_new(text, NULL);
        size_t bytes = (size_t)(c->held.kv_start[2]) * sizeof(int32_t); /* behind the last key there is nothing */
        c->tensors.kv_tokens = c->held.kv_start[2];
        ((int32_t *)c->held.indices[INDEX_CU_KV])[3] = (int32_t)c->held.kv_start[2];
        guard_protect(&indices[0], 1);
        void *to = guard_end(&indices[0], bytes);
        memcpy(to, c->tensors.k_positions, bytes);
        guard_protect(&indices[0], 0);
        c->tensors.k_positions = to;
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check_bounds(c, text);
        }
        call_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_head_dim),
        cmocka_unit_test(lengths_around_tiles),
        cmocka_unit_test(other_layouts_and_tasks),
        cmocka_unit_test(index_arrays),
        cmocka_unit_test(positions_without_keys),
    };
    return cmocka_run_group_tests(tests, make_guards, drop_guards);
}
