/* SPDX-License-Identifier: Apache-2.0 */
/* The tables: sets, leaf names, block sizes. */
#include "kernels/kernel.h"

const tp__kernel_set *const tp__kernel_sets[TP__SETS] = {
#define TP_ISA_ROW(isa, ...) &tp__kernel_set_##isa,
#include "kernels/isas.inc"
#undef TP_ISA_ROW
};

const char *tp_kernel_function(int function) {
    if (function < 0 || function >= TP__FUNCTION_COUNT) return NULL;
    return tp__kernel_sets[function / TP__FUNCTIONS_PER_SET]->function_name[function % TP__FUNCTIONS_PER_SET];
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
    return bytes <= 128 ? 128 : bytes <= 256 ? 64 : 32;
}

/* Up to here prefill's packing does not pay. Also part of the contract: it decides by which loop a row goes. */
int tp_decode_rows(tp_dtype k_dtype) { return k_dtype == TP_F32 ? 32 : 24; }

int tp__back_block(int64_t head_dim) {
    return head_dim <= 64 ? 384 : head_dim <= 256 ? 192 : 64;
}
