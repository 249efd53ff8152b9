/* SPDX-License-Identifier: Apache-2.0 */
/* The @ words: how the tensors of a trial lie, and what is in them. */
#include "check/random.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "harness/mask_words.h"

static int any(const struct trial *t) { return t->problem.op >= 0; }
static int forward(const struct trial *t) { return t->problem.op == TP_FORWARD; }
static int paged(const struct trial *t) { return t->problem.kv_layout == TP_PAGED && !t->problem.latent; }
static int shares(const struct trial *t) { return t->problem.cascade > 0; }
static int sparse(const struct trial *t) { return t->problem.sparse_len > 0; }
static int scored(const struct trial *t) { return t->problem.bias_dtype || t->problem.alibi || t->problem.sinks; }

static int biased(const struct trial *t) { return t->problem.bias_dtype != 0; }
static int sloped(const struct trial *t) { return t->problem.alibi; }

static int spares(const struct trial *t) {
    const tp_problem *p = &t->problem;
    return p->q_layout == TP_PACKED || p->kv_layout == TP_PACKED || p->sparse_len > 0 || p->latent;
}

static int ends(const struct trial *t) {
    return t->problem.sparse_len > 0 || t->problem.bias_dtype || mask_has(&t->problem, TP_MASK_BITS);
}

/* Of kinds that read data for every row or key. */
static int scatters(const struct trial *t) {
    int found = t->problem.positions;
    for (int i = 0; i < t->problem.mask_nodes; i++) {
        const tp_mask_info *info = mask_kind(t->problem.mask[i].kind);
        found |= info && info->reads == TP_MASK_READS_DATA;
    }
    return found;
}

/* Where floats overflow all over, what a NaN reaches cannot be told from what they spoil. */
static int calm(const struct trial *t) {
    return !(t->problem.scale_set && fabsf(t->problem.scale) > 1e30f) && fabsf(t->problem.qscale_beta) < 1e30f;
}

static int calm_backward(const struct trial *t) { return calm(t) && t->problem.op == TP_BACKWARD; }

/* q, k and v side by side need equal lengths and dtypes. */
static int side_by_side(const struct trial *t) {
    const tp_problem *p = &t->problem;
    int equal = p->q_len == p->kv_len && p->q_layout == p->kv_layout && !p->latent && p->q_dtype == p->k_dtype &&
                p->q_dtype == p->v_dtype;
    for (int64_t i = 0; i < t->lengths.count; i++) equal &= t->lengths.seq[i].q_len == t->lengths.seq[i].kv_len;
    return equal;
}

/* Words of one field exclude each other. */
#define STYLE(name) offsetof(struct trial, style.name)
static const struct {
    const char *word;
    size_t offset;
    int value, chance; /* of a thousand */
    int (*fits)(const struct trial *trial);
} table[] = {
    {"@heads", STYLE(form), FORM_HEADS, 250, any},
    {"@qkv", STYLE(form), FORM_QKV, 500, side_by_side},
    {"@broadcast", STYLE(form), FORM_BROADCAST, 40, forward},
    {"@i64", STYLE(index64), 1, 400, any},
    {"@ragged", STYLE(ragged), 1, 250, any},
    {"@slack", STYLE(slack), 3, 150, any},
    {"@two-tables", STYLE(two_tables), 1, 400, paged},
    {"@prefix-trees", STYLE(prefixes), 1, 700, shares},
    {"@short", STYLE(short_sparse), 1, 300, sparse},
    {"@empty-ends", STYLE(empty_ends), 1, 300, ends},
    {"@scattered", STYLE(scattered), 1, 500, scatters},
    {"@extreme", STYLE(extreme), 1, 350, scored},
    {"@bias-rows-share", STYLE(shared_bias), 1, 150, biased},
    {"@bias-seqs-share", STYLE(shared_bias), 2, 150, biased},
    {"@bias-all-share", STYLE(shared_bias), 3, 150, biased},
    {"@no-lse", STYLE(lse), 0, 120, forward},
    {"@front", STYLE(guarded), GUARDED_FRONT, 300, any},
    {"@tiny", offsetof(struct trial, values), VALUES_TINY, 40, any},
    {"@huge", offsetof(struct trial, values), VALUES_HUGE, 40, any},
    {"@wide", offsetof(struct trial, values), VALUES_WIDE, 50, any},
    {"@nan-gradients", offsetof(struct trial, nan), NAN_GRADIENTS, 100, calm_backward},
    {"@nan", offsetof(struct trial, nan), NAN_ANYWHERE, 200, calm},
    {"@hidden", offsetof(struct trial, hidden), 1, 400, any},
    {"@slopes-share", STYLE(shared_slopes), 1, 400, sloped},
    {"@spare", STYLE(spare), 1, 300, spares},
};
enum { TRAITS = sizeof table / sizeof *table };
static const double gains[] = {0.01, 4, 30, 1000};

const char *trait_word(int index) { return index < TRAITS ? table[index].word : index == TRAITS ? "@gain-N" : NULL; }

int traits_read(struct trial *trial, const char *word) {
    int used;
    for (int i = 0; i < TRAITS; i++)
        if (!strcmp(word, table[i].word)) {
            *(int *)((char *)trial + table[i].offset) = table[i].value;
            return 0;
        }
    return sscanf(word, "@gain-%lf%n", &trial->style.gain, &used) != 1 || word[used];
}

/* Words that say what lies in q, k and v. */
static int is_content(size_t offset) {
    return offset == offsetof(struct trial, values) || offset == offsetof(struct trial, nan) ||
           offset == offsetof(struct trial, hidden);
}

/* Hostile drafts mostly have these. */
static int is_hostile(const char *word) { return !strcmp(word, "@extreme") || !strcmp(word, "@nan-gradients"); }

int traits_clash(const struct trial *trial, char *reason, size_t size) {
    if (trial->style.form != FORM_BROADCAST) return 0;
    for (int i = 0; i < TRAITS; i++) {
        if (!is_content(table[i].offset) || *(const int *)((const char *)trial + table[i].offset) != table[i].value) continue;
        snprintf(reason, size, "'%s' sets single values, which @broadcast shares: leave one of the two out", table[i].word);
        return 1;
    }
    return 0;
}

void traits_draw(struct trial *trial, struct draft *draft, char *text, size_t size) {
    struct dice *dice = &draft->dice;
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < TRAITS; i++) {
        int said = 0;
        for (int k = 0; k < i; k++) /* one word a field */
            said |= table[k].offset == table[i].offset && strstr(text, table[k].word) != NULL;
        said |= table[i].offset == offsetof(struct trial, nan) && strstr(text, "@huge") != NULL; /* see calm */
        said |= is_content(table[i].offset) && strstr(text, "@broadcast") != NULL; /* see traits_clash */
        int chance = draft->hostile && is_hostile(table[i].word) ? 900 : table[i].chance;
        if (said || !table[i].fits(trial) || !dice_chance(dice, chance)) continue;
        used += (size_t)snprintf(text + used, size - used, " %s", table[i].word);
    }
    if (dice_chance(dice, 150)) snprintf(text + used, size - used, " @gain-%g", gains[dice_roll(dice, 4)]);
}
