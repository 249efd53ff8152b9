/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel set that serves one dtype and has three functions: pack_k and pack_v, which keep elements of 16 bits as they
 * are, and attend, which widens them and hands over to generic's. Everything else is lent. It stands on top of the table in
 * the library of one_dtype.c alone. Its results are generic's, bit for bit.
 */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "kernels/set.h"

#define ID(op_dtype) (TP__FUNCTION_##op_dtype + TP__FIRST_FUNCTION_bf16_only)

enum { NR = TP__NR_generic, LANES = 4, MAX = 512 * 64 + 64 * TP_MAX_HEAD_DIM }; /* more than any block has elements */

_Static_assert((int)TP__NR_bf16_only == NR && (int)TP__MR_bf16_only == TP__MR_generic, "its tiles are generic's");

tp__pack_k_fn tp_pack_k_bf16_bf16_only;
tp__pack_v_fn tp_pack_v_bf16_bf16_only;
tp__attend_fn tp_attend_f32_bf16_only, tp_attend_f32_generic;

static const uint16_t *key_at(const tp__keys_in *keys, int64_t key) {
    return (const uint16_t *)(const void *)(keys->row[key] + keys->offset);
}

int tp_pack_k_bf16_bf16_only(tp__trace *trace, void *packed, const tp__keys_in *keys, int64_t block, int64_t d) {
    uint16_t *to = packed;
    (void)block;
    trace->calls[ID(pack_k_bf16)]++;
    for (int64_t key = keys->first; key < keys->last; key++)
        for (int64_t x = 0; x < d; x++) to[key / NR * NR * d + x * NR + key % NR] = key_at(keys, key)[x];
    return 0;
}

int tp_pack_v_bf16_bf16_only(tp__trace *trace, void *packed, const tp__keys_in *keys, int64_t block, int64_t d) {
    uint16_t *to = packed;
    int64_t wide = tp__round_up(d, LANES);
    int not_finite = 0;
    trace->calls[ID(pack_v_bf16)]++;
    for (int64_t key = keys->first; key < keys->last; key++)
        for (int64_t x = 0; x < wide; x++) {
            int64_t panel = x / NR * NR, width = tp__min(wide - panel, NR);
            uint16_t element = x < d ? key_at(keys, key)[x] : 0;
            to[panel * block + key * width + x - panel] = element;
            not_finite |= !isfinite(tp__from_bf16(element));
        }
    return not_finite;
}

static const float *widened(const uint16_t *from, int64_t count, float to[MAX]) {
    for (int64_t i = 0; i < count; i++) to[i] = tp__from_bf16(from[i]);
    return to;
}

void tp_attend_f32_bf16_only(tp__trace *trace, const tp__row_tile *tile) {
    float k[MAX], v[MAX];
    tp__row_tile wide = *tile;
    trace->calls[ID(attend_f32)]++;
    if (tile->k != NULL) wide.k = widened(tile->k, tile->block * tile->d, k);
    if (tile->v != NULL) wide.v = widened(tile->v, tile->block * tp__round_up(tile->dv, LANES), v);
    tp_attend_f32_generic(trace, &wide);
}

const tp__kernel_set tp__kernel_set_bf16_only = {
    .isa = "bf16_only",
    .needs = TP__NEEDS_bf16_only,
    .dtypes = TP__DTYPES_bf16_only,
    .arithmetic = TP__ARITHMETIC_bf16_only,
    .mr = TP__MR_bf16_only,
    .nr = NR,
    .row_step = 1, /* less than what its lender's vectors take */
    .tile_rows = TP__MR_bf16_only * 2,
    .form = {NR, LANES, {sizeof(float), 1, 1}, {sizeof(uint16_t), 1, 1}, {sizeof(uint16_t), 1, 1}},
    .function_name = {[TP__FUNCTION_pack_k_bf16] = "tp_pack_k_bf16_bf16_only",
                      [TP__FUNCTION_pack_v_bf16] = "tp_pack_v_bf16_bf16_only",
                      [TP__FUNCTION_attend_f32] = "tp_attend_f32_bf16_only"},
    .pack_k[TP_BF16] = tp_pack_k_bf16_bf16_only,
    .pack_v[TP_BF16] = tp_pack_v_bf16_bf16_only,
    .attend = tp_attend_f32_bf16_only,
};
