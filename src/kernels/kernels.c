/* SPDX-License-Identifier: Apache-2.0 */
/* The tables: sets and what they lend each other, names of functions, block sizes. */
#include "kernels/set.h"

const tp__kernel_set *const tp__kernel_sets[TP__SETS] = {
#define TP_ISA_ROW(isa, ...) &tp__kernel_set_##isa,
#include "kernels/isas.inc"
#undef TP_ISA_ROW
};

const char *tp__function_name(int function) {
    if (function < 0 || function >= TP__FUNCTION_COUNT) return NULL;
    int set = TP__SETS - 1 - function / TP__FUNCTIONS_PER_SET;
    return tp__kernel_sets[set]->function_name[function % TP__FUNCTIONS_PER_SET];
}

const char *tp_kernel_function(int index) {
    for (int set = 0; index >= 0 && set < TP__SETS; set++)
        for (int i = 0; i < TP__FUNCTIONS_PER_SET; i++) {
            const char *name = tp__kernel_sets[set]->function_name[i];
            if (name != NULL && index-- == 0) return name;
        }
    return NULL;
}

/* Forms, and where two sets have different ones. */
enum { NONE = 0, Q = 1, KV = 2, OP = 4 };

static int same_elements(tp__element_form a, tp__element_form b) {
    return a.bytes == b.bytes && a.group == b.group && a.step == b.step;
}

static int different(const tp__form *a, const tp__form *b) {
    int q = !same_elements(a->q, b->q);
    int kv = a->nr != b->nr || a->lanes != b->lanes || !same_elements(a->k, b->k) || !same_elements(a->v, b->v);
    return OP | (q ? Q : NONE) | (kv ? KV : NONE);
}

tp__kernel_set tp__kernel_set_whole(int set) {
    tp__kernel_set whole = *tp__kernel_sets[set];
    for (int i = set + 1; i < TP__SETS; i++) {
        const tp__kernel_set *lender = tp__kernel_sets[i];
        if ((lender->needs & ~whole.needs) != 0) continue;
        int unlike = different(&lender->form, &whole.form), lends = 0;
#define TP_FUNCTION(op, dtype, slot, forms)                                        \
    if (whole.slot == NULL && lender->slot != NULL && ((forms) & unlike) == 0) {   \
        whole.slot = lender->slot;                                                 \
        lends = 1;                                                                 \
    }
#include "kernels/functions.inc"
#undef TP_FUNCTION
        if (lends && lender->row_step > whole.row_step) whole.row_step = lender->row_step;
    }
    return whole;
}

/* Part of the numerical contract: a block border is where the running maximum is carried over, so a
   change here changes bits. Frozen in docs/numerics.md; every size divides TP_CHUNK_KEYS. */
int tp_block_keys(int64_t head_dim) {
    static const struct {
        int64_t head_dim;
        int keys;
    } blocks[] = {{64, 512}, {128, 256}, {256, 128}};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        if (head_dim <= blocks[i].head_dim) return blocks[i].keys;
    return 64;
}

/* As tp_block_keys, for few rows. Measured: the block and the next one, of all KV heads, should stay near. */
int tp_decode_block_keys(int64_t head_dim, tp_dtype k_dtype) {
    int64_t bytes = head_dim * (int64_t)tp_dtype_bytes(k_dtype);
    return bytes <= 128 ? TP__FEW_KEYS : bytes <= 256 ? 64 : 32;
}

/* Up to here prefill's packing does not pay. Also part of the contract: it decides by which loop a row goes. */
int tp_decode_rows(tp_dtype k_dtype) { return k_dtype == TP_F32 ? 32 : 24; }

int tp__back_block(int64_t head_dim) {
    return head_dim <= 64 ? 384 : head_dim <= 256 ? 192 : 64;
}
