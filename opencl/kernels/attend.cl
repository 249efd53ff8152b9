/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward. A work-group has BR rows of one KV head, all query heads of its group among them, and walks the keys that any of them
 * sees in blocks, at absolute indices:
 *
 *     s = q.k;  m' = max(m, s);  p = 2^(s - m');  l = l*2^(m - m') + sum p;  o = o*2^(m - m') + p v
 *
 * One work-item owns rows ty*ROWS.. and, of each block, keys tx, tx+8, ...; of each slice of o, columns tx, tx+8, ...
 *
 * Sequences of few rows go by split-KV (SPLIT 1): each work-group takes one split of the keys and leaves its state (m, l, o) in
 * the workspace. attend_merge joins the states of a row in the order of keys. Which way a sequence goes is a matter of its own
 * rows, so its bits do not depend on its neighbours; each kernel passes over the sequences of the other.
 */
#if SPLIT
#define ATTEND attend_split
#else
#define ATTEND attend
#endif
#define ROWS (BR / 8)
#define COLUMNS (SLICE / 8)
#define SLICES (DV / SLICE)

typedef struct row {
    float m, l;
    float o[SLICES * COLUMNS];
} row;

/* The sink, the division, the stores: columns and lse of one row, by the work-items that own it. */
void finish(const call *c, const sequence *s, long token, long head, row *r, int tx, __global const float *sinks,
            __global POINTER(O_TYPE) *o, __global float *lse) {
    float m = r->m, l = r->l, by = 1.0f;
    float left = c->natural ? 1.0f : as_float((int)c->gain);
    float log_sum = -INFINITY;
    if (c->sinks >= 0) {
        float sink = sinks[c->sinks + head], top = fmax(left * m, sink);
        if (top > -INFINITY) {
            by = m == -INFINITY ? 0.0f : power(left * m - top, LOG2_E);
            if (l == 0.0f) by = 1.0f; /* nothing to rescale */
            l = l * by + power(sink - top, LOG2_E);
            log_sum = top + log(l);
        }
    } else if (l != 0.0f) {
        log_sum = fma(left, m, log(l));
    }
    long at = c->o + row_at(c->o_stride, c, s, token, head);
    for (int i = 0; i < SLICES * COLUMNS; i++) {
        int x = i / COLUMNS * SLICE + tx + 8 * (i % COLUMNS);
        if (x >= c->head_dim_v) continue;
        float value = r->l == 0.0f ? 0.0f : divide(r->o[i] * by, l);
        STORE(O_TYPE, o, at + x, value);
    }
    if (tx == 0 && c->lse >= 0) lse[c->lse + row_at(c->lse_stride, c, s, token, head)] = log_sum;
}

/* Where a row's state of one split begins: m, l, then o. */
long state_at(const call *c, long seq, long kv_head, long r, long split) {
    return c->states + (((seq * c->kv_heads + kv_head) * c->few + r) * c->splits + split) * (c->head_dim_v + 2);
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void ATTEND(call c_, __global const POINTER(Q_TYPE) *q, __global const POINTER(K_TYPE) *k, __global const POINTER(V_TYPE) *v,
            __global POINTER(O_TYPE) *o, __global float *lse, __global const float *slopes, __global const float *sinks,
            __global float *memory) {
    const call *c = &c_;
    __global int *workspace = (__global int *)(memory + c->workspace);
    __global float *states = memory + c->workspace;
    __local float q_tile[BR * (DQ + 1)], tile[KEYS * WIDTH], p_tile[BR * (KEYS + 1)], lanes[BR * 8];
    __local long lo[BR], hi[BR], place[KEYS], hull[4];
    int lane = (int)get_local_id(0), tx = lane % 8, ty = lane / 8;
    long seq = (long)get_group_id(2), splits = SPLIT ? c->splits : 1;
    long kv_head = (long)get_group_id(1) / splits, split = (long)get_group_id(1) % splits;
    long group = c->q_heads / c->kv_heads, first = (long)get_group_id(0) * BR;
    sequence s = sequence_of(workspace, c, seq);
    long rows = s.q_len * group, from = 0, to = s.kv_len;
    if (first >= rows || (rows <= c->few) != SPLIT) return;
    if (SPLIT) {
        from = split * c->split_keys;
        to = min(to, from + c->split_keys);
        if (from >= s.kv_len) return;
    }
    int count = (int)min((long)BR, rows - first);

    /* What each row sees, and what all of them and any of them do. */
    if (lane < BR) {
        interval seen = {0, 0};
        if (lane < count) seen = seen_by(c, &s, (first + lane) / group);
        lo[lane] = max(seen.lo, from);
        hi[lane] = max(min(seen.hi, to), lo[lane]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) {
        long any_lo = LONG_MAX, any_hi = 0, all_lo = 0, all_hi = LONG_MAX, pairs = 0;
        for (int i = 0; i < count; i++) {
            all_lo = max(all_lo, lo[i]);
            all_hi = min(all_hi, hi[i]);
            if (hi[i] <= lo[i]) continue;
            any_lo = min(any_lo, lo[i]);
            any_hi = max(any_hi, hi[i]);
            pairs += hi[i] - lo[i];
        }
        hull[0] = any_lo;
        hull[1] = any_hi;
        hull[2] = all_lo;
        hull[3] = all_hi;
        count_tile((__global volatile int *)workspace, c);
        count_wide((__global volatile int *)workspace, VISIBLE, (ulong)pairs);
    }
    for (int i = lane; i < BR * DQ; i += LANES) {
        int r = i / DQ, x = i % DQ;
        float value = 0.0f;
        if (r < count && x < c->head_dim_qk) {
            long token = (first + r) / group, head = kv_head * group + (first + r) % group;
            value = LOAD(Q_TYPE, q, c->q + row_at(c->q_stride, c, &s, token, head) + x) * as_float((int)c->factor);
        }
        q_tile[r * (DQ + 1) + x] = value;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    long any_lo = hull[0], any_hi = hull[1], all_lo = hull[2], all_hi = hull[3];

    row r[ROWS];
    float slope[ROWS];
    for (int i = 0; i < ROWS; i++) {
        r[i].m = -INFINITY;
        r[i].l = slope[i] = 0.0f;
        for (int x = 0; x < SLICES * COLUMNS; x++) r[i].o[x] = 0.0f;
        if (c->slopes >= 0 && ty * ROWS + i < count)
            slope[i] = slopes[c->slopes + seq * c->slopes_stride + kv_head * group + (first + ty * ROWS + i) % group];
    }

    uint full = 0, partial = 0;
    for (long block = any_hi > any_lo ? any_lo / KEYS * KEYS : any_hi; block < any_hi; block += KEYS) {
        int whole = block >= all_lo && block + KEYS <= all_hi;
        full += whole;
        partial += !whole;
        float score[ROWS][TILE_KEYS];
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < TILE_KEYS; j++) score[i][j] = 0.0f;

        /* q.k, a slice of columns at a time. Keys that no row sees are not read. */
        if (lane < KEYS) {
            long key = block + lane;
            place[lane] = -1;
            if (key >= any_lo && key < any_hi) place[lane] = key_at(workspace, c, c->k_stride, &s, seq, c->k_pages, key, kv_head);
        }
        for (int slice = 0; slice < DQ; slice += SLICE) {
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int i = lane; i < KEYS * SLICE; i += LANES) {
                int j = i / SLICE, x = i % SLICE;
                float value = 0.0f;
                if (place[j] >= 0 && slice + x < c->head_dim_qk) value = LOAD(K_TYPE, k, c->k + place[j] + slice + x);
                tile[j * WIDTH + x] = value;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int x = 0; x < SLICE; x++)
                for (int i = 0; i < ROWS; i++) {
                    float of_q = q_tile[(ty * ROWS + i) * (DQ + 1) + slice + x];
                    for (int j = 0; j < TILE_KEYS; j++) score[i][j] = fma(of_q, tile[(tx + 8 * j) * WIDTH + x], score[i][j]);
                }
        }

        /* The row operation. Hidden keys have weight 0, whatever their score. */
        for (int i = 0; i < ROWS; i++) {
            int at = ty * ROWS + i;
            float top = -INFINITY, steep;
            for (int j = 0; j < TILE_KEYS; j++) {
                long key = block + tx + 8 * j, token = (first + at) / group;
                int seen = key >= lo[at] && key < hi[at];
                score[i][j] = score_of(c, score[i][j], slope[i], position_of(c, &s, token) - key, &steep);
                if (seen) top = fmax(top, score[i][j]);
            }
            lanes[at * 8 + tx] = top;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        float again[ROWS], unit = as_float((int)c->unit);
        for (int i = 0; i < ROWS; i++) {
            int at = ty * ROWS + i;
            float m = r[i].m;
            for (int j = 0; j < 8; j++) m = fmax(m, lanes[at * 8 + j]);
            again[i] = m == r[i].m ? 1.0f : power(r[i].m - m, unit);
            r[i].m = m;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < ROWS; i++) {
            int at = ty * ROWS + i;
            float p[TILE_KEYS], m = r[i].m == -INFINITY ? 0.0f : r[i].m;
            for (int j = 0; j < TILE_KEYS; j++) {
                long key = block + tx + 8 * j;
                p[j] = key >= lo[at] && key < hi[at] ? power(score[i][j] - m, unit) : 0.0f;
                p_tile[at * (KEYS + 1) + tx + 8 * j] = p[j];
            }
            lanes[at * 8 + tx] = (p[0] + p[1]) + (p[2] + p[3]);
        }
        if (lane < KEYS) {
            long key = block + lane;
            place[lane] = -1;
            if (key >= any_lo && key < any_hi) place[lane] = key_at(workspace, c, c->v_stride, &s, seq, c->v_pages, key, kv_head);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < ROWS; i++) {
            __local const float *of = &lanes[(ty * ROWS + i) * 8];
            float sum = ((of[0] + of[1]) + (of[2] + of[3])) + ((of[4] + of[5]) + (of[6] + of[7]));
            r[i].l = r[i].l * again[i] + sum;
            for (int x = 0; x < SLICES * COLUMNS; x++) r[i].o[x] *= again[i];
        }

        /* p.v, a slice of columns at a time. 0 times a value that a row does not see is never computed: it may be NaN. */
        for (int slice = 0; slice < SLICES; slice++) {
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int i = lane; i < KEYS * SLICE; i += LANES) {
                int j = i / SLICE, x = i % SLICE;
                float value = 0.0f;
                if (place[j] >= 0 && slice * SLICE + x < c->head_dim_v)
                    value = LOAD(V_TYPE, v, c->v + place[j] + slice * SLICE + x);
                tile[j * WIDTH + x] = value;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int j = 0; j < KEYS; j++)
                for (int i = 0; i < ROWS; i++) {
                    int at = ty * ROWS + i;
                    if (!whole && !(block + j >= lo[at] && block + j < hi[at])) continue;
                    float p = p_tile[at * (KEYS + 1) + j];
                    for (int x = 0; x < COLUMNS; x++)
                        r[i].o[slice * COLUMNS + x] = fma(p, tile[j * WIDTH + tx + 8 * x], r[i].o[slice * COLUMNS + x]);
                }
        }
    }
    if (lane == 0) {
        atomic_add((__global volatile int *)&workspace[FULL], (int)full);
        atomic_add((__global volatile int *)&workspace[PARTIAL], (int)partial);
        count_wide((__global volatile int *)workspace, COMPUTED, (ulong)(full + partial) * KEYS * (ulong)count);
    }

    for (int i = 0; i < ROWS; i++) {
        int at = ty * ROWS + i;
        if (at >= count) continue;
        if (!SPLIT) {
            finish(c, &s, (first + at) / group, kv_head * group + (first + at) % group, &r[i], tx, sinks, o, lse);
            continue;
        }
        long to_state = state_at(c, seq, kv_head, first + at, split);
        if (tx == 0) {
            states[to_state] = r[i].m;
            states[to_state + 1] = r[i].l;
        }
        for (int x = 0; x < SLICES * COLUMNS; x++) {
            int column = x / COLUMNS * SLICE + tx + 8 * (x % COLUMNS);
            if (column < c->head_dim_v) states[to_state + 2 + column] = r[i].o[x];
        }
    }
}

#if SPLIT
/* The second pass: 8 rows by 8 work-items each, splits in the order of keys. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void attend_merge(call c_, __global POINTER(O_TYPE) *o, __global float *lse, __global const float *sinks,
                  __global float *memory) {
    const call *c = &c_;
    __global int *workspace = (__global int *)(memory + c->workspace);
    __global const float *states = memory + c->workspace;
    int lane = (int)get_local_id(0), tx = lane % 8, ty = lane / 8;
    long seq = (long)get_group_id(2), kv_head = (long)get_group_id(1), group = c->q_heads / c->kv_heads;
    sequence s = sequence_of(workspace, c, seq);
    long rows = s.q_len * group, first = (long)get_group_id(0) * 8, at = first + ty;
    if (first >= rows || rows > c->few) return;
    if (lane == 0) count_tile((__global volatile int *)workspace, c);
    if (at >= rows) return;
    float unit = as_float((int)c->unit);
    row r;
    r.m = -INFINITY;
    r.l = 0.0f;
    for (int x = 0; x < SLICES * COLUMNS; x++) r.o[x] = 0.0f;
    for (long split = 0; split * c->split_keys < s.kv_len; split++) {
        long from = state_at(c, seq, kv_head, at, split);
        float m = states[from], l = states[from + 1];
        if (l == 0.0f) continue; /* it saw no key */
        float top = fmax(r.m, m);
        float old = top == r.m ? 1.0f : power(r.m - top, unit), new = top == m ? 1.0f : power(m - top, unit);
        r.l = r.l * old + l * new;
        r.m = top;
        for (int x = 0; x < SLICES * COLUMNS; x++) {
            int column = x / COLUMNS * SLICE + tx + 8 * (x % COLUMNS);
            if (column < c->head_dim_v) r.o[x] = r.o[x] * old + states[from + 2 + column] * new;
        }
    }
    finish(c, &s, at / group, kv_head * group + at % group, &r, tx, sinks, o, lse);
}
#endif
