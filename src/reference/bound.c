/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a kernel that follows docs/maths.md may be from one row of the definition.
 *
 *     |o' - o| <= sum_j w_j g_j |v_j - o| / (L D)       weights off by a factor within 1 + g_j
 *               + roundings of the sums / (L D) + |o| Q  the sums o and l themselves
 *               + 2u|o| + half an ulp of the output      the division, the store
 *     |lse' - lse| <= log of the mean factor + Q + u|lse|
 *
 * with u = 2^-24, L = sum w, D = the least mean factor, Q the relative error of the row sum. Every
 * term is taken from the row's own data: a rounding of a running sum costs u times that sum's
 * magnitude, so the keys are walked here in the kernel's blocks and chunks. The letters are derived
 * in docs/maths.md. An infinity says that the kernel's floats may overflow and nothing is promised.
 */
#include "reference/reference.h"

#include "base/dtype.h"
#include "reference/rounding.h"

#define CASCADE_LEVELS 3 /* strategies/cascade.h: shared prefixes of a row, at most */
#define EXACT_INT 0x1p24 /* integers below are floats */
#define LANES     16

/* Stands before the loop over columns. Its arrays do not overlap, and there are too many of them for the compiler to test that
   before it vectorises. */
#ifdef __clang__
#define NO_ALIAS _Pragma("clang loop vectorize(assume_safety)")
#else
#define NO_ALIAS _Pragma("GCC ivdep")
#endif

typedef struct growth {
    double up, down; /* the kernel's weight lies in weight * [down, 1 + up] */
    double log;      /* of that factor, whatever its size */
} growth;

#define LARGEST_CODE 448.0
#define LOG_MAX 600.0 /* the exponential of more is not computed */

/* Which of decode's chains meets element x of a key: bf16 elements are loaded two by two. */
static int chain_of(const tp_problem *problem, int64_t x) {
    int paired = problem->k_dtype == TP_BF16 && x < problem->head_dim_qk / (2 * LANES) * (2 * LANES);
    return (int)(paired ? x / 2 % LANES : x % LANES);
}

/* What a key's scale adds to the error of its score, in units of log2: prefill rounds each element code * scale, decode sums
   q * code, of e4m3 in units of 2^-8, and rounds the product with the scale. Sums of codes, and elements, must not overflow. */
static double scaled_error(const tp__reference_row *row, const tp__key *key, double sum, double size, double queries,
                           double largest, double *reach) {
    const double units = row->problem->k_dtype == TP_E4M3 ? 0x1p8 : 1;
    double d = (double)row->problem->head_dim_qk, scale = tp__code_scale(row, 0, key->index);
    if (!tp__scales_by_row(row->problem->k_scales)) return 0;
    *reach = fmax(*reach, fmax(queries * LN_2 * LARGEST_CODE, largest));
    return UNIT * (size + fabs(sum)) + (queries + 2 * d * scale * units) * TINY;
}

/* Of one score, in units of log2; *reach, in natural ones, is the largest magnitude its sums can have. */
static double score_error(const tp__reference_row *row, const tp__key *key, double *reach) {
    const tp_problem *problem = row->problem;
    double c = row->scale * TP__LOG2_E, d = (double)problem->head_dim_qk;
    double sum = 0, walk = 0, size = 0, input = 0, lane[LANES] = {0}, lanes_walk = 0, queries = 0, largest = 0;
    double part[2] = {0}, parts_walk = 0;
    const int64_t step = row->rounding->step;
    unsigned begun = 0; /* chains */
    const double *of_key = tp__row_k(row, key->index);
    for (int64_t x = 0; x < problem->head_dim_qk; x++) {
        double k = of_key[x], q = c * row->q[x], term = q * k;
        sum += term;
        size += fabs(term);
        queries += fabs(q);
        largest = fmax(largest, fabs(k));
        if (x > 0) walk += fabs(sum);
        int chain = chain_of(problem, x);
        lane[chain] += term;
        if (begun >> chain & 1) lanes_walk += fabs(lane[chain]);
        begun |= 1u << chain;
        if (step > 0) {
            part[x % 2] += term;
            if (x % step > 1) parts_walk += fabs(part[x % 2]);
            if ((x + 1) % step == 0 || x + 1 == problem->head_dim_qk) {
                parts_walk += fabs(part[0] + part[1]) + fabs(sum);
                part[0] = part[1] = 0;
            }
        }
        if (q != 0 && fabs(q) < FLT_MIN * 4) input += 2 * fabs(k) * TINY; /* q may be subnormal */
    }
    double scaled = scaled_error(row, key, sum, size, queries, largest, reach);
    if (size == 0) return 0;
    *reach = fmax(*reach, size * LN_2 * SECOND_ORDER);
    /* prefill sums one chain, or two for each step and then the steps; decode sixteen and then their tree */
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes_walk += fabs(lane[i] += lane[i + half]);
    walk = fmax(walk, fmax(lanes_walk, parts_walk));
    double unit = row->rounding->sum, operands = tp__product_error(row->rounding->query, row->rounding->key) * size;
    return (unit * (walk + size + fabs(sum)) + operands + scaled + input + 2 * d * TINY) / (1 - 2 * (d + 4) * unit);
}

/* What a score that has this error goes through after q.k: docs/maths.md section 7. All in units of log2. */
static double changed_error(const tp__reference_row *row, tp__key *key, double error, double *reach) {
    const tp_problem *problem = row->problem;
    double score = key->plain * TP__LOG2_E * row->row_scale, size = fabs(score), max;
    if (problem->qscale_length > 0) error = error * fabs(row->row_scale) + 2 * UNIT * size;
    max = fmax(fabs(row->row_scale), (size + error) * LN_2);
    key->plain_error = error;
    if (problem->softcap > 0) {
        double x = key->plain * row->row_scale / problem->softcap;
        score = problem->softcap * TP__LOG2_E * tanh(x);
        /* tanh grows by at most its argument: 3u of that, its own error, the product */
        error = fmin(error + 3 * UNIT * size, 2 * problem->softcap * TP__LOG2_E) +
                fabs(score) * (TANH_ERROR + UNIT) + TINY;
    }
    if (problem->alibi) {
        double term = tp__alibi_at(row, key->index) * TP__LOG2_E;
        double distance = fabs((double)(row->position - tp__mask_k_pos(&row->view, key->index)));
        score += term;
        error += UNIT * (2 * fabs(term) + fabs(score)) + TINY;
        max = fmax(max, fabs(term) * LN_2);
        if (row->farthest >= EXACT_INT && distance > 0)
            error += 4 * UNIT * fabs(term) / distance * row->farthest;
    }
    if (problem->bias_dtype != 0) {
        /* the sum is at least as near as the bias itself, which is a float */
        double before = fabs(score) + error;
        max = fmax(max, before * LN_2);
        score += tp__bias_value(row, key->index) * TP__LOG2_E;
        error += fmin(UNIT * fabs(score), before) + TINY;
    }
    *reach = fmax(*reach, fmax(max, fabs(key->score)));
    return error;
}

/* Whether any float on the way to a score may overflow; fills in the keys' errors. */
static int scores_overflow(tp__reference_row *row) {
    double reach = 0, best = -INFINITY;
    int sinks = 0;
    for (int64_t x = 0; x < row->problem->head_dim_qk; x++)
        reach = fmax(reach, fabs(row->scale * row->q[x]));
    for (int64_t i = 0; i < row->count; i++) {
        tp__key *key = &row->keys[i];
        key->error = 0;
        if (key->score == -INFINITY) continue;
        if (key->index == TP__SINK) {
            sinks = 1;
            reach = fmax(reach, fabs(key->score));
            continue;
        }
        key->error = key->plain_error = score_error(row, key, &reach);
        if (tp__modifies_scores(row->problem)) key->error = changed_error(row, key, key->error, &reach);
        best = fmax(best, key->score);
    }
    /* the maximum becomes natural before it meets the sink; where scores change it is already */
    int rounds = sinks && best > -INFINITY && !tp__modifies_scores(row->problem);
    for (int64_t i = 0; rounds && i < row->count; i++)
        if (row->keys[i].index != TP__SINK) row->keys[i].error += UNIT * fabs(best) * TP__LOG2_E;
    return !(reach < OVERFLOWS);
}

/* Where the kernel cuts the keys. */
typedef struct grid {
    int64_t block, chunk;
    double cuts; /* of keys that are shared: where they end, a block or chunk is cut that would go on */
} grid;

/* Visible keys first..end-1 are one block of one chunk. */
typedef struct cut {
    int64_t first, end;
    int new_chunk, last_of_chunk;
} cut;

static cut next_cut(const tp__reference_row *row, int64_t first, const grid *g) {
    const tp__key *keys = row->keys;
    int64_t chunk = keys[first].place / g->chunk, end = first;
    int64_t part = keys[first].place % g->chunk / g->block;
    while (end < row->count && keys[end].place / g->chunk == chunk &&
           keys[end].place % g->chunk / g->block == part)
        end++;
    return (cut){first, end, first == 0 || keys[first - 1].place / g->chunk != chunk,
                 end == row->count || keys[end].place / g->chunk != chunk};
}

/* A running maximum of the kernel's scores is only known to lie in an interval. */
typedef struct span {
    double low, high;
} span;

static void span_join(span *a, span b) {
    a->low = fmax(a->low, b.low);
    a->high = fmax(a->high, b.high);
}

static void count_rescale(tp__key *keys, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) keys[i].rescales++;
}

/* A factor c is exactly 1, and costs nothing, unless the maximum can have moved. Returns what the
   greatest score can be. */
static span count_rescales(tp__reference_row *row, const grid *g) {
    for (int64_t i = 0; i < row->count; i++) row->keys[i].rescales = 0;
    span nothing = {-INFINITY, -INFINITY}, total = nothing, chunk = nothing;
    int64_t chunk_first = 0;
    for (int64_t i = 0; i < row->count;) {
        cut part = next_cut(row, i, g);
        span here = nothing;
        for (; i < part.end; i++) {
            double score = row->keys[i].score * TP__LOG2_E, error = row->keys[i].error;
            span_join(&here, (span){score - error, score + error});
        }
        if (part.new_chunk) chunk = nothing, chunk_first = part.first;
        if (here.high > chunk.low) count_rescale(row->keys, chunk_first, part.first);
        span_join(&chunk, here);
        if (!part.last_of_chunk) continue;
        if (chunk.high > total.low) count_rescale(row->keys, 0, chunk_first);
        if (total.high > chunk.low) count_rescale(row->keys, chunk_first, part.end);
        span_join(&total, chunk);
    }
    return total;
}

/* In log2, how far below the maximum no weight becomes 0. */
static double kept_of(const tp__reference_row *row) {
    const tp__rounding *r = row->rounding;
    return r->kept > 0 && row->problem->p_dtype == TP_BF16 ? r->kept : r->lowest;
}

static growth weight_growth(const tp__key *key, const span *top, double lowest, double kept) {
    if (key->score == -INFINITY) return (growth){0, 1, 0};
    double score = key->score * TP__LOG2_E, gap = top->high - (score - key->error);
    double min = (top->low - (score + key->error)) * (1 - 3 * UNIT);
    if (min > lowest + 2) return (growth){1, 0, 0}; /* exactly 0, however large the roundings of its score */
    double log_factor = LN_2 * (key->error + 3 * UNIT * gap) + (double)(1 + key->rescales) * EXP2_ERROR;
    growth g = {expm1(fmin(log_factor, LOG_MAX)), exp(-log_factor), log_factor};
    if (gap > kept) g = (growth){fmax(g.up, 1), 0, log_factor};
    return g;
}

/* What the walk over all keys leaves, beside the columns. */
typedef struct walk {
    double grown, shrunk;    /* sums of weight * (1 + up), weight * down */
    double sum_walk;         /* as tp__columns.walk, for the row sum */
    double steps, sum_steps; /* roundings that one key's share can pass through */
    double log;              /* the greatest of a key's factor */
    double reach;            /* the largest element that a code could be, with its key's scale */
} walk;

/* The best key's score, and how far it may fall. */
typedef struct best {
    double score, fall;
} best;

static best best_of(const tp__reference_row *row, const span *top) {
    best b = {-INFINITY, 0};
    for (int64_t i = 0; i < row->count; i++)
        if (row->keys[i].score > b.score)
            b = (best){row->keys[i].score, weight_growth(&row->keys[i], top, row->rounding->lowest, kept_of(row)).log};
    return b;
}

/* How much more a key's weight may be. One that is too small for a double may still grow to that of the best key. */
static double weight_more(const tp__key *key, const growth *factor, const best *max) {
    if (factor->log < LOG_MAX && key->weight >= DBL_MIN) return factor->up * key->weight;
    return exp(fmin(0, key->score - max->score + factor->log + max->fall));
}

/* fmax without its care for NaN, which only columns that are NaN meet: the loop below is the dearest of all. */
static double larger(double a, double b) { return b > a ? b : a; }

static void add_key(const tp__reference_row *row, const tp__key *key, double more) {
    const tp__columns c = row->columns;
    const double *value = tp__row_v(row, key), *o = row->o;
    double weight = key->weight, stays = key->stays;
    int64_t dv = row->problem->head_dim_v;
    NO_ALIAS
    for (int64_t x = 0; x < dv; x++) {
        double v = stays * value[x], term = weight * v, distance = fabs(v - o[x]);
        c.block[x] += term;
        c.chunk[x] += term;
        c.walk[x] += larger(fabs(c.block[x]), fabs(c.chunk[x]));
        c.size[x] += fabs(term);
        c.shift[x] += more * fabs(v);
        c.spread[x] += more * distance;
        c.largest[x] = larger(c.largest[x], fabs(v));
        c.farthest[x] = larger(c.farthest[x], distance);
    }
}

static walk walk_keys(tp__reference_row *row, const grid *g, span top) {
    const tp__columns *c = &row->columns;
    int64_t block = g->block;
    int64_t dv = row->problem->head_dim_v, chunks = 0;
    double total = 0, chunk = 0;
    best highest = best_of(row, &top);
    walk w = {0};
    for (int64_t x = 0; x < dv; x++)
        c->block[x] = c->chunk[x] = c->total[x] = c->walk[x] = c->size[x] = c->shift[x] = c->spread[x] =
            c->largest[x] = c->farthest[x] = 0;
    for (int64_t i = 0; i < row->count;) {
        cut part = next_cut(row, i, g);
        double before = chunk, mass = 0;
        for (int64_t x = 0; x < dv; x++) {
            c->walk[x] += fabs(c->chunk[x]);
            c->block[x] = 0;
        }
        for (; i < part.end; i++) {
            growth factor = weight_growth(&row->keys[i], &top, row->rounding->lowest, kept_of(row));
            double more = weight_more(&row->keys[i], &factor, &highest);
            add_key(row, &row->keys[i], more);
            mass += row->keys[i].weight;
            w.log = fmax(w.log, factor.log);
            w.grown += row->keys[i].weight + more;
            w.shrunk += row->keys[i].weight * factor.down;
        }
        chunk += mass;
        int64_t seen = part.end - part.first, lane = seen < block / LANES ? seen : block / LANES;
        w.sum_walk += (double)(lane + 4) * mass + before + chunk; /* a hidden key adds 0: exact */
        for (int64_t x = 0; x < dv; x++) c->walk[x] += fabs(c->chunk[x]);
        if (!part.last_of_chunk) continue;
        if (chunks++ > 0) w.sum_walk += 2 * (total + chunk);
        total += chunk;
        chunk = 0;
        for (int64_t x = 0; x < dv; x++) {
            double both = c->total[x] + c->chunk[x];
            if (chunks > 1) c->walk[x] += fabs(c->total[x]) + fabs(c->chunk[x]) + fabs(both);
            c->total[x] = both;
            c->chunk[x] = 0;
        }
    }
    for (int64_t i = 0; i < row->count && row->keys[i].index != TP__SINK; i++)
        w.reach = fmax(w.reach, LARGEST_CODE * tp__code_scale(row, 1, row->keys[i].index));
    /* a cut rescales and merges once more, wherever it is: at most all there is */
    w.sum_walk += g->cuts * 4 * total;
    for (int64_t x = 0; x < dv && g->cuts > 0; x++) c->walk[x] += g->cuts * 5 * c->size[x];
    double merges = 2.0 * (double)((g->chunk + block - 1) / block) + 3.0 * (double)chunks + 5 * g->cuts;
    w.steps = fmin((double)row->count, (double)g->chunk) + merges + 2;
    w.sum_steps = (double)(block / LANES + 4) + merges;
    return w;
}

static double column_bound(const tp__reference_row *row, int64_t x, const walk *w, double sum_error) {
    const tp__columns *c = &row->columns;
    double min = fmax(w->shrunk, DBL_MIN), o = row->o[x], unit = row->rounding->sum;
    int scaled = tp__scales_by_row(row->problem->v_scales); /* each element is rounded, or each weight times its scale */
    double operands = tp__product_error(row->rounding->weight, row->rounding->value + (scaled ? UNIT : 0));
    double weights = fmin(c->spread[x] / min, c->farthest[x]);
    /* a step's own chains: half of its products in each, then both together */
    double walked = c->walk[x] + (row->rounding->step > 0 ? (double)(row->rounding->step / 2 + 1) * c->size[x] : 0);
    double sums = unit * (walked + c->size[x] + w->steps * c->shift[x]) / (1 - w->steps * unit) / min;
    sums = fmin(sums, 2 * w->steps * unit * c->largest[x]);
    if (operands > 0) sums += operands * fmin((c->size[x] + c->shift[x]) / min, 2 * c->largest[x]);
    sums += ((scaled ? 2 + LARGEST_CODE : 2) * (double)row->count + 2 * w->steps) * TINY;
    double error = weights + (sums + (fabs(o) + weights) * sum_error) / (1 - sum_error);
    error *= SECOND_ORDER;
    error += (row->problem->dropout > 0 ? 5 : 2) * UNIT * (fabs(o) + error) + TINY;
    /* the sum of weight * v is at most count * |v|, whatever maximum it is relative to */
    if (!((double)row->count * c->largest[x] * SECOND_ORDER < FLT_MAX && w->reach < FLT_MAX)) return INFINITY;
    return c->largest[x] == 0 ? 0 : error + tp__store_error(row->problem->o_dtype, fabs(o) + error);
}

static void bound_of(tp__reference_row *row, const grid *g, double *bound, double *lse_bound) {
    walk w = walk_keys(row, g, count_rescales(row, g));
    double sum_error = UNIT * (w.sum_walk + w.sum_steps * (w.grown - row->sum)) /
                       (1 - w.sum_steps * UNIT) / fmax(w.shrunk, DBL_MIN);
    sum_error = fmin(sum_error, 2 * w.sum_steps * UNIT);

    for (int64_t x = 0; x < row->problem->head_dim_v; x++) {
        if (!isfinite(row->o[x])) continue; /* must be non-finite, which is no matter of size */
        double *found = &row->columns.bound[x];
        *found = fmax(*found, column_bound(row, x, &w, sum_error));
        *bound = fmax(*bound, *found);
    }
    /* beyond what can be summed up: no score moves by more, and the greatest keeps its weight of 1 */
    double moved = w.log < LOG_MAX ? fmax(log(w.grown / row->sum), -log(w.shrunk / row->sum))
                                    : w.log + log(row->sum);
    double error = moved - log1p(-sum_error);
    if (row->rounding->log > 0) /* of the row sum, which is at most the number of keys; of the maximum where it becomes natural */
        error += row->rounding->log * log((double)row->count + 1) + 2 * UNIT * (fabs(row->lse) + log((double)row->count + 1));
    error *= SECOND_ORDER;
    *lse_bound = fmax(*lse_bound, error + UNIT * (fabs(row->lse) + error) + TINY);
}

/* A score of -inf meets ALiBi's product, which is infinite itself where it is rounded before the sum: a kernel gives NaN. */
static int infinities_meet(const tp__reference_row *row) {
    for (int64_t i = 0; i < row->count; i++)
        if (row->keys[i].index != TP__SINK && row->keys[i].score == -INFINITY &&
            !(fabs(tp__alibi_at(row, row->keys[i].index)) < OVERFLOWS))
            return 1;
    return 0;
}

void tp__row_bound(tp__reference_row *row, double *bound, double *lse_bound) {
    *bound = *lse_bound = 0; /* of a row that is NaN or empty: the kernel's is just that */
    for (int64_t x = 0; x < row->problem->head_dim_v; x++) row->columns.bound[x] = 0;
    if (isnan(row->lse)) return;
    int meet = infinities_meet(row);
    if (!meet && !isfinite(row->lse)) return;
    if (row->keys[0].index == TP__SINK) return; /* and nothing else: no arithmetic, and no q was read */
    if (meet || scores_overflow(row)) {
        *bound = *lse_bound = INFINITY;
        return;
    }
    int64_t dim = row->problem->head_dim_qk > row->problem->head_dim_v ? row->problem->head_dim_qk
                                                                       : row->problem->head_dim_v;
    int64_t block = row->rounding->block;
    int shares = row->problem->cascade > 0 && !row->problem->invariant;
    double cuts = shares ? CASCADE_LEVELS : 0;
    grid grids[] = {{tp_block_keys(dim), TP_CHUNK_KEYS, cuts},
                    {tp_decode_block_keys(dim, (tp_dtype)row->problem->k_dtype), TP_DECODE_CHUNK_KEYS, cuts}};
    if (block > 0) {
        grids[0] = (grid){block, (row->sequence.kv_len / block + 1) * block, 0};
        grids[1] = (grid){block, row->rounding->split, 0};
    }
    for (int i = row->problem->invariant ? 1 : 2; i-- > 0;) bound_of(row, &grids[i], bound, lse_bound);
    if (!shares) return;
    /* shared keys may go by one loop and the others by the other: both bounds, each at most the larger, add up */
    for (int64_t x = 0; x < row->problem->head_dim_v; x++) row->columns.bound[x] *= 2;
    *bound *= 2;
    *lse_bound *= 2;
}
