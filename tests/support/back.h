/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backward call on top of a forward one (call.h): d_o and d_lse with pseudo-random data, gradients in memory of
 * their own whose old content is poison, and the definition in double to hold them against.
 *
 *     back *b = back_new("h4/2 q40 k50 d24 bf16 causal", 0);
 *     back_run(b, &(call_how){.kernel = "avx2"}, NULL);
 *     back_check(b, "what");
 *     back_free(b);
 */
#ifndef TP_TESTS_SUPPORT_BACK_H
#define TP_TESTS_SUPPORT_BACK_H

#include "support/call.h"

/* flags: d_q, d_k and d_v are slices of one tensor; there is a d_lse; all heads share a bias; sequences share slopes */
enum { BACK_SLICES = 1, BACK_D_LSE = 2, BACK_SHARE_BIAS = 4, BACK_SHARE_SLOPES = 8 };

typedef enum back_tensor { BACK_DO, BACK_DLSE, BACK_DQ, BACK_DK, BACK_DV, BACK_TENSORS } back_tensor;

typedef struct back {
    call *c; /* its problem is the forward one */
    tp_problem problem;
    tp_gradients gradients;
    struct {
        char *memory; /* NULL: a slice of another's */
        size_t bytes;
    } capacity[BACK_TENSORS];
    float *d_bias, *d_slopes, *d_sinks;
    size_t bias_count, slope_count;
    int flags;
    struct gradients_oracle *oracle; /* of the first back_check: later ones take the data to be the same */
} back;

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
/* Frees what back_check remembers. */
void back_forget(back *b);
/* Bit for bit, all gradients. */
void back_same(const back *a, const back *b, const char *what);

/* Kernels that have a backward; NULL ends the list. */
const char *back_kernel(int index);

#endif
