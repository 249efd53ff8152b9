/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel set: its functions, and the forms in which they hand packed elements to each other. */
#ifndef TP_KERNELS_SET_H
#define TP_KERNELS_SET_H

#include "base/arena.h"
#include "kernels/kernel.h"

/* Elements as a set packs them: bytes of one, how many lie together along what is summed, d of Q and K and the keys of V,
   and to a multiple of what their count is rounded up, with zeros. One of bf16 pairs is {2, 2, 2}. */
typedef struct tp__element_form {
    int bytes, group, step;
} tp__element_form;

/* What functions of a set leave for others in the workspace. Functions that touch it go together. */
typedef struct tp__form {
    int nr, lanes; /* keys of a panel of K; columns of V come in multiples of lanes */
    tp__element_form q, k, v;
} tp__form;

/* A kernel set. Tables are indexed by tp_dtype, of k and v by tp__stored_as. NULL: it lacks the function. */
typedef struct tp__kernel_set {
    const char *isa; /* its name: of the ISA it was compiled for */
    uint32_t needs;  /* TP_ISA_* */
    uint32_t dtypes; /* of q, k and v that it serves: bits 1u << tp_dtype */
    int arithmetic;  /* tp_arithmetic */
    int mr, nr;
    int row_step;  /* rows of q and o are padded to a multiple of it: the lanes of its functions' vectors, at most */
    int tile_rows; /* rows that attend should get at a time: a multiple of mr */
    tp__form form;
    const char *function_name[TP__FUNCTIONS_PER_SET]; /* of those it has */
    tp__load_q_fn *load_q[4];
    tp__pack_k_fn *pack_k[TP__STORED];
    tp__pack_v_fn *pack_v[TP__STORED];
    tp__qk_fn *qk[TP__STORED];
    tp__pv_fn *pv[TP__STORED];
    tp__store_o_fn *store_o[4];
    tp__delta_fn *delta[4];
    tp__store_d_fn *store_d[4];
    tp__attend_fn *attend;
    tp__backward_fn *backward;
    tp__merge_state_fn *merge_state;
    tp__merge_sinks_fn *merge_sinks;
    tp__math_fn *math;
    tp__peak_fn *peak;
    tp__read_fn *read;
    tp__exp2_fn *exp2;
    tp__tanh_fn *tanh; /* tanh(x * ln2 / 2) */
} tp__kernel_set;

#define TP_ISA_ROW(isa, ...) extern const tp__kernel_set tp__kernel_set_##isa;
#include "kernels/isas.inc"
#undef TP_ISA_ROW

/* Sets in the order of isas.inc, best first, each with what it has itself. */
extern const tp__kernel_set *const tp__kernel_sets[TP__SETS];

const char *tp__function_name(int function); /* of a trace; NULL: there is none, or its set lacks it */

/* The set with what it lacks: each function from the next set of the table that has it, whose needs are among its own,
   and whose form is the same where the function touches it. Each still counts under its own name. */
tp__kernel_set tp__kernel_set_whole(int set);

/* Rows of q, and a block of so many keys, in the set's form. Sizes saturate as in tp__take. */
static inline void *tp__take_q(tp__arena *arena, const tp__kernel_set *kernels, int64_t rows, int64_t ldq) {
    return tp__take(arena, tp__times(rows, ldq), (size_t)kernels->form.q.bytes);
}
static inline void *tp__take_k(tp__arena *arena, const tp__kernel_set *kernels, int64_t keys, int64_t d) {
    return tp__take(arena, tp__times(keys, tp__round_up(d, kernels->form.k.step)), (size_t)kernels->form.k.bytes);
}
static inline void *tp__take_v(tp__arena *arena, const tp__kernel_set *kernels, int64_t keys, int64_t ldo) {
    return tp__take(arena, tp__times(tp__round_up(keys, kernels->form.v.step), ldo), (size_t)kernels->form.v.bytes);
}
/* Elements of a row of q. */
static inline int64_t tp__ldq(const tp__kernel_set *kernels, int64_t d) {
    return tp__round_up(tp__round_up(d, kernels->row_step), kernels->form.q.step);
}
/* The row of q. */
static inline void *tp__q_at(const tp__kernel_set *kernels, const void *q, int64_t row, int64_t ldq) {
    return (char *)(uintptr_t)q + row * ldq * kernels->form.q.bytes;
}

static inline void tp__pair_rows(float *q, int64_t ldq, int64_t rows, int64_t d) {
    for (int64_t i = 0; i < rows; i++) {
        for (float *at = q + i * ldq; at + 32 <= q + i * ldq + d; at += 32) {
            float odd[16];
            for (int x = 0; x < 16; x++) {
                odd[x] = at[2 * x + 1];
                at[x] = at[2 * x];
            }
            for (int x = 0; x < 16; x++) at[16 + x] = odd[x];
        }
    }
}

/* Makes rows of q, as load_q left them, what qk wants for keys of this dtype. */
static inline void tp__ready_q(const tp__kernel_set *kernels, int32_t k_dtype, void *q, int64_t ldq, int64_t rows,
                               int64_t d) {
    if (k_dtype == TP_BF16 && kernels->form.q.bytes == sizeof(float)) tp__pair_rows(q, ldq, rows, d);
}

#endif
