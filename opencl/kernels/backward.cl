/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients by recomputation (docs/maths.md section 9), without atomics on floats: each sum belongs to one work-group and has one
 * order, so the same call gives the same bits.
 *
 *     back_delta   D = dO.o - dLSE of every row, into the workspace
 *     back_keys    one block of keys: over all rows that see it, dV += P^T dO, dK += dS^T q
 *     back_rows    one tile of rows: over all keys that they see, dQ += dS k; the row's share of its slope's gradient
 *     back_heads   one query head: sums over rows, of its sink and of its slope
 *
 * P and dS of a tile of B rows and B keys are computed in the second and in the third alike: seven products in place of five.
 */
#define PART (B / 8)
#define COLUMNS (SLICE / 8)

typedef struct place_of {
    long seq, kv_head, group, first, key; /* first row and first key of the tile */
    int rows;
} place_of;

long token_of(const place_of *at, int r) { return (at->first + r) / at->group; }
long head_of(const place_of *at, int r) { return at->kv_head * at->group + (at->first + r) % at->group; }

long delta_at(const call *c, long seq, long token, long head) {
    return (seq * c->q_max + token) * c->q_heads + head;
}

/* What the rows of a tile see, their lse and D. A row whose lse is -inf has no share in anything. Ends with a barrier. */
void open_rows(const call *c, const sequence *s, const place_of *at, __global const float *lse, __global const float *memory,
               __local long *lo, __local long *hi, __local float *row_lse, __local float *row_delta) {
    int lane = (int)get_local_id(0);
    if (lane < B) {
        interval seen = {0, 0};
        if (lane < at->rows) {
            long token = token_of(at, lane), head = head_of(at, lane);
            float of = lse[c->lse + row_at(c->lse_stride, c, s, token, head)];
            if (of != -INFINITY) seen = seen_by(c, s, token);
            row_lse[lane] = of;
            row_delta[lane] = memory[c->workspace + c->deltas + delta_at(c, at->seq, token, head)];
        }
        lo[lane] = seen.lo;
        hi[lane] = seen.hi;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

int sees(__local const long *lo, __local const long *hi, int r, long key) { return key >= lo[r] && key < hi[r]; }

/* Slices of columns into local memory, as floats; what is not there, or seen by nobody, is 0. */
#define LOAD_ROWS(to, type, from, offset, stride, by, dim)                                                        \
    for (int i = lane; i < B * SLICE; i += LANES) {                                                               \
        int r_ = i / SLICE, x_ = i % SLICE;                                                                       \
        float value_ = 0.0f;                                                                                      \
        if (r_ < at->rows && hi[r_] > lo[r_] && slice + x_ < dim)                                                 \
            value_ = (by) * LOAD(type, from, (offset) + row_at(stride, c, s, token_of(at, r_), head_of(at, r_)) + slice + x_); \
        (to)[r_ * WIDTH + x_] = value_;                                                                           \
    }
#define LOAD_KEYS(to, type, from, offset, stride, dim)                                                            \
    for (int i = lane; i < B * SLICE; i += LANES) {                                                               \
        int j_ = i / SLICE, x_ = i % SLICE;                                                                       \
        float value_ = 0.0f;                                                                                      \
        if (at->key + j_ >= key_lo && at->key + j_ < key_hi && slice + x_ < dim)                                  \
            value_ = LOAD(type, from, (offset) + key_at(0, c, stride, s, at->seq, -1, at->key + j_, at->kv_head) + slice + x_); \
        (to)[j_ * WIDTH + x_] = value_;                                                                           \
    }

/* P and dS, with the score's own derivative in it, of a tile. key_lo..key_hi: keys that may be read. slope_sums: the sum of
   dS * distance over the work-item's own keys, a row each. Begins and ends with a barrier. */
void pairs_of(const call *c, const sequence *s, const place_of *at, long key_lo, long key_hi,
              __global const POINTER(Q_TYPE) *q, __global const POINTER(K_TYPE) *k, __global const POINTER(V_TYPE) *v,
              __global const POINTER(O_TYPE) *d_o, __global const float *slopes, __local float *left, __local float *right,
              __local const long *lo, __local const long *hi, __local const float *row_lse, __local const float *row_delta,
              __local float *p_tile, __local float *ds_tile, float *slope_sums) {
    int lane = (int)get_local_id(0), tx = lane % 8, ty = lane / 8;
    float t[PART][PART], dp[PART][PART];
    for (int i = 0; i < PART; i++)
        for (int j = 0; j < PART; j++) t[i][j] = dp[i][j] = 0.0f;
    for (int slice = 0; slice < DQ; slice += SLICE) {
        barrier(CLK_LOCAL_MEM_FENCE);
        LOAD_ROWS(left, Q_TYPE, q, c->q, c->q_stride, as_float((int)c->factor), c->head_dim_qk)
        LOAD_KEYS(right, K_TYPE, k, c->k, c->k_stride, c->head_dim_qk)
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int x = 0; x < SLICE; x++)
            for (int i = 0; i < PART; i++)
                for (int j = 0; j < PART; j++)
                    t[i][j] = fma(left[(ty * PART + i) * WIDTH + x], right[(tx + 8 * j) * WIDTH + x], t[i][j]);
    }
    for (int slice = 0; slice < DV; slice += SLICE) {
        barrier(CLK_LOCAL_MEM_FENCE);
        LOAD_ROWS(left, O_TYPE, d_o, c->d_o, c->d_o_stride, 1.0f, c->head_dim_v)
        LOAD_KEYS(right, V_TYPE, v, c->v, c->v_stride, c->head_dim_v)
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int x = 0; x < SLICE; x++)
            for (int i = 0; i < PART; i++)
                for (int j = 0; j < PART; j++)
                    dp[i][j] = fma(left[(ty * PART + i) * WIDTH + x], right[(tx + 8 * j) * WIDTH + x], dp[i][j]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < PART; i++) {
        int r = ty * PART + i;
        float slope = 0.0f;
        if (c->slopes >= 0 && r < at->rows) slope = slopes[c->slopes + at->seq * c->slopes_stride + head_of(at, r)];
        for (int j = 0; j < PART; j++) {
            long key = at->key + tx + 8 * j;
            float p = 0.0f, ds = 0.0f;
            if (sees(lo, hi, r, key)) {
                float steep;
                long distance = position_of(c, s, token_of(at, r)) - key;
                float score = score_of(c, t[i][j], slope, distance, &steep), gain = as_float((int)c->gain);
                float under = c->natural ? score - row_lse[r] : fma(gain, score, -row_lse[r]);
                p = power(under, LOG2_E);
                ds = p * (dp[i][j] - row_delta[r]);
                if (c->slopes >= 0) slope_sums[i] = fma(ds, fabs((float)distance), slope_sums[i]);
                ds *= steep;
            }
            p_tile[r * (B + 1) + tx + 8 * j] = p;
            ds_tile[r * (B + 1) + tx + 8 * j] = ds;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* The keys that any row of the tile sees; none: lo is not below hi. */
interval hull_of(__local const long *lo, __local const long *hi) {
    interval any = {LONG_MAX, 0};
    for (int r = 0; r < B; r++)
        if (hi[r] > lo[r]) {
            any.lo = min(any.lo, lo[r]);
            any.hi = max(any.hi, hi[r]);
        }
    return any;
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void back_delta(call c_, __global const POINTER(O_TYPE) *o, __global const POINTER(O_TYPE) *d_o, __global const float *d_lse,
                __global float *memory) {
    const call *c = &c_;
    __global int *workspace = (__global int *)(memory + c->workspace);
    int lane = (int)get_local_id(0);
    long seq = (long)get_group_id(2), head = (long)get_group_id(1), token = (long)get_group_id(0) * LANES + lane;
    sequence s = sequence_of(workspace, c, seq);
    if ((long)get_group_id(0) * LANES >= s.q_len) return;
    if (lane == 0) count_tile((__global volatile int *)workspace, c);
    if (token >= s.q_len) return;
    interval seen = seen_by(c, &s, token);
    float sum = 0.0f;
    long of_o = c->o + row_at(c->o_stride, c, &s, token, head), of_d = c->d_o + row_at(c->d_o_stride, c, &s, token, head);
    for (long x = 0; x < c->head_dim_v && seen.hi > seen.lo; x++)
        sum = fma(LOAD(O_TYPE, o, of_o + x), LOAD(O_TYPE, d_o, of_d + x), sum);
    if (c->d_lse >= 0) sum -= d_lse[c->d_lse + row_at(c->d_lse_stride, c, &s, token, head)];
    memory[c->workspace + c->deltas + delta_at(c, seq, token, head)] = sum;
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void back_keys(call c_, __global const POINTER(Q_TYPE) *q, __global const POINTER(K_TYPE) *k, __global const POINTER(V_TYPE) *v,
               __global const POINTER(O_TYPE) *d_o, __global const float *lse, __global const float *slopes,
               __global POINTER(K_TYPE) *d_k, __global POINTER(V_TYPE) *d_v, __global float *memory) {
    const call *c = &c_;
    __global int *workspace = (__global int *)(memory + c->workspace);
    __local float left[B * WIDTH], right[B * WIDTH], p_tile[B * (B + 1)], ds_tile[B * (B + 1)], row_lse[B], row_delta[B];
    __local long lo[B], hi[B];
    int lane = (int)get_local_id(0), tx = lane % 8, ty = lane / 8;
    place_of here = {(long)get_group_id(2), (long)get_group_id(1), c->q_heads / c->kv_heads, 0, (long)get_group_id(0) * B, 0};
    sequence s_ = sequence_of(workspace, c, here.seq);
    const sequence *s = &s_;
    const place_of *at = &here;
    if (here.key >= s->kv_len) return;
    float dk[PART][DQ / 8], dv[PART][DV / 8], unused[PART];
    for (int i = 0; i < PART; i++) {
        for (int x = 0; x < DQ / 8; x++) dk[i][x] = 0.0f;
        for (int x = 0; x < DV / 8; x++) dv[i][x] = 0.0f;
        unused[i] = 0.0f;
    }
    long rows = s->q_len * here.group, end = min(here.key + B, s->kv_len);
    for (here.first = 0; here.first < rows; here.first += B) {
        here.rows = (int)min((long)B, rows - here.first);
        barrier(CLK_LOCAL_MEM_FENCE);
        open_rows(c, s, at, lse, memory, lo, hi, row_lse, row_delta);
        interval any = hull_of(lo, hi);
        long key_lo = max(any.lo, here.key), key_hi = min(any.hi, end);
        if (key_lo >= key_hi) continue;
        pairs_of(c, s, at, key_lo, key_hi, q, k, v, d_o, slopes, left, right, lo, hi, row_lse, row_delta, p_tile, ds_tile,
                 unused);
        for (int slice = 0; slice < DV; slice += SLICE) {
            barrier(CLK_LOCAL_MEM_FENCE);
            LOAD_ROWS(left, O_TYPE, d_o, c->d_o, c->d_o_stride, 1.0f, c->head_dim_v)
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int r = 0; r < here.rows; r++)
                for (int i = 0; i < PART; i++) {
                    if (!sees(lo, hi, r, here.key + ty * PART + i)) continue;
                    float p = p_tile[r * (B + 1) + ty * PART + i];
                    for (int x = 0; x < COLUMNS; x++)
                        dv[i][slice / 8 + x] = fma(p, left[r * WIDTH + tx + 8 * x], dv[i][slice / 8 + x]);
                }
        }
        for (int slice = 0; slice < DQ; slice += SLICE) {
            barrier(CLK_LOCAL_MEM_FENCE);
            LOAD_ROWS(left, Q_TYPE, q, c->q, c->q_stride, as_float((int)c->factor), c->head_dim_qk)
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int r = 0; r < here.rows; r++)
                for (int i = 0; i < PART; i++) {
                    if (!sees(lo, hi, r, here.key + ty * PART + i)) continue;
                    float ds = ds_tile[r * (B + 1) + ty * PART + i];
                    for (int x = 0; x < COLUMNS; x++)
                        dk[i][slice / 8 + x] = fma(ds, left[r * WIDTH + tx + 8 * x], dk[i][slice / 8 + x]);
                }
        }
    }
    if (lane == 0) count_tile((__global volatile int *)workspace, c);
    for (int i = 0; i < PART; i++) {
        long key = here.key + ty * PART + i;
        if (key >= s->kv_len) continue;
        for (int x = 0; x < DQ / 8 && c->d_k >= 0; x++) {
            int column = x / COLUMNS * SLICE + tx + 8 * (x % COLUMNS);
            if (column >= c->head_dim_qk) continue;
            long to = c->d_k + key_at(0, c, c->d_k_stride, s, here.seq, -1, key, here.kv_head) + column;
            STORE(K_TYPE, d_k, to, dk[i][x] * as_float((int)c->gain));
        }
        for (int x = 0; x < DV / 8 && c->d_v >= 0; x++) {
            int column = x / COLUMNS * SLICE + tx + 8 * (x % COLUMNS);
            if (column >= c->head_dim_v) continue;
            long to = c->d_v + key_at(0, c, c->d_v_stride, s, here.seq, -1, key, here.kv_head) + column;
            STORE(V_TYPE, d_v, to, dv[i][x]);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void back_rows(call c_, __global const POINTER(Q_TYPE) *q, __global const POINTER(K_TYPE) *k, __global const POINTER(V_TYPE) *v,
               __global const POINTER(O_TYPE) *d_o, __global const float *lse, __global const float *slopes,
               __global POINTER(Q_TYPE) *d_q, __global float *memory) {
    const call *c = &c_;
    __global int *workspace = (__global int *)(memory + c->workspace);
    __local float left[B * WIDTH], right[B * WIDTH], p_tile[B * (B + 1)], ds_tile[B * (B + 1)], row_lse[B], row_delta[B];
    __local long lo[B], hi[B];
    int lane = (int)get_local_id(0), tx = lane % 8, ty = lane / 8;
    place_of here = {(long)get_group_id(2), (long)get_group_id(1), c->q_heads / c->kv_heads, (long)get_group_id(0) * B, 0, 0};
    sequence s_ = sequence_of(workspace, c, here.seq);
    const sequence *s = &s_;
    const place_of *at = &here;
    long rows = s->q_len * here.group;
    if (here.first >= rows) return;
    here.rows = (int)min((long)B, rows - here.first);
    open_rows(c, s, at, lse, memory, lo, hi, row_lse, row_delta);
    interval any = hull_of(lo, hi);
    if (lane == 0) {
        ulong pairs = 0;
        for (int r = 0; r < here.rows; r++) pairs += (ulong)(hi[r] - lo[r]);
        count_wide((__global volatile int *)workspace, VISIBLE, pairs);
    }
    float dq[PART][DQ / 8], slope_sums[PART];
    for (int i = 0; i < PART; i++) {
        for (int x = 0; x < DQ / 8; x++) dq[i][x] = 0.0f;
        slope_sums[i] = 0.0f;
    }
    for (here.key = any.lo < any.hi ? any.lo / B * B : any.hi; here.key < any.hi; here.key += B) {
        long key_lo = max(any.lo, here.key), key_hi = min(any.hi, here.key + B);
        pairs_of(c, s, at, key_lo, key_hi, q, k, v, d_o, slopes, left, right, lo, hi, row_lse, row_delta, p_tile, ds_tile,
                 slope_sums);
        for (int slice = 0; slice < DQ; slice += SLICE) {
            barrier(CLK_LOCAL_MEM_FENCE);
            LOAD_KEYS(right, K_TYPE, k, c->k, c->k_stride, c->head_dim_qk)
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int j = 0; j < B; j++)
                for (int i = 0; i < PART; i++) {
                    if (!sees(lo, hi, ty * PART + i, here.key + j)) continue;
                    float ds = ds_tile[(ty * PART + i) * (B + 1) + j];
                    for (int x = 0; x < COLUMNS; x++)
                        dq[i][slice / 8 + x] = fma(ds, right[j * WIDTH + tx + 8 * x], dq[i][slice / 8 + x]);
                }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < PART; i++) p_tile[(ty * PART + i) * (B + 1) + tx] = slope_sums[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) count_tile((__global volatile int *)workspace, c);
    if (lane < here.rows && c->row_slopes >= 0) {
        float sum = 0.0f;
        for (int x = 0; x < 8; x++) sum += p_tile[lane * (B + 1) + x];
        memory[c->workspace + c->row_slopes + delta_at(c, here.seq, token_of(at, lane), head_of(at, lane))] = sum;
    }
    for (int i = 0; i < PART && c->d_q >= 0; i++) {
        int r = ty * PART + i;
        if (r >= here.rows) continue;
        long to = c->d_q + row_at(c->d_q_stride, c, s, token_of(at, r), head_of(at, r));
        for (int x = 0; x < DQ / 8; x++) {
            int column = x / COLUMNS * SLICE + tx + 8 * (x % COLUMNS);
            if (column < c->head_dim_qk) STORE(Q_TYPE, d_q, to + column, dq[i][x] * as_float((int)c->scale));
        }
    }
}

/* The sum over the work-group, in the order of a tree. */
float sum_lanes(__local float *sums, float mine) {
    int lane = (int)get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    sums[lane] = mine;
    for (int step = LANES / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < step) sums[lane] += sums[lane + step];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return sums[0];
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void back_heads(call c_, __global const float *lse, __global const float *sinks, __global float *d_sinks,
                __global float *d_slopes, __global float *memory) {
    const call *c = &c_;
    __global int *workspace = (__global int *)(memory + c->workspace);
    __local float sums[LANES];
    int lane = (int)get_local_id(0);
    long head = (long)get_group_id(0);
    float of_sink = 0.0f, of_slope = 0.0f;
    for (long seq = 0; seq < c->batch; seq++) {
        sequence s = sequence_of(workspace, c, seq);
        if (c->d_slopes_stride != 0) of_slope = 0.0f;
        for (long token = lane; token < s.q_len; token += LANES) {
            long at = c->workspace + delta_at(c, seq, token, head);
            if (c->d_slopes >= 0) of_slope -= memory[at + c->row_slopes];
            if (c->d_sinks < 0 || sinks[c->sinks + head] == -INFINITY) continue;
            float under = sinks[c->sinks + head] - lse[c->lse + row_at(c->lse_stride, c, &s, token, head)];
            of_sink -= power(under, LOG2_E) * memory[at + c->deltas];
        }
        if (c->d_slopes < 0 || (c->d_slopes_stride == 0 && seq + 1 < c->batch)) continue;
        float sum = sum_lanes(sums, of_slope);
        if (lane == 0) d_slopes[c->d_slopes + seq * c->d_slopes_stride + head] = sum;
    }
    if (lane == 0 && c->d_slopes >= 0 && c->batch == 0 && c->d_slopes_stride == 0) d_slopes[c->d_slopes + head] = 0.0f;
    float sum = sum_lanes(sums, of_sink);
    if (lane == 0 && c->d_sinks >= 0) d_sinks[c->d_sinks + head] = sum;
    if (lane == 0) count_tile((__global volatile int *)workspace, c);
}
