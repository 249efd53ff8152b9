/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows a comparison looks at: the edges first, then random ones. */
#include "harness/oracle.h"

#include <math.h>
#include <stdlib.h>

enum { MIN_ROWS = 12, MAX_ROWS = 48 };
/* Elements of K and V that the reference may look at. */
static const double max_elements = 2e7, max_elements_quick = 6e6;

int64_t sample_limit(const tp_problem *p, int quick) {
    double keys = (double)p->kv_len * (double)(p->head_dim_qk + p->head_dim_v);
    double rows = (quick ? max_elements_quick : max_elements) / (keys + 1);
    return (int64_t)fmin(fmax(rows, MIN_ROWS), MAX_ROWS);
}

static int compare_rows(const void *left, const void *right) {
    const tp_row *a = left, *b = right;
    if (a->seq != b->seq) return a->seq < b->seq ? -1 : 1;
    if (a->head != b->head) return a->head < b->head ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

static int64_t sort_unique(tp_row *rows, int64_t count) {
    int64_t kept = 0;
    qsort(rows, (size_t)count, sizeof *rows, compare_rows);
    for (int64_t i = 0; i < count; i++)
        if (!kept || compare_rows(&rows[kept - 1], &rows[i])) rows[kept++] = rows[i];
    return kept;
}

/* Rows of one sequence where something changes: its ends, the row whose own key is at a border of
   a block or a chunk, and the borders of register tiles and of row ranges. */
static int64_t edge_rows(const struct tensors *tensors, int64_t seq, int64_t edges[64]) {
    int64_t q_len = tensors->q_lens[seq], shift = tensors->kv_lens[seq] - q_len, count = 0;
    int64_t dim = tensors->problem.head_dim_qk, dim_v = tensors->problem.head_dim_v;
    int64_t block = tp_block_keys(dim > dim_v ? dim : dim_v);
    const int64_t borders[] = {
        0,     q_len, 6, 8, 16, 2048, block, block - shift, TP_CHUNK_KEYS, TP_CHUNK_KEYS - shift,
        -shift};
    for (size_t i = 0; i < sizeof borders / sizeof *borders; i++)
        for (int64_t near = -1; near <= 1; near++) {
            int64_t row = borders[i] + near;
            if (row >= 0 && row < q_len) edges[count++] = row;
        }
    /* where a window or a chunk begins to hide keys, and a prefix ends */
    for (int i = 0; i < tensors->problem.mask_nodes; i++)
        for (int64_t near = -1; near <= 2 && count < 64; near++) {
            int64_t row = tensors->problem.mask[i].a + near - shift;
            if (tensors->problem.mask[i].a > 0 && row >= 0 && row < q_len) edges[count++] = row;
        }
    return count;
}

int64_t sample_rows(const struct tensors *tensors, int64_t limit, uint64_t seed, tp_row **rows) {
    int64_t heads = tensors->problem.q_heads, total = 0, count = 0;
    for (int64_t s = 0; s < tensors->sequences; s++) total += tensors->q_lens[s] * heads;
    int64_t capacity = total < limit ? total : limit;
    *rows = calloc((size_t)capacity * 2 + 1, sizeof **rows);
    if (!*rows) return -1;
    if (total <= limit) {
        for (int64_t s = 0; s < tensors->sequences; s++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t r = 0; r < tensors->q_lens[s]; r++)
                    (*rows)[count++] = (tp_row){s, h, r};
        return count;
    }
    /* Half for edges: every head takes its turn, so that all of a group are seen. */
    for (int64_t s = 0; s < tensors->sequences; s++) {
        int64_t edges[64], edge_count = edge_rows(tensors, s, edges);
        for (int64_t i = 0; i < edge_count && count < capacity / 2; i++)
            (*rows)[count++] = (tp_row){s, (i * 5 + s) % heads, edges[i]};
    }
    count = sort_unique(*rows, count);
    for (uint64_t draw = 0; count < capacity && draw < 64; draw++) {
        int64_t start = count;
        for (int64_t i = start; i < capacity; i++) {
            uint64_t bits = random_bits(seed, 99, draw * 4096 + (uint64_t)i);
            int64_t s = (int64_t)(bits % (uint64_t)tensors->sequences);
            if (!tensors->q_lens[s]) continue;
            (*rows)[count++] = (tp_row){s, (int64_t)((bits >> 16) % (uint64_t)heads),
                                        (int64_t)((bits >> 32) % (uint64_t)tensors->q_lens[s])};
        }
        count = sort_unique(*rows, count);
    }
    return count;
}
