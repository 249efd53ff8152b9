/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all kernels share: the call, where things lie, elements, the power of two, what a row sees.
 *
 * Macros of the build: DQ and DV, the head dims rounded up to SLICE; BR, rows of a tile; Q_TYPE, K_TYPE, V_TYPE, O_TYPE, a
 * tp_dtype each. A work-group is 8 x 8 work-items: tx takes keys or columns, ty rows.
 *
 * Rounding is the CPU kernels' (docs/maths.md): products and sums by fma and in one order, the power of two and tanh by the same
 * polynomials, which use nothing that OpenCL leaves to a device but fma. log alone is the device's own, within 3 ulp.
 */
#pragma OPENCL FP_CONTRACT OFF

#define SLICE 32 /* columns of K, V, Q or dO in local memory at a time */
#define KEYS 32  /* of a block: the running maximum changes between blocks only. Part of the numerics */
#define WIDTH (SLICE + 1)
#define TILE_KEYS (KEYS / 8)
#define LANES 64

/* ---- what the host reads back */

/* To 64 bits in two words. */
void count_wide(__global volatile int *counters, int at, ulong n) {
    uint low = (uint)n, before = (uint)atomic_add(&counters[at], (int)low);
    uint carry = before + low < before;
    if ((uint)(n >> 32) + carry != 0) atomic_add(&counters[at + 1], (int)((uint)(n >> 32) + carry));
}

/* Once by each work-group that did its work: what did nothing is not counted. */
void count_tile(__global volatile int *counters, const call *c) {
    atomic_xchg(&counters[MARK], (int)c->mark);
    atomic_inc(&counters[TILES]);
}

/* ---- elements */
enum { F32 = 1, F16, BF16 };

float load_bf16(__global const ushort *p, long i) { return as_float((uint)p[i] << 16); }
void store_bf16(__global ushort *p, long i, float x) {
    uint bits = as_uint(x);
    p[i] = (ushort)(isnan(x) ? (bits >> 16) | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define POINTER_1 float
#define POINTER_2 half
#define POINTER_3 ushort
#define LOAD_1(p, i) ((p)[i])
#define LOAD_2(p, i) vload_half((i), (p))
#define LOAD_3(p, i) load_bf16((p), (i))
#define STORE_1(p, i, x) ((p)[i] = (x))
#define STORE_2(p, i, x) vstore_half_rte((x), (i), (p))
#define STORE_3(p, i, x) store_bf16((p), (i), (x))
#define POINTER(type) CAT(POINTER_, type)
#define LOAD(type, p, i) CAT(LOAD_, type)(p, i)
#define STORE(type, p, i, x) CAT(STORE_, type)(p, i, x)

/* ---- arithmetic */
#define LOG2_E 0x1.715476p+0f

/* 2^(x*unit) for x <= 0; exactly 0 far below, for -inf too; NaN stays NaN. src/kernels/vec/vec.h has the same. */
float power(float x, float unit) {
    if (isnan(x)) return x;
    if (x * unit < -100.0f) return 0.0f;
    float n = rint(x * unit), f = fma(x, unit, -n), p = 0x1.5bba14p-10f;
    p = fma(p, f, 0x1.3cea88p-7f);
    p = fma(p, f, 0x1.c6b752p-5f);
    p = fma(p, f, 0x1.ebf9bcp-3f);
    p = fma(p, f, 0x1.62e42ap-1f);
    p = fma(p, f, 1.0f);
    return ldexp(p, (int)n);
}

/* a/b for b that is not 0, to about one rounding: OpenCL's own division may be 2.5 ulp off. */
float divide(float a, float b) {
    float by = 1.0f / b, near = a * by, better = fma(fma(-near, b, a), by, near);
    return isfinite(better) ? better : near;
}

/* tanh(x*unit * ln2/2), of the same polynomial as the CPU's. */
float tanh_of(float x, float unit) {
    if (isnan(x)) return x;
    float y = fmax(-fabs(x), -64.0f / unit), n = rint(y * unit), f = fma(y, unit, -n), p = 0x1.4308fap-13f;
    p = fma(p, f, 0x1.5f07b4p-10f);
    p = fma(p, f, 0x1.3b2ba0p-7f);
    p = fma(p, f, 0x1.c6af6ep-5f);
    p = fma(p, f, 0x1.ebfbdep-3f);
    p = fma(p, f, 0x1.62e430p-1f);
    float two = ldexp(1.0f, (int)n), e = fma(two, f * p, two - 1.0f);
    return copysign(divide(-e, 2.0f + e), x);
}

/* ---- sequences */
typedef struct sequence {
    long q_len, kv_len;
    long q_at, kv_at; /* its first token in tensors that are packed, otherwise its number */
} sequence;

long index_of(__global const int *workspace, const call *c, long array, long i) {
    __global const int *at = workspace + array;
    if (c->wide) return (long)((ulong)(uint)at[2 * i] | (ulong)(uint)at[2 * i + 1] << 32);
    return at[i];
}

/* One side of a sequence. 0: an array holds what it must not; on the host it would have been refused. */
int side_of(__global const int *workspace, const call *c, long seq, long cu, long lens, long held, long max_length, long tokens,
            long *start, long *length) {
    *start = seq;
    *length = held;
    if (cu >= 0) {
        long next = index_of(workspace, c, cu, seq + 1);
        *start = index_of(workspace, c, cu, seq);
        if (*start < 0 || next < *start || next > tokens || next - *start > max_length) return 0;
        *length = next - *start;
    }
    if (lens >= 0) {
        long used = index_of(workspace, c, lens, seq);
        if (used < 0 || used > *length) return 0;
        *length = used;
    }
    return 1;
}

/* A sequence that is wrong has no rows and no keys, and the call ends as TP_INVALID. */
sequence sequence_of(__global int *workspace, const call *c, long seq) {
    sequence s;
    int right = side_of(workspace, c, seq, c->cu_q, c->q_lens, c->q_len, c->q_max, c->q_tokens, &s.q_at, &s.q_len);
    right &= side_of(workspace, c, seq, c->cu_kv, c->kv_lens, c->kv_len, c->kv_max, c->kv_tokens, &s.kv_at, &s.kv_len);
    if (!right) {
        atomic_or((__global volatile int *)&workspace[WRONG], 1);
        s.q_len = s.kv_len = 0;
    }
    return s;
}

/* Element of a token's head in a tensor that is laid out like q. */
long row_at(const number *stride, const call *c, const sequence *s, long token, long head) {
    return (c->q_packed ? (s->q_at + token) * stride[1] : s->q_at * stride[0] + token * stride[1]) + head * stride[2];
}

/* The same for keys; table: where the pages of this tensor stand. -1: its page is none of the pool's. */
long key_at(__global int *workspace, const call *c, const number *stride, const sequence *s, long seq, long table, long key,
            long head) {
    if (c->page_size == 0)
        return (c->kv_packed ? (s->kv_at + key) * stride[1] : s->kv_at * stride[0] + key * stride[1]) + head * stride[2];
    long page = index_of(workspace, c, table, seq * c->page_slots + key / c->page_size);
    if (page < 0 || page >= c->pages) {
        atomic_or((__global volatile int *)&workspace[WRONG], 2);
        return -1;
    }
    return page * stride[0] + key % c->page_size * stride[1] + head * stride[2];
}

/* ---- masks: the keys lo..hi-1 that a token sees, one interval */
typedef struct interval {
    long lo, hi;
} interval;

long position_of(const call *c, const sequence *s, long token) {
    return c->top_left ? token : token + s->kv_len - s->q_len;
}

interval seen_by(const call *c, const sequence *s, long token) {
    long at = position_of(c, s, token);
    interval i = {0, s->kv_len};
    if (c->left >= 0) i.lo = max(i.lo, at - c->left);
    if (c->right >= 0) i.hi = min(i.hi, at + c->right + 1);
    if (c->chunk > 0) {
        long first = at / c->chunk - (at % c->chunk < 0);
        i.lo = max(i.lo, first * c->chunk);
        i.hi = min(i.hi, (first + 1) * c->chunk);
    }
    if (i.hi < i.lo) i.hi = i.lo;
    return i;
}

/* A score after q.k, in the units that `unit` turns into powers of two; steep: its derivative by scale*q.k. */
float score_of(const call *c, float t, float slope, long distance, float *steep) {
    *steep = 1.0f;
    if (!c->natural) return t;
    float s = as_float((int)c->gain) * t, cap = as_float((int)c->cap);
    if (cap > 0.0f) {
        float by = tanh_of(s, 2.0f * LOG2_E / cap);
        *steep = fma(-by, by, 1.0f);
        s = cap * by;
    }
    return s - slope * fabs((float)distance);
}
