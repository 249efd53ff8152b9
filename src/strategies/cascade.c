/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/cascade.h"

#include "masks/mask.h"
#include "strategies/strategy.h"

#define FULL_ROWS 4
#define CACHE_BYTES ((int64_t)32 << 20)

int64_t tp__cascade_rows(const tp_problem *problem) {
    int64_t rows = tp__times(problem->q_len, problem->q_heads / problem->kv_heads);
    if (problem->cascade == 0) return rows;
    return tp__max(rows, tp__times(problem->batch, tp__min(rows, TP__CASCADE_ROWS)));
}

tp__state tp__state_take(tp__arena *arena, int64_t rows, int64_t ldo) {
    tp__state s;
    s.m = TP_TAKE(arena, float, rows);
    s.l = TP_TAKE(arena, float, rows);
    s.o = TP_TAKE(arena, float, tp__times(rows, ldo));
    return s;
}

tp__cascade tp__cascade_take(tp__arena *arena, const tp_problem *problem, int64_t ldo) {
    tp__cascade c = {0};
    if (problem->cascade == 0) return c;
    int64_t batch = problem->batch, rows = tp__times(problem->q_len, problem->q_heads / problem->kv_heads);
    rows = tp__times(tp__times(batch, tp__min(rows, TP__CASCADE_ROWS)), problem->kv_heads);
    /* those of a level have two sequences or more, and no sequence twice */
    c.segment = TP_TAKE(arena, tp__segment, tp__times(batch / 2, TP__CASCADE_LEVELS));
    c.order = TP_TAKE(arena, int64_t, batch);
    c.shared = TP_TAKE(arena, int64_t, batch);
    c.row = TP_TAKE(arena, int64_t, batch + 1);
    c.place = TP_TAKE(arena, int64_t, batch);
    c.cut = TP_TAKE(arena, int64_t, batch);
    c.next = TP_TAKE(arena, int64_t, batch);
    c.limit = TP_TAKE(arena, int64_t, batch);
    c.whole = tp__state_take(arena, rows, ldo);
    if (problem->invariant) c.open = tp__state_take(arena, rows, ldo);
    return c;
}

/* Keys 0..n-1 that all its rows see. Ends never move left from row to row, so two rows say it. */
static int64_t limit_of(const tp_problem *problem, const tp__sequence *seq) {
    int64_t rows = seq->q_len * (problem->q_heads / problem->kv_heads);
    if (rows == 0 || rows > TP__CASCADE_ROWS) return 0;
    int64_t position = tp__mask_first_position(problem, seq->q_len, seq->kv_len);
    tp__interval first = tp__mask_interval(problem, position, seq->kv_len);
    tp__interval last = tp__mask_interval(problem, position + seq->q_len - 1, seq->kv_len);
    return first.lo == 0 && last.lo == 0 ? first.hi : 0;
}

/* Threads each sequence behind the one it shares with, before all that share less: then those with more in common are
   nearer, and what two have in common is the least that stands between them. */
static void thread(tp__cascade *c, const tp_tensors *t) {
    for (int64_t s = 0; s < t->batch; s++) {
        int64_t at = tp__index_at(t, t->shared_with, s), keys = at < 0 ? 0 : tp__index_at(t, t->shared_lens, s);
        c->cut[s] = keys; /* until it is placed: keys in common with the one before it */
        c->next[s] = -1;
        if (at < 0) continue;
        while (c->next[at] >= 0 && c->cut[c->next[at]] > keys) at = c->next[at];
        c->next[s] = c->next[at];
        c->next[at] = s;
    }
}

static void place(tp__cascade *c, int64_t s, int64_t keys, int64_t rows) {
    c->order[c->members] = s;
    c->shared[c->members] = keys;
    c->row[c->members + 1] = c->row[c->members] + rows;
    c->place[s] = c->members++;
}

/* The order of all that take part. Those that do not leave what their neighbours have in common over them. */
static void arrange(tp__cascade *c, const tp_problem *problem, const tp_tensors *t, int64_t unit) {
    int64_t group = problem->q_heads / problem->kv_heads;
    c->members = 0;
    c->row[0] = 0;
    for (int64_t root = 0; root < t->batch; root++) {
        if (tp__index_at(t, t->shared_with, root) >= 0) continue;
        int64_t common = 0;
        for (int64_t s = root; s >= 0; s = c->next[s]) {
            common = tp__min(common, c->cut[s]);
            c->place[s] = -1;
            if (c->limit[s] == 0) continue;
            int64_t keys = common == 0 ? 0 : tp__min(common, tp__min(c->limit[s], c->limit[c->order[c->members - 1]]));
            place(c, s, keys / unit * unit, tp__sequence_at(problem, t, s).q_len * group);
            common = INT64_MAX;
        }
    }
}

/* Whether a pass over keys [from, to) for all these rows gains more than its states cost. Four rows of a sequence use a key as
   well as sixteen of four sequences do, as long as sharers find it in a cache. */
static int pays(const tp_problem *problem, int64_t rows, int64_t sharers, int64_t keys) {
    int few = rows <= TP__CASCADE_FEW && rows >= FULL_ROWS * sharers;
    return problem->invariant || !few || keys * problem->kv_heads * tp__key_bytes(problem) >= CACHE_BYTES;
}

/* Runs of places first..end-1 with more than `over` keys in common, and within them those with more again. `from`: keys that
   segments around them have. */
static void divide(tp__cascade *c, const tp_problem *problem, int64_t first, int64_t end, int64_t over, int64_t from, int level,
                   int depth) {
    for (int64_t next; first < end; first = next) {
        int64_t to = INT64_MAX;
        for (next = first + 1; next < end && c->shared[next] > over; next++) to = tp__min(to, c->shared[next]);
        if (next - first < 2) continue;
        int taken = pays(problem, c->row[next] - c->row[first], next - first, to - from);
        if (taken) {
            c->segment[c->segments++] = (tp__segment){first, next - first, from, to, level};
            c->levels = level + 1 > c->levels ? level + 1 : c->levels;
            for (int64_t i = first; i < next; i++) c->cut[c->order[i]] = to;
        }
        if (level + taken < TP__CASCADE_LEVELS && depth < 2 * TP__CASCADE_LEVELS)
            divide(c, problem, first, next, to, taken ? to : from, level + taken, depth + 1);
    }
}

void tp__cascade_find(tp__cascade *c, const tp_problem *problem, const tp_tensors *tensors, int64_t unit) {
    c->levels = 0;
    c->segments = 0;
    if (problem->cascade == 0) return;
    for (int64_t s = 0; s < tensors->batch; s++) {
        tp__sequence seq = tp__sequence_at(problem, tensors, s);
        c->limit[s] = limit_of(problem, &seq);
    }
    thread(c, tensors);
    arrange(c, problem, tensors, unit);
    for (int64_t s = 0; s < tensors->batch; s++) c->cut[s] = 0;
    divide(c, problem, 0, c->members, 0, 0, 0, 0);
}
