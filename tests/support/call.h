/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole call of attention, made from a problem's text: the harness's tensors (harness/tensors.h) in any layout, with
 * data that follow a request, a run with a given kernel and way of threading, and the comparison with the reference.
 *
 *     call *c = call_new("b2 h6/3 q40 k50 d24 bf16 causal", NULL);
 *     for (int i = 0; call_kernel(i) != NULL; i++) {
 *         call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
 *         call_check(c, call_kernel(i));
 *     }
 *     call_free(c);
 *
 * An element's value follows from its request, token, head and index alone, never from the layout
 * or the neighbours, so that calls laid out differently can be compared bit for bit. Everything
 * between and around the elements is poison: NaN in inputs, a pattern in outputs that must still be
 * there after the run, and nowhere else. Nothing lies behind a tensor, which sanitizers and guards see.
 *
 * TILEPROOF_TEST_QUICK=1 in the environment makes tests use a reduced grid, for sanitizer builds.
 */
#ifndef TP_TESTS_SUPPORT_CALL_H
#define TP_TESTS_SUPPORT_CALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness/tensors.h"
#include "tileproof.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

typedef enum call_layout {
    CALL_BSHD,   /* contiguous */
    CALL_BHSD,   /* heads outside tokens */
    CALL_GAPS,   /* odd strides, poison between rows, tokens and sequences, data one element off any alignment */
    CALL_QKV,    /* q, k and v slices of one buffer; needs one input dtype */
    CALL_SHARED, /* strides of 0: heads share q, sequences share k, tokens share v */
    CALL_LAYOUTS
} call_layout;

typedef struct call_shape { /* all zero: the defaults */
    call_layout layout;
    int32_t index_type;           /* of cu_seqlens and used lengths */
    const int64_t *request;       /* whose data sequence s holds; NULL: s's own */
    float q_size, k_size, v_size; /* factors; 0: 1 */
    int two_tables;               /* paged: v has a table of its own */
    uint64_t seed;                /* of what masks, sparse indices and page tables hold */
} call_shape;

typedef enum tensor_id call_tensor;
#define CALL_Q TENSOR_Q
#define CALL_K TENSOR_K
#define CALL_V TENSOR_V
#define CALL_O TENSOR_O
#define CALL_LSE TENSOR_LSE
#define CALL_TENSORS TENSOR_COUNT

typedef struct call {
    union {
        struct tensors held;
        struct { /* how it begins, by the words of tests */
            tp_problem problem;
            tp_tensors tensors;
            struct tensors_style style;
            int64_t sequences;
            int64_t *q_lens, *kv_lens; /* [batch] used lengths */
        };
    };
    int keeps;             /* call_keep */
    struct oracle *oracle; /* of the first check, where it is kept */
} call;
_Static_assert(offsetof(call, tensors) == offsetof(struct tensors, call) &&
                   offsetof(call, q_lens) == offsetof(struct tensors, q_lens) &&
                   offsetof(call, kv_lens) == offsetof(struct tensors, kv_lens),
               "a call begins as the harness's tensors do");

call *call_new(const char *text, const call_shape *shape);
void call_free(call *c);
/* What call_check remembers. */
void call_oracle_free(struct oracle *oracle);
/* The call as the tests have changed it, for the oracle. It owns nothing. */
struct tensors call_view(const call *c);

tp_tensor *call_tensor_of(call *c, call_tensor which);
int32_t call_dtype(const call *c, call_tensor which);
int64_t call_heads(const call *c, call_tensor which);
int64_t call_dim(const call *c, call_tensor which);
int64_t call_tokens(const call *c, call_tensor which, int64_t seq); /* used ones */

/* Where a head's row of a token lies. */
void *call_at(const call *c, call_tensor which, int64_t seq, int64_t token, int64_t head);
float call_get(const call *c, call_tensor which, int64_t seq, int64_t token, int64_t head,
               int64_t x);
void call_set(call *c, call_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x,
              float value);

typedef struct call_how { /* all zero: any kernel, one task, the shared context */
    const char *kernel, *strategy;
    int threads; /* 0: 1 */
    tp_parallel_for parallel_for;
    void *user;
    tp_context *context; /* NULL: call_context() */
    int fill;            /* byte that fills workspace and old outputs; 0: 0xff, which is NaN */
} call_how;

/* Plans with exactly the workspace it needs, poisons workspace and outputs, and runs. A failure
   fails the test, and so does a byte written beyond the outputs' rows. */
void call_run(call *c, const call_how *how, tp_receipt *receipt);
/* The same, but hands over the status; nothing is asserted. */
tp_status call_try(call *c, const call_how *how, tp_receipt *receipt, tp_error *error);
/* What both kinds of call do: plan, poison workspace and, by the function, outputs, run. Nothing is poisoned
   where no plan is made. */
tp_status call_plan_run(const tp_problem *problem, const tp_tensors *tensors, const call_how *how,
                        void (*poison)(void *cookie, int byte), void *cookie, tp_receipt *receipt, tp_error *error);

/* Calls of the kernel functions whose name holds the part. */
int64_t call_count_of(const tp_receipt *receipt, const char *part);

/* Kernels of the table that this host can run, and that any problem may take: not those that round p; NULL ends the list. */
const tp_kernel_info *call_kernel_info(int index);
const char *call_kernel(int index);
/* One context of one thread, for the whole program. */
tp_context *call_context(void);
tp_context *call_context_new(int threads);
/* One of one thread with these options. */
tp_context *call_context_with(tp_context_options options);
tp_status call_attend(tp_context *context, call *c); /* tp_attention, of which nothing is asked but the status */

int call_quick(void);
/* Whether the library's own pool may be used: not under the thread sanitizer, which does not
   understand its futexes. */
int call_pool_usable(void);

/* Against the reference, by the error rule of harness/oracle.h. Large calls are checked on a sample of rows that holds the
   edges. */
void call_check(call *c, const char *what);
/* The bounds alone. Twice naive's error is a rule for data that favours neither side; where scores
   of one row lie within a power of two that the factor log2(e) crosses, naive can be three times
   closer. */
void call_check_bounds(call *c, const char *what);
/* From here on nothing of the inputs changes: the reference is computed by the first check alone, and serves those
   of all kernels, loops and threads. */
void call_keep(call *c);
/* Runs and checks on every kernel of this host. */
void call_check_all(const char *text, const call_shape *shape);

/* Bit for bit: o and lse of one row, of one sequence, of the whole call. */
void call_same_row(const call *a, int64_t a_seq, int64_t a_row, int64_t a_head, const call *b,
                   int64_t b_seq, int64_t b_row, int64_t b_head, const char *what);
void call_same_seq(const call *a, int64_t a_seq, const call *b, int64_t b_seq, const char *what);
void call_same(const call *a, const call *b, const char *what);

#endif
