/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backward call on top of a forward one (call.h): the harness's gradients (harness/gradients.h), d_o and d_lse with
 * pseudo-random data, the others in memory of their own whose old content is poison, and the definition in double to
 * hold them against.
 *
 *     back *b = back_new("h4/2 q40 k50 d24 bf16 causal", 0);
 *     back_run(b, &(call_how){.kernel = "avx2"}, NULL);
 *     back_check(b, "what");
 *     back_free(b);
 */
#ifndef TP_TESTS_SUPPORT_BACK_H
#define TP_TESTS_SUPPORT_BACK_H

#include "harness/gradients.h"
#include "support/call.h"

/* flags: d_q, d_k and d_v are slices of one tensor; there is a d_lse; all heads share a bias; sequences share slopes */
enum { BACK_SLICES = 1, BACK_D_LSE = 2, BACK_SHARE_BIAS = 4, BACK_SHARE_SLOPES = 8 };

typedef enum tensor_id back_tensor; /* where the harness holds each */
#define BACK_DQ TENSOR_Q
#define BACK_DK TENSOR_K
#define BACK_DV TENSOR_V
#define BACK_DO TENSOR_O
#define BACK_DLSE TENSOR_LSE

typedef struct back {
    call *c; /* its problem is the forward one */
    tp_problem problem;
    union {
        struct gradients held;
        struct { /* what it has, by the words of tests */
            struct tensors rows;
            tp_gradients gradients;
            float *d_bias, *d_slopes, *d_sinks; /* NULL: the problem has none */
            int64_t bias_count, slope_count;
        };
    };
    struct gradients_oracle *oracle; /* of the first back_check: later ones take the data to be the same */
} back;
_Static_assert(offsetof(back, gradients) - offsetof(back, held) == offsetof(struct gradients, call) &&
                   offsetof(back, slope_count) - offsetof(back, held) == offsetof(struct gradients, slope_count),
               "the words of tests lie where the harness's do");

back *back_new(const char *text, int flags);
void back_free(back *b);

tp_tensor *back_tensor_of(back *b, back_tensor which);
void *back_at(const back *b, back_tensor which, int64_t seq, int64_t token, int64_t head);
float back_get(const back *b, back_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x);
void back_set(back *b, back_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x, float value);

/* The forward call with this kernel, then the backward one; a failure fails the test. */
void back_run(back *b, const call_how *how, tp_receipt *receipt);
/* The backward call alone, its outputs poisoned before. */
tp_status back_try(back *b, const call_how *how, tp_receipt *receipt, tp_error *error);

/* Against the definition in double, by the error rule of harness/gradients.h. */
void back_check(back *b, const char *what);
/* The gradients as the tests have changed them, for the oracle. It owns nothing. */
struct gradients back_view(const back *b);
/* Frees what back_check remembers. */
void back_forget(back *b);
/* Bit for bit, all gradients. */
void back_same(const back *a, const back *b, const char *what);

/* Kernels that have a backward; NULL ends the list. */
const char *back_kernel(int index);

#endif
