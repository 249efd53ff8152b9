/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls qualify a group. Lengths are where something changes: a block of keys, a chunk, the edge of a
 * window, odd tails, a long context. Real heads are used at lengths that fit; where a call does not fit, one KV head
 * stands for all and the purpose says so. Where even that does not fit a border has no cell, and a cell that its phase
 * cannot do without is refused by name.
 */
#include <stdio.h>
#include <string.h>

#include "qualify.h"

/* Memory of q, k, v and o at 16 bits, and multiply-adds, that one cell may take. */
static const double max_bytes = 192e6, max_flops = 12e9, max_flops_quick = 3e9;
enum { EDGE_ROWS = 33, PAST_EDGE = 16, LONG_PREFILL = 16385, LONG_DECODE = 32769 };

typedef struct maker {
    const tp_layer_group *group; /* with a dtype */
    const char *cache;
    uint32_t phases;
    int quick;
    int64_t page_size, max_cells;
    tp__cell_taker *take;
    void *user;
    tp_status status; /* of the last one taken */
    tp_error *error;
    int64_t taken[TP_QUALIFY_ALL + 1]; /* cells of a phase */
} maker;

/* What one cell asks for. */
typedef struct wish {
    uint32_t phase;
    const char *purpose, *shows;
    int quick, timed; /* quick: part of a quick run, too */
    double gain;
    int one_row;      /* the form of a decode call */
    int spans;        /* with the group's spans and prefix */
    const char *layout;
    int64_t batch, q, k;
    const char *lengths; /* instead of the three, which then are 1 and the tokens of all sequences */
    int border;          /* its phase has other cells */
} wish;

const char *tp_qualify_phase_name(uint32_t phase) {
    static const char *const names[] = {"prefill", "decode", "varlen", "mixed", "multimodal"};
    for (int i = 0; i < 5; i++)
        if (phase == 1u << i) return names[i];
    return "phase?";
}

static int latent(const maker *m, const wish *w) { return w->one_row && m->group->decode_dim_qk; }

static int64_t kv_heads(const maker *m, const wish *w) {
    return latent(m, w) ? m->group->decode_kv_heads : m->group->kv_heads;
}

static int64_t dims(const maker *m, const wish *w) {
    const tp_layer_group *g = m->group;
    return latent(m, w) ? g->decode_dim_qk + g->decode_dim_v : g->head_dim_qk + g->head_dim_v;
}

static double flops(const maker *m, const wish *w) {
    return 2.0 * (double)(w->batch * w->q) * (double)w->k * (double)m->group->q_heads *
           (double)dims(m, w);
}

/* Of k and v, and of q and o, with one KV head and its query heads. */
static double bytes_a_head(const maker *m, const wish *w) {
    double group = (double)m->group->q_heads / (double)kv_heads(m, w);
    return (double)w->batch * ((double)w->k + (double)w->q * group) * (double)dims(m, w) * 2;
}

static double bytes(const maker *m, const wish *w) { return bytes_a_head(m, w) * (double)kv_heads(m, w); }

typedef struct words {
    char text[512];
    size_t used;
} words;

static void put(words *out, const char *word) {
    int n = snprintf(out->text + out->used, sizeof out->text - out->used, "%s%s",
                     out->used ? " " : "", word);
    if (n > 0) out->used += (size_t)n;
    if (out->used >= sizeof out->text) out->used = sizeof out->text - 1;
}

static int is_length(const char *word) {
    return strchr("bqk", word[0]) && word[1] >= '0' && word[1] <= '9';
}

/* "bf16", "bf16:i8:i8->bf16". */
static int is_dtype(const maker *m, const char *word) {
    const char *name = tp_dtype_name((tp_dtype)m->group->dtype);
    size_t length = strcspn(word, ":");
    return strlen(name) == length && !memcmp(word, name, length);
}

/* The words of the group's own text, with other lengths and layout. */
static void compose(const maker *m, const wish *w, int one_head, words *out) {
    char raw[512], lengths[160], heads[48], *state = NULL;
    int64_t rows = w->one_row ? 1 : 64;
    tp_layer_group_problem_in(m->group, m->cache, 1, rows, 64, raw, sizeof raw);
    snprintf(lengths, sizeof lengths, "b%lld q%lld k%lld", (long long)w->batch, (long long)w->q,
             (long long)w->k);
    strtok_r(raw, " ", &state); /* the phase */
    for (char *word; (word = strtok_r(NULL, " ", &state));) {
        int special = !strcmp(word, "spans") || !strncmp(word, "prefix=", 7);
        if (is_length(word) || !strcmp(word, "packed") || (special && !w->spans)) continue;
        if (word[0] == 'h') {
            snprintf(heads, sizeof heads, "h%lld/1",
                     (long long)(m->group->q_heads / kv_heads(m, w)));
            put(out, one_head ? heads : word);
            put(out, w->lengths ? w->lengths : lengths);
            continue;
        }
        put(out, word);
        if (is_dtype(m, word) && w->layout) put(out, w->layout);
    }
}

static void add(maker *m, const wish *w) {
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    words text = {{0}, 0};
    char purpose[32], printed[512], shows[64] = "", reason[640];
    tp_cell cell = TP_CELL_INIT;
    if (m->status != TP_OK || !(m->phases & w->phase) || (m->quick && !w->quick)) return;
    int one_head = bytes(m, w) > max_bytes, fits = bytes_a_head(m, w) <= max_bytes;
    if ((!fits && w->border) || (m->max_cells && m->taken[w->phase] == m->max_cells)) return;
    m->taken[w->phase]++;
    cell.phase = w->phase;
    cell.timed = w->timed;
    if (w->gain > 0) cell.gain = w->gain;
    snprintf(purpose, sizeof purpose, one_head ? "%.12s, 1 KV head" : "%s", w->purpose);
    cell.purpose = purpose;
    compose(m, w, one_head, &text);
    cell.problem = text.text;
    if (!fits) {
        cell.status = TP_CELL_UNSUPPORTED;
        cell.reason = reason;
        snprintf(reason, sizeof reason, "not run: q, k, v and o would take %.4g MB at 16 bits, with one KV head: at most %.0f",
                 bytes_a_head(m, w) * 1e-6, max_bytes * 1e-6);
    } else if (tp_problem_parse(text.text, &problem, &lengths, &error) != TP_OK) {
        cell.status = TP_CELL_UNSUPPORTED;
        cell.reason = reason;
        snprintf(reason, sizeof reason, "the core does not read this problem: %s", error.text);
    } else if (!w->lengths && tp_problem_print(&problem, NULL, printed, sizeof printed) == TP_OK) {
        cell.problem = printed;
    }
    if (w->shows) { /* the word itself, with its number */
        const char *at = strstr(text.text, w->shows);
        if (at) snprintf(shows, sizeof shows, "%.*s", (int)strcspn(at, " "), at);
        cell.shows = shows;
    }
    m->status = m->take(m->user, &cell, m->error);
}

static int64_t min(int64_t a, int64_t b) { return b && b < a ? b : a; }

/* The longest of a few odd lengths that is within the budget and the model's own limit. */
static int64_t main_length(const maker *m, int64_t max) {
    static const int64_t lengths[] = {1021, 509, 253, 125, 61};
    double budget = m->quick ? max_flops_quick : max_flops;
    int causal = m->group->all_of & TP_TERM_CAUSAL ? 2 : 1;
    for (int i = 0; i < 5; i++) {
        int64_t n = min(lengths[i], max);
        wish w = {.batch = 1, .q = n, .k = n};
        if (i == 4 || flops(m, &w) / causal <= budget) return n;
    }
    return 61;
}

static int64_t window_keys(const tp_layer_group *g) {
    return g->all_of & TP_TERM_WINDOW && g->window_left > 0 ? g->window_left + 1 : 0;
}

/* One cell behind each border that this many rows can stand on. */
static void add_edges(maker *m, uint32_t phase, int64_t rows, int64_t past) {
    const tp_layer_group *g = m->group;
    int64_t max = g->kv_max, window = window_keys(g), one_row = rows == 1;
    wish w = {.phase = phase, .quick = 1, .batch = 1, .q = rows, .one_row = (int)one_row, .border = 1};
    if (window && (!max || window + past <= max)) {
        w.purpose = "window", w.shows = "window=", w.k = window + past;
        add(m, &w);
    }
    if (g->all_of & TP_TERM_CHUNK && (!max || g->chunk + past <= max)) {
        w.purpose = "mask chunk", w.shows = "chunk=", w.k = g->chunk + past;
        add(m, &w);
    }
}

static void add_prefill(maker *m) {
    const tp_layer_group *g = m->group;
    int64_t dim = g->head_dim_qk > g->head_dim_v ? g->head_dim_qk : g->head_dim_v;
    int cross = g->part == TP_PART_CROSS, causal = (g->all_of & TP_TERM_CAUSAL) != 0;
    int64_t max = min(g->q_max ? g->q_max : INT64_MAX, cross ? 0 : g->kv_max);
    int64_t n = main_length(m, max == INT64_MAX ? 0 : max);
    int64_t tile = min(tp_block_keys(dim) + 1, max == INT64_MAX ? 0 : max);
    wish w = {.phase = TP_QUALIFY_PREFILL, .batch = 1, .quick = 1};
    w.purpose = "main", w.timed = 1, w.shows = causal && !window_keys(g) ? "causal" : NULL; /* a window hides what causal does */
    w.q = n, w.k = cross ? min(1021, g->kv_max) : n;
    add(m, &w);
    w.timed = 0, w.purpose = "short", w.q = w.k = 7;
    add(m, &w);
    w.quick = 0, w.shows = NULL, w.border = 1;
    w.purpose = "tile", w.gain = 8, w.q = tile, w.k = cross ? min(tile, g->kv_max) : tile;
    add(m, &w);
    w.gain = 0;
    if (cross) {
        w.purpose = "long", w.q = n, w.k = g->kv_max;
        add(m, &w);
    }
    if (!causal) return;
    add_edges(m, TP_QUALIFY_PREFILL, EDGE_ROWS, PAST_EDGE);
    w.purpose = "key chunk", w.q = EDGE_ROWS, w.k = TP_CHUNK_KEYS + PAST_EDGE;
    if (!g->kv_max || w.k <= g->kv_max) add(m, &w);
    for (w.purpose = "long", w.k = LONG_PREFILL; w.k > 2 * TP_CHUNK_KEYS; w.k = w.k / 2 + 1)
        if ((!g->kv_max || w.k <= g->kv_max) && flops(m, &w) <= max_flops && bytes(m, &w) <= max_bytes) {
            add(m, &w);
            break;
        }
}

static void add_decode(maker *m) {
    const tp_layer_group *g = m->group;
    int mla = g->decode_dim_qk > 0;
    char pages[48], rows[80], lengths[64];
    wish w = {.phase = TP_QUALIFY_DECODE, .quick = 1, .one_row = 1};
    snprintf(pages, sizeof pages, "paged=%lld%s", (long long)m->page_size, mla ? " latent" : "");
    w.purpose = "main", w.timed = 1, w.batch = 2, w.q = 1, w.k = min(4099, g->kv_max);
    add(m, &w);
    w.purpose = "pages", w.timed = 0, w.k = min(1030, g->kv_max), w.layout = pages;
    add(m, &w);
    /* the batch of a server that packs its rows */
    snprintf(rows, sizeof rows, "packed-q %s", pages);
    snprintf(lengths, sizeof lengths, "seqs=3x1/%lld,1x1/17,1x1/1", (long long)min(1030, g->kv_max));
    w.purpose = "rows in pages", w.layout = rows, w.lengths = lengths;
    w.batch = 1, w.q = 5, w.k = 3 * min(1030, g->kv_max) + 18;
    add(m, &w);
    w.quick = 0, w.layout = w.lengths = NULL, w.q = 1, w.border = 1;
    w.purpose = "key chunk", w.gain = 8, w.k = min(TP_DECODE_CHUNK_KEYS + 1, g->kv_max);
    add(m, &w);
    w.purpose = "drafts", w.gain = 0, w.q = 4, w.k = min(1031, g->kv_max);
    add(m, &w);
    add_edges(m, TP_QUALIFY_DECODE, 1, 8);
    w.purpose = "long", w.q = 1, w.layout = mla ? "latent" : NULL;
    for (w.k = min(LONG_DECODE, g->kv_max); w.k > TP_CHUNK_KEYS; w.k = w.k / 2 + 1)
        if (bytes(m, &w) <= max_bytes) {
            add(m, &w);
            break;
        }
}

/* Sequences of every kind side by side: one row, odd tails, more than a block, none at all; with many query heads a
   KV head fewer rows of each. */
static void add_packed(maker *m) {
    const tp_layer_group *g = m->group;
    char lengths[160], layout[64];
    int generates = g->part == TP_PART_CROSS || g->all_of & TP_TERM_CAUSAL;
    int64_t max = min(min(300, g->q_max), g->kv_max), keys = min(700, g->kv_max), some = 129, few = 64;
    wish w = {.phase = TP_QUALIFY_VARLEN, .purpose = "packed", .quick = 1, .timed = 1, .batch = 1, .q = max + 201,
              .k = max + 206};
    if (g->part == TP_PART_CROSS) {
        w.q = 202, w.k = keys + 467;
        snprintf(lengths, sizeof lengths, "seqs=1x1/300,1x65/%lld,1x0/5,1x7/33,1x129/129", (long long)keys);
    } else {
        if (bytes_a_head(m, &w) > max_bytes) {
            max = min(31, max), some = 33, few = 16;
            w.q = max + 57, w.k = max + 62;
        }
        snprintf(lengths, sizeof lengths, "seqs=1x1/1,1x%lld/%lld,1x0/5,1x7/7,1x%lld/%lld,1x%lld/%lld", (long long)max,
                 (long long)max, (long long)some, (long long)some, (long long)few, (long long)few);
    }
    w.lengths = lengths, w.layout = "packed";
    add(m, &w);
    if (!generates) return;
    /* where decode has another form it can serve all rows of a mixed call, and prefill's cannot */
    w.phase = TP_QUALIFY_MIXED, w.purpose = "chunks + rows", w.one_row = g->decode_dim_qk > 0;
    snprintf(lengths, sizeof lengths, "seqs=2x33/%lld,4x1/%lld,1x9/9,1x1/17",
             (long long)min(577, g->kv_max), (long long)min(1030, g->kv_max));
    snprintf(layout, sizeof layout, "packed-q paged=%lld%s", (long long)m->page_size,
             g->decode_dim_qk > 0 ? " latent" : "");
    w.layout = layout, w.q = 80, w.k = 2 * min(577, g->kv_max) + 4 * min(1030, g->kv_max) + 26;
    add(m, &w);
}

static void add_multimodal(maker *m) {
    const tp_layer_group *g = m->group;
    wish w = {.phase = TP_QUALIFY_MULTIMODAL, .batch = 1, .quick = 1, .timed = 1, .spans = 1};
    if (!(g->or_of & (TP_TERM_SPAN | TP_TERM_PREFIX))) return;
    w.purpose = g->or_of & TP_TERM_SPAN ? "spans" : "prefix";
    w.shows = g->or_of & TP_TERM_SPAN ? "spans" : "prefix=";
    w.q = w.k = main_length(m, min(g->q_max ? g->q_max : 1021, g->kv_max));
    if (w.q < 2 * g->prefix) w.q = w.k = 2 * g->prefix + 1;
    add(m, &w);
}

tp_status tp__group_cells(const tp_layer_group *group, const tp_qualify_options *options, tp__cell_taker *take, void *user,
                          tp_error *error) {
    tp_layer_group known = *group;
    if (!known.dtype) known.dtype = options->dtype;
    maker m = {.group = &known,
               .cache = options->cache,
               .phases = options->phases,
               .quick = options->quick,
               .page_size = options->page_size,
               .max_cells = options->max_cells,
               .take = take,
               .user = user,
               .error = error};
    if (group->out_of_scope) return TP_OK;
    add_prefill(&m);
    if (group->part == TP_PART_CROSS || group->all_of & TP_TERM_CAUSAL) add_decode(&m);
    add_packed(&m);
    add_multimodal(&m);
    return m.status;
}
