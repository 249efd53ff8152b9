/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/schedule.h"

#include "base/arena.h"
#include "masks/mask.h"

/* Tasks a thread should find, so that the last ones even out. */
#define TASKS_PER_THREAD 4
/* What reading and packing a key costs, in rows of work. */
#define KEY_ROWS 27
/* A part of fewer heads would read short pieces of each token. */
#define PART_HEADS 8

tp__path tp__path_of(const tp_problem *problem, tp__path chosen) {
    return problem->invariant ? TP__PREFILL : chosen;
}

int tp__decodes(const tp_problem *problem, tp__path path, int64_t q_len) {
    if (path != TP__BY_ROWS) return path == TP__DECODE;
    /* with sparse indices every token is on its own */
    int64_t rows = (problem->sparse_len > 0 ? 1 : q_len) * (problem->q_heads / problem->kv_heads);
    return rows <= tp_decode_rows((tp_dtype)problem->k_dtype);
}

int tp__decodes_shared(tp__path path, int64_t rows) {
    return path == TP__BY_ROWS ? rows <= TP__CASCADE_FEW : path == TP__DECODE;
}

int tp__prefills(const tp_problem *problem, tp__path path) {
    return !tp__decodes(problem, path, problem->q_len) ||
           (problem->cascade > 0 && !tp__decodes_shared(path, tp__cascade_rows(problem)));
}

const char *tp__bucket(const tp_problem *problem, int64_t q_len) {
    return tp__decodes(problem, tp__path_of(problem, TP__BY_ROWS), q_len) ? "few-rows" : "many-rows";
}

int64_t tp__chunk_keys(int decode) { return decode ? TP_DECODE_CHUNK_KEYS : TP_CHUNK_KEYS; }

/* Levels whose tasks a call within the problem's bounds may have: those of shared prefixes, and the sequences. */
static int levels_max(const tp_problem *problem) { return problem->cascade > 0 ? TP__CASCADE_LEVELS + 1 : 1; }

/* A range becomes a split range only when it is more than a 2*threads-th of all cost of its level. */
static int splits_of_level(int threads) { return threads > 1 ? 2 * threads : 0; }

int tp__split_kv_bound(const tp__cut *cut) { return levels_max(cut->problem) * splits_of_level(cut->threads); }

int64_t tp__schedule_bound(const tp__cut *cut) {
    const tp_problem *p = cut->problem;
    int64_t group = p->q_heads / p->kv_heads, heads = tp__times(p->batch, p->kv_heads);
    int64_t range = tp__min(cut->range_rows, cut->path == TP__DECODE ? TP__SPLIT_KV_ROWS : INT64_MAX);
    int64_t ranges = tp__times(heads, tp__times(p->q_len, group)) / range;
    if (p->sparse_len > 0) /* every token by itself */
        ranges = tp__times(heads, tp__times(p->q_len, (group + range - 1) / range));
    int64_t chunks = tp__row_keys_max(p) / TP_DECODE_CHUNK_KEYS + 2, spare = (TASKS_PER_THREAD + 1) * cut->threads + 2;
    spare += tp__times(splits_of_level(cut->threads), chunks);
    return heads > INT64_MAX / 4 || ranges > INT64_MAX / 4 || spare > INT64_MAX / 4
               ? INT64_MAX
               : tp__times(levels_max(p), heads + ranges + spare);
}

/* What is cut: a sequence, or a segment of several, with its merged rows and the keys [from, to) that they may see. */
typedef struct piece {
    const tp__segment *segment;
    tp__sequence seq; /* of a segment: the first that shares it */
    int64_t rows, from, to;
} piece;

static int64_t count_pieces(const tp__cut *cut, const tp_tensors *tensors, int level) {
    return level < cut->cascade->levels ? cut->cascade->segments : tensors->batch;
}

/* A segment of another level has no rows here. */
static piece piece_at(const tp__cut *cut, const tp_tensors *tensors, int level, int64_t index) {
    const tp_problem *problem = cut->problem;
    const tp__cascade *cascade = cut->cascade;
    if (level < cascade->levels) {
        const tp__segment *s = &cascade->segment[index];
        return (piece){s, tp__sequence_at(problem, tensors, cascade->order[s->first]),
                       s->level == level ? tp__segment_rows(cascade, s) : 0, s->from, s->to};
    }
    piece p = {NULL, tp__sequence_at(problem, tensors, index), 0, cascade->levels > 0 ? cascade->cut[index] : 0, 0};
    p.rows = p.seq.q_len * (problem->q_heads / problem->kv_heads);
    p.to = p.seq.kv_len;
    return p;
}

static int64_t keys_of_token(const tp__cut *cut, const tp_tensors *tensors, const piece *p, int64_t token) {
    const tp_problem *problem = cut->problem;
    if (p->segment != NULL) return p->to - p->from;
    if (problem->sparse_len > 0) return tp__sparse_count(problem, tensors, &p->seq, token);
    int64_t position = tp__mask_first_position(problem, p->seq.q_len, p->seq.kv_len);
    tp__interval seen = tp__mask_interval(problem, position + token, p->seq.kv_len);
    return seen.hi - tp__max(seen.lo, p->from);
}

/* Of one head: about the keys its rows see, taking the mean of its first and last row for all. */
static double range_cost(const tp__cut *cut, const tp_tensors *tensors, const piece *p, int64_t first, int64_t count) {
    int64_t group = cut->problem->q_heads / cut->problem->kv_heads;
    int64_t a = keys_of_token(cut, tensors, p, first / group);
    int64_t b = keys_of_token(cut, tensors, p, (first + count - 1) / group);
    return (double)(count + KEY_ROWS) * 0.5 * (double)(a + b);
}

/* Most costly first, and as built where costs are equal: a split range's tasks stay in order. */
static int before(const tp__task *a, const tp__task *b) {
    return a->cost != b->cost ? a->cost > b->cost : a->order < b->order;
}

static void sift(tp__task *task, size_t root, size_t count) {
    for (;;) {
        size_t child = 2 * root + 1;
        if (child >= count) return;
        if (child + 1 < count && before(&task[child], &task[child + 1])) child++;
        if (before(&task[child], &task[root])) return;
        tp__task swap = task[root];
        task[root] = task[child];
        task[child] = swap;
        root = child;
    }
}

/* Heap sort: qsort may allocate, and a run must not. */
static void sort_by_cost(tp__task *task, size_t count) {
    for (size_t i = count / 2; i-- > 0;) sift(task, i, count);
    for (size_t end = count; end-- > 1;) {
        tp__task swap = task[0];
        task[0] = task[end];
        task[end] = swap;
        sift(task, 0, end);
    }
}

static void add(tp__schedule *schedule, tp__task task) {
    task.order = (int64_t)schedule->count;
    schedule->task[schedule->count++] = task;
}

/* One task, or a split range of its chunks where it would keep one thread busy too long. */
static void add_range(tp__schedule *schedule, const tp__cut *cut, tp__task task, int64_t from, int64_t to, int splits_max,
                      double total) {
    int64_t step = tp__chunk_keys(task.decode), first = from / step, chunks = (to + step - 1) / step - first;
    int splits = schedule->splits < splits_max && chunks > 1 &&
                 task.heads * task.count <= TP__SPLIT_KV_ROWS &&
                 task.cost > total / (2.0 * cut->threads);
    if (!splits) {
        add(schedule, task);
        return;
    }
    task.split = schedule->splits++;
    task.cost /= (double)chunks;
    for (task.chunk = first; task.chunk < first + chunks; task.chunk++) add(schedule, task);
}

/* Whether a decode task looks at one head. Heads may see different keys, or drop different ones. Or the keys of a head
   lie together, and are read from end to end that way; but all heads of a page are near each other, and a mask that is
   not plain is evaluated once for all heads of a task. */
static int by_head(const tp_problem *problem, const tp_tensors *tensors) {
    return problem->dropout > 0 || tp__mask_by_head(problem, NULL) ||
           (tp__heads_lie_apart(&tensors->k) && tp__heads_lie_apart(&tensors->v) && problem->kv_layout != TP_PAGED &&
            tp__mask_is_plain(problem));
}

/* How many heads a decode task takes: all, unless threads or scratch ask for parts of them. Small parts only
   where there are too few chunks to share instead. */
static int64_t heads_of_part(const tp__cut *cut, const tp_tensors *tensors, int64_t rows, int64_t chunks, double cost,
                             double total) {
    int64_t heads = cut->problem->kv_heads;
    if (by_head(cut->problem, tensors)) return 1;
    /* the total is an estimate, and this part may cost more than all of it */
    double fair = (total > cost ? total : cost) / (TASKS_PER_THREAD * cut->threads);
    int64_t pieces = cut->threads > 1 && cost > fair ? (int64_t)(cost / fair) + 1 : 1;
    int64_t parts = tp__min(pieces, tp__max(heads / PART_HEADS, 1));
    parts = tp__min(tp__max(parts, pieces / tp__max(chunks, 1)), heads);
    int64_t part = tp__min((heads + parts - 1) / parts, tp__max(TP__SPLIT_KV_ROWS / rows, 1));
    /* as even as they come */
    parts = (heads + part - 1) / part;
    return (heads + parts - 1) / parts;
}

static void cut_piece(tp__schedule *schedule, const tp__cut *cut, const tp_tensors *tensors, piece p, size_t after,
                      int64_t range, int splits_max, double total) {
    const tp_problem *problem = cut->problem;
    int64_t group = problem->q_heads / problem->kv_heads, rows = p.rows;
    int decode = p.segment != NULL ? tp__decodes_shared(cut->path, rows) : tp__decodes(problem, cut->path, p.seq.q_len);
    if (decode) range = tp__min(range, TP__SPLIT_KV_ROWS);
    int64_t ranges = (rows + range - 1) / range, count;
    /* even ranges: a short last one would pack all its keys for a few rows */
    int64_t even = ranges > 0 ? (rows + ranges - 1) / ranges : 0;
    for (int64_t first = 0; first < rows; first += count) {
        count = tp__min(even, rows - first);
        if (problem->sparse_len > 0) { /* each token has keys of its own */
            count = tp__min(range, group - first % group);
            p.to = tp__sparse_count(problem, tensors, &p.seq, first / group);
        }
        int64_t chunks = (p.to - p.from + TP_DECODE_CHUNK_KEYS - 1) / TP_DECODE_CHUNK_KEYS;
        double cost = range_cost(cut, tensors, &p, first, count);
        int64_t heads = decode ? heads_of_part(cut, tensors, count, chunks, cost * (double)problem->kv_heads, total) : 1;
        for (int64_t head = 0; head < problem->kv_heads; head += heads) {
            int64_t n = tp__min(heads, problem->kv_heads - head);
            tp__task task = {p.seq.index, p.segment, head, n, first, count, -1, -1, decode, 0, after, cost * (double)n};
            add_range(schedule, cut, task, p.from, p.to, splits_max, total);
        }
    }
}

static void cut_level(tp__schedule *schedule, const tp__cut *cut, const tp_tensors *tensors, int level) {
    const tp_problem *problem = cut->problem;
    int64_t rows = 0, range = cut->range_rows, pieces = count_pieces(cut, tensors, level);
    size_t before = schedule->count;
    int splits_max = schedule->splits + splits_of_level(cut->threads);
    double total = 0;
    for (int64_t i = 0; i < pieces; i++) {
        piece p = piece_at(cut, tensors, level, i);
        rows += p.rows * problem->kv_heads;
        if (cut->threads > 1 && p.rows > 0) total += range_cost(cut, tensors, &p, 0, p.rows) * (double)problem->kv_heads;
    }
    if (cut->threads > 1) {
        int64_t fair = tp__max(rows / (TASKS_PER_THREAD * (int64_t)cut->threads), TP__RANGE_ROWS_MIN);
        range = tp__min(range, fair);
    }
    for (int64_t i = 0; i < pieces; i++)
        cut_piece(schedule, cut, tensors, piece_at(cut, tensors, level, i), before, range, splits_max, total);
    if (cut->threads > 1) sort_by_cost(schedule->task + before, schedule->count - before);
}

void tp__schedule_build(tp__schedule *schedule, const tp__cut *cut, const tp_tensors *tensors) {
    schedule->count = 0;
    schedule->splits = 0;
    atomic_init(&schedule->ticket, 0);
    atomic_init(&schedule->done, 0);
    for (int level = 0; level <= cut->cascade->levels; level++) cut_level(schedule, cut, tensors, level);
}
