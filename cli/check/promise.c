/* SPDX-License-Identifier: Apache-2.0 */
/* What must stay the same (threads, layouts, the caller's float mode) and what must change. */
#include "check/check.h"
#include "harness/placed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static int threads(struct check_env *env) {
    static const int counts[] = {1, 2, 3, 5};
    static const char *const entries[] = {"one after another", "the context's pool",
                                        "the caller's threads"};
    struct tensors serial, parallel = {0};
    tp_receipt receipt;
    int failed = check_make_own(env, &serial) || check_make_own(env, &parallel) ||
                 check_attend_by(env, &serial, ENTRY_SERIAL, 1, 0xFF, &receipt);
    for (int entry = ENTRY_SERIAL; !failed && entry <= ENTRY_CALLER; entry++)
        for (int i = 0; !failed && i < 4; i++) {
            char what[64];
            snprintf(what, sizeof what, "%d tasks by %s", counts[i], entries[entry]);
            failed = check_attend_by(env, &parallel, (enum entry)entry, counts[i], 0xFF, &receipt) ||
                     check_same_rows(env, what, &serial, &parallel);
        }
    tensors_destroy(&parallel);
    tensors_destroy(&serial);
    return failed;
}

/* The same numbers in other strides and layouts. */
static int layouts(struct check_env *env) {
    static const struct tensors_style styles[] = {
        {.form = FORM_HEADS, .lse = 1}, {.form = FORM_QKV, .lse = 1},
        {.ragged = 1, .lse = 1},        {.form = FORM_HEADS, .ragged = 1, .lse = 1},
        {.slack = 4, .lse = 1},         {.index64 = 1, .lse = 1}};
    struct tensors first, other = {0};
    int failed = check_make_own(env, &first) || check_attend(env, &first);
    for (size_t i = 0; !failed && i < 2 * sizeof styles / sizeof *styles; i++) {
        tp_problem problem = env->test->problem;
        if (i % 2) problem.q_layout = problem.kv_layout = TP_PACKED;
        failed = check_make(env, &other, &problem, &env->test->lengths, &styles[i / 2]) ||
                 check_attend(env, &other) ||
                 check_same_rows(env, i % 2 ? "packed" : "in a batch", &first, &other);
        tensors_destroy(&other);
    }
    tensors_destroy(&first);
    return failed;
}

#if defined(__x86_64__)
/* Values so small that flushing them to zero would change every output. */
static int flush_to_zero(struct check_env *env) {
    struct tensors usual, flushed = {0};
    int failed = check_make_own(env, &usual) || check_make_own(env, &flushed);
    float tiny = env->test->problem.v_dtype == TP_F16 ? 1e-6f : 1e-39f;
    for (int64_t j = 0; !failed && j < usual.kv_lens[0]; j++)
        for (int64_t h = 0; h < usual.problem.kv_heads; h++)
            for (int64_t x = 0; x < usual.problem.head_dim_v; x++) {
                float value = tiny * (1 + fabsf(tensors_get(&usual, TENSOR_V, 0, j, h, x)));
                tensors_set(&usual, TENSOR_V, 0, j, h, x, value);
                tensors_set(&flushed, TENSOR_V, 0, j, h, x, value);
            }
    if (!failed) failed = check_attend(env, &usual);
    if (!failed && tensors_get(&usual, TENSOR_O, 0, 0, 0, 0) == 0)
        failed = check_fail(env, "subnormal values: expected an output above 0, got 0");
    if (!failed) {
        unsigned before = _mm_getcsr();
        unsigned mode = before | 0x8040; /* flush to zero, denormals are zero */
        _mm_setcsr(mode);
        failed = check_attend(env, &flushed);
        unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        if (!failed && (after ^ mode) & 0xFFC0)
            failed = check_fail(env, "the caller's float mode: expected %#x, got %#x", mode, after);
    }
    if (!failed) failed = check_same_rows(env, "flush to zero in the caller", &usual, &flushed);
    tensors_destroy(&flushed);
    tensors_destroy(&usual);
    return failed;
}
#endif

static int same_keys(const struct tensors *a, const struct tensors *b, int64_t row) {
    for (int64_t j = 0; j < a->kv_lens[0]; j++)
        if (tp_mask_visible(&a->problem, &a->call, 0, 0, row, j) !=
            tp_mask_visible(&b->problem, &b->call, 0, 0, row, j))
            return 0;
    return 1;
}

/* One knob is turned: rows for which it changes something change, and no other. */
static int turn(struct check_env *env, const char *knob, const struct tensors *before,
                const tp_problem *problem, int changes_all) {
    struct tensors after;
    int failed =
        check_make(env, &after, problem, NULL, &env->test->style) || check_attend(env, &after);
    for (int64_t r = 0; !failed && r < after.q_lens[0]; r++) {
        tp_row at = {0, 0, r};
        int64_t column;
        int same = check_rows_equal(before, at, &after, at, &column);
        int want_same = !changes_all && same_keys(before, &after, r);
        if (same != want_same)
            failed = check_fail(env, "%s: row %lld: expected %s bits, got %s", knob, (long long)r,
                                want_same ? "the same" : "other", same ? "the same" : "other");
    }
    tensors_destroy(&after);
    return failed;
}

static int knobs(struct check_env *env) {
    struct tensors before;
    tp_problem base = env->test->problem, turned = base;
    int failed = check_make_own(env, &before) || check_attend(env, &before);
    turned.scale_set = 1;
    turned.scale = 0.25f;
    if (!failed) failed = turn(env, "scale", &before, &turned, 1);
    turned = base;
    turned.align = TP_TOP_LEFT;
    if (!failed) failed = turn(env, "top-left", &before, &turned, 0);
    turned = base;
    turned.mask_nodes = 0;
    if (!failed) failed = turn(env, "no mask", &before, &turned, 0);
    for (int side = 0; !failed && side < 2; side++)
        for (int step = -1; !failed && step <= 1; step += 2) {
            turned = base;
            *(side ? &turned.mask[0].b : &turned.mask[0].a) += step;
            failed =
                turn(env, side ? "window right edge" : "window left edge", &before, &turned, 0);
        }
    tensors_destroy(&before);
    return failed;
}

static int untouched(struct check_env *env) {
    struct tensors tensors;
    unsigned char *copies[3] = {NULL, NULL, NULL};
    int failed = check_make_own(env, &tensors);
    for (int id = TENSOR_Q; !failed && id <= TENSOR_V; id++) {
        copies[id] = malloc(tensors.buffer[id].bytes);
        if (!copies[id])
            failed = check_fail(env, "no memory");
        else
            memcpy(copies[id], tensors.buffer[id].memory, tensors.buffer[id].bytes);
    }
    if (!failed) failed = check_attend(env, &tensors);
    for (int id = TENSOR_Q; !failed && id <= TENSOR_V; id++)
        if (memcmp(copies[id], tensors.buffer[id].memory, tensors.buffer[id].bytes))
            failed =
                check_fail(env, "input %c: expected unchanged bytes, it was written", "qkv"[id]);
    for (int i = 0; i < 3; i++) free(copies[i]);
    tensors_destroy(&tensors);
    return failed;
}

/* The one call gives the plan's bits, plans once (except for math, whose workspace depends on the
   very lengths, and on a device), and names the kernel. */
static int one_call(struct check_env *env) {
    struct tensors planned, called = {0};
    tp_receipt receipt;
    tp_error error = TP_ERROR_INIT;
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = TP_PERMIT;
    choice.kernel = env->kernel->name;
    choice.device = env->device;
    int failed = check_make_own(env, &planned) || check_make_own(env, &called) || check_attend(env, &planned);
    for (int i = 0; !failed && i < 2; i++) {
        struct placed placed = {.call = called.call};
        tp_status status = TP_OK;
        if (env->device != TP_CPU) status = placed_create(&placed, env->context, env->device, &called, 0, &error);
        tp_receipt_init(&receipt);
        if (status == TP_OK) status = tp_attention(env->context, &called.problem, &choice, &placed.call, &receipt, &error);
        if (status == TP_OK) status = placed_fetch(&placed, &error);
        placed_destroy(&placed);
        if (status != TP_OK)
            failed =
                check_fail(env, "expected TP_OK, got %s: %s", tp_status_name(status), error.text);
        else if (!receipt.kernel || strcmp(receipt.kernel, env->kernel->name))
            failed = check_fail(env, "expected kernel %s, the receipt names %s", env->kernel->name,
                                receipt.kernel ? receipt.kernel : "none");
        else if (i == 1 && receipt.planned && env->device == TP_CPU && strcmp(env->kernel->strategy, "math"))
            failed =
                check_fail(env, "the second call: expected a cached decision, it was made anew");
        else
            failed = check_same_rows(env, "tp_attention", &planned, &called);
    }
    tensors_destroy(&called);
    tensors_destroy(&planned);
    return failed;
}

/* The receipt's counts against the mask's definition, pair by pair. */
static int receipts(struct check_env *env) {
    struct tensors tensors;
    tp_receipt receipt;
    int64_t pairs = 0;
    int failed =
        check_make_own(env, &tensors) || check_attend_by(env, &tensors, ENTRY_SERIAL, 2, 0xFF, &receipt);
    for (int64_t s = 0; !failed && s < tensors.sequences; s++)
        for (int64_t r = 0; r < tensors.q_lens[s]; r++)
            for (int64_t j = 0; j < tensors.kv_lens[s]; j++)
                for (int64_t h = 0; h < tensors.problem.q_heads; h++)
                    pairs += tp_mask_visible(&tensors.problem, &tensors.call, s, h, r, j);
    int64_t calls = 0, more;
    for (int i = 0; !failed && tp_receipt_function(&receipt, i, NULL, &more); i++) calls += more;
    if (!failed && receipt.pairs_visible != pairs)
        failed = check_fail(env, "pairs_visible: expected %lld, got %lld", (long long)pairs,
                            (long long)receipt.pairs_visible);
    if (!failed && receipt.pairs_computed < pairs)
        failed = check_fail(env, "pairs_computed: expected at least %lld, got %lld",
                            (long long)pairs, (long long)receipt.pairs_computed);
    if (!failed && (calls == 0) != (pairs == 0))
        failed = check_fail(env, "function calls: got %lld for %lld visible pairs", (long long)calls,
                            (long long)pairs);
    tensors_destroy(&tensors);
    return failed;
}

void check_add_promise(struct check_list *list) {
    static const struct tensors_style style = {.lse = 1};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    static const char *const masks[] = {"causal documents sinks", "causal spans softcap=9", "bits alibi",
                                        "callback", "window=30,0 first=4 causal sinks",
                                        "positions causal bias=f32"};
    for (int t = 0; t < 3; t++) {
        const char *d = dtypes[t];
        check_add(list, "hostile", "threads", threads, style,
                  "h4/2 seqs=1x70/300,1x1/4100,1x33/33 d40 %s packed causal", d);
        check_add(list, "hostile", "threads", threads, style,
                  "h6/2 q150 k150 d33/70 %s window=20,9", d);
        check_add(list, "hostile", "threads", threads, style,
                  "h4/2 seqs=1x70/300,1x1/4100,2x2/33 d24 %s packed-q paged=16 causal", d);
        check_add(list, "hostile", "threads", threads, style, "h8/8 q1 k5000 d16 %s", d);
        check_add(list, "hostile", "threads", threads, style, "h4/1 q2 k3000 d16 %s sparse=2500", d);
        check_add(list, "hostile", "threads", threads, style, "h4/1 q2 k30 d16 %s sparse=9000", d);
        /* its first and last rows see nothing */
        check_add(list, "hostile", "threads", threads, style, "h2/2 q400 k300 d8 %s mask=window:0:0,prefix:60,and", d);
        for (int i = 0; i < (int)(sizeof masks / sizeof *masks); i++) {
            check_add(list, "hostile", "threads", threads, style, "b2 h4/2 q300 k300 d24 %s %s", d,
                      masks[i]);
            check_add(list, "hostile", "receipt", receipts, style,
                      "h4/2 seqs=1x7/20,1x33/600,1x40/40 d33/65 %s packed %s", d, masks[i]);
        }
        check_add(list, "hostile", "layouts", layouts, style, "b3 h4/2 q40 k40 d33 %s causal", d);
#if defined(__x86_64__)
        check_add(list, "hostile", "flush-to-zero", flush_to_zero, style,
                  "h2/1 q20 k300 d40 %s causal", d);
#endif
        check_add(list, "hostile", "knobs", knobs, style, "q60 k90 d40 %s window=20,7", d);
        check_add(list, "hostile", "untouched", untouched, style, "h4/2 q40 k70 d65 %s causal", d);
        check_add(list, "hostile", "one-call", one_call, style, "b2 h4/2 q20 k70 d65 %s causal", d);
        check_add(list, "hostile", "receipt", receipts, style,
                  "h4/2 seqs=1x7/20,1x0/5,1x33/600 d33/65 %s padded causal", d);
        check_add(list, "hostile", "one-call", one_call, style,
                  "b2 h8/2 q1 k1100 d65 %s causal paged=16", d);
        check_add(list, "hostile", "receipt", receipts, style,
                  "h8/2 seqs=1x2/1100,1x0/5,1x33/90 d33/65 %s packed-q paged=16 causal", d);
        check_add(list, "hostile", "receipt", receipts, style, "h3/1 q100 k100 d16 %s window=7,3",
                  d);
    }
}
