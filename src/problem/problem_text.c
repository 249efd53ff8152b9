/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing the text form of tileproof.h section 3: words in any order, each at most once. */
#include "problem/sequence.h"

#include <stdio.h>
#include <string.h>

#include "base/structs.h"
#include "problem/mask_text.h"

/* What a word is about; one text says one thing about each, except that masks add up. */
typedef enum subject {
    PHASE,
    BATCH,
    HEADS,
    ROWS,
    KEYS,
    SEQUENCES,
    DIMS,
    DTYPES,
    PACKED,
    PADDED,
    ALIGN,
    MASK,
    MASK_TREE,
    POSITIONS,
    SCALE,
    PAGED,
    SPARSE,
    LATENT,
    INVARIANT,
    CASCADE,
    QSCALE,
    SOFTCAP,
    ALIBI,
    BIAS,
    SINKS,
    DROPOUT,
    WEIGHTS,
    SCALES,
    UNKNOWN
} subject;

/* A letter and a number, a name and a value, a whole word, or a whole word that sets a flag to 1. */
typedef enum form { LETTER, VALUE, WHOLE, FLAG } form;

static const struct word {
    const char *name;
    form form;
    subject about;
    tp_status (*take)(tp__words *w);
    size_t flag; /* of FLAG: where it stands in tp_problem */
} table[] = {
    {"prefill", WHOLE, PHASE, tp__take_phase, 0},
    {"decode", WHOLE, PHASE, tp__take_phase, 0},
    {"mixed", WHOLE, PHASE, tp__take_phase, 0},
    {"backward", FLAG, PHASE, NULL, offsetof(tp_problem, op)}, /* TP_BACKWARD */
    {"b", LETTER, BATCH, tp__take_batch, 0},
    {"h", LETTER, HEADS, tp__take_heads, 0},
    {"q", LETTER, ROWS, tp__take_rows, 0},
    {"k", LETTER, KEYS, tp__take_keys, 0},
    {"seqs=", VALUE, SEQUENCES, tp__take_sequences, 0},
    {"d", LETTER, DIMS, tp__take_dims, 0},
    {"packed", WHOLE, PACKED, tp__take_packed, 0},
    {"packed-q", WHOLE, PACKED, tp__take_packed_q, 0},
    {"packed-kv", WHOLE, PACKED, tp__take_packed_kv, 0},
    {"padded", WHOLE, PADDED, tp__take_padded, 0},
    {"paged=", VALUE, PAGED, tp__take_paged, 0},
    {"sparse=", VALUE, SPARSE, tp__take_sparse, 0},
    {"sparse-sorted=", VALUE, SPARSE, tp__take_sparse_sorted, 0},
    {"latent", FLAG, LATENT, NULL, offsetof(tp_problem, latent)},
    {"cascade=", VALUE, CASCADE, tp__take_cascade, 0},
    {"invariant", FLAG, INVARIANT, NULL, offsetof(tp_problem, invariant)},
    {"top-left", WHOLE, ALIGN, tp__take_top_left, 0},
    {"mask=", VALUE, MASK_TREE, tp__take_mask_tree, 0},
    {"positions", FLAG, POSITIONS, NULL, offsetof(tp_problem, positions)},
    {"scale=", VALUE, SCALE, tp__take_scale, 0},
    {"scales=", VALUE, SCALES, tp__take_scales, 0},
    {"qscale=", VALUE, QSCALE, tp__take_qscale, 0},
    {"softcap=", VALUE, SOFTCAP, tp__take_softcap, 0},
    {"alibi", FLAG, ALIBI, NULL, offsetof(tp_problem, alibi)},
    {"bias=", VALUE, BIAS, tp__take_bias, 0},
    {"dropout=", VALUE, DROPOUT, tp__take_dropout, 0},
    {"p=", VALUE, WEIGHTS, tp__take_p, 0},
    {"sinks", FLAG, SINKS, NULL, offsetof(tp_problem, sinks)},
};
static const struct word masks = {"", VALUE, MASK, tp__take_mask, 0};
static const struct word dtypes = {"", VALUE, DTYPES, tp__take_dtypes, 0};
static const struct word unknown = {"", VALUE, UNKNOWN, NULL, 0};

static int begins_number(const tp__words *w) {
    return w->end - w->word > 1 && memchr("0123456789-+", w->word[1], 12) != NULL;
}

static const struct word *find_word(const tp__words *w) {
    size_t size = (size_t)(w->end - w->word);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        size_t name = strlen(table[i].name);
        if (size < name || memcmp(w->word, table[i].name, name) != 0) continue;
        if (table[i].form >= WHOLE && size != name) continue;
        if (table[i].form == LETTER && !begins_number(w)) continue;
        return &table[i];
    }
    if (tp__mask_word_starts(w->word, w->end)) return &masks;
    return tp__word_is_dtypes(w) ? &dtypes : &unknown;
}

/* Names every word there is, from the tables themselves. */
static tp_status refuse_unknown(tp__words *w) {
    char list[448] = "";
    size_t used = 0;
    const char *name;
    int values;
    for (size_t i = 0; i < sizeof table / sizeof table[0] && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, " %s", table[i].name);
    for (int i = 0; tp__mask_word_at(i, &name, &values) && used < sizeof list; i++)
        if (name != NULL)
            used += (size_t)snprintf(list + used, sizeof list - used, " %s%s", name, values > 0 ? "=" : "");
    return TP__REFUSE_WORD(w, "unknown; words are%s, and dtypes such as bf16 or bf16->f32", list);
}

static tp_status take_word(tp__words *w) {
    const struct word *word = find_word(w);
    if (word->about == UNKNOWN) return refuse_unknown(w);
    if (word->about != MASK && w->seen >> word->about & 1)
        return TP__REFUSE_WORD(w, "repeated; each word may be given once");
    w->seen |= 1u << word->about;
    w->at = w->word + strlen(word->name);
    if (word->form != FLAG) return word->take(w);
    *(int32_t *)((char *)&w->problem + word->flag) = 1;
    return TP_OK;
}

static int is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static tp_status take_words(tp__words *w, const char *text) {
    for (;;) {
        while (is_space(*text)) text++;
        if (*text == 0) return TP_OK;
        w->word = w->end = text;
        while (*w->end != 0 && !is_space(*w->end)) w->end++;
        TP_TRY(take_word(w));
        text = w->end;
    }
}

static int has(const tp__words *w, subject about) {
    return w->seen >> about & 1;
}

static int lengths_differ(const tp_lengths *lengths, int of_q) {
    for (int64_t i = 1; i < lengths->count; i++)
        if (of_q ? lengths->seq[i].q_len != lengths->seq[0].q_len
                 : lengths->seq[i].kv_len != lengths->seq[0].kv_len)
            return 1;
    return 0;
}

static tp_status finish_sequences(tp__words *w, int want_lengths) {
    tp_problem *p = &w->problem;
    int64_t total = 0;
    for (int64_t i = 0; i < w->lengths.count; i++) total += w->lengths.seq[i].repeat;
    TP_REQUIRE(want_lengths, w->error, TP_INVALID,
               "word 'seqs=' gives %lld sequences their own lengths: it needs a tp_lengths, which "
               "is NULL",
               (long long)total);
    TP_REQUIRE(!has(w, ROWS) && !has(w, KEYS), w->error, TP_INVALID,
               "word 'seqs=' stands instead of q%lld and k%lld: give one or the other",
               (long long)p->q_len, (long long)p->kv_len);
    TP_REQUIRE(!has(w, BATCH) || p->batch == total, w->error, TP_INVALID,
               "word 'b%lld' contradicts seqs=, which holds %lld sequences", (long long)p->batch,
               (long long)total);
    TP_REQUIRE(has(w, PACKED) || has(w, PADDED) || has(w, PAGED), w->error, TP_INVALID,
               "word 'seqs=' needs 'packed', 'padded' or 'paged=': in a plain batch all lengths are equal");
    int differ = (p->q_layout == TP_BATCH && lengths_differ(&w->lengths, 1)) ||
                 (p->kv_layout == TP_BATCH && lengths_differ(&w->lengths, 0));
    TP_REQUIRE(
        has(w, PADDED) || !differ, w->error, TP_INVALID,
        "word 'seqs=' needs 'padded' too: lengths differ in the tensors that are not packed");
    p->batch = total;
    return TP_OK;
}

static const char *derived_phase(const tp__words *w) {
    const char *phase = tp__phase(w->problem.q_len, w->problem.kv_len);
    for (int64_t i = 0; i < w->lengths.count; i++) {
        const char *one = tp__phase(w->lengths.seq[i].q_len, w->lengths.seq[i].kv_len);
        if (i > 0 && strcmp(one, phase) != 0) return "mixed";
        phase = one;
    }
    return phase;
}

static tp_status finish(tp__words *w, int want_lengths) {
    tp_problem *p = &w->problem;
    TP_REQUIRE(has(w, DIMS), w->error, TP_INVALID,
               "word 'd' is missing: the head dim must be given, such as d128 or d192/128");
    TP_REQUIRE(has(w, ROWS) || has(w, SEQUENCES), w->error, TP_INVALID,
               "word 'q' is missing: the rows must be given, such as q512, or seqs=");
    TP_REQUIRE(!has(w, PADDED) || p->q_layout == TP_BATCH || p->kv_layout == TP_BATCH, w->error,
               TP_INVALID, "word 'padded' contradicts 'packed': give one or the other");
    TP_REQUIRE(!has(w, PAGED) || p->kv_layout == TP_BATCH, w->error, TP_INVALID,
               "word 'paged=%lld' contradicts 'packed': write 'packed-q' for q alone",
               (long long)p->page_size);
    if (has(w, PAGED)) p->kv_layout = TP_PAGED;
    if (has(w, SEQUENCES))
        TP_TRY(finish_sequences(w, want_lengths));
    else if (!has(w, KEYS))
        p->kv_len = p->q_len;
    TP_REQUIRE(w->masks.count == 0 || !has(w, MASK_TREE), w->error, TP_INVALID,
               "word 'mask=' is the whole tree: it stands instead of the masks' own words");
    TP_REQUIRE(has(w, MASK_TREE) || tp__mask_compose(p, &w->masks), w->error, TP_INVALID,
               "word 'mask': %d masks are one too many, a tree holds at most %d nodes", w->masks.count,
               TP_MAX_MASK_NODES);
    TP_TRY(tp__finish_scales(w));
    const char *phase = derived_phase(w);
    TP_REQUIRE(w->phase == NULL || (strlen(phase) == (size_t)w->phase_size &&
                                    memcmp(phase, w->phase, strlen(phase)) == 0),
               w->error, TP_INVALID,
               "word '%.*s': these lengths are %s; leave it out or write that", w->phase_size,
               w->phase, phase);
    return tp_problem_check(p, w->error);
}

tp_status tp_problem_parse_sized(const char *text, tp_problem *problem, size_t problem_size, tp_lengths *lengths,
                                 size_t lengths_size, tp_error *error) {
    TP_REQUIRE(text != NULL, error, TP_INVALID, "text is NULL: it must be a problem's text form");
    TP_REQUIRE(problem != NULL, error, TP_INVALID, "tp_problem is NULL");
    TP_REQUIRE_SIZE(tp_problem, problem_size, error);
    if (lengths != NULL) TP_REQUIRE_SIZE(tp_lengths, lengths_size, error);
    tp__words w;
    memset(&w, 0, sizeof w);
    w.error = error;
    tp_problem_init(&w.problem);
    TP_TRY(take_words(&w, text));
    TP_TRY(finish(&w, lengths != NULL));
    tp__struct_out(problem, problem_size, &w.problem, sizeof w.problem);
    if (lengths != NULL) tp__struct_out(lengths, lengths_size, &w.lengths, sizeof w.lengths);
    return TP_OK;
}
