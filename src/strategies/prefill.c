/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill: for each block of the chunk that the range's rows see
 *
 *     convert and pack K and V just in time
 *     for each tile of rows: attend
 *
 * Packing a block is paid by the many rows that use it.
 */
#include "strategies/fused.h"

static void attend_block(const tp__work *work, int64_t key, const tp__state *state) {
    const tp__fused *f = work->fused;
    const tp_problem *problem = f->job->problem;
    const tp__kernel_set *kernels = f->job->kernels;
    const tp__task *task = work->task;
    tp__scratch *scratch = work->scratch;
    int64_t first, last;
    tp__block_class block_class = tp__visibility_block(&scratch->visibility, key, &first, &last, scratch->trace);
    if (block_class == TP__BLOCK_HIDDEN) return; /* neither read nor packed */
    tp__work_keys(work, key, first, last, TP__AHEAD_KEYS);
    const char *const *k_row = scratch->k_row, *const *v_row = scratch->v_row;
    int64_t early = tp__min(first + TP__AHEAD_KEYS, last);
    int64_t k_bytes = tp__units_bytes(problem->k_dtype, tp__row_units(problem->k_scales, problem->head_dim_qk));
    int64_t v_bytes = tp__units_bytes(problem->v_dtype, tp__row_units(problem->v_scales, problem->head_dim_v));
    tp__ahead k_ahead = {k_row + early, k_row + last + TP__AHEAD_KEYS, NULL, 0, (k_bytes + TP__LINE - 1) / TP__LINE, 0};
    tp__ahead v_ahead = {v_row + early, v_row + last + TP__AHEAD_KEYS, NULL, 0, (v_bytes + TP__LINE - 1) / TP__LINE, 0};
    tp__keys_in k_in = {k_row, 0, first, last, &k_ahead, 0, 0, NULL}, v_in = {v_row, 0, first, last, &v_ahead, 0, 0, NULL};
    tp__keys_head(&work->keys, 0, task->head, &k_in);
    tp__keys_head(&work->keys, 1, task->head, &v_in);
    k_ahead.offset = k_in.offset;
    v_ahead.offset = v_in.offset;
    int k_found = kernels->pack_k[tp__stored_as(problem->k_dtype, problem->k_scales)](scratch->trace, scratch->k, &k_in, f->block,
                                                                                      problem->head_dim_qk);
    int v_found = kernels->pack_v[tp__stored_as(problem->v_dtype, problem->v_scales)](scratch->trace, scratch->v, &v_in, f->block,
                                                                                      problem->head_dim_v);
    scratch->trace->bytes += (last - first) * tp__key_bytes(problem);
    for (int64_t row = 0; row < task->count; row += f->tile_rows) {
        if (scratch->visibility.form != TP__VISIBILITY_PLAIN && !tp__tile_meets(&scratch->visibility, row, key)) continue;
        int64_t rows = tp__min(f->tile_rows, task->count - row);
        tp__row_tile tile = tp__work_tile(work, 0, row, rows, state);
        if (!tp__visibility_tile(&scratch->visibility, &tile, 0, row, key, last, block_class, scratch->trace)) continue;
        tile.k = scratch->k;
        tile.block = tile.lds = f->block;
        tile.k_found = k_found;
        tile.v_found = v_found;
        kernels->attend(scratch->trace, &tile);
    }
}

void tp__prefill_chunk(const tp__work *work, int64_t from, int64_t to, const tp__state *state) {
    int64_t block = work->fused->block;
    for (int64_t key = from / block * block; key < to; key += block) attend_block(work, key, state);
}
